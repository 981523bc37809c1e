"""Backburner's own processes that kill themselves at a given point: `crash_driver.py ROLE POINT HOME WORD…`.

The code under test is not changed: a method is wrapped, and SIGKILL is sent before, inside or after the real call.
Roles: `engine` serves the home, `cli` is the command line with WORD… as its arguments, `embed` is a program that starts
the commands it reads from its standard input through the library.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from backburner.coordination import launcher
from backburner.execution import output_pipe as stream
from backburner.execution import shim
from backburner.execution.command import CommandExecutor
from backburner.execution.output_limit import OutputLimit
from backburner.store.claims import Claims
from backburner.store.notice_writer import NoticeWriter
from backburner.store.run_queue import RunQueueRepository
from backburner.store.tasks import TaskRepository
from backburner.system import run_files
from backburner.system.home import Home


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def before(owner: Any, verb: str) -> None:
    """Die instead of calling the method."""
    setattr(owner, verb, die)


def after(owner: Any, verb: str, matters: Callable[[Any], bool] = lambda result: True) -> None:
    """Die when the real method has returned."""
    real = getattr(owner, verb)

    def deadly(*words: Any, **options: Any) -> Any:
        result = real(*words, **options)
        if matters(result):
            die()
        return result

    setattr(owner, verb, deadly)


def committing(owner: Any, verb: str) -> None:
    """Die inside the transaction of the method: everything is written, the commit has not started."""
    real = getattr(owner, verb)

    def deadly(self: Any, *words: Any, **options: Any) -> Any:
        self._db.connection.set_commit_hook(die)
        return real(self, *words, **options)

    setattr(owner, verb, deadly)


def held_back() -> None:
    """Does not die: the engine holds its lock and waits for the gate in its home before it continues."""
    from backburner.engine import startup

    real = startup.open_engine_parts

    def waiting(home: Home, *words: Any) -> Any:
        with open(os.path.join(home.root, "gate")) as gate:
            gate.read()
        return real(home, *words)

    startup.open_engine_parts = waiting  # type: ignore[assignment]


POINTS: dict[str, Callable[[], None]] = {
    # a command line
    "inside submit": lambda: committing(TaskRepository, "submit"),
    "after insert": lambda: after(TaskRepository, "submit"),
    "after metadata": lambda: after(run_files, "write_metadata"),
    "before start": lambda: before(launcher, "start_engine"),
    "after start": lambda: after(launcher, "start_engine"),
    "after cancel": lambda: after(TaskRepository, "request_cancel"),
    # a process that claims
    "inside claim": lambda: after(Claims, "take"),
    "after claim": lambda: after(RunQueueRepository, "claim", bool),
    "folder made": lambda: after(run_files, "make"),
    "inputs written": lambda: after(run_files, "write_inputs", bool),
    "after prepare": lambda: after(shim, "prepare"),
    "shim but no log writer": lambda: after(stream.Child, "__init__"),
    "start requested": lambda: after(stream.LogWriterProcess, "start", bool),
    "after spawn": lambda: after(CommandExecutor, "launch"),
    "inside record": lambda: committing(RunQueueRepository, "record_process"),
    "after record": lambda: after(RunQueueRepository, "record_process"),
    # a process that settles
    "before settle": lambda: before(RunQueueRepository, "settle"),
    "before notice": lambda: before(NoticeWriter, "write"),
    "after notice": lambda: after(NoticeWriter, "write"),
    "inside settle": lambda: committing(RunQueueRepository, "settle"),
    "after settle": lambda: after(RunQueueRepository, "settle"),
    "log rewritten": lambda: after(OutputLimit, "finish"),
    # a process that takes over
    "inside adopt": lambda: committing(RunQueueRepository, "adopt"),
    "after adopt": lambda: after(RunQueueRepository, "adopt"),
    "after attach": lambda: after(CommandExecutor, "attach"),
    "after release": lambda: after(RunQueueRepository, "release"),
    # no point: killed from outside, or held back
    "held back": held_back,
    "never": lambda: None,
}


def engine(home: str, _: list[str]) -> int:
    from backburner.engine.startup import serve

    return 0 if serve(Home(home), dict(os.environ), foreground=True) else 2


def cli(_: str, words: list[str]) -> int:
    from backburner.interfaces.cli.main import main

    return main(words)


def embed(home: str, words: list[str]) -> int:
    """WORD is the concurrency cap. The input is a list of [description, command, approved_by]; each id is printed when the library returns it."""
    from pathlib import Path

    from backburner import TaskRunner, TaskStorage

    async def main() -> None:
        storage = TaskStorage(base_path=Path(home) / "tasks")
        runner = TaskRunner(storage, max_concurrent=int(words[0]))
        for description, argv, approved_by in json.load(sys.stdin):
            print(await runner.start_task(argv, os.getcwd(), description, approved_by=approved_by), flush=True)
        print("all started", flush=True)
        await asyncio.Event().wait()

    asyncio.run(main())
    return 0


if __name__ == "__main__":
    role, point, root, *rest = sys.argv[1:]
    POINTS[point]()
    sys.exit({"engine": engine, "cli": cli, "embed": embed}[role](root, rest))
