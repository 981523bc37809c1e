"""Output of another host: how long after it was written `logs -f` prints a line, and how fast a large log arrives.

`there` runs the commands, `here` reads; both are homes that have joined one ledger.
"""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

_LINES, _PAUSE_SECONDS = 200, 0.02
_BLOCKS = 128  # MiB
_TICK = f"import time\nfor _ in range({_LINES}):\n    time.sleep({_PAUSE_SECONDS})\n    print(time.time_ns(), flush=True)\n"
_FLOOD = f"import os, sys\nblock = os.urandom(1 << 20)\nfor _ in range({_BLOCKS}):\n    sys.stdout.buffer.write(block)\n"


def backburner(environ: Mapping[str, str], *words: str) -> str:
    """Call the command line of a home, which `environ` names."""
    done = subprocess.run([sys.executable, "-m", "backburner", *words], env=environ, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def start(there: Mapping[str, str], script: str) -> str:
    """Start a Python script on the other host; returns the ID of its task."""
    return backburner(there, "run", "--yes", "--", sys.executable, "-c", script)


def follow_delays(there: Mapping[str, str], here: Mapping[str, str]) -> Sequence[float]:
    """Seconds from the moment in which a command prints a line until `logs -f` on the other host has printed it."""
    task_id, delays = start(there, _TICK), []
    with subprocess.Popen([sys.executable, "-m", "backburner", "logs", "-f", task_id], env=here, stdout=subprocess.PIPE) as reader:
        assert reader.stdout
        begun = time.time_ns()
        for line in reader.stdout:
            if int(line) > begun + 1_000_000_000:  # not the lines that were written before it could follow
                delays.append((time.time_ns() - int(line)) / 1e9)
    return delays


def read_speed(there: Mapping[str, str], here: Mapping[str, str], *, follow: bool) -> float:
    """MiB per second of a log that is complete, or, with `follow`, that is being written. `commands.output_cap_mb` must be large enough."""
    task_id = start(there, _FLOOD)
    if not follow:
        backburner(there, "wait", task_id)
    words = ["logs", *(["-f"] if follow else []), task_id]
    with subprocess.Popen([sys.executable, "-m", "backburner", *words], env=here, stdout=subprocess.PIPE) as reader:
        assert reader.stdout
        size, begun = len(os.read(reader.stdout.fileno(), 1 << 16)), time.monotonic()
        while piece := os.read(reader.stdout.fileno(), 1 << 20):
            size, ended = size + len(piece), time.monotonic()
    assert size == _BLOCKS << 20, size
    return size / (ended - begun) / (1 << 20)
