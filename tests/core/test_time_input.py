"""Parsing of durations, times and sizes, in a time zone with daylight saving time."""

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backburner.core.errors import BadInput
from backburner.core.time_input import duration_ms, interval_ms, moment_ms, size_mb

SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
HOUR = 3_600_000


@pytest.fixture(autouse=True)
def berlin() -> Iterator[None]:
    """Use a time zone in which an hour is missing in March and one occurs twice in October."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "CET-1CEST,M3.5.0,M10.5.0/3"
    time.tzset()
    yield
    os.environ.pop("TZ")
    if before is not None:
        os.environ["TZ"] = before
    time.tzset()


def utc(*parts: int) -> int:
    return int(datetime(*parts, tzinfo=UTC).timestamp()) * 1000  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("90", 90_000), ("30s", 30_000), ("5m", 300_000), ("2h", 7_200_000), ("1d", 86_400_000), ("1w", 604_800_000),
        ("0.5s", 500), (".5m", 30_000), ("1e-9s", 1), ("1h30m", 5_400_000), ("1h 30m", 5_400_000), ("1d12h5m", 129_900_000),
        ("2 hours", 7_200_000), ("1 hour 30 min", 5_400_000), ("5 minutes", 300_000), ("90sec", 90_000), ("1 week", 604_800_000),
    ],
)  # fmt: skip
def test_a_duration_is_parsed_with_its_unit(text: str, milliseconds: int) -> None:
    assert duration_ms(text) == milliseconds


@given(number=st.decimals(Decimal("0.001"), Decimal("9999"), places=3), unit=st.sampled_from(sorted(SECONDS)))
def test_a_duration_is_parsed_exactly_to_the_millisecond(number: Decimal, unit: str) -> None:
    assert duration_ms(f"{number}{unit}") == number * SECONDS[unit] * 1000


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s",
        "m5",
        "5x",
        "-5",
        "0",
        "0s",
        "nan",
        "inf",
        "1e10",
        "1e9d",
        "5M",
        "30m1h",
        "5m5m",
        "1h30",
        "5  m",
        "1 fortnight",
        "--",
        "\0",
        "５分",
    ],
)
def test_an_invalid_duration_is_rejected_with_examples(text: str) -> None:
    with pytest.raises(BadInput, match="is not a valid duration; use 30s"):
        duration_ms(text)


@pytest.mark.parametrize("text", ["30", "1.5"])
def test_an_interval_without_a_unit_is_rejected_with_the_possible_units(text: str) -> None:
    with pytest.raises(BadInput, match=f"The interval '{text}' needs a unit: {text}s, {text}m, {text}h or {text}d."):
        interval_ms(text)
    assert interval_ms(f"{text}m") == duration_ms(f"{text}m")


NOW = utc(2026, 2, 9, 14, 30, 30)  # 15:30:30 local time


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("18:30", utc(2026, 2, 9, 17, 30)),
        ("15:31", utc(2026, 2, 9, 14, 31)),
        ("15:30", utc(2026, 2, 10, 14, 30)),
        ("15:30:31", utc(2026, 2, 9, 14, 30, 31)),
        ("0:05", utc(2026, 2, 9, 23, 5)),
        ("9am", utc(2026, 2, 10, 8)),
        ("9:30 pm", utc(2026, 2, 9, 20, 30)),
        ("12am", utc(2026, 2, 9, 23)),
        ("12pm", utc(2026, 2, 10, 11)),
        ("today 18:30", utc(2026, 2, 9, 17, 30)),
        ("tomorrow", utc(2026, 2, 9, 23)),
        ("tomorrow 9am", utc(2026, 2, 10, 8)),
        ("tomorrow at 18:30", utc(2026, 2, 10, 17, 30)),
        ("2026-02-10", utc(2026, 2, 9, 23)),
        ("2026-02-10 9am", utc(2026, 2, 10, 8)),
        ("2026-02-09 18:30", utc(2026, 2, 9, 17, 30)),
        ("2026-07-01T08:00", utc(2026, 7, 1, 6)),
        (" 2026-2-9 18:30:05 ", utc(2026, 2, 9, 17, 30, 5)),
        ("2028-02-29 00:00", utc(2028, 2, 28, 23)),
        ("2026-02-09T18:30:00Z", utc(2026, 2, 9, 18, 30)),
        ("2026-02-09T18:30+02:00", utc(2026, 2, 9, 16, 30)),
        ("2026-02-09T18:30-0530", utc(2026, 2, 10)),
        ("2026-02-09T18:30+14:00", None),
    ],
)
def test_a_time_is_parsed_as_local_time_or_date_with_or_without_zone(text: str, at: int | None) -> None:
    if at is None:
        with pytest.raises(BadInput, match="is in the past"):
            moment_ms(text, NOW)
    else:
        assert moment_ms(text, NOW) == at


@pytest.mark.parametrize(
    "text",
    [
        "", "noon", "18", "18:3", "24:00", "18:60", "18:30:60", "-1:00", "18:30Z", "18:30+01:00", "0am", "13pm", "9amZ", "tomorrow 9", "tomorrow9am", "tomorrow at",
        "2026-02-09T", "2026-02-09 18", "2026-02-30",
        "2026-02-30 10:00", "2026-13-01 10:00", "2026-00-01 10:00", "2026-02-00 10:00", "1969-12-31 10:00", "2026-02-09  18:30", "2026-02-09T18:30z", "2026-02-09T18:30+1:00",
        "2026-02-09T18:30+99:99", "2026-02-09T18:30+24:00", "2026-02-09T18:30-01:60",
    ],
)  # fmt: skip
def test_an_invalid_time_is_rejected_with_examples(text: str) -> None:
    with pytest.raises(BadInput, match="is not a valid time; use 18:30"):
        moment_ms(text, NOW)


@pytest.mark.parametrize(
    "text",
    [
        "2026-02-09",
        "today 3pm",
        "today",
        "2026-02-09 15:30",
        "2026-02-09 15:30:30",
        "2025-12-31 23:59",
        "2026-02-09T14:30:30Z",
        "1970-01-01T00:00:00Z",
    ],
)
def test_a_time_in_the_past_is_rejected(text: str) -> None:
    with pytest.raises(BadInput, match="is in the past"):
        moment_ms(text, NOW)


AROUND_CHANGES = [(at - 30 * HOUR, at + 6 * HOUR) for at in (utc(2026, 3, 29), utc(2026, 10, 25))]


def read_here(at: int) -> str:
    return time.strftime("%H:%M", time.localtime(at / 1000))


@given(
    now=st.one_of(st.integers(first, last) for first, last in [(NOW, NOW + 400 * 24 * HOUR), *AROUND_CHANGES]),
    hour=st.integers(0, 23),
    minute=st.integers(0, 59),
)
def test_a_time_of_day_is_the_next_one_even_when_clocks_change(now: int, hour: int, minute: int) -> None:
    text = f"{hour:02}:{minute:02}"
    at = moment_ms(text, now)
    assert now < at <= now + 25 * HOUR
    if utc(2026, 3, 28, 23) <= at < utc(2026, 3, 29, 22) and hour == 2:
        return  # the hour does not exist on this day
    assert read_here(at) == text
    today = datetime.fromtimestamp(now / 1000).replace(hour=hour, minute=minute, second=0, microsecond=0)
    tomorrow = today + timedelta(days=1)
    ahead = [int(one.replace(fold=fold).timestamp()) * 1000 for one in (today, tomorrow) for fold in (0, 1)]
    assert at in [one for one in ahead if one > now][:2], "today's or, where that is over, tomorrow's"


@pytest.mark.parametrize(
    ("text", "mebibytes"),
    [
        ("512M", 512), ("512m", 512), ("2G", 2048), ("1.5G", 1536), ("1024", 1024), ("1", 1), ("1T", 1 << 20),
        ("2048K", 2), ("1.9", 1), ("1023T", 1023 << 20),
    ],
)  # fmt: skip
def test_a_size_is_parsed_with_its_unit(text: str, mebibytes: int) -> None:
    assert size_mb(text) == mebibytes


@pytest.mark.parametrize(
    "text", ["", "M", "0", "0.5M", "500K", "-1G", "1GB", "1 G B", "5P", "nan", "inf", "infG", "1e20", "1024T", "ßM", "1\0M"]
)
def test_an_invalid_size_is_rejected_with_examples(text: str) -> None:
    with pytest.raises(BadInput, match="is not a valid size; use at least 1M, such as 512M"):
        size_mb(text)
