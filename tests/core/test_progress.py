"""Progress and summaries: of common tools, of other output, and of arbitrary input."""

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backburner.core.progress import Progress, observed, reported, summarize

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
        (
            "1 failed, 2 passed, 3 subtests passed in 90061.00s (1 day, 1:01:01)",
            "1 failed, 2 passed, 3 subtests passed in 90061.00s (1 day, 1:01:01)",
        ),
        ("========== 12/20 tests collected (8 deselected) in 0.02s ==========", "12/20 tests collected (8 deselected) in 0.02s"),
        ("===== no tests collected, 1 error in 0.02s =====", "no tests collected, 1 error in 0.02s"),
        ("1 passed in 0.01s\nCoverage HTML written to dir htmlcov\n", "1 passed in 0.01s"),
        ("1 passed in 0.01s\nmake: *** [Makefile:3: test] Error 1\n", "1 passed in 0.01s"),
    ],
)
def test_pytest_is_summarized_by_its_last_line(output: str, wanted: str | None) -> None:
    assert summarize(output) == (wanted or output.strip("= "))


@pytest.mark.parametrize(
    ("end", "wanted"),
    [
        ("OK", "OK: 12 tests in 0.003s"),
        ("OK (skipped=2)", "OK (skipped=2): 12 tests in 0.003s"),
        ("FAILED (failures=1, errors=2)", "FAILED (failures=1, errors=2): 12 tests in 0.003s"),
    ],
)
def test_unittest_is_summarized_by_its_count_and_result(end: str, wanted: str) -> None:
    assert summarize(f"....F\n{'-' * 70}\nRan 12 tests in 0.003s\n\n{end}\n") == wanted


@pytest.mark.parametrize(
    ("output", "wanted"),
    [
        ("Ran 1 test in 0.001s\n\nOK\n", "OK: 1 test in 0.001s"),
        ("Ran 0 tests in 0.000s\n\nNO TESTS RAN\n", "NO TESTS RAN: 0 tests in 0.000s"),
        ("Ran 2 tests in 0.5s\n\nOK\nDestroying test database for alias 'default'...\n", "OK: 2 tests in 0.5s"),
    ],
)
def test_unittest_is_recognised_if_a_few_lines_follow_its_result(output: str, wanted: str) -> None:
    assert summarize(output) == wanted


def test_a_line_with_only_ok_is_not_recognised_as_unittest() -> None:
    assert summarize("copied 3 files\nOK\n") == "OK"


def test_jest_is_summarized_by_its_tests() -> None:
    output = (
        "Test Suites: 1 failed, 4 passed, 5 total\nTests:       2 failed, 89 passed, 91 total\nSnapshots:   0 total\nTime:        3.2 s\n"
    )
    assert summarize(output) == "Tests:       2 failed, 89 passed, 91 total"


def test_jest_is_summarized_by_its_tests_if_snapshots_and_more_follow() -> None:
    output = (
        "Test Suites: 5 passed, 5 total\nTests:       1 skipped, 2 todo, 89 passed, 92 total\n"
        "Snapshots:   1 obsolete, 3 updated, 40 total\nTime:        3.2 s, estimated 4 s\nRan all test suites matching /a/i.\n"
    )
    assert summarize(output) == "Tests:       1 skipped, 2 todo, 89 passed, 92 total"


def test_vitest_is_summarized_by_its_tests() -> None:
    output = " Test Files  1 failed | 4 passed (5)\n      Tests  2 failed | 89 passed (91)\n   Start at  10:11:12\n   Duration  1.2s\n"
    assert summarize(output) == "Tests  2 failed | 89 passed (91)"


@pytest.mark.parametrize(
    "line",
    [
        "test result: FAILED. 12 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.02s",
        'error: could not compile `thing` (bin "thing") due to 2 previous errors',
    ],
)
def test_cargo_is_summarized_by_its_result(line: str) -> None:
    assert summarize(f"running 13 tests\n\n{line}\n\nerror: test failed, to rerun pass `--lib`\n") == line


