"""What really happened, told by the commands themselves and by the ledger's own rows, not by the code under test.

Every command signs a book of its own when it begins and prints the same bytes whoever watches it; `testify` holds the
book, the bytes, the exit codes, the events and the notices against each other.
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
from conftest import Place, wait_until

from backburner.core.models import ProcessId

SCRIPT = r"""
# BOOK NAME LINES CODE PAUSE GATE: sign the book, wait at the gate, print, end with CODE.
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
    """A command that can be told apart from all others, and how it must end."""

    name: str
    lines: int
    code: int
    pause: float
    gate: str


class Row(NamedTuple):
    """One run as the ledger has it."""

    name: str
    task_id: str
    state: str
    result: str | None
    exit_code: int | None
    notices: int
    starts: int
    ends: int


class Witness:
    """The jobs of one home, and what became of them."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._books = place.cwd / "books"
        self._books.mkdir(exist_ok=True)
        self._script = place.cwd / "job.sh"
        self._script.write_text(SCRIPT)

    def job(self, name: str, *, lines: int = 40, code: int = 0, pause: float = 0, gated: bool = False) -> Job:
        gate = ""
        if gated:
            gate = str(self.place.cwd / f"{name}.gate")
            os.mkfifo(gate)
        return Job(name, lines, code, pause, gate)

    def command(self, job: Job) -> list[str]:
        return ["sh", str(self._script), str(self._books / job.name), job.name, str(job.lines), str(job.code), f"{job.pause:g}", job.gate]

    def submit(self, job: Job) -> str:
        """Start a job through the command line; its id."""
        return self.place.run(*self.command(job), options=("--description", job.name))

    def open_gate(self, job: Job) -> None:
        with open(job.gate, "w") as gate:
            gate.write("open\n")

    def began(self, job: Job) -> bool:
        return (self._books / job.name).exists()

    def signatures(self, job: Job) -> int:
        """How often the job ran."""
        try:
            return len((self._books / job.name).read_text().splitlines())
        except FileNotFoundError:
            return 0

    def undisturbed(self, job: Job) -> bytes:
        """What the job prints when nobody is killed."""
        words = ["sh", str(self._script), os.devnull, job.name, str(job.lines), str(job.code), "0", ""]
        done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
        assert done.returncode == job.code
        return done.stdout

    def rows(self) -> list[Row]:
        """Every run of the home, read without touching anything that could wake an engine."""
        return [Row(*row) for row in query(self.place, _ROWS)]

    def row(self, job: Job) -> Row | None:
        return next((row for row in self.rows() if row.name == job.name), None)

    def ended(self, jobs: Iterable[Job]) -> bool:
        states = {row.name: row.state for row in self.rows()}
        return all(states.get(job.name) in ENDED for job in jobs)

    def wait_for_the_ledger(self, jobs: Sequence[Job], seconds: float = 60) -> None:
        """Wait for ends that must come by themselves: nothing is asked of Backburner meanwhile."""
        wait_until(lambda: self.ended(jobs), f"the ends of {[job.name for job in jobs]}", seconds)

    def finish(self, jobs: Iterable[Job]) -> None:
        """Wait through the command line, as a person would after a crash, and check everything."""
        jobs = list(jobs)
        known = {row.name: row.task_id for row in self.rows()}
        self.place.cli("wait", "--timeout", "60", *(known[job.name] for job in jobs))
        self.testify(jobs)

    def testify(self, jobs: Iterable[Job]) -> None:
        """Each job ran once, ended truly, left all its bytes, and owes exactly one notice."""
        rows = self.rows()
        for job in jobs:
            mine = [row for row in rows if row.name == job.name]
            assert len(mine) == 1, f"{job.name} is {len(mine)} times in the ledger"
            row = mine[0]
            told = row._replace(task_id="", name="")
            state = "completed" if job.code == 0 else "failed"
            assert told == Row("", "", state, "exit", job.code, notices=1, starts=1, ends=1), (job, row)
            assert self.signatures(job) == 1, f"{job.name} ran {self.signatures(job)} times"
            assert self.output(row.task_id) == self.undisturbed(job), f"the output of {job.name}"
            self._files_agree(row)
        assert query(self.place, "PRAGMA quick_check") == [("ok",)]

    def output(self, task_id: str) -> bytes:
        """The log as it lies on disk, without its header of four lines."""
        return (self.place.folder(task_id) / "output.log").read_bytes().split(b"\n", 4)[4]

    def _files_agree(self, row: Row) -> None:
        folder = self.place.folder(row.task_id)
        assert json.loads((folder / "result.json").read_text())["exit_code"] == row.exit_code
        metadata = json.loads((folder / "metadata.json").read_text())
        assert (metadata["status"], metadata["exit_code"]) == (row.state, row.exit_code)


_ROWS = """
    SELECT t.description, t.task_id, r.state, r.result, r.exit_code,
        (SELECT count(*) FROM notices n WHERE n.run_id = r.run_id),
        (SELECT count(*) FROM events e WHERE e.task_id = t.task_id AND e.kind = 'run_started'),
        (SELECT count(*) FROM events e WHERE e.task_id = t.task_id AND e.kind IN ('run_completed', 'run_failed', 'run_cancelled'))
    FROM tasks t JOIN runs r ON r.task_id = t.task_id ORDER BY r.seq
"""


def query(place: Place, sql: str, *values: object) -> list[tuple]:
    """Rows of the ledger through a connection of our own that cannot write."""
    try:
        ledger = apsw.Connection(str(place.root / "ledger.db"), flags=apsw.SQLITE_OPEN_READONLY)
    except apsw.CantOpenError:
        return []
    try:
        ledger.set_busy_timeout(5000)
        return list(ledger.execute(sql, values))  # type: ignore[arg-type]
    finally:
        ledger.close()


def change(place: Place, sql: str, *values: object) -> None:
    """Forge a row, for what cannot be brought about in a test: a recycled pid, a clock that was wrong."""
    ledger = apsw.Connection(str(place.root / "ledger.db"))
    try:
        ledger.set_busy_timeout(5000)
        ledger.execute(sql, values)  # type: ignore[arg-type]
        assert ledger.changes() > 0
    finally:
        ledger.close()


def calm(place: Place) -> None:
    """Wait until no engine is on its way up or out: what a killed one's keeper started has found its place, or left."""

    def coming_or_going() -> list[ProcessId]:
        keepers = place.processes("backburner-keeper")
        return [one for one in place.processes(str(place.root)) if one not in keepers and one != place.engine]

    wait_until(lambda: not coming_or_going(), "the engines to settle")


def drive(place: Place, role: str, point: str, *words: str, feed: object = None) -> "subprocess.Popen[str]":
    """Start one of Backburner's processes that will kill itself at a point; see driver.py."""
    driver = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("crash_driver.py")), role, point, str(place.root), *words],
        cwd=place.cwd,
        env=place.environ,
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


def killed(driver: "subprocess.Popen[str]", *, by_us: bool = False) -> str:
    """See that it died of SIGKILL where it should; what it had printed."""
    if by_us:
        driver.kill()
    printed, complaints = driver.communicate(timeout=60)
    assert driver.returncode == -signal.SIGKILL, (driver.returncode, printed, complaints)
    return printed
