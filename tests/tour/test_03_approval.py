"""Chapter 3: commands that are not known to be harmless need the approval of a person."""

import sys
from pathlib import Path

import pytest
from conftest import HomeCli

from backburner import ApprovalRequired, BackburnerSync, TaskRunner, TaskStorage


def test_check_shows_the_verdict_and_runs_nothing(home_cli: HomeCli) -> None:
    """The gate parses the command line and decides: allow, ask or deny."""
    (home_cli.cwd / "build").mkdir()
    assert home_cli.cli("check", "--", "ls", "-l").returncode == 0  # allow
    assert home_cli.cli("check", "--", "rm", "-rf", "build").returncode == 3  # ask
    assert (home_cli.cwd / "build").exists()


def test_without_a_terminal_a_command_that_needs_approval_becomes_a_proposal(home_cli: HomeCli) -> None:
    """Exit code 3 means: nothing was started, a person must approve it first."""
    done = home_cli.cli("run", "--", "install", "-d", "made")
    task_id = done.stdout.strip()
    assert done.returncode == 3 and home_cli.status(task_id)["status"] == "proposed"
    assert not (home_cli.cwd / "made").exists()

    home_cli.ok("approve", task_id)
    home_cli.ok("wait", task_id)
    assert (home_cli.cwd / "made").exists()


def test_a_rejected_command_never_runs(home_cli: HomeCli) -> None:
    """A proposal can be answered once."""
    task_id = home_cli.cli("run", "--", "install", "-d", "made").stdout.strip()
    home_cli.ok("reject", task_id)
    assert home_cli.cli("approve", task_id).returncode != 0
    assert home_cli.status(task_id)["status"] == "rejected" and not (home_cli.cwd / "made").exists()


def test_a_command_that_runs_as_a_task_cannot_approve(home_cli: HomeCli) -> None:
    """Otherwise an agent could approve its own proposals."""
    proposal = home_cli.cli("run", "--", "install", "-d", "made").stdout.strip()
    status = home_cli.finish(sys.executable, "-m", "backburner", "approve", proposal)
    assert status["exit_code"] == 3 and not (home_cli.cwd / "made").exists()
    assert home_cli.status(proposal)["status"] == "proposed"


def test_a_changed_script_needs_a_new_approval(home_cli: HomeCli) -> None:
    """An approval covers the command and the script that it names, as they were shown."""
    script = home_cli.cwd / "job.sh"
    script.write_text("echo one\n")
    task_id = home_cli.cli("run", "--in", "1h", "--", "sh", "job.sh").stdout.strip()
    script.write_text("echo two\n")
    done = home_cli.cli("approve", task_id)
    assert done.returncode != 0 and "changed" in done.stderr


def test_a_python_program_can_pass_on_the_answer_of_a_person(home_cli: HomeCli) -> None:
    """`approve` is for a program that has asked its user."""
    with BackburnerSync.open(home_cli.root) as bb:
        entry = bb.submit(["install", "-d", "made"], cwd=home_cli.cwd)
        assert entry.status == "proposed" and not (home_cli.cwd / "made").exists()
        bb.approve(entry.task.task_id)
        (entry,) = bb.wait(entry.task.task_id)
        assert entry.status == "completed" and (home_cli.cwd / "made").exists()


async def test_an_embedded_runner_refuses_what_nobody_approved(tmp_path: Path) -> None:
    """With `approved_by="auto"` the gate decides, and there is nobody to ask."""
    runner = TaskRunner(TaskStorage(tmp_path / "tasks"), max_concurrent=2)
    with pytest.raises(ApprovalRequired):
        await runner.start_task(["install", "-d", "made"], str(tmp_path), "Nobody asked a person", approved_by="auto")
    await runner.close()