@pytest.mark.parametrize(
    ("verdict", "wanted"),
    [
        ("ok. 3 passed; 0 failed", "test result: ok. 15 passed; 0 failed; 5 ignored (2 results)"),
        ("FAILED. 3 passed; 2 failed", "test result: FAILED. 15 passed; 2 failed; 5 ignored (2 results)"),
    ],
)
def test_several_results_of_cargo_are_combined(verdict: str, wanted: str) -> None:
    first = "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.02s"
    assert summarize(f"{first}\n\nrunning 9 tests\n\ntest result: {verdict}; 4 ignored; 0 measured\n") == wanted


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
def test_go_test_is_summarized_over_all_packages(output: str, wanted: str) -> None:
    assert summarize(output) == wanted


@pytest.mark.parametrize("line", ["make: *** [Makefile:3: all] Error 2", "make[1]: *** No rule to make target 'x'.  Stop."])
def test_make_is_summarized_by_its_error(line: str) -> None:
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
def test_other_output_is_summarized_by_its_last_line_with_text(output: str, wanted: str) -> None:
    assert summarize(output) == wanted


def test_a_summary_line_with_colours_is_recognised() -> None:
    assert summarize("\x1b[31m=== \x1b[1m1 failed\x1b[0m, 2 passed in 0.1s ===\x1b[0m\n") == "1 failed, 2 passed in 0.1s"


@pytest.mark.parametrize("output", ["", "\n\n", "  \t ", "\x1b[0m\n\x1b[2K\n", "\0\0\0"])
def test_output_without_text_has_no_summary(output: str) -> None:
    assert summarize(output) is None


