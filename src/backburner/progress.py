"""One line that says how a command went, read from the end of its output. Pure: text in, text out."""

import re

_ANSI = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-Z\\-_])")
_LONGEST = 200

# The closing lines of the test runners and builders people use, most telling first.
_SUMMARIES = [
    # pytest: "=== 89 passed, 2 failed in 296.2s ==="
    re.compile(
        r"^=* ?((?:\d+ (?:passed|failed|errors?|skipped|deselected|x?failed|xpassed|warnings?|rerun)(?:, )?)+ in [\d.:hms() ]+?) ?=*$"
    ),
    re.compile(r"^=* ?(no tests ran in [\d.]+s) ?=*$"),
    # jest: "Tests:       2 failed, 89 passed, 91 total"
    re.compile(r"^(Tests: +(?:\d+ \w+, )*\d+ total)$"),
    # cargo: "test result: FAILED. 12 passed; 1 failed; 0 ignored; …"
    re.compile(r"^(test result: .+)$"),
    re.compile(r"^(error: could not compile .+)$"),
    # make: "make: *** [Makefile:3: all] Error 2"
    re.compile(r"^(make(?:\[\d+\])?: \*\*\* .+)$"),
]
_UNITTEST_RAN = re.compile(r"^Ran (\d+) tests? in ([\d.]+s)$")
_UNITTEST_END = re.compile(r"^(OK|FAILED)( \(.+\))?$")


def clean(text: str) -> str:
    """`text` without terminal escapes and control characters: what a line may show of somebody's output."""
    return "".join(c if c.isprintable() else " " for c in _ANSI.sub("", text)).strip()


def summarize(tail: str) -> str | None:
    """The line that sums the output up: a known tool's closing line, else the last line that says anything."""
    lines = [line for line in map(clean, tail.splitlines()[-400:]) if line]
    if not lines:
        return None
    return _shortened(_unittest(lines) or _go_test(lines) or _known(lines) or lines[-1])


def _known(lines: list[str]) -> str | None:
    for pattern in _SUMMARIES:
        for line in reversed(lines[-60:]):
            if found := pattern.match(line):
                return found.group(1).strip()
    return None


def _unittest(lines: list[str]) -> str | None:
    if not (end := _UNITTEST_END.match(lines[-1])):
        return None
    for line in reversed(lines[-4:-1]):
        if ran := _UNITTEST_RAN.match(line):
            return f"{end.group(0)}: {ran.group(1)} tests in {ran.group(2)}"
    return None


def _go_test(lines: list[str]) -> str | None:
    packages = [found.groups() for line in lines if (found := re.match(r"^(ok|FAIL)\s+(\S+)\s+[\d.]+s|^(FAIL)\s+(\S+) \[", line))]
    if not packages:
        return None
    failed = [b or d for a, b, c, d in packages if "FAIL" in (a, c)]
    passed = len(packages) - len(failed)
    return f"FAIL: {', '.join(failed)} ({passed} packages ok)" if failed else f"ok: {passed} packages"


def _shortened(line: str) -> str:
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
