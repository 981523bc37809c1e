"""How much space files and folders use on the disk. Follows no link, and stops in time."""

import contextlib
import os
import time
from collections.abc import Iterator

_MAX_OPEN = 16


def disk_usage(path: str, deadline: float | None = None) -> tuple[int, bool]:
    """Return the bytes that a file or a folder uses, and whether all of it was counted before the deadline (of the monotonic clock)."""
    total = 0
    for total in disk_usage_steps(path):
        if deadline is not None and time.monotonic() > deadline:
            return total, False
    return total, True


def disk_usage_steps(path: str) -> Iterator[int]:
    """Yield the bytes counted so far, after each folder below a path. Keeps no list of the folders: a home may have a million."""
    try:
        total = os.lstat(path).st_blocks * 512
    except OSError:
        return
    yield total
    try:
        inside = [os.scandir(path)]  # the folders that are being read, each inside the one before it
    except OSError:
        return  # a file, or a folder that cannot be read
    later: list[str] = []  # folders inside so many others that not all of them can be open
    try:
        while inside:
            try:
                if entry := next(inside[-1], None):
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False) and len(inside) < _MAX_OPEN:
                        inside.append(os.scandir(entry.path))
                    elif entry.is_dir(follow_symlinks=False):
                        later.append(entry.path)
            except OSError:
                continue  # deleted meanwhile, or it cannot be read
            if entry is None:
                inside.pop().close()
                yield total
            while later and not inside:
                with contextlib.suppress(OSError):
                    inside.append(os.scandir(later.pop()))
    finally:
        for folder in inside:
            folder.close()


def size_text(size: int) -> str:
    """A size with its unit: `512 KiB`, `3.4 GiB`."""
    if size < 1 << 20:
        return f"{size / (1 << 10):.0f} KiB"
    return f"{size / (1 << 20):.1f} MiB" if size < 1 << 30 else f"{size / (1 << 30):.1f} GiB"
