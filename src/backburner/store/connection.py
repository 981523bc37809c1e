"""A connection to a ledger file: opened, brought to the present schema, one transaction at a time, SQLite's errors in our words."""

import contextlib
import functools
import json
import os
from collections.abc import Sequence

import apsw

from backburner.core.errors import LedgerTooNew, LedgerUnavailable
from backburner.store.migrations import MIGRATIONS, VERSION
from backburner.store.rows import plain
from backburner.system.home import lock

_BUSY_MS = 30_000
_FOLD_MS = 1000


class Connection:
    """One connection. Not for several threads at the same moment."""

    def __init__(self, path: str, *, vfs: str | None = None, exclusive: bool = False, setup_lock: str | None = None) -> None:
        self.path = path
        self._durable: bool | None = None
        if not os.path.exists(path) and not vfs:
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        try:
            self._db = apsw.Connection(path, vfs=vfs)
        except apsw.Error as error:
            raise self._unavailable(error) from None
        try:
            self._prepare(exclusive, setup_lock)
        except BaseException as error:
            self._db.close()
            if isinstance(error, apsw.Error):
                raise self._unavailable(error) from None
            raise

    def _prepare(self, exclusive: bool, setup_lock: str | None) -> None:
        self._db.set_busy_timeout(_BUSY_MS)
        # The engine folds the log back now and then; a short-lived door must not pay for it when it leaves.
        self._db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        # A statement is planned once, whatever its values: else it would be planned anew for each of them, which takes longer than most.
        self._db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        if exclusive:
            self._one("PRAGMA locking_mode = EXCLUSIVE")
        version = self._version()
        if version > VERSION:
            raise LedgerTooNew(path=self.path, found=version, known=VERSION)
        if version < VERSION:
            held = lock(setup_lock, wait=True) if setup_lock else None
            try:
                self._migrate()
            finally:
                if held is not None:
                    os.close(held)
        self._db.execute("PRAGMA foreign_keys = ON")

    def _version(self) -> int:
        return int(self._one("PRAGMA user_version")[0])

    def _migrate(self) -> None:
        self._one("PRAGMA journal_mode = WAL")
        with _Transaction(self, durable=True):
            for number in range(self._version(), VERSION):
                self._db.execute(MIGRATIONS[number])
                self._db.execute(f"PRAGMA user_version = {number + 1}")

    def close(self) -> None:
        self._db.close()

    def fold(self) -> None:
        """Write the log back into the ledger's own file, so that a copy of that alone is whole; not where somebody reads for long."""
        self._db.set_busy_timeout(_FOLD_MS)
        with contextlib.suppress(apsw.Error):  # a full disk: the log stays, and nothing is lost
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        self._db.set_busy_timeout(_BUSY_MS)

    def check(self) -> Sequence[str]:
        """What SQLite itself finds wrong with the file; empty when it is sound."""
        try:
            return [row[0] for row in self._db.execute("PRAGMA quick_check") if row[0] != "ok"]
        except apsw.Error as error:
            return [str(error)]

    def _insert(self, table: str, row: dict[str, object]) -> None:
        self._db.execute(_insert_into(table, tuple(row)), tuple(map(plain, row.values())))

    def _all(self, sql: str, *values: object) -> list[tuple]:
        try:
            return self._db.execute(sql, values).fetchall()
        except apsw.Error as error:
            raise self._unavailable(error) from None
        except UnicodeEncodeError:
            return []  # what is not text cannot be in the ledger

    def _one(self, sql: str, *values: object) -> tuple:
        rows = self._all(sql, *values)
        return rows[0] if rows else ()

    def _event(self, at: int, kind: str, task_id: str | None, run_id: str | None, **data: object) -> None:
        self._db.execute(
            "INSERT INTO events (at, kind, task_id, run_id, data) VALUES (?, ?, ?, ?, ?)",
            (at, str(kind), task_id, run_id, json.dumps(data)),
        )

    def _transaction(self, *, durable: bool = True) -> "_Transaction":
        return _Transaction(self, durable)

    def _unavailable(self, error: apsw.Error) -> LedgerUnavailable:
        reason = {
            apsw.FullError: "the disk is full",
            apsw.NotADBError: "it is not a ledger, or it is damaged",
            apsw.CorruptError: "it is damaged",
            apsw.BusyError: f"another process has kept it locked for {_BUSY_MS // 1000} s",
            apsw.ReadOnlyError: "it cannot be written",
            apsw.CantOpenError: "it cannot be opened",
        }.get(type(error), str(error))
        return LedgerUnavailable(reason, path=self.path)


@functools.cache
def _insert_into(table: str, columns: tuple[str, ...]) -> str:
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"


class _Transaction:
    """BEGIN IMMEDIATE … COMMIT; rolled back on any error, and SQLite's errors said in our words."""

    def __init__(self, store: Connection, durable: bool) -> None:
        self._store, self._durable = store, durable

    def __enter__(self) -> None:
        store = self._store
        try:
            if store._durable != self._durable:
                store._db.execute(f"PRAGMA synchronous = {'FULL' if self._durable else 'NORMAL'}")
                store._durable = self._durable
            store._db.execute("BEGIN IMMEDIATE")
        except apsw.Error as error:
            raise store._unavailable(error) from None

    def __exit__(self, kind: type | None, error: BaseException | None, _: object) -> None:
        db = self._store._db
        try:
            if error is None:
                db.execute("COMMIT")
                return
        except apsw.Error as failed:
            error = failed
        if db.in_transaction:
            db.execute("ROLLBACK")
        if isinstance(error, apsw.Error):
            raise self._store._unavailable(error) from error
