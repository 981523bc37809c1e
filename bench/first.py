"""The first command in a fresh clone, with an empty HOME and no cache, compared with installing its three largest packages with pip.

Needs a package index. Without one there are no figures.
"""

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

from bench.home import ROOT, BenchHome, scratch_folder
from bench.rounds import Figures, run_rounds

_PACKAGES = ("apsw", "tree-sitter", "tree-sitter-bash")
_TIMEOUT = 600


def measure(rounds: int) -> list[Figures]:
    """Return CPU seconds, and megabytes in `.venv`."""
    try:
        return run_rounds({"pip": _pip, "backburner": _backburner}, rounds, warm_up=False)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"first: {error}", file=sys.stderr)
        return []


def _pip() -> Figures:
    with scratch_folder() as folder:
        environ = _environment(folder)
        create = [sys.executable, "-m", "venv", str(folder / "venv")]
        install = [
            str(folder / "venv" / "bin" / "python"),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--constraint",
            str(ROOT / "constraints.txt"),
        ]
        return {"pip": _cpu_seconds(create, environ, folder) + _cpu_seconds([*install, *_PACKAGES], environ, folder)}


def _backburner() -> Figures:
    with scratch_folder() as folder, BenchHome(folder, None) as home:
        clone = folder / "clone"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True, timeout=_TIMEOUT)
        environ = {**_environment(folder), "BACKBURNER_HOME": str(home.root)}
        used = _cpu_seconds([str(clone / "backburner"), "run", "--wait", "--", "echo", "hello"], environ, home.cwd)
        home.stop_engine()
        return {"backburner": used, "MB": _megabytes(clone / ".venv")}


def _environment(folder: Path) -> dict[str, str]:
    """The environment of a new user: an empty HOME, and no uv, whose cache would be that of the whole machine."""
    path = [entry for entry in os.environ["PATH"].split(os.pathsep) if not os.access(os.path.join(entry, "uv"), os.X_OK)]
    return {**os.environ, "HOME": str(folder), "PATH": os.pathsep.join(path), "PIP_NO_CACHE_DIR": "1"}


def _cpu_seconds(command: list[str], environ: dict[str, str], cwd: Path) -> float:
    """Run a command. Return the CPU time of its processes, without those that it leaves running."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=environ, cwd=cwd, check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def _megabytes(folder: Path) -> float:
    """The size of an environment without pip."""
    for name in ("pip", "pip-*"):
        for found in folder.glob(f"lib/python*/site-packages/{name}"):
            shutil.rmtree(found, ignore_errors=True)
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*")) / 1e6
