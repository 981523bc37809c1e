"""The scenarios of background tasks with OpenCode at work: over its server, and over the Agent Client Protocol."""

import json
import re
import signal
import time
from contextlib import closing
from typing import Any

import pytest
from harness import PATIENCE, OpenCode, Proxy, Server, call, processes, said
from real import wait_until

from backburner.system import processes as process

EXPIRED = "Session expired or was deleted. Start a new background_task to continue."
both = pytest.mark.parametrize("agent", ["opencode", "opencode-acp"])
runs = OpenCode.runs


def named(url: str) -> str:
    """Our settings for an agent in a person's server."""
    return f'[agents.theirs]\ntype = "opencode"\nurl = "{url}"\n'


def conversation(office: Any, task_id: str) -> dict[str, Any]:
    return json.loads((office.place.folder(task_id) / "conversation.json").read_text())


@both
def test_a_task_has_an_id_at_once_and_runs(office: Any, agent: str) -> None:
    somebody = office.session(agent)
    asked = somebody.call("background_task", description="Wait", prompt='[[script: [{"hang": 50, "say": "never"}]]]', agent=agent)
    assert re.fullmatch(rf"task_\d{{8}}_\d{{6}}_{agent}(_\d+)?", asked["task_id"]) and asked["status"] == "running"
    entry = office.do(lambda runtime: runtime.show(asked["task_id"]))
    assert entry.task.session == somebody.name and entry.task.spec.agent_name == agent
    wait_until(lambda: office.model.seen('"hang": 50'), "the model to be asked", PATIENCE)
    assert somebody.status(asked["task_id"]) == "running"
    assert somebody.call("background_cancel", task_id=asked["task_id"])["tasks"][0]["status"] == "cancelled"


@both
def test_its_tools_are_counted_while_it_works(office: Any, agent: str) -> None:
    somebody = office.session(agent)
    task_id = somebody.ask(runs("echo one"), {"tool": "glob", "args": {"pattern": "*.py"}}, {"hang": 55, "say": "never"})
    wait_until(lambda: somebody.look(task_id)["tool_calls"] == 2, "both tools to be counted", PATIENCE)
    looked = somebody.look(task_id)
    assert looked["status"] == "running" and looked["last_update"] and "result" not in looked
    if agent == "opencode":
        assert looked["recent_tools"] == ["bash", "glob"]
    else:
        assert len(looked["recent_tools"]) == 2
    somebody.call("background_cancel", task_id=task_id)
    somebody.until(task_id, "cancelled")


def test_the_end_is_heard_and_not_looked_for(office: Any) -> None:
    with closing(Server(office)) as server, closing(Proxy(server.port)) as proxy:
        office.configure(named(proxy.url))
        somebody = office.session("theirs")
        task_id = somebody.ask(runs("echo one"), {"say": "by event"})
        assert somebody.answer(task_id) == "by event\n"
        [said_at] = [n for n, request in enumerate(proxy.requests) if "prompt_async" in request]
        assert "GET /global/event" in proxy.requests
        after = [request for request in proxy.requests[said_at:] if request.startswith("GET") and request.endswith("/message")]
        assert after == [], "what was heard was enough"
        assert len(somebody.notices(task_id)) == 1 and "by event" in somebody.notices(task_id)[0]


