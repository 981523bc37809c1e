"""Backburner's own processes, with a place where each kills itself: `driver.py ROLE POINT HOME WORD…`.

The code under test is not changed: a verb of a port is wrapped, and SIGKILL comes before, inside or after the real call.
Roles: `engine` serves the home, `door` is the command line with WORD… as its words, `embed` is a program that starts
the commands it reads from its input through the library.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from backburner.coordination import launcher as starter
from backburner.execution import output_pipe as stream
from backburner.execution import shim
from backburner.execution.command import CommandExecutor
from backburner.execution.output_limit import Cap
from backburner.store.sqlite import SQLiteStore
from backburner.system import run_files as folders
from backburner.system.home import Home


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def before(owner: Any, verb: str) -> None:
    """Die instead of calling it."""
    setattr(owner, verb, die)


def after(owner: Any, verb: str, matters: Callable[[Any], bool] = lambda result: True) -> None:
    """Die when the real one has returned."""
    real = getattr(owner, verb)

    def deadly(*words: Any, **options: Any) -> Any:
        result = real(*words, **options)
        if matters(result):
            die()
        return result

    setattr(owner, verb, deadly)


def committing(verb: str) -> None:
    """Die inside the verb's transaction: everything is written, the commit has not begun."""
    real = getattr(SQLiteStore, verb)

    def deadly(self: SQLiteStore, *words: Any, **options: Any) -> Any:
        self._db.set_commit_hook(die)
        return real(self, *words, **options)

    setattr(SQLiteStore, verb, deadly)


def held_back() -> None:
    """Not a death: with the lock in its hands the engine waits at the gate in its home before it goes on."""
    from backburner.engine import engine

    real = engine.open_runtime

    def waiting(home: Home, *words: Any) -> Any:
        with open(os.path.join(home.root, "gate")) as gate:
            gate.read()
        return real(home, *words)

    engine.open_runtime = waiting  # type: ignore[assignment]


POINTS: dict[str, Callable[[], None]] = {
    # a door
    "inside submit": lambda: committing("submit"),
    "after insert": lambda: after(SQLiteStore, "submit"),
    "after metadata": lambda: after(folders, "write_metadata"),
    "before start": lambda: before(starter, "start_engine"),
    "after start": lambda: after(starter, "start_engine"),
    "after cancel": lambda: after(SQLiteStore, "request_cancel"),
    # who claims
    "inside claim": lambda: after(SQLiteStore, "_take"),
    "after claim": lambda: after(SQLiteStore, "claim", bool),
    "folder made": lambda: after(folders, "make"),
    "inputs written": lambda: after(folders, "write_inputs", bool),
    "after prepare": lambda: after(shim, "prepare"),
    "cat but no shim": lambda: after(stream.Child, "__init__"),
    "after spawn": lambda: after(CommandExecutor, "launch"),
    "inside record": lambda: committing("record_process"),
    "after record": lambda: after(SQLiteStore, "record_process"),
    # who settles
    "before settle": lambda: before(SQLiteStore, "settle"),
    "before notice": lambda: before(SQLiteStore, "_notice"),
    "after notice": lambda: after(SQLiteStore, "_notice"),
    "inside settle": lambda: committing("settle"),
    "after settle": lambda: after(SQLiteStore, "settle"),
    "log rewritten": lambda: after(Cap, "finish"),
    # who takes over
    "inside adopt": lambda: committing("adopt"),
    "after adopt": lambda: after(SQLiteStore, "adopt"),
    "after attach": lambda: after(CommandExecutor, "attach"),
    "after release": lambda: after(SQLiteStore, "release"),
    # nowhere: killed from outside, or held up
    "held back": held_back,
    "never": lambda: None,
}


def engine(home: str, _: list[str]) -> int:
    from backburner.engine.engine import serve

    return 0 if serve(Home(home), dict(os.environ), foreground=True) else 2


def door(_: str, words: list[str]) -> int:
    from backburner.interfaces.cli.main import main

    return main(words)


def embed(home: str, words: list[str]) -> int:
    """WORD is the cap. The input is a list of [description, command]; every id is printed when the library gave it."""
    from pathlib import Path

    from backburner import TaskRunner, TaskStorage

    async def main() -> None:
        storage = TaskStorage(base_path=Path(home) / "tasks")
        runner = TaskRunner(storage, max_concurrent=int(words[0]))
        for description, argv in json.load(sys.stdin):
            print(await runner.start_task(argv, os.getcwd(), description, approved_by="user"), flush=True)
        print("all started", flush=True)
        await asyncio.Event().wait()

    asyncio.run(main())
    return 0


if __name__ == "__main__":
    role, point, root, *rest = sys.argv[1:]
    POINTS[point]()
    sys.exit({"engine": engine, "door": door, "embed": embed}[role](root, rest))
