"""Backup, restore and export with a fake clock and no engine: what is in them, and that nothing happens twice afterwards."""

import io
import json
import os
import resource
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from backburner.coordination.config_file import ConfigFile
from backburner.core.claims import RunResult
from backburner.core.errors import BackupFailed, BadInput, HomeInUse, LedgerTooNew, RestoreFailed
from backburner.core.models import ENGINE, Approval
from backburner.core.schedule import every
from backburner.core.states import Result, RunState
from backburner.services.app import App
from backburner.services.backup import LEDGER
from backburner.services.restore import Restored, restore
from backburner.store.ledger import Ledger, open_ledger
from backburner.store.migrations import VERSION
from backburner.system.archive import ArchiveWriter
from backburner.system.home import Home
from backburner.system.processes import myself
from backburner.testing import FakeClock
from backburner.testing.records import request

MINUTE = 60_000


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(str(tmp_path / "home")).make()


@pytest.fixture
def app(home: Home, clock: FakeClock) -> Iterator[App]:
    with App(home, open_ledger(home.ledger), ConfigFile(home, {}), {}, clock=clock) as opened:
        yield opened


def submit(ledger: Ledger, name: str, now: int, **more: Any) -> None:
    environment = {"PATH": "/bin", "SECRET_OF_ENVIRONMENT": "hidden"}
    ledger.tasks.submit(
        request(("echo", name), "/p", environment, description=name, **more),
        project="/p",
        wanted_id=f"task_{name}",
        approval=Approval("user", "cli", now),
        reasons=(),
        runner=ENGINE,
        folder="tasks",
        now=now,
        expires_at=None,
        kind="scheduled" if "schedule" in more else "oneshot",
        max_active=10,
    )


def run_to_end(home: Home, ledger: Ledger, name: str, now: int) -> None:
    """Submit a task, and record that it ran."""
    submit(ledger, name, now)
    ledger.runs.claim(ENGINE, myself(), 10, now)
    ledger.runs.settle([RunResult(f"task_{name}", RunState.COMPLETED, Result.EXIT, now, exit_code=0)], myself())
    folder = Path(home.root) / "tasks" / f"task_{name}"
    (folder / "work").mkdir(parents=True)
    (folder / "output.log").write_text(f"output of {name}")
    (folder / "conversation.json").write_text("[]")
    (folder / "metadata.json").write_text("{}")


def states(home: Home) -> dict[str, tuple[str, str | None]]:
    ledger = open_ledger(home.ledger)
    try:
        entries = ledger.queries.list()
        return {entry.task.task_id: (entry.status, entry.run.error if entry.run else None) for entry in entries}
    finally:
        ledger.close()


def restored(home: Home, path: Path, clock: FakeClock) -> Restored:
    return restore(home, str(path), {}, clock)


def test_a_backup_contains_everything_and_restores_it(app: App, home: Home, clock: FakeClock, tmp_path: Path) -> None:
    run_to_end(home, app._ledger, "one", clock())
    app._ledger.memory.set("/p", "colour", "green", clock())
    Path(home.config).write_text("[commands]\nmax_concurrent = 3\n")
    Path(home.root, "chat_history").write_text("hello")
    backup = app.backups.write(str(tmp_path / "b"))
    assert (backup.tasks, backup.size) == (1, (tmp_path / "b").stat().st_size)
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o600 and sorted(os.listdir(tmp_path)) == ["b", "home"]
    new = Home(str(tmp_path / "new"))
    assert restored(new, tmp_path / "b", clock) == Restored(1, "2026-02-02T02:40:00.000Z", 0, None)
    for name in ("config.toml", "chat_history", "tasks/task_one/output.log", "tasks/task_one/conversation.json"):
        assert Path(new.root, name).read_bytes() == Path(home.root, name).read_bytes()
    assert Path(new.root, "tasks/task_one/work").is_dir() and os.stat(new.root).st_mode & 0o777 == 0o700
    assert states(new) == {"task_one": ("completed", None)}
    ledger = open_ledger(new.ledger)
    assert ledger.memory.all("/p") == {"colour": "green"} and ledger.queries.environment("task_one")["PATH"] == "/bin"
    ledger.close()


def test_without_output_the_conversations_stay(app: App, home: Home, clock: FakeClock, tmp_path: Path) -> None:
    run_to_end(home, app._ledger, "one", clock())
    app.backups.write(str(tmp_path / "b"), output=False)
    new = Home(str(tmp_path / "new"))
    restored(new, tmp_path / "b", clock)
    assert sorted(os.listdir(Path(new.root, "tasks", "task_one"))) == ["conversation.json", "metadata.json"]


