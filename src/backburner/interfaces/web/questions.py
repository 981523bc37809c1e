"""The approval card, and the answers to it. Only the answer of a passkey approves; it is verified in services/passkeys.py."""

import os
from typing import Any, Literal, TypedDict

from backburner.core import formatting, ids
from backburner.core.devices import Proof
from backburner.core.errors import BackburnerError, NotAPerson, QuestionChanged, WebApprovalOff
from backburner.core.masking import masked_words
from backburner.core.models import Entry, Submission
from backburner.core.states import TaskState, WaitKind
from backburner.core.terminal_text import visible
from backburner.interfaces.web.calls import Call
from backburner.interfaces.web.home import level_of
from backburner.interfaces.web.people import challenge_of
from backburner.interfaces.web.reading import one_row, upcoming_slots
from backburner.interfaces.web.rows import client_of, line_of
from backburner.services.app import App
from backburner.services.overview import needs_person
from backburner.system.git_repository import OddRepository, content_of, repository_of
from backburner.system.home import read_plain

_MAX_FILE_BYTES = 64 << 10
_MAX_FILES = 10


class Ask(TypedDict):
    seen: str
    choice: Literal["once", "always", "trust"]


class Approve(TypedDict):
    nonce: str
    seen: str
    choice: Literal["once", "always", "trust"]
    proof: dict[str, Any]


def question(app: App, call: Call) -> dict[str, object]:
    """What would run or continue, why it needs approval, and what an approval would be bound to."""
    from backburner.interfaces.cli.questions import question_of

    entry = app.queries.find_question(call.path["id"], call.caller)
    task, run = entry
    seen = app.gate.fingerprint_of(entry)  # first: a change after this point must not count as seen
    is_open = entry.status != TaskState.EXPIRED and needs_person(entry)
    text = question_of(app, entry) if is_open else None
    is_device = call.caller.device is not None
    command = task.spec.command
    return {
        "task": one_row(app, entry),
        "open": is_open,
        "kind": _kind(entry),
        "title": f"{_who(entry)} {_wants(entry)} in {visible(_short(task.spec.cwd, call.caller.environ))}{_on_host(app, entry)}",
        "line": visible(formatting.command_line(command.words, command.shell)) if command.words and is_device else line_of(task),
        "command": list(command.words) if is_device else masked_words(command.words),
        "shell": command.shell,
        "cwd": task.spec.cwd,
        "prompt": task.spec.prompt if task.spec.agent_name is not None else None,
        "agent": task.spec.agent_name,
        "git": _git(task.spec.cwd),
        **_judged(app, entry, with_files=is_device),
        "env": ids.masked(task.spec.env),
        "before": [
            {"at": formatting.iso(e.task.decision.at), "by": e.task.decision.by, "via": e.task.decision.via, "status": e.status}
            for e in app.overview.same_command(entry)
        ],
        "asked_at": formatting.iso(task.created_at),
        "expires_at": formatting.iso(task.expires_at) if task.state == TaskState.PROPOSED else None,
        "when": app.recurring.explain(task, upcoming=False) if task.is_recurring else None,
        "next_runs": [formatting.iso(slot) for slot in upcoming_slots(app, entry)],
        "question": visible(run.error) if run and is_open and run.error else None,
        "used": dict(run.end.usage) or {} if run else {},
        "text": text.text if text else None,
        "seen": seen,
        "choices": ["once", *(name for name in ("trust", "always") if text and name in text.answers.values())],
        "level": "not_paired" if not is_device else level_of(app, call),
        "terminal": f"backburner approve {task.task_id} --seen {formatting.short_fingerprint(seen)}",
        "answered": None if is_open else _answer(app, entry),
    }


def _kind(entry: Entry) -> str:
    task, run = entry
    if task.state == TaskState.PAUSED:
        return "paused"
    if run and run.wait_kind in (WaitKind.BUDGET, WaitKind.TOOL):
        return "budget" if run.wait_kind is WaitKind.BUDGET else "step"
    if task.is_recurring:
        return "recurring"
    return "agent" if task.spec.agent_name is not None else "command"


def _who(entry: Entry) -> str:
    client = client_of(entry.task)
    return "You" if client == "you" else client


def _on_host(app: App, entry: Entry) -> str:
    return f" on {visible(host)}" if (host := app.gate.host_of(entry)) else ""


def _wants(entry: Entry) -> str:
    match _kind(entry):
        case "budget":
            return "asked for an agent that needs more budget"
        case "paused":
            return "asked for a task that is paused"
        case "agent" | "step":
            return "wants to run an agent"
        case "recurring":
            return "wants to add a recurring task"
        case _:
            return "want to run a command" if client_of(entry.task) == "you" else "wants to run a command"


