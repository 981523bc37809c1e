"""Derives the progress and the summary of a command from the end of its output, or from its progress file.

Nothing here raises or takes long, whatever a command prints: at most 64 KiB, 4,000 lines and 1,000 characters per line are read, and no
pattern backtracks over more than one line. Patterns are compiled when first used.
"""

import re
from typing import Any, NamedTuple

from backburner.core.terminal_text import clean, shortened

_MAX_LINE_CHARACTERS = 1000
_MAX_BYTES = 1 << 16
_MAX_LINES = 4000
# A tail of this many characters is probably incomplete, so that counts in it are shown as "at least".
_COMPLETE_LIMIT = 60_000


class Progress(NamedTuple):
    """The progress of a command. `fraction` is between 0 and 1, if known; `text` is one clean line of at most 200 characters."""

    done: float | None
    total: float | None
    fraction: float | None
    text: str


# The number of the line that progress was read from, and the progress.
_Observation = tuple[int, Progress]

_PYTEST_END = (
    r"^=* ?((?:\d+ (?:subtests )?(?:passed|failed|errors?|skipped|deselected|xfailed|xpassed|warnings?|rerun)(?:, )?)+"
    r" in [\d.:hms()days, ]+?) ?=*$"
)
# The closing lines of common test runners and build tools, most specific first.
_SUMMARIES = (
    # pytest: "=== 89 passed, 2 failed in 296.2s ==="
    _PYTEST_END,
    r"^=* ?(no tests ran in [\d.]+s) ?=*$",
    r"^=* ?((?:no|\d+(?:/\d+)?) tests? collected(?: \(\d+ deselected\))?(?:, \d+ errors?)? in [\d.]+s) ?=*$",
    # jest: "Tests:       2 failed, 89 passed, 91 total"; vitest: "Tests  2 failed | 89 passed (91)"
    r"^(Tests: +(?:\d+ \w+, )*\d+ total)$",
    r"^(Tests  +(?:\d+ \w+ \| )*\d+ \w+ \(\d+\))$",
    # cargo: "test result: FAILED. 12 passed; 1 failed; 0 ignored; …"
    r"^(test result: .+)$",
    r"^(error: could not compile .+)$",
    # make: "make: *** [Makefile:3: all] Error 2"
    r"^(make(?:\[\d+\])?: \*\*\* .+)$",
)
# What npm and pip print about newer versions of themselves after the end.
_ADVERTISEMENT = r"npm notice(?: |$)|\[notice\] (?:A new release of pip|To update, run)"
_CARGO_RESULT = r"(?a)test result: (ok|FAILED)\. (\d{1,9}) passed; (\d{1,9}) failed; (\d{1,9}) ignored"
_UNITTEST_RAN = r"^Ran (\d+) tests? in ([\d.]+s)$"
_UNITTEST_END = r"^(OK|FAILED|NO TESTS RAN)( \(.+\))?$"
_GO = r"^(ok|FAIL)\s+(\S+)\s+(?:[\d.]+s|\(cached\))|^(FAIL)\s+(\S+) \["


def summarize(tail: str) -> str | None:
    """Return the line that summarizes the output: the closing line of a known tool, or the last line that is not blank."""
    lines = [line[:_MAX_LINE_CHARACTERS] for line in map(clean, tail.splitlines()[-400:]) if line]
    lines = [line for line in lines if not re.match(_ADVERTISEMENT, line)] or lines
    if not lines:
        return None
    return shortened(_unittest(lines) or _go_test(lines) or _known(lines) or lines[-1])


def _known(lines: list[str]) -> str | None:
    for pattern in _SUMMARIES:
        for line in reversed(lines[-60:]):
            if found := re.match(pattern, line):
                return (line.startswith("test result:") and _cargo(lines)) or found.group(1).strip()
    return None


def _unittest(lines: list[str]) -> str | None:
    # A few lines can follow the result: Django reports that it destroys its test database.
    for at in range(len(lines) - 1, max(len(lines) - 6, 0), -1):
        if end := re.match(_UNITTEST_END, lines[at]):
            for line in reversed(lines[max(at - 3, 0) : at]):
                if ran := re.match(_UNITTEST_RAN, line):
                    noun = "test" if ran.group(1) == "1" else "tests"
                    return f"{end.group(0)}: {ran.group(1)} {noun} in {ran.group(2)}"
    return None


