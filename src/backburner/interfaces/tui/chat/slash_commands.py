"""The slash commands of the chat. Most are the verbs of the command line, with their own words: each has one home."""

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

_LINES, _LONGEST_OUTPUT = 40, 256 << 10
_BLOCKING = ("-f", "--follow", "--wait", "-h", "--help")  # would keep the chat from all else
Emit = Callable[[str], None]


class Slash(NamedTuple):
    """`verb` are the words of the command line that it stands for, where it does; `ids` says that it takes ids of tasks."""

    usage: str
    about: str
    verb: tuple[str, ...] = ()
    ids: bool = False


SLASHES = {
    "background": Slash("/background COMMAND", "start a command in the background; --shell before it for pipes and the like"),
    "tasks": Slash("/tasks [STATUS]", "list background tasks", ("list",)),
    "status": Slash("/status ID", "how a task is, with the end of its output", ("status",), True),
    "cancel": Slash("/cancel ID…", "stop a task, and see it dead", ("cancel",), True),
    "restart": Slash("/restart ID", "start the same again", ("restart",), True),
    "logs": Slash("/logs ID [N]", "the last lines of its output", ids=True),
    "send": Slash("/send ID TEXT", "write to a command's input", ("send",), True),
    "approve": Slash("/approve [ID…]", "say yes; without an id, be asked again", ids=True),
    "reject": Slash("/reject ID…", "say no", ids=True),
    "schedule": Slash("/schedule [NAME --every 30m -- COMMAND]", "list standing tasks, or add one (as `backburner add`)"),
    "inbox": Slash("/inbox", "what ended and was not told yet", ("inbox", "--ack")),
    "model": Slash("/model [NAME]", "which model answers; another agent or model from now on"),
    "help": Slash("/help", "this list"),
    "quit": Slash("/quit [--end]", "leave; work goes on. With --end it is stopped and forgotten"),
}
_MODULES = {"restart": "run", "send": "logs", "inbox": "inbox", "add": "recurring"}
_OURS = re.compile(r"\bbackburner (approve|reject|status|cancel|restart|logs|send|inbox)\b(?: -f)?(?= )")


def parse(line: str) -> tuple[str, str] | None:
    """The command of a line and the rest of it; None where it is something to say. `//` says a line that begins with a slash."""
    found = re.match(r"/([a-z-]+)(?:\s+|$)", line)
    if not found or line.startswith("//"):
        return None
    if found[1] not in SLASHES:
        raise BadInput(f"There is no command /{found[1]}. /help lists them; // says a line that begins with a slash.")
    return found[1], line[found.end() :].strip()


def manual() -> str:
    """What /help says."""
    widest = max(len(slash.usage) for slash in SLASHES.values() if len(slash.usage) < 24)
    lines = [f"  {slash.usage:<{widest}}  {slash.about}" for slash in SLASHES.values()]
    keys = (
        "Enter sends; Alt-Enter, or Enter after a \\, begins a new line. Esc stops the answer, not the background work."
        " Ctrl-C clears the line, Ctrl-D leaves."
    )
    return "\n".join([*lines, "", keys])


def words_of(rest: str) -> list[str]:
    try:
        return shlex.split(rest)
    except ValueError as error:
        raise BadInput(f"{str(error).rstrip('.')}: a quote is open.") from None


def start(app: App, caller: Caller, line: str) -> Entry:
    """`/background`: through the gate, like every door."""
    from backburner.core.command_words import words_of as command_of

    if not line:
        raise BadInput(f"Say what: {SLASHES['background'].usage}")
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
    """`/logs`: the end of what a task printed."""
    match words_of(rest):
        case [known]:
            lines = _LINES
        case [known, count] if count.isdecimal() and int(count[:9]) > 0:
            lines = int(count[:9])
        case _:
            raise BadInput(f"Write: {SLASHES['logs'].usage}")
    entry = app.queries.find(known, caller)
    text = readable(app.runs.tail(entry, lines, longest=_LONGEST_OUTPUT).decode("utf-8", "replace")).rstrip() if entry.run else ""
    return text or f"Task {entry.task.task_id} has printed nothing."


def call(name: str, rest: str, home: str, emit: Emit, *, session: str, terminal: bool) -> str | None:
    """Do what a verb of the command line does, telling what it prints as it comes; the id of what now waits for an answer."""
    from backburner.interfaces.cli.main import split, verb_parser

    words = ["add", *words_of(rest)] if name == "schedule" else [*SLASHES[name].verb, *words_of(rest)]
    if (name == "send" and len(words) < 3) or (name == "inbox" and rest) or any(word.startswith(_BLOCKING) for word in words):
        raise BadInput(f"Write: {SLASHES[name].usage}")
    if name == "send":
        words[2:] = [rest.partition(words[1])[2].strip()]
    _, verb, after, command = split(words)
    assert verb is not None
    out = _Printed(lambda text: emit(_OURS.sub(r"/\1", text)), terminal)
    try:
        args: argparse.Namespace = verb_parser(verb).parse_args(after)
        if command:
            args.command = [*args.command, *command]
    except BadInput as error:
        raise BadInput(f"{error.fields.get('problem', error)} Write: {SLASHES[name].usage}") from None
    except SystemExit:
        raise BadInput(f"Write: {SLASHES[name].usage}") from None
    door = import_module(f"backburner.interfaces.cli.{_MODULES.get(verb, 'tasks')}")
    # What asks on its own would ask behind the chat's back: with no terminal for its words it leaves the question to us.
    environ = {**os.environ, **({SESSION_VARIABLE: session} if verb == "restart" else {})}  # its end is told to the agent, too
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(_Printed(out.emit, False)), open_app(home, environ) as app:
        try:
            getattr(door, "list_" if verb == "list" else verb)(app, current_caller("cli", environ), args)
        except ApprovalRequired as error:
            return str(error.fields["task_id"])
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
    return None


class _Printed(io.TextIOBase):
    """Takes what is printed and gives it on, a table as one: no notice comes between its lines."""

    def __init__(self, emit: Emit, terminal: bool) -> None:
        self.emit, self._terminal, self._rest = emit, terminal, ""

    def isatty(self) -> bool:
        return self._terminal

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._rest += text
        if text.endswith("\n"):
            self.flush()
        return len(text)

    def flush(self) -> None:
        if self._rest:
            rest, self._rest = self._rest, ""
            self.emit(rest.removesuffix("\n"))
