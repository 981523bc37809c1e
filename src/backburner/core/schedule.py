"""Calculates when recurring tasks are due (intervals in UTC, cron in a time zone, a single time), and what to do with missed slots.

A *slot* is a time at which a task is due. The current time is always a parameter. No arithmetic is done on aware datetimes: cronsim
evaluates cron expressions in the wall time of their zone, and everything else is arithmetic on milliseconds UTC.
"""

import zlib
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice, takewhile
from typing import TYPE_CHECKING, NamedTuple

from backburner.core.errors import BadInput
from backburner.core.formatting import duration
from backburner.core.task_spec import Schedule

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

SKIP, ONCE, ALL = "skip", "run_once", "run_all"
MISSED = (SKIP, ONCE, ALL)
GRACE_MS = 60_000  # a slot that is noticed with at most this delay does not count as missed
MAX_SKIPPED_ROWS = 1000  # missed slots with a row of their own; older ones share one row
_MAX_COUNTED_SLOTS = 20_000
_MIN_INTERVAL_MS = 1000
_DAY_MS = 86_400_000
_NEAR_MS = 26 * 3_600_000  # longer than any change of a zone's UTC offset
_NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


class Plan(NamedTuple):
    """What to do with the due slots: at most one is run now, the others are skipped with a reason, and `next` is the following slot.

    The first skipped slot also stands for `uncounted` earlier ones.
    """

    run: int | None
    skipped: list[tuple[int, str]]
    next: int | None
    uncounted: int = 0


def slots(schedule: Schedule, after: int) -> Iterator[int]:
    """Yield all slots after a time, in order, up to the schedule's `until`."""
    for slot in _slots(schedule, after):
        if schedule.until is not None and slot > schedule.until:
            return
        yield slot


def next_slot(schedule: Schedule, after: int) -> int | None:
    """Return the first slot after a time; None if there is none."""
    return next(slots(schedule, after), None)


def upcoming(schedule: Schedule, now: int, count: int) -> list[int]:
    """Return the next slots, at most `count`."""
    return list(islice(slots(schedule, now), min(count, schedule.max_runs or count)))


