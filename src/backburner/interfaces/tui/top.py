"""The `top` command: a live board of tasks, and everything that the board reads and changes through the services.

`board` composes the rows; `top_screen` draws them and is loaded only if there is a terminal.
"""

import argparse
import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING

from backburner.core.errors import BackburnerError, BadInput, HostUnreachable
from backburner.core.models import ENGINE, Caller, Entry
from backburner.core.optional_dependencies import need
from backburner.core.queues import at_host
from backburner.core.states import RunState
from backburner.core.terminal_text import visible
from backburner.interfaces.cli.arguments import verb_parser
from backburner.interfaces.cli.logs import logs
from backburner.interfaces.cli.run import restart
from backburner.interfaces.cli.tasks import LIST_LIMIT, approve, list_
from backburner.services.app import App
from backburner.system.paths import project_of

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
        self._progress: dict[str, tuple[float, Progress | None]] = {}  # by run: when it was read, and the progress

    def read(self, *, everywhere: bool) -> list[Entry]:
        """The newest tasks, and all tasks that have not ended."""
        entries = self._app.queries.open_and_recent(self._caller, everywhere=everywhere, limit=LIST_LIMIT)
        live = {entry.run.run_id for entry in entries if entry.run and entry.is_live}
        self._progress = {run_id: seen for run_id, seen in self._progress.items() if run_id in live}
        return list(entries)

    def free_capacity(self) -> int:
        """How many more commands could run with the current settings, which the engine also uses."""
        with contextlib.suppress(BackburnerError):
            self._app.config_file.reload_if_changed()
        limit = self._app.config.whole("commands.max_concurrent")
        running = self._app.queries.list(self._caller, status=RunState.RUNNING, everywhere=True, limit=_MAX_LIVE)
        return max(0, limit - sum(entry.run is not None and entry.run.runner == at_host(ENGINE, self._app.host_id) for entry in running))

    def location(self, *, everywhere: bool) -> str:
        """The directory of the project or, with `everywhere`, of the home, for the header."""
        path = self._app.home.root if everywhere else self._project
        user_home = os.path.expanduser("~")
        path = f"~{path[len(user_home) :]}" if f"{path}/".startswith(f"{user_home}/") and user_home != "/" else path
        return visible(f"all projects of {path}" if everywhere else path)

    def progress(self, entry: Entry) -> "Progress | None":
        assert entry.run is not None
        now = time.monotonic()
        at, seen = self._progress.get(entry.run.run_id, (None, None))
        if at is None or now - at > _MAX_PROGRESS_AGE:
            self._progress[entry.run.run_id] = now, (seen := self._app.runs.progress(entry))
        return seen

    def pending_reason(self, entry: Entry) -> str | None:
        """What a pending task waits for."""
        try:
            return self._app.runs.pending_reason(entry)
        except BackburnerError as error:
            return str(error)

    def tail(self, entry: Entry, lines: int) -> bytes:
        try:
            return self._app.runs.tail(entry, lines, longest=_MAX_OUTPUT)
        except OSError as error:
            return f"[{error.strerror}]".encode()
        except HostUnreachable as error:
            return f"[{error}]".encode()

    def log_path(self, entry: Entry) -> str:
        return self._app.runs.log_path(entry)

    def cancel(self, task_id: str) -> None:
        """Request that the task be stopped, and return immediately."""
        self._app.tasks.cancel(task_id, self._caller, permanent=True)

    def reject(self, task_id: str) -> None:
        """Reject a task that waits for approval."""
        self._app.approvals.reject(task_id, self._caller)

    def run_command(self, verb: str, *arguments: str) -> int:
        """Run a command of the command line."""
        command = {"approve": approve, "logs": logs, "restart": restart}[verb]
        return command(self._app, self._caller, verb_parser(verb).parse_args([*arguments]))
