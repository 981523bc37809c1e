"""The space that files and folders use: everything is counted once, whatever its depth, and without a list of all folders."""

import os
import subprocess
import tracemalloc
from pathlib import Path

from backburner.system.disk_usage import disk_usage, disk_usage_steps


def test_all_files_are_counted_also_in_deep_folders_and_not_through_links(tmp_path: Path) -> None:
    inner = tmp_path / "home"
    for name in [*"abcdefghijklmnopqrstuvwxyz", "x", "y"]:
        inner = inner / name
        inner.mkdir(parents=True)
        (inner / "file").write_bytes(b"x" * 10_000)
        (inner / "other").mkdir()
        (inner / "other" / "file").write_bytes(b"x" * 10_000)
    (tmp_path / "home" / "link").symlink_to("/usr")
    counted = int(subprocess.run(["du", "-s", "-B1", tmp_path / "home"], capture_output=True, text=True, check=True).stdout.split()[0])
    assert disk_usage(str(tmp_path / "home")) == (counted, True)
    assert disk_usage(str(inner / "file"))[0] == os.stat(inner / "file").st_blocks * 512
    assert disk_usage(str(tmp_path / "missing")) == (0, True)


def test_many_folders_are_counted_without_keeping_their_names(tmp_path: Path) -> None:
    """The engine counts the folders of all tasks again and again; what it needs for that must not grow with them."""
    for number in range(3000):
        (tmp_path / f"task_20260101_120000_{'x' * 60}_{number}").mkdir()
    tracemalloc.start()
    try:
        count = sum(1 for _ in disk_usage_steps(str(tmp_path)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 3002 and peak < 100_000


def test_folders_are_closed_if_counting_is_stopped(tmp_path: Path) -> None:
    def is_open() -> bool:
        links = Path("/proc/self/fd").iterdir()
        return any(os.path.realpath(link).startswith(str(tmp_path)) for link in links)

    (tmp_path / "a" / "b").mkdir(parents=True)
    steps = disk_usage_steps(str(tmp_path))
    assert next(steps) and next(steps) and is_open()
    steps.close()  # type: ignore[attr-defined]
    assert not is_open()
