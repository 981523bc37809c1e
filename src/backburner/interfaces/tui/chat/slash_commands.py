"""The slash commands of the chat. Most of them run the command of the same name of the command line and show what it prints."""

import argparse
import contextlib
import io
import os
import re
import shlex
import sys
from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple

from backburner.core.errors import ApprovalRequired, BadInput
from backburner.core.models import Caller, Entry, Submission
from backburner.core.task_spec import CommandSpec, TaskSpec
from backburner.core.terminal_text import readable
from backburner.services.app import App, open_app
from backburner.system.caller_identity import SESSION_VARIABLE, current_caller, environment_for_commands
from backburner.system.processes import umask

_DEFAULT_LOG_LINES = 40
_MAX_LOG_BYTES = 256 << 10
_BLOCKING_OPTIONS = ("-f", "--follow", "--wait", "-h", "--help")  # would block the chat, or print help of the command line
Emit = Callable[[str], None]


class SlashCommand(NamedTuple):
    """`cli_words` is the command of the command line that it runs, if any; `takes_ids` says that its arguments are task ids."""

    usage: str
    summary: str
    cli_words: tuple[str, ...] = ()
    takes_ids: bool = False


SLASH_COMMANDS = {
    "background": SlashCommand("/background COMMAND", "start a command in the background; put --shell before it to use a shell"),
    "tasks": SlashCommand("/tasks [STATUS]", "list background tasks", ("list",)),
    "status": SlashCommand("/status ID", "show the status of a task and the end of its output", ("status",), True),
    "cancel": SlashCommand("/cancel ID…", "cancel tasks and wait until they have stopped", ("cancel",), True),
    "restart": SlashCommand("/restart ID", "run a task again", ("restart",), True),
    "logs": SlashCommand("/logs ID [N]", "show the last lines of the output of a task", takes_ids=True),
    "send": SlashCommand("/send ID TEXT", "write to the input of a command", ("send",), True),
    "approve": SlashCommand("/approve [ID…]", "approve tasks; without an ID, ask about everything that waits", takes_ids=True),
    "reject": SlashCommand("/reject ID…", "reject tasks", takes_ids=True),
    "schedule": SlashCommand("/schedule [NAME --every 30m -- COMMAND]", "list recurring tasks, or add one (like `backburner add`)"),
    "inbox": SlashCommand("/inbox", "show unread notices", ("inbox", "--ack")),
    "model": SlashCommand("/model [NAME]", "show the model, or use another agent or model from now on"),
    "help": SlashCommand("/help", "show this list"),
    "quit": SlashCommand("/quit [--end]", "exit; tasks continue. With --end, cancel and delete the tasks of this chat"),
}
_MODULES = {"restart": "run", "send": "logs", "inbox": "inbox", "add": "recurring"}
_CLI_COMMAND = re.compile(r"\bbackburner (approve|reject|status|cancel|restart|logs|send|inbox)\b(?: -f)?(?= )")


def parse(line: str) -> tuple[str, str] | None:
    """The name of the command and its arguments, or None for a message. A message that starts with a slash is written with `//`."""
    found = re.match(r"/([a-z-]+)(?:\s+|$)", line)
    if not found or line.startswith("//"):
        return None
    if found[1] not in SLASH_COMMANDS:
        raise BadInput(f"Unknown command /{found[1]}. /help lists the commands. To send a message that starts with a slash, type //.")
    return found[1], line[found.end() :].strip()


def split_piped(text: str) -> list[tuple[bool, str]]:
    """The parts of piped text in order: each line that is a command (True), and the lines between two commands as one message (False)."""
    parts: list[tuple[bool, str]] = []
    for line in text.splitlines():
        command = parse(line)
        if command and command[0] == "approve":
            raise BadInput("/approve is not accepted from a pipe. Run `backburner approve ID` in a terminal.")
        line = line.removeprefix("/") if line.startswith("//") else line
        if command is None and parts and not parts[-1][0]:
            parts[-1] = (False, f"{parts[-1][1]}\n{line}")
        else:
            parts.append((command is not None, line))
    return [(is_command, part.strip("\n")) for is_command, part in parts if part.strip()]


def manual() -> str:
    """The text of /help."""
    width = max(len(command.usage) for command in SLASH_COMMANDS.values() if len(command.usage) < 24)
    lines = [f"  {command.usage:<{width}}  {command.summary}" for command in SLASH_COMMANDS.values()]
    keys = (
        "Enter sends; Alt-Enter, or Enter after a \\, starts a new line. Esc stops the answer but not background tasks."
        " Ctrl-C clears the line, Ctrl-D exits."
    )
    return "\n".join([*lines, "", keys])


