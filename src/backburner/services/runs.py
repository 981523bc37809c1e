"""Reads the output, progress, ports and files of a run, and why it has not started."""

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from backburner.coordination.config_file import ConfigFile
from backburner.core import formatting, ids
from backburner.core.errors import BadInput
from backburner.core.models import SANDBOX, Clock, Entry, Run
from backburner.core.run_inspection import RunInspection
from backburner.core.states import RUNNING_STATES, RunState
from backburner.system import run_files
from backburner.system.home import Home, read_plain
from backburner.system.log_file import NAME, Log, LogSource, Piece, local_log, position_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

    from backburner.core.host_records import RunFile
    from backburner.core.progress import Progress
    from backburner.core.store_ports import LedgerQueries, LiveWork
    from backburner.services.remote_run import RemoteRun
    from backburner.services.remote_runs import RemoteRuns

_MAX_SEARCHED_BYTES = 16 << 20  # at the end of a log, when searching for matching lines
_ALL_LINES = 1 << 30
_PIECE_BYTES = 1 << 20
_MIN_PIECE_BYTES = 100  # the output of the next run is added only if at least this much space is left


class Runs:
    """The output and the state of runs."""

    def __init__(
        self,
        home: Home,
        live_work: "LiveWork",
        ledger_queries: "LedgerQueries",
        config: ConfigFile,
        clock: Clock,
        remote: "RemoteRuns | None" = None,
    ) -> None:
        """`remote` finds the runs of other hosts, if there can be any."""
        self._remote = remote
        self._home, self._live_work, self._ledger_queries, self._config, self._clock = home, live_work, ledger_queries, config, clock

    def folder(self, entry: Entry, n: int | None = None) -> str:
        """Return the folder of the latest run, or of the n-th run."""
        assert entry.run is not None
        if n is None or n == entry.run.n:
            return self._home.folder(entry.run.folder)
        return self._home.folder(os.path.join(os.path.dirname(entry.run.folder), ids.run_id(entry.task.task_id, n)))

    def log_path(self, entry: Entry) -> str:
        """Return the path of the latest run's log; an empty string before the first run, and for a run on another host."""
        return os.path.join(self.folder(entry), NAME) if entry.run and not self.is_elsewhere(entry.run) else ""

    def is_elsewhere(self, run: Run) -> bool:
        """Return whether a run is on another host."""
        return self._remote is not None and self._remote.is_elsewhere(run)

    def remote(self, run_id: str) -> "RemoteRun | None":
        """Return a run that is on another host; None if its folder is in this home."""
        return self._remote.find(run_id) if self._remote else None

    def open_log(self, entry: Entry, n: int | None = None) -> Log:
        """Open the log of the latest run, or of the n-th run, wherever it is. FileNotFoundError if it does not exist."""
        assert entry.run is not None
        run_id = entry.run.run_id if n is None or n == entry.run.n else ids.run_id(entry.task.task_id, n)
        return remote.open_log() if (remote := self.remote(run_id)) else Log(self.folder(entry, n))

    def log_source(self, run: Run) -> LogSource:
        """Return how another thread can open the log of a run."""
        if self._remote and self._remote.is_elsewhere(run):
            remote = self._remote
            return LogSource(run.run_id, lambda: remote.open_log_separately(run.run_id))
        return local_log(self._home.folder(run.folder))

    def files_source(self, run: Run) -> "Callable[[], RemoteRun] | None":
        """Return how another thread can read the files of a run on another host; None if they are in this home."""
        if self._remote and self._remote.is_elsewhere(run):
            remote = self._remote
            return lambda: remote.open_separately(run.run_id)
        return None

    def tail(self, entry: Entry, lines: int, *, longest: int = 1 << 20) -> bytes:
        """Return the last lines of a task's output, at most `longest` bytes; empty if there is no output yet."""
        try:
            with self.open_log(entry) as log:
                return log.tail(lines, longest=longest)
        except FileNotFoundError:
            return b""

    def port_to_permit(self, entry: Entry) -> int | None:
        """Return the port of this machine that a command in a trusted project could not connect to because of its sandbox."""
        if entry.run is None or entry.run.end.problem != SANDBOX or entry.run.sandbox is None:
            return None
        from backburner.core.sandbox import View, sandbox_from
        from backburner.core.sandbox_messages import refused_port

        sandbox = sandbox_from(entry.run.sandbox)
        port = refused_port(self.tail(entry, 1000, longest=1 << 16).decode("utf-8", "replace"))
        return port if sandbox.view is View.WRITABLE and port not in sandbox.connect else None

    def read(self, entry: Entry, cursor: str | None = None, *, most: int, tail: int | None = None, containing: str | None = None) -> Piece:
        """Return at most `most` bytes of a task's output, from the start or from `cursor`; with `tail`, the last lines.

        `containing` selects the lines that contain a text.
        """
        count = entry.task.run_count
        n, offset = position_of(cursor, count) if cursor is not None else (count if tail is not None else 1, 0)
        if entry.run is None:
            return Piece(b"", "1:0", False)
        data, note = b"", ""
        while True:
            last = n >= count
            try:
                with self.open_log(entry, n) as log:
                    if tail is not None and cursor is None:
                        start = log.size
                        wanted, limit = (tail, most) if containing is None else (_ALL_LINES, _MAX_SEARCHED_BYTES)
                        lines = log.tail(wanted, longest=limit, end=start)
                        return Piece(_matching(lines, containing, tail)[-most:], f"{n}:{log.cursor(start)}", False, log.note)
                    start, room = log.position(offset), most - len(data)
                    if containing is None:
                        position, found = log.piece(start, room)
                    else:
                        position, found = log.lines_with(containing, start, room, growing=last and entry.is_live)
                    data, offset, size, note = data + found, log.cursor(position), log.size, log.note
            except FileNotFoundError:
                position = size = 0
            left = position < size and not (containing is not None and last and entry.is_live)
            if left or last or most - len(data) < _MIN_PIECE_BYTES:
                return Piece(data, f"{n}:{offset}", left or not last, note)
            n, offset = n + 1, 0

    def files(self, run: Run) -> "Sequence[RunFile]":
        """Return the files that a run has left; HostUnreachable if it is on another host that does not answer."""
        from backburner.core.host_records import RunFile
        from backburner.system.run_inspection import artifact_files

        if remote := self.remote(run.run_id):
            return remote.files()
        return [RunFile(file.name, file.size, file.modified_at) for file in artifact_files(self._home.folder(run.folder))]

    def read_file(self, run: Run, name: str) -> "tuple[RunFile, Iterator[bytes]]":
        """Return a file that a run has left, and its content; BadInput if there is none of that name."""
        from backburner.core.host_records import RunFile, no_such_file
        from backburner.system.run_inspection import find_artifact, open_artifact

        if remote := self.remote(run.run_id):
            return remote.read_file(name)
        folder = self._home.folder(run.folder)
        if (file := find_artifact(folder, name)) is None:
            raise BadInput(no_such_file(run.run_id, name))
        try:
            content = open(open_artifact(folder, file), "rb")  # closed when it was read
        except OSError as error:
            raise BadInput(f"{file.name} of {run.run_id} cannot be read: {error.strerror}.") from None
        return RunFile(file.name, file.size, file.modified_at), _pieces(content)

    def progress(self, entry: Entry) -> "Progress | None":
        """Return the progress of a running task; None if it is unknown."""
        from backburner.system import run_inspection  # not needed for a list

        if entry.run is None or entry.run.state not in RUNNING_STATES:
            return None
        if remote := self.remote(entry.run.run_id):
            return _progress_from(remote.reported_details())
        if entry.task.spec.agent_name is not None:
            return run_inspection.of_agent(self.activity(entry))
        return run_inspection.progress(self.folder(entry))

    def activity(self, entry: Entry) -> dict[str, Any]:
        """Return what a running agent has done so far: tool calls, tokens, last update."""
        if entry.run is None:
            return {}
        if remote := self.remote(entry.run.run_id):
            return remote.reported_details().get("activity") or {}
        try:
            found = json.loads(read_plain(os.path.join(self.folder(entry), run_files.ACTIVITY), 1 << 20))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def inspect(self, entry: Entry) -> RunInspection:
        """Return the progress, listening ports and created files of a task, and why it has not started."""
        from backburner.system import run_inspection

        if entry.run is None:
            return RunInspection()
        if remote := self.remote(entry.run.run_id):
            found, is_running = remote.details(), entry.run.state in RUNNING_STATES
            return RunInspection(
                _progress_from(found) if is_running else None,
                tuple(found.get("ports", ())) if is_running else (),
                tuple(found.get("artifacts", ())),
                self.pending_reason(entry),
                found.get("note", ""),
            )
        ports = run_inspection.ports(entry.run.process, entry.run.process_tag) if entry.run.state in RUNNING_STATES else []
        return RunInspection(self.progress(entry), tuple(ports), run_inspection.artifacts(self.folder(entry)), self.pending_reason(entry))

    def pending_reason(self, entry: Entry) -> str | None:
        """Return what a pending or claimed task is waiting for before it starts; completes the sentence "Waiting for …"."""
        run = entry.run
        if run and run.state in RUNNING_STATES and run.process is None and run.error:
            return f"resources: {run.error}"
        if run is None or run.state != RunState.PENDING:
            return None
        if run.blocked:
            others = [
                other
                for other in map(self._ledger_queries.get, entry.task.spec.order.after)
                if other and other.status != RunState.COMPLETED
            ]
            return ", ".join(f"{other.task.task_id} ({other.status})" for other in others)
        if run.due_at is not None and run.due_at > self._clock():
            return f"its start time, {formatting.local_time(run.due_at)} (in {formatting.duration(run.due_at - self._clock())})"
        if self._config.problem:
            return f"valid settings: {self._config.problem}"
        from backburner.system.capacity import blocking_reason

        if reason := self._live_work.delayed_because():
            return f"resources: {reason}"
        return blocking_reason(self._config.current) or "free capacity"

    def repair_metadata(self, entry: Entry) -> None:
        """Rewrite the metadata.json of a run if it is damaged or missing."""
        if entry.run and self._live_work.is_here(entry.run) and not run_files.readable(self.folder(entry)):
            with contextlib.suppress(OSError):
                run_files.write_metadata(self.folder(entry), entry.task, entry.run)


def _pieces(content: "BinaryIO") -> Iterator[bytes]:
    with content:
        while piece := content.read(_PIECE_BYTES):
            yield piece


def _progress_from(details: dict[str, Any]) -> "Progress | None":
    from backburner.core.progress import Progress

    return Progress(*found) if (found := details.get("progress")) else None


def _matching(lines: bytes, containing: str | None, last: int) -> bytes:
    """Return the last lines that contain a text, ignoring case."""
    if containing is None:
        return lines
    wanted = containing.casefold()
    found = [line for line in lines.split(b"\n") if wanted in line.decode("utf-8", "replace").casefold()]
    return b"\n".join(found[-last:] if last > 0 else [])
