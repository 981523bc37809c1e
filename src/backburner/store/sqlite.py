"""The ledger's database on SQLite, through apsw: opens it, migrates it, and translates SQLite's errors.

Durable transactions (submit, claim, end of a run with its notice) are on disk when the method returns. What can be detected
again (the process of a run) is not synced. Several processes may write to the file; each has one connection.
"""

import contextlib
import functools
import os
import time
from collections.abc import Callable, Mapping, Sequence

import apsw

from backburner.core.errors import LedgerTooNew, LedgerUnavailable
from backburner.store.migrations import MIGRATIONS, VERSION
from backburner.store.rows import STORED_BY_SQLITE, plain
from backburner.system.home import lock

_BUSY_MS = 30_000
_FOLD_MS = 1000
_POLL_SECONDS = 0.05
_STEPS_PER_LOOK = 10_000  # steps of SQLite between two looks at the clock
_PAGE_BYTES = 2048  # a commit changes one row in each of many pages, and writes all of each page; a task takes about 700 bytes
_CHECKPOINT_PAGES = 500  # in the write-ahead log, when they are written back into the ledger
_LOG_PAGES = _CHECKPOINT_PAGES + 50  # the size of the write-ahead log, with the commit that exceeds the former
_FRAME_BYTES = 24  # in the log, before each page


