"""What only a ledger on Postgres has besides its tables: the job queue of Procrastinate, and triggers that hand out runs and wake other hosts.

Triggers rather than Python, so that no transition can forget them, and so that a program that submits a task need not load Procrastinate.
A job is only a hint that a run may start: it contains the id of the run, and the guarded transition of the run decides.

A run in the queue of a lane (`engine/gpu`) is offered as a job to every host that serves the lane. A run in the queue of one host
(`engine@HOST`) needs no job, because nobody else may start it: its host is woken and claims it. Runs of embedding programs have neither
character in their queue.

Channels: `backburner` after every event; `backburner:HOST` if that host has something to do; `backburner:engines` if a time has changed
that any engine may have to observe. The payload is the host of the writer, whose processes wake each other without the server.
"""

from importlib.util import find_spec
from pathlib import Path

import psycopg

from backburner.store.postgres import JOBS_SCHEMA, SCHEMA

# Postgres limits the name of a channel to 63 bytes, and Procrastinate's is 23 bytes longer than the name of the queue.
_LONGEST_QUEUE = 40
_DEFINER = f"SECURITY DEFINER SET search_path = {SCHEMA}, {JOBS_SCHEMA}, pg_temp"


def install(connection: psycopg.Connection) -> None:
    """Create or upgrade the job queue and the triggers, in the transaction of the caller."""
    _install_procrastinate(connection)
    connection.execute(_FUNCTIONS.encode(), prepare=False)
    connection.execute(_TRIGGERS.encode(), prepare=False)


def _install_procrastinate(connection: psycopg.Connection) -> None:
    """Create Procrastinate's tables and functions, or apply those of its migrations that are newer than the last one that was applied."""
    connection.execute("ALTER TABLE schema ADD COLUMN IF NOT EXISTS procrastinate TEXT COLLATE \"C\" NOT NULL DEFAULT ''")
    row = connection.execute("SELECT procrastinate FROM schema").fetchone()
    applied = row[0] if row else ""
    folder = _sql_folder()
    migrations = sorted((folder / "migrations").glob("*.sql"), key=lambda path: path.name)
    if not applied:
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {JOBS_SCHEMA}")
        missing = [folder / "schema.sql"]
    else:
        missing = [path for path in migrations if path.name > applied]
    connection.execute(f"SET LOCAL search_path = {JOBS_SCHEMA}")
    for path in missing:
        connection.execute(path.read_bytes(), prepare=False)
    connection.execute(f"SET LOCAL search_path = {SCHEMA}")
    connection.execute("UPDATE schema SET procrastinate = %s", (max(applied, migrations[-1].name),))


def _sql_folder() -> Path:
    """Procrastinate's SQL files. The package is not imported: that takes long, and they are all that is needed."""
    found = find_spec("procrastinate")
    assert found and found.origin
    return Path(found.origin).parent / "sql"


