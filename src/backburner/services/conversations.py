"""Talking with agents: being talked to again, results that are read, what they remember, and how deep they may ask each other."""

import contextlib
import json
import os
from collections.abc import Sequence

from backburner.core.command_words import words_of
from backburner.core.errors import BadInput, LedgerUnavailable, NotAPerson, NotResumable, NotYourTask, StaleRun
from backburner.core.known_agents import OPENCODE, asks
from backburner.core.models import AGENTS, CHAT, DISCOVERY, LOCAL, Entry, ProcessId, Run, Session, Submission, Task, channel_of
from backburner.core.states import LIVE, Result, RunState
from backburner.services.queries import Reading
from backburner.system import wakeups as wake
from backburner.system.home import project_of, read_plain
from backburner.system.processes import executable_of, is_alive, myself

_DEEPEST = 3
_TRIED_MS = 600_000
_OPENCODE = channel_of("opencode:")


class Dialogue(Reading):
    """The verbs for tasks of agents."""

    def _can_be_asked(self, submission: Submission) -> None:
        """BadInput for an agent that there is not, or whose program is not there."""
        settings = self.agent(submission.agent or "", standing=submission.standing or submission.session == DISCOVERY)
        if settings["type"] and submission.terms.get("chat"):
            raise BadInput(
                f"The chat is with the built-in agent; ask {settings['name']} in the background: backburner ask --agent {settings['name']}"
            )
        if settings["type"] and not settings.get("url"):
            program = words_of(settings["command"])[0]
            env = {**submission.environment, **submission.env}
            if executable_of(program, submission.cwd, env.get("PATH", os.defpath)) is None:
                how = f" Get it with: npm install -g {settings['package']}" if settings.get("package") else ""
                raise BadInput(f"The agent {settings['name']} needs the program {program}, which is not on the PATH.{how}")

    def _asks_first(self, submission: Submission) -> bool:
        """Whether its agent asks before it acts."""
        return asks(self.agent(submission.agent or "", standing=submission.standing or submission.session == DISCOVERY))

    def _not_too_deep(self, submission: Submission) -> None:
        """Agents may ask agents, but not without end."""
        session = submission.session
        for _ in range(_DEEPEST):
            asker = self.store.show(session.partition(":")[2]) if session and session.startswith(("agent:", "task:")) else None
            if asker is None:
                return
            session = asker.task.session
        raise BadInput(f"Agents may ask agents {_DEEPEST} deep, not deeper: do this one yourself.")

    def require_person(self, via: str) -> None:
        """Refuse a yes that does not come from a person. `via` says where it comes from; no word there makes it a person's."""
        from backburner.services.gate import require_person

        if via == "tool":
            raise NotAPerson(reason="an agent asks; a person has to say it, in a terminal of their own")
        if any(map(is_alive, self.store.processes(os.getsid(0)))):
            raise NotAPerson(reason="this runs in the session of a background task")
        require_person(self.environ, terminal=via != "library" and not self.config.flag("approval.yes_without_terminal"))

    def require_own(self, task: Task, act: str, session: str | None, via: str) -> None:
        """Refuse whoever would add something to what a person approved, unless they asked for it or are a person.

        `session` is who calls, `via` through which interface, `act` what they want to do. What the gate allowed by itself is open to all.
        """
        if task.approved_by != "user" or (session is not None and session == task.session):
            return
        try:
            if session is not None and not session.startswith(CHAT):  # in a chat a person types, too
                raise NotAPerson(reason=f"this is asked by the session {session}")
            self.require_person(via)
        except NotAPerson as error:
            raise NotYourTask(task_id=task.task_id, act=act, reason=error.fields["reason"]) from None

    def resume(self, reference: str, message: str, *, session: str | None, via: str) -> Entry:
        """Talk on with an agent that has answered, in its own conversation: a new run of its task. `session` and `via` say who does."""
        from backburner.services.validation import LONGEST_PROMPT

        entry = self.show(reference)
        task, run = entry
        if task.agent is None or run is None:
            raise NotResumable(f"Task {task.task_id} is a command; only agents can be talked to again.")
        if task.standing:
            raise NotResumable(f"Task {task.task_id} begins a new conversation with every run; ask anew: backburner run-now {task.task_id}")
        self.require_own(task, "talk on with", session, via)
        if not message.strip():
            raise BadInput("There is nothing to say to it.")
        if len(message) > LONGEST_PROMPT:
            raise BadInput(f"A message has at most {LONGEST_PROMPT:,} characters; put the rest into a file.")
        if run.n > 1 and run.state in LIVE:
            raise NotResumable("Task is currently being resumed. Wait for completion before sending another message.")
        if entry.status != RunState.COMPLETED and run.result != Result.LOST and not (task.in_chat and entry.ended):
            status = {"failed": "error", "pending": "running"}.get(entry.status, entry.status)
            raise NotResumable(f"Cannot resume task: status is '{status}'. Only completed tasks can be resumed.")
        kept = self._kept(task)
        if kept is None and (run.result != Result.LOST or run.n > 1) and not task.in_chat:
            raise NotResumable("Session expired or was deleted. Start a new background_task to continue.")
        if run.result == Result.LOST and run.message and json.dumps(run.message, ensure_ascii=False)[1:-1] not in (kept or ""):
            message = f"{run.message}\n\n{message}"  # it was cut off before it had heard that
        try:
            entry = self.store.resume(task.task_id, message, runner=task.lane or AGENTS, now=self.clock())
        except StaleRun:
            raise NotResumable("Task is currently being resumed. Wait for completion before sending another message.") from None
        self._publish(entry)
        return entry

    def began(self, run: Run, leader: ProcessId) -> None:
        """An agent that we were to ask is a process of its own."""
        with contextlib.suppress(StaleRun, LedgerUnavailable):  # its mark finds it, too
            self.store.record_process(run.run_id, myself(), leader)

    def unpark(self, run_id: str) -> bool:
        """A run that waits for a person's word on a step need not: nobody asks for that step any more. False where it does not wait."""
        try:
            self.store.unpark(run_id, self.clock())
        except StaleRun:
            return False
        wake.ring_all(self.home.bells)
        return True

    def untold_parents(self) -> list[str]:
        """The OpenCode sessions that are owed something and have no plugin of ours that would tell them."""
        if not self.opencode_servers():
            return []
        here = {session.session_id for session in self.store.sessions("opencode") if is_alive(session.process)}
        owed = [channel.removeprefix(channel_of("")) for channel in self.store.owing() if channel.startswith(_OPENCODE)]
        lately = self.clock() - _TRIED_MS  # after that it is the person's
        return [one for one in owed if one not in here and any(notice.created_at > lately for notice in self.owed(one))]

    def opencode_servers(self) -> list[dict[str, str]]:
        """The agents in OpenCode servers that are found by their URLs."""
        named = [name for name, about in self.config.agents.items() if about.get("type") == OPENCODE and about.get("url")]
        return [self.agent(name) for name in named]

    def chat(self, session: str) -> Entry | None:
        """The conversation of a chat, once something was said in it."""
        return next((entry for entry in self._asked_by(session) if entry.task.in_chat and entry.task.session == session), None)

    def below(self, session: str) -> tuple[set[str], set[str]]:
        """The tasks that a session, or an agent that it asked, has asked for; and the sessions of all of them."""
        asked = set(self.store.asked_by(session))
        return asked, {session, *(f"agent:{task_id}" for task_id in asked)}

    def chats(self) -> Sequence[Session]:
        """The chats of the caller's project, latest first."""
        here = project_of(self._cwd())
        return [session for session in self.store.sessions(CHAT.rstrip(":")) if session.project == here]

    def choose(self, session: str, agent: str, model: str | None) -> Entry:
        """Have another agent, or another model, go on with a chat."""
        entry = self.chat(session)
        if entry is None or entry.live:
            raise BadInput("It answers just now; choose another model afterwards.")
        from backburner.core.settings import agent_settings, is_local

        terms = {**entry.task.terms, "model": model or ""}
        lane = LOCAL if is_local(agent_settings(self.config, agent, model=model)) else AGENTS
        self.store.choose(entry.task.task_id, agent, terms, lane)
        return self.known_as(entry.task.task_id)

    def _kept(self, task: Task) -> str | None:
        """An agent's conversation as it is on disk."""
        try:
            return read_plain(self.conversation(task), 1 << 28).decode("utf-8", "replace")
        except OSError:
            return None

    def _asked_by(self, session: str) -> Sequence[Entry]:
        """What a session asked for, and what the agents asked for that it asked."""
        return [entry for entry in map(self.store.show, self.store.asked_by(session)) if entry]

    def retrieve(self, entry: Entry) -> None:
        """The result of a task has been read."""
        if entry.task.retrieved_at is None:
            self.store.retrieve(entry.task.task_id, self.clock())

    def remember(self, key: str, value: str | None, project: str) -> None:
        """Keep something under a name for the agents of a project."""
        if not (0 < len(key) <= 200 and key.isprintable()) or len(value or "") > 100_000:
            raise BadInput("A name has up to 200 characters on one line, and what is kept under it up to 100,000.")
        self.store.remember(project, key, value, self.clock())
