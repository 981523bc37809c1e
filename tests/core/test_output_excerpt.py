"""What a notice shows of the output of a command: all of it up to 8,000 characters, and the first failing lines."""

import pytest

from backburner.core.output_excerpt import MAX_CHARACTERS, excerpt, first_failure

NOISE = "".join(f"step {n} of 500: compiled module_{n}\n" for n in range(500))
PYTEST = f"""\
{NOISE}=================================== FAILURES ===================================
_________________________________ test_refund __________________________________

    def test_refund():
>       assert refund(3) == 2
E       assert 3 == 2

test_shop.py:7: AssertionError
=========================== short test summary info ============================
FAILED test_shop.py::test_refund - assert 3 == 2
FAILED test_shop.py::test_total - assert 4 == 2
========================= 2 failed, 30 passed in 4.81s =========================
"""
FAILURES = {
    "pytest": (PYTEST, "FAILED test_shop.py::test_refund - assert 3 == 2\nFAILED test_shop.py::test_total - assert 4 == 2"),
    "unittest": (
        'x ... ok\nFAIL: test_sum (a.Sums.test_sum)\n-----\nTraceback (most recent call last):\n  File "a.py", line 3\nAssertionError: 1 != 2\n\nRan 2 tests\n\n',
        'FAIL: test_sum (a.Sums.test_sum)\n-----\nTraceback (most recent call last):\n  File "a.py", line 3\nAssertionError: 1 != 2\n\nRan 2 tests',
    ),
    "go": ("=== RUN TestA\n--- FAIL: TestA (0.00s)\n    a_test.go:7: got 1\n\n\nFAIL", "--- FAIL: TestA (0.00s)\n    a_test.go:7: got 1"),
    "traceback": (
        'start\nTraceback (most recent call last):\n  File "a.py", line 9, in <module>\n    main()\n  File "a.py", line 3, in main\n    raise ValueError(1)\n'
        "ValueError: 1\nafter",
        '  File "a.py", line 3, in main\n    raise ValueError(1)\nValueError: 1',
    ),
    "compiler": (
        "cc -c a.c\na.c:3:5: error: unknown type name 'in'\n    3 | in x;\n\n\nmake: *** [Makefile:2: a.o] Error 1",
        "a.c:3:5: error: unknown type name 'in'\n    3 | in x;",
    ),
    "any other": ("connecting\n0 errors so far\nfatal: could not read from the remote\n\n\nbye", "fatal: could not read from the remote"),
    "none": ("one\ntwo\n", ""),
}


@pytest.mark.parametrize("tool", FAILURES)
def test_the_first_failing_lines_are_found(tool: str) -> None:
    output, expected = FAILURES[tool]
    assert first_failure(output) == expected


def test_output_up_to_the_limit_is_complete_and_without_escapes() -> None:
    text = "\n".join(f"line {n}" for n in range(900))
    assert len(text) < MAX_CHARACTERS and excerpt(f"\x1b[1m{text}\x1b[0m\n\n", "task_a", failed=False) == text
    assert excerpt("10%\r50%\rdone\n", "task_a", failed=False) == "done"


def test_of_long_output_the_beginning_and_the_end_are_shown() -> None:
    shown = excerpt(NOISE, "task_a", failed=False)
    assert shown.startswith("step 0 of 500") and shown.endswith("module_499") and len(shown) <= MAX_CHARACTERS + 100
    assert "\n[… shortened; full output: backburner logs task_a]\nstep " in shown


def test_a_failure_far_down_in_the_output_comes_first() -> None:
    shown = excerpt(PYTEST, "task_a", failed=True)
    assert shown.startswith("First failure:\nFAILED test_shop.py::test_refund - assert 3 == 2\n") and len(shown) <= MAX_CHARACTERS + 200
    assert shown.endswith("2 failed, 30 passed in 4.81s =========================")


def test_a_failure_near_the_beginning_is_not_repeated() -> None:
    assert excerpt("error: no such file\n", "task_a", failed=True) == "error: no such file"
    assert excerpt("error: no such file\n" + NOISE[:2000], "task_a", failed=True).startswith("error: no such file\nstep 0")


def test_one_very_long_line_is_cut() -> None:
    shown = excerpt("x" * 100_000, "task_a", failed=True)
    assert "backburner logs task_a" in shown and len(shown) <= MAX_CHARACTERS + 100
