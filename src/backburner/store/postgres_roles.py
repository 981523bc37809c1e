"""Who may change what in a ledger on Postgres: the roles of people, workers and agents, as privileges and triggers.

A login is a person, a worker or an agent by its membership in a group role. The owner of the tables may do everything, so a ledger
without roles serves one trusted user. The triggers check the user that logged in (`session_user`), which no statement can change, and
their functions find tables and operators by fixed names. Docs: docs/hosts.md; reasons: decision record 0036.
"""

from collections.abc import Sequence

import psycopg

from backburner.store.postgres import JOBS_SCHEMA, SCHEMA

PERSON, WORKER, AGENT = "bb_person", "bb_worker", "bb_agent"
ROLES = (PERSON, WORKER, AGENT)
CREATE_ROLES = "\n".join(f"CREATE ROLE {role} NOLOGIN;" for role in ROLES)

# Tables that only a person changes, and that only the owner does.
_OF_PEOPLE = ("grants", "devices", "pairings", "passkeys", "challenges", "approval_attempts", "home")
_OF_OWNER = ("schema",)
# What an agent that only submits may change besides tasks and runs, which have rules of their own. Reading is allowed everywhere.
_OF_AGENTS = {
    "tasks": "INSERT, UPDATE",
    "runs": "INSERT, UPDATE",
    "events": "INSERT",
    "notices": "INSERT, UPDATE",
    "environments": "INSERT",
    "dependencies": "INSERT, DELETE",
    "chains": "INSERT",
    "sessions": "INSERT, UPDATE",
    "memory": "INSERT, UPDATE, DELETE",
    "refusals": "INSERT, DELETE",
    "user_activity": "INSERT, UPDATE",
    "source_states": "INSERT, UPDATE",
    "host_requests": "INSERT, UPDATE, DELETE",
    "host_responses": "DELETE",
    "hosts": "INSERT",
}
_NEVER_UPDATED = ("events", "environments")

# Columns that change in the life of a task or a run. All others, also those that later versions add, stay as they were stored.
_CHANGING_OF_TASKS = (
    *("state", "approved_by", "approved_via", "approved_at", "fingerprint", "run_count", "retrieved_at", "next_run_at", "expires_at"),
    *("fired", "failures", "result_hash", "precheck_hash", "paused_because", "pause_kind", "counted_from"),
    *("agent", "agent_options", "lane"),
)
# What a person cannot change either: which task it is, who requested it, where, and in which environment.
_IDENTITY_OF_TASKS = (
    *("seq", "task_id", "type", "created_at", "session", "client", "opened", "environment_id", "origin_host", "message", "restarted_from"),
    *("parent_task", "parent_run", "trace_id", "span_id", "parent_span_id"),
)
_CHANGING_OF_RUNS = (
    *("state", "result", "exit_code", "error", "summary", "lines", "runner", "owner", "process", "host", "epoch", "created_at"),
    *("started_at", "ended_at", "cancel_requested_at", "blocked", "due_at", "ready_at", "reply", "extensions", "usage", "problem"),
    *("origin", "digest", "wait_kind", "wait_target", "wait_fingerprint", "sandbox", "notes"),
)
_CHANGING_OF_NOTICES = ("acknowledged_at", "leased_until", "attempts", "next_attempt_at", "error", "failed_at", "external_id")
_EVENTS_OF_PEOPLE = (
    *("task_approved", "task_edited", "budget_extended", "granted", "revoked"),
    *("device_paired", "device_revoked", "passkey_added", "passkey_removed"),
)


def install(connection: psycopg.Connection) -> bool:
    """Create the triggers and give the roles their privileges, inside the caller's transaction; creates the roles if it may.

    False if the roles do not exist and this user cannot create them.
    """
    _execute(connection, _FUNCTIONS)
    for table, text in _guards(connection).items():
        _execute(connection, text)
        _execute(
            connection,
            f"CREATE OR REPLACE TRIGGER zz_guard BEFORE INSERT OR UPDATE OR DELETE ON {SCHEMA}.{table}"
            f" FOR EACH ROW EXECUTE FUNCTION {SCHEMA}.guard_{table}()",
        )
    existing = {row[0] for row in connection.execute("SELECT rolname FROM pg_roles WHERE rolname = ANY(%s)", (list(ROLES),))}
    for role in ROLES:
        if role not in existing:
            if connection.execute("SELECT rolsuper OR rolcreaterole FROM pg_roles WHERE rolname = current_user").fetchone() != (True,):
                return False
            _execute(connection, f"CREATE ROLE {role} NOLOGIN")
    for text in _privileges(_tables(connection)):
        _execute(connection, text)
    return True


