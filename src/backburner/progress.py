"""One line that says how a command went, read from the end of its output. Pure: text in, text out."""

import re

from backburner.text import clean

_LONGEST = 200

# The closing lines of the test runners and builders people use, most telling first. Compiled when first used.
_SUMMARIES = (
    # pytest: "=== 89 passed, 2 failed in 296.2s ==="
    r"^=* ?((?:\d+ (?:passed|failed|errors?|skipped|deselected|xfailed|xpassed|warnings?|rerun)(?:, )?)+ in [\d.:hms() ]+?) ?=*$",
    r"^=* ?(no tests ran in [\d.]+s) ?=*$",
    # jest: "Tests:       2 failed, 89 passed, 91 total"
    r"^(Tests: +(?:\d+ \w+, )*\d+ total)$",
    # cargo: "test result: FAILED. 12 passed; 1 failed; 0 ignored; …"
    r"^(test result: .+)$",
    r"^(error: could not compile .+)$",
    # make: "make: *** [Makefile:3: all] Error 2"
    r"^(make(?:\[\d+\])?: \*\*\* .+)$",
)
_UNITTEST_RAN = r"^Ran (\d+) tests? in ([\d.]+s)$"
_UNITTEST_END = r"^(OK|FAILED)( \(.+\))?$"
_GO = r"^(ok|FAIL)\s+(\S+)\s+(?:[\d.]+s|\(cached\))|^(FAIL)\s+(\S+) \["


def summarize(tail: str) -> str | None:
    """The line that sums the output up: a known tool's closing line, else the last line that says anything."""
    lines = [line for line in map(clean, tail.splitlines()[-400:]) if line]
    if not lines:
        return None
    return _shortened(_unittest(lines) or _go_test(lines) or _known(lines) or lines[-1])


def _known(lines: list[str]) -> str | None:
    for pattern in _SUMMARIES:
        for line in reversed(lines[-60:]):
            if found := re.match(pattern, line):
                return found.group(1).strip()
    return None


def _unittest(lines: list[str]) -> str | None:
    if not (end := re.match(_UNITTEST_END, lines[-1])):
        return None
    for line in reversed(lines[-4:-1]):
        if ran := re.match(_UNITTEST_RAN, line):
            return f"{end.group(0)}: {ran.group(1)} tests in {ran.group(2)}"
    return None


def _go_test(lines: list[str]) -> str | None:
    packages = [found.groups() for line in lines if (found := re.match(_GO, line))]
    if not packages:
        return None
    failed = [b or d for a, b, c, d in packages if "FAIL" in (a, c)]
    passed = len(packages) - len(failed)
    return f"FAIL: {', '.join(failed)} ({passed} packages ok)" if failed else f"ok: {passed} packages"


def _shortened(line: str) -> str:
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
