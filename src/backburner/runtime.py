"""The verbs: everything enters here, whatever the door. Validate, ask the gate, write the ledger, ring.

A Runtime belongs to one thread. `open_runtime` is the only place that builds adapters.
"""

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from backburner import folders, ids, wake
from backburner.config import Config, resolve
from backburner.errors import (
    AmbiguousId,
    ApprovalDenied,
    BadInput,
    EngineUnavailable,
    IllegalTransition,
    NotAPerson,
    NotRunning,
    TaskNotFound,
    WaitTimedOut,
)
from backburner.home import Home, locate, project_of
from backburner.lifecycle import AT_WORK, RunState, TaskState
from backburner.models import ENGINE, RECORD, Approval, Clock, Entry, Event, Grant, Notice, ProcessId, Run, Submission
from backburner.output import NAME, Log
from backburner.process import boot_id, is_alive

if TYPE_CHECKING:
    from backburner.approval.policy import Verdict
    from backburner.gate import Gate
    from backburner.ports import Store  # protocols are slow to build, and no door needs them at run time

_LONGEST_ARGUMENT = 128 * 1024 - 1  # what the kernel takes for one word
_TAKE_OVER_SECONDS = 5.0
_DEAF_SECONDS = 20.0  # how long an engine may take to listen before a waiting door gives up on it
_LOOK_SECONDS = 5.0  # how long a waiting door trusts in being rung


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Runtime:
    """One home, seen through one door. `environ` is the environment of whoever asks."""

    def __init__(
        self,
        home: Home,
        store: "Store",
        config: Config,
        environ: dict[str, str],
        *,
        flags: dict[str, str] | None = None,
        clock: Clock = now_ms,
        runner: str = ENGINE,
    ) -> None:
        self.home, self.store, self.config, self.environ, self.clock = home, store, config, environ, clock
        self.flags = flags
        self._runner = runner
        self._deaf_since: float | None = None

    def close(self) -> None:
        self.store.close()

    def __enter__(self) -> "Runtime":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- asking for work

    @property
    def gate(self) -> "Gate":
        from backburner.gate import Gate  # a door that only reads never comes by it

        return Gate(self.store, self.config)

    def judge(self, submission: Submission) -> "Verdict":
        """What the gate says, without storing anything."""
        self._validate(submission)
        return self.gate.judge(submission)

    def submit(self, submission: Submission, *, yes_via: str | None = None) -> Entry:
        """Store the task: ready to run if the gate allows it or a person said yes through `yes_via`, else as a proposal."""
        from backburner.approval.policy import Decision

        verdict = self.judge(submission)
        self.home.make_bells()
        now = self.clock()
        match verdict.decision:
            case Decision.DENY:
                raise ApprovalDenied(reason="; ".join(verdict.reasons))
            case Decision.ALLOW if yes_via is None:
                approval = Approval("auto", "gate", now)
            case Decision.ALLOW | Decision.ASK:
                approval = Approval("user", yes_via, now, self.gate.fingerprint(submission)) if yes_via else None
        word = ids.slug(submission.name) if submission.name else ids.stem(submission.command, submission.shell)
        entry = self.store.submit(
            submission,
            project=project_of(submission.cwd),
            wanted_id=ids.base_id(word),
            approval=approval,
            reasons=verdict.reasons,
            rule=verdict.rule,
            runner=self._runner,
            folder=self.home.tasks,
            now=now,
            expires_at=now + int(self.config.number("approval.proposal_expiry_hours") * 3_600_000),
        )
        self._publish(entry)
        return entry

    def approve(self, reference: str, *, via: str) -> Entry:
        """A person's yes to a proposal."""
        self.require_person(via)
        task = self.show(reference).task
        if task.expires_at is not None and task.state == TaskState.PROPOSED and task.expires_at <= self.clock():
            self.store.refuse(task.task_id, expired=True, now=self.clock())
            raise IllegalTransition(noun="proposal", state="expired", event="approved")
        from backburner.gate import submission_of

        asked = submission_of(task, self.store.environment(task.task_id))
        approval = Approval("user", via, self.clock(), self.gate.fingerprint(asked))
        entry = self.store.approve(task.task_id, approval, runner=self._runner, folder=self.home.tasks)
        self._publish(entry)
        return entry

    def reject(self, reference: str) -> Entry:
        """A person's no to a proposal."""
        entry = self.store.refuse(self.show(reference).task.task_id, expired=False, now=self.clock())
        self._publish(entry)
        return entry

    def require_person(self, via: str) -> None:
        """Refuse a yes that does not come from a person."""
        from backburner.gate import require_person

        if any(map(is_alive, self.store.processes(os.getsid(0)))):
            raise NotAPerson(reason="this runs in the session of a background task")
        require_person(self.environ, terminal=via == "cli" and not self.config.flag("approval.yes_without_terminal"))

    def trust(self, folder: str, *, via: str) -> str:
        """A person's word that the code of a project may run from now on; the project."""
        self.require_person(via)
        project = project_of(folder)
        self.store.grant("trust", project, (), via, self.clock())
        return project

    def always(self, submission: Submission, *, via: str) -> None:
        """A person's word that just this command may run in this project from now on."""
        self.require_person(via)
        if not self.judge(submission).always:
            raise BadInput("That is not narrow enough to be allowed for good.")
        self.store.grant("always", project_of(submission.cwd), submission.command, via, self.clock())

    def grants(self) -> "Sequence[Grant]":
        """What was said for good, in all projects."""
        return self.store.grants()

    def revoke(self, grant_id: int) -> None:
        """Take back what was said for good."""
        if not self.store.revoke(grant_id, self.clock()):
            raise BadInput(f"There is no grant {grant_id}. See: backburner trust --list")

    def cancel(self, reference: str) -> Entry:
        """End a pending task, or have one at work stopped; `wait` says when it is proven dead."""
        entry = self.show(reference)
        if entry.ended or (entry.run and entry.run.runner == RECORD):
            raise NotRunning(task_id=entry.task.task_id, status=entry.status)
        entry = self.store.request_cancel(entry.task.task_id, self.clock())
        self._publish(entry)
        return entry

    def clear(self, references: Iterable[str] = (), *, ended: bool = False, project: str | None = None) -> Sequence[str]:
        """Forget ended tasks and their folders; what is live is never touched. The ids that went."""
        entries = list({entry.task.task_id: entry for entry in map(self.show, references)}.values())
        for entry in entries:
            if not entry.ended:
                raise BadInput(f"Task {entry.task.task_id} is {entry.status}; only what has ended can be cleared.")
        if ended:
            entries += self.store.list(status=None, project=project, limit=None)
        return self._forget([entry.task.task_id for entry in entries if entry.ended])

    def clean_up(self, retention_days: float | None = None) -> Sequence[str]:
        """Forget what ended longer ago than the retention."""
        days = self.config.number("commands.retention_days") if retention_days is None else retention_days
        return self._forget(self.store.outdated(self.clock() - int(days * 86_400_000)))

    def _forget(self, task_ids: Sequence[str]) -> Sequence[str]:
        if task_ids:
            for folder in self.store.clear(task_ids, self.clock()):
                folders.remove(self.home.folder(folder))
            wake.ring_all(self.home.bells)
        return task_ids

    # -- reading

    def show(self, reference: str) -> Entry:
        """The one task that `reference` means: an id, a unique part of one, a label, or `last`."""
        self.refresh()
        found = self.store.find(reference, project_of(self._cwd()))
        if not found:
            raise TaskNotFound(task_id=reference)
        if len(found) > 1:
            raise AmbiguousId(reference=reference, candidates=", ".join(found))
        entry = self.store.show(found[0])
        if entry is None:
            raise TaskNotFound(task_id=reference)
        return entry

    def list(self, *, status: str | None = None, everywhere: bool = False, limit: int | None = None) -> Sequence[Entry]:
        """Tasks of the caller's project, newest first."""
        known = {*map(str, RunState), *map(str, TaskState)} - {"active", "done", "paused"}
        if status is not None and status not in known:
            raise BadInput(f"There is no status '{status}'; there are {', '.join(sorted(known))}.")
        self.refresh()
        return self.store.list(status=status, project=None if everywhere else project_of(self._cwd()), limit=limit)

    def tail(self, entry: Entry, lines: int, *, longest: int = 1 << 20) -> bytes:
        """The last lines of a task's output, at most `longest` bytes; nothing where there is none yet."""
        try:
            with Log(self.folder(entry)) as log:
                return log.tail(lines, longest=longest)
        except FileNotFoundError:
            return b""

    def folder(self, entry: Entry) -> str:
        """The folder of the latest run."""
        assert entry.run is not None
        return self.home.folder(entry.run.folder)

    def mend(self, entry: Entry) -> None:
        """Write a damaged or missing metadata.json of a known run anew."""
        if entry.run and not folders.readable(self.folder(entry)):
            with contextlib.suppress(OSError):
                folders.write_metadata(self.folder(entry), entry.task, entry.run)

    def log_path(self, entry: Entry) -> str:
        return os.path.join(self.folder(entry), NAME) if entry.run else ""

    def events(self, after: int) -> Sequence[Event]:
        return self.store.events(after, 1000)

    def notices(self, *, everywhere: bool = False, unread: bool = True) -> Sequence[Notice]:
        self.refresh()
        return self.store.notices(project=None if everywhere else project_of(self._cwd()), unread=unread)

    def tell(self, *, notice_ids: Iterable[int] = (), task_ids: Iterable[str] = ()) -> None:
        """The person has been told: these need not be told again."""
        self.store.tell(notice_ids=notice_ids, task_ids=task_ids, now=self.clock())

    # -- waiting

    def listen(self) -> wake.Ear:
        """An ear that hears every change of the ledger. Close it."""
        return wake.Ear(self.home.make_bells())

    def wait(self, task_ids: Sequence[str], timeout: float | None = None) -> Sequence[Entry]:
        """Block until every task has ended; WaitTimedOut where that takes longer than `timeout` seconds."""
        for entries in self.watch(task_ids, timeout):
            if not any(entry.live for entry in entries):
                return entries
        raise WaitTimedOut(seconds=timeout, task_ids=", ".join(task_ids))

    def watch(self, task_ids: Sequence[str], timeout: float | None, look: float = _LOOK_SECONDS) -> Iterator[Sequence[Entry]]:
        """The tasks as they are now, and again after every change; ends when the time is up."""
        deadline = None if timeout is None else time.monotonic() + timeout
        ear = self.listen()
        try:
            while True:
                self.refresh()
                yield [self._known(task_id) for task_id in task_ids]
                remaining = look if deadline is None else min(look, deadline - time.monotonic())
                if remaining <= 0:
                    return
                ear.wait(remaining)
        finally:
            ear.close()

    def _known(self, task_id: str) -> Entry:
        if (entry := self.store.show(task_id)) is None:
            raise TaskNotFound(task_id=task_id)
        return entry

    # -- the truth, whoever died

    def refresh(self) -> None:
        """See to it that somebody looks after everything live, before it is read; overdue proposals expire."""
        now = self.clock()
        for task_id in self.store.overdue_proposals(now):
            with contextlib.suppress(IllegalTransition, TaskNotFound):  # another door was quicker
                self.store.refuse(task_id, expired=True, now=now)
        live = self.store.live_runs()
        if not live or not any(map(_unattended, live)):
            # Whoever asked for these may have died before it rang.
            if any(run.runner == ENGINE and (run.state == RunState.PENDING or run.cancel_requested_at is not None) for run in live):
                self.ring_engine()
            for embedder in {run.owner.pid for run in live if run.runner != ENGINE and run.owner and run.cancel_requested_at is not None}:
                wake.ring_process(self.home.bells, embedder)
            return
        ear = self.listen()
        try:
            deadline = time.monotonic() + _TAKE_OVER_SECONDS
            stale = {run.run_id for run in live if _unattended(run)}
            self.ring_engine()
            while any(run.run_id in stale and self._unclear(run) for run in self.store.live_runs()) and time.monotonic() < deadline:
                ear.wait(0.25)
        finally:
            ear.close()

    def _unclear(self, run: Run) -> bool:
        """Whether a run taken over may have ended without the ledger saying so yet."""
        return _unattended(run) or folders.exit_code(self.home.folder(run.folder)) is not None or _rebooted(run)

    def ring_engine(self) -> None:
        """Wake the engine; start one where there is none. EngineUnavailable where that has not helped for long."""
        if wake.ring(self.home.bells, wake.ENGINE):
            self._deaf_since = None
            return
        self._start_engine()
        self._deaf_since = self._deaf_since or time.monotonic()
        if time.monotonic() - self._deaf_since > _DEAF_SECONDS:
            raise EngineUnavailable(_last_line(self.home.engine_log), log=self.home.engine_log)

    def _publish(self, entry: Entry) -> None:
        """After a commit: the files for people, and everybody who listens."""
        if entry.run and entry.run.state == RunState.PENDING:
            with contextlib.suppress(OSError):  # it is a copy; the runner writes it again
                folders.write_metadata(self.folder(entry), entry.task, entry.run)
        engine = wake.ring_all(self.home.bells)
        if not engine and entry.live and (entry.run is None or entry.run.runner == ENGINE or _unattended(entry.run)):
            self._start_engine()

    def _start_engine(self) -> None:
        from backburner.starter import start_engine

        start_engine(self.home, self.environ)

    def _validate(self, submission: Submission) -> None:
        if not submission.command or not submission.command[0].strip():
            raise BadInput("There is no command to run.")
        for word in (*submission.command, submission.cwd, *submission.env, *submission.env.values()):
            if "\0" in word:
                raise BadInput("A command cannot hold a NUL character.")
            if len(os.fsencode(word)) > _LONGEST_ARGUMENT:
                raise BadInput(f"One word of the command is longer than {_LONGEST_ARGUMENT:,} bytes; put it into a file.")
        for name in submission.env:
            if not name or "=" in name:
                raise BadInput(f"'{name}' is not a name for an environment variable.")
        for word in (submission.cwd, submission.description, submission.name or ""):
            if not word.isascii() and word.encode("utf-8", "replace").decode() != word:
                raise BadInput("A folder, a label and a description must be valid UTF-8.")
        if not os.path.isdir(submission.cwd):
            raise BadInput(f"The working directory {submission.cwd} does not exist.")
        if submission.timeout_ms is not None and submission.timeout_ms <= 0:
            raise BadInput("A timeout must be longer than nothing.")

    @staticmethod
    def _cwd() -> str:
        try:
            return os.getcwd()
        except FileNotFoundError:
            return "/"