def test_an_older_backup_is_kept_if_the_new_one_cannot_be_written(app: App, home: Home, tmp_path: Path) -> None:
    (tmp_path / "b").write_text("older")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        for size in (1 << 12, 1 << 20):  # too small for the ledger, and for the backup
            Path(home.root, "chat_history").write_bytes(os.urandom(2 << 20))
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
            with pytest.raises(BackupFailed, match="Cannot write the backup"):
                app.backups.write(str(tmp_path / "b"))
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (tmp_path / "b").read_text() == "older" and sorted(os.listdir(tmp_path)) == ["b", "home"]


def test_a_backup_is_not_written_into_its_home_or_over_a_folder(app: App, home: Home, tmp_path: Path) -> None:
    for path in (f"{home.root}/b", str(tmp_path), f"{home.root}/tasks/b"):
        with pytest.raises(BadInput):
            app.backups.write(path)
    with pytest.raises(BackupFailed, match=r"missing: No such file"):
        app.backups.write(str(tmp_path / "missing" / "b"))


def test_the_previous_home_is_kept_and_nothing_of_it_is_mixed_in(app: App, home: Home, clock: FakeClock, tmp_path: Path) -> None:
    run_to_end(home, app._ledger, "one", clock())
    app.backups.write(str(tmp_path / "b"))
    run_to_end(home, app._ledger, "two", clock())
    app.close()
    result = restored(home, tmp_path / "b", clock)
    assert result.replaced == f"{home.root}.replaced"
    assert [*states(home)] == ["task_one"] and [*states(Home(result.replaced or ""))] == ["task_two", "task_one"]
    assert os.listdir(f"{home.root}/tasks") == ["task_one"]
    assert restored(home, tmp_path / "b", clock).replaced == f"{home.root}.replaced-2"


def test_a_home_in_use_is_not_replaced(home_cli_like: Callable[[], None], app: App, home: Home, clock: FakeClock, tmp_path: Path) -> None:
    run_to_end(home, app._ledger, "one", clock())
    app.backups.write(str(tmp_path / "b"))
    home_cli_like()
    with pytest.raises(HomeInUse, match=r"in use by python\w* \(pid \d+\)"):
        restored(home, tmp_path / "b", clock)
    assert sorted(os.listdir(tmp_path)) == ["b", "home"]


@pytest.fixture
def home_cli_like(home: Home) -> Iterator[Callable[[], None]]:
    """Start another process that has the ledger of the home open."""
    import subprocess
    import sys

    started: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        code = "import sys; file = open(sys.argv[1]); print(flush=True); sys.stdin.read()"
        child = subprocess.Popen([sys.executable, "-c", code, home.ledger], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.append(child)
        assert child.stdout and child.stdout.readline()

    yield start
    for child in started:
        child.communicate()


def test_an_agent_cannot_restore(app: App, home: Home, clock: FakeClock, tmp_path: Path) -> None:
    app.backups.write(str(tmp_path / "b"))
    app.close()
    with pytest.raises(RestoreFailed, match="only a person can do this: this process was started by Claude Code"):
        restore(home, str(tmp_path / "b"), {"CLAUDECODE": "1"}, clock)


def test_what_had_not_ended_is_lost_and_does_not_run_again(app: App, home: Home, clock: FakeClock, tmp_path: Path) -> None:
    ledger = app._ledger
    submit(ledger, "running", clock())
    ledger.runs.claim(ENGINE, myself(), 1, clock())
    submit(ledger, "pending", clock())
    submit(ledger, "after", clock(), after=("task_pending",))
    submit(ledger, "later", clock(), start_at=clock() + 60 * MINUTE)
    app.backups.write(str(tmp_path / "b"))
    app.close()
    clock.advance(MINUTE)
    assert restored(home, tmp_path / "b", clock).lost == 2
    found = states(home)
    assert [found[f"task_{name}"][0] for name in ("running", "pending", "after", "later")] == ["failed", "failed", "failed", "pending"]
    assert found["task_running"][1] == "it had not ended when the backup was made; whether it ended later is not known"
    ledger = open_ledger(home.ledger)
    assert ledger.runs.queued(ENGINE, clock(), 10) == [] and [event.kind for event in ledger.events.events(-20)].count("home_restored") == 1
    ledger.close()


@pytest.mark.parametrize("missed", ["skip", "run_once", "run_all"])
def test_slots_that_passed_since_the_backup_are_skipped(app: App, home: Home, clock: FakeClock, tmp_path: Path, missed: str) -> None:
    submit(app._ledger, "tick", clock(), schedule=every(MINUTE, clock())._replace(missed=missed, window_ms=1440 * MINUTE), notify="always")
    app.backups.write(str(tmp_path / "b"))
    app.close()
    start = clock()
    clock.advance(10 * MINUTE + 5)
    restored(home, tmp_path / "b", clock)
    ledger = open_ledger(home.ledger)
    runs = ledger.queries.history("task_tick", 100)
    assert sorted(run.cause.slot or 0 for run in runs) == [start + n * MINUTE for n in range(1, 11)]
    assert {run.state for run in runs} == {RunState.SKIPPED}
    entry = ledger.queries.get("task_tick")
    assert entry and entry.task.recurring.next_run_at == start + 11 * MINUTE and entry.status == "active"
    ledger.close()


def archive_of(path: Path, ledger: Path, **files: str) -> None:
    """A backup with a valid checksum, made by somebody else."""
    with open(path, "wb") as file:
        archive = ArchiveWriter(file)
        archive.add_file(str(ledger), LEDGER)
        for name, text in files.items():
            (path.parent / "member").write_text(text)
            archive.add_file(str(path.parent / "member"), name)
        archive.close({"tasks": 0})


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        ("UPDATE runs SET folder = '../../elsewhere'", "its ledger contains the path '../../elsewhere'"),
        ("UPDATE runs SET folder = '/etc'", "its ledger contains the path '/etc'"),
        ("CREATE TRIGGER t AFTER INSERT ON tasks BEGIN DELETE FROM grants; END", "its ledger contains 't'"),
        ("CREATE VIEW v AS SELECT 1", "its ledger contains 'v'"),
    ],
)
def test_a_ledger_that_names_other_paths_or_contains_code_is_refused(
    app: App, home: Home, clock: FakeClock, tmp_path: Path, statement: str, sentence: str
) -> None:
    run_to_end(home, app._ledger, "one", clock())
    app._ledger.copy_to(str(tmp_path / "copy.db"))
    app.close()
    database = apsw.Connection(str(tmp_path / "copy.db"))
    database.execute(statement)
    database.close()
    archive_of(tmp_path / "b", tmp_path / "copy.db")
    with pytest.raises(RestoreFailed) as caught:
        restored(home, tmp_path / "b", clock)
    assert sentence in str(caught.value) and [*states(home)] == ["task_one"]
    assert not [name for name in os.listdir(tmp_path) if "restore" in name or "replaced" in name]


