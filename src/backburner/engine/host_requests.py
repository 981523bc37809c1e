"""Answers what other hosts ask about the runs of this home: output, files and input. Reports excerpts of output, and deletes folders
whose tasks were cleared elsewhere.

All of it happens in one thread with a connection of its own, so that a large log does not delay the engine; the connection is closed
when there is nothing to do. Only where the ledger is shared; a home with a ledger file never imports this.
"""

import logging
import os
import select
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from backburner.core.errors import BackburnerError
from backburner.core.host_records import HostRequest, HostResponse, channel_of
from backburner.core.models import Clock
from backburner.engine.excerpts import ExcerptReporter
from backburner.engine.host_answers import Answer, InputWriter, Wait, answer_file, answer_files, answer_log, failed
from backburner.services.daemon_parts import SharedLedger
from backburner.system import run_files
from backburner.system.file_watch import FileWatch
from backburner.system.home import Home

log = logging.getLogger("backburner")
Subscribe = Callable[[str, Callable[[str], None]], Callable[[], None] | None]
_RECONNECT_SECONDS = 1.0
_CLOSE_SECONDS = 2.0
_REPORT_SECONDS = 10.0  # between two looks for new output, while something runs
_MIN_REPORT_SECONDS = 1.0
_SWEEP_SECONDS = 300.0
_KEPT_MS = 600_000  # a request is deleted this long after it has expired; the clocks of hosts may differ
_CONNECTED_SECONDS = 30.0  # an unused connection is closed after so long


class _Open(NamedTuple):
    """A request that is being answered, and when to go on with it."""

    answer: Answer
    due: float
    grows: bool


class HostRequestServer:
    """`start` it, `tick` it after every pass of the engine, and `close` it."""

    def __init__(self, home: Home, open_ledger: Callable[[], SharedLedger], subscribe: Subscribe, clock: Clock) -> None:
        self.home, self.clock = home, clock
        self._open_ledger, self._subscribe = open_ledger, subscribe
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.is_closing = False
        self.has_ticked = True
        self.is_busy = False  # whether an answer is not complete
        self._thread = threading.Thread(target=self._serve, name="backburner-requests", daemon=True)

    def start(self) -> None:
        self._unsubscribe = self._subscribe(channel_of(self.home.host_id()), lambda _: self.wake())
        self._thread.start()

    def tick(self) -> None:
        """Something may have started or ended: its output is reported soon."""
        if not self.has_ticked:
            self.has_ticked = True
            self.wake()

    def close(self) -> None:
        self.is_closing = True
        if self._unsubscribe:
            self._unsubscribe()
        self.wake()
        self._thread.join(_CLOSE_SECONDS)  # it may be waiting for the server of the ledger; it ends with the process

    def wake(self) -> None:
        """Let the thread look for requests, and go on with its answers. May be called in any thread."""
        try:
            os.write(self._writer, b"!")
        except BlockingIOError:
            return  # it is full of wake-ups already

    def wait(self, seconds: float | None, *descriptors: int) -> bool:
        """Wait for a wake-up, a descriptor or some seconds; True if there was a wake-up."""
        waiting = select.poll()
        for descriptor in (self._reader, *descriptors):
            waiting.register(descriptor, select.POLLIN)
        ready = dict(waiting.poll(None if seconds is None else seconds * 1000))
        if self._reader in ready:
            os.read(self._reader, 1024)
        return self._reader in ready

    def _serve(self) -> None:
        warned = False
        while not self.is_closing:
            try:
                ledger = self._open_ledger()
                try:
                    _Serving(self, ledger).run()
                finally:
                    self.is_busy = False
                    ledger.close()
                warned = False
                if not self.is_closing:
                    self.wait(None)  # without a connection
            except Exception as error:
                if not warned:
                    log.warning("Requests of other hosts are not answered: %s", error, exc_info=not isinstance(error, BackburnerError))
                warned = True
                if not self.is_closing:
                    time.sleep(_RECONNECT_SECONDS)


