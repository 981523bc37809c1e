"""Chains and fans of tasks with everything of ours killed in between: the order holds, and each runs once."""

import random
import signal
import time

from conftest import CONFIG, LONG, Place, wait_until

from backburner import process

CHAIN, FAN = (200, 400) if LONG else (50, 200)


def words(number: int) -> tuple[str, ...]:
    """A command that writes its number into a book, and when it began and ended."""
    return ("sh", "-c", f"echo {number} >> book; echo out {number}")


def hunt(place: Place, task_ids: list[str], chance: random.Random, kills: int) -> int:
    """Kill the engine again and again until all tasks have ended; how often that was."""
    done = 0
    deadline = time.monotonic() + 120
    while any(task["status"] in ("pending", "running") for task in place.json("list", "--limit", "0")):  # type: ignore[union-attr,index,call-overload]
        assert time.monotonic() < deadline, "the tasks do not come to an end"
        engine = place.engine
        if engine and done < kills and chance.random() < 0.7:
            process.send(engine, signal.SIGKILL)
            done += 1
        else:
            place.cli("wait", task_ids[-1], "--timeout", "0.2")
    return done


def submit(place: Place, *options: str, number: int) -> str:
    return place.ok("run", "--yes", "--batch", "b", *options, "--", *words(number)).strip()


def test_a_chain_keeps_its_order_whatever_dies(place: Place) -> None:
    (place.cwd / "book").touch()
    chance = random.Random(seed := random.randrange(1 << 32))
    task_ids: list[str] = []
    for number in range(CHAIN):
        task_ids.append(submit(place, *(("--after", task_ids[-1]) if task_ids else ()), number=number))
    kills = hunt(place, task_ids, chance, 12)
    print(f"\nchain: seed {seed}, {CHAIN} tasks, {kills} engines killed")
    assert [int(line) for line in (place.cwd / "book").read_text().split()] == list(range(CHAIN))
    assert place.json("batch")[0]["counts"] == {"completed": CHAIN}  # type: ignore[index,call-overload]
    assert kills > 0


def test_a_fan_starts_after_its_root_and_ends_before_its_gathering(place: Place) -> None:
    (place.cwd / "book").touch()
    place.configure(CONFIG + "[commands]\nmax_concurrent = 8\n")
    chance = random.Random(seed := random.randrange(1 << 32))
    root = submit(place, "--in", "2s", number=-1)
    blades = submit_many(place, root, FAN)
    gathering = place.ok(
        "run", "--yes", "--batch", "b", *(word for blade in blades for word in ("--after", blade)), "--", *words(FAN)
    ).strip()
    kills = hunt(place, [root, *blades, gathering], chance, 12)
    print(f"\nfan: seed {seed}, {FAN} tasks, {kills} engines killed")
    book = [int(line) for line in (place.cwd / "book").read_text().split()]
    assert book[0] == -1 and book[-1] == FAN
    assert sorted(book) == list(range(-1, FAN + 1))
    assert place.json("batch")[0]["counts"] == {"completed": FAN + 2}  # type: ignore[index,call-overload]


def submit_many(place: Place, root: str, count: int) -> list[str]:
    """Through the library, because so many calls of the command line would take long."""
    from backburner import BackburnerSync

    with BackburnerSync.open(place.root) as bb:
        return [
            bb.submit(list(words(number)), cwd=place.cwd, after=[root], batch="b", approved=True).task.task_id for number in range(count)
        ]


def test_what_comes_after_a_failure_fails_once_whatever_dies(place: Place) -> None:
    from backburner import BackburnerSync

    first = place.run("sh", "-c", "sleep 1; exit 5", options=("--batch", "b"))
    with BackburnerSync.open(place.root) as bb:
        last = first
        for _ in range(20):
            last = bb.submit(["true"], cwd=place.cwd, after=[last], batch="b").task.task_id
    place.kill_engine()
    wait_until(lambda: place.status(last)["status"] == "failed", "the end of the chain")
    assert place.json("batch")[0]["counts"] == {"failed": 21}  # type: ignore[index,call-overload]
    notices = [notice["task_id"] for notice in place.json("inbox", "--read")]  # type: ignore[union-attr,index,call-overload]
    assert len(notices) == len(set(notices)) == 21
