"""The ledger's database on Postgres, through psycopg: connects, connects again, and translates SQL and errors.

There is one writer at a time: every write transaction holds an advisory lock, as SQLite's write lock. Opening never changes the
schema; `postgres_schema.py` does. Each process has one connection.

Statements whose result nobody reads (the beginning of a transaction, events, notices) are sent together with the next one, in one round trip:
the others wait for the lock during every round trip.
"""

import functools
import itertools
import select
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from backburner.core.errors import BackburnerError, LedgerTooNew, LedgerUnavailable, LedgerUnreachable, NotAPerson, NotPermitted
from backburner.core.ledger_url import shown
from backburner.store.migrations import VERSION
from backburner.store.private_texts import PrivateTexts
from backburner.store.rows import plain

if TYPE_CHECKING:
    from backburner.store.postgres_listener import PostgresListener

SCHEMA = "backburner"  # the Postgres schema that holds the tables
JOBS_SCHEMA = "backburner_jobs"  # and the one of the job queue
WRITER_LOCK = 4_906_130_881_213  # the key of the advisory lock; any number that is always the same
_LOCK_SECONDS = 30
_CONNECT_SECONDS = 5
_RECONNECT_INTERVAL = 1.0  # seconds after a failed attempt in which none is made
# The server ends what a stopped or unreachable client holds, and both sides notice a lost connection.
_SESSION = {
    "search_path": SCHEMA,
    "idle_in_transaction_session_timeout": "5s",
    "lock_timeout": f"{_LOCK_SECONDS}s",
    "tcp_user_timeout": "10s",
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "3",
    "tcp_keepalives_count": "3",
}
_CLIENT = {"tcp_user_timeout": 5000, "keepalives_idle": 10, "keepalives_interval": 3, "keepalives_count": 3}
_FOR_LEASE = {"statement_timeout": "3s", "lock_timeout": "1s", "synchronous_commit": "off"}
_LOCK = f"SELECT pg_advisory_xact_lock({WRITER_LOCK})"
_LOCK_AND_SYNC = f"{_LOCK}, set_config('synchronous_commit', '%s', true)"
_BEGIN = {True: _LOCK.encode(), False: (_LOCK_AND_SYNC % "off").encode()}  # by whether the transaction is durable
_BEGIN_FOR_LEASE = {True: (_LOCK_AND_SYNC % "on").encode(), False: _LOCK.encode()}
_NOT_ALLOWED = "42501"  # insufficient privilege, also what the triggers of postgres_roles.py raise
# The user of a connection, whether the roles of postgres_roles.py exist, and what the user is
_LOGIN = f"""
    SELECT session_user::text, EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'bb_person'), {SCHEMA}.is_owner(), {SCHEMA}.is_person(),
    {SCHEMA}.is_worker(), (SELECT rolsuper OR rolcreaterole FROM pg_roles WHERE rolname = session_user)
"""
_HIDDEN_TABLES = f"SELECT 1 FROM pg_namespace WHERE nspname = '{SCHEMA}' AND NOT has_schema_privilege(oid, 'USAGE')"
# The version of the schema, and the least one that programs must know; a ledger that was migrated last by an older program has no such column.
_VERSIONS = "SELECT version, coalesce((to_jsonb(s) ->> 'least')::integer, version) FROM schema s"
_STATEMENTS_OF_BEGIN = 2  # BEGIN, and the one that takes the lock
_IDLE = psycopg.pq.TransactionStatus.IDLE
_NO_TABLES = ("42P01", "3F000")  # undefined table, undefined schema


