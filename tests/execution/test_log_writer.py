"""The log writer on its own: what it moves, answers and records, and where splice does not work."""

import _socket
import errno
import fcntl
import os
import socket
import subprocess
from pathlib import Path

import pytest

from backburner.execution import log_writer
from backburner.execution.log_writer import COMPLETE, FLOODED_PIPE_BYTES, OPEN, LogWriter, Output, save
from backburner.execution.output_pipe import log_writer_command, new_pipe
from backburner.system.home import is_locked


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "output.log").write_bytes(b"header\n")
    (tmp_path / ".exit").write_bytes(b"0    ")
    return tmp_path


def output_of(folder: Path, data: bytes = b"", limit: int = 1 << 20) -> tuple[Output, int]:
    """An output with data in its pipe, and the write end of the pipe."""
    reader, writer = os.pipe()
    os.write(writer, data)
    return Output(reader, str(folder / "output.log"), limit), writer


def log(folder: Path) -> bytes:
    return (folder / "output.log").read_bytes()


@pytest.mark.parametrize("splices", [True, False])
def test_what_is_in_a_pipe_is_appended_to_its_log(folder: Path, monkeypatch: pytest.MonkeyPatch, splices: bool) -> None:
    if not splices:

        def refuse(*_: object, **__: object) -> int:
            raise OSError(errno.EINVAL, "Invalid argument")

        monkeypatch.setattr(os, "splice", refuse)
    output, writer = output_of(folder, b"one\n\0\xff")
    assert save(output, until_end=False) == 1
    assert (log(folder), (folder / ".exit").read_text()) == (b"header\none\n\0\xff", f"0   {OPEN}")
    assert is_locked(str(folder / "output.log")), "it can still be written to"
    os.write(writer, b"two")
    os.close(writer)
    assert save(output, until_end=True) == 0
    assert (log(folder), (folder / ".exit").read_text()) == (b"header\none\n\0\xfftwo", f"0   {COMPLETE}")
    assert not is_locked(str(folder / "output.log"))
    output.close()


def test_recording_the_answer_keeps_the_time_of_the_end(folder: Path) -> None:
    os.utime(folder / ".exit", (1000, 2000))
    output, writer = output_of(folder)
    os.close(writer)
    assert save(output, until_end=True) == 0
    assert (folder / ".exit").stat().st_mtime == 2000
    output.close()


def test_a_pipe_holds_more_after_its_log_has_exceeded_its_limit(folder: Path) -> None:
    output, writer = output_of(folder, b"x" * 30_000, limit=40_000)
    usual = fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ)
    assert output.open() and output.move() == 30_000
    assert fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ) == usual
    os.write(writer, b"x" * 30_000)
    assert output.move() == 30_000
    assert fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ) == FLOODED_PIPE_BYTES
    os.close(writer)
    assert save(output, until_end=True) == 0
    output.close()


def test_a_full_disk_without_splice_loses_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = os.write, 0

    def full(descriptor: int, data: bytes) -> int:
        nonlocal calls
        calls += 1
        if calls in (2, 3):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data[:3])

    output, writer = output_of(folder, b"0123456789")
    os.close(writer)
    monkeypatch.delattr(os, "splice")
    monkeypatch.setattr(os, "write", full)
    monkeypatch.setattr(log_writer, "_RETRY_SECONDS", 0)
    assert save(output, until_end=True) == 0
    assert log(folder) == b"header\n0123456789"
    output.close()


def test_the_log_of_a_deleted_run_is_discarded(folder: Path) -> None:
    output, writer = output_of(folder, b"x")
    for name in ("output.log", ".exit"):
        (folder / name).unlink()
    os.close(writer)
    assert save(output, until_end=True) == 0
    assert os.listdir(folder) == []
    output.close()


def test_a_link_in_place_of_the_log_is_not_followed(folder: Path, tmp_path: Path) -> None:
    (folder / "output.log").unlink()
    (folder / "target").write_text("mine")
    (folder / "output.log").symlink_to("target")
    output, writer = output_of(folder, b"x")
    with pytest.raises(OSError, match="Too many levels"):
        output.open()
    assert (folder / "target").read_text() == "mine"
    os.close(writer)
    output.close()


def test_two_processes_never_write_the_same_log(folder: Path) -> None:
    first, writer = output_of(folder)
    second, other = output_of(folder)
    assert first.open() and not second.open()
    first.close_log()
    assert second.open()
    for descriptor in (writer, other):
        os.close(descriptor)
    first.close()
    second.close()