class _Serving:
    """The state of the thread while it is connected."""

    def __init__(self, server: HostRequestServer, ledger: SharedLedger) -> None:
        self._server, self._ledger, self._home = server, ledger, server.home
        self._open: dict[int, _Open] = {}
        self._watch = FileWatch()
        self._inputs = InputWriter(server.wake)
        self._reporter = ExcerptReporter(ledger.excerpts, self._home, server.clock)
        self._last = 0
        self._used_at = time.monotonic()
        self._reported_at = self._swept_at = float("-inf")
        self._reports = True  # whether something runs whose output has to be reported

    def run(self) -> None:
        """Answer requests and report output until there was nothing to do for a while."""
        woken = True
        try:
            while not self._server.is_closing:
                if woken:
                    self._look()
                self._go_on()
                self._keep_up()
                self._server.is_busy = bool(self._open)
                if self._open or self._reports or self._server.has_ticked:
                    self._used_at = time.monotonic()
                elif time.monotonic() > self._used_at + _CONNECTED_SECONDS:
                    return
                woken = self._server.wait(self._seconds(), *([self._watch.fileno()] if self._watch.works else []))
                if woken or (self._watch.works and self._watch.fired()):
                    self._open = {number: one._replace(due=0.0) if one.grows else one for number, one in self._open.items()}
        finally:
            self._watch.close()

    def _look(self) -> None:
        """Begin to answer new requests, and delete folders whose tasks were cleared elsewhere."""
        for request in self._ledger.requests.requests(self._ledger.host_id, self._last):
            self._last = request.request_id
            self._begin(request)
        for folder in self._ledger.excerpts.folders_to_delete():
            if is_run_folder(folder):
                run_files.remove(self._home.folder(folder))
            self._ledger.excerpts.folder_deleted(folder)

    def _begin(self, request: HostRequest) -> None:
        folder = self._home.folder(request.folder)
        match request.kind:
            case "input":
                if request.expires_at < self._server.clock():
                    answer = failed("the request is too old, or the clocks of the hosts differ")
                elif self._ledger.requests.begin_input(request.request_id):
                    answer = self._inputs.answer(request, folder)
                else:
                    return  # it was withdrawn
            case "files":
                answer = answer_files(request, folder)
            case "file":
                answer = answer_file(request, folder)
            case _:
                answer = answer_log(request, folder, self._watch)
        self._open[request.request_id] = _Open(answer, 0.0, grows=False)

    def _go_on(self) -> None:
        """Let every answer that is due send its next part."""
        for request_id, (answer, due, _) in list(self._open.items()):
            if due > time.monotonic():
                continue
            try:
                step = next(answer, None)
            except (OSError, ValueError) as error:
                log.warning("Request %d cannot be answered: %s", request_id, error)
                step = None
            if isinstance(step, Wait):
                self._open[request_id] = _Open(answer, time.monotonic() + step.seconds, step.grows)
            elif not isinstance(step, HostResponse) or not self._ledger.requests.answer(request_id, step) or step.last:
                answer.close()
                del self._open[request_id]
            else:
                self._open[request_id] = _Open(answer, 0.0, grows=False)

    def _seconds(self) -> float:
        """How long nothing is due."""
        due = min((one.due for one in self._open.values()), default=float("inf"))
        return max(0.0, min(due, self._next_report(), self._used_at + _CONNECTED_SECONDS + 1) - time.monotonic())

    def _next_report(self) -> float:
        if self._server.has_ticked:
            return self._reported_at + _MIN_REPORT_SECONDS
        return self._reported_at + _REPORT_SECONDS if self._reports else float("inf")

    def _keep_up(self) -> None:
        """Report output, and sweep requests, when that is due."""
        now = time.monotonic()
        if now >= self._next_report():
            self._server.has_ticked, self._reported_at = False, now
            self._reports = self._reporter.report()
        if now >= self._swept_at + _SWEEP_SECONDS:
            self._swept_at = now
            self._ledger.requests.sweep(self._server.clock() - _KEPT_MS)


def is_run_folder(folder: str) -> bool:
    """Whether a name in the ledger is that of a folder of a run, and of nothing else."""
    parent, _, name = folder.rpartition("/")
    return parent == "tasks" and bool(name) and not name.startswith(".")
