"""The command line as documented: what is printed to stdout and stderr, JSON keys, exit codes, help."""

import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import time

import pytest
from conftest import CAUTIOUS, CONFIG, NO_TERMINAL, HomeCli, wait_until
from terminal import Terminal

from backburner.store.ledger import open_ledger

KEYS = {
    "task_id", "name", "kind", "status", "description", "command", "created_at", "started_at", "completed_at", "exit_code",
    "duration_seconds", "approved_by", "batch", "run_count", "next_run_at", "last_run_at", "notify", "type",
}  # fmt: skip


def test_run_prints_only_the_id_and_returns_at_once(home_cli: HomeCli) -> None:
    done = home_cli.cli("run", "--", "sleep", "600")
    assert re.fullmatch(r"task_\d{8}_\d{6}_sleep\n", done.stdout) and done.returncode == 0
    assert home_cli.status(done.stdout.strip())["status"] in ("pending", "running")
    home_cli.ok("cancel", "last")


def test_wait_follows_the_output_and_exits_with_the_commands_own_code(home_cli: HomeCli) -> None:
    done = home_cli.cli("run", "--yes", "--wait", "--shell", "--", "echo out; echo err >&2; exit 7")
    assert (done.stdout, done.returncode) == ("out\nerr\n", 7)


def test_wait_with_seconds_leaves_it_in_the_background(home_cli: HomeCli) -> None:
    done = home_cli.cli("run", "--wait", "0.3", "--", "sleep", "600")
    assert done.returncode == 0 and done.stdout.startswith("task_")
    wait_until(lambda: home_cli.status("last")["status"] == "running", "it to run")
    home_cli.ok("cancel", "last")


def test_an_error_of_backburner_itself_with_wait_exits_125(home_cli: HomeCli) -> None:
    assert home_cli.cli("run", "--wait", "--cwd", "/no/such/folder", "--", "echo").returncode == 125
    assert home_cli.cli("run", "--cwd", "/no/such/folder", "--", "echo").returncode == 2


def test_a_timeout_stops_the_command_and_exits_124(home_cli: HomeCli) -> None:
    done = home_cli.cli("run", "--wait", "--timeout", "0.2s", "--", "sleep", "600")
    assert done.returncode == 124
    found = home_cli.status("last")
    assert (found["status"], found["result"]) == ("failed", "timeout")


def test_a_command_killed_at_its_timeout_is_ambiguous(home_cli: HomeCli) -> None:
    home_cli.configure(CONFIG + "[commands]\ncancel_grace_seconds = 0.1\n")
    done = home_cli.cli("run", "--yes", "--wait", "--timeout", "0.3s", "--shell", "--", "trap '' TERM; while :; do sleep 0.05; done")
    assert done.returncode == 124
    assert home_cli.status("last")["result"] == "ambiguous"


def test_every_command_that_shows_a_task_prints_the_documented_keys(home_cli: HomeCli) -> None:
    home_cli.ok("run", "--wait", "--name", "greet", "--description", "says hello", "--", "echo", "hello")
    for words in (("list",), ("status", "last"), ("wait", "last")):
        found = home_cli.json(*words)
        task = found[0] if isinstance(found, list) else found
        assert isinstance(task, dict) and set(task) >= KEYS
        assert (task["name"], task["description"], task["command"], task["status"]) == (
            "greet",
            "says hello",
            ["echo", "hello"],
            "completed",
        )
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", str(task["completed_at"]))


def test_status_of_a_failed_task_exits_0_and_wait_exits_1(home_cli: HomeCli) -> None:
    task_id = home_cli.run("false")
    assert home_cli.cli("wait", task_id).returncode == 1
    assert home_cli.cli("status", task_id).returncode == 0
    assert home_cli.cli("wait", home_cli.run("sleep", "600"), "--timeout", "0.1").returncode == 124
    home_cli.ok("cancel", "last")


