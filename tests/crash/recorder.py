"""Records what really happened, from the commands themselves and from rows of the ledger, not from the code under test.

Every command writes its name to a file when it starts and prints the same bytes in every run; `check` compares
these files, the output, the exit codes, the events and the notices.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import apsw
from conftest import HomeCli, wait_until

from backburner.core.models import ProcessId

SCRIPT = r"""
# BOOK NAME LINES CODE PAUSE GATE: write NAME to BOOK, wait for GATE, print LINES lines, exit with CODE.
printf '%s\n' "$2" >>"$1"
[ -z "$6" ] || read -r opened <"$6"
i=0
while [ $i -lt "$3" ]; do
    echo "$2 says $i"
    [ $((i % 7)) -ne 3 ] || printf '%s complains of %s\001\377\n' "$2" $i >&2
    [ "$5" = 0 ] || [ $((i % 20)) -ne 7 ] || sleep "$5"
    i=$((i + 1))
done
printf 'no newline at the end of %s' "$2"
exit "$4"
"""
ENDED = ("completed", "failed", "cancelled")


class Job(NamedTuple):
    """A command with a unique name, and how it must end."""

    name: str
    lines: int
    code: int
    pause: float
    gate: str


class Row(NamedTuple):
    """One run in the ledger."""

    name: str
    task_id: str
    state: str
    result: str | None
    exit_code: int | None
    notices: int
    starts: int
    ends: int


class JobRecorder:
    """The jobs of one home, and their results."""

    def __init__(self, home_cli: HomeCli) -> None:
        self.home_cli = home_cli
        self._books = home_cli.cwd / "books"
        self._books.mkdir(exist_ok=True)
        self._script = home_cli.cwd / "job.sh"
        self._script.write_text(SCRIPT)

    def job(self, name: str, *, lines: int = 40, code: int = 0, pause: float = 0, gated: bool = False) -> Job:
        gate = ""
        if gated:
            gate = str(self.home_cli.cwd / f"{name}.gate")
            os.mkfifo(gate)
        return Job(name, lines, code, pause, gate)

    def command(self, job: Job) -> list[str]:
        return ["sh", str(self._script), str(self._books / job.name), job.name, str(job.lines), str(job.code), f"{job.pause:g}", job.gate]

    def submit(self, job: Job) -> str:
        """Start a job through the command line; returns its id."""
        return self.home_cli.run(*self.command(job), options=("--description", job.name))

    def open_gate(self, job: Job) -> None:
        with open(job.gate, "w") as gate:
            gate.write("open\n")

    def has_started(self, job: Job) -> bool:
        return (self._books / job.name).exists()

    def start_count(self, job: Job) -> int:
        """How many times the job has started."""
        try:
            return len((self._books / job.name).read_text().splitlines())
        except FileNotFoundError:
            return 0

    def expected_output(self, job: Job) -> bytes:
        """The output of the job if nothing is killed."""
        words = ["sh", str(self._script), os.devnull, job.name, str(job.lines), str(job.code), "0", ""]
        done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
        assert done.returncode == job.code
        return done.stdout

    def rows(self) -> list[Row]:
        """Every run of the home, read without anything that could wake an engine."""
        return [Row(*row) for row in query(self.home_cli, _ROWS)]

    def row(self, job: Job) -> Row | None:
        return next((row for row in self.rows() if row.name == job.name), None)

    def ended(self, jobs: Iterable[Job]) -> bool:
        states = {row.name: row.state for row in self.rows()}
        return all(states.get(job.name) in ENDED for job in jobs)

    def wait_for_ends(self, jobs: Sequence[Job], seconds: float = 60) -> None:
        """Wait for ends that must be recorded without any command in the meantime."""
        wait_until(lambda: self.ended(jobs), f"the ends of {[job.name for job in jobs]}", seconds)

    def finish(self, jobs: Iterable[Job]) -> None:
        """Wait through the command line, as a user would after a crash, and check everything."""
        jobs = list(jobs)
        known = {row.name: row.task_id for row in self.rows()}
        self.home_cli.cli("wait", "--timeout", "60", *(known[job.name] for job in jobs))
        self.check(jobs)

    def check(self, jobs: Iterable[Job]) -> None:
        """Each job started once, has its real exit code, all its output, and exactly one notice."""
        rows = self.rows()
        for job in jobs:
            self.check_job(job, [row for row in rows if row.name == job.name])
        assert query(self.home_cli, "PRAGMA quick_check") == [("ok",)]

    def check_job(self, job: Job, rows: Sequence[Row]) -> None:
        """Check one job; `rows` are its runs in the ledger."""
        assert len(rows) == 1, f"{job.name} is {len(rows)} times in the ledger"
        row = rows[0]
        recorded = row._replace(task_id="", name="")
        state = "completed" if job.code == 0 else "failed"
        assert recorded == Row("", "", state, "exit", job.code, notices=1, starts=1, ends=1), (job, row)
        assert self.start_count(job) == 1, f"{job.name} ran {self.start_count(job)} times"
        assert self.output(row.task_id) == self.expected_output(job), f"the output of {job.name}"
        self._check_files(row)

    def output(self, task_id: str) -> bytes:
        """The log on disk, without its header of four lines."""
        return (self.home_cli.folder(task_id) / "output.log").read_bytes().split(b"\n", 4)[4]

    def _check_files(self, row: Row) -> None:
        folder = self.home_cli.folder(row.task_id)
        assert json.loads((folder / "result.json").read_text())["exit_code"] == row.exit_code
        metadata = json.loads((folder / "metadata.json").read_text())
        assert (metadata["status"], metadata["exit_code"]) == (row.state, row.exit_code)


_ROWS = """
    WITH starts AS (SELECT task_id, count(*) AS count FROM events WHERE kind = 'run_started' GROUP BY task_id),
        ends AS (SELECT task_id, count(*) AS count FROM events WHERE kind IN ('run_completed', 'run_failed', 'run_cancelled') GROUP BY task_id)
    SELECT t.description, t.task_id, r.state, r.result, r.exit_code,
        (SELECT count(*) FROM notices n WHERE n.task_id = t.task_id AND n.run_id = r.run_id AND n.recipient <> 'channel'),
        coalesce(starts.count, 0), coalesce(ends.count, 0)
    FROM tasks t JOIN runs r ON r.task_id = t.task_id
    LEFT JOIN starts ON starts.task_id = t.task_id LEFT JOIN ends ON ends.task_id = t.task_id ORDER BY r.seq
