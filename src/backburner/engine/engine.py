"""The engine: one process per home that runs commands, fires schedules, and takes over runs of other processes that died.

A pass reads the ledger and does everything that is due; `DaemonProcess` calls it at every wake-up. The engine may be killed at any time.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from backburner.coordination.daemon_process import DaemonProcess
from backburner.coordination.launcher import process_command, rotate_log
from backburner.core.errors import BackburnerError
from backburner.core.models import AGENT_LANE, ENGINE, LOCAL_AGENT_LANE, TRACE_CURSOR, ProcessId
from backburner.core.ports import Executor
from backburner.core.settings import Config
from backburner.engine.child_processes import AGENT_PROCESS, INTEGRATIONS_PROCESS, ChildProcesses
from backburner.engine.recovery import RunRecovery
from backburner.execution.runner import Runner
from backburner.services.daemon_parts import EngineParts
from backburner.system import capacity, processes, wakeups
from backburner.system.home import opencode_server_files

if TYPE_CHECKING:
    from backburner.engine.host_requests import HostRequestServer
    from backburner.engine.scheduler import Scheduler

log = logging.getLogger("backburner")

_CLEAN_UP_INTERVAL = 900.0  # seconds; old tasks are deleted about once a day, see `Retention.confirmed_time`
_FOLDERS_PER_BATCH = 50
_CLEAN_UP_PAUSE = 0.02  # seconds between two batches
# seconds: new traces are collected this long before they are sent, and sent again after this long if that failed
_TRACE_DELAY, _TRACE_RETRY_DELAY = 1.0, 30.0


class Engine:
    """The work that the engine does in each pass."""

    def __init__(self, parts: EngineParts, executor: Executor, process: DaemonProcess) -> None:
        self._parts, self._executor, self._process = parts, executor, process
        self._home = parts.home
        self._watched: dict[ProcessId, int] = {}  # values are pidfds
        self._sending: asyncio.Task[None] | None = None
        self._children = ChildProcesses(self._home, process.wake)
        self._scheduler: Scheduler | None = None  # created on first use: date libraries are slow to import, and many homes have no schedule
        self._schedule_timer: asyncio.TimerHandle | None = None
        self._suggestion_timer: asyncio.TimerHandle | None = None
        self._clean_up_timer: asyncio.TimerHandle | None = None
        self._cleaning: asyncio.Task[None] | None = None
        self._requests = _serve_requests(parts)
        loop = asyncio.get_running_loop()
        self._stop_hearing = parts.changes.hear_other_hosts(lambda: _call_in(loop, self._other_host_called))
        config = parts.config.current
        if parts.config.problem:
            log.warning("Nothing is started until the settings are valid again: %s", parts.config.problem)
        self._runner = Runner(
            parts.runs,
            parts.queries,
            executor,
            self._home,
            parts.clock,
            runner=ENGINE,
            owner=processes.myself(),
            cap=self._max_concurrent(),
            grace=config.number("commands.cancel_grace_seconds"),
            changed=process.wake_others,
            recheck=lambda work: parts.gate.recheck(work.task, work.environment),
            admit=lambda wanted: capacity.allowed_starts(parts.config.current, wanted),
        )
        self._recovery = RunRecovery(
            self._home,
            parts.live_work,
            parts.runs,
            parts.sessions,
            parts.catalog,
            self._runner,
            self._watch,
            process.wake_others,
            parts.clock,
        )

    def tick(self) -> None:
        """Do everything that is due now.

        If config.toml was invalid when the engine started, it only records ends and cancels: what may start depends on the rules in it.
        """
        self._recovery.take_over()
        self._runner.tick()
        if self._requests:
            self._requests.tick()
        if self._parts.config.problem:
            return
        if self._clean_up_timer is None:
            self._clean_up()
        self._send_traces()
        self._parts.proposals.expire_overdue()
        self._fire_schedules()
        self._suggest_work()
        self._start_children()

    def is_busy(self) -> bool:
        """Whether anything runs, is scheduled, or must be delivered or watched."""
        return bool(
            self._runner.busy
            or (self._requests and self._requests.is_busy)
            or (self._cleaning and not self._cleaning.done())
            or self._parts.live_work.active_runs()
            or self._parts.live_work.pending_runners()
            or (self._parts.config.current.flag("tasks.enabled") and self._parts.live_work.next_slot_at(everywhere=False) is not None)
            or INTEGRATIONS_PROCESS in self._children
            or self._parts.deliveries.integrations_needed()
            or (self._has_models() and self._parts.suggestions.next_at() is not None)
        )

    def config_changed(self, config: Config) -> None:
        self._runner.cap = self._max_concurrent()
        self._runner.grace = config.number("commands.cancel_grace_seconds")
        self._executor.output_cap = config.whole("commands.output_cap_mb") << 20

    def _max_concurrent(self) -> int:
        return 0 if self._parts.config.problem else self._parts.config.current.whole("commands.max_concurrent")

    async def close(self) -> None:
        """Stop without ending anything: commands, agents and deliveries continue, and the next engine takes them over."""
        self._stop_hearing()
        for timer in (self._schedule_timer, self._suggestion_timer, self._clean_up_timer):
            if timer:
                timer.cancel()
        if self._cleaning:
            self._cleaning.cancel()
        if self._sending:
            self._sending.cancel()  # the process that it started continues
        if self._requests:
            self._requests.close()
        self._children.release()
        await self._runner.stop()
        for descriptor in self._watched.values():
            asyncio.get_running_loop().remove_reader(descriptor)
            os.close(descriptor)

    def _other_host_called(self) -> None:
        """Another host has queued or cancelled something for this one: perhaps for another process of this home."""
        wakeups.wake_clients(self._home.socket_dir)
        self._process.wake()

    def _fire_schedules(self) -> None:
        """Fire the recurring tasks that are due, and schedule a pass for the next due time."""
        if self._schedule_timer:
            self._schedule_timer.cancel()
            self._schedule_timer = None
        if self._parts.live_work.next_slot_at() is None:
            return
        if self._scheduler is None:
            from backburner.engine.scheduler import Scheduler

            self._scheduler = Scheduler(
                self._parts.recurring, self._parts.live_work, self._home.tasks, self._parts.clock, self._parts.config
            )
        if (seconds := self._scheduler.tick()) is None:
            return
        if self._scheduler.moved:
            self._process.wake_others()
            self._runner.tick()
        self._schedule_timer = asyncio.get_running_loop().call_later(seconds, self._process.wake)

    def _has_models(self) -> bool:
        config = self._parts.config.current
        return bool(config.text("models.local") or config.text("models.default"))

    def _suggest_work(self) -> None:
        """Request suggestions if they are due, and schedule a pass for the next due time."""
        if not self._has_models():
            return
        self._parts.suggestions.ask_if_due()
        if (due := self._parts.suggestions.next_at()) is None:
            return
        loop, timer = asyncio.get_running_loop(), self._suggestion_timer
        if timer is None or timer.cancelled() or timer.when() < loop.time():
            self._suggestion_timer = loop.call_later(max(1.0, (due - self._parts.clock()) / 1000), self._process.wake)

    def _start_children(self) -> None:
        """Start the agent process if it has runs or OpenCode notices, and the integrations process if it is needed."""
        queued = any(self._parts.runs.queued(lane, self._parts.clock(), 1) for lane in (AGENT_LANE, LOCAL_AGENT_LANE))
        if queued or opencode_server_files(self._home) or self._parts.inbox.opencode_sessions_with_notices():
            self._children.start(AGENT_PROCESS)
        if INTEGRATIONS_PROCESS not in self._children and self._parts.deliveries.integrations_needed():
            self._children.start(INTEGRATIONS_PROCESS)

    def _watch(self, other: ProcessId) -> None:
        """Make a pass when a living owner of runs exits."""
        if other in self._watched or not hasattr(os, "pidfd_open"):
            return
        try:
            descriptor = self._watched[other] = os.pidfd_open(other.pid)
        except ProcessLookupError:
            self._process.wake()  # it exited just now
            return

        def died() -> None:
            asyncio.get_running_loop().remove_reader(descriptor)
            os.close(self._watched.pop(other))
            self._process.make_pass()

        asyncio.get_running_loop().add_reader(descriptor, died)

    def _send_traces(self) -> None:
        """If trace export is configured, start a process that sends new traces, after a delay that collects several."""
        if self._sending is None and self._parts.config.current.text("telemetry.otlp_endpoint"):
            self._sending = asyncio.get_running_loop().create_task(self._export_traces())

    async def _export_traces(self) -> None:
        await asyncio.sleep(_TRACE_DELAY)
        last = self._parts.events.events(-1, 1)
        if last and last[0].event_id > self._parts.events.cursor(TRACE_CURSOR):
            child = await asyncio.create_subprocess_exec(
                *process_command(self._home, "engine.trace_export"), stdin=asyncio.subprocess.DEVNULL
            )
            if await child.wait() != 0:
                await asyncio.sleep(_TRACE_RETRY_DELAY)
        self._sending = None

    def _clean_up(self) -> None:
        """Remove old tasks and files behind the first pass, and every quarter of an hour while the engine runs."""
        self._clean_up_timer = asyncio.get_running_loop().call_later(_CLEAN_UP_INTERVAL, self._clean_up)
        if self._cleaning is None or self._cleaning.done():
            self._cleaning = asyncio.get_running_loop().create_task(self._clean_up_in_batches())

    async def _clean_up_in_batches(self) -> None:
        """Remove a few tasks at a time, so that commands start and end meanwhile."""
        retention, count = self._parts.retention, 0
        try:
            await asyncio.sleep(0)
            rotate_log(self._home)
            if self._parts.config.current.flag("commands.auto_cleanup") and (as_of := retention.confirmed_time()) is not None:
                for batch in retention.clean_up_batches(as_of=as_of):
                    count += len(batch)
                    await asyncio.sleep(_CLEAN_UP_PAUSE)
                log.info("removed %d tasks whose retention period has ended", count)
            for number, _ in enumerate(retention.limit_size_batches()):
                if number % _FOLDERS_PER_BATCH == 0:
                    await asyncio.sleep(_CLEAN_UP_PAUSE)
        except BackburnerError as error:  # for example, the disk is full
            log.warning("clean-up stopped after %d tasks: %s", count, error)
        self._process.wake()


def _serve_requests(parts: EngineParts) -> "HostRequestServer | None":
    """Answer the requests of other hosts, where the ledger can have any."""
    if parts.open_shared is None:
        return None
    from backburner.engine.host_requests import HostRequestServer

    server = HostRequestServer(parts.home, parts.open_shared, parts.changes.subscribe, parts.clock)
    server.start()
    return server


def _call_in(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    """Call a function in the event loop, from another thread."""
    with contextlib.suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(function)
