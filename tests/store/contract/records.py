"""All records of a ledger, for backups and exports."""

from backburner.store.ledger import Ledger
from contract.cases import NOW, ended, propose, recurring, run_once, running


class RecordContract:
    def test_all_records_are_read_oldest_first(self, ledger: Ledger) -> None:
        ended(ledger, "task_a")
        propose(ledger, "task_b")
        running(ledger, "task_c")
        task = recurring(ledger, "task_r")
        for number in range(2):
            run_once(ledger, task, NOW + number)
        ledger.memory.set("/p", "colour", "red", NOW)
        assert ledger.records.count_tasks() == 4
        found = [(entry.task.task_id, [run.run_id for run in runs]) for entry, runs in ledger.records.all_tasks()]
        assert found == [("task_a", ["task_a"]), ("task_b", []), ("task_c", ["task_c"]), ("task_r", ["task_r", "task_r.2"])]
        assert [folder for folder, _, _ in ledger.records.run_folders()] == [
            f"tasks/{name}" for name in ("task_a", "task_c", "task_r", "task_r.2")
        ]
        newest = ledger.records.newest_folders(2)
        assert newest == [("tasks/task_r.2", "task_r", True), ("tasks/task_r", "task_r", True)]
        assert ledger.records.folders_of(["task_c", "other"]) == [("tasks/task_c", "task_c", False)]
        assert len(ledger.records.newest_folders(None)) == 4
        assert list(ledger.records.all_notices()) == ledger.notices.notices(unread=False)
        assert list(ledger.records.all_events()) == ledger.events.events(0)
        assert list(ledger.records.all_memory()) == [("/p", "colour", "red", NOW)]

    def test_records_of_several_pages_are_complete(self, ledger: Ledger) -> None:
        for number in range(1203):
            ledger.events.append("noted", f"task_{number}", "", NOW)
        assert [event.task_id for event in ledger.records.all_events()] == [f"task_{number}" for number in range(1203)]
