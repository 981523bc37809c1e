"""The ledger of a home as repositories."""

from backburner.store.sqlite import SQLiteStore


class Ledger:
    def __init__(self, store: SQLiteStore) -> None:
        self.tasks = self.runs = self.queries = self.events = self.notices = self.deliveries = store
        self.triggers = self.sessions = self.recurring = self.grants = self.memory = self.refusals = self.external_tasks = store
        self.fold, self.check, self.close = store.fold, store.check, store.close


def open_ledger(path: str, *, setup_lock: str | None = None, vfs: str | None = None, exclusive: bool = False) -> Ledger:
    return Ledger(SQLiteStore(path, setup_lock=setup_lock, vfs=vfs, exclusive=exclusive))
