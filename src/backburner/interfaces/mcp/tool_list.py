"""The tools as MCP lists them. They are read from `tools.json`, so that listing them does not import their code.

`scripts/docs` writes the file from the functions in `agent_tools`; `scripts/check` verifies that it is up to date.
"""

import json
import os
from typing import TYPE_CHECKING, Any

from backburner.core.errors import BadInput

if TYPE_CHECKING:
    from backburner.agent_tools.registry import Tool

TOOLS_FILE = os.path.join(os.path.dirname(__file__), "tools.json")
# Loaded by every client without a search.
_ALWAYS_LOADED = {"start_background_task", "check_task_status", "wait_for_background_tasks", "read_background_output"}


def set_names(sets: str | None) -> list[str]:
    """The names in a comma-separated list of tool sets (default: all). BadInput for an unknown set."""
    known = _read()
    names = [name.strip() for name in (sets or ",".join(known)).split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise BadInput(f"Unknown tool set '{name}'. Available: {', '.join(known)}.")
    return names


def tool_list(names: list[str]) -> list[dict[str, Any]]:
    """The definitions of the tools of these sets."""
    known = _read()
    return [definition for name in names for definition in known[name]]


def _read() -> dict[str, list[dict[str, Any]]]:
    with open(TOOLS_FILE, encoding="utf-8") as file:
        return json.load(file)


def tools_file() -> str:
    """The text of `tools.json`, with one line for each tool."""
    from backburner.agent_tools.registry import TOOLSETS, toolset

    sets = []
    for name in TOOLSETS:
        lines = (json.dumps(_definition(tool), ensure_ascii=False) for tool in toolset(name).values())
        sets.append(f'"{name}": [\n' + ",\n".join(lines) + "\n]")
    return "{\n" + ",\n".join(sets) + "\n}\n"


def _definition(tool: "Tool") -> dict[str, Any]:
    """A tool as MCP lists it. Every byte is paid for with every request of a model: the schema of the result is left out, and hints
    that have their default value, which is that a tool may change or delete something."""
    definition: dict[str, Any] = {"name": tool.name, "description": tool.description, "inputSchema": tool.schema}
    if tool.is_read_only:
        definition["annotations"] = {"readOnlyHint": True}
    if tool.name in _ALWAYS_LOADED:
        definition["_meta"] = {"anthropic/alwaysLoad": True}
    return definition