@pytest.mark.parametrize("name", ["ledger.db-wal", "engine.lock", "sockets", "other", "worktrees/x"])
def test_files_that_are_no_part_of_a_home_are_refused(app: App, home: Home, clock: FakeClock, tmp_path: Path, name: str) -> None:
    run_to_end(home, app._ledger, "one", clock())
    app._ledger.copy_to(str(tmp_path / "copy.db"))
    app.close()
    archive_of(tmp_path / "b", tmp_path / "copy.db", **{name: "x"})
    with pytest.raises(RestoreFailed, match=f"'{name}', which is not a part of a home"):
        restored(home, tmp_path / "b", clock)
    assert [*states(home)] == ["task_one"]


def test_a_backup_of_a_newer_version_is_refused(app: App, home: Home, clock: FakeClock, tmp_path: Path) -> None:
    app._ledger.copy_to(str(tmp_path / "copy.db"))
    app.close()
    database = apsw.Connection(str(tmp_path / "copy.db"))
    database.execute(f"PRAGMA user_version = {VERSION + 1}")
    database.close()
    archive_of(tmp_path / "b", tmp_path / "copy.db")
    with pytest.raises(LedgerTooNew):
        restored(home, tmp_path / "b", clock)


def test_files_that_are_no_backup_are_refused(home: Home, clock: FakeClock, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    with tarfile.open(tmp_path / "tar", "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("something"), io.BytesIO())
    for name in ("text", "tar", "missing"):
        with pytest.raises(RestoreFailed, match="Nothing was changed"):
            restored(home, tmp_path / name, clock)


def test_an_export_contains_everything_but_environments(app: App, home: Home, clock: FakeClock) -> None:
    run_to_end(home, app._ledger, "one", clock())
    submit(app._ledger, "two", clock(), env={"GIVEN_VARIABLE": "value"})
    app._ledger.memory.set("/p", "colour", "green", clock())
    text = "".join(app.export.pieces())
    exported = json.loads(text)
    assert [(task["task_id"], task["status"], len(task["runs"])) for task in exported["tasks"]] == [
        ("task_one", "completed", 1),
        ("task_two", "pending", 1),
    ]
    assert exported["memory"] == [{"project": "/p", "key": "colour", "value": "green", "set_at": "2026-02-02T02:40:00.000Z"}]
    assert len(exported["notices"]) == 1 and {event["kind"] for event in exported["events"]} >= {"run_completed"}
    assert "SECRET_OF_ENVIRONMENT" not in text and "GIVEN_VARIABLE" not in text
