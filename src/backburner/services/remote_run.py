"""The output, files and input of a run on another host.

Every request is limited and names the position it begins at, so an incomplete answer is asked for again, and no byte is lost or read
twice. If the host does not answer, what it last reported is shown.
"""

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from backburner.core.errors import BadInput, HostUnreachable
from backburner.core.formatting import local_time
from backburner.core.host_records import FILE, FILES, INPUT, LOG, MAX_ANSWER_BYTES, MAX_PIECE_BYTES, RunFile, RunPlace
from backburner.core.models import Clock
from backburner.services.host_client import ANSWER_SECONDS, ATTEMPTS, HostAnswer, HostClient, IncompleteAnswer
from backburner.system.remote_log import RemoteLog

if TYPE_CHECKING:
    from backburner.core.store_ports import HostRequestStore, OutputExcerptStore

FOLLOW_SECONDS = 10.0  # how long a host waits for more output before it ends its answer
_INPUT_SECONDS = 10.0  # how long it may take until a command has read its input


class RemoteRun:
    """A run whose folder is on another host. Belongs to one thread, like the ledger."""

    def __init__(
        self,
        requests: "HostRequestStore",
        excerpts: "OutputExcerptStore",
        run_id: str,
        place: RunPlace,
        clock: Clock,
        is_silent: Callable[[], None] = lambda: None,
    ) -> None:
        """`is_silent` is called when the host did not answer."""
        self._is_silent = is_silent
        self.on_close: Callable[[], None] = lambda: None  # for a run that has a connection of its own
        self._client, self._excerpts, self._run_id, self.place = HostClient(requests, run_id, place, clock), excerpts, run_id, place

    def close(self) -> None:
        self.on_close()

    def open_log(self) -> RemoteLog:
        """Open its log; FileNotFoundError if there is none. If its host does not answer, what it last reported."""
        try:
            return self._open_live()
        except HostUnreachable:
            self._is_silent()
            return self._open_excerpt()

    def _open_live(self) -> RemoteLog:
        about, *blocks = self._client.whole(LOG, {"open": True})
        state: dict[str, Any] = json.loads(about.body)
        if state["size"] is None:
            raise FileNotFoundError(self._run_id)
        log = RemoteLog(state["ranges"], [(block.position, block.body) for block in blocks if block.body], state["size"], self._read)
        log.growth = Growth(self._client, log)
        return log

    def _open_excerpt(self) -> RemoteLog:
        found, who = self._excerpts.excerpt(self._run_id), f"Host {self.place.name}"
        why = "has left" if self.place.state == "left" else "does not answer"
        if found is None:
            return RemoteLog([], [], 0, note=f"{who} {why}, and has reported no output of {self._run_id}.")
        blocks = [(0, found.head), (found.size - len(found.tail), found.tail)]
        ranges = [(at, at + len(block)) for at, block in blocks if block]
        return RemoteLog(ranges, blocks, found.size, note=f"{who} {why}; this is what it last reported at {local_time(found.at)}.")

    def details(self) -> dict[str, Any]:
        """Its progress, ports and files, as JSON values; what its host last reported if it does not answer, with a `note` that says so."""
        try:
            return self._details()
        except HostUnreachable:
            self._is_silent()
            return {**self.reported_details(), "note": self._open_excerpt().note}

    def reported_details(self) -> dict[str, Any]:
        """The same without asking the host: what it last reported, every few seconds while there is news."""
        found = self._excerpts.details(self._run_id)
        return json.loads(found) if found else {}

    def _details(self) -> dict[str, Any]:
        return json.loads(b"".join(part.body for part in self._client.whole(FILES)))

    def files(self) -> list[RunFile]:
        """The files that it has left; HostUnreachable if its host does not answer."""
        return [RunFile(*file) for file in self._details()["files"]]

    def read_file(self, name: str) -> tuple[RunFile, Iterator[bytes]]:
        """A file that it has left, and its content. BadInput if there is none of that name, or it is too large."""
        about, *first = self._client.whole(FILE, {"length": MAX_PIECE_BYTES}, path=name)
        if about.error:
            raise BadInput(about.error)
        file = RunFile(*json.loads(about.body))
        return file, self._content(file, [part.body for part in first])

    def _content(self, file: RunFile, first: list[bytes]) -> Iterator[bytes]:
        yield from first
        position, attempts = sum(map(len, first)), 0
        while position < file.size:
            before = position
            try:
                for part in self._client.parts(FILE, {"length": MAX_ANSWER_BYTES}, path=file.name, position=position):
                    if part.n == 0 and (part.error or RunFile(*json.loads(part.body)) != file):
                        raise BadInput(f"{file.name} of {self._run_id} changed while it was read; try again.")
                    if part.n and part.body:
                        position += len(part.body)
                        yield part.body
            except IncompleteAnswer:
                attempts = self._attempts(attempts, position > before)
                continue
            if position == before:
                raise BadInput(f"{file.name} of {self._run_id} became shorter while it was read; try again.")

    def send(self, data: bytes, *, end: bool) -> None:
        """Write to its input, at most once. HostUnreachable says what was written."""
        self._client.require_answers()
        for start in range(0, max(1, len(data)), MAX_PIECE_BYTES):
            piece = data[start : start + MAX_PIECE_BYTES]
            self._send(piece, end=end and start + len(piece) >= len(data), sent=start)

    def _send(self, data: bytes, *, end: bool, sent: int) -> None:
        try:
            answer = self._client.ask(INPUT, path="end" if end else "", body=data)
        except IncompleteAnswer:
            raise self._client.unreachable(f"{sent} bytes were sent") from None
        try:
            try:
                error = next((part.error for part in answer.parts()), None)
            except IncompleteAnswer:
                if self._client.withdraw_input(answer.request_id):
                    raise self._client.unreachable(f"{sent} bytes were sent") from None
                answer.extend(_INPUT_SECONDS)
                error = next((part.error for part in answer.parts()), None)
        except IncompleteAnswer:
            raise self._client.unreachable("it is not known whether the input was written") from None
        finally:
            answer.close()
        if error:
            raise BadInput(error)

    def _read(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """The data of the log between two positions."""
        position, attempts = start, 0
        while position < end:
            before = reached = position
            try:
                for part in self._client.parts(LOG, {"length": min(MAX_ANSWER_BYTES, end - position)}, position=position):
                    if part.n and part.body:
                        position = part.position + len(part.body)
                        yield part.position, part.body
                    elif part.last:
                        reached = part.position
            except IncompleteAnswer:
                attempts = self._attempts(attempts, position > before)
                continue
            position = max(position, reached)
            if position == before:
                return

    def _attempts(self, before: int, progress: bool) -> int:
        """Count an incomplete answer. HostUnreachable after several in a row that brought nothing."""
        if not progress and before + 1 >= ATTEMPTS:
            raise self._client.unreachable()
        return 0 if progress else before + 1


class Growth:
    """Waits for more output of a run on another host, and adds it to its log."""

    def __init__(self, client: HostClient, log: RemoteLog) -> None:
        self._client, self._log = client, log
        self._answer: HostAnswer | None = None
        self.is_silent = False  # whether the host did not answer the last request

    def wait(self, seconds: float, *descriptors: int) -> None:
        """Add what was written; if there is nothing, wait for it at most some seconds, or until a descriptor is readable."""
        try:
            if self._answer is None:
                body = json.dumps({"wait": FOLLOW_SECONDS}).encode()
                self._answer = self._client.ask(LOG, position=self._log.size, body=body, pause=FOLLOW_SECONDS + ANSWER_SECONDS)
            if not self._add(self._answer):
                self._answer.wait(seconds, *descriptors)
                self._add(self._answer)
        except IncompleteAnswer as error:
            self.is_silent = self.is_silent or error.is_silent
            self.close()
            return
        if self._answer.is_over:
            self.close()

    def _add(self, answer: HostAnswer) -> bool:
        parts = answer.take()
        for part in parts:
            self.is_silent = False
            if part.body and part.n:
                self._log.add(part.position, part.body)
        return any(part.body and part.n for part in parts)

    def close(self) -> None:
        if self._answer:
            self._answer.close()
            self._answer = None
