"""Paired pages: a person types the number that a page shows at a terminal; from then on the page's credential is known.

A paired page may act and reject, as the gate allows. It cannot approve: that needs one of its passkeys (passkeys.py).
"""

import secrets
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from backburner.coordination.changes import ChangeFeed
from backburner.core.devices import MAX_UNUSED_MS, PAIRING_MS, Attempt, Device, Pairing, Passkey
from backburner.core.digests import sha256
from backburner.core.errors import BadInput, NotAPerson, PairingClosed, TooManyRequests
from backburner.core.models import Caller, Clock
from backburner.core.terminal_text import clean
from backburner.services.identity import Identity
from backburner.system.home import Home, is_locked, lock

if TYPE_CHECKING:
    from backburner.core.store_ports import DeviceStore, ProofStore

CREDENTIAL_PREFIX = "dev_"
_LOCK = "pairing.lock"  # held by a terminal that waits for numbers
_MAX_NAME_CHARACTERS = 80
_MAX_OPEN_PAIRINGS = 20
_SEEN_INTERVAL_MS = 3_600_000  # the last use of a device is written at most once an hour
_MAX_PER_MINUTE = 5
_MINUTE_MS = 60_000


class RateLimit:
    """Counts what happened in the last minute, in this process."""

    def __init__(self, most: int) -> None:
        self._most, self._times = most, deque[int]()

    def take(self, now: int) -> None:
        """Count one; TooManyRequests if there were too many within the last minute."""
        while self._times and now - self._times[0] >= _MINUTE_MS:
            self._times.popleft()
        if len(self._times) >= self._most:
            raise TooManyRequests(seconds=max(1, -(-(_MINUTE_MS - (now - self._times[0])) // 1000)))
        self._times.append(now)


class Devices:
    """Pairs pages, knows them again, and revokes them."""

    def __init__(
        self, home: Home, device_store: "DeviceStore", proof_store: "ProofStore", identity: Identity, changes: ChangeFeed, clock: Clock
    ) -> None:
        self._home, self._device_store, self._proof_store = home, device_store, proof_store
        self._identity, self._changes, self._clock = identity, changes, clock
        self._requests, self._numbers = RateLimit(_MAX_PER_MINUTE), RateLimit(_MAX_PER_MINUTE)

    @property
    def _lock_path(self) -> str:
        return f"{self._home.root}/{_LOCK}"

    def home_id(self) -> str:
        """Return the random identity of this home."""
        return self._device_store.home_id()

    # -- pairing: the page's side

    def request_pairing(self, commitment: str, name: str, address: str) -> Pairing:
        """Store the request of a page to be paired and return it with the number that the page must show.

        The number depends on a random value that the page does not know when it commits to its credential, so nobody can choose
        a credential that leads to a given number.
        """
        if not is_locked(self._lock_path):
            raise PairingClosed()
        now = self._clock()
        self._requests.take(now)
        if len(commitment) != 64 or set(commitment) - set("0123456789abcdef"):
            raise BadInput("`commitment` must be the SHA-256 of the credential in hexadecimal.")
        if len(self._device_store.open_pairings(now)) >= _MAX_OPEN_PAIRINGS:
            raise TooManyRequests(seconds=PAIRING_MS // 1000)
        name = clean(name)[:_MAX_NAME_CHARACTERS] or "a browser"
        number = _number("pair", commitment, secrets.token_hex(16))
        pairing = Pairing(f"pair_{secrets.token_urlsafe(18)}", commitment, name, address, number, now, now + PAIRING_MS)
        self._device_store.add_pairing(pairing)
        self._changes.announce()
        return pairing

    def pairing_state(self, pairing_id: str) -> tuple[str, str | None]:
        """Return `waiting`, `paired` or `expired`, and the id of the device."""
        pairing = self._device_store.pairing(pairing_id)
        if pairing is None:
            return "expired", None
        if pairing.device_id:
            return "paired", pairing.device_id
        return ("waiting" if pairing.expires_at > self._clock() else "expired"), None

    def authenticate(self, credential: str) -> Device | None:
        """Return the device that a credential belongs to; None if it is unknown, revoked or was not used for 30 days."""
        device = self._device_store.device_by_credential(credential_hash(credential))
        now = self._clock()
        if device is None or not device.is_valid(now):
            return None
        if now - device.seen_at > _SEEN_INTERVAL_MS:
            self._device_store.seen(device.device_id, now)
        return device

    # -- the terminal's side

    def open_window(self, caller: Caller) -> int | None:
        """Let pages ask to be paired until the returned descriptor is closed; None if another terminal does that already."""
        self._identity.require_person(caller)
        return lock(self._lock_path)

    def waiting_numbers(self) -> Sequence[Pairing | Passkey]:
        """Return the pages and first passkeys that wait for their number to be typed, oldest first."""
        now = self._clock()
        passkeys = self._device_store.passkeys()
        first = [] if any(passkey.is_active for passkey in passkeys) else [passkey for passkey in passkeys if passkey.is_pending(now)]
        return sorted((*self._device_store.open_pairings(now), *first), key=lambda waiting: waiting.created_at)

    def accept_number(self, number: str, caller: Caller) -> Device | Passkey:
        """Pair the page, or confirm the first passkey, that shows this number. Only a person at a terminal may do that."""
        self._identity.require_person(caller)
        now = self._clock()
        self._numbers.take(now)
        typed = "".join(filter(str.isdigit, number))
        for waiting in self.waiting_numbers():
            if not secrets.compare_digest(waiting.number, typed):
                continue
            if isinstance(waiting, Passkey):
                if self._device_store.activate_passkey(waiting.passkey_id, caller.via, now):
                    self._changes.announce()
                    return waiting._replace(active_at=now)
                continue
            device_id = f"device_{secrets.token_hex(4)}"
            device = Device(device_id, waiting.name, waiting.commitment, caller.via, waiting.address, now, now)
            if self._device_store.accept_pairing(waiting.pairing_id, device):
                self._changes.announce()
                return device
        raise BadInput("No page shows this number. It is valid for two minutes; reload the page for a new one.")

    # -- devices

    def list(self) -> Sequence[Device]:
        """Return all devices that may still be used, oldest first."""
        now = self._clock()
        return [device for device in self._device_store.devices() if device.is_valid(now)]

    def names(self) -> dict[str, str]:
        """Return the names of all devices by id, also of revoked ones."""
        return {device.device_id: device.name for device in self._device_store.devices()}

    def expires_at(self, device: Device) -> int:
        """Return when a device must be paired again if it is not used until then."""
        return device.seen_at + MAX_UNUSED_MS

    def revoke(self, device_id: str, caller: Caller) -> None:
        """Revoke a device and its passkeys: its own page may do that, or a person."""
        if caller.device is None or caller.device.device_id != device_id:
            if caller.device is not None:
                raise NotAPerson(reason=f"a page can only revoke itself; run: backburner devices revoke {device_id}")
            self._identity.require_person(caller)
        if not self._device_store.revoke_device(device_id, caller.via, self._clock()):
            raise BadInput(f"Device {device_id} not found, or already revoked. See: backburner devices")
        self._changes.announce()

    # -- the audit

    def refused(self, caller: Caller, reason: str, *, task_id: str | None = None, origin: str | None = None) -> None:
        """Record an attempt to approve that was refused before any proof was looked at."""
        device_id = caller.device.device_id if caller.device else None
        self._proof_store.record_attempt(Attempt(self._clock(), "refused", caller.via, task_id, device_id, reason, origin=origin))

    def refusals(self, before: tuple[int, int], limit: int, *, since: int = 0) -> Sequence[Attempt]:
        """Return refused attempts to approve through the web interface, newest first, before a time and a number of an attempt."""
        return self._proof_store.attempts("refused", before, limit, since=since)

    def proof_of(self, task_id: str) -> Attempt | None:
        """Return the attempt that approved a task, with its proof."""
        return self._proof_store.proof_of(task_id)


def credential_hash(credential: str) -> str:
    """Return what is stored of a credential, which is also what a page commits to."""
    return sha256(credential.encode("utf-8", "replace")).hexdigest()


def _number(*parts: str) -> str:
    """Return six digits from a hash."""
    return f"{int(sha256('/'.join(parts).encode()).hexdigest(), 16) % 1_000_000:06d}"
