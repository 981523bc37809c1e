"""What an agent may do in its project without approval. The rules are the same for the built-in agent and external agents."""

import os
from typing import NamedTuple

from backburner.approval.effects import looks_secret, relied_on
from backburner.approval.policy import Decision
from backburner.core.claims import ClaimedRun
from backburner.core.errors import BackburnerError, BadInput
from backburner.core.models import Submission, Task
from backburner.core.task_spec import CommandSpec, TaskSpec
from backburner.services.app import App
from backburner.system.caller_identity import environment_for_commands
from backburner.system.command_context import LocalCommandContext

_MAX_SHOWN_CHARACTERS = 1500
# Settings of agents: changing them can change which actions need approval.
_AGENT_SETTINGS = {".claude", ".codex", ".gemini", ".goose", ".mcp.json", ".opencode", ".qwen", "opencode.json", "opencode.jsonc"}


class PermissionRequest(NamedTuple):
    """An action for which an external agent requests permission.

    `kind` is "command", "edit" or "read" (of `paths`), "other", or "unrestricted" for a request that needs no decision of its own.
    """

    kind: str
    description: str  # shown to the person who approves it
    command: str = ""
    paths: tuple[str, ...] = ()
    cwd: str = ""  # of a command, if it differs from the task's
    details: str = ""  # everything known about the request; an approval is valid only for exactly this


def resolve_in_project(task: Task, path: str, home: str) -> str:
    """The real path of a file in the project. BadInput if it is outside the project or may be a secret."""
    if task.opened is None:
        raise BadInput(
            f"{task.spec.cwd} is not a project: this session was not opened in it, or it is a home directory or a shared directory."
        )
    root = os.path.realpath(task.opened)
    if "\0" in path or len(path) > 4000:
        raise BadInput("Invalid path: it contains a NUL character or is longer than 4000 characters.")
    full = os.path.realpath(os.path.join(task.spec.cwd, os.path.expanduser(path)))
    if not LocalCommandContext(task.spec.cwd, {}, project=root, home=home).inside(full):
        raise BadInput(f"{path} is outside the project {root}.")
    name = os.path.relpath(full, root)
    if looks_secret(name) or ".git" in name.lower().split(os.sep):
        raise BadInput(f"{path} may contain secrets or belongs to git. Ask the user for what you need from it.")
    return full


def quote(text: str) -> str:
    """A quoted text for an approval, truncated, with its length and the number of characters not shown."""
    return f"{len(text):,} characters: {text[:_MAX_SHOWN_CHARACTERS]!r}{_omitted(text, _MAX_SHOWN_CHARACTERS)}"


def truncate(text: str, max_characters: int = _MAX_SHOWN_CHARACTERS) -> str:
    """A text truncated to `max_characters`, with the number of characters not shown."""
    return f"{text[:max_characters]}{_omitted(text, max_characters)}"


def _omitted(text: str, max_characters: int) -> str:
    return f" (and {len(text) - max_characters:,} more characters)" if len(text) > max_characters else ""


def may_edit_project(app: App, task: Task) -> bool:
    """Whether the agent may change existing files: in a trusted project, or in its own worktree, whose changes a person reviews."""
    return bool(task.spec.options.worktree) or any(
        grant.kind == "trust" and grant.project == task.project for grant in app.approvals.grants()
    )


def check_permission(app: App, work: ClaimedRun, request: PermissionRequest) -> tuple[Decision, str]:
    """Decide on the permission request of an external agent. Returns the decision and its reason."""
    task = work.task
    match request.kind:
        case "command" if request.command.strip():
            cwd = os.path.join(task.spec.cwd, request.cwd)
            step = Submission(
                spec=TaskSpec(
                    cwd=cwd,
                    command=CommandSpec(words=(request.command,), shell=True),
                    env=task.spec.env,
                ),
                environment=environment_for_commands(work.environment),
                opened=task.opened,
            )
            try:
                verdict = app.gate.check(step, ours=False)
            except BackburnerError as error:
                return Decision.DENY, str(error)
            return verdict.decision, "; ".join(verdict.reasons)
        case "read" | "edit" if request.paths:
            try:
                paths = [resolve_in_project(task, path, app.home.root) for path in request.paths]
            except BadInput as error:
                return Decision.ASK, str(error)
            if request.kind == "edit" and any(_AGENT_SETTINGS & set(path.lower().split(os.sep)) for path in paths):
                return Decision.ASK, "it changes settings of agents"
            if request.kind == "read" or may_edit_project(app, task):
                return Decision.ALLOW, "inside the project"
            if all(
                not os.path.lexists(path) and not relied_on(os.path.relpath(path, os.path.realpath(task.opened or "/"))) for path in paths
            ):
                return Decision.ALLOW, "new files in the project"
            return Decision.ASK, "it changes existing files"
        case "unrestricted":
            return Decision.ALLOW, "the action itself is requested separately"
        case _:
            return Decision.ASK, "its effects are unknown"