def test_the_end_is_found_where_no_event_comes_any_more(office: Any) -> None:
    with closing(Server(office)) as server, closing(Proxy(server.port)) as proxy:
        office.configure(named(proxy.url))
        somebody, gate = office.session("theirs"), office.gate()
        task_id = somebody.ask(runs(gate.command), {"say": "by looking"})
        gate.reached()
        proxy.cut()
        gate.open()
        session = conversation(office, task_id)["session"]

        def answered() -> bool:
            messages = call(server.url, "GET", f"/session/{session}/message")
            return messages[-1]["info"].get("finish") == "stop" and "completed" in messages[-1]["info"]["time"]

        wait_until(answered, "OpenCode to have the answer", PATIENCE)
        began = time.monotonic()
        assert somebody.answer(task_id) == "by looking\n"
        print(f"found {time.monotonic() - began:.1f} s after it was there")
        assert time.monotonic() - began < 15
        assert len(somebody.notices(task_id)) == 1

        before = len(proxy.requests)
        task_id = somebody.ask(runs("echo two"), {"say": "never heard"})  # and where there were none from the start
        assert somebody.answer(task_id) == "never heard\n"
        assert "GET /global/event" in proxy.requests[before:], "it tries to hear again"
        assert len(somebody.notices(task_id)) == 1


def test_a_cancel_aborts_the_session(office: Any) -> None:
    somebody, gate = office.session("opencode"), office.gate()
    task_id = somebody.ask(runs(gate.command), {"say": "never"})
    gate.reached()
    assert somebody.call("background_cancel", task_id=task_id)["tasks"][0]["status"] == "cancelled"
    gate.left()
    [server] = office.servers
    session = conversation(office, task_id)["session"]
    folder = f"?directory={office.place.cwd}"
    assert session not in call(server["url"], "GET", f"/session/status{folder}", password=server["password"])
    messages = call(server["url"], "GET", f"/session/{session}/message", password=server["password"])
    assert messages[-1]["info"].get("error", {}).get("name") == "MessageAbortedError", messages[-1]["info"]
    assert somebody.resume(task_id, {"say": "x"})["error"]["message"].startswith("Cannot resume task: status is 'cancelled'.")


@both
def test_what_is_asked_right_after_an_error_is_not_lost(office: Any, agent: str) -> None:
    somebody = office.session(agent)
    for number in range(3 if agent == "opencode" else 1):
        failed = somebody.ask({"error": 400, "times": 9}, {"say": "never"}, words=f"Fails {number}.")
        assert "scripted error 400" in somebody.failure(failed)
        assert len(somebody.notices(failed)) == 1
        task_id = somebody.ask({"say": f"after {number}"})
        assert somebody.answer(task_id) == f"after {number}\n"


def test_a_storm_of_retries_is_bounded(office: Any) -> None:
    """Both at once: OpenCode waits longer and longer between two tries."""
    asked = {}
    for agent in ("opencode", "opencode-acp"):
        somebody = office.session(agent)
        asked[somebody] = somebody.ask({"error": 500, "times": 999}, {"say": "never"}, words=f"Storm of {agent}.")
    for somebody, task_id in asked.items():
        assert "scripted error 500" in somebody.failure(task_id, seconds=200)
        assert len(somebody.notices(task_id)) == 1
        tries = len(somebody.asked(f"Storm of {somebody.agent}."))
        assert 2 <= tries <= 8, "it tried again, and gave up"
    wait_until(lambda: _quiet(office), "nobody to be asked any more", 30)


def _quiet(office: Any) -> bool:
    """Whether the server has nothing under way."""
    [server] = office.servers
    return call(server["url"], "GET", f"/session/status?directory={office.place.cwd}", password=server["password"]) == {}


def test_it_goes_on_when_our_host_is_killed_and_ends_once(office: Any) -> None:
    somebody, gate = office.session("opencode"), office.gate()
    task_id = somebody.ask(runs(gate.command), runs("echo after"), {"say": "through it all"}, words="Host killed.")
    gate.reached()
    office.kill("agents.process")
    assert gate.readers(), "it works on"
    gate.open()
    assert somebody.answer(task_id) == "through it all\n"
    assert len(somebody.notices(task_id)) == 1
    assert somebody.look(task_id)["tool_calls"] == 2
    texts = [said(one) for one in somebody.asked("Host killed.")]
    assert len(texts) == 3 and texts[-1].count("Host killed.") == 1, "nothing was said or done twice"


