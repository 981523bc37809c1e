"""Progress, files, server readiness, input, and output from a cursor, through the command line."""

import json
import os
import pty
import re
import select
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Place, wait_until

SERVER = """
import http.server, sys
server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
print("Listening on port", server.server_port, flush=True)
server.serve_forever()
"""
HOSTILE = "\\033[2J\\033]0;owned\\007\\033[8mhidden\\033[0m\\033[?1049h\\033P1;1|x\\033\\\\ 999999% 12/5"


def screen(place: Place, *words: str, columns: int = 100, until: bytes = b"", lines: int = 30) -> bytes:
    """The bytes that a command sends to a terminal, until it exits or prints `until`."""
    import fcntl
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    environ = {**place.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
    child = subprocess.Popen(
        [sys.executable, "-m", "backburner", *words],
        cwd=place.cwd, env=environ, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )  # fmt: skip
    os.close(theirs)
    seen = b""
    try:
        while not until or until not in seen:
            if not select.select([ours], [], [], 20)[0]:
                break
            try:
                piece = os.read(ours, 65536)
            except OSError:
                break
            if not piece:
                break
            seen += piece
    finally:
        if until:
            child.terminate()
        child.wait(20)
        os.close(ours)
    return seen


def test_a_command_reports_progress_in_its_progress_file(place: Place) -> None:
    script = 'echo \'{"done": 132, "total": 247, "text": "files"}\' >> "$BACKBURNER_PROGRESS"; sleep 60'
    task_id = place.run("sh", "-c", script)
    wait_until(lambda: place.status(task_id)["progress"], "the progress")
    assert place.status(task_id)["progress"] == {"done": 132, "total": 247, "fraction": 132 / 247, "text": "files · 132/247 (53%)"}
    assert "Progress: files · 132/247 (53%)" in place.ok("status", task_id)
    seen = screen(place, "wait", task_id, until="· files".encode()).decode()
    assert re.search(r"█+░+  53% running \S+ · task_\S+ · files", seen)
    place.ok("cancel", task_id)


@pytest.mark.parametrize("columns", [40, 60, 100, 200])
def test_progress_bars_fit_any_terminal(place: Place, columns: int) -> None:
    tasks = [place.run("sh", "-c", f"echo {share}% 日本語日本語日本語; sleep 60", options=("--name", f"job{share}")) for share in (10, 90)]
    seen = screen(place, "wait", *tasks, columns=columns, until=b"waiting for 2 of 2")
    frame = seen.rpartition(b"\x1b[J")[2].decode()
    for line in frame.split("\r\n"):
        assert len(line) <= columns
    wait_until(lambda: all(place.status(task_id)["progress"] for task_id in tasks), "progress")
    seen = screen(place, "wait", *tasks, columns=columns, until=b" 90%").decode()
    assert "10%" in seen and "█" in seen
    place.ok("cancel", *tasks)


@pytest.mark.parametrize("kind", ["fifo", "link", "folder", "nonsense"])
def test_a_hostile_progress_file_is_ignored(place: Place, kind: str) -> None:
    make = {
        "fifo": 'mkfifo "$BACKBURNER_PROGRESS"',
        "link": 'ln -s /dev/zero "$BACKBURNER_PROGRESS"',
        "folder": 'mkdir "$BACKBURNER_PROGRESS"',
        "nonsense": 'printf \'{"done": 1e999, "text": [[[[\\n\\033[2Jx\\0\' > "$BACKBURNER_PROGRESS"',
    }[kind]
    task_id = place.run("sh", "-c", f"{make}; touch made; sleep 60")
    wait_until((place.cwd / "made").exists, "the file")
    assert place.status(task_id)["progress"] is None
    assert "\x1b" not in place.ok("status", task_id)
    place.ok("cancel", task_id)


def test_control_codes_in_output_do_not_reach_the_terminal(place: Place) -> None:
    script = f"printf '{HOSTILE}\\n'; printf '%01000000d\\n' 7; printf '\\033[31mred\\033[0m\\n'"
    task_id = place.run("sh", "-c", script)
    place.ok("wait", task_id)
    for words in (("logs", task_id), ("status", task_id), ("run", "--yes", "--wait", "--", "sh", "-c", script), ("list",)):
        seen = screen(place, *words)
        assert not set(re.findall(rb"\x1b\[[^m]*?[A-Za-ln-z]|\x1b[^\[]|\x07|\x1b\[8m", seen)) - {b"\x1b[K", b"\x1b[J"}, words
        assert b"hidden" in seen or words == ("list",)
    assert b"\x1b[31mred\x1b[0m" in screen(place, "logs", task_id)
    assert b"\x1b[2J" in place.log(task_id)  # a program gets every byte
    assert len(max(place.ok("status", task_id).splitlines(), key=len)) < 1500
    assert place.status(task_id)["progress"] is None


def test_files_written_by_a_command_are_in_status_and_notice(place: Place) -> None:
    task_id = place.run("sh", "-c", 'cd "$BACKBURNER_RUN_DIR" && echo x > report.md && mkdir parts && touch "bad\tname" .hidden')
    place.ok("wait", task_id)
    assert place.status(task_id)["artifacts"] == ["bad\\tname", "parts/", "report.md"]
    assert "Files: bad\\tname, parts/, report.md" in place.ok("status", task_id)
    (notice,) = place.json("inbox", "--read")  # type: ignore[misc]
    assert notice["text"].endswith("Files in the work/ folder next to it: bad\\tname, parts/, report.md")
    assert (place.folder(task_id) / "work" / "report.md").read_text() == "x\n"


def test_the_work_folder_of_a_command_is_empty(place: Place) -> None:
    script = 'ls -A "$BACKBURNER_RUN_DIR"; stat -c %a "$BACKBURNER_RUN_DIR"; echo forged > "$BACKBURNER_RUN_DIR/result.json"; exit 3'
    status = place.finish("sh", "-c", script, options=("--stdin",))
    task_id = str(status["task_id"])
    assert place.log(task_id) == b"700\n" and (status["exit_code"], status["artifacts"]) == (3, ["result.json"])
    assert json.loads((place.folder(task_id) / "result.json").read_text())["exit_code"] == 3


@pytest.mark.parametrize(
    "instead", ["ln -s {outside}", "ln -s {outside}/report.txt", "ln -s /dev/zero", "ln -s nothing", "mkfifo", "touch", "true"]
)
def test_a_replaced_work_folder_has_no_files_and_clear_follows_no_links(place: Place, instead: str) -> None:
    outside = place.cwd / "outside"
    outside.mkdir()
    (outside / "report.txt").write_text("precious")
    (outside / "progress.jsonl").write_text('{"text": "a secret"}\n')
    replace = instead.format(outside=outside)
    script = f'rm -r "$BACKBURNER_RUN_DIR"; {replace} "$BACKBURNER_RUN_DIR"; touch replaced; read on'
    task_id = place.run("sh", "-c", script, options=("--stdin",))
    wait_until((place.cwd / "replaced").exists, "it to be replaced")
    seen = place.status(task_id)
    assert (seen["status"], seen["progress"], seen["artifacts"]) == ("running", None, [])
    place.ok("send", task_id, "on")
    place.ok("wait", task_id)
    assert place.status(task_id)["artifacts"] == []
    (notice,) = place.json("inbox", "--read")  # type: ignore[misc]
    assert notice["text"].endswith("output.log")
    place.ok("clear", task_id)
    assert not place.folder(task_id).exists() and {path.name for path in outside.iterdir()} == {"report.txt", "progress.jsonl"}
    assert (outside / "report.txt").read_text() == "precious"


def use_old_layout(folder: Path) -> None:
    """Change the folder of a run to the layout of older engines, without `work/`."""
    for path in (folder / "work").iterdir():
        path.rename(folder / path.name)
    (folder / "work").rmdir()


def test_files_of_runs_without_a_work_folder_are_listed(place: Place) -> None:
    task_id = str(place.finish("sh", "-c", 'touch "$BACKBURNER_RUN_DIR/report.md" "$BACKBURNER_PROGRESS"')["task_id"])
    use_old_layout(place.folder(task_id))
    assert place.status(task_id)["artifacts"] == ["report.md"]
    place.ok("clear", task_id)
    assert not place.folder(task_id).exists()


def test_a_running_command_without_a_work_folder_is_followed_to_its_end(place: Place) -> None:
    task_id = place.run("sh", "-c", "echo begun; read on; exit 6", options=("--stdin",))
    wait_until(lambda: place.log(task_id) == b"begun\n", "the command")
    place.kill_engine()
    folder = place.folder(task_id)
    use_old_layout(folder)
    (folder / "progress.jsonl").write_text('{"done": 1, "total": 4}\n')
    (folder / "report.md").touch()
    assert place.status(task_id)["progress"] == {"done": 1, "total": 4, "fraction": 0.25, "text": "1/4 (25%)"}
    place.ok("send", task_id, "on")
    place.cli("wait", task_id)
    status = place.status(task_id)
    assert (status["exit_code"], status["artifacts"]) == (6, ["report.md"]) and not (folder / "work").exists()


@pytest.mark.parametrize("when", [r"Listening on port \d+", "port"])
def test_a_server_is_ready_when_it_prints_the_pattern_or_listens(place: Place, when: str) -> None:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = SERVER.replace(", 0)", f", {port})")
    task_id = place.run("python3", "-c", script, options=("--ready-when", str(port) if when == "port" else when))
    assert place.ok("wait", "--ready", task_id, "--timeout", "20") == f"{task_id} ready, listening on {port}\n"
    status = place.status(task_id)
    assert status["ready_at"] and status["ports"] == [port] and status["status"] == "running"
    assert f"Listening on: {port}" in place.ok("status", task_id)
    place.kill_engine()
    assert place.ok("wait", "--ready", task_id) == f"{task_id} ready, listening on {port}\n"
    place.ok("cancel", task_id)


def test_a_server_that_ends_early_never_becomes_ready(place: Place) -> None:
    task_id = place.run("sh", "-c", "echo starting; sleep 0.3; exit 1", options=("--ready-when", "Listening"))
    done = place.cli("wait", "--ready", task_id, "--timeout", "20")
    assert (done.returncode, done.stdout) == (1, f"{task_id} failed (exit 1, {done.stdout.rpartition(', ')[2]}")
    slow = place.run("sleep", "60", options=("--ready-when", "Listening"))
    assert place.cli("wait", "--ready", slow, "--timeout", "0.2").returncode == 124
    place.ok("cancel", slow)
    plain = place.run("true")
    assert place.cli("wait", "--ready", plain).returncode == 2


def test_a_slow_pattern_does_not_block_the_engine(place: Place) -> None:
    task_id = place.run("sh", "-c", "printf '%0100d!\\n' 0; sleep 60", options=("--ready-when", "(0+)+$"))
    other = place.run("true")
    place.ok("wait", other, "--timeout", "20")
    assert place.status(task_id)["ready_at"] is None
    place.ok("cancel", task_id)


def test_a_command_reads_the_input_that_is_sent(place: Place) -> None:
    task_id = place.run("sh", "-c", 'while read -r x; do echo "got $x"; done', options=("--stdin",))
    wait_until(lambda: place.status(task_id)["status"] == "running", "the command")
    wait_until(lambda: place.cli("send", task_id, "hello").returncode == 0, "its input")
    subprocess.run(
        [sys.executable, "-m", "backburner", "send", task_id],
        input=b"two\nlines\n",
        env=place.environ,
        cwd=place.cwd,
        check=True,
        timeout=20,
    )
    wait_until(lambda: place.log(task_id) == b"got hello\ngot two\ngot lines\n", "the answers")
    place.kill_engine()
    place.ok("send", task_id, "still here")
    wait_until(lambda: place.log(task_id).endswith(b"got still here\n"), "the answer after the engine's death")
    place.ok("cancel", task_id)
    gone = place.cli("send", task_id, "x")
    assert (gone.returncode, gone.stderr) == (1, f"Task {task_id} is not running (status: cancelled).\n")


def test_sending_to_a_command_without_stdin_explains_the_option(place: Place) -> None:
    task_id = place.run("sleep", "60")
    done = place.cli("send", task_id, "x")
    assert (done.returncode, done.stderr) == (2, f"Task {task_id} accepts no input: it was not started with `run --stdin`.\n")
    deaf = place.run("sleep", "60", options=("--stdin",))
    wait_until(lambda: place.status(deaf)["pid"], "the command")
    full = subprocess.run(
        [sys.executable, "-m", "backburner", "send", deaf],
        input=b"x" * 300_000,
        env=place.environ,
        cwd=place.cwd,
        capture_output=True,
        timeout=30,
    )
    assert full.returncode == 2 and b"does not read its input" in full.stderr
    place.ok("cancel", task_id, deaf)


def test_an_agent_cannot_send_input_to_an_interpreter_without_approval(place: Place) -> None:
    done = place.cli("run", "--stdin", "--", "python3")
    assert done.returncode == 3 and "input that is sent later is not checked" in done.stderr


def test_output_is_read_from_a_cursor_to_a_cursor(place: Place) -> None:
    task_id = place.run("sh", "-c", "echo one; read x; echo two; read x; echo three", options=("--stdin",))
    wait_until(lambda: place.log(task_id) == b"one\n", "the first line")
    first = place.json("logs", task_id)
    assert isinstance(first, dict) and first["output"] == "one\n" and first["status"] == "running"
    place.ok("send", task_id, "on")
    wait_until(lambda: place.log(task_id).endswith(b"two\n"), "the second line")
    second = json.loads(place.ok("logs", task_id, "--since", first["cursor"], "--json"))
    assert second["output"] == "two\n"
    place.ok("send", task_id, "on")
    done = place.cli("logs", task_id, "-f", "--since", second["cursor"])
    assert done.stdout == "three\n" and done.stderr.startswith(f"{task_id} completed (exit 0")
    rest = place.cli("logs", task_id, "--since", second["cursor"])
    assert rest.stdout == "three\n" and re.fullmatch(r"Continue with: --since 1:\d+\n", rest.stderr)
    assert place.ok("logs", task_id, "--grep", "^t") == "two\nthree\n"
    assert place.ok("logs", task_id, "--grep", "o", "--tail", "1") == "two\n"
    for cursor in ("7:1", "x", "1:x", "-1"):
        assert place.cli("logs", task_id, f"--since={cursor}").returncode == 2


def test_a_cursor_continues_into_the_next_run_of_a_restarted_command(place: Place) -> None:
    task_id = place.run("sh", "-c", "echo run; exit 1", options=("--restart", "on-failure:1"))
    place.cli("wait", task_id)
    assert place.ok("logs", task_id, "--since", "0") == "run\nrun\n"
    assert place.ok("logs", task_id) == "run\n" == place.ok("logs", task_id, "--run", "1")
    assert place.cli("logs", task_id, "--run", "3").returncode == 2


def test_restart_prints_changes_of_the_environment(place: Place) -> None:
    first = place.ok("run", "--", "true", env={"STAGE": "old", "GONE": "1", "API_TOKEN": "hush"}).strip()
    place.ok("wait", first)
    again = place.cli("restart", first, env={"STAGE": "new", "ADDED": "2", "API_TOKEN": "other"})
    assert again.returncode == 0
    changes = [line for line in again.stderr.splitlines() if line.startswith("Changed since the first run: ")]
    assert changes == [
        "Changed since the first run: ADDED is now set (2)",
        "Changed since the first run: API_TOKEN is now *** (was ***)",
        "Changed since the first run: GONE is no longer set (was 1)",
        "Changed since the first run: STAGE is now new (was old)",
    ]
    changes = json.loads(place.ok("restart", first, "--json", env={"STAGE": "new"}))["environment_changes"]
    assert changes["STAGE"] == {"before": "old", "now": "new"}