_FUNCTIONS = f"""
CREATE OR REPLACE FUNCTION announce(channel TEXT) RETURNS VOID LANGUAGE sql AS $$
    SELECT pg_notify(channel, coalesce(current_setting('{SCHEMA}.host', TRUE), ''))
$$;

-- the queue of Procrastinate for a lane
CREATE OR REPLACE FUNCTION dispatch_queue(runner TEXT) RETURNS TEXT LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT CASE WHEN octet_length(runner) <= {_LONGEST_QUEUE} THEN runner
        ELSE left(encode(sha256(convert_to(runner, 'UTF8')), 'hex'), {_LONGEST_QUEUE}) END
$$;

-- adds a job for a run, unless there is one that nobody has taken
CREATE OR REPLACE FUNCTION offer_run(run_id TEXT, runner TEXT, priority BIGINT) RETURNS VOID LANGUAGE plpgsql {_DEFINER} AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM procrastinate_jobs j WHERE j.queueing_lock = offer_run.run_id AND j.status = 'todo') THEN
        PERFORM procrastinate_defer_jobs_v1(ARRAY[ROW(
            dispatch_queue(runner), 'run', priority, NULL, run_id, jsonb_build_object('run_id', run_id), NULL
        )::procrastinate_job_to_defer_v1]);
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION dispatch_run() RETURNS TRIGGER LANGUAGE plpgsql {_DEFINER} AS $$
DECLARE
    changed BOOLEAN := TG_OP = 'INSERT' OR ROW(NEW.state, NEW.blocked, NEW.due_at, NEW.runner, NEW.priority)
        IS DISTINCT FROM ROW(OLD.state, OLD.blocked, OLD.due_at, OLD.runner, OLD.priority);
BEGIN
    IF changed AND TG_OP = 'UPDATE' AND OLD.state = 'pending' AND strpos(OLD.runner, '/') > 0 THEN
        PERFORM procrastinate_cancel_job_v1(id, FALSE, TRUE) FROM procrastinate_jobs WHERE queueing_lock = OLD.run_id AND status = 'todo';
    END IF;
    IF changed AND NEW.state = 'pending' AND NEW.blocked = 0 THEN
        IF strpos(NEW.runner, '/') = 0 THEN
            IF strpos(NEW.runner, '@') > 0 THEN
                PERFORM announce('{SCHEMA}:' || split_part(NEW.runner, '@', 2));
            END IF;
        ELSIF NEW.due_at IS NOT NULL THEN
            PERFORM announce('{SCHEMA}:engines');
        ELSE
            PERFORM offer_run(NEW.run_id, NEW.runner, NEW.priority);
        END IF;
    END IF;
    IF TG_OP = 'UPDATE' AND OLD.cancel_requested_at IS NULL AND NEW.cancel_requested_at IS NOT NULL THEN
        IF strpos(NEW.runner, '/') > 0 THEN
            PERFORM procrastinate_cancel_job_v1(id, TRUE, TRUE) FROM procrastinate_jobs
                WHERE queueing_lock = NEW.run_id AND status = 'doing' AND worker_id IS NOT NULL;
        END IF;
        IF NEW.host <> '' THEN
            PERFORM announce('{SCHEMA}:' || NEW.host);
        END IF;
    END IF;
    RETURN NULL;
END
$$;

-- Takes back the jobs that a worker has and does not know of, because the connection was lost while it fetched them;
-- or, without a worker, those of workers that have not been heard of. A run that nobody has begun is offered again.
CREATE OR REPLACE FUNCTION take_back_jobs(worker BIGINT, known BIGINT[]) RETURNS VOID LANGUAGE plpgsql {_DEFINER} AS $$
DECLARE
    job RECORD;
BEGIN
    FOR job IN
        SELECT j.id, r.run_id, r.runner, r.priority, r.state = 'pending' AND r.blocked = 0 AND r.due_at IS NULL AS is_open
            FROM procrastinate_jobs j
            LEFT JOIN procrastinate_workers w ON w.id = j.worker_id
            LEFT JOIN runs r ON r.run_id = j.queueing_lock AND r.ended_at IS NULL
            WHERE j.status = 'doing' AND CASE WHEN worker IS NULL
                THEN (w.id IS NULL OR w.last_heartbeat < now() - INTERVAL '70 seconds') AND (r.run_id IS NULL OR r.state = 'pending')
                ELSE j.worker_id = worker AND j.id <> ALL (known) END
            FOR UPDATE OF j
    LOOP
        DELETE FROM procrastinate_jobs WHERE id = job.id;
        IF job.is_open AND strpos(job.runner, '/') > 0 THEN
            PERFORM offer_run(job.run_id, job.runner, job.priority);
        END IF;
    END LOOP;
END
$$;

CREATE OR REPLACE FUNCTION announce_change() RETURNS TRIGGER LANGUAGE plpgsql {_DEFINER} AS $$
BEGIN
    PERFORM announce('{SCHEMA}');
    RETURN NULL;
END
$$;

-- A slot that is due may have waited for the end of this run, which the host that fires slots has not observed.
CREATE OR REPLACE FUNCTION announce_waiting_slot() RETURNS TRIGGER LANGUAGE plpgsql {_DEFINER} AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM tasks WHERE task_id = NEW.task_id AND next_run_at <= NEW.ended_at) THEN
        PERFORM announce('{SCHEMA}:engines');
    END IF;
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION announce_time() RETURNS TRIGGER LANGUAGE plpgsql {_DEFINER} AS $$
BEGIN
    PERFORM announce('{SCHEMA}:engines');
    RETURN NULL;
END
$$;
"""
_TRIGGERS = """
CREATE OR REPLACE TRIGGER dispatch_new AFTER INSERT ON runs FOR EACH ROW
    WHEN (NEW.state = 'pending' AND NEW.blocked = 0) EXECUTE FUNCTION dispatch_run();
CREATE OR REPLACE TRIGGER dispatch_changed AFTER UPDATE OF state, blocked, due_at, runner, priority, cancel_requested_at ON runs FOR EACH ROW
    WHEN (OLD.state = 'pending' OR NEW.state = 'pending' OR OLD.cancel_requested_at IS DISTINCT FROM NEW.cancel_requested_at)
    EXECUTE FUNCTION dispatch_run();
CREATE OR REPLACE TRIGGER announce_waiting_slot AFTER UPDATE OF ended_at ON runs FOR EACH ROW
    WHEN (OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL AND NEW.cause <> '') EXECUTE FUNCTION announce_waiting_slot();
CREATE OR REPLACE TRIGGER announce_change AFTER INSERT ON events FOR EACH STATEMENT EXECUTE FUNCTION announce_change();
CREATE OR REPLACE TRIGGER announce_new_time AFTER INSERT ON tasks FOR EACH ROW
    WHEN (NEW.next_run_at IS NOT NULL) EXECUTE FUNCTION announce_time();
CREATE OR REPLACE TRIGGER announce_time AFTER UPDATE OF next_run_at ON tasks FOR EACH ROW
    WHEN (OLD.next_run_at IS DISTINCT FROM NEW.next_run_at AND NEW.next_run_at IS NOT NULL) EXECUTE FUNCTION announce_time();
"""
