"""The ledger's tables as numbered migrations. A released migration is never edited; a change is a new migration.

Portable SQL: text, integers, JSON as text, times as integer milliseconds UTC. Constraints forbid impossible rows.
"""

MIGRATIONS: tuple[str, ...] = (
    # 1: commands
    """
    CREATE TABLE environments (
        environment_id INTEGER PRIMARY KEY,
        checksum INTEGER NOT NULL,
        body TEXT NOT NULL
    );
    CREATE INDEX environments_by_checksum ON environments (checksum);

    CREATE TABLE tasks (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        task_id TEXT NOT NULL UNIQUE CHECK (task_id <> ''),
        type TEXT NOT NULL CHECK (type IN ('command', 'agent')),
        kind TEXT NOT NULL CHECK (kind IN ('oneshot', 'scheduled', 'event')),
        state TEXT NOT NULL CHECK (state IN
            ('proposed', 'rejected', 'expired', 'active', 'paused', 'done', 'failed', 'cancelled')),
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
        -- nothing runs that nobody approved
        CHECK ((approved_by IS NULL) = (state IN ('proposed', 'rejected', 'expired'))),
        CHECK ((approved_by IS NULL) = (approved_at IS NULL)),
        CHECK (approved_by IS NOT NULL OR run_count = 0)
    );
    CREATE INDEX tasks_by_project ON tasks (project, seq);
    CREATE INDEX tasks_by_name ON tasks (name) WHERE name IS NOT NULL;
    CREATE INDEX proposals ON tasks (expires_at) WHERE state = 'proposed';

    CREATE TABLE runs (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        run_id TEXT NOT NULL UNIQUE,
        task_id TEXT NOT NULL REFERENCES tasks (task_id) ON DELETE CASCADE,
        n INTEGER NOT NULL CHECK (n > 0),
        state TEXT NOT NULL CHECK (state IN
            ('pending', 'running', 'waiting', 'resumed', 'completed', 'failed', 'cancelled', 'skipped')),
        result TEXT CHECK (result IN
            ('exit', 'signal', 'timeout', 'lost', 'ambiguous', 'unstarted', 'dependency', 'denied', 'budget')),
        exit_code INTEGER,
        error TEXT,
        summary TEXT,
        lines INTEGER,
        folder TEXT NOT NULL,
        mark TEXT NOT NULL,
        trace_id TEXT NOT NULL,
        span_id TEXT NOT NULL,
        runner TEXT NOT NULL,
        owner TEXT,
        process TEXT,
        created_at INTEGER NOT NULL,
        started_at INTEGER,
        ended_at INTEGER CHECK (ended_at >= started_at),
        cancel_requested_at INTEGER,
        UNIQUE (task_id, n),
        -- an ended run has an end and a result, a live one has neither
        CHECK ((ended_at IS NULL) = (state IN ('pending', 'running', 'waiting', 'resumed'))),
        CHECK ((result IS NULL) = (ended_at IS NULL)),
        -- what is at work was started, and by somebody
        CHECK (state NOT IN ('running', 'resumed') OR (started_at IS NOT NULL AND owner IS NOT NULL)),
        CHECK (state <> 'pending' OR (started_at IS NULL AND owner IS NULL)),
        CHECK (state <> 'completed' OR result = 'exit')
    );
    CREATE INDEX runs_live ON runs (state, runner, seq) WHERE ended_at IS NULL;
    CREATE INDEX runs_ended ON runs (ended_at) WHERE ended_at IS NOT NULL;

    CREATE TABLE events (
        event_id INTEGER PRIMARY KEY AUTOINCREMENT,
        at INTEGER NOT NULL,
        kind TEXT NOT NULL,
        task_id TEXT,
        run_id TEXT,
        data TEXT NOT NULL
    );
    CREATE INDEX events_by_task ON events (task_id);

    CREATE TABLE notices (
        notice_id INTEGER PRIMARY KEY AUTOINCREMENT,
        key TEXT NOT NULL UNIQUE,
        task_id TEXT NOT NULL REFERENCES tasks (task_id) ON DELETE CASCADE,
        run_id TEXT NOT NULL,
        project TEXT NOT NULL,
        channel TEXT NOT NULL,
        text TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        told_at INTEGER,
        UNIQUE (run_id, channel)
    );
    CREATE INDEX notices_by_task ON notices (task_id);
    CREATE INDEX notices_unread ON notices (project, notice_id) WHERE told_at IS NULL;
    """,
    # 2: the gate: which rule decided, what an approval was bound to, and permanent permissions
    """
    ALTER TABLE tasks ADD COLUMN rule TEXT NOT NULL DEFAULT '';
    ALTER TABLE tasks ADD COLUMN fingerprint TEXT;
    CREATE TABLE grants (
        grant_id INTEGER PRIMARY KEY AUTOINCREMENT,
        kind TEXT NOT NULL CHECK (kind IN ('trust', 'always')),
        project TEXT NOT NULL,
        command TEXT NOT NULL,
        via TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        UNIQUE (kind, project, command),
        CHECK ((kind = 'trust') = (command = '[]'))
    );
    """,
    # 3: order and batches, limits, servers, and the position of a task in a trace
    """
    ALTER TABLE tasks ADD COLUMN batch TEXT;
    ALTER TABLE tasks ADD COLUMN key TEXT;
    ALTER TABLE tasks ADD COLUMN priority INTEGER NOT NULL DEFAULT 0 CHECK (priority BETWEEN -1 AND 1);
    ALTER TABLE tasks ADD COLUMN after TEXT NOT NULL DEFAULT '[]';
    ALTER TABLE tasks ADD COLUMN start_at INTEGER;
    ALTER TABLE tasks ADD COLUMN limits TEXT NOT NULL DEFAULT '{}';
    ALTER TABLE tasks ADD COLUMN stdin INTEGER NOT NULL DEFAULT 0 CHECK (stdin IN (0, 1));
    ALTER TABLE tasks ADD COLUMN ready_when TEXT;
    ALTER TABLE tasks ADD COLUMN restarts INTEGER NOT NULL DEFAULT 0 CHECK (restarts >= 0);
    ALTER TABLE tasks ADD COLUMN trace_id TEXT NOT NULL DEFAULT '';
    ALTER TABLE tasks ADD COLUMN span_id TEXT NOT NULL DEFAULT '';
    ALTER TABLE tasks ADD COLUMN parent_span_id TEXT;
    UPDATE tasks SET trace_id = coalesce((SELECT r.trace_id FROM runs r WHERE r.task_id = tasks.task_id AND r.n = 1), '');
    CREATE INDEX tasks_by_batch ON tasks (batch, seq) WHERE batch IS NOT NULL;
    CREATE UNIQUE INDEX tasks_by_key ON tasks (project, key) WHERE key IS NOT NULL;

    -- what a task still waits for; a row goes when that has completed
    CREATE TABLE dependencies (
        task_id TEXT NOT NULL REFERENCES tasks (task_id) ON DELETE CASCADE,
        after_id TEXT NOT NULL,
        PRIMARY KEY (task_id, after_id),
        CHECK (task_id <> after_id)
    );
    CREATE INDEX dependencies_by_after ON dependencies (after_id);

    ALTER TABLE runs ADD COLUMN priority INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE runs ADD COLUMN blocked INTEGER NOT NULL DEFAULT 0 CHECK (blocked IN (0, 1));
    ALTER TABLE runs ADD COLUMN due_at INTEGER;
    ALTER TABLE runs ADD COLUMN ready_at INTEGER CHECK (ready_at IS NULL OR started_at IS NOT NULL);
    -- by nothing that changes while a run is live, so that a claim writes fewer pages
    DROP INDEX runs_live;
    CREATE INDEX runs_live ON runs (seq) WHERE ended_at IS NULL;
    CREATE INDEX runs_queue ON runs (runner, priority DESC, seq) WHERE state = 'pending' AND blocked = 0;

    -- once more without UNIQUE (run_id, channel): the key says the same, and every index costs a page at every end
    ALTER TABLE notices RENAME TO notices_2;
    DROP INDEX notices_by_task;
    DROP INDEX notices_unread;
    CREATE TABLE notices (
        notice_id INTEGER PRIMARY KEY AUTOINCREMENT,
        key TEXT NOT NULL UNIQUE,
        task_id TEXT NOT NULL REFERENCES tasks (task_id) ON DELETE CASCADE,
        run_id TEXT NOT NULL,
        project TEXT NOT NULL,
        channel TEXT NOT NULL,
        text TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        told_at INTEGER,
        CHECK (key = run_id || ':' || channel)
    );
    INSERT INTO notices SELECT * FROM notices_2;
    DROP TABLE notices_2;
    CREATE INDEX notices_by_task ON notices (task_id);
    CREATE INDEX notices_unread ON notices (project, notice_id) WHERE told_at IS NULL;

    DROP INDEX events_by_task;
    CREATE INDEX events_cleared ON events (task_id) WHERE kind = 'task_cleared';

    -- how far somebody who follows the events has come
    CREATE TABLE cursors (
        name TEXT NOT NULL PRIMARY KEY,
        position INTEGER NOT NULL
    );
    """,
    # 4: sessions, and notices for them
    """
    CREATE TABLE sessions (
        session_id TEXT NOT NULL PRIMARY KEY CHECK (session_id <> ''),
        client TEXT NOT NULL,
        project TEXT NOT NULL,
        process TEXT,
        created_at INTEGER NOT NULL,
        seen_at INTEGER NOT NULL
    );
    ALTER TABLE tasks ADD COLUMN session TEXT;
    CREATE INDEX tasks_by_session ON tasks (session, seq) WHERE session IS NOT NULL;

    -- once more with a run that may be missing: of a proposal that was refused there is none
    ALTER TABLE notices RENAME TO notices_3;
    DROP INDEX notices_by_task;
    DROP INDEX notices_unread;
    CREATE TABLE notices (
        notice_id INTEGER PRIMARY KEY AUTOINCREMENT,
        key TEXT NOT NULL UNIQUE,
        task_id TEXT NOT NULL REFERENCES tasks (task_id) ON DELETE CASCADE,
        run_id TEXT,
        project TEXT NOT NULL,
        channel TEXT NOT NULL,
        text TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        told_at INTEGER,
        CHECK (key = coalesce(run_id, task_id || ':refused') || ':' || channel)
    );
    INSERT INTO notices SELECT * FROM notices_3;
    DROP TABLE notices_3;
    -- until when somebody is about to tell it
    ALTER TABLE notices ADD COLUMN leased_until INTEGER;
    CREATE INDEX notices_by_task ON notices (task_id);
    CREATE INDEX notices_unread ON notices (channel, notice_id) WHERE told_at IS NULL;
    """,
    # 5: agents: prompts, budgets, what runs wait for, and memory
    """
    ALTER TABLE tasks ADD COLUMN agent TEXT;
    ALTER TABLE tasks ADD COLUMN prompt TEXT NOT NULL DEFAULT '';
    ALTER TABLE tasks ADD COLUMN message TEXT;
    ALTER TABLE tasks ADD COLUMN budget TEXT NOT NULL DEFAULT '{}';
    ALTER TABLE tasks ADD COLUMN retrieved_at INTEGER;
    ALTER TABLE runs ADD COLUMN message TEXT;
    ALTER TABLE runs ADD COLUMN waits_on TEXT;
    ALTER TABLE runs ADD COLUMN reply TEXT CHECK (reply IN ('yes', 'no'));
    ALTER TABLE runs ADD COLUMN extensions INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE runs ADD COLUMN usage TEXT NOT NULL DEFAULT '{}';
    CREATE INDEX runs_waiting ON runs (waits_on) WHERE waits_on IS NOT NULL;
    CREATE TABLE memory (
        project TEXT NOT NULL,
        key TEXT NOT NULL,
        value TEXT NOT NULL,
        set_at INTEGER NOT NULL,
        PRIMARY KEY (project, key)
    );
    """,
    # 6: recurring tasks: schedules, results and usage, skipped slots, and interactive priority on a model
    """
    ALTER TABLE tasks ADD COLUMN schedule TEXT NOT NULL DEFAULT '{}';
    ALTER TABLE tasks ADD COLUMN notify TEXT CHECK (notify IN ('always', 'on_change', 'on_failure', 'never'));
    ALTER TABLE tasks ADD COLUMN terms TEXT NOT NULL DEFAULT '{}';
    ALTER TABLE tasks ADD COLUMN lane TEXT NOT NULL DEFAULT '';
    ALTER TABLE tasks ADD COLUMN next_run_at INTEGER CHECK (next_run_at IS NULL OR state = 'active');
    ALTER TABLE tasks ADD COLUMN fired INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE tasks ADD COLUMN failures INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE tasks ADD COLUMN result_hash TEXT;
    ALTER TABLE tasks ADD COLUMN gate_hash TEXT;
    ALTER TABLE tasks ADD COLUMN paused_because TEXT;
    ALTER TABLE tasks ADD COLUMN counted_from INTEGER;
    UPDATE tasks SET lane = 'agents' WHERE type = 'agent';
    CREATE INDEX tasks_due ON tasks (next_run_at) WHERE next_run_at IS NOT NULL;
    CREATE INDEX tasks_standing ON tasks (state, seq) WHERE schedule <> '{}';

    -- which standing task is run each time another one has completed
    CREATE TABLE chains (
        task_id TEXT NOT NULL PRIMARY KEY REFERENCES tasks (task_id) ON DELETE CASCADE,
        after_id TEXT NOT NULL
    );
    CREATE INDEX chains_by_after ON chains (after_id);

    CREATE TABLE turns (
        process TEXT NOT NULL PRIMARY KEY,
        lane TEXT NOT NULL,
        task_id TEXT,
        since INTEGER NOT NULL
    );

    -- once more with numbers below zero for slots that were skipped
    ALTER TABLE runs RENAME TO runs_5;
    DROP INDEX runs_live;
    DROP INDEX runs_ended;
    DROP INDEX runs_queue;
    DROP INDEX runs_waiting;
    CREATE TABLE runs (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        run_id TEXT NOT NULL UNIQUE,
        task_id TEXT NOT NULL REFERENCES tasks (task_id) ON DELETE CASCADE,
        n INTEGER NOT NULL CHECK (n <> 0 AND (n > 0 OR state = 'skipped')),
        state TEXT NOT NULL CHECK (state IN
            ('pending', 'running', 'waiting', 'resumed', 'completed', 'failed', 'cancelled', 'skipped')),
        result TEXT CHECK (result IN
            ('exit', 'signal', 'timeout', 'lost', 'ambiguous', 'unstarted', 'dependency', 'denied', 'budget')),
        exit_code INTEGER,
        error TEXT,
        summary TEXT,
        lines INTEGER,
        folder TEXT NOT NULL,
        mark TEXT NOT NULL,
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
        waits_on TEXT,
        reply TEXT CHECK (reply IN ('yes', 'no')),
        extensions INTEGER NOT NULL DEFAULT 0,
        usage TEXT NOT NULL DEFAULT '{}',
        cause TEXT NOT NULL DEFAULT '',
        slot INTEGER,
        origin TEXT,
        problem TEXT,
        digest TEXT,
        UNIQUE (task_id, n),
        -- an ended run has an end and a result, a live one has neither
        CHECK ((ended_at IS NULL) = (state IN ('pending', 'running', 'waiting', 'resumed'))),
        CHECK ((result IS NULL) = (ended_at IS NULL)),
        -- what is at work was started, and by somebody
        CHECK (state NOT IN ('running', 'resumed') OR (started_at IS NOT NULL AND owner IS NOT NULL)),
        CHECK (state <> 'pending' OR (started_at IS NULL AND owner IS NULL)),
        CHECK (state <> 'completed' OR result = 'exit')
    );
    INSERT INTO runs (seq, run_id, task_id, n, state, result, exit_code, error, summary, lines, folder, mark, trace_id, span_id, runner,
        owner, process, created_at, started_at, ended_at, cancel_requested_at, priority, blocked, due_at, ready_at, message, waits_on,
        reply, extensions, usage)
    SELECT seq, run_id, task_id, n, state, result, exit_code, error, summary, lines, folder, mark, trace_id, span_id, runner,
        owner, process, created_at, started_at, ended_at, cancel_requested_at, priority, blocked, due_at, ready_at, message, waits_on,
        reply, extensions, usage FROM runs_5;
    DROP TABLE runs_5;
    CREATE INDEX runs_live ON runs (seq) WHERE ended_at IS NULL;
    CREATE INDEX runs_ended ON runs (ended_at) WHERE ended_at IS NOT NULL;
    CREATE INDEX runs_queue ON runs (runner, priority DESC, seq) WHERE state = 'pending' AND blocked = 0;
    CREATE INDEX runs_waiting ON runs (waits_on) WHERE waits_on IS NOT NULL;
    -- no slot is run or skipped twice, whatever happens
    CREATE UNIQUE INDEX runs_by_slot ON runs (task_id, slot) WHERE cause = 'schedule';

    -- once more with keys for what is told besides the end of a run
    ALTER TABLE notices RENAME TO notices_5;
    DROP INDEX notices_by_task;
    DROP INDEX notices_unread;
    CREATE TABLE notices (
        notice_id INTEGER PRIMARY KEY AUTOINCREMENT,
        key TEXT NOT NULL UNIQUE,
        task_id TEXT NOT NULL REFERENCES tasks (task_id) ON DELETE CASCADE,
        run_id TEXT,
        project TEXT NOT NULL,
        channel TEXT NOT NULL,
        text TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        told_at INTEGER,
        leased_until INTEGER
    );
    INSERT INTO notices SELECT * FROM notices_5;
    DROP TABLE notices_5;
    CREATE INDEX notices_by_task ON notices (task_id);
    CREATE INDEX notices_unread ON notices (channel, notice_id) WHERE told_at IS NULL;
    """,
    # 7: integrations: notices for channels, states of sources, user activity, and refusals
    """
    ALTER TABLE tasks ADD COLUMN channels TEXT NOT NULL DEFAULT '[]';
    ALTER TABLE tasks ADD COLUMN source TEXT NOT NULL DEFAULT '{}';
    CREATE INDEX tasks_watched ON tasks (seq) WHERE source <> '{}';
    ALTER TABLE runs ADD COLUMN payload TEXT;
    ALTER TABLE chains ADD COLUMN changed INTEGER NOT NULL DEFAULT 0 CHECK (changed IN (0, 1));
    ALTER TABLE notices ADD COLUMN priority INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE notices ADD COLUMN attempts INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE notices ADD COLUMN next_attempt_at INTEGER;
    ALTER TABLE notices ADD COLUMN error TEXT;
    ALTER TABLE notices ADD COLUMN dead_at INTEGER;
    ALTER TABLE notices ADD COLUMN external TEXT;
    CREATE INDEX notices_dead ON notices (notice_id) WHERE dead_at IS NOT NULL AND told_at IS NULL;
    CREATE INDEX notices_sent ON notices (channel, external) WHERE external IS NOT NULL;
    -- what a source saw last, and what happened while a run was at work
    CREATE TABLE watches (
        task_id TEXT NOT NULL PRIMARY KEY REFERENCES tasks (task_id) ON DELETE CASCADE,
        state TEXT NOT NULL DEFAULT '{}',
        waiting TEXT,
        broken TEXT
    );
    CREATE TABLE received (
        hook TEXT NOT NULL,
        delivery TEXT NOT NULL,
        at INTEGER NOT NULL,
        PRIMARY KEY (hook, delivery)
    );
    CREATE TABLE presence (
        door TEXT NOT NULL PRIMARY KEY,
        at INTEGER NOT NULL
    );
    -- what a person did not want: it is not asked for again by itself
    CREATE TABLE tombstones (
        project TEXT NOT NULL,
        name TEXT NOT NULL,
        digest TEXT NOT NULL,
        why TEXT NOT NULL,
        at INTEGER NOT NULL
    );
    CREATE INDEX tombstones_by_project ON tombstones (project, at);
    """,
    # 8: the folder in which the requesting session was opened; the fingerprint of what a waiting run asked approval for
    """
    ALTER TABLE tasks ADD COLUMN opened TEXT;
    UPDATE tasks SET opened = cwd;
    ALTER TABLE runs ADD COLUMN asked TEXT;
    """,
    # 9: kinds as columns: of notices and pauses, which tasks are chats, and how many slots a skipped run stands for
    """
    ALTER TABLE notices ADD COLUMN kind TEXT NOT NULL DEFAULT 'ended';
    UPDATE notices SET kind = CASE
        WHEN key LIKE '%:proposed:%' THEN 'proposed'
        WHEN key LIKE '%:waits:%' THEN 'waiting'
        WHEN key LIKE '%:paused:%' THEN 'paused'
        WHEN key LIKE '%:delayed:%' THEN 'delayed'
        WHEN run_id IS NULL THEN 'refused'
        ELSE 'ended' END;
    ALTER TABLE tasks ADD COLUMN pause_kind TEXT;
    UPDATE tasks SET pause_kind = 'budget', paused_because = substr(paused_because, 9) WHERE paused_because LIKE 'budget: %';
    UPDATE tasks SET pause_kind = 'other' WHERE paused_because IS NOT NULL AND pause_kind IS NULL;
    ALTER TABLE tasks ADD COLUMN chat INTEGER NOT NULL DEFAULT 0;
    UPDATE tasks SET chat = 1 WHERE terms LIKE '{"chat": true%';
    ALTER TABLE runs ADD COLUMN skipped_before INTEGER NOT NULL DEFAULT 0;
    UPDATE runs SET
        skipped_before = CAST(replace(substr(error, instr(error, ' (and ') + 6), ',', '') AS INTEGER),
        error = substr(error, 1, instr(error, ' (and ') - 1)
        WHERE n < 0 AND error LIKE '% slots before it)';
    """,
    # 10: an index of notices to deliver to channels, so that the query does not depend on text order
    """
    CREATE INDEX notices_outgoing ON notices (notice_id) WHERE told_at IS NULL AND dead_at IS NULL AND substr(channel, 1, 3) = 'to:';
    """,
    # 11: the requester of a task and the recipient of a notice as columns, so that nothing is parsed from a session, key or channel
    """
    ALTER TABLE tasks ADD COLUMN client TEXT;
    UPDATE tasks SET client = CASE WHEN instr(session, ':') > 0 THEN substr(session, 1, instr(session, ':') - 1) ELSE session END;
    ALTER TABLE tasks ADD COLUMN parent_task TEXT;
    UPDATE tasks SET parent_task = (SELECT p.task_id FROM tasks p WHERE p.task_id = substr(tasks.session, length(tasks.client) + 2))
        WHERE client IN ('agent', 'task');
    CREATE INDEX tasks_by_parent ON tasks (parent_task) WHERE parent_task IS NOT NULL;
    ALTER TABLE tasks ADD COLUMN parent_run TEXT;
    -- the built-in agent gave what its tool calls ran keys that begin with the id of its run
    UPDATE tasks SET parent_run = (SELECT r.run_id FROM runs r JOIN tasks p ON p.task_id = r.task_id
        WHERE r.run_id = substr(tasks.key, 1, instr(tasks.key, ':') - 1) AND p.agent IS NOT NULL)
        WHERE session IS NOT NULL AND instr(key, ':') > 0;
    UPDATE tasks SET parent_task = (SELECT r.task_id FROM runs r WHERE r.run_id = tasks.parent_run) WHERE parent_run IS NOT NULL;
    ALTER TABLE notices ADD COLUMN recipient TEXT NOT NULL DEFAULT 'person';
    UPDATE notices SET recipient = CASE
        WHEN substr(channel, 1, 3) = 'to:' THEN 'channel'
        WHEN substr(channel, 1, 8) = 'session:' THEN 'session'
        ELSE 'person' END;
    DROP INDEX notices_outgoing;
    CREATE INDEX notices_outgoing ON notices (notice_id) WHERE told_at IS NULL AND dead_at IS NULL AND recipient = 'channel';
    """,
    # 12: what a run waits for as a kind and a target
    """
    ALTER TABLE runs ADD COLUMN wait_kind TEXT;
    UPDATE runs SET wait_kind = CASE
        WHEN waits_on IN ('budget', 'tool') THEN waits_on
        WHEN waits_on = 'elsewhere' THEN 'reattach'
        WHEN waits_on LIKE 'turn:%' THEN 'interactive'
        WHEN waits_on IS NOT NULL THEN 'task'
        WHEN state = 'waiting' THEN 'approval' END;
    UPDATE runs SET waits_on = CASE wait_kind WHEN 'task' THEN waits_on WHEN 'interactive' THEN substr(waits_on, 6) END;
    ALTER TABLE runs RENAME COLUMN waits_on TO wait_target;
    """,
    # 13: plain names for tables, columns and events
    """
    ALTER TABLE notices RENAME COLUMN told_at TO acknowledged_at;
    ALTER TABLE notices RENAME COLUMN dead_at TO failed_at;
    ALTER TABLE notices RENAME COLUMN external TO external_id;
    ALTER TABLE runs RENAME COLUMN mark TO process_tag;
    ALTER TABLE runs RENAME COLUMN asked TO wait_fingerprint;
    ALTER TABLE tasks RENAME COLUMN gate_hash TO precheck_hash;
    ALTER TABLE tasks RENAME COLUMN terms TO agent_options;
    ALTER TABLE tombstones RENAME TO refusals;
    ALTER TABLE turns RENAME TO interactive_leases;
    ALTER TABLE presence RENAME TO user_activity;
    ALTER TABLE user_activity RENAME COLUMN door TO interface;
    ALTER TABLE received RENAME TO received_webhooks;
    ALTER TABLE received_webhooks RENAME COLUMN hook TO webhook;
    ALTER TABLE watches RENAME TO source_states;
    DROP INDEX notices_dead;
    CREATE INDEX notices_failed ON notices (notice_id) WHERE failed_at IS NOT NULL AND acknowledged_at IS NULL;
    DROP INDEX tombstones_by_project;
    CREATE INDEX refusals_by_project ON refusals (project, at);
    DROP INDEX tasks_standing;
    CREATE INDEX tasks_recurring ON tasks (state, seq) WHERE schedule <> '{}';
    UPDATE events SET kind = 'run_suspended' WHERE kind = 'run_parked';
    UPDATE events SET kind = 'run_continued' WHERE kind = 'run_woken';
    UPDATE events SET kind = 'run_passed_to_agent' WHERE kind = 'run_handed';
    """,
    # 14: active runs and runs that are due are found without reading every pending run; commands in a terminal
    """
    ALTER TABLE tasks ADD COLUMN tty INTEGER NOT NULL DEFAULT 0 CHECK (tty IN (0, 1));
    DROP INDEX runs_live;
    DROP INDEX runs_queue;
    CREATE INDEX runs_active ON runs (seq) WHERE ended_at IS NULL AND state <> 'pending';
    CREATE INDEX runs_queue ON runs (runner, blocked, due_at IS NOT NULL, priority DESC, seq) WHERE state = 'pending';
    CREATE INDEX runs_due ON runs (runner, due_at) WHERE state = 'pending' AND due_at IS NOT NULL;
    """,
    # 15: the sandbox of a task that nobody approved, and of each run; ports that the sandboxed commands of a project may connect to.
    # What was harmless before is judged again when it starts.
    """
    ALTER TABLE tasks ADD COLUMN sandbox TEXT;
    ALTER TABLE runs ADD COLUMN sandbox TEXT;
    ALTER TABLE runs ADD COLUMN notes TEXT;
    CREATE INDEX runs_failed_in_sandbox ON runs (task_id) WHERE problem = 'sandbox';
    UPDATE tasks SET rule = 'sandbox' WHERE approved_by = 'auto' AND rule IN ('harmless', 'trusted project');
    ALTER TABLE grants RENAME TO grants_before;
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
    INSERT INTO grants SELECT * FROM grants_before;
    DROP TABLE grants_before;
    """,
    # 16: failed, cancelled and unapproved tasks are found without reading every task
    """
    CREATE INDEX runs_unsuccessful ON runs (state, seq) WHERE state IN ('failed', 'cancelled');
    CREATE INDEX tasks_unapproved ON tasks (state, seq) WHERE state IN ('proposed', 'rejected', 'expired');
    """,
    # 17: traces, spans and the decisions on a task's steps are found without reading every task and event
    """
    CREATE INDEX tasks_by_trace ON tasks (trace_id);
    CREATE INDEX tasks_by_span ON tasks (span_id);
    CREATE INDEX tasks_by_parent_span ON tasks (parent_span_id) WHERE parent_span_id IS NOT NULL;
    CREATE INDEX runs_by_span ON runs (span_id);
    CREATE INDEX events_decided ON events (task_id) WHERE kind IN ('run_requeued', 'step_decided');
    """,
    # 18: the web interface: paired pages, their passkeys, the challenges that they answer, and every attempt to approve with them
    """
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
    -- every attempt to approve through the web interface, with its proof
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
    CREATE INDEX approval_attempts_by_task ON approval_attempts (task_id) WHERE task_id IS NOT NULL;
    """,
    # 19: several hosts: where the runs of a task may start, on which host a run, a session or a process is, and the hosts themselves;
    # what one host asks of another, and the beginning and end of the output of runs, for when their host cannot be reached
    """
    ALTER TABLE tasks ADD COLUMN place TEXT NOT NULL DEFAULT '';
    ALTER TABLE tasks ADD COLUMN rerun INTEGER NOT NULL DEFAULT 0 CHECK (rerun IN (0, 1));
    ALTER TABLE tasks ADD COLUMN origin_host TEXT NOT NULL DEFAULT '';
    ALTER TABLE runs ADD COLUMN host TEXT NOT NULL DEFAULT '';
    ALTER TABLE runs ADD COLUMN epoch INTEGER;
    ALTER TABLE sessions ADD COLUMN host TEXT NOT NULL DEFAULT '';
    ALTER TABLE interactive_leases ADD COLUMN host TEXT NOT NULL DEFAULT '';
    CREATE TABLE hosts (
        host_id TEXT NOT NULL PRIMARY KEY CHECK (host_id <> ''),
        name TEXT NOT NULL UNIQUE CHECK (name <> ''),
        state TEXT NOT NULL CHECK (state IN ('active', 'suspected', 'fenced', 'left')),
        epoch INTEGER NOT NULL DEFAULT 0,
        beat INTEGER NOT NULL DEFAULT 0,
        changed_at INTEGER NOT NULL,
        seen_at INTEGER NOT NULL,
        draining INTEGER NOT NULL DEFAULT 0 CHECK (draining IN (0, 1)),
        integrations INTEGER NOT NULL DEFAULT 0 CHECK (integrations IN (0, 1)),
        lanes TEXT NOT NULL DEFAULT '[]',
        capacity INTEGER NOT NULL DEFAULT 0 CHECK (capacity >= 0),
        version TEXT NOT NULL DEFAULT ''
    );
    CREATE TABLE host_requests (
        request_id INTEGER PRIMARY KEY AUTOINCREMENT,
        host_id TEXT NOT NULL,
        run_id TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
        kind TEXT NOT NULL CHECK (kind IN ('log', 'file', 'files', 'input')),
        path TEXT NOT NULL DEFAULT '',
        position INTEGER NOT NULL DEFAULT 0,
        body BLOB,
        created_at INTEGER NOT NULL,
        expires_at INTEGER NOT NULL
    );
    CREATE TABLE host_responses (
        request_id INTEGER NOT NULL REFERENCES host_requests (request_id) ON DELETE CASCADE,
        n INTEGER NOT NULL,
        position INTEGER NOT NULL,
        body BLOB NOT NULL,
        last INTEGER NOT NULL DEFAULT 0 CHECK (last IN (0, 1)),
        error TEXT,
        PRIMARY KEY (request_id, n)
    );
    CREATE TABLE output_excerpts (
        run_id TEXT NOT NULL PRIMARY KEY REFERENCES runs (run_id) ON DELETE CASCADE,
        head BLOB NOT NULL,
        tail BLOB NOT NULL,
        size INTEGER NOT NULL,
        details TEXT NOT NULL DEFAULT '{}',
        at INTEGER NOT NULL
    );
    CREATE TABLE folders_to_delete (
        host_id TEXT NOT NULL,
        folder TEXT NOT NULL,
        PRIMARY KEY (host_id, folder)
    );
    CREATE INDEX host_requests_by_host ON host_requests (host_id, request_id);
    """,
    # 20: the index of unapproved tasks has a condition that takes no list: for one, SQLite builds a temporary table each time that a task is written
    """
    DROP INDEX tasks_unapproved;
    CREATE INDEX tasks_unapproved ON tasks (state, seq) WHERE approved_by IS NULL;
    """,
)
VERSION = len(MIGRATIONS)
# Programs with this version of the schema can still use a ledger on Postgres that has VERSION, while its hosts are upgraded one after the
# other. Keep it for a migration that only adds what older programs need not know; otherwise set it to the version of the migration.
LEAST_VERSION = 19
