"""The folder of a run: `work/` and our files, what the files contain and hide, inputs, and how a folder is removed."""

import json
import os
import subprocess
import threading
from pathlib import Path

import pytest

from backburner.core.models import ProcessId, Run, RunFolder
from backburner.core.states import Result, RunState
from backburner.system import run_files
from backburner.system.home import Home
from backburner.system.log_file import header
from backburner.testing import records

TASK = records.task(
    "task_x",
    ("pytest", "-q"),
    "/project",
    name="nightly",
    description="all tests",
    env={"API_TOKEN": "hunter2", "LANG": "C"},
    created_at=1_770_647_422_007,
    at=1_770_647_422_007,
    reasons=("because",),
    rule="harmless",
)
RUN = records.run(
    "task_x",
    task_id="task_x",
    n=1,
    state=RunState.RUNNING,
    folder="tasks/task_x",
    process_tag="m",
    trace_id="t" * 32,
    span_id="s" * 16,
    runner="engine",
    owner=ProcessId(1, "2", "b"),
    process=ProcessId(4711, "3", "b"),
    created_at=1_770_647_422_007,
    started_at=1_770_647_422_100,
)
ENDED = records.changed_run(
    RUN, state=RunState.FAILED, result=Result.EXIT, exit_code=2, summary="1 failed in 3s", lines=7, ended_at=1_770_647_425_600, error="why"
)


def test_the_metadata_contains_the_command_and_the_approval(tmp_path: Path) -> None:
    folder = tmp_path / "tasks" / "task_x"
    run_files.write_metadata(str(folder), TASK, RUN)
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


def test_the_files_of_a_run_contain_no_secret_and_are_private(tmp_path: Path) -> None:
    folder = tmp_path / "task_x"
    run_files.write_metadata(str(folder), TASK, ENDED)
    run_files.write_result(str(folder), ENDED)
    for path in folder.iterdir():
        assert "hunter2" not in path.read_text()
        assert oct(path.stat().st_mode & 0o777) == "0o600"
    assert oct(folder.stat().st_mode & 0o777) == "0o700"


def test_the_result_file_contains_the_end(tmp_path: Path) -> None:
    run_files.write_result(str(tmp_path), ENDED)
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


def test_a_run_that_never_started_has_no_duration(tmp_path: Path) -> None:
    run_files.write_result(str(tmp_path), ENDED._replace(started_at=None))
    assert json.loads((tmp_path / "result.json").read_text())["duration_seconds"] is None


def test_invalid_text_is_written_and_read_back(tmp_path: Path) -> None:
    odd = os.fsdecode(b"caf\xe9\xff")
    run_files.write_metadata(str(tmp_path), records.task("task_x", ("echo", odd), "/project"), RUN)
    assert run_files.readable(str(tmp_path))
    assert os.fsencode(json.loads((tmp_path / "metadata.json").read_text())["command"][1]) == b"caf\xe9\xff"


def test_metadata_is_replaced_atomically(tmp_path: Path) -> None:
    folder, done = str(tmp_path), threading.Event()
    run_files.write_metadata(folder, TASK, RUN)

    def write() -> None:
        for n in range(300):
            run_files.write_metadata(folder, records.task("task_x", description="x" * (n * 500 % 20_000)), RUN)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    looks = 0
    while not done.is_set():
        assert run_files.readable(folder)
        looks += 1
    writer.join()
    assert looks > 0
    assert sorted(os.listdir(folder)) == ["metadata.json", "span_id.txt"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'{"a": 1', b"\xff\xfe", b"\0" * 100])
def test_damaged_metadata_is_detected(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "metadata.json").write_bytes(content)
    assert not run_files.readable(str(tmp_path))


# -- work/


def mode(path: Path) -> str:
    return oct(path.lstat().st_mode & 0o777)


def test_a_new_folder_is_private_and_contains_work(tmp_path: Path) -> None:
    folder = tmp_path / "tasks" / "task_x"
    for _ in range(2):
        run_files.make(str(folder))
        assert (mode(folder), mode(folder / "work"), os.listdir(folder)) == ("0o700", "0o700", ["work"])
        (folder / "work" / "kept").touch()
    assert (folder / "work" / "kept").exists()


@pytest.mark.parametrize("what", ["link", "dangling link", "file", "fifo"])
def test_a_link_in_place_of_work_is_removed_and_its_target_kept(tmp_path: Path, what: str) -> None:
    folder, precious = tmp_path / "task_x", tmp_path / "precious"
    folder.mkdir()
    precious.mkdir()
    (precious / "file").touch()
    match what:
        case "link":
            (folder / "work").symlink_to(precious)
        case "dangling link":
            (folder / "work").symlink_to(tmp_path / "nothing")
        case "file":
            (folder / "work").touch()
        case "fifo":
            os.mkfifo(folder / "work")
    run_files.make(str(folder))
    os.close(run_files.open_work(str(folder)))
    assert (folder / "work").is_dir() and not (folder / "work").is_symlink()
    assert os.listdir(precious) == ["file"] and not (tmp_path / "nothing").exists()