def _execute(connection: psycopg.Connection, text: str) -> None:
    connection.execute(text.encode(), prepare=False)


def _tables(connection: psycopg.Connection) -> Sequence[str]:
    found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s ORDER BY tablename", (SCHEMA,))
    return [row[0] for row in found]


def _privileges(tables: Sequence[str]) -> Sequence[str]:
    everybody = ", ".join(ROLES)
    texts = [
        f"GRANT USAGE ON SCHEMA {SCHEMA} TO {everybody}",
        f"REVOKE ALL ON ALL TABLES IN SCHEMA {SCHEMA} FROM PUBLIC, {everybody}",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA {SCHEMA} TO {everybody}",
        # Jobs are hints, which only workers use; for the others, triggers write them.
        f"GRANT USAGE ON SCHEMA {JOBS_SCHEMA} TO {WORKER}",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {JOBS_SCHEMA} TO {WORKER}",
        f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {JOBS_SCHEMA} TO {WORKER}",
    ]
    for table in tables:
        if table in _OF_OWNER:
            continue
        changes = "INSERT, DELETE" if table in _NEVER_UPDATED else "INSERT, UPDATE, DELETE"
        texts.append(f"GRANT {changes} ON {SCHEMA}.{table} TO {PERSON if table in _OF_PEOPLE else f'{PERSON}, {WORKER}'}")
        if of_agents := _OF_AGENTS.get(table):
            texts.append(f"GRANT {of_agents} ON {SCHEMA}.{table} TO {AGENT}")
    return texts


def _guards(connection: psycopg.Connection) -> dict[str, str]:
    """The trigger function of each table that has rules beyond privileges."""

    def changed(table: str, changing: Sequence[str]) -> str:
        """A condition: a column changes that is not among those that may."""
        found = connection.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            (f"{SCHEMA}.{table}",),
        )
        return differ([row[0] for row in found if row[0] not in changing])

    def differ(columns: Sequence[str]) -> str:
        return f"ROW({', '.join(f'NEW.{name}' for name in columns)}) IS DISTINCT FROM ROW({', '.join(f'OLD.{name}' for name in columns)})"

    words = {
        "FIXED_OF_TASKS_CHANGE": changed("tasks", _CHANGING_OF_TASKS),
        "IDENTITY_CHANGES": differ(_IDENTITY_OF_TASKS),
        "FIXED_OF_RUNS_CHANGE": changed("runs", _CHANGING_OF_RUNS),
        "FIXED_OF_NOTICES_CHANGE": changed("notices", _CHANGING_OF_NOTICES),
        "EVENTS_OF_PEOPLE": ", ".join(f"'{kind}'" for kind in _EVENTS_OF_PEOPLE),
    }
    guards = {}
    for table, body in _GUARDS.items():
        for word, text in words.items():
            body = body.replace(f"/*{word}*/", text)
        guards[table] = f"""
            CREATE OR REPLACE FUNCTION {SCHEMA}.guard_{table}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
            SET search_path = pg_catalog, pg_temp AS $guard${body}$guard$"""
    return guards


_FUNCTIONS = f"""
CREATE OR REPLACE FUNCTION {SCHEMA}.is_owner() RETURNS boolean LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS
$$ SELECT pg_has_role(session_user, (SELECT relowner FROM pg_class WHERE oid = '{SCHEMA}.tasks'::regclass), 'MEMBER') $$;

CREATE OR REPLACE FUNCTION {SCHEMA}.is_person() RETURNS boolean LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS
$$ SELECT {SCHEMA}.is_owner() OR EXISTS (SELECT 1 FROM pg_roles WHERE rolname = '{PERSON}' AND pg_has_role(session_user, oid, 'MEMBER')) $$;

CREATE OR REPLACE FUNCTION {SCHEMA}.is_worker() RETURNS boolean LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS
$$ SELECT {SCHEMA}.is_person() OR EXISTS (SELECT 1 FROM pg_roles WHERE rolname = '{WORKER}' AND pg_has_role(session_user, oid, 'MEMBER')) $$;

CREATE OR REPLACE FUNCTION {SCHEMA}.refuse(what text) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS
$$ BEGIN RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege', MESSAGE = what; END $$;
"""

