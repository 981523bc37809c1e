"""What an agent may do in its project without being asked about: the same for the built-in one and for those from outside."""

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

_LONGEST_SHOWN = 1500
# What agents go by: whoever changes it changes what is asked for from then on.
_SETTINGS = {".claude", ".codex", ".gemini", ".goose", ".mcp.json", ".opencode", ".qwen", "opencode.json", "opencode.jsonc"}


class PermissionRequest(NamedTuple):
    """A step that an agent from outside asks for: a `command`, an `edit` or a `read` of `paths`, something `other`, or what is `free`."""

    kind: str
    words: str  # as a person is shown it
    command: str = ""
    paths: tuple[str, ...] = ()
    cwd: str = ""  # of a command, where it is not the task's
    whole: str = ""  # all that is known of it: what a yes or a no is bound to


def resolve_in_project(task: Task, path: str, home: str) -> str:
    """A path of the project as it really is; BadInput for one that leads out of it, or to a secret."""
    if task.opened is None:
        raise BadInput(
            f"{task.spec.cwd} is no project: it is not the folder that this session was opened in, or it is a home or a shared folder."
        )
    root = os.path.realpath(task.opened)
    if "\0" in path or len(path) > 4000:
        raise BadInput("That is not a path.")
    full = os.path.realpath(os.path.join(task.spec.cwd, os.path.expanduser(path)))
    if not LocalCommandContext(task.spec.cwd, {}, project=root, home=home).inside(full):
        raise BadInput(f"{path} is outside the project {root}.")
    name = os.path.relpath(full, root)
    if looks_secret(name) or ".git" in name.lower().split(os.sep):
        raise BadInput(f"{path} may hold secrets or is git's own; ask the user for what you need of it.")
    return full


def shown(text: str) -> str:
    """A text as a person decides on it; what they are not shown is counted."""
    return f"{len(text):,} characters: {text[:_LONGEST_SHOWN]!r}{_rest(text, _LONGEST_SHOWN)}"


def cut(text: str, longest: int = _LONGEST_SHOWN) -> str:
    """The same without quotes."""
    return f"{text[:longest]}{_rest(text, longest)}"


def _rest(text: str, longest: int) -> str:
    return f" (and {len(text) - longest:,} characters that are not shown)" if len(text) > longest else ""


def may_edit_project(app: App, task: Task) -> bool:
    """Whether what is in the project may be changed: in a trusted one, and in a checkout of the agent's own, at whose changes a person looks."""
    return bool(task.spec.options.worktree) or any(
        grant.kind == "trust" and grant.project == task.project for grant in app.approvals.grants()
    )


def judge(app: App, work: ClaimedRun, asked: PermissionRequest) -> tuple[Decision, str]:
    """What the gate says to a step of an agent from outside, and why."""
    task = work.task
    match asked.kind:
        case "command" if asked.command.strip():
            cwd = os.path.join(task.spec.cwd, asked.cwd)
            step = Submission(
                spec=TaskSpec(
                    cwd=cwd,
                    command=CommandSpec(words=(asked.command,), shell=True),
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
        case "read" | "edit" if asked.paths:
            try:
                paths = [resolve_in_project(task, path, app.home.root) for path in asked.paths]
            except BadInput as error:
                return Decision.ASK, str(error)
            if asked.kind == "edit" and any(_SETTINGS & set(path.lower().split(os.sep)) for path in paths):
                return Decision.ASK, "agents go by it"
            if asked.kind == "read" or may_edit_project(app, task):
                return Decision.ALLOW, "inside the project"
            if all(
                not os.path.lexists(path) and not relied_on(os.path.relpath(path, os.path.realpath(task.opened or "/"))) for path in paths
            ):
                return Decision.ALLOW, "new files of the project"
            return Decision.ASK, "it changes what is there"
        case "free":
            return Decision.ALLOW, "what it is for is asked for by itself"
        case _:
            return Decision.ASK, "nothing is known of its effects"