def test_bad_input_gets_one_sentence_and_exit_code_2(home_cli: HomeCli) -> None:
    cases = [
        ("run",), ("run", "--", ""), ("run", "--env", "novalue", "--", "echo"), ("run", "--timeout", "soon", "--", "echo"),
        ("frobnicate",), ("list", "--limit", "-3"), ("list", "sideways"), ("config", "set"), ("clear",),
        ("run", "--nonsense", "--", "echo"), ("list", "--set", "commands.max_concurent=3"), ("list", "--set", "commands.max_concurrent=zero"),
    ]  # fmt: skip
    for words in cases:
        done = home_cli.cli(*words)
        assert done.returncode == 2, (words, done)
        assert done.stdout == "" and len(done.stderr.strip().splitlines()) == 1, (words, done.stderr)


def test_an_unknown_task_exits_4_and_json_errors_are_objects(home_cli: HomeCli) -> None:
    done = home_cli.cli("status", "nothing", "--json")
    assert done.returncode == 4
    assert json.loads(done.stderr)["error"] == {"code": "task_not_found", "message": "Task nothing not found.", "task_id": "nothing"}


def test_a_task_is_found_by_part_label_or_last_and_ambiguity_is_an_error(home_cli: HomeCli) -> None:
    first = home_cli.ok("run", "--name", "alpha", "--", "true").strip()
    second = home_cli.ok("run", "--name", "beta", "--", "true").strip()
    assert home_cli.status("alpha")["task_id"] == first
    assert home_cli.status("_beta")["task_id"] == second
    assert home_cli.status("last")["task_id"] == second
    done = home_cli.cli("status", "task_")
    assert done.returncode == 2 and first in done.stderr and second in done.stderr


def test_without_a_terminal_a_command_is_proposed_and_runs_after_approval(home_cli: HomeCli) -> None:
    done = home_cli.cli("run", "--", "install", "-d", "made")
    task_id = done.stdout.strip()
    assert done.returncode == 3 and "backburner approve" in done.stderr
    assert home_cli.status(task_id)["status"] == "proposed" and not (home_cli.cwd / "made").exists()
    home_cli.ok("approve", task_id)
    home_cli.ok("wait", task_id)
    assert (home_cli.cwd / "made").exists()
    found = home_cli.status(task_id)
    assert (found["approved_by"], found["approved_via"]) == ("user", "cli")
    assert home_cli.cli("approve", task_id).returncode == 1


def test_a_rejected_or_expired_proposal_never_runs(home_cli: HomeCli) -> None:
    task_id = home_cli.cli("run", "--", "install", "-d", "made").stdout.strip()
    home_cli.ok("reject", task_id)
    assert home_cli.cli("approve", task_id).returncode != 0
    home_cli.configure(NO_TERMINAL + "proposal_expiry_hours = 0\n" + CAUTIOUS)
    late = home_cli.cli("run", "--", "install", "-d", "made").stdout.strip()
    assert home_cli.cli("approve", late).returncode != 0
    assert home_cli.status(late)["status"] == "expired" and not (home_cli.cwd / "made").exists()


def test_yes_needs_a_terminal_unless_the_config_file_allows_it(home_cli: HomeCli) -> None:
    home_cli.configure(CAUTIOUS)
    done = home_cli.cli("run", "--yes", "--", "install", "-d", "made", env={"BACKBURNER_X": "1"}, preexec_fn=os.setsid)
    assert done.returncode == 3 and "terminal" in done.stderr
    assert home_cli.cli("list", env={"BACKBURNER_APPROVAL_YES_WITHOUT_TERMINAL": "true"}).returncode == 2


def test_approve_and_yes_are_refused_inside_a_task(home_cli: HomeCli) -> None:
    proposal = home_cli.cli("run", "--", "install", "-d", "made").stdout.strip()
    me = f"{sys.executable} -m backburner"
    inside = home_cli.finish(f"{me} approve {proposal}; echo $?; {me} run --yes -- install -d made; echo $?", options=("--shell",))
    output = home_cli.log(str(inside["task_id"])).decode()
    assert output.count("\n3\n") == 2, output
    assert not (home_cli.cwd / "made").exists()


