"""The ledger and the world outside: notices on their way to channels, what sources saw, who is here, and what a person did not want."""

import json
from collections.abc import Sequence

from backburner.core import recurring as standing
from backburner.core.models import OUT, Notice, Task
from backburner.core.states import NoticeKind, RunState, TaskEvent, TaskState
from backburner.store.recurring import Standing
from backburner.store.rows import NOTICE, TASK, notice_of, task_of

OUTGOING = f"told_at IS NULL AND dead_at IS NULL AND channel >= '{OUT}' AND channel < '{OUT}~'"
# Messages that still wait for a person: the latest one of a proposal, and of a run that waits.
_PROPOSED = (
    "FROM tasks t JOIN notices n ON n.task_id = t.task_id AND n.kind = 'proposed' WHERE t.state = 'proposed' AND n.notice_id ="
    " (SELECT max(m.notice_id) FROM notices m WHERE m.task_id = n.task_id AND m.channel = n.channel AND m.kind = 'proposed')"
)
_WAITING = (
    "FROM runs r JOIN notices n ON n.task_id = r.task_id AND n.run_id = r.run_id AND n.kind = 'waiting'"
    " WHERE r.ended_at IS NULL AND r.state = 'waiting' AND n.notice_id ="
    " (SELECT max(m.notice_id) FROM notices m WHERE m.task_id = n.task_id AND m.run_id = n.run_id AND m.channel = n.channel AND m.kind = 'waiting')"
)
_RECEIVED_KEPT_MS = 7 * 86_400_000
_TOMBSTONES_KEPT_MS = 365 * 86_400_000
_MOST_OUTGOING = 200
_LONGEST_PAYLOAD = 64 << 10


