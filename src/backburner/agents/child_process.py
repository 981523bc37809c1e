"""Programs of external agents: their environment, with the process tag of the run, and terminating them with all their processes."""

import asyncio
import signal

from backburner.core import trace_context
from backburner.core.claims import ClaimedRun
from backburner.core.models import ProcessId
from backburner.core.sessions import session_of
from backburner.services.identity import AGENT_VARIABLES
from backburner.system import processes
from backburner.system.caller_identity import SESSION_VARIABLE, environment_for_commands
from backburner.system.home import Home

# Variables by which a client marks its own child processes; an agent that we start is not member of them.
_CLIENT_VARIABLES = {*AGENT_VARIABLES, "CLAUDE_CODE_SESSION_ID", "CLAUDE_PID", "GEMINI_SESSION_ID"}
_POLL_INTERVAL_SECONDS = 0.02
_TERM_TIMEOUT_SECONDS, _KILL_TIMEOUT_SECONDS = 2.0, 5.0


def without_client_variables(environment: dict[str, str]) -> dict[str, str]:
    """The environment without the variables that the submitter's client or Backburner set for their own commands."""
    return {
        name: value
        for name, value in environment_for_commands(environment).items()
        if name not in _CLIENT_VARIABLES and not name.startswith("BACKBURNER_")
    }


def agent_environment(home: Home, work: ClaimedRun) -> dict[str, str]:
    """The environment of an agent's program. Tasks that it starts belong to its own session, and it cannot approve anything."""
    task, run = work.task, work.run
    return {
        **without_client_variables(work.environment),
        **task.spec.env,
        "BACKBURNER_TASK_ID": task.task_id,
        "BACKBURNER_RUN_ID": run.run_id,
        "BACKBURNER_HOME": home.root,
        SESSION_VARIABLE: session_of(task),
        processes.TAG_VARIABLE: run.process_tag,
        trace_context.VARIABLE: trace_context.traceparent(run.trace_id, run.span_id),
        "PWD": task.spec.cwd,
    }


async def terminate_tree(
    leader: ProcessId | None, process_tag: str, child: "asyncio.subprocess.Process | None" = None, *, exit_timeout_seconds: float = 0.0
) -> None:
    """Wait up to `exit_timeout_seconds` for a program to exit; then end it and all its processes by SIGTERM, then by SIGKILL."""
    if child is not None and exit_timeout_seconds and child.returncode is None:
        try:
            async with asyncio.timeout(exit_timeout_seconds):
                await child.wait()
        except TimeoutError:
            pass
    for number, seconds in ((signal.SIGTERM, _TERM_TIMEOUT_SECONDS), (signal.SIGKILL, _KILL_TIMEOUT_SECONDS)):
        deadline = asyncio.get_running_loop().time() + seconds
        signalled: set[ProcessId] = set()
        while remaining := processes.members(leader, process_tag):
            for member in remaining:
                if member not in signalled:
                    processes.send(member, number)
                    signalled.add(member)
            if asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(_POLL_INTERVAL_SECONDS)
    if child is not None:
        await child.wait()
