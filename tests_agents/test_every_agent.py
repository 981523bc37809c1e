"""What is promised of every agent from outside, each by the agent itself: work, permissions, stops, and conversations that go on."""

from typing import Any

import pytest
from harness import said
from real import wait_until

AGENTS = ["opencode", "opencode-acp", "claude", "codex", "gemini", "qwen", "goose"]
every_agent = pytest.mark.parametrize("agent", AGENTS)


@every_agent
def test_it_works_is_counted_and_talks_on_in_a_new_process_with_all_that_was_said(office: Any, agent: str) -> None:
    somebody = office.session(agent)
    task_id = somebody.ask(somebody.kind.runs("ls"), {"say": "There is little here."}, words=f"First to {agent}.")
    assert somebody.status(task_id) == "running"
    assert somebody.answer(task_id) == "There is little here.\n"
    looked = somebody.look(task_id)
    assert looked["tool_calls"] == 1 and len(looked["recent_tools"]) == 1, looked
    assert len(somebody.notices(task_id)) == 1
    resumed = somebody.resume(task_id, {"say": "As I said."}, words=f"Second to {agent}.")
    assert resumed.get("status") == "resumed", resumed
    assert somebody.answer(task_id) == "As I said.\n"
    assert len(somebody.notices(task_id)) == 2
    [*_, last] = somebody.asked(f"Second to {agent}.")
    text = said(last)
    assert f"First to {agent}." in text and "There is little here." in text, "it has its whole conversation"


@every_agent
def test_what_needs_a_yes_waits_for_it_and_goes_on_with_it(office: Any, agent: str) -> None:
    somebody = office.session(agent)
    command, made = office.script()
    task_id = somebody.ask(somebody.kind.runs(command, asks=True), {"say": "It is made."})
    looked = somebody.until(task_id, "waiting", "completed", "error")
    assert looked["status"] == "waiting" and command in looked["display"], looked
    assert not made.exists() and somebody.notices(task_id) == []
    office.place.ok("approve", task_id)
    assert somebody.answer(task_id) == "It is made.\n"
    assert made.read_text() == "made\n"


@every_agent
def test_a_no_is_told_to_it_and_it_goes_on_without(office: Any, agent: str) -> None:
    somebody = office.session(agent)
    command, made = office.script()
    task_id = somebody.ask(somebody.kind.runs(command, asks=True), {"say": "Then without."})
    somebody.until(task_id, "waiting")
    office.place.ok("reject", task_id)
    assert somebody.answer(task_id) == "Then without.\n"
    assert not made.exists()
    heard = [said(one) for one in somebody.asked(command)][1:]
    assert any(somebody.kind.refusal in text for text in heard), heard


@every_agent
def test_a_cancel_ends_it_with_the_command_that_it_runs(office: Any, agent: str) -> None:
    somebody = office.session(agent)
    gate = office.gate()
    task_id = somebody.ask(somebody.kind.runs(gate.command), {"say": "never"})

    def runs() -> bool:
        if somebody.status(task_id) == "waiting":  # one that does not say what it would run is asked about it
            office.place.ok("approve", task_id)
        return bool(gate.readers())

    wait_until(runs, "its command to run", 120)
    stopped = somebody.call("background_cancel", task_id=task_id)
    assert stopped["tasks"][0]["status"] == "cancelled", stopped
    gate.left()
    assert len(somebody.notices(task_id)) <= 1
    assert somebody.asked(gate.command)[1:] == [] or "never" not in str(somebody.look(task_id))


@every_agent
def test_an_error_of_its_provider_is_a_failure(office: Any, agent: str) -> None:
    somebody = office.session(agent)
    task_id = somebody.ask({"error": 400, "times": 99}, {"say": "never"})
    assert "400" in somebody.failure(task_id)
    assert len(somebody.notices(task_id)) == 1
    again = somebody.resume(task_id, {"say": "never"})
    assert again["error"]["message"] == "Cannot resume task: status is 'error'. Only completed tasks can be resumed."


def test_a_yes_that_comes_after_our_host_was_killed_counts_for_the_step_that_its_server_holds(office: Any) -> None:
    somebody = office.session("opencode")
    command, made = office.script()
    task_id = somebody.ask(somebody.kind.runs(command), {"say": "It is made."}, words="Late yes.")
    somebody.until(task_id, "waiting")
    office.kill("agents.process")
    assert somebody.status(task_id) == "waiting" and not made.exists()
    office.place.ok("approve", task_id)
    assert somebody.answer(task_id) == "It is made.\n"
    assert made.read_text() == "made\n" and len(somebody.notices(task_id)) == 1
    assert said(somebody.asked("Late yes.")[-1]).count("Late yes.") == 1


@pytest.mark.parametrize("agent", ["opencode-acp", "claude", "codex", "qwen", "goose"])
def test_a_yes_that_comes_after_our_host_was_killed_is_told_in_the_session(office: Any, agent: str) -> None:
    """The agent went with its host; told of the yes, it does the step again, and is not asked about it twice."""
    somebody = office.session(agent)
    command, made = office.script()
    step = somebody.kind.runs(command, asks=True)
    task_id = somebody.ask(*[step] * somebody.kind.cut, step, {"say": "It is made."}, words=f"Late yes for {agent}.")
    somebody.until(task_id, "waiting")
    office.kill("agents.process")
    assert somebody.status(task_id) == "waiting" and not made.exists()
    office.place.ok("approve", task_id)
    looked = somebody.until(task_id, "completed", "error", "waiting")
    last = said(somebody.asked(f"Late yes for {agent}.")[-1])
    assert made.exists(), ("what was granted is not asked for again", looked, last[-3000:])
    if looked["status"] == "waiting":  # killed so early that fewer turns are in its history: its model does the step once more
        office.place.ok("approve", task_id)
        looked = somebody.until(task_id, "completed", "error", "waiting")
    assert looked["status"] == "completed", (looked, last[-3000:])
    assert made.read_text() == "made\n" and len(somebody.notices(task_id)) == 1
    assert "The user approved your request" in last and last.count(f"Late yes for {agent}.") == 1, (
        "it is told the word, not the prompt again"
    )


@every_agent
def test_a_cancel_while_it_waits_for_a_word_leaves_nothing(office: Any, agent: str) -> None:
    somebody = office.session(agent)
    command, made = office.script()
    task_id = somebody.ask(somebody.kind.runs(command, asks=True), {"say": "never"})
    somebody.until(task_id, "waiting")
    assert somebody.call("background_cancel", task_id=task_id)["tasks"][0]["status"] == "cancelled"
    wait_until(lambda: not office.unknown(), "the agent to be gone", 30)
    assert not made.exists()
