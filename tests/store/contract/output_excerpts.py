"""What is kept of the output of runs for when their host cannot be reached, and folders that a host has to delete."""

from backburner.core.claims import RunResult
from backburner.core.host_records import OutputExcerpt
from backburner.core.states import Result, RunState
from backburner.store.ledger import Ledger
from contract.cases import NOW, OURS, latest
from contract.host_requests import THERE, add_host, run_on


def end(ledger: Ledger, run_id: str, at: int) -> None:
    ledger.runs.settle([RunResult(run_id, RunState.COMPLETED, Result.EXIT, at, exit_code=0)], OURS)


class OutputExcerptContract:
    def test_only_another_host_is_another_host(self, ledger: Ledger) -> None:
        assert not ledger.output_excerpts.has_other_hosts()
        add_host(ledger, THERE, "gpu1")
        assert ledger.output_excerpts.has_other_hosts()

    def test_outputs_are_those_of_active_and_newly_ended_runs_of_this_host(self, ledger: Ledger) -> None:
        here = ledger.database.host_id
        active, old, new = (run_on(ledger, here, f"task_{name}") for name in "abc")
        run_on(ledger, THERE, "task_d")
        end(ledger, old, NOW + 1)
        end(ledger, new, NOW + 3)
        found = {output.run_id: output for output in ledger.output_excerpts.outputs(NOW + 2)}
        assert sorted(found) == [active, new] and (found[active].ended_at, found[new].ended_at) == (None, NOW + 3)
        assert found[new].folder == f"tasks/{new}"

    def test_the_newest_excerpt_of_a_run_is_kept(self, ledger: Ledger) -> None:
        run_id = run_on(ledger, ledger.database.host_id)
        assert ledger.output_excerpts.excerpt(run_id) is None and ledger.output_excerpts.details(run_id) is None
        for size in (5, 1 << 41):
            excerpt = OutputExcerpt(b"head\0\xff", b"tail", size, '{"ports": [80]}', NOW + size % 7)
            assert ledger.output_excerpts.store(run_id, excerpt)
            assert ledger.output_excerpts.excerpt(run_id) == excerpt
            assert ledger.output_excerpts.details(run_id) == '{"ports": [80]}'

    def test_a_host_stores_no_excerpts_of_the_runs_of_others(self, ledger: Ledger) -> None:
        run_id, excerpt = run_on(ledger, THERE), OutputExcerpt(b"", b"", 0, "{}", NOW)
        assert not ledger.output_excerpts.store(run_id, excerpt) and not ledger.output_excerpts.store("task_missing", excerpt)
        assert ledger.output_excerpts.excerpt(run_id) is None

    def test_the_folders_of_cleared_runs_are_deleted_by_their_hosts(self, ledger: Ledger) -> None:
        here, there = run_on(ledger, ledger.database.host_id, "task_a"), run_on(ledger, THERE, "task_b")
        for run_id in (here, there):
            end(ledger, run_id, NOW + 1)
        tasks = [latest(ledger, name).task_id for name in ("task_a", "task_b")]
        assert list(ledger.tasks.clear(tasks, NOW + 2)) == [f"tasks/{here}", f"tasks/{there}"]
        assert ledger.output_excerpts.folders_to_delete() == []
        stored = ledger.database.execute("SELECT host_id, folder FROM folders_to_delete")
        assert stored == [(THERE, f"tasks/{there}")]

    def test_folders_are_those_of_this_host(self, ledger: Ledger) -> None:
        here, _ = run_on(ledger, ledger.database.host_id, "task_a"), run_on(ledger, THERE, "task_b")
        assert [run.folder for run in ledger.records.newest_folders(None)] == [f"tasks/{here}"]
        assert [run.folder for run in ledger.records.run_folders()] == [f"tasks/{here}"]

    def test_a_deleted_folder_is_forgotten(self, ledger: Ledger) -> None:
        for folder in ("tasks/b", "tasks/a"):
            ledger.database.write("INSERT INTO folders_to_delete (host_id, folder) VALUES (?, ?)", (ledger.database.host_id, folder))
        assert ledger.output_excerpts.folders_to_delete() == ["tasks/a", "tasks/b"]
        ledger.output_excerpts.folder_deleted("tasks/a")
        assert ledger.output_excerpts.folders_to_delete() == ["tasks/b"]
