"""Identifying the caller: session names from the variables that clients set."""

import os

import pytest

from backburner.core.sessions import SessionId
from backburner.system.caller_identity import ancestors, caller_session, client_process, environment_for_commands, session_name
from backburner.system.processes import identify, myself


@pytest.mark.parametrize(
    ("environ", "session"),
    [
        ({}, None),
        ({"CLAUDE_CODE_SESSION_ID": "1a-2b"}, "claude:1a-2b"),
        ({"CODEX_THREAD_ID": "t1"}, "codex:t1"),
        ({"BACKBURNER_SESSION": "opencode:ses_1", "CLAUDE_CODE_SESSION_ID": "1"}, "opencode:ses_1"),
        ({"BACKBURNER_SESSION": "mine"}, "session:mine"),
        ({"CLAUDE_CODE_SESSION_ID": ""}, None),
    ],
)
def test_a_session_is_identified_by_the_variables_of_its_client(environ: dict[str, str], session: str | None) -> None:
    assert caller_session(environ) == session


def test_special_characters_are_replaced_in_session_names() -> None:
    assert session_name("My Client!", "a/b\n../\x1b[31m;") == "my-client:a-b-..-31m-"
    assert len(session_name("x" * 500, "y" * 500)) < 200
    assert SessionId.parse(session_name("claude", "x:y")) == ("claude", "x-y")


def test_a_command_does_not_get_the_messaging_variables_of_its_client() -> None:
    assert environment_for_commands({"CLAUDE_CODE_MESSAGING_TOKEN": "secret", "CLAUDE_CODE_MESSAGING_SOCKET": "s", "PATH": "/bin"}) == {
        "PATH": "/bin"
    }


def test_ancestors_are_listed_nearest_first() -> None:
    above = list(ancestors())
    assert above[0] == identify(os.getppid()) and myself() not in above


def test_the_client_process_is_found_by_its_pid_variable() -> None:
    assert client_process({"CLAUDE_PID": str(os.getpid())}) == myself()
    assert client_process({"CLAUDE_PID": "x"}) is None and client_process({}) is None
