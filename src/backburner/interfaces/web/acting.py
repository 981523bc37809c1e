"""Operations that change tasks. The gate and the services decide what is allowed, as for every interface."""

import os
from typing import Literal, TypedDict

from backburner.core.errors import BadInput, NotAPerson
from backburner.core.models import PRIORITIES, Submission
from backburner.core.task_spec import AgentSpec, CommandSpec, Order, TaskSpec
from backburner.core.terminal_text import shortened
from backburner.interfaces.web.calls import Call, Reply
from backburner.interfaces.web.reading import one_row
from backburner.services.app import App
from backburner.services.identity import started_by_agent
from backburner.system.caller_identity import environment_for_commands
from backburner.system.processes import umask

_MAX_DESCRIPTION_CHARACTERS = 500
_MAX_MESSAGE_CHARACTERS = 1_000_000


class NewTask(TypedDict, total=False):
    do: Literal["run", "ask"]
    command: list[str]
    shell: bool
    prompt: str
    agent: str
    cwd: str
    name: str | None
    description: str
    batch: str | None
    env: dict[str, str]
    timeout: float | None
    priority: Literal["high", "normal", "low"]
    after: list[str]
    stdin: bool


class CheckedCommand(TypedDict, total=False):
    command: list[str]
    shell: bool
    cwd: str
    env: dict[str, str]


class Cancel(TypedDict, total=False):
    permanent: bool


class Reject(TypedDict, total=False):
    reason: str


class Resume(TypedDict):
    message: str


class _SendOptions(TypedDict, total=False):
    end: bool


class Send(_SendOptions):
    text: str


class Clear(TypedDict, total=False):
    ids: list[str]
    ended: bool
    project: str


def submit(app: App, call: Call) -> Reply:
    """Submit a command or a prompt. The gate decides whether it runs, needs approval or is denied."""
    submission = submission_of(call)
    entry = app.submissions.submit(submission, call.caller)
    verdict = "ask" if entry.status == "proposed" else "sandbox" if entry.task.decision.sandbox else "allow"
    return Reply(201, {"task": one_row(app, entry), "verdict": verdict, "reasons": list(entry.task.decision.reasons)})


def submission_of(call: Call) -> Submission:
    """What a request would submit."""
    cwd = call.get("cwd")
    if not cwd or not os.path.isabs(cwd):
        raise BadInput("'cwd' must be an absolute path.")
    timeout = call.get("timeout")
    if timeout is not None and not 0 < timeout <= 1e9:
        raise BadInput("'timeout' must be a number of seconds.")
    order = Order(
        batch=call.get("batch"), key=call.key, priority=PRIORITIES[call.get("priority", "normal")], after=tuple(call.get("after", []))
    )
    spec = TaskSpec(
        cwd=os.path.normpath(cwd),
        env=call.get("env", {}),
        name=call.get("name"),
        description=shortened(call.get("description", ""), longest=_MAX_DESCRIPTION_CHARACTERS),
        timeout_ms=int(timeout * 1000) if timeout is not None else None,
        order=order,
    )
    if call.get("do", "run") == "ask":
        if not call.get("prompt"):
            raise BadInput("'prompt' is missing.")
        spec = spec._replace(agent=AgentSpec(call.get("agent", "default"), call.get("prompt")))
    else:
        words, shell = call.get("command", []), call.get("shell", False)
        if not words or (shell and len(words) != 1):
            raise BadInput("'command' must be a list of words; with `shell`, a list with one command line.")
        spec = spec._replace(command=CommandSpec(tuple(words), shell, call.get("stdin", False), umask=umask()))
    environment = environment_for_commands(call.caller.environ)
    return Submission(spec, environment, session=call.caller.session, opened=spec.cwd)


def check(app: App, call: Call) -> dict[str, object]:
    """What the gate would say about a command. Nothing is stored."""
    from backburner.approval.shell_parser import parse_commands

    submission = submission_of(call)
    verdict = app.gate.check(submission)
    command = submission.spec.command
    return {
        "verdict": verdict.decision,
        "sandbox": verdict.sandbox.text() if verdict.sandbox else None,
        "rule": verdict.rule,
        "part": verdict.part,
        "reasons": list(verdict.reasons),
        "effects": [str(effect) for effect in verdict.effects],
        "parts": [{"command": part.text, "inside": list(part.inside)} for part in parse_commands(command.words, command.shell)],
    }


def cancel(app: App, call: Call) -> dict[str, object]:
    """Cancel a task. Does not wait until its processes are gone."""
    permanent = call.get("permanent", call.caller.device is not None and not started_by_agent(call.caller.environ))
    return one_row(app, app.tasks.cancel(call.path["id"], call.caller, permanent=permanent))


def restart(app: App, call: Call) -> dict[str, object]:
    """Start the same command again, as a new task that the gate judges again."""
    before = app.queries.find(call.path["id"], call.caller)
    submission = app.submissions.copy_of(before, environment_for_commands(call.caller.environ), call.caller)
    return one_row(app, app.submissions.submit(submission, call.caller))


def pause(app: App, call: Call) -> dict[str, object]:
    """Pause a recurring task."""
    return one_row(app, app.recurring.pause(call.path["id"], call.caller))


def unpause(app: App, call: Call) -> dict[str, object]:
    """Continue a paused task. One that used up its budget needs an approval instead."""
    return one_row(app, app.recurring.unpause(call.path["id"], call.caller))


def run_now(app: App, call: Call) -> dict[str, object]:
    """Run a recurring task now, in addition to its schedule."""
    return one_row(app, app.recurring.run_now(call.path["id"], call.caller))


def resume(app: App, call: Call) -> dict[str, object]:
    """Send another message to an agent that has answered."""
    return one_row(app, app.conversations.resume(call.path["id"], call.get("message"), call.caller))


def send(app: App, call: Call) -> dict[str, object]:
    """Write to the input of a running command that was started with an open input."""
    text = call.get("text")
    if len(text) > _MAX_MESSAGE_CHARACTERS:
        raise BadInput("'text' is too long.")
    return one_row(app, app.tasks.send(call.path["id"], text.encode("utf-8", "surrogateescape"), call.caller, end=call.get("end", False)))


def reject(app: App, call: Call) -> dict[str, object]:
    """Reject what waits for approval; the agent that asked is told the reason. A token may reject only what was submitted with it."""
    entry = app.queries.find_question(call.path["id"], call.caller)
    if call.caller.device is None and entry.task.session != call.caller.session:
        raise NotAPerson(reason=f"a token may reject only its own tasks; in a terminal: backburner reject {entry.task.task_id}")
    return one_row(app, app.approvals.reject(entry.task.task_id, call.caller, reason=call.get("reason")))


def retrieve(app: App, call: Call) -> dict[str, object]:
    """Record that the result of a task was read."""
    entry = app.queries.find(call.path["id"], call.caller)
    app.conversations.mark_retrieved(entry)
    app.inbox.acknowledge(task_ids=[entry.task.task_id])
    return one_row(app, entry)


def clear(app: App, call: Call) -> dict[str, object]:
    """Delete finished tasks and their output."""
    references, project = call.get("ids", []), call.get("project")
    if not references and not call.get("ended", False):
        raise BadInput("Name the tasks with 'ids', or use 'ended'.")
    if call.get("ended", False):
        if project is None:
            cleared = app.tasks.clear(references, call.caller, ended=True, everywhere=True)
        else:
            cleared = app.tasks.clear(references, call.caller._replace(cwd=project), ended=True)
    else:
        cleared = app.tasks.clear(references, call.caller)
    return {"cleared": list(cleared)}
