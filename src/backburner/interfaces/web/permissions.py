"""Permanent permissions that a person gives with a passkey: to trust a project, or to always allow a command in it."""

from typing import Any, Literal, TypedDict

from backburner.core.devices import Proof
from backburner.core.errors import BadInput
from backburner.core.models import Submission
from backburner.interfaces.web.acting import submission_of
from backburner.interfaces.web.calls import Call, Reply
from backburner.interfaces.web.home import grants
from backburner.interfaces.web.people import challenge_of
from backburner.services.app import App


class _Command(TypedDict, total=False):
    command: list[str]


class Permission(_Command):
    kind: Literal["trust", "always"]
    cwd: str


class SignedPermission(Permission):
    nonce: str
    proof: dict[str, Any]


def challenge(app: App, call: Call) -> dict[str, object]:
    """Ask for the challenge that a passkey must sign to give a permanent permission."""
    asked = app.approvals.ask_to_grant(call.get("kind"), _permitted(call), call.caller, call.origin)
    return challenge_of(asked)


def grant(app: App, call: Call) -> Reply:
    """Trust a project, or always allow a command in it, with the answer of a passkey."""
    proof = Proof(call.get("nonce"), call.get("kind"), call.get("proof"), call.origin)
    app.approvals.grant_with_passkey(call.get("kind"), _permitted(call), call.caller, proof)
    return Reply(201, grants(app, call))


def _permitted(call: Call) -> Submission:
    """The directory, and the command for `always`."""
    if call.get("kind") == "trust":
        if call.get("command"):
            raise BadInput("'command' is only used with 'always'.")
        call = call._replace(values={**call.values, "command": ["true"]})  # only the directory counts
    return submission_of(call)
