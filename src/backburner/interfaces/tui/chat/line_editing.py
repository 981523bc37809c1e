"""What helps to type a line of the chat: what was typed before, and what could come next."""

import contextlib
from collections.abc import Callable, Iterable, Sequence

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory

from backburner.core.states import RunState, TaskState
from backburner.core.terminal_text import readable, shortened
from backburner.interfaces.tui.chat.slash_commands import SLASHES


class KeptHistory(FileHistory):
    """A history that does without its file where that cannot be written."""

    def store_string(self, string: str) -> None:
        with contextlib.suppress(OSError):
            super().store_string(string)


class SlashCompleter(Completer):
    """Slash commands, and what they take; `tasks` gives the ids there are, with what each is about."""

    def __init__(self, tasks: Callable[[], Sequence[tuple[str, str]]]) -> None:
        self._tasks = tasks

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        if not text.startswith("/") or "\n" in text:
            return
        name, space, rest = text[1:].partition(" ")
        if not space:
            for known, slash in SLASHES.items():
                if known.startswith(name):
                    yield Completion(f"/{known}", -len(text), display=slash.usage, display_meta=slash.about)
            return
        word = rest.rpartition(" ")[2]
        if name == "tasks":
            yield from (Completion(state, -len(word)) for state in _states() if state.startswith(word))
        elif name in SLASHES and SLASHES[name].ids and (" " not in rest or name in ("cancel", "approve", "reject")):
            for task_id, about in self._tasks():
                if word.lower() in task_id.lower():
                    yield Completion(task_id, -len(word), display_meta=shortened(readable(about).replace("\n", " "), longest=60))


def _states() -> list[str]:
    return sorted({*map(str, RunState), *map(str, TaskState)})
