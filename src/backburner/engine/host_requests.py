"""Answers what other hosts ask about the runs of this home: output, files and input. Reports excerpts of output, and deletes folders
whose tasks were cleared elsewhere.

All of it happens in one thread with a connection of its own, so that a large log does not delay the engine. Only where the ledger is
shared; a home with a ledger file never imports this.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from backburner.core.errors import BackburnerError
from backburner.core.host_records import HostRequest, HostResponse
from backburner.core.models import Clock
from backburner.engine.excerpts import ExcerptReporter
from backburner.engine.host_answers import Answer, InputWriter, Wait, answer_file, answer_files, answer_log, failed
from backburner.services.daemon_parts import SharedLedger
from backburner.system import run_files
from backburner.system.file_watch import FileWatch
from backburner.system.home import Home

log = logging.getLogger("backburner")
_RECONNECT_SECONDS = 1.0
_CLOSE_SECONDS = 2.0
_REPORT_SECONDS, _IDLE_REPORT_SECONDS = 10.0, 60.0  # between two looks for new output: while something runs, and otherwise
_MIN_REPORT_SECONDS = 1.0
_SWEEP_SECONDS = 300.0
_KEPT_MS = 600_000  # a request is deleted this long after it has expired; the clocks of hosts may differ
_LOOK_SECONDS = 5.0  # for requests whose notification was lost


class _Open(NamedTuple):
    """A request that is being answered, and when to go on with it."""

    answer: Answer
    due: float
    grows: bool


class HostRequestServer:
    """`start` it, `tick` it after every pass of the engine, and `close` it."""

    def __init__(self, home: Home, open_ledger: Callable[[], SharedLedger], clock: Clock) -> None:
        self._home, self._open_ledger, self._clock = home, open_ledger, clock
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._is_closing = False
        self._has_ticked = True
        self._thread = threading.Thread(target=self._serve, name="backburner-requests", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def tick(self) -> None:
        """Something may have started or ended: its output is reported soon."""
        if not self._has_ticked:
            self._has_ticked = True
            self._wake()

    def close(self) -> None:
        self._is_closing = True
        self._wake()
        self._thread.join(_CLOSE_SECONDS)  # it may be waiting for the server of the ledger; it ends with the process

    def _wake(self) -> None:
        try:
            os.write(self._writer, b"!")
        except BlockingIOError:
            return  # it is full of wake-ups already

    def _serve(self) -> None:
        warned = False
        while not self._is_closing:
            try:
                ledger = self._open_ledger()
                try:
                    _Serving(self, ledger).run()
                finally:
                    ledger.close()
            except BackburnerError as error:
                if not warned:
                    log.warning("Requests of other hosts are not answered: %s", error)
                warned = True
                time.sleep(_RECONNECT_SECONDS if not self._is_closing else 0)
            except Exception:
                log.exception("Requests of other hosts are not answered")
                time.sleep(_RECONNECT_SECONDS if not self._is_closing else 0)


class _Serving:
    """The state of the thread while it is connected."""

    def __init__(self, server: HostRequestServer, ledger: SharedLedger) -> None:
        self._server, self._ledger, self._home = server, ledger, server._home
        self._open: dict[int, _Open] = {}
        self._watch = FileWatch()
        self._inputs = InputWriter(server._wake)
        self._reporter = ExcerptReporter(ledger.excerpts, self._home, server._clock)
        self._last = 0
        self._looked_at = self._reported_at = self._swept_at = float("-inf")
        self._is_idle = False

    def run(self) -> None:
        requests, host_id = self._ledger.requests, self._ledger.host_id
        requests.listen(host_id)
        notified = True
        try:
            while not self._server._is_closing:
                now = time.monotonic()
                if notified or now >= self._looked_at + _LOOK_SECONDS:
                    self._looked_at = now
                    for request in requests.requests(host_id, self._last):
                        self._last = request.request_id
                        self._begin(request)
                self._go_on()
                self._keep_up()
                descriptors = [self._server._reader, *([self._watch.fileno()] if self._watch.works else [])]
                notified = requests.wait(self._seconds(), *descriptors)
                self._drain()
        finally:
            self._watch.close()

    def _begin(self, request: HostRequest) -> None:
        folder = self._home.folder(request.folder)
        match request.kind:
            case "input":
                if request.expires_at < self._server._clock():
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
        next_report = self._reported_at + (_IDLE_REPORT_SECONDS if self._is_idle else _REPORT_SECONDS)
        if self._server._has_ticked:
            next_report = self._reported_at + _MIN_REPORT_SECONDS
        due = min((one.due for one in self._open.values()), default=float("inf"))
        return max(0.0, min(due, next_report, self._looked_at + (_LOOK_SECONDS if self._open else _IDLE_REPORT_SECONDS)) - time.monotonic())

    def _drain(self) -> None:
        """After a wake-up: answers that wait for more output or for a command look again."""
        try:
            woken = bool(os.read(self._server._reader, 1024))
        except BlockingIOError:
            woken = False
        if woken or (self._watch.works and self._watch.fired()):
            self._open = {number: one._replace(due=0.0) if one.grows else one for number, one in self._open.items()}

    def _keep_up(self) -> None:
        """Report output, delete folders, and sweep requests, when that is due."""
        now = time.monotonic()
        waited = now - self._reported_at
        if waited < (_MIN_REPORT_SECONDS if self._server._has_ticked else _IDLE_REPORT_SECONDS if self._is_idle else _REPORT_SECONDS):
            return
        self._server._has_ticked, self._reported_at = False, now
        self._is_idle = not self._reporter.report()
        for folder in self._ledger.excerpts.folders_to_delete():
            if is_run_folder(folder):
                run_files.remove(self._home.folder(folder))
            self._ledger.excerpts.folder_deleted(folder)
        if now >= self._swept_at + _SWEEP_SECONDS:
            self._swept_at = now
            self._ledger.requests.sweep(self._server._clock() - _KEPT_MS)


def is_run_folder(folder: str) -> bool:
    """Whether a name in the ledger is that of a folder of a run, and of nothing else."""
    parent, _, name = folder.rpartition("/")
    return parent == "tasks" and bool(name) and not name.startswith(".")
