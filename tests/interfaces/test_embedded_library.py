"""`TaskStorage` with invalid input: unsafe IDs, damaged files, changes that are not allowed. The files of tasks that wait."""

import asyncio
import json
import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from backburner import TaskMetadata, TaskRunner, TaskStatus, TaskStorage, parse_command
from backburner.core.claims import RunResult
from backburner.core.errors import BackburnerError, BadInput, IllegalTransition, TaskNotFound
from backburner.core.models import Approval
from backburner.core.states import Result, RunState
from backburner.interfaces.library import embedded
from backburner.store.ledger import open_ledger
from backburner.system.processes import myself
from backburner.testing.records import request

NOW = datetime(2026, 2, 9, 14, 30, 22, 7000, UTC)


def metadata(task_id: str = "task_x", status: TaskStatus = TaskStatus.PENDING, **more: object) -> TaskMetadata:
    return replace(TaskMetadata(task_id, NOW, status, ["echo", "hi"], "/tmp", "says hi", "user", NOW), **more)  # type: ignore[arg-type]


@pytest.fixture
def storage(tmp_path: Path) -> TaskStorage:
    return TaskStorage(tmp_path / "home" / "tasks")


def run_by_backburner(storage: TaskStorage, *, end: bool) -> str:
    """The ID of a task that a runner of this process owns."""
    ledger = open_ledger(storage.home.ledger)
    approval = Approval("user", "cli", 1)
    runner = f"{myself()}:test"
    entry = ledger.tasks.submit(
        request(("sleep", "9"), "/tmp", {}), project="/tmp", wanted_id="task_held", approval=approval, reasons=(), runner=runner, folder="tasks", now=1, expires_at=None
    )  # fmt: skip
    ledger.runs.claim(runner, myself(), 1, 2)
    if end:
        ledger.runs.settle([RunResult(entry.task.task_id, RunState.COMPLETED, Result.EXIT, 3, 0)], myself())
    ledger.close()
    return entry.task.task_id


HOSTILE = ["", ".", "..", "../x", "a/b", "/etc/x", "a\0b", "x" * 201, "é" * 101, "\udcff"]


@pytest.mark.parametrize("task_id", HOSTILE)
def test_an_id_that_cannot_name_a_folder_is_refused_and_nothing_is_written(storage: TaskStorage, task_id: str) -> None:
    with pytest.raises(BadInput):
        storage.create_task(task_id, metadata(task_id))
    assert storage.list_tasks() == []
    assert os.listdir(storage.base_path) == []


@pytest.mark.parametrize("task_id", ["../../escaped", "..", "a/b", "other"])
def test_the_id_in_the_metadata_must_match_the_given_id(storage: TaskStorage, tmp_path: Path, task_id: str) -> None:
    with pytest.raises(BadInput):
        storage.create_task("task_x", metadata(task_id))
    assert storage.list_tasks() == []
    assert os.listdir(storage.base_path) == [] and os.listdir(tmp_path) == ["home"]


@pytest.mark.parametrize("task_id", ["ledger.db", "sockets", "config.toml", "engine.lock", "ledger.db-wal"])
def test_an_id_equal_to_a_file_name_of_the_home_is_refused(tmp_path: Path, task_id: str) -> None:
    storage = TaskStorage(tmp_path)
    with pytest.raises(BadInput):
        storage.create_task(task_id, metadata(task_id))
    assert storage.list_tasks() == []


@pytest.mark.parametrize("task_id", HOSTILE)
def test_looking_up_an_invalid_id_finds_nothing(storage: TaskStorage, task_id: str) -> None:
    assert storage.get_task(task_id) is None
    with pytest.raises(TaskNotFound):
        storage.delete_task(task_id)
    with pytest.raises(TaskNotFound):
        storage.update_task(task_id, description="x")


@pytest.mark.parametrize("task_id", ["a\nb", "-rf", "naïve", "a b", "%", "task_x.2"])
def test_an_unusual_but_valid_id_works(storage: TaskStorage, task_id: str) -> None:
    folder = storage.create_task(task_id, metadata(task_id))
    assert folder == storage.base_path / task_id
    found = storage.get_task(task_id)
    assert found is not None and found.task_id == task_id
    storage.delete_task(task_id)
    assert not folder.exists() and storage.get_task(task_id) is None


