"""The job queue and the triggers of a ledger on Postgres: which runs are offered, and whom a change wakes."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

pytest.register_assert_rewrite("contract")

from conftest import wait_until  # noqa: E402
from contract.cases import EMBEDDER, HOUR, NOW, OURS, YES, done, latest, propose, recurring, submit  # noqa: E402
from postgres_server import HOST_ID, ON_BOTH_SERVERS, LedgerDatabase, PostgresServer  # noqa: E402

from backburner.core.models import ENGINE, EXTERNAL  # noqa: E402
from backburner.core.schedule import Plan  # noqa: E402
from backburner.store.ledger import Ledger, open_postgres_ledger  # noqa: E402
from backburner.store.postgres_schema import migrate  # noqa: E402

pytestmark = ON_BOTH_SERVERS
LANE = "engine/gpu"


@pytest.fixture
def ledger(database: LedgerDatabase, tmp_path: Path) -> Iterator[Ledger]:
    database.empty()
    ledger = open_postgres_ledger(database.url, str(tmp_path), HOST_ID)
    yield ledger
    ledger.close()


class Observer:
    """A connection that sees the jobs and hears the notifications."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection
        self._heard: list[tuple[str, str]] = []
        connection.add_notify_handler(lambda notice: self._heard.append((notice.channel, notice.payload)))
        for channel in ("backburner", "backburner:engines", "backburner:h1"):
            connection.execute(f'LISTEN "{channel}"'.encode())

    def rows(self, sql: str, *values: object) -> list[tuple]:
        return self._connection.execute(sql.encode(), values).fetchall()

    def jobs(self) -> list[tuple[str, str, str]]:
        """The queue, the run and the status of every job."""
        return self.rows("SELECT queue_name, args->>'run_id', status::text FROM procrastinate_jobs ORDER BY priority DESC, id")

    def offered(self) -> list[str]:
        return [run_id for _, run_id, status in self.jobs() if status == "todo"]

    def fetch(self, queue: str = LANE) -> int:
        """Take a job, as a worker does; returns the id of the worker."""
        ((worker,),) = self.rows("SELECT worker_id FROM procrastinate_register_worker_v1()")
        self.rows("SELECT id FROM procrastinate_fetch_job_v2(ARRAY[%s]::varchar[], %s)", queue, worker)
        return worker

    def heard(self) -> list[tuple[str, str]]:
        """The notifications since the last call."""
        self.rows("SELECT pg_notify('backburner', 'last')")
        wait_until(lambda: self.rows("SELECT 1") and ("backburner", "last") in self._heard, "the last notification")
        heard, self._heard = self._heard[:-1], []
        return heard


@pytest.fixture
def observer(ledger: Ledger, database: LedgerDatabase) -> Iterator[Observer]:
    with psycopg.connect(database.url, autocommit=True, options="-c search_path=backburner_jobs,backburner") as connection:
        yield Observer(connection)


CHANGE, ENGINES, FOR_H1 = ("backburner", HOST_ID), ("backburner:engines", HOST_ID), ("backburner:h1", HOST_ID)


# -- offers


def test_a_run_of_a_lane_is_offered_in_the_transaction_that_queues_it(ledger: Ledger, observer: Observer) -> None:
    submit(ledger, "task_low", runner=LANE, priority=-1)
    submit(ledger, "task_a", runner=LANE)
    submit(ledger, "task_high", runner=LANE, priority=1)
    assert observer.jobs() == [(LANE, f"task_{name}", "todo") for name in ("high", "a", "low")]
    with pytest.raises(RuntimeError), ledger.database.transaction():
        ledger.database.write("UPDATE runs SET runner = 'engine/other'")
        raise RuntimeError
    assert [queue for queue, _, _ in observer.jobs()] == [LANE] * 3


@pytest.mark.parametrize("runner", ["engine", "agents:local", "engine@h1", EMBEDDER, EXTERNAL])
def test_only_runs_of_lanes_are_offered(ledger: Ledger, observer: Observer, runner: str) -> None:
    submit(ledger, runner=runner)
    assert observer.jobs() == []


def test_a_proposal_is_offered_when_it_is_approved(ledger: Ledger, observer: Observer) -> None:
    propose(ledger, "task_x")
    assert observer.jobs() == []
    ledger.tasks.approve("task_x", YES, runner=LANE, folder="tasks")
    assert observer.offered() == ["task_x"]