"""


def query(home_cli: HomeCli, sql: str, *values: object) -> list[tuple]:
    """Rows of the ledger, through a separate read-only connection."""
    try:
        ledger = apsw.Connection(str(home_cli.root / "ledger.db"), flags=apsw.SQLITE_OPEN_READONLY)
    except apsw.CantOpenError:
        return []
    try:
        ledger.set_busy_timeout(5000)
        return list(ledger.execute(sql, values))  # type: ignore[arg-type]
    finally:
        ledger.close()


def change(home_cli: HomeCli, sql: str, *values: object) -> None:
    """Change a row to simulate what a test cannot cause: a reused pid, a wrong clock."""
    ledger = apsw.Connection(str(home_cli.root / "ledger.db"))
    try:
        ledger.set_busy_timeout(5000)
        ledger.execute(sql, values)  # type: ignore[arg-type]
        assert ledger.changes() > 0
    finally:
        ledger.close()


def wait_for_stable_engine(home_cli: HomeCli) -> None:
    """Wait until no engine is starting or exiting."""

    def engines_in_transition() -> list[ProcessId]:
        others = [*home_cli.processes("backburner-keeper"), *home_cli.log_writers, *home_cli.sandbox_starters, home_cli.engine]
        return [one for one in home_cli.processes(str(home_cli.root)) if one not in others]

    wait_until(lambda: not engines_in_transition(), "the engines to settle")


def start_driver(home_cli: HomeCli, role: str, point: str, *words: str, feed: object = None) -> "subprocess.Popen[str]":
    """Start one of Backburner's processes that kills itself at a point; see crash_driver.py."""
    driver = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("crash_driver.py")), role, point, str(home_cli.root), *words],
        cwd=home_cli.cwd,
        env=home_cli.environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert driver.stdin
    try:
        driver.stdin.write(json.dumps(feed))
        driver.stdin.close()
    except BrokenPipeError:
        pass
    driver.stdin = None
    return driver


def wait_until_killed(driver: "subprocess.Popen[str]", *, by_us: bool = False) -> str:
    """Wait until the process was killed by SIGKILL; returns its output."""
    if by_us:
        driver.kill()
    printed, complaints = driver.communicate(timeout=60)
    assert driver.returncode == -signal.SIGKILL, (driver.returncode, printed, complaints)
    return printed
