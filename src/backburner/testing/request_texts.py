"""The texts in requests to models, in whatever dialect."""

from collections.abc import Iterator
from typing import Any


def said(request: dict[str, Any]) -> str:
    """The conversation in a request to a model, each text on lines of its own."""
    return "".join(shown(request.get(name)) for name in ("messages", "input", "contents"))


def shown(value: object) -> str:
    """All texts in a part of a request."""
    return "".join(f"{text}\n" for text in strings(value))


def strings(value: Any) -> Iterator[str]:
    """Every string in something that was JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from strings(inner)
