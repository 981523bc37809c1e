"""`chat`: the place where a person talks with an agent while work goes on behind it."""

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
import sys

from backburner.core.errors import BackburnerError, BadInput
from backburner.core.optional_dependencies import need
from backburner.core.sessions import SessionId
from backburner.core.terminal_text import clean, readable, shortened
from backburner.interfaces.cli.run import cwd
from backburner.interfaces.tui.chat.conversation import ChatConversation, fresh_session
from backburner.interfaces.tui.chat.session import ChatSession, ChatView, unsent_message
from backburner.services.app import App, open_app
from backburner.services.async_app import AsyncApp
from backburner.system.caller_identity import current_caller
from backburner.system.home import Home, locate

_LONGEST_INPUT = 1_900_000
_NO_MODEL = "Commands with a slash work without one; /help lists them."


def chat(args: argparse.Namespace, flags: dict[str, str]) -> int:
    """Talk until the person leaves, or once with `-m` or piped input."""
    environ = dict(os.environ)
    home = Home(locate(args.home, environ))
    need("tui", "A chat needs")
    args.cwd = cwd()
    piped = "" if sys.stdin.isatty() else sys.stdin.read(_LONGEST_INPUT + 1)
    if len(piped) > _LONGEST_INPUT:
        raise BadInput(f"The input has over {_LONGEST_INPUT:,} characters; put it into a file and name that.")
    if args.message is not None or not sys.stdin.isatty():
        message = "\n\n".join(part for part in (args.message, piped.rstrip("\n")) if part)
        if not message.strip():
            raise BadInput("There is nothing to say: backburner chat -m TEXT, or text as input.")
        return asyncio.run(_once(home, environ, flags, args, message))
    if os.environ.get("TERM", "dumb") in ("dumb", "unknown", "") or not sys.stdout.isatty():
        return asyncio.run(_lines(home, environ, flags, args))
    return asyncio.run(_screen(home, environ, flags, args))


def _colour() -> bool:
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


async def _opened(awaited: AsyncApp, args: argparse.Namespace) -> ChatConversation:
    """The chat that is meant: a new one, or with `--resume` one of before."""
    session = fresh_session()
    if args.resume is not None:
        known = [one.session_id for one in await awaited.call(lambda app: app.conversations.chats(current_caller("chat", app.environ)))]
        meant = [one for one in known if args.resume in SessionId.parse(one).key] if args.resume else known[:1]
        if not meant:
            raise BadInput("There is no chat here to go on with." if not args.resume else f"There is no chat '{args.resume}' here.")
        if len(meant) > 1 and args.resume:
            raise BadInput(f"'{args.resume}' could be {', '.join(meant[:5])}.")
        session = meant[0]
    talk = ChatConversation(awaited, session, args.cwd, args.agent)
    await talk.open()
    return talk


async def _once(home: Home, environ: dict[str, str], flags: dict[str, str], args: argparse.Namespace, message: str) -> int:
    from backburner.interfaces.tui.chat.plain_terminal import PlainTerminal

    async with AsyncApp(lambda: open_app(home, environ, flags)) as awaited:
        talk = await _opened(awaited, args)
        drawn = (lambda: shutil.get_terminal_size().columns - 1) if sys.stdout.isatty() else None
        face = PlainTerminal(drawn=drawn, colour=_colour(), person=sys.stdin.isatty() and sys.stdout.isatty())
        face.room = ChatSession(awaited, talk, face, home.root, terminal=False)
        if args.message is None and message.startswith("/"):
            for line in message.splitlines():
                if line.strip() and not face.room.left.is_set() and await face.room.run_line(line):
                    return await face.once(line)
            return 0
        await talk.model_name()  # where there is none, that is all there is to say
        return await face.once(message)


async def _lines(home: Home, environ: dict[str, str], flags: dict[str, str], args: argparse.Namespace) -> int:
    from backburner.interfaces.tui.chat.plain_terminal import PlainTerminal

    async with AsyncApp(lambda: open_app(home, environ, flags)) as awaited:
        talk = await _opened(awaited, args)
        face = PlainTerminal(drawn=None, colour=False, person=True)
        face.room = ChatSession(awaited, talk, face, home.root, terminal=False)
        await _greet(face.room, face)
        return await face.lines()


async def _screen(home: Home, environ: dict[str, str], flags: dict[str, str], args: argparse.Namespace) -> int:
    from backburner.interfaces.tui.chat.screen import ChatScreen

    os.makedirs(home.root, 0o700, exist_ok=True)
    screen = ChatScreen(os.path.join(home.root, "chat_history"), colour=_colour())
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, screen.bye)
    failed: list[BaseException] = []

    async def work() -> None:
        try:
            async with AsyncApp(lambda: open_app(home, environ, flags)) as awaited:
                talk = await _opened(awaited, args)
                room = ChatSession(awaited, talk, screen, home.root, terminal=True)
                screen.attach(room)
                await _greet(room, screen)
                await asyncio.to_thread(_ready, home, environ)
                living = asyncio.create_task(room.live())
                leaving = asyncio.create_task(room.left.wait())
                try:
                    await asyncio.wait({living, leaving}, return_when=asyncio.FIRST_COMPLETED)
                    if living.done() and (error := living.exception()):
                        raise error
                finally:
                    async with room.saying:
                        for task in (living, leaving):
                            task.cancel()
                    await asyncio.gather(living, leaving, return_exceptions=True)
                    if talk.live:
                        known = SessionId.parse(talk.session).key
                        screen.show(f"The answer goes on without you. See it: backburner chat --resume {known}", "hint")
                    await screen.settled()
        except BackburnerError as error:
            failed.append(error)
        finally:
            screen.leave()

    working: list[asyncio.Task[None]] = []
    await screen.run(lambda: working.append(asyncio.create_task(work())))
    for task in working:
        if not task.done():
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    for line in screen.unsaid():
        screen.show(unsent_message(line), "hint")
    await screen.settled()
    if failed:
        raise failed[0]
    return 0


def _ready(home: Home, environ: dict[str, str]) -> None:
    """What an agent needs is loaded while the person types."""
    from importlib.util import find_spec

    from backburner.coordination.launcher import start_daemon
    from backburner.system.home import is_locked

    if find_spec("pydantic_ai") and not is_locked(os.path.join(home.root, "agents.lock")):
        start_daemon(home, "agents.process", environ)


async def _greet(room: ChatSession, face: ChatView) -> None:
    """Where one is: what was said before, or how to get a model."""
    talk = room.talk
    for one in await talk.past():
        if one.who == "you":
            face.show(f"› {shortened(readable(one.text), longest=2000)}", "said")
        elif one.who == "tool":
            face.show(clean(one.text), "tool")
        else:
            face.say(one.text)
            face.said()
    try:
        await talk.model_name()
    except BackburnerError as error:
        face.show(f"{error}\n{_NO_MODEL}", "hint")
    await room.refresh()
