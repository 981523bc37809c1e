"""Batches, dependencies, keys, priorities, delays, limits and restarts, through the command line."""

import json
import time

import pytest
from conftest import CAUTIOUS, CONFIG, NO_TERMINAL, HomeCli, wait_until


def ended(home_cli: HomeCli, *task_ids: str) -> list[dict[str, object]]:
    home_cli.cli("wait", *task_ids, "--timeout", "30")
    return [home_cli.status(task_id) for task_id in task_ids]


def test_a_task_starts_after_its_dependencies(home_cli: HomeCli) -> None:
    gate = home_cli.cwd / "gate"
    first = home_cli.run("sh", "-c", f"while [ ! -e {gate} ]; do sleep 0.05; done", options=("--name", "first"))
    second = home_cli.run("sh", "-c", "true", options=("--after", "first", "--name", "second"))
    third = home_cli.run("true", options=("--after", first, "--after", "second"))
    expected = f"{first} (running), {second} (pending)"
    wait_until(lambda: home_cli.status(third)["waits_for"] == expected, "the first to run")
    gate.touch()
    one, two, three = ended(home_cli, first, second, third)
    assert [one["status"], two["status"], three["status"]] == ["completed"] * 3
    assert str(one["completed_at"]) <= str(two["started_at"]) and str(two["completed_at"]) <= str(three["started_at"])
    assert three["after"] == [first, second]


@pytest.mark.parametrize(("code", "how"), [(3, "failed"), (None, "was cancelled")])
def test_a_task_fails_with_the_reason_if_a_dependency_does_not_complete(home_cli: HomeCli, code: int | None, how: str) -> None:
    first = home_cli.run(*(("sh", "-c", f"sleep 0.5; exit {code}") if code is not None else ("sleep", "60")))
    second = home_cli.run("true", options=("--after", first))
    third = home_cli.run("true", options=("--after", second))
    if code is None:
        home_cli.ok("cancel", first)
    two, three = ended(home_cli, second, third)
    assert (two["status"], two["result"], two["error"]) == ("failed", "dependency", f"dependency {first} {how}")
    assert (three["status"], three["error"]) == ("failed", f"dependency {second} failed")
    assert two["started_at"] is None
    written = json.loads((home_cli.folder(second) / "metadata.json").read_text())
    assert (written["status"], written["result"]) == ("failed", "dependency")
    assert json.loads((home_cli.folder(third) / "result.json").read_text())["error"] == three["error"]
    late = home_cli.run("true", options=("--after", first))
    assert home_cli.status(late)["error"] == two["error"]


SHOW = 'cat "$BACKBURNER_AFTER_LOG"; grep exit_code "$BACKBURNER_AFTER_RESULT"; echo "$BACKBURNER_AFTER_RUN_ID"'


def test_a_dependent_task_gets_copies_of_the_results(home_cli: HomeCli) -> None:
    first = home_cli.run("echo", "the number is 42")
    change = 'for file in "$BACKBURNER_AFTER_LOG" "$BACKBURNER_AFTER_RESULT"; do chmod u+w "$file"; echo forged > "$file"; done'
    script = f'stat -c %a "$BACKBURNER_AFTER_LOG" "$BACKBURNER_AFTER_RESULT"; {SHOW}; {change}'
    second = home_cli.run("sh", "-c", script, options=("--after", first))
    ended(home_cli, second)
    third = home_cli.run("sh", "-c", SHOW, options=("--after", first))
    ended(home_cli, third)
    shown = f'the number is 42\n  "exit_code": 0,\n{first}\n'.encode()
    assert home_cli.log(second) == b"444\n444\n" + shown and home_cli.log(third) == shown
    assert home_cli.log(first) == b"the number is 42\n"
    assert json.loads((home_cli.folder(first) / "result.json").read_text())["exit_code"] == 0
    assert home_cli.status(second)["artifacts"] == []


