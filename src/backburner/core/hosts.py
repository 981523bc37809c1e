"""Hosts that share a ledger: their records, and when one of them counts as silent. No clock is compared with that of another host."""

from collections.abc import Iterable, Sequence
from enum import StrEnum

from backburner.core.light_typing import NamedTuple

BEAT_SECONDS = 2.0
MAX_GAP_SECONDS = 3.0  # a watcher that did not reach the ledger for longer cannot say that another host was silent
MARGIN_SECONDS = 1.0  # what may run again elsewhere is ended this long before another host may be sure that the lease is over
GIVEN_UP = "host"  # the problem of a run that ended as lost because its host did not answer


class HostState(StrEnum):
    """`left`: its engine has exited. `suspected`: it is silent. `fenced`: also, and some of its runs were given up; it needs a new epoch."""

    ACTIVE = "active"
    SUSPECTED = "suspected"
    FENCED = "fenced"
    LEFT = "left"


class Host(NamedTuple):
    """A home that has joined a ledger. Each start of its engine is an epoch, in which `beat` counts up while the engine lives.

    `changed_at` is when its state changed, `seen_at` when it last said anything. `lanes` are the labels that it serves.
    """

    host_id: str
    name: str
    state: HostState
    epoch: int
    beat: int
    changed_at: int
    seen_at: int
    draining: bool = False
    integrations: bool = False
    lanes: tuple[str, ...] = ()
    capacity: int = 0
    version: str = ""
    runs: int = 0  # claimed and not ended


class Suspicion(NamedTuple):
    """What became of the runs of a host that was found silent: how many go on as far as anybody knows, and which run again."""

    unknown: int
    run_again: Sequence[str]


class HostWatch:
    """Notes the beats of the other hosts, by the clock of the caller, which must not stop while the machine is suspended."""

    def __init__(self, host_id: str, lease: float) -> None:
        self._host_id, self._lease = host_id, lease
        self._seen: dict[str, tuple[tuple[int, int], float]] = {}  # the last beat of each host, and when it was first read without a gap
        self._first: dict[str, tuple[tuple[int, int], float]] = {}  # the same, whatever gaps there were
        self._read_at: float | None = None
        self._hosts: Sequence[Host] = ()

    def note(self, hosts: Iterable[Host], sent: float, received: float) -> None:
        """Note what one read of the ledger has found, which was sent and received at these times."""
        if self._read_at is None or received - self._read_at > MAX_GAP_SECONDS:
            self._seen.clear()
        self._read_at = received
        self._hosts, self._sent = [host for host in hosts if host.host_id != self._host_id], sent
        for host in self._hosts:
            beat = host.epoch, host.beat
            for known in (self._seen, self._first):
                if host.host_id not in known or known[host.host_id][0] != beat:
                    known[host.host_id] = beat, received

    def silent(self) -> Sequence[Host]:
        """The active hosts that did not beat for a lease, although the ledger could be reached all the time."""
        return [host for host in self._hosts if host.state == HostState.ACTIVE and self._is_silent(host)]

    def next_silent_at(self) -> float:
        """When an active host will have been silent for a lease, if it does not beat before; infinity if there is none."""
        return min(
            (self._seen[host.host_id][1] + self._lease for host in self._hosts if host.state == HostState.ACTIVE), default=float("inf")
        )

    def overdue(self, lost_after: float) -> Sequence[Host]:
        """The suspected hosts, also those that lost a part of their runs, that have been silent for `lost_after` seconds."""
        return [
            host
            for host in self._hosts
            if host.state in (HostState.SUSPECTED, HostState.FENCED)
            and self._is_silent(host)
            and self._sent - self._first[host.host_id][1] >= lost_after
        ]

    def _is_silent(self, host: Host) -> bool:
        return self._sent - self._seen[host.host_id][1] >= self._lease


def leader_of(hosts: Iterable[Host]) -> str:
    """The host that does what only one needs to do, such as firing schedules; empty if no host is active.

    Two hosts may disagree for a moment: everything a leader does is guarded, so that a second one does no harm.
    """
    return min((host.host_id for host in hosts if host.state == HostState.ACTIVE), default="")


def integrations_leader_of(hosts: Iterable[Host]) -> str:
    """The same for the integrations, which not all hosts may run."""
    return leader_of(host for host in hosts if host.integrations)
