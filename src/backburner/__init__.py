"""Backburner runs background work for AI agents and their users.

Every name is loaded on first use, so that importing the package is fast.
"""

TYPE_CHECKING = False  # like `typing.TYPE_CHECKING`, without the time that `typing` takes to load

if TYPE_CHECKING:
    from typing import Any

    from backburner.core.errors import (
        AmbiguousId,
        ApprovalDenied,
        ApprovalRequired,
        BackburnerError,
        BadInput,
        ConfigError,
        NotAPerson,
        NotRunning,
        NotYourTask,
        QuestionChanged,
        TaskNotFound,
        WaitTimedOut,
    )
    from backburner.core.events import Event, Span
    from backburner.core.models import Batch, Entry, Run, Task
    from backburner.core.notices import Notice
    from backburner.core.progress import Progress
    from backburner.interfaces.library.client import Backburner, BackburnerSync
    from backburner.interfaces.library.embedded import TaskMetadata, TaskRunner, TaskStatus, TaskStorage, generate_task_id, parse_command
    from backburner.interfaces.library.pydantic_ai import BackgroundTools

_EXPORTS = {
    "interfaces.library.client": ("Backburner", "BackburnerSync"),
    "interfaces.library.pydantic_ai": ("BackgroundTools",),
    "core.errors": (
        "AmbiguousId",
        "ApprovalDenied",
        "ApprovalRequired",
        "BackburnerError",
        "BadInput",
        "ConfigError",
        "NotAPerson",
        "NotRunning",
        "NotYourTask",
        "QuestionChanged",
        "TaskNotFound",
        "WaitTimedOut",
    ),
    "interfaces.library.embedded": ("TaskMetadata", "TaskRunner", "TaskStatus", "TaskStorage", "generate_task_id", "parse_command"),
    "core.events": ("Event", "Span"),
    "core.models": ("Batch", "Entry", "Run", "Task"),
    "core.notices": ("Notice",),
    "core.progress": ("Progress",),
}

__all__ = [
    "AmbiguousId",
    "ApprovalDenied",
    "ApprovalRequired",
    "Backburner",
    "BackburnerError",
    "BackburnerSync",
    "BackgroundTools",
    "BadInput",
    "Batch",
    "ConfigError",
    "Entry",
    "Event",
    "NotAPerson",
    "NotRunning",
    "NotYourTask",
    "Notice",
    "Progress",
    "QuestionChanged",
    "Run",
    "Span",
    "Task",
    "TaskMetadata",
    "TaskNotFound",
    "TaskRunner",
    "TaskStatus",
    "TaskStorage",
    "WaitTimedOut",
    "generate_task_id",
    "parse_command",
]


def __getattr__(name: str) -> "Any":
    for module, names in _EXPORTS.items():
        if name in names:
            from importlib import import_module

            return getattr(import_module(f"backburner.{module}"), name)
    raise AttributeError(f"module 'backburner' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
