"""What a door can ask about a home: one task, lists, output, how far something is, what happened. Changes nothing but what is overdue."""

import contextlib
import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from backburner.core import formatting as words
from backburner.core import ids
from backburner.core.errors import AmbiguousId, BadInput, BatchNotFound, SpanNotFound, TaskNotFound
from backburner.core.models import CHAT, INBOX, Batch, Clock, Entry, Event, Notice, Run, Session, Signs, Span, Task, channel_of
from backburner.core.settings import Config
from backburner.core.states import AT_WORK, RunState, TaskState
from backburner.services.supervision import Attendance
from backburner.system import run_files as folders
from backburner.system.home import Home, project_of, read_plain
from backburner.system.log_file import NAME, Log, Piece, position_of
from backburner.system.processes import is_alive
from backburner.system.run_files import ACTIVITY, CONVERSATION

if TYPE_CHECKING:
    from backburner.core.ports import Store  # protocols are slow to build, and no door needs them at run time
    from backburner.core.progress import Progress
    from backburner.system.git_worktree import Worktree

_SEARCHED = 16 << 20  # bytes at the end of a log that are searched for its last fitting lines
_MOST_LINES = 1 << 30
_LEAST_ROOM = 100  # bytes that a further run's output is begun for
_REMEMBERED_MS = 3_600_000  # how long a session without a process on this machine counts as here


