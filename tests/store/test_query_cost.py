"""Lists cost the same whatever else is in the ledger. Counted in steps of SQLite's virtual machine, not in time."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from backburner.core.claims import RunResult
from backburner.core.models import ENGINE, Approval, ProcessId
from backburner.core.states import Result, RunState
from backburner.store.ledger import Ledger, open_ledger
from backburner.testing.records import request

OWNER = ProcessId(11, "111", "boot")
NOW, COUNT = 1_770_000_000_000, 1500


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    """A ledger with many completed tasks."""
    path: Path = tmp_path_factory.mktemp("ledger") / "ledger.db"
    ledger = open_ledger(str(path))
    ledger.database.connection.execute("PRAGMA synchronous = OFF")  # type: ignore[attr-defined]
    complete(ledger, [f"task_{number}" for number in range(COUNT)])
    yield ledger
    ledger.close()


def complete(ledger: Ledger, task_ids: list[str]) -> None:
    """Submit tasks and let them complete."""
    for task_id in task_ids:
        ledger.tasks.submit(
            request(("true",), "/p", {}),
            project="/p",
            wanted_id=task_id,
            approval=Approval("auto", "gate", NOW),
            reasons=(),
            runner=ENGINE,
            folder="tasks",
            now=NOW,
            expires_at=None,
        )
    while work := ledger.runs.claim(ENGINE, OWNER, 500, NOW):
        ledger.runs.settle([RunResult(claimed.run.run_id, RunState.COMPLETED, Result.EXIT, NOW, 0) for claimed in work], OWNER)


def steps(ledger: Ledger, call: Callable[[], object]) -> int:
    """How many hundreds of steps a call takes."""
    count = 0

    def count_up() -> bool:
        nonlocal count
        count += 1
        return False

    ledger.database.connection.set_progress_handler(count_up, 100)  # type: ignore[attr-defined]
    try:
        call()
    finally:
        ledger.database.connection.set_progress_handler(None)  # type: ignore[attr-defined]
    return count


@pytest.mark.parametrize("project", ["/p", None])
@pytest.mark.parametrize("status", ["pending", "running", "failed", "cancelled", "proposed", "rejected", "expired", "active", "done"])
def test_a_status_that_few_tasks_have_is_listed_without_reading_all_tasks(ledger: Ledger, status: str, project: str | None) -> None:
    assert steps(ledger, lambda: ledger.queries.list(status=status, project=project, limit=200)) < COUNT // 100


def test_newest_tasks_events_and_notices_are_read_without_reading_all(ledger: Ledger) -> None:
    assert steps(ledger, lambda: ledger.queries.list(project="/p", limit=10)) < COUNT // 20
    assert steps(ledger, lambda: ledger.events.events(-10)) < 5
    assert steps(ledger, lambda: ledger.notices.notices(unread=False, limit=10)) < 10
    assert steps(ledger, lambda: ledger.records.newest_folders(10)) < 5


def test_traces_spans_and_decisions_on_steps_are_found_without_reading_all(ledger: Ledger) -> None:
    task, run = ledger.queries.get("task_7")  # type: ignore[misc]
    for span_id in (task.trace.span_id, run.span_id, "0" * 16):
        assert steps(ledger, lambda span_id=span_id: ledger.queries.trace_of(span_id)) < 5
    assert steps(ledger, lambda: ledger.queries.spans(task.trace.trace_id)) < 5
    assert steps(ledger, lambda: ledger.events.decisions("task_7")) < 5


def test_an_integrity_check_stops_in_time(ledger: Ledger) -> None:
    assert ledger.check(0) is None and ledger.check(600) == [] and ledger.check() == []


def test_a_part_of_an_id_is_searched_among_the_newest_tasks_and_in_the_index_of_the_ids(ledger: Ledger) -> None:
    connection, plans = ledger.database.connection, []  # type: ignore[attr-defined]

    def explain(_: object, sql: str, values: object) -> bool:
        if not sql.startswith("EXPLAIN"):
            plans.extend(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", values))
        return True

    connection.exec_trace = explain
    try:
        assert ledger.queries.find("no_such", "/p") == [] and list(ledger.queries.find("sk_77", "/p"))[-1] == "task_77"
    finally:
        connection.exec_trace = None
    assert plans and not [plan for plan in plans if plan.startswith("SCAN") and "COVERING INDEX" not in plan and "tasks" in plan]


def test_recent_tasks_are_cleared_without_reading_all_events_and_tasks(ledger: Ledger) -> None:
    newest = ["task_x", "task_y", "task_z"]
    complete(ledger, newest)
    left = "SELECT kind FROM events WHERE task_id = ?"
    assert steps(ledger, lambda: ledger.tasks.clear(newest, NOW)) < COUNT // 50
    assert [ledger.database.execute(left, (task_id,)) for task_id in newest] == [[("task_cleared",)]] * 3
