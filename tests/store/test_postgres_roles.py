"""What the logins of workers, agents and people can do in a ledger on Postgres, tried in SQL.

Every attempt starts from the same rows. One that is an attack on approvals must leave the decisions in them as they were, whether the
server refuses it or not; those that a person may make must succeed for a person, so that an attempt with a mistake in it is noticed.
"""

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

pytest.register_assert_rewrite("contract")

from contract.cases import HOUR, NOW, OURS, YES, agent, propose, recurring, submit  # noqa: E402
from postgres_server import AGENT, HOST_ID, ON_BOTH_SERVERS, OWNER, PERSON, WORKER, LedgerDatabase, PostgresServer  # noqa: E402

from backburner.core.errors import NotAPerson, NotPermitted  # noqa: E402
from backburner.core.models import ENGINE, Approval  # noqa: E402
from backburner.core.schedule import every  # noqa: E402
from backburner.core.states import RunState, WaitKind  # noqa: E402
from backburner.store.ledger import Ledger  # noqa: E402
from backburner.store.postgres import PostgresDatabase  # noqa: E402
from backburner.store.postgres_roles import CREATE_ROLES  # noqa: E402
from backburner.store.postgres_schema import migrate  # noqa: E402

pytestmark = ON_BOTH_SERVERS
WITH_ROLES = True
AUTO = Approval("auto", "gate", NOW)


def copy_of(table: str, key: str, row: str, **changes: object) -> str:
    """A statement that inserts a copy of a row with changes."""
    changed = json.dumps({"seq": next(_numbers), **changes})
    return f"INSERT INTO {table} SELECT (json_populate_record(r, '{changed}')).* FROM {table} r WHERE {key} = '{row}'"


_numbers = itertools.count(10_000)

