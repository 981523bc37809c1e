"""Lists of tasks by page, and counts."""

import pytest

from backburner.core.models import Approval
from backburner.core.task_filter import DecisionFilter, TaskFilter
from backburner.store.ledger import Ledger
from contract.cases import NOW, ended, propose, recurring, submit


def ids(ledger: Ledger, before: str | None = None, limit: int = 100, **wanted: object) -> list[str]:
    found = ledger.pages.page(TaskFilter(**wanted), before, limit)  # type: ignore[arg-type]
    return [item.entry.task.task_id for item in found.items]


class TaskPageContract:
    def test_pages_follow_each_other_without_gaps(self, ledger: Ledger) -> None:
        for number in range(5):
            submit(ledger, f"task_{number}")
        first = ledger.pages.page(TaskFilter(), None, 2, count=True)
        second = ledger.pages.page(TaskFilter(), first.next, 2)
        third = ledger.pages.page(TaskFilter(), second.next, 2)
        found = [item.entry.task.task_id for page in (first, second, third) for item in page.items]
        assert found == ["task_4", "task_3", "task_2", "task_1", "task_0"]
        assert (first.total, second.total, third.next) == (5, None, None)

    @pytest.mark.parametrize(
        ("wanted", "expected"),
        [
            ({"statuses": ("proposed",)}, ["task_p"]),
            ({"statuses": ("pending", "proposed")}, ["task_b", "task_a", "task_p"]),
            ({"project": "/q"}, ["task_b"]),
            ({"client": "you"}, ["task_r", "task_b", "task_p"]),
            ({"client": "claude"}, ["task_a"]),
            ({"session": "claude:1"}, ["task_a"]),
            ({"batch": "b"}, ["task_b"]),
            ({"recurring": True}, ["task_r"]),
            ({"live": True}, ["task_b", "task_a"]),
            ({"text": "50%"}, ["task_b"]),
            ({"text": "MAKE ALL"}, []),
            ({"text": "_A"}, ["task_a"]),
            ({"since": NOW + 1}, ["task_b"]),
            ({"until": NOW + 1}, ["task_r", "task_a", "task_p"]),
            ({"kind": "scheduled"}, ["task_r"]),
            ({"type": "agent"}, []),
            ({"agent": "x"}, []),
            ({"parent": "task_a"}, []),
        ],
    )
    def test_a_filter_selects_tasks(self, ledger: Ledger, wanted: dict[str, object], expected: list[str]) -> None:
        propose(ledger, "task_p")
        submit(ledger, "task_a", session="claude:1")
        submit(ledger, "task_b", project="/q", batch="b", description="50% done", now=NOW + 5)
        recurring(ledger, "task_r")
        assert ids(ledger, **wanted) == expected

    def test_ended_tasks_are_listed_in_the_order_of_their_ends(self, ledger: Ledger) -> None:
        for number, at in enumerate((NOW + 1010, NOW + 1010, NOW + 1005)):
            ended(ledger, f"task_{number}", ended_at=at)
        page = ledger.pages.page(TaskFilter(ended=True), None, 1)
        rest = ids(ledger, page.next, ended=True)
        assert [page.items[0].entry.task.task_id, *rest] == ["task_1", "task_0", "task_2"]
        assert ledger.pages.ended_since(NOW + 1006) == {"completed": 2}

    def test_tasks_are_counted_and_found_by_id(self, ledger: Ledger) -> None:
        entry = submit(ledger, "task_a", session="claude:1")
        submit(ledger, "task_b", project="/q")
        assert ledger.pages.live_counts() == {"pending": 2}
        assert ledger.pages.projects() == {"/p": 1, "/q": 1} and list(ledger.pages.clients()) == ["", "claude"]
        assert [item.entry for item in ledger.pages.listed(["task_a", "task_gone"])] == [entry]
        assert ledger.pages.last_event() == ledger.events.events(0)[-1].event_id
        first, *others = ledger.events.events(0)
        assert ledger.pages.events_after(first.event_id) == [(event.event_id, event.kind, event.task_id) for event in others]
        assert {event.task_id for event in ledger.pages.events_of("task_a", 10)} == {"task_a"}

    def test_earlier_decisions_on_the_same_command_are_found(self, ledger: Ledger) -> None:
        task = propose(ledger, "task_p").task
        submit(ledger, "task_a")
        submit(ledger, "task_b", command=("make", "other"))
        assert [entry.task.task_id for entry in ledger.pages.same_command(task, 5)] == ["task_a"]

    def test_projects_are_in_the_order_of_their_bytes(self, ledger: Ledger) -> None:
        names = ["/a", "/B", "/ä", "/a-b", "/ab", "/Z"]
        for number, project in enumerate(names):
            submit(ledger, f"task_{number}", project=project)
        assert list(ledger.pages.projects()) == sorted(names, key=str.encode)

    def test_tasks_are_read_in_the_order_of_their_decisions(self, ledger: Ledger) -> None:
        propose(ledger, "task_late", now=NOW)
        for number in range(3):
            allowed = Approval("auto", "gate", NOW + 1, None)
            propose(ledger, f"task_{number}", approval=allowed, now=NOW)  # three decisions at one time
        propose(ledger, "task_refused", now=NOW + 2)
        propose(ledger, "task_open", now=NOW + 3)
        approve = Approval("user", "cli", NOW + 9, None)
        ledger.tasks.approve("task_late", approve, runner="engine", folder="/runs", max_active=99)
        ledger.tasks.refuse("task_refused", expired=False, now=NOW + 4, via="cli", reason="no")
        expected = ["task_late", "task_open", "task_2", "task_1", "task_0"]
        found, before = [], (NOW + 99, 0)
        while page := ledger.pages.decided(DecisionFilter(), before, 2):
            found += [item.entry.task.task_id for item in page]
            task = page[-1].entry.task
            before = (task.decision.at or task.created_at, page[-1].seq)
        assert found == expected

        def decided(**wanted: object) -> list[str]:
            items = ledger.pages.decided(DecisionFilter(**wanted), (NOW + 99, 0), 10)  # type: ignore[arg-type]
            return [item.entry.task.task_id for item in items]

        assert decided(decision="approved") == decided(by="user") == decided(via="cl") == ["task_late"]
        assert decided(decision="proposed") == ["task_open"] and decided(task_id="task_1") == ["task_1"]
        assert decided(since=NOW + 2) == ["task_late", "task_open"] and decided(rule="no such rule") == []
