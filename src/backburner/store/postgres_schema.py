"""The tables of a ledger on Postgres: created and upgraded by `backburner migrate`, never by opening.
So are the job queue and the triggers of `postgres_dispatch.py`.

`_BASELINE` is the schema of version 18. From then on, the numbered migrations of `migrations.py` apply to both databases; they are
written in the words of SQLite, and `translated` replaces those that Postgres does not know. Text is compared byte by byte
(COLLATE "C"), as in SQLite, whatever the collation of the database.
"""

import itertools
import re
import time
from typing import NamedTuple

import psycopg

from backburner.core.errors import BadInput, LedgerTooNew, LedgerUnavailable
from backburner.core.ledger_url import shown
from backburner.core.queues import BASES
from backburner.store import postgres_dispatch, postgres_roles
from backburner.store.migrations import LEAST_VERSION, MIGRATIONS, VERSION
from backburner.store.postgres import SCHEMA, WRITER_LOCK, PostgresDatabase, connect, unavailable
from backburner.store.postgres_requests import STATEMENTS

OLDEST_SERVER = 15
_BASELINE_VERSION = 18
_HOSTS_VERSION = 19  # before, a ledger belonged to one home
_VERSIONS = "CREATE TABLE IF NOT EXISTS schema (version INTEGER NOT NULL, host_id TEXT NOT NULL, home TEXT NOT NULL)"


class Migrated(NamedTuple):
    """What a migration did: the schema versions before and after it. Version 0 means that there were no tables."""

    address: str
    before: int
    after: int
    has_roles: bool = True  # whether the roles of `postgres_roles.py` exist

    @property
    def create_roles(self) -> str:
        """What an administrator executes to create the roles."""
        return postgres_roles.CREATE_ROLES


def migrate(url: str, *, host_id: str, home: str) -> Migrated:
    """Create or upgrade the tables, in one transaction in which nobody else can write; the home joins the ledger unless it has.

    `home` is `HOSTNAME:PATH`; the name of the host is made from it.
    """
    address = shown(url)
    try:
        with connect(url) as connection:
            require_usable_server(connection, address)
            with connection.transaction():
                connection.execute(f"SELECT pg_advisory_xact_lock({WRITER_LOCK})")
                if not connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (SCHEMA,)).fetchone():
                    connection.execute(f"CREATE SCHEMA {SCHEMA}")
                _execute(connection, _VERSIONS)
                found = connection.execute("SELECT version, host_id, home FROM schema").fetchone()
                before, owner, owner_home = found or (0, "", "")
                if before > VERSION:
                    raise LedgerTooNew(path=address, found=before, known=VERSION)
                if not before:
                    _execute(connection, _BASELINE)
                    connection.execute("INSERT INTO schema (version, host_id, home) VALUES (0, '', '')")
                for number in range(before or _BASELINE_VERSION, VERSION):
                    _execute(connection, MIGRATIONS[number])
                connection.execute(STATEMENTS.encode(), prepare=False)
                if 0 < before < _HOSTS_VERSION:
                    join(connection, owner, owner_home.partition(":")[0])
                    connection.execute(_assign_all_to(owner).encode())
                postgres_dispatch.install(connection)
                connection.execute("ALTER TABLE schema ADD COLUMN IF NOT EXISTS least INTEGER NOT NULL DEFAULT 0")
                connection.execute(
                    "UPDATE schema SET version = %s, least = %s, host_id = %s, home = %s", (VERSION, LEAST_VERSION, host_id, home)
                )
                join(connection, host_id, home.partition(":")[0])
                has_roles = postgres_roles.install(connection)
    except psycopg.Error as error:
        raise unavailable(error, address) from None
    return Migrated(address, before, VERSION, has_roles)


def join_ledger(url: str, host_id: str, name: str, machine: str) -> str:
    """Add a host to a ledger that has tables; returns its name. BadInput if another host has the wanted one."""
    address = shown(url)
    PostgresDatabase(url).close()  # it has the tables of this version
    try:
        with connect(url) as connection:
            require_usable_server(connection, address)
            with connection.transaction():
                connection.execute(f"SELECT pg_advisory_xact_lock({WRITER_LOCK})")
                taken = connection.execute("SELECT 1 FROM hosts WHERE name = %s AND host_id <> %s", (name, host_id)).fetchone()
                if taken:
                    raise BadInput(f"Another host of {address} is already named {name}; choose another with --name.")
                found = join(connection, host_id, name or machine)
                if name and found != name:
                    connection.execute("UPDATE hosts SET name = %s WHERE host_id = %s", (name, host_id))
                return name or found
    except psycopg.Error as error:
        raise unavailable(error, address) from None