class PostgresDatabase:
    """One connection to a ledger. Not thread-safe."""

    dialect = "postgres"
    reuses_ids = False
    upgraded = False  # `backburner migrate` upgrades a ledger, never opening it
    epoch: int | None = None
    ask_password: Callable[[str], str | None] = staticmethod(lambda user: None)

    def __init__(
        self,
        url: str,
        *,
        host_id: str = "",
        private_folder: str = "",
        environment: Mapping[str, str] | None = None,
        person: str = "",
        for_lease: bool = False,
    ) -> None:
        """`host_id` identifies the home, which must have joined the ledger; empty for a connection of no host.

        `private_folder` is for texts that must not leave this host. `environment` is for runs that were submitted on another host.
        `person` is the database user from the first transaction of a person on. With `for_lease`, every statement fails soon if the
        server does not answer, and a change outside a transaction need not be durable.
        """
        self.host_environment = environment or {}
        self._person = person
        self._session, self._begin = (_FOR_LEASE, _BEGIN_FOR_LEASE) if for_lease else ({}, _BEGIN)
        self._private = PrivateTexts(private_folder)
        self.path, self._url, self.host_id = shown(url), url, host_id
        self._channels: set[str] = set()
        self._is_notified = False
        self._in_transaction = self._has_begun = False  # the second from its first round trip on
        self._waiting: list[tuple[bytes, Sequence[object] | None]] = []  # statements that are sent with the next one
        self._may_run: bool | None = None  # not known before somebody asks
        self._counter = itertools.count()
        self._failed: tuple[float, LedgerUnavailable] | None = None
        self._connection = self._connect()

    @functools.cached_property
    def notifications(self) -> "PostgresListener":
        from backburner.store.postgres_listener import PostgresListener

        return PostgresListener(self._url)

    def execute(self, sql: str, params: Sequence[object] = ()) -> list[tuple]:
        if not all(_is_storable(value) for value in params if type(value) is str):
            return []  # it cannot be in the ledger
        cursor = self._run(sql, params, repeat=True)
        return cursor.fetchall() if cursor.description else []

    def one(self, sql: str, params: Sequence[object] = ()) -> tuple:
        rows = self.execute(sql, params)
        return rows[0] if rows else ()

    def write(self, sql: str, params: Sequence[object] = ()) -> int:
        return self._run(sql, [_without_nul(value) for value in params], repeat=False).rowcount

    def write_later(self, sql: str, params: Sequence[object] = ()) -> None:
        if self._in_transaction:
            self._waiting.append((_translated(sql), [_without_nul(plain(value)) for value in params]))
        else:
            self.write(sql, params)

    def insert(self, table: str, row: Mapping[str, object]) -> None:
        self.write_later(_insert_into(table, tuple(row)), [plain(value) for value in row.values()])

    def transaction(self, *, durable: bool = True, by_person: bool = False) -> "_Transaction":
        return _Transaction(self, durable, by_person)

    def begin(self, durable: bool, by_person: bool = False) -> None:
        """Take the writer's lock with the first statement. A transaction that is not durable may be lost if the server crashes right after it."""
        if by_person:
            self.become_person()
        self._in_transaction, self._waiting = True, [(b"BEGIN", None), (self._begin[durable], None)]
        if by_person and self.host_id:
            self.one("SELECT set_config('backburner.host_name', name, true) FROM hosts WHERE host_id = ?", (self.host_id,))

    def commit(self) -> None:
        if not self._has_begun:
            if len(self._waiting) == _STATEMENTS_OF_BEGIN:
                self._end_transaction()
                return  # nothing was read or changed
            self._send(b"SELECT 1", repeat=True)  # only what is not committed with it can be sent again
        try:
            self._exchange(b"COMMIT", None)
        except psycopg.Error as error:
            if self._connection.closed:
                raise LedgerUnreachable("the connection was lost while a change was stored", path=self.path) from None
            raise self._unavailable(error) from None
        self._end_transaction()

    def roll_back(self) -> None:
        self._end_transaction()
        if not self._connection.closed and self._connection.info.transaction_status != _IDLE:
            try:
                self._connection.execute("ROLLBACK", prepare=False)
            except psycopg.Error:
                self._connection.close()  # the server rolls back what a lost connection has begun

    def _end_transaction(self) -> None:
        self._in_transaction = self._has_begun = False
        self._waiting = []

    def may_run_tasks(self) -> bool:
        if self._may_run is None:
            (self._may_run,) = self.one(f"SELECT {SCHEMA}.is_worker()")
        return self._may_run

    def become_person(self) -> None:
        """Use the login of the person from now on, if it is another."""
        if not self._person:
            return
        person, self._person = self._person, ""
        before, self._url = self._url, make_conninfo(self._url, user=person)
        try:
            try:
                connection = self._connect()
            except LedgerUnreachable as error:
                if "password" not in str(error):
                    raise
                if (password := self.ask_password(person)) is None:
                    raise NotAPerson(reason=f"~/.pgpass has no valid password for the database user {person}") from None
                self._url, self._failed = make_conninfo(self._url, password=password), None
                connection = self._connect()
        except BaseException:
            self._url, self._person, self._failed = before, person, None
            raise
        self._connection.close()
        self._connection = connection

    def listen(self, channel: str) -> None:
        self._channels.add(channel)
        self._send(f'LISTEN "{channel}"'.encode(), repeat=True)

    def unlisten(self, channel: str) -> None:
        if channel in self._channels:
            self._channels.discard(channel)
            self._send(f'UNLISTEN "{channel}"'.encode(), repeat=True)

    def wait(self, seconds: float, *descriptors: int) -> bool:
        if self._connection.closed:
            self._connection, self._is_notified = self._connect(), True  # what was notified meanwhile is lost
        if not self._is_notified:
            self._read_notifications(seconds, descriptors)
        notified, self._is_notified = self._is_notified, False
        return notified

    def _read_notifications(self, seconds: float, descriptors: Sequence[int]) -> None:
        waiting = select.poll()  # unlike select(), it takes any descriptor
        for descriptor in (self._connection.fileno(), *descriptors):
            waiting.register(descriptor, select.POLLIN)
        if self._connection.fileno() not in dict(waiting.poll(max(0.0, seconds) * 1000)):
            return
        self._is_notified = True
        try:
            self._connection.pgconn.consume_input()
            while self._connection.pgconn.notifies():
                pass
        except psycopg.Error:
            self._connection.close()  # the next statement connects again

    def _notified(self, _: psycopg.Notify) -> None:
        """A notification that came together with the answer to a statement."""
        self._is_notified = True

    def change_counter(self) -> int:
        return next(self._counter)

    def keep_private(self, text: str) -> str:
        try:
            return self._private.keep(text)
        except OSError as error:
            raise LedgerUnavailable(f"{error.filename}: {error.strerror}", path=self.path) from None

    def private_text(self, stored: str) -> str | None:
        return self._private.read(stored)

    def delete_private_except(self, stored: Callable[[], Sequence[str]]) -> None:
        self._private.delete_except(stored())

    def checkpoint(self) -> None:
        """Postgres does this itself."""

    def copy_to(self, path: str) -> None:
        raise LedgerUnavailable("a ledger on Postgres is copied with pg_dump", path=self.path)

    def unexpected_objects(self) -> Sequence[str]:
        return []  # only for files of unknown origin

    def check(self, seconds: float | None = None) -> Sequence[str] | None:
        self.one("SELECT 1")
        return []  # the server checks its own files

    def close(self) -> None:
        if "notifications" in vars(self):
            self.notifications.close()
        self._connection.close()

    def server_settings(self) -> dict[str, str]:
        """What `doctor` checks: version, encoding, durability, and whether the connection is encrypted and where it leads."""
        names = ("server_version_num", "server_version", "server_encoding", "fsync", "synchronous_commit")
        values = self.one("SELECT " + ", ".join(f"current_setting('{name}')" for name in names))
        collations = self.execute(
            "SELECT DISTINCT c.collname FROM pg_attribute a JOIN pg_class t ON t.oid = a.attrelid JOIN pg_collation c ON c.oid = a.attcollation"
            " JOIN pg_namespace n ON n.oid = t.relnamespace WHERE n.nspname = ? AND t.relkind = 'r' AND a.attnum > 0",
            (SCHEMA,),
        )
        info = self._connection.info
        user, has_roles, is_owner, is_person, is_worker, can_administer = self.one(_LOGIN)
        roles = (("owner", is_owner), ("person", is_person), ("worker", is_worker), ("agent", True))
        sent = time.time()
        (server_time,) = self.one("SELECT extract(epoch FROM clock_timestamp())::float8")
        return {
            **dict(zip(names, values, strict=True)),
            "user": user,
            "role": next(name for name, has_role in roles if has_role),
            "has_roles": "yes" if has_roles else "no",
            "can_administer": "yes" if can_administer else "no",
            "clock_offset_ms": str(round(((sent + time.time()) / 2 - server_time) * 1000)),
            "collations": " ".join(sorted(row[0] for row in collations)),
            "encrypted": "yes" if self._connection.pgconn.ssl_in_use else "no",
            "host": info.host,
            "sslmode": info.get_parameters().get("sslmode", "prefer"),
        }

    def _run(self, sql: str, params: Sequence[object], *, repeat: bool) -> psycopg.Cursor:
        return self._send(_translated(sql), [plain(value) for value in params], repeat=repeat)

    def _send(self, statement: bytes, values: Sequence[object] | None = None, *, repeat: bool) -> psycopg.Cursor:
        """Execute a statement, and before it those that wait.

        With `repeat`, this is done again if the connection was lost since the last statement. In a transaction, that is possible for the
        first one only.
        """
        if self._in_transaction:
            repeat = not self._has_begun
        if self._connection.closed and not self._has_begun:
            self._connection, repeat = self._connect(), False
        cursor = self._sent(statement, values, repeat)
        self._has_begun, self._waiting = self._in_transaction, []
        return cursor

    def _sent(self, statement: bytes, values: Sequence[object] | None, repeat: bool) -> psycopg.Cursor:
        try:
            return self._exchange(statement, values)
        except psycopg.Error as error:
            if not self._connection.closed:
                raise self._unavailable(error) from None
            if not repeat:
                raise LedgerUnreachable(_one_line(error), path=self.path) from None
        self._connection = self._connect()
        return self._sent(statement, values, repeat=False)

    def _exchange(self, statement: bytes, values: Sequence[object] | None) -> psycopg.Cursor:
        """Send a statement and all that wait, and read the results. After an error, those that follow it were not executed."""
        connection = self._connection
        if not self._waiting:
            return connection.execute(statement, values, prepare=None if values is not None else False)
        pipeline = connection._pipeline = _Pipeline(connection)
        try:
            with pipeline:
                for text, row in self._waiting:
                    connection.execute(text, row)
                return connection.execute(statement, values)
        finally:
            connection._pipeline = None

    def _connect(self) -> psycopg.Connection:
        if self._failed and time.monotonic() < self._failed[0] + _RECONNECT_INTERVAL:
            raise self._failed[1]
        try:
            connection = connect(self._url, self.host_id, **self._session)
        except psycopg.Error as error:
            self._failed = time.monotonic(), LedgerUnreachable(_one_line(error), path=self.path)
            raise self._failed[1] from None
        self._failed = None
        try:
            self._require_known(connection)
            connection.add_notify_handler(self._notified)
            for channel in self._channels:
                connection.execute(f'LISTEN "{channel}"'.encode())
        except BaseException as error:
            connection.close()
            if isinstance(error, psycopg.Error):
                raise self._unavailable(error) from None
            raise
        return connection

    def _require_known(self, connection: psycopg.Connection) -> None:
        """The ledger has the schema of this version, and this home has joined it."""
        try:
            row = connection.execute(_VERSIONS).fetchone()
        except psycopg.Error as error:
            if error.sqlstate in _NO_TABLES:
                if connection.execute(_HIDDEN_TABLES).fetchone():
                    user = connection.info.user
                    reason = f"the database user {user} has none of the roles of its users; give it one, such as: GRANT bb_worker TO {user}"
                    raise LedgerUnavailable(reason, path=self.path) from None
                raise LedgerUnavailable("it has no tables yet; create them with: backburner migrate", path=self.path) from None
            raise
        self._require_version(*(row or (0, 0)))
        if self.host_id and not connection.execute("SELECT 1 FROM hosts WHERE host_id = %s", (self.host_id,)).fetchone():
            raise LedgerUnavailable("this home has not joined it; join it with: backburner join URL", path=self.path)

    def require_supported(self) -> None:
        self._require_version(*self.one(_VERSIONS))

    def _require_version(self, version: int, least: int) -> None:
        if version > VERSION and least > VERSION:
            raise LedgerTooNew(path=self.path, found=version, known=VERSION)
        if version < VERSION:
            reason = f"it has schema {version}, and this version of Backburner needs {VERSION}; upgrade it with: backburner migrate"
            raise LedgerUnavailable(reason, path=self.path)

    def _unavailable(self, error: psycopg.Error) -> BackburnerError:
        if error.sqlstate == _NOT_ALLOWED:
            return NotPermitted(user=conninfo_to_dict(self._url).get("user", ""), reason=(error.diag.message_primary or _one_line(error)))
        return unavailable(error, self.path)


