"""The Python API: `async with Backburner.open() as bb: …` for programs with an event loop, `BackburnerSync` for scripts.

Both share one implementation: `BackburnerSync` calls the services of an App; `Backburner` calls it in a separate thread.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from backburner.core.errors import WaitTimedOut
from backburner.core.events import Event, Span
from backburner.core.models import PRIORITIES, Batch, Entry, Run, Submission
from backburner.core.notices import Notice
from backburner.core.progress import Progress
from backburner.core.task_spec import AgentSpec, CommandSpec, Order, TaskSpec, budget_from, limits_from, options_from
from backburner.core.terminal_text import shortened
from backburner.services.app import App, now_ms, open_app
from backburner.services.async_app import AsyncApp
from backburner.services.schedule_requests import parse_schedule
from backburner.system.caller_identity import current_caller, environment_for_commands
from backburner.system.processes import current_environment, umask

if TYPE_CHECKING:
    from backburner.core.host_records import RunFile

T = TypeVar("T")


def submission(
    command: Sequence[str] | str,
    *,
    cwd: str | os.PathLike[str] | None = None,
    description: str = "",
    name: str | None = None,
    env: dict[str, str] | None = None,
    shell: bool = False,
    timeout: float | None = None,
    batch: str | None = None,
    key: str | None = None,
    priority: str = "normal",
    after: Sequence[str] = (),
    delay: float | None = None,
    limits: dict[str, int] | None = None,
    stdin: bool = False,
    ready_when: str | int | None = None,
    restarts: int = 0,
    tty: bool = False,
) -> Submission:
    """A submission of a command, with the environment of this process. A string is split into words; with `shell=True` a shell runs it.

    `after` are tasks that must complete first. `delay` is the time in seconds before the start. `limits` may contain `memory_mb`,
    `cpu_seconds` and `nice`. `ready_when` is a port or a regular expression. `restarts` is the maximum number of restarts in a row
    after a failure. With `tty` it runs in a terminal.
    """
    if isinstance(command, str):
        from backburner.interfaces.library.embedded import parse_command

        command = (command,) if shell else parse_command(command)
    return Submission(
        spec=TaskSpec(
            cwd=os.path.abspath(cwd or os.getcwd()),
            command=CommandSpec(
                words=tuple(command),
                shell=shell,
                stdin=stdin,
                umask=umask(),
                ready_when=None if ready_when is None else str(ready_when),
                restarts=restarts,
                tty=tty,
                limits=limits_from(limits or {}),
            ),
            env=env or {},
            name=name,
            description=description,
            timeout_ms=None if timeout is None else int(timeout * 1000),
            order=Order(
                batch=batch,
                key=key,
                priority=PRIORITIES.get(priority, 9),
                after=tuple(after),
                start_at=None if delay is None else now_ms() + int(delay * 1000),
            ),
        ),
        environment=environment_for_commands(current_environment()),
        opened=os.getcwd(),
    )


class BackburnerSync:
    """The blocking API, for scripts. Times are in seconds."""

    def __init__(self, app: App) -> None:
        self._app, self._caller = app, current_caller("library", app.environ)

    @classmethod
    def open(cls, home: str | os.PathLike[str] | None = None) -> "BackburnerSync":
        return cls(open_app(None if home is None else os.fspath(home)))

    def __enter__(self) -> "BackburnerSync":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._app.close()

    def submit(self, command: Sequence[str] | str, *, approved: bool = False, **options: Any) -> Entry:
        """Start a command in the background, or propose it if it needs approval. With `approved`, you confirm that a user approved it."""
        if approved:
            self._app.identity.require_person(self._caller)
        return self._app.submissions.submit(submission(command, **options), self._caller, approved_via="library" if approved else None)

    def add(
        self,
        name: str,
        command: Sequence[str] | str = (),
        *,
        prompt: str = "",
        agent: str = "default",
        notify: str = "on_change",
        every: str | None = None,
        cron: str | None = None,
        timezone: str | None = None,
        at: str | None = None,
        after: str | None = None,
        until: str | None = None,
        max_runs: int | None = None,
        missed: str = "run_once",
        approved: bool = False,
        **options: Any,
    ) -> Entry:
        """Add a recurring task: a command or a prompt with a schedule (`every="30m"`, `cron="0 9 * * 1-5"`, `at="18:30"`) or `after` a task.

        If both a command and a prompt are given, the command is the pre-check: it decides each time whether the agent runs.
        """
        if approved:
            self._app.identity.require_person(self._caller)
        request = submission(command, name=name, **options).with_spec(agent=AgentSpec(agent, prompt) if prompt else None)
        scheduled = parse_schedule(
            self._app.queries,
            request,
            self._caller,
            now_ms(),
            notify=notify,
            every_=every,
            cron_=cron,
            zone=timezone,
            at=at,
            after=after,
            until=until,
            max_runs=max_runs,
            missed=missed,
        )
        return self._app.submissions.submit(scheduled, self._caller, approved_via="library" if approved else None)

    def ask(
        self,
        prompt: str,
        *,
        agent: str = "default",
        worktree: bool = False,
        budget: dict[str, float] | None = None,
        description: str = "",
        **options: Any,
    ) -> Entry:
        """Start a background agent; `tail` returns its answer when it has ended. The gate judges each command that it runs.

        With `worktree` it works in a git worktree of its own. `budget` may contain `tokens`, `cost`, `tool_calls` and `seconds`. The
        other options are those of `submit`: `cwd`, `name`, `env`, `timeout`, `batch`, `key`, `priority`, `after` and `delay`.
        """
        settings = AgentSpec(agent, prompt, options_from({"worktree": True} if worktree else {}))
        request = submission((), description=description or shortened(" ".join(prompt.split()), longest=80), **options)
        return self._app.submissions.submit(request.with_spec(agent=settings, budget=budget_from(budget or {})), self._caller)

    def resume(self, task_id: str, message: str) -> Entry:
        """Send another message to an agent that has answered. It has its whole conversation."""
        return self._app.conversations.resume(task_id, message, self._caller)

    def restart(self, task_id: str, *, approved: bool = False) -> Entry:
        """Run a command or a prompt again as a new task, with the environment of this process. The gate judges it again."""
        if approved:
            self._app.identity.require_person(self._caller)
        before, environment = self._app.queries.find(task_id, self._caller), environment_for_commands(current_environment())
        again = self._app.submissions.copy_of(before, environment, self._caller)
        return self._app.submissions.submit(again, self._caller, approved_via="library" if approved else None)

    def pause(self, task_id: str) -> Entry:
        """Pause a recurring task."""
        return self._app.recurring.pause(task_id, self._caller)

    def unpause(self, task_id: str) -> Entry:
        """Resume a paused task."""
        return self._app.recurring.unpause(task_id, self._caller)

    def run_now(self, task_id: str) -> Entry:
        """Start a manual run of a recurring task."""
        return self._app.recurring.run_now(task_id, self._caller)

    def history(self, task_id: str, limit: int = 10) -> Sequence[Run]:
        """The latest runs of a task and the slots that were skipped, newest first."""
        return self._app.queries.history(self._app.queries.find(task_id, self._caller), limit)

    def wait(self, *task_ids: str, timeout: float | None = None) -> Sequence[Entry]:
        """Block until all tasks have ended. Raises WaitTimedOut after `timeout` seconds."""
        return self._app.waiting.wait([self._app.queries.find(task_id, self._caller).task.task_id for task_id in task_ids], timeout)

    def get(self, task_id: str) -> Entry:
        """A task, found by its id, a unique part of the id, its label, or `last`."""
        return self._app.queries.find(task_id, self._caller)

    def tail(self, task_id: str, lines: int = 20) -> str:
        """The last lines of a task's output."""
        return self._app.runs.tail(self._app.queries.find(task_id, self._caller), lines).decode("utf-8", "replace")

    def files(self, task_id: str) -> "Sequence[RunFile]":
        """The files that a task has left, on whichever host it ran: name, size and time of the last change."""
        return self._app.runs.files(self._app.queries.find_run(task_id, self._caller)[1])

    def read_file(self, task_id: str, name: str) -> bytes:
        """The content of one of these files; from another host at most 256 MiB."""
        return b"".join(self._app.runs.read_file(self._app.queries.find_run(task_id, self._caller)[1], name)[1])

    def send(self, task_id: str, data: bytes, *, end: bool = False) -> None:
        """Write to the input of a command that was submitted with `stdin=True`; with `end`, close the input afterwards."""
        self._app.tasks.send(task_id, data, self._caller, end=end)

    def progress(self, task_id: str) -> Progress | None:
        """The progress of a running task, if it reports any."""
        return self._app.runs.progress(self._app.queries.find(task_id, self._caller))

    def batches(self) -> Sequence[Batch]:
        """All batches, with the number of their tasks in each state."""
        return self._app.queries.batches(self._caller, everywhere=True)

    def trace(self, task_id: str) -> Sequence[Span]:
        """Every span of the trace that a task belongs to."""
        return self._app.queries.trace(task_id, self._caller)

    def cancel(self, task_id: str) -> Entry:
        """Cancel a task, and return when all its processes have exited."""
        return self._app.waiting.wait([self._cancel(task_id).task.task_id])[0]

    def _cancel(self, task_id: str) -> Entry:
        return self._app.tasks.cancel(task_id, self._caller)

    def approve(self, task_id: str, *, seen: str | None = None) -> Entry:
        """Approve a task. You confirm that a user approved it.

        `seen` is the fingerprint that the user was shown (`asked` of the entry); without it, the fingerprint of the proposal is
        used. Raises QuestionChanged if something else would run now.
        """
        return self._app.approvals.approve(task_id, self._caller, seen=seen)

    def reject(self, task_id: str, *, reason: str | None = None) -> Entry:
        """Reject a task. The agent that asked is told the reason."""
        return self._app.approvals.reject(task_id, self._caller, reason=reason)

    def clear(self, *task_ids: str, ended: bool = False, batch: str | None = None) -> Sequence[str]:
        return self._app.tasks.clear(task_ids, self._caller, ended=ended, batch=batch, everywhere=True)

    def events(self, after: int = 0) -> Sequence[Event]:
        """The events after this one."""
        return self._app.queries.events(after)

    def notices(self) -> Sequence[Notice]:
        """The notices of all projects that were not acknowledged yet."""
        return self._app.inbox.notices()

    def acknowledge(self, *notice_ids: int) -> None:
        """Acknowledge notices."""
        self._app.inbox.acknowledge(notice_ids=notice_ids)

    def list(
        self, status: str | None = None, *, batch: str | None = None, everywhere: bool = True, limit: int | None = None
    ) -> Sequence[Entry]:
        """Tasks, newest first."""
        return self._app.queries.list(self._caller, status=status, batch=batch, everywhere=everywhere, limit=limit)


