"""Identifies the caller: its session, from variables that the client sets, and the client's process.

A session is `CLIENT:ID`. If a client sets no variable, its process stands for it. This routes notices; it proves no identity.
"""

import os
from collections.abc import Iterator, Mapping

from backburner.core.deferred_modules import re
from backburner.core.models import Caller, ProcessId
from backburner.system.processes import identify, parent_of

SESSION_VARIABLE = "BACKBURNER_SESSION"
# Variables that clients set for the programs they start.
_VARIABLES = {"CLAUDE_CODE_SESSION_ID": "claude", "CODEX_THREAD_ID": "codex", "GEMINI_SESSION_ID": "gemini"}
_MAX_NAME_CHARACTERS = 120
_MAX_ANCESTORS = 64


def current_caller(via: str, environ: dict[str, str]) -> Caller:
    """This process as a caller of services, in its current folder."""
    try:
        cwd = os.getcwd()
    except FileNotFoundError:
        cwd = "/"
    return Caller(cwd, environ, via, caller_session(environ))


def caller_session(environ: Mapping[str, str]) -> str | None:
    """The session that a process with this environment belongs to; None for a user's own shell."""
    if name := environ.get(SESSION_VARIABLE):
        client, colon, rest = name.partition(":")
        return session_name(client, rest) if colon and rest else session_name("session", name)
    return next((session_name(client, environ[variable]) for variable, client in _VARIABLES.items() if environ.get(variable)), None)


def session_name(client: str, session: str) -> str:
    """The name of a session; other characters than letters, digits, dot, underscore and dash are replaced."""
    return f"{re.sub(r'[^a-z0-9-]+', '-', client.lower())[:40].strip('-') or 'client'}:{re.sub(r'[^A-Za-z0-9._-]+', '-', session)[:_MAX_NAME_CHARACTERS]}"


def client_process(environ: Mapping[str, str]) -> ProcessId | None:
    """The client process that started a process with this environment, if the client says so."""
    pid = environ.get("CLAUDE_PID", "")
    return identify(int(pid)) if pid.isdecimal() and len(pid) < 10 else None


def environment_for_commands(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment that commands get: without the variables that give access to the client's model."""
    return {name: value for name, value in environ.items() if not name.startswith("CLAUDE_CODE_MESSAGING_")}


def ancestors() -> Iterator[ProcessId]:
    """The ancestors of this process, nearest first."""
    pid = parent_of(os.getpid())
    for _ in range(_MAX_ANCESTORS):
        if not pid or (found := identify(pid)) is None:
            return
        yield found
        pid = parent_of(pid)