def connect(url: str, host_id: str = "", **session: str) -> psycopg.Connection:
    """Connect to a server. `host_id` is the host that changes are announced from; `session` are more settings of the session."""
    return psycopg.connect(conninfo(url, **({f"{SCHEMA}.host": host_id} if host_id else {}), **session), autocommit=True)


def conninfo(url: str, **session: str) -> str:
    """The parameters of a connection, with the limits that keep a client from stopping the others, and more settings of the session."""
    given = conninfo_to_dict(url)
    options = " ".join([*(f"-c {name}={value}" for name, value in {**_SESSION, **session}.items()), str(given.get("options") or "")])
    defaults = {"connect_timeout": _CONNECT_SECONDS, "application_name": "backburner", **_CLIENT, **given}
    return make_conninfo("", **{**defaults, "options": options, "client_encoding": "UTF8"})


def dispatch_conninfo(url: str) -> str:
    """The parameters of a connection to the job queue, where nothing must be durable."""
    return conninfo(url, search_path=f"{JOBS_SCHEMA},{SCHEMA}", synchronous_commit="off")


def unavailable(error: psycopg.Error, path: str) -> LedgerUnavailable:
    """The error for a user: one sentence, which names the server and never a password."""
    reasons = {
        "55P03": f"another process has kept it locked for {_LOCK_SECONDS} s",
        "53100": "the disk of the server is full",
        "25006": "it cannot be written: the server is a standby or read-only",
    }
    return LedgerUnavailable(reasons.get(error.sqlstate or "") or _one_line(error), path=path)


