"""Approves and rejects tasks and steps that wait for a person, and stores permanent permissions.

An approval is bound to a fingerprint of what would run.
"""

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from backburner.coordination.config_file import ConfigFile
from backburner.coordination.publisher import Publisher
from backburner.core.devices import Proof
from backburner.core.errors import BackburnerError, BadInput, IllegalTransition, NotAPerson, QuestionChanged
from backburner.core.formatting import short_fingerprint
from backburner.core.grants import Grant
from backburner.core.masking import masked_line
from backburner.core.models import Approval, Caller, Clock, Entry, Submission
from backburner.core.recipients import to_channel
from backburner.core.recurring import how_to_answer, title
from backburner.core.states import RunState, TaskState, WaitKind
from backburner.core.terminal_text import clean, shortened, visible
from backburner.services.identity import Identity
from backburner.services.proposals import Proposals
from backburner.services.queries import Queries
from backburner.services.recurring import RecurringTasks
from backburner.services.refusals import REJECTED, Refusals
from backburner.services.sessions import Sessions
from backburner.system.home import Home
from backburner.system.paths import project_of

if TYPE_CHECKING:
    from backburner.core.ports import ChannelReply
    from backburner.core.store_ports import DeliveryStore, GrantStore, TaskStore
    from backburner.services.gate import Gate
    from backburner.services.passkeys import Asked, Passkeys

_MAX_REASON_CHARACTERS = 500


