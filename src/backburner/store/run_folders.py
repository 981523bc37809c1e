"""Remembers the folders of deleted runs that are on other hosts."""

from collections.abc import Iterable

from backburner.core.light_typing import TYPE_CHECKING

if TYPE_CHECKING:
    from backburner.store.database import Database


def leave_to_hosts(db: "Database", folders: Iterable[tuple[str, str]]) -> None:
    """Let other hosts delete theirs among (folder, host) pairs. Call it in the transaction that deletes the runs."""
    for folder, host in folders:
        if folder and host not in ("", db.host_id):
            db.write("INSERT INTO folders_to_delete (host_id, folder) VALUES (?, ?) ON CONFLICT DO NOTHING", (host, folder))
