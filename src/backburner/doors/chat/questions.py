"""What waits for the person's word in a chat: exactly what would be done, and the answers there are."""

from collections.abc import Collection
from typing import NamedTuple

from backburner.errors import BackburnerError, BadInput
from backburner.models import Entry, Submission
from backburner.runtime import Runtime
from backburner.text import shortened, visible
from backburner.words import command_line

_YES_NO = {"y": "yes", "yes": "yes", "n": "no", "no": "no"}
_TOLD_LENGTH = 4000


class Question(NamedTuple):
    """`about` is the task that waits, `text` what the person decides on, `line` what they are asked, `answers` the words that count.

    `step` tells one step of an agent from its next; a proposal never changes.
    """

    about: str
    text: str
    line: str
    answers: dict[str, str]
    step: str = ""

    @property
    def what(self) -> tuple[str, str]:
        """What is asked: the same question is this one, whoever built it."""
        return self.about, self.step


def open_questions(runtime: Runtime, session: str, also: Collection[str] = ()) -> list[Question]:
    """What a chat's agent, those it asked, and the person in it want to do, and nobody has answered; oldest first."""
    asked, sessions = runtime.below(session)
    proposed = reversed(runtime.list(status="proposed", everywhere=True))
    found = [_proposal(runtime, entry) for entry in proposed if entry.task.session in sessions or entry.task.task_id in also]
    waiting = reversed(runtime.list(status="waiting", everywhere=True))
    return [*found, *(_step(entry) for entry in waiting if entry.task.task_id in asked and _asks(entry))]


def _asks(entry: Entry) -> bool:
    return entry.run is not None and entry.run.waits_on in (None, "tool", "budget")


def _step(entry: Entry) -> Question:
    assert entry.run is not None
    who = "The agent asks" if entry.task.in_chat else f"{entry.task.task_id} asks"
    text = f"{who}: {visible(entry.run.error or '')}"
    return Question(entry.task.task_id, text, "Let it? [y/n]", _YES_NO, f"{entry.run.run_id}: {entry.run.error}")


def _proposal(runtime: Runtime, entry: Entry) -> Question:
    from backburner.doors.ask import question  # it takes the command apart: only who is asked needs that

    task, submission = entry.task, _submission(runtime, entry)
    when = runtime.explain(task) if task.standing else None
    last = "Have it run like that?" if when else "Start in background?"
    if not task.command:
        text = f"Proposed: {visible(task.name or '')}\nWhen: {when}\nIt would ask an agent: {shortened(visible(task.prompt), longest=_TOLD_LENGTH)}"
        return Question(task.task_id, text, f"{last} [y/n]", _YES_NO)
    try:
        verdict = runtime.judge(submission)
    except BackburnerError as error:  # its folder is gone, say: a yes would not start it
        text = f"Command requires approval:\n  {command_line(task.command, task.shell)}\n\nDirectory: {visible(task.cwd)}\n{error}"
        return Question(task.task_id, text, f"{last} [y/n]", _YES_NO)
    answers, offered = dict(_YES_NO), "[y/n]"
    if verdict.trust_would_do and not task.standing:
        answers |= {"t": "trust", "trust": "trust"}
        offered = "[y/n, t: trust this project from now on]"
    elif verdict.always and not task.standing:
        answers |= {"a": "always", "always": "always"}
        offered = "[y/n, a: always allow just this here]"
    return Question(task.task_id, question(submission, verdict, when).rstrip(), f"{last} {offered}", answers)


def settle(runtime: Runtime, question: Question, answer: str) -> Entry:
    """A person's answer, to what they were shown and to nothing else."""
    entry = runtime.show(question.about)
    if question.step and not (_asks(entry) and _step(entry).what == question.what):
        raise BadInput("That was answered elsewhere, or is over; nothing was said to what came after it.")
    match answer:
        case "no":
            return runtime.reject(question.about)
        case "trust":
            runtime.trust(runtime.show(question.about).task.cwd, via="chat")
        case "always":
            runtime.always(_submission(runtime, runtime.show(question.about)), via="chat")
    return runtime.approve(question.about, via="chat")


def _submission(runtime: Runtime, entry: Entry) -> Submission:
    from backburner.gate import submission_of

    return submission_of(entry.task, runtime.environment(entry))
