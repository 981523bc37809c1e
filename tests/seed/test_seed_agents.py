"""Every scenario of the background agents design, by its name, with real processes and a scripted model server."""

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import CONFIG, HomeCli, caller, wait_until

from backburner.agent_tools.context import ToolContext
from backburner.agent_tools.dispatcher import ToolDispatcher
from backburner.agent_tools.registry import toolset
from backburner.services.app import open_app
from backburner.services.async_app import AsyncApp
from backburner.system import processes
from backburner.testing.scripted_model import ScriptedModel


@pytest.fixture(scope="module")
def agents_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One home with a model for all scenarios, so that the agent process is started once."""
    root = tmp_path_factory.mktemp("agents_home")
    (root / "project").mkdir()
    home_cli = HomeCli(root / "home", root / "project")
    with ScriptedModel() as model:
        home_cli.configure(
            f'{CONFIG}[models]\ndefault = "openai-chat:scripted"\nbase_url = "{model.url}/v1"\n[tasks]\nmax_concurrent = 8\n'
        )
        yield SimpleNamespace(home_cli=home_cli, model=model)
        home_cli.stop_engine()
        for one in home_cli.processes():
            processes.send(one, signal.SIGTERM)
        wait_until(lambda: not home_cli.processes(), "the agent process to exit")


class Session:
    """A session that calls the tools."""

    def __init__(self, home: AsyncApp, name: str, cwd: str) -> None:
        self._context = ToolContext(home, session=f"seed:{name}", cwd=cwd)
        self._dispatcher = ToolDispatcher(toolset())
        self.home = home

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool, acknowledge its notices, and return the result."""
        answer = await self._dispatcher.answer(self._context, tool, arguments)
        await answer.delivered()
        return answer.result

    async def ask(self, *steps: dict[str, Any], **more: Any) -> str:
        """Start an agent that executes these steps, and return the task id."""
        prompt = f"[[script: {json.dumps(steps)}]]"
        return (await self.call("background_task", description="A task", prompt=prompt, **more))["task_id"]

    async def block(self, *task_ids: str) -> dict[str, Any]:
        return await self.call("background_block", task_ids=list(task_ids), timeout=60_000)


@pytest.fixture
async def session(agents_home: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Session]:
    monkeypatch.chdir(agents_home.home_cli.cwd)
    async with AsyncApp(lambda: open_app(str(agents_home.home_cli.root), dict(agents_home.home_cli.environ))) as home:
        yield Session(home, re.sub("[^a-z0-9]", "-", request.node.name), str(agents_home.home_cli.cwd))


async def test_launch_background_task(session: Session, agents_home: Any) -> None:
    asked = await session.call("background_task", description="Look around", prompt="Hello", agent="default")
    assert re.fullmatch(r"task_\d{8}_\d{6}_default(_\d+)?", asked["task_id"]) and asked["status"] == "running"
    entry = await session.home.call(lambda app: app.queries.find(asked["task_id"], caller(app)))
    assert (
        entry.task.session == "seed:test-launch-background-task"
        and entry.task.spec.agent_name == "default"
        and entry.task.spec.prompt == "Hello"
    )
    await session.block(asked["task_id"])


async def test_track_task_completion(session: Session) -> None:
    task_id = await session.ask({"say": "The answer is 42."})
    done = await session.block(task_id)
    assert done["tasks"][0]["status"] == "completed"
    entry = await session.home.call(lambda app: app.queries.find(task_id, caller(app)))
    assert entry.run and entry.run.ended_at is not None
    assert (await session.call("background_output", task_id=task_id))["result"] == "The answer is 42.\n"


async def test_handle_task_errors(session: Session) -> None:
    task_id = await session.ask({"error": 400, "times": 9})
    done = await session.block(task_id)
    assert done["tasks"][0]["status"] == "error"
    assert "400" in (await session.call("background_output", task_id=task_id))["error"]


