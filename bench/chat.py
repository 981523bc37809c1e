"""The chat: from the command to a prompt that takes keys, beside the import of the library that draws it."""

import os
import pty
import select
import signal
import subprocess
import time

from bench.place import LAUNCHER, PYTHON, Place, scratch
from bench.turns import Figures, take_turns

_PROMPT = "›".encode()
_PATIENCE_SECONDS = 20.0


def measure(rounds: int) -> list[Figures]:
    """Milliseconds until the prompt is drawn, and of the import alone."""
    with scratch() as folder, Place(folder) as place:
        place.cli("run", "--wait", "--", "echo", "hello")
        return take_turns({"chat": lambda: _prompt(place), "import": lambda: _import(place)}, rounds)


def _import(place: Place) -> Figures:
    start = time.perf_counter()
    subprocess.run([PYTHON, "-c", "import prompt_toolkit"], cwd=place.cwd, env=place.environ, check=True)
    return {"import prompt_toolkit": (time.perf_counter() - start) * 1000}


def _prompt(place: Place) -> Figures:
    start = time.perf_counter()
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(place.cwd)
        os.execve(LAUNCHER, [LAUNCHER, "chat"], {**place.environ, "TERM": "xterm-256color"})
    try:
        seen, deadline = b"", time.monotonic() + _PATIENCE_SECONDS
        while _PROMPT not in seen:
            if not select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError(f"there was no prompt: {seen!r}")
            seen += os.read(terminal, 1 << 16)
        return {"chat": (time.perf_counter() - start) * 1000}
    finally:
        os.kill(child, signal.SIGKILL)  # a chat may be killed at any moment
        os.waitpid(child, 0)
        os.close(terminal)
