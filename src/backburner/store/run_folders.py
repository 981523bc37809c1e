"""Decides who deletes the folders of deleted runs: the caller those of this host; the others are remembered for their hosts."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from backburner.store.database import Database


def own_folders(db: "Database", folders: Iterable[tuple[str, str]]) -> Sequence[str]:
    """The folders of this host among (folder, host) pairs. The others are stored, so call it in the transaction that deletes the runs."""
    own = []
    for folder, host in folders:
        if host in ("", db.host_id):
            own.append(folder)
        elif folder:
            db.write("INSERT INTO folders_to_delete (host_id, folder) VALUES (?, ?) ON CONFLICT DO NOTHING", (host, folder))
    return own
