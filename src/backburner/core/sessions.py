"""Sessions that submit tasks. Protocols and the ledger store a session as text, `CLIENT:KEY`; only this module parses it."""

from enum import StrEnum

from backburner.core.light_typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from backburner.core.models import Task


class Client(StrEnum):
    """The clients that belong to Backburner. Any other client is external, such as `claude`."""

    AGENT = "agent"  # the agent of a one-shot task, or one embedded in a user's program; the key is the task id or a name
    RECURRING = "task"  # the agent of a recurring task; the key is the task id
    CHAT = "chat"  # a chat, shared by a person and an agent


UNATTENDED = frozenset({Client.AGENT, Client.RECURRING})  # these work without a person present


class SessionId(NamedTuple):
    """The two parts of a session. Sessions of Backburner itself may have no key."""

    client: str
    key: str = ""

    def __str__(self) -> str:
        return f"{self.client}:{self.key}" if self.key else str(self.client)

    @classmethod
    def parse(cls, text: str) -> "SessionId":
        client, _, key = text.partition(":")
        return cls(client, key)


def session_of(task: "Task") -> str:
    """Return the session in which the agent of a task submits other tasks.

    The agent of a chat shares the person's session, so both get the notices of tasks that either of them submitted.
    """
    if task.in_chat and task.session:
        return task.session
    return str(SessionId(Client.RECURRING if task.is_recurring else Client.AGENT, task.task_id))


def is_chat(session: str | None) -> bool:
    """Return whether a session is a chat, in which a person also submits tasks."""
    return session is not None and SessionId.parse(session).client == Client.CHAT


def agent_task(session: str | None) -> str | None:
    """Return the id of the task whose agent uses a session; None for a person, a chat and external clients.

    The task may no longer exist.
    """
    parsed = SessionId.parse(session) if session is not None else None
    return parsed.key if parsed and parsed.client in UNATTENDED else None


def submitted_by_agent(task: "Task") -> bool:
    """Return whether an agent submitted a task. In a chat, what the agent does not wait for counts as submitted by the person."""
    return task.session is not None and (not is_chat(task.session) or task.parent_task is not None)
