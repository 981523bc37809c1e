"""Task IDs: which task a reference means, and where IDs appear in errors."""

import json

from conftest import HomeCli


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
