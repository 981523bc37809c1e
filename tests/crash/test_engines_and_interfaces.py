"""Many doors, one engine: a crowd at a cold home, a second engine, and an engine that leaves just when it is needed."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import Place, wait_until
from recorder import calm, drive, killed, query

from backburner import BackburnerSync
from backburner.system import processes as process
from backburner.system import wakeups as wake

DOORS = 100
IDLE = 0.05


@pytest.fixture
def cold(tmp_path: Path) -> Iterator[Place]:
    """A home that does not exist yet."""
    project = tmp_path / "project"
    project.mkdir()
    here = Place(tmp_path / "cold", project)
    yield here
    calm(here)
    here.stop_engine()


class Gate:
    """Holds processes back until it opens for all of them at the same moment."""

    def __init__(self, folder: Path) -> None:
        self._path, self._ready = folder / "gate", folder / "ready"
        os.mkfifo(self._path)
        self._ready.touch()

    def behind(self, *words: str) -> list[str]:
        """A command that waits at the gate before it begins."""
        return ["sh", "-c", 'echo >>"$1"; read x <"$0"; shift; exec "$@"', str(self._path), str(self._ready), *words]

    @contextlib.contextmanager
    def opened(self, count: int) -> Iterator[float]:
        """Open once `count` wait; the moment it opened."""
        wait_until(lambda: self._ready.stat().st_size == count, "all to stand at the gate")
        with open(self._path, "wb", buffering=0) as gate:
            gate.write(b"\n" * count)
            yield time.monotonic()


def test_a_hundred_doors_at_a_cold_home_get_one_engine(cold: Place, capsys: pytest.CaptureFixture[str]) -> None:
    gate = Gate(cold.cwd)
    doors = [
        subprocess.Popen(
            gate.behind(sys.executable, "-m", "backburner", "run", "--", "echo", f"door {number}"),
            cwd=cold.cwd, env=cold.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for number in range(DOORS)
    ]  # fmt: skip
    assert not cold.root.exists()
    left: dict[int, float] = {}

    def all_left() -> bool:
        for number, door in enumerate(doors):
            if number not in left and door.poll() is not None:
                left[number] = time.monotonic() - began
        return len(left) == DOORS

    try:
        with gate.opened(DOORS) as began:
            wait_until(all_left, "the doors", 60)
    finally:
        for door in doors:
            door.kill()
    said = [door.communicate(timeout=10) for door in doors]
    assert [door.returncode for door in doors] == [0] * DOORS, [one[1] for one in said if one[1]][:3]
    ids = [one[0].strip() for one in said]
    assert len(set(ids)) == DOORS
    wait_until(lambda: query(cold, "SELECT count(*) FROM runs WHERE state = 'completed'") == [(DOORS,)], "the ends", 60)
    with capsys.disabled():
        print(
            f"\n{DOORS} doors at once: the slowest took {max(left.values()):.2f} s, the last end came after {time.monotonic() - began:.2f} s"
        )
    assert query(cold, "SELECT count(DISTINCT owner), count(DISTINCT task_id) FROM runs") == [(1, DOORS)], "one engine ran them all"
    assert query(cold, "SELECT count(*) FROM events WHERE kind = 'run_started'") == [(DOORS,)]
    assert query(cold, "SELECT count(*) FROM notices") == [(DOORS,)]
    for number, task_id in enumerate(ids):
        assert (cold.folder(task_id) / "output.log").read_bytes().endswith(f"door {number}\n".encode())
    calm(cold)
    assert cold.engine and len(cold.processes("backburner-keeper")) == 1


def test_an_engine_that_was_started_on_demand_makes_place_for_one_in_the_foreground(place: Place) -> None:
    task_id = place.run("sh", "-c", "sleep 1; exit 7")
    wait_until(lambda: wake.wake(place.home.socket_dir, wake.ENGINE_SOCKET), "the first engine")
    first = place.engine
    serving = subprocess.Popen([sys.executable, "-m", "backburner", "serve"], cwd=place.cwd, env=place.environ, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: place.engine and place.engine.pid == serving.pid, "the other engine to make place")
        wait_until(
            lambda: first and not process.is_alive(first) and not place.processes("backburner-keeper"), "it to be gone, with its keeper"
        )
        place.cli("wait", task_id, "--timeout", "20")
        assert place.status(task_id)["exit_code"] == 7
        second = place.cli("serve")
        assert second.returncode == 2 and "Another engine serves" in second.stderr
    finally:
        serving.terminate()
        serving.wait()


def test_an_engine_in_the_foreground_serves_the_doors_and_refuses_a_second_one(place: Place) -> None:
    serving = drive(place, "engine", "never")
    wait_until(lambda: wake.wake(place.home.socket_dir, wake.ENGINE_SOCKET), "the engine")
    assert place.finish("echo", "hello")["status"] == "completed"
    assert place.engine and place.engine.pid == serving.pid
    assert place.cli("serve").returncode == 2
    assert not place.processes("backburner-keeper"), "no door started another one"
    killed(serving, by_us=True)


def test_two_engines_that_start_at_the_same_moment_are_one(place: Place) -> None:
    gate = Gate(place.cwd)
    serve = gate.behind(sys.executable, "-m", "backburner", "serve")
    both = [subprocess.Popen(serve, cwd=place.cwd, env=place.environ, stderr=subprocess.DEVNULL) for _ in range(2)]
    try:
        with gate.opened(2):
            wait_until(lambda: any(one.poll() is not None for one in both), "one of them to give in")
        assert place.finish("echo", "hello")["status"] == "completed"
        refused, serves = sorted(both, key=lambda one: one.poll() is None)
        assert refused.returncode == 2 and serves.poll() is None
        serves.send_signal(signal.SIGTERM)
        assert serves.wait(20) == 0
    finally:
        for one in both:
            one.kill()
            one.wait()


def test_an_engine_that_takes_long_to_come_up_is_left_alone(place: Place) -> None:
    """It holds the lock and cannot be rung yet; one that comes meanwhile waits for it and gives in."""
    os.mkfifo(place.root / "gate")
    slow = drive(place, "engine", "held back")
    wait_until(lambda: place.engine and place.engine.pid == slow.pid, "the lock to be taken")
    second = drive(place, "door", "never", "serve")
    patience = time.monotonic() + 2.5
    wait_until(lambda: slow.poll() is not None or time.monotonic() > patience, "what the second one does")
    try:
        assert slow.poll() is None, f"the first engine was killed by signal {-slow.returncode}"
        assert second.poll() is None
        (place.root / "gate").write_text("open")
        assert second.wait(20) == 2
        assert place.finish("echo", "hello")["status"] == "completed"
        assert place.engine and place.engine.pid == slow.pid
    finally:
        for one in (second, slow):
            one.kill()
            one.communicate(timeout=20)


def test_an_engine_with_nothing_left_to_do_leaves(place: Place) -> None:
    """No door is opened after the command's end."""
    place.configure(f"[engine]\nidle_exit_seconds = {IDLE}\n")
    place.ok("run", "--", "echo", "hello")
    wait_until(lambda: query(place, "SELECT state FROM runs") == [("completed",)], "the end")
    wait_until(lambda: place.engine is None and not place.processes(), "the engine and its keeper to leave", 10)


