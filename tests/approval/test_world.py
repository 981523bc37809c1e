"""The world around a command line: every row of `world_table.py` is set up for real, judged, and, where it is allowed, run by the engine.

Everything goes through the command line, called by `backburner` below within this process: the session's folder is the folder it is
typed in, the folder that a caller names is `--cwd`. Where the product changes its ways, `verdict` and `execute` are all there is to adjust.
"""

import itertools
import json
import os
import shutil
import signal
import stat
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import chdir
from importlib.metadata import entry_points
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, NamedTuple
from unittest import mock

import pytest
from conftest import CONFIG, Place, wait_until

from approval.world_table import SECRET, TABLE, Row, Step, World, make_template

_LIMIT = 30  # seconds for one call of the command line
_KEPT_UP = ("sleep", "611")  # what keeps the engine of the shared home up
_main = next(iter(entry_points(group="console_scripts", name="backburner"))).load()


_numbers = itertools.count()


class Answer(NamedTuple):
    code: int
    out: str
    err: str


class TooLong(BaseException):
    """A call of the command line did not end."""


class Base(NamedTuple):
    """What all worlds share: the world they are copies of, a home of Backburner with an engine, and worlds that are only looked at."""

    template: Path
    place: Place
    scratch: Path
    looked_at: dict[tuple[Step, ...], World]


def backburner(session: Path, environ: dict[str, str], *words: str) -> Answer:
    """One call of the command line within this process, for there are a thousand of them; what it prints is caught below Python."""

    def give_up(*_: object) -> None:
        raise TooLong(f"no answer within {_LIMIT} seconds: {words}")

    streams = sys.stdin, sys.stdout, sys.stderr
    kept = [os.dup(number) for number in range(3)]
    before = signal.signal(signal.SIGALRM, give_up)
    with TemporaryFile() as out, TemporaryFile() as err, open(os.devnull, "rb") as nothing:
        for number, stream in enumerate((nothing, out, err)):
            os.dup2(stream.fileno(), number)
        signal.alarm(_LIMIT)
        try:
            with (
                open(0, closefd=False) as sys.stdin,
                open(1, "w", closefd=False) as sys.stdout,
                open(2, "w", closefd=False) as sys.stderr,
                chdir(session),
                mock.patch.dict(os.environ, environ, clear=True),
            ):
                code = _main(list(words))
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
            sys.stdin, sys.stdout, sys.stderr = streams
            for number, descriptor in enumerate(kept):
                os.dup2(descriptor, number)
                os.close(descriptor)
        return Answer(code, _text(out), _text(err))


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "surrogateescape")


def call(world: World, row: Row, *verb: str) -> Answer:
    """A verb that takes a command, with the row's folder, variables and words."""
    changed = {name: None if value is None else world.fill(value) for name, value in row.environ.items()}
    environ = {name: value for name, value in {**world.environ, **changed}.items() if value is not None}
    options = ["--cwd", world.fill(row.cwd)] if row.cwd is not None else []
    options += [word for name, value in row.env.items() for word in ("--env", f"{name}={world.fill(value)}")]
    command = ["--shell", "--", world.fill(row.line)] if isinstance(row.line, str) else ["--", *map(world.fill, row.line)]
    return backburner(world.path(row.session), environ, *verb, *options, *command)


def verdict(world: World, row: Row) -> str:
    """What the gate says to a row: allow, ask, deny; or `refused` where the call itself is an error."""
    answer = call(world, row, "check", "--json")
    assert "Internal error" not in answer.err, answer.err
    return str(json.loads(answer.out)["verdict"]) if answer.code in (0, 3) else "refused"


def execute(world: World, row: Row) -> str:
    """Run an allowed row to its end as anybody's command is run; all it printed."""
    answer = call(world, row, "run", f"--wait={_LIMIT - 5}", "--timeout", "20s")
    return answer.out + answer.err