def test_a_message_of_a_shim_stays_in_its_socket() -> None:
    ours, theirs = socket.socketpair()
    theirs.send(b"\n")
    assert log_writer._message(ours.fileno()) and log_writer._message(ours.fileno())
    theirs.close()
    assert ours.recv(9) == b"\n" and not log_writer._message(ours.fileno())
    ours.close()


@pytest.mark.parametrize("said", [b"", b"\n"])
def test_a_closed_pipe_that_another_process_has_open_does_not_keep_it_busy(folder: Path, said: bytes) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    shim, shims_end = socket.socketpair()
    reader, writer = os.pipe()
    server = LogWriter(_socket.socket(fileno=theirs.detach()), str(folder))
    socket.send_fds(ours, [b"answers\0%d\0%s" % (1 << 20, os.fsencode(folder / "output.log"))], [reader, shim.fileno()])
    server._receive(server._control)
    os.close(writer)
    (output,) = set(server._outputs.values())
    if said:
        shims_end.send(said)
        server._on_shim(output)
    else:
        server._step(output)  # the pipe has ended before the shim said anything
    assert shims_end.recv(9) == f"{COMPLETE}\n".encode() and not server._outputs
    assert ours.recv(99).split() == [log_writer.CLOSED, b"%d" % os.fstat(reader).st_ino]
    shims_end.close()
    assert server._poller.poll(0) == []
    for thing in (ours, shim, server._control):
        thing.close()
    os.close(reader)


@pytest.mark.parametrize(
    ("cwd", "variable", "error"), [("/", b"NAME=a=b", 0), ("/nowhere", b"NAME=x", errno.ENOENT), ("/", b"=x", errno.EINVAL)]
)
def test_it_says_how_a_start_and_an_end_went(folder: Path, cwd: str, variable: bytes, error: int) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(20)
    os.mkfifo(folder / "gate")
    (folder / "script").write_text(f'exec 3>&2; echo "$NAME $(pwd)"; read x <{folder}/gate; exec 1>&-; echo >&3; read answer <&3\n')
    pipe, writer, shims_end = new_pipe(str(folder / "output.log"), 1 << 20)
    script = os.open(folder / "script", os.O_RDONLY)
    process = subprocess.Popen(log_writer_command("serve", str(folder)), stdin=theirs)
    theirs.close()
    request = b"\0".join((log_writer.START, b"100000", os.fsencode(pipe.log), b"", cwd.encode(), b"", b"", variable))
    socket.send_fds(ours, [request], [pipe.reader, pipe.shim, script, writer, shims_end])
    for descriptor in (script, writer, shims_end):
        os.close(descriptor)
    said = ours.recv(99).split()
    if not error:
        assert said[:2] == [log_writer.STARTED, b"%d" % pipe.inode] and len(said) == 4
        (folder / "gate").write_text("open\n")
        kind, inode, pid, *end = ours.recv(99).split()
        assert (kind, inode, pid) == (log_writer.ENDED, b"%d" % pipe.inode, said[2])
        assert end == [b"0", COMPLETE.encode(), b"%d" % (folder / ".exit").stat().st_mtime_ns]
        assert log(folder) == b"header\na=b /\n" and (folder / ".exit").read_text()[4] == COMPLETE
    else:
        assert said == [log_writer.NOT_STARTED, b"%d" % pipe.inode, b"%d" % error]
    ours.close()
    pipe.close()
    assert process.wait(20) == 0


@pytest.mark.parametrize(("restriction", "error"), [(b"0 ", errno.EBADF), (b"0 zz", errno.EINVAL)])
def test_a_shim_that_cannot_be_restricted_is_not_started(folder: Path, restriction: bytes, error: int) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(20)
    (folder / "script").write_text(f"touch {folder}/started\n")
    pipe, writer, shims_end = new_pipe(str(folder / "output.log"), 1 << 20)
    no_ruleset = os.open("/", os.O_RDONLY)
    script = os.open(folder / "script", os.O_RDONLY)
    process = subprocess.Popen(log_writer_command("serve", str(folder)), stdin=theirs)
    theirs.close()
    request = b"\0".join((log_writer.START, b"100000", os.fsencode(pipe.log), b"", b"/", b"", restriction))
    socket.send_fds(ours, [request], [pipe.reader, pipe.shim, script, writer, shims_end, no_ruleset])
    for descriptor in (script, writer, shims_end, no_ruleset):
        os.close(descriptor)
    kind, inode, number = ours.recv(99).split()
    assert (kind, int(inode)) == (log_writer.NOT_STARTED, pipe.inode)
    assert int(number) in (error, errno.EBADFD)
    ours.close()
    pipe.close()
    assert process.wait(20) == 0
    assert not (folder / "started").exists()
