"""Background agents: delay until the notice, time of a start, 50 sessions at once in one agent process, and waiting for 20 tasks."""

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Iterator
from typing import Any

from backburner.agent_tools.context import ToolContext
from backburner.agent_tools.dispatcher import ToolDispatcher
from backburner.agent_tools.registry import toolset
from backburner.services.app import App, open_app
from backburner.services.async_app import AsyncApp
from backburner.system.processes import identify
from backburner.testing.scripted_model import ScriptedModel
from bench.home import BenchHome, exact_cpu_seconds, pss_mb, rss_mb, scratch_folder, wait_until
from bench.rounds import Figures

_SINGLE_TASKS, _CONCURRENT_TASKS, _BLOCKED_TASKS, _GROWTH_TASKS = 30, 50, 20, 60


class TimedModel(ScriptedModel):
    """Records when each answer was ready to be sent, which is not later than its last byte."""

    def __init__(self) -> None:
        super().__init__()
        self.answered: list[float] = []

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, str, bytes]:
        response = super().answer(path, body)
        self.answered.append(time.time())
        return response


class ToolClient:
    """A session that calls the tools in this process."""

    def __init__(self, app: AsyncApp, cwd: str, agent: str = "default") -> None:
        self.app, self._context, self._dispatcher = app, ToolContext(app, session="bench:1", cwd=cwd), ToolDispatcher(toolset())
        self._agent = agent

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        answer = await self._dispatcher.answer(self._context, tool, arguments)
        await answer.delivered()
        return answer.result

    async def start_agent(self, *steps: dict[str, Any]) -> str:
        prompt = f"[[script: {json.dumps(steps)}]]"
        return (await self.call("background_task", description="bench", prompt=prompt, agent=self._agent))["task_id"]


def measure(rounds: int) -> list[Figures]:
    """One round runs 30 agents one by one, 50 at once, and waits for 20."""
    with scratch_folder() as folder, TimedModel() as model, BenchHome(folder) as home:
        models = f'[models]\ndefault = "openai-chat:x"\nbase_url = "{model.url}/v1"\n[tasks]\nmax_concurrent = {_CONCURRENT_TASKS}\n'
        with configured_agents(home, models):
            return [asyncio.run(_round(home, model)) for _ in range(rounds)]


@contextlib.contextmanager
def configured_agents(home: BenchHome, settings: str) -> Iterator[None]:
    """Add settings for agents to a home. The agent process is ended afterwards."""
    (home.root / "config.toml").write_text((home.root / "config.toml").read_text() + settings)
    os.chdir(home.cwd)
    try:
        yield
    finally:
        for pid in agent_processes(str(home.root)):
            os.kill(pid, 15)


async def _round(home: BenchHome, model: TimedModel) -> Figures:
    for pid in agent_processes(str(home.root)):  # a new process, because sessions reuse memory of earlier ones
        os.kill(pid, 15)
    wait_until(lambda: not agent_processes(str(home.root)), "the agent process to end")
    async with AsyncApp(lambda: open_app(str(home.root))) as app:
        client = ToolClient(app, str(home.cwd))
        await _notice_time(app, await client.start_agent({"say": "warm"}))
        (agent_process,) = agent_processes(str(home.root))
        resident = rss_mb(agent_process)
        figures = {"RSS MB": resident} | await _measure_single_tasks(client, model)
        figures |= await _measure_growth(client, agent_process)
        memory_before, cpu_before = pss_mb(agent_process), exact_cpu_seconds(agent_process)
        steps = ({"tool": "memory_list", "args": {}}, {"hang": 4, "say": "done"})
        ids = [await client.start_agent(*steps) for _ in range(_CONCURRENT_TASKS)]
        await asyncio.sleep(3)
        peak = pss_mb(agent_process)
        for task_id in ids:
            await _notice_time(app, task_id)
        figures["MB per session"] = (peak - memory_before) / _CONCURRENT_TASKS
        figures["CPU ms per turn"] = (exact_cpu_seconds(agent_process) - cpu_before) * 1000 / (2 * _CONCURRENT_TASKS)
        figures |= await _measure_block(client)
        return figures


async def _measure_single_tasks(client: ToolClient, model: TimedModel) -> Figures:
    notice_delays, start_times = [], []
    for _ in range(_SINGLE_TASKS):
        start = time.perf_counter()
        task_id = await client.start_agent({"say": "x"})
        start_times.append((time.perf_counter() - start) * 1000)
        noticed_at = await _notice_time(client.app, task_id)
        notice_delays.append((noticed_at - model.answered[-1]) * 1000)
    notice_delays.sort()
    start_times.sort()
    middle = _SINGLE_TASKS // 2
    return {"last byte to notice": notice_delays[middle], "background_task": start_times[middle]}


async def _measure_growth(client: ToolClient, agent_process: int) -> Figures:
    """How much the agent process grows with each task, after the first ones."""
    before = pss_mb(agent_process)
    for _ in range(_GROWTH_TASKS):
        await _notice_time(client.app, await client.start_agent({"say": "x"}))
    return {"KB per task": (pss_mb(agent_process) - before) * 1024 / _GROWTH_TASKS}


async def _measure_block(client: ToolClient) -> Figures:
    ids = [await client.start_agent({"hang": 1 + n * 0.05, "say": "x"}) for n in range(_BLOCKED_TASKS)]
    await client.call("background_block", task_ids=ids, timeout=60_000)
    returned_at = time.time()

    def last_end(app: App) -> float:
        return max((entry.run.ended_at or 0) / 1000 for entry in map(app.queries.get, ids) if entry.run)

    return {"block wakes": (returned_at - await client.app.call(last_end)) * 1000}


async def _notice_time(app: AsyncApp, task_id: str) -> float:
    """Wait until the notice of a task can be read. Return that time."""
    async for _ in app.changes():
        notices = await app.call(lambda services: services._ledger.notices.notices(project=None, unread=False))
        if any(notice.task_id == task_id for notice in notices):
            return time.time()
    raise AssertionError


def agent_processes(root: str) -> list[int]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline") as file:
                command_line = file.read()
        except OSError:
            continue
        if "agents.process" in command_line and root in command_line and identify(int(name)):
            found.append(int(name))
    return found
