"""Asks another host about one of its runs, through the ledger, and reads its answer part by part."""

import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from backburner.core.errors import HostUnreachable, LedgerUnreachable
from backburner.core.host_records import HostResponse, RunPlace
from backburner.core.models import Clock

if TYPE_CHECKING:
    from backburner.core.store_ports import HostRequestStore

ANSWER_SECONDS = 3.0  # how long a host may take to begin an answer, or to continue it
ATTEMPTS = 3
_WAIT_SECONDS = 0.5  # for a notification, which may get lost
_EXPIRES_MS = 60_000


class IncompleteAnswer(Exception):
    """A part of an answer is missing: the host was restarted, or a connection was lost. `is_silent`: there is no answer at all."""

    def __init__(self, *, is_silent: bool = False) -> None:
        super().__init__()
        self.is_silent = is_silent


class HostAnswer:
    """The parts of the answer to one request, in order. Close it."""

    def __init__(self, requests: "HostRequestStore", request_id: int, pause: float) -> None:
        """`pause` is the longest time in seconds between two parts."""
        self._requests, self.request_id, self._pause = requests, request_id, pause
        self._next, self._deadline = 0, time.monotonic() + ANSWER_SECONDS
        self.is_over = False

    def take(self) -> list[HostResponse]:
        """What has arrived."""
        try:
            found = list(self._requests.take_parts(self.request_id))
        except LedgerUnreachable:
            raise IncompleteAnswer from None
        for response in found:
            if response.n != self._next:
                raise IncompleteAnswer
            self._next += 1
            self.is_over = response.last
        if found:
            self._deadline = time.monotonic() + self._pause
        elif time.monotonic() > self._deadline:
            raise IncompleteAnswer(is_silent=self._next == 0)
        return found

    def wait(self, seconds: float, *descriptors: int) -> None:
        """Wait until more has arrived, a descriptor is readable, or for some seconds."""
        try:
            self._requests.wait(min(seconds, _WAIT_SECONDS), *descriptors)
        except LedgerUnreachable:
            raise IncompleteAnswer from None

    def parts(self) -> Iterator[HostResponse]:
        """All parts, as they arrive."""
        while not self.is_over:
            found = self.take()
            yield from found
            if not found:
                self.wait(_WAIT_SECONDS)

    def extend(self, seconds: float) -> None:
        """Wait longer for the next part."""
        self._deadline = time.monotonic() + seconds

    def close(self) -> None:
        try:
            self._requests.withdraw(self.request_id)
        except LedgerUnreachable:
            return  # it expires


class HostClient:
    """Asks the host of one run. Belongs to one thread, like the ledger."""

    def __init__(self, requests: "HostRequestStore", run_id: str, place: RunPlace, clock: Clock) -> None:
        self._requests, self._run_id, self.place, self._clock = requests, run_id, place, clock

    def ask(self, kind: str, *, path: str = "", position: int = 0, body: bytes = b"", pause: float = ANSWER_SECONDS) -> HostAnswer:
        """Send a request. Close its answer."""
        now = self._clock()
        try:
            request_id = self._requests.ask(
                self.place.host_id, self._run_id, kind, now, now + _EXPIRES_MS, path=path, position=position, body=body
            )
        except LedgerUnreachable:
            raise IncompleteAnswer from None
        return HostAnswer(self._requests, request_id, pause)

    def parts(self, kind: str, options: dict[str, Any] | None = None, *, path: str = "", position: int = 0) -> Iterator[HostResponse]:
        """The parts of an answer as they arrive. Raises IncompleteAnswer."""
        answer = self.ask(kind, path=path, position=position, body=json.dumps(options or {}).encode())
        try:
            yield from answer.parts()
        finally:
            answer.close()

    def whole(self, kind: str, options: dict[str, Any] | None = None, *, path: str = "") -> list[HostResponse]:
        """All parts of a short answer. HostUnreachable if the host is silent, or its answer is incomplete again and again."""
        self.require_answers()
        for _ in range(ATTEMPTS):
            try:
                return list(self.parts(kind, options, path=path))
            except IncompleteAnswer as error:
                if error.is_silent:
                    break
        raise self.unreachable()

    def withdraw_input(self, request_id: int) -> bool:
        """Withdraw a request to write input; False if the host has begun to write it."""
        try:
            return self._requests.withdraw_input(request_id)
        except LedgerUnreachable:
            return False

    def require_answers(self) -> None:
        """Raise HostUnreachable if it is known that the host cannot answer."""
        if not self.place.answers:
            raise self.unreachable()

    def unreachable(self, what: str = "") -> HostUnreachable:
        """The error for a host that does not answer."""
        return HostUnreachable(what or ("it has left" if self.place.state == "left" else "try again when it is back"), host=self.place.name)
