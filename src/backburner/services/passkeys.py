"""Passkeys of paired pages: registers them, and verifies that one of them signed exactly what a person was shown.

A passkey asks outside the page, by finger, face, PIN or key. What it signs is the hash of a text with the task, the fingerprint of what
would run and a nonce (core/devices.py), so its answer is worth nothing for anything else. The library `fido2` is loaded when it is used.
"""

import base64
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from backburner.coordination.changes import ChangeFeed
from backburner.coordination.config_file import ConfigFile
from backburner.core.devices import (
    CHALLENGE_MS,
    CHOICES,
    PAIRING_MS,
    Attempt,
    Challenge,
    Device,
    Passkey,
    Proof,
    approval_text,
    grant_text,
    passkey_text,
)
from backburner.core.digests import sha256
from backburner.core.errors import BadInput, NoPasskey, NotAPerson, PasskeysNotHere, ProofRefused, WebApprovalOff
from backburner.core.models import Caller, Clock
from backburner.core.terminal_text import clean
from backburner.services.devices import RateLimit

if TYPE_CHECKING:
    from fido2.server import Fido2Server
    from fido2.webauthn import AttestedCredentialData

    from backburner.core.store_ports import DeviceStore, ProofStore

LOCAL_NAME = "backburner.localhost"  # the host name under which browsers allow passkeys without HTTPS
_MAX_WRONG_PER_MINUTE = 10
_MAX_NAME_CHARACTERS = 80


class Asked(NamedTuple):
    """A challenge for a passkey: `text` is what it signs the hash of, `options` are WebAuthn's request options as JSON."""

    nonce: str
    text: str
    challenge: str
    options: dict[str, object]
    expires_at: int


