"""The texts in requests to models, in any dialect."""

from collections.abc import Iterator
from typing import Any


def conversation_text(request: dict[str, Any]) -> str:
    """The conversation in a request to a model, one text per line."""
    return "".join(joined_strings(request.get(name)) for name in ("messages", "input", "contents"))


def joined_strings(value: object) -> str:
    """All texts in a part of a request, one per line."""
    return "".join(f"{text}\n" for text in strings(value))


def strings(value: Any) -> Iterator[str]:
    """Every string in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from strings(inner)
