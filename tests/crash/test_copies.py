"""Copies of a home and of its ledger."""

import shutil
import signal
from pathlib import Path

import apsw
import pytest
from conftest import CONFIG, HomeCli, wait_until
from recorder import query

from backburner.system import processes


def names(ledger: Path) -> list[str]:
    db = apsw.Connection(str(ledger))
    try:
        return [row[0] for row in db.execute("SELECT description FROM tasks ORDER BY seq")]
    finally:
        db.close()


def run(home_cli: HomeCli, name: str) -> None:
    assert home_cli.finish("echo", name, options=("--description", name))["status"] == "completed"


def test_a_copy_of_the_ledger_file_is_complete_after_an_idle_exit(home_cli: HomeCli, tmp_path: Path) -> None:
    home_cli.configure(f"{CONFIG}[engine]\nidle_exit_seconds = 0.2\n")
    for name in ("one", "two"):
        run(home_cli, name)
    wait_until(lambda: not home_cli.processes(str(home_cli.root)), "the engine to leave")
    shutil.copy(home_cli.root / "ledger.db", tmp_path / "copy.db")
    assert names(tmp_path / "copy.db") == ["one", "two"]


@pytest.mark.parametrize("state", ["the engine runs", "the engine left", "everything was killed"])
def test_a_home_is_backed_up_and_restored(home_cli: HomeCli, tmp_path: Path, state: str) -> None:
    run(home_cli, "before")
    if state == "the engine left":
        home_cli.stop_engine()
    elif state == "everything was killed":
        for one in home_cli.processes():
            processes.send(one, signal.SIGKILL)
        wait_until(lambda: not home_cli.processes(), "all to be dead")
    home_cli.ok("backup", str(tmp_path / "backup"))
    run(home_cli, "after")
    if engine := home_cli.engine:
        refused = home_cli.cli("restore", str(tmp_path / "backup"))
        assert refused.returncode == 1 and f"is in use by its engine (pid {engine.pid})" in refused.stderr
    home_cli.stop_all()
    home_cli.ok("restore", str(tmp_path / "backup"))
    shown = home_cli.json("list")
    assert isinstance(shown, list) and [one["description"] for one in shown] == ["before"]
    run(home_cli, "later")
    assert query(home_cli, "PRAGMA integrity_check") == [("ok",)]
    assert names(Path(f"{home_cli.root}.replaced") / "ledger.db") == ["before", "after"]
    assert home_cli.cli("doctor").returncode == 0


def test_a_running_command_prevents_a_restore(home_cli: HomeCli, tmp_path: Path) -> None:
    home_cli.ok("backup", str(tmp_path / "backup"))
    task_id = home_cli.run("sleep", "1000")
    wait_until(lambda: home_cli.status(task_id)["status"] == "running", "the command to run")
    home_cli.stop_engine()
    refused = home_cli.cli("restore", str(tmp_path / "backup"))
    assert refused.returncode == 1 and "Nothing was changed" in refused.stderr
    home_cli.ok("cancel", task_id)
