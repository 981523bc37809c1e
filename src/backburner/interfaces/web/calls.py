"""One request for an operation of the API, after the guard: who calls, and the parameters as the operation's types say."""

import types
import typing
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from backburner.core.errors import BadInput
from backburner.core.models import Caller


class Call(NamedTuple):
    """A request. `origin` is the origin of the page that sent it, `address` the address of the client."""

    caller: Caller
    path: Mapping[str, str]
    values: Mapping[str, Any]
    origin: str = ""
    address: str = ""
    key: str | None = None
    last_event_id: str | None = None
    accepts_stream: bool = False
    canonical: str = ""
    token_name: str = "token"

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a parameter, or the default if it was not sent or is null."""
        found = self.values.get(name)
        return default if found is None else found


class Reply(NamedTuple):
    """An answer with another status than 200, or with other content than JSON."""

    status: int
    body: Any = None
    type: str = "application/json"
    headers: Mapping[str, str] = {}


def read_values(takes: type | None, sent: Mapping[str, Any], *, text: bool) -> dict[str, Any]:
    """The parameters of a request, checked against a TypedDict. With `text` they come from an address, where all values are texts."""
    hints = typing.get_type_hints(takes) if takes else {}
    required = getattr(takes, "__required_keys__", frozenset())
    if (unknown := next((name for name in sent if name not in hints), None)) is not None:
        known = f" Known ones: {', '.join(sorted(hints))}." if hints else ""
        raise BadInput(f"Unknown parameter '{unknown}'.{known}")
    if missing := sorted(name for name in required if name not in sent):
        raise BadInput(f"The parameter '{missing[0]}' is missing.")
    return {name: _value(name, hints[name], value, text=text) for name, value in sent.items()}


def _value(name: str, hint: Any, value: Any, *, text: bool) -> Any:
    if isinstance(hint, types.UnionType):
        members = [member for member in typing.get_args(hint) if member is not type(None)]
        if value is None and len(members) < len(typing.get_args(hint)):
            return None
        hint = members[0]
    origin = typing.get_origin(hint)
    if origin is Literal:
        if value not in typing.get_args(hint):
            raise BadInput(f"'{name}' must be one of {', '.join(map(str, typing.get_args(hint)))}.")
        return value
    if origin is list:
        values = [part for item in value for part in str(item).split(",") if part] if text else value
        if not isinstance(values, list):
            raise BadInput(f"'{name}' must be a list.")
        inner = typing.get_args(hint)[0]
        return [_from_text(name, inner, item) if text else _value(name, inner, item, text=False) for item in values]
    if text:
        return _from_text(name, hint, str(value[-1]))
    if origin is dict:
        inner = typing.get_args(hint)[1]
        if not isinstance(value, dict) or (inner is str and not all(isinstance(item, str) for item in value.values())):
            raise BadInput(f"'{name}' must be an object{' of texts' if inner is str else ''}.")
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        names = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
        raise BadInput(f"'{name}' must be {names.get(hint, 'an object')}.")
    if hint is str and "\0" in value:
        raise BadInput(f"'{name}' contains a null character.")
    return value


def _from_text(name: str, hint: Any, value: str) -> Any:
    if hint is bool:
        if value not in ("true", "false", "1", "0"):
            raise BadInput(f"'{name}' must be true or false, not '{value}'.")
        return value in ("true", "1")
    if hint is int:
        if not value.lstrip("-").isdecimal() or len(value) > 18:
            raise BadInput(f"'{name}' must be a whole number, not '{value}'.")
        return int(value)
    if "\0" in value:
        raise BadInput(f"'{name}' contains a null character.")
    return value


def limit_of(call: Call, default: int = 100, maximum: int = 500) -> int:
    """The parameter `limit`."""
    limit = call.get("limit", default)
    if not 1 <= limit <= maximum:
        raise BadInput(f"'limit' must be between 1 and {maximum}.")
    return limit


def time_of(call: Call, name: str) -> int | None:
    """A parameter with a time, in milliseconds UTC."""
    if (text := call.get(name)) is None:
        return None
    try:
        found = datetime.fromisoformat(text)
        return int(found.replace(tzinfo=found.tzinfo or UTC).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise BadInput(f"'{name}' must be a time such as 2026-02-09T18:30:00Z, not '{text}'.") from None
