"""Whether the machine has room for one more command: free memory and load against the settings."""

import os

from backburner.core.settings import Config


def allowed_starts(config: Config, wanted: int) -> int:
    """How many of `wanted` commands may start now; where the machine is looked at, one at a time, so that its effect can be seen."""
    if not config.whole("commands.min_free_memory_mb") and not config.number("commands.max_load"):
        return wanted
    return 0 if blocking_reason(config) else min(wanted, 1)


def blocking_reason(config: Config) -> str | None:
    """Why nothing more should start now; None where there is room, or nothing was set."""
    if (least := config.whole("commands.min_free_memory_mb")) and (free := _free_memory_mb()) is not None and free < least:
        return f"{free} MiB of memory are free, {least} are to be kept"
    if (most := config.number("commands.max_load")) and (load := os.getloadavg()[0]) > most:
        return f"the load is {load:.1f}, and nothing starts above {most:g}"
    return None


def _free_memory_mb() -> int | None:
    """What could be used without swapping; None where the system does not say."""
    try:
        with open("/proc/meminfo") as file:
            return next(int(line.split()[1]) // 1024 for line in file if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None
