"""Chats in pseudo-terminals, with one home and one scripted model for all: each test has a project of its own."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Place
from terminal import Terminal

from backburner.core.notice_text import NOTICE_PREFIX
from backburner.testing.scripted_model import ScriptedModel

CONFIG = "[models]\ndefault = {model}\n{base}\n[agents]\nyield_seconds = 2\nidle_exit_seconds = 2\n[tasks]\nmax_concurrent = 8\n"
Json = dict[str, Any]


class Plans:
    """What the model does when it is told something: by words of the message, a step for each of its turns."""

    def __init__(self) -> None:
        self.steps: dict[str, list[Json]] = {}

    def __setitem__(self, words: str, steps: list[Json]) -> None:
        self.steps[words] = steps

    def think(self, turns: list[tuple[str, str]]) -> Json:
        said = [place for place, (role, text) in enumerate(turns) if role == "user" and not text.startswith(NOTICE_PREFIX)]
        if not said:
            return {"say": "ok"}
        message, since = turns[said[-1]][1], turns[said[-1] + 1 :]
        steps = next((steps for words, steps in self.steps.items() if words in message), [{"say": f"You said: {message[:200]}"}])
        taken = sum(role == "assistant" and (n == 0 or since[n - 1][0] != "assistant") for n, (role, _) in enumerate(since))
        ids = re.findall(r"task_\d{8}_\d{6}_\w+", "\n".join(text for role, text in turns if role == "tool"))
        step = dict(steps[min(taken, len(steps) - 1)])
        if "say" in step and ids:
            step["say"] = step["say"].replace("{task_id}", ids[-1])
        return step


class Chats:
    """`with chats.open() as terminal`: the chat in a terminal of its own, in this test's project."""

    def __init__(self, place: Place, model: ScriptedModel, plans: Plans) -> None:
        self.place, self.model, self.plans = place, model, plans

    def open(self, *words: str, columns: int = 100, rows: int = 30, env: dict[str, str] | None = None, early: bool = False) -> Terminal:
        """Once it has a prompt, or `early` at once."""
        command = [sys.executable, "-m", "backburner", "chat", *words]
        terminal = Terminal(command, cwd=self.place.cwd, env={**self.place.environ, **(env or {})}, columns=columns, rows=rows)
        if not early:
            terminal.wait(lambda t: any(line.startswith(("›", ">")) for line in t.lines))
        return terminal

    def requests(self, text: str) -> list[Json]:
        """The requests to the model that hold a text."""
        return [request for request in list(self.model.requests) if text in str(request)]


def line_of(terminal: Terminal) -> str:
    """The line being typed: the last that begins with the prompt."""
    return next((line for line in reversed(terminal.lines) if line.startswith("›")), "")


def task_in(terminal: Terminal, words: str) -> str:
    """The task of the last sentence with such words; `{}` is where its id stands."""
    pattern = words.format(r"(task_\S+)")
    terminal.wait(lambda t: re.search(pattern, t.history.replace("\n", " ")))
    return re.findall(pattern, terminal.history.replace("\n", " "))[-1]


def idle(terminal: Terminal) -> bool:
    """Whether the bar is to be seen and says that nothing is being answered."""
    return terminal.text.rstrip().endswith("/help")


@pytest.fixture(scope="session")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, ScriptedModel, Plans]]:
    plans = Plans()
    with ScriptedModel(think=plans.think) as model:
        root = tmp_path_factory.mktemp("chats")
        place = Place(root / "home", root)
        place.configure(CONFIG.format(model='"openai-chat:scripted"', base=f'base_url = "{model.url}/v1"'))
        yield root, model, plans
        place.stop_all()


@pytest.fixture
def chats(house: tuple[Path, ScriptedModel, Plans], tmp_path: Path) -> Chats:
    root, model, plans = house
    project = tmp_path / "project"
    project.mkdir()
    plans.steps.clear()
    place = Place(root / "home", project)
    place.environ |= {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
    return Chats(place, model, plans)
