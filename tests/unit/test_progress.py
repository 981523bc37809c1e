"""The one line that sums an output up, for the tools people use and for everything else."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backburner.progress import summarize

PYTEST = """\
tests/test_a.py ..F                                                      [100%]
=================================== FAILURES ===================================
    assert 1 == 2
=========================== short test summary info ============================
FAILED tests/test_a.py::test_x - assert 1 == 2
"""


@pytest.mark.parametrize(
    ("output", "wanted"),
    [
        (PYTEST + "=================== 1 failed, 2 passed in 0.12s ====================\n", "1 failed, 2 passed in 0.12s"),
        ("89 passed, 2 failed in 296.20s (0:04:56)\n", "89 passed, 2 failed in 296.20s (0:04:56)"),
        ("== 1 passed, 2 skipped, 3 deselected, 4 xfailed, 5 xpassed, 6 warnings, 1 error in 3.00s ==", None),
        ("============================ no tests ran in 0.01s =============================\n", "no tests ran in 0.01s"),
        ("1 passed in 0.01s\nCoverage HTML written to dir htmlcov\n", "1 passed in 0.01s"),
        ("1 passed in 0.01s\nmake: *** [Makefile:3: test] Error 1\n", "1 passed in 0.01s"),
    ],
)
def test_pytest_is_summed_up_by_its_last_line(output: str, wanted: str | None) -> None:
    assert summarize(output) == (wanted or output.strip("= "))


@pytest.mark.parametrize(
    ("end", "wanted"),
    [
        ("OK", "OK: 12 tests in 0.003s"),
        ("OK (skipped=2)", "OK (skipped=2): 12 tests in 0.003s"),
        ("FAILED (failures=1, errors=2)", "FAILED (failures=1, errors=2): 12 tests in 0.003s"),
    ],
)
def test_unittest_is_summed_up_by_its_count_and_its_verdict(end: str, wanted: str) -> None:
    assert summarize(f"....F\n{'-' * 70}\nRan 12 tests in 0.003s\n\n{end}\n") == wanted


def test_the_word_ok_alone_is_not_taken_for_unittest() -> None:
    assert summarize("copied 3 files\nOK\n") == "OK"


def test_jest_is_summed_up_by_its_tests() -> None:
    output = (
        "Test Suites: 1 failed, 4 passed, 5 total\nTests:       2 failed, 89 passed, 91 total\nSnapshots:   0 total\nTime:        3.2 s\n"
    )
    assert summarize(output) == "Tests:       2 failed, 89 passed, 91 total"


@pytest.mark.parametrize(
    "line",
    [
        "test result: FAILED. 12 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.02s",
        'error: could not compile `thing` (bin "thing") due to 2 previous errors',
    ],
)
def test_cargo_is_summed_up_by_its_result(line: str) -> None:
    assert summarize(f"running 13 tests\n\n{line}\n\nerror: test failed, to rerun pass `--lib`\n") == line


@pytest.mark.parametrize(
    ("output", "wanted"),
    [
        ("ok  \texample.com/a\t0.012s\nok  \texample.com/b\t1.3s\n", "ok: 2 packages"),
        (
            "--- FAIL: TestX (0.00s)\nFAIL\nFAIL\texample.com/a\t0.01s\nok  \texample.com/b\t0.2s\nFAIL\n",
            "FAIL: example.com/a (1 packages ok)",
        ),
        ("FAIL\texample.com/a [build failed]\nok  \texample.com/b\t0.2s\nFAIL\n", "FAIL: example.com/a (1 packages ok)"),
        ("FAIL\texample.com/a\t0.01s\nok  \texample.com/b\t(cached)\nFAIL\n", "FAIL: example.com/a (1 packages ok)"),
        ("ok  \texample.com/a\t0.012s\nok  \texample.com/b\t(cached)\n", "ok: 2 packages"),
    ],
)
def test_go_test_is_summed_up_over_its_packages(output: str, wanted: str) -> None:
    assert summarize(output) == wanted


@pytest.mark.parametrize("line", ["make: *** [Makefile:3: all] Error 2", "make[1]: *** No rule to make target 'x'.  Stop."])
def test_make_is_summed_up_by_its_error(line: str) -> None:
    assert summarize(f"cc -c a.c\n{line}\nbye\n") == line


@pytest.mark.parametrize(
    ("output", "wanted"),
    [
        ("first\nlast\n", "last"),
        ("first\nlast\n\n   \n\t\n", "last"),
        ("no end of line", "no end of line"),
        ("10%\r50%\r100% done\r", "100% done"),
        ("\x1b[1;32mgreen\x1b[0m and \x1b]0;title\x07plain\x1b(B\n", "green and plain"),
    ],
)
def test_anything_else_is_summed_up_by_the_last_line_that_says_anything(output: str, wanted: str) -> None:
    assert summarize(output) == wanted


def test_colours_do_not_hide_a_known_line() -> None:
    assert summarize("\x1b[31m=== \x1b[1m1 failed\x1b[0m, 2 passed in 0.1s ===\x1b[0m\n") == "1 failed, 2 passed in 0.1s"


@pytest.mark.parametrize("output", ["", "\n\n", "  \t ", "\x1b[0m\n\x1b[2K\n", "\0\0\0"])
def test_an_output_that_says_nothing_has_no_summary(output: str) -> None:
    assert summarize(output) is None


def test_a_summary_is_short_whatever_the_line() -> None:
    summary = summarize("x" * 1_000_000)
    assert summary == "x" * 199 + "…"


HARD = {
    "one letter": "'x' * 1_000_000",
    "digits": "'1' * 1_000_000",
    "counts": "'1 failed, ' * 60 + 'x'",
    "many counts": "'1 passed, ' * 100_000 + 'x'",
    "rulers": "'=' * 1_000_000 + 'x'",
    "times": "'1 passed in ' + '1' * 100_000 + 'x'",
    "escapes": "'\\x1b[' * 500_000",
    "titles": "'\\x1b]' * 500_000",
    "jest": "'Tests: ' + '1 a, ' * 100_000 + 'x'",
    "spaces": "'ok' + ' ' * 100_000 + 'x'",
    "go": "'FAIL ' + 'x' * 100_000",
    "lines": "'1 failed, 1 failed, 1 failed\\n' * 30_000",
}


@pytest.mark.parametrize("text", HARD.values(), ids=HARD)
def test_no_line_keeps_the_reader_busy_for_long(text: str) -> None:
    code = f"from backburner.progress import summarize; summarize({text})"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=10)


@given(st.text())
def test_a_summary_is_one_printable_line(text: str) -> None:
    summary = summarize(text)
    assert summary is None or (summary.isprintable() and 0 < len(summary) <= 200)
