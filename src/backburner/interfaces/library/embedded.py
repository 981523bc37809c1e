"""Background commands in another program: `TaskStorage` and `TaskRunner`, with the same ledger, gate and runner.

A `TaskRunner` works in the caller's event loop and runs the commands that were started with it, up to its own limit. If the
program dies, its commands continue and the engine of the home takes them over.
"""

import asyncio
import contextlib
import os
import shlex
import weakref
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from enum import Enum, StrEnum
from pathlib import Path
from typing import Any

from backburner.core.claims import ClaimedRun
from backburner.core.errors import ApprovalRequired, BadInput, LedgerUnavailable, TaskNotFound
from backburner.core.formatting import iso
from backburner.core.ids import generate_task_id
from backburner.core.models import EXTERNAL, Decision, Entry, Run, RunEnd, Submission, Task
from backburner.core.states import ENDED, Result, RunState, TaskState, task_event_for
from backburner.core.task_spec import CommandSpec, TaskSpec
from backburner.execution.command import CommandExecutor
from backburner.execution.runner import Runner
from backburner.services.app import App, now_ms, open_app
from backburner.system import capacity, run_files, wakeups
from backburner.system.caller_identity import current_caller, environment_for_commands
from backburner.system.home import RESERVED_NAMES, Home
from backburner.system.paths import project_of
from backburner.system.processes import current_environment, myself, umask

__all__ = ["TaskMetadata", "TaskRunner", "TaskStatus", "TaskStorage", "generate_task_id", "parse_command"]