def _unattended(run: Run) -> bool:
    """Whether nobody looks after a run any more: its owner is dead, or the embedder that meant to claim it is."""
    if run.state in AT_WORK:
        return not is_alive(run.owner)
    return run.runner not in (ENGINE, RECORD) and not is_alive(ProcessId.parse(run.runner))


def _rebooted(run: Run) -> bool:
    """Whether a run's process was one of another boot of the machine."""
    return run.process is not None and run.process.boot != boot_id()


def _last_line(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read()[-4000:].strip().rpartition("\n")[2] or "it says nothing"
    except OSError as error:
        return f"{error.strerror}"


def open_runtime(
    home: str | Home | None = None, environ: dict[str, str] | None = None, flags: dict[str, str] | None = None, *, runner: str = ENGINE
) -> Runtime:
    """Open a home, made if it is missing, and everything that this door needs of it."""
    from backburner.stores.sqlite import SQLiteStore

    environ = dict(os.environ) if environ is None else environ
    place = home if isinstance(home, Home) else Home(locate(home, environ))
    place.make()
    config = load_config(place, environ, flags)
    return Runtime(place, SQLiteStore(place.ledger, setup_lock=place.setup_lock), config, environ, flags=flags, runner=runner)


def load_config(home: Home, environ: dict[str, str], flags: dict[str, str] | None = None) -> Config:
    """The settings as they stand now."""
    try:
        with open(home.config, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        text = None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{home.config} cannot be read: {error}.") from None
    return resolve(text, home.config, environ, flags)
