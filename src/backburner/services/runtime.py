"""The verbs: everything enters here, whatever the door. Validate, ask the gate, write the ledger, ring.

A Runtime belongs to one thread. `open_runtime` is the only place that builds adapters.
"""

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from backburner.coordination.config_file import load_config
from backburner.core import ids
from backburner.core import trace_context as trace
from backburner.core.errors import (
    ApprovalDenied,
    BadInput,
    NotRunning,
    TaskNotFound,
    WaitTimedOut,
)
from backburner.core.models import (
    ENGINE,
    HOSTED,
    RECORD,
    Approval,
    Clock,
    Entry,
    Notice,
    ProcessId,
    Run,
    Session,
    Submission,
    channel_of,
    session_of,
)
from backburner.core.settings import Config
from backburner.core.states import RunState, TaskState
from backburner.services.approvals import Consent
from backburner.system import run_files as folders
from backburner.system import wakeups as wake
from backburner.system.home import Home, locate, project_of
from backburner.system.processes import end_all, is_alive, members

if TYPE_CHECKING:
    from backburner.core.ports import Store  # protocols are slow to build, and no door needs them at run time

_UNASKED = "its agent does not ask before it acts"
_LET_GO_SECONDS = 10.0
_LOOK_SECONDS = 5.0  # how long a waiting door trusts in being rung


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Runtime(Consent):
    """One home, seen through one door. `environ` is the environment of whoever asks."""

    def __init__(
        self,
        home: Home,
        store: "Store",
        config: Config,
        environ: dict[str, str],
        *,
        flags: dict[str, str] | None = None,
        clock: Clock = now_ms,
        runner: str = ENGINE,
    ) -> None:
        super().__init__(home, store, config, environ, clock)
        self.flags = flags
        self._runner = runner

    def close(self) -> None:
        self.store.close()

    def __enter__(self) -> "Runtime":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- asking for work

    def submit(
        self, submission: Submission, *, yes_via: str | None = None, seen: str | None = None, owner: ProcessId | None = None
    ) -> Entry:
        """Store the task: ready to run if the gate allows it or a person said yes through `yes_via` to what they had `seen`, else as a proposal.

        One whose key was used before is not stored again: the task of then is what was asked for. An `owner` that runs
        tasks itself and has room finds it claimed already where nothing else comes first.
        """
        from backburner.services.validation import validate

        if known := self.known(submission):
            return known
        if submission.standing:
            submission = self._usual(submission)
        self._not_refused(submission)
        submission = self._within_makers(submission._replace(channels=self._channels(submission)))
        validate(submission)
        if watcher := self._watcher(submission):
            self.store.room(submission.name, project_of(submission.cwd))
            submission = submission._replace(after=(self.submit(watcher, yes_via=yes_via).task.task_id,))
        submission, parent = self._placed(submission)
        self.home.make_bells()
        now = self.clock()
        if submission.agent is not None:
            from backburner.core.optional_dependencies import need

            need("agent", "Agents need")
            self._can_be_asked(submission)
            self._not_too_deep(submission)
        if submission.proposed:
            approval, reasons, rule = None, ("an agent proposes it",), "proposal"
            if submission.command:
                self._approval(submission, None, now)  # what is denied is not proposed
        elif submission.agent is not None and not submission.command and not self._asks_first(submission):
            approval, reasons, rule = (Approval("user", yes_via, now) if yes_via else None), (_UNASKED,), "agent"
        elif submission.agent is not None and not submission.command:
            approval, reasons, rule = Approval("auto", "prompt", now), ("a prompt; what its agent does is asked for",), "prompt"
        else:
            approval, reasons, rule = self._approval(submission, yes_via, now)
            if seen is not None and approval and approval.fingerprint not in (None, seen):
                raise ApprovalDenied(reason="what would run has changed while it was asked about; ask for it again to see it as it is now")
            if submission.agent is not None and approval and not yes_via and not self._asks_first(submission):
                approval, reasons, rule = None, (_UNASKED,), "agent"
        asked = self.fingerprint_of(submission) if approval is None else None
        word = ids.slug(submission.name or submission.agent or "") if submission.name or submission.agent else ""
        word = word or ids.stem(submission.command, submission.shell)
        entry = self.store.submit(
            submission,
            project=project_of(submission.cwd),
            wanted_id=ids.base_id(word),
            approval=approval,
            reasons=reasons,
            rule=rule,
            runner=(lane := self._lane(submission)) or self._runner,
            folder=self.home.tasks,
            now=now,
            expires_at=now + int(self.config.number("approval.proposal_expiry_hours") * 3_600_000),
            parent=parent,
            owner=owner,
            kind=self._kind(submission),
            lane=lane,
            most_active=self.config.whole("tasks.max_active"),
            question=self._question(submission, reasons, asked) if asked else None,
            asked=asked,
        )
        self._publish(entry)
        return entry

    def _approval(self, submission: Submission, yes_via: str | None, now: int) -> tuple[Approval | None, tuple[str, ...], str]:
        """What the gate says to a command: approved by itself or by a person's yes, or None where it asks."""
        from backburner.approval.policy import Decision

        gate = self.gate
        world = gate.world(submission)
        verdict = gate.judge(submission, world)
        match verdict.decision:
            case Decision.DENY:
                raise ApprovalDenied(reason="; ".join(verdict.reasons))
            case Decision.ALLOW if yes_via is None:
                approval = Approval("auto", "gate", now)
            case Decision.ALLOW | Decision.ASK:
                approval = Approval("user", yes_via, now, gate.fingerprint(submission, world)) if yes_via else None
        return approval, verdict.reasons, verdict.rule

    def end_session(self, session: str) -> Sequence[str]:
        """A conversation is over: what it asked for is stopped, then forgotten. The ids that went."""
        entries = [entry for entry in self._asked_by(session) if not entry.task.standing]  # those were made to outlive it
        for entry in entries:
            if not entry.ended:
                self._publish(self.store.request_cancel(entry.task.task_id, self.clock()))
        ids = [entry.task.task_id for entry in entries]
        with contextlib.suppress(WaitTimedOut):
            self.wait([task_id for task_id in ids if (entry := self.store.show(task_id)) and entry.live], 30.0)
        return self._forget([task_id for task_id in ids if (entry := self.store.show(task_id)) and entry.ended])

    def known(self, submission: Submission) -> Entry | None:
        """The task that was submitted under the same key before."""
        if submission.key is None:
            return None
        entry = self.store.by_key(project_of(submission.cwd), submission.key)
        asked = submission.command, submission.shell, submission.agent, submission.prompt
        if entry and (entry.task.command, entry.task.shell, entry.task.agent, entry.task.prompt) != asked:
            what = "command" if submission.agent is None else "prompt"
            raise BadInput(f"The key '{submission.key}' belongs to {entry.task.task_id}, which is another {what}.")
        return entry

    def _placed(self, submission: Submission) -> tuple[Submission, trace.Parent | None]:
        """What it comes after as ids, and where in a trace it stands; a traceparent is handed on, not kept with the environment."""
        env = {**submission.environment, **submission.env}
        kept = {name: value for name, value in submission.environment.items() if name != trace.VARIABLE}
        after = tuple(dict.fromkeys(self._before(reference, submission.name) for reference in submission.after))
        return submission._replace(environment=kept, after=after), trace.parse(env.get(trace.VARIABLE))

    def _before(self, reference: str, name: str | None) -> str:
        try:
            entry = self.show(reference)
        except TaskNotFound:
            if reference == name:
                raise BadInput(f"'{reference}' cannot come after itself, and there is no other task of that name.") from None
            raise
        if entry.run and entry.run.runner == RECORD:
            raise BadInput(f"Task {entry.task.task_id} is not run by Backburner; nothing can wait for it.")
        return entry.task.task_id

    def cancel(self, reference: str, *, for_good: bool = False) -> Entry:
        """End a pending task, or have one at work stopped; `wait` says when it is proven dead. What a person ends `for_good` no agent adds again."""
        entry = self.show(reference)
        only_run = entry.task.standing and reference.startswith(f"{entry.task.task_id}.")
        if only_run and not (entry.live and entry.run and entry.run.run_id == reference):
            raise NotRunning(task_id=reference, status="over")
        if entry.ended or (entry.run and entry.run.runner == RECORD):
            raise NotRunning(task_id=entry.task.task_id, status=entry.status)
        waiting = entry.run if entry.run and entry.run.state == RunState.WAITING and entry.run.runner in HOSTED else None
        entry = self.store.request_cancel(entry.task.task_id, self.clock(), only_run=only_run)
        self._publish(entry)
        if waiting:
            self._let_go(waiting)
        if for_good and not only_run:
            self._bury(entry.task, "deleted")
        if entry.task.source.get("kind") == "command" and not only_run:  # its watcher was made for it
            self.store.request_cancel(entry.task.after[0], self.clock())
        if entry.task.agent is not None:  # nobody waits for these answers any more
            of_turn = f"{entry.run.run_id}:" if entry.task.in_chat and entry.run else ""  # what a chat started besides goes on
            for asked in self._asked_by(session_of(entry.task)):
                if asked.status == TaskState.PROPOSED and str(asked.task.key).startswith(of_turn):
                    self._publish(self.store.refuse(asked.task.task_id, expired=False, now=self.clock()))
        return entry

    def _let_go(self, run: Run) -> None:
        """An agent from outside that was held for a run goes with it: politely where its host is there, and surely."""
        deadline = time.monotonic() + _LET_GO_SECONDS
        while members(run.process, run.mark) and is_alive(run.owner) and time.monotonic() < deadline:
            time.sleep(0.05)
        end_all(run.process, run.mark)

    def clear(
        self, references: Iterable[str] = (), *, ended: bool = False, batch: str | None = None, everywhere: bool = False
    ) -> Sequence[str]:
        """Forget ended tasks and their folders: those named, those of a batch, all. What is live is never touched. The ids that went."""
        entries = list({entry.task.task_id: entry for entry in map(self.show, references)}.values())
        for entry in entries:
            if not entry.ended:
                raise BadInput(f"Task {entry.task.task_id} is {entry.status}; only what has ended can be cleared.")
        if ended or batch is not None:
            entries += self.list(everywhere=everywhere, batch=batch)
        return self._forget([entry.task.task_id for entry in entries if entry.ended])

    def clean_up(self, retention_days: float | None = None, *, as_of: int | None = None) -> Sequence[str]:
        """Forget what ended longer ago than the retention, seen from now or from another moment."""
        days = self.config.number("commands.retention_days") if retention_days is None else retention_days
        now = self.clock() if as_of is None else as_of
        self.compact(days=days, as_of=now)
        return self._forget(self.store.outdated(now - int(days * 86_400_000)))

    def _forget(self, task_ids: Sequence[str]) -> Sequence[str]:
        if task_ids:
            if os.path.isdir(os.path.join(self.home.root, "worktrees")):
                for entry in filter(None, map(self.store.show, task_ids)):
                    if place := self.worktree(entry.task):
                        place.forget()
            for folder in self.store.clear(task_ids, self.clock()):
                folders.remove(self.home.folder(folder))
            wake.ring_all(self.home.bells)
        return task_ids

    def send(self, reference: str, data: bytes, *, session: str | None, via: str) -> Entry:
        """Write to the input of a command that was started with one. `session` and `via` say who does."""
        from backburner.system.stdin_pipe import feed

        entry = self.show(reference)
        if not entry.live or entry.run is None:
            raise NotRunning(task_id=entry.task.task_id, status=entry.status)
        if not entry.task.stdin:
            raise BadInput(f"Task {entry.task.task_id} has no input: it was not started with `run --stdin`.")
        self.require_own(entry.task, "send to", session, via)
        feed(self.folder(entry), data, entry.task.task_id)
        self.store.note("input_sent", entry.task.task_id, entry.run.run_id, self.clock(), bytes=len(data))
        return entry

    def tell(self, *, notice_ids: Iterable[int] = (), task_ids: Iterable[str] = (), session: str | None = None) -> None:
        """The person, or a session, has been told: these need not be told again."""
        self.store.tell(notice_ids=notice_ids, task_ids=task_ids, channel=channel_of(session), now=self.clock())

    def lease(self, notices: Sequence[Notice], seconds: float = 30.0) -> Sequence[Notice]:
        """Those of some notices that are ours to tell now; who does not say `tell` in time gives them back."""
        now = self.clock()
        taken = set(self.store.lease([notice.notice_id for notice in notices], now, now + int(seconds * 1000)))
        return [notice for notice in notices if notice.notice_id in taken]

    def register(self, session: str, client: str, process: ProcessId | None) -> None:
        """Somebody who asks is here: what is owed to them waits for them, and not for the person, as long as that process lives."""
        now = self.clock()
        self.store.register(Session(session, client, project_of(self._cwd()), process, now, now))

    # -- waiting

    def wait(self, task_ids: Sequence[str], timeout: float | None = None) -> Sequence[Entry]:
        """Block until every task has ended; WaitTimedOut where that takes longer than `timeout` seconds."""
        for entries in self.watch(task_ids, timeout):
            if not any(entry.live for entry in entries):
                return entries
        raise WaitTimedOut(seconds=timeout, task_ids=", ".join(task_ids))

    def watch(self, task_ids: Sequence[str], timeout: float | None, look: float = _LOOK_SECONDS) -> Iterator[Sequence[Entry]]:
        """The tasks as they are now, and again after every change; ends when the time is up."""
        deadline = None if timeout is None else time.monotonic() + timeout
        ear = self.listen()
        try:
            while True:
                self.refresh()
                yield [self.known_as(task_id) for task_id in task_ids]
                remaining = look if deadline is None else min(look, deadline - time.monotonic())
                if remaining <= 0:
                    return
                ear.wait(remaining)
        finally:
            ear.close()


def open_runtime(
    home: str | Home | None = None, environ: dict[str, str] | None = None, flags: dict[str, str] | None = None, *, runner: str = ENGINE
) -> Runtime:
    """Open a home, made if it is missing, and everything that this door needs of it."""
    from backburner.store.sqlite import SQLiteStore

    environ = dict(os.environ) if environ is None else environ
    place = home if isinstance(home, Home) else Home(locate(home, environ))
    place.make()
    config = load_config(place, environ, flags)
    return Runtime(place, SQLiteStore(place.ledger, setup_lock=place.setup_lock), config, environ, flags=flags, runner=runner)
