"""What waits for a person's word: exactly what would be done, its fingerprint, and the answers there are."""

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from backburner.core.errors import BackburnerError, BadInput
from backburner.core.formatting import command_line, short_fingerprint
from backburner.core.models import Caller, Entry, Submission
from backburner.core.sessions import Client, SessionId
from backburner.core.states import RunState, TaskState, WaitKind
from backburner.core.terminal_text import shortened, visible
from backburner.services.app import App

if TYPE_CHECKING:
    from backburner.approval.policy import Verdict

YES_NO = {"y": "yes", "yes": "yes", "n": "no", "no": "no"}
_TOLD_LENGTH = 4000


class Question(NamedTuple):
    """`about` is the task that waits, `text` what the person decides on, `asks` what they are asked, `answers` the words that count,
    `offered` how those are shown.

    `step` tells one step of an agent from its next; `seen` is the fingerprint of what is shown.
    """

    about: str
    text: str
    asks: str
    answers: dict[str, str]
    step: str = ""
    seen: str = ""
    offered: str = "[y/n]"

    @property
    def line(self) -> str:
        """What they are asked, with the answers there are."""
        return f"{self.asks} {self.offered}"

    @property
    def what(self) -> tuple[str, str]:
        """What is asked: the same question is this one, whoever built it."""
        return self.about, self.step


def open_questions(app: App, caller: Caller, session: str, also: Collection[str] = ()) -> list[Question]:
    """What a chat's agent, those it asked, and the person in it want to do, and nobody has answered; oldest first."""
    asked = app.queries.descendants_of(session)
    proposed = reversed(app.queries.list(caller, status="proposed", everywhere=True))
    found = [_proposal(app, entry) for entry in proposed if _is_asked_here(entry, asked) or entry.task.task_id in also]
    waiting = reversed(app.queries.list(caller, status="waiting", everywhere=True))
    return [*found, *(_step(app, entry) for entry in waiting if entry.task.task_id in {*asked, *also} and _asks(entry))]


def _is_asked_here(entry: Entry, asked: Collection[str]) -> bool:
    """Whether a proposal is one of the `asked` tasks; what a recurring task proposes is asked in the inbox."""
    session = entry.task.session
    return entry.task.task_id in asked and (session is None or SessionId.parse(session).client != Client.RECURRING)


def _asks(entry: Entry) -> bool:
    return entry.run is not None and (entry.run.wait is None or entry.run.wait.is_for_person)


def question_of(app: App, entry: Entry) -> Question | None:
    """What is asked about a task now; None where nothing is."""
    if entry.task.state == TaskState.PROPOSED:
        return _proposal(app, entry)
    if entry.run and entry.run.state == RunState.WAITING:
        return _step(app, entry) if _asks(entry) else None
    if entry.task.state == TaskState.PAUSED:
        text = f"{entry.task.task_id} is paused: {visible(str(entry.task.recurring.paused_because))}"
        return Question(entry.task.task_id, text, "Let it go on?", YES_NO, seen=app.gate.fingerprint_of(entry))
    return None


def _step(app: App, entry: Entry) -> Question:
    seen = app.gate.fingerprint_of(entry)  # before anything is shown: what changes meanwhile is not what was seen
    who = "The agent asks" if entry.task.in_chat else f"{entry.task.task_id} asks"
    text = f"{who}: {visible(str(entry.run and entry.run.error))}"
    if entry.run and entry.run.wait_kind in (None, WaitKind.APPROVAL) and entry.task.spec.command.words:
        text += f"\n{_command(app, entry, seen)[0]}"
    else:
        text += f"\nFingerprint: {short_fingerprint(seen)}"
    return Question(entry.task.task_id, text, "Let it?", YES_NO, _step_of(entry), seen)


def _step_of(entry: Entry) -> str:
    return f"{entry.run.run_id}: {entry.run.error}" if entry.run else ""


def _proposal(app: App, entry: Entry) -> Question:
    task, seen = entry.task, app.gate.fingerprint_of(entry)
    when = app.recurring.explain(task) if task.is_recurring else None
    last = "Have it run like that?" if when else "Start in background?"
    if not task.spec.command.words:
        about = [f"Proposed: {visible(task.spec.name)}"] if task.spec.name else []
        about += [f"When: {when}"] if when else []
        about += [
            f"It would ask {task.spec.agent_name}: {shortened(visible(task.spec.prompt), longest=_TOLD_LENGTH)}",
            f"Directory: {visible(task.spec.cwd)}",
        ]
        about += [f"It asks because: {visible('; '.join(task.decision.reasons))}", f"Fingerprint: {short_fingerprint(seen)}"]
        return Question(task.task_id, "\n".join(about), last, YES_NO, seen=seen)
    text, verdict = _command(app, entry, seen)
    answers, offered = dict(YES_NO), "[y/n]"
    if verdict and verdict.trust_would_do and not task.is_recurring:
        answers |= {"t": "trust", "trust": "trust"}
        offered = "[y/n, t: trust this project from now on]"
    elif verdict and verdict.always and not task.is_recurring:
        answers |= {"a": "always", "always": "always"}
        offered = "[y/n, a: always allow just this here]"
    return Question(task.task_id, text, last, answers, seen=seen, offered=offered)


def _command(app: App, entry: Entry, seen: str) -> "tuple[str, Verdict | None]":
    """The question about a command, with what the gate says now; nothing where it cannot be judged."""
    from backburner.interfaces.cli.approval_prompt import question  # it takes the command apart: only who is asked needs that

    task, submission = entry.task, _submission(app, entry)
    try:
        verdict = app.gate.check(submission)
    except BackburnerError as error:  # its folder is gone, say: a yes would not start it
        text = f"Command requires approval:\n  {command_line(task.spec.command.words, task.spec.command.shell)}\n\nDirectory: {visible(task.spec.cwd)}\n{error}"
        return f"{text}\nFingerprint: {short_fingerprint(seen)}", None
    return question(submission, verdict, app.recurring.explain(task) if task.is_recurring else None, seen).rstrip(), verdict


def settle(app: App, caller: Caller, question: Question, answer: str) -> Entry:
    """A person's answer, to what they were shown and to nothing else."""
    entry = app.queries.find(question.about, caller)
    if question.step and not (_asks(entry) and _step_of(entry) == question.step):
        raise BadInput("That was answered elsewhere, or is over; nothing was said to what came after it.")
    match answer:
        case "no":
            return app.approvals.reject(question.about, caller)
        case "trust":
            app.approvals.trust_project(app.queries.find(question.about, caller).task.spec.cwd, caller)
        case "always":
            app.approvals.allow_always(_submission(app, app.queries.find(question.about, caller)), caller)
    return app.approvals.approve(question.about, caller, seen=question.seen or None)


def _submission(app: App, entry: Entry) -> Submission:
    from backburner.services.gate import submission_of

    return submission_of(entry.task, app.queries.environment(entry))
