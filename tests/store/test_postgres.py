"""What only a ledger on Postgres has: tables that are created by `migrate`, an owner, lost connections, and limits of the server."""

import ast
import contextlib
import importlib
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

pytest.register_assert_rewrite("contract")

from conftest import wait_until  # noqa: E402
from contract.cases import NOW, OURS, done, submit  # noqa: E402
from postgres_server import HOST_ID, LedgerDatabase, PostgresServer  # noqa: E402
from test_portable_sql import SHARED  # noqa: E402

from backburner.core.errors import LedgerTooNew, LedgerUnavailable  # noqa: E402
from backburner.core.models import ENGINE  # noqa: E402
from backburner.store import postgres, postgres_schema  # noqa: E402
from backburner.store.ledger import Ledger, open_postgres_ledger  # noqa: E402
from backburner.store.migrations import MIGRATIONS, VERSION  # noqa: E402
from backburner.store.postgres import PostgresDatabase  # noqa: E402
from backburner.store.postgres_schema import migrate  # noqa: E402
from backburner.store.sqlite import SqliteDatabase  # noqa: E402

ADD = "INSERT INTO cursors (name, position) VALUES (?, ?)"
COUNT = "SELECT count(*) FROM cursors"


@pytest.fixture
def url(database: LedgerDatabase) -> str:
    database.empty()
    return database.url


@pytest.fixture
def db(url: str) -> Iterator[PostgresDatabase]:
    db = PostgresDatabase(url, host_id=HOST_ID)
    yield db
    db.close()