class Backburner:
    """The API of `BackburnerSync` for an event loop. `open()` is an async context manager."""

    def __init__(self, home: str | os.PathLike[str] | None = None) -> None:
        self._async_app = AsyncApp(lambda: open_app(None if home is None else os.fspath(home)))

    @classmethod
    def open(cls, home: str | os.PathLike[str] | None = None) -> "Backburner":
        return cls(home)

    async def __aenter__(self) -> "Backburner":
        await self._async_app.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._async_app.__aexit__()

    async def submit(self, command: Sequence[str] | str, *, approved: bool = False, **options: Any) -> Entry:
        """Start a command in the background, or propose it if it needs approval. With `approved`, you confirm that a user approved it."""
        return await self._call(lambda sync: sync.submit(command, approved=approved, **options))

    async def add(self, name: str, command: Sequence[str] | str = (), **options: Any) -> Entry:
        """Add a recurring task; see `BackburnerSync.add` for the options."""
        return await self._call(lambda sync: sync.add(name, command, **options))

    async def ask(self, prompt: str, **options: Any) -> Entry:
        """Start a background agent; see `BackburnerSync.ask` for the options."""
        return await self._call(lambda sync: sync.ask(prompt, **options))

    async def resume(self, task_id: str, message: str) -> Entry:
        """Send another message to an agent that has answered. It has its whole conversation."""
        return await self._call(lambda sync: sync.resume(task_id, message))

    async def restart(self, task_id: str, *, approved: bool = False) -> Entry:
        """Run a command or a prompt again as a new task; see `BackburnerSync.restart`."""
        return await self._call(lambda sync: sync.restart(task_id, approved=approved))

    async def pause(self, task_id: str) -> Entry:
        """Pause a recurring task."""
        return await self._call(lambda sync: sync.pause(task_id))

    async def unpause(self, task_id: str) -> Entry:
        """Resume a paused task."""
        return await self._call(lambda sync: sync.unpause(task_id))

    async def run_now(self, task_id: str) -> Entry:
        """Start a manual run of a recurring task."""
        return await self._call(lambda sync: sync.run_now(task_id))

    async def history(self, task_id: str, limit: int = 10) -> Sequence[Run]:
        """The latest runs of a task and the slots that were skipped, newest first."""
        return await self._call(lambda sync: sync.history(task_id, limit))

    async def wait(self, *task_ids: str, timeout: float | None = None) -> Sequence[Entry]:
        """Return when all tasks have ended. Raises WaitTimedOut after `timeout` seconds. Other calls can be made meanwhile."""
        return await self._wait_until(lambda entry: not entry.is_live, task_ids, timeout)

    async def _wait_until(self, done: Callable[[Entry], bool], task_ids: Sequence[str], timeout: float | None) -> Sequence[Entry]:
        try:
            async with asyncio.timeout(timeout):
                waited_for = list(task_ids)  # of many tasks, only one is read after every change
                async for _ in self._async_app.changes():
                    while waited_for and done(await self.get(waited_for[0])):
                        waited_for.pop(0)
                    if not waited_for:
                        entries = [await self.get(task_id) for task_id in task_ids]
                        if not (waited_for := [entry.task.task_id for entry in entries if not done(entry)]):
                            return entries
        except TimeoutError:
            raise WaitTimedOut(seconds=timeout, task_ids=", ".join(task_ids)) from None
        raise AssertionError

    async def get(self, task_id: str) -> Entry:
        """A task, found by its id, a unique part of the id, its label, or `last`."""
        return await self._call(lambda sync: sync.get(task_id))

    async def tail(self, task_id: str, lines: int = 20) -> str:
        """The last lines of a task's output."""
        return await self._call(lambda sync: sync.tail(task_id, lines))

    async def ready(self, task_id: str, timeout: float | None = None) -> Entry:
        """Return when a server is ready or has ended. Raises WaitTimedOut after `timeout` seconds."""
        return (await self._wait_until(lambda entry: entry.is_ready or not entry.is_live, [task_id], timeout))[0]

    async def files(self, task_id: str) -> "Sequence[RunFile]":
        """The files that a task has left, on whichever host it ran: name, size and time of the last change."""
        return await self._call(lambda sync: sync.files(task_id))

    async def read_file(self, task_id: str, name: str) -> bytes:
        """The content of one of these files; from another host at most 256 MiB."""
        return await self._call(lambda sync: sync.read_file(task_id, name))

    async def send(self, task_id: str, data: bytes, *, end: bool = False) -> None:
        """Write to the input of a command that was submitted with `stdin=True`; with `end`, close the input afterwards."""
        await self._call(lambda sync: sync.send(task_id, data, end=end))

    async def progress(self, task_id: str) -> Progress | None:
        """The progress of a running task, if it reports any."""
        return await self._call(lambda sync: sync.progress(task_id))

    async def batches(self) -> Sequence[Batch]:
        """All batches, with the number of their tasks in each state."""
        return await self._call(lambda sync: sync.batches())

    async def trace(self, task_id: str) -> Sequence[Span]:
        """Every span of the trace that a task belongs to."""
        return await self._call(lambda sync: sync.trace(task_id))

    async def cancel(self, task_id: str) -> Entry:
        """Cancel a task, and return when all its processes have exited."""
        entry = await self._call(lambda sync: sync._cancel(task_id))
        return (await self.wait(entry.task.task_id))[0]

    async def approve(self, task_id: str, *, seen: str | None = None) -> Entry:
        """Approve a task; see `BackburnerSync.approve`."""
        return await self._call(lambda sync: sync.approve(task_id, seen=seen))

    async def reject(self, task_id: str, *, reason: str | None = None) -> Entry:
        """Reject a task; see `BackburnerSync.reject`."""
        return await self._call(lambda sync: sync.reject(task_id, reason=reason))

    async def clear(self, *task_ids: str, ended: bool = False, batch: str | None = None) -> Sequence[str]:
        return await self._call(lambda sync: sync.clear(*task_ids, ended=ended, batch=batch))

    async def events(self, after: int = 0) -> AsyncIterator[Event]:
        """Yield the events after this one, and new events as they happen."""
        async for _ in self._async_app.changes():
            for event in await self._call(partial(BackburnerSync.events, after=after)):
                after = event.event_id
                yield event

    async def notices(self) -> Sequence[Notice]:
        """The notices of all projects that were not acknowledged yet."""
        return await self._call(lambda sync: sync.notices())

    async def acknowledge(self, *notice_ids: int) -> None:
        """Acknowledge notices."""
        await self._call(lambda sync: sync.acknowledge(*notice_ids))

    async def list(
        self, status: str | None = None, *, batch: str | None = None, everywhere: bool = True, limit: int | None = None
    ) -> Sequence[Entry]:
        """Tasks, newest first."""
        return await self._call(lambda sync: sync.list(status, batch=batch, everywhere=everywhere, limit=limit))

    async def _call(self, call: Callable[[BackburnerSync], T]) -> T:
        return await self._async_app.call(lambda app: call(BackburnerSync(app)))