async def test_cancel_running_tasks(session: Session) -> None:
    task_id = await session.ask({"hang": 50, "say": "never"})
    done = await session.call("background_cancel", task_id=task_id)
    assert done["tasks"][0]["status"] == "cancelled"
    again = await session.call("background_cancel", task_id=task_id)
    assert again["error"]["message"] == f"Task {task_id} is not running (status: cancelled)."


async def test_track_resumed_status(session: Session) -> None:
    task_id = await session.ask({"say": "first"})
    await session.block(task_id)
    resumed = await session.call("background_resume", task_id=task_id, message=f"[[script: {json.dumps([{'hang': 3, 'say': 'second'}])}]]")
    assert resumed["status"] == "resumed"
    assert (await session.call("background_output", task_id=task_id))["status"] == "resumed"
    assert (await session.block(task_id))["tasks"][0]["status"] == "completed"


async def test_retrieve_completed_task_results(session: Session) -> None:
    task_id = await session.ask({"say": "result"})
    await session.block(task_id)
    assert (await session.home.call(lambda app: app.queries.find(task_id, caller(app)))).task.retrieved_at is None
    assert (await session.call("background_output", task_id=task_id))["result"] == "result\n"
    assert (await session.home.call(lambda app: app.queries.find(task_id, caller(app)))).task.retrieved_at is not None


async def test_check_running_task_status(session: Session) -> None:
    task_id = await session.ask({"hang": 3, "say": "done"})
    looked = await session.call("background_output", task_id=task_id)
    assert looked["status"] == "running" and "result" not in looked
    await session.block(task_id)


async def test_task_persistence(session: Session) -> None:
    kept, gone = await session.ask({"say": "kept"}), await session.ask({"say": "gone"})
    await session.block(kept, gone)
    await session.home.call(lambda app: app.retention.clean_up(retention_days=0))
    assert (await session.call("background_output", task_id=kept))["result"] == "kept\n", "agent tasks are not deleted by retention"
    assert (await session.call("background_clear", task_ids=[gone]))["cleared"] == [gone]
    assert (await session.call("background_output", task_id=gone))["error"]["message"] == f"Task not found: {gone}"
    ended = await session.home.call(lambda app: app.tasks.end_session("seed:test-task-persistence"))
    assert kept in ended, "it is deleted with its session"


async def test_monitor_task_progress(session: Session) -> None:
    task_id = await session.ask({"tool": "search_files", "args": {}}, {"tool": "memory_list", "args": {}}, {"hang": 4, "say": "done"})

    async def progress() -> dict[str, Any]:
        return await session.call("background_output", task_id=task_id)

    async with asyncio.timeout(20):
        while (seen := await progress())["tool_calls"] < 2:
            await asyncio.sleep(0.1)
    assert seen["recent_tools"] == ["search_files", "memory_list"] and seen["last_update"] and seen["status"] == "running"
    await session.block(task_id)


async def test_group_related_tasks(session: Session) -> None:
    ids = [await session.ask({"hang": 50}, batch_id="together") for _ in range(3)]
    assert (await session.call("background_list", batch_id="together"))["count"] == 3
    done = await session.call("background_cancel", batch_id="together")
    assert sorted(task["task_id"] for task in done["tasks"]) == sorted(ids) and {task["status"] for task in done["tasks"]} == {"cancelled"}
    assert sorted((await session.call("background_clear", batch_id="together"))["cleared"]) == sorted(ids)


async def test_resume_completed_task_with_follow_up_prompt(session: Session, agents_home: Any) -> None:
    task_id = await session.ask({"say": "I read the blue book."})
    await session.block(task_id)
    resumed = await session.call("background_resume", task_id=task_id, message="Which book was it, pray?")
    assert resumed["status"] == "resumed" and "notice" in resumed["display"]
    await session.block(task_id)
    last = [json.dumps(request) for request in agents_home.model.requests if "Which book was it, pray?" in json.dumps(request)][-1]
    assert "I read the blue book." in last, "the full history is kept"


