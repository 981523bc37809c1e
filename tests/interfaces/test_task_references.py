"""Task IDs: which task a reference means, and where IDs appear in errors."""

import json

from conftest import HomeCli, wait_until


def test_the_id_of_a_cleared_task_does_not_match_another_task(home_cli: HomeCli) -> None:
    home_cli.ok("run", "--wait", "--name", "a", "--", "true")
    first = str(home_cli.status("last")["task_id"])
    other = home_cli.run("sleep", "600", options=("--name", f"x-{first}"))
    assert first in other
    home_cli.ok("clear", first)
    assert home_cli.cli("cancel", first).returncode == 4 and home_cli.cli("cancel", "").returncode == 4
    home_cli.ok("cancel", other)


def test_the_json_error_of_a_proposal_contains_its_id(home_cli: HomeCli) -> None:
    error = json.loads(home_cli.cli("run", "--json", "--", "install", "-d", "x").stderr)["error"]
    assert error["code"] == "approval_required" and home_cli.status(error["task_id"])["status"] == "proposed"


def test_a_label_that_is_used_again_means_its_newest_task(home_cli: HomeCli) -> None:
    first = home_cli.finish("echo", "one", options=("--name", "tests"))["task_id"]
    home_cli.finish("echo", "two", options=("--name", "tests"))
    assert home_cli.ok("logs", "tests") == "two\n"
    home_cli.ok("restart", str(first), "--wait")
    assert home_cli.ok("logs", "tests") == "one\n"
    assert f"Restarted from: {first}" in home_cli.ok("status", "tests")


def test_a_part_of_several_ids_lists_them_with_their_status(home_cli: HomeCli) -> None:
    first, second = home_cli.finish("true")["task_id"], home_cli.finish("false")["task_id"]
    error = home_cli.cli("status", "task_").stderr
    expected = [f"  {second} (failed)", f"  {first} (completed)"]
    assert error.splitlines() == ["'task_' matches several tasks; use a longer part of the ID:", *expected]


def test_without_an_id_the_last_task_is_meant(home_cli: HomeCli) -> None:
    for verb in ("logs", "status", "wait", "cancel"):
        done = home_cli.cli(verb)
        assert (done.returncode, done.stderr) == (4, "There are no tasks in this project yet.\n")
    home_cli.finish("echo", "one")
    task_id = home_cli.run("sh", "-c", "echo two; sleep 600")
    assert f"Task: {task_id}" in home_cli.ok("status")
    wait_until(lambda: home_cli.ok("logs") == "two\n", "the output")
    assert home_cli.ok("cancel") == f"Task {task_id} cancelled.\n"
    assert home_cli.cli("cancel").returncode == 1
    done = home_cli.cli("wait")
    assert done.returncode == 1 and task_id in done.stdout


def test_an_answer_without_an_id_names_what_is_waiting(home_cli: HomeCli) -> None:
    for verb in ("approve", "reject"):
        done = home_cli.cli(verb)
        assert (done.returncode, done.stderr) == (2, "Nothing is waiting for approval in this project.\n")
    task_ids = [home_cli.cli("run", "--name", name, "--", "rm", "-r", "x").stdout.strip() for name in ("a", "b")]
    for verb in ("approve", "reject"):
        done = home_cli.cli(verb)
        assert (done.returncode, done.stderr) == (2, f"Which task? Waiting for approval: {', '.join(sorted(task_ids))}\n")
    assert {home_cli.status(task_id)["status"] for task_id in task_ids} == {"proposed"}
