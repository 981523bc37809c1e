"""Going on with what the dead left: engines before us, embedders of the library, and the hosts of agents."""

import contextlib
from collections.abc import Callable

from backburner.core.errors import BackburnerError, StaleRun
from backburner.core.known_agents import OPENCODE
from backburner.core.models import ELSEWHERE, HOSTED, OURS, Ending, ProcessId, Run
from backburner.core.states import AT_WORK, Result, RunState
from backburner.execution.runner import Runner
from backburner.services.runtime import Runtime
from backburner.system import processes as process
from backburner.system import run_files as folders


class Orphans:
    """The runs of an engine's home that nobody looks after. `watch` has it look again when a living owner dies."""

    def __init__(self, runtime: Runtime, runner: Runner, watch: Callable[[ProcessId], None], changed: Callable[[], None]) -> None:
        self._runtime, self._store, self._runner = runtime, runtime.store, runner
        self._watch, self._changed = watch, changed
        self._owner = runner.owner
        self._orphaned: set[str] = set()  # waiting runs whose agents ended with their host

    def take_over(self) -> None:
        """Go on with what the dead left: engines before us, and embedders of the library."""
        for run in self._store.live_runs():
            if run.state in AT_WORK and run.owner == self._owner and run.runner in HOSTED:
                self._interrupted(run)  # it was taken over, but that could not be written
            elif run.state == RunState.WAITING and run.owner and run.runner in HOSTED:
                self._let_wait(run, run.owner)
            elif run.state in AT_WORK and run.owner == self._owner:
                if not self._runner.looks_after(run.run_id):
                    self._runner.take_over(run)  # whatever made us forget it
            elif run.state in AT_WORK and run.owner:
                if process.is_alive(run.owner):
                    self._watch(run.owner)
                elif run.runner in HOSTED:
                    self._interrupted(run)
                else:
                    self._runner.take_over(run)
            elif run.state not in AT_WORK and run.runner not in OURS:
                embedder = ProcessId.parse(run.runner)
                if process.is_alive(embedder):
                    self._watch(embedder)
                else:
                    self._store.release(run.runner)
        for turn in self._store.turns():
            if process.is_alive(turn.process):
                self._watch(turn.process)
            else:
                self._store.end_turn(turn.process, self._runtime.clock())

    def _let_wait(self, run: Run, owner: ProcessId) -> None:
        """A run waits whose host held its agent: with the host, the agent goes."""
        if process.is_alive(owner):
            self._watch(owner)
        elif run.run_id not in self._orphaned:
            self._orphaned.add(run.run_id)
            process.end_all(run.process, run.mark)

    def _interrupted(self, run: Run) -> None:
        """The host of an agent died: that is told, and the conversation can be resumed. Nothing is done twice by itself.

        One in an OpenCode server is at work all the same: the next host finds it there.
        """
        why = "it was interrupted: its agent host ended"
        process.end_all(run.process, run.mark)
        with contextlib.suppress(StaleRun):
            work = self._store.adopt(run, self._owner)
            if run.cancel_requested_at is None and self._is_elsewhere(work.task.agent or ""):
                self._store.park(run.run_id, self._owner, "its agent host ended; it goes on", self._runtime.clock(), ELSEWHERE)
                self._changed()
                return
            if not work.task.standing:
                why += ". Its conversation is kept, so that it can be resumed"
            used = folders.usage(self._runtime.home.folder(run.folder))
            ending = Ending(run.run_id, RunState.FAILED, Result.LOST, self._runtime.clock(), error=why, usage=used)
            self._store.settle([ending], self._owner)
            with contextlib.suppress(OSError):
                folders.write(
                    self._runtime.home.folder(run.folder), work.task, run._replace(state=ending.state, result=ending.result, error=why)
                )
            self._changed()

    def _is_elsewhere(self, agent: str) -> bool:
        """Whether an agent works in a server that does not end with our hosts."""
        try:
            return self._runtime.agent(agent)["type"] == OPENCODE
        except BackburnerError:
            return False
