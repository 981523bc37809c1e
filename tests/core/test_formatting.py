"""Formatting of durations, times, results and notices."""

import pytest

from backburner.core.formatting import describe_result, duration, exit_text, iso, local_time, notice_text
from backburner.core.states import Result, RunState


@pytest.mark.parametrize(
    ("milliseconds", "wanted"),
    [
        (None, "-"),
        (0, "0ms"),
        (999, "999ms"),
        (1000, "1s"),
        (59_999, "59s"),
        (60_000, "1m 0s"),
        (296_200, "4m 56s"),
        (3_599_999, "59m 59s"),
        (3_600_000, "1h 0m"),
        (7_500_000, "2h 5m"),
        (86_399_999, "23h 59m"),
        (86_400_000, "1d 0h"),
        (273_600_000, "3d 4h"),
    ],
)
def test_a_duration_is_formatted_in_its_two_largest_units(milliseconds: int | None, wanted: str) -> None:
    assert duration(milliseconds) == wanted


@pytest.mark.parametrize(
    ("at", "wanted"),
    [(None, None), (0, "1970-01-01T00:00:00.000Z"), (1_770_647_422_007, "2026-02-09T14:30:22.007Z"), (-1, "1969-12-31T23:59:59.999Z")],
)
def test_a_time_is_formatted_as_iso_8601_in_utc(at: int | None, wanted: str | None) -> None:
    assert iso(at) == wanted


def test_a_missing_time_is_formatted_as_a_dash() -> None:
    assert local_time(None) == "-"


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        (None, "unknown"),
        (0, "0"),
        (1, "1"),
        (127, "127"),
        (128, "128"),
        (130, "130 (possibly killed by SIGINT)"),
        (137, "137 (possibly killed by SIGKILL)"),
        (143, "143 (possibly killed by SIGTERM)"),
        (192, "192 (possibly killed by SIGRTMAX)"),
        (193, "193"),
        (255, "255"),
    ],
)
def test_an_exit_code_that_may_be_a_signal_names_the_signal(code: int | None, wanted: str) -> None:
    assert exit_text(code) == wanted


@pytest.mark.parametrize(
    ("result", "code", "error", "wanted"),
    [
        (Result.EXIT, 2, None, "exit 2"),
        (Result.SIGNAL, 143, None, "killed by signal 15"),
        (Result.SIGNAL, None, None, "killed by signal 9"),
        (Result.TIMEOUT, None, None, "stopped after its timeout of 5m 0s"),
        (Result.AMBIGUOUS, 137, None, "killed after its timeout of 5m 0s; it may or may not have taken effect"),
        (Result.LOST, None, None, "its end was not observed"),
        (Result.LOST, None, "the machine was started anew", "the machine was started anew"),
        (Result.UNSTARTED, None, None, "never started"),
        (Result.DENIED, None, None, "denied"),
        (Result.BUDGET, None, "over the day's budget", "over the day's budget"),
        (Result.DEPENDENCY, None, None, "dependency"),
    ],
)
def test_a_result_is_described_in_words(result: Result, code: int | None, error: str | None, wanted: str) -> None:
    assert describe_result(result, code, error, 300_000) == wanted


def test_every_result_has_a_description() -> None:
    assert all(describe_result(result, None, None, None) for result in Result)


def test_a_notice_contains_the_result_and_the_path_of_the_output() -> None:
    assert notice_text("task_a", RunState.COMPLETED, "exit 0", "89 passed in 3s", "/x/output.log") == (
        "Background task task_a completed: 89 passed in 3s. Output: /x/output.log"
    )
    assert notice_text("task_a", RunState.FAILED, "exit 2", "1 failed in 3s", "/x/output.log") == (
        "Background task task_a failed: exit 2; 1 failed in 3s. Output: /x/output.log"
    )
    assert (
        notice_text("task_a", RunState.COMPLETED, "exit 0", None, "/x/output.log")
        == "Background task task_a completed. Output: /x/output.log"
    )


def test_a_notice_contains_the_output_unless_the_summary_is_all_of_it() -> None:
    one = notice_text("task_a", RunState.COMPLETED, "exit 0", "hello", "/x/output.log", output="hello")
    assert one == "Background task task_a completed: hello. Output: /x/output.log"
    assert "finished. Output:" in notice_text("task_a", RunState.COMPLETED, "exit 0", "finished.", "/x/output.log")
    many = notice_text("task_a", RunState.FAILED, "exit 1", "bye", "/x/output.log", output="hello\nbye")
    assert many == "Background task task_a failed: exit 1; bye. Output: /x/output.log\nhello\nbye"
