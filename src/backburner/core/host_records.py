"""Records of what hosts ask of each other about runs, and of what is kept of the output of a run for when its host cannot be reached."""

from typing import NamedTuple

from backburner.core.models import ProcessId

MAX_PIECE_BYTES = 1 << 20  # of one response
MAX_ANSWER_BYTES = 8 << 20  # of all responses to one request; a reader asks again for what follows
MAX_FILE_BYTES = 256 << 20
HEAD_BYTES, TAIL_BYTES = 16 << 10, 64 << 10  # of an excerpt

# Kinds of requests
LOG, FILE, FILES, INPUT = "log", "file", "files", "input"


def no_such_file(run_id: str, name: str) -> str:
    """What to tell somebody who asked for a file that does not exist."""
    return f"{run_id} has no file '{name}'. To list its files: backburner fetch {run_id}"


def channel_of(host_id: str) -> str:
    """The name under which a host is notified of requests, and of folders to delete; as in `store/postgres_requests.py`."""
    return f"backburner:{host_id}:requests"


class RunPlace(NamedTuple):
    """Where a run is: the host that has its folder, with its name and state. The state is empty if that host is not known."""

    host_id: str
    name: str
    state: str

    @property
    def answers(self) -> bool:
        """Whether it can be expected to answer."""
        return self.state in ("", "active")


class HostRequest(NamedTuple):
    """What another host wants to know about a run of this host, or to send to it."""

    request_id: int
    run_id: str
    kind: str
    path: str
    position: int
    body: bytes
    expires_at: int
    folder: str
    process: ProcessId | None
    process_tag: str


class HostResponse(NamedTuple):
    """A part of an answer. `position` is where in the log or file it begins."""

    n: int
    position: int
    body: bytes
    last: bool
    error: str | None


class OutputExcerpt(NamedTuple):
    """The beginning and the end of a log; positions and `size` count all bytes ever written. `details` is JSON: progress, ports and files."""

    head: bytes
    tail: bytes
    size: int
    details: str
    at: int


class RunFile(NamedTuple):
    """A file that a run has left. `name` is safe to show."""

    name: str
    size: int
    modified_at: int


class RunOutput(NamedTuple):
    """A run of this host whose output may have to be excerpted."""

    run_id: str
    folder: str
    process: ProcessId | None
    process_tag: str
    ended_at: int | None
