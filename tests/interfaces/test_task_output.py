"""What the CLI prints: output of tasks, task IDs, and errors when output cannot be written or is missing."""

import json
import subprocess
import sys
from pathlib import Path

from conftest import HomeCli

ME = f"{sys.executable} -m backburner"


def _sh(home_cli: HomeCli, line: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(line, shell=True, env=home_cli.environ, cwd=home_cli.cwd, capture_output=True, text=True, timeout=40)


def test_output_that_cannot_be_written_gives_one_error_line(home_cli: HomeCli) -> None:
    home_cli.ok("run", "--wait", "--", "true")
    full = _sh(home_cli, f"{ME} list > /dev/full")
    assert (full.returncode, full.stderr) == (1, "No space left on device.\n")
    closed = _sh(home_cli, f"{ME} list | true; {ME} list >&-; {ME} list <&- 2>&- >/dev/null; {ME} run -- echo hi 2>&- <&-")
    assert closed.stderr == "" and closed.stdout.startswith("task_")


def test_the_task_id_is_on_its_own_line_after_output_without_newline(home_cli: HomeCli) -> None:
    home_cli.finish("true")  # the engine is running
    done = home_cli.cli("run", "--yes", "--wait", "3", "--shell", "--", "printf abc; sleep 600")
    assert done.stdout.splitlines()[0] == "abc" and done.stdout.splitlines()[1].startswith("task_")
    home_cli.ok("cancel", "last")


def test_a_tail_of_290000_lines_is_complete(home_cli: HomeCli) -> None:
    home_cli.finish("seq", "1", "300000")
    assert home_cli.ok("logs", "--tail", "290000", "last").splitlines()[0] == "10001"
    assert len(json.loads(home_cli.ok("logs", "--json", "last"))["output"].splitlines()) == 300000


def test_logs_of_a_copied_home_are_readable_without_sockets(home_cli: HomeCli, tmp_path: Path) -> None:
    home_cli.ok("run", "--wait", "--", "echo", "kept")
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", str(home_cli.root), str(copy)], check=True)
    for socket in (copy / "sockets").iterdir():
        socket.unlink()
    (copy / "sockets").rmdir()
    assert home_cli.ok("--home", str(copy), "logs", "last") == "kept\n" and not (copy / "sockets").exists()


def test_logs_of_a_deleted_log_file_is_an_error(home_cli: HomeCli) -> None:
    task_id = str(home_cli.finish("true")["task_id"])
    (home_cli.folder(task_id) / "output.log").unlink()
    done = home_cli.cli("logs", task_id)
    assert done.returncode == 2 and "is missing" in done.stderr
