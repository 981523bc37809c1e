"""What hosts ask of each other about runs, and the answers. Nothing here takes the writer's lock: these rows are short-lived and of no use after a crash."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from backburner.core.host_records import HostRequest, HostResponse, RunPlace
from backburner.core.models import ProcessId

if TYPE_CHECKING:
    from backburner.store.database import Database


class HostRequestRepository:
    """Requests to hosts, and their responses. A reader asks again if an answer is incomplete."""

    def __init__(self, db: "Database") -> None:
        self._db = db

    def place(self, run_id: str) -> RunPlace | None:
        """Where a run is; None if it has no host, or is not known."""
        row = self._db.one(
            "SELECT r.host, coalesce(h.name, r.host), coalesce(h.state, '') FROM runs r LEFT JOIN hosts h ON h.host_id = r.host"
            " WHERE r.run_id = ? AND r.host <> ''",
            (run_id,),
        )
        return RunPlace(*row) if row else None

    def ask(
        self, host_id: str, run_id: str, kind: str, now: int, expires_at: int, *, path: str = "", position: int = 0, body: bytes = b""
    ) -> int:
        """Add a request; returns its number. The host is notified."""
        values = (host_id, run_id, kind, path, position, body, now, expires_at)
        row = self._db.one(
            "INSERT INTO host_requests (host_id, run_id, kind, path, position, body, created_at, expires_at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?) RETURNING request_id",
            values,
        )
        self._db.listen(_answered(row[0]))
        return row[0]

    def requests(self, host_id: str, after: int) -> Sequence[HostRequest]:
        """The requests to a host with higher numbers, for runs whose folders it has."""
        rows = self._db.execute(
            "SELECT q.request_id, q.run_id, q.kind, q.path, q.position, q.body, q.expires_at, r.folder, r.process, r.process_tag"
            " FROM host_requests q JOIN runs r ON r.run_id = q.run_id AND r.host = q.host_id"
            " WHERE q.host_id = ? AND q.request_id > ? AND q.body IS NOT NULL ORDER BY q.request_id",
            (host_id, after),
        )
        return [HostRequest._make((*row[:5], bytes(row[5]), *row[6:8], row[8] and ProcessId.parse(row[8]), row[9])) for row in rows]

    def begin_input(self, request_id: int) -> bool:
        """Take the input of a request, so that it is written at most once; False if it was taken or withdrawn."""
        return self._db.write("UPDATE host_requests SET body = NULL WHERE request_id = ? AND body IS NOT NULL", (request_id,)) == 1

    def withdraw_input(self, request_id: int) -> bool:
        """Withdraw input that nobody has taken; False if it was taken."""
        return self._db.write("DELETE FROM host_requests WHERE request_id = ? AND body IS NOT NULL", (request_id,)) == 1

    def answer(self, request_id: int, response: HostResponse) -> bool:
        """Add a part of an answer; False if the request was withdrawn. Whoever waits for it is notified."""
        n, position, body, last, error = response
        added = self._db.write(
            "INSERT INTO host_responses (request_id, n, position, body, last, error)"
            " SELECT request_id, ?, ?, ?, ?, CAST(? AS TEXT) FROM host_requests WHERE request_id = ?",
            (n, position, body, int(last), error, request_id),
        )
        return added == 1

    def take_parts(self, request_id: int) -> Sequence[HostResponse]:
        """The parts of an answer that have arrived since the last call. They are deleted."""
        taken = "DELETE FROM host_responses WHERE request_id = ? RETURNING n, position, body, last, error"
        return sorted(
            HostResponse(n, position, bytes(body), bool(last), error)
            for n, position, body, last, error in self._db.execute(taken, (request_id,))
        )

    def withdraw(self, request_id: int) -> None:
        """Delete a request with what is left of its answer."""
        self._db.unlisten(_answered(request_id))
        self._db.write("DELETE FROM host_requests WHERE request_id = ?", (request_id,))

    def sweep(self, before: int) -> int:
        """Delete requests that expired before a time, whose readers are gone; returns how many."""
        return self._db.write("DELETE FROM host_requests WHERE expires_at < ?", (before,))

    def wait(self, seconds: float, *descriptors: int) -> bool:
        """Wait for a part of an answer, or until a descriptor is readable; False if there is certainly no new part."""
        return self._db.wait(seconds, *descriptors)


def _answered(request_id: int) -> str:
    return f"backburner:r{request_id}"
