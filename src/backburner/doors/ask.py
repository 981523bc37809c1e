"""Asking the person at the terminal before a command starts. Whoever asks decides nothing: the answer goes to the gate."""

import sys

from backburner.approval.policy import Verdict
from backburner.ids import masked
from backburner.models import Submission
from backburner.words import command_line


def can_ask() -> bool:
    """Whether a person sits at this door."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def ask(submission: Submission, verdict: Verdict) -> bool:
    """Show exactly what would run and why it asks; True for a yes. Ctrl-C goes up as it is."""
    lines = ["Command requires approval:", f"  {command_line(submission.command, submission.shell)}", ""]
    lines.append(f"Directory: {submission.cwd}")
    lines += [f"Environment: {command_line((f'{name}={value}',), False)}" for name, value in masked(submission.env).items()]
    lines += ["It asks because:", *(f"  - {reason}" for reason in verdict.reasons), ""]
    print("\n".join(lines), file=sys.stderr)
    while True:
        print("Start in background? [y/n] ", end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline()
        if not answer:
            return False
        match answer.strip().lower():
            case "y" | "yes":
                return True
            case "n" | "no":
                return False
