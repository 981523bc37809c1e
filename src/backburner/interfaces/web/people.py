"""Operations for pairing a page, for its passkeys, and for the list of devices."""

from collections.abc import Sequence
from typing import Any, TypedDict

from backburner.core import formatting
from backburner.core.devices import Device, Passkey, Proof
from backburner.interfaces.web.calls import Call, Reply
from backburner.services.app import App
from backburner.services.passkeys import Asked


class Pair(TypedDict):
    commitment: str
    name: str


class _PasskeyName(TypedDict, total=False):
    name: str


class NewPasskey(_PasskeyName):
    nonce: str
    credential: dict[str, Any]


class ConfirmPasskey(TypedDict):
    nonce: str
    proof: dict[str, Any]


def pair(app: App, call: Call) -> Reply:
    """Ask to pair a page. A person must type the number at a terminal."""
    pairing = app.devices.request_pairing(call.get("commitment"), call.get("name"), call.address)
    return Reply(201, {"pairing": pairing.pairing_id, "number": pairing.number, "expires_at": formatting.iso(pairing.expires_at)})


def pairing(app: App, call: Call) -> dict[str, object]:
    """Whether a page was paired."""
    state, device_id = app.devices.pairing_state(call.path["id"])
    return {"state": state, "device_id": device_id}


def devices(app: App, call: Call) -> dict[str, object]:
    """The paired pages and their passkeys."""
    passkeys = app.passkeys.shown()
    return {"items": [_device(app, device, passkeys, call) for device in app.devices.list()]}


def _device(app: App, device: Device, passkeys: Sequence[Passkey], call: Call) -> dict[str, object]:
    own = call.caller.device is not None and call.caller.device.device_id == device.device_id
    return {
        "device_id": device.device_id,
        "name": device.name,
        "address": device.address,
        "created_at": formatting.iso(device.created_at),
        "last_seen_at": formatting.iso(device.seen_at),
        "expires_at": formatting.iso(app.devices.expires_at(device)),
        "paired_via": device.paired_via,
        "own": own,
        "passkeys": [_passkey(passkey) for passkey in passkeys if passkey.device_id == device.device_id],
    }


def _passkey(passkey: Passkey) -> dict[str, object]:
    return {
        "passkey_id": passkey.passkey_id,
        "name": passkey.name,
        "rp_id": passkey.rp_id,
        "state": "active" if passkey.is_active else "pending",
        "created_at": formatting.iso(passkey.created_at),
        "last_used_at": formatting.iso(passkey.used_at),
        "number": None if passkey.is_active else passkey.number,
        "expires_at": None if passkey.is_active else formatting.iso(passkey.expires_at),
    }


def revoke_device(app: App, call: Call) -> Reply:
    """Revoke this page. Another one is revoked in a terminal."""
    app.devices.revoke(call.path["id"], call.caller)
    return Reply(204)


def passkey_options(app: App, call: Call) -> dict[str, object]:
    """The options with which a browser makes a new passkey."""
    nonce, options, is_first = app.passkeys.registration(call.caller, call.origin)
    return {"nonce": nonce, "publicKey": options, "first": is_first}


def add_passkey(app: App, call: Call) -> Reply:
    """Store a new passkey. It must be confirmed: the first one at a terminal, others with one that is there."""
    is_first = not app.passkeys.active()
    passkey = app.passkeys.register(call.caller, call.get("nonce"), call.get("credential"), call.get("name", ""), call.origin)
    return Reply(201, {**_passkey(passkey), "confirm": "terminal" if is_first else "passkey"})


def challenge_of(asked: Asked) -> dict[str, object]:
    """What a page needs to ask its passkey."""
    return {
        "nonce": asked.nonce,
        "text": asked.text,
        "challenge": asked.challenge,
        "publicKey": asked.options,
        "expires_at": formatting.iso(asked.expires_at),
    }


def ask_to_confirm(app: App, call: Call) -> dict[str, object]:
    """Ask for the challenge with which a passkey confirms another one."""
    asked = app.passkeys.ask_to_confirm(call.path["id"], call.caller, call.origin)
    return challenge_of(asked)


def confirm_passkey(app: App, call: Call) -> dict[str, object]:
    """Confirm a passkey with the answer of another one."""
    proof = Proof(call.get("nonce"), "confirm", call.get("proof"), call.origin)
    return _passkey(app.passkeys.confirm(call.path["id"], call.caller, proof))


def remove_passkey(app: App, call: Call) -> Reply:
    """Remove a passkey of this page."""
    app.passkeys.remove(call.path["id"], call.caller)
    return Reply(204)
