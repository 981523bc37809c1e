"""A task that a person approved belongs to its session and to people: nobody else can send input, resume or restart it."""

import json
import sys
from pathlib import Path

import pytest
from conftest import CONFIG, HomeCli, caller, wait_until
from mcp_client import Raw

from backburner import BackburnerSync, NotYourTask
from backburner.coordination.supervision import EngineSupervisor
from backburner.core.errors import NotResumable
from backburner.core.models import AGENT_LANE
from backburner.services.app import open_app
from backburner.testing.records import request

OWN, OTHER = {"BACKBURNER_SESSION": "claude:1"}, {"BACKBURNER_SESSION": "claude:2"}
OTHER_CALLERS = {"another session": OTHER, "an agent's command": {"CLAUDECODE": "1"}, "a task": {"BACKBURNER_TASK_ID": "task_x"}}
ME = f"{sys.executable} -m backburner"


def _start_approved(home_cli: HomeCli, *command: str, env: dict[str, str] | None = None) -> str:
    """Start a command with an open input that a session proposed and a person approved."""
    task_id = home_cli.cli("run", "--stdin", "--", *command, env=env or OWN).stdout.strip()
    home_cli.ok("approve", task_id)
    wait_until(lambda: home_cli.status(task_id)["status"] != "pending", "the command")
    return task_id


@pytest.mark.parametrize("caller_kind", OTHER_CALLERS)
def test_only_the_session_or_a_person_can_send_to_an_approved_task(home_cli: HomeCli, caller_kind: str) -> None:
    task_id = _start_approved(home_cli, "sh", "-c", 'while read -r x; do echo "got $x"; done')
    refused = home_cli.cli("send", task_id, "evil", env=OTHER_CALLERS[caller_kind])
    assert refused.returncode == 3 and f"task {task_id}: a person approved it" in refused.stderr, refused
    wait_until(lambda: home_cli.cli("send", task_id, "own", env=OWN).returncode == 0, "its input")
    home_cli.ok("send", task_id, "person")
    wait_until(lambda: home_cli.log(task_id) == b"got own\ngot person\n", "what was sent")
    home_cli.ok("cancel", task_id)


def test_a_task_cannot_send_input_to_another_task(home_cli: HomeCli) -> None:
    task_id = _start_approved(home_cli, "sh", "-c", 'while read -r x; do echo "got $x"; done')
    inside = home_cli.finish(
        f"env -i PATH=/usr/bin:/bin HOME=/ {ME} --home {home_cli.root} send {task_id} evil; echo $?", options=("--shell",)
    )
    assert home_cli.log(str(inside["task_id"])).decode().splitlines()[-1] == "3"
    assert home_cli.log(task_id) == b""
    home_cli.ok("cancel", task_id)


@pytest.mark.parametrize("caller_kind", OTHER_CALLERS)
def test_only_the_session_or_a_person_can_restart_an_approved_task(home_cli: HomeCli, caller_kind: str) -> None:
    task_id = _start_approved(home_cli, "install", "-d", "made")
    home_cli.ok("wait", task_id)
    refused = home_cli.cli("restart", task_id, env=OTHER_CALLERS[caller_kind])
    assert refused.returncode == 3 and f"task {task_id}: a person approved it" in refused.stderr
    assert len(json.loads(home_cli.ok("list", "--json"))) == 1
    assert "is waiting for approval" in home_cli.cli("restart", task_id, env=OWN).stderr, "it is judged again"


def test_a_task_allowed_by_the_gate_is_open_to_every_session(home_cli: HomeCli) -> None:
    task_id = home_cli.ok("run", "--stdin", "--", "head", "-n", "1", env=OWN).strip()
    wait_until(lambda: home_cli.cli("send", task_id, "hello", env=OTHER).returncode == 0, "its input")
    home_cli.ok("wait", task_id)
    assert home_cli.log(task_id) == b"hello\n"
    home_cli.ok("cancel", home_cli.ok("restart", task_id, env=OTHER).strip())


def test_tools_of_a_client_cannot_change_approved_tasks_of_other_sessions(home_cli: HomeCli) -> None:
    with Raw(home_cli, env=OWN) as own, Raw(home_cli, env=OTHER) as other:
        line = 'while read -r x; do echo "got $x"; done'
        asked = own.value("start_background_task", command=f"sh -c '{line}'", description="Listen", stdin=True)
        task_id = asked["task_id"]
        home_cli.ok("approve", task_id)
        wait_until(lambda: home_cli.status(task_id)["status"] == "running", "the command")
        refused = other.call("send_to_background_task", task_id=task_id, text="evil")
        assert refused["isError"] and f"task {task_id}: a person approved it" in refused["content"][0]["text"]
        wait_until(lambda: not own.call("send_to_background_task", task_id=task_id, text="own").get("isError"), "its input")
        wait_until(lambda: home_cli.log(task_id) == b"got own\n", "what was sent")
        home_cli.ok("cancel", task_id)
        refused = other.call("restart_background_task", task_id=task_id)
        assert refused["isError"] and f"task {task_id}: a person approved it" in refused["content"][0]["text"]
        assert own.value("restart_background_task", task_id=task_id)["status"] == "proposed"


def test_the_library_can_send_for_a_person_but_not_inside_a_task(home_cli: HomeCli, monkeypatch: pytest.MonkeyPatch) -> None:
    task_id = _start_approved(home_cli, "sh", "-c", "read -r x; echo $x")
    with BackburnerSync.open(home_cli.root) as bb:
        monkeypatch.setattr(bb, "_caller", bb._caller._replace(environ={**home_cli.environ, "BACKBURNER_TASK_ID": "task_x"}))
        with pytest.raises(NotYourTask):
            bb.send(task_id, b"evil\n")
        monkeypatch.undo()
        bb.send(task_id, b"good\n")
    home_cli.ok("wait", task_id)
    assert home_cli.log(task_id) == b"good\n"


def test_only_the_session_or_a_person_can_resume_an_approved_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EngineSupervisor, "start_engine", lambda self: None)
    (tmp_path / "config.toml").write_text(
        CONFIG + '[agents.wild]\ntype = "acp"\ncommand = "sh"\n[agents.tame]\ntype = "acp"\ncommand = "sh"\nasks = "yes"\n'
    )
    with open_app(str(tmp_path), {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}) as app:
        asked = request(command=(), cwd=str(tmp_path), environment=app.environ, agent="wild", prompt="Tidy up.", session="claude:1")
        wild = app.submissions.submit(asked, caller(app)).task.task_id
        app.approvals.approve(wild, caller(app)._replace(via="cli"))
        tame = app.submissions.submit(asked.with_spec(agent=asked.spec.agent._replace(name="tame")), caller(app)).task
        assert (tame.decision.by, tame.lane) == ("auto", AGENT_LANE)
        for session, via in (("claude:2", "tool"), ("claude:2", "cli"), (None, "tool")):
            with pytest.raises(NotYourTask, match=f"task {wild}: a person approved it"):
                app.conversations.resume(wild, "And delete the rest.", caller(app)._replace(session=session, via=via))
        # These callers pass the ownership check and fail at the next one: the agent has not answered yet.
        for task_id, session, via in ((wild, "claude:1", "tool"), (wild, None, "cli"), (tame.task_id, "claude:2", "tool")):
            with pytest.raises(NotResumable):
                app.conversations.resume(task_id, "And then?", caller(app)._replace(session=session, via=via))
