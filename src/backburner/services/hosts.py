"""The hosts that share a ledger, and the place of a task: which of them may run it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from backburner.coordination.changes import ChangeFeed
from backburner.coordination.config_file import ConfigFile
from backburner.core.errors import BadInput
from backburner.core.formatting import local_time
from backburner.core.hosts import Host, HostState
from backburner.core.models import Caller, Clock, Run
from backburner.core.queues import MAX_LABELS, host_of, is_label, labels_of, lane_name, lane_of
from backburner.core.states import RunState
from backburner.services.identity import Identity

if TYPE_CHECKING:
    from backburner.core.store_ports import HostStore

_ONE_HOST = "The ledger of this home is a file, which no other host uses. To share one, see docs/hosts.md."


class Hosts:
    """Lists hosts, gives them up, and finds places. `host_id` is this host; empty for a ledger file."""

    def __init__(
        self, host_store: "HostStore", config: ConfigFile, identity: Identity, changes: ChangeFeed, clock: Clock, host_id: str
    ) -> None:
        self._host_store, self._config, self._identity, self._changes = host_store, config, identity, changes
        self._clock, self.host_id = clock, host_id

    def list(self) -> Sequence[Host]:
        """Return all hosts of the ledger, by name."""
        return self._host_store.list() if self.host_id else []

    def name_of(self, host_id: str) -> str:
        """Return the name of a host; its id if it is not known."""
        return next((host.name for host in self._host_store.beats() if host.host_id == host_id), host_id)

    def find(self, name: str) -> Host:
        """Return the host with this name or id."""
        if not self.host_id:
            raise BadInput(_ONE_HOST)
        hosts = self.list()
        for host in hosts:
            if name in (host.name, host.host_id):
                return host
        raise BadInput(f"There is no host {name}. Known hosts: {', '.join(host.name for host in hosts)}.")

    def place(self, labels: Sequence[str], host: str | None) -> str:
        """Return the place, as in core/queues.py, for tasks that need a host with these labels, or one host by name; empty for neither."""
        if labels and host is not None:
            raise BadInput("Use either --lane or --host, not both.")
        if host is not None:
            return f"@{self.find(host).host_id}"
        if not labels:
            return ""
        if wrong := next((label for label in labels if not is_label(label)), None):
            raise BadInput(f"'{wrong}' is not the name of a lane: use letters, digits and . _ : -")
        if len(set(labels)) > MAX_LABELS:
            raise BadInput(f"A task can need at most {MAX_LABELS} labels.")
        lane = lane_name(labels)
        if not self.host_id and lane not in self._config.current.lanes:
            example = f"[lanes.{lane}] and max_concurrent = 1" if is_label(lane) else f'[lanes."{labels[0]}"], and use one lane only'
            raise BadInput(f"There is no lane {lane}. To have one on this machine, add to {self._config.path}: {example}")
        return f"/{lane}"

    def forget(self, name: str, caller: Caller) -> int:
        """Give up on a host that does not answer: its runs are lost; returns how many."""
        self._identity.require_person(caller)
        host = self.find(name)
        lost = self._host_store.forget(host, self._clock())
        if lost is None:
            raise BadInput(f"Host {host.name} is active. Only a host that does not answer can be given up.")
        self._changes.announce()
        return lost

    def drain(self, name: str, caller: Caller) -> Host:
        """Let a host finish what it has begun from its lanes, and take nothing else until its engine starts again."""
        self._identity.require_person(caller)
        host = self.find(name)
        self._host_store.drain(host, self._clock())
        self._changes.announce()
        return host

    def others(self) -> dict[str, str]:
        """Return the names of the other hosts by their ids."""
        return {host.host_id: host.name for host in self._host_store.beats() if host.host_id != self.host_id} if self.host_id else {}

    def where(self, run: Run) -> str:
        """Return where a run is or may start, and whether somebody is there; empty for this host."""
        return ", ".join(filter(None, self._place_of(run)))

    def absence(self, run: Run) -> str:
        """Return why nobody can start a pending run now, as a sentence; empty if somebody can."""
        place, absence = self._place_of(run)
        return f"It waits: {place}, {absence}." if absence and run.state == RunState.PENDING else ""

    def _place_of(self, run: Run) -> tuple[str, str]:
        """The host or lane of a run, and why nobody is there; both empty for this host."""
        if not self.host_id or self.host_id in (run.host, host_of(run.runner)):
            return "", ""
        hosts = {host.host_id: host for host in self._host_store.beats()}
        if (lane := lane_of(run.runner)) and not run.host:
            serving = [host for host in hosts.values() if set(labels_of(lane)) <= set(host.lanes)]
            is_served = any(host.state == HostState.ACTIVE and not host.draining for host in serving)
            return f"lane {lane}", "" if is_served else "which no active host serves"
        host = hosts.get(run.host or host_of(run.runner))
        if host is None:
            return "", ""
        match host.state:
            case HostState.ACTIVE:
                return f"host {host.name}", ""
            case HostState.LEFT:
                return f"host {host.name}", "whose engine is not running"
            case HostState.SUSPECTED | HostState.FENCED:
                return f"host {host.name}", f"out of reach since {local_time(host.changed_at)}"
