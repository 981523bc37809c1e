"""Asking the person at the terminal before a command starts. Whoever asks decides nothing: the answer goes to the gate."""

import sys
import termios
from collections.abc import Mapping
from enum import StrEnum

from backburner.approval.policy import Verdict
from backburner.approval.shell_parser import parse_commands
from backburner.core.formatting import command_line, short_fingerprint
from backburner.core.models import Submission
from backburner.core.terminal_text import shortened, visible


class Answer(StrEnum):
    YES = "y"
    NO = "n"
    TRUST = "t"  # yes, and the code of this project from now on
    ALWAYS = "a"  # yes, and just this command from now on


def can_ask() -> bool:
    """Whether a person sits at this door."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def question(submission: Submission, verdict: Verdict, when: str | None = None, seen: str = "") -> str:
    """Exactly what would run, what it would do and why it asks, with its fingerprint. Nothing in it can hide or pretend to be ours."""
    lines = ["Command requires approval:", f"  {command_line(submission.spec.command.words, submission.spec.command.shell)}", ""]
    parts = (
        [
            part.text
            for part in parse_commands(submission.spec.command.words, submission.spec.command.shell)
            if part.words and not part.inside
        ]
        if submission.spec.command.shell
        else []
    )
    if len(parts) > 1:
        lines += ["This task will execute:", *(f"  {number}. {visible(part)}" for number, part in enumerate(parts, 1)), ""]
    if odd := sorted({c for word in submission.spec.command.words for c in word if not c.isascii() and c.isalpha()}):
        lines += [f"Note: it holds letters that may look like others: {' '.join(f'{c} (U+{ord(c):04X})' for c in odd[:8])}", ""]
    if when:
        lines.append(f"When: {visible(when)}")
    if submission.spec.prompt:
        lines.append(f"In front of the prompt: {shortened(visible(submission.spec.prompt), longest=400)}")
    lines.append(f"Directory: {visible(submission.spec.cwd)}")
    lines += [f"Environment: {visible(name)}={visible(value)}" for name, value in submission.spec.env.items()]
    lines += ["It asks because this:", *(f"  - {reason}" for reason in verdict.reasons)]
    if "project_code" in verdict.effects:
        lines.append("A yes holds for these words and the scripts they name, not for what those import.")
    if seen:
        lines.append(f"Fingerprint: {short_fingerprint(seen)}")
    return "\n".join([*lines, ""])


def ask(submission: Submission, verdict: Verdict, when: str | None = None, seen: str = "") -> Answer:
    """Show the question and read the answer. Ctrl-C goes up as it is."""
    choices = {"y": Answer.YES, "yes": Answer.YES, "n": Answer.NO, "no": Answer.NO}
    offered = "[y/n]"
    if verdict.trust_would_do:
        choices |= {"t": Answer.TRUST, "trust": Answer.TRUST}
        offered = "[y/n, t: trust this project from now on]"
    elif verdict.always:
        choices |= {"a": Answer.ALWAYS, "always": Answer.ALWAYS}
        offered = "[y/n, a: always allow just this here]"
    line = f"{'Have it run like that' if when else 'Start in background'}? {offered}"
    return Answer(answered(question(submission, verdict, when, seen), line, choices) or Answer.NO)


def answered(text: str, line: str, choices: Mapping[str, str]) -> str | None:
    """Show a text, and ask until one of the words that count is typed: what that means. None where nobody answers."""
    print(text, file=sys.stderr, flush=True)
    termios.tcflush(sys.stdin, termios.TCIFLUSH)  # what was typed before the question is no answer to it
    while True:
        print(f"{line} ", end="", file=sys.stderr, flush=True)
        try:
            answer = sys.stdin.readline()
        except KeyboardInterrupt:
            print("\nNot started.", file=sys.stderr)
            raise
        if not answer:
            return None
        if chosen := choices.get(answer.strip().lower()):
            return chosen