def _slots(schedule: Schedule, after: int) -> Iterator[int]:
    if schedule.unreadable:
        raise ValueError(schedule.unreadable)
    if schedule.at is not None:
        yield from [schedule.at] if schedule.at > after else []
    elif schedule.every_ms is not None:
        slot = schedule.anchor + max(1, (after - schedule.anchor) // schedule.every_ms + 1) * schedule.every_ms
        while True:
            yield slot
            slot += schedule.every_ms
    elif schedule.cron is not None:
        yield from _cron_slots(schedule.cron, zone_of(schedule.zone), after)


def _cron_slots(expression: str, zone: "ZoneInfo", after: int) -> Iterator[int]:
    """Yield the slots of a cron expression, with the behaviour of cron when clocks change.

    A job at a fixed time runs once: if its time does not exist in spring, right after the gap; if it occurs twice in autumn, the first
    time. Other jobs run whenever the clock shows their time: twice in the repeated hour, and not in the missing one. The expression is
    evaluated in wall time without a zone, and each match is converted separately.
    """
    from cronsim import CronSim

    minute, hour = expression.split()[:2]
    fixed = not minute.startswith("*") and not hour.startswith("*")
    while True:  # one day at a time; without a clock change nearby, directly to the day of the next slot
        end, shown = after + _DAY_MS, _wall(after, zone)
        quiet = all(_wall(after + away, zone) - shown == away for away in (-_NEAR_MS, _DAY_MS + _NEAR_MS))
        begin, found = shown if quiet else shown - _NEAR_MS, []
        for naive in CronSim(expression, datetime.fromtimestamp(begin // 1000, UTC).replace(tzinfo=None)):
            wall = int(naive.replace(tzinfo=UTC).timestamp()) * 1000
            if quiet and wall <= shown + _DAY_MS:
                yield after + wall - shown
            elif quiet:
                end = max(end, after + wall - shown - 2 * _NEAR_MS)
                break
            elif wall > _wall(end, zone) + _NEAR_MS:
                break
            else:
                found += _instants(wall, zone, fixed)
        else:
            if quiet:
                return  # there is no further slot
        yield from sorted({slot for slot in found if after < slot <= end})
        after = end


def _wall(at: int, zone: "ZoneInfo") -> int:
    """Return the wall time of a zone at a time, as milliseconds as if it were UTC."""
    return int(datetime.fromtimestamp(at // 1000, zone).replace(tzinfo=UTC).timestamp()) * 1000 + at % 1000


def _instants(wall: int, zone: "ZoneInfo", fixed: bool) -> list[int]:
    """Return the times at which the clocks of a zone show a wall time: one, two or none. A `fixed` job gets exactly one."""
    naive = datetime.fromtimestamp(wall // 1000, UTC)
    first, second = (int(naive.replace(tzinfo=zone, fold=fold).timestamp()) * 1000 for fold in (0, 1))
    if first <= second:
        return [first] if fixed or first == second else [first, second]
    if not fixed:
        return []
    low, high = second, first  # the gap ends between them
    while high - low > 1000:
        middle = (low + high) // 2000 * 1000
        low, high = (middle, high) if _wall(middle, zone) < wall else (low, middle)
    return [high]


def plan(schedule: Schedule, due: int, now: int, *, busy: str | None = None) -> Plan:
    """Decide what to do at `now`, where `due` is the first unhandled slot. `busy` is the reason if the task cannot run now."""
    if schedule.missed == ALL:
        late, following, uncounted = _past(schedule, due, now - schedule.window_ms)
        reason = f"missed, and older than its window of {duration(schedule.window_ms)}"
        skipped = [(slot, reason) for slot in late]
        if busy or following is None or following > now:
            return Plan(None, skipped, following, uncounted)  # if it is busy, the slot runs later
        return Plan(following, skipped, next_slot(schedule, following), uncounted)
    missed, following, uncounted = _past(schedule, due, now)
    if busy:
        return Plan(None, [(slot, busy) for slot in missed], following, uncounted)
    if schedule.missed == SKIP and now - missed[-1] > GRACE_MS:
        return Plan(None, [(slot, "missed: no run started at that time") for slot in missed], following, uncounted)
    reason = "missed: no run started at that time; the latest missed slot runs instead"
    return Plan(missed[-1], [(slot, reason) for slot in missed[:-1]], following, uncounted)


def _past(schedule: Schedule, due: int, end: int) -> tuple[list[int], int | None, int]:
    """Return the slots from `due` to `end`, the first slot after `end`, and how many older slots were left out of the list."""
    if due > end:
        return [], due, 0
    past, count = deque([due], MAX_SKIPPED_ROWS), 1
    for slot in slots(schedule, due):
        if slot > end:
            return list(past), slot, count - len(past)
        if (count := count + 1) > _MAX_COUNTED_SLOTS:  # too many to walk through: continue from the end
            past.append(last := latest(schedule, end) or slot)
            if schedule.every_ms is not None:
                count = (last - due) // schedule.every_ms + 1
            return list(past), next_slot(schedule, end), count - len(past)
        past.append(slot)
    return list(past), None, count - len(past)


def latest(schedule: Schedule, end: int) -> int | None:
    """Return the last slot up to a time, for a schedule with many slots."""
    end = end if schedule.until is None else min(end, schedule.until)
    if schedule.every_ms is not None:
        return end - (end - schedule.anchor) % schedule.every_ms
    last, back = None, _DAY_MS
    while last is None and back < end:
        last = max(takewhile(lambda slot: slot <= end, slots(schedule, end - back)), default=None)
        back *= 2
    return last


def delay(schedule: Schedule, task_id: str, slot: int) -> int:
    """Return the jitter of a slot in milliseconds, so that not all tasks start at once. Always the same for a task and a slot."""
    return zlib.crc32(f"{task_id}:{slot}".encode()) % (schedule.jitter_ms + 1)


def every(milliseconds: int, now: int) -> Schedule:
    """Return a schedule that repeats at an interval, starting now."""
    if milliseconds < _MIN_INTERVAL_MS:
        raise BadInput("The interval must be at least one second.")
    return Schedule(every_ms=milliseconds, anchor=now)


def cron(expression: str, zone: str) -> Schedule:
    """Return a cron schedule in a time zone. Raises BadInput for an invalid expression or one that never matches."""
    from cronsim import CronSim, CronSimError

    words = _NICKNAMES.get(expression.strip().lower(), expression).split()
    if len(words) != 5:
        nicknames = ", ".join(_NICKNAMES)
        raise BadInput(f"Invalid cron expression '{expression}': use five fields (minute hour day month weekday) or one of {nicknames}.")
    schedule = Schedule(cron=" ".join(words), zone=zone)
    zone_of(zone)
    try:
        if next(CronSim(schedule.cron or "", datetime(2024, 1, 1, tzinfo=UTC)), None) is None:
            raise BadInput(f"The cron expression '{expression}' never matches.")
    except (CronSimError, ValueError, AssertionError, OverflowError) as error:
        raise BadInput(f"Invalid cron expression '{expression}': {str(error) or 'invalid syntax'}.") from None
    return schedule


def zone_of(name: str) -> "ZoneInfo":
    """Return a time zone by name; raises BadInput if it does not exist."""
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):
        raise BadInput(f"Unknown time zone '{name[:100]}'; use a name such as Europe/Berlin or UTC.") from None


def day_of(schedule: Schedule, now: int) -> int:
    """Return when the current day began in the time zone of a schedule."""
    here = datetime.fromtimestamp(now // 1000, zone_of(schedule.zone))
    return int(here.replace(hour=0, minute=0, second=0, microsecond=0, fold=0).timestamp()) * 1000


def explain(schedule: Schedule, now: int, due: int | None = None, *, upcoming: bool = True) -> str:
    """Describe a schedule in words; includes the next slot if `upcoming`. `due` is the next slot, if already known."""
    if schedule.unreadable:
        return f"never: its schedule is invalid ({schedule.unreadable})"
    words = _when(schedule)
    if schedule.max_runs is not None:
        words += f", at most {schedule.max_runs} {'time' if schedule.max_runs == 1 else 'times'}"
    if schedule.until is not None:
        words += f", until {moment(schedule.until, schedule.zone)}"
    if schedule.jitter_ms:
        words += f", delayed by up to {duration(schedule.jitter_ms)}"
    if not upcoming:
        return words
    due = next_slot(schedule, now) if due is None else due
    return f"{words}; next: {moment(due, schedule.zone)}" if due is not None else words


def _when(schedule: Schedule) -> str:
    if schedule.at is not None:
        return "once"
    if schedule.every_ms is not None:
        return f"every {exactly(schedule.every_ms)}"
    if schedule.cron is None:
        return "after other tasks"
    from cronsim import CronSim

    text = CronSim(schedule.cron, datetime(2024, 1, 1, tzinfo=UTC)).explain()
    at, _, days = text.partition(" on ")
    if days == "Monday through Friday" and at.startswith("At "):
        text = f"every weekday at {at.removeprefix('At ')}"
    elif text.startswith("At ") and text.endswith(" every day"):
        text = f"every day at {text.removeprefix('At ').removesuffix(' every day')}"
    return f"{text[0].lower()}{text[1:]} {schedule.zone}"


def exactly(milliseconds: int) -> str:
    """Format an interval exactly: `30m`, `1d`, `1h 30m`."""
    parts, seconds = [], milliseconds / 1000
    for size, unit in ((604800, "w"), (86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            parts.append(f"{int(seconds // size)}{unit}")
            seconds %= size
    return " ".join([*parts, *([f"{seconds:g}s"] if seconds else [])])


def moment(at: int, zone: str) -> str:
    """Format a time in a time zone."""
    return datetime.fromtimestamp(at // 1000, zone_of(zone)).strftime("%a %Y-%m-%d %H:%M:%S %Z")
