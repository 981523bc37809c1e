"""Chains and fans of dependent tasks while processes are killed: the order is kept, and each task runs once."""

import random
import signal
import time

import pytest
from conftest import CONFIG, LONG, HomeCli, wait_until

from backburner import BackburnerSync
from backburner.system import processes

CHAIN, FAN = (200, 400) if LONG else (50, 200)


def command_of(number: int) -> list[str]:
    """A command that writes its number to a file when it starts, and takes a moment."""
    return ["sh", "-c", f"echo {number} >> book; sleep 0.03; echo out {number}"]


def submit(home_cli: HomeCli, after: list[list[int]]) -> list[str]:
    """One task for each entry, which depends on the tasks with these numbers; through the library, because that is faster."""
    task_ids: list[str] = []
    with BackburnerSync.open(home_cli.root) as bb:
        for number, before in enumerate(after):
            names = [task_ids[other] for other in before]
            delay = None if before else 2.0
            entry = bb.submit(command_of(number), cwd=home_cli.cwd, after=names, batch="b", delay=delay, approved=True)
            task_ids.append(entry.task.task_id)
    return task_ids


def kill_engine_until_done(home_cli: HomeCli, last: str, chance: random.Random) -> int:
    """Kill the engine repeatedly until the last task has ended; returns the number of kills."""
    kills, deadline = 0, time.monotonic() + 150
    while home_cli.status(last)["status"] in ("pending", "running"):
        assert time.monotonic() < deadline, "the tasks do not come to an end"
        if (home_cli.cwd / "book").read_text() and kills < 25 and (engine := home_cli.engine):
            processes.send(engine, signal.SIGKILL)
            kills += 1
        home_cli.cli("wait", last, "--timeout", f"{chance.uniform(0.1, 0.8):.2f}")
    return kills


@pytest.mark.parametrize("shape", ["chain", "fan"])
def test_dependent_tasks_run_once_and_in_order_while_engines_are_killed(home_cli: HomeCli, shape: str) -> None:
    (home_cli.cwd / "book").touch()
    home_cli.configure(CONFIG + "[commands]\nmax_concurrent = 8\n")
    chance = random.Random(seed := random.randrange(1 << 32))
    after = {
        "chain": [[], *([number] for number in range(CHAIN - 1))],
        "fan": [[], *([0] for _ in range(FAN)), list(range(1, FAN + 1))],
    }[shape]
    task_ids = submit(home_cli, after)
    kills = kill_engine_until_done(home_cli, task_ids[-1], chance)
    print(f"\n{shape}: seed {seed}, {len(after)} tasks, {kills} engines killed")
    book = [int(line) for line in (home_cli.cwd / "book").read_text().split()]
    assert sorted(book) == list(range(len(after)))
    assert all(book.index(before) < book.index(number) for number, befores in enumerate(after) for before in befores)
    assert home_cli.json("batch")[0]["counts"] == {"completed": len(after)}  # type: ignore[index,call-overload]
    assert kills > 0


def test_dependents_of_a_failed_task_fail_once_after_a_crash(home_cli: HomeCli) -> None:
    first = home_cli.run("sh", "-c", "sleep 1; exit 5", options=("--batch", "b"))
    with BackburnerSync.open(home_cli.root) as bb:
        last = first
        for _ in range(20):
            last = bb.submit(["true"], cwd=home_cli.cwd, after=[last], batch="b").task.task_id
    home_cli.kill_engine()
    wait_until(lambda: home_cli.status(last)["status"] == "failed", "the end of the chain")
    assert home_cli.json("batch")[0]["counts"] == {"failed": 21}  # type: ignore[index,call-overload]
    notices = [notice["task_id"] for notice in home_cli.json("inbox", "--read")]  # type: ignore[union-attr,index,call-overload]
    assert len(notices) == len(set(notices)) == 21
