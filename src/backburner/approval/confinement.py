"""Chooses the sandbox for a command that nobody approved, from its effects and from what this machine offers. Pure."""

import os
from collections.abc import Iterable, Sequence

from backburner.approval.effects import OPENS_FILES, OWN_PROCESS, OWN_SERVER, RUNS_PROGRAMS, SYSTEM_BUS, WITHOUT_PROJECT, Effect, Finding
from backburner.core.sandbox import Level, Network, Sandbox, Support, View

# What leaves every sandbox, or what a person should decide.
LEAVES = frozenset(
    [Effect.READS_OUTSIDE, Effect.READS_SECRETS, Effect.WRITES_OUTSIDE, Effect.NETWORK_CHANGE, Effect.PRIVILEGE, Effect.INSTALLS]
    + [Effect.PUBLISHES, Effect.PROCESSES, Effect.PROTECTED, Effect.DISCARDS]
)
_WRITES = frozenset([Effect.CREATES, Effect.OVERWRITES, Effect.EDITS, Effect.DELETES])
_KNOWN = frozenset([Effect.HARMLESS, Effect.READS])
# What makes a sandbox contain more than a project: credentials, connections or processes of the machine.
SHOWS = frozenset([Effect.READS_SERVICE, Effect.NETWORK_READ, Effect.LOOPBACK, Effect.READS_MACHINE])
_SYSTEM_BUSES = (SYSTEM_BUS, "/run/systemd/private")
_BOOTED_WITH_SYSTEMD = "/run/systemd/system"  # its programs look for it
_JOURNALS = ("/var/log/journal", "/run/log/journal")


class NeedsApproval(Exception):
    """No sandbox of this machine can be used; the arguments are the reasons."""


def choose(
    findings: Sequence[Finding],
    support: Support,
    *,
    project: str | None,
    trusted: bool,
    user_home: str,
    listens: bool = False,
    background: bool = False,
    connect: Iterable[int] = (),
    read: Iterable[str] = (),
) -> Sandbox:
    """The sandbox for a command with these effects. `connect` and `read` are from the settings.

    `listens`: it was declared as a server. `background`: the line continues while one of its commands runs, which may be a server.
    """
    if support.level is Level.NONE:
        raise NeedsApproval(f"there is no sandbox on this machine ({support.reason})")
    findings = _within_the_line(findings, full=support.level is Level.FULL, listens=listens, background=background)
    if trusted and support.listen and support.level is Level.FULL and not background:
        findings = _through_permitted_ports(findings, set(connect))
    if leaving := _details(findings, LEAVES):
        raise NeedsApproval(*leaving)
    kinds = {finding.effect for finding in findings}
    view = View.READ_ONLY if kinds <= _KNOWN and not listens else _view(support, trusted=trusted)
    sandbox = Sandbox(support.level, project, view, read=tuple(_expanded(read, user_home)), connect=tuple(connect))
    if sandbox.view is View.READ_ONLY and project and (writing := _details(findings, _WRITES)):
        raise NeedsApproval(*writing, "the sandbox of this machine cannot write")
    if sandbox.view is View.WRITABLE and (deleting := _details(findings, {Effect.DELETES})):
        raise NeedsApproval(*deleting)
    if Effect.REPOSITORY in kinds:
        return _for_git(sandbox, findings, trusted=trusted)
    if kinds & SHOWS:
        stores = {Effect.EDITS} if trusted and kinds & SHOWS <= {Effect.LOOPBACK, Effect.READS_MACHINE} else set()
        other, own_server = _others(findings, SHOWS | stores), any(finding.value == OWN_SERVER for finding in findings)
        if not other and not own_server:
            return _for_reading(sandbox, findings, support, trusted=trusted, user_home=user_home)
        tries_own_server = (background or Effect.LISTENS in kinds) and sandbox.level is Level.FULL
        if kinds & SHOWS - {Effect.READS_MACHINE, *([Effect.LOOPBACK] if tries_own_server else [])}:
            raise NeedsApproval(*_details(findings, SHOWS), *other)
        if Effect.LOOPBACK in kinds:
            return sandbox._replace(connect=())  # with its own loopback device
    if (listens or Effect.LISTENS in kinds) and trusted:
        if not support.listen:
            raise NeedsApproval("the sandbox of this machine cannot limit a server to listening")
        return sandbox._replace(network=Network.LISTEN)
    if sandbox.connect:
        if not trusted or not support.listen:
            return sandbox._replace(connect=())
        return sandbox._replace(network=Network.LISTEN)
    return sandbox


def _within_the_line(findings: Sequence[Finding], *, full: bool, listens: bool, background: bool) -> Sequence[Finding]:
    """The effects of a line that starts its own server or other commands in the background.

    It has a loopback device and processes of its own, so that its requests and signals reach only what it has started. A line that shows
    the processes of the machine could end them.
    """
    kinds = {finding.effect for finding in findings}
    if not full or listens or not (background or Effect.LISTENS in kinds) or kinds & SHOWS - {Effect.LOOPBACK}:
        return findings
    changed = {
        OWN_SERVER: Finding(Effect.LOOPBACK, "connects to a server of the same line", OWN_SERVER),
        OWN_PROCESS: Finding(Effect.UNKNOWN, "ends a command of the same line"),
    }
    return [changed.get(OWN_SERVER if _names_port(finding) else finding.value, finding) for finding in findings]


