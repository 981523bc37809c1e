"""A deep queue: the engine's CPU time per command with 10,000 pending tasks and with none; and cancelling 500 commands at once."""

import time
from collections.abc import Callable
from typing import Any

from backburner import BackburnerSync
from bench.home import BenchHome, exact_cpu_seconds, running_commands, scratch_folder, wait_until
from bench.rounds import Figures, run_rounds

COMMANDS, RUNNING = 100, 500


def measure(rounds: int, pending: int) -> list[Figures]:
    """Return CPU milliseconds per command: without a queue, and with tasks that are due tomorrow or wait for another task."""
    with (
        scratch_folder() as first,
        scratch_folder() as second,
        scratch_folder() as third,
        BenchHome(first) as empty,
        BenchHome(second) as due_tomorrow,
        BenchHome(third) as blocked,
    ):
        with BackburnerSync.open(blocked.root) as library:
            blocker = library.submit(["sleep", "3600"], cwd=blocked.cwd, approved=True).task.task_id
        _submit(due_tomorrow, pending, delay=86_400)
        _submit(blocked, pending, after=(blocker,))
        homes = {"no queue": empty, "due tomorrow": due_tomorrow, "waiting for another task": blocked}
        candidates: dict[str, Callable[[], float]] = {name: lambda home=home: _cpu_ms(home) for name, home in homes.items()}  # type: ignore[misc]
        return run_rounds(candidates, rounds)


def measure_cancel(rounds: int) -> list[Figures]:
    """Return the seconds until 500 running commands are cancelled, and the engine's CPU seconds."""
    return run_rounds({"cancel": _cancel}, rounds, warm_up=False)


def _submit(home: BenchHome, count: int, **options: Any) -> None:
    with BackburnerSync.open(home.root) as library:
        for _ in range(count):
            library.submit(["true"], cwd=home.cwd, approved=True, **options)


def _cpu_ms(home: BenchHome) -> float:
    """Submit commands one after the other, as an agent does; return the engine's CPU time for each."""
    with BackburnerSync.open(home.root) as library:
        library.wait(library.submit(["true"], cwd=home.cwd, approved=True).task.task_id)
        assert home.engine
        before = exact_cpu_seconds(home.engine)
        for _ in range(COMMANDS):
            library.wait(library.submit(["true"], cwd=home.cwd, approved=True).task.task_id)
        return (exact_cpu_seconds(home.engine) - before) * 1000 / COMMANDS


def _cancel() -> Figures:
    with scratch_folder() as folder, BenchHome(folder, RUNNING + 10) as home, BackburnerSync.open(home.root) as library:
        ids = [library.submit(["sleep", "600"], cwd=home.cwd, approved=True, batch="all").task.task_id for _ in range(RUNNING)]
        assert home.engine
        engine = home.engine
        wait_until(lambda: running_commands(engine) >= RUNNING, "all commands to run", 60)
        cpu, start = exact_cpu_seconds(engine), time.perf_counter()
        home.cli("cancel", "--batch", "all")
        library.wait(*ids, timeout=120)
        return {"seconds": time.perf_counter() - start, "engine CPU": exact_cpu_seconds(engine) - cpu}