async def test_resume_completion_notification(session: Session) -> None:
    task_id = await session.ask({"say": "first"})
    await session.block(task_id)
    await session.call("background_resume", task_id=task_id, message=f"[[script: {json.dumps([{'say': 'the second answer'}])}]]")

    async with asyncio.timeout(30):
        while not (told := (await session.call("list_background_tasks")).get("notices", "")):
            await asyncio.sleep(0.1)
    assert "[BACKGROUND RESUME COMPLETED]" in told and "the second answer" in told
    assert (await session.call("background_list"))["tasks"][0]["status"] == "completed"


async def test_a_session_that_resumes_the_agent_of_another_is_promised_no_notice(session: Session, agents_home: Any) -> None:
    task_id = await session.ask({"say": "first"})
    await session.block(task_id)
    other = Session(session.home, "another", str(agents_home.home_cli.cwd))
    said = await other.call("background_resume", task_id=task_id, message="more")
    assert "The session that started it is notified, this one is not" in said["display"]
    await other.block(task_id)
    said = await session.call("background_resume", task_id=task_id, message="more")
    assert "A notice is sent when it finishes" in said["display"]
    await session.block(task_id)


async def test_block_after_resume(session: Session) -> None:
    task_id = await session.ask({"say": "first"})
    await session.block(task_id)
    await session.call("background_resume", task_id=task_id, message=f"[[script: {json.dumps([{'hang': 3, 'say': 'second'}])}]]")
    done = await session.block(task_id)
    assert done["tasks"][0]["status"] == "completed" and done["tasks"][0]["resume_count"] == 1
    assert (await session.call("background_output", task_id=task_id))["result"] == "second\n"


async def test_reject_resume_of_non_completed_task(session: Session) -> None:
    task_id = await session.ask({"hang": 50})
    said = await session.call("background_resume", task_id=task_id, message="more")
    assert said["error"]["message"] == "Cannot resume task: status is 'running'. Only completed tasks can be resumed."
    await session.call("background_cancel", task_id=task_id)
    said = await session.call("background_resume", task_id=task_id, message="more")
    assert said["error"]["message"] == "Cannot resume task: status is 'cancelled'. Only completed tasks can be resumed."


async def test_reject_concurrent_resume(session: Session) -> None:
    task_id = await session.ask({"say": "first"})
    await session.block(task_id)
    message = f"[[script: {json.dumps([{'hang': 5, 'say': 'second'}])}]]"
    said = await asyncio.gather(*(session.call("background_resume", task_id=task_id, message=message) for _ in range(10)))
    refused = [one["error"]["message"] for one in said if "error" in one]
    assert len(refused) == 9
    assert set(refused) == {"Task is currently being resumed. Wait for completion before sending another message."}
    await session.block(task_id)


async def test_handle_expired_session_on_resume(session: Session, agents_home: Any) -> None:
    task_id = await session.ask({"say": "first"})
    await session.block(task_id)
    os.unlink(agents_home.home_cli.folder(task_id) / "conversation.json")
    said = await session.call("background_resume", task_id=task_id, message="more")
    assert said["error"]["message"] == "Session expired or was deleted. Start a new background_task to continue."


async def test_increment_resume_count(session: Session) -> None:
    task_id = await session.ask({"say": "first"})
    await session.block(task_id)
    for count in (1, 2):
        await session.call("background_resume", task_id=task_id, message="more")
        assert (await session.block(task_id))["tasks"][0]["resume_count"] == count


async def test_initial_resume_count(session: Session) -> None:
    task_id = await session.ask({"say": "first"})
    assert (await session.block(task_id))["tasks"][0]["resume_count"] == 0


