"""The tools `inbox` and `brief`: notices that were sent before, and a summary of open work, for a model that has lost its context."""

from typing import TypedDict

from backburner.agent_tools.context import Context
from backburner.core import formatting, notice_text
from backburner.core.notices import Notice
from backburner.core.terminal_text import readable, shortened
from backburner.services.app import App, now_ms
from backburner.system.paths import project_of

_MAX_NOTICES = 20
_MAX_NOTICE_CHARACTERS = 400
_MAX_BRIEF_TASKS = 100


class InboxNotice(TypedDict):
    task_id: str
    text: str
    at: str


class InboxNotices(TypedDict):
    inbox: list[InboxNotice]
    display: str


class Brief(TypedDict):
    display: str


async def inbox(ctx: Context) -> InboxNotices:
    """Notices this session has received, and the user's unread ones."""
    context = ctx.deps

    def read(app: App) -> list[Notice]:
        received = app.inbox.notices(session=context.session, unread=False) if context.session else ()
        of_user = app.inbox.notices(project=None if context.cwd is None else project_of(context.caller.cwd))
        # Unread notices of the session are added to every answer.
        found = {notice.notice_id: notice for notice in (*received, *of_user) if notice in of_user or notice.acknowledged_at is not None}
        return [found[notice_id] for notice_id in sorted(found)][-_MAX_NOTICES:]

    notices = [
        InboxNotice(
            task_id=notice.task_id,
            text=shortened(readable(notice.text), longest=_MAX_NOTICE_CHARACTERS),
            at=formatting.iso(notice.created_at) or "",
        )
        for notice in await context.call(read)
    ]
    context.brief = f"{len(notices)} notices." if notices else None
    display = "\n".join(f"{notice['at']}  {notice['text']}" for notice in notices)
    return InboxNotices(inbox=notices, display=display or "No notices.")


async def brief(ctx: Context) -> Brief:
    """Summary of open and recent tasks, for a lost context."""
    context = ctx.deps
    entries = await context.call(
        lambda app: app.queries.open_and_recent(context.caller, everywhere=context.cwd is None, limit=_MAX_BRIEF_TASKS)
    )
    return Brief(display=notice_text.brief(entries, now_ms()))


INBOX = (inbox, brief)