def test_an_agent_of_the_protocol_is_told_as_interrupted_and_talks_on_when_our_host_is_killed(office: Any) -> None:
    somebody, gate = office.session("opencode-acp"), office.gate()
    task_id = somebody.ask(runs(gate.command), {"say": "never"}, words="Host of the protocol killed.")
    gate.reached()
    office.kill("agents.process")
    assert "interrupted" in somebody.failure(task_id)
    gate.left()
    assert len(somebody.notices(task_id)) == 1
    resumed = somebody.resume(task_id, {"say": "here again"}, words="Go on then.")
    assert resumed.get("status") == "resumed", resumed
    assert somebody.answer(task_id) == "here again\n"
    [*_, last] = somebody.asked("Go on then.")
    assert said(last).count("Host of the protocol killed.") == 1, "what it has heard is not said again"
    assert gate.command in said(last)
    assert len(somebody.notices(task_id)) == 2


def test_it_goes_on_when_the_server_is_killed(office: Any) -> None:
    somebody, gate = office.session("opencode"), office.gate()
    task_id = somebody.ask(runs(gate.command), {"say": "after the crash"}, words="Server killed.")
    gate.reached()
    [before] = office.servers
    killed = process.ProcessId.parse(before["process"])
    assert process.send(killed, signal.SIGKILL)
    assert somebody.answer(task_id) == "after the crash\n"
    gate.left()
    [after] = office.servers
    assert after["process"] != before["process"]
    assert len(somebody.notices(task_id)) == 1
    [*_, last] = somebody.asked("Server killed.")
    assert "You were interrupted" in said(last)


def test_an_agent_of_the_protocol_that_is_killed_has_failed(office: Any) -> None:
    somebody, gate = office.session("opencode-acp"), office.gate()
    task_id = somebody.ask(runs(gate.command), {"say": "never"})
    gate.reached()
    run = office.do(lambda runtime: runtime.show(task_id)).run
    assert run and run.process and process.send(run.process, signal.SIGKILL)
    assert "exited during the turn" in somebody.failure(task_id)
    gate.left()
    assert len(somebody.notices(task_id)) == 1


@both
def test_a_resume_has_the_history_and_there_is_one_at_a_time(office: Any, agent: str) -> None:
    somebody, gate = office.session(agent), office.gate()
    task_id = somebody.ask(runs("echo early"), {"say": "first answer"}, words=f"Early words to {agent}.")
    assert somebody.answer(task_id) == "first answer\n"
    assert somebody.resume(task_id, runs(gate.command), {"say": "second answer"}, words=f"Late words to {agent}.")["status"] == "resumed"
    gate.reached()
    assert somebody.status(task_id) == "resumed"
    refused = somebody.resume(task_id, {"say": "x"})["error"]["message"]
    assert refused == "Task is currently being resumed. Wait for completion before sending another message."
    gate.open()
    assert somebody.answer(task_id) == "second answer\n"
    [*_, last] = somebody.asked(f"Late words to {agent}.")
    text = said(last)
    assert text.index(f"Early words to {agent}.") < text.index("first answer") < text.index(f"Late words to {agent}.")
    listed = somebody.call("background_list")["tasks"]
    assert next(one for one in listed if one["task_id"] == task_id)["resume_count"] == 1
    assert len(somebody.notices(task_id)) == 2


def test_a_session_that_was_deleted_has_expired(office: Any) -> None:
    somebody = office.session("opencode")
    task_id = somebody.ask({"say": "kept for now"})
    somebody.answer(task_id)
    [server] = office.servers
    call(server["url"], "DELETE", f"/session/{conversation(office, task_id)['session']}", password=server["password"])
    somebody.resume(task_id, {"say": "never"})
    assert EXPIRED in somebody.failure(task_id)