# `person` and `owner` say what is refused to everybody but a person, or but the owner. Membership is looked up only if one is set.
_GUARDS = {
    "tasks": """
DECLARE person text; owner text;
BEGIN
    IF TG_OP = 'DELETE' THEN
        IF OLD.state IN ('proposed', 'active', 'paused') AND NOT EXISTS (SELECT 1 FROM backburner.runs WHERE task_id = OLD.task_id AND runner = 'record') THEN
            person := 'an open task cannot be deleted';
        END IF;
        IF person IS NOT NULL AND NOT backburner.is_person() THEN PERFORM backburner.refuse(person); END IF;
        RETURN OLD;
    END IF;
    IF TG_OP = 'INSERT' THEN
        IF NEW.approved_by = 'user' THEN person := 'only a person can approve a task'; END IF;
    ELSE
        IF ROW(NEW.approved_by, NEW.approved_via, NEW.approved_at) IS DISTINCT FROM ROW(OLD.approved_by, OLD.approved_via, OLD.approved_at) THEN
            person := 'only a person can approve a task';
        ELSIF NEW.fingerprint IS DISTINCT FROM OLD.fingerprint THEN
            person := 'only a person can change what an approval is bound to';
        ELSIF NEW.state <> OLD.state AND OLD.state IN ('proposed', 'rejected', 'expired') AND NOT (OLD.state = 'proposed' AND NEW.state IN ('rejected', 'expired')) THEN
            person := 'only a person can approve a task';
        ELSIF NEW.state <> OLD.state AND NEW.state = 'active' AND OLD.pause_kind = 'budget' OR coalesce(NEW.counted_from, 0) > coalesce(OLD.counted_from, 0) THEN
            person := 'only a person can extend a budget';
        ELSIF OLD.approved_by = 'user' AND ROW(NEW.agent, NEW.agent_options) IS DISTINCT FROM ROW(OLD.agent, OLD.agent_options) THEN
            person := 'only a person can change the agent of a task that a person approved';
        END IF;
        IF /*FIXED_OF_TASKS_CHANGE*/ THEN
            person := 'only a person can edit a task';
            IF NOT (OLD.schedule <> '{}' AND OLD.state IN ('active', 'paused')) OR /*IDENTITY_CHANGES*/ THEN
                owner := 'a stored task cannot be changed';
            END IF;
        END IF;
        IF owner IS NOT NULL AND EXISTS (SELECT 1 FROM backburner.runs WHERE task_id = OLD.task_id AND runner = 'record') THEN owner := NULL; END IF;
    END IF;
    IF owner IS NOT NULL AND NOT backburner.is_owner() THEN PERFORM backburner.refuse(owner); END IF;
    IF person IS NOT NULL AND NOT backburner.is_person() THEN PERFORM backburner.refuse(person); END IF;
    IF person IS NOT NULL AND NEW.approved_by = 'user' AND NEW.approved_via !~ '[@:]' AND current_setting('backburner.host_name', true) <> '' AND NOT backburner.is_owner() THEN
        NEW.approved_via := format('%s@%s:%s', NEW.approved_via, current_setting('backburner.host_name', true), session_user);
    END IF;
    RETURN NEW;
END
""",
    "runs": """
DECLARE person text; owner text; worker text; task record;
BEGIN
    IF TG_OP = 'DELETE' THEN
        IF NOT EXISTS (SELECT 1 FROM backburner.tasks WHERE task_id = OLD.task_id AND (schedule = '{}' OR OLD.ended_at IS NULL)) OR backburner.is_person() THEN
            RETURN OLD;
        END IF;
        PERFORM backburner.refuse('only ended runs of recurring tasks can be deleted');
    END IF;
    IF TG_OP = 'INSERT' THEN
        SELECT approved_by, type, schedule, prompt, restarts, rerun INTO task FROM backburner.tasks WHERE task_id = NEW.task_id;
        IF task.approved_by IS NULL THEN
            owner := 'a task that nobody approved cannot have runs';
        ELSIF NEW.folder LIKE '/%' OR '..' = ANY (string_to_array(NEW.folder, '/')) THEN
            owner := 'the folder of a run is below the home';
        END IF;
        IF NEW.runner <> 'record' AND (NEW.state NOT IN ('pending', 'skipped') OR NEW.reply IS NOT NULL OR NEW.wait_kind IS NOT NULL OR NEW.wait_fingerprint IS NOT NULL OR NEW.extensions <> 0) THEN
            owner := 'a new run is pending';
        END IF;
        IF task.approved_by = 'user' AND NEW.state <> 'skipped' THEN
            IF task.type = 'agent' THEN
                IF coalesce(NEW.message, task.prompt) <> task.prompt AND (NEW.origin IS NOT NULL OR task.schedule <> '{}') THEN
                    person := 'only a person can approve another message';
                END IF;
            ELSIF task.schedule = '{}' AND task.restarts = 0 AND task.rerun = 0 AND NEW.n <> 1 THEN
                person := 'what a person approved runs once';
            END IF;
        END IF;
    ELSE
        IF OLD.runner = 'record' AND NEW.runner = 'record' THEN RETURN NEW; END IF;
        IF /*FIXED_OF_RUNS_CHANGE*/ OR (OLD.runner = 'record') <> (NEW.runner = 'record') THEN
            owner := 'a stored run cannot be changed';
        ELSIF OLD.ended_at IS NOT NULL AND NEW.state <> OLD.state THEN
            owner := 'an ended run cannot start again';
        ELSIF NEW.state = 'waiting' AND OLD.state <> 'waiting' AND NEW.reply IS NOT NULL THEN
            owner := 'a question begins without an answer';
        END IF;
        IF NEW.reply = 'yes' AND (OLD.reply IS DISTINCT FROM 'yes' OR NEW.state = 'pending' AND OLD.state <> 'pending'
                OR NEW.ended_at IS NULL AND ROW(NEW.wait_kind, NEW.wait_target, NEW.wait_fingerprint) IS DISTINCT FROM ROW(OLD.wait_kind, OLD.wait_target, OLD.wait_fingerprint)) THEN
            person := 'only a person can approve a run';
        ELSIF NEW.extensions > OLD.extensions THEN
            person := 'only a person can extend a budget';
        ELSIF OLD.state = 'waiting' AND NEW.state IN ('pending', 'running', 'resumed') AND coalesce(OLD.wait_kind, 'approval') IN ('approval', 'budget') THEN
            person := 'only a person can approve a run';
        ELSIF OLD.state = 'waiting' AND NEW.state = 'waiting' AND (
                ROW(NEW.wait_kind, NEW.wait_target, NEW.wait_fingerprint, NEW.error, NEW.reply, NEW.host) IS DISTINCT FROM ROW(OLD.wait_kind, OLD.wait_target, OLD.wait_fingerprint, OLD.error, OLD.reply, OLD.host)
                OR NEW.runner <> OLD.runner AND OLD.runner !~ '^[0-9]') THEN
            person := 'a question cannot be changed';
        ELSIF NEW.sandbox IS DISTINCT FROM OLD.sandbox AND NEW.state NOT IN ('running', 'resumed') THEN
            person := 'the sandbox of a run is decided when it starts';
        ELSIF NEW.origin IS DISTINCT FROM OLD.origin AND NEW.message IS NOT NULL
                AND EXISTS (SELECT 1 FROM backburner.tasks WHERE task_id = NEW.task_id AND approved_by = 'user' AND prompt <> NEW.message) THEN
            person := 'only a person can approve another message';
        END IF;
        IF NEW.state <> OLD.state AND NEW.state NOT IN ('pending', 'failed', 'cancelled') OR NEW.state = 'failed' AND OLD.state <> 'failed' AND NEW.result <> 'dependency'
                OR NEW.state = 'pending' AND OLD.state IN ('running', 'resumed')
                OR ROW(NEW.host, NEW.epoch, NEW.sandbox, NEW.runner) IS DISTINCT FROM ROW(OLD.host, OLD.epoch, OLD.sandbox, OLD.runner)
                OR coalesce(NEW.owner, OLD.owner) IS DISTINCT FROM OLD.owner OR coalesce(NEW.process, OLD.process) IS DISTINCT FROM OLD.process THEN
            worker := 'an agent can submit and cancel tasks, but not run them';
        ELSIF NEW.cancel_requested_at IS DISTINCT FROM OLD.cancel_requested_at OR NEW.state = 'cancelled' AND OLD.state <> 'cancelled' THEN
            IF EXISTS (SELECT 1 FROM backburner.tasks WHERE task_id = NEW.task_id AND session IS NULL) THEN
                worker := 'an agent cannot cancel the tasks of a person';
            END IF;
        END IF;
        IF worker IS NOT NULL AND NOT backburner.is_worker() THEN PERFORM backburner.refuse(worker); END IF;
    END IF;
    IF owner IS NOT NULL AND NOT backburner.is_owner() THEN PERFORM backburner.refuse(owner); END IF;
    IF person IS NOT NULL AND NOT backburner.is_person() THEN PERFORM backburner.refuse(person); END IF;
    RETURN NEW;
END
""",
    "events": """
DECLARE event record; of_person boolean;
BEGIN
    IF TG_OP = 'UPDATE' THEN
        IF NOT backburner.is_owner() THEN PERFORM backburner.refuse('an event cannot be changed'); END IF;
        RETURN NEW;
    END IF;
    IF TG_OP = 'DELETE' THEN event := OLD; ELSE event := NEW; END IF;
    of_person := event.kind IN (/*EVENTS_OF_PEOPLE*/) OR event.data LIKE '%u%' AND coalesce(event.data::json ->> 'by', '') = 'user';
    IF of_person AND NOT backburner.is_person() THEN
        IF TG_OP = 'DELETE' THEN RETURN NULL; END IF; -- what a person decided stays when a worker deletes an old task
        PERFORM backburner.refuse('only a person can record what a person decided');
    END IF;
    RETURN event;
END
""",
    "notices": """
BEGIN
    IF TG_OP = 'DELETE' THEN
        IF EXISTS (SELECT 1 FROM backburner.tasks WHERE task_id = OLD.task_id) AND NOT backburner.is_person() THEN
            PERFORM backburner.refuse('a notice is deleted with its task');
        END IF;
        RETURN OLD;
    END IF;
    IF TG_OP = 'UPDATE' AND /*FIXED_OF_NOTICES_CHANGE*/ AND NOT backburner.is_owner() THEN
        PERFORM backburner.refuse('a stored notice cannot be changed');
    END IF;
    -- An answer to a message is an answer to this notice, so only who may approve says which message it is.
    IF NEW.external_id IS NOT NULL AND (TG_OP = 'INSERT' OR NEW.external_id IS DISTINCT FROM OLD.external_id) AND NOT backburner.is_person() THEN
        NEW.external_id := CASE TG_OP WHEN 'UPDATE' THEN OLD.external_id END;
    END IF;
    RETURN NEW;
END
""",
    "hosts": """
BEGIN
    IF TG_OP = 'INSERT' AND (NEW.state <> 'left' OR NEW.epoch <> 0 OR NEW.lanes <> '[]') AND NOT backburner.is_worker() THEN
        PERFORM backburner.refuse('an agent can submit and cancel tasks, but not run them');
    END IF;
    IF TG_OP = 'DELETE' THEN RETURN OLD; ELSE RETURN NEW; END IF;
END
""",
    "host_requests": """
BEGIN
    IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;
    IF NEW.kind = 'input' AND (TG_OP = 'INSERT' OR NEW IS DISTINCT FROM OLD)
            AND EXISTS (SELECT 1 FROM backburner.runs r JOIN backburner.tasks t ON t.task_id = r.task_id WHERE r.run_id = NEW.run_id AND t.approved_by = 'user')
            AND NOT backburner.is_person() THEN
        PERFORM backburner.refuse('only a person can send input to a task that a person approved');
    END IF;
    RETURN NEW;
END
""",
}