# What a person may do, and nobody else. `proposal` is a proposed task, `waiting` a task whose run waits for approval, `approved` a
# finished task that a person approved, `nightly` a recurring one, `tool` and `budget` runs of agents that wait for a person.
OF_PEOPLE = {
    "approve a proposal": "UPDATE tasks SET state = 'active', approved_by = 'user', approved_via = 'cli', approved_at = 1 WHERE task_id = 'proposal'",
    "approve with a join": "UPDATE tasks SET state = 'active', approved_by = 'user', approved_at = 1 FROM runs r WHERE tasks.task_id = 'proposal' AND r.task_id = 'waiting'",
    "approve with MERGE": "MERGE INTO tasks t USING (SELECT 'proposal' AS id) s ON t.task_id = s.id WHEN MATCHED THEN UPDATE SET state = 'active', approved_by = 'user', approved_at = 1",
    "approve in a CTE": "WITH changed AS (UPDATE tasks SET state = 'active', approved_by = 'user', approved_at = 1 WHERE task_id = 'proposal' RETURNING 1) SELECT * FROM changed",
    "approve as the gate": "UPDATE tasks SET state = 'active', approved_by = 'auto', approved_via = 'gate', approved_at = 1 WHERE task_id = 'proposal'",
    "approve a rejected task": "UPDATE tasks SET state = 'active', approved_by = 'user', approved_at = 1 WHERE task_id = 'rejected'",
    "propose again what was rejected": "UPDATE tasks SET state = 'proposed' WHERE task_id = 'rejected'",
    "turn a decision of the gate into one of a person": "UPDATE tasks SET approved_by = 'user' WHERE task_id = 'waiting'",
    "say that a person approved through another interface": "UPDATE tasks SET approved_via = 'web:1' WHERE task_id = 'approved'",
    "change the time of an approval": "UPDATE tasks SET approved_at = 5 WHERE task_id = 'approved'",
    "turn a decision of a person into one of the gate": "UPDATE tasks SET approved_by = 'auto' WHERE task_id = 'approved'",
    "change the fingerprint of a proposal": "UPDATE tasks SET fingerprint = 'ff' WHERE task_id = 'proposal'",
    "change the fingerprint of an approval": "UPDATE tasks SET fingerprint = 'ff' WHERE task_id = 'approved'",
    "remove the fingerprint of an approval": "UPDATE tasks SET fingerprint = NULL WHERE task_id = 'approved'",
    "add an approved task": copy_of("tasks", "task_id", "waiting", task_id="new", approved_by="user"),
    "add an approved task or replace one": copy_of("tasks", "task_id", "waiting", task_id="new", approved_by="user") + " ON CONFLICT DO NOTHING",
    "edit the command of an approved schedule": """UPDATE tasks SET command = '["evil"]' WHERE task_id = 'nightly'""",
    "edit the schedule of an approved schedule": "UPDATE tasks SET schedule = schedule || ' ' WHERE task_id = 'nightly'",
    "edit the channels of an approved schedule": """UPDATE tasks SET channels = '["x"]' WHERE task_id = 'nightly'""",
    "edit the budget of an approved schedule": """UPDATE tasks SET budget = '{"tokens": 9}' WHERE task_id = 'nightly'""",
    "continue after a used up budget": "UPDATE tasks SET state = 'active', paused_because = NULL, pause_kind = NULL WHERE task_id = 'spent'",
    "count a budget from now on": "UPDATE tasks SET counted_from = 99 WHERE task_id = 'spent'",
    "give an approved conversation another agent": "UPDATE tasks SET agent = 'wild' WHERE task_id = 'tool'",
    "give an approved conversation more tools": """UPDATE tasks SET agent_options = '{"tools": "all"}' WHERE task_id = 'tool'""",
    "answer yes": "UPDATE runs SET reply = 'yes' WHERE task_id = 'waiting'",
    "answer yes and continue": "UPDATE runs SET reply = 'yes', state = 'pending', owner = NULL, started_at = NULL WHERE task_id = 'waiting'",
    "continue a run that waits for approval": "UPDATE runs SET state = 'pending', owner = NULL, started_at = NULL WHERE task_id = 'waiting'",
    "run a run that waits for approval": "UPDATE runs SET state = 'running' WHERE task_id = 'waiting'",
    "answer yes to a tool call": "UPDATE runs SET reply = 'yes', state = 'pending', owner = NULL, started_at = NULL WHERE task_id = 'tool'",
    "continue without the budget": "UPDATE runs SET state = 'pending', owner = NULL, started_at = NULL WHERE task_id = 'budget'",
    "extend a budget": "UPDATE runs SET extensions = 7 WHERE task_id = 'budget'",
    "answer yes to a run that works": "UPDATE runs SET reply = 'yes', wait_kind = 'tool' WHERE task_id = 'busy'",
    "turn a question into one about a tool": "UPDATE runs SET wait_kind = 'tool' WHERE task_id = 'waiting'",
    "turn a question into one that answers itself": "UPDATE runs SET wait_kind = 'reattach' WHERE task_id = 'waiting'",
    "ask about another task": "UPDATE runs SET wait_target = 'proposal' WHERE task_id = 'tool'",
    "ask about another fingerprint": "UPDATE runs SET wait_fingerprint = 'ff' WHERE task_id = 'waiting'",
    "change the words of a question": "UPDATE runs SET error = 'may I?' WHERE task_id = 'waiting'",
    "move a question to another host": "UPDATE runs SET runner = 'engine@other' WHERE task_id = 'waiting'",
    "say that another host asks": "UPDATE runs SET host = 'other' WHERE task_id = 'waiting'",
    "leave the sandbox before the start": "UPDATE runs SET sandbox = 'x' WHERE task_id = 'queued'",
    "use a yes for another question": "UPDATE runs SET wait_kind = 'budget' WHERE task_id = 'answered'",
    "run what was approved once more": copy_of("runs", "task_id", "approved", n=2, run_id="approved.2", state="pending", result=None, ended_at=None, started_at=None, owner=None),
    "give an approved conversation another message": copy_of("runs", "task_id", "talk", n=2, run_id="talk.2", state="pending", result=None, ended_at=None, started_at=None, owner=None, message="evil", origin="x"),
    "delete an open task": "DELETE FROM tasks WHERE task_id = 'proposal'",
    "delete the run of an approved task": "DELETE FROM runs WHERE task_id = 'approved'",
    "trust a project": "INSERT INTO grants (kind, project, command, via, created_at) VALUES ('trust', '/evil', '[]', 'cli', 1)",
    "always allow a command": """INSERT INTO grants (kind, project, command, via, created_at) VALUES ('always', '/p', '["evil"]', 'cli', 1)""",
    "permit a port": """INSERT INTO grants (kind, project, command, via, created_at) VALUES ('connect', '/p', '["22"]', 'cli', 1)""",
    "change a grant": "UPDATE grants SET project = '/evil'",
    "revoke a grant": "DELETE FROM grants",
    "pair a device": "INSERT INTO devices VALUES ('d2', 'evil', 'hash2', 'cli', '', 1, 1, NULL)",
    "take over a device": "UPDATE devices SET credential_hash = 'evil'",
    "restore a revoked device": "UPDATE devices SET revoked_at = NULL",
    "ask for a pairing": "INSERT INTO pairings VALUES ('p2', 'c', 'n', '', '1', 1, 1, NULL)",
    "replace what is being paired": "UPDATE pairings SET commitment = 'evil'",
    "add a passkey": "INSERT INTO passkeys VALUES ('k2', 'd1', 'n', 'rp', 'cred', 0, '1', 1, 1, 1, NULL, NULL)",
    "take over a passkey": "UPDATE passkeys SET credential = 'evil'",
    "confirm a passkey": "UPDATE passkeys SET active_at = 1",
    "add a challenge": "INSERT INTO challenges VALUES ('n2', 'd1', 'approve', 't', 's', 'once', 1, NULL)",
    "use a challenge again": "UPDATE challenges SET used_at = NULL",
    "record a proof": "INSERT INTO approval_attempts (at, outcome, via) VALUES (1, 'approved', 'web:d1')",
    "change a proof": "UPDATE approval_attempts SET outcome = 'approved'",
    "delete a proof": "DELETE FROM approval_attempts",
    "record an approval": "INSERT INTO events (at, kind, task_id, data) VALUES (1, 'task_approved', 'proposal', '{}')",
    "record a grant": "INSERT INTO events (at, kind, data) VALUES (1, 'granted', '{}')",
    "record a yes of a person": """INSERT INTO events (at, kind, task_id, data) VALUES (1, 'run_requeued', 'waiting', '{"by": "user", "answer": "yes"}')""",
    "record a yes with an escaped name": """INSERT INTO events (at, kind, task_id, data) VALUES (1, 'step_decided', 'waiting', '{"\\u0062y": "\\u0075ser"}')""",
    "record a yes by copying": "INSERT INTO events (at, kind, task_id, data) SELECT at, kind, 'proposal', data FROM events WHERE data LIKE '%user%' LIMIT 1",
    "send input to an approved task": "INSERT INTO host_requests (host_id, run_id, kind, body, created_at, expires_at) SELECT 'h', run_id, 'input', 'rm', 1, 1 FROM runs WHERE task_id = 'approved'",
    "turn a request into input": "UPDATE host_requests SET kind = 'input', body = 'rm'",
}  # fmt: skip

