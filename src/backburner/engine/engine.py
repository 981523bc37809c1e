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
from backburner.core.claims import ClaimedRun
from backburner.core.errors import BackburnerError
from backburner.core.models import AGENT_LANE, ENGINE, LOCAL_AGENT_LANE, TRACE_CURSOR, ProcessId, Run
from backburner.core.ports import Executor, Outcome
from backburner.core.queues import lane_of, lanes_served
from backburner.core.settings import Config
from backburner.core.states import Result
from backburner.core.store_ports import RunnerQueue
from backburner.engine.child_processes import AGENT_PROCESS, INTEGRATIONS_PROCESS, ChildProcesses
from backburner.engine.membership import Membership
from backburner.engine.recovery import RunRecovery
from backburner.execution.runner import Runner
from backburner.execution.shim import has_begun
from backburner.services.daemon_parts import EngineParts
from backburner.system import capacity, processes, run_files, wakeups
from backburner.system.home import opencode_server_files

if TYPE_CHECKING:
    from backburner.engine.host_requests import HostRequestServer
    from backburner.engine.lanes import LaneWork
    from backburner.engine.scheduler import Scheduler

log = logging.getLogger("backburner")

_CLEAN_UP_INTERVAL = 900.0  # seconds; old tasks are deleted about once a day, see `Retention.confirmed_time`
_FOLDERS_PER_BATCH = 50
_GIVEN_UP_MS = 7 * 86_400_000  # how long ago other hosts may have given up a run whose processes are ended
_CLEAN_UP_PAUSE = 0.02  # seconds between two batches
# seconds: new traces are collected this long before they are sent, and sent again after this long if that failed
_TRACE_DELAY, _TRACE_RETRY_DELAY = 1.0, 30.0


