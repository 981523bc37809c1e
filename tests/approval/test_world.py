"""The world around a command line: every row of `world_table.py` is set up for real, judged, and, where it is allowed, run by the engine.

Everything goes through the command line, called by `backburner` below in a forked process: the session's folder is the folder it is
typed in, the folder that a caller names is `--cwd`. Where the product changes its ways, `verdict` and `execute` are all there is to adjust.
"""

import json
import os
import shutil
import signal
import stat
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import CONFIG, Place, wait_until

from approval.world_table import SECRET, TABLE, Row, World, make_template

_LIMIT = 30  # seconds for one call of the command line
_KEPT_UP = ("sleep", "611")  # what keeps the engine of the shared home up
_main = next(iter(entry_points(group="console_scripts", name="backburner"))).load()


class Answer(NamedTuple):
    code: int
    out: str
    err: str


class Base(NamedTuple):
    """What all worlds share: the world they are copies of, a home of Backburner with an engine, and a place for output."""

    template: Path
    place: Place
    scratch: Path


def backburner(base: Base, session: Path, environ: dict[str, str], *words: str) -> Answer:
    """One call of the command line in a process of its own, which is cheaper to fork than to start; killed after a while."""
    out, err = base.scratch / "out", base.scratch / "err"
    with out.open("wb") as stdout, err.open("wb") as stderr, open(os.devnull, "rb") as stdin:
        pid = os.fork()
        if pid == 0:
            try:
                signal.alarm(_LIMIT)
                for number, stream in enumerate((stdin, stdout, stderr)):
                    os.dup2(stream.fileno(), number)
                sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")
                os.environ.clear()
                os.environ.update(environ)
                os.chdir(session)
                code = _main(list(words))
                sys.stdout.flush()
                os._exit(code)
            finally:
                os._exit(70)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return Answer(code, out.read_text(errors="surrogateescape"), err.read_text(errors="surrogateescape"))


def call(base: Base, world: World, row: Row, *verb: str) -> Answer:
    """A verb that takes a command, with the row's folder, variables and words."""
    changed = {name: None if value is None else world.fill(value) for name, value in row.environ.items()}
    environ = {name: value for name, value in {**world.environ, **changed}.items() if value is not None}
    options = ["--cwd", world.fill(row.cwd)] if row.cwd is not None else []
    options += [word for name, value in row.env.items() for word in ("--env", f"{name}={world.fill(value)}")]
    command = ["--shell", "--", world.fill(row.line)] if isinstance(row.line, str) else ["--", *map(world.fill, row.line)]
    return backburner(base, world.path(row.session), environ, *verb, *options, *command)


def verdict(base: Base, world: World, row: Row) -> str:
    """What the gate says to a row: allow, ask, deny; or `refused` where the call itself is an error."""
    answer = call(base, world, row, "check", "--json")
    assert answer.code != -signal.SIGALRM, f"no answer within {_LIMIT} seconds"
    assert "Backburner made a mistake" not in answer.err, answer.err
    return str(json.loads(answer.out)["verdict"]) if answer.code in (0, 3) else "refused"


def execute(base: Base, world: World, row: Row) -> str:
    """Run an allowed row to its end as anybody's command is run; all it printed."""
    answer = call(base, world, row, "run", f"--wait={_LIMIT - 5}", "--timeout", "20s")
    return answer.out + answer.err


def trust(base: Base, world: World, row: Row, folder: str) -> None:
    answer = backburner(base, world.path(row.session), world.environ, "trust", world.fill(folder))
    assert answer.code == 0 or row.expect != "allow", answer.err


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Base]:
    """The world that all are copies of, and one home whose engine stays up until the last row."""
    root = tmp_path_factory.mktemp("base")
    make_template(root / "template")
    place = Place(root / "bbhome", root)
    place.configure(CONFIG)
    shared = Base(root / "template", place, root)
    environ = {**World(root, place.root).environ, "HOME": str(root)}
    assert backburner(shared, root, environ, "run", "--yes", "--", *_KEPT_UP).code == 0
    yield shared
    for one in place.processes():
        if _KEPT_UP[1].encode() in Path(f"/proc/{one.pid}/cmdline").read_bytes().split(b"\0"):
            os.kill(one.pid, signal.SIGKILL)
    place.stop_engine()


@pytest.fixture
def worlds(base: Base, tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "w"
    shutil.rmtree(tmp_path, ignore_errors=True)


def make_world(base: Base, root: Path, row: Row) -> World:
    shutil.copytree(base.template, root, symlinks=True)
    world = World(root, base.place.root)
    if row.bbhome is not None:
        world = World(root, Path(os.path.join(world.fill(row.bbhome))))
        os.makedirs(world.fill(row.bbhome), exist_ok=True)
        (world.bbhome / "tasks").mkdir(exist_ok=True)
        if row.trusted:
            (world.bbhome / "config.toml").write_text(CONFIG)
    for step in row.steps:
        step(world)
    for folder in row.trusted:
        trust(base, world, row, folder)
    for step in row.after_trust:
        step(world)
    (root / "canary").unlink(missing_ok=True)
    return world


def contents(root: Path) -> dict[str, bytes | str | None]:
    """Every file and link below a folder with what it holds; git's index is git's own business."""
    found: dict[str, bytes | str | None] = {}
    for folder, _, names in os.walk(root):
        for name in names:
            path = os.path.join(folder, name)
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                found[path] = os.readlink(path)
            elif name != "index":
                found[path] = Path(path).read_bytes() if stat.S_ISREG(mode) else None
    return found


ROWS = [pytest.param(row, id=f"{group}: {row.name}") for group, group_rows in TABLE.items() for row in group_rows]


@pytest.mark.parametrize("row", ROWS)
def test_the_world_around_a_line_decides_what_may_happen_to_it(base: Base, worlds: Path, row: Row) -> None:
    world = make_world(base, worlds, row)
    said = verdict(base, world, row)
    match row.expect:
        case "ask":
            assert said != "allow"
        case "allow":
            assert said == "allow"
        case "harmless" if said == "allow":
            before = contents(world.root)
            printed = execute(base, world, row)
            after = contents(world.root)
            assert not [path for path in after if path.startswith(world.fill("{canary}"))], f"a planted program ran: {printed}"
            assert not [text for text in (SECRET, *row.shows) if text in printed], printed
            assert {path: after.get(path) for path in before} == before, "it changed what was there"
            assert all(path.startswith(world.fill("{project}/")) for path in after.keys() - before.keys()), "it created something outside"
        case "harmless" | "answers":
            assert said in ("allow", "ask", "deny", "refused")


def test_a_file_written_by_what_nobody_approved_cannot_grow_without_end(base: Base, worlds: Path) -> None:
    row = Row("allow", "a file that grows", "sleep 613 > quiet.log")
    world = make_world(base, worlds, row)
    answer = call(base, world, row, "run")
    assert answer.code == 0, answer.err

    def sleepers() -> list[int]:
        found = base.place.processes()
        return [one.pid for one in found if b"613" in Path(f"/proc/{one.pid}/cmdline").read_bytes().split(b"\0")]

    wait_until(sleepers, "the command to run")
    try:
        limits = Path(f"/proc/{sleepers()[0]}/limits").read_text()
    finally:
        for pid in sleepers():
            os.kill(pid, signal.SIGKILL)
    size = next(line for line in limits.splitlines() if line.startswith("Max file size"))
    assert "unlimited" not in size.split()[3:4], size
