"""Records of the web interface: paired pages (devices), their passkeys, and the proofs that a person approved something.

Times are milliseconds UTC.
"""

import json
from collections.abc import Sequence

from backburner.core.light_typing import NamedTuple

MAX_UNUSED_MS = 30 * 86_400_000  # a page that was not used for so long must be paired again
PAIRING_MS = 120_000  # how long a number that a page shows is valid
CHALLENGE_MS = 60_000  # how long a passkey may take to answer
CHOICES = ("once", "always", "trust")


class Device(NamedTuple):
    """A page in a browser that a person paired at a terminal. Only the hash of its credential is stored."""

    device_id: str
    name: str
    credential_hash: str
    paired_via: str
    address: str
    created_at: int
    seen_at: int
    revoked_at: int | None = None

    def is_valid(self, now: int) -> bool:
        """Whether it was not revoked and was used within the last 30 days."""
        return self.revoked_at is None and now - self.seen_at < MAX_UNUSED_MS


class Pairing(NamedTuple):
    """A page that asks to be paired. `commitment` is the hash of its credential, `number` what it shows."""

    pairing_id: str
    commitment: str
    name: str
    address: str
    number: str
    created_at: int
    expires_at: int
    device_id: str | None = None


class Passkey(NamedTuple):
    """A passkey of a device, for one relying party. Until it is active it must be confirmed; `number` is what its page shows."""

    passkey_id: str
    device_id: str
    name: str
    rp_id: str
    credential: str  # the attested credential data (id and public key), base64url
    sign_count: int
    number: str
    created_at: int
    expires_at: int
    active_at: int | None = None
    used_at: int | None = None
    removed_at: int | None = None

    @property
    def is_active(self) -> bool:
        return self.active_at is not None and self.removed_at is None

    def is_pending(self, now: int) -> bool:
        return self.active_at is None and self.removed_at is None and self.expires_at > now


class Challenge(NamedTuple):
    """A nonce for one answer of one device about one task or passkey."""

    nonce: str
    device_id: str
    purpose: str
    target: str
    seen: str
    choice: str
    expires_at: int
    used_at: int | None = None


class Attempt(NamedTuple):
    """An attempt to approve through the web interface: `outcome` is `verified`, `approved` or `refused`.

    `text` is what the passkey signed the hash of, `proof` its answer as JSON.
    """

    at: int
    outcome: str
    via: str
    task_id: str | None = None
    device_id: str | None = None
    reason: str | None = None
    text: str | None = None
    proof: str | None = None
    passkey_id: str | None = None
    origin: str | None = None
    attempt_id: int = 0


class Proof(NamedTuple):
    """What a paired page sends with an approval: the nonce, the choice and the answer of a passkey (as WebAuthn's JSON).

    `origin` is the origin of the request, which the answer must name, too.
    """

    nonce: str
    choice: str
    assertion: dict[str, object]
    origin: str


def approval_text(home_id: str, task_id: str, seen: str, nonce: str, choice: str) -> str:
    """The text whose SHA-256 is the challenge of the passkey for an approval."""
    return "\n".join(("backburner/approve/1", home_id, task_id, seen, nonce, choice))


def passkey_text(home_id: str, passkey_id: str, seen: str, nonce: str) -> str:
    """The text whose SHA-256 is the challenge of the passkey that confirms another one; `seen` is the hash of the new one."""
    return "\n".join(("backburner/passkey/1", home_id, passkey_id, seen, nonce))


def grant_text(home_id: str, kind: str, project: str, command: Sequence[str], nonce: str) -> str:
    """The text whose SHA-256 is the challenge of the passkey for a permanent permission."""
    return "\n".join(("backburner/grant/1", home_id, kind, json.dumps(project), json.dumps(list(command)), nonce))
