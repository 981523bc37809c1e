"""CPU time of one start in a sandbox, compared with the same command without one. Commands run one after the other."""

import resource
from pathlib import Path

from bench.home import BenchHome, scratch_folder
from bench.library import Library
from bench.rounds import Figures, run_rounds

_COMMANDS = 30
_NO_OP = ["true"]


def measure(rounds: int) -> list[Figures]:
    """Return the milliseconds of CPU time per command, of this process and of what it starts."""
    with scratch_folder() as folder:
        libraries = {}
        for name in ("plain", "full", "partial"):
            (folder / name).mkdir()
            home = BenchHome(folder / name)
            if name != "plain":
                (home.root / "config.toml").write_text(f'[sandbox]\nlevel = "{name}"\n')
            libraries[name] = Library(Path(home.root), home.cwd, polls_rarely=True)
        figures = run_rounds({name: lambda name=name: _cpu(libraries[name], sandboxed=name != "plain") for name in libraries}, rounds)
        for library in libraries.values():
            library.__exit__()
        return figures


def _cpu(library: Library, *, sandboxed: bool) -> float:
    library.run(_NO_OP, sandboxed=sandboxed)
    before = _used()
    for _ in range(_COMMANDS):
        library.run(_NO_OP, sandboxed=sandboxed)
    return (_used() - before) / _COMMANDS * 1000


def _used() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
