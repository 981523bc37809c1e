"""`check`, `trust` and `audit`: commands that show and change what the gate allows."""

import argparse
import os
import sys

from backburner.approval.shell_parser import parse_commands
from backburner.core import formatting, task_text
from backburner.core.errors import BadInput
from backburner.core.masking import masked_line, masked_words
from backburner.core.models import Caller
from backburner.core.terminal_text import visible
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
    ]
    if args.json:
        details = {"rule": verdict.rule, "part": verdict.part, "reasons": list(verdict.reasons), "effects": list(verdict.effects)}
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
    return 0 if verdict.decision == "allow" else 3


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
    project = app.approvals.trust_project(folder, caller)
    if args.json:
        task_text.print_json({"trusted": project})
    else:
        print(f"Project {visible(project)} is now trusted: its code runs without approval.")
    return 0


def _list_grants(app: App, args: argparse.Namespace) -> int:
    """Print the permanent permissions: trusted projects and commands that are always allowed."""
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
        what = "trusted project" if grant.kind == "trust" else f"always allowed: {masked_line(grant.command, False)}"
        print(f"{grant.grant_id:>4}  {formatting.local_time(grant.created_at)}  {visible(grant.project)}  {what}")
    if not grants:
        hint("No permanent permissions yet.")
    return 0


def audit(app: App, caller: Caller, args: argparse.Namespace) -> int:
    """Print who approved each task, through which interface, and the rule that was applied."""
    entries = app.queries.list(caller, everywhere=not args.here, limit=args.limit or None)
    if args.json:
        keys = ("task_id", "command", "shell", "cwd", "status", "approved_by", "approved_via", "approved_at", "rule", "reasons")
        task_text.print_json([{key: task_text.as_json(entry, 0)[key] for key in keys} for entry in entries])
        return 0
    for task, _ in reversed(entries):
        approver = f"{task.decision.by} via {task.decision.via}" if task.decision.by else str(task.state)
        print(
            f"{formatting.local_time(task.decision.at or task.created_at)}  {approver:<18} {task.task_id}  {masked_line(task.spec.command.words, task.spec.command.shell)}"
        )
        print(f"{'':21}rule: {task.decision.rule or '-'}; {'; '.join(task.decision.reasons)}")
    sys.stdout.flush()
    return 0
