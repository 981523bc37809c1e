"""Many clients and one engine: many clients of a new home, a second engine, and an engine that exits when it is needed."""

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
from conftest import LONG, HomeCli, wait_until
from recorder import query, start_driver, wait_for_stable_engine, wait_until_killed

from backburner import BackburnerSync
from backburner.system import processes, wakeups

CLIENTS = 100
IDLE = 0.05


@pytest.fixture
def new_home(tmp_path: Path) -> Iterator[HomeCli]:
    """A home that does not exist yet."""
    project = tmp_path / "project"
    project.mkdir()
    here = HomeCli(tmp_path / "cold", project)
    yield here
    wait_for_stable_engine(here)
    here.stop_engine()


class Gate:
    """Holds processes back until it opens for all of them at the same time."""

    def __init__(self, folder: Path) -> None:
        self._path, self._ready = folder / "gate", folder / "ready"
        os.mkfifo(self._path)
        self._ready.touch()

    def behind(self, *words: str) -> list[str]:
        """A command that waits for the gate before it starts."""
        return ["sh", "-c", 'echo >>"$1"; read x <"$0"; shift; exec "$@"', str(self._path), str(self._ready), *words]

    @contextlib.contextmanager
    def opened(self, count: int) -> Iterator[float]:
        """Open the gate when `count` processes wait; yields the time."""
        wait_until(lambda: self._ready.stat().st_size == count, "all to stand at the gate")
        with open(self._path, "wb", buffering=0) as gate:
            gate.write(b"\n" * count)
            yield time.monotonic()