def test_list_shows_this_project_and_all_shows_every_project(home_cli: HomeCli) -> None:
    elsewhere = home_cli.cwd.parent / "elsewhere"
    elsewhere.mkdir()
    home_cli.ok("run", "--wait", "--", "echo", "here")
    home_cli.ok("run", "--wait", "--", "echo", "there", cwd=elsewhere)
    assert len(home_cli.json("list")) == 1 and len(home_cli.json("list", "--all")) == 2  # type: ignore[arg-type]
    assert len(home_cli.ok("list", "completed").splitlines()) == 1 and home_cli.ok("list", "failed") == ""


def test_the_inbox_shows_each_notice_until_it_is_acknowledged(home_cli: HomeCli) -> None:
    task_id = home_cli.ok("run", "--", "echo", "done").strip()
    wait_until(lambda: home_cli.status(task_id)["status"] == "completed", "the end")
    notices = home_cli.json("inbox")
    assert isinstance(notices, list) and [notice["task_id"] for notice in notices] == [task_id]
    assert "completed: done" in home_cli.ok("inbox", "--ack")
    assert home_cli.json("inbox") == []
    home_cli.ok("run", "--wait", "--", "true")  # --wait acknowledges the notice
    assert home_cli.json("inbox") == []


def test_restart_creates_a_new_task_with_the_same_command(home_cli: HomeCli) -> None:
    first = home_cli.ok("run", "--wait", "--", "echo", "again")
    assert first == "again\n"
    before = home_cli.status("last")["task_id"]
    assert home_cli.ok("restart", "last", "--wait") == "again\n"
    assert home_cli.status("last")["restarted_from"] == before


def test_clear_deletes_finished_tasks_and_refuses_running_ones(home_cli: HomeCli) -> None:
    ended = home_cli.finish("true")["task_id"]
    running = home_cli.run("sleep", "600")
    assert home_cli.cli("clear", running).returncode == 2
    assert home_cli.json("clear", "--ended") == {"cleared": [ended]}
    assert not home_cli.folder(str(ended)).exists() and home_cli.folder(running).exists()
    assert home_cli.cli("status", str(ended)).returncode == 4
    home_cli.ok("cancel", running)


def test_cancelling_a_finished_task_is_an_error(home_cli: HomeCli) -> None:
    task_id = home_cli.finish("true")["task_id"]
    done = home_cli.cli("cancel", str(task_id))
    assert done.returncode == 1 and done.stderr.strip() == f"Task {task_id} is not running (status: completed)."


def test_events_are_complete_and_in_order(home_cli: HomeCli) -> None:
    home_cli.ok("run", "--wait", "--", "true")
    events = home_cli.json("events")
    assert isinstance(events, list)
    assert [event["kind"] for event in events] == ["task_submitted", "run_started", "task_done", "run_completed"]
    assert [event["event_id"] for event in events] == sorted(event["event_id"] for event in events)


def test_events_are_limited(home_cli: HomeCli) -> None:
    home_cli.ok("run", "--wait", "--", "true")
    numbers = [event["event_id"] for event in home_cli.json("events", "--limit", "0")]  # type: ignore[union-attr, index, call-overload]
    assert [event["event_id"] for event in home_cli.json("events", "--limit", "2")] == numbers[-2:]  # type: ignore[union-attr, index, call-overload]
    assert [event["event_id"] for event in home_cli.json("events", "--limit", "2", "--since", "0")] == numbers[:2]  # type: ignore[union-attr, index, call-overload]
    ledger = open_ledger(home_cli.home.ledger)
    for number in range(250):
        ledger.events.append("noted", "task_x", "task_x", number)
    ledger.close()
    done = home_cli.cli("events")
    assert len(done.stdout.splitlines()) == 200 and "Showing the last 200 events; use --limit 0 for all." in done.stderr


