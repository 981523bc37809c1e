"""Every external agent, tested with its real program: work, permissions, cancelling, and resuming."""

from typing import Any

import pytest
from harness import said
from real import wait_until

AGENTS = ["opencode", "opencode-acp", "claude", "codex", "gemini", "qwen", "goose"]
every_agent = pytest.mark.parametrize("agent", AGENTS)


@every_agent
def test_an_agent_works_is_counted_and_resumes_with_its_full_history(agents_home: Any, agent: str) -> None:
    session = agents_home.session(agent)
    task_id = session.ask(session.kind.command_step("ls"), {"say": "There is little here."}, words=f"First to {agent}.")
    assert session.status(task_id) == "running"
    assert session.answer(task_id) == "There is little here.\n"
    output = session.output(task_id)
    assert output["tool_calls"] == 1 and len(output["recent_tools"]) == 1, output
    assert len(session.notices(task_id)) == 1
    resumed = session.resume(task_id, {"say": "As I said."}, words=f"Second to {agent}.")
    assert resumed.get("status") == "resumed", resumed
    assert session.answer(task_id) == "As I said.\n"
    assert len(session.notices(task_id)) == 2
    [*_, last] = session.requests(f"Second to {agent}.")
    text = said(last)
    assert f"First to {agent}." in text and "There is little here." in text, "the full history is kept"


@every_agent
def test_a_command_waits_for_approval_and_continues_after_it(agents_home: Any, agent: str) -> None:
    session = agents_home.session(agent)
    command, made = agents_home.script()
    task_id = session.ask(session.kind.command_step(command, asks=True), {"say": "It is made."})
    output = session.wait_for(task_id, "waiting", "completed", "error")
    assert output["status"] == "waiting" and command in output["display"], output
    assert not made.exists() and session.notices(task_id) == []
    agents_home.home_cli.ok("approve", task_id)
    assert session.answer(task_id) == "It is made.\n"
    assert made.read_text() == "made\n"


@every_agent
def test_a_rejection_reaches_the_agent_and_it_continues(agents_home: Any, agent: str) -> None:
    session = agents_home.session(agent)
    command, made = agents_home.script()
    task_id = session.ask(session.kind.command_step(command, asks=True), {"say": "Then without."})
    session.wait_for(task_id, "waiting")
    agents_home.home_cli.ok("reject", task_id)
    assert session.answer(task_id) == "Then without.\n"
    assert not made.exists()
    texts = [said(request) for request in session.requests(command)][1:]
    assert any(session.kind.refusal in text for text in texts), texts


@every_agent
def test_cancel_ends_the_agent_and_its_command(agents_home: Any, agent: str) -> None:
    session = agents_home.session(agent)
    gate = agents_home.gate()
    task_id = session.ask(session.kind.command_step(gate.command), {"say": "never"})

    def command_runs() -> bool:
        if session.status(task_id) == "waiting":  # some agents do not send the command, so a person must approve it
            agents_home.home_cli.ok("approve", task_id)
        return bool(gate.readers())

    wait_until(command_runs, "its command to run", 120)
    stopped = session.call("background_cancel", task_id=task_id)
    assert stopped["tasks"][0]["status"] == "cancelled", stopped
    gate.wait_until_left()
    assert len(session.notices(task_id)) <= 1
    assert session.requests(gate.command)[1:] == [] or "never" not in str(session.output(task_id))


@every_agent
def test_a_provider_error_fails_the_run(agents_home: Any, agent: str) -> None:
    session = agents_home.session(agent)
    task_id = session.ask({"error": 400, "times": 99}, {"say": "never"})
    assert "400" in session.failure(task_id)
    assert len(session.notices(task_id)) == 1
    again = session.resume(task_id, {"say": "never"})
    assert again["error"]["message"] == "Cannot resume task: status is 'error'. Only completed tasks can be resumed."


def test_an_approval_after_a_killed_agent_process_reaches_the_step_in_the_server(agents_home: Any) -> None:
    session = agents_home.session("opencode")
    command, made = agents_home.script()
    task_id = session.ask(session.kind.command_step(command), {"say": "It is made."}, words="Late approval.")
    session.wait_for(task_id, "waiting")
    agents_home.kill("agents.process")
    assert session.status(task_id) == "waiting" and not made.exists()
    agents_home.home_cli.ok("approve", task_id)
    assert session.answer(task_id) == "It is made.\n"
    assert made.read_text() == "made\n" and len(session.notices(task_id)) == 1
    assert said(session.requests("Late approval.")[-1]).count("Late approval.") == 1


@pytest.mark.parametrize("agent", ["opencode-acp", "claude", "codex", "qwen", "goose"])
def test_an_approval_after_a_killed_agent_process_is_sent_in_the_session(agents_home: Any, agent: str) -> None:
    """The agent ends with the agent process. After the approval it repeats the step without a second request."""
    session = agents_home.session(agent)
    command, made = agents_home.script()
    step = session.kind.command_step(command, asks=True)
    task_id = session.ask(*[step] * session.kind.cut, step, {"say": "It is made."}, words=f"Late approval for {agent}.")
    session.wait_for(task_id, "waiting")
    agents_home.kill("agents.process")
    assert session.status(task_id) == "waiting" and not made.exists()
    agents_home.home_cli.ok("approve", task_id)
    output = session.wait_for(task_id, "completed", "error", "waiting")
    last = said(session.requests(f"Late approval for {agent}.")[-1])
    assert made.exists(), ("an approved step needs no second approval", output, last[-3000:])
    if output["status"] == "waiting":  # killed early, so its history has fewer turns and the model repeats the step
        agents_home.home_cli.ok("approve", task_id)
        output = session.wait_for(task_id, "completed", "error", "waiting")
    assert output["status"] == "completed", (output, last[-3000:])
    assert made.read_text() == "made\n" and len(session.notices(task_id)) == 1
    assert "The user approved your request" in last and last.count(f"Late approval for {agent}.") == 1, (
        "it gets the decision, and not the prompt again"
    )


@every_agent
def test_cancel_while_waiting_for_approval_leaves_no_process(agents_home: Any, agent: str) -> None:
    session = agents_home.session(agent)
    command, made = agents_home.script()
    task_id = session.ask(session.kind.command_step(command, asks=True), {"say": "never"})
    session.wait_for(task_id, "waiting")
    assert session.call("background_cancel", task_id=task_id)["tasks"][0]["status"] == "cancelled"
    wait_until(lambda: not agents_home.unknown_processes(), "the agent to be gone", 30)
    assert not made.exists()
