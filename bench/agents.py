"""Agents in the background: from the model's last byte to the notice, asking, fifty at once in one host, and waiting for twenty."""

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
from bench.place import Place, exact_cpu_seconds, pss_mb, scratch, wait_until
from bench.turns import Figures

_MANY, _SOME = 50, 20


class TimedModel(ScriptedModel):
    """Knows when each answer was ready to be sent: no later than its last byte."""

    def __init__(self) -> None:
        super().__init__()
        self.answered: list[float] = []

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, str, bytes]:
        made = super().answer(path, body)
        self.answered.append(time.time())
        return made


class Door:
    """A session that calls the tools, in this process."""

    def __init__(self, home: AsyncApp, cwd: str, agent: str = "default") -> None:
        self.home, self._caller, self._desk = home, ToolContext(home, session="bench:1", cwd=cwd), ToolDispatcher(toolset())
        self._agent = agent

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        answer = await self._desk.answer(self._caller, tool, arguments)
        await answer.delivered()
        return answer.result

    async def ask(self, *steps: dict[str, Any]) -> str:
        prompt = f"[[script: {json.dumps(steps)}]]"
        return (await self.call("background_task", description="bench", prompt=prompt, agent=self._agent))["task_id"]


def measure(rounds: int) -> list[Figures]:
    """One round asks thirty agents in a row, fifty at once, and waits for twenty."""
    with scratch() as folder, TimedModel() as model, Place(folder) as place:
        models = f'[models]\ndefault = "openai-chat:x"\nbase_url = "{model.url}/v1"\n[tasks]\nmax_concurrent = {_MANY}\n'
        with staffed(place, models):
            return [asyncio.run(_round(place, model)) for _ in range(rounds)]


@contextlib.contextmanager
def staffed(place: Place, settings: str) -> Iterator[None]:
    """A home with agents; their host does not outlive the measurement."""
    (place.root / "config.toml").write_text((place.root / "config.toml").read_text() + settings)
    os.chdir(place.cwd)
    try:
        yield
    finally:
        for pid in hosts(str(place.root)):
            os.kill(pid, 15)


async def _round(place: Place, model: TimedModel) -> Figures:
    for pid in hosts(str(place.root)):  # a fresh one: what a session costs is what it adds the first time
        os.kill(pid, 15)
    wait_until(lambda: not hosts(str(place.root)), "the host to leave")
    async with AsyncApp(lambda: open_app(str(place.root))) as home:
        door = Door(home, str(place.cwd))
        await _ended(home, await door.ask({"say": "warm"}))
        (host,) = hosts(str(place.root))
        figures = await _one_by_one(door, model)
        baseline, spent = pss_mb(host), exact_cpu_seconds(host)
        ids = [await door.ask({"tool": "memory_list", "args": {}}, {"hang": 4, "say": "done"}) for _ in range(_MANY)]
        await asyncio.sleep(3)
        peak = pss_mb(host)
        for task_id in ids:
            await _ended(home, task_id)
        figures["MB per session"] = (peak - baseline) / _MANY
        figures["CPU ms per turn"] = (exact_cpu_seconds(host) - spent) * 1000 / (2 * _MANY)
        figures |= await _block(door)
        return figures


async def _one_by_one(door: Door, model: TimedModel) -> Figures:
    told, asked = [], []
    for _ in range(30):
        start = time.perf_counter()
        task_id = await door.ask({"say": "x"})
        asked.append((time.perf_counter() - start) * 1000)
        at = await _ended(door.home, task_id)
        told.append((at - model.answered[-1]) * 1000)
    told.sort(), asked.sort()
    return {"last byte to notice": told[15], "background_task": asked[15]}


async def _block(door: Door) -> Figures:
    ids = [await door.ask({"hang": 1 + n * 0.05, "say": "x"}) for n in range(_SOME)]
    await door.call("background_block", task_ids=ids, timeout=60_000)
    back = time.time()

    def last(app: App) -> float:
        return max((entry.run.ended_at or 0) / 1000 for entry in map(app.queries.get, ids) if entry.run)

    return {"block wakes": (back - await door.home.call(last)) * 1000}


async def _ended(home: AsyncApp, task_id: str) -> float:
    """When the end of a task, and with it its notice, can be read by somebody who listens."""
    async for _ in home.changes():
        owed = await home.call(lambda app: app._ledger.notices.notices(project=None, unread=False))
        if any(notice.task_id == task_id for notice in owed):
            return time.time()
    raise AssertionError


def hosts(root: str) -> list[int]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline") as file:
                words = file.read()
        except OSError:
            continue
        if "agents.process" in words and root in words and identify(int(name)):
            found.append(int(name))
    return found
