"""The approval prompt at the terminal. It shows a command and reads the answer; the gate makes the decision."""

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
    TRUST = "t"  # approve, and trust the code of this project
    ALWAYS = "a"  # approve, and always allow this command in this directory


def can_ask() -> bool:
    """Whether a person can be prompted: stdin and stderr are a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def question(submission: Submission, verdict: Verdict, when: str | None = None, seen: str = "") -> str:
    """The text of the prompt: the exact command, its effects, the reasons, and the fingerprint `seen`.

    Control characters are escaped, so that a command cannot hide or imitate parts of the prompt.
    """
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
    if non_ascii := sorted({c for word in submission.spec.command.words for c in word if not c.isascii() and c.isalpha()}):
        lines += [
            f"Note: the command contains letters that can be mistaken for others: {' '.join(f'{c} (U+{ord(c):04X})' for c in non_ascii[:8])}",
            "",
        ]
    if when:
        lines.append(f"When: {visible(when)}")
    if submission.spec.prompt:
        lines.append(f"The command decides whether the agent gets this prompt: {shortened(visible(submission.spec.prompt), longest=400)}")
    lines.append(f"Directory: {visible(submission.spec.cwd)}")
    lines += [f"Environment: {visible(name)}={visible(value)}" for name, value in submission.spec.env.items()]
    lines += ["Why it needs approval:", *(f"  - {reason}" for reason in verdict.reasons)]
    if "project_code" in verdict.effects:
        lines.append("Approval covers this command and the scripts it names, not their imports.")
    if seen:
        lines.append(f"Fingerprint: {short_fingerprint(seen)}")
    return "\n".join([*lines, ""])


def ask(submission: Submission, verdict: Verdict, when: str | None = None, seen: str = "") -> Answer:
    """Show the prompt and read the answer. Ctrl-C raises KeyboardInterrupt."""
    choices = {"y": Answer.YES, "yes": Answer.YES, "n": Answer.NO, "no": Answer.NO}
    offered = "[y/n]"
    if verdict.trust_would_do:
        choices |= {"t": Answer.TRUST, "trust": Answer.TRUST}
        offered = "[y/n, t: trust this project from now on]"
    elif verdict.always:
        choices |= {"a": Answer.ALWAYS, "always": Answer.ALWAYS}
        offered = "[y/n, a: always allow this command in this directory]"
    line = f"{'Add this recurring task' if when else 'Start in background'}? {offered}"
    return Answer(read_answer(question(submission, verdict, when, seen), line, choices) or Answer.NO)


def read_answer(text: str, line: str, choices: Mapping[str, str]) -> str | None:
    """Show a text and repeat the prompt until one of the `choices` is typed; return its value. None at the end of the input."""
    print(text, file=sys.stderr, flush=True)
    termios.tcflush(sys.stdin, termios.TCIFLUSH)  # discard what was typed before the prompt appeared
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
