"""What can be asked for at all: everything about a submission that is wrong whatever the gate would say. Raises BadInput."""

import os
import re

from backburner.core.errors import BadInput
from backburner.core.models import NOTIFY, PRIORITIES, Submission
from backburner.core.recurring import PRECHECK_CONDITIONS
from backburner.core.task_spec import BUDGET_NAMES, RunBudget, budget_fields, set_fields
from backburner.system.home import project_of

_LONGEST_ARGUMENT = 128 * 1024 - 1  # what the kernel takes for one word
_LONGEST_WORD = 200
_LONGEST_MS = 1 << 43  # some centuries
_MOST_RESTARTS = 1_000_000
LONGEST_PROMPT = 2_000_000
_RECURRING_OPTIONS = ("wake", "fields", "memory", "last_result", "tools")
TOOL_SETS = ("files", "read", "commands", "memory", "background", "propose")
_NO_FIELDS = ("message", "model_config", "model_fields", "copy", "json", "dict", "schema", "validate", "construct")
_MOST_NAMES = 20
_LONGEST_NAME = 80
LIMITS = {"memory_mb": (1, 1 << 30), "cpu_seconds": (1, 10**9), "nice": (0, 19)}


def validate(submission: Submission) -> None:
    """Raise BadInput for what could never run, in one sentence that says why."""
    if submission.spec.agent_name is not None:
        _prompt(submission)
    if submission.spec.agent_name is None or submission.spec.command.words:
        _command(submission)
    known = BUDGET_NAMES if submission.is_recurring else RunBudget._fields
    for name, value in budget_fields(submission.spec.budget).items():
        if name not in known or not 0 < value < 1e12:
            raise BadInput(f"A budget has {', '.join(known)}, each above 0; not {name} = {value}.")
    if submission.is_recurring:
        _standing(submission)
    texts = (
        submission.spec.description,
        submission.spec.name,
        submission.spec.order.batch,
        submission.spec.order.key,
        submission.spec.command.ready_when,
    )
    for word in (submission.spec.cwd, *(text or "" for text in texts)):
        if not word.isascii() and word.encode("utf-8", "replace").decode() != word:
            raise BadInput("A folder, a label, a batch, a key, a description and a pattern must be valid UTF-8.")
    for noun, word in (("batch", submission.spec.order.batch), ("key", submission.spec.order.key)):
        if word is not None and not (word.strip() and len(word) <= _LONGEST_WORD and word.isprintable()):
            raise BadInput(f"A {noun} is a word or a few, at most {_LONGEST_WORD} characters on one line, not {word[:_LONGEST_WORD]!r}.")
    if not os.path.isdir(submission.spec.cwd):
        raise BadInput(f"The working directory {submission.spec.cwd} does not exist.")
    if submission.spec.timeout_ms is not None and not 0 < submission.spec.timeout_ms < _LONGEST_MS:
        raise BadInput("A timeout must be longer than nothing and shorter than a lifetime.")
    if submission.spec.order.start_at is not None and not 0 <= submission.spec.order.start_at < _LONGEST_MS:
        raise BadInput("A start must be within the next lifetimes.")
    if submission.spec.order.priority not in PRIORITIES.values():
        raise BadInput("A priority is high, normal or low.")
    for name, value in set_fields(submission.spec.command.limits).items():
        least, most = LIMITS[name]
        if type(value) is not int or not least <= value <= most:
            raise BadInput(f"{name} is a whole number from {least} to {most}, not {value}.")
    if not 0 <= submission.spec.command.restarts <= _MOST_RESTARTS:
        raise BadInput(f"A number of restarts is from 0 to {_MOST_RESTARTS}, not {submission.spec.command.restarts}.")
    _ready_when(submission.spec.command.ready_when)


def _prompt(submission: Submission) -> None:
    if submission.spec.options.worktree and not os.path.exists(os.path.join(project_of(submission.spec.cwd), ".git")):
        raise BadInput(f"{submission.spec.cwd} is in no git repository, so there can be no worktree of it.")
    if not submission.spec.prompt.strip():
        raise BadInput("There is no prompt.")
    if len(submission.spec.prompt) > LONGEST_PROMPT or "\0" in submission.spec.prompt:
        raise BadInput(f"A prompt is text of at most {LONGEST_PROMPT:,} characters, without NUL; put the rest into a file.")


def _standing(submission: Submission) -> None:
    """What a task that runs again and again must say, and may not."""
    name, options = submission.spec.name, submission.spec.options
    if not name or len(name) > _LONGEST_NAME or not name.isprintable() or not name.strip():
        raise BadInput(f"A standing task needs a name: a word or a few, at most {_LONGEST_NAME} characters on one line.")
    if submission.spec.notify not in NOTIFY:
        raise BadInput(f"notify is {', '.join(NOTIFY)}; not '{submission.spec.notify}'.")
    if unknown := [name for name in set_fields(options) if name not in _RECURRING_OPTIONS]:
        raise BadInput(f"There is no '{unknown[0]}' for a standing task.")
    if (wake := options.wake) is not None and (wake not in PRECHECK_CONDITIONS or not submission.spec.command.words):
        raise BadInput(f"A command in front of a prompt wakes its agent on {', '.join(PRECHECK_CONDITIONS)}; not on '{wake}'.")
    fit = all(re.fullmatch("[a-z][a-z0-9]*(_[a-z0-9]+)*", one) and one not in _NO_FIELDS for one in options.fields)
    if not fit or len(options.fields) > _MOST_NAMES:
        raise BadInput(
            f"The fields of a result are up to {_MOST_NAMES} names of small letters, digits and _, and not {', '.join(_NO_FIELDS)}."
        )
    for name in (options.tools or "read").split(","):
        if name.strip() not in TOOL_SETS:
            raise BadInput(f"There is no set of tools '{name.strip()}' for agents; there are {', '.join(TOOL_SETS)}.")
    if (
        submission.spec.command.restarts
        or submission.spec.command.ready_when is not None
        or submission.spec.command.stdin
        or submission.spec.order.start_at is not None
    ):
        raise BadInput("A standing task takes no restarts, no input, no other start and no ready-when.")
    if len(submission.spec.order.after) > 1:
        raise BadInput("A standing task comes after one other, not after several.")


def _command(submission: Submission) -> None:
    if not submission.spec.command.words or not submission.spec.command.words[0].strip():
        raise BadInput("There is no command to run.")
    for word in (*submission.spec.command.words, submission.spec.cwd, *submission.spec.env, *submission.spec.env.values()):
        if "\0" in word:
            raise BadInput("A command cannot hold a NUL character.")
        if not word.isascii() and any("\ud800" <= c < "\udc80" for c in word):
            raise BadInput("A command must be bytes or valid UTF-8.")
        if len(os.fsencode(word)) > _LONGEST_ARGUMENT:
            raise BadInput(f"One word of the command is longer than {_LONGEST_ARGUMENT:,} bytes; put it into a file.")
    for name in submission.spec.env:
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
