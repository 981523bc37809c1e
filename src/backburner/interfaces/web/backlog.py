"""Decides which changed tasks are read for the stream at once, and which later, when more tasks change than anybody can look at.

It knows only the events: a task that is put off is not read, so several changes of it cost no more than the last one. Nothing is left out
in the end: what was put off is read when there is time, or, if that is too much, everybody is told to load everything again.
"""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from backburner.core.states import RunEvent, TaskEvent

ROWS_AT_ONCE = 16  # tasks that are read after one look at the events, if not more must be read; about what a window shows
MAX_BEHIND = 100  # tasks that are kept for later; to load a board again is less work than to read more rows
MAX_LOOKS_BEHIND = 30  # how often a flood may be looked at before everything is loaded again although it has not ended
_SUBMITTED = "task_submitted"
# After these a task does not wait for a person. All others are read at once.
_ORDINARY = frozenset(
    (
        *(_SUBMITTED, TaskEvent.DONE, TaskEvent.FAILED, TaskEvent.CANCELLED),
        *("run_ready", RunEvent.CLAIMED, RunEvent.COMPLETED, RunEvent.FAILED, RunEvent.CANCELLED, RunEvent.SKIPPED),
    )
)
_URGENCY: dict[str, int] = {_SUBMITTED: 0, RunEvent.CLAIMED: 2}  # 1 for the others


class Backlog:
    """The tasks whose last change nobody was sent yet."""

    def __init__(self) -> None:
        self._behind: dict[str, None] = {}  # the latest change is last
        self._is_lost = False  # whether more was put off than is kept
        self._looks = 0  # since something was lost

    @property
    def is_empty(self) -> bool:
        """Whether everything was sent."""
        return not self._behind and not self._is_lost

    def lose(self) -> None:
        """Have everything loaded again when there is time."""
        self._behind.clear()
        self._is_lost = True

    def choose(self, events: Iterable[tuple[int, str, str | None]], at_once: Collection[str]) -> "Choice":
        """Choose from the tasks of new events, and from those that were put off before.

        Tasks in `at_once`, and those that may wait for a person, are never put off. Then come those that have started, then the others that
        are not just queued, and of each the ones that changed last.
        """
        changed: dict[str, str] = {}
        now: dict[str, None] = {}
        for _, kind, task_id in events:
            if task_id:
                changed.pop(task_id, None)
                changed[task_id] = kind
                if kind not in _ORDINARY or task_id in at_once:
                    now[task_id] = None
        rest = sorted((task_id for task_id in changed if task_id not in now), key=lambda task_id: _URGENCY.get(changed[task_id], 1))
        first = max(0, len(rest) - max(0, ROWS_AT_ONCE - len(now)))
        later = rest[:first]
        now |= dict.fromkeys(rest[first:])
        for task_id in changed:
            self._behind.pop(task_id, None)
        self._looks += self._is_lost
        if self._is_lost and (len(now) < ROWS_AT_ONCE or self._looks > MAX_LOOKS_BEHIND):
            self._behind.clear()
            self._is_lost, self._looks = False, 0
            return Choice(list(now), [], len(changed), must_reset=True)
        self._behind |= dict.fromkeys(later)
        if len(self._behind) > MAX_BEHIND:
            self.lose()
        while len(now) < ROWS_AT_ONCE and self._behind:
            now[self._behind.popitem()[0]] = None
        return Choice(list(now), later, len(changed), must_reset=False)


class Choice(NamedTuple):
    """What to do about the tasks that have changed."""

    now: list[str]  # to be read now
    later: list[str]  # put off
    changed: int  # the number of tasks that have changed
    must_reset: bool  # whether everything must be loaded again, because too much was put off
