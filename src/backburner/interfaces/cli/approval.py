"""`check`, `trust` and `audit`: commands that show and change what the gate allows."""

import argparse
import os
import sys

from backburner.approval.shell_parser import parse_commands
from backburner.core import formatting, task_text
from backburner.core.errors import ApprovalDenied, BadInput
from backburner.core.masking import masked_line, masked_words
from backburner.core.models import Caller
from backburner.core.terminal_text import shortened, visible
from backburner.interfaces.cli.run import submission_from
from backburner.interfaces.cli.tasks import hint
from backburner.services.app import App


def check(app: App, caller: Caller, args: argparse.Namespace) -> int:
    """Print the decision of the gate. Nothing is stored and nothing runs."""
    submission = submission_from(caller, args)
    verdict = app.gate.check(submission)
    parts = [
        {"command": part.text, "inside": list(part.inside)}
        for part in parse_commands(submission.spec.command.words, submission.spec.command.shell)
        if part.text  # a part without text only says what cannot be read
    ]
    if args.json:
        sandbox = verdict.sandbox.text() if verdict.sandbox else None
        details = {
            "sandbox": sandbox,
            "rule": verdict.rule,
            "part": verdict.part,
            "reasons": list(verdict.reasons),
            "effects": list(verdict.effects),
        }
        task_text.print_json({"verdict": verdict.decision, **details, "parts": parts})
    else:
        print(f"{verdict.decision}: {formatting.command_line(submission.spec.command.words, submission.spec.command.shell)}")
        for part in parts if len(parts) > 1 else []:
            through = f"  (through {', '.join(part['inside'])})" if part["inside"] else ""
            print(f"  would run: {visible(str(part['command']))}{through}")
        print(f"  decided by: {verdict.part}  (rule: {verdict.rule})")
        for reason in verdict.reasons:
            print(f"  - {reason}")
        if verdict.trust_would_do:
            print("  To allow it, trust this project: backburner trust")
        if verdict.sandbox:
            print(f"  sandbox: {visible(verdict.sandbox.text())}")
    return 0 if verdict.decision in ("sandbox", "allow") else 3


def apply(app: App, caller: Caller, args: argparse.Namespace) -> int:
    """Show what a command changed in its copy of the project, and apply it if a person approves."""
    kept = app.project_changes.kept(args.id, caller)
    fingerprint = formatting.short_fingerprint(kept.fingerprint)
    listed = [{"kind": str(change.kind), "path": change.path, "size": change.size} for change in kept.found]
    if args.diff and args.json:
        task_text.print_json({"fingerprint": fingerprint, "changes": listed, "diff": kept.diff()})
        return 0
    if args.diff or args.seen is None:
        print(kept.diff(), end="")
        print(f"Project: {visible(kept.project)}\nFingerprint: {fingerprint}", flush=True)
        if args.diff:
            return 0
        app.identity.require_person(caller)
        from backburner.interfaces.cli.approval_prompt import can_ask, read_answer
        from backburner.interfaces.cli.questions import YES_NO

        if not can_ask():
            raise BadInput(f"To apply these changes without a prompt, run: backburner apply {kept.entry.task.task_id} --seen {fingerprint}")
        if read_answer("", "Apply these changes? [y/n]", YES_NO) != "yes":
            raise ApprovalDenied(reason="you rejected it")
    count = app.project_changes.apply(kept, caller, seen=args.seen)
    if args.json:
        task_text.print_json({"applied": count, "changes": listed})
    else:
        print(f"Applied {count:,} {'change' if count == 1 else 'changes'} to {visible(kept.project)}.")
    return 0


def trust(app: App, caller: Caller, args: argparse.Namespace) -> int:
    if args.revoke is not None:
        app.approvals.revoke(args.revoke)
        if args.json:
            task_text.print_json({"revoked": args.revoke})
        else:
            print(f"Permission {args.revoke} revoked.")
        return 0
    if args.list:
        return _list_grants(app, args)
    folder = os.path.abspath(args.folder or os.getcwd())
    if not os.path.isdir(folder):
        raise BadInput(f"{folder} is not a directory.")
    if args.connect is not None:
        project = app.approvals.permit_port(folder, args.connect, caller)
        shown = f"Sandboxed commands in {visible(project)} may now connect to port {args.connect} of this machine."
    else:
        project = app.approvals.trust_project(folder, caller)
        shown = f"Project {visible(project)} is now trusted: sandboxed commands may change its files."
    if args.json:
        task_text.print_json({"trusted": project} | ({"connect": args.connect} if args.connect is not None else {}))
    else:
        print(shown)
    return 0


def _list_grants(app: App, args: argparse.Namespace) -> int:
    """Print the permanent permissions."""
    grants = app.approvals.grants()
    if args.json:
        created = [formatting.iso(grant.created_at) for grant in grants]
        task_text.print_json(
            [
                {**grant._asdict(), "command": masked_words(grant.command), "created_at": at}
                for grant, at in zip(grants, created, strict=True)
            ]
        )
        return 0
    for grant in grants:
        match grant.kind:
            case "trust":
                what = "trusted project"
            case "connect":
                what = f"sandboxed commands may connect to port {grant.command[0]}"
            case _:
                what = f"always allowed: {masked_line(grant.command, False)}"
        print(f"{grant.grant_id:>4}  {formatting.local_time(grant.created_at)}  {visible(grant.project)}  {what}")
    if not grants:
        hint("No permanent permissions yet.")
    return 0


def audit(app: App, caller: Caller, args: argparse.Namespace) -> int:
    """Print who approved each task, through which interface, and the rule that was applied."""
    entries = app.queries.list(caller, everywhere=not args.here, limit=args.limit or None)
    if args.json:
        keys = ("task_id", "command", "shell", "cwd", "status", "approved_by", "approved_via", "approved_at", "rule", "reasons")
        task_text.print_json(
            [
                {**{key: task_text.as_json(entry, 0)[key] for key in keys}, "steps": app.queries.decided_steps(entry.task.task_id)}
                for entry in entries
            ]
        )
        return 0
    for task, _ in reversed(entries):
        approver = f"{task.decision.by} via {task.decision.via}" if task.decision.by else str(task.state)
        print(
            f"{formatting.local_time(task.decision.at or task.created_at)}  {approver:<18} {task.task_id}  {masked_line(task.spec.command.words, task.spec.command.shell)}"
        )
        print(f"{'':21}rule: {task.decision.rule or '-'}; {'; '.join(task.decision.reasons)}")
        for step in app.queries.decided_steps(task.task_id):
            verb = "approved" if step["answer"] == "yes" else "rejected"
            approver = f"{step['by']} via {step['via']}" if step["via"] else str(step["by"])
            print(f"{'':21}step {verb} by {approver} at {formatting.local_time(step['at'])}: {shortened(visible(str(step['question'])))}")
    sys.stdout.flush()
    return 0
