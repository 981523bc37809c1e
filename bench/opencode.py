"""Agents in an OpenCode server: from its `session.idle` to the notice, one by one and twenty sessions at once, with the program itself."""

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
from bench.agents import Door, staffed
from bench.place import ROOT, Place, scratch, wait_until
from bench.turns import Figures

_MANY, _SOME = 20, 15
_BIN = ROOT / ".clients" / "node_modules" / ".bin"


def program() -> str | None:
    """OpenCode, where it can be had."""
    return shutil.which("opencode", path=f"{_BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}")


class Idle:
    """Hears by itself when each session is idle, beside whoever is measured."""

    def __init__(self, url: str) -> None:
        self.at: dict[str, float] = {}
        self._stream = urllib.request.urlopen(f"{url}/global/event", timeout=300)
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            for line in self._stream:
                now = time.time()
                if line.startswith(b"data:") and b"session.idle" in line:
                    payload = json.loads(line[5:])["payload"]
                    if payload.get("type") == "session.idle":
                        self.at[payload["properties"]["sessionID"]] = now


@contextlib.contextmanager
def _server(folder: Path, model: ScriptedModel) -> Iterator[str]:
    person = folder / "person"
    settings = person / ".config" / "opencode"
    settings.mkdir(parents=True)
    about = {"name": "Fake", "tool_call": True, "limit": {"context": 128000, "output": 8192}}
    provider = {"npm": "@ai-sdk/openai-compatible", "name": "Fake", "options": {"baseURL": f"{model.url}/v1", "apiKey": "x"}}
    config = {"model": "fake/f", "small_model": "fake/f", "autoupdate": False, "provider": {"fake": {**provider, "models": {"f": about}}}}
    (settings / "opencode.json").write_text(json.dumps(config))
    path = f"{_BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    env = {"HOME": str(person), "PATH": path, "OPENCODE_DISABLE_MODELS_FETCH": "1"}
    log = folder / "serve.log"
    words = [str(program()), "serve", "--hostname", "127.0.0.1", "--port", "0"]
    with open(log, "wb") as file:
        child = subprocess.Popen(words, env=env, cwd=folder, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    try:
        wait_until(lambda: "listening on http" in log.read_text(), "OpenCode to listen", 90)
        yield log.read_text().rpartition("listening on ")[2].split()[0]
    finally:
        child.kill()
        child.wait()


def measure(rounds: int) -> list[Figures]:
    """One round asks fifteen sessions in a row, and twenty at once."""
    if program() is None:
        return []
    with contextlib.ExitStack() as opened:
        folder, model = opened.enter_context(scratch()), opened.enter_context(ScriptedModel())
        url, place = opened.enter_context(_server(folder, model)), opened.enter_context(Place(folder))
        opened.enter_context(staffed(place, f'[models]\nmax_concurrent = {_MANY}\n[agents.oc]\ntype = "opencode"\nurl = "{url}"\n'))
        idle = Idle(url)
        return [asyncio.run(_round(place, idle)) for _ in range(rounds)]


async def _round(place: Place, idle: Idle) -> Figures:
    async with AsyncApp(lambda: open_app(str(place.root))) as home:
        door = Door(home, str(place.cwd), agent="oc")
        await _delays(home, place, idle, [await door.ask({"say": "warm"})])
        alone = [delay for _ in range(_SOME) for delay in await _delays(home, place, idle, [await door.ask({"say": "x"})])]
        start = time.time()
        ids = [await door.ask({"tool": "glob", "args": {"pattern": "*"}}, {"say": "done"}) for _ in range(_MANY)]
        together = await _delays(home, place, idle, ids)
        return {
            "idle to notice": statistics.median(alone),
            f"idle to notice, {_MANY} at once": statistics.median(together),
            "seconds": time.time() - start,
        }


async def _delays(home: AsyncApp, place: Place, idle: Idle, ids: list[str]) -> list[float]:
    """Milliseconds from each session's idle to the moment when its notice can be read by somebody who listens."""
    told: dict[str, float] = {}

    def new(app: App) -> set[str]:
        return {notice.task_id for notice in app._ledger.notices.notices(project=None, unread=False)} & set(ids)

    async for _ in home.changes():
        for task_id in await home.call(new):
            told.setdefault(task_id, time.time())
        if len(told) == len(ids):
            break
    sessions = {one: json.loads((place.root / "tasks" / one / "conversation.json").read_text())["session"] for one in ids}
    wait_until(lambda: all(session in idle.at for session in sessions.values()), "the idle events")
    return [(told[one] - idle.at[sessions[one]]) * 1000 for one in ids]
