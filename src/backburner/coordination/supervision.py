"""Makes sure that every live run has a living owner: wakes the engine or starts one. Called before the ledger is read; writes nothing to it."""

import contextlib
import time

from backburner.coordination.changes import ChangeFeed
from backburner.core.errors import EngineUnavailable
from backburner.core.light_typing import TYPE_CHECKING
from backburner.core.models import EXTERNAL, Clock, ProcessId, Run
from backburner.core.queues import is_queue
from backburner.core.states import RUNNING_STATES
from backburner.system import run_files
from backburner.system.home import Home
from backburner.system.processes import boot_id, engine_of, heartbeat_age, is_alive, send

if TYPE_CHECKING:
    from backburner.core.store_ports import DeliveryStore, LiveWork

_TAKE_OVER_TIMEOUT = 5.0
HUNG_AFTER_SECONDS = 60.0  # an engine that has not been in its main loop for so long has to respond, or is replaced
_RESPONSE_TIMEOUT = 8.0  # longer than the interval of its heartbeat
_SIGKILL = 9
_ENGINE_START_TIMEOUT = 20.0  # after this time without a listening engine, a waiting caller gives up


class EngineSupervisor:
    """Keeps an engine running for one home while there is work for it. `environ` is the environment for a new engine."""

    def __init__(
        self,
        home: Home,
        live_work: "LiveWork",
        delivery_store: "DeliveryStore",
        changes: ChangeFeed,
        environ: dict[str, str],
        clock: Clock,
    ) -> None:
        self._home, self._live_work, self._delivery_store = home, live_work, delivery_store
        self._changes, self._environ, self._clock = changes, environ, clock
        self._unreachable_since: float | None = None

    def ensure_supervised(self) -> None:
        """Make sure every live run has a living owner, so that what is read next is true.

        Wakes the engine or starts one, and waits up to 5 s for it to take over runs whose owner died.
        """
        active, pending = self._live_work.active_runs(), self._live_work.pending_runners()
        if (active or pending) and heartbeat_age(self._home) > HUNG_AFTER_SECONDS:
            self._replace_hung_engine()
        if not any(map(has_no_owner, active)) and not any(map(_has_ended, pending)):
            # The process that wrote these may have died before it could wake the engine.
            has_unnoticed_work = any(map(is_queue, pending)) or any(
                is_queue(run.runner) and run.cancel_requested_at is not None for run in active
            )
            if has_unnoticed_work or self.engine_needed() or self._live_work.overdue_proposals(self._clock()):
                self.wake_or_start_engine()
            for pid in {run.owner.pid for run in active if not is_queue(run.runner) and run.owner and run.cancel_requested_at is not None}:
                self._changes.wake_process(pid)
            return
        stale, ended = {run.run_id for run in active if has_no_owner(run)}, set(filter(_has_ended, pending))
        for attempt, _ in enumerate(self._changes.changes(_TAKE_OVER_TIMEOUT, interval=0.25)):
            if attempt == 0:
                self.wake_or_start_engine()
            if not ended.intersection(self._live_work.pending_runners()) and not any(
                run.run_id in stale and self._end_not_recorded(run) for run in self._live_work.active_runs()
            ):
                return

    def _replace_hung_engine(self) -> None:
        """Kill an engine whose main loop does not run any more, also one that was stopped; its supervisor starts another."""
        engine = engine_of(self._home)
        if engine is None:
            return
        age = heartbeat_age(self._home)
        for _ in self._changes.changes(_RESPONSE_TIMEOUT, interval=0.25):
            if heartbeat_age(self._home) < age or not is_alive(engine):
                return  # it was only slow, or another process has replaced it
        if send(engine, _SIGKILL):
            line = f"{time.strftime('%Y-%m-%d %H:%M:%S')},000 WARNING the engine (pid {engine.pid}) did not respond for {age:.0f} s and was replaced\n"
            with contextlib.suppress(OSError), open(self._home.engine_log, "a") as log:
                log.write(line)
            self._wait_for_exit(engine)

    def _wait_for_exit(self, engine: ProcessId) -> None:
        """Wait until a killed engine is gone, so that its socket is not taken for that of a living one."""
        for _ in self._changes.changes(_TAKE_OVER_TIMEOUT, interval=0.05):
            if not is_alive(engine):
                return

    def is_here(self, run: Run) -> bool:
        """Return whether a run is of this host: its process is here, or an engine of this home starts it."""
        return self._live_work.is_here(run)

    def engine_needed(self) -> bool:
        """Return whether a schedule, a delivery, a source or an approval on another host needs a running engine."""
        return (
            self._live_work.next_slot_at(everywhere=False) is not None
            or self._live_work.approvable_elsewhere()
            or self._delivery_store.integrations_needed()
        )

    def is_idle(self) -> bool:
        """Return whether no run is live and nothing else needs a running engine."""
        return not (self._live_work.active_runs() or self._live_work.pending_runners() or self.engine_needed())

    def wake_or_start_engine(self) -> None:
        """Wake the engine, or start one. Raises EngineUnavailable if none has been listening for 20 s."""
        if self._changes.wake_engine():
            self._unreachable_since = None
            return
        self.start_engine()
        self._unreachable_since = self._unreachable_since or time.monotonic()
        if time.monotonic() - self._unreachable_since > _ENGINE_START_TIMEOUT:
            raise EngineUnavailable(_last_line(self._home.engine_log), log=self._home.engine_log)

    def start_engine(self) -> None:
        """Start an engine that will read the ledger after this call; does not wait for it."""
        from backburner.coordination.launcher import start_engine

        start_engine(self._home, self._environ)

    def _end_not_recorded(self, run: Run) -> bool:
        """Return whether a run may have ended, although its end is not recorded in the ledger yet."""
        ended = run_files.exit_code(self._home.folder(run.folder)) is not None
        return has_no_owner(run) or ended or (run.process is not None and run.process.boot != boot_id())


def has_no_owner(run: Run) -> bool:
    """Return whether the process that owns a run of this host, or should claim it, is dead."""
    return not is_alive(run.owner) if run.state in RUNNING_STATES else _has_ended(run.runner)


def _has_ended(runner: str) -> bool:
    """Return whether a runner is a program that has ended."""
    return runner != EXTERNAL and not is_queue(runner) and not is_alive(ProcessId.parse(runner))


def _last_line(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read()[-4000:].strip().rpartition("\n")[2] or "its log is empty"
    except OSError as error:
        return f"{error.strerror}"
