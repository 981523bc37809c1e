"""Submit, claim and result of a run in the ledger alone, compared with huey on SQLite. Both use a disk and fsync every commit.

The ledger is used as by an embedding program: with free capacity, submit and claim are one commit.
"""

import os
import time

from backburner.core.claims import RunResult
from backburner.core.models import Approval, Entry, ProcessId, Submission
from backburner.core.states import Result, RunState
from backburner.core.task_spec import CommandSpec, TaskSpec
from backburner.store.ledger import Ledger, open_ledger
from backburner.system.processes import myself
from bench import peers
from bench.home import scratch_folder
from bench.rounds import Candidate, Figures, run_rounds

COUNT, RUNNER = 200, "bench"
_ENVIRONMENT = dict(os.environ)


def measure(rounds: int) -> list[Figures]:
    """Return the seconds for all of them."""
    candidates: dict[str, Candidate] = {"backburner": backburner, "backburner, five results per commit": five_results_per_commit}
    if "huey" not in peers.missing():
        candidates["huey"] = huey
    return run_rounds(candidates, rounds)


def backburner() -> float:
    owner = myself()
    with scratch_folder() as folder:
        ledger = open_ledger(str(folder / "ledger.db"))
        start = time.perf_counter()
        for _ in range(COUNT):
            entry = submit(ledger, owner)
            assert entry.run and entry.run.owner == owner
            end(ledger, owner, entry.run.run_id)
        elapsed = time.perf_counter() - start
        ledger.close()
        return elapsed


def five_results_per_commit() -> float:
    """Five results are stored in one commit, as with five running commands."""
    owner = myself()
    with scratch_folder() as folder:
        ledger = open_ledger(str(folder / "ledger.db"))
        start = time.perf_counter()
        for _ in range(COUNT // 5):
            entries = [submit(ledger, owner) for _ in range(5)]
            results = [
                RunResult(entry.run.run_id, RunState.COMPLETED, Result.EXIT, now_ms(), 0, None, "done", 1) for entry in entries if entry.run
            ]
            assert len(ledger.runs.settle(results, owner).run_ids) == 5
        elapsed = time.perf_counter() - start
        ledger.close()
        return elapsed


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def submit(ledger: Ledger, owner: ProcessId | None = None) -> Entry:
    now = now_ms()
    return ledger.tasks.submit(
        Submission(TaskSpec("/", command=CommandSpec(("true",))), _ENVIRONMENT),
        project="/",
        wanted_id=f"task_{now}_true",
        approval=Approval("user", "library", now),
        reasons=(),
        runner=RUNNER,
        folder="tasks",
        now=now,
        expires_at=None,
        owner=owner,
    )


def claim(ledger: Ledger, owner: ProcessId) -> str:
    (work,) = ledger.runs.claim(RUNNER, owner, 1, now_ms())
    return work.run.run_id


def end(ledger: Ledger, owner: ProcessId, run_id: str) -> None:
    assert ledger.runs.settle([RunResult(run_id, RunState.COMPLETED, Result.EXIT, now_ms(), 0, None, "done", 1)], owner)


def huey() -> float:
    from huey import SqliteHuey

    with scratch_folder() as folder:
        queue = SqliteHuey(filename=str(folder / "huey.db"), fsync=True)

        @queue.task()
        def no_op() -> str:
            return "done"

        start = time.perf_counter()
        for _ in range(COUNT):
            no_op()
            queue.execute(queue.dequeue())
        elapsed = time.perf_counter() - start
        assert queue.result_count() == COUNT and not queue.pending_count()
        queue.storage.close()
        return elapsed
