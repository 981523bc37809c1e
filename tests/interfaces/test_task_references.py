"""Task IDs: which task a reference means, and where IDs appear in errors."""

import json

from conftest import Place


def test_the_id_of_a_cleared_task_does_not_match_another_task(place: Place) -> None:
    place.ok("run", "--wait", "--name", "a", "--", "true")
    first = str(place.status("last")["task_id"])
    other = place.run("sleep", "600", options=("--name", f"x-{first}"))
    assert first in other
    place.ok("clear", first)
    assert place.cli("cancel", first).returncode == 4 and place.cli("cancel", "").returncode == 4
    place.ok("cancel", other)


def test_the_json_error_of_a_proposal_contains_its_id(place: Place) -> None:
    error = json.loads(place.cli("run", "--json", "--", "install", "-d", "x").stderr)["error"]
    assert error["code"] == "approval_required" and place.status(error["task_id"])["status"] == "proposed"
