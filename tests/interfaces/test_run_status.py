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
from conftest import HomeCli, wait_until

from backburner.core.states import RunState
from backburner.services.app import open_app

SERVER = """
import http.server, sys
server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
print("Listening on port", server.server_port, flush=True)
server.serve_forever()
"""
HOSTILE = "\\033[2J\\033]0;owned\\007\\033[8mhidden\\033[0m\\033[?1049h\\033P1;1|x\\033\\\\ 999999% 12/5"


def screen(home_cli: HomeCli, *words: str, columns: int = 100, until: bytes = b"", lines: int = 30) -> bytes:
    """The bytes that a command sends to a terminal, until it exits or prints `until`."""
    import fcntl
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    environ = {**home_cli.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
    child = subprocess.Popen(
        [sys.executable, "-m", "backburner", *words],
        cwd=home_cli.cwd, env=environ, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
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


def test_a_command_reports_progress_in_its_progress_file(home_cli: HomeCli) -> None:
    script = 'echo \'{"done": 132, "total": 247, "text": "files"}\' >> "$BACKBURNER_PROGRESS"; sleep 60'
    task_id = home_cli.run("sh", "-c", script)
    wait_until(lambda: home_cli.status(task_id)["progress"], "the progress")
    assert home_cli.status(task_id)["progress"] == {"done": 132, "total": 247, "fraction": 132 / 247, "text": "files · 132/247 (53%)"}
    assert "Progress: files · 132/247 (53%)" in home_cli.ok("status", task_id)
    assert "░ files · 132/247 (53%)" in screen(home_cli, "status", task_id).decode()
    seen = screen(home_cli, "wait", task_id, until="· files".encode()).decode()
    assert re.search(r"█+░+  53% running \S+ · task_\S+ · files", seen)
    home_cli.ok("cancel", task_id)


@pytest.mark.parametrize("columns", [40, 60, 100, 200])
def test_progress_bars_fit_any_terminal(home_cli: HomeCli, columns: int) -> None:
    tasks = [
        home_cli.run("sh", "-c", f"echo {share}% 日本語日本語日本語; sleep 60", options=("--name", f"job{share}")) for share in (10, 90)
    ]
    seen = screen(home_cli, "wait", *tasks, columns=columns, until=b"waiting for 2 of 2")
    frame = seen.rpartition(b"\x1b[J")[2].decode()
    for line in frame.split("\r\n"):
        assert len(line) <= columns
    wait_until(lambda: all(home_cli.status(task_id)["progress"] for task_id in tasks), "progress")
    seen = screen(home_cli, "wait", *tasks, columns=columns, until=b" 90%").decode()
    assert "10%" in seen and "█" in seen
    home_cli.ok("cancel", *tasks)


@pytest.mark.parametrize("kind", ["fifo", "link", "folder", "nonsense"])
def test_a_hostile_progress_file_is_ignored(home_cli: HomeCli, kind: str) -> None:
    make = {
        "fifo": 'mkfifo "$BACKBURNER_PROGRESS"',
        "link": 'ln -s /dev/zero "$BACKBURNER_PROGRESS"',
        "folder": 'mkdir "$BACKBURNER_PROGRESS"',
        "nonsense": 'printf \'{"done": 1e999, "text": [[[[\\n\\033[2Jx\\0\' > "$BACKBURNER_PROGRESS"',
    }[kind]
    task_id = home_cli.run("sh", "-c", f"{make}; touch made; sleep 60")
    wait_until((home_cli.cwd / "made").exists, "the file")
    assert home_cli.status(task_id)["progress"] is None
    assert "\x1b" not in home_cli.ok("status", task_id)
    home_cli.ok("cancel", task_id)


def test_control_codes_in_output_do_not_reach_the_terminal(home_cli: HomeCli) -> None:
    script = f"printf '{HOSTILE}\\n'; printf '%01000000d\\n' 7; printf '\\033[31mred\\033[0m\\n'"
    task_id = home_cli.run("sh", "-c", script)
    home_cli.ok("wait", task_id)
    for words in (("logs", task_id), ("status", task_id), ("run", "--yes", "--wait", "--", "sh", "-c", script), ("list",)):
        seen = screen(home_cli, *words)
        assert not set(re.findall(rb"\x1b\[[^m]*?[A-Za-ln-z]|\x1b[^\[]|\x07|\x1b\[8m", seen)) - {b"\x1b[K", b"\x1b[J"}, words
        assert b"hidden" in seen or words == ("list",)
    assert b"\x1b[31mred\x1b[0m" in screen(home_cli, "logs", task_id)
    assert b"\x1b[2J" in home_cli.log(task_id)  # a program gets every byte
    assert len(max(home_cli.ok("status", task_id).splitlines(), key=len)) < 1500
    assert home_cli.status(task_id)["progress"] is None


def test_status_keeps_indentation_and_shows_the_last_state_of_an_overwritten_line(home_cli: HomeCli) -> None:
    script = "printf 'Traceback:\\n    four\\n\\ttab\\n'; for i in 1 2 3; do printf '%s0%%\\r' $i; done; printf 'done\\r\\n'"
    task_id = home_cli.finish("sh", "-c", script)["task_id"]
    shown = home_cli.ok("status", str(task_id)).partition("Recent output (last 4 lines):\n")[2].splitlines()
    assert shown[1:5] == ["Traceback:", "    four", "\ttab", "done"]


def test_status_of_a_task_that_never_started_names_no_log(home_cli: HomeCli) -> None:
    task_id = home_cli.run("echo", "hello", options=("--in", "1h"))
    assert "Full output" not in home_cli.ok("status", task_id)
    home_cli.ok("cancel", task_id)
    assert "Full output" not in home_cli.ok("status", task_id)
    task_id = str(home_cli.finish("echo", "hello")["task_id"])
    assert "Full output" in home_cli.ok("status", task_id) and "Recent output (last 1 line):" in home_cli.ok("status", task_id)


def test_files_written_by_a_command_are_in_status_and_notice(home_cli: HomeCli) -> None:
    task_id = home_cli.run("sh", "-c", 'cd "$BACKBURNER_RUN_DIR" && echo x > report.md && mkdir parts && touch "bad\tname" .hidden')
    home_cli.ok("wait", task_id)
    assert home_cli.status(task_id)["artifacts"] == ["bad\\tname", "parts/", "report.md"]
    assert "Files: bad\\tname, parts/, report.md" in home_cli.ok("status", task_id)
    (notice,) = home_cli.json("inbox", "--read")  # type: ignore[misc]
    assert notice["text"].endswith("Files in the work/ folder next to it: bad\\tname, parts/, report.md")
    assert (home_cli.folder(task_id) / "work" / "report.md").read_text() == "x\n"


def test_the_work_folder_of_a_command_is_empty(home_cli: HomeCli) -> None:
    script = 'ls -A "$BACKBURNER_RUN_DIR"; stat -c %a "$BACKBURNER_RUN_DIR"; echo forged > "$BACKBURNER_RUN_DIR/result.json"; exit 3'
    status = home_cli.finish("sh", "-c", script, options=("--stdin",))
    task_id = str(status["task_id"])
    assert home_cli.log(task_id) == b"700\n" and (status["exit_code"], status["artifacts"]) == (3, ["result.json"])
    assert json.loads((home_cli.folder(task_id) / "result.json").read_text())["exit_code"] == 3


@pytest.mark.parametrize(
    "instead", ["ln -s {outside}", "ln -s {outside}/report.txt", "ln -s /dev/zero", "ln -s nothing", "mkfifo", "touch", "true"]
)
def test_a_replaced_work_folder_has_no_files_and_clear_follows_no_links(home_cli: HomeCli, instead: str) -> None:
    outside = home_cli.cwd / "outside"
    outside.mkdir()
    (outside / "report.txt").write_text("precious")
    (outside / "progress.jsonl").write_text('{"text": "a secret"}\n')
    replace = instead.format(outside=outside)
    script = f'rm -r "$BACKBURNER_RUN_DIR"; {replace} "$BACKBURNER_RUN_DIR"; touch replaced; read on'
    task_id = home_cli.run("sh", "-c", script, options=("--stdin",))
    wait_until((home_cli.cwd / "replaced").exists, "it to be replaced")
    seen = home_cli.status(task_id)
    assert (seen["status"], seen["progress"], seen["artifacts"]) == ("running", None, [])
    home_cli.ok("send", task_id, "on")
    home_cli.ok("wait", task_id)
    assert home_cli.status(task_id)["artifacts"] == []
    (notice,) = home_cli.json("inbox", "--read")  # type: ignore[misc]
    assert notice["text"].endswith("output.log")
    home_cli.ok("clear", task_id)
    assert not home_cli.folder(task_id).exists() and {path.name for path in outside.iterdir()} == {"report.txt", "progress.jsonl"}
    assert (outside / "report.txt").read_text() == "precious"


def use_old_layout(folder: Path) -> None:
    """Change the folder of a run to the layout of older engines, without `work/`."""
    for path in (folder / "work").iterdir():
        path.rename(folder / path.name)
    (folder / "work").rmdir()


def test_files_of_runs_without_a_work_folder_are_listed(home_cli: HomeCli) -> None:
    task_id = str(home_cli.finish("sh", "-c", 'touch "$BACKBURNER_RUN_DIR/report.md" "$BACKBURNER_PROGRESS"')["task_id"])
    use_old_layout(home_cli.folder(task_id))
    assert home_cli.status(task_id)["artifacts"] == ["report.md"]
    home_cli.ok("clear", task_id)
    assert not home_cli.folder(task_id).exists()


def test_a_running_command_without_a_work_folder_is_followed_to_its_end(home_cli: HomeCli) -> None:
    task_id = home_cli.run("sh", "-c", "echo begun; read on; exit 6", options=("--stdin",))
    wait_until(lambda: home_cli.log(task_id) == b"begun\n", "the command")
    home_cli.kill_engine()
    folder = home_cli.folder(task_id)
    use_old_layout(folder)
    (folder / "progress.jsonl").write_text('{"done": 1, "total": 4}\n')
    (folder / "report.md").touch()
    assert home_cli.status(task_id)["progress"] == {"done": 1, "total": 4, "fraction": 0.25, "text": "1/4 (25%)"}
    home_cli.ok("send", task_id, "on")
    home_cli.cli("wait", task_id)
    status = home_cli.status(task_id)
    assert (status["exit_code"], status["artifacts"]) == (6, ["report.md"]) and not (folder / "work").exists()


@pytest.mark.parametrize("when", [r"Listening on port \d+", "port"])
def test_a_server_is_ready_when_it_prints_the_pattern_or_listens(home_cli: HomeCli, when: str) -> None:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = SERVER.replace(", 0)", f", {port})")
    task_id = home_cli.run("python3", "-c", script, options=("--ready-when", str(port) if when == "port" else when))
    assert home_cli.ok("wait", "--ready", task_id, "--timeout", "20") == f"{task_id} ready, listening on {port}\n"
    status = home_cli.status(task_id)
    assert status["ready_at"] and status["ports"] == [port] and status["status"] == "running"
    assert f"Listening on: {port}" in home_cli.ok("status", task_id)
    home_cli.kill_engine()
    assert home_cli.ok("wait", "--ready", task_id) == f"{task_id} ready, listening on {port}\n"
    home_cli.ok("cancel", task_id)


def test_a_server_that_ends_early_never_becomes_ready(home_cli: HomeCli) -> None:
    task_id = home_cli.run("sh", "-c", "echo starting; sleep 0.3; exit 1", options=("--ready-when", "Listening"))
    done = home_cli.cli("wait", "--ready", task_id, "--timeout", "20")
    assert (done.returncode, done.stdout) == (1, f"{task_id} failed before it was ready (exit 1, {done.stdout.rpartition(', ')[2]}")
    slow = home_cli.run("sleep", "60", options=("--ready-when", "Listening"))
    assert home_cli.cli("wait", "--ready", slow, "--timeout", "0.2").returncode == 124
    home_cli.ok("cancel", slow)
    plain = home_cli.run("true")
    assert home_cli.cli("wait", "--ready", plain).returncode == 2


def test_a_slow_pattern_does_not_block_the_engine(home_cli: HomeCli) -> None:
    task_id = home_cli.run("sh", "-c", "printf '%0100d!\\n' 0; sleep 60", options=("--ready-when", "(0+)+$"))
    other = home_cli.run("true")
    home_cli.ok("wait", other, "--timeout", "20")
    assert home_cli.status(task_id)["ready_at"] is None
    home_cli.ok("cancel", task_id)


def test_a_command_reads_the_input_that_is_sent(home_cli: HomeCli) -> None:
    task_id = home_cli.run("sh", "-c", 'while read -r x; do echo "got $x"; done', options=("--stdin",))
    wait_until(lambda: home_cli.status(task_id)["status"] == "running", "the command")
    wait_until(lambda: home_cli.cli("send", task_id, "hello").returncode == 0, "its input")
    subprocess.run(
        [sys.executable, "-m", "backburner", "send", task_id],
        input=b"two\nlines\n",
        env=home_cli.environ,
        cwd=home_cli.cwd,
        check=True,
        timeout=60,
    )
    wait_until(lambda: home_cli.log(task_id) == b"got hello\ngot two\ngot lines\n", "the answers")
    home_cli.kill_engine()
    home_cli.ok("send", task_id, "still here")
    wait_until(lambda: home_cli.log(task_id).endswith(b"got still here\n"), "the answer after the engine's death")
    home_cli.ok("cancel", task_id)
    gone = home_cli.cli("send", task_id, "x")
    assert (gone.returncode, gone.stderr) == (1, f"Task {task_id} is not running (status: cancelled).\n")


@pytest.mark.parametrize("options", [(), ("--tty",)])
def test_send_with_eof_ends_the_input_of_a_command(home_cli: HomeCli, options: tuple[str, ...]) -> None:
    task_id = home_cli.run("sh", "-c", "cat; echo end", options=("--stdin", *options))
    home_cli.ok("send", task_id, "one")
    home_cli.kill_engine()
    home_cli.ok("send", task_id, "two", "--eof")
    home_cli.ok("wait", task_id, "--timeout", "30")
    lines = home_cli.log(task_id).replace(b"^D\b\b", b"").splitlines()  # a terminal also prints what is typed
    assert lines[-2:] == [b"two", b"end"] and b"one" in lines
    assert home_cli.cli("send", task_id, "--eof").returncode == 1


def test_sending_to_a_command_without_stdin_explains_the_option(home_cli: HomeCli) -> None:
    task_id = home_cli.run("sleep", "60")
    done = home_cli.cli("send", task_id, "x")
    assert (done.returncode, done.stderr) == (2, f"Task {task_id} accepts no input: it was not started with `run --stdin`.\n")
    deaf = home_cli.run("sleep", "60", options=("--stdin",))
    wait_until(lambda: home_cli.status(deaf)["pid"], "the command")
    full = subprocess.run(
        [sys.executable, "-m", "backburner", "send", deaf],
        input=b"x" * 300_000,
        env=home_cli.environ,
        cwd=home_cli.cwd,
        capture_output=True,
        timeout=30,
    )
    assert full.returncode == 2 and b"does not read its input" in full.stderr
    home_cli.ok("cancel", task_id, deaf)


def test_an_agent_cannot_send_input_to_an_interpreter_without_approval(home_cli: HomeCli) -> None:
    done = home_cli.cli("run", "--stdin", "--", "python3")
    assert done.returncode == 3 and "input that is sent later is not checked" in done.stderr


def test_output_is_read_from_a_cursor_to_a_cursor(home_cli: HomeCli) -> None:
    task_id = home_cli.run("sh", "-c", "echo one; read x; echo two; read x; echo three", options=("--stdin",))
    wait_until(lambda: home_cli.log(task_id) == b"one\n", "the first line")
    first = home_cli.json("logs", task_id)
    assert isinstance(first, dict) and first["output"] == "one\n" and first["status"] == "running"
    home_cli.ok("send", task_id, "on")
    wait_until(lambda: home_cli.log(task_id).endswith(b"two\n"), "the second line")
    second = json.loads(home_cli.ok("logs", task_id, "--since", first["cursor"], "--json"))
    assert second["output"] == "two\n"
    home_cli.ok("send", task_id, "on")
    done = home_cli.cli("logs", task_id, "-f", "--since", second["cursor"])
    assert done.stdout == "three\n" and done.stderr.startswith(f"{task_id} completed (exit 0")
    rest = home_cli.cli("logs", task_id, "--since", second["cursor"])
    assert rest.stdout == "three\n" and re.fullmatch(r"Continue with: --since 1:\d+\n", rest.stderr)
    assert home_cli.ok("logs", task_id, "--grep", "^t") == "two\nthree\n"
    assert home_cli.ok("logs", task_id, "--grep", "o", "--tail", "1") == "two\n"
    for cursor in ("7:1", "x", "1:x", "-1"):
        assert home_cli.cli("logs", task_id, f"--since={cursor}").returncode == 2


def test_a_cursor_continues_into_the_next_run_of_a_restarted_command(home_cli: HomeCli) -> None:
    task_id = home_cli.run("sh", "-c", "echo run; exit 1", options=("--restart", "on-failure:1"))
    home_cli.cli("wait", task_id)
    assert home_cli.ok("logs", task_id, "--since", "0") == "run\nrun\n"
    assert home_cli.ok("logs", task_id) == "run\n" == home_cli.ok("logs", task_id, "--run", "1")
    assert home_cli.cli("logs", task_id, "--run", "3").returncode == 2


def test_restart_prints_changes_of_the_environment(home_cli: HomeCli) -> None:
    first = home_cli.ok("run", "--", "true", env={"STAGE": "old", "GONE": "1", "API_TOKEN": "hush"}).strip()
    home_cli.ok("wait", first)
    terminal = {"TMUX": "/tmp/tmux,1,0", "TMUX_PANE": "%1", "TERM_PROGRAM": "tmux", "SSH_CONNECTION": "a b", "VTE_VERSION": "7"}
    again = home_cli.cli("restart", first, env={"STAGE": "new", "ADDED": "2", "API_TOKEN": "other", **terminal})
    assert again.returncode == 0
    changes = [line for line in again.stderr.splitlines() if line.startswith("Changed since the first run: ")]
    assert changes == [
        "Changed since the first run: ADDED is now set (2)",
        "Changed since the first run: API_TOKEN is now *** (was ***)",
        "Changed since the first run: GONE is no longer set (was 1)",
        "Changed since the first run: STAGE is now new (was old)",
    ]
    changes = json.loads(home_cli.ok("restart", first, "--json", env={"STAGE": "new"}))["environment_changes"]
    assert changes["STAGE"] == {"before": "old", "now": "new"}


def test_metadata_that_is_written_late_by_the_submitting_process_has_the_state_of_the_ledger(home_cli: HomeCli) -> None:
    task_id = home_cli.run("true")
    home_cli.ok("wait", task_id)
    with open_app(str(home_cli.root), home_cli.environ) as app:
        entry = app.queries.get_or_none(task_id)
        assert entry is not None and entry.run is not None
        app.publisher.publish(entry._replace(run=entry.run._replace(state=RunState.PENDING, started_at=None, ended_at=None)))
        assert json.loads((Path(app.runs.folder(entry)) / "metadata.json").read_text())["status"] == "completed"