def test_a_run_is_offered_when_the_task_it_waits_for_has_ended(ledger: Ledger, observer: Observer) -> None:
    submit(ledger, "task_a", runner="engine@h1")
    submit(ledger, "task_b", runner=LANE, after=("task_a",))
    assert observer.jobs() == []
    (work,) = ledger.runs.claim("engine@h1", OURS, 1, NOW)
    ledger.runs.settle([done(work.run)], OURS)
    assert observer.offered() == ["task_b"]


def test_a_run_is_offered_when_its_time_has_come(ledger: Ledger, observer: Observer) -> None:
    submit(ledger, runner=LANE, start_at=NOW + 10)
    assert observer.jobs() == [] and ENGINES in observer.heard()
    ledger.dispatch.offer_due((LANE,), NOW + 10)
    assert observer.offered() == ["task_x"]


def test_a_run_that_is_not_pending_any_more_is_not_offered_any_more(ledger: Ledger, observer: Observer) -> None:
    for name in ("claimed", "cancelled", "moved", "kept"):
        submit(ledger, f"task_{name}", runner=LANE)
    assert [work.run.run_id for work in ledger.runs.claim(LANE, OURS, 1, NOW)] == ["task_claimed"]
    ledger.tasks.request_cancel("task_cancelled", NOW)
    with ledger.database.transaction():
        ledger.database.write("UPDATE runs SET runner = 'engine@h1' WHERE run_id = 'task_moved'")
    assert observer.jobs() == [(LANE, "task_kept", "todo")]


def test_a_run_that_moves_to_another_lane_is_offered_there(ledger: Ledger, observer: Observer) -> None:
    submit(ledger, runner=LANE)
    with ledger.database.transaction():
        ledger.database.write("UPDATE runs SET runner = 'agents/cpu'")
    assert observer.jobs() == [("agents/cpu", "task_x", "todo")]


def test_a_cancel_aborts_the_job_and_wakes_the_host_of_the_run(ledger: Ledger, observer: Observer) -> None:
    submit(ledger, runner=LANE)
    observer.fetch()
    ledger.runs.claim(LANE, OURS, 1, NOW)
    with ledger.database.transaction():
        ledger.database.write("UPDATE runs SET host = 'h1'")
    observer.heard()
    ledger.tasks.request_cancel("task_x", NOW)
    assert latest(ledger, "task_x").cancel_requested_at
    assert observer.rows("SELECT status::text, abort_requested FROM procrastinate_jobs") == [("doing", True)]
    assert FOR_H1 in observer.heard()


def test_the_name_of_a_long_lane_is_shortened_as_the_engine_does(ledger: Ledger, observer: Observer) -> None:
    from backburner.engine.dispatch import job_queue

    lanes = [f"engine/{'x' * length}" for length in (32, 33, 34, 90)] + ["agents:local/gpu+repo:büro-grün-größe-äöü"]
    for number, lane in enumerate(lanes):
        submit(ledger, f"task_{number}", runner=lane)
    assert sorted(queue for queue, _, _ in observer.jobs()) == sorted(map(job_queue, lanes))
    assert len({job_queue(lane) for lane in lanes}) == 5 and max(len(job_queue(lane).encode()) for lane in lanes) == 40


# -- jobs that nobody has


def test_jobs_that_a_worker_does_not_know_of_are_offered_again_unless_their_run_has_begun(ledger: Ledger, observer: Observer) -> None:
    for name in ("lost", "begun"):
        submit(ledger, f"task_{name}", runner=LANE)
    worker = observer.fetch()
    observer.rows("SELECT id FROM procrastinate_fetch_job_v2(ARRAY[%s]::varchar[], %s)", LANE, worker)
    with ledger.database.transaction():
        ledger.database.write("UPDATE runs SET state = 'running', owner = ?, started_at = ? WHERE run_id = 'task_begun'", (str(OURS), NOW))
    observer.rows("SELECT take_back_jobs(%s, '{1,2}')", worker)
    assert [row[2] for row in observer.jobs()] == ["doing", "doing"]
    observer.rows("SELECT take_back_jobs(%s, '{}')", worker)
    assert observer.jobs() == [(LANE, "task_lost", "todo")]