def test_a_summary_of_a_long_line_is_short() -> None:
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
def test_summarizing_any_line_is_fast(text: str) -> None:
    code = (
        f"from backburner.core.progress import observed, reported, summarize; t = {text}; summarize(t); observed(t); reported(t.encode())"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@given(st.text())
def test_a_summary_is_one_printable_line(text: str) -> None:
    summary = summarize(text)
    assert summary is None or (summary.isprintable() and 0 < len(summary) <= 200)


def observe(tail: str) -> tuple[float | None, float | None, float | None, str] | None:
    """Return the observed progress with its fraction rounded."""
    progress = observed(tail)
    return progress and (progress.done, progress.total, None if progress.fraction is None else round(progress.fraction, 3), progress.text)


STARTS = "============================= test session starts ==============================\ncollected 107 items\n\n"


@pytest.mark.parametrize(
    ("output", "wanted"),
    [
        (f"{STARTS}tests/test_x.py {'.' * 47}F   [ 45%]\n", (48, None, 0.45, "47 passed, 1 failed so far · 45%")),
        (f"{STARTS}tests/test_x.py {'.' * 47}F   [ 45%]\ntests/test_y.py ..", (50, None, 0.45, "49 passed, 1 failed so far · 45%")),
        (f"{STARTS}tests/test_x.py ...s", (4, None, None, "3 passed, 1 skipped so far")),
        (f"{'.' * 72} [ 23%]\n{'.' * 71}E [ 46%]\n..", (146, None, 0.46, "145 passed, 1 error so far · 46%")),
        (f"{'.' * 70}xX [ 72/312]\n", (72, 312, 0.231, "70 passed, 1 xfailed, 1 xpassed so far · 72/312 (23%)")),
        (
            "tests/a.py::test_x[a b] PASSED      [ 33%]\ntests/a.py::test_y SKIPPED (no reason)  [ 66%]\ntests/a.py::test_z ",
            (2, None, 0.66, "1 passed, 1 skipped so far · 66%"),
        ),
        (
            "[gw0] [  1%] PASSED tests/a.py::test_x \n[gw1] [  2%] FAILED tests/a.py::test_y \n",
            (2, None, 0.02, "1 passed, 1 failed so far · 2%"),
        ),
        ("\x1b[32m.\x1b[0m\x1b[31mF\x1b[0m\x1b[32m  [ 40%]\x1b[0m\n", (2, None, 0.4, "1 passed, 1 failed so far · 40%")),
    ],
)
def test_progress_of_pytest_is_read_from_percentages_and_marks(output: str, wanted: tuple) -> None:
    assert observe(output) == wanted


def test_progress_of_pytest_counts_more_than_an_incomplete_tail_shows() -> None:
    lines = "".join(f"tests/a.py::test_{n} PASSED  [ {40 + n // 10}%]\n" for n in range(50))
    assert observe(lines) == (None, None, 0.44, "at least 50 passed so far · 44%")


@pytest.mark.parametrize("end", [f"=== 9 passed in 1.00s ===\n{STARTS}", "9 passed in 1.00s\n"])
def test_only_the_latest_pytest_session_counts(end: str) -> None:
    assert observe(f"a.py ......... [100%]\n{end}a.py ..F [ 50%]\n") == (3, None, 0.5, "2 passed, 1 failed so far · 50%")


def test_failures_that_pytest_lists_at_the_end_are_not_counted_again() -> None:
    assert observe(f"{STARTS}a.py .F [100%]\n=== FAILURES ===\nE   assert 1\nFAILED a.py::test_x - assert 1\nE") == (
        2,
        None,
        1.0,
        "1 passed, 1 failed so far · 100%",
    )


@pytest.mark.parametrize(
    ("output", "wanted"),
    [
        ("....F.", "5 passed, 1 failed so far"),
        (".." * 3000 + "Es", "6000 passed, 1 error, 1 skipped so far"),
        ("test_a (t.T.test_a) ... ok\ntest_b (t.T.test_b) ... FAIL\ntest_c (t.T.test_c) ... ", "1 passed, 1 failed so far"),
        ("test_a (t.T.test_a)\nSays what it does. ... ok\ntest_b (t.T.test_b) ... skipped 'why'\n", "1 passed, 1 skipped so far"),
        ("test_a (t.T) ... ok\nRan 1 test in 0.1s\n\nOK\ntest_b (t.T) ... ERROR\n", "1 error so far"),
    ],
)
def test_progress_of_unittest_is_read_from_its_marks(output: str, wanted: str) -> None:
    progress = observed(output)
    assert progress and progress.text == wanted and progress.fraction is None


@pytest.mark.parametrize("output", ["...", "Loading\n...\nmore", "....\nmore", "FEED", "Starting nginx ... ok", "E", "F\n"])
def test_dots_and_ok_in_other_output_are_not_counted_as_tests(output: str) -> None:
    assert observed(output) is None


@pytest.mark.parametrize(
    ("output", "wanted"),
    [
        ("running 91 tests\n", (0, 91, 0.0, "0/91 (0%)")),
        (
            "running 4 tests\ntest a::b ... ok\ntest a::c - should panic ... FAILED\ntest d ... ignored, slow\n",
            (3, 4, 0.75, "1 passed, 1 failed, 1 skipped so far · 3/4 (75%)"),
        ),
        ("running 1 test\ntest a ... ok\n\nrunning 2 tests\ntest b ... ok\n", (1, 2, 0.5, "1 passed so far · 1/2 (50%)")),
        ("running 1 test\ntest a ... ok\n\nrunning 0 tests\n", (1, 1, 1.0, "1 passed so far · 1/1 (100%)")),
        ("test a ... ok\ntest b ... ok\n", (None, None, None, "at least 2 passed so far")),
    ],
)
def test_progress_of_cargo_is_read_from_its_tests(output: str, wanted: tuple) -> None:
    assert observe(output) == wanted


@pytest.mark.parametrize(
    ("output", "wanted"),
    [
        (
            "=== RUN   TestA\n=== RUN   TestA/x\n--- PASS: TestA (0.00s)\n    --- PASS: TestA/x (0.00s)\n--- FAIL: TestB (0.1s)\n",
            (2, "1 passed, 1 failed so far"),
        ),
        ("--- PASS: TestA (0.00s)\n--- SKIP: TestB (0.1s)\nok  \texample.com/a\t0.012s\n", (2, "1 passed, 1 skipped so far")),
        ("ok  \texample.com/a\t0.012s\nok  \texample.com/b\t(cached)\n", (2, "packages: 2 passed so far")),
        ("--- FAIL: TestB (0.1s)\nFAIL\texample.com/a\t0.01s\nok  \tb\t0.1s\n", (2, "packages: 1 passed, 1 failed so far")),
        ("FAIL\texample.com/a [build failed]\n", (1, "packages: 1 failed so far")),
    ],
)
def test_progress_of_go_test_is_read_from_its_tests_or_packages(output: str, wanted: tuple) -> None:
    progress = observed(output)
    assert progress and (progress.done, progress.text) == wanted


@pytest.mark.parametrize(
    ("output", "wanted"),
    [
        ("1..10\nok 1 - a\nnot ok 2 - b\n# why\nok 3\n", (3, 10, 0.3, "2 passed, 1 failed so far · 3/10 (30%)")),
        ("TAP version 13\nok 1 - a\n    ok 1 - sub\n    ok 2 - sub\n    1..2\nok 2 - b\n", (2, None, None, "2 passed so far")),
        ("ok 1 - a\nnot ok 2 - b # TODO later\n1..2\n", (2, 2, 1.0, "2 passed so far · 2/2 (100%)")),
        ("1..3\nok 1 bats has no dash\n", (1, 3, 0.333, "1 passed so far · 1/3 (33%)")),
        ("1..2\nok 1 - a\nok 2 - b\n1..4\nok 1 - c\n", (1, 4, 0.25, "1 passed so far · 1/4 (25%)")),
        ("ok 41 - a\nok 42 - b\n", (42, None, None, "at least 2 passed so far")),
        ("1..2\nok 3 - more than planned\n", (3, None, None, "at least 1 passed so far")),
        ("ok 200 requests", None),
    ],
)
def test_progress_of_tap_is_read_from_its_numbers_and_its_plan(output: str, wanted: tuple | None) -> None:
    assert observe(output) == wanted


@pytest.mark.parametrize(
    ("output", "wanted"),
    [
        ("PASS src/a.test.js\nFAIL src/b.test.tsx (5.2 s)\n  ● it fails\n", (2, None, None, "test files: 1 passed, 1 failed so far")),
        (
            " ✓ src/a.test.ts (12 tests) 5ms\n ❯ src/b.test.ts (3 tests | 1 failed)\n",
            (2, None, None, "test files: 1 passed, 1 failed so far"),
        ),
        ("PASS a.test.js\nTests:       2 failed, 89 passed, 91 total\n", (91, 91, 1.0, "Tests: 2 failed, 89 passed, 91 total (100%)")),
        (
            "Test Suites: 5 passed, 5 of 10 total\nTests:       89 passed, 89 total\nSnapshots:   0 total\n",
            (5, 10, 0.5, "Tests: 89 passed, 89 total (50%)"),
        ),
        ("PASS a.test.js\nTests: 1 passed, 1 total\nPASS b.test.js\n", (1, None, None, "test files: 1 passed so far")),
    ],
)
def test_progress_of_jest_is_read_from_its_files_and_its_tests(output: str, wanted: tuple) -> None:
    assert observe(output) == wanted


CURL = "  % Total    % Received % Xferd\n"


@pytest.mark.parametrize(
    ("line", "done", "total", "fraction", "text"),
    [
        ("[ 45%] Building C object x.o", None, None, 0.45, None),
        ("[12/340] CC src/1/2.o", 12, 340, 0.035, "[12/340] CC src/1/2.o (3%)"),
        ("[12/340] Copying 3/4", 12, 340, 0.035, "[12/340] Copying 3/4 (3%)"),
        ("132/247 files processed", 132, 247, 0.534, "132/247 files processed (53%)"),
        ("Processed 132 of 247", 132, 247, 0.534, "Processed 132 of 247 (53%)"),
        ("3 out of 10 done.", 3, 10, 0.3, "3 out of 10 done. (30%)"),
        ("step 3/10", 3, 10, 0.3, "step 3/10 (30%)"),
        ("step 3 / 10.", 3, 10, 0.3, "step 3 / 10. (30%)"),
        ("progress=3/10", 3, 10, 0.3, "progress=3/10 (30%)"),
        ("Progress:3/10", 3, 10, 0.3, "Progress:3/10 (30%)"),
        ("第3/10页", 3, 10, 0.3, "第3/10页 (30%)"),
        ("1,234/5,678 rows", 1234, 5678, 0.217, "1,234/5,678 rows (21%)"),
        ("#12 [3/10] RUN make", 3, 10, 0.3, "#12 [3/10] RUN make (30%)"),
        ("epoch 3/10, batch 5/50", 5, 50, 0.1, "epoch 3/10, batch 5/50 (10%)"),
        ("3/10 on 10/12/2026 from http://a/1/2", 3, 10, 0.3, "3/10 on 10/12/2026 from http://a/1/2 (30%)"),
        ("Epoch 3/10 accuracy 87%", 3, 10, 0.3, None),
        ("53%", None, None, 0.53, None),
        ("at 53.2 % now", None, None, 0.532, None),
        ("53,2 %", None, None, 0.532, None),
        ("0% … 29%", None, None, 0.29, None),
        ("100% sure", None, None, 1.0, None),
        ("45%|████      | 45/100 [00:10<00:12]", 45, 100, 0.45, "45%|████ | 45/100 [00:10<00:12]"),
        ("45%|████      | 1.2k/3.4k [00:10<00:12, 1.1kit/s]", None, None, 0.45, "45%|████ | 1.2k/3.4k [00:10<00:12, 1.1kit/s]"),
        ("Receiving objects:  45% (450/1000), 1.2 MiB | 3 MiB/s", 450, 1000, 0.45, "Receiving objects: 45% (450/1000), 1.2 MiB | 3 MiB/s"),
        ("file.iso   45%[====>     ]  12.34M  2.1MB/s  eta 3s", None, None, 0.45, "file.iso 45%[====> ] 12.34M 2.1MB/s eta 3s"),
        ("  50K .......... .......... 45% 1.2M 3s", None, None, 0.45, "50K .......... .......... 45% 1.2M 3s"),
        ("   ━━━━━━╸━━━ 1.7/3.4 MB 5.6 MB/s eta 0:00:01", 1.7, 3.4, 0.5, "━━━━━━╸━━━ 1.7/3.4 MB 5.6 MB/s eta 0:00:01 (50%)"),
        ("Downloading 1.5MB/3.0MB", 1.5, 3.0, 0.5, "Downloading 1.5MB/3.0MB (50%)"),
        ("1,238,099  45%  146.38kB/s  0:00:08", None, None, 0.45, "1,238,099 45% 146.38kB/s 0:00:08"),
        ("1,238,099 100%  1kB/s  0:00:08  (xfr#5, to-chk=100/400)", 300, 400, 0.75, "1,238,099 100% 1kB/s 0:00:08 (xfr#5, to-chk=100/400)"),
        (CURL + " 45 1234k   45  567k    0     0   234k      0  0:00:10  0:00:04  0:00:06  234k", None, None, 0.45, "45% of 1234k"),
        ("######## 45.3%", None, None, 0.453, None),
        ("(3/10): foo.rpm  1.2 MB/s | 12 kB  00:01", 3, 10, 0.3, "(3/10): foo.rpm 1.2 MB/s | 12 kB 00:01 (30%)"),
    ],
)
def test_a_count_or_percentage_in_a_line_is_progress(
    line: str, done: float | None, total: float | None, fraction: float, text: str | None
) -> None:
    assert observe(f"hello\n{line}\nbye\n") == (done, total, fraction, text or line)


NO_PROGRESS = [
    "2026/02/09",
    "2026/02/09 10:11:12 starting",
    "10/12/2026",
    "1.5 s",
    "main.c F",
    "a.py -",
    "[gw0] RERUN",
    "10 / 12 / 2026",
    "02/09 10:11:12 starting",
    "reading /a/1/2",
    "src/1/2.py",
    "1/2.py",
    "1/2/",
    "lib-1/2",
    "C:\\1/2",
    "version 1.2/3",
    "v1/2",
    "GET https://example.com/3/4?b=5%",
    "https://example.com/?a=3/4 seen",
    "5/3 done",
    "3/0",
    "0/0",
    "101%",
    "1000%",
    "-5%",
    "−5 %",
    "-3/10",
    "load 3/4.5",
    "http/1.1",
    "HTTP/2",
    "10.0.0.0/24",
    "fe80::1/64",
    "get 50%off now",
    "a%20b%3A",
    "printf 50%%",
    "10-20%of",
    "24/7",
    "and/or",
    "x3/10",
    "12:3/10",
    "3/10ms",
    "1234567890123/1234567890124",
    "9999999999999%",
    "1 of 1234567890123",
    "12.5MB/3.0MB",
    "src/backburner/text.py     100      5    95%   12-14",
    "coverage: 45.0% of statements",
    "0.05s user 0.01s system 98% cpu 0.06 total",
    "/dev/sda1  50G  20G  28G  42% /",
    "101 1234k   45  567k    0     0   234k      0  0:00:10  0:00:04  0:00:06  234k",
    "[5/3] backwards",
    "[ 145%] too far",
    "",
    "\x1b[2K",
]


@pytest.mark.parametrize("line", NO_PROGRESS)
def test_text_that_only_looks_like_a_count_is_not_progress(line: str) -> None:
    assert observed(f"hello\n{line}\nbye\n") is None


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("1/10\n2/10\nstill at it\n", "2/10 (20%)"),
        ("1/10\n50%\n", "50%"),
        ("50%\n1/10\n", "1/10 (10%)"),
        ("a.py .. [ 40%]\nuploaded 1/10\n", "uploaded 1/10 (10%)"),
        ("uploaded 1/10\na.py .. [ 40%]\n", "2 passed so far · 40%"),
        ("10%\r20%\r30%", "30%"),
        ("10%\r20%\r\r   \r\n", "20%"),
        ("10% done\x1b[1G20% done\x1b[2K\x1b[1G30% done", "30% done"),
        ("\x1b[1;32m3\x1b[0m/10", "3/10 (30%)"),
        ("3/10\r\nwindows\r\n", "3/10 (30%)"),
        ("247 files\n" * 5, None),
        ("3/10\n" + "noise\n" * 49, "3/10 (30%)"),
        ("3/10\n" + "noise\n" * 50, None),
        ("[3/10] CC a.o\n" + "warning\n" * 399, "[3/10] CC a.o (30%)"),
        ("[3/10] CC a.o\n" + "warning\n" * 400, None),
        ("3/10 \rspinning", None),
    ],
)
def test_the_latest_line_with_progress_is_used(output: str, text: str | None) -> None:
    progress = observed(output)
    assert (progress and progress.text) == text


