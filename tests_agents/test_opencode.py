"""The scenarios of background agents with a real OpenCode: over its server, and over the Agent Client Protocol."""

import json
import re
import signal
import time
from contextlib import closing
from typing import Any

import pytest
from harness import PATIENCE, OpenCode, Proxy, UserServer, call, processes, said
from real import wait_until

from backburner.system import processes as process

EXPIRED = "Session expired or was deleted. Start a new background_task to continue."
both = pytest.mark.parametrize("agent", ["opencode", "opencode-acp"])
command_step = OpenCode.command_step


def server_settings(url: str) -> str:
    """The settings of an agent in a user's server."""
    return f'[agents.theirs]\ntype = "opencode"\nurl = "{url}"\n'


def conversation(agents_home: Any, task_id: str) -> dict[str, Any]:
    return json.loads((agents_home.home_cli.folder(task_id) / "conversation.json").read_text())


@both
def test_a_task_has_an_id_immediately_and_runs(agents_home: Any, agent: str) -> None:
    client = agents_home.session(agent)
    asked = client.call("background_task", description="Wait", prompt='[[script: [{"hang": 50, "say": "never"}]]]', agent=agent)
    assert re.fullmatch(rf"task_\d{{8}}_\d{{6}}_{agent}(_\d+)?", asked["task_id"]) and asked["status"] == "running"
    entry = agents_home.call_app(lambda app: app.queries.get(asked["task_id"]))
    assert entry.task.session == client.name and entry.task.spec.agent_name == agent
    wait_until(lambda: agents_home.model.seen('"hang": 50'), "the model to be asked", PATIENCE)
    assert client.status(asked["task_id"]) == "running"
    assert client.call("background_cancel", task_id=asked["task_id"])["tasks"][0]["status"] == "cancelled"


@both
def test_tools_are_counted_while_the_agent_runs(agents_home: Any, agent: str) -> None:
    client = agents_home.session(agent)
    task_id = client.ask(command_step("echo one"), {"tool": "glob", "args": {"pattern": "*.py"}}, {"hang": 55, "say": "never"})
    wait_until(lambda: client.output(task_id)["tool_calls"] == 2, "both tools to be counted", PATIENCE)
    output = client.output(task_id)
    assert output["status"] == "running" and output["last_update"] and "result" not in output
    if agent == "opencode":
        assert output["recent_tools"] == ["bash", "glob"]
    else:
        assert len(output["recent_tools"]) == 2
    client.call("background_cancel", task_id=task_id)
    client.wait_for(task_id, "cancelled")


def test_the_end_is_detected_by_an_event_not_by_polling(agents_home: Any) -> None:
    """On a busy machine, events can be so far apart that the session is also polled: one turn without that is enough."""
    with closing(UserServer(agents_home)) as server, closing(Proxy(server.port)) as proxy:
        agents_home.configure(server_settings(proxy.url))
        client = agents_home.session("theirs")
        for _ in range(5):
            task_id = client.ask(command_step("echo one"), {"say": "by event"})
            assert client.answer(task_id) == "by event\n"
            assert len(client.notices(task_id)) == 1 and "by event" in client.notices(task_id)[0]
            session = conversation(agents_home, task_id)["session"]
            said_at = proxy.requests.index(f"POST /session/{session}/prompt_async")
            polls = proxy.requests[said_at:].count(f"GET /session/{session}/message")
            if not polls:
                break
        assert "GET /global/event" in proxy.requests
        assert not polls, "the events were enough"


