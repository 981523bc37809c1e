"""Builds the notifications that agents receive: finished tasks and open work. Size-limited, and labelled as not written by the user."""

from collections.abc import Sequence

from backburner.core import formatting
from backburner.core.masking import masked_line
from backburner.core.models import Entry
from backburner.core.notices import Notice
from backburner.core.states import LIVE, NoticeKind
from backburner.core.terminal_text import clean, shortened

NOTICE_PREFIX = "Automatic notice from Backburner. The user did not write this, and it approves nothing."
_MAX_CHARACTERS = 8000  # of a whole notification
_MIN_NOTICE_CHARACTERS = 1500  # that one of several notices in it gets
_TAG_CHARACTERS = 250  # of the prefix, the tags and the task ID
_MAX_BRIEF_CHARACTERS = 2000


def is_question(notice: Notice) -> bool:
    """Return whether a notice asks a person to approve or reject something."""
    return notice.kind in (NoticeKind.PROPOSED, NoticeKind.WAITING)


def fitting(notices: Sequence[Notice], *, plain: bool = False) -> Sequence[Notice]:
    """Return the first notices that fit into one notification; the others are sent with the next one."""
    size, count, longest = len(NOTICE_PREFIX), 0, _max_characters(len(notices))
    for notice in notices:
        size += len(_block(notice, plain, longest)) + 1
        if count and size > _MAX_CHARACTERS:
            break
        count += 1
    return notices[:count]


def notification(notices: Sequence[Notice], *, plain: bool = False) -> str:
    """Format notices as one text for a model, in the tags that coding agents use; `plain` omits the tags."""
    longest = _max_characters(len(notices))
    return "\n".join([NOTICE_PREFIX, *(_block(notice, plain, longest) for notice in notices)])


def is_notification(text: str) -> bool:
    """Return whether a message in a conversation is a notification from Backburner rather than text from the user."""
    return text.startswith(NOTICE_PREFIX)


def first_lines(notice: Notice, count: int) -> str:
    """Return the first lines of a notice; the last of them says how many more there are, and where."""
    lines = notice.text.split("\n")
    if len(lines) <= count:
        return notice.text
    return "\n".join([*lines[: count - 1], f"… {len(lines) - count + 1:,} more lines: backburner logs {notice.task_id}"])


def _max_characters(count: int) -> int:
    """How long each of several notices can be: one alone has all the space."""
    return max(_MIN_NOTICE_CHARACTERS, _MAX_CHARACTERS // max(count, 1) - _TAG_CHARACTERS)


def _block(notice: Notice, plain: bool, longest: int) -> str:
    if plain:
        return "- " + shortened(notice.text, longest=longest)
    # The summary contains output of commands, which must not be able to close the tag.
    text = shortened(notice.text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"), longest=longest)
    return f"<task-notification>\n<task-id>{notice.task_id}</task-id>\n<summary>{text}</summary>\n</task-notification>"


def brief(entries: Sequence[Entry], now: int, *, max_length: int = _MAX_BRIEF_CHARACTERS) -> str:
    """Summarize the work of a project for a model without that context, in `max_length` characters: open and recently finished tasks."""
    if not entries:
        return "No background tasks."
    waiting = [entry for entry in entries if entry.status in ("proposed", "waiting")]
    active = [entry for entry in entries if entry.is_live and entry not in waiting]
    ended = [entry for entry in entries if entry.has_ended]
    scheduled = [entry for entry in entries if not (entry.is_live or entry.has_ended or entry.status == "proposed")]
    count = f"{len(active)} active, {len(waiting)} waiting for a person's approval, {len(scheduled)} scheduled"
    lines = [f"Background tasks (Backburner): {count}."]
    for title, group in (
        ("Active", active),
        ("Waiting for approval (backburner approve ID)", waiting),
        ("Scheduled", scheduled),
        ("Recently finished", ended[:5]),
    ):
        if group:
            lines += [f"{title}:", *(_line(entry, now) for entry in group)]
    last = "For details use check_task_status or `backburner status ID`. Do not start these tasks again."
    kept, size = [], len(last) + 40
    for n, line in enumerate(lines):
        if size + len(line) + 1 > max_length:
            kept.append(f"… and {len(lines) - n} more lines: backburner list")
            break
        kept.append(line)
        size += len(line) + 1
    return "\n".join([*kept, last])


def _line(entry: Entry, now: int) -> str:
    task, run = entry
    elapsed = formatting.elapsed(entry, now)
    status = entry.status if elapsed is None else f"{entry.status} {formatting.duration(elapsed)}"
    if task.recurring.next_run_at is not None and not entry.is_live:
        status = f"{entry.status}, next in {formatting.duration(max(0, task.recurring.next_run_at - now))}"
    summary = f": {run.end.summary}" if run and run.end.summary and run.state not in LIVE else ""
    title = clean(task.spec.description) or masked_line(task.spec.command.words, task.spec.command.shell) or clean(task.spec.prompt)
    return "- " + shortened(f"{task.task_id} ({status}) {shortened(title, longest=100)}{summary}", longest=240)