def test_events_are_printed_as_words_and_quoted_text(home_cli: HomeCli) -> None:
    home_cli.ok("run", "--wait", "--", "echo", "two words")
    lines = home_cli.ok("events").splitlines()
    assert lines[0].endswith("rule=sandbox reasons=prints") and lines[-1].endswith('result=exit exit_code=0 summary="two words"')


def test_events_with_follow_prints_new_events(home_cli: HomeCli) -> None:
    home_cli.ok("run", "--wait", "--", "true")
    follower = subprocess.Popen(
        [sys.executable, "-m", "backburner", "events", "-f", "--json"], env=home_cli.environ, cwd=home_cli.cwd, stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    try:
        assert follower.stdout
        for _ in range(4):
            follower.stdout.readline()
        task_id = home_cli.ok("run", "--", "true").strip()
        kinds = [json.loads(follower.stdout.readline()) for _ in range(4)]
        assert {event["task_id"] for event in kinds} == {task_id} and kinds[-1]["kind"] == "run_completed"
    finally:
        follower.terminate()
        follower.wait()
        follower.stdout.close()  # type: ignore[union-attr]


def test_logs_follows_to_the_end_and_omits_the_header(home_cli: HomeCli) -> None:
    script = "for i in 1 2 3; do echo line $i; sleep 0.1; done"
    task_id = home_cli.run(script, options=("--shell",))
    assert home_cli.ok("logs", "-f", task_id) == "line 1\nline 2\nline 3\n"
    assert home_cli.ok("logs", "--tail", "1", task_id) == home_cli.ok("logs", "-n", "1", task_id) == "line 3\n"
    raw = home_cli.ok("logs", "--raw", task_id).splitlines()
    assert raw[0] == f"# Background task: {task_id}" and raw[1] == f"# Command: {script}"
    assert raw[2].startswith("# Approved by: user at 2") and raw[3].startswith("# Started: 2")


def test_the_files_of_a_run_have_the_documented_fields(home_cli: HomeCli) -> None:
    done = home_cli.finish("sh", "-c", "echo one; echo two", options=("--env", "API_TOKEN=hush", "--env", "PLAIN=seen"))
    folder = home_cli.folder(str(done["task_id"]))
    metadata = json.loads((folder / "metadata.json").read_text())
    assert metadata["env"] == {"API_TOKEN": "***", "PLAIN": "seen"} and metadata["status"] == "completed"
    assert (metadata["approved_by"], metadata["exit_code"], metadata["command"]) == ("user", 0, ["sh", "-c", "echo one; echo two"])
    assert (folder / "span_id.txt").read_text().strip() == metadata["span_id"]
    result = json.loads((folder / "result.json").read_text())
    assert (result["exit_code"], result["stdout_lines"], result["stderr_lines"], result["summary"]) == (0, 2, 0, "two")


def test_tasks_over_the_limit_are_pending_and_start_in_order(home_cli: HomeCli) -> None:
    home_cli.configure(CONFIG + "[commands]\nmax_concurrent = 2\n")
    gate = home_cli.cwd / "gate"
    tasks = [home_cli.run(f"while [ ! -e {gate} ]; do sleep 0.02; done; date +%s%N", options=("--shell",)) for _ in range(4)]
    wait_until(lambda: len(home_cli.json("list", "running")) == 2, "two to run")  # type: ignore[arg-type]
    assert [home_cli.status(task)["status"] for task in tasks] == ["running", "running", "pending", "pending"]
    gate.touch()
    home_cli.ok("wait", *tasks)
    assert [home_cli.status(task)["status"] for task in tasks] == ["completed"] * 4


def test_a_changed_config_reaches_the_running_engine(home_cli: HomeCli) -> None:
    home_cli.configure("[commands]\nmax_concurrent = 1\n")
    tasks = [home_cli.ok("run", "--", "sleep", "600").strip() for _ in range(2)]
    wait_until(lambda: home_cli.status(tasks[0])["status"] == "running", "the first")
    home_cli.configure("[commands]\nmax_concurrent = 2\n")
    wait_until(lambda: home_cli.status(tasks[1])["status"] == "running", "the second")
    home_cli.ok("cancel", *tasks)


def test_a_variable_that_a_running_engine_ignores_is_reported(home_cli: HomeCli) -> None:
    held = home_cli.run("sleep", "600")
    wait_until(lambda: home_cli.status(held)["status"] == "running", "the engine")
    variable = {"BACKBURNER_COMMANDS_MAX_CONCURRENT": "1"}
    (line,) = [line for line in home_cli.ok("config", "show", env=variable).splitlines() if line.startswith("commands.max_concurrent ")]
    assert line.endswith("# BACKBURNER_COMMANDS_MAX_CONCURRENT; the running engine uses 5")
    assert json.loads(home_cli.ok("config", "show", "--json", env=variable))["commands.max_concurrent"]["engine"] == 5
    done = home_cli.cli("run", "--", "true", env=variable)
    assert "BACKBURNER_COMMANDS_MAX_CONCURRENT has no effect: the running engine uses commands.max_concurrent = 5" in done.stderr
    assert "no effect" not in home_cli.cli("run", "--", "true").stderr and "engine uses" not in home_cli.ok("config")
    home_cli.ok("cancel", held)
    home_cli.stop_engine()
    done = home_cli.cli("run", "--wait", "--", "true", env=variable)
    assert "no effect" not in done.stderr and "engine uses" not in home_cli.ok("config", "show", env=variable)
    assert "engine uses 1" in home_cli.ok("config", "show")


@pytest.mark.parametrize("verb", ["run", "wait"])
def test_after_ctrl_c_during_wait_the_command_continues_and_a_line_says_so(home_cli: HomeCli, verb: str) -> None:
    if verb == "run":
        words = ["run", "--yes", "--wait", "--", "sh", "-c", "echo started; sleep 600"]
    else:
        words = ["wait", home_cli.run("true"), home_cli.run("sleep", "600")]
    client = subprocess.Popen(
        [sys.executable, "-m", "backburner", *words], env=home_cli.environ, cwd=home_cli.cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )  # fmt: skip
    assert client.stdout and client.stdout.readline()  # it waits now
    client.send_signal(signal.SIGINT)
    told = client.communicate(timeout=60)[1].decode().splitlines()[-1]
    task_id = home_cli.status("last")["task_id"]
    assert client.returncode == 130
    assert told == f"Stopped waiting; {task_id} continues in the background. To follow it: backburner logs -f {task_id}"
    assert home_cli.status("last")["status"] == "running"
    home_cli.ok("cancel", "last")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cancle", "x"], "Unknown command 'cancle'. Did you mean cancel? See: backburner --help\n"),
        (["zzz"], "Unknown command 'zzz'. See: backburner --help\n"),
        (["list", "--jsno"], "Unrecognized arguments: --jsno. Did you mean --json? See: backburner list --help\n"),
        (["run", "--nmae=x", "--", "true"], "Unrecognized arguments: --nmae=x. Did you mean --name? See: backburner run --help\n"),
        (["list", "--zzz"], "Unrecognized arguments: --zzz. See: backburner list --help\n"),
    ],
)
def test_a_mistyped_command_or_option_is_answered_with_the_one_that_was_meant(home_cli: HomeCli, words: list[str], message: str) -> None:
    done = home_cli.cli(*words)
    assert (done.returncode, done.stderr) == (2, message)


