"""What the built-in agent can do itself: files and commands of its project, what it remembers, and our own background tools.

Reading, searching and making new files inside the project is free; changing what is there is free in a trusted project, else it waits
for a person's yes, as a command does that the gate asks for. Nothing leads outside the project.
"""

import asyncio
import fnmatch
import functools
import os
import stat
from collections.abc import Callable, Iterator
from typing import Any

from pydantic_ai import ApprovalRequired, CallDeferred, RunContext
from pydantic_ai import Tool as AgentTool
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset

from backburner.agent_tools.context import ToolContext, wait_until
from backburner.agent_tools.dispatcher import ToolDispatcher
from backburner.agent_tools.registry import toolset
from backburner.agent_tools.results import describe_outcome, started
from backburner.agents import permissions as territory
from backburner.approval.effects import looks_secret, relied_on
from backburner.core.claims import ClaimedRun
from backburner.core.command_words import words_of
from backburner.core.errors import BackburnerError, BadInput
from backburner.core.models import Entry, Submission, Task
from backburner.core.task_spec import CommandSpec, Order, TaskSpec
from backburner.core.terminal_text import readable, shortened, visible
from backburner.services.app import App
from backburner.services.validation import TOOL_SETS as SETS
from backburner.system.caller_identity import environment_for_commands
from backburner.system.home import open_plain, write_atomically
from backburner.system.processes import myself, umask

