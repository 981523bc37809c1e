"""Parsing and formatting of sessions and recipients."""

import pytest

from backburner.core.recipients import PERSON, Recipient, RecipientKind, recipient_of, to_channel
from backburner.core.sessions import Client, SessionId, agent_task, is_chat


@pytest.mark.parametrize(
    ("text", "client", "key"),
    [
        ("claude:1a-2b", "claude", "1a-2b"),
        ("agent:task_x", Client.AGENT, "task_x"),
        ("task:task_x", Client.RECURRING, "task_x"),
        ("chat:20260101_1", Client.CHAT, "20260101_1"),
        ("opencode:ses:1", "opencode", "ses:1"),
        ("discovery", "discovery", ""),
    ],
)
def test_a_session_is_parsed_into_client_and_key(text: str, client: str, key: str) -> None:
    assert SessionId.parse(text) == (client, key)
    assert str(SessionId(client, key)) == text


@pytest.mark.parametrize(
    ("session", "task_id", "chat"),
    [
        (None, None, False),
        ("agent:task_x", "task_x", False),
        ("task:task_x", "task_x", False),
        ("chat:task_x", None, True),
        ("claude:task_x", None, False),
        ("agents:task_x", None, False),
        ("chats:1", None, False),
        ("discovery", None, False),
    ],
)
def test_only_sessions_of_agents_contain_a_task_id(session: str | None, task_id: str | None, chat: bool) -> None:
    assert agent_task(session) == task_id
    assert is_chat(session) is chat


@pytest.mark.parametrize(
    ("text", "recipient"),
    [
        ("inbox", PERSON),
        ("session:claude:1", Recipient(RecipientKind.SESSION, "claude:1")),
        ("to:phone", Recipient(RecipientKind.CHANNEL, "phone")),
        ("to:a:b", Recipient(RecipientKind.CHANNEL, "a:b")),
    ],
)
def test_a_recipient_is_parsed_into_kind_and_name(text: str, recipient: Recipient) -> None:
    assert Recipient.parse(text) == recipient
    assert str(recipient) == text


def test_notices_of_a_task_without_a_session_go_to_the_person() -> None:
    assert recipient_of(None) == PERSON
    assert str(recipient_of("chat:1")) == "session:chat:1"
    assert to_channel("phone") == "to:phone"