def test_a_hundred_clients_of_a_new_home_get_one_engine(new_home: HomeCli, capsys: pytest.CaptureFixture[str]) -> None:
    gate = Gate(new_home.cwd)
    clients = [
        subprocess.Popen(
            gate.behind(sys.executable, "-m", "backburner", "run", "--", "echo", f"client {number}"),
            cwd=new_home.cwd, env=new_home.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for number in range(CLIENTS)
    ]  # fmt: skip
    assert not new_home.root.exists()
    left: dict[int, float] = {}

    def all_left() -> bool:
        for number, client in enumerate(clients):
            if number not in left and client.poll() is not None:
                left[number] = time.monotonic() - started_at
        return len(left) == CLIENTS

    try:
        with gate.opened(CLIENTS) as started_at:
            wait_until(all_left, "the clients", 60)
    finally:
        for client in clients:
            client.kill()
    outputs = [client.communicate(timeout=60) for client in clients]
    assert [client.returncode for client in clients] == [0] * CLIENTS, [one[1] for one in outputs if one[1]][:3]
    ids = [one[0].strip() for one in outputs]
    assert len(set(ids)) == CLIENTS
    wait_until(lambda: query(new_home, "SELECT count(*) FROM runs WHERE state = 'completed'") == [(CLIENTS,)], "the ends", 60)
    with capsys.disabled():
        print(
            f"\n{CLIENTS} clients at once: the slowest took {max(left.values()):.2f} s, the last end came after {time.monotonic() - started_at:.2f} s"
        )
    assert query(new_home, "SELECT count(DISTINCT owner), count(DISTINCT task_id) FROM runs") == [(1, CLIENTS)], "one engine ran them all"
    assert query(new_home, "SELECT count(*) FROM events WHERE kind = 'run_started'") == [(CLIENTS,)]
    assert query(new_home, "SELECT count(*) FROM notices") == [(CLIENTS,)]
    for number, task_id in enumerate(ids):
        assert (new_home.folder(task_id) / "output.log").read_bytes().endswith(f"client {number}\n".encode())
    wait_for_stable_engine(new_home)
    assert new_home.engine and len(new_home.processes("backburner-keeper")) == 1


def test_an_engine_started_on_demand_is_replaced_by_one_in_the_foreground(home_cli: HomeCli) -> None:
    task_id = home_cli.run("sh", "-c", "sleep 1; exit 7")
    wait_until(lambda: wakeups.wake(home_cli.home.socket_dir, wakeups.ENGINE_SOCKET), "the first engine")
    first = home_cli.engine
    serving = subprocess.Popen(
        [sys.executable, "-m", "backburner", "serve"], cwd=home_cli.cwd, env=home_cli.environ, stderr=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: home_cli.engine and home_cli.engine.pid == serving.pid, "the other engine to make place")
        wait_until(
            lambda: first and not processes.is_alive(first) and not home_cli.processes("backburner-keeper"),
            "it to be gone, with its keeper",
        )
        home_cli.cli("wait", task_id, "--timeout", "20")
        assert home_cli.status(task_id)["exit_code"] == 7
        second = home_cli.cli("serve")
        assert second.returncode == 2 and "Another engine is already running" in second.stderr
    finally:
        serving.terminate()
        serving.wait()


def test_a_foreground_engine_serves_clients_and_excludes_a_second_engine(home_cli: HomeCli) -> None:
    serving = start_driver(home_cli, "engine", "never")
    wait_until(lambda: wakeups.wake(home_cli.home.socket_dir, wakeups.ENGINE_SOCKET), "the engine")
    assert home_cli.finish("echo", "hello")["status"] == "completed"
    assert home_cli.engine and home_cli.engine.pid == serving.pid
    assert home_cli.cli("serve").returncode == 2
    assert not home_cli.processes("backburner-keeper"), "no client started another one"
    wait_until_killed(serving, by_us=True)


def test_only_one_of_two_engines_started_together_runs(home_cli: HomeCli) -> None:
    gate = Gate(home_cli.cwd)
    serve = gate.behind(sys.executable, "-m", "backburner", "serve")
    both = [subprocess.Popen(serve, cwd=home_cli.cwd, env=home_cli.environ, stderr=subprocess.DEVNULL) for _ in range(2)]
    try:
        with gate.opened(2):
            wait_until(lambda: any(one.poll() is not None for one in both), "one of them to give in")
        assert home_cli.finish("echo", "hello")["status"] == "completed"
        refused, serves = sorted(both, key=lambda one: one.poll() is None)
        assert refused.returncode == 2 and serves.poll() is None
        serves.send_signal(signal.SIGTERM)
        assert serves.wait(20) == 0
    finally:
        for one in both:
            one.kill()
            one.wait()


def test_an_engine_that_starts_slowly_is_not_killed(home_cli: HomeCli) -> None:
    """It holds the lock and cannot be woken yet; a second engine waits for it and gives up."""
    os.mkfifo(home_cli.root / "gate")
    slow = start_driver(home_cli, "engine", "held back")
    wait_until(lambda: home_cli.engine and home_cli.engine.pid == slow.pid, "the lock to be taken")
    second = start_driver(home_cli, "cli", "never", "serve")
    patience = time.monotonic() + 2.5
    wait_until(lambda: slow.poll() is not None or time.monotonic() > patience, "what the second one does")
    try:
        assert slow.poll() is None, f"the first engine was killed by signal {-slow.returncode}"
        assert second.poll() is None
        (home_cli.root / "gate").write_text("open")
        assert second.wait(20) == 2
        assert home_cli.finish("echo", "hello")["status"] == "completed"
        assert home_cli.engine and home_cli.engine.pid == slow.pid
    finally:
        for one in (second, slow):
            one.kill()
            one.communicate(timeout=60)


def test_an_idle_engine_exits(home_cli: HomeCli) -> None:
    """No command is used after the end of the task."""
    home_cli.configure(f"[engine]\nidle_exit_seconds = {IDLE}\n")
    home_cli.ok("run", "--", "echo", "hello")
    wait_until(lambda: query(home_cli, "SELECT state FROM runs") == [("completed",)], "the end")
    wait_until(lambda: home_cli.engine is None and not home_cli.processes(), "the engine and its keeper to leave")


def test_no_task_is_stranded_when_an_idle_engine_exits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Submits commands at the time when the engine exits. Nothing afterwards could wake an engine."""
    homes, each = 4, 50 if LONG else 20
    seed = random.randrange(1 << 32)
    with capsys.disabled():
        print(f"\nidle exit: seed {seed}")
    places = [HomeCli(tmp_path / f"home{number}", tmp_path) for number in range(homes)]
    try:
        with ThreadPoolExecutor(homes) as clients:
            engines = list(
                clients.map(lambda pair: _submit_at_engine_exit(pair[1], each, random.Random(seed + pair[0])), enumerate(places))
            )
        with capsys.disabled():
            print(f"idle exit: {homes * each} commands, {sum(engines)} engines")
        assert sum(engines) > homes * each // 10, "the engines hardly ever left: nothing was shown"
    finally:
        for home_cli in places:
            wait_for_stable_engine(home_cli)
            home_cli.stop_engine()


def _submit_at_engine_exit(home_cli: HomeCli, count: int, chance: random.Random) -> int:
    """Submit commands one after another, each close to the engine's exit after the previous one; returns the number of engines."""
    home_cli.configure(f"[engine]\nidle_exit_seconds = {IDLE}\n")
    with BackburnerSync.open(home_cli.root) as bb:
        for number in range(count):
            bb.submit(["echo", str(number)], cwd=home_cli.cwd)
            ended = [("completed", number + 1)]
            wait_until(
                lambda ended=ended: query(home_cli, "SELECT state, count(*) FROM runs GROUP BY state") == ended,
                f"the end of command {number} in {home_cli.root.name}",
            )
            moment = time.monotonic() + IDLE + chance.uniform(-0.03, 0.03)
            wait_until(lambda moment=moment: time.monotonic() > moment, "the moment of leaving")
    return int(query(home_cli, "SELECT count(DISTINCT owner) FROM runs")[0][0])


def test_no_task_is_stranded_by_many_short_clients(tmp_path: Path) -> None:
    """Eight clients of one home whose engine exits immediately."""
    home_cli = HomeCli(tmp_path / "home", tmp_path)
    home_cli.configure("[engine]\nidle_exit_seconds = 0\n")

    def client(number: int) -> None:
        with BackburnerSync.open(home_cli.root) as bb:
            for turn in range(10):
                bb.submit(["echo", f"{number} {turn}"], cwd=home_cli.cwd)

    try:
        with ThreadPoolExecutor(8) as clients:
            list(clients.map(client, range(8)))
        wait_until(lambda: query(home_cli, "SELECT state, count(*) FROM runs GROUP BY state") == [("completed", 80)], "all ends")
    finally:
        wait_for_stable_engine(home_cli)
        home_cli.stop_engine()
    assert not [one for one in home_cli.processes(str(home_cli.root)) if processes.is_alive(one)]


def test_an_engine_that_cannot_start_has_one_keeper(home_cli: HomeCli) -> None:
    (home_cli.root / "engine.lock").mkdir()
    tasks = [home_cli.ok("run", "--", "true").strip() for _ in range(4)]
    wait_until(lambda: (home_cli.root / "engine.log").read_text().count("IsADirectoryError") >= 2, "it to have been started twice")
    home_cli.cli("list")
    assert len(home_cli.processes("backburner-keeper")) == 1
    (home_cli.root / "engine.lock").rmdir()
    home_cli.ok("wait", *tasks, "--timeout", "30")
