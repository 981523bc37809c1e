"""`list`, `status`, `logs` and hooks without the ordinary command line: both ways print the same, and the short one is taken where it can be."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
from pathlib import Path
from typing import NamedTuple

import apsw
import pytest
from conftest import HomeCli, wait_until
from hypothesis import given
from hypothesis import strategies as st

from backburner.core.formatting import quoted
from backburner.interfaces.cli import short_reads
from backburner.store.migrations import VERSION
from backburner.system import processes

# Runs one way and records at the given path whether the ordinary command line was loaded.
_ONE_WAY = """
import sys
module, marker, *words = sys.argv[1:]
main = __import__(f"backburner.interfaces.cli.{module}", fromlist=["main"]).main
code = main(words)
with open(marker, "w") as file:
    file.write("ordinary" if "argparse" in sys.modules else "short")
sys.stdout.flush()
sys.exit(code)
"""


class Answer(NamedTuple):
    code: int
    out: bytes
    err: bytes


def call(home_cli: HomeCli, module: str, *words: str, columns: int = 0, stdin: bytes = b"", **environ: str) -> tuple[Answer, str]:
    """Run a command line one way; returns what it printed, and the way that was taken."""
    marker = home_cli.cwd.parent / "way"
    marker.unlink(missing_ok=True)
    command = [sys.executable, "-I", "-c", _ONE_WAY, module, str(marker), *words]
    environ = {**home_cli.environ, "TERM": "xterm", **environ}
    if not columns:
        done = subprocess.run(command, cwd=home_cli.cwd, env=environ, input=stdin, capture_output=True, timeout=60)
        answer = Answer(done.returncode, done.stdout, done.stderr)
    else:
        ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (24, columns))
        process = subprocess.Popen(command, cwd=home_cli.cwd, env=environ, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 65536):
                shown += piece
        except OSError:
            pass  # the program has closed the terminal
        os.close(ours)
        answer = Answer(process.wait(60), shown, b"")
    return answer, marker.read_text() if marker.exists() else "died"


def same(home_cli: HomeCli, *words: str, way: str = "short", **options: object) -> Answer:
    """Both ways print the same; returns that. `way` is the one that `backburner` must take."""
    ordinary, _ = call(home_cli, "main", *words, **options)  # type: ignore[arg-type]
    answer, taken = call(home_cli, "start", *words, **options)  # type: ignore[arg-type]
    assert answer == ordinary, words
    assert taken == way, words
    return answer


@pytest.fixture
def tasks(home_cli: HomeCli) -> HomeCli:
    """A home with ended commands of several kinds."""
    home_cli.finish("echo", "hello")
    home_cli.finish("sh", "-c", "echo 'a b'; echo tab\there; exit 3", options=("--name", "fails"))
    home_cli.finish("env", "API_TOKEN=abc", "true", options=("--description", "uses a token ü"))
    home_cli.finish("curl", "-u", "me:secret", "--version")
    home_cli.finish("sh", "-c", 'touch "$BACKBURNER_RUN_DIR/result.txt"; seq 30')
    home_cli.finish("printf", "no newline at the end")
    home_cli.ok("run", "--wait", "--", "true")
    return home_cli


def test_the_short_way_knows_the_current_ledger() -> None:
    """After a migration, look whether the statements in `short_reads.py` still mean the same, and then raise the number there."""
    assert short_reads.LEDGER_VERSION == VERSION


@given(st.lists(st.text()))
def test_quoting_is_that_of_shlex(words: list[str]) -> None:
    import shlex

    assert quoted(words) == shlex.join(words)


def test_a_list_is_the_same_in_both_ways(tasks: HomeCli) -> None:
    tasks.ok("list")
    assert b"fails\tfailed" in same(tasks, "list").out and b"***" in same(tasks, "list", "--all").out
    for words in (
        ("list", "--limit", "2"),
        ("list", "--limit", "0"),
        ("--home", str(tasks.root), "list"),
        ("list", "--home", str(tasks.root)),
    ):
        same(tasks, *words)
    for columns in (20, 50, 80, 120, 200):
        same(tasks, "list", columns=columns)
        same(tasks, "list", columns=columns, NO_COLOR="1")
    new = ("list", "--home", str(tasks.cwd.parent / "new"))
    assert call(tasks, "start", *new) == (Answer(0, b"", b"No background tasks in this project.\n"), "ordinary")
    same(tasks, *new)
    same(tasks, *new, "--all")


@pytest.mark.parametrize("language", ["C.UTF-8", "C"])
def test_a_list_with_other_characters_is_the_same_in_both_ways(home_cli: HomeCli, language: str) -> None:
    home_cli.finish("echo", "日本語 'quoted' \"too\" \\ back\nslash", options=("--description", "\x1b[31mred\x1b[0m\ttab"))
    home_cli.finish("echo", "日本語 'quoted' \"too\" \\ back\nslash")
    for columns in (0, 40, 100):
        same(home_cli, "list", columns=columns, LC_ALL=language)
        same(home_cli, "status", columns=columns, LC_ALL=language)


def test_the_status_of_an_ended_command_is_the_same_in_both_ways(tasks: HomeCli) -> None:
    ids = [line.split("\t")[0] for line in tasks.ok("list").splitlines()]
    for task_id in ids:
        for columns in (0, 60, 120):
            same(tasks, "status", task_id, columns=columns)
    assert b"Files: result.txt" in same(tasks, "status", ids[2]).out
    assert b"Sandbox: " in same(tasks, "status").out
    same(tasks, "status", "last")


def test_output_is_the_same_in_both_ways(tasks: HomeCli) -> None:
    ids = [line.split("\t")[0] for line in tasks.ok("list").splitlines()]
    for task_id in ids:
        for words in ((), ("--raw",), ("--tail", "3"), ("--tail", "0"), ("--tail", "3", "--raw"), ("--tail", "99")):
            same(tasks, "logs", task_id, *words)
            same(tasks, "logs", task_id, *words, columns=80)
    assert same(tasks, "logs", ids[1]).out == b"no newline at the end"


def test_output_with_control_characters_takes_the_ordinary_way_at_a_terminal(home_cli: HomeCli) -> None:
    home_cli.finish("printf", "\\033[2Jcleared\\r\\n\\377")
    same(home_cli, "logs")
    same(home_cli, "logs", columns=80, way="ordinary")
    same(home_cli, "logs", "--raw", columns=80)
    same(home_cli, "status")


@pytest.mark.parametrize(
    "words",
    [
        ("list", "failed"),
        ("list", "--json"),
        ("list", "--batch", "none"),
        ("list", "--limit", "many"),
        ("list", "--limit"),
        ("list", "--al"),
        ("list", "--help"),
        ("list", "--", "true"),
        ("list", "nonsense"),
        ("status", "--json"),
        ("status", "fails"),
        ("status", "nothing"),
        ("status", "--runs", "3"),
        ("status", "a", "b"),
        ("logs", "--json"),
        ("logs", "--grep", "a"),
        ("logs", "--since", "0"),
        ("logs", "--run", "1"),
        ("logs", "--tail", "x"),
        ("logs", "nothing"),
        ("inbox",),
        ("inbox", "--hook", "other"),
        ("--home",),
    ],
)
def test_what_the_short_way_does_not_know_takes_the_ordinary_way(home_cli: HomeCli, words: tuple[str, ...]) -> None:
    home_cli.finish("true", options=("--name", "fails"))
    same(home_cli, *words, way="ordinary")


def test_a_home_that_is_not_ready_takes_the_ordinary_way(tasks: HomeCli) -> None:
    same(tasks, "list")
    tasks.root.chmod(0o755)
    assert call(tasks, "start", "list")[1] == "ordinary"  # which makes it private again
    tasks.configure("[commands]\nmax_concurrent = 'many'\n")
    assert b"Warning" in same(tasks, "list", way="ordinary").err
    tasks.configure("[commands]\nmax_concurrent = 3\n")
    assert call(tasks, "start", "list")[1] == "ordinary"  # checks the settings
    same(tasks, "list")
    same(tasks, "list", way="ordinary", BACKBURNER_COMMANDS_MAX_CONCURRENT="2")
    same(tasks, "list", way="ordinary", BACKBURNER_COMMANDS_NOTHING="2")
    (tasks.root / "tasks").rename(tasks.root / "moved")
    assert call(tasks, "start", "list")[1] == "ordinary"  # which creates it again
    (tasks.root / "tasks").rmdir()
    (tasks.root / "moved").rename(tasks.root / "tasks")


def test_recurring_tasks_agents_and_running_commands_take_the_ordinary_way(home_cli: HomeCli) -> None:
    task_id = home_cli.run("sleep", "600")
    wait_until(lambda: home_cli.status(task_id)["status"] == "running", "the command to run")
    answer, way = call(home_cli, "start", "status")
    assert way == "ordinary" and b"running" in answer.out
    lists = [call(home_cli, module, "list") for module in ("start", "main")]
    assert [way for _, way in lists] == ["short", "ordinary"]
    assert len({re.sub(rb"\d+(ms|s|m \d+s)", b"-", answer.out) for answer, _ in lists}) == 1
    home_cli.ok("cancel", task_id)
    same(home_cli, "status")
    home_cli.ok("add", "often", "--yes", "--every", "1h", "--", "true")
    assert call(home_cli, "start", "list")[1] == "ordinary"


def test_metadata_that_is_damaged_is_repaired_by_the_ordinary_way(home_cli: HomeCli) -> None:
    task_id = str(home_cli.finish("true")["task_id"])
    same(home_cli, "status")
    (home_cli.folder(task_id) / "metadata.json").write_text('{"task')
    assert call(home_cli, "start", "status")[1] == "ordinary"
    assert json.loads((home_cli.folder(task_id) / "metadata.json").read_text())["task_id"] == task_id


def test_a_command_whose_engine_died_gets_another_before_the_list_is_shown(home_cli: HomeCli) -> None:
    task_id = home_cli.run("sleep", "600")
    wait_until(lambda: home_cli.status(task_id)["status"] == "running", "the command to run")
    home_cli.stop_engine()
    answer, way = call(home_cli, "start", "list")
    assert way == "ordinary" and b"running" in answer.out and home_cli.engine
    home_cli.ok("cancel", task_id)


def test_pending_work_wakes_the_engine_and_starts_one_if_there_is_none(home_cli: HomeCli) -> None:
    home_cli.run("true", options=("--in", "1h"))
    wait_until(lambda: call(home_cli, "start", "list")[1] == "short", "an engine that can be woken")
    home_cli.stop_engine()
    assert call(home_cli, "start", "list")[1] == "ordinary"
    wait_until(lambda: home_cli.engine, "an engine")


def test_an_engine_that_hangs_is_replaced_before_the_list_is_shown(home_cli: HomeCli) -> None:
    task_id = home_cli.run("sleep", "600")
    wait_until(lambda: home_cli.status(task_id)["status"] == "running", "the command to run")
    engine = home_cli.freeze_engine()
    os.utime(home_cli.root / "engine.lock", ns=(1, 1))
    assert call(home_cli, "start", "list")[1] == "ordinary"
    assert not processes.is_alive(engine)
    home_cli.ok("cancel", task_id)


def test_a_person_at_a_terminal_is_recorded_as_active_at_most_once_a_minute(home_cli: HomeCli) -> None:
    home_cli.finish("true")
    assert call(home_cli, "start", "list", columns=80)[1] == "ordinary"
    same(home_cli, "list", columns=80)
    ledger = apsw.Connection(str(home_cli.root / "ledger.db"))
    ledger.execute("UPDATE user_activity SET at = at - 61000")
    ledger.close()
    assert call(home_cli, "start", "list", columns=80)[1] == "ordinary"


def test_a_closed_pipe_and_a_full_disk_are_reported_as_in_the_ordinary_way(tasks: HomeCli) -> None:
    for redirect in ("| head -c 0; exit ${PIPESTATUS[0]}", "> /dev/full", ">&-"):
        answers = []
        for module in ("start", "main"):
            command = f"{sys.executable} -I -c '{_ONE_WAY}' {module} {tasks.cwd.parent / 'way'} list {redirect}"
            done = subprocess.run(["bash", "-c", command], cwd=tasks.cwd, env=tasks.environ, capture_output=True, timeout=60)
            answers.append((done.returncode, done.stdout, done.stderr))
        assert answers[0] == answers[1], redirect


def test_the_entry_point_exits_with_the_code_and_the_whole_output(tasks: HomeCli) -> None:
    """It leaves without Python's own ending, so that nothing may be left in a buffer."""
    done = subprocess.run([sys.executable, "-m", "backburner", "status", "none"], env=tasks.environ, cwd=tasks.cwd, capture_output=True)
    assert (done.returncode, done.stdout) == (4, b"") and done.stderr.endswith(b"\n")
    listed = tasks.ok("list", "--json")
    done = subprocess.run([sys.executable, "-m", "backburner", "list", "--json"], env=tasks.environ, cwd=tasks.cwd, capture_output=True)
    assert (done.returncode, done.stdout.decode()) == (0, listed)


