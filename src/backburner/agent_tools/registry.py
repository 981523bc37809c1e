"""The tools by name: builds their JSON schemas from signatures and docstrings, and checks arguments against them."""

import contextlib
import inspect
import json
import re
import types
import typing
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from backburner.agent_tools import agents as agent_tools
from backburner.agent_tools import commands as tools
from backburner.agent_tools import inbox as inbox_tools
from backburner.agent_tools import memory as memory_tools
from backburner.agent_tools import recurring as task_tools
from backburner.core.errors import BadInput
from backburner.core.json_schema import schema_of, without_none

Function = types.FunctionType
TOOLSETS: dict[str, tuple[Any, ...]] = {
    "commands": tools.COMMANDS,
    "agents": agent_tools.AGENTS,
    "tasks": task_tools.TASKS,
    "memory": memory_tools.MEMORY,
    "inbox": inbox_tools.INBOX,
}
_READ_ONLY_TOOLS = {
    "background_output",
    "background_block",
    "background_list",
    "brief",
    "check_task_status",
    "inbox",
    "list_background_tasks",
    "memory_get",
    "memory_list",
    "wait_for_background_tasks",
    "read_background_output",
    "task_list",
}
_TYPE_NAMES = {str: "a string", bool: "true or false", int: "an integer", float: "a number", list: "a list of strings", dict: "an object"}
_MAX_TEXT_CHARACTERS = 256 * 1024


class Tool:
    """A tool function with its description and its schema."""

    def __init__(self, function: Function) -> None:
        self.function, self.name = function, function.__name__
        self.is_read_only = self.name in _READ_ONLY_TOOLS
        doc = inspect.getdoc(function) or ""
        description, _, arguments = doc.partition("\n\nArgs:\n")
        self.description = re.sub(r"(?<!\n)\n(?!\n)(?=[a-z])", " ", description)  # a line that was only wrapped
        self._parameter_descriptions = dict(re.findall(r"^ {4}(\w+): (.+(?:\n {5,}.+)*)", arguments, re.MULTILINE))

    @cached_property
    def parameters(self) -> dict[str, tuple[Any, bool, Any]]:
        """For each parameter: its type, whether it may be null, and its default (`inspect.Parameter.empty` if it has none)."""
        hints = typing.get_type_hints(self.function)
        parameters = inspect.signature(self.function).parameters
        return {name: (*without_none(hints[name]), parameters[name].default) for name in parameters if name != "ctx"}

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the arguments. A parameter whose name says everything has no description."""
        properties = {}
        for name, (kind, _, default) in self.parameters.items():
            properties[name] = schema_of(kind)
            if description := self._parameter_descriptions.get(name):
                properties[name]["description"] = re.sub(r"\s+", " ", description)
            if default not in (None, False, inspect.Parameter.empty):
                properties[name]["default"] = default
        required = [name for name, (_, _, default) in self.parameters.items() if default is inspect.Parameter.empty]
        return {"type": "object", "properties": properties, **({"required": required} if required else {})}

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments converted to the parameter types. BadInput names the invalid one."""
        if unknown := [name for name in arguments if name not in self.parameters]:
            raise BadInput(f"Unknown argument '{unknown[0][:100]}' for {self.name}. It takes: {', '.join(self.parameters)}.")
        checked = {}
        for name, (kind, nullable, default) in self.parameters.items():
            if name not in arguments or (arguments[name] is None and (nullable or default is not inspect.Parameter.empty)):
                if default is inspect.Parameter.empty:
                    raise BadInput(f"{self.name} needs '{name}': {_TYPE_NAMES[typing.get_origin(kind) or kind]}.")
                continue
            checked[name] = self._check_value(name, kind, arguments[name])
        return checked

    def _check_value(self, name: str, kind: Any, value: Any) -> Any:
        base: Any = typing.get_origin(kind) or kind
        is_valid = isinstance(value, base) and (base is bool or not isinstance(value, bool))
        value, is_valid = _convert_number(base, value, is_valid)
        if name == "ready_when" and isinstance(value, int) and not isinstance(value, bool):
            value, is_valid = str(value)[:40], True  # a port
        if base is dict and isinstance(value, str):  # models often pass the JSON text of an object
            with contextlib.suppress(ValueError, RecursionError):
                value = json.loads(value[:_MAX_TEXT_CHARACTERS])
            is_valid = isinstance(value, dict)
        if is_valid and base is list:
            is_valid = len(value) <= 1000 and all(isinstance(item, str) for item in value)
        if not is_valid:
            raise BadInput(f"'{name}' of {self.name} must be {_TYPE_NAMES[base]}, not {_format_value(value)}.")
        for text in _texts_in(value):
            if len(text) > _MAX_TEXT_CHARACTERS:
                raise BadInput(f"'{name}' of {self.name} is longer than {_MAX_TEXT_CHARACTERS:,} characters. Put it into a file.")
            if "\0" in text or any("\ud800" <= c <= "\udfff" for c in text):
                raise BadInput(f"'{name}' of {self.name} must be plain text without NUL characters.")
        return value


def _texts_in(value: Any) -> list[str]:
    """The texts in an argument: itself, the items of a list, or the keys and values of an object."""
    items = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else [value]
    return [item for item in items if isinstance(item, str)]


def toolset(names: str | None = None) -> dict[str, Tool]:
    """The tools of the given sets (comma-separated; default: all), by name. BadInput for an unknown set."""
    set_names = [name.strip() for name in (names or ",".join(TOOLSETS)).split(",") if name.strip()]
    for name in set_names:
        if name not in TOOLSETS:
            raise BadInput(f"Unknown tool set '{name}'. Available: {', '.join(TOOLSETS)}.")
    return {function.__name__: Tool(function) for name in set_names for function in TOOLSETS[name]}


def _convert_number(base: Any, value: Any, is_valid: bool) -> tuple[Any, bool]:
    """Convert a number to `base` (int or float) if that loses nothing; invalid if its absolute value exceeds 10^12."""
    if base not in (int, float) or not isinstance(value, int | float) or isinstance(value, bool):
        return value, is_valid
    if not -1e12 <= value <= 1e12 or (base is int and value != int(value)):
        return value, False
    return base(value), True


def _format_value(value: Any) -> str:
    text = repr(value) if isinstance(value, str | int | float | bool | None) else f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:59] + "…"
