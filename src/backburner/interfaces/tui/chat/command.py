"""The `chat` command: an interactive conversation with an agent while tasks run in the background.

Chooses the view: a full terminal, a plain terminal that can only print, or a single message with its answer.
"""

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
import sys

from backburner.coordination.config_file import load_config
from backburner.core.errors import BackburnerError, BadInput
from backburner.core.optional_dependencies import need
from backburner.core.sessions import SessionId
from backburner.core.terminal_text import clean, readable, shortened
from backburner.interfaces.cli.run import cwd
from backburner.interfaces.tui.chat.conversation import ChatConversation, new_session_id
from backburner.interfaces.tui.chat.session import ChatSession, ChatView, unsent_message
from backburner.interfaces.tui.chat.slash_commands import split_piped
from backburner.services.app import open_app
from backburner.services.async_app import AsyncApp
from backburner.system.caller_identity import current_caller
from backburner.system.home import Home
from backburner.system.paths import locate

_MAX_INPUT = 1_900_000  # characters
_EXIT_TIMEOUT_SECONDS = 10
_NO_MODEL = "Slash commands work without a model; /help lists them."


def chat(args: argparse.Namespace, flags: dict[str, str]) -> int:
    """Run the chat until the user exits, or for one message given with `-m` or on standard input."""
    environ = dict(os.environ)
    home = Home(locate(args.home, environ))
    need("tui", "A chat needs")
    if load_config(home, environ, flags).text("models.default"):
        need("agent", "A chat with a model needs")
    args.cwd = cwd()
    piped = "" if sys.stdin.isatty() else sys.stdin.read(_MAX_INPUT + 1)
    if len(piped) > _MAX_INPUT:
        raise BadInput(f"The input has more than {_MAX_INPUT:,} characters. Save it to a file and name the file in the message.")
    if args.message is not None or not sys.stdin.isatty():
        message = "\n\n".join(part for part in (args.message, piped.rstrip("\n")) if part)
        if not message.strip():
            raise BadInput("The message is empty. Use: backburner chat -m TEXT, or pipe text to standard input.")
        return asyncio.run(_run_once(home, environ, flags, args, message))
    if os.environ.get("TERM", "dumb") in ("dumb", "unknown", "") or not sys.stdout.isatty():
        return asyncio.run(_run_plain(home, environ, flags, args))
    return asyncio.run(_run_screen(home, environ, flags, args))


def _use_colour() -> bool:
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


async def _open_conversation(async_app: AsyncApp, args: argparse.Namespace) -> ChatConversation:
    """Open a new chat, or with `--resume` an earlier one of the project."""
    session_id = new_session_id()
    if args.resume is not None:
        chats = await async_app.call(lambda app: app.conversations.chats(current_caller("chat", app.environ)))
        ids = [record.session_id for record in chats]
        matches = [found for found in ids if args.resume in SessionId.parse(found).key] if args.resume else ids[:1]
        if not matches and args.resume:
            raise BadInput(f"There is no chat '{args.resume}' in this project.")
        if not matches:
            raise BadInput("There is no earlier chat in this project.")
        if len(matches) > 1 and args.resume:
            raise BadInput(f"'{args.resume}' matches several chats: {', '.join(matches[:5])}.")
        session_id = matches[0]
    conversation = ChatConversation(async_app, session_id, args.cwd, args.agent)
    await conversation.open()
    return conversation


async def _run_once(home: Home, environ: dict[str, str], flags: dict[str, str], args: argparse.Namespace, message: str) -> int:
    from backburner.interfaces.tui.chat.plain_terminal import PlainTerminal

    async with AsyncApp(lambda: open_app(home, environ, flags)) as async_app:
        conversation = await _open_conversation(async_app, args)
        width = (lambda: shutil.get_terminal_size().columns - 1) if sys.stdout.isatty() else None
        view = PlainTerminal(markdown_width=width, colour=_use_colour(), interactive=sys.stdin.isatty() and sys.stdout.isatty())
        view.session = ChatSession(async_app, conversation, view, home.root, terminal=False)
        if args.message is None:
            return await view.run_parts(split_piped(message))
        await conversation.model_name()  # raises before anything is sent if no model is configured
        return await view.run_message(message)


