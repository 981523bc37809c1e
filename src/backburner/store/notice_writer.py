"""Writes notices, inside the transaction that they report."""

import os
from collections.abc import Mapping

from backburner.core.light_typing import TYPE_CHECKING
from backburner.core.models import Run, Task
from backburner.core.recipients import PERSON, Recipient, RecipientKind, recipient_of
from backburner.core.sessions import is_chat
from backburner.core.states import NoticeKind

if TYPE_CHECKING:
    from backburner.store.database import Database


class NoticeWriter:
    """Adds notices for the session or user that requested a task, and for its channels."""

    def __init__(self, db: "Database") -> None:
        self._db = db

    def write(self, task: Task, run: Run | None, text: str, now: int, kind: NoticeKind = NoticeKind.ENDED, *, again: bool = False) -> None:
        """Add notices for the requester and the channels of a task: one per kind, unless `again` allows another one."""
        run_id = run.run_id if run else None
        suffix = "" if kind == NoticeKind.ENDED else f":{kind}"
        if again:
            suffix += f":{now}.{os.urandom(3).hex()}"
        for_user = kind in (
            NoticeKind.PROPOSED,
            NoticeKind.DELAYED,
            NoticeKind.REMOVED,
            NoticeKind.UNREACHABLE,
        )  # only the user can act on it
        row = {"task_id": task.task_id, "run_id": run_id, "project": task.project, "text": text, "created_at": now, "kind": kind}
        row["priority"] = 0 if kind in (NoticeKind.ENDED, NoticeKind.REFUSED) else 1
        recipients = [PERSON if for_user or task.in_chat else recipient_of(task.session)]
        if run and recipients[0] != PERSON and is_chat(task.session):
            recipients.append(PERSON)  # the user is in the same chat; a rejection was their own
        if kind != NoticeKind.REFUSED:  # that one is for the agent
            recipients += [Recipient(RecipientKind.CHANNEL, name) for name in task.spec.channels]
        for recipient in recipients:
            self._insert(row, f"{run_id or task.task_id}{suffix}", recipient)

    def confirm_answer(self, task: Task, channel: str, text: str, now: int) -> None:
        """Add a notice for the channel in which a person has answered a question."""
        row = {"task_id": task.task_id, "run_id": None, "project": task.project, "text": text, "created_at": now}
        row |= {"kind": NoticeKind.ANSWERED, "priority": 1}
        self._insert(row, f"{task.task_id}:{NoticeKind.ANSWERED}:{now}.{os.urandom(3).hex()}", Recipient(RecipientKind.CHANNEL, channel))

    def _insert(self, row: Mapping[str, object], key: str, recipient: Recipient) -> None:
        address = {"key": f"{key}:{recipient}", "channel": str(recipient), "recipient": recipient.kind}
        self._db.insert("notices", {**row, **address})

    def proposal_answered(self, task_id: str, now: int) -> None:
        """Acknowledge the notices about a proposal, because it has been answered."""
        self._db.write(
            "UPDATE notices SET acknowledged_at = ? WHERE task_id = ? AND acknowledged_at IS NULL AND kind = 'proposed'", (now, task_id)
        )
