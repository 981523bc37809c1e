"""Chapter 7: recurring tasks, which run again and again on a schedule."""

from typing import Any

from conftest import Place, wait_until


def runs(place: Place, name: str) -> list[dict[str, Any]]:
    """The runs of a task, the newest first."""
    found = place.status(name)["runs"]
    assert isinstance(found, list)
    return found


def run_now(place: Place, name: str) -> dict[str, Any]:
    """Run a recurring task once by hand and wait for the end of that run."""
    run_id = place.ok("run-now", name).strip()

    def ended() -> list[dict[str, Any]]:
        return [run for run in runs(place, name) if run["run_id"] == run_id and run["completed_at"]]

    wait_until(ended, f"{run_id} to end", 30)
    return ended()[0]


def test_a_task_runs_at_its_interval_until_it_is_paused(place: Place) -> None:
    """`add` stores a recurring task. Each scheduled time (slot) has at most one run."""
    place.ok("add", "tick", "--every", "1s", "--notify", "never", "--", "echo", "hello")
    wait_until(lambda: len([run for run in runs(place, "tick") if run["status"] == "completed"]) >= 2, "two runs", 30)
    place.ok("pause", "tick")
    slots = [run["slot"] for run in runs(place, "tick")]
    assert len(slots) == len(set(slots))
    assert (place.status("tick")["status"], place.status("tick")["next_run_at"]) == ("paused", None)
    place.ok("unpause", "tick")
    assert place.status("tick")["status"] == "active"
    place.ok("cancel", "tick")


def test_a_cron_schedule_follows_a_time_zone(place: Place) -> None:
    """A schedule at 09:00 stays at 09:00 when the clocks change."""
    place.ok("add", "report", "--cron", "0 9 * * 1-5", "--tz", "Europe/Berlin", "--", "true")
    status = place.status("report")
    assert (status["cron"], status["timezone"]) == ("0 9 * * 1-5", "Europe/Berlin") and status["next_run_at"]


def test_a_notice_is_sent_when_the_output_changes(place: Place) -> None:
    """This is the default, `--notify on_change`. `run-now` starts a manual run."""
    value = place.cwd / "value.txt"
    place.ok("add", "watch", "--every", "1h", "--", "cat", "value.txt")
    for text in ("a", "a", "b"):
        value.write_text(text)
        assert run_now(place, "watch")["cause"] == "manual"
    notices = place.json("inbox", "--ack")
    assert isinstance(notices, list) and len(notices) == 2


def test_a_recurring_task_that_needs_approval_is_a_proposal(place: Place) -> None:
    """It is approved once, with its schedule, and then runs without asking."""
    done = place.cli("add", "clean", "--every", "1s", "--", "rm", "-rf", "build")
    assert done.returncode == 3 and place.status("clean")["status"] == "proposed"
    (place.cwd / "build").mkdir()
    place.ok("approve", "clean")
    wait_until(lambda: not (place.cwd / "build").exists(), "the first run")
    place.ok("cancel", "clean")


def test_a_slot_is_skipped_while_the_previous_run_is_active(place: Place) -> None:
    """Skipped slots stay in the history with the reason."""
    place.ok("add", "slow", "--every", "1s", "--notify", "never", "--", "sleep", "3")
    wait_until(lambda: any(run["status"] == "skipped" for run in runs(place, "slow")), "a skipped slot", 30)
    place.ok("cancel", "slow")
    assert next(run for run in runs(place, "slow") if run["status"] == "skipped")["error"]
