"""Inspecting what a command left in its folder, whatever it is: nothing blocks, no link is followed, and no name breaks a line."""

import json
import multiprocessing
import os
import re
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from conftest import wait_until

from backburner.core.progress import Progress
from backburner.execution.output_limit import OutputLimit
from backburner.system import home, processes, run_files, run_inspection
from backburner.system.log_file import Log, header

LOG = header({"Background task": "task_x", "Command": "build 1/2", "Started": "now"}) + b"start\n[ 3/10] CC x.o\n"


SECRET = '{"text": "a secret"}\n'


@contextmanager
def put(path: Path, what: str) -> Iterator[None]:
    """Put something other than the expected file at a path."""
    in_separate_process = path.parent / ".elsewhere"
    with ExitStack() as held:
        match what:
            case "fifo":
                os.mkfifo(path)
            case "folder":
                path.mkdir()
            case "socket":
                held.enter_context(closing(socket.socket(socket.AF_UNIX))).bind(str(path))
            case "link to zeros":
                path.symlink_to("/dev/zero")
            case "link to a terminal":
                path.symlink_to(os.ttyname(held.enter_context(terminal())))
            case "link to another file":
                in_separate_process.write_text(SECRET)
                path.symlink_to(in_separate_process)
            case "link to another folder":
                in_separate_process.mkdir()
                (in_separate_process / "secret.txt").touch()
                (in_separate_process / run_inspection.PROGRESS).write_text(SECRET)
                path.symlink_to(in_separate_process)
            case "link to itself":
                path.symlink_to(path)
            case _:
                raise AssertionError(what)
        yield


@contextmanager
def terminal() -> Iterator[int]:
    main, other = os.openpty()
    yield other
    os.close(main)
    os.close(other)


HOSTILE = ["fifo", "folder", "socket", "link to zeros", "link to a terminal", "link to another file", "link to itself"]


@pytest.fixture(params=["work", "."])
def work(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The folder that the command writes in: `work/`, or the run's folder itself for a run of an older version."""
    folder = tmp_path / request.param
    folder.mkdir(exist_ok=True)
    return folder


@pytest.mark.parametrize("what", HOSTILE)
def test_a_progress_file_that_is_not_a_regular_file_is_ignored(tmp_path: Path, work: Path, what: str) -> None:
    (tmp_path / "output.log").write_bytes(LOG)
    with put(work / run_inspection.PROGRESS, what):
        assert run_inspection.progress(str(tmp_path)) == Progress(3, 10, 0.3, "[ 3/10] CC x.o (30%)")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b'{"done": 1, "total": 4}\n{"done": 2, "total": 4}\n', "2/4 (50%)"),
        (b'{"done": 1, "total": 4}\n{"done": 2, "tot', "1/4 (25%)"),
        (b'{"text": "a\\u001b[2Jb\\nc \\u202e"}', "ab c"),
        (b'{"percent": 140}', "100%"),
        (b'{"done": 1, "total": 4}\n' + b"[" * 60_000, "1/4 (25%)"),
        (b'{"done": 1, "total": 4}\n' + b"\xff\x00\n" * 1000, "1/4 (25%)"),
        (b'{"text": "' + b"x" * 70_000 + b'"}\n{"percent": 7}\n', "7%"),
    ],
    ids=lambda one: str(one)[:40],
)
def test_the_last_line_of_the_progress_file_takes_precedence_over_output(tmp_path: Path, work: Path, content: bytes, text: str) -> None:
    (tmp_path / "output.log").write_bytes(LOG)
    (work / run_inspection.PROGRESS).write_bytes(content)
    found = run_inspection.progress(str(tmp_path))
    assert found is not None and found.text == text


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"\n\n", b"null\n", b"[1]\n", b'{"done": "many"}', b'{"done": NaN, "total": -1}', b'{"text": 5}'),
        *(b'{"done": ' + b"9" * 5000 + b"}", b"{" * 60_000, b'{"done":' * 8000),
    ],
    ids=lambda one: str(one)[:40],
)
def test_without_valid_progress_lines_the_output_is_used(tmp_path: Path, work: Path, content: bytes) -> None:
    (tmp_path / "output.log").write_bytes(LOG)
    (work / run_inspection.PROGRESS).write_bytes(content)
    assert run_inspection.progress(str(tmp_path)) == Progress(3, 10, 0.3, "[ 3/10] CC x.o (30%)")


