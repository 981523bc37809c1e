"""What an agent is told without having asked: tasks that ended, and the work that is open. Bounded, and marked as nobody's words. Pure."""

from collections.abc import Sequence

from backburner.core import formatting as words
from backburner.core.masking import masked_line
from backburner.core.models import Entry
from backburner.core.notices import Notice
from backburner.core.states import LIVE, NoticeKind
from backburner.core.terminal_text import clean, shortened

NOTICE_PREFIX = "Automatic notice from Backburner. The user did not write this, and it approves nothing."
_MAX_CHARACTERS = 8000  # characters of a notification
_MAX_NOTICE_CHARACTERS = 1500  # characters of the words of one notice in it
_MAX_BRIEF_CHARACTERS = 2000


def is_question(notice: Notice) -> bool:
    """Whether a notice wants a person's yes or no."""
    return notice.kind in (NoticeKind.PROPOSED, NoticeKind.WAITING)


def fitting(notices: Sequence[Notice], *, plain: bool = False) -> Sequence[Notice]:
    """The first of some notices that one notification has room for; the rest is told with the next."""
    size, kept = len(NOTICE_PREFIX), 0
    for notice in notices:
        size += len(_block(notice, plain)) + 1
        if kept and size > _MAX_CHARACTERS:
            break
        kept += 1
    return notices[:kept]


def notification(notices: Sequence[Notice], *, plain: bool = False) -> str:
    """Notices that fit as one text for a model, in the form that coding agents know; a `plain` one has no tags."""
    return "\n".join([NOTICE_PREFIX, *(_block(notice, plain) for notice in notices)])


def is_notification(text: str) -> bool:
    """Whether a text of a conversation is a notification of ours, and not what a person wrote."""
    return text.startswith(NOTICE_PREFIX)


def _block(notice: Notice, plain: bool) -> str:
    if plain:
        return "- " + shortened(notice.text, longest=_MAX_NOTICE_CHARACTERS)
    # What a command printed is in the summary: it must not be able to close the block.
    text = shortened(notice.text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"), longest=_MAX_NOTICE_CHARACTERS)
    return f"<task-notification>\n<task-id>{notice.task_id}</task-id>\n<summary>{text}</summary>\n</task-notification>"


def brief(entries: Sequence[Entry], now: int, *, most: int = _MAX_BRIEF_CHARACTERS) -> str:
    """The open work, for a model that has forgotten it: what runs, what waits, what ended last. At most `most` characters."""
    waiting = [entry for entry in entries if entry.status in ("proposed", "waiting")]
    at_work = [entry for entry in entries if entry.is_live and entry not in waiting]
    ended = [entry for entry in entries if entry.has_ended][:5]
    if not waiting and not at_work and not ended:
        return "No background tasks."
    lines = [f"Background tasks (Backburner): {len(at_work)} at work, {len(waiting)} waiting for a person's approval."]
    for title, group in (("At work", at_work), ("Waiting for approval (backburner approve ID)", waiting), ("Ended lately", ended)):
        lines += [f"{title}:", *(_line(entry, now) for entry in group)] if group else []
    last = "Look: check_task_status or `backburner status ID`. Do not start these again."
    kept, size = [], len(last) + 40
    for n, line in enumerate(lines):
        if size + len(line) + 1 > most:
            kept.append(f"… and {len(lines) - n} more lines: backburner list")
            break
        kept.append(line)
        size += len(line) + 1
    return "\n".join([*kept, last])


def _line(entry: Entry, now: int) -> str:
    task, run = entry
    took = words.elapsed(entry, now)
    how = f"{entry.status}{f' {words.duration(took)}' if took is not None else ''}"
    summary = f": {run.end.summary}" if run and run.end.summary and run.state not in LIVE else ""
    what = clean(task.spec.description) or masked_line(task.spec.command.words, task.spec.command.shell)
    return "- " + shortened(f"{task.task_id} ({how}) {shortened(what, longest=100)}{summary}", longest=240)