def test_the_end_is_detected_without_events(agents_home: Any) -> None:
    with closing(UserServer(agents_home)) as server, closing(Proxy(server.port)) as proxy:
        agents_home.configure(server_settings(proxy.url))
        client, gate = agents_home.session("theirs"), agents_home.gate()
        task_id = client.ask(command_step(gate.command), {"say": "by polling"})
        gate.wait_until_reached()
        proxy.block_events()
        gate.open()
        session = conversation(agents_home, task_id)["session"]

        def answered() -> bool:
            messages = call(server.url, "GET", f"/session/{session}/message")
            return messages[-1]["info"].get("finish") == "stop" and "completed" in messages[-1]["info"]["time"]

        wait_until(answered, "OpenCode to have the answer", PATIENCE)
        started_at = time.monotonic()
        assert client.answer(task_id) == "by polling\n"
        print(f"found after {time.monotonic() - started_at:.1f} s")
        assert time.monotonic() - started_at < 15
        assert len(client.notices(task_id)) == 1

        before = len(proxy.requests)
        task_id = client.ask(command_step("echo two"), {"say": "without events"})  # also without events from the start
        assert client.answer(task_id) == "without events\n"
        assert "GET /global/event" in proxy.requests[before:], "it tries to open the event stream again"
        assert len(client.notices(task_id)) == 1


def test_a_cancel_aborts_the_session(agents_home: Any) -> None:
    client, gate = agents_home.session("opencode"), agents_home.gate()
    task_id = client.ask(command_step(gate.command), {"say": "never"})
    gate.wait_until_reached()
    assert client.call("background_cancel", task_id=task_id)["tasks"][0]["status"] == "cancelled"
    gate.wait_until_left()
    [server] = agents_home.servers
    session = conversation(agents_home, task_id)["session"]
    folder = f"?directory={agents_home.home_cli.cwd}"
    assert session not in call(server["url"], "GET", f"/session/status{folder}", password=server["password"])
    messages = call(server["url"], "GET", f"/session/{session}/message", password=server["password"])
    assert messages[-1]["info"].get("error", {}).get("name") == "MessageAbortedError", messages[-1]["info"]
    assert client.resume(task_id, {"say": "x"})["error"]["message"].startswith("Cannot resume task: status is 'cancelled'.")


@both
def test_a_prompt_right_after_an_error_is_not_lost(agents_home: Any, agent: str) -> None:
    client = agents_home.session(agent)
    for number in range(3 if agent == "opencode" else 1):
        failed = client.ask({"error": 400, "times": 9}, {"say": "never"}, words=f"Fails {number}.")
        assert "scripted error 400" in client.failure(failed)
        assert len(client.notices(failed)) == 1
        task_id = client.ask({"say": f"after {number}"})
        assert client.answer(task_id) == f"after {number}\n"


def test_provider_retries_are_limited(agents_home: Any) -> None:
    """Both agents run at once, because OpenCode increases the delay between retries."""
    asked = {}
    for agent in ("opencode", "opencode-acp"):
        client = agents_home.session(agent)
        asked[client] = client.ask({"error": 500, "times": 999}, {"say": "never"}, words=f"Storm of {agent}.")
    for client, task_id in asked.items():
        assert "scripted error 500" in client.failure(task_id, seconds=200)
        assert len(client.notices(task_id)) == 1
        tries = len(client.requests(f"Storm of {client.agent}."))
        assert 2 <= tries <= 8, "it retried a limited number of times"
    wait_until(lambda: _is_idle(agents_home), "the server to be idle", 30)


def _is_idle(agents_home: Any) -> bool:
    """Whether no session of the server is busy."""
    [server] = agents_home.servers
    return call(server["url"], "GET", f"/session/status?directory={agents_home.home_cli.cwd}", password=server["password"]) == {}


def test_a_turn_survives_a_killed_agent_process_and_ends_once(agents_home: Any) -> None:
    client, gate = agents_home.session("opencode"), agents_home.gate()
    task_id = client.ask(command_step(gate.command), command_step("echo after"), {"say": "through it all"}, words="Host killed.")
    gate.wait_until_reached()
    agents_home.kill("agents.process")
    assert gate.readers(), "the command continues"
    gate.open()
    assert client.answer(task_id) == "through it all\n"
    assert len(client.notices(task_id)) == 1
    assert client.output(task_id)["tool_calls"] == 2
    texts = [said(one) for one in client.requests("Host killed.")]
    assert len(texts) == 3 and texts[-1].count("Host killed.") == 1, "no prompt and no tool call was repeated"


