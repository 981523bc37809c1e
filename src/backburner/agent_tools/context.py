"""Who calls a tool, and waiting on their behalf."""

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
_PULSE_SECONDS = 3.0

Report = Callable[[float, float | None, str], Awaitable[None]]


class ToolContext:
    """Who calls: `session` is whom to tell, `cwd` where commands run unless they say otherwise (None where a call must say).
    `command` is what a person types to reach the same home; `environ` what commands get, where that is not our own;
    `message` names the turn that a call belongs to, where the client says so; `opened` is the folder that the session was opened in,
    which the gate takes for its project.

    No call takes longer than `longest_wait` seconds. `told` are the tasks whose end the answer under way tells of, `owed` what was owed
    when the ledger was last looked at, and `brief` the display of the answer under way without output that its result has by itself.
    """

    def __init__(
        self,
        home: AsyncApp,
        *,
        session: str | None = None,
        cwd: str | None = None,
        command: str = "backburner",
        longest_wait: float = 600.0,
        report: Report | None = None,
        environ: dict[str, str] | None = None,
        message: str | None = None,
        opened: str | None = None,
    ) -> None:
        self.home, self.session, self.cwd, self.command = home, session, cwd, command
        self.longest_wait, self.report, self.message = longest_wait, report, message
        self.environ = home.environ if environ is None else environ
        self.opened = opened
        self.told: set[str] = set()
        self.owed: Sequence[Notice] = ()
        self.brief: str | None = None

    @property
    def caller(self) -> Caller:
        """Who calls, for services."""
        here = current_caller("tool", self.environ)
        return here._replace(session=self.session, cwd=here.cwd if self.cwd is None else self.cwd)

    async def call(self, function: Callable[[App], T]) -> T:
        """What `function` returns for the App; the pending notices of the session are read in the same go."""

        def both(app: App) -> tuple[T, Sequence[Notice]]:
            result = function(app)
            return result, app.inbox.pending(self.session) if self.session is not None else ()

        result, self.owed = await self.home.call(both)
        return result

    def tells(self, *entries: Entry) -> None:
        """The answer under way says how these stand."""
        self.told |= {entry.task.task_id for entry in entries if entry.has_ended}


class Context(Protocol):
    """What a tool is called with; a RunContext of pydantic-ai is one."""

    @property
    def deps(self) -> ToolContext: ...


async def until(
    context: ToolContext, task_ids: Sequence[str], patience: float, done: Callable[[Entry], bool], *, quiet: bool = False
) -> Sequence[Entry]:
    """The tasks once all are `done`, or as they are when the time is up. Woken by changes; says meanwhile how far they are."""

    def look(app: App) -> Sequence[Entry]:
        app.supervisor.ensure_supervised()
        found = [entry for entry in map(app.queries.get_or_none, task_ids) if entry]
        if not found and task_ids:
            raise TaskNotFound(task_id=task_ids[0])
        return found

    entries: Sequence[Entry] = ()
    reporter = asyncio.create_task(_report(context, task_ids, done)) if context.report and not quiet else None
    try:
        async with asyncio.timeout(patience):
            async for _ in context.home.changes():
                entries = await context.call(look)
                if all(map(done, entries)):
                    return entries
    except TimeoutError:
        return entries or await context.call(look)
    finally:
        if reporter:
            reporter.cancel()
    raise AssertionError


async def _report(context: ToolContext, task_ids: Sequence[str], done: Callable[[Entry], bool]) -> None:
    """Say every few seconds how far it is, so that a client that waits sees that something happens."""

    def look(app: App) -> tuple[int, str]:
        entries = [entry for entry in map(app.queries.get_or_none, task_ids) if entry]
        first = next((entry for entry in entries if not done(entry)), None)
        progress = app.runs.progress(first) if first else None
        text = f"{first.task.task_id}: {progress.text if progress else first.status}" if first else "done"
        return sum(map(done, entries)), text

    beat = 0
    while context.report:
        beat += 1
        finished, text = await context.call(look)
        # What is reported must grow with every report, whatever happens.
        await context.report(finished + min(0.999, beat / 1000), float(len(task_ids)), text)
        await asyncio.sleep(_PULSE_SECONDS)