def test_a_long_line_is_cut_before_it_is_read_and_keeps_its_percentage() -> None:
    progress = observed("3/10 " + "x" * 500)
    assert progress and len(progress.text) == 200 and progress.text.endswith("x… (30%)")
    assert observed("x" * 1000 + " 3/10") is None


def test_100_percent_is_shown_only_at_the_end() -> None:
    progress = observed("99999999999/100000000000")
    assert progress and progress.text.endswith(" (99%)")


LOOKS = st.sampled_from(
    [
        "1/2",
        "45%",
        "[ 45%]",
        "[3/10] ",
        ".F",
        "a.py .. ",
        "a.py::b PASSED",
        "[gw0] ",
        "ok 1",
        " not ok 2",
        "1..3",
        "running 3 tests",
        "test a ... ok",
    ]
    + [
        "test_a (b) ... ok",
        "--- PASS: a",
        "ok a 1s",
        "PASS a.js",
        "Tests: 1 a, 2 total",
        "1 of 2 total",
        "Ran 1 test in 1s",
        "1 passed in 1s",
    ]
    + ["\n", "\r", " ", "\x1b[", "\x1b]", "9" * 13, "٣/٤", "²", ",", ".", "/", "-", ":", "0", "MB", "to-chk=", "\ud800", "\u202e", "\0"]
)