_LONGEST_READ = 50_000
_LONGEST_FILE = 2_000_000
_MOST_FOUND = 200
_MOST_SEARCHED = 20_000
_SKIPPED = {".git", "node_modules", ".venv", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache"}


class Deps:
    """Who works: the context of our tools, and the run it works in. `waited` are the tasks whose ends it was told by their calls."""

    def __init__(self, context: ToolContext, work: ClaimedRun) -> None:
        self.context, self.work = context, work
        self.waited: set[str] = set()
        self.escalating = False

    async def report(self, entry: Entry) -> str:
        """How a command ended, with the end of its output; it counts as told."""
        self.waited.add(entry.task.task_id)
        session = self.context.session

        def read(app: App) -> bytes:
            app.inbox.acknowledge(task_ids=[entry.task.task_id], session=session)
            if self.work.task.in_chat:  # the person has read along
                app.inbox.acknowledge(task_ids=[entry.task.task_id])
            return app.runs.tail(entry, 100, longest=16_000) if entry.run else b""

        output = readable((await self.context.home.call(read)).decode("utf-8", "replace"))
        return f"{describe_outcome(self.context, entry)}\n{output}".rstrip()

    async def approved(self, entry: Entry, about: dict[str, Any]) -> str | dict[str, Any]:
        """What became of a command that a person was asked about: it has started, was refused, or has ended."""
        if about.get("start") and not entry.has_ended:
            return dict(await started(self.context, entry))
        return await self.patiently(entry)

    async def patiently(self, entry: Entry) -> str:
        """How a command ended; one that takes long goes on in the background."""
        known = entry.task.task_id
        patience = await self.context.home.call(lambda app: app.config.number("agents.yield_seconds"))
        (entry,) = await wait_until(self.context, [known], patience, lambda one: one.has_ended or one.status == "waiting", quiet=True)
        if entry.status == "waiting":
            raise CallDeferred(metadata={"task_id": known, "reason": describe_outcome(self.context, entry)})
        if not entry.has_ended:
            return f"Still running after {patience:g} s, in the background as {known}. Go on; you will be told when it has ended."
        return await self.report(entry)

    def inside(self, path: str) -> str:
        """A path of the project as it really is; BadInput for one that leads out of it, or to a secret."""
        return territory.resolve_in_project(self.work.task, path, self.context.home.root)

    def named(self, path: str) -> str:
        """A path as a person is shown it: where it really leads, from the root of the project."""
        return os.path.relpath(self.inside(path), os.path.realpath(self.work.task.opened or "/"))

    async def may_change(self, approved: bool, what: str) -> None:
        """Go on where the project is trusted or a person said yes to this very call; else wait for that."""
        if not approved and not await self.context.home.call(lambda app: territory.may_edit_project(app, self.work.task)):
            raise ApprovalRequired(metadata={"reason": visible(f"it wants to {what}")})

    async def blocked(self, arguments: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """How agents stand that this one waits for, and which of them still work."""
        answer = await _desk().answer(self.context, "background_block", {**arguments, "timeout": 0}, myself())
        await answer.delivered()
        return answer.result, answer.result.get("running", [])


Context = RunContext[Deps]


async def read_file(ctx: Context, path: str, start_line: int = 1, lines: int = 500) -> str:
    """Read a text file of the project, with line numbers; 500 lines at a time.

    Args:
        path: The file, relative to the working directory.
        start_line: The first line to show.
        lines: How many lines at the most.
    """
    return await _safely(lambda: _read(ctx.deps.inside(path), max(1, start_line), max(1, min(lines, 2000))))


async def write_file(ctx: Context, path: str, content: str) -> str:
    """Write a text file of the project as a whole, making folders where they are missing.

    Args:
        path: The file, relative to the working directory.
        content: All of it.
    """
    try:
        there = os.path.lexists(ctx.deps.inside(path))
    except BadInput as error:
        return str(error)
    if there or relied_on(ctx.deps.named(path)):
        await ctx.deps.may_change(ctx.tool_call_approved, f"write {ctx.deps.named(path)} as a whole, {territory.shown(content)}")
    return await _safely(lambda: _write(ctx.deps.inside(path), content))


async def edit_file(ctx: Context, path: str, old: str, new: str) -> str:
    """Replace a piece of a text file of the project by another; the piece must occur just once.

    Args:
        path: The file, relative to the working directory.
        old: What stands there now, with enough around it to be unique.
        new: What is to stand there.
    """
    try:
        known = ctx.deps.named(path)
    except BadInput as error:
        return str(error)
    await ctx.deps.may_change(ctx.tool_call_approved, f"change {known}: from {territory.shown(old)}, to {territory.shown(new)}")
    return await _safely(lambda: _edit(ctx.deps.inside(path), old, new))


async def search_files(ctx: Context, text: str = "", files: str = "*", folder: str = ".") -> str:
    """Find files of the project by name, or lines in them that hold a text. At most 200 findings.

    Args:
        text: What a line must hold; empty to list files.
        files: A pattern for the names of files, such as *.py.
        folder: Where to look.
    """
    deps = ctx.deps
    return await _safely(lambda: _search(deps.inside(folder), deps.work.task, deps.context.home.root, text, files))


async def run_command(ctx: Context, command: str, shell: bool = False) -> str:
    """Run a command in the project and wait for it. One that takes long goes on in the background, and you are told when it has ended.

    Args:
        command: The command line, such as "pytest -q".
        shell: Run it with /bin/sh. Needed for pipes, redirects, && and $variables.
    """
    deps = ctx.deps
    work, context = deps.work, deps.context

    def submit(app: App) -> Entry:
        return app.submissions.submit(
            Submission(
                spec=TaskSpec(
                    cwd=work.task.spec.cwd,
                    command=CommandSpec(words=(command,) if shell else words_of(command), shell=shell, umask=umask()),
                    description=f"for {work.task.task_id}",
                    order=Order(batch=work.task.spec.order.batch, key=f"{work.run.run_id}:{len(ctx.messages)}:{ctx.tool_call_id}"[:200]),
                ),
                environment=environment_for_commands(work.environment),
                session=context.session,
                opened=work.task.opened,
                parent_run=work.run.run_id,
            ),
            context.caller,
        )

    try:
        entry = await context.home.call(submit)
    except BackburnerError as error:
        return str(error)
    if entry.status == "proposed":
        raise CallDeferred(metadata={"task_id": entry.task.task_id, "reason": describe_outcome(context, entry)})
    return await deps.patiently(entry)


async def memory_set(ctx: Context, key: str, value: str) -> str:
    """Remember something for later tasks in this project.

    Args:
        key: A name for it.
        value: What to remember; empty to forget it.
    """
    project = ctx.deps.work.task.project
    return await _told(ctx.deps, lambda app: app.conversations.remember(key, value or None, project) or f"Remembered {key}.")


async def memory_get(ctx: Context, key: str) -> str:
    """What was remembered under a name.

    Args:
        key: Its name.
    """
    project = ctx.deps.work.task.project
    return await _told(ctx.deps, lambda app: app.conversations.memory(project).get(key, f"Nothing is remembered as {key}."))


async def memory_list(ctx: Context) -> str:
    """The names of all that is remembered in this project."""
    project = ctx.deps.work.task.project
    return await _told(ctx.deps, lambda app: "\n".join(app.conversations.memory(project)) or "Nothing is remembered yet.")


def toolsets(names: str | None) -> list[AbstractToolset[Deps]]:
    """The tools of some sets, named in the settings of an agent; of all where none are."""
    wanted = [
        name.strip() for name in (names or ",".join(name for name in SETS if name not in ("read", "propose"))).split(",") if name.strip()
    ]
    if unknown := [name for name in wanted if name not in SETS]:
        raise BadInput(f"There is no set of tools '{unknown[0]}' for agents; there are {', '.join(SETS)}.")
    functions: dict[str, list[Callable[..., Any]]] = {
        "files": [read_file, write_file, edit_file, search_files],
        "read": [read_file, search_files] if "files" not in wanted else [],
        "commands": [run_command],
        "memory": [memory_set, memory_get, memory_list],
    }
    made: list[AbstractToolset[Deps]] = [FunctionToolset([f for name in wanted for f in functions.get(name, [])])]
    if "background" in wanted:
        made.append(FunctionToolset([_ours(tool) for tool in _desk().tools.values()]))
    elif "propose" in wanted:
        made.append(FunctionToolset([_ours(_desk().tools[name]) for name in ("task_propose", "task_list")]))
    return made


async def escalate(ctx: Context, reason: str) -> str:
    """Hand this task to a stronger model, which costs more: only where you cannot do it yourself.

    Args:
        reason: Why.
    """
    ctx.deps.escalating = True
    return f"A stronger model goes on from here: {reason}"


def escalation() -> AbstractToolset[Deps]:
    """The way to a stronger model."""
    return FunctionToolset([escalate])


@functools.cache
def _desk() -> ToolDispatcher:
    """Where the calls of all agents of this host are answered."""
    return ToolDispatcher(toolset())


def _ours(tool: Any) -> AgentTool[Deps]:
    async def call(ctx: Context, **arguments: Any) -> dict[str, Any]:
        if tool.name == "background_block":  # it gives its place back while it waits: those it waits for may need it
            result, running = await ctx.deps.blocked(arguments)
            if running:
                about = {"again": arguments, "task_id": running[0], "reason": f"it waits for {running[0]}"}
                raise CallDeferred(metadata=about)
            return result
        answer = await _desk().answer(ctx.deps.context, tool.name, arguments, myself())
        await answer.delivered()
        if tool.name == "start_background_task" and ctx.deps.work.task.in_chat and answer.result.get("status") == "proposed":
            known = answer.result["task_id"]  # the person sits there, and is asked now
            raise CallDeferred(metadata={"task_id": known, "reason": f"{known} needs your yes", "start": True})
        return answer.result

    return AgentTool.from_schema(call, tool.name, tool.description, tool.schema, takes_ctx=True)


async def _told(deps: Deps, call: Callable[[App], str]) -> str:
    try:
        return await deps.context.home.call(call)
    except BackburnerError as error:
        return str(error)


async def _safely(call: Callable[[], str]) -> str:
    try:
        return await asyncio.to_thread(call)
    except (OSError, BadInput, ValueError) as error:
        return f"{error}"


def _read(path: str, first: int, count: int) -> str:
    if os.path.isdir(path):
        return "\n".join(sorted(name + "/" * os.path.isdir(os.path.join(path, name)) for name in os.listdir(path))[:_MOST_FOUND])
    lines = _text(path).splitlines()
    shown = "\n".join(f"{first + n}\t{line}" for n, line in enumerate(lines[first - 1 : first - 1 + count]))
    more = len(lines) - (first - 1 + count)
    return shown[:_LONGEST_READ] + (f"\n[{more} more lines]" if more > 0 else "")


def _write(path: str, content: str) -> str:
    if len(content) > _LONGEST_FILE:
        raise BadInput(f"That is longer than {_LONGEST_FILE:,} characters.")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    write_atomically(path, content, os.stat(path).st_mode & 0o777 if os.path.exists(path) else 0o644)
    return f"Wrote {len(content)} characters."


def _edit(path: str, old: str, new: str) -> str:
    if os.path.getsize(path) > _LONGEST_FILE:
        raise BadInput("The file is too large to edit.")
    text = _text(path, "strict")
    if not old or (count := text.count(old)) != 1:
        return "It must occur just once there; it occurs " + (f"{count} times." if old else "nowhere: it is empty.")
    return _write(path, text.replace(old, new))


def _search(folder: str, task: Task, home: str, text: str, files: str) -> str:
    cwd, root = os.path.realpath(task.spec.cwd), os.path.realpath(task.opened or "/")
    found = []
    for path in _below(folder, files, os.path.realpath(home)):
        name = os.path.relpath(path, cwd)
        if not text:
            found.append(name)
        elif not looks_secret(os.path.relpath(path, root)):
            try:
                lines = _text(path, "strict").splitlines()
            except (OSError, UnicodeDecodeError):
                continue
            found += [f"{name}:{n}: {shortened(line.strip())}" for n, line in enumerate(lines, 1) if text in line][:_MOST_FOUND]
        if len(found) >= _MOST_FOUND:
            return "\n".join(found[:_MOST_FOUND]) + "\n[there may be more]"
    return "\n".join(found) or "Nothing found."


def _below(folder: str, pattern: str, home: str) -> Iterator[str]:
    seen = 0
    for here, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED and os.path.join(here, name) != home)
        for name in sorted(names):
            seen += 1
            if seen > _MOST_SEARCHED:
                return
            if fnmatch.fnmatch(name, pattern) and stat.S_ISREG(os.lstat(os.path.join(here, name)).st_mode):
                yield os.path.join(here, name)


def _text(path: str, errors: str = "replace") -> str:
    """The beginning of a plain file: nothing that blocks, never ends or leads elsewhere."""
    with open(open_plain(path), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise FileNotFoundError(f"{path} is not a plain file.")
        return file.read(_LONGEST_FILE).decode("utf-8", errors)
