"""The event log and its readers."""

import pytest

from backburner.core.errors import LedgerUnavailable
from backburner.core.models import ENGINE, Approval
from backburner.store.ledger import Ledger
from contract.cases import NOW, Open, ended, entry_of_task, kinds, propose, submit


class EventContract:
    def test_events_are_in_commit_order_across_connections(self, ledger: Ledger, open_ledger: Open) -> None:
        other = open_ledger()
        seen = 0
        for n in range(6):
            submit((ledger, other)[n % 2], f"task_{n}")
            new = ledger.events.events(seen, 100)
            assert [event.task_id for event in new] == [f"task_{n}"]
            assert new[0].event_id > seen
            seen = new[0].event_id

    def test_events_can_be_read_in_pages_and_from_the_end(self, ledger: Ledger) -> None:
        for n in range(5):
            submit(ledger, f"task_{n}", now=NOW + n)
        first = ledger.events.events(0, 2)
        assert [event.task_id for event in first] == ["task_0", "task_1"]
        assert [event.task_id for event in ledger.events.events(first[-1].event_id, 2)] == ["task_2", "task_3"]
        assert [event.task_id for event in ledger.events.events(-2, 100)] == ["task_3", "task_4"]
        assert len(ledger.events.events(-100, 100)) == 5
        assert [event.at for event in first] == [NOW, NOW + 1]

    def test_the_decisions_on_steps_of_a_task_are_found_however_old_they_are(self, ledger: Ledger) -> None:
        for task_id in ("task_x", "task_y"):
            submit(ledger, task_id)
            ledger.events.append("step_decided", task_id, task_id, NOW, answer="yes", question=task_id)
        ledger.events.append("step_decided", "task_x", "task_x", NOW + 1, answer="no", question="task_x")
        ledger.events.append("run_requeued", "task_x", "task_x", NOW + 2)  # not an answer
        assert [(event.at, event.data["answer"]) for event in ledger.events.decisions("task_x")] == [(NOW, "yes"), (NOW + 1, "no")]
        assert [event.task_id for event in ledger.events.decisions("task_y")] == ["task_y"]

    def test_a_refused_call_writes_no_event(self, ledger: Ledger) -> None:
        propose(ledger)
        with pytest.raises(LedgerUnavailable):
            ledger.tasks.approve("task_x", Approval("nobody", "cli", NOW), runner=ENGINE, folder="tasks")
        assert kinds(ledger) == ["task_proposed"]
        assert entry_of_task(ledger, "task_x").status == "proposed"

    def test_event_ids_are_never_reused(self, ledger: Ledger) -> None:
        ended(ledger)
        last = ledger.events.events(-1, 1)[0].event_id
        ledger.tasks.clear(["task_x"], NOW)
        assert [event.event_id > last for event in ledger.events.events(0, 100)] == [True]

    def test_every_reader_of_events_has_its_own_position(self, ledger: Ledger, open_ledger: Open) -> None:
        assert ledger.events.cursor("otlp") == 0
        for position in (5, 9):
            ledger.events.advance_cursor("otlp", position)
        ledger.events.advance_cursor("other", 3)
        assert [open_ledger().events.cursor(name) for name in ("otlp", "other", "third")] == [9, 3, 0]

    def test_an_event_without_a_state_change_can_be_appended(self, ledger: Ledger) -> None:
        before = submit(ledger)
        ledger.events.append("input_sent", "task_x", "task_x", NOW + 5, bytes=3)
        event = ledger.events.events(-1, 1)[0]
        assert (event.kind, event.at, event.run_id, event.data) == ("input_sent", NOW + 5, "task_x", {"bytes": 3})
        assert entry_of_task(ledger, "task_x") == before

    def test_events_of_some_kinds_are_read_newest_first(self, ledger: Ledger) -> None:
        for n in range(4):
            submit(ledger, f"task_{n}", now=NOW)
            ledger.events.append(f"kind_{n % 2}", f"task_{n}", f"task_{n}", NOW + n // 2)
        first = ledger.events.of_kinds(["kind_0", "kind_1"], (NOW + 9, 0), 3)
        assert [event.task_id for event in first] == ["task_3", "task_2", "task_1"]
        rest = ledger.events.of_kinds(["kind_0", "kind_1"], (first[-1].at, first[-1].event_id), 3)
        assert [event.task_id for event in rest] == ["task_0"]
        assert [event.task_id for event in ledger.events.of_kinds(["kind_1"], (NOW + 9, 0), 9, since=NOW + 1)] == ["task_3"]

    def test_the_rejection_of_a_task_is_found_with_its_reason(self, ledger: Ledger) -> None:
        for task_id in ("task_x", "task_y"):
            propose(ledger, task_id)
        ledger.tasks.refuse("task_x", expired=False, now=NOW + 1, via="cli", reason="not now")
        ledger.tasks.refuse("task_y", expired=True, now=NOW + 2)
        event = ledger.events.rejection("task_x")
        assert event is not None and (event.at, event.data) == (NOW + 1, {"via": "cli", "reason": "not now"})
        assert ledger.events.rejection("task_y") is None
