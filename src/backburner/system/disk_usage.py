"""How much space files and folders use on the disk. Follows no link, and stops in time."""

import os
import time
from collections.abc import Iterator


def disk_usage(path: str, deadline: float | None = None) -> tuple[int, bool]:
    """Return the bytes that a file or a folder uses, and whether all of it was counted before the deadline (of the monotonic clock)."""
    total = 0
    for total in disk_usage_steps(path):
        if deadline is not None and time.monotonic() > deadline:
            return total, False
    return total, True


def disk_usage_steps(path: str) -> Iterator[int]:
    """Yield the bytes counted so far, after each folder below a path."""
    try:
        total, folders = os.lstat(path).st_blocks * 512, [path]
    except OSError:
        return
    yield total
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    try:
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
                        if entry.is_dir(follow_symlinks=False):
                            folders.append(entry.path)
                    except OSError:
                        continue  # deleted meanwhile
        except OSError:
            continue  # a file, or a folder that cannot be read
        yield total


def size_text(size: int) -> str:
    """A size with its unit: `512 KiB`, `3.4 GiB`."""
    if size < 1 << 20:
        return f"{size / (1 << 10):.0f} KiB"
    return f"{size / (1 << 20):.1f} MiB" if size < 1 << 30 else f"{size / (1 << 30):.1f} GiB"