def join(connection: psycopg.Connection, host_id: str, name: str) -> str:
    """Add a host unless it is known, inside the caller's transaction; returns its name, with a number if the name is taken."""
    found = connection.execute("SELECT name FROM hosts WHERE host_id = %s", (host_id,)).fetchone()
    if found:
        return found[0]
    taken = {row[0] for row in connection.execute("SELECT name FROM hosts")}
    wanted = name or "host"
    name = next(name for n in itertools.count(1) if (name := wanted if n == 1 else f"{wanted}-{n}") not in taken)
    now = time.time_ns() // 1_000_000
    added = "INSERT INTO hosts (host_id, name, state, changed_at, seen_at) VALUES (%s, %s, 'left', %s, %s)"
    connection.execute(added, (host_id, name, now, now))
    return name


def _assign_all_to(host_id: str) -> str:
    """Statements for a ledger that belonged to one home: everything in it is of that host."""
    host = "'" + re.sub("[^0-9A-Za-z]", "", host_id) + "'"
    bases = ", ".join(f"'{base}'" for base in BASES)
    return f"""
        UPDATE tasks SET origin_host = {host};
        UPDATE runs SET host = {host} WHERE started_at IS NOT NULL OR runner NOT IN ({bases});
        UPDATE runs SET runner = runner || '@' || {host} WHERE ended_at IS NULL AND runner IN ({bases});
        UPDATE sessions SET host = {host};
        UPDATE grants SET project = {host} || ':' || project;
        UPDATE interactive_leases SET host = {host}"""


def require_usable_server(connection: psycopg.Connection, address: str) -> None:
    """LedgerUnavailable if the server is too old, or its database stores text in another encoding than UTF-8."""
    if connection.info.server_version < OLDEST_SERVER * 10_000:
        version = connection.info.parameter_status("server_version")
        raise LedgerUnavailable(f"the server is Postgres {version}; {OLDEST_SERVER} or newer is needed", path=address)
    if (encoding := connection.info.parameter_status("server_encoding")) != "UTF8":
        raise LedgerUnavailable(
            f"its encoding is {encoding}; create the database with: createdb --encoding UTF8 --template template0", path=address
        )


def translated(text: str) -> str:
    """A migration in the words of Postgres."""
    text = re.sub(r"\bINTEGER PRIMARY KEY( AUTOINCREMENT)?", "BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY", text)
    text = re.sub(r"\bINTEGER\b", "BIGINT", re.sub(r"\bBLOB\b", "BYTEA", text))
    return re.sub(r"\bTEXT\b", 'TEXT COLLATE "C"', text)


def _execute(connection: psycopg.Connection, text: str) -> None:
    connection.execute(translated(text).encode(), prepare=False)


