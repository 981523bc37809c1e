"""Ledgers of every version: older ones are migrated and work, a newer one is refused and not changed."""

import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apsw
import pytest

from backburner.core.claims import RunResult
from backburner.core.errors import LedgerTooNew
from backburner.core.models import ENGINE, Approval, ProcessId
from backburner.core.recipients import INBOX
from backburner.core.states import PauseKind, Result, RunState
from backburner.core.task_spec import Limits
from backburner.store.ledger import Ledger, open_ledger
from backburner.store.migrations import MIGRATIONS, VERSION
from backburner.store.sqlite_constraints import as_comparisons

STORED = sorted(Path(__file__).parent.glob("ledger-v*.sql"), key=lambda path: int(path.stem.removeprefix("ledger-v")))
NOW = 1_770_000_000_000
OWNER, US = ProcessId(11, "111", "boot"), ProcessId(22, "222", "boot")


def schema(path: str) -> dict[str, str]:
    db = apsw.Connection(path)
    rows = dict(db.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))
    db.close()
    return {name: as_comparisons(" ".join(sql.split())) for name, sql in rows.items()}


@pytest.fixture(params=STORED, ids=lambda path: path.stem)
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A ledger file of an older version."""
    path = str(tmp_path / "ledger.db")
    db = apsw.Connection(path)
    db.execute(request.param.read_text()).fetchall()
    db.execute("PRAGMA journal_mode = WAL").fetchall()
    db.close()
    return path


@pytest.fixture
def opened(stored: str) -> Iterator[Ledger]:
    ledger = open_ledger(stored)
    yield ledger
    ledger.close()


def test_there_is_a_stored_ledger_of_every_version() -> None:
    assert [path.name for path in STORED] == [f"ledger-v{number + 1}.sql" for number in range(VERSION)]


def test_a_new_ledger_has_the_schema_of_all_migrations(tmp_path: Path) -> None:
    open_ledger(str(tmp_path / "fresh.db")).close()
    db = apsw.Connection(str(tmp_path / "stepwise.db"))
    for migration in MIGRATIONS:
        db.execute(migration)
    db.close()
    fresh = schema(str(tmp_path / "fresh.db"))
    assert fresh == schema(str(tmp_path / "stepwise.db"))
    assert {"tasks", "runs", "events", "notices", "environments"} <= fresh.keys()


def test_a_migrated_ledger_has_the_schema_of_a_new_one(stored: str, tmp_path: Path) -> None:
    open_ledger(stored).close()
    open_ledger(str(tmp_path / "fresh.db")).close()
    assert schema(stored) == schema(str(tmp_path / "fresh.db"))


def test_a_migrated_ledger_lists_every_task_unchanged(opened: Ledger) -> None:
    found = {entry.task.task_id: entry for entry in opened.queries.list()}
    states = {task_id: entry.status for task_id, entry in found.items()}
    assert states.pop("task_kept") == "running"
    if blocked := found.get("task_blocked"):  # since version 3
        assert states.pop("task_blocked") == "pending"
        assert blocked.run and (blocked.run.blocked, blocked.run.due_at, blocked.run.priority) == (True, NOW + 5000, 1)
        assert (blocked.task.spec.order.after, blocked.task.spec.order.batch, blocked.task.spec.command.limits) == (
            ("task_pending",),
            "nightly",
            Limits(nice=5),
        )
    assert states == {f"task_{status}": status for status in states.values()}
    assert len(states) == 8
    running = found["task_running"]
    assert running.task.spec.command.words == ("echo", "it's", "日本語\n")
    assert (running.task.spec.env, running.task.spec.name, running.task.decision.reasons) == (
        {"A": "b"},
        "a running one",
        ("'echo' is on the list",),
    )
    assert running.run and running.run.owner == OWNER and running.run.process == ProcessId(77, "7", "boot")
    assert running.run.cancel_requested_at == NOW + 15
    failed = found["task_failed"].run
    assert failed and (failed.end.result, failed.end.summary, failed.end.lines, failed.ended_at) == (Result.LOST, "a summary", 3, NOW + 20)
    assert opened.check() == []


def test_a_migrated_ledger_keeps_its_pending_notices(opened: Ledger) -> None:
    assert [notice.task_id for notice in opened.notices.notices()] == ["task_completed", "task_cancelled"]
    events = opened.events.events(0)
    assert len(events) > 15 and events[0].kind == "task_proposed"


def test_a_migrated_ledger_can_be_used(opened: Ledger) -> None:
    last = opened.events.events(-1)[0].event_id
    assert opened.live_work.overdue_proposals(NOW + 1000) == ["task_proposed"]
    opened.tasks.approve("task_proposed", Approval("user", "cli", NOW), runner=ENGINE, folder="tasks")
    claimed = opened.runs.claim(ENGINE, US, 9, NOW + 40)
    assert [work.run.run_id for work in claimed] == ["task_pending", "task_proposed"]
    assert [work.environment for work in claimed] == [{"PATH": "/bin"}] * 2
    running = opened.queries.get("task_running")
    assert running and running.run
    opened.runs.adopt(running.run, US)
    endings = [RunResult(run.run_id, RunState.COMPLETED, Result.EXIT, NOW + 50, 0) for run in opened.live_work.live_runs()]
    assert len(opened.runs.settle(endings, US).run_ids) == 3
    if later := opened.runs.claim(ENGINE, US, 9, NOW + 5000):  # since version 3 there is one that came after task_pending
        opened.runs.settle([RunResult(later[0].run.run_id, RunState.COMPLETED, Result.EXIT, NOW + 6000, 0)], US)
    assert all(event.event_id > last for event in opened.events.events(last))
    assert len(opened.tasks.clear([entry.task.task_id for entry in opened.queries.list()], NOW)) == 7 + len(later)
    assert opened.queries.list() == []


def test_a_migrated_ledger_has_the_current_version(stored: str) -> None:
    open_ledger(stored).close()
    db = apsw.Connection(stored)
    assert db.pragma("user_version") == VERSION
    assert db.pragma("journal_mode") == "wal"
    db.close()


def test_a_ledger_of_a_newer_version_is_refused_and_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    db = apsw.Connection(str(path))
    for sql in ("journal_mode = WAL", "user_version = 999", "wal_checkpoint(TRUNCATE)"):
        db.execute(f"PRAGMA {sql}").fetchall()
    db.close()
    before = path.read_bytes()
    with pytest.raises(
        LedgerTooNew,
        match=re.escape(f"{path} was written by a newer version of Backburner (schema 999; this version supports up to {VERSION})"),
    ):
        open_ledger(str(path))
    assert path.read_bytes() == before
    left = [os.path.getsize(tmp_path / name) for name in os.listdir(tmp_path) if name.endswith("-wal")]
    assert sum(left) == 0


def test_a_new_ledger_can_be_opened_by_many_processes_at_once(tmp_path: Path) -> None:
    path, lock = str(tmp_path / "ledger.db"), str(tmp_path / "setup.lock")
    with ThreadPoolExecutor(8) as pool:
        ledgers = list(pool.map(lambda _: open_ledger(path, setup_lock=lock), range(8)))
    assert [ledger.queries.list() for ledger in ledgers] == [[]] * 8
    for ledger in ledgers:
        ledger.close()


def test_a_new_ledger_is_private(tmp_path: Path) -> None:
    open_ledger(str(tmp_path / "ledger.db")).close()
    assert oct((tmp_path / "ledger.db").stat().st_mode & 0o777) == "0o600"


def test_values_from_sentences_are_migrated_to_columns(tmp_path: Path) -> None:
    """Up to version 8 these values were parsed from sentences, keys and the spelling of JSON."""
    path = str(tmp_path / "ledger.db")
    db = apsw.Connection(path)
    db.execute((Path(__file__).parent / "ledger-v8.sql").read_text()).fetchall()
    first, second = (row[0] for row in db.execute("SELECT task_id FROM tasks ORDER BY task_id LIMIT 2"))
    db.execute(
        "UPDATE tasks SET paused_because = 'budget: 3 runs a day', agent = 'default', terms = '{\"chat\": true}' WHERE task_id = ?",
        (first,),
    )
    db.execute("UPDATE tasks SET paused_because = 'it failed twice' WHERE task_id = ?", (second,))
    db.execute(
        "INSERT INTO runs (run_id, task_id, n, state, result, error, folder, mark, trace_id, span_id, runner, created_at, ended_at, cause, slot)"
        " VALUES ('skipped', ?, -9, 'skipped', 'unstarted', 'the machine was off (and 1,234 slots before it)', '', '', '', '', 'engine', 1, 1, 'schedule', 7)",
        (first,),
    )
    for key in ("a:proposed:inbox", "a:waits:1.x:inbox", "a:paused:1.x:inbox", "a:delayed:1.x:inbox", "a:refused:inbox"):
        db.execute(
            "INSERT INTO notices (key, task_id, project, channel, text, created_at) VALUES (?, ?, '/p', 'inbox', 'x', 1)", (key, second)
        )
    db.close()
    ledger = open_ledger(path)
    try:
        one, other = ledger.queries.get(first), ledger.queries.get(second)
        assert one and other
        assert (one.task.recurring.pause_kind, one.task.recurring.paused_because, one.task.in_chat) == (
            PauseKind.BUDGET,
            "3 runs a day",
            True,
        )
        assert (other.task.recurring.pause_kind, other.task.recurring.paused_because, other.task.in_chat) == (
            PauseKind.OTHER,
            "it failed twice",
            False,
        )
        kinds = {notice.key.split(":")[1]: str(notice.kind) for notice in ledger.notices.notices() if notice.key.startswith("a:")}
        assert kinds == {"proposed": "proposed", "waits": "waiting", "paused": "paused", "delayed": "delayed", "refused": "refused"}
    finally:
        ledger.close()
    db = apsw.Connection(path)
    assert list(db.execute("SELECT error, skipped_before FROM runs WHERE run_id = 'skipped'")) == [("the machine was off", 1234)]
    db.close()


def test_requesters_and_recipients_are_migrated_to_columns(tmp_path: Path) -> None:
    """Up to version 10 these values were parsed from the texts of sessions, keys and channels."""
    path = str(tmp_path / "ledger.db")
    db = apsw.Connection(path)
    db.execute((Path(__file__).parent / "ledger-v10.sql").read_text()).fetchall()
    db.execute("UPDATE tasks SET agent = 'default' WHERE task_id = 'task_running'")
    sessions = {
        "task_proposed": "agent:task_running",
        "task_rejected": "task:task_running",
        "task_expired": "agent:a-program-of-my-own",
        "task_completed": "chat:20260101_000000_abcd",
        "task_failed": "claude:task_running",
        "task_cancelled": "discovery",
    }
    for task_id, session in sessions.items():
        db.execute("UPDATE tasks SET session = ? WHERE task_id = ?", (session, task_id))
    keys = {"task_completed": "task_running:3:call_1", "task_failed": "task_pending:1:x", "task_pending": "task_running:1:mine"}
    for task_id, key in keys.items():
        db.execute("UPDATE tasks SET key = ? WHERE task_id = ?", (key, task_id))
    for channel in ("to:phone", "session:claude:1"):
        db.execute(
            "INSERT INTO notices (key, task_id, project, channel, text, created_at) VALUES (?, 'task_failed', '/p', ?, 'x', 1)",
            (f"task_failed:{channel}", channel),
        )
    db.close()
    ledger = open_ledger(path)
    try:
        parents = {entry.task.task_id: (entry.task.parent_task, entry.task.parent_run) for entry in ledger.queries.list()}
        assert {task_id: parent for task_id, parent in parents.items() if parent != (None, None)} == {
            "task_proposed": ("task_running", None),
            "task_rejected": ("task_running", None),
            "task_completed": ("task_running", "task_running"),
        }
        assert [notice.channel for notice in ledger.deliveries.pending()] == ["to:phone"]
        assert sorted(ledger.notices.channels_with_notices()) == [INBOX, "session:claude:1"]
    finally:
        ledger.close()
    db = apsw.Connection(path)
    clients = dict(db.execute("SELECT task_id, client FROM tasks WHERE client IS NOT NULL"))
    assert clients == {task_id: session.partition(":")[0] for task_id, session in sessions.items()}
    kinds = dict(db.execute("SELECT channel, recipient FROM notices"))
    assert kinds == {"to:phone": "channel", "session:claude:1": "session", INBOX: "person"}
    db.close()


def test_the_wait_of_a_run_is_migrated_to_kind_and_target(tmp_path: Path) -> None:
    """Up to version 11 one text held a word, a task id, or a lane with a prefix."""
    path = str(tmp_path / "ledger.db")
    db = apsw.Connection(path)
    db.execute((Path(__file__).parent / "ledger-v11.sql").read_text()).fetchall()
    (task_id,) = next(db.execute("SELECT task_id FROM tasks LIMIT 1"))
    before = {
        None: "approval",
        "budget": "budget",
        "tool": "tool",
        "task_other": "task",
        "turn:agents": "interactive",
        "elsewhere": "reattach",
    }
    for n, target in enumerate(before, 100):
        db.execute(
            "INSERT INTO runs (run_id, task_id, n, state, folder, mark, trace_id, span_id, runner, owner, created_at, started_at, waits_on)"
            " VALUES (?, ?, ?, 'waiting', '', '', '', '', 'agents', '1:2:b', 1, 1, ?)",
            (f"run{n}", task_id, n, target),
        )
    db.close()
    ledger = open_ledger(path)
    try:
        waits = {run.run_id: run.wait for run in ledger.queries.history(task_id, 1000) if run.run_id.startswith("run1")}
        assert [wait and str(wait.kind) for _, wait in sorted(waits.items())] == list(before.values())
        assert [wait and wait.target for _, wait in sorted(waits.items())] == [None, None, None, "task_other", "agents", None]
    finally:
        ledger.close()


def test_rows_keep_their_meaning_under_the_plain_names(tmp_path: Path) -> None:
    """Version 13 renamed tables, columns and kinds of events."""
    path = str(tmp_path / "ledger.db")
    db = apsw.Connection(path)
    db.execute((Path(__file__).parent / "ledger-v12.sql").read_text()).fetchall()
    (task_id,) = next(db.execute("SELECT task_id FROM tasks LIMIT 1"))
    db.execute("INSERT INTO tombstones VALUES ('/p', 'ci', 'digest', 'rejected', 70)").fetchall()
    db.execute("INSERT INTO turns VALUES ('1:2:b', 'agents', NULL, 60)").fetchall()
    db.execute("INSERT INTO presence VALUES ('cli', 50)").fetchall()
    db.execute("INSERT INTO watches (task_id, state) VALUES (?, '{\"seen\": 1}')", (task_id,)).fetchall()
    db.execute("UPDATE notices SET told_at = NULL, dead_at = 9, recipient = 'channel', external = 'm1', channel = 'to:phone'").fetchall()
    for kind in ("run_parked", "run_woken", "run_handed"):
        db.execute("INSERT INTO events (at, kind, task_id, run_id, data) VALUES (1, ?, ?, NULL, '{}')", (kind, task_id)).fetchall()
    (notices,) = next(db.execute("SELECT count(*) FROM notices"))
    db.close()
    ledger = open_ledger(path)
    try:
        assert ledger.refusals.refused_since("/p", "ci", "other", 0, "rejected") == 70
        assert [(str(lease.process), lease.lane) for lease in ledger.sessions.interactive_leases()] == [("1:2:b", "agents")]
        assert ledger.sessions.last_activity() == 50 and ledger.triggers.source_state(task_id) == {"seen": 1}
        assert [notice.failed_at for notice in ledger.deliveries.failed()] == [9] * notices and notices > 0
        assert ledger.deliveries.find_sent("to:phone", "m1")
        kinds = [event.kind for event in ledger.events.events(0)][-3:]
        assert kinds == ["run_suspended", "run_continued", "run_passed_to_agent"]
    finally:
        ledger.close()