@given(st.lists(LOOKS | st.text(st.characters(codec=None), max_size=5), max_size=40).map("".join))
def test_progress_of_any_output_is_one_short_line_with_valid_numbers(tail: str) -> None:
    check(observed(tail))


def check(progress: Progress | None) -> None:
    if progress:
        assert progress.text.isprintable() and progress.text.strip() and len(progress.text) <= 200
        assert progress.fraction is None or 0 <= progress.fraction <= 1
        assert progress.done is None or 0 <= progress.done < 1e12
        assert progress.total is None or 0 < progress.total < 1e12
        assert progress.done is None or progress.total is None or progress.done <= progress.total


HOSTILE = [
    "9",
    "1/",
    "1% ",
    "\x1b[",
    "\x1b]",
    "\x1bPx",
    "\x1b[2K",
    "\r",
    "\n",
    "a\n",
    ".",
    ".\n",
    "[",
    "[ ",
    "[(",
    " [ 1%]",
    " PASSED (",
    "test a ... ",
]
HOSTILE += [
    "t ( ... ",
    "1,234 of 5,678 ",
    "1,111,",
    "1.1MB/",
    "://",
    "PASS .js",
    "Tests: 1 a, ",
    "ok 5 x\n",
    "not ok 5 # TOD",
    "=",
    "1 passed in 1",
]
HOSTILE += [
    "a.py . [ 1%]\n",
    "[gw0] [  1%] PASSED a\n",
    '{"a":',
    "[[{",
    "a_1 (a.",
    "1 1 1 1 1 1 1 1 : : : 1\n",
    "= test session starts =\n",
    "\0",
    "\u202e",
]


