"""Derives JSON schemas from type hints: strings, numbers, booleans, lists of these, and TypedDicts.

Hand-written because the command line and the MCP server must not import pydantic.
"""

import types
import typing
from typing import Any


def without_none(hint: Any) -> tuple[Any, bool]:
    """Return a type hint without None, and whether it included None."""
    if isinstance(hint, types.UnionType):
        rest = [member for member in typing.get_args(hint) if member is not type(None)]
        return rest[0], len(rest) < len(typing.get_args(hint))
    return hint, False


def schema_of(hint: Any) -> dict[str, Any]:
    """Return the JSON schema of a type hint."""
    kind, nullable = without_none(hint)
    if typing.is_typeddict(kind):
        hints = typing.get_type_hints(kind)
        return {
            "type": "object",
            "properties": {name: schema_of(field) for name, field in hints.items()},
            "required": sorted(kind.__required_keys__),
        }
    if typing.get_origin(kind) is list:
        return {"type": "array", "items": schema_of(typing.get_args(kind)[0])}
    name = {str: "string", bool: "boolean", int: "integer", float: "number"}[kind]
    return {"type": [name, "null"] if nullable else name}
