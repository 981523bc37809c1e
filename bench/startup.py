"""Time of a command line call with a running engine, and of a client's hook, compared with starting Python and a shell.

The calls go through the launcher of the clone (`./backburner`). A command that pip installs starts Python with `site`, which takes longer.
"""

import json
import os
import shlex
import subprocess
import time

from backburner.interfaces.client_setup.wiring import hook_command
from bench.home import LAUNCHER, PYTHON, BenchHome, scratch_folder
from bench.rounds import Figures, run_rounds

BARE = "python -IS -c pass"
_HOOK_INPUT = json.dumps({"hook_event_name": "PostToolUse", "session_id": "bench", "tool_name": "Read"}).encode()


def measure(rounds: int) -> list[Figures]:
    """Return the milliseconds of a call."""
    with scratch_folder() as folder, BenchHome(folder, None) as home:
        home.cli("run", "--wait", "--", "true")
        home.cli("list")  # the first call after the end of the command may have to record something

        def milliseconds(command: list[str]) -> float:
            start = time.perf_counter()
            subprocess.run(command, cwd=home.cwd, env=home.environ, check=True, input=_HOOK_INPUT, capture_output=True)
            return (time.perf_counter() - start) * 1000

        def run() -> float:
            elapsed = home.seconds("run", "--", "true") * 1000
            time.sleep(0.05)  # so that the command does not slow down the next call
            return elapsed

        hook = shlex.split(hook_command([LAUNCHER], "claude", {**os.environ, **home.environ}))
        quiet = home.root / "hooks" / "claude"

        def quiet_hook() -> float:
            """The hook after a tool call, when nothing has changed since a hook found nothing: it starts no interpreter."""
            os.utime(quiet)  # `run` changes the ledger in every round
            return milliseconds(hook)

        milliseconds(hook)  # creates the file
        assert quiet.exists()
        return run_rounds(
            {
                BARE: lambda: milliseconds([PYTHON, "-IS", "-c", "pass"]),
                "list": lambda: home.seconds("list") * 1000,
                "status": lambda: home.seconds("status", "last") * 1000,
                "inbox --hook": lambda: milliseconds([LAUNCHER, "inbox", "--hook", "claude"]),
                "run": run,
                "sh": lambda: milliseconds(["sh", "-c", ":"]),
                "quiet hook": quiet_hook,
            },
            rounds,
        )
