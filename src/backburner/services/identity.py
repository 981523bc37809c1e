"""Decides who is a person. Only a person may approve, and only a person or the session that asked may add to what was approved.

Agents and background tasks are recognised by the variables they set, by the processes above them, and by the lowered limit of file
locks that everything Backburner starts carries (docs/approval.md says what this cannot see).
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from backburner.coordination.config_file import ConfigFile
from backburner.core.errors import NotAPerson, NotYourTask
from backburner.core.models import Caller, Task
from backburner.core.sessions import is_chat
from backburner.system.processes import inherited_variables, is_alive, is_inside

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


class Identity:
    """Who may approve, and who may add to an approved task."""

    def __init__(self, run_queue: "RunQueue", config: ConfigFile) -> None:
        self._run_queue, self._config = run_queue, config

    def require_person(self, caller: Caller) -> None:
        """Raise NotAPerson unless a person calls, as far as that can be told."""
        if caller.via == "tool":
            raise NotAPerson(reason="an agent asks; a person has to say it, in a terminal of their own")
        if any(map(is_alive, self._run_queue.processes(os.getsid(0)))):
            raise NotAPerson(reason="this runs in the session of a background task")
        without_terminal = caller.via == "library" or self._config.current.flag("approval.yes_without_terminal")
        _require_person(caller.environ, terminal=not without_terminal)

    def require_own(self, task: Task, act: str, caller: Caller) -> None:
        """Raise NotYourTask for whoever would add something to what a person approved, unless they asked for it or are a person.

        `act` is what the caller wants to do. What the gate allowed without a person is open to all.
        """
        if task.decision.by != "user" or (caller.session is not None and caller.session == task.session):
            return
        try:
            if caller.session is not None and not is_chat(caller.session):  # in a chat a person types, too
                raise NotAPerson(reason=f"this is asked by the session {caller.session}")
            self.require_person(caller)
        except NotAPerson as error:
            raise NotYourTask(task_id=task.task_id, act=act, reason=error.fields["reason"]) from None


def started_by_agent(environ: Mapping[str, str]) -> bool:
    """Whether an environment is that of an agent's command or of a background task, as far as that can be told."""
    return "BACKBURNER_TASK_ID" in environ or any(environ.get(variable) for variable in AGENT_VARIABLES)


def _require_person(environ: Mapping[str, str], *, terminal: bool) -> None:
    if task_id := environ.get("BACKBURNER_TASK_ID"):
        raise NotAPerson(reason=f"this runs inside the background task {task_id}")
    if agent := next((name for variable, name in AGENT_VARIABLES.items() if environ.get(variable)), None):
        raise NotAPerson(reason=f"this was started by {agent}; answer in a terminal of your own")
    if is_inside():
        raise NotAPerson(reason="this was started by something that Backburner runs, which its limit of file locks shows")
    above = inherited_variables()
    if "BACKBURNER_TASK_ID" in above:
        raise NotAPerson(reason="this was started by a background task")
    if agent := next((name for variable, name in AGENT_VARIABLES.items() if variable in above), None):
        raise NotAPerson(reason=f"this was started by {agent}; answer in a terminal of your own")
    if terminal:
        try:
            os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
        except OSError:
            allow = "[approval] yes_without_terminal = true in config.toml allows it"
            raise NotAPerson(reason=f"there is no terminal here ({allow})") from None
