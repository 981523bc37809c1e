"""The hosts that share a ledger: their epochs and beats, and what becomes of the runs of a host that is silent.

Every method except `beat` and `list` is one transaction, guarded by the epoch, and `suspect` by the beat that was seen: a host that beats
in the meantime is not suspected.
"""

from collections.abc import Sequence

from backburner.core import light_json as json
from backburner.core.claims import RunResult
from backburner.core.hosts import GIVEN_UP, Host, HostState, Suspicion
from backburner.core.light_typing import TYPE_CHECKING
from backburner.core.models import EXTERNAL, Entry, ProcessId, Run
from backburner.core.states import LIVE, RUNNING_STATES, NoticeKind, Result, RunState
from backburner.store.rows import ACTIVE_RUNS, RUN, run_of

if TYPE_CHECKING:
    from backburner.store.database import Database
    from backburner.store.event_writer import EventWriter
    from backburner.store.notice_writer import NoticeWriter
    from backburner.store.run_endings import RunEndings
    from backburner.store.task_reader import TaskReader

_COLUMNS = ", ".join(f"h.{field}" for field in Host._fields[:-1])
_RUNS = f"SELECT count(*) FROM runs r WHERE r.{ACTIVE_RUNS} AND r.runner <> '{EXTERNAL}' AND r.host = h.host_id"
_HERE = "host_id = ? AND epoch = ? AND state IN ('active', 'suspected')"


