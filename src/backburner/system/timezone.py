"""The name of this machine's time zone, which is stored with schedules."""

import os


def zone_name(environ: dict[str, str]) -> str:
    """The time zone of `TZ` or of the system; UTC if neither has a name."""
    named = environ.get("TZ", "").removeprefix(":")
    named = named.partition("/zoneinfo/")[2] or named
    if named and not named.startswith("/") and is_zone(named):
        return named
    for read in (lambda: os.path.realpath("/etc/localtime").partition("/zoneinfo/")[2], _timezone_file):
        if found := read():
            return "UTC" if found in ("Etc/UTC", "UCT", "Zulu") else found
    return "UTC"


def is_zone(name: str) -> bool:
    from zoneinfo import ZoneInfo

    try:
        return bool(ZoneInfo(name))
    except (OSError, ValueError, KeyError):
        return False


def _timezone_file() -> str:
    try:
        with open("/etc/timezone", encoding="ascii", errors="replace") as file:
            return file.read(100).strip()
    except OSError:
        return ""
