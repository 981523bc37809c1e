"""Chooses what a notice shows of the output of a command: all of it up to 8,000 characters, else its beginning and its end.

If the command failed, the first failing lines come first, so that they can be read without the whole output.
"""

import re

from backburner.core.terminal_text import readable

MAX_CHARACTERS = 8000
_BEGINNING_CHARACTERS = 2000  # of output that is too long
_NEAR_CHARACTERS = 1000  # failing lines this close to the beginning of the output are not repeated
_MAX_FAILURE_LINES = 10
_MAX_LINE_CHARACTERS = 300
# The lines that begin a failure in the output of common tools. The first that occurs is used.
_FAILURES = (
    r"(?:FAIL|ERROR): \w+ \(",  # unittest
    r"--- FAIL: ",  # go test
    r"\s*● .+ › ",  # jest
    r"---- .+ stdout ----$|thread '.+' .*panicked at|error(?:\[E\d+\])?: (?!could not compile|aborting)",  # cargo
    r"\S+?:\d+(?::\d+)?: (?:fatal )?error:|\S+?\(\d+,\d+\): error ",  # compilers
    r"Traceback \(most recent call last\):",
    r"not ok \d+",  # TAP
    r"npm (?:ERR!|error) ",
    r"make(?:\[\d+\])?: \*\*\* ",
)
_PYTEST_FAILURE = r"(?:FAILED|ERROR) \S+"
_PYTEST_SUMMARY = r"=+ short test summary info =+$"
_ANY_FAILURE = r"(?i)(?!.*\b(?:0|no|without) (?:errors?|failures?|failed)\b).*\b(?:errors?|fatal|failed|failure|exception|panic)\b"


def excerpt(text: str, task_id: str, *, failed: bool) -> str:
    """Return what a notice shows of a command's output, without terminal escapes; at most about 8,000 characters."""
    text = readable(text).strip("\n").rstrip()
    failure = first_failure(text) if failed and len(text) > _NEAR_CHARACTERS else ""
    if not failure or failure in text[: _NEAR_CHARACTERS + len(failure)]:
        return _limited(text, task_id, MAX_CHARACTERS)
    return f"First failure:\n{failure}\n\nOutput:\n{_limited(text, task_id, MAX_CHARACTERS - len(failure))}"


def first_failure(text: str) -> str:
    """Return the first lines of the output that report a failure; empty if there are none."""
    lines = [line[:_MAX_LINE_CHARACTERS] for line in text.split("\n")]
    summary = next((at for at, line in enumerate(lines) if re.match(_PYTEST_SUMMARY, line)), None)
    if summary is not None:
        return "\n".join([line for line in lines[summary + 1 :] if re.match(_PYTEST_FAILURE, line)][:_MAX_FAILURE_LINES])
    for pattern in ("|".join(_FAILURES), _ANY_FAILURE):
        if (first := next((at for at, line in enumerate(lines) if re.match(pattern, line)), None)) is not None:
            return _block(lines[first:])
    return ""


def _block(lines: list[str]) -> str:
    """The lines of one failure: of a traceback its last call, otherwise those up to the second blank line."""
    if lines[0].startswith("Traceback"):
        end = next((at for at, line in enumerate(lines[1:], 1) if line and not line[0].isspace()), len(lines) - 1)
        calls = [at for at, line in enumerate(lines[: end + 1]) if line.startswith('  File "')]
        return "\n".join(lines[calls[-1] if calls else 0 : end + 1][:_MAX_FAILURE_LINES])
    blank = [at for at, line in enumerate(lines[:_MAX_FAILURE_LINES]) if not line.strip()]
    return "\n".join(lines[: blank[1] if len(blank) > 1 else _MAX_FAILURE_LINES]).rstrip()


def _limited(text: str, task_id: str, limit: int) -> str:
    """The beginning and the end of a text that is longer than `limit`, cut between lines where that is possible."""
    if len(text) <= limit:
        return text
    beginning, end = text[:_BEGINNING_CHARACTERS], text[len(text) - (limit - _BEGINNING_CHARACTERS) :]
    beginning = beginning.rpartition("\n")[0] or beginning
    end = end.partition("\n")[2] or end
    return f"{beginning}\n[… shortened; full output: backburner logs {task_id}]\n{end}"
