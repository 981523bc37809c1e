"""Conversations with agents: follow-up messages, chats, the model of a chat, worktrees, and the memory of a project's agents."""

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from backburner.coordination.publisher import Publisher
from backburner.core.errors import BadInput, NotResumable, StaleRun
from backburner.core.models import AGENT_LANE, Caller, Clock, Entry, Run, Task
from backburner.core.session_records import Session
from backburner.core.sessions import Client
from backburner.core.states import LIVE, Result, RunState
from backburner.services.agent_catalog import AgentCatalog
from backburner.services.identity import Identity
from backburner.services.queries import Queries
from backburner.system.home import Home, read_plain
from backburner.system.paths import project_of
from backburner.system.run_files import CONVERSATION

if TYPE_CHECKING:
    from backburner.core.store_ports import MemoryStore, SessionStore, TaskStore
    from backburner.system.git_worktree import Worktree

_BEING_RESUMED = "Task is currently being resumed. Wait for completion before sending another message."


class Conversations:
    """Stores one conversation file per task; a recurring task starts a new conversation in every run."""

    def __init__(
        self,
        home: Home,
        task_store: "TaskStore",
        session_store: "SessionStore",
        memory_store: "MemoryStore",
        queries: Queries,
        catalog: AgentCatalog,
        identity: Identity,
        publisher: Publisher,
        clock: Clock,
    ) -> None:
        self._home, self._task_store, self._session_store, self._memory_store = home, task_store, session_store, memory_store
        self._queries, self._catalog = queries, catalog
        self._identity, self._publisher, self._clock = identity, publisher, clock

    def resume(self, reference: str, message: str, caller: Caller) -> Entry:
        """Send another message to an agent that has answered: a new run of its task, in the same conversation."""
        from backburner.services.validation import MAX_PROMPT_CHARACTERS

        entry = self._queries.find(reference, caller)
        task, run = entry
        if task.spec.agent_name is None or run is None:
            raise NotResumable(f"Task {task.task_id} is a command; only agent tasks can be resumed.")
        if task.is_recurring:
            raise NotResumable(
                f"Task {task.task_id} starts a new conversation with every run. Start a new run: backburner run-now {task.task_id}"
            )
        self._identity.require_own(task, "resume", caller)
        if not message.strip():
            raise BadInput("The message is empty.")
        if len(message) > MAX_PROMPT_CHARACTERS:
            raise BadInput(f"The message is longer than {MAX_PROMPT_CHARACTERS:,} characters; put the rest into a file.")
        if run.n > 1 and run.state in LIVE:
            raise NotResumable(_BEING_RESUMED)
        if entry.status != RunState.COMPLETED and run.end.result != Result.LOST and not (task.in_chat and entry.has_ended):
            status = {"failed": "error", "pending": "running"}.get(entry.status, entry.status)
            raise NotResumable(f"Cannot resume task: status is '{status}'. Only completed tasks can be resumed.")
        kept = self._read(task)
        if kept is None and (run.end.result != Result.LOST or run.n > 1) and not task.in_chat:
            raise NotResumable("Session expired or was deleted. Start a new background_task to continue.")
        if run.end.result == Result.LOST and run.message and json.dumps(run.message, ensure_ascii=False)[1:-1] not in (kept or ""):
            message = f"{run.message}\n\n{message}"  # it was interrupted before the agent received the previous message
        try:
            entry = self._task_store.resume(task.task_id, message, runner=task.lane or AGENT_LANE, now=self._clock())
        except StaleRun:
            raise NotResumable(_BEING_RESUMED) from None
        self._publisher.publish(entry)
        return entry

    def path(self, task: Task, run: Run | None = None) -> str:
        """Return the path of the conversation file of an agent task."""
        name = run.run_id if task.is_recurring and run else task.task_id
        return os.path.join(self._home.folder(os.path.join("tasks", name)), CONVERSATION)

    def worktree(self, task: Task) -> "Worktree | None":
        """Return the git worktree of a task, or None if it does not use one."""
        return worktree_of(self._home, task)

    def chat(self, session: str) -> Entry | None:
        """Return the task of a chat, or None before its first message."""
        return next((entry for entry in self._queries.requested_by(session) if entry.task.in_chat and entry.task.session == session), None)

    def chats(self, caller: Caller) -> Sequence[Session]:
        """The chats of the caller's project, latest first."""
        here = project_of(caller.cwd)
        return [session for session in self._session_store.sessions(Client.CHAT) if session.project == here]

    def set_model(self, session: str, agent: str, model: str | None) -> Entry:
        """Use another agent or model for the next answers of a chat."""
        entry = self.chat(session)
        if entry is None or entry.is_live:
            raise BadInput("The agent is still answering; change the model after this answer.")
        options, lane = entry.task.spec.options._replace(model=model or ""), self._catalog.lane_of(agent, model=model)
        self._task_store.set_model(entry.task.task_id, agent, options, lane)
        return self._queries.get(entry.task.task_id)

    def mark_retrieved(self, entry: Entry) -> None:
        """Record that the result of a task was read."""
        if entry.task.retrieved_at is None:
            self._task_store.mark_retrieved(entry.task.task_id, self._clock())

    def remember(self, key: str, value: str | None, project: str) -> None:
        """Store a value under a key for the agents of a project; None deletes it."""
        if not (0 < len(key) <= 200 and key.isprintable()) or len(value or "") > 100_000:
            raise BadInput("A memory key can have up to 200 characters on one line, and its value up to 100,000 characters.")
        self._memory_store.set(self._memory_project(project), key, value, self._clock())

    def memory(self, project: str) -> dict[str, str]:
        """Return the memory of a project's agents."""
        return self._memory_store.all(self._memory_project(project))

    def _memory_project(self, project: str) -> str:
        """Return the project whose memory is used: for the worktree of a task, the project of that task."""
        folder, task_id = os.path.split(project)
        entry = self._queries.get_or_none(task_id) if folder == os.path.join(self._home.root, "worktrees") else None
        return entry.task.project if entry else project

    def _read(self, task: Task) -> str | None:
        try:
            return read_plain(self.path(task), 1 << 28).decode("utf-8", "replace")
        except OSError:
            return None


def worktree_of(home: Home, task: Task) -> "Worktree | None":
    """Return the git worktree of a task, or None if it does not use one."""
    if not task.spec.options.worktree:
        return None
    from backburner.system.git_worktree import Worktree

    return Worktree(task.project, os.path.join(home.root, "worktrees", task.task_id), task.task_id)
