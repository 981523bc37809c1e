"""Open approval questions: the text to decide on, its fingerprint, and the possible answers."""

from collections.abc import Collection, Sequence
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
_MAX_PROMPT_CHARS = 4000


class Question(NamedTuple):
    """An approval question about one task.

    `about` is the ID of the task, `text` describes what would be done, `prompt` is the question itself, `answers` maps each
    accepted input to its meaning, and `choices` shows the accepted input. `step` identifies the step of an agent that waits;
    `seen` is the fingerprint of what is shown.
    """

    about: str
    text: str
    prompt: str
    answers: dict[str, str]
    step: str = ""
    seen: str = ""
    choices: str = "[y/n]"

    @property
    def line(self) -> str:
        """The question with the accepted input."""
        return f"{self.prompt} {self.choices}"

    @property
    def what(self) -> tuple[str, str]:
        """Identifies the question: two objects with the same value are the same question."""
        return self.about, self.step


def open_questions(app: App, caller: Caller, session: str, also: Collection[str] = ()) -> list[Question]:
    """The unanswered questions of a chat, oldest first: of its agent, of the tasks that agent started, and of the tasks in `also`."""
    started = app.queries.descendants_of(session)
    proposed = reversed(app.queries.list(caller, status="proposed", everywhere=True))
    found = [_proposal(app, entry) for entry in proposed if _belongs_to_chat(entry, started) or entry.task.task_id in also]
    waiting = reversed(app.queries.list(caller, status="waiting", everywhere=True))
    return [*found, *(_step(app, entry) for entry in waiting if entry.task.task_id in {*started, *also} and _waits_for_person(entry))]


def _belongs_to_chat(entry: Entry, started: Collection[str]) -> bool:
    """Whether a proposal is one of the tasks that the chat `started`. Proposals of recurring tasks appear in the inbox instead."""
    session = entry.task.session
    return entry.task.task_id in started and (session is None or SessionId.parse(session).client != Client.RECURRING)


def waiting_for_person(entries: Sequence[Entry]) -> set[str]:
    """The ids of the tasks that wait for a person: proposals, and runs that ask for approval."""
    return {
        entry.task.task_id for entry in entries if entry.status == "proposed" or (entry.status == "waiting" and _waits_for_person(entry))
    }


def _waits_for_person(entry: Entry) -> bool:
    return entry.run is not None and (entry.run.wait is None or entry.run.wait.is_for_person)


def question_of(app: App, entry: Entry) -> Question | None:
    """The open question about a task, or None."""
    if entry.task.state == TaskState.PROPOSED:
        return _proposal(app, entry)
    if entry.run and entry.run.state == RunState.WAITING:
        return _step(app, entry) if _waits_for_person(entry) else None
    if entry.task.state == TaskState.PAUSED:
        text = f"{entry.task.task_id} is paused: {visible(str(entry.task.recurring.paused_because))}"
        return Question(entry.task.task_id, text, "Continue this task?", YES_NO, seen=app.gate.fingerprint_of(entry))
    return None


def _step(app: App, entry: Entry) -> Question:
    seen = app.gate.fingerprint_of(entry)  # first: a change made after this point must not count as seen
    requester = "The agent" if entry.task.in_chat else entry.task.task_id
    text = f"{requester} asks for approval: {visible(str(entry.run and entry.run.error))}"
    if entry.run and entry.run.wait_kind in (None, WaitKind.APPROVAL) and entry.task.spec.command.words:
        text += f"\n{_command(app, entry, seen)[0]}"
    else:
        text += f"\nFingerprint: {short_fingerprint(seen)}"
    return Question(entry.task.task_id, text, "Allow this step?", YES_NO, _step_of(entry), seen)


def _step_of(entry: Entry) -> str:
    return f"{entry.run.run_id}: {entry.run.error}" if entry.run else ""


def _proposal(app: App, entry: Entry) -> Question:
    task, seen = entry.task, app.gate.fingerprint_of(entry)
    when = app.recurring.explain(task) if task.is_recurring else None
    prompt = "Add this recurring task?" if when else "Start in background?"
    if not task.spec.command.words:
        lines = [f"Proposed: {visible(task.spec.name)}"] if task.spec.name else []
        lines += [f"When: {when}"] if when else []
        lines += [
            f"Prompt for {task.spec.agent_name}: {shortened(visible(task.spec.prompt), longest=_MAX_PROMPT_CHARS)}",
            f"Directory: {visible(task.spec.cwd)}",
        ]
        lines += [f"Why it needs approval: {visible('; '.join(task.decision.reasons))}", f"Fingerprint: {short_fingerprint(seen)}"]
        return Question(task.task_id, "\n".join(lines), prompt, YES_NO, seen=seen)
    text, verdict = _command(app, entry, seen)
    answers, choices = dict(YES_NO), "[y/n]"
    if verdict and verdict.trust_would_do and not task.is_recurring:
        answers |= {"t": "trust", "trust": "trust"}
        choices = "[y/n, t: trust this project from now on]"
    elif verdict and verdict.always and not task.is_recurring:
        answers |= {"a": "always", "always": "always"}
        choices = "[y/n, a: always allow this command in this directory]"
    return Question(task.task_id, text, prompt, answers, seen=seen, choices=choices)


def _command(app: App, entry: Entry, seen: str) -> "tuple[str, Verdict | None]":
    """The text about a command, and the current verdict of the gate; None if the gate cannot judge the command."""
    from backburner.interfaces.cli.approval_prompt import question  # imports the shell parser, which only questions need

    task, submission = entry.task, _submission(app, entry)
    if host := app.gate.host_of(entry):
        return _on_other_host(entry, host, seen), None
    try:
        verdict = app.gate.check(submission)
    except BackburnerError as error:  # for example, its directory no longer exists
        text = f"Command requires approval:\n  {command_line(task.spec.command.words, task.spec.command.shell)}\n\nDirectory: {visible(task.spec.cwd)}\n{error}"
        return f"{text}\nFingerprint: {short_fingerprint(seen)}", None
    return question(submission, verdict, app.recurring.explain(task) if task.is_recurring else None, seen).rstrip(), verdict


def _on_other_host(entry: Entry, host: str, seen: str) -> str:
    """The text about a command that another host has judged. Whether its programs and scripts are still the same is checked there."""
    task = entry.task
    why = entry.run.error if entry.run and entry.run.error else "; ".join(task.decision.reasons)
    lines = [f"Command requires approval on {visible(host if host.startswith('lane ') else f'host {host}')}:"]
    lines += [f"  {command_line(task.spec.command.words, task.spec.command.shell)}", "", f"Directory: {visible(task.spec.cwd)}"]
    lines += [f"Environment: {visible(name)}={visible(value)}" for name, value in task.spec.env.items()]
    return "\n".join([*lines, f"Why it needs approval: {visible(why)}", f"Fingerprint: {short_fingerprint(seen)}"])


def settle(app: App, caller: Caller, question: Question, answer: str) -> Entry:
    """Apply a person's answer to the question that was shown; fails if the task now waits for something else."""
    entry = app.queries.find(question.about, caller)
    if question.step and not (_waits_for_person(entry) and _step_of(entry) == question.step):
        raise BadInput("This question was already answered or is no longer open. The answer was not applied to any later question.")
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