def test_an_acp_agent_is_interrupted_by_a_killed_agent_process_and_resumes(agents_home: Any) -> None:
    client, gate = agents_home.session("opencode-acp"), agents_home.gate()
    task_id = client.ask(command_step(gate.command), {"say": "never"}, words="Host of the protocol killed.")
    gate.wait_until_reached()
    agents_home.kill("agents.process")
    assert "interrupted" in client.failure(task_id)
    gate.wait_until_left()
    assert len(client.notices(task_id)) == 1
    resumed = client.resume(task_id, {"say": "here again"}, words="Go on then.")
    assert resumed.get("status") == "resumed", resumed
    assert client.answer(task_id) == "here again\n"
    [*_, last] = client.requests("Go on then.")
    assert said(last).count("Host of the protocol killed.") == 1, "the first prompt is not repeated"
    assert gate.command in said(last)
    assert len(client.notices(task_id)) == 2


def test_a_turn_continues_after_its_server_is_killed(agents_home: Any) -> None:
    client, gate = agents_home.session("opencode"), agents_home.gate()
    task_id = client.ask(command_step(gate.command), {"say": "after the crash"}, words="Server killed.")
    gate.wait_until_reached()
    [before] = agents_home.servers
    killed = process.ProcessId.parse(before["process"])
    assert process.send(killed, signal.SIGKILL)
    assert client.answer(task_id) == "after the crash\n"
    gate.wait_until_left()
    [after] = agents_home.servers
    assert after["process"] != before["process"]
    assert len(client.notices(task_id)) == 1
    [*_, last] = client.requests("Server killed.")
    assert "You were interrupted" in said(last)


def test_a_killed_acp_agent_has_failed(agents_home: Any) -> None:
    client, gate = agents_home.session("opencode-acp"), agents_home.gate()
    task_id = client.ask(command_step(gate.command), {"say": "never"})
    gate.wait_until_reached()
    run = agents_home.call_app(lambda app: app.queries.get(task_id)).run
    assert run and run.process and process.send(run.process, signal.SIGKILL)
    assert "exited during the turn" in client.failure(task_id)
    gate.wait_until_left()
    assert len(client.notices(task_id)) == 1


@both
def test_a_resume_has_the_history_and_only_one_runs_at_a_time(agents_home: Any, agent: str) -> None:
    client, gate = agents_home.session(agent), agents_home.gate()
    task_id = client.ask(command_step("echo early"), {"say": "first answer"}, words=f"Early words to {agent}.")
    assert client.answer(task_id) == "first answer\n"
    assert (
        client.resume(task_id, command_step(gate.command), {"say": "second answer"}, words=f"Late words to {agent}.")["status"] == "resumed"
    )
    gate.wait_until_reached()
    assert client.status(task_id) == "resumed"
    refused = client.resume(task_id, {"say": "x"})["error"]["message"]
    assert refused == "Task is currently being resumed. Wait for completion before sending another message."
    gate.open()
    assert client.answer(task_id) == "second answer\n"
    [*_, last] = client.requests(f"Late words to {agent}.")
    text = said(last)
    assert text.index(f"Early words to {agent}.") < text.index("first answer") < text.index(f"Late words to {agent}.")
    listed = client.call("background_list")["tasks"]
    assert next(one for one in listed if one["task_id"] == task_id)["resume_count"] == 1
    assert len(client.notices(task_id)) == 2


def test_a_deleted_session_has_expired(agents_home: Any) -> None:
    client = agents_home.session("opencode")
    task_id = client.ask({"say": "kept for now"})
    client.answer(task_id)
    [server] = agents_home.servers
    call(server["url"], "DELETE", f"/session/{conversation(agents_home, task_id)['session']}", password=server["password"])
    client.resume(task_id, {"say": "never"})
    assert EXPIRED in client.failure(task_id)


def test_a_session_unknown_to_the_agent_has_expired(agents_home: Any) -> None:
    client = agents_home.session("opencode-acp")
    task_id = client.ask({"say": "kept for now"})
    client.answer(task_id)
    about = conversation(agents_home, task_id)
    record = agents_home.home_cli.folder(task_id) / "conversation.json"
    record.write_text(json.dumps({**about, "session": "ses_0000000000000000000000000"}))
    client.resume(task_id, {"say": "never"})
    assert EXPIRED in client.failure(task_id)


