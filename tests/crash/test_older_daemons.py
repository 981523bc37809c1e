"""A newer version opens a home whose engine is still running: the ledger is migrated, and the engine is replaced."""

import apsw
from conftest import HomeCli, wait_until

from backburner.system import processes

# Reverses migrations 13 to 19.
TO_VERSION_12 = """
    DROP TABLE host_responses;
    DROP TABLE host_requests;
    DROP TABLE output_excerpts;
    DROP TABLE folders_to_delete;
    DROP TABLE hosts;
    ALTER TABLE tasks DROP COLUMN place;
    ALTER TABLE tasks DROP COLUMN rerun;
    ALTER TABLE tasks DROP COLUMN origin_host;
    ALTER TABLE runs DROP COLUMN host;
    ALTER TABLE runs DROP COLUMN epoch;
    ALTER TABLE sessions DROP COLUMN host;
    ALTER TABLE interactive_leases DROP COLUMN host;
    DROP TABLE home;
    DROP TABLE challenges;
    DROP TABLE passkeys;
    DROP TABLE pairings;
    DROP TABLE devices;
    DROP TABLE approval_attempts;
    DROP INDEX tasks_by_trace;
    DROP INDEX tasks_by_span;
    DROP INDEX tasks_by_parent_span;
    DROP INDEX runs_by_span;
    DROP INDEX events_decided;
    DROP INDEX runs_unsuccessful;
    DROP INDEX tasks_unapproved;
    DROP INDEX runs_failed_in_sandbox;
    ALTER TABLE tasks DROP COLUMN sandbox;
    ALTER TABLE runs DROP COLUMN sandbox;
    ALTER TABLE runs DROP COLUMN notes;
    DROP INDEX runs_active;
    DROP INDEX runs_queue;
    DROP INDEX runs_due;
    ALTER TABLE tasks DROP COLUMN tty;
    CREATE INDEX runs_live ON runs (seq) WHERE ended_at IS NULL;
    CREATE INDEX runs_queue ON runs (runner, priority DESC, seq) WHERE state = 'pending' AND blocked = 0;
    BEGIN IMMEDIATE;
    DROP INDEX notices_failed;
    DROP INDEX refusals_by_project;
    DROP INDEX tasks_recurring;
    ALTER TABLE notices RENAME COLUMN acknowledged_at TO told_at;
    ALTER TABLE notices RENAME COLUMN failed_at TO dead_at;
    ALTER TABLE notices RENAME COLUMN external_id TO external;
    ALTER TABLE runs RENAME COLUMN process_tag TO mark;
    ALTER TABLE runs RENAME COLUMN wait_fingerprint TO asked;
    ALTER TABLE tasks RENAME COLUMN precheck_hash TO gate_hash;
    ALTER TABLE tasks RENAME COLUMN agent_options TO terms;
    ALTER TABLE refusals RENAME TO tombstones;
    ALTER TABLE interactive_leases RENAME TO turns;
    ALTER TABLE user_activity RENAME COLUMN interface TO door;
    ALTER TABLE user_activity RENAME TO presence;
    ALTER TABLE received_webhooks RENAME COLUMN webhook TO hook;
    ALTER TABLE received_webhooks RENAME TO received;
    ALTER TABLE source_states RENAME TO watches;
    CREATE INDEX notices_dead ON notices (notice_id) WHERE dead_at IS NOT NULL AND told_at IS NULL;
    CREATE INDEX tombstones_by_project ON tombstones (project, at);
    CREATE INDEX tasks_standing ON tasks (state, seq) WHERE schedule <> '{}';
    PRAGMA user_version = 12;
    COMMIT
"""


def to_version_12(home_cli: HomeCli) -> None:
    """Give the ledger an older schema, as if the running engine were of an older version."""
    db = apsw.Connection(home_cli.home.ledger)
    db.set_busy_timeout(10_000)
    db.execute(TO_VERSION_12)
    db.close()


def test_an_engine_of_an_older_version_is_replaced_and_its_command_taken_over(home_cli: HomeCli) -> None:
    gate = home_cli.cwd / "gate"
    task_id = home_cli.run("sh", "-c", f"while [ ! -e {gate} ]; do sleep 0.05; done; exit 7")
    wait_until(lambda: home_cli.status(task_id)["pid"], "the command to run")
    before = home_cli.engine
    assert before is not None
    to_version_12(home_cli)
    assert home_cli.status(task_id)["status"] == "running"
    wait_until(lambda: home_cli.engine not in (None, before), "another engine")
    assert not processes.is_alive(before)
    assert home_cli.finish("echo", "after")["status"] == "completed"
    gate.touch()
    home_cli.cli("wait", task_id, "--timeout", "60")
    ended = home_cli.status(task_id)
    assert (ended["status"], ended["exit_code"]) == ("failed", 7)