_BASELINE = """
CREATE TABLE environments (
    environment_id INTEGER PRIMARY KEY,
    checksum INTEGER NOT NULL,
    body TEXT NOT NULL
);
CREATE TABLE tasks (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    task_id TEXT NOT NULL UNIQUE CHECK (task_id <> ''),
    type TEXT NOT NULL CHECK (type IN ('command', 'agent')),
    kind TEXT NOT NULL CHECK (kind IN ('oneshot', 'scheduled', 'event')),
    state TEXT NOT NULL CHECK (state IN ('proposed', 'rejected', 'expired', 'active', 'paused', 'done', 'failed', 'cancelled')),
    name TEXT,
    description TEXT NOT NULL,
    command TEXT NOT NULL,
    shell INTEGER NOT NULL CHECK (shell IN (0, 1)),
    cwd TEXT NOT NULL,
    project TEXT NOT NULL,
    env TEXT NOT NULL,
    timeout_ms INTEGER CHECK (timeout_ms > 0),
    umask INTEGER,
    restarted_from TEXT,
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    approved_by TEXT CHECK (approved_by IN ('auto', 'user')),
    approved_via TEXT,
    approved_at INTEGER,
    reasons TEXT NOT NULL,
    run_count INTEGER NOT NULL DEFAULT 0 CHECK (run_count >= 0),
    environment_id INTEGER REFERENCES environments (environment_id),
    rule TEXT NOT NULL DEFAULT '',
    fingerprint TEXT,
    batch TEXT,
    key TEXT,
    priority INTEGER NOT NULL DEFAULT 0 CHECK (priority BETWEEN -1 AND 1),
    after TEXT NOT NULL DEFAULT '[]',
    start_at INTEGER,
    limits TEXT NOT NULL DEFAULT '{}',
    stdin INTEGER NOT NULL DEFAULT 0 CHECK (stdin IN (0, 1)),
    ready_when TEXT,
    restarts INTEGER NOT NULL DEFAULT 0 CHECK (restarts >= 0),
    trace_id TEXT NOT NULL DEFAULT '',
    span_id TEXT NOT NULL DEFAULT '',
    parent_span_id TEXT,
    session TEXT,
    agent TEXT,
    prompt TEXT NOT NULL DEFAULT '',
    message TEXT,
    budget TEXT NOT NULL DEFAULT '{}',
    retrieved_at INTEGER,
    schedule TEXT NOT NULL DEFAULT '{}',
    notify TEXT CHECK (notify IN ('always', 'on_change', 'on_failure', 'never')),
    agent_options TEXT NOT NULL DEFAULT '{}',
    lane TEXT NOT NULL DEFAULT '',
    next_run_at INTEGER CHECK (next_run_at IS NULL OR state = 'active'),
    fired INTEGER NOT NULL DEFAULT 0,
    failures INTEGER NOT NULL DEFAULT 0,
    result_hash TEXT,
    precheck_hash TEXT,
    paused_because TEXT,
    counted_from INTEGER,
    channels TEXT NOT NULL DEFAULT '[]',
    source TEXT NOT NULL DEFAULT '{}',
    opened TEXT,
    pause_kind TEXT,
    chat INTEGER NOT NULL DEFAULT 0,
    client TEXT,
    parent_task TEXT,
    parent_run TEXT,
    tty INTEGER NOT NULL DEFAULT 0 CHECK (tty IN (0, 1)),
    sandbox TEXT,
    -- a task has runs only if it was approved
    CHECK ((approved_by IS NULL) = (state IN ('proposed', 'rejected', 'expired'))),
    CHECK ((approved_by IS NULL) = (approved_at IS NULL)),
    CHECK (approved_by IS NOT NULL OR run_count = 0)
);
CREATE TABLE events (
    event_id INTEGER PRIMARY KEY AUTOINCREMENT,
    at INTEGER NOT NULL,
    kind TEXT NOT NULL,
    task_id TEXT,
    run_id TEXT,
    data TEXT NOT NULL
);
CREATE TABLE dependencies (
    task_id TEXT NOT NULL REFERENCES tasks (task_id) ON DELETE CASCADE,
    after_id TEXT NOT NULL,
    PRIMARY KEY (task_id, after_id),
    CHECK (task_id <> after_id)
);
CREATE TABLE cursors (
    name TEXT NOT NULL PRIMARY KEY,
    position INTEGER NOT NULL
);
CREATE TABLE sessions (
    session_id TEXT NOT NULL PRIMARY KEY CHECK (session_id <> ''),
    client TEXT NOT NULL,
    project TEXT NOT NULL,
    process TEXT,
    created_at INTEGER NOT NULL,
    seen_at INTEGER NOT NULL
);
CREATE TABLE memory (
    project TEXT NOT NULL,
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    set_at INTEGER NOT NULL,
    PRIMARY KEY (project, key)
);
CREATE TABLE chains (
    task_id TEXT NOT NULL PRIMARY KEY REFERENCES tasks (task_id) ON DELETE CASCADE,
    after_id TEXT NOT NULL,
    changed INTEGER NOT NULL DEFAULT 0 CHECK (changed IN (0, 1))
);
CREATE TABLE interactive_leases (
    process TEXT NOT NULL PRIMARY KEY,
    lane TEXT NOT NULL,
    task_id TEXT,
    since INTEGER NOT NULL
);
CREATE TABLE runs (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    run_id TEXT NOT NULL UNIQUE,
    task_id TEXT NOT NULL REFERENCES tasks (task_id) ON DELETE CASCADE,
    n INTEGER NOT NULL CHECK (n <> 0 AND (n > 0 OR state = 'skipped')),
    state TEXT NOT NULL CHECK (state IN ('pending', 'running', 'waiting', 'resumed', 'completed', 'failed', 'cancelled', 'skipped')),
    result TEXT CHECK (result IN ('exit', 'signal', 'timeout', 'lost', 'ambiguous', 'unstarted', 'dependency', 'denied', 'budget')),
    exit_code INTEGER,
    error TEXT,
    summary TEXT,
    lines INTEGER,
    folder TEXT NOT NULL,
    process_tag TEXT NOT NULL,
    trace_id TEXT NOT NULL,
    span_id TEXT NOT NULL,
    runner TEXT NOT NULL,
    owner TEXT,
    process TEXT,
    created_at INTEGER NOT NULL,
    started_at INTEGER,
    ended_at INTEGER CHECK (ended_at >= started_at),
    cancel_requested_at INTEGER,
    priority INTEGER NOT NULL DEFAULT 0,
    blocked INTEGER NOT NULL DEFAULT 0 CHECK (blocked IN (0, 1)),
    due_at INTEGER,
    ready_at INTEGER CHECK (ready_at IS NULL OR started_at IS NOT NULL),
    message TEXT,
    wait_target TEXT,
    reply TEXT CHECK (reply IN ('yes', 'no')),
    extensions INTEGER NOT NULL DEFAULT 0,
    usage TEXT NOT NULL DEFAULT '{}',
    cause TEXT NOT NULL DEFAULT '',
    slot INTEGER,
    origin TEXT,
    problem TEXT,
    digest TEXT,
    payload TEXT,
    wait_fingerprint TEXT,
    skipped_before INTEGER NOT NULL DEFAULT 0,
    wait_kind TEXT,
    sandbox TEXT,
    notes TEXT,
    UNIQUE (task_id, n),
    -- an ended run has an end and a result, a live one has neither
    CHECK ((ended_at IS NULL) = (state IN ('pending', 'running', 'waiting', 'resumed'))),
    CHECK ((result IS NULL) = (ended_at IS NULL)),
    -- an active run was started by a process
    CHECK (state NOT IN ('running', 'resumed') OR (started_at IS NOT NULL AND owner IS NOT NULL)),
    CHECK (state <> 'pending' OR (started_at IS NULL AND owner IS NULL)),
    CHECK (state <> 'completed' OR result = 'exit')
);
CREATE TABLE notices (
    notice_id INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT NOT NULL UNIQUE,
    task_id TEXT NOT NULL REFERENCES tasks (task_id) ON DELETE CASCADE,
    run_id TEXT,
    project TEXT NOT NULL,
    channel TEXT NOT NULL,
    text TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    acknowledged_at INTEGER,
    leased_until INTEGER,
    priority INTEGER NOT NULL DEFAULT 0,
    attempts INTEGER NOT NULL DEFAULT 0,
    next_attempt_at INTEGER,
    error TEXT,
    failed_at INTEGER,
    external_id TEXT,
    kind TEXT NOT NULL DEFAULT 'ended',
    recipient TEXT NOT NULL DEFAULT 'person'
);
CREATE TABLE source_states (
    task_id TEXT NOT NULL PRIMARY KEY REFERENCES tasks (task_id) ON DELETE CASCADE,
    state TEXT NOT NULL DEFAULT '{}',
    waiting TEXT,
    broken TEXT
);
CREATE TABLE received_webhooks (
    webhook TEXT NOT NULL,
    delivery TEXT NOT NULL,
    at INTEGER NOT NULL,
    PRIMARY KEY (webhook, delivery)
);
CREATE TABLE user_activity (
    interface TEXT NOT NULL PRIMARY KEY,
    at INTEGER NOT NULL
);
CREATE TABLE refusals (
    project TEXT NOT NULL,
    name TEXT NOT NULL,
    digest TEXT NOT NULL,
    why TEXT NOT NULL,
    at INTEGER NOT NULL
);
CREATE TABLE grants (
    grant_id INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL CHECK (kind IN ('trust', 'always', 'connect')),
    project TEXT NOT NULL,
    command TEXT NOT NULL,
    via TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    UNIQUE (kind, project, command),
    CHECK ((kind = 'trust') = (command = '[]'))
);
CREATE TABLE home (
    home_id TEXT NOT NULL PRIMARY KEY
);
CREATE TABLE devices (
    device_id TEXT NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    credential_hash TEXT NOT NULL UNIQUE,
    paired_via TEXT NOT NULL,
    address TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    seen_at INTEGER NOT NULL,
    revoked_at INTEGER
);
CREATE TABLE pairings (
    pairing_id TEXT NOT NULL PRIMARY KEY,
    commitment TEXT NOT NULL,
    name TEXT NOT NULL,
    address TEXT NOT NULL,
    number TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    device_id TEXT REFERENCES devices (device_id)
);
CREATE TABLE passkeys (
    passkey_id TEXT NOT NULL PRIMARY KEY,
    device_id TEXT NOT NULL REFERENCES devices (device_id),
    name TEXT NOT NULL,
    rp_id TEXT NOT NULL,
    credential TEXT NOT NULL,
    sign_count INTEGER NOT NULL,
    number TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    active_at INTEGER,
    used_at INTEGER,
    removed_at INTEGER
);
CREATE TABLE challenges (
    nonce TEXT NOT NULL PRIMARY KEY,
    device_id TEXT NOT NULL REFERENCES devices (device_id),
    purpose TEXT NOT NULL CHECK (purpose IN ('approve', 'passkey', 'register')),
    target TEXT NOT NULL,
    seen TEXT NOT NULL,
    choice TEXT NOT NULL,
    expires_at INTEGER NOT NULL,
    used_at INTEGER
);
CREATE TABLE approval_attempts (
    attempt_id INTEGER PRIMARY KEY AUTOINCREMENT,
    at INTEGER NOT NULL,
    outcome TEXT NOT NULL CHECK (outcome IN ('verified', 'approved', 'refused')),
    task_id TEXT,
    device_id TEXT,
    via TEXT NOT NULL,
    reason TEXT,
    text TEXT,
    proof TEXT,
    passkey_id TEXT,
    origin TEXT
);
CREATE INDEX environments_by_checksum ON environments (checksum);
CREATE INDEX tasks_by_project ON tasks (project, seq);
CREATE INDEX tasks_by_name ON tasks (name) WHERE name IS NOT NULL;
CREATE INDEX proposals ON tasks (expires_at) WHERE state = 'proposed';
CREATE INDEX tasks_by_batch ON tasks (batch, seq) WHERE batch IS NOT NULL;
CREATE UNIQUE INDEX tasks_by_key ON tasks (project, key) WHERE key IS NOT NULL;
CREATE INDEX dependencies_by_after ON dependencies (after_id);
CREATE INDEX events_cleared ON events (task_id) WHERE kind = 'task_cleared';
CREATE INDEX tasks_by_session ON tasks (session, seq) WHERE session IS NOT NULL;
CREATE INDEX tasks_due ON tasks (next_run_at) WHERE next_run_at IS NOT NULL;
CREATE INDEX chains_by_after ON chains (after_id);
CREATE INDEX runs_ended ON runs (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX runs_waiting ON runs (wait_target) WHERE wait_target IS NOT NULL;
CREATE UNIQUE INDEX runs_by_slot ON runs (task_id, slot) WHERE cause = 'schedule';
CREATE INDEX notices_by_task ON notices (task_id);
CREATE INDEX notices_unread ON notices (channel, notice_id) WHERE acknowledged_at IS NULL;
CREATE INDEX tasks_watched ON tasks (seq) WHERE source <> '{}';
CREATE INDEX notices_sent ON notices (channel, external_id) WHERE external_id IS NOT NULL;
CREATE INDEX tasks_by_parent ON tasks (parent_task) WHERE parent_task IS NOT NULL;
CREATE INDEX notices_outgoing ON notices (notice_id) WHERE acknowledged_at IS NULL AND failed_at IS NULL AND recipient = 'channel';
CREATE INDEX notices_failed ON notices (notice_id) WHERE failed_at IS NOT NULL AND acknowledged_at IS NULL;
CREATE INDEX refusals_by_project ON refusals (project, at);
CREATE INDEX tasks_recurring ON tasks (state, seq) WHERE schedule <> '{}';
CREATE INDEX runs_active ON runs (seq) WHERE ended_at IS NULL AND state <> 'pending';
CREATE INDEX runs_queue ON runs (runner, blocked, (due_at IS NOT NULL), priority DESC, seq) WHERE state = 'pending';
CREATE INDEX runs_due ON runs (runner, due_at) WHERE state = 'pending' AND due_at IS NOT NULL;
CREATE INDEX runs_failed_in_sandbox ON runs (task_id) WHERE problem = 'sandbox';
CREATE INDEX runs_unsuccessful ON runs (state, seq) WHERE state IN ('failed', 'cancelled');
CREATE INDEX tasks_unapproved ON tasks (state, seq) WHERE state IN ('proposed', 'rejected', 'expired');
CREATE INDEX tasks_by_trace ON tasks (trace_id);
CREATE INDEX tasks_by_span ON tasks (span_id);
CREATE INDEX tasks_by_parent_span ON tasks (parent_span_id) WHERE parent_span_id IS NOT NULL;
CREATE INDEX runs_by_span ON runs (span_id);
CREATE INDEX events_decided ON events (task_id) WHERE kind IN ('run_requeued', 'step_decided');
CREATE INDEX approval_attempts_by_task ON approval_attempts (task_id) WHERE task_id IS NOT NULL;
"""
