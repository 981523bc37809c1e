"""Batches, dependencies, keys, priorities, delays, limits and restarts, through the command line."""

import json
import time

import pytest
from conftest import CONFIG, Place, wait_until


def ended(place: Place, *task_ids: str) -> list[dict[str, object]]:
    place.cli("wait", *task_ids, "--timeout", "30")
    return [place.status(task_id) for task_id in task_ids]


def test_a_task_starts_after_its_dependencies(place: Place) -> None:
    gate = place.cwd / "gate"
    first = place.run("sh", "-c", f"while [ ! -e {gate} ]; do sleep 0.05; done", options=("--name", "first"))
    second = place.run("sh", "-c", "true", options=("--after", "first", "--name", "second"))
    third = place.run("true", options=("--after", first, "--after", "second"))
    assert str(place.status(third)["waits_for"]) == f"{first} (running), {second} (pending)"
    gate.touch()
    one, two, three = ended(place, first, second, third)
    assert [one["status"], two["status"], three["status"]] == ["completed"] * 3
    assert str(one["completed_at"]) <= str(two["started_at"]) and str(two["completed_at"]) <= str(three["started_at"])
    assert three["after"] == [first, second]


@pytest.mark.parametrize(("code", "how"), [(3, "failed"), (None, "was cancelled")])
def test_a_task_fails_with_the_reason_if_a_dependency_does_not_complete(place: Place, code: int | None, how: str) -> None:
    first = place.run(*(("sh", "-c", f"sleep 0.5; exit {code}") if code is not None else ("sleep", "60")))
    second = place.run("true", options=("--after", first))
    third = place.run("true", options=("--after", second))
    if code is None:
        place.ok("cancel", first)
    two, three = ended(place, second, third)
    assert (two["status"], two["result"], two["error"]) == ("failed", "dependency", f"dependency {first} {how}")
    assert (three["status"], three["error"]) == ("failed", f"dependency {second} failed")
    assert two["started_at"] is None
    written = json.loads((place.folder(second) / "metadata.json").read_text())
    assert (written["status"], written["result"]) == ("failed", "dependency")
    assert json.loads((place.folder(third) / "result.json").read_text())["error"] == three["error"]
    late = place.run("true", options=("--after", first))
    assert place.status(late)["error"] == two["error"]


SHOW = 'tail -n 1 "$BACKBURNER_AFTER_LOG"; grep exit_code "$BACKBURNER_AFTER_RESULT"; echo "$BACKBURNER_AFTER_RUN_ID"'


def test_a_dependent_task_gets_copies_of_the_results(place: Place) -> None:
    first = place.run("echo", "the number is 42")
    change = 'for file in "$BACKBURNER_AFTER_LOG" "$BACKBURNER_AFTER_RESULT"; do chmod u+w "$file"; echo forged > "$file"; done'
    script = f'stat -c %a "$BACKBURNER_AFTER_LOG" "$BACKBURNER_AFTER_RESULT"; {SHOW}; {change}'
    second = place.run("sh", "-c", script, options=("--after", first))
    ended(place, second)
    third = place.run("sh", "-c", SHOW, options=("--after", first))
    ended(place, third)
    shown = f'the number is 42\n  "exit_code": 0,\n{first}\n'.encode()
    assert place.log(second) == b"444\n444\n" + shown and place.log(third) == shown
    assert place.log(first) == b"the number is 42\n"
    assert json.loads((place.folder(first) / "result.json").read_text())["exit_code"] == 0
    assert place.status(second)["artifacts"] == []


def test_a_restarted_command_gets_the_same_results_after_they_are_cleared(place: Place) -> None:
    first = place.run("echo", "the number is 42")
    script = f"{SHOW}; [ -e tried ] && exit 0; touch tried; while [ ! -e cleared ]; do sleep 0.05; done; exit 1"
    second = place.run("sh", "-c", script, options=("--after", first, "--restart", "on-failure"))
    wait_until((place.cwd / "tried").exists, "the first try")
    place.ok("clear", first)
    (place.cwd / "cleared").touch()
    (status,) = ended(place, second)
    assert (status["status"], status["run_count"]) == ("completed", 2)
    shown = f'the number is 42\n  "exit_code": 0,\n{first}\n'
    assert place.ok("logs", second, "--run", "1") == place.ok("logs", second, "--run", "2") == shown