@pytest.fixture
def empty_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The address of a database without tables."""
    yield postgres_server.create_database("untouched")
    postgres_server.administer("DROP DATABASE untouched WITH (FORCE)")


def set_version(server: PostgresServer, version: int, least: int | None = None) -> None:
    server.administer(f"UPDATE backburner.schema SET version = {version}, least = {version if least is None else least}", "test_postgres")


# -- tables


def test_opening_a_ledger_without_tables_says_how_to_create_them(empty_url: str, postgres_server: PostgresServer) -> None:
    with pytest.raises(LedgerUnavailable, match="it has no tables yet; create them with: backburner migrate"):
        PostgresDatabase(empty_url)
    assert postgres_server.administer("SELECT 1 FROM pg_namespace WHERE nspname = 'backburner'", "untouched") == []


def test_migrating_twice_changes_nothing_the_second_time(empty_url: str) -> None:
    assert migrate(empty_url, host_id="a", home="/a")[1:3] == (0, VERSION)
    assert migrate(empty_url, host_id="a", home="/a")[1:3] == (VERSION, VERSION)
    PostgresDatabase(empty_url, host_id="a").close()


def test_an_upgrade_applies_the_migrations_that_are_missing(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    migrate(empty_url, host_id="a", home="/a")
    added = "ALTER TABLE cursors ADD COLUMN note TEXT; CREATE TABLE added (id INTEGER PRIMARY KEY AUTOINCREMENT, at INTEGER NOT NULL);"
    monkeypatch.setattr(postgres_schema, "MIGRATIONS", (*MIGRATIONS, added))
    for module in (postgres_schema, postgres):
        monkeypatch.setattr(module, "VERSION", VERSION + 1)
    with pytest.raises(LedgerUnavailable, match=f"it has schema {VERSION}, and"):
        PostgresDatabase(empty_url)
    assert migrate(empty_url, host_id="a", home="/a")[1:3] == (VERSION, VERSION + 1)
    db = PostgresDatabase(empty_url, host_id="a")
    with db.transaction():
        db.write("INSERT INTO added (at) VALUES (?)", (NOW,))
        db.write("INSERT INTO cursors (name, position, note) VALUES (?, ?, ?)", ("a", 1, "b"))
    assert db.one("SELECT id, at FROM added") == (1, NOW) and db.server_settings()["collations"] == "C"
    db.close()


def test_concurrent_migrations_create_the_tables_once(empty_url: str) -> None:
    found = []
    threads = [threading.Thread(target=lambda: found.append(migrate(empty_url, host_id="a", home="/a").before)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [0, VERSION, VERSION]


def test_a_migration_that_fails_leaves_nothing_behind(
    empty_url: str, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_schema, "_BASELINE", postgres_schema._BASELINE + "CREATE TABLE broken (;")
    with pytest.raises(LedgerUnavailable, match="syntax error"):
        migrate(empty_url, host_id="a", home="/a")
    assert postgres_server.administer("SELECT 1 FROM pg_namespace WHERE nspname = 'backburner'", "untouched") == []


def test_a_ledger_with_an_older_schema_is_not_opened(url: str, postgres_server: PostgresServer) -> None:
    set_version(postgres_server, VERSION - 1)
    try:
        with pytest.raises(
            LedgerUnavailable, match=f"it has schema {VERSION - 1}, and .* needs {VERSION}; upgrade it with: backburner migrate"
        ):
            PostgresDatabase(url)
    finally:
        set_version(postgres_server, VERSION)


def test_a_ledger_with_a_newer_schema_is_neither_opened_nor_migrated(url: str, postgres_server: PostgresServer) -> None:
    set_version(postgres_server, VERSION + 1)
    try:
        with pytest.raises(LedgerTooNew, match="newer version of Backburner"):
            PostgresDatabase(url)
        with pytest.raises(LedgerTooNew):
            migrate(url, host_id=HOST_ID, home="/home")
    finally:
        set_version(postgres_server, VERSION)


def test_a_ledger_with_a_newer_schema_is_opened_if_that_only_adds_what_this_version_need_not_know(
    url: str, postgres_server: PostgresServer
) -> None:
    set_version(postgres_server, VERSION + 1, least=VERSION)
    try:
        with contextlib.closing(PostgresDatabase(url)) as database:
            database.require_supported()
            set_version(postgres_server, VERSION + 2, least=VERSION + 2)
            with pytest.raises(LedgerTooNew, match="newer version of Backburner"):
                database.require_supported()
    finally:
        set_version(postgres_server, VERSION)


def test_a_home_joins_a_ledger_before_it_uses_it(empty_url: str) -> None:
    migrate(empty_url, host_id="a", home="laptop:/a")
    with pytest.raises(LedgerUnavailable, match="this home has not joined it; join it with: backburner join"):
        PostgresDatabase(empty_url, host_id="b")
    for _ in range(2):
        migrate(empty_url, host_id="b", home="laptop:/b")
    for host_id in "ab":
        db = PostgresDatabase(empty_url, host_id=host_id)
        assert db.execute("SELECT host_id, name FROM hosts ORDER BY host_id") == [("a", "laptop"), ("b", "laptop-2")]
        db.close()


def test_what_is_in_a_ledger_of_one_home_belongs_to_that_host_after_the_upgrade(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (postgres_schema, postgres):
        monkeypatch.setattr(module, "VERSION", 18)
    monkeypatch.setattr(postgres_schema, "join", lambda *_: "")
    monkeypatch.setattr(postgres_schema, "STATEMENTS", "SELECT 1")
    monkeypatch.setattr(postgres_schema.postgres_roles, "install", lambda _: False)
    migrate(empty_url, host_id="a", home="laptop:/a")
    monkeypatch.undo()
    with psycopg.connect(empty_url, options="-c search_path=backburner", autocommit=True) as connection:
        connection.execute(
            "INSERT INTO tasks (task_id, type, kind, state, description, command, shell, cwd, project, env, created_at, reasons, run_count, approved_by, approved_via, approved_at)"
            " VALUES ('task_x', 'command', 'oneshot', 'active', '', '[\"true\"]', 0, '/', '/', '{}', 1, '[]', 1, 'auto', 'gate', 1)"
        )
        connection.execute(
            "INSERT INTO runs (run_id, task_id, n, state, folder, process_tag, trace_id, span_id, runner, created_at)"
            " VALUES ('task_x', 'task_x', 1, 'pending', 'tasks/task_x', '', '', '', 'engine', 1)"
        )
    migrate(empty_url, host_id="b", home="desk:/b")
    for host_id, found in (("a", ["task_x"]), ("b", [])):
        ledger = open_postgres_ledger(empty_url, "/nonexistent", host_id)
        assert list(ledger.runs.queued(ENGINE, NOW, 5)) == found
        ledger.close()


def test_a_database_with_another_encoding_is_refused(postgres_server: PostgresServer) -> None:
    postgres_server.administer("CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
    try:
        with pytest.raises(LedgerUnavailable, match="its encoding is LATIN1; create the database with: createdb"):
            migrate(postgres_server.url("latin", "postgres"), host_id="a", home="/a")
    finally:
        postgres_server.administer("DROP DATABASE latin")


def test_both_databases_have_the_same_tables_columns_and_indexes(db: PostgresDatabase) -> None:
    sqlite = SqliteDatabase(":memory:")
    names = [row[0] for row in sqlite.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")]
    expected = {
        (table, column): (kind, bool(required), default)
        for table in names
        for _, column, kind, required, default, is_key in sqlite.execute(f"PRAGMA table_info({table})")
        if not is_key
    }
    kinds = {"bigint": "INTEGER", "text": "TEXT", "bytea": "BLOB"}
    rows = db.execute(
        "SELECT table_name, column_name, data_type, is_nullable, column_default FROM information_schema.columns WHERE table_schema = 'backburner'"
    )
    found = {
        (table, column): (kinds[kind], nullable == "NO", default and default.removesuffix("::text"))
        for table, column, kind, nullable, default in rows
        if table != "schema"
    }
    assert {key: value for key, value in found.items() if key in expected} == expected
    keys = {(table, row[1]) for table in names for row in sqlite.execute(f"PRAGMA table_info({table})") if row[5]}
    assert set(found) == set(expected) | keys
    indexes = {row[0] for row in sqlite.execute("SELECT name FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL")}
    on_postgres = {row[0] for row in db.execute("SELECT indexname FROM pg_indexes WHERE schemaname = 'backburner'")}
    assert indexes <= on_postgres
    sqlite.close()


def test_every_text_is_compared_byte_by_byte(db: PostgresDatabase) -> None:
    assert db.server_settings()["collations"] == "C"


# -- SQL


def _statements(path: Path) -> list[str]:
    """The complete statements of a module. One that is put together from local values is not among them; the contract executes those."""
    namespace = vars(importlib.import_module(f"backburner.store.{path.stem}"))
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("execute", "one", "write")
            and node.args
        ):
            try:
                text = eval(compile(ast.Expression(node.args[0]), str(path), "eval"), dict(namespace))
            except NameError:
                continue
            found.append(text)
    return [text for text in found if re.match(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\b", text)]


def test_every_statement_of_the_repositories_can_be_prepared(db: PostgresDatabase) -> None:
    statements = [text for path in SHARED for text in _statements(path)]
    assert len(statements) > 80
    with psycopg.connect(db._url, options="-c search_path=backburner", autocommit=True) as connection:
        for text in statements:
            first, *rest = text.split("?")
            prepared = first + "".join(f"${number}{part}" for number, part in enumerate(rest, 1))
            connection.execute(f"PREPARE statement AS {prepared}".encode())
            connection.execute("DEALLOCATE statement")


# -- text


def test_a_character_that_postgres_cannot_store_is_replaced(url: str, tmp_path: Path) -> None:
    ledger = open_postgres_ledger(url, str(tmp_path), HOST_ID)
    ledger.memory.set("/p", "key", "a\0b", NOW)
    assert ledger.memory.all("/p")["key"] == "a\ufffdb"
    assert ledger.queries.get("task\0") is None
    ledger.close()


def test_the_environment_of_a_command_stays_on_its_host(url: str, tmp_path: Path) -> None:
    ledger = open_postgres_ledger(url, str(tmp_path), HOST_ID)
    environments = [{"TOKEN": "secret", "N": str(number)} for number in range(2)]
    for number, environment in enumerate(environments):
        submit(ledger, f"task_{number}", environment=environment)
        submit(ledger, f"task_{number}_again", environment=environment)
    stored = [row[0] for row in ledger.database.execute("SELECT body FROM environments")]
    folder = tmp_path / "environments"
    assert sorted(stored) == sorted(path.name for path in folder.iterdir()) and len(stored) == 2 and "secret" not in str(stored)
    assert folder.stat().st_mode & 0o777 == 0o700 and {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert ledger.queries.environment("task_1") == environments[1]
    work = ledger.runs.claim(ENGINE, OURS, 9, NOW)
    assert [claimed.environment for claimed in work] == [environments[number] for number in (0, 0, 1, 1)]
    ledger.runs.settle([done(claimed.run) for claimed in work], OURS)
    ledger.tasks.clear(["task_0", "task_0_again"], NOW)
    assert len(list(folder.iterdir())) == 1 and ledger.queries.environment("task_1") == environments[1]
    ledger.close()
    elsewhere = open_postgres_ledger(url, str(tmp_path / "other"), HOST_ID)
    assert elsewhere.queries.environment("task_1") == {}
    elsewhere.close()


def test_an_environment_that_cannot_be_stored_is_one_sentence(url: str, tmp_path: Path) -> None:
    (tmp_path / "environments").touch()
    ledger = open_postgres_ledger(url, str(tmp_path), HOST_ID)
    with pytest.raises(LedgerUnavailable, match="environments"):
        submit(ledger, "task_a")
    assert ledger.queries.get("task_a") is None
    ledger.close()


# -- connections


def test_a_lost_connection_is_replaced_without_an_error(db: PostgresDatabase, postgres_server: PostgresServer) -> None:
    for _ in range(2):
        assert postgres_server.terminate_connections("test_postgres") >= 1
        assert db.one(COUNT) == (0,)
    postgres_server.terminate_connections("test_postgres")
    with db.transaction():
        db.write(ADD, ("a", 1))
    assert db.one(COUNT) == (1,)


def test_a_connection_that_is_lost_inside_a_transaction_ends_it(db: PostgresDatabase, postgres_server: PostgresServer) -> None:
    with pytest.raises(LedgerUnavailable) as failed, db.transaction():
        db.write(ADD, ("a", 1))
        postgres_server.terminate_connections("test_postgres")
        db.write(ADD, ("b", 1))
    assert "test_postgres" in str(failed.value)
    assert db.one(COUNT) == (0,)


def test_a_transaction_that_only_adds_rows_is_repeated_after_a_lost_connection(
    db: PostgresDatabase, postgres_server: PostgresServer
) -> None:
    with db.transaction():
        postgres_server.terminate_connections("test_postgres")
        db.write_later(ADD, ("a", 1))
        db.write_later(ADD, ("b", 1))
    assert db.one(COUNT) == (2,)


def test_changes_that_nobody_reads_need_no_round_trip_of_their_own(db: PostgresDatabase) -> None:
    exchanges: list[bytes] = []
    exchange = db._exchange
    db._exchange = lambda statement, values: exchanges.append(statement) or exchange(statement, values)  # type: ignore[func-returns-value,method-assign]
    with db.transaction():
        db.write_later(ADD, ("a", 1))
        assert db.one(COUNT) == (1,)  # a statement sees what was changed before it
        db.write_later(ADD, ("b", 1))
        db.write_later(ADD, ("c", 1))
    assert exchanges == [COUNT.encode(), b"COMMIT"]
    assert db.one(COUNT) == (3,)


def test_a_change_that_fails_later_fails_its_whole_transaction(db: PostgresDatabase) -> None:
    for error, name in ((LedgerUnavailable, "a"), (UnicodeEncodeError, "\ud800")):
        with pytest.raises(error), db.transaction():
            db.write_later(ADD, ("a", 1))
            db.write_later(ADD, (name, 2))
            db.one(COUNT)
        with pytest.raises(error), db.transaction():
            db.write_later(ADD, ("a", 1))
            db.write_later(ADD, (name, 2))
    assert db.one(COUNT) == (0,)
    with db.transaction():
        db.write(ADD, ("a", 1))
    assert db.one(COUNT) == (1,)


def test_a_transaction_in_which_nothing_happens_is_not_sent(db: PostgresDatabase) -> None:
    db.close()
    with db.transaction():
        pass
    assert db._connection.closed


def test_a_connection_that_is_lost_before_the_commit_stores_nothing(db: PostgresDatabase, postgres_server: PostgresServer) -> None:
    with pytest.raises(LedgerUnavailable, match="the connection was lost while a change was stored"), db.transaction():
        db.write(ADD, ("a", 1))
        postgres_server.terminate_connections("test_postgres")
    assert db.one(COUNT) == (0,)


def test_a_server_that_is_away_is_one_sentence_with_its_address(tmp_path: Path) -> None:
    with pytest.raises(LedgerUnavailable) as failed:
        PostgresDatabase(f"postgresql://anna:secret@/ledger?host={tmp_path}&sslmode=disable")
    text = str(failed.value)
    assert (
        text.startswith(f"Cannot reach the ledger postgresql://anna@/ledger?host={tmp_path}: ")
        and text.endswith("No such file or directory.")
        and "secret" not in text
    )


def test_writers_wait_for_each_other(db: PostgresDatabase, url: str) -> None:
    other, order = PostgresDatabase(url), []

    def write() -> None:
        with other.transaction():
            order.append(other.one(COUNT))

    with db.transaction():
        db.write(ADD, ("a", 1))
        thread = threading.Thread(target=write)
        thread.start()
        waiting = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        wait_until(lambda: db.one(waiting), "the other writer to wait")
        order.append("first")
    thread.join()
    other.close()
    assert order == ["first", (1,)]


def test_a_writer_does_not_wait_for_ever(db: PostgresDatabase, url: str) -> None:
    other = PostgresDatabase(f"{url}&options=-c%20lock_timeout%3D50ms")
    with db.transaction():
        db.write(ADD, ("a", 1))
        with pytest.raises(LedgerUnavailable, match="another process has kept it locked for"), other.transaction():
            other.write(ADD, ("b", 1))
    other.close()


def test_a_client_that_is_stopped_inside_a_transaction_does_not_hold_the_others(url: str, db: PostgresDatabase) -> None:
    assert db.one("SELECT current_setting('idle_in_transaction_session_timeout')") == ("5s",)
    stopped = PostgresDatabase(f"{url}&options=-c%20idle_in_transaction_session_timeout%3D300ms")
    stopped.begin(True)
    stopped.write(ADD, ("a", 1))
    with db.transaction():
        assert db.one(COUNT) == (0,)
    with pytest.raises(LedgerUnavailable):
        stopped.write(ADD, ("b", 1))
    stopped.close()


def test_an_ordinary_transaction_is_durable_and_another_one_is_not(db: PostgresDatabase) -> None:
    commit = "SELECT current_setting('synchronous_commit')"
    db.execute("SET synchronous_commit = on")
    with db.transaction():
        assert db.one(commit) == ("on",)
    with db.transaction(durable=False):
        assert db.one(commit) == ("off",)
    assert db.one(commit) == ("on",)


def test_ids_are_given_in_the_order_of_commits(url: str, tmp_path: Path) -> None:
    """A reader that remembers the last event it has seen misses none."""
    ledgers: list[Ledger] = [open_postgres_ledger(url, str(tmp_path), HOST_ID) for _ in range(3)]
    threads = [
        threading.Thread(target=lambda ledger=ledger, n=n: [submit(ledger, f"task_{n}_{i}") for i in range(10)])
        for n, ledger in enumerate(ledgers)
    ]
    reader, seen, last = open_postgres_ledger(url, str(tmp_path), HOST_ID), [], 0
    for thread in threads:
        thread.start()
    running = True
    while running:
        running = any(thread.is_alive() for thread in threads)
        for event in reader.events.events(last, 1000):
            seen.append(event.event_id)
            last = event.event_id
    assert seen == [event.event_id for event in reader.events.events(0, 1000)] and len(seen) >= 30
    for ledger in (*ledgers, reader):
        ledger.close()