def test_a_restarted_command_gets_the_same_results_after_they_are_cleared(home_cli: HomeCli) -> None:
    first = home_cli.run("echo", "the number is 42")
    script = f"{SHOW}; [ -e tried ] && exit 0; touch tried; while [ ! -e cleared ]; do sleep 0.05; done; exit 1"
    second = home_cli.run("sh", "-c", script, options=("--after", first, "--restart", "on-failure"))
    wait_until((home_cli.cwd / "tried").exists, "the first try")
    home_cli.ok("clear", first)
    (home_cli.cwd / "cleared").touch()
    (status,) = ended(home_cli, second)
    assert (status["status"], status["run_count"]) == ("completed", 2)
    shown = f'the number is 42\n  "exit_code": 0,\n{first}\n'
    assert home_cli.ok("logs", second, "--run", "1") == home_cli.ok("logs", second, "--run", "2") == shown


def test_a_command_that_was_taken_over_keeps_the_results_it_got(home_cli: HomeCli) -> None:
    first = home_cli.run("echo", "the number is 42")
    second = home_cli.run("sh", "-c", f"touch begun; while [ ! -e go ]; do sleep 0.05; done; {SHOW}", options=("--after", first))
    wait_until((home_cli.cwd / "begun").exists, "the command")
    home_cli.kill_engine()
    home_cli.ok("clear", first)
    (home_cli.cwd / "go").touch()
    (status,) = ended(home_cli, second)
    assert status["status"] == "completed" and home_cli.log(second).startswith(b"the number is 42\n")


def test_a_task_cannot_depend_on_itself_or_on_an_unknown_task(home_cli: HomeCli) -> None:
    itself = home_cli.cli("run", "--name", "loop", "--after", "loop", "--", "true")
    assert (itself.returncode, itself.stderr) == (2, "'loop' cannot run after itself, and there is no other task of that name.\n")
    unknown = home_cli.cli("run", "--after", "nobody", "--", "true")
    assert (unknown.returncode, unknown.stderr) == (4, "Task nobody not found.\n")
    assert home_cli.json("list") == []


def test_a_batch_can_be_listed_awaited_cancelled_and_cleared(home_cli: HomeCli) -> None:
    mine = [home_cli.run("sleep", "60", options=("--batch", "nightly")) for _ in range(2)]
    other = home_cli.run("true")
    assert {task["task_id"] for task in home_cli.json("list", "--batch", "nightly")} == set(mine)  # type: ignore[union-attr,index,call-overload]
    wait_until(lambda: home_cli.json("batch")[0]["counts"] == {"running": 2}, "both to run")  # type: ignore[index,call-overload]
    assert home_cli.ok("batch") == "nightly  2 running\n"
    timed_out = home_cli.cli("wait", "--batch", "nightly", "--timeout", "0.1")
    assert timed_out.returncode == 124
    home_cli.ok("cancel", "--batch", "nightly")
    assert home_cli.cli("wait", "--batch", "nightly").returncode == 1
    assert home_cli.ok("clear", "--batch", "nightly") == "Cleared 2 tasks.\n"
    home_cli.ok("wait", other)
    gone = home_cli.cli("wait", "--batch", "nightly")
    assert (gone.returncode, gone.stderr) == (4, "Batch 'nightly' not found. See: backburner batch\n")


def test_a_key_starts_its_command_only_once(home_cli: HomeCli) -> None:
    first = home_cli.run("sh", "-c", "echo once >> ran", options=("--key", "k"))
    home_cli.ok("wait", first)
    again = home_cli.cli("run", "--yes", "--key", "k", "--", "sh", "-c", "echo once >> ran")
    assert (again.returncode, again.stdout.strip()) == (0, first)
    assert f"Key 'k' is already used by task {first} (completed); nothing new was started." in again.stderr
    other = home_cli.cli("run", "--key", "k", "--", "true")
    assert other.returncode == 2 and first in other.stderr
    assert (home_cli.cwd / "ran").read_text() == "once\n"


