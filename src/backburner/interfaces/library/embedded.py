"""Background commands inside another program: `TaskStorage` and `TaskRunner`, over the same ledger, gate and runner.

A `TaskRunner` works in the caller's event loop: it runs what was started through it, under its own cap. Should the
program die, its commands live on and the engine of the home takes them over.
"""

import asyncio
import os
import shlex
import weakref
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from enum import Enum, StrEnum
from pathlib import Path
from typing import Any

from backburner.core.claims import ClaimedRun
from backburner.core.errors import ApprovalRequired, BadInput, TaskNotFound
from backburner.core.formatting import iso
from backburner.core.ids import generate_task_id
from backburner.core.models import EXTERNAL, Decision, Entry, Run, RunEnd, Submission, Task
from backburner.core.states import ENDED, Result, RunState, TaskState, task_event_for
from backburner.core.task_spec import CommandSpec, TaskSpec
from backburner.execution.command import CommandExecutor
from backburner.execution.runner import Runner
from backburner.services.app import App, now_ms, open_app
from backburner.system import capacity as machine
from backburner.system import run_files as folders
from backburner.system import wakeups as wake
from backburner.system.caller_identity import current_caller
from backburner.system.home import RESERVED_NAMES, Home, project_of
from backburner.system.processes import myself, umask

__all__ = ["TaskMetadata", "TaskRunner", "TaskStatus", "TaskStorage", "generate_task_id", "parse_command"]