def trust(world: World, row: Row, folder: str) -> None:
    answer = backburner(world.path(row.session), world.environ, "trust", world.fill(folder))
    assert answer.code == 0 or row.expect != "allow", answer.err


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Base]:
    """The world that all are copies of, and one home whose engine stays up until the last row."""
    root = tmp_path_factory.mktemp("base")
    make_template(root / "template")
    place = Place(root / "bbhome", root)
    place.configure(CONFIG)
    shared = Base(root / "template", place, root, {})
    environ = {**World(root, place.root).environ, "HOME": str(root)}
    assert backburner(root, environ, "run", "--yes", "--", *_KEPT_UP).code == 0
    yield shared
    for one in place.processes():
        if _KEPT_UP[1].encode() in Path(f"/proc/{one.pid}/cmdline").read_bytes().split(b"\0"):
            os.kill(one.pid, signal.SIGKILL)
    place.stop_engine()


@pytest.fixture
def fresh(base: Base) -> Iterator[Path]:
    """A folder for one world, which is not there yet and will be gone."""
    root = base.scratch / f"w{next(_numbers)}"  # never the same twice: what a person trusted stays trusted
    yield root
    shutil.rmtree(root, ignore_errors=True)


def make_world(base: Base, root: Path, row: Row) -> World:
    if (known := base.looked_at.get(row.steps)) is not None and _only_looks(row):
        return known
    if _only_looks(row) and _USES[row.steps] > 1:
        root = base.scratch / f"shared{len(base.looked_at)}"
    shutil.copytree(base.template, root, symlinks=True)
    world = World(root, base.place.root)
    if row.bbhome is not None:
        os.makedirs(os.path.join(world.fill(row.bbhome), "tasks"), exist_ok=True)
        world = World(root, Path(world.fill(row.bbhome)))
        if row.trusted:
            (world.bbhome / "config.toml").write_text(CONFIG)
    for step in row.steps:
        step(world)
    for folder in row.trusted:
        trust(world, row, folder)
    for step in row.after_trust:
        step(world)
    (root / "canary").unlink(missing_ok=True)
    if _only_looks(row) and _USES[row.steps] > 1:
        base.looked_at[row.steps] = world
    return world


def _only_looks(row: Row) -> bool:
    """Whether a row leaves its world as it is, so that others with the same one can use it, too."""
    return row.expect in ("ask", "allow") and not row.trusted and row.bbhome is None


_USES = Counter(row.steps for group in TABLE.values() for row in group if _only_looks(row))


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
def test_the_world_around_a_line_decides_what_may_happen_to_it(base: Base, fresh: Path, row: Row) -> None:
    world = make_world(base, fresh, row)
    said = verdict(world, row)
    match row.expect:
        case "ask":
            assert said != "allow"
        case "allow":
            assert said == "allow"
        case "harmless" if said == "allow":
            before = contents(world.root)
            printed = execute(world, row)
            after = contents(world.root)
            assert not [path for path in after if path.startswith(world.fill("{canary}"))], f"a planted program ran: {printed}"
            assert not [text for text in (SECRET, *row.shows) if text in printed], printed
            assert {path: after.get(path) for path in before} == before, "it changed what was there"
            assert all(path.startswith(world.fill("{project}/")) for path in after.keys() - before.keys()), "it created something outside"
        case "harmless" | "answers":
            assert said in ("allow", "ask", "deny", "refused")


def test_what_rows_are_looked_through_for_is_seen_where_it_happens(base: Base, fresh: Path) -> None:
    row = Row("ask", "a planted program that a person approved", "{tool}; cat {outside}/data.txt; echo x >> README.md; touch ../new")
    world = make_world(base, fresh, row)
    before = contents(world.root)
    answer = call(world, row, "run", "--wait", "--yes")
    after = contents(world.root)
    assert SECRET in answer.out
    assert {world.fill("{canary}"), world.fill("{home}/code/new")} == after.keys() - before.keys()
    assert before[world.fill("{project}/README.md")] != after[world.fill("{project}/README.md")]


def test_a_file_written_by_what_nobody_approved_cannot_grow_without_end(base: Base, fresh: Path) -> None:
    row = Row("allow", "a file that grows", "sleep 613 > quiet.log")
    world = make_world(base, fresh, row)
    answer = call(world, row, "run")
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