def _one_line(error: psycopg.Error) -> str:
    """The message of an error without the advice that libpq adds."""
    text = " ".join(str(error).split()).partition(" Is the server running")[0]
    return text.rstrip(".") or type(error).__name__


def _is_storable(text: str) -> bool:
    """Whether Postgres can store a text: not with the character NUL, nor if it is not valid UTF-8."""
    if "\0" in text:
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _without_nul(value: object) -> object:
    return value.replace("\0", "\ufffd") if type(value) is str and "\0" in value else value


@functools.cache
def _translated(sql: str) -> bytes:
    """A statement of the repositories in the form that psycopg expects."""
    return sql.replace("%", "%%").replace("?", "%s").encode()


@functools.cache
def _insert_into(table: str, columns: tuple[str, ...]) -> str:
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"


class _Pipeline(psycopg.Pipeline):
    """A pipeline that ends with Sync. That of psycopg sends Flush after it, and then the server does not end a stopped client's transaction."""

    def _exit_gen(self) -> Generator[Any, Any, None]:
        try:
            self._enqueue_sync()
            yield from self._communicate_gen()
        finally:
            yield from self._fetch_gen(flush=False)


class _Transaction:
    """BEGIN … COMMIT with the writer's lock; rolled back on any error."""

    def __init__(self, database: PostgresDatabase, durable: bool, by_person: bool) -> None:
        self._database, self._durable, self._by_person = database, durable, by_person

    def __enter__(self) -> None:
        self._database.begin(self._durable, self._by_person)

    def __exit__(self, kind: type | None, error: BaseException | None, _: object) -> None:
        if error is not None:
            self._database.roll_back()
            return
        try:
            self._database.commit()
        except BaseException:
            self._database.roll_back()
            raise