def test_a_key_that_waits_for_approval_is_not_proposed_twice(home_cli: HomeCli) -> None:
    words = ("run", "--key", "k", "--", "rm", "-rf", "x")
    assert [home_cli.cli(*words).returncode for _ in range(2)] == [3, 3]
    assert len(home_cli.json("list")) == 1  # type: ignore[arg-type]


def test_many_processes_with_the_same_key_start_one_task(home_cli: HomeCli) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(8) as pool:
        task_ids = list(pool.map(lambda _: home_cli.ok("run", "--key", "k", "--", "true").strip(), range(8)))
    assert len(set(task_ids)) == 1 and len(home_cli.json("list")) == 1  # type: ignore[arg-type]


def test_tasks_with_high_priority_start_first(home_cli: HomeCli) -> None:
    home_cli.configure(CONFIG + "[commands]\nmax_concurrent = 1\n")
    blocker = home_cli.run("sleep", "60")
    wait_until(lambda: home_cli.status(blocker)["status"] == "running", "the first command")
    tasks = [home_cli.run("true", options=("--priority", priority)) for priority in ("low", "normal", "high", "high")]
    home_cli.ok("cancel", blocker)
    started = {task_id: str(status["started_at"]) for task_id, status in zip(tasks, ended(home_cli, *tasks), strict=True)}
    events = [event["task_id"] for event in home_cli.json("events") if event["kind"] == "run_started"]  # type: ignore[union-attr,index,call-overload]
    assert all(started.values())
    assert events[1:] == [tasks[2], tasks[3], tasks[1], tasks[0]]


def test_a_delayed_task_waits_for_its_start_time(home_cli: HomeCli) -> None:
    task_id = home_cli.run("true", options=("--in", "1.5s"))
    status = home_cli.status(task_id)
    assert status["status"] == "pending" and str(status["waits_for"]).endswith("(in 1s)")
    due = str(status["next_run_at"])
    home_cli.ok("wait", task_id)
    assert str(home_cli.status(task_id)["started_at"]) >= due
    tomorrow = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 86400))
    later = home_cli.run("true", options=("--at", tomorrow))
    assert home_cli.status(later)["next_run_at"] == tomorrow.replace("Z", ".000Z")
    home_cli.ok("cancel", later)


def test_nothing_starts_while_too_little_memory_is_free(home_cli: HomeCli) -> None:
    home_cli.configure(CONFIG + "[commands]\nmin_free_memory_mb = 1000000\n")
    task_id = home_cli.run("true")
    assert "MiB free, 1000000 MiB required" in str(home_cli.status(task_id)["waits_for"])
    home_cli.configure(CONFIG + "[commands]\nmin_free_memory_mb = 1\n")
    home_cli.ok("wait", task_id, "--timeout", "20")


def test_resource_limits_apply_to_the_command(home_cli: HomeCli) -> None:
    script = "import resource as r; print(r.getrlimit(r.RLIMIT_DATA)[0] >> 20, r.getrlimit(r.RLIMIT_CPU), __import__('os').nice(0))"
    task_id = home_cli.run("python3", "-c", script, options=("--memory", "1.5G", "--cpu-time", "2m", "--nice", "7"))
    home_cli.ok("wait", task_id)
    assert home_cli.log(task_id) == b"1536 (120, 125) 7\n"
    assert home_cli.status(task_id)["limits"] == {"memory_mb": 1536, "cpu_seconds": 120, "nice": 7}


def test_a_command_that_exceeds_its_cpu_time_fails_with_the_reason(home_cli: HomeCli) -> None:
    status = home_cli.finish("sh", "-c", "while :; do :; done", options=("--cpu-time", "1s"))
    assert "failed (it used up its CPU time of 1s, " in home_cli.cli("wait", str(status["task_id"])).stdout
    assert home_cli.ok("status", str(status["task_id"])).count("it used up its CPU time of 1s") == 1
    assert (status["status"], status["exit_code"], status["error"]) == ("failed", 152, "it used up its CPU time of 1s")


