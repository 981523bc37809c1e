"""What a person says at the Runtime: yes or no to what waits for approval, and what they allow for good."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from backburner.errors import BadInput, IllegalTransition
from backburner.home import project_of
from backburner.lifecycle import RunState, TaskState
from backburner.models import OUT, Approval, Entry, Grant, Submission
from backburner.outward import Outward
from backburner.process import umask

if TYPE_CHECKING:
    from backburner.approval.policy import Verdict
    from backburner.gate import Gate
    from backburner.ports import Answer


class Consent(Outward):
    """The verbs of approval."""

    _runner: str

    @property
    def gate(self) -> "Gate":
        from backburner.gate import Gate  # a door that only reads never comes by it

        return Gate(self.store, self.config)

    def judge(self, submission: Submission) -> "Verdict":
        """What the gate says, without storing anything."""
        from backburner.validation import validate

        validate(submission)
        return self.gate.judge(submission)

    def again(self, entry: Entry, environment: dict[str, str], *, session: str | None, via: str) -> Submission:
        """What to submit to run a task once more, as a new one that is judged anew; `session` and `via` say who wants that."""
        from backburner.gate import submission_of

        self.require_own(entry.task, "restart", session, via)
        asked = submission_of(entry.task, environment)
        return asked._replace(umask=umask(), restarted_from=entry.task.task_id, session=session)

    def approve(self, reference: str, *, via: str) -> Entry:
        """A person's yes to a proposal."""
        self.require_person(via)
        return self._approve(reference, via)

    def _approve(self, reference: str, via: str) -> Entry:
        task = self.show(reference).task
        if task.expires_at is not None and task.state == TaskState.PROPOSED and task.expires_at <= self.clock():
            self._publish(self.store.refuse(task.task_id, expired=True, now=self.clock()))
            raise IllegalTransition(noun="proposal", state="expired", event="approved")
        from backburner.gate import submission_of

        fingerprint = None
        if task.command:
            fingerprint = self.gate.fingerprint(submission_of(task, self.store.environment(task.task_id)))
        approval = Approval("user", via, self.clock(), fingerprint)
        run = self.known_as(task.task_id).run
        if task.state == TaskState.PAUSED and not (run and run.state == RunState.WAITING):
            return self._unpause(task)
        most = self.config.whole("tasks.max_active")
        entry = self.store.approve(task.task_id, approval, runner=task.lane or self._runner, folder=self.home.tasks, most_active=most)
        self._publish(entry)
        return entry

    def reject(self, reference: str) -> Entry:
        """A person's no to a proposal: a standing one is not proposed again for a day."""
        entry = self.store.refuse(self.show(reference).task.task_id, expired=False, now=self.clock())
        self._publish(entry)
        if entry.task.state == TaskState.REJECTED:
            self._bury(entry.task, "rejected")
        return entry

    def answer(self, channel: str, given: "Answer") -> None:
        """What somebody answered on a channel, which has seen to it that they may. For the post host alone: nothing else makes an Answer."""
        notice = self.store.sent_as(channel, given.message)
        if notice is None or given.message not in self.store.questions(channel):
            return  # it asks nothing, was answered, or what it asked about is over
        run, reference = self.known_as(notice.task_id).run, notice.task_id
        if run and run.state == RunState.WAITING and run.waits_on not in (None, "budget", "tool"):
            reference = str(run.waits_on)
        self.present(channel)
        if given.yes:
            self._approve(reference, f"channel:{channel.removeprefix(OUT)}:{given.person}")
        else:
            self.reject(reference)

    def trust(self, folder: str, *, via: str) -> str:
        """A person's word that the code of a project may run from now on; the project."""
        self.require_person(via)
        project = project_of(folder)
        self.store.grant("trust", project, (), via, self.clock())
        return project

    def always(self, submission: Submission, *, via: str) -> None:
        """A person's word that just this command may run in this project from now on."""
        self.require_person(via)
        if not self.judge(submission).always:
            raise BadInput("That is not narrow enough to be allowed for good.")
        self.store.grant("always", project_of(submission.cwd), submission.command, via, self.clock())

    def grants(self) -> Sequence[Grant]:
        """What was said for good, in all projects."""
        return self.store.grants()

    def revoke(self, grant_id: int) -> None:
        """Take back what was said for good."""
        if not self.store.revoke(grant_id, self.clock()):
            raise BadInput(f"There is no grant {grant_id}. See: backburner trust --list")
