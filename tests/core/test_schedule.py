"""When recurring tasks are due: when clocks change, in unusual time zones, and after slots were missed."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import islice, pairwise, takewhile
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import backburner
from backburner.core.errors import BadInput
from backburner.core.schedule import (
    MAX_SKIPPED_ROWS,
    MISSED,
    Schedule,
    cron,
    day_of,
    delay,
    every,
    exactly,
    explain,
    moment,
    next_slot,
    plan,
    slots,
)
from backburner.core.task_spec import schedule_fields

SKIP, ONCE, ALL = MISSED
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
BERLIN, NEW_YORK, LORD_HOWE, CHATHAM = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Chatham"
ZONES = [
    "UTC", BERLIN, "Europe/Dublin", "Europe/Lisbon", NEW_YORK, "America/St_Johns", "America/Havana", "America/Sao_Paulo", "America/Caracas",
    "America/Asuncion", "America/Santiago", "America/Scoresbysund", "Atlantic/Azores", "Africa/Casablanca", "Africa/Cairo", "Asia/Gaza",
    "Asia/Kathmandu", "Asia/Beirut", "Asia/Tehran", "Asia/Pyongyang", "Australia/Adelaide", LORD_HOWE, CHATHAM, "Pacific/Apia",
    "Antarctica/Troll",
]  # fmt: skip
deterministic, thorough = (settings(derandomize=True, deadline=None, max_examples=count) for count in (80, 150))


def utc(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1000


START, END = utc("2015-01-01"), utc("2035-01-01")


def wall_time(at: int, zone: str) -> datetime:
    return datetime.fromtimestamp(at // 1000, ZoneInfo(zone))


def between(schedule: Schedule, after: int, end: int) -> list[int]:
    """Return the slots after one time and before another."""
    return list(takewhile(lambda slot: slot < end, slots(schedule, after)))


# Begin and end of the days on which the clocks change, in UTC.
SPRING = {BERLIN: ("2026-03-28 23:00", "2026-03-29 22:00"), NEW_YORK: ("2026-03-08 05:00", "2026-03-09 04:00")}
AUTUMN = {BERLIN: ("2026-10-24 22:00", "2026-10-25 23:00"), NEW_YORK: ("2026-11-01 04:00", "2026-11-02 05:00")}


def slots_of_day(expression: str, zone: str, days: dict[str, tuple[str, str]]) -> list[int]:
    begin, end = days[zone]
    return between(cron(expression, zone), utc(begin) - 1, utc(end))


@pytest.mark.parametrize(("zone", "at"), [(BERLIN, "2026-03-29 01:00"), (NEW_YORK, "2026-03-08 07:00")])
def test_a_time_that_does_not_exist_in_spring_runs_once_after_the_gap(zone: str, at: str) -> None:
    assert slots_of_day("30 2 * * *", zone, SPRING) == [utc(at)] and wall_time(utc(at), zone).hour == 3


@pytest.mark.parametrize(("zone", "hour", "at"), [(BERLIN, 2, "2026-10-25 00:30"), (NEW_YORK, 1, "2026-11-01 05:30")])
def test_a_time_that_occurs_twice_in_autumn_runs_once(zone: str, hour: int, at: str) -> None:
    assert slots_of_day(f"30 {hour} * * *", zone, AUTUMN) == [utc(at)]
    assert next_slot(cron(f"30 {hour} * * *", zone), utc(at) + HOUR - 1) == utc(at) + 25 * HOUR


@pytest.mark.parametrize("zone", [BERLIN, NEW_YORK])
@pytest.mark.parametrize(("days", "hours"), [(SPRING, 23), (AUTUMN, 25)], ids=["spring", "autumn"])
def test_quarter_hourly_and_hourly_jobs_keep_their_pace_when_clocks_change(zone: str, days: dict[str, tuple[str, str]], hours: int) -> None:
    quarters, halves = slots_of_day("*/15 * * * *", zone, days), slots_of_day("30 * * * *", zone, days)
    assert len(quarters) == 4 * hours and {b - a for a, b in pairwise(quarters)} == {15 * MINUTE}  # 92 and 100
    assert len(halves) == hours and {b - a for a, b in pairwise(halves)} == {HOUR}


@pytest.mark.parametrize(
    ("zone", "eve", "day"),
    [
        (BERLIN, "2026-03-28 08:00", "2026-03-29 07:00"), (BERLIN, "2026-10-24 07:00", "2026-10-25 08:00"),
        (NEW_YORK, "2026-03-07 14:00", "2026-03-08 13:00"), (NEW_YORK, "2026-10-31 13:00", "2026-11-01 14:00"),
    ],
)  # fmt: skip
def test_a_job_at_nine_stays_at_nine_wall_time_when_clocks_change(zone: str, eve: str, day: str) -> None:
    found = list(islice(slots(cron("0 9 * * *", zone), utc(eve) - HOUR), 3))
    assert found == [utc(eve), utc(day), utc(day) + DAY] and all(wall_time(slot, zone).hour == 9 for slot in found)


@pytest.mark.parametrize("night", ["2026-03-28 20:30", "2026-10-24 20:30", "2026-03-08 00:30", "2026-10-31 20:30"])
def test_an_interval_of_two_hours_is_not_affected_by_clock_changes(night: str) -> None:
    assert list(islice(slots(every(2 * HOUR, utc(night)), utc(night)), 8)) == [utc(night) + n * 2 * HOUR for n in range(1, 9)]


@cache
def values(field: str, low: int, high: int) -> set[int]:
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.replace("*", f"{low}-{high}").partition("-")
        found |= set(range(int(first), int(last or first) + 1, int(step or 1)))
    return found


def matches(expression: str, shown: datetime) -> bool:
    minute, hour, day, month, weekday = expression.split()
    by_day, by_weekday = shown.day in values(day, 1, 31), bool({shown.isoweekday(), shown.isoweekday() % 7} & values(weekday, 0, 7))
    today = by_day and by_weekday if "*" in (day[0], weekday[0]) else by_day or by_weekday
    return today and shown.minute in values(minute, 0, 59) and shown.hour in values(hour, 0, 23) and shown.month in values(month, 1, 12)


def expected_slots(expression: str, zone: str, after: int, end: int) -> Iterator[int]:
    """Yield the slots that `between` should return, by checking the wall time minute by minute.

    A fixed time that the clock skips runs right after the gap; one that occurs twice runs the first time.
    """
    minute, hour, *_ = expression.split()
    fixed, before = "*" not in (minute[0], hour[0]), None
    for at in range(after // MINUTE * MINUTE, end, MINUTE):
        shown = wall_time(at, zone).replace(tzinfo=None, fold=0)
        skipped_minutes = range(1, (shown - (before or shown)) // timedelta(minutes=1)) if fixed else ()
        due = matches(expression, shown) and not (fixed and wall_time(at, zone).fold)
        if at > after and (due or any(matches(expression, before + timedelta(minutes=n)) for n in skipped_minutes)):
            yield at
        before = shown


@cache
def changes(zone: str, low: int = START, high: int = END) -> list[int]:
    """Return the first minute after each clock change of a zone."""
    same = wall_time(low, zone).utcoffset() == wall_time(high, zone).utcoffset()
    if high - low <= MINUTE or (same and high - low < 5 * DAY):
        return [] if same else [high]
    middle = (low + high) // 2 // MINUTE * MINUTE
    return changes(zone, low, middle) + changes(zone, middle, high)


@st.composite
def zones_and_times(draw: st.DrawFn) -> tuple[str, int]:
    """Draw a zone and a time, usually shortly before a clock change."""
    zone = draw(st.sampled_from([LORD_HOWE, CHATHAM]) | st.sampled_from(ZONES))
    if changes(zone) and draw(st.integers(0, 3)):
        return zone, draw(st.sampled_from(changes(zone))) - draw(st.integers(-HOUR, HOUR) | st.integers(0, 9 * HOUR))
    return zone, draw(st.integers(START, END))


def fields(low: int, high: int) -> st.SearchStrategy[str]:
    number, step = st.integers(low, high), st.integers(2, high // 2).map("/{}".format)
    span = st.tuples(number, number).filter(lambda ends: ends[0] < ends[1]).map("{0[0]}-{0[1]}".format)
    several = st.lists(number.map(str) | span, min_size=1, max_size=3).map(",".join)
    return st.just("*") | step.map("*{}".format) | several | st.tuples(span, step).map("".join)


DAYS = [st.just("*") | fields(1, 31), st.sampled_from(["*", "*", "*", "3,4,9,10,11", "*/2"]), st.just("*") | fields(0, 7)]
EXPRESSIONS = st.tuples(fields(0, 59), fields(0, 23) | fields(0, 4), *DAYS).map(" ".join)


@thorough
@given(EXPRESSIONS, zones_and_times())
def test_slots_match_the_wall_clock_of_the_zone(expression: str, zone_and_time: tuple[str, int]) -> None:
    (zone, after), end = zone_and_time, zone_and_time[1] + 12 * HOUR
    schedule = Schedule(cron=expression, zone=zone)
    assert between(schedule, after, end) == list(expected_slots(expression, zone, after, end))
    found = list(islice(slots(schedule, after), 5))
    assert all(a < b for a, b in pairwise([after, *found])) and all(wall_time(slot, zone).timestamp() * 1000 == slot for slot in found)
    assert [at for slot in found for at in expected_slots(expression, zone, slot - 1, slot + 1)] == found


@thorough
@given(EXPRESSIONS, zones_and_times(), st.floats(0, 1))
def test_the_next_slot_does_not_depend_on_the_starting_time(expression: str, zone_and_time: tuple[str, int], part: float) -> None:
    zone, after = zone_and_time
    schedule = Schedule(cron=expression, zone=zone)
    slot = next_slot(schedule, after)
    assume(slot is not None)
    nights = [change + n for change in changes(zone) for n in (-1, 0, HOUR // 4) if after <= change + n < slot]
    for begin in [after + int(part * (slot - 1 - after)), slot - 1, *nights[:6]]:
        assert next_slot(schedule, begin) == slot, moment(begin, zone)


@deterministic
@given(st.integers(1000, 40 * DAY), st.integers(0, END), st.integers(-DAY, 400 * DAY), st.floats(0, 1))
def test_interval_slots_do_not_depend_on_the_starting_time(step: int, anchor: int, later: int, part: float) -> None:
    schedule, after = every(step, anchor), anchor + later
    found = list(islice(slots(schedule, after), 5))
    assert {b - a for a, b in pairwise(found)} == {step} and (found[0] - anchor) % step == 0
    assert max(after, anchor) < found[0] <= max(after, anchor) + step
    assert next_slot(schedule, after + int(part * (found[0] - 1 - after))) == found[0] == next_slot(schedule, found[0] - 1)


@pytest.mark.parametrize(
    ("zone", "expression", "wanted"),
    [
        # At 15:30 UTC the clock went from 02:00 to 02:30.
        (LORD_HOWE, "45 * * * *", ["2026-10-03 15:15", "2026-10-03 15:45", "2026-10-03 16:45"]),
        (LORD_HOWE, "*/10 3 * * *", ["2026-10-03 16:00", "2026-10-03 16:10", "2026-10-03 16:20"]),
        (LORD_HOWE, "0 */3 * * *", ["2026-10-03 13:30", "2026-10-03 16:00", "2026-10-03 19:00"]),
        # At 15:00 UTC from 02:00 to 01:30.
        (LORD_HOWE, "45 * * * *", ["2026-04-04 14:45", "2026-04-04 15:15", "2026-04-04 16:15"]),
        (LORD_HOWE, "*/10 2 * * *", ["2026-04-04 15:30", "2026-04-04 15:40", "2026-04-04 15:50"]),
        # At 14:00 UTC from 02:45 to 03:45, and from 03:45 to 02:45.
        (CHATHAM, "*/15 3 * * *", ["2026-09-26 14:00", "2026-09-27 13:15"]),
        (CHATHAM, "*/15 3 * * *", [f"2026-04-04 {at}" for at in ("13:15", "13:30", "13:45", "14:15", "14:30", "14:45", "15:00")]),
        (CHATHAM, "50 */3 * * *", ["2026-04-04 11:05", "2026-04-04 15:05", "2026-04-04 18:05"]),
        # At 03:00 UTC from 00:00 to 01:00.
        ("America/Sao_Paulo", "0 0 * * *", ["2017-10-15 03:00", "2017-10-16 02:00"]),
        ("America/Sao_Paulo", "0 */2 15 10 *", ["2016-10-16 01:00", "2017-10-15 04:00", "2017-10-15 06:00"]),
        ("America/Sao_Paulo", "*/30 0 15 10 *", ["2016-10-15 03:00", "2016-10-15 03:30", "2018-10-15 03:00"]),
    ],
)
def test_no_slot_is_lost_or_invented_at_unusual_clock_changes(zone: str, expression: str, wanted: list[str]) -> None:
    assert list(islice(slots(cron(expression, zone), utc(wanted[0]) - HOUR), len(wanted))) == [utc(at) for at in wanted]


@st.composite
def schedules(draw: st.DrawFn) -> tuple[Schedule, int, int]:
    """Draw a schedule, the approximate distance of its slots, and its first slot."""
    zone, start = draw(zones_and_times())
    expressions = [None, ("*/15 * * * *", 15 * MINUTE), ("30 2 * * *", DAY), ("0 9 * * 1-5", DAY), ("7 */6 1-20 * *", 6 * HOUR)]
    expression, step = draw(st.sampled_from(expressions)) or (None, draw(st.integers(1000, 3 * DAY)))
    schedule = cron(expression, zone) if expression else every(step, start)
    until = draw(st.none() | st.integers(5, 60).map(lambda n: start + n * step))
    schedule = schedule._replace(missed=draw(st.sampled_from(MISSED)), window_ms=draw(st.integers(0, 20 * step)), until=until)
    first = next_slot(schedule, start)
    assume(first is not None)
    return schedule, step, first


@deterministic
@given(schedules(), st.lists(st.tuples(st.floats(0, 3) | st.floats(0, 40), st.booleans()), min_size=1, max_size=12))
def test_every_slot_is_run_or_skipped_exactly_once(case: tuple[Schedule, int, int], checks: list[tuple[float, bool]]) -> None:
    schedule, step, first = case
    due, now, ran, skipped_slots = first, first - 1, [], []
    for wait, busy in checks:
        now = now + int(wait * step) + 1 if wait else max(now + 1, due or 0)
        if due is None or due > now:
            continue
        run, skipped, following, uncounted = plan(schedule, due, now, busy="still running" if busy else None)
        handled = [slot for slot, _ in skipped] + [slot for slot in [run] if slot is not None]
        assert following == next_slot(schedule, handled[-1] if handled else due - 1) and all(reason for _, reason in skipped)
        assert not uncounted and (run is None or not busy)
        if schedule.missed == ALL:
            assert all(slot <= now - schedule.window_ms for slot, _ in skipped)
            assert busy or run is not None or following is None or following > now
        else:
            assert handled[-1] <= now and (following is None or following > now)
            assert (run is not None) == (not busy and (schedule.missed == ONCE or now - handled[-1] <= MINUTE))
        ran, skipped_slots, due = ran + handled[len(skipped) :], skipped_slots + handled[: len(skipped)], following
    assert ran == sorted(ran) and skipped_slots == sorted(skipped_slots)
    assert sorted(ran + skipped_slots) == [slot for slot in between(schedule, first - 1, now + 1) if due is None or slot < due]


def test_a_slot_that_is_noticed_a_minute_late_is_not_missed() -> None:
    schedule = every(HOUR, 0)._replace(missed=SKIP)
    assert plan(schedule, HOUR, HOUR + MINUTE) == (HOUR, [], 2 * HOUR, 0) and plan(schedule, HOUR, HOUR + MINUTE + 1).run is None
    assert plan(schedule, HOUR, 3 * HOUR).run == 3 * HOUR


@pytest.mark.parametrize("missed", MISSED)
@pytest.mark.parametrize("count", [MAX_SKIPPED_ROWS - 1, MAX_SKIPPED_ROWS, MAX_SKIPPED_ROWS + 1, 20_000])
def test_missed_slots_without_their_own_row_are_counted(missed: str, count: int) -> None:
    run, skipped, following, uncounted = plan(every(HOUR, 0)._replace(missed=missed, window_ms=0), HOUR, count * HOUR + MINUTE + 1)
    assert uncounted + len(skipped) + (run is not None) == count and uncounted == max(0, count - MAX_SKIPPED_ROWS)
    assert skipped[0][0] == (uncounted + 1) * HOUR and following == (count + 1) * HOUR and run == (count * HOUR if missed == ONCE else None)


LONG_GAPS = {
    "seconds": (every(1000, 0), END),
    "minutes": (cron("* * * * *", BERLIN), END),
    "minutes of one day": (cron("* * 15 * *", "UTC"), utc("2034-12-15 23:59")),
    "seconds of the first day": (every(1000, 0)._replace(until=START + DAY), START + DAY),
}


@pytest.mark.parametrize("missed", MISSED)
@pytest.mark.parametrize(("schedule", "latest"), LONG_GAPS.values(), ids=LONG_GAPS)
def test_a_gap_of_years_leaves_few_rows_and_runs_at_most_its_latest_slot(schedule: Schedule, latest: int, missed: str) -> None:
    run, skipped, following, uncounted = plan(schedule._replace(missed=missed), START, END)
    rows = [slot for slot, _ in skipped]
    assert len(rows) <= MAX_SKIPPED_ROWS < uncounted and rows == sorted({*rows}) and rows[-1] <= latest
    in_window = next(iter(between(schedule, END - DAY, END + 1)), None)
    assert run == {ONCE: latest, SKIP: latest if latest == END else None, ALL: in_window}[missed]
    assert following == next_slot(schedule, run if missed == ALL and run else END)


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("0 0 29 2 *", ["2028-02-29", "2032-02-29"]),
        ("0 0 13 * 5", ["2026-11-20", "2026-11-27", "2026-12-04", "2026-12-11", "2026-12-13", "2026-12-18"]),
        *((f"0 0 * * {sunday}", ["2026-11-15", "2026-11-22"]) for sunday in ("0", "7", "SUN")),
        ("@hourly", ["2026-11-14 01:00", "2026-11-14 02:00"]), ("@monthly", ["2026-12-01", "2027-01-01"]),
        ("@daily", ["2026-11-15", "2026-11-16"]), (" @Midnight ", ["2026-11-15", "2026-11-16"]), ("@weekly", ["2026-11-15", "2026-11-22"]),
        ("@yearly", ["2027-01-01", "2028-01-01"]), ("@annually", ["2027-01-01", "2028-01-01"]),
    ],
)  # fmt: skip
def test_a_cron_expression_has_the_meaning_that_cron_gives_it(expression: str, wanted: list[str]) -> None:
    assert list(islice(slots(cron(expression, "UTC"), utc("2026-11-14")), len(wanted))) == [utc(at) for at in wanted]


NO_EXPRESSIONS = ["", "* * * *", "* * * * * *", "@reboot", "61 * * * *", "*/0 * * * *", "5-1 * * * *", "a b c d e"]
NEVER = ["0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 30,31 2 *"]
NO_ZONES = ["", "Nowhere/City", "Europe", "../../etc/passwd", "\0", "\ud800", "x" * 5000]


@pytest.mark.parametrize(("expression", "zone"), [(e, "UTC") for e in NO_EXPRESSIONS + NEVER] + [("0 9 * * *", z) for z in NO_ZONES])
def test_an_invalid_or_never_matching_expression_or_zone_is_rejected(expression: str, zone: str) -> None:
    with pytest.raises(BadInput, match=rf"'{re.escape(expression)}'.*\.$|^Unknown time zone '.*\.$") as refusal:
        cron(expression, zone)
    assert ". " not in str(refusal.value)


def test_an_interval_below_one_second_is_rejected() -> None:
    with pytest.raises(BadInput, match=r"^The interval must be at least one second\.$"):
        every(999, 0)


def test_there_are_no_slots_after_until_or_after_a_single_time() -> None:
    schedule, once = every(HOUR, 0)._replace(until=3 * HOUR), Schedule(at=5000)
    assert list(slots(schedule, 0)) == [HOUR, 2 * HOUR, 3 * HOUR] and next_slot(schedule, 3 * HOUR) is None
    assert list(slots(once, 4999)) == [5000] and next_slot(once, 5000) is None and next_slot(once._replace(until=4000), 0) is None
    assert plan(schedule, 3 * HOUR, 3 * HOUR) == (3 * HOUR, [], None, 0) and plan(once, 5000, 6000) == (5000, [], None, 0)


@deterministic
@given(st.integers(0, 10 * HOUR), st.text(max_size=30), st.integers(0, END))
def test_jitter_is_within_its_limit_and_deterministic(jitter: int, task: str, slot: int) -> None:
    schedule = Schedule(every_ms=HOUR, jitter_ms=jitter)
    assert 0 <= delay(schedule, task, slot) <= jitter and delay(schedule, task, slot) == delay(schedule, task, slot)
    assert delay(schedule._replace(jitter_ms=HOUR), "t1", HOUR) == 1_741_356 and delay(schedule._replace(jitter_ms=0), task, slot) == 0


@pytest.mark.parametrize(
    ("zone", "now", "began"),
    [
        (BERLIN, "2026-03-29 21:59:59", "2026-03-28 23:00"),
        (BERLIN, "2026-10-25 22:59:59", "2026-10-24 22:00"),
        (NEW_YORK, "2026-11-01 06:30", "2026-11-01 04:00"),  # the second 01:30
        ("America/Sao_Paulo", "2017-10-15 12:00", "2017-10-15 03:00"),  # this day began at 01:00
        ("America/Havana", "2026-11-01 05:30", "2026-11-01 04:00"),  # the second 00:30
    ],
)
def test_a_day_begins_when_its_date_first_appears_on_the_clock(zone: str, now: str, began: str) -> None:
    assert day_of(Schedule(zone=zone), utc(now)) == utc(began)


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (cron("0 9 * * 1-5", BERLIN), "every weekday at 09:00 Europe/Berlin; next: Mon 2026-11-16 09:00:00 CET"),
        (cron("0 9 * * *", NEW_YORK), "every day at 09:00 America/New_York; next: Sat 2026-11-14 09:00:00 EST"),
        (cron("0 0 29 2 *", BERLIN), "at 00:00 on February 29 Europe/Berlin; next: Tue 2028-02-29 00:00:00 CET"),
        (every(90 * MINUTE, utc("2026-11-14")), "every 1h 30m; next: Sat 2026-11-14 01:30:00 UTC"),
        (Schedule(every_ms=DAY, max_runs=1), "every 1d, at most 1 time; next: Sun 2026-11-15 00:00:00 UTC"),
        (Schedule(every_ms=DAY, max_runs=3, until=0), "every 1d, at most 3 times, until Thu 1970-01-01 00:00:00 UTC"),
        (Schedule(every_ms=7 * DAY, jitter_ms=MINUTE), "every 1w, delayed by up to 1m 0s; next: Thu 2026-11-19 00:00:00 UTC"),
        (Schedule(at=utc("2026-12-01"), zone=BERLIN), "once; next: Tue 2026-12-01 01:00:00 CET"),
        (Schedule(at=0), "once"),
        (Schedule(), "after other tasks"),
    ],
)
def test_a_schedule_is_described_in_words(schedule: Schedule, words: str) -> None:
    assert explain(schedule, utc("2026-11-14")) == words
    assert explain(schedule, 0, due=HOUR).endswith("; next: " + moment(HOUR, schedule.zone))


@deterministic
@given(st.integers(1, 520 * 7 * DAY))
def test_an_interval_is_formatted_to_the_millisecond(milliseconds: int) -> None:
    sizes = {"w": 7 * DAY, "d": DAY, "h": HOUR, "m": MINUTE, "s": 1000}
    assert sum(round(float(part[:-1]) * sizes[part[-1]]) for part in exactly(milliseconds).split()) == milliseconds


@deterministic
@given(schedules(), st.integers(0, HOUR), st.none() | st.integers(1, 9))
def test_a_schedule_is_restored_from_its_stored_fields(case: tuple[Schedule, int, int], jitter: int, runs: int | None) -> None:
    for schedule in (case[0]._replace(jitter_ms=jitter, max_runs=runs), Schedule(at=7), Schedule()):
        fields = schedule_fields(schedule)
        assert fields and Schedule(**fields) == schedule


def test_no_arithmetic_is_done_on_aware_datetimes() -> None:
    sources = list(Path(backburner.__file__).parent.rglob("*.py"))
    assert len(sources) > 10 and not [path.name for path in sources if "timedelta" in path.read_text(encoding="utf-8")]
