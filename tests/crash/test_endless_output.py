"""Commands with endless output: the log stays close to its cap while they run, and ends as beginning, marker and end."""

import os
import re
import time
from pathlib import Path

import pytest
from conftest import CONFIG, LONG, HomeCli, wait_until
from recorder import start_driver, wait_until_killed

CAP = 8 << 20
GIGABYTES = 10 if LONG else 3
MARKER = re.compile(rb"\n\[backburner: ([\d,]+) bytes of output left out here\]\n")


def capped(home_cli: HomeCli, megabytes: int = 8) -> None:
    home_cli.configure(CONFIG + f"[commands]\noutput_cap_mb = {megabytes}\n")


def on_disk(log: Path) -> int:
    try:
        return log.stat().st_blocks * 512
    except FileNotFoundError:
        return 0


def ended(home_cli: HomeCli, task_id: str) -> bool:
    return (home_cli.folder(task_id) / "result.json").exists()


def test_gigabytes_of_output_are_capped_while_the_command_runs(home_cli: HomeCli, capsys: pytest.CaptureFixture[str]) -> None:
    capped(home_cli)
    size, started_at = GIGABYTES << 30, time.monotonic()
    task_id = home_cli.run(f"echo the head; yes 123456789012345 | head -c {size}; echo the tail; exit 5", options=("--shell",))
    log, most, looks = home_cli.folder(task_id) / "output.log", 0, 0

    def looked() -> bool:
        nonlocal most, looks
        most, looks = max(most, on_disk(log)), looks + 1
        return ended(home_cli, task_id)

    wait_until(looked, "the last byte", 600)
    with capsys.disabled():
        took = time.monotonic() - started_at
        print(
            f"\n{GIGABYTES} GiB printed in {took:.1f} s; at most {most >> 20} MiB on disk in {looks} looks, {on_disk(log) >> 10} KiB at the end"
        )
    home_cli.cli("wait", task_id)
    done = home_cli.status(task_id)
    assert (done["status"], done["exit_code"], done["result"], done["error"]) == ("failed", 5, "exit", None)
    assert looks > 20 and most < 400 << 20
    assert on_disk(log) <= CAP + (64 << 10) and log.stat().st_size <= CAP + (64 << 10)
    shown = home_cli.log(task_id)
    assert shown.startswith(b"the head\n123456789012345\n") and shown.endswith(b"123456789012345\nthe tail\n")
    markers = MARKER.findall(shown)
    assert len(markers) == 1
    kept = len(MARKER.sub(b"", shown))
    assert kept + int(markers[0].replace(b",", b"")) == size + len(b"the head\nthe tail\n")
    assert kept > CAP - (16 << 10)


def test_output_of_a_short_command_is_capped(home_cli: HomeCli) -> None:
    capped(home_cli, 1)
    done = home_cli.finish("yes 123456789 | head -c 30000000; echo the tail", options=("--shell",))
    log = home_cli.folder(str(done["task_id"])) / "output.log"
    assert log.stat().st_size < 2 << 20
    assert MARKER.search(log.read_bytes()) and log.read_bytes().endswith(b"the tail\n")


def test_output_is_capped_while_the_command_continues_silently(home_cli: HomeCli) -> None:
    capped(home_cli, 1)
    gate = home_cli.cwd / "gate"
    os.mkfifo(gate)
    task_id = home_cli.run(f"yes 123456789 | head -c 30000000; echo printed; read x <{gate}", options=("--shell",))
    log = home_cli.folder(task_id) / "output.log"
    wait_until(lambda: log.exists() and log.stat().st_size > 30_000_000, "the burst")
    try:
        wait_until(lambda: on_disk(log) < 2 << 20, "the cut")
    finally:
        gate.write_text("open\n")
        home_cli.ok("wait", task_id)


def test_the_next_engine_continues_to_cap_a_log(home_cli: HomeCli) -> None:
    capped(home_cli, 1)
    gate = home_cli.cwd / "gate"
    os.mkfifo(gate)
    first = start_driver(home_cli, "engine", "never")
    wait_until(lambda: home_cli.engine, "the engine")
    slowly = "i=0; while [ $i -lt 20 ]; do yes 123456789 | head -c 1000000; sleep 0.03; i=$((i + 1)); done"
    task_id = home_cli.run(f"{slowly}; read x <{gate}; {slowly}; echo the tail", options=("--shell",))
    log = home_cli.folder(task_id) / "output.log"
    wait_until(lambda: log.exists() and log.stat().st_size > 20_000_000, "the first half")
    wait_until_killed(first, by_us=True)
    home_cli.ok("list")
    gate.write_text("open\n")
    home_cli.ok("wait", task_id)
    shown = home_cli.log(task_id)
    markers = MARKER.findall(shown)
    assert log.stat().st_size < 2 << 20 and len(markers) == 1 and shown.endswith(b"the tail\n")
    assert len(MARKER.sub(b"", shown)) + int(markers[0].replace(b",", b"")) == 40_000_009
