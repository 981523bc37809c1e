"""A simulation of recurring tasks without a process: a ledger, a fake clock and a scheduler."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from backburner.core.claims import RunResult
from backburner.core.models import ENGINE, LOCAL_AGENT_LANE, Approval, Entry, ProcessId, Run
from backburner.core.schedule import Schedule, every
from backburner.core.settings import resolve
from backburner.core.states import Result, RunState
from backburner.engine.scheduler import Scheduler
from backburner.store.ledger import open_ledger
from backburner.testing import FakeClock
from backburner.testing.records import request

ME = ProcessId(1, "1", "boot")
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


class SchedulerSimulation:
    """`tick()` does what an engine does in a pass; `settle()` runs everything that is pending to its end."""

    def __init__(self, folder: Path, now: int = 1_770_000_000_000, **settings: str) -> None:
        self.clock = FakeClock(now)
        self.path = str(folder / "ledger.db")
        self.config = resolve(flags={f"tasks.{name}": value for name, value in settings.items()})
        self.ledger = open_ledger(self.path)
        self.scheduler = self.another_scheduler()

    def another_scheduler(self) -> Scheduler:
        """A scheduler as a second engine, or the next one, would create it."""
        ledger = open_ledger(self.path)
        return Scheduler(ledger.recurring, ledger.live_work, "tasks", self.clock, SimpleNamespace(current=self.config))

    def add(self, name: str, schedule: Schedule | None = None, **more: Any) -> str:
        agent = more.get("agent")
        fields = {"command": () if agent else ("true",), "notify": "on_change", "timeout_ms": 1000, **more}
        submission = request(cwd="/p", name=name, schedule=schedule or every(HOUR, self.clock.now), **fields)
        kind = "event" if submission.spec.order.after else "oneshot" if submission.spec.schedule.at is not None else "scheduled"
        entry = self.ledger.tasks.submit(
            submission,
            project="/p",
            wanted_id=f"task_{name}",
            approval=Approval("auto", "gate", self.clock.now),
            reasons=(),
            runner=ENGINE,
            folder="tasks",
            now=self.clock.now,
            expires_at=None,
            kind=kind,
            lane=LOCAL_AGENT_LANE if agent else "",
            max_active=self.config.whole("tasks.max_active"),
        )
        return entry.task.task_id

    def pass_time(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds)

    def tick(self, milliseconds: int = 0) -> None:
        self.clock.advance(milliseconds)
        self.scheduler.tick()

    def settle(self, state: str = "completed", *, result: Result = Result.EXIT, runner: str = ENGINE, **more: Any) -> list[Run]:
        """Run everything that is pending; each run ends with this state and result."""
        claimed = self.ledger.runs.claim(runner, ME, 1000, self.clock.now)
        code = 0 if state == "completed" else 1
        endings = [RunResult(work.run.run_id, RunState(state), result, self.clock.now, code, **more) for work in claimed]
        self.ledger.runs.settle(endings, ME)
        return [work.run for work in claimed]

    def entry(self, task_id: str) -> Entry:
        found = self.ledger.queries.get(task_id)
        assert found is not None
        return found

    def rows(self, task_id: str) -> list[Run]:
        """The runs and skipped slots of a task, oldest first."""
        return list(reversed(self.ledger.queries.history(task_id, 100_000)))

    def notices(self) -> list[str]:
        return [notice.text for notice in self.ledger.notices.notices()]