def test_run_needs_no_separator_where_nothing_is_ambiguous(home_cli: HomeCli) -> None:
    assert home_cli.ok("run", "--wait", "echo", "-n", "hi") == "hi"
    assert home_cli.ok("run", "--wait", "60", "--name", "label", "echo", "hello") == "hello\n"
    assert home_cli.status("last")["name"] == "label"
    for words in (("run", "echo", "--wait"), ("run", "echo", "--name=x"), ("check", "ls", "--json")):
        done = home_cli.cli(*words)
        assert done.returncode in (2, 125) and "Write `--` before the command." in done.stderr


def test_a_program_that_does_not_exist_is_refused_before_anybody_is_asked(home_cli: HomeCli) -> None:
    done = home_cli.cli("run", "--", "no-such-program")
    assert (done.returncode, done.stderr) == (2, "no-such-program: command not found.\n")
    assert "use --shell" in home_cli.cli("run", "--", "echo hi").stderr
    assert home_cli.json("list") == []
    assert home_cli.cli("run", "--in", "1h", "--", "no-such-program").returncode == 3  # it may exist then


def test_a_program_that_does_not_exist_is_refused_where_it_would_run_in_a_sandbox(home_cli: HomeCli) -> None:
    subprocess.run(["git", "init", "-q", str(home_cli.cwd)], check=True)
    done = home_cli.cli("run", "--", "no-such-program")
    assert (done.returncode, done.stderr) == (2, "no-such-program: command not found.\n") and home_cli.json("list") == []


