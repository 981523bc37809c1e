"""The files of a run: what they say, what they hide, and how they are replaced."""

import json
import os
import threading
from pathlib import Path

import pytest

from backburner.core.models import Entry, ProcessId, Run, Task
from backburner.core.states import Result, RunState, TaskState
from backburner.system import run_files as folders

TASK = Task._make([None] * len(Task._fields))._replace(
    task_id="task_x",
    type="command",
    kind="oneshot",
    state=TaskState.ACTIVE,
    name="nightly",
    description="all tests",
    command=("pytest", "-q"),
    shell=False,
    cwd="/project",
    project="/project",
    env={"API_TOKEN": "hunter2", "LANG": "C"},
    created_at=1_770_647_422_007,
    approved_by="user",
    approved_via="cli",
    approved_at=1_770_647_422_007,
    reasons=("because",),
    rule="harmless",
    fingerprint=None,
    run_count=1,
)
RUN = Run._make([None] * len(Run._fields))._replace(
    run_id="task_x",
    task_id="task_x",
    n=1,
    state=RunState.RUNNING,
    folder="tasks/task_x",
    mark="m",
    trace_id="t" * 32,
    span_id="s" * 16,
    runner="engine",
    owner=ProcessId(1, "2", "b"),
    process=ProcessId(4711, "3", "b"),
    created_at=1_770_647_422_007,
    started_at=1_770_647_422_100,
)
ENDED = RUN._replace(
    state=RunState.FAILED, result=Result.EXIT, exit_code=2, summary="1 failed in 3s", lines=7, ended_at=1_770_647_425_600, error="why"
)


def test_the_metadata_says_what_runs_and_who_approved_it(tmp_path: Path) -> None:
    folder = tmp_path / "tasks" / "task_x"
    folders.write_metadata(str(folder), TASK, RUN)
    assert json.loads((folder / "metadata.json").read_text()) == {
        "task_id": "task_x",
        "run_id": "task_x",
        "created_at": "2026-02-09T14:30:22.007Z",
        "started_at": "2026-02-09T14:30:22.100Z",
        "completed_at": None,
        "status": "running",
        "result": None,
        "error": None,
        "command": ["pytest", "-q"],
        "shell": False,
        "cwd": "/project",
        "env": {"API_TOKEN": "***", "LANG": "C"},
        "name": "nightly",
        "description": "all tests",
        "pid": 4711,
        "exit_code": None,
        "span_id": "s" * 16,
        "trace_id": "t" * 32,
        "approved_by": "user",
        "approved_via": "cli",
        "approved_at": "2026-02-09T14:30:22.007Z",
        "rule": "harmless",
        "reasons": ["because"],
    }
    assert (folder / "span_id.txt").read_text() == "s" * 16 + "\n"


def test_no_file_of_a_run_holds_a_secret_or_is_for_other_eyes(tmp_path: Path) -> None:
    folder = tmp_path / "task_x"
    folders.write_metadata(str(folder), TASK, ENDED)
    folders.write_result(str(folder), ENDED)
    for path in folder.iterdir():
        assert "hunter2" not in path.read_text()
        assert oct(path.stat().st_mode & 0o777) == "0o600"
    assert oct(folder.stat().st_mode & 0o777) == "0o700"


def test_the_result_says_how_it_ended(tmp_path: Path) -> None:
    folders.write_result(str(tmp_path), ENDED)
    assert json.loads((tmp_path / "result.json").read_text()) == {
        "exit_code": 2,
        "result": "exit",
        "duration_seconds": 3.5,
        "stdout_lines": 7,
        "stderr_lines": 0,
        "summary": "1 failed in 3s",
        "error": "why",
        "completed_at": "2026-02-09T14:30:25.600Z",
    }


def test_what_never_started_took_no_time(tmp_path: Path) -> None:
    folders.write_result(str(tmp_path), ENDED._replace(started_at=None))
    assert json.loads((tmp_path / "result.json").read_text())["duration_seconds"] is None


def test_words_that_are_not_text_are_written_and_read_again(tmp_path: Path) -> None:
    odd = os.fsdecode(b"caf\xe9\xff")
    folders.write_metadata(str(tmp_path), TASK._replace(command=("echo", odd)), RUN)
    assert folders.readable(str(tmp_path))
    assert os.fsencode(json.loads((tmp_path / "metadata.json").read_text())["command"][1]) == b"caf\xe9\xff"


def test_a_reader_sees_the_old_or_the_new_metadata_and_never_half_of_it(tmp_path: Path) -> None:
    folder, done = str(tmp_path), threading.Event()
    folders.write_metadata(folder, TASK, RUN)

    def write() -> None:
        for n in range(300):
            folders.write_metadata(folder, TASK._replace(description="x" * (n * 500 % 20_000)), RUN)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    looks = 0
    while not done.is_set():
        assert folders.readable(folder)
        looks += 1
    writer.join()
    assert looks > 0
    assert sorted(os.listdir(folder)) == ["metadata.json", "span_id.txt"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'{"a": 1', b"\xff\xfe", b"\0" * 100])
def test_damaged_metadata_is_found_out(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "metadata.json").write_bytes(content)
    assert not folders.readable(str(tmp_path))


def test_removing_a_folder_that_is_gone_is_fine(tmp_path: Path) -> None:
    folders.remove(str(tmp_path / "gone"))
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").touch()
    folders.remove(str(tmp_path / "there"))
    assert os.listdir(tmp_path) == []


def test_removing_a_folder_that_is_a_link_leaves_what_it_points_to(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "precious")
    folders.remove(str(tmp_path / "link"))
    assert (tmp_path / "precious" / "file").exists()


def test_what_is_wrong_in_a_folder_of_runs_is_told(tmp_path: Path) -> None:
    known = {name: Entry(TASK, ENDED) for name in ("task_good", "task_damaged", "task_gone")}
    folders.write_metadata(str(tmp_path / "task_good"), TASK, ENDED)
    (tmp_path / "task_damaged").mkdir()
    (tmp_path / "task_unknown").mkdir()
    (tmp_path / "notes.txt").touch()
    assert folders.problems(str(tmp_path), known) == [
        (f"{tmp_path}/task_damaged/metadata.json", "damaged or missing"),
        (f"{tmp_path}/task_unknown", "the ledger does not know it; it is skipped"),
        (f"{tmp_path}/task_gone", "the folder of a known task is missing; its output is gone"),
    ]


def test_a_folder_of_runs_that_does_not_exist_has_no_problems(tmp_path: Path) -> None:
    assert folders.problems(str(tmp_path / "missing"), {}) == []
