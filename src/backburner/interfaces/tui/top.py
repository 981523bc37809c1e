"""`top`: the live board of tasks. The command, and everything the board reads and does through the services.

`board` composes what is drawn; `top_screen` draws it, and is loaded only where there is a terminal.
"""

import argparse
import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING

from backburner.core.errors import BackburnerError, BadInput
from backburner.core.models import ENGINE, Caller, Entry
from backburner.core.optional_dependencies import need
from backburner.core.states import LIVE, RunState, TaskState
from backburner.core.terminal_text import visible
from backburner.interfaces.cli.logs import logs
from backburner.interfaces.cli.main import verb_parser
from backburner.interfaces.cli.run import restart
from backburner.interfaces.cli.tasks import LIST_LIMIT, list_
from backburner.services.app import App
from backburner.system.home import project_of

if TYPE_CHECKING:
    from backburner.core.progress import Progress

_MAX_PROGRESS_AGE = 0.5  # seconds
_MAX_OUTPUT = 1 << 16  # bytes
_MAX_LIVE = 1000


def top(app: App, caller: Caller, args: argparse.Namespace) -> int:
    if args.json:
        return list_(app, caller, verb_parser("list").parse_args(["--json", *(["--all"] if args.all else [])]))
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM", "dumb") in ("", "dumb", "unknown"):
        raise BadInput("`top` needs a terminal; `backburner list` works without one.")
    need("tui", "`top` needs")
    from backburner.interfaces.tui.top_screen import TopScreen

    with contextlib.suppress(KeyboardInterrupt), contextlib.closing(app.changes.listen()) as listener:
        return TopScreen(BoardTasks(app, caller), listener, everywhere=args.all).run()
    return 0


class BoardTasks:
    """The tasks behind the board: reads them, cancels them, and runs commands of the command line on them."""

    def __init__(self, app: App, caller: Caller) -> None:
        self._app, self._caller = app, caller
        self._project = project_of(caller.cwd)
        self._progress: dict[str, tuple[float, Progress | None]] = {}  # of a run: when it was read, and what

    def read(self, *, everywhere: bool) -> list[Entry]:
        """The newest tasks, and all that have not ended."""
        entries = {entry.task.task_id: entry for entry in self._app.queries.list(self._caller, everywhere=everywhere, limit=LIST_LIMIT)}
        if len(entries) == LIST_LIMIT:  # one that has not ended may be older than all of them
            for status in (*LIVE, TaskState.PROPOSED):
                for entry in self._app.queries.list(self._caller, status=status, everywhere=everywhere, limit=_MAX_LIVE):
                    entries.setdefault(entry.task.task_id, entry)
        live = {entry.run.run_id for entry in entries.values() if entry.run and entry.is_live}
        self._progress = {run_id: seen for run_id, seen in self._progress.items() if run_id in live}
        return list(entries.values())

    def free_places(self) -> int:
        """How many more commands could run by the current settings, which the engine goes by, too."""
        with contextlib.suppress(BackburnerError):
            self._app.config_file.reload_if_changed()
        most = self._app.config.whole("commands.max_concurrent")
        running = self._app.queries.list(self._caller, status=RunState.RUNNING, everywhere=True, limit=_MAX_LIVE)
        return max(0, most - sum(entry.run is not None and entry.run.runner == ENGINE for entry in running))

    def place(self, *, everywhere: bool) -> str:
        """What the tasks belong to: the folder of the project, or of the home."""
        path = self._app.home.root if everywhere else self._project
        person = os.path.expanduser("~")
        path = f"~{path[len(person) :]}" if f"{path}/".startswith(f"{person}/") and person != "/" else path
        return visible(f"all projects of {path}" if everywhere else path)

    def progress(self, entry: Entry) -> "Progress | None":
        assert entry.run is not None
        now = time.monotonic()
        at, seen = self._progress.get(entry.run.run_id, (None, None))
        if at is None or now - at > _MAX_PROGRESS_AGE:
            self._progress[entry.run.run_id] = now, (seen := self._app.runs.progress(entry))
        return seen

    def waits_for(self, entry: Entry) -> str | None:
        try:
            return self._app.runs.pending_reason(entry)
        except BackburnerError as error:
            return str(error)

    def tail(self, entry: Entry, lines: int) -> bytes:
        try:
            return self._app.runs.tail(entry, lines, longest=_MAX_OUTPUT)
        except OSError as error:
            return f"[{error.strerror}]".encode()

    def log_path(self, entry: Entry) -> str:
        return self._app.runs.log_path(entry)

    def cancel(self, task_id: str) -> None:
        """Request that it be stopped, and return at once."""
        self._app.tasks.cancel(task_id, self._caller, permanent=True)

    def run_command(self, verb: str, *arguments: str) -> int:
        """Do what the command line does with these words."""
        command = {"logs": logs, "restart": restart}[verb]
        return command(self._app, self._caller, verb_parser(verb).parse_args([*arguments]))
