"""Parses durations, times and sizes that users type. Raises BadInput for invalid input. The current time is a parameter."""

import re
import time

from backburner.core.errors import BadInput

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_MOMENT = re.compile(r"(?:(\d{4})-(\d\d?)-(\d\d?)[T ])?(\d\d?):(\d\d)(?::(\d\d))?(Z|[+-]\d\d:?\d\d)?")


def duration_ms(text: str) -> int:
    """Parse a duration (`90`, `30s`, `5m`, `2h`, `1d`, `1w`) into milliseconds."""
    number, unit = (text[:-1], _UNITS[text[-1]]) if text[-1:] in _UNITS else (text, 1)
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if not 0 < value * unit < 1e10:
        raise BadInput(f"'{text}' is not a valid duration; use 30s, 5m, 2h or 1d.")
    return max(1, round(value * unit * 1000))


def moment_ms(text: str, now: int) -> int:
    """Parse a future time into milliseconds UTC: `18:30` (the next one), `2026-02-09 18:30`, or `2026-02-09T18:30:00Z` with a zone."""
    found = _MOMENT.fullmatch(text.strip())
    if not found or (found.group(7) and not found.group(1)):
        raise _invalid_time(text)
    year, month, day, hour, minute, second = (int(part) if part else 0 for part in found.groups()[:6])
    if hour > 23 or minute > 59 or second > 59:
        raise _invalid_time(text)
    if found.group(1):
        at = _at(text, (year, month, day, hour, minute, second), found.group(7))
        if at <= now:
            raise BadInput(f"'{text}' is in the past.")
        return at
    today = time.localtime(now / 1000)
    for later in (0, 1):
        at = int(time.mktime((today.tm_year, today.tm_mon, today.tm_mday + later, hour, minute, second, 0, 0, -1))) * 1000
        if at > now:
            break
    return at


def _at(text: str, parts: tuple[int, int, int, int, int, int], zone: str | None) -> int:
    import calendar

    days = calendar.monthrange(parts[0], parts[1])[1] if 1 <= parts[1] <= 12 and parts[0] >= 1970 else 0
    if not 1 <= parts[2] <= days:
        raise _invalid_time(text)
    if zone is None:
        return int(time.mktime((*parts, 0, 0, -1))) * 1000
    seconds = calendar.timegm((*parts, 0, 0, 0))
    if zone != "Z":
        hours, minutes = int(zone[1:3]), int(zone[-2:])
        if hours > 23 or minutes > 59:
            raise _invalid_time(text)
        offset = hours * 3600 + minutes * 60
        seconds -= offset if zone[0] == "+" else -offset
    return seconds * 1000


def _invalid_time(text: str) -> BadInput:
    return BadInput(f"'{text}' is not a valid time; use 18:30, 2026-02-09 18:30 or 2026-02-09T18:30:00Z.")


def quiet_until(hours: str, at: int) -> int:
    """Return when the quiet hours (such as `22:00-07:00`, local time) around `at` end; `at` itself if it is outside quiet hours."""
    found = re.fullmatch(r"(\d\d?):(\d\d)-(\d\d?):(\d\d)", hours.strip())
    if not found:
        return at
    start, end = (int(found[n]) * 60 + int(found[n + 1]) for n in (1, 3))
    here = time.localtime(at / 1000)
    minute = here.tm_hour * 60 + here.tm_min
    if not (start <= minute < end if start <= end else minute >= start or minute < end):
        return at
    later = int(start > end and minute >= start)
    return int(time.mktime((here.tm_year, here.tm_mon, here.tm_mday + later, end // 60, end % 60, 0, 0, 0, -1))) * 1000


def size_mb(text: str) -> int:
    """Parse a size (`512M`, `2G`, or `1024` for MiB) into MiB."""
    number, unit = (
        (text[:-1], {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1 << 20}.get(text[-1:].upper())) if text[-1:].isalpha() else (text, 1)
    )
    try:
        value = float(number) * unit if unit else -1.0
    except ValueError:
        value = -1.0
    if not 1 <= value < 1 << 30:
        raise BadInput(f"'{text}' is not a valid size; use at least 1M, such as 512M or 2G.")
    return int(value)
