"""Paired pages and their passkeys."""

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING

from backburner.core.devices import Device, Pairing, Passkey

if TYPE_CHECKING:
    from backburner.store.database import Database
    from backburner.store.event_writer import EventWriter

_DEVICE, _PAIRING, _PASSKEY = ", ".join(Device._fields), ", ".join(Pairing._fields), ", ".join(Passkey._fields)
_KEPT_MS = 86_400_000  # pairings are deleted a day after they have expired


class DeviceRepository:
    """What the web interface must know about people. Each change of who may approve is also an event."""

    def __init__(self, db: "Database", events: "EventWriter") -> None:
        self._db, self._events = db, events

    def home_id(self) -> str:
        """The random identity of this home, which is part of what a passkey signs. Creates it on first use."""
        if found := self._db.one("SELECT home_id FROM home"):
            return found[0]
        with self._db.transaction(by_person=True):
            if not self._db.one("SELECT home_id FROM home"):
                self._db.insert("home", {"home_id": secrets.token_hex(16)})
        return self._db.one("SELECT home_id FROM home")[0]

    # -- pairing

    def add_pairing(self, pairing: Pairing) -> None:
        with self._db.transaction(durable=False, by_person=True):
            self._db.write("DELETE FROM pairings WHERE expires_at < ?", (pairing.created_at - _KEPT_MS,))
            self._db.insert("pairings", pairing._asdict())

    def pairing(self, pairing_id: str) -> Pairing | None:
        row = self._db.one(f"SELECT {_PAIRING} FROM pairings WHERE pairing_id = ?", (pairing_id,))
        return Pairing._make(row) if row else None

    def open_pairings(self, now: int) -> Sequence[Pairing]:
        """The pages that wait for their number to be typed, oldest first."""
        rows = self._db.execute(f"SELECT {_PAIRING} FROM pairings WHERE device_id IS NULL AND expires_at > ? ORDER BY created_at", (now,))
        return [Pairing._make(row) for row in rows]

    def accept_pairing(self, pairing_id: str, device: Device) -> bool:
        """Store the device of a pairing; False if the pairing was accepted before."""
        with self._db.transaction(by_person=True):
            if not self._db.one("SELECT 1 FROM pairings WHERE pairing_id = ? AND device_id IS NULL", (pairing_id,)):
                return False
            self._db.insert("devices", device._asdict())
            self._db.write("UPDATE pairings SET device_id = ? WHERE pairing_id = ?", (device.device_id, pairing_id))
            data = {"device_id": device.device_id, "name": device.name, "via": device.paired_via}
            self._events.write(device.created_at, "device_paired", None, None, **data)
        return True

    # -- devices

    def device_by_credential(self, credential_hash: str) -> Device | None:
        row = self._db.one(f"SELECT {_DEVICE} FROM devices WHERE credential_hash = ?", (credential_hash,))
        return Device._make(row) if row else None

    def devices(self) -> Sequence[Device]:
        """All devices, oldest first, including revoked ones."""
        return [Device._make(row) for row in self._db.execute(f"SELECT {_DEVICE} FROM devices ORDER BY created_at")]

    def seen(self, device_id: str, now: int) -> None:
        """Record that a device was used."""
        with self._db.transaction(durable=False, by_person=True):
            self._db.write("UPDATE devices SET seen_at = ? WHERE device_id = ? AND seen_at < ?", (now, device_id, now))

    def revoke_device(self, device_id: str, via: str, now: int) -> bool:
        """Revoke a device and its passkeys; False if there is no such device or it was revoked before."""
        with self._db.transaction(by_person=True):
            revoked = self._db.write("UPDATE devices SET revoked_at = ? WHERE device_id = ? AND revoked_at IS NULL", (now, device_id))
            if revoked:
                self._db.write("UPDATE passkeys SET removed_at = ? WHERE device_id = ? AND removed_at IS NULL", (now, device_id))
                self._events.write(now, "device_revoked", None, None, device_id=device_id, via=via)
        return bool(revoked)

    # -- passkeys

    def add_passkey(self, passkey: Passkey) -> None:
        """Store a passkey that is not confirmed yet; it replaces an unconfirmed one of the same device."""
        with self._db.transaction(by_person=True):
            self._db.write("DELETE FROM passkeys WHERE device_id = ? AND active_at IS NULL", (passkey.device_id,))
            self._db.insert("passkeys", passkey._asdict())

    def passkeys(self) -> Sequence[Passkey]:
        """All passkeys, oldest first, including removed ones: they are needed to verify old approvals."""
        return [Passkey._make(row) for row in self._db.execute(f"SELECT {_PASSKEY} FROM passkeys ORDER BY created_at")]

    def activate_passkey(self, passkey_id: str, via: str, now: int) -> bool:
        """Record that a person confirmed a passkey; False if it was confirmed or removed before, or has expired."""
        with self._db.transaction(by_person=True):
            changed = self._db.write(
                "UPDATE passkeys SET active_at = ? WHERE passkey_id = ? AND active_at IS NULL AND removed_at IS NULL AND expires_at > ?",
                (now, passkey_id, now),
            )
            if changed:
                device_id, name = self._db.one("SELECT device_id, name FROM passkeys WHERE passkey_id = ?", (passkey_id,))
                data = {"passkey_id": passkey_id, "device_id": device_id, "name": name, "via": via}
                self._events.write(now, "passkey_added", None, None, **data)
        return bool(changed)

    def passkey_used(self, passkey_id: str, sign_count: int, now: int) -> None:
        with self._db.transaction(durable=False, by_person=True):
            self._db.write("UPDATE passkeys SET sign_count = ?, used_at = ? WHERE passkey_id = ?", (sign_count, now, passkey_id))

    def remove_passkey(self, passkey_id: str, via: str, now: int) -> bool:
        with self._db.transaction(by_person=True):
            changed = self._db.write("UPDATE passkeys SET removed_at = ? WHERE passkey_id = ? AND removed_at IS NULL", (now, passkey_id))
            if changed:
                self._events.write(now, "passkey_removed", None, None, passkey_id=passkey_id, via=via)
        return bool(changed)
