"""The tools of the built-in agent: files and commands of its project, memory, and the background tools.

Reading, searching and creating files inside the project needs no approval. Changing existing files needs approval unless the project is
trusted; commands need it if the gate says so. Files outside the project are not accessible.
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
from backburner.agent_tools.results import describe_outcome, rejection_reason, started
from backburner.agents import permissions
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

_MAX_READ_CHARACTERS = 50_000
_MAX_FILE_CHARACTERS = 2_000_000
_MAX_RESULTS = 200
_MAX_SEARCHED_FILES = 20_000
_SKIPPED_FOLDERS = {".git", "node_modules", ".venv", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache"}


class Deps:
    """The dependencies of the tools: their context and the current run. `reported_tasks` are tasks whose end a tool has already reported."""

    def __init__(self, context: ToolContext, work: ClaimedRun) -> None:
        self.context, self.work = context, work
        self.reported_tasks: set[str] = set()
        self.escalating = False

    async def report(self, entry: Entry) -> str:
        """The result of an ended command with the end of its output. Acknowledges its notice."""
        self.reported_tasks.add(entry.task.task_id)
        session = self.context.session

        def read(app: App) -> tuple[str, bytes]:
            app.inbox.acknowledge(task_ids=[entry.task.task_id], session=session)
            if self.work.task.in_chat:  # the person has seen it in the chat
                app.inbox.acknowledge(task_ids=[entry.task.task_id])
            return rejection_reason(app, entry), app.runs.tail(entry, 100, longest=16_000) if entry.run else b""

        reason, output = await self.context.home.call(read)
        return f"{describe_outcome(self.context, entry)}{reason}\n{readable(output.decode('utf-8', 'replace'))}".rstrip()

    async def approved_result(self, entry: Entry, metadata: dict[str, Any]) -> str | dict[str, Any]:
        """The result of a command that needed approval: it was started, was rejected, or has ended."""
        if metadata.get("start") and not entry.has_ended:
            return dict(await started(self.context, entry))
        return await self.wait_for_command(entry)

    async def wait_for_command(self, entry: Entry) -> str:
        """Wait for a command and return its result. A command that takes long continues in the background."""
        task_id = entry.task.task_id
        timeout = await self.context.home.call(lambda app: app.config.number("agents.yield_seconds"))
        (entry,) = await wait_until(
            self.context, [task_id], timeout, lambda entry: entry.has_ended or entry.status == "waiting", quiet=True
        )
        if entry.status == "waiting":
            raise CallDeferred(metadata={"task_id": task_id, "reason": describe_outcome(self.context, entry)})
        if not entry.has_ended:
            return f"Still running after {timeout:g} s, in the background as {task_id}. Continue; you will be notified when it ends."
        return await self.report(entry)

    def resolve(self, path: str) -> str:
        """The real path of a file in the project. BadInput if it is outside the project or may be a secret."""
        return permissions.resolve_in_project(self.work.task, path, self.context.home.root)

    def display_path(self, path: str) -> str:
        """The path shown to the user: the real path, relative to the root of the project."""
        return os.path.relpath(self.resolve(path), os.path.realpath(self.work.task.opened or "/"))

    async def require_edit_permission(self, approved: bool, action: str) -> None:
        """Return if the project is trusted or the user approved exactly this call; otherwise suspend the run for approval."""
        if not approved and not await self.context.home.call(lambda app: permissions.may_edit_project(app, self.work.task)):
            raise ApprovalRequired(metadata={"reason": visible(f"it wants to {action}")})

    async def check_blocking_tasks(self, arguments: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """The status of the agents that this one waits for, and the ids of those still running."""
        answer = await _dispatcher().answer(self.context, "background_block", {**arguments, "timeout": 0}, myself())
        await answer.delivered()
        return answer.result, answer.result.get("running", [])


Context = RunContext[Deps]


async def read_file(ctx: Context, path: str, start_line: int = 1, lines: int = 500) -> str:
    """Read a text file of the project, with line numbers; 500 lines at a time.

    Args:
        path: The file, relative to the working directory.
        start_line: The first line to show.
        lines: Maximum number of lines.
    """
    return await _run_in_thread(lambda: _read(ctx.deps.resolve(path), max(1, start_line), max(1, min(lines, 2000))))


async def write_file(ctx: Context, path: str, content: str) -> str:
    """Write a whole text file of the project. Missing folders are created.

    Args:
        path: The file, relative to the working directory.
        content: The complete content.
    """
    try:
        exists = os.path.lexists(ctx.deps.resolve(path))
    except BadInput as error:
        return str(error)
    if exists or relied_on(ctx.deps.display_path(path)):
        await ctx.deps.require_edit_permission(ctx.tool_call_approved, f"write {ctx.deps.display_path(path)}, {permissions.quote(content)}")
    return await _run_in_thread(lambda: _write(ctx.deps.resolve(path), content))


async def edit_file(ctx: Context, path: str, old: str, new: str) -> str:
    """Replace one piece of text in a file of the project. The old text must occur exactly once.

    Args:
        path: The file, relative to the working directory.
        old: The current text, with enough context to be unique.
        new: The new text.
    """
    try:
        shown_path = ctx.deps.display_path(path)
    except BadInput as error:
        return str(error)
    await ctx.deps.require_edit_permission(
        ctx.tool_call_approved, f"change {shown_path}: from {permissions.quote(old)}, to {permissions.quote(new)}"
    )
    return await _run_in_thread(lambda: _edit(ctx.deps.resolve(path), old, new))


async def search_files(ctx: Context, text: str = "", files: str = "*", folder: str = ".") -> str:
    """Find files of the project by name, or lines in them that contain a text. At most 200 results.

    Args:
        text: The text that a line must contain; empty to list files.
        files: A pattern for file names, such as *.py.
        folder: The folder to search.
    """
    deps = ctx.deps
    return await _run_in_thread(lambda: _search(deps.resolve(folder), deps.work.task, deps.context.home.root, text, files))


async def run_command(ctx: Context, command: str, shell: bool = False, description: str = "") -> str:
    """Run a command in the project and wait for it. A long command continues in the background, and you are notified when it ends.

    Args:
        command: The command line, such as "pytest -q".
        shell: Run it with /bin/sh. Needed for pipes, redirects, && and $variables.
        description: What it is for, in a few words; shown to the user.
    """
    deps = ctx.deps
    work, context = deps.work, deps.context

    def submit(app: App) -> Entry:
        return app.submissions.submit(
            Submission(
                spec=TaskSpec(
                    cwd=work.task.spec.cwd,
                    command=CommandSpec(words=(command,) if shell else words_of(command), shell=shell, umask=umask()),
                    description=shortened(description, longest=500) or f"for {work.task.task_id}",
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
    return await deps.wait_for_command(entry)


def toolsets(names: str | None) -> list[AbstractToolset[Deps]]:
    """The tools of the given sets (comma-separated); by default all sets except `read` and `propose`."""
    set_names = [
        name.strip() for name in (names or ",".join(name for name in SETS if name not in ("read", "propose"))).split(",") if name.strip()
    ]
    if unknown := [name for name in set_names if name not in SETS]:
        raise BadInput(f"Unknown tool set '{unknown[0]}'. Available: {', '.join(SETS)}.")
    functions: dict[str, list[Callable[..., Any]]] = {
        "files": [read_file, write_file, edit_file, search_files],
        "read": [read_file, search_files] if "files" not in set_names else [],
        "commands": [run_command],
    }
    tool_sets: list[AbstractToolset[Deps]] = [FunctionToolset([f for name in set_names for f in functions.get(name, [])])]
    shared = list(toolset("memory")) if "memory" in set_names else []
    if "background" in set_names:
        shared += toolset("commands,agents,tasks")
    elif "propose" in set_names:
        shared += ["task_propose", "task_list"]
    return [*tool_sets, FunctionToolset([_agent_tool(_dispatcher().tools[name]) for name in shared])]


async def escalate(ctx: Context, reason: str) -> str:
    """Hand this task to a stronger, more expensive model. Use it only if you cannot do the task yourself.

    Args:
        reason: Why you cannot do it.
    """
    ctx.deps.escalating = True
    return f"A stronger model continues from here: {reason}"


def escalation() -> AbstractToolset[Deps]:
    """The tool set with the `escalate` tool."""
    return FunctionToolset([escalate])


@functools.cache
def _dispatcher() -> ToolDispatcher:
    """The dispatcher for all agents of this process."""
    return ToolDispatcher(toolset())


def _agent_tool(tool: Any) -> AgentTool[Deps]:
    async def call(ctx: Context, **arguments: Any) -> dict[str, Any]:
        if tool.name == "background_block":  # suspend while it waits, to free its capacity for the agents it waits for
            result, running = await ctx.deps.check_blocking_tasks(arguments)
            if running:
                metadata = {"again": arguments, "task_id": running[0], "reason": f"waiting for {running[0]}"}
                raise CallDeferred(metadata=metadata)
            return result
        answer = await _dispatcher().answer(ctx.deps.context, tool.name, arguments, myself())
        await answer.delivered()
        if tool.name == "start_background_task" and ctx.deps.work.task.in_chat and answer.result.get("status") == "proposed":
            task_id = answer.result["task_id"]  # the person is at the terminal and is asked now
            raise CallDeferred(metadata={"task_id": task_id, "reason": f"{task_id} needs your approval", "start": True})
        return answer.result

    return AgentTool.from_schema(call, tool.name, tool.description, tool.schema, takes_ctx=True)


async def _run_in_thread(call: Callable[[], str]) -> str:
    try:
        return await asyncio.to_thread(call)
    except (OSError, BadInput, ValueError) as error:
        return f"{error}"


def _read(path: str, first: int, count: int) -> str:
    if os.path.isdir(path):
        names = [f"{name}/" if os.path.isdir(os.path.join(path, name)) else name for name in os.listdir(path)]
        return "\n".join(sorted(names)[:_MAX_RESULTS])
    lines = _read_text(path).splitlines()
    shown = "\n".join(f"{first + n}\t{line}" for n, line in enumerate(lines[first - 1 : first - 1 + count]))
    more = len(lines) - (first - 1 + count)
    return shown[:_MAX_READ_CHARACTERS] + (f"\n[{more} more lines]" if more > 0 else "")


def _write(path: str, content: str) -> str:
    if len(content) > _MAX_FILE_CHARACTERS:
        raise BadInput(f"The content is longer than {_MAX_FILE_CHARACTERS:,} characters.")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    write_atomically(path, content, os.stat(path).st_mode & 0o777 if os.path.exists(path) else 0o644)
    return f"Wrote {len(content)} characters."


def _edit(path: str, old: str, new: str) -> str:
    if os.path.getsize(path) > _MAX_FILE_CHARACTERS:
        raise BadInput("The file is too large to edit.")
    text = _read_text(path, "strict")
    if not old or (count := text.count(old)) != 1:
        return "The old text must occur exactly once in the file; " + (f"it occurs {count} times." if old else "it is empty.")
    return _write(path, text.replace(old, new))


def _search(folder: str, task: Task, home: str, text: str, files: str) -> str:
    cwd, root = os.path.realpath(task.spec.cwd), os.path.realpath(task.opened or "/")
    found = []
    for path in _walk_files(folder, files, os.path.realpath(home)):
        name = os.path.relpath(path, cwd)
        if not text:
            found.append(name)
        elif not looks_secret(os.path.relpath(path, root)):
            try:
                lines = _read_text(path, "strict").splitlines()
            except (OSError, UnicodeDecodeError):
                continue
            found += [f"{name}:{n}: {shortened(line.strip())}" for n, line in enumerate(lines, 1) if text in line][:_MAX_RESULTS]
        if len(found) >= _MAX_RESULTS:
            return "\n".join(found[:_MAX_RESULTS]) + "\n[there may be more results]"
    return "\n".join(found) or "Nothing found."


def _walk_files(folder: str, pattern: str, home: str) -> Iterator[str]:
    searched = 0
    for folder_path, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED_FOLDERS and os.path.join(folder_path, name) != home)
        for name in sorted(names):
            searched += 1
            if searched > _MAX_SEARCHED_FILES:
                return
            if fnmatch.fnmatch(name, pattern) and stat.S_ISREG(os.lstat(os.path.join(folder_path, name)).st_mode):
                yield os.path.join(folder_path, name)


def _read_text(path: str, errors: str = "replace") -> str:
    """The first `_MAX_FILE_CHARACTERS` bytes of a regular file. Other kinds of files are refused, because reading them may block."""
    with open(open_plain(path), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise FileNotFoundError(f"{path} is not a regular file.")
        return file.read(_MAX_FILE_CHARACTERS).decode("utf-8", errors)
