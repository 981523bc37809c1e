"""Asking the person at the terminal before a command starts. Whoever asks decides nothing: the answer goes to the gate."""

import sys
import termios

from backburner.approval.policy import Verdict
from backburner.models import Submission
from backburner.text import visible
from backburner.words import command_line


def can_ask() -> bool:
    """Whether a person sits at this door."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def ask(submission: Submission, verdict: Verdict) -> bool:
    """Show exactly what would run and why it asks; True for a yes. Ctrl-C goes up as it is."""
    lines = ["Command requires approval:", f"  {command_line(submission.command, submission.shell)}", ""]
    lines.append(f"Directory: {visible(submission.cwd)}")
    lines += [f"Environment: {visible(name)}={visible(value)}" for name, value in submission.env.items()]
    lines += ["It asks because:", *(f"  - {reason}" for reason in verdict.reasons), ""]
    print("\n".join(lines), file=sys.stderr, flush=True)
    termios.tcflush(sys.stdin, termios.TCIFLUSH)  # what was typed before the question is no answer to it
    while True:
        print("Start in background? [y/n] ", end="", file=sys.stderr, flush=True)
        try:
            answer = sys.stdin.readline()
        except KeyboardInterrupt:
            print("\nNot started.", file=sys.stderr)
            raise
        if not answer:
            return False
        match answer.strip().lower():
            case "y" | "yes":
                return True
            case "n" | "no":
                return False
