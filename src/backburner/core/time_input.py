"""Parses durations, times and sizes that users type. Raises BadInput for invalid input. The current time is a parameter."""

import re
import time

from backburner.core.errors import BadInput

_UNITS = {"w": 604800, "d": 86400, "h": 3600, "m": 60, "s": 1}  # largest first
_UNIT_NAMES = {
    **{unit: unit for unit in _UNITS},
    **dict.fromkeys(("week", "weeks"), "w"),
    **dict.fromkeys(("day", "days"), "d"),
    **dict.fromkeys(("hr", "hrs", "hour", "hours"), "h"),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), "m"),
    **dict.fromkeys(("sec", "secs", "second", "seconds"), "s"),
}
_NUMBER = r"(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?"
_DURATION_PART = re.compile(rf"({_NUMBER}) ?([a-z]+) ?", re.ASCII)
_DAY = r"(?:(\d{4})-(\d\d?)-(\d\d?)|(today|tomorrow))"
_CLOCK = r"(\d\d?)(?::(\d\d)(?::(\d\d))?)?(?: ?(am|pm))?"
_MOMENT = re.compile(rf"(?:{_DAY}(?:$|[T ](?:at )?(?=\d)))?(?:{_CLOCK}(Z|[+-]\d\d:?\d\d)?)?", re.ASCII)


def duration_ms(text: str) -> int:
    """Parse a duration (`30s`, `5m`, `1h30m`, `2 hours`, or `90` for seconds) into milliseconds."""
    seconds = float(text) if re.fullmatch(_NUMBER, text, re.ASCII) else _sum_of_parts(text)
    if not 0 < seconds < 1e10:
        raise BadInput(f"'{text}' is not a valid duration; use 30s, 5m, 1h30m, 2 hours or 1d.")
    return max(1, round(seconds * 1000))


def interval_ms(text: str) -> int:
    """Parse the interval of a recurring task, which needs a unit, into milliseconds."""
    if re.fullmatch(_NUMBER, text, re.ASCII):
        raise BadInput(f"The interval '{text}' needs a unit: {text}s, {text}m, {text}h or {text}d.")
    return duration_ms(text)


def _sum_of_parts(text: str) -> float:
    """Add up the parts of a duration, each in a smaller unit than the one before; -1 if it is not a duration."""
    seconds, position, smaller = 0.0, 0, list(_UNITS)
    while position < len(text):
        found = _DURATION_PART.match(text, position)
        unit = _UNIT_NAMES.get(found[2]) if found else None
        if not found or unit not in smaller:
            return -1.0
        seconds += float(found[1]) * _UNITS[unit]
        position, smaller = found.end(), smaller[smaller.index(unit) + 1 :]
    return seconds


def moment_ms(text: str, now: int) -> int:
    """Parse a future time into milliseconds UTC: `18:30` (the next one), `9am`, `tomorrow 9am`, `2026-02-09` (at 00:00),
    `2026-02-09 18:30`, or `2026-02-09T18:30:00Z` with a zone.
    """
    found = _MOMENT.fullmatch(text.strip())
    if not found or not found.group():
        raise _invalid_time(text)
    year, month, day, word, hours, minutes, seconds, half, zone = found.groups()
    if (hours and not minutes and not half) or (zone and (not year or not minutes or half)):
        raise _invalid_time(text)
    hour, minute, second = (int(part) if part else 0 for part in (hours, minutes, seconds))
    if half:
        hour = hour % 12 + (12 if half == "pm" else 0) if 1 <= hour <= 12 else 24
    if hour > 23 or minute > 59 or second > 59:
        raise _invalid_time(text)
    if year:
        return _future(text, _at(text, (int(year), int(month), int(day), hour, minute, second), zone), now)
    if word:
        return _future(text, _days_later(int(word == "tomorrow"), (hour, minute, second), now), now)
    today = _days_later(0, (hour, minute, second), now)
    return today if today > now else _days_later(1, (hour, minute, second), now)


def _future(text: str, at: int, now: int) -> int:
    if at <= now:
        raise BadInput(f"'{text}' is in the past.")
    return at


def _days_later(days: int, clock: tuple[int, int, int], now: int) -> int:
    today = time.localtime(now / 1000)
    return int(time.mktime((today.tm_year, today.tm_mon, today.tm_mday + days, *clock, 0, 0, -1))) * 1000


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
    return BadInput(f"'{text}' is not a valid time; use 18:30, 9am, tomorrow 9am, 2026-02-09, 2026-02-09 18:30 or 2026-02-09T18:30:00Z.")


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
