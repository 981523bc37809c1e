"""The CPU time of this process and of everything that it starts, with processes that nobody waits for: that of a control group (Linux, cgroup v2).

`getrusage` does not count these. The log writer does not wait for shims, and bubblewrap leaves processes to the kernel.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path


@contextlib.contextmanager
def cpu_milliseconds() -> Iterator[Callable[[], float] | None]:
    """Yield a function that returns the milliseconds used until now, or None if this user cannot create a control group."""
    parent = _own_group()
    group = parent / f"bench-{os.getpid()}" if parent else None
    try:
        if group:
            group.mkdir()
            (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError:
        group = None
    try:
        yield None if group is None else lambda: int((group / "cpu.stat").read_text().split()[1]) / 1000
    finally:
        if parent and group:
            with contextlib.suppress(OSError):  # the group above may take no processes of its own
                (parent / "cgroup.procs").write_text(str(os.getpid()))
                _remove(group)


def _own_group() -> Path | None:
    """Return the folder of the control group that this process is in."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    root = next((Path(point) for _, point, kind, *_ in mounts if kind == "cgroup2"), None)
    name = next((line.partition("::/")[2] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")), None)
    return None if root is None or name is None else root / name


def _remove(group: Path) -> None:
    for _ in range(100):  # until the last process has ended
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.05)