def test_work_is_not_opened_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "precious" / "work").mkdir(parents=True)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "work").symlink_to(tmp_path / "precious")
    (tmp_path / "link").symlink_to(tmp_path / "precious")
    for name in ("run", "link"):
        with pytest.raises(NotADirectoryError):
            run_files.open_work(str(tmp_path / name))


# -- inputs


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home with an ended task, and a task that follows it and is about to start."""
    home = Home(str(tmp_path)).make()
    first = tmp_path / "tasks" / "task_first"
    run_files.write(str(first), TASK, ENDED)
    (first / "output.log").write_bytes(HEADER + OUTPUT)
    run_files.make(home.folder(RUN.folder))
    return home


HEADER, OUTPUT = header({"Background task": "task_first", "Started": "now"}), b"the number is 42\n"
LIMIT = 1 << 16
AFTER = records.changed_run(RUN, origin="task_first")


def copied_inputs(home: Home, run: Run = AFTER, limit: int = LIMIT) -> dict[str, Path]:
    """The copies that a run gets, by the variables that name them."""
    run_files.make(home.folder(run.folder))
    variables = run_files.write_inputs(home, run, limit)
    return {name: Path(path) for name, path in variables.items() if name != "BACKBURNER_AFTER_RUN_ID"}


def test_inputs_are_read_only_copies_outside_work(home: Home) -> None:
    assert run_files.write_inputs(home, AFTER, LIMIT)["BACKBURNER_AFTER_RUN_ID"] == "task_first"
    copies = copied_inputs(home)
    inputs, first = Path(home.folder(RUN.folder)) / "inputs", Path(home.root) / "tasks" / "task_first"
    assert copies == {
        "BACKBURNER_AFTER_LOG": inputs / "task_first" / "output.log",
        "BACKBURNER_AFTER_RESULT": inputs / "task_first" / "result.json",
    }
    assert copies["BACKBURNER_AFTER_LOG"].read_bytes() == OUTPUT  # without the header of the log
    assert copies["BACKBURNER_AFTER_RESULT"].read_bytes() == (first / "result.json").read_bytes()
    for path in copies.values():
        assert path.stat().st_ino != (first / path.name).stat().st_ino
        assert path.stat().st_mode & 0o777 == 0o444
    assert mode(inputs) == mode(inputs / "task_first") == "0o700" and os.listdir(inputs.parent / "work") == []


def test_changing_the_copies_does_not_change_the_results(home: Home) -> None:
    first = Path(home.root) / "tasks" / "task_first"
    before = {path.name: path.read_bytes() for path in first.iterdir()}
    for path in copied_inputs(home).values():
        path.chmod(0o600)
        path.write_bytes(b"forged")
    assert {path.name: path.read_bytes() for path in first.iterdir()} == before


def test_a_trigger_event_is_a_read_only_file(home: Home) -> None:
    copies = copied_inputs(home, records.changed_run(RUN, payload='{"summary": "caf\u00e9"}'))
    (path,) = copies.values()
    assert list(copies) == ["BACKBURNER_EVENT"] and path == Path(home.folder(RUN.folder)) / "inputs" / "event.json"
    assert json.loads(path.read_text()) == {"summary": "caf\u00e9"} and path.stat().st_mode & 0o222 == 0


def test_a_run_without_dependencies_has_no_inputs(home: Home) -> None:
    assert run_files.write_inputs(home, RUN, LIMIT) == {}
    assert os.listdir(home.folder(RUN.folder)) == ["work"]


def test_long_output_is_copied_with_its_beginning_and_end(home: Home) -> None:
    log = Path(home.root) / "tasks" / "task_first" / "output.log"
    log.write_bytes(HEADER + OUTPUT + b"".join(b"line %010d\n" % number for number in range(100_000)))
    copy = copied_inputs(home)["BACKBURNER_AFTER_LOG"].read_bytes()
    assert copy.startswith(OUTPUT) and copy.endswith(b"line 0000099999\n") and LIMIT < len(copy) < LIMIT + 100
    assert f"\n[backburner: {log.stat().st_size - len(HEADER) - LIMIT:,} bytes of output left out here]\n".encode() in copy


def test_copies_are_kept_when_the_results_are_cleared_before_the_start(home: Home) -> None:
    first = home.folder("tasks/task_first")
    before = {name: path.read_bytes() for name, path in copied_inputs(home).items()}
    run_files.remove(first)
    assert {name: path.read_bytes() for name, path in copied_inputs(home).items()} == before


def test_a_retry_gets_the_copies_of_the_previous_attempt(home: Home) -> None:
    before = {name: path.read_bytes() for name, path in copied_inputs(home).items()}
    run_files.remove(home.folder("tasks/task_first"))
    for n in (2, 3):
        again = AFTER._replace(run_id=f"task_x.{n}", n=n, folder=f"tasks/task_x.{n}")
        copies = copied_inputs(home, again)
        assert {name: path.read_bytes() for name, path in copies.items()} == before
        assert all(f"task_x.{n}/inputs" in str(path) and path.stat().st_mode & 0o222 == 0 for path in copies.values())


def test_a_run_does_not_get_the_results_of_an_earlier_run(home: Home) -> None:
    copied_inputs(home)
    other = records.changed_run(AFTER, run_id="task_x.2", n=2, folder="tasks/task_x.2", origin="task_first.2")
    assert not any(path.exists() for path in copied_inputs(home, other).values())


@pytest.mark.parametrize("what", ["link", "fifo", "folder"])
def test_a_link_or_pipe_in_place_of_results_is_not_copied(home: Home, tmp_path: Path, what: str) -> None:
    (tmp_path / "secret").write_text("a secret")
    for name in ("output.log", "result.json"):
        path = tmp_path / "tasks" / "task_first" / name
        path.unlink()
        match what:
            case "link":
                path.symlink_to(tmp_path / "secret")
            case "fifo":
                os.mkfifo(path)
            case "folder":
                path.mkdir()
    assert not any(path.exists() for path in copied_inputs(home).values())


def test_inputs_are_not_written_through_a_link(home: Home, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / RUN.folder / "inputs").symlink_to(tmp_path / "precious")
    assert copied_inputs(home)["BACKBURNER_AFTER_LOG"].read_bytes() == OUTPUT
    assert os.listdir(tmp_path / "precious") == []


# -- removing


def test_removing_a_missing_folder_does_nothing(tmp_path: Path) -> None:
    run_files.remove(str(tmp_path / "gone"))
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").touch()
    run_files.remove(str(tmp_path / "there"))
    assert os.listdir(tmp_path) == []


def test_removing_a_link_to_a_folder_keeps_its_target(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "precious")
    run_files.remove(str(tmp_path / "link"))
    assert (tmp_path / "precious" / "file").exists()


def test_removing_a_folder_keeps_the_targets_of_its_links(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    run = tmp_path / "run"
    for folder in (run, run / "inputs"):
        folder.mkdir()
        (folder / "link").symlink_to(tmp_path / "precious")
        os.link(tmp_path / "precious" / "file", folder / "file")
    (run / "work").symlink_to(tmp_path / "precious")
    os.mkfifo(run / "fifo")
    run_files.remove(str(run))
    assert os.listdir(tmp_path) == ["precious"] and (tmp_path / "precious" / "file").exists()


def test_deeply_nested_folders_are_removed(tmp_path: Path) -> None:
    depth, descriptor = 3000, os.open(tmp_path, os.O_RDONLY)
    for name in ("run", *["x"] * depth):
        os.mkdir(name, dir_fd=descriptor)
        inner = os.open(name, os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(descriptor)
    try:
        run_files.remove(str(tmp_path / "run"))
        assert os.listdir(tmp_path) == []
    finally:
        subprocess.run(["rm", "-rf", tmp_path / "run"], check=True)  # pytest could not remove it


def test_problems_in_a_folder_of_runs_are_reported(tmp_path: Path) -> None:
    known = {name: RunFolder(f"tasks/{name}", name, True) for name in ("task_good", "task_damaged", "task_gone")}
    run_files.write_metadata(str(tmp_path / "task_good"), TASK, ENDED)
    (tmp_path / "task_damaged").mkdir()
    (tmp_path / "task_unknown").mkdir()
    (tmp_path / "notes.txt").touch()
    assert run_files.problems(str(tmp_path), os.listdir(tmp_path), known) == [
        (f"{tmp_path}/notes.txt", run_files.FolderProblem.UNKNOWN),
        (f"{tmp_path}/task_damaged/metadata.json", run_files.FolderProblem.DAMAGED),
        (f"{tmp_path}/task_unknown", run_files.FolderProblem.UNKNOWN),
        (f"{tmp_path}/task_gone", run_files.FolderProblem.MISSING),
    ]


@pytest.mark.parametrize(
    ("content", "code", "output"),
    [(b"     \ntrap", None, ""), (b"s    \ntrap", None, ""), (b"3    \ntrap", 3, ""), (b"137 e\ntrap", 137, "e"), (b"", None, "")],
)
def test_the_exit_file_says_how_the_command_ended_and_whether_its_output_is_in_the_log(
    tmp_path: Path, content: bytes, code: int | None, output: str
) -> None:
    (tmp_path / run_files.EXIT).write_bytes(content)
    os.utime(tmp_path / run_files.EXIT, ns=(0, 5_000_000_000))
    found = run_files.exit_file(str(tmp_path))
    assert (found.code, found.output, found.changed_at) == (code, output, 5000)


def test_a_run_without_an_exit_file_has_not_begun(tmp_path: Path) -> None:
    assert run_files.exit_file(str(tmp_path)) == ("", "", 0)