def _short(path: str, environ: dict[str, str]) -> str:
    home = environ.get("HOME", "")
    return f"~{path[len(home) :]}" if home and (path == home or path.startswith(f"{home}/")) else path


def _git(folder: str) -> dict[str, object] | None:
    try:
        repository = repository_of(os.path.realpath(folder))
        head = content_of(os.path.join(repository.git, "HEAD"), 1000).decode("utf-8", "replace").strip() if repository else ""
    except (OSError, OddRepository):
        return None
    return {"branch": head.removeprefix("ref: refs/heads/") if head.startswith("ref: ") else head[:12]} if head else None


def _judged(app: App, entry: Entry, *, with_files: bool) -> dict[str, object]:
    """What the gate says now about the command of a question, its parts, and the files that an approval is bound to."""
    from backburner.approval.shell_parser import parse_commands
    from backburner.services.gate import submission_of

    command, decision = entry.task.spec.command, entry.task.decision
    found: dict[str, object] = {
        "parts": [],
        "effects": [],
        "reasons": list(decision.reasons),
        "rule": decision.rule,
        "decided_by": "",
        "decision": "ask",
        "bound": ["the prompt", "the directory", "the settings of the agent"] if not command.words else [],
        "files": [],
    }
    if not command.words or _kind(entry) in ("step", "budget", "paused"):
        return found
    if app.gate.host_of(entry):  # that host has the files, and checks them when the command starts
        return found | {"reasons": [entry.run.error if entry.run and entry.run.error else "; ".join(decision.reasons)]}
    submission = submission_of(entry.task, app.queries.environment(entry))
    found["parts"] = [{"command": visible(part.text), "inside": list(part.inside)} for part in parse_commands(command.words, command.shell)]
    programs, scripts = app.gate.files_of(submission)
    found["bound"] = ["the exact words", "the directory", "variables that decide what runs", *programs, *scripts]
    found["files"] = [_file(path) for path in scripts[:_MAX_FILES]] if with_files else []
    return found | _verdict(app, submission)


def _verdict(app: App, submission: Submission) -> dict[str, object]:
    try:
        verdict = app.gate.check(submission)
    except BackburnerError as error:  # for example, its directory no longer exists
        return {"reasons": [str(error)]}
    return {
        "effects": [str(effect) for effect in verdict.effects],
        "reasons": list(verdict.reasons),
        "rule": verdict.rule,
        "decided_by": visible(verdict.part),
        "decision": str(verdict.decision),
    }


def _file(path: str) -> dict[str, object]:
    try:
        content = read_plain(path, _MAX_FILE_BYTES + 1)
    except OSError as error:
        return {"path": path, "text": f"({error.strerror})", "cut": False}
    text = content[:_MAX_FILE_BYTES].decode("utf-8", "backslashreplace")
    return {"path": path, "text": text, "cut": len(content) > _MAX_FILE_BYTES}


def _answer(app: App, entry: Entry) -> dict[str, object]:
    decision = entry.task.decision
    answer = {"rejected": "rejected", "expired": "expired", "cancelled": "cancelled"}.get(entry.status, "approved")
    found: dict[str, object] = {"by": decision.by, "via": decision.via, "at": formatting.iso(decision.at), "answer": answer, "reason": None}
    if event := app.queries.rejection(entry):
        found |= {"via": event.data.get("via"), "at": formatting.iso(event.at), "reason": event.data.get("reason")}
    return found


def challenge(app: App, call: Call) -> dict[str, object]:
    """Ask for the challenge that a passkey must sign to approve what was shown."""
    entry = app.queries.find_question(call.path["id"], call.caller)
    try:
        if app.gate.fingerprint_of(entry) != call.get("seen"):
            raise _changed(app, entry)
        asked = app.passkeys.ask_to_approve(entry.task.task_id, call.get("seen"), call.get("choice"), call.caller, call.origin)
    except (NotAPerson, WebApprovalOff) as error:
        app.devices.refused(call.caller, str(error), task_id=entry.task.task_id, origin=call.origin)
        raise
    return challenge_of(asked)


def approve(app: App, call: Call) -> dict[str, object]:
    """Approve what was shown, with the answer of a passkey."""
    proof = Proof(call.get("nonce"), call.get("choice"), call.get("proof"), call.origin)
    entry = app.approvals.approve_with_passkey(call.path["id"], call.caller, seen=call.get("seen"), proof=proof)
    return one_row(app, entry)


def _changed(app: App, entry: Entry) -> QuestionChanged:
    return QuestionChanged(task_id=entry.task.task_id, seen=formatting.short_fingerprint(app.gate.fingerprint_of(entry)))