def test_only_the_end_of_a_large_progress_file_is_read(tmp_path: Path, work: Path) -> None:
    with open(work / run_inspection.PROGRESS, "wb") as file:
        file.write(b'{"percent": 1}\n')
        file.truncate(1 << 30)
    assert run_inspection.progress(str(tmp_path)) is None
    with open(work / run_inspection.PROGRESS, "ab") as file:
        file.write(b'\n{"percent": 2}\n')
    assert run_inspection.progress(str(tmp_path)) == Progress(None, None, 0.02, "2%")


def test_a_run_without_output_has_no_progress(tmp_path: Path) -> None:
    assert run_inspection.progress(str(tmp_path)) is None
    assert run_inspection.progress(str(tmp_path / "missing")) is None


def cursors(folder: str) -> object:
    with Log(folder) as log:
        return log.cursor(log.size) == log.position(log.size) == log.size


def bounded(folder: str) -> object:
    OutputLimit(folder, 1 << 16).finish()
    return os.path.getsize(os.path.join(folder, "output.log")) < 1 << 17


def write_metadata(folder: str) -> object:
    home.write_atomically(os.path.join(folder, "metadata.json"), "{}")
    return run_files.readable(folder)


# What the engine or a client does with a file in the folder of a run, and the allowed results if something else is in its place.
LOOKS: dict[str, tuple[str, Callable[[str], object], list[object]]] = {
    "how far it is": ("output.log", run_inspection.progress, [None]),
    "checking whether a process writes": ("output.log", lambda folder: home.is_locked(os.path.join(folder, "output.log")), [False]),
    "where a cursor is": (".capped", cursors, [True]),
    "bounding the log": (".capped", bounded, [True, OSError]),
    "how it ended": (".exit", run_files.exit_code, [None]),
    "whether it lives": (".exit", lambda folder: home.is_locked(os.path.join(folder, ".exit")), [False]),
    "what is known of it": ("metadata.json", run_files.readable, [True, False]),
    "writing the metadata": ("metadata.json.{pid}.new", write_metadata, [True, OSError]),
}


@pytest.mark.parametrize("what", ["fifo", "folder", "link to zeros", "link to another file", "link to itself"])
@pytest.mark.parametrize("look", LOOKS)
def test_nothing_in_place_of_our_files_blocks_a_reader(tmp_path: Path, look: str, what: str) -> None:
    name, act, outcomes = LOOKS[look]
    if name != "output.log":
        (tmp_path / "output.log").write_bytes(header({"Background task": "task_x", "Started": "now"}) + b"x\n" * 200_000)

    def meet() -> object:
        with put(tmp_path / name.format(pid=os.getpid()), what):
            try:
                return act(str(tmp_path))
            except OSError:
                return OSError

    assert in_separate_process(meet) in outcomes
    if what == "link to another file":
        assert (tmp_path / ".elsewhere").read_text() == SECRET, "nothing is written through a link"


def in_separate_process(act: Callable[[], object]) -> object:
    """The result of a function in a separate process, which may hang or use much memory."""
    apart = multiprocessing.get_context("fork")
    receiving, sending = apart.Pipe(duplex=False)

    def run() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))
        sending.send(act())

    child = apart.Process(target=run)
    child.start()
    sending.close()
    try:
        assert receiving.poll(10), "it hangs"
        return receiving.recv()
    finally:
        child.kill()
        child.join()
        receiving.close()


# -- artifacts


OURS = ("metadata.json", "result.json", "span_id.txt", ".exit", "output.log", ".capped", "metadata.json.123.new")
OURS += ("event.json", "gate.log", "conversation.json", ".activity.json", "stream.jsonl", "agent.err")


def test_artifacts_are_sorted_and_exclude_our_files(tmp_path: Path, work: Path) -> None:
    for name in OURS:
        (tmp_path / name).write_text("")
    (tmp_path / "inputs").mkdir()
    (work / run_inspection.PROGRESS).write_text("")
    (work / ".hidden").write_text("")
    assert run_inspection.artifacts(str(tmp_path)) == ()
    (work / "report.html").write_text("")
    (work / "data").mkdir()
    (work / "link").symlink_to(work / "data")
    (work / "broken").symlink_to(work / "nothing")
    os.mkfifo(work / "fifo")
    assert run_inspection.artifacts(str(tmp_path)) == ("broken", "data/", "fifo", "link", "report.html")
    assert run_inspection.artifacts(str(tmp_path / "missing")) == ()


def test_only_files_in_work_are_artifacts_even_with_names_of_our_files(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "beside.txt").touch()
    for name in ("metadata.json", "output.log", "x.new"):
        (tmp_path / "work" / name).touch()
    assert run_inspection.artifacts(str(tmp_path)) == ("metadata.json", "output.log", "x.new")


