"""Whether the machine has capacity for another command: free memory and load, compared with the settings."""

import os

from backburner.core.settings import Config


def allowed_starts(config: Config, wanted: int) -> int:
    """How many of `wanted` commands may start now; at most one if a limit is set, so that its effect on the machine can be measured."""
    if not config.whole("commands.min_free_memory_mb") and not config.number("commands.max_load"):
        return wanted
    return 0 if blocking_reason(config) else min(wanted, 1)


def blocking_reason(config: Config) -> str | None:
    """Why no command may start now; None if one may, or if no limit is set."""
    if (min_free := config.whole("commands.min_free_memory_mb")) and (free := _free_memory_mb()) is not None and free < min_free:
        return f"free memory ({free} MiB free, {min_free} MiB required)"
    if (max_load := config.number("commands.max_load")) and (load := os.getloadavg()[0]) > max_load:
        return f"the load to drop to {max_load:g} (now {load:.1f})"
    return None


def total_memory_mb() -> int | None:
    """The memory of the machine, in MiB; None if the system does not report it."""
    return _memory_mb("MemTotal:")


def _free_memory_mb() -> int | None:
    """Memory that can be used without swapping, in MiB; None if the system does not report it."""
    return _memory_mb("MemAvailable:")


def _memory_mb(field: str) -> int | None:
    try:
        with open("/proc/meminfo") as file:
            return next(int(line.split()[1]) // 1024 for line in file if line.startswith(field))
    except (OSError, StopIteration):
        return None
