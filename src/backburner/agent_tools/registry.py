"""The tools of agents by their names: schemas read from signatures and docstrings, and arguments checked against them."""

import inspect
import re
import types
import typing
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from backburner.agent_tools import agents as agent_tools
from backburner.agent_tools import commands as tools
from backburner.agent_tools import recurring as task_tools
from backburner.core.errors import BadInput
from backburner.core.json_schema import schema_of, without_none
from backburner.core.models import Caller
from backburner.services.app import App

Function = types.FunctionType
TOOLSETS: dict[str, tuple[Any, ...]] = {"commands": tools.COMMANDS, "agents": agent_tools.AGENTS, "tasks": task_tools.TASKS}
_READS = {
    "background_output",
    "background_block",
    "background_list",
    "check_task_status",
    "list_background_tasks",
    "wait_for_background_tasks",
    "read_background_output",
    "task_list",
}
_DESTROYS = {"background_cancel", "background_clear", "cancel_background_task", "clear_background_tasks", "task_cancel"}
_WORDS = {str: "a text", bool: "true or false", int: "a whole number", float: "a number", list: "a list of texts"}
_LONGEST_TEXT = 256 * 1024


class Tool:
    """One function as a tool."""

    def __init__(self, function: Function) -> None:
        self.function, self.name = function, function.__name__
        self.reads, self.destroys = self.name in _READS, self.name in _DESTROYS
        doc = inspect.getdoc(function) or ""
        about, _, arguments = doc.partition("\n\nArgs:\n")
        self.description = about
        self._about = dict(re.findall(r"^ {4}(\w+): (.+(?:\n {5,}.+)*)", arguments, re.MULTILINE))

    @cached_property
    def parameters(self) -> dict[str, tuple[Any, bool, Any]]:
        """Each parameter's type, whether it may be null, and its default (`inspect.Parameter.empty` where it has none)."""
        hints = typing.get_type_hints(self.function)
        found = inspect.signature(self.function).parameters
        return {name: (*without_none(hints[name]), found[name].default) for name in found if name != "ctx"}

    @cached_property
    def schema(self) -> dict[str, Any]:
        """What it takes, as JSON schema."""
        properties = {}
        for name, (kind, _, default) in self.parameters.items():
            properties[name] = {**schema_of(kind), "description": re.sub(r"\s+", " ", self._about[name])}
            if default not in (None, inspect.Parameter.empty):
                properties[name]["default"] = default
        required = [name for name, (_, _, default) in self.parameters.items() if default is inspect.Parameter.empty]
        return {"type": "object", "properties": properties, "required": required}

    @cached_property
    def output_schema(self) -> dict[str, Any]:
        """What it answers, as JSON schema."""
        return schema_of(typing.get_type_hints(self.function)["return"])

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as the function takes them; BadInput names what is wrong."""
        if unknown := [name for name in arguments if name not in self.parameters]:
            raise BadInput(f"{self.name} has no '{unknown[0][:100]}'; it takes {', '.join(self.parameters)}.")
        checked = {}
        for name, (kind, nullable, default) in self.parameters.items():
            if name not in arguments or (arguments[name] is None and (nullable or default is not inspect.Parameter.empty)):
                if default is inspect.Parameter.empty:
                    raise BadInput(f"{self.name} needs '{name}': {_WORDS[typing.get_origin(kind) or kind]}.")
                continue
            checked[name] = self._checked(name, kind, arguments[name])
        return checked

    def _checked(self, name: str, kind: Any, value: Any) -> Any:
        base: Any = typing.get_origin(kind) or kind
        fits = isinstance(value, base) and (base is bool or not isinstance(value, bool))
        value, fits = _number(base, value, fits)
        if name == "ready_when" and isinstance(value, int) and not isinstance(value, bool):
            value, fits = str(value)[:40], True  # a port
        if fits and base is list:
            fits = len(value) <= 1000 and all(isinstance(one, str) for one in value)
        if not fits:
            raise BadInput(f"'{name}' of {self.name} must be {_WORDS[base]}, not {_shown(value)}.")
        for text in value if base is list else [value] if base is str else []:
            if len(text) > _LONGEST_TEXT:
                raise BadInput(f"'{name}' of {self.name} is longer than {_LONGEST_TEXT:,} characters; put it into a file.")
            if "\0" in text or any("\ud800" <= c <= "\udfff" for c in text):
                raise BadInput(f"'{name}' of {self.name} must be plain text, without NUL characters.")
        return value


def sets_of(app: App, caller: Caller) -> str:
    """The sets of tools that are of use in a home: agents can only be asked where there is a model for them."""
    anybody = app.agents.has_models() or any(agent.get("type") for agent in app.config.agents.values()) or app.agents.installed(caller)
    return ",".join(name for name in TOOLSETS if name != "agents" or anybody)


def toolset(names: str | None = None) -> dict[str, Tool]:
    """The tools of some sets, by name; of all where none are named. BadInput for a set that there is not."""
    wanted = [name.strip() for name in (names or ",".join(TOOLSETS)).split(",") if name.strip()]
    for name in wanted:
        if name not in TOOLSETS:
            raise BadInput(f"There is no set of tools '{name}'; there are {', '.join(TOOLSETS)}.")
    return {function.__name__: Tool(function) for name in wanted for function in TOOLSETS[name]}


def _number(base: Any, value: Any, fits: bool) -> tuple[Any, bool]:
    """A number as the one kind that is wanted, where it can be; neither infinite nor beyond reason."""
    if base not in (int, float) or not isinstance(value, int | float) or isinstance(value, bool):
        return value, fits
    if not -1e12 <= value <= 1e12 or (base is int and value != int(value)):
        return value, False
    return base(value), True


def _shown(value: Any) -> str:
    text = repr(value) if isinstance(value, str | int | float | bool | None) else f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:59] + "…"
