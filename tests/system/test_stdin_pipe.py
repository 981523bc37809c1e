"""Writing to the input of a command: everything in order, or an error that says how much was written."""

import fcntl
import os
import resource
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from backburner.core.errors import BadInput
from backburner.system import stdin_pipe as module
from backburner.system.run_files import INPUT
from backburner.system.stdin_pipe import write_stdin

MUCH = 1 << 20


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[int]:
    """The input of a command, kept open as the shim does so that it does not end between two writes."""
    os.mkfifo(tmp_path / INPUT)
    descriptor = os.open(tmp_path / INPUT, os.O_RDWR)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WRITE_TIMEOUT", 0.05)


def read(descriptor: int, size: int) -> bytes:
    """Read this number of bytes, however long it takes."""
    found = b""
    while len(found) < size:
        found += os.read(descriptor, size - len(found))
    return found


@pytest.mark.parametrize("data", [b"", b"y\n", b"\0\xff\x1b[2J", b"x" * 4096, bytes(range(256)) * 4096], ids=len)
def test_all_data_arrives_unchanged(tmp_path: Path, reader: int, data: bytes) -> None:
    with ThreadPoolExecutor(1) as pool:
        arrived = pool.submit(read, reader, len(data))
        write_stdin(str(tmp_path), data, "task_x")
        assert arrived.result() == data


def test_concurrent_writes_are_not_mixed(tmp_path: Path, reader: int) -> None:
    with ThreadPoolExecutor(3) as pool:
        arrived = pool.submit(read, reader, 2 * MUCH)
        for sent in [pool.submit(write_stdin, str(tmp_path), letter * MUCH, "task_x") for letter in (b"a", b"b")]:
            sent.result()
        assert arrived.result() in (b"a" * MUCH + b"b" * MUCH, b"b" * MUCH + b"a" * MUCH)


def test_a_missing_input_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="Task task_x has no open input"):
        write_stdin(str(tmp_path), b"x", "task_x")
    with pytest.raises(BadInput, match="has no open input: "):
        write_stdin(str(tmp_path / "missing"), b"x", "task_x")


def test_a_closed_input_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / INPUT)
    with pytest.raises(BadInput, match="Task task_x has closed its input"):
        write_stdin(str(tmp_path), b"x", "task_x")


def test_the_error_for_an_input_closed_during_a_write_says_how_much_was_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / INPUT)
    descriptor = os.open(tmp_path / INPUT, os.O_RDWR)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: (read(descriptor, 100_000), os.close(descriptor)))
        with pytest.raises(BadInput, match=f"Task task_x closed its input after [1-9][0-9]+ of {MUCH} bytes"):
            write_stdin(str(tmp_path), b"x" * MUCH, "task_x")


@pytest.mark.usefixtures("impatient")
def test_the_error_for_an_unread_input_says_how_much_was_read(tmp_path: Path, reader: int) -> None:
    with pytest.raises(BadInput, match=f"does not read its input: ([0-9]+) of {MUCH} bytes were read") as caught:
        write_stdin(str(tmp_path), b"x" * MUCH, "task_x")
    taken = int(str(caught.value).split(": ")[1].split()[0])
    assert read(reader, taken) == b"x" * taken
    write_stdin(str(tmp_path), b"y", "task_x")
    assert read(reader, 1) == b"y"


@pytest.mark.usefixtures("impatient")
def test_nothing_is_written_while_another_process_writes(tmp_path: Path, reader: int) -> None:
    other = os.open(tmp_path / INPUT, os.O_WRONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    with pytest.raises(BadInput, match="Another process is sending to task task_x; nothing was sent"):
        write_stdin(str(tmp_path), b"x", "task_x")
    os.close(other)
    write_stdin(str(tmp_path), b"y", "task_x")
    assert read(reader, 1) == b"y"


@pytest.mark.parametrize("kind", ["file", "folder", "link to a file", "link to a device", "link to a fifo", "link to nothing", "socket"])
def test_a_replaced_input_is_not_written_to(tmp_path: Path, kind: str) -> None:
    target, path = tmp_path / "target", tmp_path / INPUT
    target.write_bytes(b"")
    with closing(socket.socket(socket.AF_UNIX)) as server:
        match kind:
            case "file":
                path.hardlink_to(target)
            case "folder":
                path.mkdir()
            case "link to a file":
                path.symlink_to(target)
            case "link to a device":
                path.symlink_to("/dev/null")
            case "link to a fifo":
                os.mkfifo(tmp_path / "elsewhere")
                path.symlink_to(tmp_path / "elsewhere")
            case "link to nothing":
                path.symlink_to(tmp_path / "nothing")
            case _:
                server.bind(str(path))
        with pytest.raises(BadInput, match="task_x"):
            write_stdin(str(tmp_path), b"x", "task_x")
    assert target.read_bytes() == b"" and not (tmp_path / "nothing").exists()


def test_a_process_with_very_many_open_files_can_write(tmp_path: Path, reader: int) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 2048), before[1]))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        write_stdin(str(tmp_path), b"x", "task_x")
        assert read(reader, 1) == b"x"
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_starting_command_is_waited_for(tmp_path: Path) -> None:
    """A task that was just started may not have opened its input yet."""
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(write_stdin, str(tmp_path), b"hello\n", "task_x", starting=True)
        os.mkfifo(tmp_path / INPUT)
        descriptor = os.open(tmp_path / INPUT, os.O_RDWR)
        assert read(descriptor, 6) == b"hello\n"
        sending.result()
        os.close(descriptor)