def hook(event: str, session: str | None = "abc", **more: object) -> bytes:
    return json.dumps({"hook_event_name": event, **({} if session is None else {"session_id": session}), **more}).encode()


def test_a_hook_for_which_nothing_waits_is_answered_the_short_way(home_cli: HomeCli) -> None:
    home_cli.finish("true")
    quiet = home_cli.root / "hooks" / "claude"
    for stdin in (b"", hook("PostToolUse", None), b"[]", b"{", hook("PostToolUse")):
        call(home_cli, "main", "inbox", "--hook", "claude", stdin=stdin)
        quiet.unlink(missing_ok=True)
        ordinary = call(home_cli, "main", "inbox", "--hook", "claude", stdin=stdin)[0]
        os.utime(quiet, (1, 1))
        assert call(home_cli, "start", "inbox", "--hook", "claude", stdin=stdin)[0] == ordinary == Answer(0, b"", b"")
        assert quiet.stat().st_mtime_ns == home_cli.home.ledger_time()
    assert call(home_cli, "start", "inbox", "--hook", "claude", stdin=hook("PostToolUse"))[1] == "short"


def test_a_hook_registers_a_new_session_and_prints_what_waits_for_it(home_cli: HomeCli) -> None:
    home_cli.finish("true")
    for event, session in (("PostToolUse", "first"), ("PostToolUse", "second"), ("PostToolUse", "first"), ("SessionStart", "first")):
        assert call(home_cli, "start", "inbox", "--hook", "claude", stdin=hook(event, session))[1] == "ordinary"
    assert {item["session_id"] for item in home_cli.json("sessions")} >= {"claude:first", "claude:second"}  # type: ignore[union-attr]
    home_cli.ok("run", "--wait", "--", "true", env={"BACKBURNER_SESSION": "claude:first"})
    wait_until(lambda: home_cli.json("inbox", "--read"), "the notice")
    home_cli.ok("run", "--", "echo", "told", env={"BACKBURNER_SESSION": "claude:first"})

    def told() -> bytes:
        answer, way = call(home_cli, "start", "inbox", "--hook", "claude", stdin=hook("PostToolUse", "first"))
        assert way == "ordinary" or not answer.out
        return answer.out

    wait_until(lambda: b"told" in told(), "the notice")


def test_an_interrupted_command_exits_with_130(home_cli: HomeCli) -> None:
    """The hook waits for its input; Ctrl-C ends it as it ends the ordinary command line."""
    home_cli.finish("true")
    codes = []
    for module in ("start", "main"):
        command = [sys.executable, "-I", "-c", _ONE_WAY, module, str(home_cli.cwd.parent / "way"), "inbox", "--hook", "claude"]
        process = subprocess.Popen(command, cwd=home_cli.cwd, env=home_cli.environ, stdin=subprocess.PIPE)
        wait_until(lambda pid=process.pid: "pipe_read" in Path(f"/proc/{pid}/wchan").read_text(), "the hook to read")
        process.send_signal(signal.SIGINT)
        codes.append(process.wait(60))
        assert process.stdin
        process.stdin.close()
    assert codes == [130, 130]
