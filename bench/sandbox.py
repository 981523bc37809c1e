"""CPU time of one start in a sandbox, compared with the same command without one. Commands run one after the other.

The gate decides about each of them, because its time is measured elsewhere: without a sandbox runs what a rule allows. Homes and projects are
where users have them, not in /tmp, which a sandbox has of its own.
"""

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from backburner.system.home import Home
from backburner.system.sandbox_support import NAMESPACES, find_support
from bench.cpu_time import cpu_milliseconds
from bench.home import BenchHome, scratch_folder
from bench.library import Library
from bench.rounds import Candidate, Figures, run_rounds

_COMMANDS = 30
_NO_OP = ["true"]
_ALLOWED = '[[approval.rules]]\nname = "no-op"\ndecision = "allow"\ncommand = "true"\n'


def measure(rounds: int) -> list[Figures]:
    """Return the milliseconds of CPU time per command, of this process and of everything that it starts. Empty if it cannot be measured."""
    with scratch_folder(str(Path.home())) as folder, cpu_milliseconds() as used:
        if used is None:
            print("sandbox: not measured, because this user cannot create a control group", file=sys.stderr)
            return []
        libraries = {}
        for name in ("plain", "full", "partial"):
            (folder / name).mkdir()
            home = BenchHome(folder / name)
            (home.root / "config.toml").write_text(_ALLOWED if name == "plain" else f'[sandbox]\nlevel = "{name}"\n')
            libraries[name] = Library(Path(home.root), home.cwd, polls_rarely=True)
        candidates: dict[str, Candidate] = {name: lambda name=name: _cpu(libraries[name], used) for name in libraries}
        command = [str(shutil.which("true"))]
        candidates["true"] = lambda: _spawned(command, used)
        if program := find_support(Home(str(folder / "full/home"))).bubblewrap:
            candidates["bubblewrap"] = lambda: _spawned([program, *NAMESPACES, "--ro-bind", "/", "/", "--", *command], used)
        figures = run_rounds(candidates, rounds)
        for library in libraries.values():
            library.__exit__()
        return figures


def _cpu(library: Library, used: Callable[[], float]) -> float:
    library.run(_NO_OP, approved_by="auto")
    before = used()
    for _ in range(_COMMANDS):
        library.run(_NO_OP, approved_by="auto")
    return (used() - before) / _COMMANDS


def _spawned(words: list[str], used: Callable[[], float]) -> float:
    before = used()
    for _ in range(_COMMANDS):
        os.waitpid(os.posix_spawn(words[0], words, {}), 0)
    return (used() - before) / _COMMANDS