class Outside(Standing):
    """Verbs for the post host."""

    # -- notices on their way out

    def outgoing(self, channel: str | None = None) -> Sequence[Notice]:
        """What is to be delivered to a channel, or to any, in order."""
        where = f"{OUTGOING} AND (? IS NULL OR channel = ?)"
        rows = self._all(f"SELECT {NOTICE} FROM notices WHERE {where} ORDER BY notice_id LIMIT ?", channel, channel, _MOST_OUTGOING)
        return [notice_of(row) for row in rows]

    def delivered(self, notice_ids: Sequence[int], external: str | None, now: int) -> None:
        """They have arrived; `external` is what the other side calls the message."""
        with self._transaction():
            for notice_id in notice_ids:
                self._db.execute(
                    "UPDATE notices SET told_at = ?, external = ?, error = NULL WHERE notice_id = ? AND told_at IS NULL",
                    (now, external, notice_id),
                )

    def undelivered(self, notice_ids: Sequence[int], error: str, again_at: int | None, now: int) -> None:
        """They have not; when to try again, or never: then they are dead letters."""
        with self._transaction():
            for notice_id in notice_ids:
                self._db.execute(
                    "UPDATE notices SET attempts = attempts + 1, error = ?, next_attempt_at = ?, dead_at = ? WHERE notice_id = ? AND told_at IS NULL",
                    (error, again_at, now if again_at is None else None, notice_id),
                )
            if again_at is None:
                self._event(now, "notice_undeliverable", None, None, notices=list(notice_ids), error=error)

    def dead_letters(self) -> Sequence[Notice]:
        """What could not be delivered."""
        rows = self._all(f"SELECT {NOTICE} FROM notices WHERE dead_at IS NOT NULL AND told_at IS NULL ORDER BY notice_id")
        return [notice_of(row) for row in rows]

    def revive(self, notice_ids: Sequence[int]) -> None:
        """Try dead letters again."""
        with self._transaction():
            for notice_id in notice_ids:
                self._db.execute(
                    "UPDATE notices SET dead_at = NULL, next_attempt_at = NULL, attempts = 0 WHERE notice_id = ?", (notice_id,)
                )

    def sent_as(self, channel: str, external: str) -> Notice | None:
        """The notice that a message of a channel was."""
        row = self._one(f"SELECT {NOTICE} FROM notices WHERE channel = ? AND external = ?", channel, external)
        return notice_of(row) if row else None

    def questions(self, channel: str | None = None) -> Sequence[str]:
        """The messages of a channel, or of any, that a person has not answered yet."""
        sent = "n.external IS NOT NULL AND (? IS NULL OR n.channel = ?)"
        return [row[0] for where in (_PROPOSED, _WAITING) for row in self._all(f"SELECT n.external {where} AND {sent}", channel, channel)]

    def ask_again(self, task_id: str, about: str, asked: str, text: str, now: int) -> None:
        """Ask anew in the channels of a task about what has changed since: `about` is what waits for the yes, the task itself or another one.

        Only the new message can be answered from then on.
        """
        with self._transaction():
            task, run = self._entry(task_id)
            waits = run if run and run.state == RunState.WAITING else None
            self._db.execute("UPDATE tasks SET fingerprint = ? WHERE task_id = ? AND state = 'proposed'", (asked, about))
            self._db.execute("UPDATE runs SET asked = ? WHERE task_id = ? AND state = 'waiting' AND waits_on IS NULL", (asked, about))
            self._notice(task, waits, text, now, NoticeKind.WAITING if waits else NoticeKind.PROPOSED, again=True)

    def post_wanted(self) -> bool:
        """Whether anything is to be delivered or watched, or an answer may come in."""
        return bool(self._one(f"SELECT 1 FROM notices WHERE {OUTGOING} LIMIT 1") or self.watched() or self.questions())

    # -- sources

    def watched(self) -> Sequence[Task]:
        """The tasks whose sources the post host watches."""
        rows = self._all(f"SELECT {TASK} FROM tasks t WHERE t.source <> '{{}}' AND t.state = 'active' AND t.kind = 'event' ORDER BY t.seq")
        return [task for task in map(task_of, rows) if task.source.get("kind") != "command"]

    def watch_state(self, task_id: str) -> dict[str, object]:
        """What a source saw last."""
        row = self._one("SELECT state FROM watches WHERE task_id = ?", task_id)
        return json.loads(row[0]) if row else {}

    def source_broken(self, task_id: str, reason: str | None, now: int) -> None:
        """Why a source cannot be watched, for who asks; None once it can."""
        with self._transaction(durable=False):
            self._db.execute("INSERT INTO watches (task_id) VALUES (?) ON CONFLICT DO NOTHING", (task_id,))
            self._db.execute("UPDATE watches SET broken = ? WHERE task_id = ?", (reason, task_id))
            if reason:
                self._event(now, "source_broken", task_id, None, reason=reason)

    def broken_sources(self) -> dict[str, str]:
        return dict(self._all("SELECT task_id, broken FROM watches WHERE broken IS NOT NULL"))

    def happened(
        self,
        task_id: str,
        state: dict[str, object] | None,
        payload: dict[str, object] | None,
        now: int,
        folder: str,
        delivery: str = "",
        *,
        hold: bool = False,
    ) -> bool:
        """What a source remembers from now on, and the run that follows from what it saw, in one transaction.

        While a run is at work, or with `hold`, it waits, together with whatever else happens. False for a delivery that was received before.
        """
        with self._transaction():
            entry = self._entry(task_id)
            if delivery:
                hook = str(entry.task.source.get("name", task_id))
                ids = set(delivery.split("\n"))
                if any(self._one("SELECT 1 FROM received WHERE hook = ? AND delivery = ?", hook, one) for one in ids):
                    return False
                for one in ids:
                    self._db.execute("INSERT INTO received (hook, delivery, at) VALUES (?, ?, ?)", (hook, one, now))
                self._db.execute("DELETE FROM received WHERE at < ?", (now - _RECEIVED_KEPT_MS,))
            self._db.execute("INSERT INTO watches (task_id) VALUES (?) ON CONFLICT DO NOTHING", (task_id,))
            if state is not None:
                self._db.execute("UPDATE watches SET state = ?, broken = NULL WHERE task_id = ?", (json.dumps(state), task_id))
            if payload is None or entry.task.state not in (TaskState.ACTIVE, TaskState.PAUSED):
                return True
            if standing.is_over(entry.task, now) and not entry.live:
                self._finish(entry.task, TaskEvent.DONE, now)
                return True
            if len(text := json.dumps(payload)) > _LONGEST_PAYLOAD:
                payload = {"summary": payload.get("summary"), "text": text[:_LONGEST_PAYLOAD], "cut": True}
            self._event(now, "source_event", task_id, None, summary=payload.get("summary"))
            self._wait_with(task_id, payload)
            if not entry.live and not hold:
                self._run_waiting(entry.task, folder, now)
            return True

    def hook(self, name: str) -> Task | None:
        """The active task that a webhook of this name is for."""
        return next((task for task in self.watched() if task.source.get("kind") == "webhook" and task.source.get("name") == name), None)

    # -- who is here, and what was refused

    def present(self, door: str, now: int) -> None:
        """A person did something at a door. Not waited for."""
        with self._transaction(durable=False):
            self._db.execute("INSERT INTO presence (door, at) VALUES (?, ?) ON CONFLICT (door) DO UPDATE SET at = excluded.at", (door, now))

    def last_present(self) -> int | None:
        """When a person last did something, at any door."""
        return self._one("SELECT max(at) FROM presence")[0]

    def bury(self, task: Task, digest: str, why: str, now: int) -> None:
        """A person did not want this: it is not asked for again by itself."""
        with self._transaction():
            self._insert("tombstones", {"project": task.project, "name": normal(task.name or ""), "digest": digest, "why": why, "at": now})
            self._db.execute("DELETE FROM tombstones WHERE at < ?", (now - _TOMBSTONES_KEPT_MS,))

    def buried(self, project: str, name: str, digest: str, since: int, why: str) -> int | None:
        """When something of this name, or the same in other words, was not wanted, since a moment."""
        same = "(name = ? AND name <> '' OR digest = ?)"
        row = self._one(
            f"SELECT max(at) FROM tombstones WHERE project = ? AND why = ? AND at >= ? AND {same}",
            project,
            why,
            since,
            normal(name),
            digest,
        )
        return row[0]


def normal(name: str) -> str:
    """A name as one would compare it."""
    return " ".join(name.replace("-", " ").replace("_", " ").casefold().split())
