"""What a command inherits: its environment, umask, signals and working directory."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import HomeCli

from backburner import TaskRunner, TaskStorage

ME = f"{sys.executable} -m backburner"


def _sh(home_cli: HomeCli, line: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(line, shell=True, env=home_cli.environ, cwd=home_cli.cwd, capture_output=True, text=True, timeout=40)


def test_variable_names_that_no_shell_accepts_reach_the_command(home_cli: HomeCli) -> None:
    names = {"A.B": "1", "x y": "2", "BASH_FUNC_f%%": "() { :; }", "OPTIND": "abc", "PPID": "7"}
    options = tuple(word for name, value in names.items() for word in ("--env", f"{name}={value}"))
    done = home_cli.finish(sys.executable, "-c", "import os,json; print(json.dumps(dict(os.environ)))", options=options)
    seen = json.loads(home_cli.log(str(done["task_id"])))
    assert {name: seen.get(name) for name in names} == names


def test_a_command_ignores_no_signals_and_has_the_callers_umask(home_cli: HomeCli) -> None:
    home_cli.ok("run", "--wait", "--", "true")
    done = _sh(home_cli, f"umask 027; {ME} run --yes --wait --shell -- 'umask; grep SigIgn /proc/self/status'")
    umask, _, ignored = done.stdout.split()
    own = 1 << 31 | 1 << 32  # of the C library, which ignores them in a process that it spawned and uses them as soon as it needs them
    assert (umask, int(ignored, 16) & ~own) == ("0027", 0)


def test_messages_of_the_shell_are_not_part_of_the_output(home_cli: HomeCli) -> None:
    home_cli.cli("run", "--wait", "--timeout", "0.2", "--", "sleep", "600")
    assert home_cli.log("last") == b""


async def test_an_embedded_command_gets_no_access_to_the_model_of_the_callers_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLAUDE_CODE_MESSAGING_TOKEN", "secret")
    monkeypatch.setenv("MY_SETTING", "seen")
    runner = TaskRunner(TaskStorage(tmp_path / "home" / "tasks"))
    task_id = await runner.start_task(["sh", "-c", "echo $MY_SETTING$CLAUDE_CODE_MESSAGING_TOKEN"], str(tmp_path), "", approved_by="user")
    while runner.get_status(task_id).completed_at is None:
        await asyncio.sleep(0.02)
    await runner.close()
    assert (tmp_path / "home" / "tasks" / task_id / "output.log").read_text().splitlines()[-1] == "seen"