class TaskStatus(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass
class TaskMetadata:
    """The metadata of one task. Times without a time zone are local times."""

    task_id: str
    created_at: datetime
    status: TaskStatus
    command: list[str]
    cwd: str
    description: str
    approved_by: str  # "user" or "auto"
    approved_at: datetime
    env: dict[str, str] | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    pid: int | None = None
    exit_code: int | None = None
    span_id: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The metadata as JSON values."""
        return {field.name: _to_json(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "TaskMetadata":
        """Read the result of `to_dict` or a metadata.json. Unknown keys are ignored."""
        known = {field.name: data[field.name] for field in fields(cls) if field.name in data}
        for name in ("created_at", "approved_at", "started_at", "completed_at"):
            if isinstance(known.get(name), str):
                known[name] = datetime.fromisoformat(known[name])
        known["status"] = TaskStatus(known["status"])
        return cls(**known)


_WRITE_DELAY = 5.0  # seconds
_FIELDS = frozenset(field.name for field in fields(TaskMetadata)) - {"task_id"}
_CHANGEABLE = frozenset(["description", "span_id"])  # fields of a task that Backburner runs


class TaskStorage:
    """The tasks in one folder. The ledger is authoritative; the files are for people to read.

    A folder named `tasks` belongs to the home that contains it; any other folder is itself a home.
    """

    def __init__(self, base_path: Path) -> None:
        self.base_path = Path(base_path)
        self.base_path.mkdir(parents=True, exist_ok=True)
        is_in_home = self.base_path.name == "tasks"
        self.home = Home(str(self.base_path.parent if is_in_home else self.base_path), "tasks" if is_in_home else "")
        self._app = open_app(self.home)
        self._caller = current_caller("library", self._app.environ)
        weakref.finalize(self, self._app.close)

    def create_task(self, task_id: str, metadata: TaskMetadata) -> Path:
        """Record a task that the caller runs itself; returns its folder."""
        _check_id(task_id)
        if metadata.task_id != task_id:
            raise BadInput(f"The metadata belongs to task {metadata.task_id!r}, not to {task_id!r}.")
        if not self.home.tasks and task_id in RESERVED_NAMES:
            raise BadInput(f"{task_id!r} cannot be a task ID: the home has a file with that name.")
        task, run = _rows(metadata, self.home.tasks)
        self._app.embedding.record(task, run)
        return _write_files(self.home, Entry(task, run))

    def update_task(self, task_id: str, **updates: Any) -> None:
        """Change fields of a task. The status can be changed only for a task that the caller runs, and only by a valid transition."""
        before = self._entry(task_id)
        metadata = _metadata(before)
        for name, value in updates.items():
            if name not in _FIELDS:
                raise BadInput(f"A task has no field '{name}' that can be changed.")
            if before.run and before.run.runner != EXTERNAL and name not in _CHANGEABLE and value != getattr(metadata, name):
                raise BadInput(f"Task {task_id} is run by Backburner; its '{name}' cannot be changed.")
            setattr(metadata, name, value)
        task, run = _rows(metadata, self.home.tasks)
        if before.run and before.run.runner != EXTERNAL:
            task = before.task._replace(spec=before.task.spec._replace(description=task.spec.description))
            run = before.run._replace(
                span_id=run.span_id, state=run.state, end=before.run.end._replace(exit_code=run.end.exit_code), process=before.run.process if metadata.pid == _metadata(before).pid else run.process
            )  # fmt: skip
        self._app.embedding.change_record(task, run)
        _write_files(self.home, Entry(task, run))

    def get_task(self, task_id: str) -> TaskMetadata | None:
        """The task with exactly this id. Writes its metadata.json again if it was damaged."""
        self._app.supervisor.ensure_supervised()
        entry = self._app.queries.get_or_none(task_id)
        if entry is None or entry.run is None:
            return None
        self._app.runs.repair_metadata(entry)
        return _metadata(entry)

    def list_tasks(self, status: TaskStatus | None = None) -> list[TaskMetadata]:
        """All tasks, newest first."""
        entries = self._app.queries.list(self._caller, status=str(status.value) if status else None, everywhere=True)
        return [_metadata(entry) for entry in entries if entry.run]

    def delete_task(self, task_id: str) -> None:
        """Delete a task and its folder. Raises BadInput if it is running."""
        entry = self._entry(task_id)
        if entry.is_live and entry.run and entry.run.runner != EXTERNAL:
            raise BadInput(f"Task {task_id} is {entry.status}; cancel it first.")
        self._app.retention.forget([task_id])

    def cleanup_old_tasks(self, retention_days: int) -> int:
        """Delete the tasks that ended more than `retention_days` days ago; returns their number."""
        return len(self._app.retention.clean_up(retention_days))

    def _entry(self, task_id: str) -> Entry:
        entry = self._app.queries.get_or_none(task_id)
        if entry is None or entry.run is None:
            raise TaskNotFound(task_id=task_id)
        return entry


class TaskRunner:
    """Starts commands in the caller's event loop and supervises them until they end."""

    def __init__(self, storage: TaskStorage, max_concurrent: int = 5) -> None:
        self.storage = storage
        self.max_concurrent = max_concurrent
        self._token = f"{myself()}:{os.urandom(4).hex()}"
        self._app: App | None = None
        self._runner: Runner | None = None
        self._executor: CommandExecutor | None = None
        self._listener: wakeups.WakeupListener | None = None
        self._unwritten: list[str] = []  # tasks that waited when they were submitted, without files yet

    async def start_task(self, command: list[str], cwd: str, description: str, approved_by: str, env: dict[str, str] | None = None) -> str:
        """Start a command, or queue it if `max_concurrent` are running; returns the task id.

        With `approved_by="user"` the caller confirms that a user approved the command. With `"auto"` the gate decides; if it
        requires approval, ApprovalRequired is raised with the id of the proposal.
        """
        if approved_by not in ("user", "auto"):
            raise BadInput(f"approved_by must be 'user' or 'auto', not '{approved_by}'.")
        app, runner = self._open()
        caller = current_caller("library", app.environ)
        if approved_by == "user":
            app.identity.require_person(caller)
        submission = Submission(
            spec=TaskSpec(
                cwd=os.path.abspath(cwd),
                command=CommandSpec(words=tuple(command), umask=umask()),
                env=env or {},
                description=description,
            ),
            environment=environment_for_commands(current_environment()),
            opened=os.getcwd(),
        )
        via = "library" if approved_by == "user" else None
        task, run = app.submissions.submit(submission, caller, approved_via=via, owner=runner.owner if runner.has_room else None)
        if run is None:
            raise ApprovalRequired(task_id=task.task_id, reason="; ".join(task.decision.reasons))
        if run.state == RunState.RUNNING:
            runner.start(ClaimedRun(task, run, submission.environment))
            app.publisher.start_needed_engine()
        elif not runner.full:  # another task has priority or the machine is busy; otherwise it is claimed when a command ends
            runner.tick()
        if run.state == RunState.PENDING:
            self._write_files_later(task.task_id)
        await asyncio.sleep(0)  # commands that end while many are started in a row make room for the next ones
        return task.task_id

    async def cancel_task(self, task_id: str) -> bool:
        """Cancel a task. Returns True when all its processes have exited, False if it had already ended."""
        app, runner = self._open()
        entry = app.queries.get_or_none(task_id)
        if entry is None:
            raise TaskNotFound(task_id=task_id)
        if not entry.is_live:
            return False
        app.tasks.cancel(task_id, current_caller("library", app.environ))
        runner.tick()
        changed = asyncio.Event()
        self._change_events.append(changed)
        try:
            while (entry := app.queries.get_or_none(task_id)) and entry.is_live:
                changed.clear()
                try:
                    async with asyncio.timeout(1.0):
                        await changed.wait()
                except TimeoutError:
                    app.supervisor.ensure_supervised()
        finally:
            self._change_events.remove(changed)
        return entry is not None and entry.status == "cancelled"

    def get_status(self, task_id: str) -> TaskMetadata:
        """The current metadata of a task."""
        if (metadata := self.storage.get_task(task_id)) is None:
            raise TaskNotFound(task_id=task_id)
        return metadata

    def list_tasks(self, status: TaskStatus | None = None) -> list[TaskMetadata]:
        """All tasks of the storage, newest first."""
        return self.storage.list_tasks(status)

    async def cleanup(self, retention_days: int = 7) -> int:
        """Delete the tasks that ended more than `retention_days` days ago; returns their number."""
        return self.storage.cleanup_old_tasks(retention_days)

    async def close(self) -> None:
        """Release all resources. Running commands continue, and the engine of the home takes them over."""
        if self._runner and self._executor and self._listener and self._app:
            self._write_waiting()
            await self._runner.stop()
            self._executor.close()
            asyncio.get_running_loop().remove_reader(self._listener.fileno())
            self._listener.close()
            self._app.close()
            self._runner = None

    def _open(self) -> tuple[App, Runner]:
        """Bind to the running event loop, on first use."""
        if self._runner and self._app:
            return self._app, self._runner
        home = self.storage.home
        app = self._app = open_app(home, runner=self._token)
        self._executor = CommandExecutor(
            home,
            app.config.whole("commands.output_cap_mb") << 20,
            sandboxes=lambda: (app.gate.support(), app.config.listed("sandbox.pass_env")),
        )
        self._change_events: list[asyncio.Event] = []
        runner = self._runner = Runner(
            app.embedding.queue,
            app.embedding.queries,
            self._executor,
            home,
            now_ms,
            runner=self._token,
            owner=myself(),
            cap=self.max_concurrent,
            grace=app.config.number("commands.cancel_grace_seconds"),
            changed=self._changed,
            recheck=lambda work: app.gate.recheck(work.task, work.environment),
            admit=lambda wanted: capacity.allowed_starts(app.config, wanted),
        )
        listener = self._listener = app.changes.listen()
        app.changes.own_listener = listener.path
        asyncio.get_running_loop().add_reader(listener.fileno(), self._on_wakeup)
        weakref.finalize(self, _close_handles, listener, app)
        if app.config.flag("commands.auto_cleanup") and (as_of := app.retention.confirmed_time()) is not None:
            app.retention.clean_up(as_of=as_of)
        return app, runner

    def _write_files_later(self, task_id: str) -> None:
        """Write the files of a task that still waits a few seconds later: most have ended by then."""
        if not self._unwritten:
            asyncio.get_running_loop().call_later(_WRITE_DELAY, self._write_waiting)
        self._unwritten.append(task_id)

    def _write_waiting(self) -> None:
        unwritten, self._unwritten = self._unwritten, []
        with contextlib.suppress(OSError, LedgerUnavailable):  # the files only copy the ledger, and are written again when it ends
            for entry in map(self._app.queries.get_or_none, unwritten) if self._app and self._runner else ():
                if entry and entry.run and entry.run.state == RunState.PENDING:
                    _write_files(self.storage.home, entry)

    def _changed(self) -> None:
        for event in self._change_events:
            event.set()
        if self._app:
            self._app.changes.announce()

    def _on_wakeup(self) -> None:
        """Another process has changed the ledger, for example cancelled a task."""
        if self._listener and self._runner:
            self._listener.drain()
            for event in self._change_events:
                event.set()
            self._runner.tick()


def parse_command(command_str: str) -> list[str]:
    """Split a command line into words as a shell does."""
    try:
        return shlex.split(command_str)
    except ValueError as error:
        raise BadInput(f"Invalid command line: {error}.") from None


def _close_handles(listener: wakeups.WakeupListener, app: App) -> None:
    listener.close()
    app.close()


def _write_files(home: Home, entry: Entry) -> Path:
    """Write the files of a task; returns its folder."""
    assert entry.run
    folder = home.folder(entry.run.folder)
    run_files.write(folder, entry.task, entry.run)
    return Path(folder)


def _check_id(task_id: str) -> None:
    is_utf8 = task_id.encode("utf-8", "replace").decode() == task_id
    if not is_utf8 or not task_id or task_id in (".", "..") or "/" in task_id or "\0" in task_id or len(os.fsencode(task_id)) > 200:
        raise BadInput(f"{task_id!r} cannot be a task ID: it must be a valid folder name of at most 200 bytes.")


def _to_json(value: Any) -> Any:
    match value:
        case datetime():
            return iso(_ms(value))
        case Enum():
            return value.value
        case _:
            return value


def _ms(at: datetime | None) -> int | None:
    return None if at is None else int(at.timestamp() * 1000)


def _datetime(at: int | None) -> datetime | None:
    return None if at is None else datetime.fromtimestamp(at / 1000, UTC)


def _metadata(entry: Entry) -> TaskMetadata:
    task, run = entry
    assert run is not None
    created, approved = _datetime(task.created_at), _datetime(task.decision.at)
    assert created and approved
    return TaskMetadata(
        task_id=task.task_id,
        created_at=created,
        status=TaskStatus(str(run.state)),
        command=list(task.spec.command.words),
        cwd=task.spec.cwd,
        description=task.spec.description,
        approved_by=task.decision.by or "auto",
        approved_at=approved,
        env=dict(task.spec.env) or None,
        started_at=_datetime(run.started_at),
        completed_at=_datetime(run.ended_at),
        pid=run.process.pid if run.process else None,
        exit_code=run.end.exit_code,
        span_id=run.span_id,
    )


def _rows(metadata: TaskMetadata, tasks: str) -> tuple[Task, Run]:
    """The ledger rows of a task that the caller runs. Fills in times that its state needs and the caller left out."""
    state = RunState(TaskStatus(metadata.status).value)
    created = _ms(metadata.created_at) or 0
    ended = _ms(metadata.completed_at) if state in ENDED else None
    started = None if state == RunState.PENDING else _ms(metadata.started_at)
    if state in ENDED:
        ended = next(at for at in (ended, started, created) if at is not None)
        ended = max(ended, started or ended)
    elif state == RunState.RUNNING:
        started = started or created
    task_state = TaskState.ACTIVE
    if state in ENDED:
        task_state = {"task_done": TaskState.DONE, "task_failed": TaskState.FAILED, "task_cancelled": TaskState.CANCELLED}[
            task_event_for(state)
        ]
    task = Task(
        task_id=metadata.task_id,
        spec=TaskSpec(
            cwd=metadata.cwd,
            command=CommandSpec(words=tuple(metadata.command)),
            env=metadata.env or {},
            description=metadata.description,
        ),
        kind="oneshot",
        state=task_state,
        project=project_of(metadata.cwd),
        created_at=created,
        decision=Decision(by=metadata.approved_by, via="library", at=_ms(metadata.approved_at)),
        run_count=1,
    )
    owner = myself()
    run = Run(
        run_id=metadata.task_id,
        task_id=metadata.task_id,
        n=1,
        state=state,
        end=RunEnd(Result.EXIT if state in ENDED else None, metadata.exit_code),
        folder=os.path.join(tasks, metadata.task_id),
        process_tag="",
        trace_id="",
        span_id=metadata.span_id or "",
        runner=EXTERNAL,
        owner=None if state == RunState.PENDING else owner,
        process=None if metadata.pid is None else owner._replace(pid=metadata.pid, started="0"),
        created_at=created,
        started_at=started,
        ended_at=ended,
        cancel_requested_at=None,
    )
    return task, run
