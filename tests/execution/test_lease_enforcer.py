"""The process that ends a command when the lease of its host is over."""

import subprocess
import sys
import time
from pathlib import Path

from conftest import wait_until

from backburner.execution import lease_enforcer
from backburner.execution.lease_enforcer import KILLED, LeaseFile

FAR = 3600.0


def enforced(folder: Path, script: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(words(folder, script), cwd=folder)


def words(folder: Path, script: str) -> list[str]:
    paths = [str(folder / name) for name in ("lease", "mark", "enforced")]
    return [sys.executable, "-IS", lease_enforcer.__file__, *paths, "sh", "-c", script]


def lease_for(folder: Path, seconds: float) -> LeaseFile:
    lease = LeaseFile(str(folder / "lease"))
    lease.extend(time.clock_gettime(time.CLOCK_BOOTTIME) + seconds)
    return lease


def test_a_command_that_ends_in_time_keeps_its_exit_code(tmp_path: Path) -> None:
    lease_for(tmp_path, FAR)
    assert enforced(tmp_path, "exit 7").wait(60) == 7 and enforced(tmp_path, "kill -TERM $$").wait(60) == 143
    assert not (tmp_path / "mark").exists() and not (tmp_path / "enforced").exists()


def test_a_file_shows_that_the_enforcer_was_killed_before_the_command_had_ended(tmp_path: Path) -> None:
    lease_for(tmp_path, FAR)
    process = enforced(tmp_path, "touch begun; until [ -e go ]; do sleep 0.02; done; touch ended")
    wait_until((tmp_path / "begun").exists, "the command to start")
    process.kill()
    process.wait(60)
    assert (tmp_path / "enforced").exists() and not (tmp_path / "mark").exists()
    (tmp_path / "go").touch()  # without a process namespace, the command continues
    wait_until((tmp_path / "ended").exists, "the command to end")


def test_a_command_is_killed_when_the_lease_is_over(tmp_path: Path) -> None:
    lease = lease_for(tmp_path, FAR)
    process = enforced(tmp_path, "touch begun; while :; do sleep 0.02; done")
    wait_until((tmp_path / "begun").exists, "the command to start")
    assert process.poll() is None
    lease.extend(0.0)
    assert process.wait(60) == KILLED and (tmp_path / "mark").exists()


def test_a_command_continues_after_the_lease_was_extended(tmp_path: Path) -> None:
    lease = lease_for(tmp_path, FAR)
    process = enforced(tmp_path, "touch begun; until [ -e go ]; do sleep 0.02; done; exit 7")
    wait_until((tmp_path / "begun").exists, "the command to start")
    for seconds in (2 * FAR, FAR):
        lease.extend(time.clock_gettime(time.CLOCK_BOOTTIME) + seconds)
    (tmp_path / "go").touch()
    assert process.wait(60) == 7 and not (tmp_path / "mark").exists()


def test_nothing_is_started_without_a_lease(tmp_path: Path) -> None:
    assert enforced(tmp_path, "touch begun").wait(60) == KILLED
    lease_for(tmp_path, -1.0)
    assert enforced(tmp_path, "touch begun").wait(60) == KILLED
    assert not (tmp_path / "begun").exists() and (tmp_path / "mark").exists()


def test_a_signal_for_the_whole_group_reaches_the_command_and_its_code_is_reported(tmp_path: Path) -> None:
    lease_for(tmp_path, FAR)
    script = "trap 'exit 9' TERM; touch begun; while :; do sleep 0.02; done"
    process = subprocess.Popen(words(tmp_path, script), cwd=tmp_path, start_new_session=True)
    wait_until((tmp_path / "begun").exists, "the command to start")
    subprocess.run(["kill", "-TERM", "--", f"-{process.pid}"], check=True)
    assert process.wait(60) == 9
