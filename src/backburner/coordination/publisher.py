"""Publishes a changed task after its commit: writes its metadata file, wakes listeners, and starts an engine if one is needed."""

import contextlib
import time

from backburner.coordination.changes import ChangeFeed
from backburner.coordination.supervision import EngineSupervisor, has_no_owner
from backburner.core.light_typing import TYPE_CHECKING
from backburner.core.models import Entry, Run, Task
from backburner.core.queues import is_queue
from backburner.core.states import ENDED, RunState
from backburner.system import run_files
from backburner.system.home import Home

if TYPE_CHECKING:
    from backburner.core.store_ports import LedgerQueries


_END_SECONDS, _END_INTERVAL = 2.0, 0.002  # how long an end that is not in the ledger yet is waited for
_CHECK_INTERVAL = 1.0  # seconds between two checks whether anything but the published tasks needs an engine


class Publisher:
    """Publishes changes of tasks to the files and processes of a home."""

    def __init__(self, home: Home, ledger_queries: "LedgerQueries", changes: ChangeFeed, supervisor: EngineSupervisor) -> None:
        self._home, self._ledger_queries, self._changes, self._supervisor = home, ledger_queries, changes, supervisor
        self._checked_at = float("-inf")

    def publish(self, entry: Entry) -> None:
        """Write the files of runs that have not started, wake every listener, and start an engine if the task needs one.

        A program that runs tasks itself writes the files of those that wait for it.
        """
        has_failed = entry.has_ended and entry.status != RunState.COMPLETED
        for task, run in (entry, *(self._ledger_queries.failed_dependents(entry.task.task_id) if has_failed else ())):
            if run and run.started_at is None and (is_queue(run.runner) or run.state in ENDED) and self._supervisor.is_here(run):
                with contextlib.suppress(OSError):  # the files only copy the ledger, and the runner writes them again
                    self._write_files(task, run)
        engine_is_listening = self._changes.announce()
        if not engine_is_listening and entry.is_live and self._needs_engine(entry.run):
            self._supervisor.start_engine()
        elif not engine_is_listening:
            self.start_needed_engine()

    def _needs_engine(self, run: Run | None) -> bool:
        """Whether a live run is for an engine of this home, and not for another host or for a living program."""
        return run is None or (self._supervisor.is_here(run) and (is_queue(run.runner) or has_no_owner(run)))

    def _write_files(self, task: Task, run: Run) -> None:
        """Write the files of a run, and write them again if its runner has changed it meanwhile: this may have replaced newer files.

        The runner writes the files of an end before the ledger, so an end that only they have is waited for.
        """
        folder, written, deadline = self._home.folder(run.folder), None, time.monotonic() + _END_SECONDS
        while run != written or (run.state == RunState.RUNNING and run_files.exit_code(folder) is not None and time.monotonic() < deadline):
            if run == written:
                time.sleep(_END_INTERVAL)
            else:
                run_files.write(folder, task, run)
            written, entry = run, self._ledger_queries.get(task.task_id)
            if entry and entry.run and entry.run.run_id == run.run_id:
                run = entry.run

    def start_needed_engine(self) -> None:
        """Start an engine if a schedule, a delivery or a source needs one and none is listening. Checked at most once per second."""
        if time.monotonic() < self._checked_at + _CHECK_INTERVAL:
            return
        self._checked_at = time.monotonic()
        if self._supervisor.engine_needed() and not self._changes.wake_engine():
            self._supervisor.start_engine()
