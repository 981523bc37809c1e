"""Derives JSON schemas from type hints: strings, numbers, booleans, literals, lists of these, TypedDicts and objects with any keys.

Hand-written because the command line and the MCP server must not import pydantic.
"""

import types
import typing
from typing import Any


def without_none(hint: Any) -> tuple[Any, bool]:
    """Return a type hint without None, and whether it included None. Of several other types the first is returned."""
    if isinstance(hint, types.UnionType):
        rest = [member for member in typing.get_args(hint) if member is not type(None)]
        return rest[0], len(rest) < len(typing.get_args(hint))
    return hint, False


def schema_of(hint: Any, components: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the JSON schema of a type hint. With `components`, TypedDicts are stored there by name and referred to."""
    kind, nullable = without_none(hint)
    if isinstance(hint, types.UnionType) and len(typing.get_args(hint)) - nullable > 1:
        found = [schema_of(member, components)["type"] for member in typing.get_args(hint) if member is not type(None)]
        return {"type": [*found, *(["null"] if nullable else [])]}
    schema = _schema_of(kind, components)
    if not nullable:
        return schema
    if isinstance(schema.get("type"), str) and components is None:
        return {**schema, "type": [schema["type"], "null"]} if schema["type"] not in ("object", "array") else schema
    return {**schema, "type": [schema["type"], "null"]} if "type" in schema else {"anyOf": [schema, {"type": "null"}]}


def _schema_of(kind: Any, components: dict[str, Any] | None) -> dict[str, Any]:
    if typing.is_typeddict(kind):
        if components is not None and kind.__name__ in components:
            return {"$ref": f"#/components/schemas/{kind.__name__}"}
        if components is not None:
            components[kind.__name__] = {}  # it may contain itself
        hints = typing.get_type_hints(kind)
        schema = {
            "type": "object",
            "properties": {name: schema_of(field, components) for name, field in hints.items()},
            "required": sorted(kind.__required_keys__),
        }
        if components is None:
            return schema
        components[kind.__name__] = schema
        return {"$ref": f"#/components/schemas/{kind.__name__}"}
    if typing.get_origin(kind) is dict:
        return {"type": "object", "additionalProperties": True}
    if typing.get_origin(kind) is list:
        return {"type": "array", "items": schema_of(typing.get_args(kind)[0], components)}
    if typing.get_origin(kind) is typing.Literal:
        return {"type": "string", "enum": list(typing.get_args(kind))}
    return {"type": {str: "string", bool: "boolean", int: "integer", float: "number"}[kind]}
