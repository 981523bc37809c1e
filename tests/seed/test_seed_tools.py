"""Tests 19 to 24 of the design, by name: the tools, called directly and by an agent over HTTP."""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import HomeCli

from backburner import BackgroundTools
from backburner.agent_tools.commands import cancel_background_task, check_task_status, list_background_tasks, start_background_task
from backburner.agent_tools.context import ToolContext
from backburner.services.app import open_app
from backburner.services.async_app import AsyncApp
from backburner.testing.scripted_model import ScriptedModel


@pytest.fixture
async def ctx(home_cli: HomeCli) -> AsyncIterator[Any]:
    home_cli.ok(
        "clear", str(home_cli.finish("true")["task_id"])
    )  # the engine is running, so a task starts before the tool stops waiting for it
    async with AsyncApp(lambda: open_app(str(home_cli.root), dict(home_cli.environ))) as home:
        yield SimpleNamespace(deps=ToolContext(home, session="seed:1", cwd=str(home_cli.cwd)))


async def test_start_background_task_tool(ctx: Any) -> None:
    """Call tool, verify task started."""
    result = await start_background_task(ctx=ctx, command="echo hello", description="Test task")
    assert "task_id" in result
    assert result["status"] == "running"
    assert "Started background task" in result["display"]


async def test_check_task_status_tool(ctx: Any) -> None:
    """Call tool, verify status returned."""
    task_id = (await start_background_task(ctx=ctx, command="echo hello", description="Test task"))["task_id"]
    result = await check_task_status(ctx=ctx, task_id=task_id, include_output=True)
    assert result["task_id"] == task_id
    assert result["status"] in ["pending", "running", "completed"]
    assert "output" in result


async def test_cancel_background_task_tool(ctx: Any) -> None:
    """Call tool, verify cancellation."""
    task_id = (await start_background_task(ctx=ctx, command="sleep 60", description="Test task"))["task_id"]
    result = await cancel_background_task(ctx=ctx, task_id=task_id)
    assert result["status"] == "cancelled"
    assert "cancelled" in result["display"].lower()


async def test_list_background_tasks_tool(ctx: Any, home_cli: HomeCli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Call tool, verify task list."""
    monkeypatch.chdir(home_cli.cwd)
    for number in range(3):
        await start_background_task(ctx=ctx, command=f"echo {number}", description=f"Number {number}")
    result = await list_background_tasks(ctx=ctx, status_filter=None)
    assert "tasks" in result
    assert result["count"] == 3
    assert "display" in result and "Number 2" in result["display"]


async def _turn(home_cli: HomeCli, monkeypatch: pytest.MonkeyPatch, prompt: str) -> tuple[Any, list[Any]]:
    """Run one turn of an agent with the tools against a scripted model; return its answer and its tool calls."""
    from pydantic_ai import Agent
    from pydantic_ai.messages import ToolCallPart
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    monkeypatch.chdir(home_cli.cwd)
    for name, value in home_cli.environ.items():
        monkeypatch.setenv(name, value)
    with ScriptedModel() as model:
        provider = OpenAIProvider(base_url=f"{model.url}/v1", api_key="none")
        agent = Agent(OpenAIChatModel("scripted", provider=provider), toolsets=[BackgroundTools(session="seed")])
        done = await agent.run(prompt)
    calls = [part for message in done.all_messages() for part in message.parts if isinstance(part, ToolCallPart)]
    return done.output, calls


async def test_agent_proposes_background(home_cli: HomeCli, monkeypatch: pytest.MonkeyPatch) -> None:
    """User asks to run tests, agent proposes background execution."""
    (home_cli.cwd / "test_it.py").write_text("def test_it(): pass\n")
    script = '[{"tool": "start_background_task", "args": {"command": "pytest", "description": "All tests"}}, {"say": "Started in the background."}]'
    output, calls = await _turn(home_cli, monkeypatch, f"Run the full test suite [[script: {script}]]")
    assert "background" in output.lower()
    assert [call.tool_name for call in calls] == ["start_background_task"]
    (task,) = home_cli.json("list", "proposed")  # type: ignore[misc]
    assert task["command"] == ["pytest"], "running the project's code needs approval"


async def test_agent_checks_status(home_cli: HomeCli, monkeypatch: pytest.MonkeyPatch) -> None:
    """User asks 'What's the status of my task?', agent calls check_task_status."""
    task_id = str(home_cli.finish("echo", "hello from the task")["task_id"])
    script = f'[{{"tool": "check_task_status", "args": {{"task_id": "{task_id}"}}}}, {{"say": "It completed."}}]'
    output, calls = await _turn(home_cli, monkeypatch, f"What's the status of task {task_id}? [[script: {script}]]")
    assert any(call.tool_name == "check_task_status" for call in calls) and output == "It completed."
    assert Path(home_cli.root / "tasks" / task_id / "output.log").exists() and os.getcwd() == str(home_cli.cwd)
