"""Backburner: background work for AI agents and the person beside them.

Everything here is loaded when it is first used, so that importing the package costs nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from backburner.api import Backburner, BackburnerSync
    from backburner.doors.toolset import BackgroundTools
    from backburner.errors import (
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
    from backburner.library import TaskMetadata, TaskRunner, TaskStatus, TaskStorage, generate_task_id, parse_command
    from backburner.models import Batch, Entry, Event, Notice, Run, Span, Task
    from backburner.progress import Progress

_HOMES = {
    "api": ("Backburner", "BackburnerSync"),
    "doors.toolset": ("BackgroundTools",),
    "errors": (
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
    "library": ("TaskMetadata", "TaskRunner", "TaskStatus", "TaskStorage", "generate_task_id", "parse_command"),
    "models": ("Batch", "Entry", "Event", "Notice", "Run", "Span", "Task"),
    "progress": ("Progress",),
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


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            from importlib import import_module

            return getattr(import_module(f"backburner.{module}"), name)
    raise AttributeError(f"module 'backburner' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
