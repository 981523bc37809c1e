"""What `join` and `doctor` check about the server of a ledger on Postgres: version, text, durability, encryption, clock, and who logs in."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

OLDEST_VERSION = 150_000
_MAX_CLOCK_OFFSET_MS = 2000
_LOGINS = {
    "owner": "owns the tables and may do everything",
    "person": "may approve, and run tasks",
    "worker": "runs tasks and cannot approve",
    "agent": "submits tasks, and can neither run nor approve them",
}


class Check(NamedTuple):
    """The result of one check: what was found, and how to fix it if that is needed."""

    ok: bool
    what: str
    fix: str = ""


def problems_of(settings: Mapping[str, str]) -> Iterator[Check]:
    """What is wrong with a server, or with the connection to it. `settings` is what `Database.server_settings` returned."""
    if int(settings["server_version_num"]) < OLDEST_VERSION:
        yield Check(False, f"the server is Postgres {settings['server_version']}, which is too old", "use Postgres 15 or newer")
    if settings["server_encoding"] != "UTF8":
        yield Check(False, f"the encoding of the database is {settings['server_encoding']}", "create a database with --encoding UTF8")
    if settings["collations"] != "C":
        what = f"some columns of the ledger have another collation than C ({settings['collations']}), so text is compared wrongly"
        yield Check(False, what, "restore them from a dump of the ledger that `backburner migrate` has created")
    for name in ("fsync", "synchronous_commit"):
        if settings[name] == "off":
            yield Check(False, f"{name} is off: what was stored is lost when the server crashes", f"set {name} = on in postgresql.conf")
    host = settings["host"]
    is_here = host.startswith(("/", "127.")) or host in ("localhost", "::1")
    if not is_here and (settings["encrypted"] == "no" or settings["sslmode"] != "verify-full"):
        what = f"the connection to {host} is {'not encrypted' if settings['encrypted'] == 'no' else 'encrypted, but the server is not verified'}"
        yield Check(False, what, "add ?sslmode=verify-full&sslrootcert=system to `url` under [store]")
    if abs(offset := int(settings.get("clock_offset_ms", "0"))) > _MAX_CLOCK_OFFSET_MS:
        what = f"the clock of this host is {abs(offset) / 1000:.1f} s {'ahead of' if offset > 0 else 'behind'} that of the server"
        yield Check(False, what, "synchronize both clocks; times of other hosts are shown wrongly until then")


def login_of(settings: Mapping[str, str], person: str = "") -> Iterator[Check]:
    """Who the database user of this host is. `person` is the one with which people decide here, if it is another."""
    user, role = settings["user"], settings["role"]
    if settings["has_roles"] == "no":
        yield Check(True, f"database user {user}: the ledger has no roles, so whoever can open it can also approve (docs/hosts.md)")
        return
    if role in ("owner", "person") or settings["can_administer"] == "yes":
        why = "can give itself roles" if role not in ("owner", "person") else _LOGINS[role]
        fix = f"use a user that has only the role bb_worker in `url`, and set person = {user!r} under [store]"
        yield Check(False, f"database user {user}: {why}, and so can every program of this host that finds its password", fix)
        return
    decides = f"; people decide here as {person}" if person else "; to decide here, set `person` under [store]"
    yield Check(True, f"database user {user}: {_LOGINS[role]}{decides}")
