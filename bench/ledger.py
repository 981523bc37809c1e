"""Submit, claim and end of a run in the ledger alone, beside huey on SQLite. Both on the disk, both wait for it whenever they promise.

Ours as a program that runs its own commands uses it: where there is room, submitting and claiming is one promise.
"""

import os
import time

from backburner.core.claims import RunResult
from backburner.core.models import Approval, Entry, ProcessId
from backburner.core.states import Result, RunState
from backburner.store.ledger import Ledger, open_ledger
from backburner.system.processes import myself
from backburner.testing.records import request
from bench import peers
from bench.place import scratch
from bench.turns import Contestant, Figures, take_turns

COUNT, RUNNER = 200, "bench"


def measure(rounds: int) -> list[Figures]:
    """Seconds for all of them."""
    contestants: dict[str, Contestant] = {"ours": ours, "ours, five at a time": five_at_a_time}
    if "huey" not in peers.missing():
        contestants["huey"] = huey
    return take_turns(contestants, rounds)


def ours() -> float:
    owner = myself()
    with scratch() as folder:
        ledger = open_ledger(str(folder / "ledger.db"))
        start = time.perf_counter()
        for _ in range(COUNT):
            entry = submit(ledger, owner)
            assert entry.run and entry.run.owner == owner
            end(ledger, owner, entry.run.run_id)
        took = time.perf_counter() - start
        ledger.close()
        return took


def five_at_a_time() -> float:
    """The ends that come together are one promise, as with five commands at work."""
    owner = myself()
    with scratch() as folder:
        ledger = open_ledger(str(folder / "ledger.db"))
        start = time.perf_counter()
        for _ in range(COUNT // 5):
            entries = [submit(ledger, owner) for _ in range(5)]
            ended = [
                RunResult(entry.run.run_id, RunState.COMPLETED, Result.EXIT, now_ms(), 0, None, "done", 1) for entry in entries if entry.run
            ]
            assert len(ledger.runs.settle(ended, owner).run_ids) == 5
        took = time.perf_counter() - start
        ledger.close()
        return took


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def submit(ledger: Ledger, owner: ProcessId | None = None) -> Entry:
    now = now_ms()
    return ledger.tasks.submit(
        request(("true",), "/", dict(os.environ)),
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

    with scratch() as folder:
        queue = SqliteHuey(filename=str(folder / "huey.db"), fsync=True)

        @queue.task()
        def nothing() -> str:
            return "done"

        start = time.perf_counter()
        for _ in range(COUNT):
            nothing()
            queue.execute(queue.dequeue())
        took = time.perf_counter() - start
        assert queue.result_count() == COUNT and not queue.pending_count()
        queue.storage.close()
        return took
