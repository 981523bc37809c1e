"""Notices: messages for a person, a session or a channel."""

from backburner.core.light_typing import NamedTuple
from backburner.core.states import NoticeKind


class Notice(NamedTuple):
    """A message for one recipient. `key` prevents duplicates. `run_id` is None for refused proposals and paused tasks."""

    notice_id: int
    key: str
    task_id: str
    run_id: str | None
    project: str
    channel: str
    text: str
    created_at: int
    acknowledged_at: int | None
    priority: int = 0
    attempts: int = 0
    next_attempt_at: int | None = None
    error: str | None = None
    failed_at: int | None = None
    external_id: str | None = None
    kind: NoticeKind = NoticeKind.ENDED
