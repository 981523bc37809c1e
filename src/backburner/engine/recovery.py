"""Recovers runs whose owner process has died: earlier engines, embedding programs, agent processes."""

import contextlib
from collections.abc import Callable

from backburner.core.claims import RunResult
from backburner.core.errors import BackburnerError, StaleRun
from backburner.core.known_agents import OPENCODE
from backburner.core.models import Clock, ProcessId, Run
from backburner.core.queues import is_for_agents, is_queue
from backburner.core.states import RUNNING_STATES, Result, RunState, WaitKind
from backburner.core.store_ports import LiveWork, RunQueue, SessionStore
from backburner.execution.runner import Runner
from backburner.services.agent_catalog import AgentCatalog
from backburner.system import processes, run_files
from backburner.system.home import Home


class RunRecovery:
    """Takes over, releases or ends the runs of dead owners. `runner_of` is the runner for a run, by its queue; `watch` triggers another
    pass when a living owner exits.
    """

    def __init__(
        self,
        home: Home,
        live_work: LiveWork,
        queue: RunQueue,
        sessions: SessionStore,
        catalog: AgentCatalog,
        owner: ProcessId,
        runner_of: Callable[[Run], Runner],
        watch: Callable[[ProcessId], None],
        changed: Callable[[], None],
        clock: Clock,
    ) -> None:
        self._home, self._live_work, self._queue, self._sessions = home, live_work, queue, sessions
        self._catalog, self._owner, self._runner_of = catalog, owner, runner_of
        self._watch, self._changed, self._clock = watch, changed, clock
        self._agents_ended: set[str] = set()  # waiting runs whose agents ended with their agent process

    def take_over(self) -> None:
        """Check all live runs and recover those whose owner has died."""
        for run in self._live_work.active_runs():
            if run.state in RUNNING_STATES and run.owner == self._owner and is_for_agents(run.runner):
                self._mark_interrupted(run)  # it was taken over, but the result could not be written
            elif run.state == RunState.WAITING and run.owner and is_for_agents(run.runner):
                self._recover_waiting(run, run.owner)
            elif run.state in RUNNING_STATES and run.owner == self._owner:
                if not self._runner_of(run).owns(run.run_id):
                    self._runner_of(run).take_over(run)  # this engine owns it but does not watch it
            elif run.state in RUNNING_STATES and run.owner:
                if processes.is_alive(run.owner):
                    self._watch(run.owner)
                elif is_for_agents(run.runner):
                    self._mark_interrupted(run)
                else:
                    self._runner_of(run).take_over(run)
            elif not is_queue(run.runner):
                self._release_if_dead(run.runner)
        for runner in self._live_work.pending_runners():
            if not is_queue(runner):
                self._release_if_dead(runner)
        for lease in self._sessions.interactive_leases():
            if processes.is_alive(lease.process):
                self._watch(lease.process)
            else:
                self._sessions.end_interactive(lease.process, self._clock())

    def _release_if_dead(self, runner: str) -> None:
        """Have the engine run what a program has submitted and not started, if the program has ended."""
        program = ProcessId.parse(runner)
        if processes.is_alive(program):
            self._watch(program)
        else:
            self._queue.release(runner)

    def _recover_waiting(self, run: Run, owner: ProcessId) -> None:
        """Recover a waiting run whose agent was kept alive by an agent process: the agent ends with that process."""
        if processes.is_alive(owner):
            self._watch(owner)
        elif run.run_id not in self._agents_ended:
            self._agents_ended.add(run.run_id)
            processes.end_all(run.process, run.process_tag)

    def _mark_interrupted(self, run: Run) -> None:
        """Record that a run was interrupted because its agent process died. Its conversation can be resumed; nothing is run twice.

        An agent in an OpenCode server is still working: the next agent process reattaches to it.
        """
        error = "it was interrupted: its agent process ended"
        processes.end_all(run.process, run.process_tag)
        with contextlib.suppress(StaleRun):
            work = self._queue.adopt(run, self._owner)
            if run.cancel_requested_at is None and self._runs_in_external_server(work.task.spec.agent_name or ""):
                self._queue.suspend(
                    run.run_id, self._owner, "its agent process ended; the agent continues in its server", self._clock(), WaitKind.REATTACH
                )
                self._changed()
                return
            if not work.task.is_recurring:
                error += ". Its conversation is kept and can be resumed"
            usage = run_files.usage(self._home.folder(run.folder))
            ending = RunResult(run.run_id, RunState.FAILED, Result.LOST, self._clock(), error=error, usage=usage)
            self._queue.settle([ending], self._owner)
            with contextlib.suppress(OSError):
                run_files.write(
                    self._home.folder(run.folder),
                    work.task,
                    run._replace(state=ending.state, end=run.end._replace(result=ending.result), error=error),
                )
            self._changed()

    def _runs_in_external_server(self, agent: str) -> bool:
        """Whether an agent runs in a server that does not end with the agent process."""
        try:
            return self._catalog.settings(agent)["type"] == OPENCODE
        except BackburnerError:
            return False