def test_a_duplicate_id_is_refused_and_the_first_task_stays(storage: TaskStorage) -> None:
    storage.create_task("task_x", metadata())
    with pytest.raises(BadInput, match="Task task_x already exists"):
        storage.create_task("task_x", metadata(description="another"))
    found = storage.get_task("task_x")
    assert found is not None and found.description == "says hi"


@pytest.mark.parametrize("change", [{"approved_by": "nobody"}, {"approved_by": ""}, {"status": "strange"}])
def test_invalid_metadata_is_refused_and_nothing_is_written(storage: TaskStorage, change: dict[str, object]) -> None:
    with pytest.raises((BackburnerError, ValueError)):
        storage.create_task("task_x", metadata(**change))
    assert storage.get_task("task_x") is None
    assert os.listdir(storage.base_path) == []


LEGAL = {
    ("pending", "running"),
    ("pending", "failed"),
    ("pending", "cancelled"),
    ("running", "completed"),
    ("running", "failed"),
    ("running", "cancelled"),
}


@pytest.mark.parametrize("before", TaskStatus)
@pytest.mark.parametrize("after", TaskStatus)
def test_a_status_changes_only_along_allowed_transitions(storage: TaskStorage, before: TaskStatus, after: TaskStatus) -> None:
    storage.create_task("task_x", metadata(status=before))
    if before == after or (before.value, after.value) in LEGAL:
        storage.update_task("task_x", status=after)
        wanted = after
    else:
        with pytest.raises(IllegalTransition):
            storage.update_task("task_x", status=after)
        wanted = before
    found = storage.get_task("task_x")
    assert found is not None and found.status == wanted
    assert json.loads((storage.base_path / "task_x" / "metadata.json").read_text())["status"] == wanted


def test_ending_a_manually_stored_task_writes_a_result(storage: TaskStorage) -> None:
    storage.create_task("task_x", metadata())
    storage.update_task("task_x", status=TaskStatus.RUNNING, started_at=NOW)
    storage.update_task("task_x", status=TaskStatus.FAILED, exit_code=3, completed_at=NOW + timedelta(seconds=2))
    result = json.loads((storage.base_path / "task_x" / "result.json").read_text())
    assert (result["exit_code"], result["duration_seconds"]) == (3, 2.0)


@pytest.mark.parametrize("name", ["nonsense", "to_dict", "__class__"])
def test_an_unknown_field_is_refused(storage: TaskStorage, name: str) -> None:
    storage.create_task("task_x", metadata())
    with pytest.raises(BadInput, match=f"no field '{name}'"):
        storage.update_task("task_x", **{name: "x"})


@pytest.mark.parametrize(
    "change",
    [
        {"status": TaskStatus.COMPLETED},
        {"status": TaskStatus.CANCELLED},
        {"exit_code": 0},
        {"pid": 1},
        {"command": ["rm", "-rf", "/"]},
        {"cwd": "/"},
        {"env": {"A": "b"}},
        {"started_at": NOW},
        {"approved_by": "auto"},
    ],
)
def test_a_running_task_cannot_be_changed_manually(storage: TaskStorage, change: dict[str, object]) -> None:
    task_id = run_by_backburner(storage, end=False)
    before = storage.get_task(task_id)
    with pytest.raises(BadInput):
        storage.update_task(task_id, **change)
    assert storage.get_task(task_id) == before


def test_a_finished_task_cannot_be_set_to_running(storage: TaskStorage) -> None:
    task_id = run_by_backburner(storage, end=True)
    with pytest.raises(BackburnerError):
        storage.update_task(task_id, status=TaskStatus.RUNNING)
    found = storage.get_task(task_id)
    assert found is not None and found.status == TaskStatus.COMPLETED