def _go_test(lines: list[str]) -> str | None:
    packages = [found.groups() for line in lines if (found := re.match(_GO, line))]
    if not packages:
        return None
    failed = [b or d for a, b, c, d in packages if "FAIL" in (a, c)]
    passed = len(packages) - len(failed)
    return f"FAIL: {', '.join(failed)} ({passed} packages ok)" if failed else f"ok: {passed} packages"


def _cargo(lines: list[str]) -> str | None:
    """Combine the results of several test binaries."""
    results = [found.groups() for line in lines if (found := re.match(_CARGO_RESULT, line))]
    if len(results) < 2:
        return None
    verdict = "FAILED" if any(result[0] == "FAILED" for result in results) else "ok"
    passed, failed, ignored = (sum(int(result[n]) for result in results) for n in (1, 2, 3))
    return f"test result: {verdict}. {passed} passed; {failed} failed; {ignored} ignored ({len(results)} results)"


def observed(tail: str) -> Progress | None:
    """Return the progress shown at the end of the output, which may start mid-line; None if it shows no progress.

    The latest line with progress is used. Pass the last 64 KiB: tests are counted over all of it.
    """
    lines = _lines(tail[-_MAX_BYTES:])
    whole = len(tail) < _COMPLETE_LIMIT and len(lines) < _MAX_LINES
    readers = (_read_pytest, _read_unittest, _read_cargo, _read_go, _read_tap, _read_jest, _read_counts)
    found = [observation for read in readers if (observation := read(lines, whole)) and observation[1].text]
    return max(found, key=lambda observation: observation[0])[1] if found else None


def _lines(tail: str) -> list[str]:
    """Return the lines that are not blank, cleaned and shortened. Of an overwritten line, the last state counts.

    Up to 8 spaces of indentation are kept, because it distinguishes subtests.
    """
    lines = []
    for line in tail.split("\n")[-_MAX_LINES:]:
        for state in reversed(re.split(r"\r|\x1b\[[01]?G|\x1b\[2K", line)):
            if text := clean(state):
                indent = " " * min(len(state) - len(state.lstrip(" ")), 8)
                # unittest prints one character per test on one line, so this line is not shortened.
                lines.append(text if set(text) <= set(".FEsxu") else (indent + text)[:_MAX_LINE_CHARACTERS])
                break
    return lines


_WORDS = {".": "passed", "F": "failed", "E": "errors", "s": "skipped", "x": "xfailed", "X": "xpassed", "u": "unexpectedly passed"}
_PYTEST_WORDS = {"PASSED": ".", "FAILED": "F", "ERROR": "E", "SKIPPED": "s", "XFAIL": "x", "XPASS": "X", "RERUN": "R"}
_UNITTEST_WORDS = {"ok": ".", "FAIL": "F", "ERROR": "E", "skipped": "s", "expected failure": "x", "unexpected success": "u"}
_CARGO_WORDS = {"ok": ".", "FAILED": "F", "ignored": "s", "bench:": ".", None: ""}
_GO_WORDS = {"PASS": ".", "ok": ".", "FAIL": "F", "SKIP": "s", None: "F"}
_JEST_WORDS = {"PASS": ".", "✓": ".", "FAIL": "F", "❯": "F", "×": "F"}


def _tests(marks: str, whole: bool, *, prefix: str = "", total: int | None = None, fraction: float | None = None) -> Progress:
    """Return the progress of a test runner from its marks: one character of `_WORDS` for each test.

    `whole` is False if earlier tests may be missing from the output.
    """
    counts = [(marks.count(mark), word) for mark, word in _WORDS.items()]
    done = sum(count for count, _ in counts) if whole else None
    if done is not None and total:
        done = min(done, total)
        fraction = done / total
    text = ", ".join(f"{count} {word.removesuffix('s') if count == 1 else word}" for count, word in counts if count)
    if text:
        text = f"{prefix}{'' if whole else 'at least '}{text} so far"
    return Progress(done, total, fraction, _with_numbers(text, done if total else None, total, fraction))