class Engine:
    """The work that the engine does in each pass. `membership` is that of this host, if its ledger is shared by several."""

    def __init__(self, parts: EngineParts, executor: Executor, process: DaemonProcess, membership: Membership | None = None) -> None:
        self._parts, self._executor, self._process, self._membership = parts, executor, process, membership
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
        self._draining: asyncio.Task[None] | None = None
        loop = asyncio.get_running_loop()
        self._stop_hearing = parts.changes.hear_other_hosts(lambda: _call_in(loop, self._other_host_called))
        config = parts.config.current
        if parts.config.problem:
            log.warning("Nothing is started until the settings are valid again: %s", parts.config.problem)
        self._owner = processes.myself()
        self._runner = self._new_runner(parts.runs, ENGINE)
        self._lane_runners: dict[str, Runner] = {}  # by lane; on several hosts, one for all lanes, by the name ""
        self._lanes = self._serve_lanes(config) if membership and config.labels else None
        if membership:
            self._end_given_up()
            membership.start(lambda: _call_in(loop, process.wake), lambda error: _call_in(loop, lambda: self._epoch_ended(error)))
        self._set_capacity()
        self._recovery = RunRecovery(
            self._home,
            parts.live_work,
            parts.runs,
            parts.sessions,
            parts.catalog,
            self._owner,
            self._runner_of,
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
        for runner in self._lane_runners.values():
            runner.tick()
        if self._lanes:
            self._lanes.tick()
            self._drain(self._lanes)
        if self._parts.config.problem:
            return
        self._parts.proposals.expire_overdue()
        if self._clean_up_timer is None:
            self._clean_up()
        if self._leads:
            self._send_traces()
            self._fire_schedules()
            self._suggest_work()
        self._start_children()

    def is_busy(self) -> bool:
        """Whether anything runs, is scheduled, or must be delivered or watched."""
        return bool(
            self._runner.busy
            or (self._requests and self._requests.is_busy)
            or (self._lanes and self._draining is None)
            or any(runner.busy for runner in self._lane_runners.values())
            or (self._cleaning and not self._cleaning.done())
            or self._parts.live_work.active_runs()
            or self._parts.live_work.pending_runners()
            or (self._parts.config.current.flag("tasks.enabled") and self._parts.live_work.next_slot_at(everywhere=False) is not None)
            or self._parts.live_work.approvable_elsewhere()
            or INTEGRATIONS_PROCESS in self._children
            or self._parts.deliveries.integrations_needed(leads=self._leads_integrations)
            or (self._leads and self._has_models() and self._parts.suggestions.next_at() is not None)
        )

    def config_changed(self, config: Config) -> None:
        self._set_capacity()
        for runner in (self._runner, *self._lane_runners.values()):
            runner.grace = config.number("commands.cancel_grace_seconds")
        self._executor.output_cap = config.whole("commands.output_cap_mb") << 20

    def _new_runner(self, queue: RunnerQueue, name: str) -> Runner:
        parts = self._parts
        return Runner(
            queue,
            parts.queries,
            self._executor,
            self._home,
            parts.clock,
            runner=name,
            owner=self._owner,
            cap=0,
            grace=parts.config.current.number("commands.cancel_grace_seconds"),
            changed=self._process.wake_others,
            placed=lambda work: parts.gate.placed(work),
            recheck=lambda work: parts.gate.recheck(work.task, work.environment),
            admit=self._admit,
            has_begun=self._has_begun,
            give_back=self._give_back,
        )

    def _has_begun(self, work: ClaimedRun) -> bool:
        """Whether a run that was just claimed has begun here before: its server has lost that, as in a fail-over without the last commits."""
        run = work.run
        if not (run.host and has_begun(self._home.folder(run.folder))):
            return False
        log.warning("%s had begun here before the ledger lost it; it is not started again", run.run_id)
        self._parts.hosts.record_found(run, self._parts.clock())
        return True

    def _admit(self, wanted: int) -> int:
        """How many commands may start now: none while the lease of this host may be over."""
        if self._membership and not self._membership.is_safe:
            return 0
        return capacity.allowed_starts(self._parts.config.current, wanted)

    def _give_back(self, work: ClaimedRun, outcome: Outcome) -> bool:
        """Queue a run again that may run twice, if the lease of this host was over or its end was not observed."""
        if not (self._membership and work.task.spec.order.rerun):
            return False
        is_over = os.path.exists(os.path.join(self._home.folder(work.run.folder), run_files.LEASE_OVER))
        if not is_over and outcome.result != Result.LOST:
            return False
        error = "the lease of its host was over" if is_over else outcome.error or "its end was not observed"
        self._parts.hosts.give_back(work.run.run_id, self._owner, error, self._parts.clock())
        return True

    def _set_capacity(self) -> None:
        """Set how many commands may run: in all, and in each lane. Nothing starts while the settings are invalid."""
        config = self._parts.config.current
        may_start = not self._parts.config.problem
        self._runner.cap = config.whole("commands.max_concurrent") if may_start else 0
        if self._membership:
            for runner in self._lane_runners.values():
                runner.cap = config.whole("worker.capacity") if may_start else 0
            return
        for lane in {*config.lanes, *self._lane_runners}:
            runner = self._lane_runners.setdefault(lane, self._new_runner(self._parts.runs, f"{ENGINE}/{lane}"))
            runner.cap = config.lanes.get(lane, 0) if may_start else 0

    def _drain(self, lanes: "LaneWork") -> None:
        """If somebody has asked for it, take nothing from the lanes any more."""
        if self._membership and self._membership.is_draining and self._draining is None:
            log.info("no more runs of lanes are taken, until the engine starts again")
            self._draining = asyncio.get_running_loop().create_task(lanes.close())

    def _runner_of(self, run: Run) -> Runner:
        """The runner that counts a run of this host."""
        lane = lane_of(run.runner)
        return self._lane_runners.get("" if self._membership else lane, self._runner) if lane else self._runner

    def _serve_lanes(self, config: Config) -> "LaneWork":
        """Take runs of other hosts, from the lanes that the settings name."""
        from backburner.core.optional_dependencies import need

        need("postgres", "Serving lanes needs")
        from backburner.engine.dispatch import ProcrastinateDispatch
        from backburner.engine.lanes import AgentRuns, HandedOutRuns, LaneWork

        parts = self._parts
        commands = HandedOutRuns(parts.runs, parts.dispatch)
        commands.runner = self._lane_runners[""] = self._new_runner(commands, "")  # ty: ignore[invalid-argument-type]
        capacities = {ENGINE: config.whole("worker.capacity")}
        if self._has_models() or config.agents:
            capacities |= {AGENT_LANE: config.whole("models.max_concurrent"), LOCAL_AGENT_LANE: config.whole("tasks.max_concurrent")}
        lanes = LaneWork(
            ProcrastinateDispatch(parts.dispatch_connection(), parts.changes.subscribe, self._home.job_workers),
            parts.dispatch,
            commands,
            AgentRuns(parts.dispatch, parts.host_id, self._process.wake_others),
            lanes_served(config.labels),
            capacities,
            parts.clock,
            self._process.wake,
        )
        lanes.start()
        return lanes

    @property
    def _leads(self) -> bool:
        return self._membership is None or self._membership.leads

    @property
    def _leads_integrations(self) -> bool:
        return self._membership is None or self._membership.leads_integrations

    def _epoch_ended(self, error: BackburnerError) -> None:
        """Exit, because another host has given up this epoch, or the ledger is too new; the next engine takes over what is left."""
        self._process.exit_with(error)

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
        if self._lanes:
            await self._lanes.close()
        for runner in (self._runner, *self._lane_runners.values()):
            await runner.stop()
        if self._membership:
            self._leave(self._membership)
        for descriptor in self._watched.values():
            asyncio.get_running_loop().remove_reader(descriptor)
            os.close(descriptor)

    def _other_host_called(self) -> None:
        """Another host has queued or cancelled something for this one: perhaps for another process of this home."""
        wakeups.wake_clients(self._home.socket_dir)
        self._process.wake()

    def _end_given_up(self) -> None:
        """End what is left of runs that other hosts have given up while this one did not answer."""
        for run in self._parts.hosts.given_up(self._parts.clock() - _GIVEN_UP_MS):
            if processes.members(run.process, run.process_tag):
                log.warning("%s was given up by another host; its processes are ended", run.run_id)
                processes.end_all(run.process, run.process_tag)
                self._parts.events.append("run_ended_late", run.task_id, run.run_id, self._parts.clock())

    def _leave(self, membership: Membership) -> None:
        try:
            membership.leave(has_runs=bool(self._parts.live_work.active_runs()))
        except BackburnerError as error:
            log.warning("%s", error)

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
        seconds = self._scheduler.tick()
        if self._scheduler.moved:  # perhaps the last slot of all
            self._process.wake_others()
            self._runner.tick()
        if seconds is None:
            return
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
        if INTEGRATIONS_PROCESS not in self._children and self._parts.deliveries.integrations_needed(leads=self._leads_integrations):
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
        """Remove old tasks and files behind the first pass, and every quarter of an hour while the engine runs.

        One host removes the old tasks of all; each host limits the size of its own home.
        """
        self._clean_up_timer = asyncio.get_running_loop().call_later(_CLEAN_UP_INTERVAL, self._clean_up)
        if self._cleaning is None or self._cleaning.done():
            self._cleaning = asyncio.get_running_loop().create_task(self._clean_up_in_batches())

    async def _clean_up_in_batches(self) -> None:
        """Remove a few tasks at a time, so that commands start and end meanwhile."""
        retention, count = self._parts.retention, 0
        try:
            await asyncio.sleep(0)
            rotate_log(self._home)
            removes_tasks = self._leads and self._parts.config.current.flag("commands.auto_cleanup")
            if removes_tasks and (as_of := retention.confirmed_time()) is not None:
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