def test_the_description_of_a_running_task_can_be_changed(storage: TaskStorage) -> None:
    task_id = run_by_backburner(storage, end=False)
    storage.update_task(task_id, description="better words", span_id="f" * 16)
    found = storage.get_task(task_id)
    assert found is not None and (found.description, found.span_id) == ("better words", "f" * 16)
    assert found.status == TaskStatus.RUNNING


def test_a_running_task_cannot_be_deleted_and_a_finished_one_can(storage: TaskStorage) -> None:
    running = run_by_backburner(storage, end=False)
    with pytest.raises(BadInput, match="cancel it first"):
        storage.delete_task(running)
    ended = run_by_backburner(storage, end=True)
    storage.delete_task(ended)
    assert [found.task_id for found in storage.list_tasks()] == [running]


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xff"])
def test_damaged_metadata_of_a_known_task_is_restored(storage: TaskStorage, content: bytes) -> None:
    folder = storage.create_task("task_x", metadata(status=TaskStatus.COMPLETED, exit_code=0))
    whole = (folder / "metadata.json").read_bytes()
    (folder / "metadata.json").write_bytes(content)
    assert storage.get_task("task_x") is not None
    assert (folder / "metadata.json").read_bytes() == whole


def test_a_missing_task_folder_is_recreated(storage: TaskStorage) -> None:
    folder = storage.create_task("task_x", metadata())
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    assert storage.get_task("task_x") is not None
    assert (folder / "metadata.json").exists()


def test_unknown_files_and_folders_are_ignored_and_not_changed(storage: TaskStorage) -> None:
    storage.create_task("task_x", metadata())
    (storage.base_path / "notes.txt").write_text("mine")
    (storage.base_path / "task_strange").mkdir()
    (storage.base_path / "task_strange" / "metadata.json").write_text("{")
    (storage.base_path / "task_link").symlink_to("/nowhere")
    assert [found.task_id for found in storage.list_tasks()] == ["task_x"]
    assert storage.get_task("task_strange") is None
    assert storage.cleanup_old_tasks(0) == 0
    assert (storage.base_path / "notes.txt").read_text() == "mine"
    assert (storage.base_path / "task_strange" / "metadata.json").read_text() == "{"


def test_old_tasks_are_cleaned_up_and_live_ones_stay(storage: TaskStorage) -> None:
    long_ago = NOW - timedelta(days=30)
    storage.create_task("task_old", metadata("task_old", TaskStatus.COMPLETED, created_at=long_ago, completed_at=long_ago))
    storage.create_task("task_live", metadata("task_live", TaskStatus.RUNNING, created_at=long_ago, started_at=long_ago))
    storage.create_task("task_new", metadata("task_new", TaskStatus.COMPLETED, completed_at=datetime.now(UTC)))
    assert storage.cleanup_old_tasks(7) == 1
    assert {found.task_id for found in storage.list_tasks()} == {"task_live", "task_new"}
    assert not (storage.base_path / "task_old").exists()


def test_tasks_are_listed_newest_first_and_by_status(storage: TaskStorage) -> None:
    for n, status in enumerate(TaskStatus):
        storage.create_task(f"task_{n}", metadata(f"task_{n}", status))
    assert [found.task_id for found in storage.list_tasks()] == ["task_4", "task_3", "task_2", "task_1", "task_0"]
    assert all([found.status for found in storage.list_tasks(status)] == [status] for status in TaskStatus)


def test_secrets_are_returned_to_the_caller_and_masked_in_the_file(storage: TaskStorage) -> None:
    folder = storage.create_task("task_x", metadata(env={"API_TOKEN": "hunter2"}))
    assert "hunter2" not in (folder / "metadata.json").read_text()
    found = storage.get_task("task_x")
    assert found is not None and found.env == {"API_TOKEN": "hunter2"}


FULL = metadata(
    status=TaskStatus.FAILED,
    env={"A": "b"},
    started_at=NOW,
    completed_at=NOW + timedelta(seconds=3),
    pid=4711,
    exit_code=2,
    span_id="s" * 16,
)