# What nobody may do but the owner of the tables.
OF_OWNER = {
    "change the command of an approved task": """UPDATE tasks SET command = '["evil"]' WHERE task_id = 'approved'""",
    "change the command of a proposal": """UPDATE tasks SET command = '["evil"]' WHERE task_id = 'proposal'""",
    "change the command of all tasks": """UPDATE tasks SET command = '["evil"]'""",
    "make it a shell line": "UPDATE tasks SET shell = 1 - shell WHERE task_id = 'approved'",
    "change the folder": "UPDATE tasks SET cwd = '/evil' WHERE task_id = 'approved'",
    "change the variables": """UPDATE tasks SET env = '{"LD_PRELOAD": "x"}' WHERE task_id = 'approved'""",
    "change the environment": "UPDATE tasks SET environment_id = NULL WHERE task_id = 'nightly'",
    "open the input": "UPDATE tasks SET stdin = 1 - stdin WHERE task_id = 'approved'",
    "change the prompt": "UPDATE tasks SET prompt = 'evil' WHERE task_id = 'tool'",
    "change the session": "UPDATE tasks SET session = 'evil' WHERE task_id = 'nightly'",
    "change the project of the session": "UPDATE tasks SET opened = '/evil' WHERE task_id = 'approved'",
    "change the host that submitted it": "UPDATE tasks SET origin_host = 'evil' WHERE task_id = 'approved'",
    "change where it may run": "UPDATE tasks SET place = '/evil' WHERE task_id = 'approved'",
    "let it run twice": "UPDATE tasks SET rerun = 1 WHERE task_id = 'approved'",
    "let it be restarted": "UPDATE tasks SET restarts = 9 WHERE task_id = 'approved'",
    "make a task of it that recurs": "UPDATE tasks SET schedule = '{\"every\": 1}' WHERE task_id = 'approved'",
    "give the name of another task": "UPDATE tasks SET task_id = 'x' WHERE task_id = 'proposal'",
    "add a run to a proposal": copy_of("runs", "task_id", "queued", n=1, run_id="proposal.1", task_id="proposal"),
    "add a run that runs": copy_of("runs", "task_id", "busy", n=2, run_id="busy.2"),
    "add a run with a yes": copy_of("runs", "task_id", "queued", n=2, run_id="queued.2", reply="yes"),
    "add a run outside of the home": copy_of("runs", "task_id", "queued", n=2, run_id="queued.2", folder="tasks/../../.ssh"),
    "add a run in another folder": copy_of("runs", "task_id", "queued", n=2, run_id="queued.2", folder="/etc"),
    "give a run to another task": "UPDATE runs SET task_id = 'approved', n = 9 WHERE task_id = 'queued'",
    "give a run another folder": "UPDATE runs SET folder = '/etc' WHERE task_id = 'queued'",
    "give a run another message": "UPDATE runs SET message = 'evil' WHERE task_id = 'tool'",
    "start an ended run again": "UPDATE runs SET state = 'pending', result = NULL, ended_at = NULL, started_at = NULL, owner = NULL WHERE task_id = 'approved'",
    "ask with an answer": "UPDATE runs SET state = 'waiting', wait_kind = 'tool', reply = 'no' WHERE task_id = 'busy'",
    "let a run look like one of a program": "UPDATE runs SET runner = 'record' WHERE task_id = 'waiting'",
    "change an event": "UPDATE events SET data = '{}'",
    "change a notice": "UPDATE notices SET task_id = 'proposal', text = 'Build the docs?'",
    "change an environment": "UPDATE environments SET body = 'x'",
    "say that the ledger is older": "UPDATE schema SET version = 1",
    "empty the tasks": "TRUNCATE tasks CASCADE",
    "empty the events": "TRUNCATE events",
    "remove a trigger": "DROP TRIGGER zz_guard ON tasks",
    "disable a trigger": "ALTER TABLE tasks DISABLE TRIGGER zz_guard",
    "disable all triggers": "ALTER TABLE runs DISABLE TRIGGER ALL",
    "add a trigger": "CREATE TRIGGER zzz BEFORE UPDATE ON tasks FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "add a rule": "CREATE RULE evil AS ON UPDATE TO tasks DO ALSO NOTHING",
    "change a default": "ALTER TABLE tasks ALTER COLUMN approved_by SET DEFAULT 'user'",
    "replace the check": "CREATE OR REPLACE FUNCTION backburner.is_person() RETURNS boolean LANGUAGE sql AS 'SELECT true'",
    "replace a guard": "CREATE OR REPLACE FUNCTION backburner.guard_tasks() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
    "change the settings of a guard": "ALTER FUNCTION backburner.guard_tasks() SET search_path = public",
    "drop a guard": "DROP FUNCTION backburner.guard_tasks() CASCADE",
    "create a function beside the tables": "CREATE FUNCTION backburner.pg_has_role(name, oid, text) RETURNS boolean LANGUAGE sql AS 'SELECT true'",
    "create an operator beside the tables": "CREATE OPERATOR backburner.= (LEFTARG = text, RIGHTARG = text, FUNCTION = texteq)",
    "create a table beside the tables": "CREATE TABLE backburner.evil (x int)",
    "turn off triggers": "SET session_replication_role = replica",
    "become the owner": f"SET ROLE {OWNER}",
    "become another user": f"SET SESSION AUTHORIZATION {OWNER}",
    "own the table": f"ALTER TABLE tasks OWNER TO {AGENT}",
    "use a table as the owner": "CREATE VIEW backburner.evil AS SELECT * FROM tasks",
    "read a file into the table": "COPY tasks FROM '/etc/passwd'",
    "run a program": "COPY events FROM PROGRAM 'id'",
    "use a large object": "SELECT lo_import('/etc/passwd')",
    "change the catalog": "UPDATE pg_class SET relowner = (SELECT oid FROM pg_roles WHERE rolname = current_user) WHERE relname = 'tasks'",
    "write the membership": "INSERT INTO pg_auth_members (roleid, member, grantor) SELECT oid, oid, oid FROM pg_roles LIMIT 1",
    "set a counter back": "SELECT setval('backburner.events_event_id_seq', 1)",
}  # fmt: skip
OF_PERSONS_AND_OWNER = {
    "become a person": "SET ROLE bb_person",
    "become this person": f"SET ROLE {PERSON}",
    "be that person": f"SET SESSION AUTHORIZATION {PERSON}",
    "join the people": f"GRANT bb_person TO {WORKER}, {AGENT}",
    "let the people join": f"GRANT {PERSON} TO {WORKER}",
    "create a login": "CREATE ROLE evil LOGIN IN ROLE bb_person",
    "change the password": f"ALTER ROLE {PERSON} PASSWORD 'x'",
}
# What a worker does in its daily work, and an agent that only submits may not.
OF_WORKERS = {
    "claim a run": "UPDATE runs SET state = 'running', owner = '1:1:b', started_at = 1 WHERE task_id = 'queued'",
    "end a run": "UPDATE runs SET state = 'completed', result = 'exit', ended_at = started_at WHERE task_id = 'busy'",
    "fail a run": "UPDATE runs SET state = 'failed', result = 'lost', ended_at = started_at WHERE task_id = 'busy'",
    "suspend a run": "UPDATE runs SET state = 'waiting', wait_kind = 'approval' WHERE task_id = 'busy'",
    "take a run over": "UPDATE runs SET owner = '2:2:b' WHERE task_id = 'busy'",
    "give a run back": "UPDATE runs SET state = 'pending', owner = NULL, started_at = NULL WHERE task_id = 'busy'",
    "record the process of a run": "UPDATE runs SET process = '2:2:b' WHERE task_id = 'busy'",
    "record the sandbox of a run": "UPDATE runs SET sandbox = 'x' WHERE task_id = 'busy'",
    "move a run to another host": "UPDATE runs SET runner = 'engine@other' WHERE task_id = 'queued'",
    "cancel the task of a person": "UPDATE runs SET cancel_requested_at = 1 WHERE task_id = 'busy'",
    "enrol a host": "INSERT INTO hosts (host_id, name, state, changed_at, seen_at) VALUES ('h2', 'h2', 'active', 1, 1)",
    "beat for a host": "UPDATE hosts SET beat = beat + 1",
    "fence a host": "UPDATE hosts SET state = 'fenced'",
    "forget a host": "DELETE FROM hosts",
    "answer a request": "INSERT INTO host_responses (request_id, n, position, body) SELECT request_id, 0, 0, 'x' FROM host_requests",
    "keep an excerpt": "INSERT INTO output_excerpts (run_id, head, tail, size, at) SELECT run_id, '', '', 0, 1 FROM runs WHERE task_id = 'busy'",
    "delete folders": "INSERT INTO folders_to_delete VALUES ('h', 'tasks/x')",
    "delete an ended task": "DELETE FROM tasks WHERE task_id = 'approved'",
    "advance a cursor": "INSERT INTO cursors VALUES ('x', 1)",
    "take a model": "INSERT INTO interactive_leases (process, lane, since) VALUES ('1:1:b', 'agents', 1)",
}
# What everybody may do.
OF_ALL = {
    "submit what the gate allows": copy_of("tasks", "task_id", "queued", task_id="new"),
    "propose": copy_of("tasks", "task_id", "proposal", task_id="new"),
    "withdraw a proposal": "UPDATE tasks SET state = 'rejected' WHERE task_id = 'proposal'",
    "cancel the task of a session": "UPDATE runs SET state = 'cancelled', result = 'unstarted', ended_at = 1 WHERE task_id = 'queued'",
    "record what the gate decided": """INSERT INTO events (at, kind, task_id, data) VALUES (1, 'step_decided', 'tool', '{"by": "gate", "answer": "yes"}')""",
    "acknowledge a notice": "UPDATE notices SET acknowledged_at = 1",
    "read everything": "SELECT * FROM tasks, runs, grants, devices, events, hosts LIMIT 1",
    "join as a host that runs nothing": "INSERT INTO hosts (host_id, name, state, changed_at, seen_at) VALUES ('h2', 'h2', 'left', 1, 1)",
    "remember": "INSERT INTO memory VALUES ('/p', 'k', 'v', 1)",
}  # fmt: skip
# Statements that change nothing about approvals, but must not help either.
HARMLESS = {
    "shadow a table": "CREATE TEMP TABLE tasks AS SELECT * FROM backburner.tasks; UPDATE tasks SET approved_by = 'user'",
    "shadow a function": "SET search_path = pg_temp, backburner; CREATE FUNCTION pg_temp.is_person() RETURNS boolean LANGUAGE sql AS 'SELECT true'; UPDATE backburner.tasks SET approved_by = 'user', state = 'active', approved_at = 1 WHERE task_id = 'proposal'",
    "shadow the roles": "CREATE TEMP TABLE pg_roles AS SELECT 'bb_person'::name AS rolname, 0::oid AS oid; SET search_path = pg_temp, pg_catalog, backburner; UPDATE backburner.tasks SET approved_by = 'user', state = 'active', approved_at = 1 WHERE task_id = 'proposal'",
    "shadow an operator": "CREATE FUNCTION pg_temp.never(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT false'; CREATE OPERATOR pg_temp.= (LEFTARG = text, RIGHTARG = text, FUNCTION = pg_temp.never); SET search_path = pg_temp, pg_catalog, backburner; UPDATE backburner.tasks SET approved_by = 'user', state = 'active', approved_at = 1 WHERE task_id OPERATOR(pg_catalog.=) 'proposal'",
    "write through a view": "CREATE TEMP VIEW v AS SELECT * FROM tasks; UPDATE v SET approved_by = 'user', state = 'active', approved_at = 1 WHERE task_id = 'proposal'",
    "write through a view of its own checks": "CREATE TEMP VIEW v WITH (security_invoker = false) AS SELECT * FROM tasks; UPDATE v SET approved_by = 'user', state = 'active', approved_at = 1 WHERE task_id = 'proposal'",
    "write in a function": "DO $$ BEGIN UPDATE backburner.tasks SET approved_by = 'user', state = 'active', approved_at = 1 WHERE task_id = 'proposal'; EXCEPTION WHEN OTHERS THEN NULL; END $$",
    "replace a task by its id": "DELETE FROM tasks WHERE task_id = 'approved'; " + copy_of("tasks", "task_id", "waiting", task_id="approved", approved_by="user"),
    "say which message is the question": "UPDATE notices SET external_id = 'message 1'",
    "add a notice for a message": "INSERT INTO notices (key, task_id, project, channel, text, created_at, kind, external_id) VALUES ('k9', 'proposal', '/p', 'to:discord', 'Build?', 1, 'proposed', 'message 1')",
    "delete the events of approvals": "DELETE FROM events",
    "pretend to be a host": "SET backburner.host_name = 'x'; UPDATE tasks SET approved_by = 'user' WHERE task_id = 'waiting'",
    "check later": "SET CONSTRAINTS ALL DEFERRED; UPDATE tasks SET approved_by = 'user' WHERE task_id = 'waiting'",
    "keep a large object": "SELECT lo_from_bytea(0, 'evil')",
}  # fmt: skip

