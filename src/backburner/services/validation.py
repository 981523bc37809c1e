"""Validates submissions before the gate judges them. Raises BadInput for a task that could never run."""

import os

from backburner.core.deferred_modules import re
from backburner.core.errors import BadInput
from backburner.core.models import NOTIFY, PRIORITIES, Submission
from backburner.core.recurring import PRECHECK_CONDITIONS
from backburner.core.task_spec import BUDGET_NAMES, RunBudget, budget_fields, set_fields
from backburner.system.paths import project_of

_MAX_ARGUMENT_BYTES = 128 * 1024 - 1  # the kernel's limit for one argument
_MAX_LABEL_CHARACTERS = 200
_MAX_TIME_MS = 1 << 43  # about 278 years
_MAX_RESTARTS = 1_000_000
MAX_PROMPT_CHARACTERS = 2_000_000
_RECURRING_OPTIONS = ("wake", "fields", "memory", "last_result", "tools")
TOOL_SETS = ("files", "read", "commands", "memory", "background", "propose")
_RESERVED_FIELDS = ("message", "model_config", "model_fields", "copy", "json", "dict", "schema", "validate", "construct")
_MAX_FIELDS = 20
_MAX_NAME_CHARACTERS = 80
LIMITS = {"memory_mb": (1, 1 << 30), "cpu_seconds": (1, 10**9), "nice": (0, 19)}


def validate(submission: Submission, *, elsewhere: bool = False) -> None:
    """Raise BadInput if the submission could never run. The message says why, in one sentence.

    If it may run `elsewhere`, on another host, the directory is checked there.
    """
    if submission.spec.agent_name is not None:
        _validate_prompt(submission, elsewhere)
    if submission.spec.agent_name is None or submission.spec.command.words:
        _validate_command(submission)
    known = BUDGET_NAMES if submission.is_recurring else RunBudget._fields
    for name, value in budget_fields(submission.spec.budget).items():
        if name not in known or not 0 < value < 1e12:
            raise BadInput(f"Invalid budget {name} = {value}. Use {', '.join(known)}, each above 0.")
    if submission.is_recurring:
        _validate_recurring(submission)
    texts = (
        submission.spec.description,
        submission.spec.name,
        submission.spec.order.batch,
        submission.spec.order.key,
        submission.spec.command.ready_when,
    )
    for word in (submission.spec.cwd, *(text or "" for text in texts)):
        if not word.isascii() and word.encode("utf-8", "replace").decode() != word:
            raise BadInput("The directory, label, batch, key, description and pattern must be valid UTF-8.")
    for noun, word in (("batch", submission.spec.order.batch), ("key", submission.spec.order.key)):
        if word is not None and not (word.strip() and len(word) <= _MAX_LABEL_CHARACTERS and word.isprintable()):
            shown = repr(word[:_MAX_LABEL_CHARACTERS])
            raise BadInput(f"Invalid {noun} {shown}: use 1 to {_MAX_LABEL_CHARACTERS} printable characters on one line.")
    if not elsewhere and not os.path.isdir(submission.spec.cwd):
        raise BadInput(f"The working directory {submission.spec.cwd} does not exist.")
    if submission.spec.timeout_ms is not None and not 0 < submission.spec.timeout_ms < _MAX_TIME_MS:
        raise BadInput("The timeout must be greater than 0 and less than 278 years.")
    if submission.spec.order.start_at is not None and not 0 <= submission.spec.order.start_at < _MAX_TIME_MS:
        raise BadInput("The start time is too far in the future.")
    if submission.spec.order.priority not in PRIORITIES.values():
        raise BadInput("The priority must be high, normal or low.")
    for name, value in set_fields(submission.spec.command.limits).items():
        minimum, maximum = LIMITS[name]
        if type(value) is not int or not minimum <= value <= maximum:
            raise BadInput(f"{name} must be a whole number from {minimum} to {maximum}, not {value}.")
    if not 0 <= submission.spec.command.restarts <= _MAX_RESTARTS:
        raise BadInput(f"The number of restarts must be from 0 to {_MAX_RESTARTS}, not {submission.spec.command.restarts}.")
    _validate_ready_when(submission.spec.command.ready_when)