def _marked(lines: list[str], pattern: str, words: dict[Any, str], start: str = "(?!)") -> tuple[int, str, int] | None:
    """Return the latest matching line, the marks of all matches since the last line that matches `start`, and that line's number."""
    found = [(at, words[match[1]]) for at, line in enumerate(lines) if (match := re.match(pattern, line))]
    if not found:
        return None
    latest = found[-1][0]
    first = max((at for at in range(latest + 1) if re.match(start, lines[at])), default=0)
    return latest, "".join(mark for at, mark in found if at >= first), first


def _read_pytest(lines: list[str], whole: bool) -> _Observation | None:
    rows = [(at, row) for at, line in enumerate(lines) if (row := _pytest_row(line))]
    if not rows:
        return None
    if rows[-1][0] == len(lines) - 2 and set(lines[-1]) <= set(".FEsxXR"):
        rows.append((len(lines) - 1, (lines[-1], None, None)))
    latest = rows[-1][0]
    first = max((at for at in range(latest) if re.match(rf"=+ test session starts =+$|{_PYTEST_END}", lines[at])), default=0)
    marks, total, column = "", None, []
    for row_marks, percent, row_total in (row for at, row in rows if at >= first):
        marks += row_marks
        total = row_total or total
        if percent is not None:
            column.append((sum(map(marks.count, ".FEsxX")), percent))
    if not column:
        return latest, _tests(marks, whole)
    (early, early_percent), (late, percent) = column[0], column[-1]
    # The percentages reveal whether tests are missing, because the tail is incomplete or other output is mixed in.
    whole = abs(early * percent - late * early_percent) <= early + late
    return latest, _tests(marks, whole, total=total, fraction=percent / 100)


def _pytest_row(line: str) -> tuple[str, float | None, int | None] | None:
    """Parse one line of pytest: its marks, and the percentage and total of its last column ("[ 45%]" or "[ 45/100]")."""
    words = "|".join(_PYTEST_WORDS)
    if found := re.match(rf"(?a)\[gw\d{{1,4}}\] (?:\[ *(\d{{1,3}})%\] )?({words})(?: |$)", line):
        return _PYTEST_WORDS[found[2]], min(float(found[1]), 100) if found[1] else None, None
    percent = total = None
    if column := re.search(r"(?a) \[ *(\d{1,9})(?:%|/(\d{1,9}))\]$", line):
        line, total = line[: column.start()].rstrip(), int(column[2] or 0) or None
        percent = min(100 * int(column[1]) / (total or 100), 100)
    name, _, last = line.rpartition(" ")
    if last and set(last) <= set(".FEsxXR,u-") and re.fullmatch(r"(?:\S+\.\w+)?" if column else r"\S+\.(?:py|md|rst|txt)", name):
        return last.replace("u", "F"), percent, total
    if "::" in line.partition(" ")[0] and (found := re.search(rf" ({words})(?: \(.{{0,300}}\))?$", line)):
        return _PYTEST_WORDS[found[1]], percent, total
    return None


def _read_unittest(lines: list[str], whole: bool) -> _Observation | None:
    # unittest prints dots on the last line, without a newline. Up to three dots, or dots on earlier lines, can be other output.
    if lines and len(lines[-1]) > 3 and "." in lines[-1] and set(lines[-1]) <= set(".FEsxu"):
        return len(lines) - 1, _tests(lines[-1], whole)
    # A test with a docstring takes two lines.
    pairs = zip(["", *lines], lines, strict=False)
    lines = [f"{before} {line}" if re.fullmatch(r"\w+ \([\w.]+\)", before) else line for before, line in pairs]
    found = _marked(lines, rf"\w+ \(.* \.\.\. ({'|'.join(_UNITTEST_WORDS)})(?: |$)", _UNITTEST_WORDS, _UNITTEST_RAN)
    return found and (found[0], _tests(found[1], whole))


def _read_cargo(lines: list[str], whole: bool) -> _Observation | None:
    running = r"running [1-9]\d{0,8} tests?$"
    found = _marked(lines, rf"(?a)test \S.* \.\.\. (ok|FAILED|ignored|bench:)|{running}", _CARGO_WORDS, f"(?a){running}")
    if not found:
        return None
    total = int(lines[found[2]].split()[1]) if re.match(f"(?a){running}", lines[found[2]]) else None
    return found[0], _tests(found[1], total is not None, total=total)


