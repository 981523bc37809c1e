"""`backburner chat`: time until the prompt is shown, compared with the import of its user interface library."""

import os
import pty
import select
import signal
import subprocess
import time

from bench.home import LAUNCHER, PYTHON, BenchHome, scratch_folder
from bench.rounds import Figures, run_rounds

_PROMPT = "›".encode()
_PROMPT_TIMEOUT = 20.0  # seconds


def measure(rounds: int) -> list[Figures]:
    """Return the milliseconds until the prompt is shown, and those of the import."""
    with scratch_folder() as folder, BenchHome(folder) as home:
        home.cli("run", "--wait", "--", "echo", "hello")
        return run_rounds({"chat": lambda: _start_chat(home), "import": lambda: _import_library(home)}, rounds)


def _import_library(home: BenchHome) -> Figures:
    start = time.perf_counter()
    subprocess.run([PYTHON, "-c", "import prompt_toolkit"], cwd=home.cwd, env=home.environ, check=True)
    return {"import prompt_toolkit": (time.perf_counter() - start) * 1000}


def _start_chat(home: BenchHome) -> Figures:
    start = time.perf_counter()
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(home.cwd)
        os.execve(LAUNCHER, [LAUNCHER, "chat"], {**home.environ, "TERM": "xterm-256color"})
    try:
        output, deadline = b"", time.monotonic() + _PROMPT_TIMEOUT
        while _PROMPT not in output:
            if not select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError(f"no prompt was shown: {output!r}")
            output += os.read(terminal, 1 << 16)
        return {"chat": (time.perf_counter() - start) * 1000}
    finally:
        os.kill(child, signal.SIGKILL)  # a chat can be killed at any moment without loss
        os.waitpid(child, 0)
        os.close(terminal)