async def _run_plain(home: Home, environ: dict[str, str], flags: dict[str, str], args: argparse.Namespace) -> int:
    from backburner.interfaces.tui.chat.plain_terminal import PlainTerminal

    async with AsyncApp(lambda: open_app(home, environ, flags)) as async_app:
        conversation = await _open_conversation(async_app, args)
        view = PlainTerminal(markdown_width=None, colour=False, interactive=True)
        view.session = ChatSession(async_app, conversation, view, home.root, terminal=False)
        await _show_start(view.session, view)
        return await view.run_lines()


async def _run_screen(home: Home, environ: dict[str, str], flags: dict[str, str], args: argparse.Namespace) -> int:
    from backburner.interfaces.tui.chat.screen import ChatScreen

    os.makedirs(home.root, 0o700, exist_ok=True)
    screen = ChatScreen(os.path.join(home.root, "chat_history"), colour=_use_colour())

    def exit_soon() -> None:
        signal.alarm(_EXIT_TIMEOUT_SECONDS)  # ends the process even if something hangs because the terminal is gone
        screen.request_exit()

    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, exit_soon)
    errors: list[BaseException] = []

    async def run_session() -> None:
        try:
            async with AsyncApp(lambda: open_app(home, environ, flags)) as async_app:
                conversation = await _open_conversation(async_app, args)
                session = ChatSession(async_app, conversation, screen, home.root, terminal=True)
                screen.attach(session)
                await _show_start(session, screen)
                await asyncio.to_thread(_start_agent_process, home, environ)
                running = asyncio.create_task(session.run())
                exiting = asyncio.create_task(session.exit_requested.wait())
                try:
                    await asyncio.wait({running, exiting}, return_when=asyncio.FIRST_COMPLETED)
                    if running.done() and (error := running.exception()):
                        raise error
                finally:
                    async with session.sending:
                        for task in (running, exiting):
                            task.cancel()
                    await asyncio.gather(running, exiting, return_exceptions=True)
                    if conversation.is_live:
                        key = SessionId.parse(conversation.session_id).key
                        screen.show(f"The agent continues in the background. To see its answer: backburner chat --resume {key}", "hint")
                    await screen.wait_printed()
        except BackburnerError as error:
            errors.append(error)
        finally:
            screen.close()

    tasks: list[asyncio.Task[None]] = []
    await screen.run(lambda: tasks.append(asyncio.create_task(run_session())))
    for task in tasks:
        if not task.done():
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    for line in screen.unsent_lines():
        screen.show(unsent_message(line), "hint")
    await screen.wait_printed()
    if errors:
        raise errors[0]
    return 0


def _start_agent_process(home: Home, environ: dict[str, str]) -> None:
    """Start the agent process while the user types, so that the first answer does not wait for it to load."""
    from importlib.util import find_spec

    from backburner.coordination.launcher import start_daemon
    from backburner.system.home import is_locked

    if find_spec("pydantic_ai") and not is_locked(os.path.join(home.root, "agents.lock")):
        start_daemon(home, "agents.process", environ)


async def _show_start(session: ChatSession, view: ChatView) -> None:
    """Show the end of the earlier conversation, and how to configure a model if there is none."""
    conversation = session.conversation
    for message in await conversation.past():
        if message.author == "you":
            view.show(f"› {shortened(readable(message.text), longest=2000)}", "sent")
        elif message.author == "tool":
            view.show(clean(message.text), "tool")
        else:
            view.add_answer(message.text)
            view.end_paragraph()
    try:
        await conversation.model_name()
    except BackburnerError as error:
        view.show(f"{error}\n{_NO_MODEL}", "hint")
    await session.refresh()