DECISIONS = (
    "SELECT task_id, approved_by, approved_via, approved_at, fingerprint, command, cwd, env, environment_id, agent, agent_options,"
    " CASE WHEN state IN ('proposed', 'rejected', 'expired') THEN 'unapproved' ELSE 'approved' END FROM tasks WHERE task_id <> 'new' ORDER BY 1",
    "SELECT count(*) FROM tasks WHERE approved_by = 'user' AND task_id NOT IN ('approved', 'nightly', 'spent', 'tool', 'budget', 'talk', 'answered')",
    "SELECT task_id, n, reply, extensions, state IN ('pending', 'running', 'resumed') AND task_id IN ('waiting', 'tool', 'budget') FROM runs"
    " WHERE task_id IN ('waiting', 'tool', 'budget', 'answered', 'talk', 'proposal') ORDER BY 1, 2",
    *(f"SELECT * FROM {table} ORDER BY 1" for table in ("grants", "devices", "pairings", "passkeys", "challenges", "approval_attempts")),
    "SELECT kind, task_id, data FROM events WHERE data LIKE '%user%' OR kind IN ('task_approved', 'granted') ORDER BY event_id",
    "SELECT external_id FROM notices WHERE external_id IS NOT NULL",
    "SELECT count(*) FROM host_requests WHERE kind = 'input'",
)


