"""The `memory_*` tools: short texts that agents keep for later tasks of the same project."""

from typing import NotRequired, TypedDict

from backburner.agent_tools.commands import resolve_working_directory
from backburner.agent_tools.context import Context
from backburner.system.paths import project_of


class MemoryEntry(TypedDict):
    key: str
    display: str
    value: NotRequired[str]


class MemoryKeys(TypedDict):
    keys: list[str]
    display: str


async def memory_set(ctx: Context, key: str, value: str, working_directory: str | None = None) -> MemoryEntry:
    """Keep a text for later tasks of this project; an empty value deletes it."""
    project = _project(ctx, working_directory)
    await ctx.deps.call(lambda app: app.conversations.remember(key, value or None, project))
    return MemoryEntry(key=key, display=f"Stored {key}." if value else f"Deleted {key}.")


async def memory_get(ctx: Context, key: str, working_directory: str | None = None) -> MemoryEntry:
    """Read a kept text."""
    project = _project(ctx, working_directory)
    value = (await ctx.deps.call(lambda app: app.conversations.memory(project))).get(key)
    if value is None:
        return MemoryEntry(key=key, display=f"There is no memory entry {key}.")
    ctx.deps.brief = ""
    return MemoryEntry(key=key, value=value, display=value)


async def memory_list(ctx: Context, working_directory: str | None = None) -> MemoryKeys:
    """Names of the kept texts."""
    project = _project(ctx, working_directory)
    keys = list(await ctx.deps.call(lambda app: app.conversations.memory(project)))
    return MemoryKeys(keys=keys, display="\n".join(keys) or "There are no memory entries.")


MEMORY = (memory_set, memory_get, memory_list)


def _project(ctx: Context, working_directory: str | None) -> str:
    return project_of(resolve_working_directory(ctx.deps, working_directory))
