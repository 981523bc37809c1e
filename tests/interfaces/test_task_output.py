"""What the CLI prints: output of tasks, task IDs, and errors when output cannot be written or is missing."""

import json
import subprocess
import sys
from pathlib import Path

from conftest import Place

ME = f"{sys.executable} -m backburner"


def _sh(place: Place, line: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(line, shell=True, env=place.environ, cwd=place.cwd, capture_output=True, text=True, timeout=40)


def test_output_that_cannot_be_written_gives_one_error_line(place: Place) -> None:
    place.ok("run", "--wait", "--", "true")
    full = _sh(place, f"{ME} list > /dev/full")
    assert (full.returncode, full.stderr) == (1, "No space left on device.\n")
    closed = _sh(place, f"{ME} list | true; {ME} list >&-; {ME} list <&- 2>&- >/dev/null; {ME} run -- echo hi 2>&- <&-")
    assert closed.stderr == "" and closed.stdout.startswith("task_")


def test_the_task_id_is_on_its_own_line_after_output_without_newline(place: Place) -> None:
    done = place.cli("run", "--yes", "--wait", "0.5", "--shell", "--", "printf abc; sleep 600")
    assert done.stdout.splitlines()[0] == "abc" and done.stdout.splitlines()[1].startswith("task_")
    place.ok("cancel", "last")


def test_a_tail_of_290000_lines_is_complete(place: Place) -> None:
    place.finish("seq", "1", "300000")
    assert place.ok("logs", "--tail", "290000", "last").splitlines()[0] == "10001"
    assert len(json.loads(place.ok("logs", "--json", "last"))["output"].splitlines()) == 300000


def test_logs_of_a_copied_home_are_readable_without_sockets(place: Place, tmp_path: Path) -> None:
    place.ok("run", "--wait", "--", "echo", "kept")
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", str(place.root), str(copy)], check=True)
    for socket in (copy / "sockets").iterdir():
        socket.unlink()
    (copy / "sockets").rmdir()
    assert place.ok("--home", str(copy), "logs", "last") == "kept\n" and not (copy / "sockets").exists()


def test_logs_of_a_deleted_log_file_is_an_error(place: Place) -> None:
    task_id = str(place.finish("true")["task_id"])
    (place.folder(task_id) / "output.log").unlink()
    done = place.cli("logs", task_id)
    assert done.returncode == 2 and "is missing" in done.stderr