def _validate_prompt(submission: Submission, elsewhere: bool) -> None:
    if submission.spec.options.worktree and not elsewhere and not os.path.exists(os.path.join(project_of(submission.spec.cwd), ".git")):
        raise BadInput(f"{submission.spec.cwd} is not in a git repository; a worktree requires one.")
    if not submission.spec.prompt.strip():
        raise BadInput("The prompt is empty.")
    if len(submission.spec.prompt) > MAX_PROMPT_CHARACTERS or "\0" in submission.spec.prompt:
        raise BadInput(
            f"The prompt must have at most {MAX_PROMPT_CHARACTERS:,} characters and no NUL character; put longer text into a file."
        )


def _validate_recurring(submission: Submission) -> None:
    """Check what only recurring tasks require, and what they do not support."""
    name, options = submission.spec.name, submission.spec.options
    if not name or len(name) > _MAX_NAME_CHARACTERS or not name.isprintable() or not name.strip():
        raise BadInput(f"A recurring task requires a name of at most {_MAX_NAME_CHARACTERS} printable characters on one line.")
    if submission.spec.notify not in NOTIFY:
        raise BadInput(f"notify must be one of {', '.join(NOTIFY)}, not '{submission.spec.notify}'.")
    if unknown := [name for name in set_fields(options) if name not in _RECURRING_OPTIONS]:
        raise BadInput(f"Recurring tasks do not support the option '{unknown[0]}'.")
    if (wake := options.wake) is not None and (wake not in PRECHECK_CONDITIONS or not submission.spec.command.words):
        raise BadInput(f"wake must be one of {', '.join(PRECHECK_CONDITIONS)}, not '{wake}', and requires a pre-check command.")
    valid = all(re.fullmatch("[a-z][a-z0-9]*(_[a-z0-9]+)*", field) and field not in _RESERVED_FIELDS for field in options.fields)
    if not valid or len(options.fields) > _MAX_FIELDS:
        raise BadInput(
            f"A result can have up to {_MAX_FIELDS} fields, named with lowercase letters, digits and _."
            f" Reserved names: {', '.join(_RESERVED_FIELDS)}."
        )
    for name in (options.tools or "read").split(","):
        if name.strip() not in TOOL_SETS:
            raise BadInput(f"Unknown tool set '{name.strip()}'. Available tool sets: {', '.join(TOOL_SETS)}.")
    if (
        submission.spec.command.restarts
        or submission.spec.command.ready_when is not None
        or submission.spec.command.stdin
        or submission.spec.command.tty
        or submission.spec.order.start_at is not None
    ):
        raise BadInput("Recurring tasks do not support restarts, input, a terminal, a separate start time or ready-when.")
    if len(submission.spec.order.after) > 1:
        raise BadInput("A recurring task can run after one other task only, not after several.")


def _validate_command(submission: Submission) -> None:
    if not submission.spec.command.words or not submission.spec.command.words[0].strip():
        raise BadInput("No command given.")
    for word in (*submission.spec.command.words, submission.spec.cwd, *submission.spec.env, *submission.spec.env.values()):
        if "\0" in word:
            raise BadInput("A command cannot contain a NUL character.")
        if not word.isascii() and any("\ud800" <= c < "\udc80" for c in word):
            raise BadInput("A command must be bytes or valid UTF-8.")
        if len(os.fsencode(word)) > _MAX_ARGUMENT_BYTES:
            raise BadInput(f"An argument of the command is longer than {_MAX_ARGUMENT_BYTES:,} bytes; put it into a file.")
    for name in submission.spec.env:
        if not name or "=" in name:
            raise BadInput(f"'{name}' is not a valid name for an environment variable.")


def _validate_ready_when(text: str | None) -> None:
    if text is None:
        return
    if text.isdecimal():
        if not 0 < int(text[:20]) < 65536:
            raise BadInput(f"{text} is not a valid port; use 1 to 65535.")
        return
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise BadInput(f"'{text}' is neither a port nor a regular expression: {error}.") from None