def test_reading_progress_from_any_output_is_fast() -> None:
    code = (
        "from backburner.core.progress import observed, reported\n"
        f"for part in {HOSTILE!r}:\n"
        "    for text in ((part * 65536)[:65536], 'x' + (part * 65536)[:65534] + 'x', (part * 65536).replace('\\n', ' ')[:65536]):\n"
        "        observed(text); reported(text.encode())"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ('{"done": 3, "total": 10, "text": "copying"}', Progress(3, 10, 0.3, "copying · 3/10 (30%)")),
        ('{"done": 3, "total": 10}', Progress(3, 10, 0.3, "3/10 (30%)")),
        ('{"done": 3}', Progress(3, None, None, "3")),
        ('{"text": "warming up"}', Progress(None, None, None, "warming up")),
        ('{"percent": 53}', Progress(None, None, 0.53, "53%")),
        ('{"fraction": 0.5, "text": "half"}', Progress(None, None, 0.5, "half · 50%")),
        ('{"percent": 53, "done": 3}', Progress(3, None, 0.53, "3 (53%)")),
        ('{"percent": 29}', Progress(None, None, 0.29, "29%")),
        (f'{{"text": "far", "done": {"9" * 5000}}}', Progress(None, None, None, "far")),
        ('{"percent": 140}', Progress(None, None, 1.0, "100%")),
        ('{"done": 12, "total": 10}', Progress(10, 10, 1.0, "10/10 (100%)")),
        ('{"done": 1.5, "total": 4.0}', Progress(1.5, 4.0, 0.375, "1.5/4 (37%)")),
        ('{"done": 3, "total": 10, "percent": 99}', Progress(3, 10, 0.3, "3/10 (30%)")),
        ('{"done": 3, "total": 10, "text": "3/10 files"}', Progress(3, 10, 0.3, "3/10 files (30%)")),
        ('{"done": 3, "total": 10, "text": "3/10 files, 30%"}', Progress(3, 10, 0.3, "3/10 files, 30%")),
        ('{"done": 0, "total": 0, "text": "nothing to do"}', Progress(0, None, None, "nothing to do · 0")),
        ('{"text": "\\u001b[31mred\\u001b[0m\\n\\ttwo \\u202e lines"}', Progress(None, None, None, "red two lines")),
        ('{"text": "a\\ud800b"}', Progress(None, None, None, "a b")),
        ('{"text": "copying", "total": 10, "colour": [1, {}]}', Progress(None, 10, None, "copying")),
        ('{"done": true, "total": "10", "percent": null, "text": "odd"}', Progress(None, None, None, "odd")),
        ('{"done": 1, "done": 2}', Progress(2, None, None, "2")),
        ('  {"done": 2}\r', Progress(2, None, None, "2")),
        ('{"done": -0.0, "total": 5}', Progress(0.0, 5, 0.0, "0/5 (0%)")),
    ],
)
def test_a_valid_line_of_a_progress_file_is_read(line: str, wanted: Progress) -> None:
    assert reported(line.encode() + b"\n") == reported(line.encode()) == wanted


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"3/10",
        b"[3, 10]",
        b'"text"',
        b"{}",
        b'{"total": 10}',
        b'{"text": ""}',
        b'{"text": "\\u001b[2J \\n"}',
        b'{"text": 5}',
        b'{"done": NaN}',
        b'{"done": Infinity}',
        b'{"done": 1e999}',
        b'{"done": -1}',
        b'{"done": true}',
        b'{"done": "3"}',
        b'{"done": 1234567890123}',
        b'{"done": ' + b"9" * 60_000 + b"}",
        b'{"done": 3',
        b'{"done": 3} {"done": 4}',
        b'{"a":' * 10_000,
        b'{"done":' + b"[" * 30_000 + b"]" * 30_000 + b"}",
        b"\xff\xfe{\0}\0",
        b"{\xff}",
    ],
)
def test_an_invalid_line_of_a_progress_file_is_skipped(line: bytes) -> None:
    assert reported(line) is None
    assert reported(b'{"done": 7}\n' + line) == reported(b'{"done": 7}\n' + line + b"\n\n") == Progress(7, None, None, "7")


