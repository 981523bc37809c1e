"""Approves and rejects what waits for a person, and keeps what they allowed permanently.

An approval is bound to a fingerprint of what would run.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from backburner.coordination.config_file import ConfigFile
from backburner.coordination.publisher import Publisher
from backburner.core.errors import BadInput, IllegalTransition, QuestionChanged
from backburner.core.formatting import short_fingerprint
from backburner.core.grants import Grant
from backburner.core.masking import masked_line
from backburner.core.models import Approval, Caller, Clock, Entry, Submission
from backburner.core.recipients import to_channel
from backburner.core.recurring import title
from backburner.core.states import RunState, TaskState, WaitKind
from backburner.core.terminal_text import shortened, visible
from backburner.services.identity import Identity
from backburner.services.proposals import Proposals
from backburner.services.queries import Queries
from backburner.services.recurring import RecurringTasks
from backburner.services.refusals import REJECTED, Refusals
from backburner.services.sessions import Sessions
from backburner.system.home import Home, project_of

if TYPE_CHECKING:
    from backburner.core.ports import ChannelReply
    from backburner.core.store_ports import DeliveryStore, GrantStore, TaskStore
    from backburner.services.gate import Gate


class Approvals:
    """What people answer."""

    def __init__(
        self,
        home: Home,
        task_store: "TaskStore",
        delivery_store: "DeliveryStore",
        grant_store: "GrantStore",
        config: ConfigFile,
        queries: Queries,
        gate: "Gate",
        identity: Identity,
        proposals: Proposals,
        recurring: RecurringTasks,
        refusals: Refusals,
        sessions: Sessions,
        publisher: Publisher,
        clock: Clock,
        runner: str,
    ) -> None:
        self._home, self._task_store, self._delivery_store, self._gate = home, task_store, delivery_store, gate
        self._grant_store, self._config, self._clock, self._runner = grant_store, config, clock, runner
        self._queries, self._identity, self._recurring = queries, identity, recurring
        self._proposals, self._refusals, self._sessions, self._publisher = proposals, refusals, sessions, publisher

    def approve(self, reference: str, caller: Caller, *, seen: str | None = None) -> Entry:
        """Approve a proposal. `seen` is the fingerprint that the person was shown; without it, the one that was asked about counts.

        QuestionChanged if something else would run now: nothing is approved then.
        """
        self._identity.require_person(caller)
        return self._approve(self._queries.find(reference, caller), caller.via, seen)

    def _approve(self, entry: Entry, via: str, seen: str | None = None) -> Entry:
        task, run = entry
        if task.state == TaskState.EXPIRED:
            self._proposals.expire_overdue()
            raise IllegalTransition(noun="proposal", state="expired", event="approved")
        if seen is not None and not re.fullmatch("[0-9a-f]{12,64}", seen):
            raise BadInput(f"'{seen}' is not a fingerprint: give what the question shows after `Fingerprint:` (with --seen, or as `seen`).")
        fingerprint = self._gate.fingerprint_of(entry)
        asked = seen or entry.question_fingerprint
        if asked is not None and not fingerprint.startswith(asked):
            raise QuestionChanged(task_id=task.task_id, seen=short_fingerprint(fingerprint))
        waits = run is not None and run.state == RunState.WAITING
        if task.state == TaskState.PAUSED and not waits:
            return self._recurring.unpause_approved(task)
        approval = Approval("user", via, self._clock(), fingerprint if task.spec.command.words else None)
        most = self._config.current.whole("tasks.max_active")
        entry = self._task_store.approve(task.task_id, approval, runner=task.lane or self._runner, folder=self._home.tasks, max_active=most)
        self._publisher.publish(entry)
        return entry

    def reject(self, reference: str, caller: Caller) -> Entry:
        """Reject a proposal; an agent may not propose a recurring one again for a day."""
        return self._reject(self._queries.find(reference, caller))

    def _reject(self, entry: Entry) -> Entry:
        if entry.task.state == TaskState.EXPIRED:
            self._proposals.expire_overdue()  # the ledger then refuses to reject it
        entry = self._task_store.refuse(entry.task.task_id, expired=False, now=self._clock())
        self._publisher.publish(entry)
        if entry.task.state == TaskState.REJECTED:
            self._refusals.record(entry.task, REJECTED)
        return entry

    def answer(self, channel: str, given: "ChannelReply") -> None:
        """Carry out what somebody answered on a channel, which has checked that they may.

        For the integrations process alone: nothing else makes an Answer.
        """
        recipient = to_channel(channel)
        notice = self._delivery_store.find_sent(recipient, given.message)
        if notice is None or given.message not in self._delivery_store.open_questions(recipient):
            return  # it asks nothing, was answered, or what it asked about is over
        run, task_id = self._queries.get(notice.task_id).run, notice.task_id
        if run and run.state == RunState.WAITING and run.wait_kind is WaitKind.TASK and run.wait:
            task_id = str(run.wait.target)
        self._sessions.record_activity(recipient)
        if not given.approved:
            self._reject(self._queries.get(task_id))
            return
        try:
            self._approve(self._queries.get(task_id), f"channel:{channel}:{given.person}")
        except QuestionChanged:
            self._ask_again(notice.task_id, self._queries.get(task_id))

    def _ask_again(self, task_id: str, entry: Entry) -> None:
        """Tell the channels of a task that what they approved has changed, and ask about what it is now."""
        task, asked = entry.task, self._gate.fingerprint_of(entry)
        what = (
            masked_line(task.spec.command.words, task.spec.command.shell)
            if task.spec.command.words
            else f"ask {task.spec.agent_name}: {visible(task.spec.prompt)}"
        )
        text = (
            f"{title(task)}: what it would run has changed since you were asked, so your yes was not taken.\n"
            f"It would run now: {shortened(what, longest=4000)}\nDirectory: {visible(task.spec.cwd)}\nFingerprint: {short_fingerprint(asked)}\n"
            f"Yes: backburner approve {task.task_id}; no: backburner reject {task.task_id}"
        )
        self._task_store.ask_again(task_id, task.task_id, asked, text, self._clock())
        self._publisher.publish(self._queries.get(task_id))

    # -- permanent permissions

    def trust_project(self, folder: str, caller: Caller) -> str:
        """Allow the code of a project to run from now on; returns the project."""
        self._identity.require_person(caller)
        from backburner.system.command_context import may_be_project

        project = project_of(folder)
        if not may_be_project(project, caller.environ):
            raise BadInput(
                f"{project} cannot be trusted: a project is not your home, what is above it, one of its hidden folders, or a shared folder."
            )
        self._grant_store.grant("trust", project, (), caller.via, self._clock())
        return project

    def allow_always(self, submission: Submission, caller: Caller) -> None:
        """Allow exactly this command in this project from now on."""
        self._identity.require_person(caller)
        if not self._gate.check(submission).always:
            raise BadInput("That is not narrow enough to be allowed for good.")
        self._grant_store.grant("always", project_of(submission.spec.cwd), submission.spec.command.words, caller.via, self._clock())

    def grants(self) -> Sequence[Grant]:
        """The permanent permissions of all projects."""
        return self._grant_store.grants()

    def revoke(self, grant_id: int) -> None:
        """Take a permanent permission back."""
        if not self._grant_store.revoke(grant_id, self._clock()):
            raise BadInput(f"There is no grant {grant_id}. See: backburner trust --list")
