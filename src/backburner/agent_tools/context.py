"""The context of a tool call (session, directory, environment, limits), and waiting for tasks in it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from backburner.core.errors import TaskNotFound
from backburner.core.models import Caller, Entry
from backburner.core.notices import Notice
from backburner.services.app import App
from backburner.services.async_app import AsyncApp
from backburner.system.caller_identity import current_caller

T = TypeVar("T")
_REPORT_INTERVAL_SECONDS = 3.0

Report = Callable[[float, float | None, str], Awaitable[None]]


class ToolContext:
    """The caller of a tool.

    - `session` receives the notices.
    - `cwd` is the default directory of commands; if it is None, each call must name one.
    - `command` is what a person types to use the same home.
    - `environ` is the environment of commands; by default that of the home.
    - `message` identifies the client's turn that a call belongs to, if the client sends it.
    - `opened` is the directory that the session was opened in; the gate treats it as the project.
    - `max_wait_seconds` is the longest that a call may wait.

    During a call, `reported_tasks` are the tasks whose end the answer reports, `pending_notices` are the notices that were pending when
    the ledger was last read, and `brief` is the display without the output that the result contains in a field of its own.
    """

    def __init__(
        self,
        home: AsyncApp,
        *,
        session: str | None = None,
        cwd: str | None = None,
        command: str = "backburner",
        max_wait_seconds: float = 600.0,
        report: Report | None = None,
        environ: dict[str, str] | None = None,
        message: str | None = None,
        opened: str | None = None,
    ) -> None:
        self.home, self.session, self.cwd, self.command = home, session, cwd, command
        self.max_wait_seconds, self.report, self.message = max_wait_seconds, report, message
        self.environ = home.environ if environ is None else environ
        self.opened = opened
        self.reported_tasks: set[str] = set()
        self.pending_notices: Sequence[Notice] = ()
        self.brief: str | None = None

    @property
    def caller(self) -> Caller:
        """The caller as the services take it."""
        caller = current_caller("tool", self.environ)
        return caller._replace(session=self.session, cwd=caller.cwd if self.cwd is None else self.cwd)

    async def call(self, function: Callable[[App], T]) -> T:
        """Return `function(app)`, and read the pending notices of the session in the same step."""

        def call_and_read_notices(app: App) -> tuple[T, Sequence[Notice]]:
            result = function(app)
            return result, app.inbox.pending(self.session) if self.session is not None else ()

        result, self.pending_notices = await self.home.call(call_and_read_notices)
        return result

    def mark_reported(self, *entries: Entry) -> None:
        """Record that the answer of the current call reports how these tasks ended."""
        self.reported_tasks |= {entry.task.task_id for entry in entries if entry.has_ended}


class Context(Protocol):
    """The first argument of a tool; pydantic-ai's RunContext has this shape."""

    @property
    def deps(self) -> ToolContext: ...


async def wait_until(
    context: ToolContext, task_ids: Sequence[str], timeout_seconds: float, done: Callable[[Entry], bool], *, quiet: bool = False
) -> Sequence[Entry]:
    """Wait until all tasks are `done` or the timeout has passed, and return them. Reports progress meanwhile, unless `quiet`."""

    def read(app: App) -> Sequence[Entry]:
        app.supervisor.ensure_supervised()
        found = [entry for entry in map(app.queries.get_or_none, task_ids) if entry]
        if not found and task_ids:
            raise TaskNotFound(task_id=task_ids[0])
        return found

    entries: Sequence[Entry] = ()
    reporter = asyncio.create_task(_report(context, task_ids, done)) if context.report and not quiet else None
    try:
        async with asyncio.timeout(timeout_seconds):
            async for _ in context.home.changes():
                entries = await context.call(read)
                if all(map(done, entries)):
                    return entries
    except TimeoutError:
        return entries or await context.call(read)
    finally:
        if reporter:
            reporter.cancel()
    raise AssertionError


async def _report(context: ToolContext, task_ids: Sequence[str], done: Callable[[Entry], bool]) -> None:
    """Report the progress to the client every few seconds while it waits."""

    def read(app: App) -> tuple[int, str]:
        entries = [entry for entry in map(app.queries.get_or_none, task_ids) if entry]
        first = next((entry for entry in entries if not done(entry)), None)
        progress = app.runs.progress(first) if first else None
        text = f"{first.task.task_id}: {progress.text if progress else first.status}" if first else "done"
        return sum(map(done, entries)), text

    report_count = 0
    while context.report:
        report_count += 1
        finished, text = await context.call(read)
        # MCP requires the progress value to increase with every report.
        await context.report(finished + min(0.999, report_count / 1000), float(len(task_ids)), text)
        await asyncio.sleep(_REPORT_INTERVAL_SECONDS)