def test_a_command_that_was_taken_over_keeps_the_results_it_got(place: Place) -> None:
    first = place.run("echo", "the number is 42")
    second = place.run("sh", "-c", f"touch begun; while [ ! -e go ]; do sleep 0.05; done; {SHOW}", options=("--after", first))
    wait_until((place.cwd / "begun").exists, "the command")
    place.kill_engine()
    place.ok("clear", first)
    (place.cwd / "go").touch()
    (status,) = ended(place, second)
    assert status["status"] == "completed" and place.log(second).startswith(b"the number is 42\n")


def test_a_task_cannot_depend_on_itself_or_on_an_unknown_task(place: Place) -> None:
    itself = place.cli("run", "--name", "loop", "--after", "loop", "--", "true")
    assert (itself.returncode, itself.stderr) == (2, "'loop' cannot run after itself, and there is no other task of that name.\n")
    unknown = place.cli("run", "--after", "nobody", "--", "true")
    assert (unknown.returncode, unknown.stderr) == (4, "Task nobody not found.\n")
    assert place.json("list") == []


def test_a_batch_can_be_listed_awaited_cancelled_and_cleared(place: Place) -> None:
    mine = [place.run("sleep", "60", options=("--batch", "nightly")) for _ in range(2)]
    other = place.run("true")
    assert {task["task_id"] for task in place.json("list", "--batch", "nightly")} == set(mine)  # type: ignore[union-attr,index,call-overload]
    wait_until(lambda: place.json("batch")[0]["counts"] == {"running": 2}, "both to run")  # type: ignore[index,call-overload]
    assert place.ok("batch") == "nightly  2 running\n"
    timed_out = place.cli("wait", "--batch", "nightly", "--timeout", "0.1")
    assert timed_out.returncode == 124
    place.ok("cancel", "--batch", "nightly")
    assert place.cli("wait", "--batch", "nightly").returncode == 1
    assert place.ok("clear", "--batch", "nightly") == "Cleared 2 tasks.\n"
    place.ok("wait", other)
    gone = place.cli("wait", "--batch", "nightly")
    assert (gone.returncode, gone.stderr) == (4, "Batch 'nightly' not found. See: backburner batch\n")


def test_a_key_starts_its_command_only_once(place: Place) -> None:
    first = place.run("sh", "-c", "echo once >> ran", options=("--key", "k"))
    place.ok("wait", first)
    again = place.cli("run", "--yes", "--key", "k", "--", "sh", "-c", "echo once >> ran")
    assert (again.returncode, again.stdout.strip()) == (0, first)
    assert f"Key 'k' is already used by task {first} (completed); nothing new was started." in again.stderr
    other = place.cli("run", "--key", "k", "--", "true")
    assert other.returncode == 2 and first in other.stderr
    assert (place.cwd / "ran").read_text() == "once\n"


def test_a_key_that_waits_for_approval_is_not_proposed_twice(place: Place) -> None:
    words = ("run", "--key", "k", "--", "rm", "-rf", "x")
    assert [place.cli(*words).returncode for _ in range(2)] == [3, 3]
    assert len(place.json("list")) == 1  # type: ignore[arg-type]


def test_many_processes_with_the_same_key_start_one_task(place: Place) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(8) as pool:
        task_ids = list(pool.map(lambda _: place.ok("run", "--key", "k", "--", "true").strip(), range(8)))
    assert len(set(task_ids)) == 1 and len(place.json("list")) == 1  # type: ignore[arg-type]


def test_tasks_with_high_priority_start_first(place: Place) -> None:
    place.configure(CONFIG + "[commands]\nmax_concurrent = 1\n")
    blocker = place.run("sleep", "60")
    tasks = [place.run("true", options=("--priority", priority)) for priority in ("low", "normal", "high", "high")]
    place.ok("cancel", blocker)
    started = {task_id: str(status["started_at"]) for task_id, status in zip(tasks, ended(place, *tasks), strict=True)}
    events = [event["task_id"] for event in place.json("events") if event["kind"] == "run_started"]  # type: ignore[union-attr,index,call-overload]
    assert all(started.values())
    assert events[1:] == [tasks[2], tasks[3], tasks[1], tasks[0]]