def test_the_last_line_of_a_progress_file_is_used_if_the_first_is_cut() -> None:
    assert reported(b'one": 1}\n{"done": 2}\n{"done": 3}\n{"do') == Progress(3, None, None, "3")


def test_invalid_utf8_in_a_progress_file_is_replaced() -> None:
    assert reported(b'{"text": "a\xffb"}') == Progress(None, None, None, "a\ufffdb")


def test_a_long_progress_text_is_shortened_to_keep_its_numbers() -> None:
    progress = reported(json.dumps({"text": "x" * 500, "done": 3, "total": 10}).encode())
    assert progress and len(progress.text) == 200 and progress.text.endswith("x… · 3/10 (30%)")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)), lambda inner: st.lists(inner, max_size=2)
)
REPORTS = st.dictionaries(st.sampled_from(["done", "total", "percent", "fraction", "text", "other"]), VALUES)


@given(st.lists(REPORTS.map(lambda report: json.dumps(report).encode()) | st.binary(max_size=20), max_size=5).map(b"\n".join))
def test_progress_of_any_progress_file_is_one_short_line_with_valid_numbers(lines: bytes) -> None:
    check(reported(lines))


def test_an_advertisement_of_a_package_manager_is_not_the_summary() -> None:
    output = "built in 3s\nnpm notice\nnpm notice New major version of npm available! 10.8.2 -> 11.6.2\nnpm notice To update run: npm install -g npm\nnpm notice\n"
    assert summarize(output) == "built in 3s"
    assert (
        summarize(
            "Successfully installed x-1\n\n[notice] A new release of pip is available: 24.0 -> 25.3\n[notice] To update, run: pip install -U pip\n"
        )
        == "Successfully installed x-1"
    )
    assert summarize("npm notice\n") == "npm notice"
