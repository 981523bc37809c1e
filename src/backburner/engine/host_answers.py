"""Answers to requests of other hosts, as generators: each step is the next part of the answer, or how long to wait before the next step."""

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from backburner.core.errors import BackburnerError
from backburner.core.host_records import (
    MAX_ANSWER_BYTES,
    MAX_FILE_BYTES,
    MAX_PIECE_BYTES,
    TAIL_BYTES,
    HostRequest,
    HostResponse,
    no_such_file,
)
from backburner.core.models import ProcessId
from backburner.system import run_files, run_inspection
from backburner.system.file_watch import FileWatch
from backburner.system.home import read_plain
from backburner.system.log_file import NAME, Log
from backburner.system.stdin_pipe import close_stdin, write_stdin

_OPENING_BYTES = 4096  # of the beginning of a log, which contains its header
_PAUSE_SECONDS = 0.004  # between two parts of a growing log, so that several lines are one part
_POLL_SECONDS = 1.0  # for growth that inotify does not report
_MISSING_SECONDS = 0.1  # between two looks for a log that does not exist yet
_MAX_FOLLOW_SECONDS = 60.0


class Wait(NamedTuple):
    """Go on after some seconds; with `grows`, also after a wake-up."""

    seconds: float
    grows: bool = True


Answer = Generator[HostResponse | Wait]


def failed(error: str) -> Answer:
    """An answer that says why there is none."""
    yield HostResponse(0, 0, b"", True, error)


def answer_log(request: HostRequest, folder: str, watch: FileWatch) -> Answer:
    """A log from a position on, by cursor. First its size and which parts of it exist; the last part says how far the answer goes.

    Options: `open` for its beginning and its end; `length` for at most so many bytes; `wait` to go on while it grows, for some seconds.
    """
    options: dict[str, Any] = json.loads(request.body or b"{}")
    position, n = max(0, request.position), 0
    stop = position + min(int(options.get("length", MAX_ANSWER_BYTES)), MAX_ANSWER_BYTES)
    deadline = time.monotonic() + min(float(options.get("wait", 0)), _MAX_FOLLOW_SECONDS)
    while True:
        is_over = time.monotonic() >= deadline  # before the log is read, so that the last part is complete
        if not is_over:
            watch.arm(os.path.join(folder, NAME))
        start = position
        with contextlib.ExitStack() as stack:
            try:
                log = stack.enter_context(Log(folder))
                ranges = log.data_ranges()
                size = ranges[-1][1] if ranges else 0  # not the size of the file, which may have grown since
            except FileNotFoundError:
                log, ranges, size = None, [], None
            if n == 0:
                about = {"size": size, "ranges": [(first, last) for first, last, _ in ranges]}
                yield HostResponse(0, 0, json.dumps(about).encode(), False, None)
                n = 1
            for first, last in _wanted(options, ranges, position, stop, size or 0):
                position = first
                while position < last and log:
                    offset = next(offset + position - begin for begin, end, offset in ranges if begin <= position < end)
                    if not (piece := log.read(offset, min(MAX_PIECE_BYTES, last - position))):
                        break
                    yield HostResponse(n, position, piece, False, None)
                    n, position = n + 1, position + len(piece)
            position = max(position, min(stop, size or 0))
        if options.get("open") or is_over or position >= stop:
            yield HostResponse(n, position, b"", True, None)
            return
        if size is None:
            yield Wait(min(_MISSING_SECONDS, deadline - time.monotonic()))
        elif position > start:
            yield Wait(_PAUSE_SECONDS, grows=False)
        else:
            yield Wait(max(0.0, min(_POLL_SECONDS, deadline - time.monotonic())))


def _wanted(options: dict[str, Any], ranges: list[tuple[int, int, int]], position: int, stop: int, size: int) -> list[tuple[int, int]]:
    """The parts of a log to send."""
    parts = [(position, stop)]
    if options.get("open"):
        tail = max(_OPENING_BYTES, size - TAIL_BYTES)
        parts = [(0, _OPENING_BYTES), (tail, size)]
    cut = [(max(first, begin), min(last, end)) for first, last in parts for begin, end, _ in ranges]
    return [(first, last) for first, last in cut if first < last]


def answer_files(request: HostRequest, folder: str) -> Answer:
    """What can be observed about a run, and its files, as JSON."""
    files = [(file.name, file.size, file.modified_at) for file in run_inspection.artifact_files(folder)]
    body = json.dumps({**run_details(folder, request.process, request.process_tag), "files": files}).encode()
    for n, start in enumerate(range(0, len(body), MAX_PIECE_BYTES)):
        piece = body[start : start + MAX_PIECE_BYTES]
        yield HostResponse(n, start, piece, start + len(piece) == len(body), None)


def run_details(folder: str, process: ProcessId | None, process_tag: str) -> dict[str, Any]:
    """The progress, ports and files of a run, and what its agent does, as JSON values."""
    try:
        activity = json.loads(read_plain(os.path.join(folder, run_files.ACTIVITY), 1 << 20))
    except (OSError, ValueError):
        activity = {}
    progress = run_inspection.of_agent(activity) if activity else run_inspection.progress(folder)
    return {
        "progress": progress,
        "ports": run_inspection.ports(process, process_tag),
        "artifacts": run_inspection.artifacts(folder),
        "activity": activity,
    }


def answer_file(request: HostRequest, folder: str) -> Answer:
    """A file that the command left, from a position on. First its name, size and time. Its name is compared, and never used as a path."""
    options: dict[str, Any] = json.loads(request.body or b"{}")
    file = run_inspection.find_artifact(folder, request.path)
    if file is None:
        yield from failed(no_such_file(request.run_id, request.path))
        return
    if file.size > MAX_FILE_BYTES:
        yield from failed(
            f"{file.name} of {request.run_id} is larger than {MAX_FILE_BYTES >> 20} MiB; copy it from its host by other means."
        )
        return
    try:
        descriptor = run_inspection.open_artifact(folder, file)
    except OSError as error:
        yield from failed(f"{file.name} of {request.run_id} cannot be read: {error.strerror}.")
        return
    try:
        yield HostResponse(0, 0, json.dumps((file.name, file.size, file.modified_at)).encode(), False, None)
        position, n = max(0, request.position), 1
        stop = min(file.size, position + min(int(options.get("length", MAX_ANSWER_BYTES)), MAX_ANSWER_BYTES))
        while position < stop and (piece := os.pread(descriptor, min(MAX_PIECE_BYTES, stop - position), position)):
            yield HostResponse(n, position, piece, False, None)
            n, position = n + 1, position + len(piece)
        yield HostResponse(n, position, b"", True, None)
    finally:
        os.close(descriptor)


class InputWriter:
    """Writes to the input of commands, each in a thread, because a command may take seconds to read it."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def answer(self, request: HostRequest, folder: str) -> Answer:
        """Write the input of a request, and say whether that failed."""
        result: list[str | None] = []

        def write() -> None:
            task_id, starting = request.run_id, request.process is None
            try:
                if request.body:
                    write_stdin(folder, request.body, task_id, starting=starting)
                if request.path:
                    close_stdin(folder, task_id, starting=starting)
            except BackburnerError as error:
                result.append(str(error))
            except OSError as error:
                result.append(f"The input of task {task_id} cannot be written to ({error.strerror}).")
            else:
                result.append(None)
            self._wake()

        threading.Thread(target=write, name="backburner-input", daemon=True).start()
        while not result:
            yield Wait(_POLL_SECONDS)
        yield HostResponse(0, 0, b"", True, result[0])
