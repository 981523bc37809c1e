"""Writes notices, inside the transaction of what they tell."""

import os
from typing import TYPE_CHECKING

from backburner.core.models import Run, Task
from backburner.core.recipients import PERSON, Recipient, RecipientKind, recipient_of
from backburner.core.sessions import is_chat
from backburner.core.states import NoticeKind

if TYPE_CHECKING:
    from backburner.store.database import Database


class NoticeWriter:
    """Adds notices for whoever asked for a task, and for its channels."""

    def __init__(self, db: "Database") -> None:
        self._db = db

    def write(self, task: Task, run: Run | None, text: str, now: int, kind: NoticeKind = NoticeKind.ENDED, *, again: bool = False) -> None:
        """Add what is owed to whoever asked. Once per kind, unless it may come `again` some other time."""
        run_id = run.run_id if run else None
        what = "" if kind == NoticeKind.ENDED else f":{kind}"
        if again:
            what += f":{now}.{os.urandom(3).hex()}"
        person = kind in (NoticeKind.PROPOSED, NoticeKind.DELAYED)  # it is for the person to do something about it
        row = {"task_id": task.task_id, "run_id": run_id, "project": task.project, "text": text, "created_at": now, "kind": kind}
        row["priority"] = 0 if kind in (NoticeKind.ENDED, NoticeKind.REFUSED) else 1
        recipients = [PERSON if person or task.in_chat else recipient_of(task.session)]
        if run and recipients[0] != PERSON and is_chat(task.session):
            recipients.append(PERSON)  # the person sits beside the agent that asked; their own no they know
        recipients += [Recipient(RecipientKind.CHANNEL, name) for name in task.spec.channels]
        for one in recipients:
            about = {"key": f"{run_id or task.task_id}{what}:{one}", "channel": str(one), "recipient": one.kind}
            self._db.insert("notices", {**row, **about})

    def proposal_answered(self, task_id: str, now: int) -> None:
        """Nobody needs to be asked about a proposal any more."""
        self._db.write(
            "UPDATE notices SET acknowledged_at = ? WHERE task_id = ? AND acknowledged_at IS NULL AND kind = 'proposed'", (now, task_id)
        )
