"""Chats in pseudo-terminals. All tests share one home and one scripted model; each test has its own project."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import CAUTIOUS, HomeCli
from terminal import Terminal

from backburner.core.notice_text import NOTICE_PREFIX
from backburner.testing.scripted_model import ScriptedModel

CONFIG = "[models]\ndefault = {model}\n{base}\n[agents]\nyield_seconds = 2\nidle_exit_seconds = 2\n[tasks]\nmax_concurrent = 8\n"
Json = dict[str, Any]


class ScriptedReplies:
    """The steps of the model, chosen by a text that the user's message contains; one step for each request of the turn."""

    def __init__(self) -> None:
        self.steps: dict[str, list[Json]] = {}

    def __setitem__(self, words: str, steps: list[Json]) -> None:
        self.steps[words] = steps

    def next_step(self, turns: list[tuple[str, str]]) -> Json:
        sent = [index for index, (role, text) in enumerate(turns) if role == "user" and not text.startswith(NOTICE_PREFIX)]
        if not sent:
            return {"say": "ok"}
        message, since = turns[sent[-1]][1], turns[sent[-1] + 1 :]
        steps = next((steps for words, steps in self.steps.items() if words in message), [{"say": f"You said: {message[:200]}"}])
        taken = sum(role == "assistant" and (n == 0 or since[n - 1][0] != "assistant") for n, (role, _) in enumerate(since))
        ids = re.findall(r"task_\d{8}_\d{6}_\w+", "\n".join(text for role, text in turns if role == "tool"))
        step = dict(steps[min(taken, len(steps) - 1)])
        if "say" in step and ids:
            step["say"] = step["say"].replace("{task_id}", ids[-1])
        return step


class Chats:
    """`with chats.open() as terminal` runs `backburner chat` in a new terminal, in the project of the test."""

    def __init__(self, home_cli: HomeCli, model: ScriptedModel, replies: ScriptedReplies) -> None:
        self.home_cli, self.model, self.replies = home_cli, model, replies

    def open(self, *words: str, columns: int = 100, rows: int = 30, env: dict[str, str] | None = None, early: bool = False) -> Terminal:
        """Start a chat and wait for its prompt; with `early`, do not wait."""
        command = [sys.executable, "-m", "backburner", "chat", *words]
        terminal = Terminal(command, cwd=self.home_cli.cwd, env={**self.home_cli.environ, **(env or {})}, columns=columns, rows=rows)
        if not early:
            terminal.wait(lambda t: any(line.startswith(("›", ">")) for line in t.lines))
        return terminal

    def cancel_turn(self) -> None:
        """End the chat, and with it the answer that is still being written."""
        self.home_cli.ok("sessions", "end", chat_session(self))

    def requests(self, text: str) -> list[Json]:
        """The requests to the model that contain a text."""
        return [request for request in list(self.model.requests) if text in str(request)]


def line_of(terminal: Terminal) -> str:
    """The input line: the last line that begins with the prompt."""
    return next((line for line in reversed(terminal.lines) if line.startswith("›")), "")


def task_in(terminal: Terminal, words: str) -> str:
    """The task id in the last sentence that matches; `{}` stands for the id."""
    pattern = words.format(r"(task_\S+)")
    terminal.wait(lambda t: re.search(pattern, t.history.replace("\n", " ")))
    return re.findall(pattern, terminal.history.replace("\n", " "))[-1]


def idle(terminal: Terminal) -> bool:
    """Whether the status bar shows that no turn is running."""
    return terminal.text.rstrip().endswith("/help")


def type_and_wait(terminal: Terminal, text: str) -> None:
    """Type a text and wait until it is at the end of the input line."""
    terminal.type(text)
    terminal.wait(lambda t: line_of(t).endswith(text.strip()))


def wait_for_question(terminal: Terminal) -> None:
    """Wait until a question is at the prompt and accepts keys."""
    terminal.wait(lambda t: any(re.match(r"\w.*\? \[y/n[^]]*\]$", line) for line in t.lines))
    terminal.read(0.8)


def chat_session(chats: Chats) -> str:
    """The session id of the newest chat."""
    return str(re.findall(r"chat:\S+", chats.home_cli.ok("sessions"))[0])


@pytest.fixture(scope="session")
def chat_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, ScriptedModel, ScriptedReplies]]:
    replies = ScriptedReplies()
    with ScriptedModel(think=replies.next_step) as model:
        root = tmp_path_factory.mktemp("chats")
        home_cli = HomeCli(root / "home", root)
        home_cli.configure(CAUTIOUS + CONFIG.format(model='"openai-chat:scripted"', base=f'base_url = "{model.url}/v1"'))
        yield root, model, replies
        home_cli.stop_all()


@pytest.fixture
def chats(chat_home: tuple[Path, ScriptedModel, ScriptedReplies], tmp_path: Path) -> Chats:
    root, model, replies = chat_home
    project = tmp_path / "project"
    project.mkdir()
    replies.steps.clear()
    home_cli = HomeCli(root / "home", project)
    home_cli.environ |= {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
    return Chats(home_cli, model, replies)