def test_a_failing_command_is_restarted_and_ends_with_one_notice(home_cli: HomeCli) -> None:
    (home_cli.cwd / "ran").touch()
    task_id = home_cli.run("sh", "-c", "echo again >> ran; exit 4", options=("--restart", "on-failure:1"))
    (status,) = ended(home_cli, task_id)
    assert (status["status"], status["exit_code"], status["run_count"]) == ("failed", 4, 2)
    assert (home_cli.cwd / "ran").read_text() == "again\n" * 2
    assert (home_cli.root / "tasks" / f"{task_id}.2" / "result.json").exists()
    assert "task folders: 2, all complete" in home_cli.cli("doctor").stdout
    texts = [notice["text"] for notice in home_cli.json("inbox", "--read") if notice["task_id"] == task_id]  # type: ignore[union-attr,index,call-overload]
    assert len(texts) == 1 and "exit 4, 2 times in a row" in texts[0]


def test_a_restarted_command_can_complete(home_cli: HomeCli) -> None:
    task_id = home_cli.run("sh", "-c", "mkdir tried 2>/dev/null && exit 1; exit 0", options=("--restart", "on-failure"))
    after = home_cli.run("true", options=("--after", task_id))
    one, two = ended(home_cli, task_id, after)
    assert (one["status"], one["run_count"], two["status"]) == ("completed", 2, "completed")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            ("--at", "25:00"),
            "'25:00' is not a valid time; use 18:30, 9am, tomorrow 9am, 2026-02-09, 2026-02-09 18:30 or 2026-02-09T18:30:00Z.",
        ),
        (("--at", "2020-01-01 10:00"), "'2020-01-01 10:00' is in the past."),
        (("--in", "soon"), "'soon' is not a valid duration; use 30s, 5m, 1h30m, 2 hours or 1d."),
        (("--nice", "20"), "nice must be a whole number from 0 to 19, not 20."),
        (("--memory", "lots"), "'lots' is not a valid size; use at least 1M, such as 512M or 2G."),
        (("--restart", "always"), "--restart takes on-failure or on-failure:N with N up to 1000, not 'always'."),
        (("--ready-when", "("), "'(' is neither a port nor a regular expression: missing ), unterminated subpattern at position 0."),
        (("--ready-when", "70000"), "70000 is not a valid port; use 1 to 65535."),
        (("--batch", ""), "Invalid batch '': use 1 to 200 printable characters on one line."),
        (("--key", "a\nb"), "Invalid key 'a\\nb': use 1 to 200 printable characters on one line."),
        (("--priority", "urgent"), "Argument --priority: invalid choice: 'urgent' (choose from"),
    ],
)
def test_an_invalid_option_is_rejected_in_one_sentence(home_cli: HomeCli, options: tuple[str, ...], sentence: str) -> None:
    done = home_cli.cli("run", *options, "--", "true")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith(sentence) and done.stderr.count("\n") == 1
    assert home_cli.json("list") == []


def test_a_task_after_an_expired_proposal_fails_and_its_files_show_it(home_cli: HomeCli) -> None:
    home_cli.configure(NO_TERMINAL + "proposal_expiry_hours = 0.0001\n" + CAUTIOUS)
    asked = home_cli.cli("run", "--", "rm", "-rf", "x").stdout.strip()
    waits = home_cli.run("true", options=("--after", asked))
    wait_until(lambda: home_cli.status(waits)["status"] == "failed", "the proposal to expire")
    assert home_cli.status(waits)["error"] == f"dependency {asked} was not approved in time"
    assert json.loads((home_cli.folder(waits) / "metadata.json").read_text())["status"] == "failed"
