"""Backups of a home whose commands end every few milliseconds: each restores every task whose end was reported before it began."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import CONFIG, LONG, HomeCli
from recorder import query

_SUBMIT = """
import select, sys
from backburner import BackburnerSync
with BackburnerSync.open() as client:
    while not select.select([sys.stdin], [], [], 0)[0]:
        tasks = [client.submit(["echo", str(number)], approved=True).task.task_id for number in range(20)]
        client.wait(*tasks)
"""
ROUNDS, HOMES = 4, 25 if LONG else 1


@pytest.mark.parametrize("number_of_home", range(HOMES))
def test_every_task_reported_before_a_backup_is_in_it(home_cli: HomeCli, tmp_path: Path, number_of_home: int) -> None:
    home_cli.configure(f"{CONFIG}[commands]\nmax_concurrent = 4\n")
    home_cli.finish("echo", "first")
    load = subprocess.Popen([sys.executable, "-c", _SUBMIT], env=home_cli.environ, cwd=home_cli.cwd, stdin=subprocess.PIPE)
    try:
        backups = []
        for number in range(ROUNDS):
            reported = {row[0] for row in query(home_cli, "SELECT task_id FROM notices WHERE kind = 'ended'")}
            home_cli.ok("backup", str(tmp_path / f"b{number}"))
            backups.append(reported)
    finally:
        load.communicate()
    assert load.returncode == 0
    home_cli.stop_all()
    for number, reported in enumerate(backups):
        restored = HomeCli(tmp_path / f"restored{number}", home_cli.cwd)
        restored.environ["BACKBURNER_HOME"] = str(restored.root)
        restored.ok("restore", str(tmp_path / f"b{number}"))
        rows = query(restored, "SELECT t.task_id, r.state FROM tasks t JOIN runs r ON r.task_id = t.task_id")
        ended = {task_id for task_id, state in rows if state in ("completed", "failed", "cancelled")}
        assert reported and not reported - ended, number
        assert len(ended) == len(rows), number  # nothing of it runs a second time
        for task_id in reported:
            metadata = json.loads((restored.folder(task_id) / "metadata.json").read_text())
            assert metadata["task_id"] == task_id and (restored.folder(task_id) / "output.log").exists()
        assert query(restored, "PRAGMA integrity_check") == [("ok",)]
