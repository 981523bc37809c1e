"""History and completion for the input line of the chat."""

import contextlib
from collections.abc import Callable, Iterable, Sequence

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory

from backburner.core.states import RunState, TaskState
from backburner.core.terminal_text import readable, shortened
from backburner.interfaces.tui.chat.slash_commands import SLASH_COMMANDS


class OptionalFileHistory(FileHistory):
    """A history that works without its file if the file cannot be written."""

    def store_string(self, string: str) -> None:
        with contextlib.suppress(OSError):
            super().store_string(string)


class SlashCompleter(Completer):
    """Completes slash commands and their arguments; `tasks` returns the known task ids, each with its description."""

    def __init__(self, tasks: Callable[[], Sequence[tuple[str, str]]]) -> None:
        self._tasks = tasks

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        if not text.startswith("/") or "\n" in text:
            return
        name, space, rest = text[1:].partition(" ")
        if not space:
            for known, command in SLASH_COMMANDS.items():
                if known.startswith(name):
                    yield Completion(f"/{known}", -len(text), display=command.usage, display_meta=command.summary)
            return
        word = rest.rpartition(" ")[2]
        if name == "tasks":
            yield from (Completion(state, -len(word)) for state in _states() if state.startswith(word))
        elif name in SLASH_COMMANDS and SLASH_COMMANDS[name].takes_ids and (" " not in rest or name in ("cancel", "approve", "reject")):
            for task_id, description in self._tasks():
                if word.lower() in task_id.lower():
                    yield Completion(task_id, -len(word), display_meta=shortened(readable(description).replace("\n", " "), longest=60))


def _states() -> list[str]:
    return sorted({*map(str, RunState), *map(str, TaskState)})
