"""A newer version opens the home of an engine that is still running: the ledger is upgraded, and the engine replaced."""

import apsw
from conftest import Place, wait_until

from backburner.system import processes


def to_version_11(place: Place) -> None:
    """Give the ledger the schema of before, as the engine that runs would know it."""
    db = apsw.Connection(place.home.ledger)
    db.set_busy_timeout(10_000)
    db.execute(
        "BEGIN IMMEDIATE; ALTER TABLE runs RENAME COLUMN wait_target TO waits_on; ALTER TABLE runs DROP COLUMN wait_kind;"
        " PRAGMA user_version = 11; COMMIT"
    )
    db.close()


def test_an_engine_of_an_older_version_is_replaced_and_its_command_taken_over(place: Place) -> None:
    gate = place.cwd / "gate"
    task_id = place.run("sh", "-c", f"while [ ! -e {gate} ]; do sleep 0.05; done; exit 7")
    wait_until(lambda: place.status(task_id)["pid"], "the command to run")
    before = place.engine
    assert before is not None
    to_version_11(place)
    assert place.status(task_id)["status"] == "running"
    wait_until(lambda: place.engine not in (None, before), "another engine")
    assert not processes.is_alive(before)
    assert place.finish("echo", "after")["status"] == "completed"
    gate.touch()
    place.cli("wait", task_id, "--timeout", "60")
    ended = place.status(task_id)
    assert (ended["status"], ended["exit_code"]) == ("failed", 7)