class Passkeys:
    """Registers passkeys and verifies their answers."""

    def __init__(
        self, device_store: "DeviceStore", proof_store: "ProofStore", config: ConfigFile, changes: ChangeFeed, clock: Clock
    ) -> None:
        self._device_store, self._proof_store = device_store, proof_store
        self._config, self._changes, self._clock = config, changes, clock
        self._wrong: dict[str, RateLimit] = {}

    def active(self, device_id: str | None = None, rp_id: str | None = None) -> Sequence[Passkey]:
        """Return the confirmed passkeys, of one device and one relying party if given."""
        return [
            passkey
            for passkey in self._device_store.passkeys()
            if passkey.is_active and device_id in (None, passkey.device_id) and rp_id in (None, passkey.rp_id)
        ]

    def shown(self) -> Sequence[Passkey]:
        """Return the confirmed passkeys and those that wait to be confirmed."""
        now = self._clock()
        return [passkey for passkey in self._device_store.passkeys() if passkey.is_active or passkey.is_pending(now)]

    def rp_of(self, origin: str) -> str:
        """Return the relying party for pages of an origin; PasskeysNotHere if browsers or the settings allow none there."""
        from urllib.parse import urlsplit

        parts = urlsplit(origin)
        if (parts.scheme == "http" and parts.hostname == LOCAL_NAME) or origin == self._config.current.text("web.origin"):
            return str(parts.hostname)
        raise PasskeysNotHere(origin=origin)

    # -- registration

    def registration(self, caller: Caller, origin: str) -> tuple[str, dict[str, object], bool]:
        """Return a nonce, WebAuthn's creation options as JSON, and whether it would be the first passkey of this home."""
        device, rp_id = _device(caller), self.rp_of(origin)
        nonce = self._new_challenge(device, "register", rp_id, "", "")
        from fido2.webauthn import PublicKeyCredentialUserEntity

        user = PublicKeyCredentialUserEntity(name="Backburner", id=device.device_id.encode(), display_name=device.name)
        known = [_credential(passkey) for passkey in self.active(device.device_id, rp_id)]
        options, _ = _server(rp_id, origin).register_begin(
            user, known, user_verification=_required(), challenge=_hash(_registration_text(device, nonce))
        )
        return nonce, _plain(options)["publicKey"], not self.active()

    def register(self, caller: Caller, nonce: str, credential: Mapping[str, Any], name: str, origin: str) -> Passkey:
        """Store a new passkey. It cannot be used before a person types its number, or confirms it with another passkey."""
        device, rp_id = _device(caller), self.rp_of(origin)
        challenge = self._use(nonce, device, "register", rp_id)
        state = {"challenge": _encoded(_hash(_registration_text(device, challenge.nonce))), "user_verification": _required()}
        try:
            found = _server(rp_id, origin).register_complete(state, dict(credential))
            data = found.credential_data
            if data is None:
                raise ValueError("no credential")
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ProofRefused(reason=f"the new passkey was not accepted: {error}") from None
        now = self._clock()
        number = f"{secrets.randbelow(1_000_000):06d}"
        passkey = Passkey(
            *(f"passkey_{secrets.token_hex(4)}", device.device_id, clean(name)[:_MAX_NAME_CHARACTERS] or "Passkey", rp_id),
            *(_encoded(bytes(data)), found.counter, number, now, now + PAIRING_MS),
        )
        self._device_store.add_passkey(passkey)
        self._changes.announce()
        return passkey

    def ask_to_confirm(self, passkey_id: str, caller: Caller, origin: str) -> Asked:
        """Return the challenge with which an existing passkey of the caller can confirm a new one."""
        device, rp_id = _device(caller), self.rp_of(origin)
        passkey = self._pending(passkey_id)
        known = self._required_keys(device, rp_id)
        seen = sha256(passkey.credential.encode()).hexdigest()
        nonce = self._new_challenge(device, "passkey", passkey_id, seen, "")
        return self._asked(nonce, passkey_text(self._device_store.home_id(), passkey_id, seen, nonce), known, rp_id, origin)

    def confirm(self, passkey_id: str, caller: Caller, proof: Proof) -> Passkey:
        """Activate a passkey with the answer of an existing one."""
        device = _device(caller)
        passkey = self._pending(passkey_id)
        challenge = self._use(proof.nonce, device, "passkey", passkey_id)
        seen = sha256(passkey.credential.encode()).hexdigest()
        self._check(device, proof, passkey_text(self._device_store.home_id(), passkey_id, seen, challenge.nonce))
        now = self._clock()
        if not self._device_store.activate_passkey(passkey_id, caller.via, now):
            raise BadInput(f"Passkey {passkey_id} is no longer waiting to be confirmed.")
        self._changes.announce()
        return passkey._replace(active_at=now)

    def remove(self, passkey_id: str, caller: Caller) -> None:
        """Remove a passkey of the caller's own page."""
        device = _device(caller)
        if not any(found.passkey_id == passkey_id and found.device_id == device.device_id for found in self.shown()):
            raise NotAPerson(reason="a page can only remove its own passkeys; in a terminal: backburner devices revoke DEVICE")
        self._device_store.remove_passkey(passkey_id, caller.via, self._clock())
        self._changes.announce()

    # -- approvals

    def ask_to_approve(self, task_id: str, seen: str, choice: str, caller: Caller, origin: str) -> Asked:
        """Return the challenge that a passkey of the caller must sign to approve a task."""
        if choice not in CHOICES:
            raise BadInput(f"'{choice}' is not a choice; use one of {', '.join(CHOICES)}.")
        device, rp_id = self._may_approve(caller), self.rp_of(origin)
        known = self._required_keys(device, rp_id)
        nonce = self._new_challenge(device, "approve", task_id, seen, choice)
        text = approval_text(self._device_store.home_id(), task_id, seen, nonce, choice)
        return self._asked(nonce, text, known, rp_id, origin)

    def verify_approval(self, task_id: str, seen: str, caller: Caller, proof: Proof) -> int:
        """Verify that a passkey of the caller signed the approval of exactly this, and record it; returns the number of the attempt.

        A refusal is recorded, too, and raised as ProofRefused.
        """

        def text(challenge: Challenge) -> str:
            return approval_text(self._device_store.home_id(), task_id, challenge.seen, challenge.nonce, challenge.choice)

        return self._verify_answer(task_id, task_id, seen, caller, proof, text)

    def ask_to_grant(self, kind: str, project: str, command: Sequence[str], caller: Caller, origin: str) -> Asked:
        """Return the challenge that a passkey of the caller must sign for a permanent permission."""
        device, rp_id = self._may_approve(caller), self.rp_of(origin)
        known = self._required_keys(device, rp_id)
        nonce = self._new_challenge(device, "approve", _digest(kind, project, command), "", kind)
        return self._asked(nonce, grant_text(self._device_store.home_id(), kind, project, command, nonce), known, rp_id, origin)

    def verify_grant(self, kind: str, project: str, command: Sequence[str], caller: Caller, proof: Proof) -> int:
        """Verify that a passkey of the caller signed exactly this permission, and record it; as with `verify_approval`."""

        def text(challenge: Challenge) -> str:
            return grant_text(self._device_store.home_id(), kind, project, command, challenge.nonce)

        return self._verify_answer(None, _digest(kind, project, command), "", caller, proof, text)

    def _verify_answer(
        self, task_id: str | None, target: str, seen: str, caller: Caller, proof: Proof, text_of: Callable[[Challenge], str]
    ) -> int:
        """Verify an answer about `target`: a task, or the digest of a permission, with which `task_id` is None."""
        device_id = caller.device.device_id if caller.device else None
        text = None
        try:
            device = self._may_approve(caller)
            self._limit(device).take(self._clock())
            challenge = self._use(proof.nonce, device, "approve", target)
            text = text_of(challenge)
            if (challenge.seen, challenge.choice) != (seen, proof.choice):
                raise ProofRefused(reason="the passkey was asked about something else")
            passkey = self._check(device, proof, text)
        except (ProofRefused, NotAPerson, WebApprovalOff) as error:
            reason = str(error.fields.get("reason") or error)
            assertion = json.dumps(proof.assertion) if text else None
            self._proof_store.record_attempt(
                Attempt(self._clock(), "refused", caller.via, task_id, device_id, reason, text, assertion, origin=proof.origin)
            )
            raise
        self._wrong.pop(device.device_id, None)
        attempt = Attempt(self._clock(), "verified", caller.via, task_id, device_id, None, text, json.dumps(proof.assertion))
        return self._proof_store.record_attempt(attempt._replace(passkey_id=passkey.passkey_id, origin=proof.origin))

    def settle(self, attempt_id: int, refused: str | None = None) -> None:
        """Record what became of a verified attempt: approved, or refused for a reason."""
        self._proof_store.settle_attempt(attempt_id, "refused" if refused else "approved", refused)

    def is_verified(self, attempt: Attempt) -> bool:
        """Return whether the stored proof of an attempt is a valid signature of the stored text by the stored passkey."""
        passkey = next((found for found in self._device_store.passkeys() if found.passkey_id == attempt.passkey_id), None)
        if passkey is None or attempt.text is None or attempt.proof is None or attempt.origin is None:
            return False
        kind, home_id, task_id = [*attempt.text.split("\n"), "", ""][:3]
        try:
            _verify(passkey, attempt.text, json.loads(attempt.proof), attempt.origin)
        except (ValueError, TypeError, KeyError, AttributeError):
            return False
        is_about_it = task_id == attempt.task_id if kind.startswith("backburner/approve/") else attempt.task_id is None
        return home_id == self._device_store.home_id() and is_about_it

    # -- parts

    def _may_approve(self, caller: Caller) -> Device:
        if self._config.current.text("approval.web") != "passkey":
            raise WebApprovalOff()
        return _device(caller)

    def _limit(self, device: Device) -> RateLimit:
        return self._wrong.setdefault(device.device_id, RateLimit(_MAX_WRONG_PER_MINUTE))

    def _required_keys(self, device: Device, rp_id: str) -> Sequence[Passkey]:
        if not (known := self.active(device.device_id, rp_id)):
            raise NoPasskey()
        return known

    def _pending(self, passkey_id: str) -> Passkey:
        now = self._clock()
        for passkey in self._device_store.passkeys():
            if passkey.passkey_id == passkey_id and passkey.is_pending(now):
                return passkey
        raise BadInput(f"Passkey {passkey_id} is not waiting to be confirmed.")

    def _new_challenge(self, device: Device, purpose: str, target: str, seen: str, choice: str) -> str:
        nonce = secrets.token_urlsafe(32)
        self._proof_store.add_challenge(Challenge(nonce, device.device_id, purpose, target, seen, choice, self._clock() + CHALLENGE_MS))
        return nonce

    def _use(self, nonce: str, device: Device, purpose: str, target: str) -> Challenge:
        """Take a challenge, whatever becomes of it: it is never valid a second time."""
        challenge = self._proof_store.use_challenge(nonce, self._clock())
        if challenge is None:
            raise ProofRefused(reason="the nonce is unknown or was used before")
        if challenge.expires_at <= self._clock():
            raise ProofRefused(reason="it took longer than a minute; try again")
        if challenge.device_id != device.device_id:
            raise ProofRefused(reason="the nonce belongs to another device")
        if (challenge.purpose, challenge.target) != (purpose, target):
            raise ProofRefused(reason="the nonce belongs to something else")
        return challenge

    def _asked(self, nonce: str, text: str, known: Sequence[Passkey], rp_id: str, origin: str) -> Asked:
        credentials = [_credential(passkey) for passkey in known]
        options, _ = _server(rp_id, origin).authenticate_begin(credentials, user_verification=_required(), challenge=_hash(text))
        plain = {**_plain(options)["publicKey"], "timeout": CHALLENGE_MS}
        return Asked(nonce, text, _encoded(_hash(text)), plain, self._clock() + CHALLENGE_MS)

    def _check(self, device: Device, proof: Proof, text: str) -> Passkey:
        """Return the passkey of the device that signed a text; raises ProofRefused."""
        known = {
            _encoded(_credential(passkey).credential_id): passkey for passkey in self.active(device.device_id, self.rp_of(proof.origin))
        }
        passkey = known.get(str(proof.assertion.get("id")))
        if passkey is None:
            raise ProofRefused(reason="it is not a passkey of this device")
        try:
            count = _verify(passkey, text, proof.assertion, proof.origin)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ProofRefused(reason=f"the answer of the passkey is not valid: {str(error).rstrip('.')}") from None
        if count and count <= passkey.sign_count:
            raise ProofRefused(reason="the counter of the passkey went back; it may have been copied")
        self._device_store.passkey_used(passkey.passkey_id, count, self._clock())
        return passkey