class Reading(Attendance):
    """The questions. Whoever asks finds the truth: what nobody looked after is seen to first."""

    def __init__(self, home: Home, store: "Store", config: Config, environ: dict[str, str], clock: Clock) -> None:
        super().__init__(home, store, environ, clock)
        self.config = config
        self.cwd: str | None = None

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

    def agent(self, name: str, *, standing: bool = False, model: str | None = None) -> dict[str, str]:
        """The settings of an agent; `default` is there wherever a model is set."""
        from backburner.core.settings import agent_settings

        return agent_settings(self.config, name, standing=standing, model=model)

    def has_models(self) -> bool:
        """Whether the built-in agent has any model to ask."""
        named = (about.get("model") for about in self.config.agents.values() if not about.get("type"))
        return any([self.config.text("models.default"), self.config.text("models.local"), *named])

    def at_hand(self) -> list[str]:
        """The agents that can be asked without being set up: their programs are on the PATH."""
        from backburner.core.known_agents import READY
        from backburner.system.processes import executable_of

        path = self.environ.get("PATH", os.defpath)
        return [name for name, about in READY.items() if executable_of(about["command"].split()[0], self._cwd(), path)]

    def conversation(self, task: Task, run: Run | None = None) -> str:
        """The file that an agent's conversation is kept in; a standing task begins one in every run."""
        name = run.run_id if task.standing and run else task.task_id
        return os.path.join(self.home.folder(os.path.join("tasks", name)), CONVERSATION)

    def worktree(self, task: Task) -> "Worktree | None":
        """The checkout that a task has of its own, where it asked for one."""
        if not task.terms.get("worktree"):
            return None
        from backburner.system.git_worktree import Worktree

        return Worktree(task.project, os.path.join(self.home.root, "worktrees", task.task_id), task.task_id)

    def activity(self, entry: Entry) -> dict[str, Any]:
        """What an agent at work has done so far."""
        if entry.run is None:
            return {}
        try:
            found = json.loads(read_plain(os.path.join(self.folder(entry), ACTIVITY), 1 << 20))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def memory(self, project: str) -> dict[str, str]:
        """What the agents of a project keep."""
        return self.store.memory(project)

    def if_known(self, task_id: str) -> Entry | None:
        """The task with just this id, as the ledger has it now; None for one that was cleared."""
        return self.store.show(task_id)

    def known_as(self, task_id: str) -> Entry:
        """The task with just this id, as the ledger has it now."""
        if (entry := self.store.show(task_id)) is None:
            raise TaskNotFound(task_id=task_id)
        return entry

    def list(
        self,
        *,
        status: str | None = None,
        everywhere: bool = False,
        batch: str | None = None,
        limit: int | None = None,
        standing: bool = False,
        quiet: bool = True,
    ) -> Sequence[Entry]:
        """Tasks of the caller's project, newest first; those of a batch wherever it is; only `standing` ones.

        `quiet` leaves out what nobody looks for: chats, and what standing tasks ran by the way.
        """
        known = {*map(str, RunState), *map(str, TaskState)}
        if status is not None and status not in known:
            raise BadInput(f"There is no status '{status}'; there are {', '.join(sorted(known))}.")
        self.refresh()
        project = None if everywhere else self._home_of(batch) if batch is not None else project_of(self._cwd())
        return self.store.list(
            status=status, project=project, batch=batch, limit=limit, standing=standing, quiet=quiet and status is None and batch is None
        )

    def _home_of(self, batch: str) -> str | None:
        """The project whose batch is meant: the caller's own where it has one of that name, else every project's."""
        here = project_of(self._cwd())
        if self.store.list(status=None, project=here, batch=batch, limit=1):
            return here
        if not self.store.list(status=None, project=None, batch=batch, limit=1):
            raise BatchNotFound(batch=batch)
        return None

    def batches(self, *, everywhere: bool = False) -> Sequence[Batch]:
        """The batches of the caller's project with how their tasks stand, oldest first."""
        self.refresh()
        return self.store.batches(None if everywhere else project_of(self._cwd()))

    def trace(self, reference: str | None = None, *, span_id: str | None = None) -> Sequence[Span]:
        """All spans of the trace that a task or a span belongs to."""
        trace_id = self.store.trace_of(span_id) if span_id is not None else self.show(reference or "last").task.trace_id
        if trace_id is None:
            raise SpanNotFound(span_id=span_id)
        return self.store.spans(trace_id)

    def environment(self, entry: Entry) -> dict[str, str]:
        """The environment that a task was asked for in."""
        return self.store.environment(entry.task.task_id)

    def tail(self, entry: Entry, lines: int, *, longest: int = 1 << 20) -> bytes:
        """The last lines of a task's output, at most `longest` bytes; nothing where there is none yet."""
        try:
            with Log(self.folder(entry)) as log:
                return log.tail(lines, longest=longest)
        except FileNotFoundError:
            return b""

    def read(self, entry: Entry, cursor: str | None = None, *, most: int, tail: int | None = None, containing: str | None = None) -> Piece:
        """A bounded piece of a task's output: from its start or a cursor on, or its last lines; only lines that contain something."""
        count = entry.task.run_count
        n, offset = position_of(cursor, count) if cursor is not None else (count if tail is not None else 1, 0)
        if entry.run is None:
            return Piece(b"", "1:0", False)
        data = b""
        while True:
            last = n >= count
            try:
                with Log(self.folder(entry, n)) as log:
                    if tail is not None and cursor is None:
                        start = log.size
                        lines = log.tail(tail if containing is None else _MOST_LINES, longest=_SEARCHED if containing else most, end=start)
                        return Piece(_holding(lines, containing, tail)[-most:], f"{n}:{log.cursor(start)}", False)
                    start, room = log.position(offset), most - len(data)
                    if containing is None:
                        position, found = log.piece(start, room)
                    else:
                        position, found = log.lines_with(containing, start, room, growing=last and entry.live)
                    data, offset, size = data + found, log.cursor(position), log.size
            except FileNotFoundError:
                position = size = 0
            left = position < size and not (containing is not None and last and entry.live)
            if left or last or most - len(data) < _LEAST_ROOM:
                return Piece(data, f"{n}:{offset}", left or not last)
            n, offset = n + 1, 0

    def folder(self, entry: Entry, n: int | None = None) -> str:
        """The folder of the latest run, or of the n-th."""
        assert entry.run is not None
        if n is None or n == entry.run.n:
            return self.home.folder(entry.run.folder)
        return self.home.folder(os.path.join(os.path.dirname(entry.run.folder), ids.run_id(entry.task.task_id, n)))

    def progress(self, entry: Entry) -> "Progress | None":
        """How far a task at work is, where anything says so."""
        from backburner.system import run_inspection as signs  # a list needs none of it

        if entry.run is None or entry.run.state not in AT_WORK:
            return None
        return signs.of_agent(self.activity(entry)) if entry.task.agent is not None else signs.progress(self.folder(entry))

    def signs(self, entry: Entry) -> Signs:
        """What can be seen of a task from outside."""
        from backburner.system import run_inspection as signs

        if entry.run is None:
            return Signs()
        ports = signs.ports(entry.run.process, entry.run.mark) if entry.run.state in AT_WORK else []
        return Signs(self.progress(entry), tuple(ports), signs.artifacts(self.folder(entry)), self.waits_for(entry))

    def waits_for(self, entry: Entry) -> str | None:
        """Why a pending task, or one that was claimed, has not started."""
        run = entry.run
        if run and run.state in AT_WORK and run.process is None and run.error:
            return f"room on this machine: {run.error}"
        if run is None or run.state != RunState.PENDING:
            return None
        if run.blocked:
            others = [other for other in map(self.store.show, entry.task.after) if other and other.status != RunState.COMPLETED]
            return ", ".join(f"{other.task.task_id} ({other.status})" for other in others)
        if run.due_at is not None and run.due_at > self.clock():
            return f"{words.local(run.due_at)} (in {words.duration(run.due_at - self.clock())})"
        from backburner.system.capacity import no_room

        if reason := self.store.delayed_because():
            return f"room on this machine: {reason}"
        return no_room(self.config) or "a free place"

    def mend(self, entry: Entry) -> None:
        """Write a damaged or missing metadata.json of a known run anew."""
        if entry.run and not folders.readable(self.folder(entry)):
            with contextlib.suppress(OSError):
                folders.write_metadata(self.folder(entry), entry.task, entry.run)

    def log_path(self, entry: Entry) -> str:
        return os.path.join(self.folder(entry), NAME) if entry.run else ""

    def events(self, after: int) -> Sequence[Event]:
        return self.store.events(after, 1000)

    def notices(self, *, session: str | None = None, everywhere: bool = False, unread: bool = True) -> Sequence[Notice]:
        """What is owed to a session, wherever it was asked for; or to the person, with what is owed to sessions that are gone."""
        self.refresh()
        project = None if everywhere or session is not None else project_of(self._cwd())
        channels = [channel_of(session)] if session is not None else self._mine() if unread else None
        return self.store.notices(project=project, unread=unread, channels=channels)

    def owed(self, session: str) -> Sequence[Notice]:
        """What is owed to a session, as the ledger has it now."""
        return self.store.notices(project=None, unread=True, channels=[channel_of(session)])

    def _mine(self) -> Sequence[str]:
        """The channels that a person answers for: their own, and those of sessions that are gone."""
        if set(owing := self.store.owing()) <= {INBOX}:
            return [INBOX]
        here = {channel_of(session.session_id) for session in self.store.sessions() if self._here(session)}
        # What a chat's agent was not told yet, the person has in their own channel.
        return [channel for channel in owing if channel not in here and not channel.startswith(channel_of(CHAT))]

    def _here(self, session: Session) -> bool:
        """Whether a session can still be told something."""
        if session.process is None:
            return abs(self.clock() - session.seen_at) < _REMEMBERED_MS
        return is_alive(session.process)

    def awaits(self, sessions: Sequence[str]) -> bool:
        """Whether anything that sessions asked for has not ended."""
        return self.store.open_work(sessions)

    def sessions(self, client: str | None = None) -> Sequence[Session]:
        """Who asked for work here, latest first."""
        return self.store.sessions(client)

    def _cwd(self) -> str:
        """Where whoever asks is: this process, unless it asks for somebody else."""
        if self.cwd is not None:
            return self.cwd
        try:
            return os.getcwd()
        except FileNotFoundError:
            return "/"


def _holding(lines: bytes, containing: str | None, last: int) -> bytes:
    """The last lines of some that hold a text."""
    if containing is None:
        return lines
    wanted = containing.casefold()
    found = [line for line in lines.split(b"\n") if wanted in line.decode("utf-8", "replace").casefold()]
    return b"\n".join(found[-last:] if last > 0 else [])
