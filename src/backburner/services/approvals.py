"""What a person says at the Runtime: yes or no to what waits for approval, and what they allow for good."""

import contextlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from backburner.core.errors import BadInput, IllegalTransition, QuestionChanged
from backburner.core.formatting import short
from backburner.core.masking import masked_line
from backburner.core.models import DISCOVERY, OUT, Approval, Entry, Grant, Submission
from backburner.core.recurring import title, tools_of
from backburner.core.states import RunState, TaskState
from backburner.core.terminal_text import shortened, visible
from backburner.services.proposals import Outward
from backburner.system.home import project_of
from backburner.system.processes import umask

if TYPE_CHECKING:
    from backburner.approval.policy import Verdict
    from backburner.core.ports import Answer
    from backburner.services.gate import Gate


class Consent(Outward):
    """The verbs of approval."""

    _runner: str

    @property
    def gate(self) -> "Gate":
        from backburner.services.gate import Gate  # a door that only reads never comes by it

        return Gate(self.store, self.config, self.home.root)

    def judge(self, submission: Submission, *, ours: bool = True) -> "Verdict":
        """What the gate says, without storing anything; `ours` where Backburner itself would start the command."""
        from backburner.services.validation import validate

        validate(submission)
        gate = self.gate
        return gate.judge(submission, gate.world(submission, ours=ours))

    def again(self, entry: Entry, environment: dict[str, str], *, session: str | None, via: str) -> Submission:
        """What to submit to run a task once more, as a new one that is judged anew; `session` and `via` say who wants that."""
        from backburner.services.gate import submission_of

        self.require_own(entry.task, "restart", session, via)
        asked = submission_of(entry.task, environment)
        return asked._replace(umask=umask(), restarted_from=entry.task.task_id, session=session)

    def fingerprint(self, entry: Entry) -> str:
        """What a yes to a task would be for as it is now. What it does not cover cannot change while the task waits."""
        from backburner.services.gate import submission_of

        task, run = entry
        if run and run.state == RunState.WAITING and (run.waits_on is not None or not task.command):
            return _digest("step", run.run_id, run.waits_on, run.error, run.extensions)
        if task.state == TaskState.PAUSED:
            return _digest("paused", task.task_id, task.paused_because)
        submission = submission_of(task, self.store.environment(task.task_id))
        return self.fingerprint_of(submission._replace(terms=task.terms, schedule=task.schedule, source=task.source))

    def fingerprint_of(self, submission: Submission) -> str:
        """What a yes to this would be for: the command, as the gate sees it; else the prompt with its agent, as that is set up."""
        if submission.command:
            return self.gate.fingerprint(submission)
        settings: dict[str, str] = {}
        with contextlib.suppress(BadInput):  # there is no such agent any more
            settings = self.agent(submission.agent or "", standing=submission.standing or submission.session == DISCOVERY)
        return _digest(
            "prompt", submission.cwd, submission.env, settings, tools_of(submission, settings.get("tools", "")), submission.prompt
        )

    def approve(self, reference: str, *, via: str, seen: str | None = None) -> Entry:
        """A person's yes to a proposal. `seen` is the fingerprint that they were shown; without it counts what was asked about.

        QuestionChanged where that is not what would run now: nothing is approved then.
        """
        self.require_person(via)
        return self._approve(reference, via, seen)

    def _approve(self, reference: str, via: str, seen: str | None = None) -> Entry:
        task, run = entry = self.show(reference)
        if task.expires_at is not None and task.state == TaskState.PROPOSED and task.expires_at <= self.clock():
            self._publish(self.store.refuse(task.task_id, expired=True, now=self.clock()))
            raise IllegalTransition(noun="proposal", state="expired", event="approved")
        if seen is not None and not re.fullmatch("[0-9a-f]{12,64}", seen):
            raise BadInput(f"'{seen}' is not a fingerprint: give what the question shows after `Fingerprint:` (with --seen, or as `seen`).")
        waits = run is not None and run.state == RunState.WAITING
        fingerprint = self.fingerprint(entry)
        asked = seen or entry.asked
        if asked is not None and not fingerprint.startswith(asked):
            raise QuestionChanged(task_id=task.task_id, seen=short(fingerprint))
        if task.state == TaskState.PAUSED and not waits:
            return self._unpause(task)
        approval = Approval("user", via, self.clock(), fingerprint if task.command else None)
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
        if not given.yes:
            self.reject(reference)
            return
        try:
            self._approve(reference, f"channel:{channel.removeprefix(OUT)}:{given.person}")
        except QuestionChanged:
            self._ask_again(notice.task_id, self.known_as(reference))

    def _ask_again(self, task_id: str, entry: Entry) -> None:
        """Tell the channels of a task that what they said yes to has changed, and ask about what it is now."""
        task, asked = entry.task, self.fingerprint(entry)
        what = masked_line(task.command, task.shell) if task.command else f"ask {task.agent}: {visible(task.prompt)}"
        text = (
            f"{title(task)}: what it would run has changed since you were asked, so your yes was not taken.\n"
            f"It would run now: {shortened(what, longest=4000)}\nDirectory: {visible(task.cwd)}\nFingerprint: {short(asked)}\n"
            f"Yes: backburner approve {task.task_id}; no: backburner reject {task.task_id}"
        )
        self.store.ask_again(task_id, task.task_id, asked, text, self.clock())
        self._publish(self.known_as(task_id))

    def trust(self, folder: str, *, via: str) -> str:
        """A person's word that the code of a project may run from now on; the project."""
        self.require_person(via)
        from backburner.system.command_context import may_be_project

        project = project_of(folder)
        if not may_be_project(project, self.environ):
            raise BadInput(
                f"{project} cannot be trusted: a project is not your home, what is above it, one of its hidden folders, or a shared folder."
            )
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


def _digest(*shown: object) -> str:
    import hashlib
    import json

    return hashlib.sha256(json.dumps(shown, sort_keys=True).encode("utf-8", "surrogateescape")).hexdigest()