def test_a_closed_pipe_is_not_an_error(home_cli: HomeCli) -> None:
    home_cli.finish("seq", "1", "200000")
    done = subprocess.run(
        f"{sys.executable} -m backburner logs last | head -n 1",
        shell=True,
        env=home_cli.environ,
        cwd=home_cli.cwd,
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_every_command_has_help(home_cli: HomeCli) -> None:
    from backburner.interfaces.cli.parsers import VERBS

    for verb in VERBS:
        text = home_cli.ok(verb, "--help")
        assert text.startswith(f"usage: backburner {verb}") and "global options:" in text


def test_the_overview_lists_every_command_once_in_a_group(home_cli: HomeCli) -> None:
    from backburner.interfaces.cli.help import GROUPS
    from backburner.interfaces.cli.parsers import VERBS

    assert sorted(verb for verbs in GROUPS.values() for verb in verbs) == sorted(VERBS)
    lines = home_cli.ok("--help").splitlines()
    assert [line for line in lines if line.startswith("usage: ")] and max(map(len, lines)) <= 80
    for verb, (description, _) in VERBS.items():
        assert lines.count(f"  {verb:<11} {description}") == 1, verb
    assert [line[:-1] for line in lines if line[:-1] in GROUPS and line.endswith(":")] == list(GROUPS)


def test_the_help_ends_with_examples_that_can_be_parsed(home_cli: HomeCli) -> None:
    from backburner.interfaces.cli.arguments import split, verb_parser
    from backburner.interfaces.cli.help import EXAMPLES

    for verb in EXAMPLES:
        title, *examples = home_cli.ok(verb, "--help").rstrip().split("\n\n")[-1].splitlines()
        assert title == "EXAMPLES" and 3 <= len(examples) <= 5, verb
        for example in examples:
            program, *words = shlex.split(example.partition(" < ")[0])
            before, found, after, command = split(words)
            assert (program, before, found) == ("backburner", [], verb)
            assert verb_parser(verb).parse_args(after) and (command or "--prompt" in after or verb in ("ask", "edit")), example


def test_help_texts_are_not_loaded_to_parse_a_command(home_cli: HomeCli) -> None:
    script = "import sys; from backburner.interfaces.cli.main import main; main(['list']); sys.exit('backburner.interfaces.cli.help' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], env=home_cli.environ, cwd=home_cli.cwd, capture_output=True).returncode == 0


def test_an_internal_error_is_one_line_that_asks_for_a_report(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from backburner.interfaces.cli import main

    def fail(argv: list[str]) -> int:
        raise KeyError("x")

    monkeypatch.setattr(main, "_main", fail)
    monkeypatch.setattr(main, "discard_stdout", lambda: None)
    monkeypatch.delenv("BACKBURNER_DEBUG", raising=False)
    assert main.main(["list"]) == 1
    expected = "Internal error: KeyError: 'x'. Run again with BACKBURNER_DEBUG=1 for a traceback, and please report it.\n"
    assert capfd.readouterr().err == expected
    monkeypatch.setenv("BACKBURNER_DEBUG", "1")
    with pytest.raises(KeyError):
        main.main(["list"])


def _run_in_terminal(home_cli: HomeCli, keys: str, *words: str) -> tuple[str, int]:
    """Run one command in a pseudo-terminal and type `keys` at the prompt; return the screen and the exit code."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(home_cli.cwd)
        os.execve(sys.executable, [sys.executable, "-m", "backburner", *words], {**home_cli.environ, "TERM": "xterm"})
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


def test_at_a_terminal_run_prompts_and_starts_after_y(home_cli: HomeCli) -> None:
    home_cli.configure(CAUTIOUS)
    screen, code = _run_in_terminal(home_cli, "y\n", "run", "--env", "X=1", "--", "install", "-d", "made\x07\u202e")
    assert code == 0 and "Command requires approval:" in screen
    assert "install -d 'made\\x07\\u202e'" in screen and "X=1" in screen
    home_cli.ok("wait", "last")
    assert home_cli.status("last")["approved_by"] == "user"


def test_at_a_terminal_answering_n_stores_nothing(home_cli: HomeCli) -> None:
    home_cli.configure(CAUTIOUS)
    screen, code = _run_in_terminal(home_cli, "n\n", "run", "--", "install", "-d", "made")
    assert code == 3 and home_cli.json("list") == []
    screen, code = _run_in_terminal(home_cli, "\x03", "run", "--", "install", "-d", "made")
    assert code == 130 and "Traceback" not in screen and home_cli.json("list") == []


def test_list_prints_a_table_with_headings_at_a_terminal(home_cli: HomeCli) -> None:
    home_cli.ok("run", "--wait", "--description", "Run full test suite", "--", "true")
    screen, code = _run_in_terminal(home_cli, "", "list")
    headings, rule, row = [line for line in screen.replace("\r", "").splitlines() if line]
    assert code == 0 and headings.split() == ["ID", "Status", "Started", "Duration", "Description"]
    assert set(rule) == {"─", " "} and "Run full" in row and "\x1b[32mcompleted" in row


def test_list_in_a_narrow_terminal_shows_ids_without_dates_and_the_description(home_cli: HomeCli) -> None:
    task_id = home_cli.run("true", options=("--name", "a-rather-long-label-of-a-task", "--description", "Build it"))
    home_cli.run("true", options=("--name", "short", "--description", "Test it with a longer description"))
    home_cli.ok("wait", task_id, "last")
    with Terminal([sys.executable, "-m", "backburner", "list"], cwd=home_cli.cwd, env=home_cli.environ, columns=80) as terminal:
        assert terminal.ended() == 0
        lines = terminal.text.splitlines()
    assert lines[0].split() == ["ID", "Status", "Duration", "Description"]
    assert lines[2].startswith(f"{task_id[14:]} completed ") and lines[2].endswith("Build it")
    with Terminal([sys.executable, "-m", "backburner", "list"], cwd=home_cli.cwd, env=home_cli.environ, columns=60) as terminal:
        assert terminal.ended() == 0
        lines = terminal.text.splitlines()
    assert lines[0].split() == ["ID", "Status", "Description"] and lines[2].endswith("Build it")
    assert home_cli.status(lines[3].split()[0])["name"] == "short"


def test_yes_inside_a_task_is_refused_even_for_an_allowed_command(home_cli: HomeCli) -> None:
    done = home_cli.finish(f"{sys.executable} -m backburner run --yes -- echo hi; echo $?", options=("--shell",))
    assert home_cli.log(str(done["task_id"])).decode().endswith("\n3\n")
