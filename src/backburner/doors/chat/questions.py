"""What waits for the person's word in a chat: exactly what would be done, and the answers there are."""

from collections.abc import Collection
from typing import NamedTuple

from backburner.models import Entry, Submission
from backburner.runtime import Runtime
from backburner.text import shortened, visible

_YES_NO = {"y": "yes", "yes": "yes", "n": "no", "no": "no"}
_TOLD_LENGTH = 4000


class Question(NamedTuple):
    """`about` is the task that waits, `text` what the person decides on, `line` what they are asked, `answers` the words that count."""

    about: str
    text: str
    line: str
    answers: dict[str, str]


def open_questions(runtime: Runtime, session: str, also: Collection[str] = ()) -> list[Question]:
    """What a chat's agent, and the person in it, have asked for and nobody has answered; oldest first."""
    proposed = [entry for entry in reversed(runtime.list(status="proposed")) if entry.task.session == session or entry.task.task_id in also]
    found = [_proposal(runtime, entry) for entry in proposed]
    chat = runtime.chat(session)
    if chat and chat.run and chat.status == "waiting" and chat.run.waits_on in ("tool", "budget"):
        text = f"The agent asks: {shortened(visible(chat.run.error or ''), longest=_TOLD_LENGTH)}"
        found.append(Question(chat.task.task_id, text, "Let it? [y/n]", _YES_NO))
    return found


def _proposal(runtime: Runtime, entry: Entry) -> Question:
    from backburner.doors.ask import question  # it takes the command apart: only who is asked needs that

    task, submission = entry.task, _submission(runtime, entry)
    when = runtime.explain(task) if task.standing else None
    last = "Have it run like that?" if when else "Start in background?"
    if not task.command:
        text = f"Proposed: {visible(task.name or '')}\nWhen: {when}\nIt would ask an agent: {shortened(visible(task.prompt), longest=_TOLD_LENGTH)}"
        return Question(task.task_id, text, f"{last} [y/n]", _YES_NO)
    verdict = runtime.judge(submission)
    answers, offered = dict(_YES_NO), "[y/n]"
    if verdict.trust_would_do and not task.standing:
        answers |= {"t": "trust", "trust": "trust"}
        offered = "[y/n, t: trust this project from now on]"
    elif verdict.always and not task.standing:
        answers |= {"a": "always", "always": "always"}
        offered = "[y/n, a: always allow just this here]"
    return Question(task.task_id, question(submission, verdict, when).rstrip(), f"{last} {offered}", answers)


def settle(runtime: Runtime, question: Question, answer: str) -> Entry:
    """A person's answer, to what they were shown."""
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
