"""Every pair of state and event, checked against a table that is independent of the implementation."""

import itertools

import pytest

from backburner.core.errors import IllegalTransition
from backburner.core.states import (
    ENDED,
    LIVE,
    RUNNING_STATES,
    RunEvent,
    RunState,
    TaskEvent,
    TaskState,
    advance,
    advance_task,
    event_between,
    task_event_for,
)

# One line per state: its valid events, and the state after each. All other pairs are invalid.
RUNS = {
    "pending": "run_started>running run_resumed>resumed run_failed>failed run_cancelled>cancelled run_skipped>skipped",
    "running": "run_passed_to_agent>pending run_suspended>waiting run_completed>completed run_failed>failed run_cancelled>cancelled",
    "waiting": "run_continued>running run_requeued>pending run_failed>failed run_cancelled>cancelled",
    "resumed": "run_suspended>waiting run_completed>completed run_failed>failed run_cancelled>cancelled",
    "completed": "",
    "failed": "",
    "cancelled": "",
    "skipped": "",
}
TASKS = {
    "proposed": "task_approved>active task_rejected>rejected task_expired>expired",
    "active": "task_paused>paused task_done>done task_failed>failed task_cancelled>cancelled",
    "paused": "task_unpaused>active task_done>done task_failed>failed task_cancelled>cancelled",
    "rejected": "",
    "expired": "",
    "done": "task_resumed>active",
    "failed": "task_resumed>active",
    "cancelled": "task_resumed>active",
}


def expected(table: dict[str, str], state: str, event: str) -> str | None:
    return dict(pair.split(">") for pair in table[state].split()).get(event)


def test_the_tables_of_this_test_contain_every_state() -> None:
    assert set(RUNS) == set(RunState) and set(TASKS) == set(TaskState)


@pytest.mark.parametrize(("state", "event"), list(itertools.product(RunState, RunEvent)))
def test_a_run_makes_only_the_transitions_in_the_table(state: RunState, event: RunEvent) -> None:
    after = expected(RUNS, state, event)
    verb = event.removeprefix("run_").replace("_", " ")
    if after is None:
        with pytest.raises(IllegalTransition, match=f"^The run is {state} and cannot be {verb}\\.$"):
            advance(state, event)
    else:
        assert advance(state, event) == after


@pytest.mark.parametrize(("state", "event"), list(itertools.product(TaskState, TaskEvent)))
def test_a_task_makes_only_the_transitions_in_the_table(state: TaskState, event: TaskEvent) -> None:
    after = expected(TASKS, state, event)
    if after is None:
        leads_here = any(expected(TASKS, other, event) == state for other in TaskState)
        problem = f"already {state}" if leads_here else f"{state} and cannot be {event.split('_')[1]}"
        with pytest.raises(IllegalTransition, match=f"^The task is {problem}\\.$"):
            advance_task(state, event)
    else:
        assert advance_task(state, event) == after


@pytest.mark.parametrize(("before", "after"), list(itertools.product(RunState, RunState)))
def test_event_between_exists_only_for_valid_transitions(before: RunState, after: RunState) -> None:
    # PASSED_TO_AGENT is used only inside the ledger.
    events = [event for event in RunEvent if expected(RUNS, before, event) == after and event != RunEvent.PASSED_TO_AGENT]
    if events:
        assert [event_between(before, after)] == events
    else:
        with pytest.raises(IllegalTransition):
            event_between(before, after)


def test_a_run_state_is_either_live_or_ended() -> None:
    assert set(RunState) == LIVE | ENDED and not LIVE & ENDED
    assert {state for state in RunState if not RUNS[state]} == ENDED
    assert {"running", "resumed"} == RUNNING_STATES


@pytest.mark.parametrize(
    ("ended", "event"),
    [
        (RunState.COMPLETED, TaskEvent.DONE),
        (RunState.CANCELLED, TaskEvent.CANCELLED),
        (RunState.FAILED, TaskEvent.FAILED),
        (RunState.SKIPPED, TaskEvent.FAILED),
    ],
)
def test_the_end_of_the_only_run_ends_a_one_shot_task(ended: RunState, event: TaskEvent) -> None:
    assert task_event_for(ended) == event
