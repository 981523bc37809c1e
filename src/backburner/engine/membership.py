"""This host among those that share a ledger: says that it lives, notices hosts that do not, and knows who leads.

The lease is kept by a thread with a connection of its own, so that neither a busy main loop nor a slow change of the ledger delays it. All
times are of CLOCK_BOOTTIME, which also counts while the machine is suspended, and are never compared with those of another host.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence

from backburner.core.errors import BackburnerError, HostFenced, LedgerTooNew
from backburner.core.hosts import BEAT_SECONDS, MARGIN_SECONDS, Host, HostWatch, integrations_leader_of, leader_of
from backburner.core.models import Clock
from backburner.core.store_ports import HostStore

log = logging.getLogger("backburner")

_RETRY_DELAY = 1.0  # seconds after which the next beat is sent if the ledger was not reached


def boot_time() -> float:
    """The time since the machine started, also while it was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Membership:
    """The current epoch of this host.

    `connect` opens the ledger for the thread. `changed` is called in the thread when something changed for this host, and `ended` once,
    with the reason, when this epoch has ended. `renewed` is called in the thread with the time until which the lease of this host is safe.
    """

    def __init__(
        self,
        host_id: str,
        hosts: HostStore,
        connect: Callable[[], tuple[HostStore, Callable[[], None]]],
        clock: Clock,
        *,
        lease: float,
        lost_after: float,
        renewed: Callable[[float], None],
    ) -> None:
        self.host_id, self._store, self._connect, self._clock = host_id, hosts, connect, clock
        self._lease, self._lost_after, self._renewed = lease, lost_after, renewed
        self._watch = HostWatch(host_id, lease)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._known: Sequence[Host] = ()
        self._safe_until = 0.0
        self.epoch = 0
        self._has_ended = False

    def enrol(self, *, lanes: Sequence[str], capacity: int, version: str, integrations: bool) -> None:
        """Begin an epoch. The lease begins before it, as seen from here."""
        sent = boot_time()
        self.epoch = self._store.enrol(self._clock(), lanes=lanes, capacity=capacity, version=version, integrations=integrations)
        self._known = self._store.beats()
        self._renew(sent)

    def start(self, changed: Callable[[], None], ended: Callable[[BackburnerError], None]) -> None:
        """Keep the lease from now on."""
        self._thread = threading.Thread(target=self._keep, args=(changed, ended), name="backburner-lease", daemon=True)
        self._thread.start()

    def leave(self, *, has_runs: bool) -> None:
        """End the epoch. A host whose runs go on without an engine does not leave: if no engine comes back, it is suspected."""
        self._stopping.set()
        if self._thread:
            self._thread.join(BEAT_SECONDS)
        if not has_runs and not self._has_ended:
            self._store.leave(self.epoch, self._clock())

    @property
    def is_safe(self) -> bool:
        """Whether the lease of this host is certainly not over. A run that may run twice would be ended at once otherwise, so none is claimed."""
        return boot_time() < self._safe_until

    @property
    def leads(self) -> bool:
        """Whether this host does what only one host needs to do."""
        return leader_of(self._known) in (self.host_id, "")

    @property
    def leads_integrations(self) -> bool:
        """The same for the integrations, which not all hosts may run."""
        return integrations_leader_of(self._known) == self.host_id

    @property
    def is_draining(self) -> bool:
        """Whether this host must claim nothing from its lanes."""
        return any(host.draining for host in self._known if host.host_id == self.host_id)

    def _keep(self, changed: Callable[[], None], ended: Callable[[BackburnerError], None]) -> None:
        hosts, close = None, None
        due = boot_time()
        while not self._stopping.wait(max(0.0, due - boot_time())):
            due = boot_time() + BEAT_SECONDS
            try:
                if hosts is None:
                    hosts, close = self._connect()
                if not self._beat(hosts, changed):
                    raise HostFenced
            except (HostFenced, LedgerTooNew) as error:
                self._has_ended = True
                ended(error)
                break
            except BackburnerError as error:
                due = boot_time() + _RETRY_DELAY
                log.warning("the lease of this host was not renewed: %s", error)
            except Exception:
                log.exception("the lease of this host was not renewed")
            if boot_time() < (silent_at := self._watch.next_silent_at()) < due:
                due = silent_at  # a host that is silent is noticed then, and not up to a beat later
        if close:
            close()

    def _beat(self, hosts: HostStore, changed: Callable[[], None]) -> bool:
        sent = boot_time()
        if not hosts.beat(self.epoch, self._clock()):
            return False
        self._renew(sent)
        sent = boot_time()
        found = hosts.beats()
        self._watch.note(found, sent, boot_time())
        before, self._known = self._summary(), found
        acted = self._judge(hosts)
        if acted or before != self._summary():
            changed()
        return True

    def _renew(self, sent: float) -> None:
        self._safe_until = sent + self._lease - MARGIN_SECONDS
        self._renewed(self._safe_until)

    def _judge(self, hosts: HostStore) -> bool:
        """Suspect the hosts that are silent, and give up those that have been silent for long. Returns whether anything was done."""
        acted = False
        for host in self._watch.silent():
            if suspicion := hosts.suspect(host, self._clock()):
                log.warning("host %s is silent; %d runs there, %d run again", host.name, suspicion.unknown, len(suspicion.run_again))
                acted = True
        for host in self._watch.overdue(self._lost_after):
            if lost := hosts.lose(host, self._clock()):
                log.warning("host %s is given up; %d runs are lost", host.name, lost)
                acted = True
        return acted

    def _summary(self) -> tuple[object, ...]:
        """What a pass of the engine depends on."""
        return self.leads, self.leads_integrations, self.is_draining
