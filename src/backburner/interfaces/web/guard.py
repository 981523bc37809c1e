"""Decides from its headers whether a request is handled at all. Pure: no I/O, no credentials are looked up here.

The rules protect against other pages in the same browser (Origin, Sec-Fetch-Site), names that an attacker points to this machine
(Host), and forms that need no permission (only JSON is accepted).
"""

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from backburner.services.devices import CREDENTIAL_PREFIX
from backburner.services.passkeys import LOCAL_NAME

MAX_BODY_BYTES = 1 << 20
_SAFE_METHODS = ("GET", "HEAD")
_LOOPBACK = (LOCAL_NAME, "127.0.0.1", "localhost", "[::1]")
_HEADERS = ("host", "origin", "sec-fetch-site", "sec-fetch-mode", "authorization", "content-type", "content-length")


class Kind(StrEnum):
    """What kind of address a request is for."""

    PAGE = "page"  # the shell of the page, and its files: they contain no data
    API = "api"


class Addresses(NamedTuple):
    """The host names, in the form of the header `Host`, and the origins that belong to this server."""

    hosts: frozenset[str]
    origins: frozenset[str]


class Rejection(NamedTuple):
    status: int
    code: str
    message: str


class Sent(NamedTuple):
    """The headers of a request that the rules look at; None if a header is missing. `repeated` names one that was sent twice."""

    host: str | None = None
    origin: str | None = None
    site: str | None = None
    mode: str | None = None
    authorization: str | None = None
    content_type: str | None = None
    content_length: str | None = None
    repeated: str | None = None


def addresses(port: int, hosts: str = "", origin: str = "") -> Addresses:
    """The addresses of a server on a port; `hosts` and `origin` are the settings for a proxy."""
    names = {f"{name}:{port}" for name in _LOOPBACK}
    others = {name.strip().lower() for name in hosts.split(",") if name.strip()}
    origins = {f"http://{name}" for name in names} | {f"https://{name}" for name in others}
    if origin:
        origins.add(origin.lower().rstrip("/"))
        others.add(re.sub(r"^https?://", "", origin.lower().rstrip("/")))
    return Addresses(frozenset(names | others), frozenset(origins))


def sent_headers(headers: Iterable[tuple[bytes, bytes]]) -> Sent:
    """The headers of an ASGI request, whose names are in lower case."""
    found: dict[str, str] = {}
    repeated = None
    for raw, value in headers:
        name = raw.decode("latin-1")
        if name in _HEADERS:
            repeated = name if name in found else repeated
            found[name] = value.decode("latin-1")
    return Sent(*(found.get(name) for name in _HEADERS), repeated)


def rejection(method: str, kind: Kind, sent: Sent, known: Addresses) -> Rejection | None:
    """Why a request is refused; None if it may be handled."""
    if sent.repeated:
        return Rejection(400, "bad_input", f"The header {sent.repeated} was sent twice.")
    host = (sent.host or "").lower()
    if host not in known.hosts:
        hint = f"open http://{LOCAL_NAME} with the port that `backburner web` prints, or use HTTPS through a proxy and [web] origin"
        return Rejection(421, "wrong_host", f"This is not the address of Backburner: {hint}.")
    if refused := _foreign(method, kind, sent, known, host):
        return refused
    if method in _SAFE_METHODS:
        return None
    if method not in ("POST", "DELETE"):
        return Rejection(405, "method_not_allowed", f"{method} is not used here.")
    return _body(sent)


def _foreign(method: str, kind: Kind, sent: Sent, known: Addresses, host: str) -> Rejection | None:
    """Whether a request comes from a page of another origin. A page on another port is one, too."""
    foreign = Rejection(403, "foreign_origin", "Requests from pages of other origins are not allowed.")
    own = {origin for origin in known.origins if not origin.startswith("http://")} | {f"http://{host}"} & known.origins
    if sent.origin is not None and sent.origin.lower() not in own:
        return foreign
    is_navigation = kind is Kind.PAGE and method in _SAFE_METHODS and sent.mode == "navigate"
    if sent.site is not None and sent.site not in ("same-origin", "none") and not is_navigation:
        return foreign
    if method not in _SAFE_METHODS and sent.origin is None and (sent.site is not None or is_device(bearer(sent.authorization))):
        return foreign  # browsers send it with every request that is not a plain read
    return None


def _body(sent: Sent) -> Rejection | None:
    length = sent.content_length
    if length is not None and not (length.isdecimal() and len(length) < 18):
        return Rejection(400, "bad_input", "Content-Length is not a number.")
    if length is not None and int(length) > MAX_BODY_BYTES:
        return Rejection(413, "too_large", f"A request may have at most {MAX_BODY_BYTES:,} bytes.")
    kind = (sent.content_type or "").partition(";")[0].strip().lower()
    if kind != "application/json" and not (sent.content_type is None and length in (None, "0")):
        return Rejection(415, "not_json", "The body must be JSON: send `Content-Type: application/json`.")
    return None


def bearer(authorization: str | None) -> str | None:
    """The credential in the header `Authorization`; None if there is none."""
    scheme, _, credential = (authorization or "").partition(" ")
    return credential.strip() if scheme.lower() == "bearer" and credential.strip() else None


def is_device(credential: str | None) -> bool:
    """Whether a credential has the form of a paired page's."""
    return credential is not None and credential.startswith(CREDENTIAL_PREFIX)


def security_headers(kind: Kind) -> Mapping[str, str]:
    """The headers of every answer."""
    policy = (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; manifest-src 'self'; "
        "form-action 'none'; frame-ancestors 'none'; base-uri 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    headers = {
        "content-security-policy": policy,
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "permissions-policy": "publickey-credentials-get=(self), publickey-credentials-create=(self)",
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
        "x-frame-options": "DENY",
    }
    return headers | ({"cache-control": "no-store"} if kind is Kind.API else {})
