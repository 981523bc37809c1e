"""Copies of a home and of its ledger, made and restored as documented."""

import re
import shutil
import signal
import subprocess
from pathlib import Path

import apsw
import pytest
from conftest import CONFIG, HomeCli, wait_until
from recorder import query

from backburner.system import processes

DOCS = Path(__file__).parents[2] / "docs" / "operate.md"


def documented_commands(number: int) -> str:
    """A block of commands from the documentation's section on copies."""
    section = DOCS.read_text().partition("## Backup and restore\n")[2].partition("\n## ")[0]
    return re.findall(r"```sh\n(.*?)```", section, re.DOTALL)[number]


def run_as_user(home_cli: HomeCli, commands: str) -> None:
    """Run commands as a user would, with a home in the default location."""
    person = Path(home_cli.environ["HOME"])
    person.mkdir(exist_ok=True)
    if not (person / ".backburner").exists():
        (person / ".backburner").symlink_to(home_cli.root)
    done = subprocess.run(["sh", "-ec", commands], env=home_cli.environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


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
def test_a_home_is_copied_and_restored_as_documented(home_cli: HomeCli, state: str) -> None:
    def reach() -> None:
        if state == "the engine left":
            home_cli.stop_engine()
        elif state == "everything was killed":
            for one in home_cli.processes():
                processes.send(one, signal.SIGKILL)
            wait_until(lambda: not home_cli.processes(), "all to be dead")

    run(home_cli, "before")
    reach()
    run_as_user(home_cli, documented_commands(0))
    run(home_cli, "after")
    reach()
    run_as_user(home_cli, documented_commands(1))
    shown = home_cli.json("list")
    assert isinstance(shown, list) and [one["description"] for one in shown] == ["before"]
    run(home_cli, "later")
    assert query(home_cli, "PRAGMA integrity_check") == [("ok",)]
    assert names(home_cli.root / "replaced" / "ledger.db") == ["before", "after"]