@pytest.mark.parametrize("what", [*HOSTILE, "link to another folder", "nothing"])
def test_a_link_in_place_of_work_has_no_artifacts(tmp_path: Path, what: str) -> None:
    for name in OURS:
        (tmp_path / name).write_text("")
    (tmp_path / "inputs").mkdir()
    (tmp_path / "output.log").write_bytes(LOG)

    def meet() -> object:
        with put(tmp_path / "work", what) if what != "nothing" else ExitStack():
            return run_inspection.artifacts(str(tmp_path)), run_inspection.progress(str(tmp_path))

    assert in_separate_process(meet) == ((), Progress(3, 10, 0.3, "[ 3/10] CC x.o (30%)"))


def test_a_link_in_place_of_the_run_folder_has_no_artifacts(tmp_path: Path) -> None:
    for name in ("precious", "precious/work"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "secret.txt").touch()
        (tmp_path / name / run_inspection.PROGRESS).write_text(SECRET)
    (tmp_path / "run").symlink_to(tmp_path / "precious")
    assert run_inspection.artifacts(str(tmp_path / "run")) == () and run_inspection.progress(str(tmp_path / "run")) is None


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"a\nb", "a\\nb"),
        (b"\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
        (b"\r\t", "\\r\\t"),
        (b"caf\xe9", "caf\\udce9"),
        ("x\u202egnp.exe".encode(), "x\\u202egnp.exe"),
        ("naïve 日本".encode(), "naïve 日本"),
        (b" ", " "),
        (b"x" * 255, "x" * 255),
    ],
    ids=repr,
)
def test_a_file_name_cannot_break_a_line(tmp_path: Path, work: Path, name: bytes, shown: str) -> None:
    os.close(os.open(os.path.join(os.fsencode(work), name), os.O_CREAT))
    (found,) = run_inspection.artifacts(str(tmp_path))
    assert found == shown and found.isprintable()
    json.dumps(found).encode()


@pytest.mark.parametrize("count", [20, 21, 900, 5000])
def test_of_many_files_the_first_are_named_and_the_rest_counted(tmp_path: Path, count: int) -> None:
    (tmp_path / "work").mkdir()
    for number in range(count):
        os.close(os.open(tmp_path / "work" / f"file-{number:04}", os.O_CREAT))
    found = run_inspection.artifacts(str(tmp_path))
    more = re.fullmatch(r"and (at least )?(\d+) more", found[-1])
    assert len(set(found)) == 20 + (count > 20) and list(found[:20]) == sorted(found[:20])
    if count == 20:
        assert more is None
    else:
        assert more is not None and (int(more[2]) < count - 20 if more[1] else int(more[2]) == count - 20)


# -- ports

SERVER = """
import os, signal, socket
family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
here, there = socket.create_server(("127.0.0.1", 0)), socket.create_server(("", 0), family=family)
ports = here.getsockname()[1], there.getsockname()[1]
if os.fork() == 0:
    os.setsid()  # leaves the session of the run, but keeps its tag
    here.close()
    signal.pause()
there.close()
talking = socket.create_connection(here.getsockname()), here.accept()
print(*ports, flush=True)
signal.pause()
"""


@pytest.fixture
def server() -> Iterator[Callable[..., "subprocess.Popen[bytes]"]]:
    """A program that listens on two ports, one of them in a child outside its session; it prints the ports."""
    started = []

    def start(mark: str) -> "subprocess.Popen[bytes]":
        child = subprocess.Popen(
            [sys.executable, "-c", SERVER], stdout=subprocess.PIPE, start_new_session=True, env={**os.environ, processes.TAG_VARIABLE: mark}
        )
        started.append((child, mark))
        return child

    yield start
    for child, mark in started:
        for one in processes.members(processes.identify(child.pid), mark):
            processes.send(one, 9)
        child.communicate()


def test_ports_are_those_of_the_processes_of_the_run(server: Callable[..., "subprocess.Popen[bytes]"]) -> None:
    mine, other = server("mark-of-mine"), server("mark-of-another")
    ports = []
    for child in (mine, other):
        assert child.stdout is not None
        ports.append(sorted(map(int, child.stdout.readline().split())))
    leader = processes.identify(mine.pid)
    wait_until(lambda: run_inspection.ports(leader, "mark-of-mine") == ports[0], f"{ports[0]}")
    assert run_inspection.ports(processes.identify(other.pid), "mark-of-another") == ports[1]
    assert run_inspection.ports(None, "mark-of-mine") == run_inspection.ports(processes.myself(), "no such mark") == []