def split_arguments(rest: str) -> list[str]:
    try:
        return shlex.split(rest)
    except ValueError as error:
        raise BadInput(f"{str(error).rstrip('.')}: close the quote, or escape it with a backslash.") from None


def start(app: App, caller: Caller, line: str) -> Entry:
    """`/background`: submit a command, which the gate checks as for every interface."""
    from backburner.core.command_words import words_of as command_of

    if not line:
        raise BadInput(f"Which command? Usage: {SLASH_COMMANDS['background'].usage}")
    shell = line.startswith("--shell ")
    line = line.removeprefix("--shell ").strip()
    return app.submissions.submit(
        Submission(
            spec=TaskSpec(
                cwd=caller.cwd,
                command=CommandSpec(words=(line,) if shell else command_of(line), shell=shell, umask=umask()),
                description=line[:200],
            ),
            environment=environment_for_commands(caller.environ),
            session=caller.session,
            opened=caller.cwd,
        ),
        caller,
    )


def output(app: App, caller: Caller, rest: str) -> str:
    """`/logs`: the last lines of the output of a task."""
    match split_arguments(rest):
        case [reference]:
            lines = _DEFAULT_LOG_LINES
        case [reference, count] if count.isdecimal() and int(count[:9]) > 0:
            lines = int(count[:9])
        case _:
            raise BadInput(f"Usage: {SLASH_COMMANDS['logs'].usage}")
    entry = app.queries.find(reference, caller)
    text = readable(app.runs.tail(entry, lines, longest=_MAX_LOG_BYTES).decode("utf-8", "replace")).rstrip() if entry.run else ""
    return text or f"Task {entry.task.task_id} has no output."


def call(name: str, rest: str, home: str, emit: Emit, *, session_id: str, terminal: bool) -> str | None:
    """Run a command of the command line and pass what it prints to `emit`.

    Returns the id of the task that now waits for approval, if any.
    """
    from backburner.interfaces.cli.arguments import split, verb_parser

    usage, arguments = SLASH_COMMANDS[name].usage, split_arguments(rest)
    words = ["add", *arguments] if name == "schedule" else [*SLASH_COMMANDS[name].cli_words, *arguments]
    if (name == "send" and len(words) < 3) or (name == "inbox" and rest) or any(word.startswith(_BLOCKING_OPTIONS) for word in words):
        raise BadInput(f"Usage: {usage}")
    if name == "send":
        words[2:] = [rest.partition(words[1])[2].strip()]
    _, verb, after, command = split(words)
    assert verb is not None
    out = _PrintedText(lambda text: emit(_CLI_COMMAND.sub(r"/\1", text)), terminal)
    try:
        args: argparse.Namespace = verb_parser(verb).parse_args(after)
        if command:
            args.command = [*args.command, *command]
    except BadInput as error:
        raise BadInput(f"{error.fields.get('problem', error)} Usage: {usage}") from None
    except SystemExit:
        raise BadInput(f"Usage: {usage}") from None
    module = import_module(f"backburner.interfaces.cli.{_MODULES.get(verb, 'tasks')}")
    # The command must not ask for approval itself: standard error is no terminal, so it raises and the chat asks.
    # With the session of the chat, the agent also gets the notice about a restarted task.
    environ = {**os.environ, **({SESSION_VARIABLE: session_id} if verb == "restart" else {})}
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(_PrintedText(out.emit, False)), open_app(home, environ) as app:
        try:
            getattr(module, "list_" if verb == "list" else verb)(app, current_caller("cli", environ), args)
        except ApprovalRequired as error:
            return str(error.fields["task_id"])
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
    return None


class _PrintedText(io.TextIOBase):
    """Passes on what is printed. A table is passed on as a whole, so that no notice appears between its lines."""

    def __init__(self, emit: Emit, terminal: bool) -> None:
        self.emit, self._terminal, self._buffer = emit, terminal, ""

    def isatty(self) -> bool:
        return self._terminal

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._buffer += text
        if text.endswith("\n"):
            self.flush()
        return len(text)

    def flush(self) -> None:
        if self._buffer:
            text, self._buffer = self._buffer, ""
            self.emit(text.removesuffix("\n"))
