"""A program of somebody else's that we start: in a session of its own, with our mark on all that comes of it, and ended with all of it."""

import asyncio
import signal

from backburner.core import trace_context as trace
from backburner.core.claims import ClaimedRun
from backburner.core.models import ProcessId
from backburner.core.sessions import session_of
from backburner.services.identity import AGENT_VARIABLES
from backburner.system import processes as process
from backburner.system.caller_identity import SESSION_VARIABLE, environment_for_commands
from backburner.system.home import Home

_CLIENTS_OWN = {*AGENT_VARIABLES, "CLAUDE_CODE_SESSION_ID", "CLAUDE_PID", "GEMINI_SESSION_ID"}  # an agent is not inside of who asked for it
_POLL_SECONDS = 0.02
_TERM_SECONDS, _KILL_SECONDS = 2.0, 5.0


def without_client_variables(environment: dict[str, str]) -> dict[str, str]:
    """An environment without what the client of whoever asked, or we, had put there for its own commands."""
    ours = "BACKBURNER_"
    return {
        name: value
        for name, value in environment_for_commands(environment).items()
        if name not in _CLIENTS_OWN and not name.startswith(ours)
    }


def environment(home: Home, work: ClaimedRun) -> dict[str, str]:
    """What an agent that works for a run is started with. What it starts itself is asked for by its own session, and no yes of its counts."""
    task, run = work.task, work.run
    return {
        **without_client_variables(work.environment),
        **task.spec.env,
        "BACKBURNER_TASK_ID": task.task_id,
        "BACKBURNER_RUN_ID": run.run_id,
        "BACKBURNER_HOME": home.root,
        SESSION_VARIABLE: session_of(task),
        process.TAG_VARIABLE: run.process_tag,
        trace.VARIABLE: trace.traceparent(run.trace_id, run.span_id),
        "PWD": task.spec.cwd,
    }


async def terminate_tree(
    leader: ProcessId | None, mark: str, child: "asyncio.subprocess.Process | None" = None, *, patience: float = 0.0
) -> None:
    """End a program with all that came of it: by itself within `patience` seconds, else by SIGTERM, else by SIGKILL."""
    if child is not None and patience and child.returncode is None:
        try:
            async with asyncio.timeout(patience):
                await child.wait()
        except TimeoutError:
            pass
    for number, seconds in ((signal.SIGTERM, _TERM_SECONDS), (signal.SIGKILL, _KILL_SECONDS)):
        deadline = asyncio.get_running_loop().time() + seconds
        signalled: set[ProcessId] = set()
        while left := process.members(leader, mark):
            for one in left:
                if one not in signalled:
                    process.send(one, number)
                    signalled.add(one)
            if asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(_POLL_SECONDS)
    if child is not None:
        await child.wait()
