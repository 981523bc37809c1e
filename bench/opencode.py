"""Agents in an OpenCode server: delay from `session.idle` to the notice, one by one and with 20 sessions at once."""

import asyncio
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from backburner.services.app import App, open_app
from backburner.services.async_app import AsyncApp
from backburner.testing.scripted_model import ScriptedModel
from bench.agents import ToolClient, configured_agents
from bench.home import ROOT, BenchHome, scratch_folder, wait_until
from bench.rounds import Figures

_CONCURRENT_SESSIONS, _SINGLE_SESSIONS = 20, 15
_BIN = ROOT / ".clients" / "node_modules" / ".bin"


def program() -> str | None:
    """Return the path of OpenCode, or None if it is not installed."""
    return shutil.which("opencode", path=f"{_BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}")


class IdleTimes:
    """Records when each session becomes idle, with its own connection to the event stream of OpenCode."""

    def __init__(self, url: str) -> None:
        self.by_session: dict[str, float] = {}
        self._stream = urllib.request.urlopen(f"{url}/global/event", timeout=300)
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            for line in self._stream:
                now = time.time()
                if line.startswith(b"data:") and b"session.idle" in line:
                    payload = json.loads(line[5:])["payload"]
                    if payload.get("type") == "session.idle":
                        self.by_session[payload["properties"]["sessionID"]] = now


@contextlib.contextmanager
def _server(folder: Path, model: ScriptedModel) -> Iterator[str]:
    user_home = folder / "person"
    settings = user_home / ".config" / "opencode"
    settings.mkdir(parents=True)
    model_settings = {"name": "Fake", "tool_call": True, "limit": {"context": 128000, "output": 8192}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Fake",
        "options": {"baseURL": f"{model.url}/v1", "apiKey": "x"},
        "models": {"f": model_settings},
    }
    config = {"model": "fake/f", "small_model": "fake/f", "autoupdate": False, "provider": {"fake": provider}}
    (settings / "opencode.json").write_text(json.dumps(config))
    path = f"{_BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    env = {"HOME": str(user_home), "PATH": path, "OPENCODE_DISABLE_MODELS_FETCH": "1"}
    log = folder / "serve.log"
    command = [str(program()), "serve", "--hostname", "127.0.0.1", "--port", "0"]
    with open(log, "wb") as file:
        server = subprocess.Popen(command, env=env, cwd=folder, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    try:
        wait_until(lambda: "listening on http" in log.read_text(), "OpenCode to listen", 90)
        yield log.read_text().rpartition("listening on ")[2].split()[0]
    finally:
        server.kill()
        server.wait()


def measure(rounds: int) -> list[Figures]:
    """One round runs 15 sessions one by one, and 20 at once."""
    if program() is None:
        return []
    with contextlib.ExitStack() as stack:
        folder, model = stack.enter_context(scratch_folder()), stack.enter_context(ScriptedModel())
        url, home = stack.enter_context(_server(folder, model)), stack.enter_context(BenchHome(folder))
        settings = f'[models]\nmax_concurrent = {_CONCURRENT_SESSIONS}\n[agents.oc]\ntype = "opencode"\nurl = "{url}"\n'
        stack.enter_context(configured_agents(home, settings))
        idle_times = IdleTimes(url)
        return [asyncio.run(_round(home, idle_times)) for _ in range(rounds)]


async def _round(home: BenchHome, idle_times: IdleTimes) -> Figures:
    async with AsyncApp(lambda: open_app(str(home.root))) as app:
        client = ToolClient(app, str(home.cwd), agent="oc")
        await _delays(app, home, idle_times, [await client.start_agent({"say": "warm"})])
        single: list[float] = []
        for _ in range(_SINGLE_SESSIONS):
            single += await _delays(app, home, idle_times, [await client.start_agent({"say": "x"})])
        start = time.time()
        steps = ({"tool": "glob", "args": {"pattern": "*"}}, {"say": "done"})
        ids = [await client.start_agent(*steps) for _ in range(_CONCURRENT_SESSIONS)]
        concurrent = await _delays(app, home, idle_times, ids)
        return {
            "idle to notice": statistics.median(single),
            f"idle to notice, {_CONCURRENT_SESSIONS} at once": statistics.median(concurrent),
            "seconds": time.time() - start,
        }


async def _delays(app: AsyncApp, home: BenchHome, idle_times: IdleTimes, ids: list[str]) -> list[float]:
    """Return the milliseconds from the idle event of each session until its notice can be read."""
    noticed_at: dict[str, float] = {}

    def with_notice(app: App) -> set[str]:
        return {notice.task_id for notice in app._ledger.notices.notices(project=None, unread=False)} & set(ids)

    async for _ in app.changes():
        for task_id in await app.call(with_notice):
            noticed_at.setdefault(task_id, time.time())
        if len(noticed_at) == len(ids):
            break
    sessions = {task_id: json.loads((home.root / "tasks" / task_id / "conversation.json").read_text())["session"] for task_id in ids}
    wait_until(lambda: all(session in idle_times.by_session for session in sessions.values()), "the idle events")
    return [(noticed_at[task_id] - idle_times.by_session[sessions[task_id]]) * 1000 for task_id in ids]