def test_jobs_of_workers_that_have_not_been_heard_of_are_offered_again(ledger: Ledger, observer: Observer) -> None:
    submit(ledger, runner=LANE)
    worker = observer.fetch()
    observer.rows("SELECT take_back_jobs(NULL, NULL)")
    assert observer.offered() == []
    observer.rows("UPDATE procrastinate_workers SET last_heartbeat = now() - INTERVAL '2 minutes' RETURNING 1")
    observer.rows("SELECT take_back_jobs(NULL, NULL)")
    assert observer.offered() == ["task_x"]
    assert observer.rows("SELECT id FROM procrastinate_workers") == [(worker,)]  # without its row it could take no jobs


def test_the_job_of_a_run_that_goes_on_is_kept_for_its_worker(ledger: Ledger, observer: Observer) -> None:
    submit(ledger, runner=LANE)
    observer.fetch()
    ledger.runs.claim(LANE, OURS, 1, NOW)
    observer.rows("UPDATE procrastinate_workers SET last_heartbeat = now() - INTERVAL '2 minutes' RETURNING 1")
    observer.rows("SELECT take_back_jobs(NULL, NULL)")
    assert observer.jobs() == [(LANE, "task_x", "doing")]


# -- notifications


def test_a_change_is_announced_once_with_the_host_that_made_it(ledger: Ledger, observer: Observer) -> None:
    submit(ledger)
    assert observer.heard() == [CHANGE]
    ledger.memory.set("/p", "colour", "red", NOW)  # no event
    assert observer.heard() == []


def test_a_host_is_woken_by_a_run_that_only_it_may_start(ledger: Ledger, observer: Observer) -> None:
    submit(ledger, runner="agents:local@h1")
    assert sorted(observer.heard()) == [CHANGE, FOR_H1]
    submit(ledger, "task_other", runner="engine@h2")
    assert observer.heard() == [CHANGE]


def test_engines_are_woken_by_a_new_time_of_a_recurring_task(ledger: Ledger, observer: Observer) -> None:
    recurring(ledger)
    assert sorted(observer.heard()) == [CHANGE, ENGINES]


def test_engines_are_woken_when_a_run_ends_for_which_a_slot_has_waited(ledger: Ledger, observer: Observer) -> None:
    recurring(ledger)
    slots = [NOW + HOUR, NOW + 2 * HOUR]
    for slot, ends_at, heard in ((slots[0], slots[0] + 1, [CHANGE]), (slots[1], slots[1] + HOUR, [CHANGE, ENGINES])):
        ledger.recurring.fire(lambda entry, slot=slot: (Plan(slot, [], slot + HOUR, 0), None), slot, "tasks")
        (work,) = ledger.runs.claim(ENGINE, OURS, 1, slot)
        observer.heard()
        ledger.runs.settle([done(work.run, ended_at=ends_at)], OURS)
        assert sorted(observer.heard()) == heard


# -- installation


def test_migrating_applies_newer_migrations_of_procrastinate(ledger_server: PostgresServer) -> None:
    """The tables are first created as an older version did: by its migrations up to a certain one."""
    from backburner.store.postgres_dispatch import _sql_folder

    def functions(url: str) -> list[tuple]:
        with psycopg.connect(url) as connection:
            query = "SELECT proname, prosrc FROM pg_proc WHERE pronamespace = 'backburner_jobs'::regnamespace ORDER BY 1, 2"
            return connection.execute(query).fetchall()

    url = ledger_server.create_database("upgraded")
    migrate(url, host_id="a", home="/a")
    expected = functions(url)
    old = [path for path in sorted((_sql_folder() / "migrations").glob("*.sql")) if path.name < "03.04"]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA backburner_jobs CASCADE; CREATE SCHEMA backburner_jobs; SET search_path = backburner_jobs")
        for path in old:
            connection.execute(path.read_bytes())
        connection.execute("UPDATE backburner.schema SET procrastinate = %s", (old[-1].name,))
    assert len(functions(url)) < len(expected)
    migrate(url, host_id="a", home="/a")
    assert functions(url) == expected
    migrate(url, host_id="a", home="/a")
    ledger_server.administer("DROP DATABASE upgraded WITH (FORCE)")
