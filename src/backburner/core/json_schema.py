"""Reads JSON schemas out of type hints: texts, numbers, booleans, lists of them, and TypedDicts.

Small on purpose: the command line and the MCP server must not import pydantic.
"""

import types
import typing
from typing import Any


def without_none(hint: Any) -> tuple[Any, bool]:
    """A hint without its None, and whether it had one."""
    if isinstance(hint, types.UnionType):
        rest = [one for one in typing.get_args(hint) if one is not type(None)]
        return rest[0], len(rest) < len(typing.get_args(hint))
    return hint, False


def schema_of(hint: Any) -> dict[str, Any]:
    """The JSON schema of a hint."""
    kind, nullable = without_none(hint)
    if typing.is_typeddict(kind):
        hints = typing.get_type_hints(kind)
        return {
            "type": "object",
            "properties": {name: schema_of(one) for name, one in hints.items()},
            "required": sorted(kind.__required_keys__),
        }
    if typing.get_origin(kind) is list:
        return {"type": "array", "items": schema_of(typing.get_args(kind)[0])}
    name = {str: "string", bool: "boolean", int: "integer", float: "number"}[kind]
    return {"type": [name, "null"] if nullable else name}
