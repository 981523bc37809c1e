"""Recurring tasks from the command line and as tools: schedules, notices, pausing, history, and refused input."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import CONFIG, HomeCli, wait_until
from mcp_client import Raw
from terminal import Terminal

from backburner import BackburnerSync


def history(home_cli: HomeCli, name: str) -> list[dict[str, Any]]:
    return home_cli.status(name)["runs"]  # type: ignore[return-value]


def new_notices(home_cli: HomeCli) -> list[str]:
    return [str(notice["text"]).splitlines()[0] for notice in home_cli.json("inbox", "--ack")]  # type: ignore[union-attr, index, call-overload]


def completed(home_cli: HomeCli, name: str, count: int) -> None:
    def enough() -> bool:
        return sum(run["status"] == "completed" for run in history(home_cli, name)) >= count

    wait_until(enough, f"{count} runs of {name}")


def ran(home_cli: HomeCli, name: str) -> dict[str, Any]:
    run_id = home_cli.ok("run-now", name).strip()

    def done() -> list[dict[str, Any]]:
        return [run for run in history(home_cli, name) if run["run_id"] == run_id and run["completed_at"]]

    wait_until(done, f"{run_id} to end")
    return done()[0]


def test_an_interval_runs_on_its_grid_and_is_in_the_history(home_cli: HomeCli) -> None:
    task_id = home_cli.ok("add", "tick", "--every", "1s", "--notify", "never", "--", "echo", "hello").strip()
    assert re.fullmatch(r"task_\d{8}_\d{6}_tick", task_id)
    completed(home_cli, "tick", 3)
    home_cli.ok("pause", "tick")
    runs = [run for run in history(home_cli, "tick") if run["status"] == "completed"]
    slots = sorted(int(str(run["slot"])[-7:-5]) for run in runs)
    assert {run["cause"] for run in runs} == {"schedule"} and len({run["slot"] for run in runs}) == len(runs)
    assert len({str(run["slot"])[-4:] for run in runs}) == 1 and len(set(slots)) == len(slots)  # the same milliseconds in every slot
    status = home_cli.status(task_id)
    assert (status["status"], status["kind"], status["interval_ms"], status["next_run_at"]) == ("paused", "scheduled", 1000, None)
    assert home_cli.log("tick") == b"hello\n"


def test_the_last_slot_of_the_only_schedule_runs_without_another_wake_up(home_cli: HomeCli) -> None:
    home_cli.ok("add", "once", "--in", "2s", "--", "echo", "hello")  # no command follows that would wake the engine
    wait_until(lambda: list((home_cli.root / "tasks").glob("*_once/result.json")), "the run to end")


def test_add_prints_the_schedule_it_understood(home_cli: HomeCli) -> None:
    done = home_cli.cli("add", "nine", "--cron", "0 9 * * 1-5", "--tz", "Europe/Berlin", "--max-runs", "3", "--", "true")
    assert re.match(r"Every weekday at 09:00 Europe/Berlin, at most 3 times; next: \w{3} [\d-]+ 09:00:00 CES?T\n", done.stderr)
    status = home_cli.status("nine")
    assert (status["cron"], status["timezone"], status["max_runs"], status["notify"]) == ("0 9 * * 1-5", "Europe/Berlin", 3, "on_change")
    assert str(status["next_run_at"]).endswith("Z") and "next in" in home_cli.ok("list")
    assert "When: every weekday at 09:00 Europe/Berlin" in home_cli.ok("status", "nine")


def test_a_dry_run_shows_the_next_five_times_and_stores_nothing(home_cli: HomeCli) -> None:
    words = ["add", "nine", "--cron", "0 9 * * 1-5", "--tz", "Europe/Berlin", "--dry-run", "--", "rm", "-rf", "build"]
    done = home_cli.cli(*words)
    first, *times, verdict = done.stdout.splitlines()
    assert done.returncode == 0 and first == "Every weekday at 09:00 Europe/Berlin" and len(times) == 5
    assert all(re.fullmatch(r"(Next: |      )\w{3} [\d-]+ 09:00:00 CES?T", line) for line in times)
    assert verdict.startswith("rm -rf build: needs approval (") and "nothing was added" in done.stderr
    shown = json.loads(home_cli.ok(*words[:-4], "--max-runs", "2", "--json", "--", "true"))
    assert len(shown["next_runs"]) == 2 and shown["commands"][0]["verdict"] == "sandbox"
    watched = home_cli.ok("add", "look", "--on", "command:rm -rf build", "--dry-run", "--", "true")
    assert watched.startswith("Each time command rm -rf build changes\n") and "rm -rf build: needs approval" in watched
    assert home_cli.json("list") == []
    home_cli.ok("add", "nine", "--every", "1h", "--", "true")
    assert re.search(r"already exists here: (task_\S+)\. To change it: backburner edit \1; to replace", home_cli.cli(*words).stderr)


def test_to_replaces_the_usual_channels(home_cli: HomeCli) -> None:
    channels = "".join(f'[channels.{name}]\ntype = "webhook"\nurl = "http://127.0.0.1:9/{name}"\n' for name in ("usual", "other"))
    home_cli.configure(f'{CONFIG}{channels}[notify]\nto = "usual"\n')
    for name, options, expected in (("a", [], ["usual"]), ("b", ["--to", "other"], ["other"]), ("c", ["--to", "inbox"], [])):
        home_cli.ok("add", name, "--every", "1d", *options, "--", "true")
        assert home_cli.status(name)["channels"] == expected
        home_cli.ok("cancel", name)


def test_add_in_runs_once_after_the_delay(home_cli: HomeCli) -> None:
    home_cli.ok("add", "soon", "--in", "1s", "--", "echo", "once")
    wait_until(lambda: home_cli.status("soon")["status"] == "done", "the only run")
    assert home_cli.status("soon")["kind"] == "oneshot" and home_cli.log("soon") == b"once\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--every", "1h"], "Nothing to run: use --prompt TEXT or write a command after `--`."),
        (["--", "true"], "Use exactly one of --every, --cron, --at, --in, --after (another task) and --on (an event)."),
        (["--every", "soon", "--", "true"], "'soon' is not a valid duration; use 30s, 5m, 1h30m, 2 hours or 1d."),
        (["--every", "10ms", "--", "true"], "'10ms' is not a valid duration; use 30s, 5m, 1h30m, 2 hours or 1d."),
        (["--every", "0.1s", "--", "true"], "The interval must be at least one second."),
        (["--cron", "* * * * * *", "--", "true"], "Invalid cron expression '* * * * * *': use five fields"),
        (["--cron", "0 0 30 2 *", "--", "true"], "Invalid cron expression '0 0 30 2 *': Bad day-of-month."),
        (["--cron", "@daily", "--tz", "Mars/Base", "--", "true"], "Unknown time zone 'Mars/Base'"),
        (["--every", "1h", "--tz", "UTC", "--", "true"], "A time zone can only be used with `cron`."),
        (["--at", "2001-01-01 10:00", "--", "true"], "'2001-01-01 10:00' is in the past."),
        (["--every", "1h", "--until", "2001-01-01 10:00", "--", "true"], "'2001-01-01 10:00' is in the past."),
        (["--every", "1h", "--max-runs", "0", "--", "true"], "The maximum number of runs must be at least 1"),
        (["--every", "1h", "--jitter", "2h", "--", "true"], "The jitter must be shorter than the interval."),
        (["--every", "1h", "--field", "x", "--", "true"], "--last-result and --tools require --prompt."),
        (["--every", "1h", "--per-day", "sheep=3", "--", "true"], "Invalid budget day_sheep = 3"),
        (["--every", "1h", "--per-day", "runs", "--", "true"], "--per-day takes NAME=NUMBER"),
        (["--every", "1h", "--after", "x", "--", "true"], "not allowed with argument"),
        (["--after", "nothing", "--", "true"], "nothing"),
    ],
)
def test_bad_input_gets_one_sentence_and_nothing_is_stored(home_cli: HomeCli, words: list[str], sentence: str) -> None:
    done = home_cli.cli("add", "x", *words)
    assert done.returncode in (2, 4) and sentence in done.stderr and len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert home_cli.json("list") == []


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 81, "   ", "\x1b[31m"])
def test_an_invalid_name_is_refused(home_cli: HomeCli, name: str) -> None:
    done = home_cli.cli("add", name, "--every", "1h", "--", "true")
    assert done.returncode == 2 and "A recurring task requires a name" in done.stderr and home_cli.json("list") == []


def test_a_sandboxed_task_is_found_by_its_name_before_its_first_run(home_cli: HomeCli) -> None:
    ids = [home_cli.ok("add", name, "--every", "1h", "--", "true").strip() for name in ("look", "look again")]
    assert [home_cli.status(name)["task_id"] for name in ("look", "look again")] == ids


def test_a_name_with_path_separators_stays_inside_the_home(home_cli: HomeCli) -> None:
    task_id = home_cli.ok("add", "../../etc/x", "--every", "1h", "--", "true").strip()
    ran(home_cli, task_id)
    assert {path.name for path in (home_cli.root / "tasks").iterdir()} == {task_id} and "/" not in task_id


def test_a_recurring_command_that_needs_approval_is_a_proposal(home_cli: HomeCli) -> None:
    done = home_cli.cli("add", "clean", "--every", "1s", "--", "rm", "-rf", "build")
    assert done.returncode == 3 and home_cli.status("clean")["status"] == "proposed" and home_cli.status("clean")["next_run_at"] is None
    shown = home_cli.ok("status", "clean")
    assert "When: every 1s" in shown and "Command: rm -rf build" in shown and "To approve: backburner approve" in shown
    (home_cli.cwd / "build").mkdir()
    home_cli.ok("approve", "clean")
    assert home_cli.status("clean")["status"] == "active" and home_cli.status("clean")["approved_by"] == "user"
    wait_until(lambda: not (home_cli.cwd / "build").exists(), "the first slot after the yes")
    assert home_cli.cli("add", "clean", "--every", "1h", "--", "true").returncode == 2


def test_a_watch_command_that_needs_approval_is_a_proposal_and_the_task_says_so(home_cli: HomeCli) -> None:
    done = home_cli.cli("add", "look", "--on", "command:rm -rf build", "--with", "every=1s", "--", "echo", "seen")
    watcher = home_cli.status("look:watch")
    assert done.returncode == 3 and f"backburner approve {watcher['task_id']}" in done.stderr and watcher["status"] == "proposed"
    assert done.stdout.strip() == home_cli.status("look")["task_id"]
    waiting = f"(waiting for approval of this command: backburner approve {watcher['task_id']})"
    assert f"When: each time command rm -rf build changes {waiting}" in home_cli.ok("status", "look")
    home_cli.ok("approve", "look:watch")
    assert "waiting for approval" not in home_cli.ok("status", "look")
    wait_until(lambda: history(home_cli, "look:watch"), "the watch command to run")
    home_cli.ok("cancel", "look")


def test_an_unanswered_watch_command_ends_with_its_task(home_cli: HomeCli) -> None:
    home_cli.cli("add", "look", "--on", "command:rm -rf build", "--", "echo", "seen")
    home_cli.ok("cancel", "look")
    assert home_cli.status("look:watch")["status"] == "rejected"
    home_cli.cli("add", "clean", "--on", "command:cat value.txt", "--", "rm", "-rf", "build")
    home_cli.ok("reject", "clean")
    assert home_cli.status("clean:watch")["status"] == "cancelled"


def test_a_rejected_watch_command_pauses_its_task(home_cli: HomeCli) -> None:
    home_cli.cli("add", "look", "--on", "command:rm -rf build", "--", "echo", "seen")
    home_cli.ok("reject", "look:watch")
    assert home_cli.status("look")["status"] == "paused" and "which it follows, is rejected" in str(
        home_cli.status("look")["paused_because"]
    )
    assert "(this command is rejected and does not run)" in home_cli.ok("status", "look")


def test_a_task_that_is_not_added_leaves_no_watch_command(home_cli: HomeCli) -> None:
    home_cli.configure(f"{CONFIG}[tasks]\nmax_active = 1\n")
    done = home_cli.cli("add", "look", "--on", "command:cat value.txt", "--", "echo", "seen")
    assert done.returncode == 2 and "already 1 active recurring tasks" in done.stderr and home_cli.json("list") == []


def test_the_watch_command_is_shown_at_the_terminal_before_the_task(home_cli: HomeCli) -> None:
    words = ["add", "look", "--on", "command:rm -rf build", "--", "rm", "-rf", "other"]
    command = [sys.executable, "-m", "backburner", *words]
    with Terminal(command, cwd=home_cli.cwd, env=home_cli.environ) as terminal:
        terminal.wait("Add this recurring task? [y/n")
        assert "rm -rf build" in terminal.text and "rm -rf other" not in terminal.text
        terminal.type("y\r")
        terminal.wait("rm -rf other")
        terminal.type("n\r")
        assert terminal.ended() == 3
    assert home_cli.json("list") == []


def test_a_rejected_recurring_task_never_runs(home_cli: HomeCli) -> None:
    home_cli.cli("add", "clean", "--every", "1s", "--", "rm", "-rf", "build")
    home_cli.ok("reject", "clean")
    assert home_cli.status("clean")["status"] == "rejected" and home_cli.status("clean")["runs"] == []


def test_a_script_changed_since_its_approval_waits_for_approval(home_cli: HomeCli) -> None:
    script = home_cli.cwd / "job.sh"
    script.write_text("echo one\n")
    home_cli.ok("add", "job", "--every", "1h", "--yes", "--", "sh", "job.sh")
    assert ran(home_cli, "job")["status"] == "completed"
    new_notices(home_cli)
    script.write_text("echo two\n")
    home_cli.ok("run-now", "job")
    wait_until(lambda: history(home_cli, "job")[0]["status"] == "waiting", "the run to wait")
    (notice,) = new_notices(home_cli)
    assert notice.startswith("job needs your approval: the command has changed since it was approved")
    home_cli.ok("approve", "job")
    wait_until(lambda: history(home_cli, "job")[0]["status"] == "completed", "the run to go on")
    assert new_notices(home_cli) == ["job: two"]


def test_on_change_notifies_of_the_first_and_of_changed_output(home_cli: HomeCli) -> None:
    value = home_cli.cwd / "value.txt"
    home_cli.ok("add", "watch", "--every", "1h", "--", "cat", "value.txt")
    for text in ("a", "a", "b", "b", "a"):
        value.write_text(text)
        ran(home_cli, "watch")
    assert new_notices(home_cli) == ["watch: a", "watch: b", "watch: a"]


def test_a_command_that_prints_nothing_is_silent_until_it_prints_and_when_it_stops(home_cli: HomeCli) -> None:
    value = home_cli.cwd / "value.txt"
    home_cli.ok("add", "watch", "--every", "1h", "--", "cat", "value.txt")
    for text in ("", "", "disk full\n", ""):
        value.write_text(text)
        ran(home_cli, "watch")
    told = new_notices(home_cli)
    assert told[0] == "watch: disk full" and len(told) == 2 and told[1].startswith("watch")
    home_cli.ok("add", "once", "--in", "1s", "--", "true")  # whoever runs something once wants to know that it ran
    wait_until(lambda: [text for text in new_notices(home_cli) if text.startswith("once")], "the notice of a task that runs once")


def test_a_notice_contains_the_whole_output_of_a_recurring_command(home_cli: HomeCli) -> None:
    lines = ["build 1 FAILED: unit tests", *(f"build {n} ok" for n in range(2, 200))]
    (home_cli.cwd / "ci.txt").write_text("\n".join(lines) + "\n")
    home_cli.ok("add", "ci", "--every", "1d", "--", "cat", "ci.txt")
    ran(home_cli, "ci")
    (notice,) = home_cli.json("inbox", "--ack")  # type: ignore[misc]
    assert notice["text"] == "ci: " + "\n".join(lines)


@pytest.mark.parametrize(("notify", "wanted"), [("always", 3), ("on_change", 1), ("on_failure", 0), ("never", 0)])
def test_notify_controls_when_a_notice_is_created(home_cli: HomeCli, notify: str, wanted: int) -> None:
    home_cli.ok("add", "echo", "--every", "1h", "--notify", notify, "--", "echo", "same")
    for _ in range(3):
        ran(home_cli, "echo")
    assert len(new_notices(home_cli)) == wanted


def test_pause_unpause_and_cancel(home_cli: HomeCli) -> None:
    home_cli.ok("add", "job", "--every", "1h", "--", "true")
    assert home_cli.ok("pause", "job").endswith("_job paused\n")
    assert home_cli.cli("pause", "job").returncode == 1
    assert "active: every 1h; next:" in home_cli.ok("unpause", "job")
    assert home_cli.cli("unpause", "job").returncode == 1
    home_cli.ok("cancel", "job")
    assert home_cli.status("job")["status"] == "cancelled"
    assert "only active or paused tasks can be run" in home_cli.cli("run-now", "job").stderr
    home_cli.ok("add", "job", "--every", "1h", "--", "true")  # the name is free again
    assert "has no schedule" in home_cli.cli("pause", home_cli.run("true")).stderr


def test_unpause_extends_a_daily_budget_that_manual_runs_have_used_up(home_cli: HomeCli) -> None:
    home_cli.ok("add", "look", "--every", "1h", "--per-day", "runs=1", "--", "echo", "x")
    for extend in (["unpause"], ["pause", "unpause", "unpause"]):  # to continue after a pause by hand does not extend the budget
        ran(home_cli, "look")
        refused = home_cli.cli("run-now", "look")
        assert refused.returncode == 2 and "it has used 1 of 1 runs today" in refused.stderr and "backburner unpause" in refused.stderr
        with Raw(home_cli) as client:
            assert "Only a person can approve" in json.dumps(client.call("task_resume", task_id="look"))
        for verb in extend:
            home_cli.ok(verb, "look")
        assert home_cli.status("look")["status"] == "active"
    ran(home_cli, "look")
    assert len([run for run in history(home_cli, "look") if run["status"] == "completed"]) == 3


def test_edit_changes_what_is_named_and_keeps_the_rest_and_the_history(home_cli: HomeCli) -> None:
    home_cli.ok("add", "job", "--every", "1d", "--max-runs", "9", "--notify", "never", "--description", "Says it", "--", "echo", "one")
    assert home_cli.ok("run-now", "job", "--wait") == "one\n"
    before = home_cli.status("job")
    shown = home_cli.ok("edit", "job", "--every", "2h", "--notify", "always")
    assert "active: every 2h" in shown
    after = home_cli.status("job")
    assert (after["task_id"], after["run_count"], after["notify"], after["command"]) == (before["task_id"], 1, "always", ["echo", "one"])
    assert str(after["when"]).startswith("every 2h, at most 9 times") and str(before["when"]).startswith("every 1d, at most 9 times")
    home_cli.ok("edit", "job", "--", "echo", "two")
    assert home_cli.ok("run-now", "job", "--wait") == "two\n" and home_cli.status("job")["description"] == "Says it"
    home_cli.ok("pause", "job")
    home_cli.ok("edit", "job", "--cron", "0 9 * * *", "--tz", "Europe/Berlin")
    assert home_cli.status("job")["status"] == "paused" and "every day at 09:00 Europe/Berlin" in home_cli.ok("unpause", "job")
    edits = [event["data"] for event in home_cli.json("events") if event["kind"] == "task_edited"]  # type: ignore[union-attr, index, call-overload]
    assert [edit["changed"] for edit in edits] == [["schedule", "notify"], ["command"], ["schedule"]] and edits[1]["by"] == "auto"


def test_an_edited_command_needs_approval_again_and_nothing_changes_without_it(home_cli: HomeCli) -> None:
    home_cli.ok("add", "job", "--every", "1d", "--", "echo", "one")
    refused = home_cli.cli("edit", "job", "--every", "1h", "--", "rm", "-rf", "made")
    assert refused.returncode == 2 and "it needs approval" in refused.stderr
    status = home_cli.status("job")
    assert status["command"] == ["echo", "one"] and str(status["when"]).startswith("every 1d")
    (home_cli.cwd / "made").mkdir()
    home_cli.ok("edit", "job", "--yes", "--", "rm", "-rf", "made")
    home_cli.ok("run-now", "job", "--wait")
    assert not (home_cli.cwd / "made").exists() and home_cli.status("job")["approved_by"] == "user"


def test_an_agent_cannot_edit_a_task(home_cli: HomeCli) -> None:
    home_cli.ok("add", "job", "--every", "1d", "--", "echo", "one")
    refused = home_cli.cli("edit", "job", "--every", "1s", env={"CLAUDECODE": "1"})
    assert refused.returncode == 3 and "Claude Code" in refused.stderr
    assert str(home_cli.status("job")["when"]).startswith("every 1d")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ((), "Nothing to change"),
        (("--prompt", "Look"), "has a command and no prompt"),
        (("--every", "1m", "--jitter", "2m"), "jitter must be shorter"),
        (("--tz", "UTC"), "only be used with `cron`"),
        (("--to", "nowhere"), "Unknown channel"),
    ],
)
def test_an_edit_that_makes_no_sense_is_refused(home_cli: HomeCli, options: tuple[str, ...], text: str) -> None:
    home_cli.ok("add", "job", "--every", "1d", "--", "true")
    done = home_cli.cli("edit", "job", *options)
    assert done.returncode == 2 and text in done.stderr


def test_only_open_recurring_tasks_are_edited_and_a_trigger_is_kept(home_cli: HomeCli) -> None:
    for task_id in (home_cli.run("true"), home_cli.ok("propose", "later", "--every", "1d", "--", "true").strip()):
        assert "cannot be edited" in home_cli.cli("edit", task_id, "--every", "1h").stderr
    home_cli.ok("add", "first", "--every", "1d", "--", "true")
    home_cli.ok("add", "next", "--after", "first", "--", "echo", "one")
    assert "runs on an event or after another task" in home_cli.cli("edit", "next", "--every", "1h").stderr
    home_cli.ok("edit", "next", "--notify", "always", "--", "echo", "two")
    home_cli.ok("run-now", "first", "--wait")
    wait_until(lambda: home_cli.status("next")["run_count"] == 1 and home_cli.status("next")["summary"] == "two", "the run after the first")


def test_repeating_a_change_says_that_it_is_already_made(home_cli: HomeCli) -> None:
    home_cli.ok("add", "look", "--every", "1h", "--", "true")
    for verb, state in (("approve", "active"), ("unpause", "active"), ("pause", ""), ("pause", "paused")):
        done = home_cli.cli(verb, "look")
        assert done.stderr == (f"The task is already {state}.\n" if state else ""), done.stderr


def test_cancelling_a_run_keeps_the_task_and_cancelling_the_task_ends_both(home_cli: HomeCli) -> None:
    home_cli.ok("add", "job", "--every", "1h", "--shell", "--yes", "--", "case $BACKBURNER_RUN_ID in *.*) sleep 60;; esac")
    ran(home_cli, "job")
    run_id = home_cli.ok("run-now", "job").strip()
    wait_until(lambda: history(home_cli, "job")[0]["status"] == "running", "the run to start")
    assert "already has a run that is running" in home_cli.cli("run-now", "job").stderr
    assert home_cli.ok("cancel", run_id) == f"Run {run_id} cancelled.\n"
    assert home_cli.status("job")["status"] == "active" and history(home_cli, "job")[0]["status"] == "cancelled"
    assert home_cli.cli("cancel", run_id).returncode == 1
    run_id = home_cli.ok("run-now", "job").strip()
    wait_until(lambda: history(home_cli, "job")[0]["status"] == "running", "the next run to start")
    other = home_cli.run("sleep", "60")
    assert sorted(home_cli.ok("cancel", run_id, other).splitlines()) == sorted([f"Run {run_id} cancelled.", f"Task {other} cancelled."])
    home_cli.ok("run-now", "job")
    wait_until(lambda: history(home_cli, "job")[0]["status"] == "running", "the last run to start")
    task_id = home_cli.status("job")["task_id"]
    assert home_cli.ok("cancel", str(task_id)) == f"Task {task_id} cancelled.\n"
    assert home_cli.status("job")["status"] == "cancelled" and history(home_cli, "job")[0]["status"] == "cancelled"
    assert not home_cli.processes("60")


def test_a_one_shot_task_runs_once_and_is_done(home_cli: HomeCli) -> None:
    soon = home_cli.ok("add", "once", "--at", "23:59", "--", "true").strip()
    assert home_cli.status(soon)["kind"] == "oneshot" and str(home_cli.status(soon)["next_run_at"])
    with Raw(home_cli) as client:
        added = client.call("task_add", name="now", description="Say it once", command="echo once", kind="oneshot")
    assert added["structuredContent"]["status"] == "active"
    wait_until(lambda: home_cli.status("now")["status"] == "done", "the one-shot to run")
    assert [run["status"] for run in history(home_cli, "now")] == ["completed"] and home_cli.log("now") == b"once\n"


def test_a_failed_run_is_retried_once_and_two_failures_pause_the_task(home_cli: HomeCli) -> None:
    home_cli.ok("add", "bad", "--every", "1h", "--", "cat", "nothing.txt")
    assert ran(home_cli, "bad")["status"] == "failed" and new_notices(home_cli) == []
    assert history(home_cli, "bad")[0]["cause"] == "retry" and home_cli.status("bad")["failures"] == 1


def test_waiting_for_a_run_that_fails_shows_its_output_and_how_it_ended(home_cli: HomeCli) -> None:
    home_cli.ok("add", "bad", "--every", "1h", "--shell", "--", "echo one; exit 4")
    done = home_cli.cli("run-now", "bad", "--wait")
    assert (done.returncode, done.stdout) == (1, "one\n") and re.search(r"_bad failed \(exit 4, \w+\): one\n", done.stderr)


def test_a_timeout_stops_a_recurring_command(home_cli: HomeCli) -> None:
    home_cli.ok("add", "slow", "--every", "1h", "--timeout", "1s", "--", "sleep", "60")
    assert ran(home_cli, "slow")["error"] == "timed out after 1s"
    assert not home_cli.processes("60")
    status = home_cli.status(home_cli.ok("add", "usual", "--every", "1h", "--", "true").strip())
    assert status["task_id"]
    assert json.loads(home_cli.ok("config", "show", "--json"))["tasks.task_timeout_ms"]["value"] == 300_000


def test_slots_during_a_run_are_skipped_with_the_reason(home_cli: HomeCli) -> None:
    home_cli.ok("add", "slow", "--every", "1s", "--notify", "never", "--", "sleep", "3")
    wait_until(lambda: any(run["status"] == "skipped" for run in history(home_cli, "slow")), "a slot to be skipped")
    home_cli.ok("cancel", "slow")
    skipped = next(run for run in history(home_cli, "slow") if run["status"] == "skipped")
    assert "is still running" in skipped["error"] and skipped["slot"] and skipped["cause"] == "schedule"
    assert "skipped" in home_cli.ok("status", "slow")


def test_schedules_continue_after_all_processes_were_killed(home_cli: HomeCli) -> None:
    home_cli.ok("add", "tick", "--every", "1s", "--notify", "never", "--", "true")
    completed(home_cli, "tick", 1)
    home_cli.stop_engine()
    before = home_cli.status("tick")["run_count"]  # the next command shows the truth, and brings an engine
    wait_until(lambda: int(str(home_cli.status("tick")["run_count"])) > int(str(before)), "the next engine to fire")


def test_disabled_recurring_tasks_do_not_run(home_cli: HomeCli) -> None:
    home_cli.configure(CONFIG + "[tasks]\nenabled = false\n")
    done = home_cli.cli("add", "tick", "--every", "1s", "--", "true")
    assert "Recurring tasks are disabled" in done.stderr
    home_cli.ok("run-now", "tick")
    wait_until(lambda: history(home_cli, "tick"), "the manual run")
    assert {run["cause"] for run in history(home_cli, "tick")} == {"manual"}


def test_compact_deletes_old_runs_except_the_latest(home_cli: HomeCli) -> None:
    home_cli.ok("add", "job", "--every", "1h", "--", "true")
    for _ in range(3):
        ran(home_cli, "job")
    assert home_cli.ok("compact") == "Deleted 0 runs.\n"
    assert home_cli.ok("compact", "job", "--days", "0") == "Deleted 2 runs.\n"
    assert len(history(home_cli, "job")) == 1 and len(list((home_cli.root / "tasks").iterdir())) == 1


def test_clear_and_restart_refuse_a_recurring_task(home_cli: HomeCli) -> None:
    home_cli.ok("add", "job", "--every", "1h", "--", "true")
    ran(home_cli, "job")
    assert "only finished tasks can be cleared" in home_cli.cli("clear", "job").stderr
    home_cli.ok("clear", "--ended")
    assert home_cli.status("job")["status"] == "active"
    assert "To run it now: backburner run-now" in home_cli.cli("restart", "job").stderr


def test_the_tools_match_the_command_line(home_cli: HomeCli) -> None:
    with Raw(home_cli) as client:
        added = client.call("task_add", name="ci", description="Watch CI", command="echo ok", interval="30m", max_runs=5)[
            "structuredContent"
        ]
        assert added["status"] == "active" and "every 30m, at most 5 times" in added["display"]
        again = client.call("task_add", name="ci", description="Watch CI", command="echo ok", interval="30m")
        assert again["isError"] and "A recurring task 'ci' already exists here" in json.dumps(again)
        proposed = client.call("task_add", name="rm", description="Clean", command="rm -rf build", cron="@daily")["structuredContent"]
        assert proposed["status"] == "proposed" and "cannot approve it for you" in proposed["display"]
        (ci,) = client.call("task_list", status="active")["structuredContent"]["tasks"]
        assert (ci["name"], ci["notify"], ci["kind"]) == ("ci", "on_change", "scheduled") and ci["next_run_at"]
        assert client.call("task_pause", task_id="ci")["structuredContent"]["status"] == "paused"
        assert client.call("task_resume", task_id="ci")["structuredContent"]["status"] == "active"
        client.call("task_run_now", task_id="ci")
        wait_until(lambda: home_cli.status("ci")["run_status"] == "completed", "the run")
        cancelled = client.call("task_cancel", task_id="ci")
        assert cancelled["structuredContent"]["status"] == "cancelled" and "ci: ok" in json.dumps(cancelled)  # the notice is this session's
        command = home_cli.run("true")
        assert "is not a recurring task. Use check_task_status" in json.dumps(client.call("task_pause", task_id=command))
        for wrong in ({"kind": "weekly"}, {"kind": "oneshot", "interval": "1h"}, {"interval": "1h", "cron": "@daily"}, {}):
            assert client.call("task_add", name="x", description="d", command="true", **wrong)["isError"], wrong


def test_the_tool_says_that_a_watch_command_waits_for_approval(home_cli: HomeCli) -> None:
    with Raw(home_cli) as client:
        source = {"kind": "event", "event_source": "command:rm -rf build", "command": "echo seen"}
        added = client.call("task_add", name="look", description="Look.", **source)["structuredContent"]
        assert added["status"] == "proposed" and added["task_id"] == home_cli.status("look")["task_id"]
        assert "waiting for approval" in added["display"] and "`rm -rf build` needs your approval" in added["display"]
    (question,) = [notice for notice in home_cli.json("inbox") if notice["kind"] == "proposed"]  # type: ignore[union-attr, index, call-overload]
    assert "rm -rf build" in str(question["text"])  # type: ignore[index, call-overload]


def test_the_tool_lists_open_tasks_and_a_next_run_only_for_active_ones(home_cli: HomeCli) -> None:
    for name in ("over", "held", "live"):
        home_cli.ok("add", name, "--every", "1h", "--", "true")
    home_cli.ok("cancel", "over")
    home_cli.ok("pause", "held")
    with Raw(home_cli) as client:
        tasks = client.call("task_list")["structuredContent"]["tasks"]
        assert [(task["name"], "next:" in task["when"]) for task in tasks] == [("live", True), ("held", False)]
        (over,) = client.call("task_list", status="cancelled")["structuredContent"]["tasks"]
        assert over["name"] == "over" and over["when"] == "every 1h"


def test_a_proposed_prompt_is_named_to_the_user(home_cli: HomeCli) -> None:
    home_cli.configure(f'{CONFIG}[models]\ndefault = "ollama:small"\n')
    with Raw(home_cli) as client:
        proposed = client.call("task_propose", name="watch-pr", description="d", prompt="Look at PR 42.", interval="1h")[
            "structuredContent"
        ]
        assert "Tell the user: watch-pr, the prompt `Look at PR 42.` for default, needs your approval" in proposed["display"]


def test_event_config_can_be_an_object_or_its_json_text(home_cli: HomeCli) -> None:
    for number, config in enumerate(({"pattern": "*.py", "debounce_ms": 50}, '{"pattern": "*.py", "debounce_ms": 50}')):
        with Raw(home_cli) as client:
            source = {"kind": "event", "event_source": "file:src", "event_config": config}
            client.call("task_add", name=f"look{number}", description="d", command="true", **source)
        assert home_cli.status(f"look{number}")["event_config"] == {
            "path": str(home_cli.cwd / "src"),
            "pattern": "*.py",
            "debounce_ms": "50",
        }


def test_who_created_a_task_and_when_it_changed_last(home_cli: HomeCli) -> None:
    home_cli.cli("propose", "mine", "--every", "1h", "--", "true")
    mine = home_cli.status("mine")
    assert (mine["created_by"], mine["updated_at"], mine["reasons"]) == ("user", mine["created_at"], ["it was proposed by a person"])
    home_cli.ok("approve", "mine")
    mine = home_cli.status("mine")
    assert mine["updated_at"] == mine["approved_at"] and "Approved: user at " in home_cli.ok("status", "mine")
    with Raw(home_cli) as client:
        client.call("task_propose", name="its", description="d", command="true", interval="1h")
    assert (home_cli.status("its")["created_by"], home_cli.status("its")["reasons"]) == ("agent", ["it was proposed by an agent"])


def test_tasks_of_different_projects_can_share_a_name(home_cli: HomeCli, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    home_cli.ok("add", "job", "--every", "1h", "--", "true")
    home_cli.ok("add", "job", "--every", "1h", "--", "pwd", cwd=other)
    home_cli.ok("run-now", "job", "--wait", cwd=other)
    wait_until(lambda: home_cli.ok("logs", "job", cwd=other) == f"{other}\n", "the other one's output")
    assert home_cli.status("job")["run_count"] == 0


def test_recurring_tasks_from_the_python_library(home_cli: HomeCli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home_cli.cwd)
    with BackburnerSync.open(home_cli.root) as bb:
        task_id = bb.add("hello", ["echo", "hello"], every="1h", notify="always").task.task_id
        assert bb.add("rm", ["rm", "-rf", "build"], cron="@daily", timezone="UTC").status == "proposed"
        bb.run_now(task_id)
        (entry,) = bb.wait(task_id, timeout=30)
        assert entry.status == "active" and [run.state for run in bb.history(task_id)] == ["completed"]
        assert [notice.text.splitlines()[0] for notice in bb.notices()] == ["hello: hello"]
        assert bb.pause(task_id).status == "paused" and bb.unpause(task_id).status == "active"
        assert bb.cancel(task_id).status == "cancelled"


def test_a_notice_that_was_not_shown_is_not_acknowledged(home_cli: HomeCli) -> None:
    value = home_cli.cwd / "value.txt"
    home_cli.ok("add", "watch", "--every", "1h", "--", "cat", "value.txt")
    value.write_text("first")
    ran(home_cli, "watch")
    value.write_text("second")
    assert home_cli.ok("run-now", "watch", "--wait") == "second"
    assert new_notices(home_cli) == ["watch: first"]  # the second was shown just now


def test_doctor_accepts_the_folders_of_all_runs(home_cli: HomeCli) -> None:
    home_cli.ok("add", "job", "--every", "1h", "--", "true")
    for _ in range(3):
        ran(home_cli, "job")
    assert "does not know" not in home_cli.cli("doctor").stdout


def test_an_unknown_time_zone_is_refused_and_nothing_is_stored(home_cli: HomeCli) -> None:
    home_cli.ok("add", "fine", "--every", "1h", "--", "true", env={"TZ": "Foo/Bar"})  # the machine's own is taken
    assert home_cli.status("fine")["status"] == "active"
    assert home_cli.cli("add", "bad", "--cron", "@daily", "--tz", "Foo/Bar", "--", "true").returncode == 2
    assert len(home_cli.json("list")) == 1  # type: ignore[arg-type]