async def test_block_until_tasks_complete(session: Session) -> None:
    ids = [await session.ask({"say": "quick"}), await session.ask({"hang": 3, "say": "slow"})]
    done = await session.block(*ids)
    assert [task["status"] for task in done["tasks"]] == ["completed", "completed"] and "running" not in done


async def test_block_returns_the_beginning_of_each_answer_and_only_then_uses_up_its_notice(session: Session) -> None:
    short, long = await session.ask({"say": "quick"}), await session.ask({"flood": 20_000})
    others = [await session.ask({"flood": 3000}) for _ in range(7)]
    done = await session.block(short, long, *others)
    results = {task["task_id"]: task for task in done["tasks"]}
    assert results[short]["result"] == "quick\n" and "cursor" not in results[short] and "Answer of " + short in done["display"]
    assert len(results[long]["result"]) == 2000
    rest = await session.call("background_output", task_id=long, cursor=results[long]["cursor"])
    assert (results[long]["result"] + rest["result"]).startswith("flood " * 1000)
    # The answer of the last one did not fit, so its notice comes.
    assert "result" not in results[others[-1]] and re.findall("<task-id>(.*)</task-id>", done["notices"]) == [others[-1]]
    assert "notices" not in await session.call("background_list")


async def test_all_tasks_already_completed(session: Session) -> None:
    task_id = await session.ask({"say": "quick"})
    await session.block(task_id)
    done = await session.call("background_block", task_ids=[task_id], timeout=0)
    assert done["tasks"][0]["status"] == "completed"


async def test_block_timeout_reached(session: Session) -> None:
    quick, slow = await session.ask({"say": "quick"}), await session.ask({"hang": 50})
    await session.block(quick)
    done = await session.call("background_block", task_ids=[quick, slow], timeout=300)
    assert done["running"] == [slow] and [task["status"] for task in done["tasks"]] == ["completed", "running"]
    await session.call("background_cancel", task_id=slow)


async def test_blocking_is_not_polling(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """While nothing changes, the ledger is read only at the start and at the timeout."""
    task_id = await session.ask({"hang": 30, "say": "late"})
    async with asyncio.timeout(20):
        while (await session.call("background_output", task_id=task_id))["status"] != "running" or not await _has_started(session, task_id):
            await asyncio.sleep(0.1)
    looks, real = [], session.home.call

    async def counted(call: Any) -> Any:
        looks.append(call)
        return await real(call)

    monkeypatch.setattr(session.home, "call", counted)
    await session.call("background_block", task_ids=[task_id], timeout=3000)
    assert len(looks) <= 4
    monkeypatch.undo()
    await session.call("background_cancel", task_id=task_id)


async def _has_started(session: Session, task_id: str) -> bool:
    entry = await session.home.call(lambda app: app.queries.find(task_id, caller(app)))
    return entry.run is not None and entry.run.started_at is not None


async def test_detect_completion_via_event(session: Session, agents_home: Any) -> None:
    """The end of the turn is recorded with its notice, and the session gets the whole answer."""
    task_id = await session.ask({"say": "A whole answer.\nOf two lines."})
    await session.home.call(lambda app: app.waiting.wait([task_id], 30.0))
    told = (await session.call("list_background_tasks"))["notices"]
    assert "[BACKGROUND TASK COMPLETED]" in told and "A whole answer.\nOf two lines." in told


async def test_fallback_to_polling(session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiting client without wake-ups reads the ledger after five seconds and finds the notice."""
    task_id = await session.ask({"hang": 1, "say": "done"})
    home_cli = await session.home.call(lambda app: app.home)
    monkeypatch.setattr(home_cli, "create_socket_dir", lambda: str(tmp_path))  # no wake-ups arrive there
    assert (await session.block(task_id))["tasks"][0]["status"] == "completed"
    notices = await session.home.call(lambda app: app._ledger.notices.notices(project=None, unread=False))
    assert sum(notice.task_id == task_id for notice in notices) == 1