class SqliteDatabase:
    """One connection to a ledger file. Not thread-safe."""

    dialect = "sqlite"
    reuses_ids = True
    host_id = ""
    ask_password: Callable[[str], str | None] = staticmethod(lambda user: None)
    notifications = None
    epoch: int | None = None
    host_environment: Mapping[str, str] = {}

    def __init__(self, path: str, *, vfs: str | None = None, exclusive: bool = False, setup_lock: str | None = None) -> None:
        self.path = path
        self._durable: bool | None = None
        self.upgraded = False
        if path != ":memory:" and not os.path.exists(path) and not vfs:
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        try:
            self.connection = apsw.Connection(path, vfs=vfs)
        except apsw.Error as error:
            raise self._unavailable(error) from None
        self._cursor = self.connection.cursor()  # for all statements: making one takes as long as a small statement
        try:
            self._prepare(exclusive, setup_lock)
        except BaseException as error:
            self.connection.close()
            if isinstance(error, apsw.Error):
                raise self._unavailable(error) from None
            raise

    def execute(self, sql: str, params: Sequence[object] = ()) -> list[tuple]:
        try:
            return self._cursor.execute(sql, params).fetchall()
        except apsw.Error as error:
            raise self._unavailable(error) from None
        except UnicodeEncodeError:
            return []  # text that is not valid UTF-8 cannot be in the ledger

    def one(self, sql: str, params: Sequence[object] = ()) -> tuple:
        rows = self.execute(sql, params)
        return rows[0] if rows else ()

    def write(self, sql: str, params: Sequence[object] = ()) -> int:
        try:
            self._cursor.execute(sql, params)
        except apsw.Error as error:
            raise self._unavailable(error) from None
        return self.connection.changes()

    write_later = write

    def insert(self, table: str, row: Mapping[str, object]) -> None:
        values = [value if type(value) in STORED_BY_SQLITE else plain(value) for value in row.values()]
        self.write(_insert_into(table, tuple(row)), values)

    def transaction(self, *, durable: bool = True, by_person: bool = False) -> "_Transaction":
        return _Transaction(self, durable)

    def begin(self, durable: bool) -> None:
        """Take the write lock; a durable transaction is synced when it is committed."""
        try:
            if self._durable != durable:
                self.connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
                self._durable = durable
            self._cursor.execute("BEGIN IMMEDIATE")
        except apsw.Error as error:
            raise self._unavailable(error) from None

    def commit(self) -> None:
        try:
            self._cursor.execute("COMMIT")
        except apsw.Error as error:
            self.roll_back()
            raise self._unavailable(error) from error

    def roll_back(self) -> None:
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")

    def may_run_tasks(self) -> bool:
        return True

    def become_person(self) -> None:
        """A file does not know who opens it."""

    def listen(self, channel: str) -> None:
        """Nobody else uses a file than the processes of one home, which wake each other."""

    def unlisten(self, channel: str) -> None:
        """See `listen`."""

    def wait(self, seconds: float, *descriptors: int) -> bool:
        import select

        select.select(descriptors, [], [], min(seconds, _POLL_SECONDS))
        return True  # it has to look itself

    def change_counter(self) -> int:
        return self.one("PRAGMA data_version")[0]

    def keep_private(self, text: str) -> str:
        return text

    def private_text(self, stored: str) -> str | None:
        return stored

    def delete_private_except(self, stored: Callable[[], Sequence[str]]) -> None:
        """All texts are in the ledger."""

    def checkpoint(self) -> None:
        """Write the write-ahead log back into the ledger file, so that a copy of that file is complete; not while a long read is active.

        The log is empty then, and who opens the ledger next need not read it; it gets its full size again.
        """
        self.connection.set_busy_timeout(_FOLD_MS)
        with contextlib.suppress(apsw.Error, LedgerUnavailable):  # a full disk: the log is kept, and nothing is lost
            self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            with self.transaction(durable=False):
                self._fill_log()
        self.connection.set_busy_timeout(_BUSY_MS)

    def copy_to(self, path: str) -> None:
        """Copy the ledger as it is at one moment: one step of SQLite's backup reads one snapshot, and nobody has to wait for it."""
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        try:
            copy = apsw.Connection(path)
            try:
                with copy.backup("main", self.connection, "main") as backup:
                    backup.step(-1)
            finally:
                copy.close()
        except apsw.Error as error:
            raise self._unavailable(error, path) from None

    def unexpected_objects(self) -> Sequence[str]:
        """Compare the objects of this ledger with those of a new one."""
        select = "SELECT type, name, tbl_name FROM sqlite_master"
        empty = SqliteDatabase(":memory:")
        try:
            known = set(empty.execute(select))
        finally:
            empty.close()
        return [name for kind, name, table in self.execute(select) if (kind, name, table) not in known and name != "sqlite_stat1"]

    def check(self, seconds: float | None = None) -> Sequence[str] | None:
        if seconds is not None:
            deadline = time.monotonic() + seconds
            self.connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS_PER_LOOK)
        try:
            return [row[0] for row in self.connection.execute("PRAGMA quick_check") if row[0] != "ok"]
        except apsw.InterruptError:
            return None
        except apsw.Error as error:
            return [str(error)]
        finally:
            self.connection.set_progress_handler(None)

    def require_supported(self) -> None:
        """Nobody migrates a file that this process has open."""

    def server_settings(self) -> Mapping[str, str]:
        return {}

    def close(self) -> None:
        self.connection.close()

    def _prepare(self, exclusive: bool, setup_lock: str | None) -> None:
        self.connection.set_busy_timeout(_BUSY_MS)
        # The engine checkpoints from time to time; a short-lived command must not spend time on it when it exits.
        self.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        # Plan each statement once, whatever its values; otherwise it is planned again for each set of values, which takes longer than most statements.
        self.connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        self.connection.wal_autocheckpoint(_CHECKPOINT_PAGES)
        if exclusive:
            self.one("PRAGMA locking_mode = EXCLUSIVE")
        version = self._version()
        if version > VERSION:
            raise LedgerTooNew(path=self.path, found=version, known=VERSION)
        if version < VERSION:
            held = lock(setup_lock, wait=True) if setup_lock else None
            try:
                self.upgraded = 0 < self._version() < VERSION
                self._migrate()
            finally:
                if held is not None:
                    os.close(held)
        self.connection.execute("PRAGMA foreign_keys = ON")

    def _version(self) -> int:
        return int(self.one("PRAGMA user_version")[0])

    def _migrate(self) -> None:
        from backburner.store.sqlite_constraints import replace_lists  # only for a new or older ledger

        self.connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")  # of a new ledger; another one keeps its own
        self.one("PRAGMA journal_mode = WAL")
        with self.transaction():
            for number in range(self._version(), VERSION):
                self.connection.execute(MIGRATIONS[number])
                self.connection.execute(f"PRAGMA user_version = {number + 1}")
            replace_lists(self.execute)
            self._fill_log()

    def _fill_log(self) -> None:
        """Give the write-ahead log its full size: a commit is synced in half the time if it does not change the size of the file.

        Inside a transaction, because then nobody else writes to the log. SQLite ignores what follows the last commit.
        """
        with contextlib.suppress(OSError), open(f"{self.path}-wal", "r+b", buffering=0) as log:  # none in memory; on a full disk, as it is
            missing = _LOG_PAGES * (_FRAME_BYTES + self.one("PRAGMA page_size")[0]) - log.seek(0, os.SEEK_END)
            log.write(bytes(max(missing, 0)))

    def _unavailable(self, error: apsw.Error, path: str = "") -> LedgerUnavailable:
        reason = {
            apsw.FullError: "the disk is full",
            apsw.NotADBError: "it is not a ledger, or it is damaged",
            apsw.CorruptError: "it is damaged",
            apsw.BusyError: f"another process has kept it locked for {_BUSY_MS // 1000} s",
            apsw.ReadOnlyError: "it cannot be written",
            apsw.CantOpenError: "it cannot be opened",
        }.get(type(error), str(error))
        return LedgerUnavailable(reason, path=path or self.path)


@functools.cache
def _insert_into(table: str, columns: tuple[str, ...]) -> str:
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"


class _Transaction:
    """BEGIN IMMEDIATE … COMMIT; rolled back on any error."""

    def __init__(self, database: SqliteDatabase, durable: bool) -> None:
        self._database, self._durable = database, durable

    def __enter__(self) -> None:
        self._database.begin(self._durable)

    def __exit__(self, kind: type | None, error: BaseException | None, _: object) -> None:
        if error is None:
            self._database.commit()
        else:
            self._database.roll_back()
