"""Checks whether the caller is a person. Only a person may approve; only a person or the submitting session may extend an approved task.

Agents and background tasks are recognised by the variables they set, by their parent processes, and by the lowered file-lock limit of
every process that Backburner starts (docs/approval.md describes what this cannot detect).
"""

import os
from collections.abc import Mapping

from backburner.coordination.config_file import ConfigFile
from backburner.core.errors import NotAPerson, NotYourTask
from backburner.core.light_typing import TYPE_CHECKING
from backburner.core.models import Caller, Task
from backburner.core.sessions import is_chat
from backburner.system.processes import inherited_variables, is_alive, is_confined, is_inside

if TYPE_CHECKING:
    from backburner.core.store_ports import RunQueue

# Variables that known agents set for the commands they run.
AGENT_VARIABLES = {
    "CLAUDECODE": "Claude Code",
    "CLAUDE_CODE_ENTRYPOINT": "Claude Code",
    "CODEX_SANDBOX": "Codex",
    "CODEX_THREAD_ID": "Codex",
    "GEMINI_CLI": "Gemini CLI",
    "OPENCODE": "OpenCode",
    "OPENCODE_CALLER": "OpenCode",
    "CURSOR_AGENT": "Cursor",
    "GOOSE_TERMINAL": "goose",
    "QWEN_CODE": "Qwen Code",
    "AIDER_MODEL": "aider",
}


_INTERFACES_OF_PEOPLE = ("cli", "chat", "library")  # the process that calls is the one that the person uses


class Identity:
    """Checks who may approve, and who may extend an approved task."""

    def __init__(self, run_queue: "RunQueue", config: ConfigFile) -> None:
        self._run_queue, self._config = run_queue, config

    def require_person(self, caller: Caller) -> None:
        """Raise NotAPerson unless the caller is a person, as far as that can be determined."""
        if caller.via == "tool":
            raise NotAPerson(reason="agents cannot approve; approve in your own terminal")
        if caller.via not in _INTERFACES_OF_PEOPLE:
            # The process that serves the web interface may have a terminal, but its callers are not at it.
            raise NotAPerson(reason="this needs your own terminal")
        if any(map(is_alive, self._run_queue.processes(os.getsid(0)))):
            raise NotAPerson(reason="this process runs in the session of a background task")
        without_terminal = caller.via == "library" or self._config.current.flag("approval.yes_without_terminal")
        require_no_agent(caller.environ)
        if not without_terminal:
            _require_terminal()

    def require_own(self, task: Task, act: str, caller: Caller) -> None:
        """Raise NotYourTask unless the caller may extend a task that a person approved: a person, or the session that submitted it.

        `act` is the verb of what the caller wants to do. Tasks that the gate allowed without a person are open to all.
        """
        if task.decision.by != "user" or (caller.session is not None and caller.session == task.session):
            return
        try:
            if caller.session is not None and not is_chat(caller.session):  # a person also uses a chat's session
                raise NotAPerson(reason=f"the request comes from session {caller.session}")
            self.require_person(caller)
        except NotAPerson as error:
            raise NotYourTask(task_id=task.task_id, act=act, reason=error.fields["reason"]) from None


def started_by_agent(environ: Mapping[str, str]) -> bool:
    """Return whether an environment belongs to a command of an agent or to a background task, as far as that can be determined."""
    return "BACKBURNER_TASK_ID" in environ or _agent_of(environ) is not None


def _agent_of(environ: Mapping[str, str]) -> str | None:
    """The agent that sets one of these variables."""
    for variable, name in AGENT_VARIABLES.items():
        if environ.get(variable):
            return name
    return None


def require_no_agent(environ: Mapping[str, str]) -> None:
    """Raise NotAPerson if an agent or a background task has started this process, as far as that can be determined."""
    if task_id := environ.get("BACKBURNER_TASK_ID"):
        raise NotAPerson(reason=f"this process runs inside the background task {task_id}")
    if agent := _agent_of(environ):
        raise NotAPerson(reason=f"this process was started by {agent}; use your own terminal")
    if is_inside():
        raise NotAPerson(reason="this process was started by Backburner (detected by its resource limits); use your own terminal")
    if is_confined():
        raise NotAPerson(reason="this process runs in a sandbox; use your own terminal")
    inherited = inherited_variables()
    if "BACKBURNER_TASK_ID" in inherited:
        raise NotAPerson(reason="this process was started by a background task")
    if agent := next((name for variable, name in AGENT_VARIABLES.items() if variable in inherited), None):
        raise NotAPerson(reason=f"this process was started by {agent}; use your own terminal")


def _require_terminal() -> None:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        hint = "to allow this, set yes_without_terminal = true under [approval] in config.toml"
        raise NotAPerson(reason=f"approval needs a terminal ({hint})") from None
