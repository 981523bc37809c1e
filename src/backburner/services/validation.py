"""What can be asked for at all: everything about a submission that is wrong whatever the gate would say. Raises BadInput."""

import os
import re

from backburner.core.errors import BadInput
from backburner.core.models import DAY, NOTIFY, PRIORITIES, Submission
from backburner.core.recurring import WAKES
from backburner.system.home import project_of

_LONGEST_ARGUMENT = 128 * 1024 - 1  # what the kernel takes for one word
_LONGEST_WORD = 200
_LONGEST_MS = 1 << 43  # some centuries
_MOST_RESTARTS = 1_000_000
LONGEST_PROMPT = 2_000_000
BUDGETS = ("tokens", "tool_calls", "cost", "seconds")
DAILY = tuple(f"{DAY}{name}" for name in ("tokens", "cost", "runs", "seconds"))
_TERMS = ("wake", "fields", "memory", "last_result", "tools")
TOOL_SETS = ("files", "read", "commands", "memory", "background", "propose")
_NO_FIELDS = ("message", "model_config", "model_fields", "copy", "json", "dict", "schema", "validate", "construct")
_MOST_NAMES = 20
_LONGEST_NAME = 80
LIMITS = {"memory_mb": (1, 1 << 30), "cpu_seconds": (1, 10**9), "nice": (0, 19)}


def validate(submission: Submission) -> None:
    """Raise BadInput for what could never run, in one sentence that says why."""
    if submission.agent is not None:
        _prompt(submission)
    if submission.agent is None or submission.command:
        _command(submission)
    known = (*BUDGETS, *DAILY) if submission.standing else BUDGETS
    for name, value in submission.budget.items():
        if name not in known or not 0 < value < 1e12:
            raise BadInput(f"A budget has {', '.join(known)}, each above 0; not {name} = {value}.")
    if submission.standing:
        _standing(submission)
    texts = (submission.description, submission.name, submission.batch, submission.key, submission.ready_when)
    for word in (submission.cwd, *(text or "" for text in texts)):
        if not word.isascii() and word.encode("utf-8", "replace").decode() != word:
            raise BadInput("A folder, a label, a batch, a key, a description and a pattern must be valid UTF-8.")
    for noun, word in (("batch", submission.batch), ("key", submission.key)):
        if word is not None and not (word.strip() and len(word) <= _LONGEST_WORD and word.isprintable()):
            raise BadInput(f"A {noun} is a word or a few, at most {_LONGEST_WORD} characters on one line, not {word[:_LONGEST_WORD]!r}.")
    if not os.path.isdir(submission.cwd):
        raise BadInput(f"The working directory {submission.cwd} does not exist.")
    if submission.timeout_ms is not None and not 0 < submission.timeout_ms < _LONGEST_MS:
        raise BadInput("A timeout must be longer than nothing and shorter than a lifetime.")
    if submission.start_at is not None and not 0 <= submission.start_at < _LONGEST_MS:
        raise BadInput("A start must be within the next lifetimes.")
    if submission.priority not in PRIORITIES.values():
        raise BadInput("A priority is high, normal or low.")
    for name, value in submission.limits.items():
        if name not in LIMITS:
            raise BadInput(f"There is no limit '{name}'; there are {', '.join(LIMITS)}.")
        least, most = LIMITS[name]
        if type(value) is not int or not least <= value <= most:
            raise BadInput(f"{name} is a whole number from {least} to {most}, not {value}.")
    if not 0 <= submission.restarts <= _MOST_RESTARTS:
        raise BadInput(f"A number of restarts is from 0 to {_MOST_RESTARTS}, not {submission.restarts}.")
    _ready_when(submission.ready_when)


def _prompt(submission: Submission) -> None:
    if submission.terms.get("worktree") and not os.path.exists(os.path.join(project_of(submission.cwd), ".git")):
        raise BadInput(f"{submission.cwd} is in no git repository, so there can be no worktree of it.")
    if not submission.prompt.strip():
        raise BadInput("There is no prompt.")
    if len(submission.prompt) > LONGEST_PROMPT or "\0" in submission.prompt:
        raise BadInput(f"A prompt is text of at most {LONGEST_PROMPT:,} characters, without NUL; put the rest into a file.")


def _standing(submission: Submission) -> None:
    """What a task that runs again and again must say, and may not."""
    name, terms = submission.name, submission.terms
    if not name or len(name) > _LONGEST_NAME or not name.isprintable() or not name.strip():
        raise BadInput(f"A standing task needs a name: a word or a few, at most {_LONGEST_NAME} characters on one line.")
    if submission.notify not in NOTIFY:
        raise BadInput(f"notify is {', '.join(NOTIFY)}; not '{submission.notify}'.")
    if terms and submission.agent is None:
        raise BadInput(f"{', '.join(terms)}: that is for a prompt, and this is a command.")
    if unknown := [term for term in terms if term not in _TERMS]:
        raise BadInput(f"There is no '{unknown[0]}' for a standing task.")
    if (wake := terms.get("wake")) is not None and (wake not in WAKES or not submission.command):
        raise BadInput(f"A command in front of a prompt wakes its agent on {', '.join(WAKES)}; not on '{wake}'.")
    fields = terms.get("fields") or ()
    fit = isinstance(fields, list | tuple) and len(fields) <= _MOST_NAMES
    if not fit or not all(re.fullmatch("[a-z][a-z0-9]*(_[a-z0-9]+)*", str(one)) and one not in _NO_FIELDS for one in fields):
        raise BadInput(
            f"The fields of a result are up to {_MOST_NAMES} names of small letters, digits and _, and not {', '.join(_NO_FIELDS)}."
        )
    for name in str(terms.get("tools") or "read").split(","):
        if name.strip() not in TOOL_SETS:
            raise BadInput(f"There is no set of tools '{name.strip()}' for agents; there are {', '.join(TOOL_SETS)}.")
    if submission.restarts or submission.ready_when is not None or submission.stdin or submission.start_at is not None:
        raise BadInput("A standing task takes no restarts, no input, no other start and no ready-when.")
    if len(submission.after) > 1:
        raise BadInput("A standing task comes after one other, not after several.")


def _command(submission: Submission) -> None:
    if not submission.command or not submission.command[0].strip():
        raise BadInput("There is no command to run.")
    for word in (*submission.command, submission.cwd, *submission.env, *submission.env.values()):
        if "\0" in word:
            raise BadInput("A command cannot hold a NUL character.")
        if not word.isascii() and any("\ud800" <= c < "\udc80" for c in word):
            raise BadInput("A command must be bytes or valid UTF-8.")
        if len(os.fsencode(word)) > _LONGEST_ARGUMENT:
            raise BadInput(f"One word of the command is longer than {_LONGEST_ARGUMENT:,} bytes; put it into a file.")
    for name in submission.env:
        if not name or "=" in name:
            raise BadInput(f"'{name}' is not a name for an environment variable.")


def _ready_when(text: str | None) -> None:
    if text is None:
        return
    if text.isdecimal():
        if not 0 < int(text[:20]) < 65536:
            raise BadInput(f"{text} is not a port; there are 1 to 65535.")
        return
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise BadInput(f"'{text}' is neither a port nor a regular expression: {error}.") from None