def _digest(kind: str, project: str, command: Sequence[str]) -> str:
    """The digest of a permission, in the place of the id of a task."""
    return sha256(json.dumps([kind, project, list(command)]).encode()).hexdigest()


def _device(caller: Caller) -> Device:
    if caller.device is None:
        raise NotAPerson(reason="a token proves nothing about who sends it; use a paired page with a passkey, or a terminal")
    return caller.device


def _registration_text(device: Device, nonce: str) -> str:
    return "\n".join(("backburner/register/1", device.device_id, nonce))


def _verify(passkey: Passkey, text: str, assertion: Mapping[str, Any], origin: str) -> int:
    """Verify that a passkey signed a text for pages of an origin, with user verification; returns its counter. Raises ValueError."""
    from fido2.webauthn import AuthenticationResponse

    state = {"challenge": _encoded(_hash(text)), "user_verification": _required()}
    _server(passkey.rp_id, origin).authenticate_complete(state, [_credential(passkey)], dict(assertion))
    return AuthenticationResponse.from_dict(dict(assertion)).response.authenticator_data.counter


def _server(rp_id: str, origin: str) -> "Fido2Server":
    from fido2.server import Fido2Server
    from fido2.webauthn import PublicKeyCredentialRpEntity

    return Fido2Server(PublicKeyCredentialRpEntity(name="Backburner", id=rp_id), verify_origin=lambda found: found == origin)


def _credential(passkey: Passkey) -> "AttestedCredentialData":
    from fido2.webauthn import AttestedCredentialData

    return AttestedCredentialData(_decoded(passkey.credential))


def _required() -> Any:
    from fido2.webauthn import UserVerificationRequirement

    return UserVerificationRequirement.REQUIRED


def _plain(options: Any) -> dict[str, Any]:
    """WebAuthn options as plain JSON."""
    return json.loads(json.dumps(dict(options), default=lambda value: dict(value) if isinstance(value, Mapping) else str(value)))


def _hash(text: str) -> bytes:
    return sha256(text.encode()).digest()


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