class TaskStatus(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass
class TaskMetadata:
    """What is known of one task. Times without a zone are taken as local ones."""

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
        """As JSON can hold it."""
        return {field.name: _to_json(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "TaskMetadata":
        """From `to_dict` or a metadata.json; keys it does not know are left out."""
        known = {field.name: data[field.name] for field in fields(cls) if field.name in data}
        for name in ("created_at", "approved_at", "started_at", "completed_at"):
            if isinstance(known.get(name), str):
                known[name] = datetime.fromisoformat(known[name])
        known["status"] = TaskStatus(known["status"])
        return cls(**known)


_FIELDS = frozenset(field.name for field in fields(TaskMetadata)) - {"task_id"}
_WORDS = frozenset(["description", "span_id"])  # what may be said of a task that Backburner runs


class TaskStorage:
    """The tasks below one folder. The ledger beside them is the truth, the files are for people.

    A folder named `tasks` belongs to the home above it; any other one is a home of its own.
    """

    def __init__(self, base_path: Path) -> None:
        self.base_path = Path(base_path)
        self.base_path.mkdir(parents=True, exist_ok=True)
        inside = self.base_path.name == "tasks"
        self.home = Home(str(self.base_path.parent if inside else self.base_path), "tasks" if inside else "")
        self._app = open_app(self.home)
        self._caller = current_caller("library", self._app.environ)
        weakref.finalize(self, self._app.close)

    def create_task(self, task_id: str, metadata: TaskMetadata) -> Path:
        """Keep a task that the caller runs by itself; its folder."""
        _check_id(task_id)
        if metadata.task_id != task_id:
            raise BadInput(f"The metadata is that of {metadata.task_id!r}, not of {task_id!r}.")
        if not self.home.tasks and task_id in RESERVED_NAMES:
            raise BadInput(f"{task_id!r} cannot be a task's id: the home has a file of that name.")
        task, run = _rows(metadata, self.home.tasks)
        self._app.embedding.record(task, run)
        return self._write(Entry(task, run))

    def update_task(self, task_id: str, **updates: Any) -> None:
        """Change fields of a task; its status only for one that the caller runs by itself, and only as a task can go."""
        before = self._entry(task_id)
        metadata = _metadata(before)
        for name, value in updates.items():
            if name not in _FIELDS:
                raise BadInput(f"A task has no field '{name}' that could be changed.")
            if before.run and before.run.runner != EXTERNAL and name not in _WORDS and value != getattr(metadata, name):
                raise BadInput(f"Task {task_id} is run by Backburner; its '{name}' cannot be changed.")
            setattr(metadata, name, value)
        task, run = _rows(metadata, self.home.tasks)
        if before.run and before.run.runner != EXTERNAL:
            task = before.task._replace(spec=before.task.spec._replace(description=task.spec.description))
            run = before.run._replace(
                span_id=run.span_id, state=run.state, end=before.run.end._replace(exit_code=run.end.exit_code), process=before.run.process if metadata.pid == _metadata(before).pid else run.process
            )  # fmt: skip
        self._app.embedding.change_record(task, run)
        self._write(Entry(task, run))

    def get_task(self, task_id: str) -> TaskMetadata | None:
        """The task with just this id; one whose metadata.json was damaged gets it written anew."""
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
        """Forget a task and delete its folder; one that is running is refused."""
        entry = self._entry(task_id)
        if entry.is_live and entry.run and entry.run.runner != EXTERNAL:
            raise BadInput(f"Task {task_id} is {entry.status}; cancel it first.")
        self._app.retention.forget([task_id])

    def cleanup_old_tasks(self, retention_days: int) -> int:
        """Forget what ended longer ago than this; how many there were."""
        return len(self._app.retention.clean_up(retention_days))

    def _entry(self, task_id: str) -> Entry:
        entry = self._app.queries.get_or_none(task_id)
        if entry is None or entry.run is None:
            raise TaskNotFound(task_id=task_id)
        return entry

    def _write(self, entry: Entry) -> Path:
        assert entry.run
        folder = self.home.folder(entry.run.folder)
        folders.write_metadata(folder, entry.task, entry.run)
        if entry.run.state in ENDED:
            folders.write_result(folder, entry.run)
        return Path(folder)


class TaskRunner:
    """Starts commands in the caller's event loop and sees them to their ends."""

    def __init__(self, storage: TaskStorage, max_concurrent: int = 5) -> None:
        self.storage = storage
        self.max_concurrent = max_concurrent
        self._token = f"{myself()}:{os.urandom(4).hex()}"
        self._app: App | None = None
        self._runner: Runner | None = None
        self._executor: CommandExecutor | None = None
        self._ear: wake.WakeupListener | None = None

    async def start_task(self, command: list[str], cwd: str, description: str, approved_by: str, env: dict[str, str] | None = None) -> str:
        """Start a command, or queue it where `max_concurrent` are running; its id.

        `approved_by="user"` is the caller's word that a person agreed; `"auto"` asks the gate, and raises
        ApprovalRequired with the id of the proposal where the gate would ask.
        """
        if approved_by not in ("user", "auto"):
            raise BadInput(f"approved_by is 'user' or 'auto', not '{approved_by}'.")
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
            environment=dict(os.environ),
            opened=os.getcwd(),
        )
        via = "library" if approved_by == "user" else None
        task, run = app.submissions.submit(submission, caller, approved_via=via, owner=runner.owner if runner.has_room else None)
        if run is None:
            raise ApprovalRequired(task_id=task.task_id, reason="; ".join(task.decision.reasons))
        if run.state == RunState.RUNNING:
            runner.start(ClaimedRun(task, run, submission.environment))
        elif not runner.full:  # something else comes first, or the machine has no room; else the next end claims it
            runner.tick()
        return task.task_id

    async def cancel_task(self, task_id: str) -> bool:
        """End a task; True once nothing of it is left, False for one that has ended already."""
        app, runner = self._open()
        entry = app.queries.get_or_none(task_id)
        if entry is None:
            raise TaskNotFound(task_id=task_id)
        if not entry.is_live:
            return False
        app.tasks.cancel(task_id, current_caller("library", app.environ))
        runner.tick()
        changed = asyncio.Event()
        self._listeners.append(changed)
        try:
            while (entry := app.queries.get_or_none(task_id)) and entry.is_live:
                changed.clear()
                try:
                    async with asyncio.timeout(1.0):
                        await changed.wait()
                except TimeoutError:
                    app.supervisor.ensure_supervised()
        finally:
            self._listeners.remove(changed)
        return entry is not None and entry.status == "cancelled"

    def get_status(self, task_id: str) -> TaskMetadata:
        """The task as it is now."""
        if (metadata := self.storage.get_task(task_id)) is None:
            raise TaskNotFound(task_id=task_id)
        return metadata

    def list_tasks(self, status: TaskStatus | None = None) -> list[TaskMetadata]:
        """All tasks of the storage, newest first."""
        return self.storage.list_tasks(status)

    async def cleanup(self, retention_days: int = 7) -> int:
        """Forget what ended longer ago than this; how many there were."""
        return self.storage.cleanup_old_tasks(retention_days)

    async def close(self) -> None:
        """Let go: commands at work live on, and the engine of the home takes them over."""
        if self._runner and self._executor and self._ear and self._app:
            await self._runner.stop()
            self._executor.close()
            asyncio.get_running_loop().remove_reader(self._ear.fileno())
            self._ear.close()
            self._app.close()
            self._runner = None

    def _open(self) -> tuple[App, Runner]:
        """Bind to the running event loop, on first use."""
        if self._runner and self._app:
            return self._app, self._runner
        home = self.storage.home
        app = self._app = open_app(home, runner=self._token)
        self._executor = CommandExecutor(home, app.config.whole("commands.output_cap_mb") << 20)
        self._listeners: list[asyncio.Event] = []
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
            changed_since=lambda work: app.gate.changed(work.task, work.environment),
            admit=lambda wanted: machine.allowed_starts(app.config, wanted),
        )
        ear = self._ear = app.changes.listen()
        asyncio.get_running_loop().add_reader(ear.fileno(), self._on_wakeup)
        weakref.finalize(self, _close_handles, ear, app)
        if app.config.flag("commands.auto_cleanup") and (as_of := app.retention.confirmed_time()) is not None:
            app.retention.clean_up(as_of=as_of)
        return app, runner

    def _changed(self) -> None:
        for listener in self._listeners:
            listener.set()
        wake.wake_all(self.storage.home.socket_dir, except_for=self._ear.path if self._ear else "")

    def _on_wakeup(self) -> None:
        """Somebody wrote to the ledger: a cancel from another door, perhaps."""
        if self._ear and self._runner:
            self._ear.drain()
            for listener in self._listeners:
                listener.set()
            self._runner.tick()


def parse_command(command_str: str) -> list[str]:
    """A command line as its words, split as a shell would."""
    try:
        return shlex.split(command_str)
    except ValueError as error:
        raise BadInput(f"That is not a command line: {error}.") from None


def _close_handles(ear: wake.WakeupListener, app: App) -> None:
    ear.close()
    app.close()


def _check_id(task_id: str) -> None:
    whole = task_id.encode("utf-8", "replace").decode() == task_id
    if not whole or not task_id or task_id in (".", "..") or "/" in task_id or "\0" in task_id or len(os.fsencode(task_id)) > 200:
        raise BadInput(f"{task_id!r} cannot be a task's id: it names a folder.")


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
    """A task kept by hand as the ledger's rows; what a state needs and the caller left out is filled in."""
    state = RunState(TaskStatus(metadata.status).value)
    created = _ms(metadata.created_at) or 0
    ended = _ms(metadata.completed_at) if state in ENDED else None
    started = None if state == RunState.PENDING else _ms(metadata.started_at)
    if state in ENDED:
        ended = next(at for at in (ended, started, created) if at is not None)
        ended = max(ended, started or ended)
    elif state == RunState.RUNNING:
        started = started or created
    of_task = TaskState.ACTIVE
    if state in ENDED:
        of_task = {"task_done": TaskState.DONE, "task_failed": TaskState.FAILED, "task_cancelled": TaskState.CANCELLED}[
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
        state=of_task,
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