def _read_go(lines: list[str], whole: bool) -> _Observation | None:
    tests, packages = _marked(lines, "--- (PASS|FAIL|SKIP): ", _GO_WORDS), _marked(lines, _GO, _GO_WORDS)
    if not tests or (packages and "." not in tests[1]):
        return packages and (packages[0], _tests(packages[1], whole, prefix="packages: "))
    return max(tests[0], packages[0] if packages else 0), _tests(tests[1], whole)


def _read_tap(lines: list[str], whole: bool) -> _Observation | None:
    test = r"(?a)(not(?! .*# (?:TODO|SKIP)))? ?(?:not )?ok \d{1,9}(?: |$)"
    if not (found := _marked(lines, test, {"not": "F", None: "."}, r"(?:not )?ok 1(?: |$)")):
        return None
    latest, marks, first = found
    # The plan is printed before the first test or after the last.
    plans = [int(plan[1]) for line in lines[max(first - 3, 0) :] if (plan := re.match(r"(?a)1\.\.(\d{1,9})(?: |$)", line))]
    number = int(lines[latest].split("ok ", 1)[1].split()[0])
    total = plans[-1] if plans and plans[-1] >= number else None
    if not total and not re.search(r"ok \d+(?: -| #|$)", lines[latest]):
        return None
    progress = _tests(marks, len(marks) == number, total=total, fraction=number / total if total else None)
    return latest, progress._replace(done=number)


def _read_jest(lines: list[str], whole: bool) -> _Observation | None:
    summary = r"(?a)Tests: +((?:\d{1,9} \w+, )*)(\d{1,9}) total"
    files = _marked(lines, r"(?a) ?(PASS|FAIL|[✓❯×]) .{0,300}\.[cm]?[jt]sx?(?: |$)", _JEST_WORDS, summary)
    at = max((at for at, line in enumerate(lines) if re.match(summary, line)), default=-1)
    if (found := re.match(summary, lines[at]) if at >= 0 else None) and not (files and files[0] > at):
        # While jest runs, the previous line counts the suites; the tests are only those of finished suites.
        suites = re.search(r"(?a)(\d{1,9}) of (\d{1,9}) total$", lines[max(at - 1, 0)])
        done, total = map(int, suites.groups()) if suites else (sum(map(int, re.findall(r"\d+", found[1]))), int(found[2]))
        return (at, _progress(lines[at], min(done, total), total)) if total else None
    return files and (files[0], _tests(files[1], whole, prefix="test files: "))


# A count or a percentage anywhere in a line. The lookarounds exclude dates, paths, versions and addresses.
_NUMBER = r"\d{1,3}(?:,\d{3}){1,3}|\d{1,12}"
_COUNT = (
    rf"(?a)(?<![\w.,/+\-@#$%^~\\−])(?<!/ )(?<!::)(?<!\d:)(to-chk=|ir-chk=)?({_NUMBER})(?: ?/ ?| of | out of )({_NUMBER})"
    r"(?![\w/%]|[.,:\-]\w| ?/| \d\d?:\d\d)"
)
_SIZE = (
    r"(?a)(?<![\w.,/+\-−])(\d{1,9}(?:\.\d{1,3})?) ?([kKMGT]?i?B|bytes)?(?: ?/ ?| of )(\d{1,9}(?:\.\d{1,3})?) ?([kKMGT]?i?B|bytes)(?![\w/])"
)
_PERCENT = r"(?a)(?<![\w.,/+\-%−])(\d{1,3}(?:\.\d{1,9}|,\d\d?)?) ?%(?![\w%]| /)"
# Percentages that do not measure progress.
_NOISE = r"(?i)\b(?:cpu|mem|memory|coverage|accuracy|acc|confidence|faster|slower|packet loss|battery|usage|utili[sz]ation)\b"


def _read_counts(lines: list[str], whole: bool) -> _Observation | None:
    """Read any other count or percentage: of build tools in the last 400 lines, of anything else in the last 50."""
    for back, line in enumerate(reversed(lines[-400:]), 1):
        at = len(lines) - back
        # cmake: "[ 45%] Building C object x.o"; ninja: "[12/340] CC x.o"
        if found := re.match(r"(?a)\[ *(\d{1,9})(?:%|/(\d{1,9}))\] ", line):
            done, total = int(found[1]), int(found[2] or 100)
            if done <= total and total:
                return at, _progress(line, done, total) if found[2] else _progress(line, None, None, done / 100)
        elif back <= 50 and (progress := _progress_of_line(line)):
            return at, progress
    return None