def test_notices_of_an_agents_tasks_reach_its_session_once(agents_home: Any) -> None:
    """A command of the agent's own session ends while the agent is running."""
    client, gate = agents_home.session("opencode"), agents_home.gate()
    first, second = agents_home.gate(), agents_home.gate()
    task_id = client.ask(
        command_step(gate.command),
        command_step(first.command),
        command_step(second.command),
        {"say": "I was told."},
        words="Parent of a command.",
    )
    gate.wait_until_reached()
    session = {"BACKBURNER_SESSION": f"agent:{task_id}"}
    task_below = agents_home.home_cli.ok("run", "--yes", "--", "echo", "from task_below", env=session).strip()
    wait_until(lambda: agents_home.home_cli.status(task_below)["status"] == "completed", "the command to end")

    def is_delivered() -> bool:
        return not agents_home.call_app(lambda app: list(app.inbox.pending(f"agent:{task_id}")))

    wait_until(is_delivered, "the notice to be delivered", 60)
    for one in (gate, first, second):
        one.open()
    assert client.answer(task_id) == "I was told.\n"
    [*_, last] = client.requests("Parent of a command.")
    assert said(last).count(f"<task-id>{task_below}</task-id>") == 1
    resumed = client.resume(task_id, {"say": "no more news"}, words="Anything else?")
    assert resumed["status"] == "resumed" and client.answer(task_id) == "no more news\n"
    [*_, last] = client.requests("Anything else?")
    assert said(last).count(f"<task-id>{task_below}</task-id>") == 1


def test_a_session_in_a_user_server_gets_its_notices_once(agents_home: Any) -> None:
    with closing(UserServer(agents_home)) as server:
        agents_home.configure(server_settings(server.url))
        made = call(server.url, "POST", f"/session?directory={agents_home.home_cli.cwd}", {"title": "a parent"})
        session = {"BACKBURNER_SESSION": f"opencode:{made['id']}"}
        task_below = agents_home.home_cli.ok("run", "--yes", "--", "echo", "for the parent", env=session).strip()

        def notified() -> list[str]:
            return [said(one) for one in list(agents_home.model.requests) if f"<task-id>{task_below}</task-id>" in said(one)]

        wait_until(notified, "the parent to be notified", PATIENCE)
        wait_until(
            lambda: not agents_home.call_app(lambda app: list(app.inbox.pending(f"opencode:{made['id']}"))), "no notice to be pending", 60
        )
        assert all(text.count(f"<task-id>{task_below}</task-id>") == 1 for text in notified())


def test_closing_a_cancelled_agent_does_not_affect_a_new_one(new_agents_home: Any) -> None:
    """The first agent waits for approval when it is cancelled; the second one is started immediately after."""
    waits, works = new_agents_home.session("opencode"), new_agents_home.session("goose")
    for number in range(4):
        command, _ = new_agents_home.script()
        held = waits.ask(command_step(command), {"say": "never"})
        waits.wait_for(held, "waiting")
        waits.call("background_cancel", task_id=held)
        task_id = works.ask({"hang": 1, "say": f"undisturbed {number}"})
        assert works.answer(task_id, seconds=40) == f"undisturbed {number}\n"


def test_twenty_simultaneous_sessions_share_one_server(new_agents_home: Any) -> None:
    new_agents_home.configure(capacity=20)
    client = new_agents_home.session("opencode")
    task_ids = [client.ask(command_step(f"echo {n}"), {"say": f"answer {n}"}) for n in range(20)]
    for n, task_id in enumerate(task_ids):
        assert client.answer(task_id, seconds=240) == f"answer {n}\n"
        assert len(client.notices(task_id)) == 1
    assert len(new_agents_home.servers) == 1
    mark = f"BACKBURNER_HOME={new_agents_home.home_cli.root}".encode()
    serving = [words for _, env, words in processes() if mark in env and b"serve" in words.split(b"\0")]
    assert len(serving) == 1, serving