def test_a_session_that_the_agent_does_not_know_has_expired(office: Any) -> None:
    somebody = office.session("opencode-acp")
    task_id = somebody.ask({"say": "kept for now"})
    somebody.answer(task_id)
    about = conversation(office, task_id)
    record = office.place.folder(task_id) / "conversation.json"
    record.write_text(json.dumps({**about, "session": "ses_0000000000000000000000000"}))
    somebody.resume(task_id, {"say": "never"})
    assert EXPIRED in somebody.failure(task_id)


def test_what_it_asked_for_is_told_in_its_session_once(office: Any) -> None:
    """A command that belongs to the agent's own session ends while it works."""
    somebody, gate = office.session("opencode"), office.gate()
    first, second = office.gate(), office.gate()
    task_id = somebody.ask(
        runs(gate.command), runs(first.command), runs(second.command), {"say": "I was told."}, words="Parent of a command."
    )
    gate.reached()
    session = {"BACKBURNER_SESSION": f"agent:{task_id}"}
    below = office.place.ok("run", "--yes", "--", "echo", "from below", env=session).strip()
    wait_until(lambda: office.place.status(below)["status"] == "completed", "the command to end")

    def told() -> bool:
        owed = office.do(lambda runtime: list(runtime.owed(f"agent:{task_id}")))
        return not owed

    wait_until(told, "it to be told", 60)
    for one in (gate, first, second):
        one.open()
    assert somebody.answer(task_id) == "I was told.\n"
    [*_, last] = somebody.asked("Parent of a command.")
    assert said(last).count(f"<task-id>{below}</task-id>") == 1
    resumed = somebody.resume(task_id, {"say": "no more news"}, words="Anything else?")
    assert resumed["status"] == "resumed" and somebody.answer(task_id) == "no more news\n"
    [*_, last] = somebody.asked("Anything else?")
    assert said(last).count(f"<task-id>{below}</task-id>") == 1


def test_a_session_of_a_persons_server_is_told_what_it_asked_for_once(office: Any) -> None:
    with closing(Server(office)) as server:
        office.configure(named(server.url))
        made = call(server.url, "POST", f"/session?directory={office.place.cwd}", {"title": "a parent"})
        session = {"BACKBURNER_SESSION": f"opencode:{made['id']}"}
        below = office.place.ok("run", "--yes", "--", "echo", "for the parent", env=session).strip()

        def told() -> list[str]:
            return [said(one) for one in list(office.model.requests) if f"<task-id>{below}</task-id>" in said(one)]

        wait_until(told, "the parent to be told", PATIENCE)
        wait_until(lambda: not office.do(lambda runtime: list(runtime.owed(f"opencode:{made['id']}"))), "nothing to be owed", 60)
        assert all(text.count(f"<task-id>{below}</task-id>") == 1 for text in told())


def test_an_agent_that_begins_while_another_is_let_go_is_left_alone(own_office: Any) -> None:
    """The one was held for a word when it was cancelled; the other is asked in the next moment."""
    waits, works = own_office.session("opencode"), own_office.session("goose")
    for number in range(4):
        command, _ = own_office.script()
        held = waits.ask(runs(command), {"say": "never"})
        waits.until(held, "waiting")
        waits.call("background_cancel", task_id=held)
        task_id = works.ask({"hang": 1, "say": f"undisturbed {number}"})
        assert works.answer(task_id, seconds=40) == f"undisturbed {number}\n"


def test_twenty_sessions_at_once_are_in_one_server(own_office: Any) -> None:
    own_office.configure(capacity=20)
    somebody = own_office.session("opencode")
    task_ids = [somebody.ask(runs(f"echo {n}"), {"say": f"answer {n}"}) for n in range(20)]
    for n, task_id in enumerate(task_ids):
        assert somebody.answer(task_id, seconds=240) == f"answer {n}\n"
        assert len(somebody.notices(task_id)) == 1
    assert len(own_office.servers) == 1
    mark = f"BACKBURNER_HOME={own_office.place.root}".encode()
    serving = [words for _, env, words in processes() if mark in env and b"serve" in words.split(b"\0")]
    assert len(serving) == 1, serving
