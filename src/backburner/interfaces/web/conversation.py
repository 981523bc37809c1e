"""The conversation of an agent task as a list of items: what was said, which tools were called, and what they answered.

The built-in agent stores its messages in conversation.json, in the format of pydantic-ai, which is read here without that library.
Of other agents only the messages to them and their answers are known.
"""

import json
import os
from collections.abc import Iterator
from typing import Any

from backburner.core import formatting
from backburner.core.masking import hide_secrets
from backburner.core.models import Entry
from backburner.services.app import App
from backburner.system.home import read_plain

_MAX_FILE_BYTES = 64 << 20
_MAX_TEXT_CHARACTERS = 100_000
_MAX_ANSWER_BYTES = 256 << 10


def read_conversation(app: App, entry: Entry) -> list[dict[str, object]]:
    """All items of a conversation, oldest first."""
    try:
        stored = json.loads(read_plain(app.conversations.path(entry.task, entry.run), _MAX_FILE_BYTES))
        messages = stored["messages"]
    except (OSError, ValueError, KeyError, TypeError):
        messages = None
    return list(_of_messages(messages)) if isinstance(messages, list) else list(_of_runs(app, entry))


def _item(who: str, text: object, at: object = None, tool: dict[str, object] | None = None) -> dict[str, object]:
    return {"who": who, "text": hide_secrets(_text(text)), "at": at, "tool": tool}


def _of_messages(messages: list[Any]) -> Iterator[dict[str, object]]:
    results = {part.get("tool_call_id"): part for part in _parts(messages) if part.get("part_kind") in ("tool-return", "retry-prompt")}
    for message in messages:
        at = message.get("timestamp") if isinstance(message, dict) else None
        for part in _parts([message]):
            match part.get("part_kind"):
                case "user-prompt":
                    yield _item("you", part.get("content"), part.get("timestamp") or at)
                case "text":
                    if str(part.get("content") or "").strip():
                        yield _item("agent", part.get("content"), at)
                case "tool-call":
                    result = results.get(part.get("tool_call_id"), {})
                    answer = _text(result.get("content"))
                    tool = {
                        "name": str(part.get("tool_name")),
                        "arguments": hide_secrets(_text(part.get("args"))),
                        "result": hide_secrets(answer),
                        "failed": result.get("part_kind") == "retry-prompt",
                        "task_id": _task_in(result.get("content")),
                    }
                    yield _item("tool", "", at, tool)


def _parts(messages: list[Any]) -> Iterator[dict[str, Any]]:
    for message in messages:
        parts = message.get("parts") if isinstance(message, dict) else None
        yield from (part for part in parts or [] if isinstance(part, dict))


def _of_runs(app: App, entry: Entry) -> Iterator[dict[str, object]]:
    for run in reversed(app.queries.history(entry, 1000)):
        yield _item("you", run.message or entry.task.spec.prompt, formatting.iso(run.created_at))
        try:
            with app.runs.log_source(run).open() as log:
                answer = b"".join(log.bounded(_MAX_ANSWER_BYTES))
        except OSError:
            continue
        if answer.strip():
            yield _item("agent", answer.decode("utf-8", "backslashreplace"), formatting.iso(run.ended_at))


def _text(content: object) -> str:
    text = content if isinstance(content, str) else "" if content is None else json.dumps(content, ensure_ascii=False)
    return text[:_MAX_TEXT_CHARACTERS]


def _task_in(content: object) -> str | None:
    """The task that a tool started, if its answer names one."""
    found = content.get("task_id") if isinstance(content, dict) else None
    return found if isinstance(found, str) and os.sep not in found else None
