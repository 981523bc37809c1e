"""Chapter 7: recurring tasks, which run again and again on a schedule."""

from typing import Any

from conftest import HomeCli, wait_until


def runs(home_cli: HomeCli, name: str) -> list[dict[str, Any]]:
    """The runs of a task, the newest first."""
    found = home_cli.status(name)["runs"]
    assert isinstance(found, list)
    return found


def run_now(home_cli: HomeCli, name: str) -> dict[str, Any]:
    """Run a recurring task once by hand and wait for the end of that run."""
    run_id = home_cli.ok("run-now", name).strip()

    def ended() -> list[dict[str, Any]]:
        return [run for run in runs(home_cli, name) if run["run_id"] == run_id and run["completed_at"]]

    wait_until(ended, f"{run_id} to end")
    return ended()[0]


def test_a_task_runs_at_its_interval_until_it_is_paused(home_cli: HomeCli) -> None:
    """`add` stores a recurring task. Each scheduled time (slot) has at most one run."""
    home_cli.ok("add", "tick", "--every", "1s", "--notify", "never", "--", "echo", "hello")
    wait_until(lambda: len([run for run in runs(home_cli, "tick") if run["status"] == "completed"]) >= 2, "two runs")
    home_cli.ok("pause", "tick")
    slots = [run["slot"] for run in runs(home_cli, "tick")]
    assert len(slots) == len(set(slots))
    assert (home_cli.status("tick")["status"], home_cli.status("tick")["next_run_at"]) == ("paused", None)
    home_cli.ok("unpause", "tick")
    assert home_cli.status("tick")["status"] == "active"
    home_cli.ok("cancel", "tick")


def test_a_cron_schedule_follows_a_time_zone(home_cli: HomeCli) -> None:
    """A schedule at 09:00 stays at 09:00 when the clocks change."""
    home_cli.ok("add", "report", "--cron", "0 9 * * 1-5", "--tz", "Europe/Berlin", "--", "true")
    status = home_cli.status("report")
    assert (status["cron"], status["timezone"]) == ("0 9 * * 1-5", "Europe/Berlin") and status["next_run_at"]


def test_a_notice_is_sent_when_the_output_changes(home_cli: HomeCli) -> None:
    """This is the default, `--notify on_change`. `run-now` starts a manual run."""
    value = home_cli.cwd / "value.txt"
    home_cli.ok("add", "watch", "--every", "1h", "--", "cat", "value.txt")
    for text in ("a", "a", "b"):
        value.write_text(text)
        assert run_now(home_cli, "watch")["cause"] == "manual"
    notices = home_cli.json("inbox", "--ack")
    assert isinstance(notices, list) and len(notices) == 2


def test_a_recurring_task_that_needs_approval_is_a_proposal(home_cli: HomeCli) -> None:
    """It is approved once, with its schedule, and then runs without asking."""
    done = home_cli.cli("add", "clean", "--every", "1s", "--", "rm", "-rf", "build")
    assert done.returncode == 3 and home_cli.status("clean")["status"] == "proposed"
    (home_cli.cwd / "build").mkdir()
    home_cli.ok("approve", "clean")
    wait_until(lambda: not (home_cli.cwd / "build").exists(), "the first run")
    home_cli.ok("cancel", "clean")


def test_a_slot_is_skipped_while_the_previous_run_is_active(home_cli: HomeCli) -> None:
    """Skipped slots stay in the history with the reason."""
    home_cli.ok("add", "slow", "--every", "1s", "--notify", "never", "--", "sleep", "3")
    wait_until(lambda: any(run["status"] == "skipped" for run in runs(home_cli, "slow")), "a skipped slot")
    home_cli.ok("cancel", "slow")
    assert next(run for run in runs(home_cli, "slow") if run["status"] == "skipped")["error"]