def _progress_of_line(line: str) -> Progress | None:
    searched = re.sub(r"://\S*", " ", line)
    for found in reversed(list(re.finditer(_COUNT, searched))):
        done, total = (int(number.replace(",", "")) for number in found.group(2, 3))
        if 0 < total >= done:
            return _progress(line, total - done if found[1] else done, total)
    for found in reversed(list(re.finditer(_SIZE, searched))):
        if found[2] in (None, found[4]) and 0 < (total := float(found[3])) >= (done := float(found[1])):
            return _progress(line, done, total)
    columns = line.split()
    if re.search(_NOISE, line) or (len(columns) > 3 and columns[1].isdecimal() and columns[2].isdecimal()):
        return _curl(columns)
    for found in reversed(list(re.finditer(_PERCENT, searched))):
        if (percent := float(found[1].replace(",", "."))) <= 100:
            return _progress(line, None, None, percent / 100)
    return _curl(columns)


def _curl(columns: list[str]) -> Progress | None:
    """Parse the progress meter of curl: twelve columns; the first is a percentage without a sign, and three are times."""
    if len(columns) != 12 or columns[1] == "0" or not all(":" in column for column in columns[8:11]):
        return None
    if not re.fullmatch(r"(?a)\d\d?|100", columns[0]):
        return None
    return Progress(None, None, int(columns[0]) / 100, shortened(f"{columns[0]}% of {columns[1]}"))


def _progress(line: str, done: float | None, total: float | None, fraction: float | None = None) -> Progress:
    """Return progress with the text of a line; the percentage is added if the line has none."""
    if fraction is None and done is not None and total:
        fraction = done / total
    text = " ".join(line.split())
    suffix = "" if fraction is None or re.search(r"\d ?%", text) else f" ({_percent(fraction)})"
    return Progress(done, total, fraction, shortened(text, suffix))


def reported(lines: bytes) -> Progress | None:
    """Return the progress in the last valid line of a progress file. The first line may be cut, the last one incomplete.

    A line is a JSON object with any of `done`, `total`, `percent`, `fraction` and `text`.
    """
    import json

    decoder = json.JSONDecoder(parse_int=lambda digits: int(digits) if len(digits) <= 12 else None)
    for line in reversed(lines[-_MAX_BYTES:].split(b"\n")):
        if not line.lstrip().startswith(b"{"):
            continue
        try:
            report = decoder.decode(line.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            continue
        if isinstance(report, dict) and (progress := _read_report(report)):
            return progress
    return None


def _read_report(report: dict[str, Any]) -> Progress | None:
    done, total, percent, fraction = (_number(report.get(name)) for name in ("done", "total", "percent", "fraction"))
    total = total or None
    if done is not None and total:
        done = min(done, total)
        fraction = done / total
    elif percent is not None:
        fraction = percent / 100
    fraction = None if fraction is None else min(fraction, 1.0)
    message = report.get("text")
    text = _with_numbers(" ".join(clean(message).split()) if isinstance(message, str) else "", done, total, fraction)
    return Progress(done, total, fraction, text) if text else None


def _number(value: object) -> float | None:
    """Return `value` if it is a valid count: not a boolean, NaN or negative, and at most 12 digits; else None."""
    return abs(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12 else None


def _with_numbers(text: str, done: float | None, total: float | None, fraction: float | None) -> str:
    """Join `text` and the numbers, without numbers that the text already contains: "text · 3/10 (30%)"."""
    count = "" if done is None else f"{_plain(done)}/{_plain(total)}" if total else _plain(done)
    share = "" if fraction is None else _percent(fraction)
    numbers = f"{count} ({share})" if count and share else count or share
    if not text or not numbers:
        return shortened(text or numbers)
    if total and count and count in text:
        return shortened(text, "" if share in text else f" ({share})")
    return shortened(text, "" if numbers in text else f" · {numbers}")


def _plain(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".") if isinstance(number, float) else str(number)


def _percent(fraction: float) -> str:
    # Rounded down, but 0.29 (stored as slightly less) gives 29%. 100% is shown only at the end.
    return f"{min(int(fraction * 100 + 1e-9), 99 if fraction < 1 else 100)}%"