class HostRepository:
    """Enrols this host, and judges the others."""

    def __init__(self, db: "Database", reader: "TaskReader", events: "EventWriter", notices: "NoticeWriter", endings: "RunEndings") -> None:
        self._db, self._reader, self._events, self._notices, self._endings = db, reader, events, notices, endings

    def list(self) -> Sequence[Host]:
        """All hosts, by name, with the number of their active runs."""
        rows = self._db.execute(f"SELECT {_COLUMNS}, ({_RUNS}) FROM hosts h ORDER BY h.name")
        return [_host(row) for row in rows]

    def beats(self) -> Sequence[Host]:
        """All hosts, without the number of their runs: the read that every host repeats all the time."""
        return [_host((*row, 0)) for row in self._db.execute(f"SELECT {_COLUMNS} FROM hosts h")]

    def may_run_tasks(self) -> bool:
        """Whether this host may run tasks, by the role of its database user; otherwise it can only submit them."""
        return self._db.may_run_tasks()

    def enrol(self, now: int, *, lanes: Sequence[str] = (), capacity: int = 0, version: str = "", integrations: bool = False) -> int:
        """Begin a new epoch of this host, which keeps its active runs; returns it. This process can claim runs until it is fenced."""
        with self._db.transaction():
            (epoch,) = self._db.one(
                "UPDATE hosts SET state = 'active', epoch = epoch + 1, beat = 0, changed_at = ?, seen_at = ?, draining = 0, lanes = ?,"
                " capacity = ?, version = ?, integrations = ? WHERE host_id = ? RETURNING epoch",
                (now, now, json.dumps(tuple(lanes)), capacity, version, int(integrations), self._db.host_id),
            )
            self._db.write(f"UPDATE runs SET epoch = ? WHERE {ACTIVE_RUNS} AND host = ?", (epoch, self._db.host_id))
            self._events.write(now, "host_enrolled", None, None, host=self._name(self._db.host_id), epoch=epoch)
        self._db.epoch = epoch
        return epoch

    def beat(self, epoch: int, now: int) -> bool:
        """Say that this host lives; False if it was fenced, or forgotten, or has a later epoch. Not a transaction of its own: a lost beat is harmless.

        LedgerTooNew if the ledger was upgraded meanwhile for a newer version only.
        """
        self._db.require_supported()
        row = self._db.one(f"UPDATE hosts SET beat = beat + 1, seen_at = ? WHERE {_HERE} RETURNING state", (now, self._db.host_id, epoch))
        if row and row[0] == HostState.SUSPECTED:
            with self._db.transaction():
                returned = "UPDATE hosts SET state = 'active', changed_at = ? WHERE host_id = ? AND epoch = ? AND state = 'suspected'"
                if self._db.write(returned, (now, self._db.host_id, epoch)):
                    self._events.write(now, "host_returned", None, None, host=self._name(self._db.host_id))
        return bool(row)

    def leave(self, epoch: int, now: int) -> bool:
        """Record that the engine of this host exits; False if it has no such epoch any more."""
        with self._db.transaction():
            left = self._db.write(
                f"UPDATE hosts SET state = 'left', changed_at = ?, seen_at = ? WHERE {_HERE}", (now, now, self._db.host_id, epoch)
            )
            if left:
                self._events.write(now, "host_left", None, None, host=self._name(self._db.host_id))
        return bool(left)

    def suspect(self, host: Host, now: int) -> Suspicion | None:
        """Record that another host is silent, with one notice about its runs; None if it was not silent after all.

        Its runs that may run twice end as lost and are queued again, and the host is fenced: nothing that it says about them counts any
        more. Its other runs stay as they are, because nobody knows whether they go on.
        """
        with self._db.transaction():
            entries = self._running(host.host_id)
            again = [entry for entry in entries if entry.task.spec.order.rerun]
            state = HostState.FENCED if again else HostState.SUSPECTED
            silent = "host_id = ? AND epoch = ? AND beat = ? AND state = 'active'"
            changed = f"UPDATE hosts SET state = ?, changed_at = ? WHERE {silent}"
            if not self._db.write(changed, (state, now, host.host_id, host.epoch, host.beat)):
                return None
            unknown = len(entries) - len(again)
            run_ids = [self._run_again(entry, f"host {host.name} did not answer any more", now) for entry in again]
            found = Suspicion(unknown, [run_id for run_id in run_ids if run_id is not None])
            self._events.write(now, f"host_{state}", None, None, host=host.name, runs=unknown, run_again=list(found.run_again))
            if entries:
                self._notices.write(entries[0].task, None, _suspicion_text(host, found), now, NoticeKind.UNREACHABLE, again=True)
            return found

    def lose(self, host: Host, now: int) -> int | None:
        """End the runs of a silent host as lost, each with its notice; returns how many, or None if the host has spoken since."""
        with self._db.transaction():
            runs = self._running(host.host_id)
            state = HostState.FENCED if runs else HostState.LEFT
            silent = "host_id = ? AND epoch = ? AND beat = ? AND state IN ('suspected', 'fenced')"
            if not self._db.write(
                f"UPDATE hosts SET state = ?, changed_at = ? WHERE {silent}", (state, now, host.host_id, host.epoch, host.beat)
            ):
                return None
            self._end_lost(runs, f"host {host.name} has not answered since, so whether it went on is not known", now)
            if runs or host.state == HostState.SUSPECTED:  # otherwise it was given up before
                self._events.write(now, "host_lost", None, None, host=host.name, runs=len(runs))
            return len(runs)

    def forget(self, host: Host, now: int) -> int | None:
        """Give up on a host that is not active: its runs end as lost at once; returns how many, or None if it is active.

        If it comes back, it begins a new epoch.
        """
        with self._db.transaction():
            forgotten = "UPDATE hosts SET state = 'left', epoch = epoch + 1, changed_at = ? WHERE host_id = ? AND state <> 'active'"
            if not self._db.write(forgotten, (now, host.host_id)):
                return None
            runs = self._running(host.host_id)
            self._end_lost(runs, f"host {host.name} was given up", now)
            self._events.write(now, "host_forgotten", None, None, host=host.name, runs=len(runs))
            return len(runs)

    def drain(self, host: Host, now: int) -> None:
        """Ask a host to claim nothing from its lanes any more, until its engine starts again."""
        with self._db.transaction():
            self._db.write("UPDATE hosts SET draining = 1 WHERE host_id = ?", (host.host_id,))
            self._events.write(now, "host_draining", None, None, host=host.name)

    def give_back(self, run_id: str, owner: ProcessId, error: str, now: int) -> str | None:
        """End a run of this host as lost and queue it again, because its lease was over; returns the next run, None if nothing was to do."""
        with self._db.transaction():
            entry = self._reader.by_latest_run(run_id)
            if entry is None or entry.run is None or entry.run.owner != owner or entry.run.state not in LIVE:
                return None
            return self._run_again(entry, error, now)

    def record_found(self, run: Run, now: int) -> None:
        """Record, with a notice, that a run which this host has claimed had begun here before, so that the server has lost commits."""
        with self._db.transaction():
            name = self._name(self._db.host_id)
            self._events.write(now, "run_found", run.task_id, run.run_id, host=name)
            text = (
                f"{run.run_id} had begun on host {name} before the database server lost that. It was not started again."
                " To lose nothing in a fail-over, let the server wait for a standby (synchronous_standby_names)."
            )
            self._notices.write(self._reader.get(run.task_id).task, run, text, now, NoticeKind.UNREACHABLE, again=True)

    def given_up(self, since: int) -> Sequence[Run]:
        """The runs of this host that others have given up since then: their processes may still be there."""
        rows = self._db.execute(
            f"SELECT {RUN} FROM runs r WHERE r.host = ? AND r.result = 'lost' AND r.ended_at >= ? AND r.problem = ?",
            (self._db.host_id, since, GIVEN_UP),
        )
        return [run_of(row) for row in rows]

    def _running(self, host_id: str) -> Sequence[Entry]:
        """The tasks with a run on a host. Waiting runs are not among them: they have no process that could be lost."""
        states = ", ".join(f"'{state}'" for state in RUNNING_STATES)
        rows = self._db.execute(
            f"SELECT run_id FROM runs WHERE {ACTIVE_RUNS} AND host = ? AND state IN ({states}) ORDER BY seq", (host_id,)
        )
        found = [self._reader.by_latest_run(row[0]) for row in rows]
        return [entry for entry in found if entry is not None]

    def _run_again(self, entry: Entry, error: str, now: int) -> str | None:
        """End a run and add the next one, unless it was to be cancelled."""
        assert entry.run is not None
        if entry.run.cancel_requested_at is not None:
            self._endings.end(entry, RunResult(entry.run.run_id, RunState.CANCELLED, Result.LOST, now, error=error, problem=GIVEN_UP))
            return None
        return self._endings.run_again(entry, RunResult(entry.run.run_id, RunState.FAILED, Result.LOST, now, error=error, problem=GIVEN_UP))

    def _end_lost(self, entries: Sequence[Entry], error: str, now: int) -> None:
        for entry in entries:
            assert entry.run is not None
            cancelled = entry.run.cancel_requested_at is not None
            state = RunState.CANCELLED if cancelled else RunState.FAILED
            self._endings.end(entry, RunResult(entry.run.run_id, state, Result.LOST, now, error=error, problem=GIVEN_UP))

    def _name(self, host_id: str) -> str:
        row = self._db.one("SELECT name FROM hosts WHERE host_id = ?", (host_id,))
        return row[0] if row else ""


def _host(row: tuple) -> Host:
    host = Host(*row)
    return host._replace(
        state=HostState(host.state),
        draining=bool(host.draining),
        integrations=bool(host.integrations),
        lanes=tuple(json.loads(str(host.lanes))) if str(host.lanes) != "[]" else (),
    )


def _suspicion_text(host: Host, found: Suspicion) -> str:
    parts = [f"Host {host.name} does not answer."]
    if found.run_again:
        parts.append(f"{len(found.run_again)} of its runs {'is' if len(found.run_again) == 1 else 'are'} run again elsewhere.")
    if found.unknown:
        runs = "1 run is there, and whether it goes on" if found.unknown == 1 else f"{found.unknown} runs are there, and whether they go on"
        parts.append(f"{runs} is not known. If the host does not come back: backburner hosts forget {host.name}")
    return " ".join(parts)