def test_an_idle_engine_that_leaves_strands_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Submissions aimed at the moment of leaving. Nothing is asked of Backburner afterwards that could wake an engine."""
    homes, each = 4, 50
    seed = random.randrange(1 << 32)
    with capsys.disabled():
        print(f"\nidle exit: seed {seed}")
    places = [Place(tmp_path / f"home{number}", tmp_path) for number in range(homes)]
    try:
        with ThreadPoolExecutor(homes) as doors:
            engines = list(doors.map(lambda pair: _aim_at_the_leaving(pair[1], each, random.Random(seed + pair[0])), enumerate(places)))
        with capsys.disabled():
            print(f"idle exit: {homes * each} commands, {sum(engines)} engines")
        assert sum(engines) > homes * each // 10, "the engines hardly ever left: nothing was shown"
    finally:
        for place in places:
            calm(place)
            place.stop_engine()


def _aim_at_the_leaving(place: Place, count: int, chance: random.Random) -> int:
    """Submit one command after another, each about when the engine leaves after the one before; how many engines there were."""
    place.configure(f"[engine]\nidle_exit_seconds = {IDLE}\n")
    with BackburnerSync.open(place.root) as bb:
        for number in range(count):
            bb.submit(["echo", str(number)], cwd=place.cwd)
            ended = [("completed", number + 1)]
            wait_until(
                lambda ended=ended: query(place, "SELECT state, count(*) FROM runs GROUP BY state") == ended,
                f"the end of command {number} in {place.root.name}",
            )
            moment = time.monotonic() + IDLE + chance.uniform(-0.03, 0.03)
            wait_until(lambda moment=moment: time.monotonic() > moment, "the moment of leaving")
    return int(query(place, "SELECT count(DISTINCT owner) FROM runs")[0][0])


def test_doors_that_come_and_go_together_strand_nothing(tmp_path: Path) -> None:
    """Eight doors at one home whose engine leaves at once."""
    place = Place(tmp_path / "home", tmp_path)
    place.configure("[engine]\nidle_exit_seconds = 0\n")

    def door(number: int) -> None:
        with BackburnerSync.open(place.root) as bb:
            for turn in range(10):
                bb.submit(["echo", f"{number} {turn}"], cwd=place.cwd)

    try:
        with ThreadPoolExecutor(8) as doors:
            list(doors.map(door, range(8)))
        wait_until(lambda: query(place, "SELECT state, count(*) FROM runs GROUP BY state") == [("completed", 80)], "all ends", 30)
    finally:
        calm(place)
        place.stop_engine()
    assert not [one for one in place.processes(str(place.root)) if process.is_alive(one)]


def test_an_engine_that_cannot_come_up_has_one_keeper_whatever_is_asked(place: Place) -> None:
    (place.root / "engine.lock").mkdir()
    tasks = [place.ok("run", "--", "true").strip() for _ in range(4)]
    wait_until(lambda: (place.root / "engine.log").read_text().count("IsADirectoryError") >= 2, "it to have been started twice")
    place.cli("list")
    assert len(place.processes("backburner-keeper")) == 1
    (place.root / "engine.lock").rmdir()
    place.ok("wait", *tasks, "--timeout", "30")