class Approvals:
    """Approvals, rejections and permanent permissions."""

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
        passkeys: "Callable[[], Passkeys]",
        clock: Clock,
        runner: str,
    ) -> None:
        self._home, self._task_store, self._delivery_store, self._gate = home, task_store, delivery_store, gate
        self._grant_store, self._config, self._clock, self._runner = grant_store, config, clock, runner
        self._queries, self._identity, self._recurring = queries, identity, recurring
        self._proposals, self._refusals, self._sessions, self._publisher = proposals, refusals, sessions, publisher
        self._passkeys = passkeys

    def approve(self, reference: str, caller: Caller, *, seen: str | None = None) -> Entry:
        """Approve a proposal. `seen` is the fingerprint that the person was shown; the default is the one recorded with the request.

        Raises QuestionChanged, and approves nothing, if something else would run now.
        """
        self._identity.require_person(caller)
        return self._approve(self._queries.find_question(reference, caller), caller.via, seen)

    def approve_with_passkey(self, reference: str, caller: Caller, *, seen: str, proof: Proof) -> Entry:
        """Approve what a paired page showed, if one of its passkeys signed exactly that. The proof is kept.

        Raises ProofRefused, QuestionChanged or IllegalTransition, and approves nothing; each refusal is recorded.
        """
        entry = self._queries.find_question(reference, caller)
        task_id = entry.task.task_id
        passkeys = self._passkeys()
        attempt = passkeys.verify_approval(task_id, seen, caller, proof)
        try:
            if self._gate.fingerprint_of(entry) != seen:
                raise QuestionChanged(task_id=task_id, seen=short_fingerprint(self._gate.fingerprint_of(entry)))
            self._grant_choice(entry, proof.choice, caller)
            approved = self._approve(entry, caller.via, seen)
        except BackburnerError as error:
            passkeys.settle(attempt, str(error))
            raise
        passkeys.settle(attempt)
        return approved

    def _grant_choice(self, entry: Entry, choice: str, caller: Caller) -> None:
        """Store the permanent permission that a person chose together with an approval."""
        task = entry.task
        if choice == "once":
            return
        if host := self._gate.host_of(entry):
            raise BadInput(f"'{choice}' does not apply here: the task runs on host {host}. Use it in a terminal there.")
        if not task.spec.command.words or task.is_recurring:
            raise BadInput(f"'{choice}' does not apply to this task.")
        match choice:
            case "trust":
                self._trust(task.spec.cwd, caller)
            case "always":
                from backburner.services.gate import submission_of

                self._allow_always(submission_of(task, self._queries.environment(entry)), caller.via)
            case _:
                raise BadInput(f"'{choice}' is not a choice.")

    def _approve(self, entry: Entry, via: str, seen: str | None = None) -> Entry:
        task, run = entry
        if task.state == TaskState.EXPIRED:
            self._proposals.expire_overdue()
            raise IllegalTransition(noun="proposal", state="expired", event="approved")
        if seen is not None and not re.fullmatch("[0-9a-f]{12,64}", seen):
            raise BadInput(f"'{seen}' is not a fingerprint; use the value shown after `Fingerprint:` (with --seen, or as `seen`).")
        fingerprint = self._gate.fingerprint_of(entry)
        expected = seen or entry.question_fingerprint
        if expected is not None and not fingerprint.startswith(expected):
            raise QuestionChanged(task_id=task.task_id, seen=short_fingerprint(fingerprint))
        is_waiting = run is not None and run.state == RunState.WAITING
        if task.state == TaskState.PAUSED and not is_waiting:
            return self._recurring.unpause_approved(task)
        approval = Approval("user", via, self._clock(), fingerprint if task.spec.command.words else None)
        max_active = self._config.current.whole("tasks.max_active")
        entry = self._task_store.approve(
            task.task_id, approval, runner=task.lane or self._runner, folder=self._home.tasks, max_active=max_active
        )
        self._publisher.publish(entry)
        return entry

    def reject(self, reference: str, caller: Caller, *, reason: str | None = None) -> Entry:
        """Reject a proposal; an agent may not propose a recurring one again for a day. The agent that asked is told the reason."""
        reason = shortened(clean(reason or ""), longest=_MAX_REASON_CHARACTERS) or None
        return self._reject(self._queries.find_question(reference, caller), caller.via, reason)

    def _reject(self, entry: Entry, via: str, reason: str | None = None) -> Entry:
        if entry.task.state == TaskState.EXPIRED:
            self._proposals.expire_overdue()  # the ledger then refuses to reject it
        entry = self._task_store.refuse(entry.task.task_id, expired=False, now=self._clock(), via=via, reason=reason)
        self._publisher.publish(entry)
        if entry.task.state == TaskState.REJECTED:
            self._refusals.record(entry.task, REJECTED)
        return entry

    def answer(self, channel: str, reply: "ChannelReply") -> None:
        """Apply a person's answer from a channel. The channel has already checked that this person may answer.

        Only the integrations process may call this.
        """
        recipient = to_channel(channel)
        notice = self._delivery_store.find_sent(recipient, reply.message)
        if notice is None or reply.message not in self._delivery_store.open_questions(recipient):
            return  # it is not a question, was already answered, or is no longer relevant
        run, task_id = self._queries.get(notice.task_id).run, notice.task_id
        if run and run.state == RunState.WAITING and run.wait_kind is WaitKind.TASK and run.wait:
            task_id = str(run.wait.target)
        self._sessions.record_activity(recipient)
        try:
            text = self._apply_answer(self._queries.get(task_id), reply.approved, f"channel:{channel}:{reply.person}")
        except QuestionChanged:
            self._ask_again(notice.task_id, self._queries.get(task_id))
            return
        except NotAPerson as error:  # the process of the channels has no database user that may decide
            text = f"{title(self._queries.get(task_id).task)} was not answered. {error}"
        self._task_store.confirm_answer(task_id, channel, text, self._clock())
        self._publisher.publish(self._queries.get(task_id))

    def _apply_answer(self, entry: Entry, approved: bool, via: str) -> str:
        """Approve or reject, and return what to say about it."""
        if not approved:
            entry = self._reject(entry, via)
            again = " An agent cannot propose it again for a day." if entry.task.is_recurring else ""
            return f"{title(entry.task)} is rejected and does not run.{again if entry.task.state == TaskState.REJECTED else ''}"
        entry = self._approve(entry, via)
        when = f": {self._recurring.explain(entry.task)}" if entry.task.is_recurring else ""
        return f"{title(entry.task)} is approved{when}."

    def _ask_again(self, task_id: str, entry: Entry) -> None:
        """Notify the channels of a task that the approved command has changed, and request approval for the current one."""
        task, fingerprint = entry.task, self._gate.fingerprint_of(entry)
        what = (
            masked_line(task.spec.command.words, task.spec.command.shell)
            if task.spec.command.words
            else f"ask {task.spec.agent_name}: {visible(task.spec.prompt)}"
        )
        text = (
            f"{title(task)}: the command has changed since approval was requested, so it was not approved.\n"
            f"Current command: {shortened(what, longest=4000)}\nDirectory: {visible(task.spec.cwd)}\n"
            f"Fingerprint: {short_fingerprint(fingerprint)}\n{how_to_answer(task.task_id)}"
        )
        self._task_store.ask_again(task_id, task.task_id, fingerprint, text, self._clock())
        self._publisher.publish(self._queries.get(task_id))

    # -- permanent permissions

    def trust_project(self, folder: str, caller: Caller) -> str:
        """Trust a project: its code may run without approval from now on. Returns the project."""
        self._identity.require_person(caller)
        return self._trust(folder, caller)

    def _trust(self, folder: str, caller: Caller) -> str:
        project = _trustable(folder, caller)
        self._grant_store.grant("trust", project, (), caller.via, self._clock())
        return project

    def permit_port(self, folder: str, port: int, caller: Caller) -> str:
        """Permit the sandboxed commands of a project to connect to a port of this machine, and trust the project. Returns the project."""
        if not 0 < port < 65536:
            raise BadInput(f"{port} is not a port: use a number from 1 to 65535.")
        project = self.trust_project(folder, caller)
        self._grant_store.grant("connect", project, (str(port),), caller.via, self._clock())
        return project

    def allow_always(self, submission: Submission, caller: Caller) -> None:
        """Allow exactly this command in this project from now on."""
        self._identity.require_person(caller)
        self._allow_always(submission, caller.via)

    def _allow_always(self, submission: Submission, via: str) -> None:
        self._grant_store.grant("always", *self._specific(submission), via, self._clock())

    def _specific(self, submission: Submission) -> tuple[str, tuple[str, ...]]:
        """Return the project and the words of a command; BadInput if it cannot be allowed permanently."""
        if not self._gate.check(submission).always:
            raise BadInput("This command is not specific enough to be allowed permanently.")
        return project_of(submission.spec.cwd), tuple(submission.spec.command.words)

    def ask_to_grant(self, kind: str, submission: Submission, caller: Caller, origin: str) -> "Asked":
        """Return the challenge that a passkey of a paired page must sign to trust a project, or to always allow a command in it."""
        project, command = self._permission(kind, submission, caller)
        return self._passkeys().ask_to_grant(kind, project, command, caller, origin)

    def grant_with_passkey(self, kind: str, submission: Submission, caller: Caller, proof: Proof) -> None:
        """Store a permanent permission, if a passkey of the caller's page signed exactly that. The proof is kept."""
        project, command = self._permission(kind, submission, caller)
        passkeys = self._passkeys()
        attempt = passkeys.verify_grant(kind, project, command, caller, proof)
        self._grant_store.grant(kind, project, command, caller.via, self._clock())
        passkeys.settle(attempt)

    def _permission(self, kind: str, submission: Submission, caller: Caller) -> tuple[str, tuple[str, ...]]:
        """Return the project and the command that a permission would be for; BadInput if it cannot be given."""
        if kind == "trust":
            return _trustable(submission.spec.cwd, caller), ()
        return self._specific(submission)

    def grants(self) -> Sequence[Grant]:
        """The permanent permissions of all projects."""
        return self._grant_store.grants()

    def revoke(self, grant_id: int) -> None:
        """Revoke a permanent permission."""
        if not self._grant_store.revoke(grant_id, self._clock()):
            raise BadInput(f"Permission {grant_id} not found. See: backburner trust --list")


def _trustable(folder: str, caller: Caller) -> str:
    """Return the project of a folder; BadInput if it cannot be trusted."""
    from backburner.system.command_context import may_be_project

    project = project_of(folder)
    if not may_be_project(project, caller.environ):
        raise BadInput(
            f"Cannot trust {project}: your home directory, its parents, its hidden directories and shared directories are not allowed."
        )
    return project