@pytest.mark.parametrize("original", [metadata(), FULL], ids=["bare", "full"])
def test_metadata_survives_a_round_trip_through_json(original: TaskMetadata) -> None:
    assert TaskMetadata.from_dict(json.loads(json.dumps(original.to_dict()))) == original


def test_metadata_survives_a_round_trip_through_the_ledger(storage: TaskStorage) -> None:
    storage.create_task("task_x", FULL)
    assert storage.get_task("task_x") == FULL


def test_the_file_of_a_task_can_be_read_as_its_metadata(storage: TaskStorage) -> None:
    folder = storage.create_task("task_x", FULL)
    assert TaskMetadata.from_dict(json.loads((folder / "metadata.json").read_text())) == FULL


def test_times_in_other_zones_are_converted_to_utc(storage: TaskStorage) -> None:
    tokyo = NOW.astimezone(timezone(timedelta(hours=9)))
    assert metadata(created_at=tokyo).to_dict()["created_at"] == "2026-02-09T14:30:22.007Z"
    storage.create_task("task_x", metadata(created_at=tokyo))
    found = storage.get_task("task_x")
    assert found is not None and found.created_at == tokyo


def test_the_unix_epoch_is_a_valid_time(storage: TaskStorage) -> None:
    epoch = datetime.fromtimestamp(0, UTC)
    storage.create_task("task_x", metadata(status=TaskStatus.COMPLETED, created_at=epoch))
    found = storage.get_task("task_x")
    assert found is not None and found.completed_at == epoch


def test_unknown_keys_in_metadata_are_ignored() -> None:
    assert TaskMetadata.from_dict({**metadata().to_dict(), "new_in_2031": True}) == metadata()


def test_an_unknown_status_is_refused() -> None:
    with pytest.raises(ValueError, match="strange"):
        TaskMetadata.from_dict({**metadata().to_dict(), "status": "strange"})


@pytest.mark.parametrize(
    ("line", "words"), [("echo 'a b' c", ["echo", "a b", "c"]), ("", []), ('x "y"', ["x", "y"]), (r"a\ b", ["a b"]), ("a\nb", ["a", "b"])]
)
def test_a_command_line_is_split_like_a_shell_does(line: str, words: list[str]) -> None:
    assert parse_command(line) == words


@pytest.mark.parametrize("line", ["echo 'a", 'x "', "a\\"])
def test_an_unterminated_quote_is_bad_input(line: str) -> None:
    with pytest.raises(BadInput, match="Invalid command line"):
        parse_command(line)


def test_two_storages_of_one_folder_see_the_same_tasks(storage: TaskStorage) -> None:
    storage.create_task("task_x", metadata())
    assert TaskStorage(storage.base_path).get_task("task_x") == storage.get_task("task_x")


async def test_files_of_a_task_that_waits_are_written_a_little_later_and_those_of_a_quick_one_once(
    storage: TaskStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "_WRITE_DELAY", 0.05)
    runner = TaskRunner(storage, max_concurrent=1)
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    await runner.start_task(["cat", str(gate)], str(tmp_path), "", approved_by="user")
    waiting = await runner.start_task(["true"], str(tmp_path), "", approved_by="user")
    file = storage.base_path / waiting / "metadata.json"
    assert not file.exists()
    async with asyncio.timeout(20):
        while not file.exists():
            await asyncio.sleep(0.01)
    assert json.loads(file.read_text())["status"] == "pending"
    with open(gate, "w"):
        pass
    async with asyncio.timeout(20):
        while runner.get_status(waiting).status != TaskStatus.COMPLETED:
            await asyncio.sleep(0.01)
    assert json.loads(file.read_text())["status"] == "completed"
    await runner.close()


async def test_closing_a_runner_writes_the_files_of_the_tasks_that_wait(storage: TaskStorage, tmp_path: Path) -> None:
    runner = TaskRunner(storage, max_concurrent=1)
    await runner.start_task(["sleep", "1"], str(tmp_path), "", approved_by="user")
    waiting = await runner.start_task(["true"], str(tmp_path), "", approved_by="user")
    await runner.close()
    assert json.loads((storage.base_path / waiting / "metadata.json").read_text())["status"] == "pending"