def test_a_delayed_task_waits_for_its_start_time(place: Place) -> None:
    task_id = place.run("true", options=("--in", "1.5s"))
    status = place.status(task_id)
    assert status["status"] == "pending" and str(status["waits_for"]).endswith("(in 1s)")
    due = str(status["next_run_at"])
    place.ok("wait", task_id)
    assert str(place.status(task_id)["started_at"]) >= due
    tomorrow = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 86400))
    later = place.run("true", options=("--at", tomorrow))
    assert place.status(later)["next_run_at"] == tomorrow.replace("Z", ".000Z")
    place.ok("cancel", later)


def test_nothing_starts_while_too_little_memory_is_free(place: Place) -> None:
    place.configure(CONFIG + "[commands]\nmin_free_memory_mb = 1000000\n")
    task_id = place.run("true")
    assert "MiB free, 1000000 MiB required" in str(place.status(task_id)["waits_for"])
    place.configure(CONFIG + "[commands]\nmin_free_memory_mb = 1\n")
    place.ok("wait", task_id, "--timeout", "20")


def test_resource_limits_apply_to_the_command(place: Place) -> None:
    script = "import resource as r; print(r.getrlimit(r.RLIMIT_DATA)[0] >> 20, r.getrlimit(r.RLIMIT_CPU), __import__('os').nice(0))"
    task_id = place.run("python3", "-c", script, options=("--memory", "1.5G", "--cpu-time", "2m", "--nice", "7"))
    place.ok("wait", task_id)
    assert place.log(task_id) == b"1536 (120, 125) 7\n"
    assert place.status(task_id)["limits"] == {"memory_mb": 1536, "cpu_seconds": 120, "nice": 7}


def test_a_command_that_exceeds_its_cpu_time_fails_with_the_reason(place: Place) -> None:
    status = place.finish("sh", "-c", "while :; do :; done", options=("--cpu-time", "1s"))
    assert (status["status"], status["exit_code"], status["error"]) == ("failed", 152, "it used up its CPU time of 1s")


def test_a_failing_command_is_restarted_and_ends_with_one_notice(place: Place) -> None:
    (place.cwd / "ran").touch()
    task_id = place.run("sh", "-c", "echo again >> ran; exit 4", options=("--restart", "on-failure:1"))
    (status,) = ended(place, task_id)
    assert (status["status"], status["exit_code"], status["run_count"]) == ("failed", 4, 2)
    assert (place.cwd / "ran").read_text() == "again\n" * 2
    assert (place.root / "tasks" / f"{task_id}.2" / "result.json").exists()
    texts = [notice["text"] for notice in place.json("inbox", "--read") if notice["task_id"] == task_id]  # type: ignore[union-attr,index,call-overload]
    assert len(texts) == 1 and "exit 4, 2 times in a row" in texts[0]


def test_a_restarted_command_can_complete(place: Place) -> None:
    task_id = place.run("sh", "-c", "mkdir tried 2>/dev/null && exit 1; exit 0", options=("--restart", "on-failure"))
    after = place.run("true", options=("--after", task_id))
    one, two = ended(place, task_id, after)
    assert (one["status"], one["run_count"], two["status"]) == ("completed", 2, "completed")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--at", "25:00"), "'25:00' is not a valid time; use 18:30, 2026-02-09 18:30 or 2026-02-09T18:30:00Z."),
        (("--at", "2020-01-01 10:00"), "'2020-01-01 10:00' is in the past."),
        (("--in", "soon"), "'soon' is not a valid duration; use 30s, 5m, 2h or 1d."),
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
def test_an_invalid_option_is_rejected_in_one_sentence(place: Place, options: tuple[str, ...], sentence: str) -> None:
    done = place.cli("run", *options, "--", "true")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith(sentence) and done.stderr.count("\n") == 1
    assert place.json("list") == []


def test_a_task_after_an_expired_proposal_fails_and_its_files_show_it(place: Place) -> None:
    place.configure(CONFIG + "proposal_expiry_hours = 0.0001\n")
    asked = place.cli("run", "--", "rm", "-rf", "x").stdout.strip()
    waits = place.run("true", options=("--after", asked))
    wait_until(lambda: place.status(waits)["status"] == "failed", "the proposal to expire")
    assert place.status(waits)["error"] == f"dependency {asked} was not approved in time"
    assert json.loads((place.folder(waits) / "metadata.json").read_text())["status"] == "failed"