def _through_permitted_ports(findings: Sequence[Finding], ports: set[int]) -> Sequence[Finding]:
    """Requests to ports that every command of the project may use are no more than its code, also requests that change something."""
    findings = [
        Finding(Effect.UNKNOWN, f"connects to port {finding.value} of this machine")
        if _names_port(finding) and finding.value in ports
        else finding
        for finding in findings
    ]
    if not _others(findings, SHOWS | {Effect.EDITS}):
        return findings
    return [
        Finding(Effect.UNKNOWN, finding.detail) if finding.effect is Effect.LOOPBACK and finding.value in ports else finding
        for finding in findings
    ]


def _names_port(finding: Finding) -> bool:
    return finding.effect is Effect.NETWORK_CHANGE and isinstance(finding.value, int)


def _others(findings: Iterable[Finding], expected: Iterable[Effect]) -> list[str]:
    """What has other effects than these, or could run programs of the project."""
    known = _KNOWN.union(expected)
    return _details((finding for finding in findings if finding.effect not in known or finding.value == RUNS_PROGRAMS), Effect)


def _details(findings: Iterable[Finding], effects: Iterable[Effect]) -> list[str]:
    wanted = set(effects)
    return list(dict.fromkeys(finding.detail for finding in findings if finding.effect in wanted))


def _view(support: Support, *, trusted: bool) -> View:
    if support.level is not Level.FULL:
        return View.READ_ONLY
    if trusted:
        return View.WRITABLE
    return View.COPY if support.overlay else View.READ_ONLY


def _for_git(sandbox: Sandbox, findings: Sequence[Finding], *, trusted: bool) -> Sandbox:
    """Commands that add to the repository, if nothing else runs while the git folder is writable."""
    other = _others(findings, {Effect.REPOSITORY})
    if other or not trusted or sandbox.level is not Level.FULL:
        raise NeedsApproval(*_details(findings, {Effect.REPOSITORY}), *other)
    return sandbox._replace(git=True)


def _for_reading(sandbox: Sandbox, findings: Sequence[Finding], support: Support, *, trusted: bool, user_home: str) -> Sandbox:
    """Commands that were read completely and only show something of this machine or of a service."""
    kinds = {finding.effect for finding in findings}
    if sandbox.level is Level.PARTIAL and kinds & SHOWS <= {Effect.READS_MACHINE}:
        return sandbox
    if sandbox.level is not Level.FULL or not support.listen:
        raise NeedsApproval(*_details(findings, SHOWS), "the sandbox of this machine cannot permit only this")
    if any(finding.value == WITHOUT_PROJECT for finding in findings):
        return _without_project(sandbox, findings)
    if any(finding.value == SYSTEM_BUS for finding in findings):
        if other := [
            finding for finding in findings if finding.value == OPENS_FILES or (finding.effect in SHOWS and finding.value != SYSTEM_BUS)
        ]:
            raise NeedsApproval(*_details(findings, SHOWS), *_details(other, Effect))
        read = (*sandbox.read, _BOOTED_WITH_SYSTEMD)
        return sandbox._replace(view=View.READ_ONLY, read=read, sockets=_SYSTEM_BUSES, connect=())
    paths = [str(finding.value) for finding in findings if finding.effect in SHOWS and isinstance(finding.value, str)]
    ports = tuple(finding.value for finding in findings if finding.effect is Effect.LOOPBACK and isinstance(finding.value, int))
    if Effect.READS_SERVICE in kinds and any(finding.value == OPENS_FILES for finding in findings):
        raise NeedsApproval(*_details(findings, SHOWS), "a command of the same line opens files, and could print the credentials for it")
    if ports and not trusted and not set(ports) <= set(sandbox.connect):
        raise NeedsApproval(*_details(findings, {Effect.LOOPBACK}))
    stores = Effect.EDITS in kinds
    view = sandbox.view if stores else View.READ_ONLY
    sandbox = sandbox._replace(
        view=view, stores=stores, read=(*sandbox.read, *_expanded(paths, user_home)), connect=(*sandbox.connect, *ports)
    )
    if "/var/log/journal" in sandbox.read:
        sandbox = sandbox._replace(read=tuple(dict.fromkeys((*sandbox.read, *_JOURNALS))))
    if kinds & {Effect.READS_SERVICE, Effect.NETWORK_READ}:
        sockets = ("/run/docker.sock", "/var/run/docker.sock") if any(path.endswith("/.docker") for path in sandbox.read) else ()
        return sandbox._replace(network=Network.OPEN, connect=(), sockets=sockets)
    return sandbox._replace(network=Network.LISTEN, processes=Effect.READS_MACHINE in kinds)


def _without_project(sandbox: Sandbox, findings: Sequence[Finding]) -> Sandbox:
    """Commands that ask a public registry about packages, in an empty folder: only their words leave the machine."""
    if other := [finding for finding in findings if finding.value not in (None, WITHOUT_PROJECT) or finding.effect is Effect.EDITS]:
        raise NeedsApproval(*_details(findings, {Effect.NETWORK_READ}), *_details(other, Effect))
    return sandbox._replace(project=None, view=View.READ_ONLY, network=Network.OPEN, connect=())


def _expanded(paths: Iterable[str], user_home: str) -> list[str]:
    return [os.path.join(user_home, path[2:]) if path.startswith("~/") else path for path in paths]
