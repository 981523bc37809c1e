"""Sessions: who asks for a task. The wire and the ledger have a session as the text `CLIENT:KEY`; only this module takes it apart."""

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from backburner.core.models import Task


class Client(StrEnum):
    """The clients that are Backburner itself. All other words are clients from outside, such as `claude`."""

    AGENT = "agent"  # the agent of a task that runs once, or one in a program of the user's own; the key is the id of that task or a name
    RECURRING = "task"  # the agent of a recurring task; the key is the id of that task
    CHAT = "chat"  # a person and an agent in one chat


UNATTENDED = frozenset({Client.AGENT, Client.RECURRING})  # they work when no person is there


class SessionId(NamedTuple):
    """A session in its two parts. One of Backburner's own may have a client and no key."""

    client: str
    key: str = ""

    def __str__(self) -> str:
        return f"{self.client}:{self.key}" if self.key else str(self.client)

    @classmethod
    def parse(cls, text: str) -> "SessionId":
        client, _, key = text.partition(":")
        return cls(client, key)


def session_of(task: "Task") -> str:
    """The session in which the agent of a task asks for others: a recurring one has a new conversation in every run.

    The agent of a chat shares the person's session: both are told how what either of them asked for ended.
    """
    if task.in_chat and task.session:
        return task.session
    return str(SessionId(Client.RECURRING if task.is_recurring else Client.AGENT, task.task_id))


def is_chat(session: str | None) -> bool:
    """Whether a session is a chat, in which a person types as well."""
    return session is not None and SessionId.parse(session).client == Client.CHAT


def agent_task(session: str | None) -> str | None:
    """The id of the task whose agent asks in a session; None for a person, a chat and clients from outside. There may be no such task."""
    asking = SessionId.parse(session) if session is not None else None
    return asking.key if asking and asking.client in UNATTENDED else None
