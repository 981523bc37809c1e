"""Seeing to it that somebody looks after everything live, whoever died: the part of the Runtime that every reading begins with."""

import contextlib
import time
from typing import TYPE_CHECKING

from backburner.core.errors import EngineUnavailable, IllegalTransition, TaskNotFound
from backburner.core.models import OURS, RECORD, Clock, Entry, ProcessId, Run
from backburner.core.states import AT_WORK, RunState
from backburner.system import run_files as folders
from backburner.system import wakeups as wake
from backburner.system.home import Home
from backburner.system.processes import boot_id, is_alive

if TYPE_CHECKING:
    from backburner.core.ports import Store  # protocols are slow to build, and no door needs them at run time

_TAKE_OVER_SECONDS = 5.0
_DEAF_SECONDS = 20.0  # how long an engine may take to listen before a waiting door gives up on it


class Attendance:
    """One home as one process attends to it. `environ` is the environment of whoever asks."""

    def __init__(self, home: Home, store: "Store", environ: dict[str, str], clock: Clock) -> None:
        self.home, self.store, self.environ, self.clock = home, store, environ, clock
        self._deaf_since: float | None = None

    def listen(self) -> wake.Ear:
        """An ear that hears every change of the ledger. Close it."""
        return wake.Ear(self.home.make_bells())

    def refresh(self) -> None:
        """See to it that somebody looks after everything live, before it is read; overdue proposals expire."""
        now = self.clock()
        for task_id in self.store.overdue_proposals(now):
            with contextlib.suppress(IllegalTransition, TaskNotFound):  # another door was quicker
                self._publish(self.store.refuse(task_id, expired=True, now=now))
        live = self.store.live_runs()
        if not live or not any(map(_unattended, live)):
            # Whoever asked for these may have died before it rang.
            orphaned = any(run.runner in OURS and (run.state == RunState.PENDING or run.cancel_requested_at is not None) for run in live)
            if orphaned or self._awaited():
                self.ring_engine()
            for embedder in {run.owner.pid for run in live if run.runner not in OURS and run.owner and run.cancel_requested_at is not None}:
                wake.ring_process(self.home.bells, embedder)
            return
        ear = self.listen()
        try:
            deadline = time.monotonic() + _TAKE_OVER_SECONDS
            stale = {run.run_id for run in live if _unattended(run)}
            self.ring_engine()
            while any(run.run_id in stale and self._unclear(run) for run in self.store.live_runs()) and time.monotonic() < deadline:
                ear.wait(0.25)
        finally:
            ear.close()

    def _unclear(self, run: Run) -> bool:
        """Whether a run taken over may have ended without the ledger saying so yet."""
        return _unattended(run) or folders.exit_code(self.home.folder(run.folder)) is not None or _rebooted(run)

    def _awaited(self) -> bool:
        """Whether there is something that an engine has to be there for: a clock to look at, letters, sources."""
        return self.store.next_slot_at() is not None or self.store.post_wanted()

    def ring_engine(self) -> None:
        """Wake the engine; start one where there is none. EngineUnavailable where that has not helped for long."""
        if wake.ring(self.home.bells, wake.ENGINE):
            self._deaf_since = None
            return
        self._start_engine()
        self._deaf_since = self._deaf_since or time.monotonic()
        if time.monotonic() - self._deaf_since > _DEAF_SECONDS:
            raise EngineUnavailable(_last_line(self.home.engine_log), log=self.home.engine_log)

    def _publish(self, entry: Entry) -> None:
        """After a commit: the files for people, and everybody who listens."""
        fallen = self.store.fallen(entry.task.task_id) if entry.ended and entry.status != RunState.COMPLETED else ()
        for task, run in (entry, *fallen):
            if run and run.started_at is None:
                with contextlib.suppress(OSError):  # it is a copy; who runs it writes it again
                    folders.write(self.home.folder(run.folder), task, run)
        engine = wake.ring_all(self.home.bells)
        mine = entry.run is None or entry.run.runner in OURS or _unattended(entry.run)
        if not engine and ((entry.live and mine) or self._awaited()):
            self._start_engine()

    def _start_engine(self) -> None:
        from backburner.coordination.launcher import start_engine

        start_engine(self.home, self.environ)


def _unattended(run: Run) -> bool:
    """Whether nobody looks after a run any more: its owner is dead, or the embedder that meant to claim it is."""
    if run.state in AT_WORK:
        return not is_alive(run.owner)
    return run.runner not in (*OURS, RECORD) and not is_alive(ProcessId.parse(run.runner))


def _rebooted(run: Run) -> bool:
    """Whether a run's process was one of another boot of the machine."""
    return run.process is not None and run.process.boot != boot_id()


def _last_line(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read()[-4000:].strip().rpartition("\n")[2] or "it says nothing"
    except OSError as error:
        return f"{error.strerror}"
