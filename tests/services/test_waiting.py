"""Waiting for several tasks."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from backburner.core.errors import WaitTimedOut
from backburner.services.waiting import Waiting


class Tasks:
    """Tasks that are live for a number of changes each."""

    def __init__(self, changes: int, **live_for: int) -> None:
        self.now, self.reads, self._changes, self._live_for = 0, Counter[str](), changes, live_for

    def get(self, task_id: str) -> Any:
        self.reads[task_id] += 1
        return SimpleNamespace(is_live=self.now < self._live_for[task_id], task=SimpleNamespace(task_id=task_id))

    def changes(self, *_: object) -> Any:
        for number in range(self._changes):
            self.now = number
            yield


def wait(tasks: Tasks) -> list[str]:
    supervisor = SimpleNamespace(ensure_supervised=lambda: None)
    entries = Waiting(tasks, tasks, supervisor).wait(list(tasks._live_for))  # type: ignore[arg-type]
    return [entry.task.task_id for entry in entries]


def test_only_one_of_many_tasks_is_read_after_every_change() -> None:
    tasks = Tasks(50, slow=20, **{f"quick{number}": 5 for number in range(10)})
    assert wait(tasks)[0] == "slow"
    assert tasks.reads["slow"] <= 23 and max(tasks.reads[f"quick{number}"] for number in range(10)) == 2


def test_a_task_that_is_live_again_when_the_last_one_ends_is_waited_for() -> None:
    tasks = Tasks(50, first=0, second=3)
    real = tasks.get

    def get(task_id: str) -> Any:
        if task_id == "second" and tasks.now == 3:
            tasks._live_for["first"] = 9
        return real(task_id)

    tasks.get = get  # type: ignore[method-assign]
    assert wait(tasks) == ["first", "second"] and tasks.now == 9


def test_a_task_that_does_not_end() -> None:
    with pytest.raises(WaitTimedOut):
        wait(Tasks(3, endless=99))