Open = Callable[..., Ledger]


@pytest.fixture(scope="module")
def open_as(database: LedgerDatabase, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    """Opens the ledger as a database user."""
    folder, opened = str(tmp_path_factory.mktemp("private")), []

    def open_as(user: str, person: str = "") -> Ledger:
        opened.append(Ledger(PostgresDatabase(database.url_of(user), host_id=HOST_ID, private_folder=folder, person=person), "/home"))
        return opened[-1]

    yield open_as
    for ledger in opened:
        ledger.close()


@pytest.fixture(scope="module")
def filled(ledger_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> LedgerDatabase:
    """A ledger with tasks in all states that matter, for attempts that are rolled back."""
    database = LedgerDatabase(ledger_server, "attempts", "bytes", roles=True)
    ledger = Ledger(PostgresDatabase(database.url, host_id=HOST_ID, private_folder=str(tmp_path_factory.mktemp("private"))), "/home")
    db = ledger.database
    db.write("UPDATE hosts SET state = 'active', epoch = 1")
    propose(ledger, "proposal", asked="aa", question=lambda _: "May it run?", channels=("discord",))
    propose(ledger, "rejected")
    ledger.tasks.refuse("rejected", expired=False, now=NOW)
    for name, more in {
        "waiting": {"approval": AUTO},
        "busy": {"approval": AUTO},
        "approved": {"approval": YES._replace(fingerprint="bb")},
    }.items():
        propose(ledger, name, owner=OURS, **more)
    ledger.runs.suspend("waiting", OURS, "it needs approval", NOW, WaitKind.APPROVAL, asked="cc")
    db.write("UPDATE runs SET state = 'completed', result = 'exit', ended_at = started_at WHERE task_id = 'approved'")
    db.write("UPDATE tasks SET state = 'done' WHERE task_id = 'approved'")
    propose(ledger, "queued", approval=AUTO, session="mcp:1")
    recurring(ledger, "nightly", every(HOUR, NOW))
    recurring(ledger, "spent", every(HOUR, NOW))
    db.write("UPDATE tasks SET state = 'paused', next_run_at = NULL, pause_kind = 'budget' WHERE task_id = 'spent'")
    for name, kind in (("tool", WaitKind.TOOL), ("budget", WaitKind.BUDGET)):
        agent(ledger, name, owner=OURS)
        ledger.runs.suspend(name, OURS, "it asks", NOW, kind)
    agent(ledger, "talk", owner=OURS)
    agent(ledger, "answered", owner=OURS)
    db.write("UPDATE runs SET reply = 'yes', wait_kind = 'tool' WHERE task_id = 'answered'")
    ledger.grants.grant("trust", "/p", (), "cli", NOW)
    db.write("INSERT INTO devices VALUES ('d1', 'phone', 'hash', 'cli', '', 1, 1, 2)")
    db.write("INSERT INTO pairings VALUES ('p1', 'c', 'n', '', '1', 1, 1, NULL)")
    db.write("INSERT INTO passkeys VALUES ('k1', 'd1', 'n', 'rp', 'cred', 0, '1', 1, 1, NULL, NULL, NULL)")
    db.write("INSERT INTO challenges VALUES ('n1', 'd1', 'approve', 't', 's', 'once', 1, 1)")
    db.write("INSERT INTO approval_attempts (at, outcome, via) VALUES (1, 'refused', 'web:d1')")
    db.write("INSERT INTO hosts (host_id, name, state, changed_at, seen_at) VALUES ('h1', 'h1', 'active', 1, 1)")
    db.write("INSERT INTO host_requests (host_id, run_id, kind, created_at, expires_at) VALUES ('h1', 'approved', 'log', 1, 1)")
    ledger.close()
    return database


@pytest.fixture(scope="module")
def attempt(filled: LedgerDatabase) -> Iterator[Callable[[str, str], str]]:
    """Executes a statement as a user in a transaction that is rolled back; returns what is different then about approvals, or the error."""
    connections: dict[str, psycopg.Connection] = {}

    def attempt(user: str, statement: str) -> str:
        if user not in connections:
            connections[user] = psycopg.connect(filled.url_of(user), options="-c search_path=backburner,pg_temp")
        connection = connections[user]

        def read() -> list[object]:
            return [connection.execute(select.encode()).fetchall() for select in DECISIONS]

        before = read()
        error = ""
        try:
            with connection.transaction():
                connection.execute(statement.encode())
        except psycopg.Error as refused:
            error = f"{refused.sqlstate}: {refused}"
        connection.execute("RESET ROLE; SET search_path = backburner, pg_temp")
        result = error or ("changed" if read() != before else "unchanged")
        connection.rollback()
        return result

    yield attempt
    for connection in connections.values():
        connection.close()


REFUSED = ("42501", "0LP01")  # insufficient privilege, invalid grant


@pytest.mark.parametrize("user", [WORKER, AGENT])
@pytest.mark.parametrize("name", [*OF_PEOPLE, *OF_OWNER, *OF_PERSONS_AND_OWNER])
def test_nobody_but_a_person_gets_an_approval(attempt: Callable[[str, str], str], user: str, name: str) -> None:
    statement = {**OF_PEOPLE, **OF_OWNER, **OF_PERSONS_AND_OWNER}[name]
    assert attempt(user, statement).startswith(REFUSED)


@pytest.mark.parametrize("user", [WORKER, AGENT])
@pytest.mark.parametrize("name", HARMLESS)
def test_a_detour_leads_to_no_approval(attempt: Callable[[str, str], str], user: str, name: str) -> None:
    assert attempt(user, HARMLESS[name]) != "changed"


@pytest.mark.parametrize("name", OF_PEOPLE)
def test_a_person_may_decide(attempt: Callable[[str, str], str], name: str) -> None:
    assert attempt(PERSON, OF_PEOPLE[name]) in ("changed", "unchanged")


@pytest.mark.parametrize("name", OF_OWNER)
def test_a_person_cannot_change_what_was_approved(attempt: Callable[[str, str], str], name: str) -> None:
    assert attempt(PERSON, OF_OWNER[name]).startswith(REFUSED)


@pytest.mark.parametrize("name", OF_WORKERS)
def test_a_worker_runs_tasks_and_an_agent_does_not(attempt: Callable[[str, str], str], name: str) -> None:
    assert attempt(WORKER, OF_WORKERS[name]) in ("changed", "unchanged")
    assert attempt(AGENT, OF_WORKERS[name]).startswith(REFUSED)


@pytest.mark.parametrize("user", [PERSON, WORKER, AGENT])
@pytest.mark.parametrize("name", OF_ALL)
def test_everybody_submits_reads_and_cancels(attempt: Callable[[str, str], str], user: str, name: str) -> None:
    assert attempt(user, OF_ALL[name]) in ("changed", "unchanged")


def test_the_attempts_of_the_owner_succeed_so_that_only_the_rules_refuse_them(attempt: Callable[[str, str], str]) -> None:
    changing = {
        name: text
        for name, text in OF_OWNER.items()
        if text.startswith(("UPDATE tasks", "UPDATE runs", "INSERT INTO runs", "UPDATE e", "UPDATE n"))
    }
    constraints = ("23503", "23505", "23514")  # a check of the table refuses it as well
    assert {
        name: found
        for name, text in changing.items()
        if (found := attempt(OWNER, text)) not in ("changed", "unchanged") and not found.startswith(constraints)
    } == {}


# -- logins


@pytest.fixture
def empty(database: LedgerDatabase) -> None:
    database.empty()


@pytest.mark.usefixtures("empty")
def test_a_decision_uses_the_login_of_the_person(open_as: Open) -> None:
    ledger = open_as(WORKER, PERSON)
    propose(ledger, "task_x")
    assert ledger.database.one("SELECT session_user") == (WORKER,)
    ledger.tasks.approve("task_x", YES, runner=ENGINE, folder="tasks")
    assert ledger.database.one("SELECT session_user") == (PERSON,)


@pytest.mark.usefixtures("empty")
@pytest.mark.parametrize("user", [WORKER, AGENT])
def test_a_decision_without_a_person_is_refused_with_a_sentence(open_as: Open, user: str) -> None:
    ledger = open_as(user)
    propose(ledger, "task_x")
    with pytest.raises(NotPermitted, match=f"The database user {user} may not do this: only a person can approve a task"):
        ledger.tasks.approve("task_x", YES, runner=ENGINE, folder="tasks")
    with pytest.raises(NotPermitted, match="permission denied for table grants"):
        ledger.grants.grant("trust", "/p", (), "cli", NOW)
    assert ledger.queries.get("task_x").task.decision.by is None  # type: ignore[union-attr]


@pytest.mark.usefixtures("empty")
def test_an_agent_submits_and_cancels_through_the_repositories(open_as: Open) -> None:
    ledger = open_as(AGENT)
    for name in ("first", "second"):
        propose(ledger, name, approval=AUTO, session="mcp:1")
    propose(ledger, "third", approval=AUTO, session="mcp:1", after=("first",))
    assert ledger.tasks.request_cancel("first", NOW).run.state is RunState.CANCELLED  # type: ignore[union-attr]
    assert ledger.queries.get("third").run.state is RunState.FAILED  # type: ignore[union-attr]
    with pytest.raises(NotPermitted, match="an agent can submit and cancel tasks, but not run them"):
        ledger.runs.claim(ENGINE, OURS, 1, NOW)


@pytest.mark.usefixtures("empty")
def test_the_login_of_a_person_needs_its_password(ledger_server: PostgresServer, open_as: Open) -> None:
    ledger_server.require_password("bert", "secret")
    ledger_server.administer("ALTER ROLE bert NOSUPERUSER; GRANT bb_person TO bert")
    asked: list[str] = []

    def answer(user: str) -> str | None:
        asked.append(user)
        return "secret" if len(asked) > 1 else None

    ledger = open_as(WORKER, "bert")
    ledger.database.ask_password = answer
    with pytest.raises(NotAPerson, match="no valid password for the database user bert"):
        ledger.grants.grant("trust", "/p", (), "cli", NOW)
    assert ledger.database.one("SELECT session_user") == (WORKER,)
    ledger.grants.grant("trust", "/p", (), "cli", NOW)
    assert asked == ["bert", "bert"] and ledger.database.one("SELECT session_user") == ("bert",)


@pytest.mark.usefixtures("empty")
def test_an_approval_says_on_which_host_and_by_whom(open_as: Open) -> None:
    ledger = open_as(WORKER, PERSON)
    submit(ledger, "task_x")
    ledger.runs.claim(ENGINE, OURS, 1, NOW)
    assert ledger.queries.get("task_x").task.decision.via == f"cli@host {HOST_ID}:{PERSON}"  # type: ignore[union-attr]


# -- migrate


def test_without_roles_the_owner_does_everything_and_migrate_says_so(ledger_server: PostgresServer, tmp_path: Path) -> None:
    ledger_server.create_roles()
    renamed = [(role, f"{role}_away") for role in ("bb_person", "bb_worker", "bb_agent")]
    ledger_server.administer("; ".join(f"ALTER ROLE {role} RENAME TO {away}" for role, away in renamed))
    try:
        url = ledger_server.create_database("without_roles")
        assert migrate(url, host_id=HOST_ID, home="/a").has_roles is False
        ledger = Ledger(PostgresDatabase(url, host_id=HOST_ID, private_folder=str(tmp_path)), "/home")
        submit(ledger, "task_x")
        ledger.grants.grant("trust", "/p", (), "cli", NOW)
        ledger.close()
        ledger_server.administer(CREATE_ROLES)
        assert migrate(url, host_id=HOST_ID, home="/a").has_roles is True
        ledger_server.administer("DROP DATABASE without_roles WITH (FORCE)")
        ledger_server.administer("DROP ROLE bb_person, bb_worker, bb_agent")
    finally:
        ledger_server.administer("; ".join(f"ALTER ROLE {away} RENAME TO {role}" for role, away in renamed))


def test_a_user_who_may_creates_the_roles(ledger_server: PostgresServer) -> None:
    ledger_server.create_roles()
    ledger_server.administer("ALTER ROLE bb_agent RENAME TO bb_agent_away")
    try:
        url = ledger_server.create_database("creates_roles")
        ledger_server.administer(f"ALTER ROLE {OWNER} CREATEROLE")
        assert migrate(url, host_id=HOST_ID, home="/a").has_roles is True
        assert ledger_server.administer("SELECT rolcanlogin FROM pg_roles WHERE rolname = 'bb_agent'") == [(False,)]
        ledger_server.administer("DROP DATABASE creates_roles WITH (FORCE)")
        ledger_server.administer("DROP ROLE bb_agent")
    finally:
        ledger_server.administer(f"ALTER ROLE {OWNER} NOCREATEROLE; ALTER ROLE bb_agent_away RENAME TO bb_agent")
