"""The command line exactly as the specification has it: what is printed where, the JSON's keys, the exit codes."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

from conftest import Place, wait_until

KEYS = {
    "task_id", "name", "kind", "status", "description", "command", "created_at", "started_at", "completed_at", "exit_code",
    "duration_seconds", "approved_by", "batch", "run_count", "next_run_at", "last_run_at", "notify", "type",
}  # fmt: skip


def test_run_prints_the_id_alone_and_returns_at_once(place: Place) -> None:
    done = place.cli("run", "--", "sleep", "600")
    assert re.fullmatch(r"task_\d{8}_\d{6}_sleep\n", done.stdout) and done.returncode == 0
    assert place.status(done.stdout.strip())["status"] in ("pending", "running")
    place.ok("cancel", "last")


def test_wait_follows_the_output_and_exits_with_the_commands_own_code(place: Place) -> None:
    done = place.cli("run", "--yes", "--wait", "--shell", "--", "echo out; echo err >&2; exit 7")
    assert (done.stdout, done.returncode) == ("out\nerr\n", 7)


def test_wait_with_seconds_leaves_it_in_the_background(place: Place) -> None:
    done = place.cli("run", "--wait", "0.3", "--", "sleep", "600")
    assert done.returncode == 0 and done.stdout.startswith("task_")
    wait_until(lambda: place.status("last")["status"] == "running", "it to run")
    place.ok("cancel", "last")


def test_our_own_failures_with_wait_exit_125(place: Place) -> None:
    assert place.cli("run", "--wait", "--cwd", "/no/such/folder", "--", "echo").returncode == 125
    assert place.cli("run", "--cwd", "/no/such/folder", "--", "echo").returncode == 2


def test_a_timeout_stops_the_command_and_exits_124(place: Place) -> None:
    done = place.cli("run", "--wait", "--timeout", "0.2s", "--", "sleep", "600")
    assert done.returncode == 124
    found = place.status("last")
    assert (found["status"], found["result"]) == ("failed", "timeout")


def test_a_command_killed_at_its_timeout_is_ambiguous(place: Place) -> None:
    place.configure("[approval]\nyes_without_terminal = true\n[commands]\ncancel_grace_seconds = 0.1\n")
    done = place.cli("run", "--yes", "--wait", "--timeout", "0.3s", "--shell", "--", "trap '' TERM; while :; do sleep 0.05; done")
    assert done.returncode == 124
    assert place.status("last")["result"] == "ambiguous"


def test_every_verb_that_shows_a_task_gives_the_stable_keys(place: Place) -> None:
    place.ok("run", "--wait", "--name", "greet", "--description", "says hello", "--", "echo", "hello")
    for words in (("list",), ("status", "last"), ("wait", "last")):
        found = place.json(*words)
        task = found[0] if isinstance(found, list) else found
        assert isinstance(task, dict) and set(task) >= KEYS
        assert (task["name"], task["description"], task["command"], task["status"]) == (
            "greet",
            "says hello",
            ["echo", "hello"],
            "completed",
        )
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", str(task["completed_at"]))


def test_status_of_a_failed_task_exits_0_and_wait_exits_1(place: Place) -> None:
    task_id = place.run("false")
    assert place.cli("wait", task_id).returncode == 1
    assert place.cli("status", task_id).returncode == 0
    assert place.cli("wait", place.run("sleep", "600"), "--timeout", "0.1").returncode == 124
    place.ok("cancel", "last")


def test_bad_input_gets_one_sentence_and_exit_code_2(place: Place) -> None:
    cases = [
        ("run",), ("run", "--", ""), ("run", "--env", "novalue", "--", "echo"), ("run", "--timeout", "soon", "--", "echo"),
        ("frobnicate",), ("list", "--limit", "-3"), ("list", "sideways"), ("wait",), ("config", "set"), ("clear",),
        ("run", "--nonsense", "--", "echo"), ("list", "--set", "commands.max_concurent=3"), ("list", "--set", "commands.max_concurrent=zero"),
    ]  # fmt: skip
    for words in cases:
        done = place.cli(*words)
        assert done.returncode == 2, (words, done)
        assert done.stdout == "" and len(done.stderr.strip().splitlines()) == 1, (words, done.stderr)


def test_an_unknown_task_exits_4_and_json_errors_are_objects(place: Place) -> None:
    done = place.cli("status", "nothing", "--json")
    assert done.returncode == 4
    assert json.loads(done.stderr)["error"] == {"code": "task_not_found", "message": "Task nothing not found.", "task_id": "nothing"}


def test_parts_labels_and_last_name_a_task_and_an_ambiguous_part_lists_the_candidates(place: Place) -> None:
    first = place.ok("run", "--name", "alpha", "--", "true").strip()
    second = place.ok("run", "--name", "beta", "--", "true").strip()
    assert place.status("alpha")["task_id"] == first
    assert place.status("_beta")["task_id"] == second
    assert place.status("last")["task_id"] == second
    done = place.cli("status", "task_")
    assert done.returncode == 2 and first in done.stderr and second in done.stderr


def test_what_needs_approval_parks_without_a_terminal_and_runs_after_the_yes(place: Place) -> None:
    done = place.cli("run", "--", "install", "-d", "made")
    task_id = done.stdout.strip()
    assert done.returncode == 3 and "backburner approve" in done.stderr
    assert place.status(task_id)["status"] == "proposed" and not (place.cwd / "made").exists()
    place.ok("approve", task_id)
    place.ok("wait", task_id)
    assert (place.cwd / "made").exists()
    found = place.status(task_id)
    assert (found["approved_by"], found["approved_via"]) == ("user", "cli")
    assert place.cli("approve", task_id).returncode == 1


def test_a_rejected_or_expired_proposal_never_runs(place: Place) -> None:
    task_id = place.cli("run", "--", "install", "-d", "made").stdout.strip()
    place.ok("reject", task_id)
    assert place.cli("approve", task_id).returncode != 0
    place.configure("[approval]\nyes_without_terminal = true\nproposal_expiry_hours = 0\n")
    late = place.cli("run", "--", "install", "-d", "made").stdout.strip()
    assert place.cli("approve", late).returncode != 0
    assert place.status(late)["status"] == "expired" and not (place.cwd / "made").exists()


def test_yes_needs_a_terminal_unless_the_file_says_otherwise(place: Place) -> None:
    place.configure("")
    done = place.cli("run", "--yes", "--", "install", "-d", "made", env={"BACKBURNER_X": "1"}, preexec_fn=os.setsid)
    assert done.returncode == 3 and "terminal" in done.stderr
    assert place.cli("list", env={"BACKBURNER_APPROVAL_YES_WITHOUT_TERMINAL": "true"}).returncode == 2


def test_from_inside_a_task_nobody_says_yes(place: Place) -> None:
    proposal = place.cli("run", "--", "install", "-d", "made").stdout.strip()
    me = f"{sys.executable} -m backburner"
    inside = place.finish(f"{me} approve {proposal}; echo $?; {me} run --yes -- install -d made; echo $?", options=("--shell",))
    output = place.log(str(inside["task_id"])).decode()
    assert output.count("\n3\n") == 2, output
    assert not (place.cwd / "made").exists()


def test_lists_show_this_project_and_all_shows_the_rest(place: Place) -> None:
    elsewhere = place.cwd.parent / "elsewhere"
    elsewhere.mkdir()
    place.ok("run", "--wait", "--", "echo", "here")
    place.ok("run", "--wait", "--", "echo", "there", cwd=elsewhere)
    assert len(place.json("list")) == 1 and len(place.json("list", "--all")) == 2  # type: ignore[arg-type]
    assert len(place.ok("list", "completed").splitlines()) == 1 and place.ok("list", "failed") == ""


def test_the_inbox_tells_each_end_until_it_is_acknowledged(place: Place) -> None:
    task_id = place.ok("run", "--", "echo", "done").strip()
    wait_until(lambda: place.status(task_id)["status"] == "completed", "the end")
    notices = place.json("inbox")
    assert isinstance(notices, list) and [notice["task_id"] for notice in notices] == [task_id]
    assert "completed: done" in place.ok("inbox", "--ack")
    assert place.json("inbox") == []
    place.ok("run", "--wait", "--", "true")  # who waited for the end was told of it
    assert place.json("inbox") == []


def test_restart_makes_a_new_task_of_the_same_command(place: Place) -> None:
    first = place.ok("run", "--wait", "--", "echo", "again")
    assert first == "again\n"
    before = place.status("last")["task_id"]
    assert place.ok("restart", "last", "--wait") == "again\n"
    assert place.status("last")["restarted_from"] == before


def test_clear_forgets_what_ended_and_never_touches_what_runs(place: Place) -> None:
    ended = place.finish("true")["task_id"]
    running = place.run("sleep", "600")
    assert place.cli("clear", running).returncode == 2
    assert place.json("clear", "--ended") == {"cleared": [ended]}
    assert not place.folder(str(ended)).exists() and place.folder(running).exists()
    assert place.cli("status", str(ended)).returncode == 4
    place.ok("cancel", running)


def test_cancel_of_an_ended_task_says_so(place: Place) -> None:
    task_id = place.finish("true")["task_id"]
    done = place.cli("cancel", str(task_id))
    assert done.returncode == 1 and done.stderr.strip() == f"Task {task_id} is not running (status: completed)."


def test_events_tell_the_whole_story_in_order(place: Place) -> None:
    place.ok("run", "--wait", "--", "true")
    events = place.json("events")
    assert isinstance(events, list)
    assert [event["kind"] for event in events] == ["task_submitted", "run_started", "task_done", "run_completed"]
    assert [event["event_id"] for event in events] == sorted(event["event_id"] for event in events)


def test_events_follow_what_happens(place: Place) -> None:
    place.ok("run", "--wait", "--", "true")
    follower = subprocess.Popen(
        [sys.executable, "-m", "backburner", "events", "-f", "--json"], env=place.environ, cwd=place.cwd, stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    try:
        assert follower.stdout
        for _ in range(4):
            follower.stdout.readline()
        task_id = place.ok("run", "--", "true").strip()
        kinds = [json.loads(follower.stdout.readline()) for _ in range(4)]
        assert {event["task_id"] for event in kinds} == {task_id} and kinds[-1]["kind"] == "run_completed"
    finally:
        follower.terminate()
        follower.wait()
        follower.stdout.close()  # type: ignore[union-attr]


def test_logs_follow_until_the_end_and_leave_the_header_out(place: Place) -> None:
    script = "for i in 1 2 3; do echo line $i; sleep 0.1; done"
    task_id = place.run(script, options=("--shell",))
    assert place.ok("logs", "-f", task_id) == "line 1\nline 2\nline 3\n"
    assert place.ok("logs", "--tail", "1", task_id) == "line 3\n"
    raw = place.ok("logs", "--raw", task_id).splitlines()
    assert raw[0] == f"# Background task: {task_id}" and raw[1] == f"# Command: {script}"
    assert raw[2].startswith("# Approved by: user at 2") and raw[3].startswith("# Started: 2")


def test_the_files_of_a_run_have_the_promised_fields(place: Place) -> None:
    done = place.finish("sh", "-c", "echo one; echo two", options=("--env", "API_TOKEN=hush", "--env", "PLAIN=seen"))
    folder = place.folder(str(done["task_id"]))
    metadata = json.loads((folder / "metadata.json").read_text())
    assert metadata["env"] == {"API_TOKEN": "***", "PLAIN": "seen"} and metadata["status"] == "completed"
    assert (metadata["approved_by"], metadata["exit_code"], metadata["command"]) == ("user", 0, ["sh", "-c", "echo one; echo two"])
    assert (folder / "span_id.txt").read_text().strip() == metadata["span_id"]
    result = json.loads((folder / "result.json").read_text())
    assert (result["exit_code"], result["stdout_lines"], result["stderr_lines"], result["summary"]) == (0, 2, 0, "two")


def test_the_cap_holds_and_the_next_starts_by_itself_in_order(place: Place) -> None:
    place.configure("[approval]\nyes_without_terminal = true\n[commands]\nmax_concurrent = 2\n")
    gate = place.cwd / "gate"
    tasks = [place.run(f"while [ ! -e {gate} ]; do sleep 0.02; done; date +%s%N", options=("--shell",)) for _ in range(4)]
    wait_until(lambda: len(place.json("list", "running")) == 2, "two to run")  # type: ignore[arg-type]
    assert [place.status(task)["status"] for task in tasks] == ["running", "running", "pending", "pending"]
    gate.touch()
    place.ok("wait", *tasks)
    assert [place.status(task)["status"] for task in tasks] == ["completed"] * 4


def test_a_changed_config_reaches_the_running_engine(place: Place) -> None:
    place.configure("[commands]\nmax_concurrent = 1\n")
    tasks = [place.ok("run", "--", "sleep", "600").strip() for _ in range(2)]
    wait_until(lambda: place.status(tasks[0])["status"] == "running", "the first")
    place.configure("[commands]\nmax_concurrent = 2\n")
    wait_until(lambda: place.status(tasks[1])["status"] == "running", "the second")
    place.ok("cancel", *tasks)


def test_ctrl_c_while_waiting_leaves_the_command_in_the_background(place: Place) -> None:
    door = subprocess.Popen(
        [sys.executable, "-m", "backburner", "run", "--wait", "--", "sleep", "600"], env=place.environ, cwd=place.cwd, stderr=subprocess.DEVNULL
    )  # fmt: skip
    wait_until(lambda: any(task["status"] == "running" for task in place.json("list")), "it to run")  # type: ignore[union-attr, index]
    door.send_signal(signal.SIGINT)
    assert door.wait(10) == 130
    assert place.status("last")["status"] == "running"
    place.ok("cancel", "last")


def test_a_reader_that_leaves_early_is_no_error(place: Place) -> None:
    place.finish("seq", "1", "200000")
    done = subprocess.run(
        f"{sys.executable} -m backburner logs last | head -n 1",
        shell=True,
        env=place.environ,
        cwd=place.cwd,
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_every_verb_has_help(place: Place) -> None:
    from backburner.interfaces.cli.main import VERBS

    assert all(verb in place.ok("--help") for verb in VERBS)
    for verb in VERBS:
        assert place.ok(verb, "--help").startswith(f"usage: backburner {verb}")


def _typed(place: Place, keys: str, *words: str) -> tuple[str, int]:
    """Run one command line in a pseudo-terminal of its own, typing `keys` at the prompt; the screen and the exit code."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(place.cwd)
        os.execve(sys.executable, [sys.executable, "-m", "backburner", *words], {**place.environ, "TERM": "xterm"})
    screen, typed, deadline = b"", False, time.monotonic() + 30
    while time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                screen += os.read(terminal, 4096)
            except OSError:
                break
        if b"Start in background? [" in screen and not typed:
            os.write(terminal, keys.encode())
            typed = True
    os.close(terminal)
    return screen.decode(), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_at_a_terminal_it_asks_and_a_yes_starts_it(place: Place) -> None:
    place.configure("")
    screen, code = _typed(place, "y\n", "run", "--env", "X=1", "--", "install", "-d", "made\x07\u202e")
    assert code == 0 and "Command requires approval:" in screen
    assert "install -d 'made\\x07\\u202e'" in screen and "X=1" in screen
    place.ok("wait", "last")
    assert place.status("last")["approved_by"] == "user"


def test_at_a_terminal_a_no_stores_nothing(place: Place) -> None:
    place.configure("")
    screen, code = _typed(place, "n\n", "run", "--", "install", "-d", "made")
    assert code == 3 and place.json("list") == []
    screen, code = _typed(place, "\x03", "run", "--", "install", "-d", "made")
    assert code == 130 and "Traceback" not in screen and place.json("list") == []


def test_a_terminal_gets_the_table_with_its_heads(place: Place) -> None:
    place.ok("run", "--wait", "--description", "Run full test suite", "--", "true")
    screen, code = _typed(place, "", "list")
    heads, rule, row = [line for line in screen.replace("\r", "").splitlines() if line]
    assert code == 0 and heads.split() == ["ID", "Status", "Started", "Duration", "Description"]
    assert set(rule) == {"─", " "} and "Run full" in row and "\x1b[32mcompleted" in row


def test_yes_inside_a_task_is_refused_even_for_an_allowed_command(place: Place) -> None:
    done = place.finish(f"{sys.executable} -m backburner run --yes -- echo hi; echo $?", options=("--shell",))
    assert place.log(str(done["task_id"])).decode().endswith("\n3\n")
