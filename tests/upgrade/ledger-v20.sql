PRAGMA foreign_keys = OFF;
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
        kind TEXT NOT NULL CHECK ((kind = 'oneshot' OR kind = 'scheduled' OR kind = 'event')),
        state TEXT NOT NULL CHECK ((state = 'proposed' OR state = 'rejected' OR state = 'expired' OR state = 'active' OR state = 'paused' OR state = 'done' OR state = 'failed' OR state = 'cancelled')),
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
        environment_id INTEGER REFERENCES environments (environment_id), rule TEXT NOT NULL DEFAULT '', fingerprint TEXT, batch TEXT, key TEXT, priority INTEGER NOT NULL DEFAULT 0 CHECK (priority BETWEEN -1 AND 1), after TEXT NOT NULL DEFAULT '[]', start_at INTEGER, limits TEXT NOT NULL DEFAULT '{}', stdin INTEGER NOT NULL DEFAULT 0 CHECK (stdin IN (0, 1)), ready_when TEXT, restarts INTEGER NOT NULL DEFAULT 0 CHECK (restarts >= 0), trace_id TEXT NOT NULL DEFAULT '', span_id TEXT NOT NULL DEFAULT '', parent_span_id TEXT, session TEXT, agent TEXT, prompt TEXT NOT NULL DEFAULT '', message TEXT, budget TEXT NOT NULL DEFAULT '{}', retrieved_at INTEGER, schedule TEXT NOT NULL DEFAULT '{}', notify TEXT CHECK ((notify = 'always' OR notify = 'on_change' OR notify = 'on_failure' OR notify = 'never')), agent_options TEXT NOT NULL DEFAULT '{}', lane TEXT NOT NULL DEFAULT '', next_run_at INTEGER CHECK (next_run_at IS NULL OR state = 'active'), fired INTEGER NOT NULL DEFAULT 0, failures INTEGER NOT NULL DEFAULT 0, result_hash TEXT, precheck_hash TEXT, paused_because TEXT, counted_from INTEGER, channels TEXT NOT NULL DEFAULT '[]', source TEXT NOT NULL DEFAULT '{}', opened TEXT, pause_kind TEXT, chat INTEGER NOT NULL DEFAULT 0, client TEXT, parent_task TEXT, parent_run TEXT, tty INTEGER NOT NULL DEFAULT 0 CHECK (tty IN (0, 1)), sandbox TEXT, place TEXT NOT NULL DEFAULT '', rerun INTEGER NOT NULL DEFAULT 0 CHECK (rerun IN (0, 1)), origin_host TEXT NOT NULL DEFAULT '',
        -- nothing runs that nobody approved
        CHECK ((approved_by IS NULL) = ((state = 'proposed' OR state = 'rejected' OR state = 'expired'))),
        CHECK ((approved_by IS NULL) = (approved_at IS NULL)),
        CHECK (approved_by IS NOT NULL OR run_count = 0)
    );
CREATE INDEX tasks_by_project ON tasks (project, seq);
CREATE INDEX tasks_by_name ON tasks (name) WHERE name IS NOT NULL;
CREATE INDEX proposals ON tasks (expires_at) WHERE state = 'proposed';
CREATE TABLE events (
        event_id INTEGER PRIMARY KEY AUTOINCREMENT,
        at INTEGER NOT NULL,
        kind TEXT NOT NULL,
        task_id TEXT,
        run_id TEXT,
        data TEXT NOT NULL
    );
CREATE INDEX tasks_by_batch ON tasks (batch, seq) WHERE batch IS NOT NULL;
CREATE UNIQUE INDEX tasks_by_key ON tasks (project, key) WHERE key IS NOT NULL;
CREATE TABLE dependencies (
        task_id TEXT NOT NULL REFERENCES tasks (task_id) ON DELETE CASCADE,
        after_id TEXT NOT NULL,
        PRIMARY KEY (task_id, after_id),
        CHECK (task_id <> after_id)
    );
CREATE INDEX dependencies_by_after ON dependencies (after_id);
CREATE INDEX events_cleared ON events (task_id) WHERE kind = 'task_cleared';
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
    , host TEXT NOT NULL DEFAULT '');
CREATE INDEX tasks_by_session ON tasks (session, seq) WHERE session IS NOT NULL;
CREATE TABLE memory (
        project TEXT NOT NULL,
        key TEXT NOT NULL,
        value TEXT NOT NULL,
        set_at INTEGER NOT NULL,
        PRIMARY KEY (project, key)
    );
CREATE INDEX tasks_due ON tasks (next_run_at) WHERE next_run_at IS NOT NULL;
CREATE TABLE chains (
        task_id TEXT NOT NULL PRIMARY KEY REFERENCES tasks (task_id) ON DELETE CASCADE,
        after_id TEXT NOT NULL
    , changed INTEGER NOT NULL DEFAULT 0 CHECK (changed IN (0, 1)));
CREATE INDEX chains_by_after ON chains (after_id);
CREATE TABLE "interactive_leases" (
        process TEXT NOT NULL PRIMARY KEY,
        lane TEXT NOT NULL,
        task_id TEXT,
        since INTEGER NOT NULL
    , host TEXT NOT NULL DEFAULT '');
CREATE TABLE runs (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        run_id TEXT NOT NULL UNIQUE,
        task_id TEXT NOT NULL REFERENCES tasks (task_id) ON DELETE CASCADE,
        n INTEGER NOT NULL CHECK (n <> 0 AND (n > 0 OR state = 'skipped')),
        state TEXT NOT NULL CHECK ((state = 'pending' OR state = 'running' OR state = 'waiting' OR state = 'resumed' OR state = 'completed' OR state = 'failed' OR state = 'cancelled' OR state = 'skipped')),
        result TEXT CHECK ((result = 'exit' OR result = 'signal' OR result = 'timeout' OR result = 'lost' OR result = 'ambiguous' OR result = 'unstarted' OR result = 'dependency' OR result = 'denied' OR result = 'budget')),
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
        digest TEXT, payload TEXT, wait_fingerprint TEXT, skipped_before INTEGER NOT NULL DEFAULT 0, wait_kind TEXT, sandbox TEXT, notes TEXT, host TEXT NOT NULL DEFAULT '', epoch INTEGER,
        UNIQUE (task_id, n),
        -- an ended run has an end and a result, a live one has neither
        CHECK ((ended_at IS NULL) = ((state = 'pending' OR state = 'running' OR state = 'waiting' OR state = 'resumed'))),
        CHECK ((result IS NULL) = (ended_at IS NULL)),
        -- what is at work was started, and by somebody
        CHECK (state NOT IN ('running', 'resumed') OR (started_at IS NOT NULL AND owner IS NOT NULL)),
        CHECK (state <> 'pending' OR (started_at IS NULL AND owner IS NULL)),
        CHECK (state <> 'completed' OR result = 'exit')
    );
CREATE INDEX runs_ended ON runs (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX runs_waiting ON runs (wait_target) WHERE wait_target IS NOT NULL;
CREATE UNIQUE INDEX runs_by_slot ON runs (task_id, slot) WHERE cause = 'schedule';
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
        leased_until INTEGER
    , priority INTEGER NOT NULL DEFAULT 0, attempts INTEGER NOT NULL DEFAULT 0, next_attempt_at INTEGER, error TEXT, failed_at INTEGER, external_id TEXT, kind TEXT NOT NULL DEFAULT 'ended', recipient TEXT NOT NULL DEFAULT 'person');
CREATE INDEX notices_by_task ON notices (task_id);
CREATE INDEX notices_unread ON notices (channel, notice_id) WHERE acknowledged_at IS NULL;
CREATE INDEX tasks_watched ON tasks (seq) WHERE source <> '{}';
CREATE INDEX notices_sent ON notices (channel, external_id) WHERE external_id IS NOT NULL;
CREATE TABLE "source_states" (
        task_id TEXT NOT NULL PRIMARY KEY REFERENCES tasks (task_id) ON DELETE CASCADE,
        state TEXT NOT NULL DEFAULT '{}',
        waiting TEXT,
        broken TEXT
    );
CREATE TABLE "received_webhooks" (
        webhook TEXT NOT NULL,
        delivery TEXT NOT NULL,
        at INTEGER NOT NULL,
        PRIMARY KEY (webhook, delivery)
    );
CREATE TABLE "user_activity" (
        interface TEXT NOT NULL PRIMARY KEY,
        at INTEGER NOT NULL
    );
CREATE TABLE "refusals" (
        project TEXT NOT NULL,
        name TEXT NOT NULL,
        digest TEXT NOT NULL,
        why TEXT NOT NULL,
        at INTEGER NOT NULL
    );
CREATE INDEX tasks_by_parent ON tasks (parent_task) WHERE parent_task IS NOT NULL;
CREATE INDEX notices_outgoing ON notices (notice_id) WHERE acknowledged_at IS NULL AND failed_at IS NULL AND recipient = 'channel';
CREATE INDEX notices_failed ON notices (notice_id) WHERE failed_at IS NOT NULL AND acknowledged_at IS NULL;
CREATE INDEX refusals_by_project ON refusals (project, at);
CREATE INDEX tasks_recurring ON tasks (state, seq) WHERE schedule <> '{}';
CREATE INDEX runs_active ON runs (seq) WHERE ended_at IS NULL AND state <> 'pending';
CREATE INDEX runs_queue ON runs (runner, blocked, due_at IS NOT NULL, priority DESC, seq) WHERE state = 'pending';
CREATE INDEX runs_due ON runs (runner, due_at) WHERE state = 'pending' AND due_at IS NOT NULL;
CREATE INDEX runs_failed_in_sandbox ON runs (task_id) WHERE problem = 'sandbox';
CREATE TABLE grants (
        grant_id INTEGER PRIMARY KEY AUTOINCREMENT,
        kind TEXT NOT NULL CHECK ((kind = 'trust' OR kind = 'always' OR kind = 'connect')),
        project TEXT NOT NULL,
        command TEXT NOT NULL,
        via TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        UNIQUE (kind, project, command),
        CHECK ((kind = 'trust') = (command = '[]'))
    );
CREATE INDEX runs_unsuccessful ON runs (state, seq) WHERE state IN ('failed', 'cancelled');
CREATE INDEX tasks_by_trace ON tasks (trace_id);
CREATE INDEX tasks_by_span ON tasks (span_id);
CREATE INDEX tasks_by_parent_span ON tasks (parent_span_id) WHERE parent_span_id IS NOT NULL;
CREATE INDEX runs_by_span ON runs (span_id);
CREATE INDEX events_decided ON events (task_id) WHERE kind IN ('run_requeued', 'step_decided');
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
        purpose TEXT NOT NULL CHECK ((purpose = 'approve' OR purpose = 'passkey' OR purpose = 'register')),
        target TEXT NOT NULL,
        seen TEXT NOT NULL,
        choice TEXT NOT NULL,
        expires_at INTEGER NOT NULL,
        used_at INTEGER
    );
CREATE TABLE approval_attempts (
        attempt_id INTEGER PRIMARY KEY AUTOINCREMENT,
        at INTEGER NOT NULL,
        outcome TEXT NOT NULL CHECK ((outcome = 'verified' OR outcome = 'approved' OR outcome = 'refused')),
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
CREATE TABLE hosts (
        host_id TEXT NOT NULL PRIMARY KEY CHECK (host_id <> ''),
        name TEXT NOT NULL UNIQUE CHECK (name <> ''),
        state TEXT NOT NULL CHECK ((state = 'active' OR state = 'suspected' OR state = 'fenced' OR state = 'left')),
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
        kind TEXT NOT NULL CHECK ((kind = 'log' OR kind = 'file' OR kind = 'files' OR kind = 'input')),
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
CREATE INDEX tasks_unapproved ON tasks (state, seq) WHERE approved_by IS NULL;
INSERT INTO environments VALUES (1, 2485719834, '{"PATH": "/bin"}');
INSERT INTO tasks VALUES (1, 'task_proposed', 'command', 'oneshot', 'proposed', 'a proposed one', 'proposed', '["echo", "it''s", "\u65e5\u672c\u8a9e\n"]', 0, '/p/src', '/p', '{"A": "b"}', NULL, NULL, NULL, 1770000000000, 1770000001000, NULL, NULL, NULL, '["''echo'' is on the list"]', 0, 1, '', NULL, NULL, NULL, 0, '[]', NULL, '{}', 0, NULL, 0, 'd50edefe304525ac637ed75604f36e39', '9a7d9d4d25c53ba1', NULL, NULL, NULL, '', NULL, '{}', NULL, '{}', NULL, '{}', '', NULL, 0, 0, NULL, NULL, NULL, NULL, '[]', '{}', NULL, NULL, 0, NULL, NULL, NULL, 0, NULL, '', 0, '');
INSERT INTO tasks VALUES (2, 'task_rejected', 'command', 'oneshot', 'rejected', 'a rejected one', 'rejected', '["echo", "it''s", "\u65e5\u672c\u8a9e\n"]', 0, '/p/src', '/p', '{"A": "b"}', NULL, NULL, NULL, 1770000000000, 1770000001000, NULL, NULL, NULL, '["''echo'' is on the list"]', 0, 1, '', NULL, NULL, NULL, 0, '[]', NULL, '{}', 0, NULL, 0, 'a188a9a1446763ba64647a8cfe9c4ec9', '9022a6f92da042e8', NULL, NULL, NULL, '', NULL, '{}', NULL, '{}', NULL, '{}', '', NULL, 0, 0, NULL, NULL, NULL, NULL, '[]', '{}', NULL, NULL, 0, NULL, NULL, NULL, 0, NULL, '', 0, '');
INSERT INTO tasks VALUES (3, 'task_expired', 'command', 'oneshot', 'expired', 'a expired one', 'expired', '["echo", "it''s", "\u65e5\u672c\u8a9e\n"]', 0, '/p/src', '/p', '{"A": "b"}', NULL, NULL, NULL, 1770000000000, 1770000001000, NULL, NULL, NULL, '["''echo'' is on the list"]', 0, 1, '', NULL, NULL, NULL, 0, '[]', NULL, '{}', 0, NULL, 0, '16f3f81e9309e1cbc1438e25d130a5ce', 'e0f53d7c6b5b95e8', NULL, NULL, NULL, '', NULL, '{}', NULL, '{}', NULL, '{}', '', NULL, 0, 0, NULL, NULL, NULL, NULL, '[]', '{}', NULL, NULL, 0, NULL, NULL, NULL, 0, NULL, '', 0, '');
INSERT INTO tasks VALUES (4, 'task_completed', 'command', 'oneshot', 'done', 'a completed one', 'completed', '["echo", "it''s", "\u65e5\u672c\u8a9e\n"]', 0, '/p/src', '/p', '{"A": "b"}', NULL, NULL, NULL, 1770000000000, NULL, 'user', 'cli', 1770000000000, '["''echo'' is on the list"]', 1, 1, '', NULL, NULL, NULL, 0, '[]', NULL, '{}', 0, NULL, 0, '1b5dd9d14593a3c5c2a2154e70c4a9f9', '7eb22ebcd6a4856f', NULL, NULL, NULL, '', NULL, '{}', NULL, '{}', NULL, '{}', '', NULL, 0, 0, NULL, NULL, NULL, NULL, '[]', '{}', NULL, NULL, 0, NULL, NULL, NULL, 0, NULL, '', 0, '');
INSERT INTO tasks VALUES (5, 'task_failed', 'command', 'oneshot', 'failed', 'a failed one', 'failed', '["echo", "it''s", "\u65e5\u672c\u8a9e\n"]', 0, '/p/src', '/p', '{"A": "b"}', NULL, NULL, NULL, 1770000000000, NULL, 'user', 'cli', 1770000000000, '["''echo'' is on the list"]', 1, 1, '', NULL, NULL, NULL, 0, '[]', NULL, '{}', 0, NULL, 0, 'd94caadc983420b65fa99bf528430ef0', '42329fd99d98e1b0', NULL, NULL, NULL, '', NULL, '{}', NULL, '{}', NULL, '{}', '', NULL, 0, 0, NULL, NULL, NULL, NULL, '[]', '{}', NULL, NULL, 0, NULL, NULL, NULL, 0, NULL, '', 0, '');
INSERT INTO tasks VALUES (6, 'task_cancelled', 'command', 'oneshot', 'cancelled', 'a cancelled one', 'cancelled', '["echo", "it''s", "\u65e5\u672c\u8a9e\n"]', 0, '/p/src', '/p', '{"A": "b"}', NULL, NULL, NULL, 1770000000000, NULL, 'user', 'cli', 1770000000000, '["''echo'' is on the list"]', 1, 1, '', NULL, NULL, NULL, 0, '[]', NULL, '{}', 0, NULL, 0, '1de962cf42d77d2a3e3b5c93ab28e98b', 'aabe80f24dcfbbad', NULL, NULL, NULL, '', NULL, '{}', NULL, '{}', NULL, '{}', '', NULL, 0, 0, NULL, NULL, NULL, NULL, '[]', '{}', NULL, NULL, 0, NULL, NULL, NULL, 0, NULL, '', 0, '');
INSERT INTO tasks VALUES (7, 'task_running', 'command', 'oneshot', 'active', 'a running one', 'running', '["echo", "it''s", "\u65e5\u672c\u8a9e\n"]', 0, '/p/src', '/p', '{"A": "b"}', NULL, NULL, NULL, 1770000000000, NULL, 'user', 'cli', 1770000000000, '["''echo'' is on the list"]', 1, 1, '', NULL, NULL, NULL, 0, '[]', NULL, '{}', 0, NULL, 0, 'bead7f027363bcb1f73abced9e929f9a', 'fdf5773c5f057b31', NULL, NULL, NULL, '', NULL, '{}', NULL, '{}', NULL, '{}', '', NULL, 0, 0, NULL, NULL, NULL, NULL, '[]', '{}', NULL, NULL, 0, NULL, NULL, NULL, 0, NULL, '', 0, '');
INSERT INTO tasks VALUES (8, 'task_pending', 'command', 'oneshot', 'active', 'a pending one', 'pending', '["echo", "it''s", "\u65e5\u672c\u8a9e\n"]', 0, '/p/src', '/p', '{"A": "b"}', NULL, NULL, NULL, 1770000000000, NULL, 'user', 'cli', 1770000000000, '["''echo'' is on the list"]', 1, 1, '', NULL, NULL, NULL, 0, '[]', NULL, '{}', 0, NULL, 0, '0205f35586875e547cfac35bffe65fb9', '9b0a483deaf5e141', NULL, NULL, NULL, '', NULL, '{}', NULL, '{}', NULL, '{}', '', NULL, 0, 0, NULL, NULL, NULL, NULL, '[]', '{}', NULL, NULL, 0, NULL, NULL, NULL, 0, NULL, '', 0, '');
INSERT INTO tasks VALUES (9, 'task_blocked', 'command', 'oneshot', 'active', 'a blocked one', 'blocked', '["echo", "it''s", "\u65e5\u672c\u8a9e\n"]', 0, '/p/src', '/p', '{"A": "b"}', NULL, NULL, NULL, 1770000000000, NULL, 'user', 'cli', 1770000000000, '["''echo'' is on the list"]', 1, 1, '', NULL, 'nightly', 'once', 1, '["task_pending"]', 1770000005000, '{"nice": 5}', 0, NULL, 3, 'b97330b3b99d7be33d2877b57b06a505', 'ab42703725524432', NULL, NULL, NULL, '', NULL, '{}', NULL, '{}', NULL, '{}', '', NULL, 0, 0, NULL, NULL, NULL, NULL, '[]', '{}', NULL, NULL, 0, NULL, NULL, NULL, 0, NULL, '', 0, '');
INSERT INTO tasks VALUES (10, 'task_kept', 'command', 'oneshot', 'active', NULL, 'running', '["echo", "it''s", "\u65e5\u672c\u8a9e\n"]', 0, '/p/src', '/p', '{"A": "b"}', NULL, NULL, NULL, 1770000000000, NULL, 'user', 'cli', 1770000000000, '["''echo'' is on the list"]', 1, NULL, '', NULL, NULL, NULL, 0, '[]', NULL, '{}', 0, NULL, 0, 'bead7f027363bcb1f73abced9e929f9a', 'fdf5773c5f057b31', NULL, NULL, NULL, '', NULL, '{}', NULL, '{}', NULL, '{}', '', NULL, 0, 0, NULL, NULL, NULL, NULL, '[]', '{}', NULL, NULL, 0, NULL, NULL, NULL, 0, NULL, '', 0, '');
INSERT INTO events VALUES (1, 1770000000000, 'task_proposed', 'task_proposed', NULL, '{"rule": "", "reasons": ["''echo'' is on the list"]}');
INSERT INTO events VALUES (2, 1770000000000, 'task_proposed', 'task_rejected', NULL, '{"rule": "", "reasons": ["''echo'' is on the list"]}');
INSERT INTO events VALUES (3, 1770000000000, 'task_proposed', 'task_expired', NULL, '{"rule": "", "reasons": ["''echo'' is on the list"]}');
INSERT INTO events VALUES (4, 1770000000001, 'task_rejected', 'task_rejected', NULL, '{}');
INSERT INTO events VALUES (5, 1770000001001, 'task_expired', 'task_expired', NULL, '{}');
INSERT INTO events VALUES (6, 1770000000000, 'task_submitted', 'task_completed', NULL, '{"by": "user", "via": "cli", "rule": "", "reasons": ["''echo'' is on the list"]}');
INSERT INTO events VALUES (7, 1770000000010, 'run_started', 'task_completed', 'task_completed', '{}');
INSERT INTO events VALUES (8, 1770000000020, 'task_done', 'task_completed', NULL, '{}');
INSERT INTO events VALUES (9, 1770000000020, 'run_completed', 'task_completed', 'task_completed', '{"result": "exit", "exit_code": 0, "summary": "a summary"}');
INSERT INTO events VALUES (10, 1770000000000, 'task_submitted', 'task_failed', NULL, '{"by": "user", "via": "cli", "rule": "", "reasons": ["''echo'' is on the list"]}');
INSERT INTO events VALUES (11, 1770000000010, 'run_started', 'task_failed', 'task_failed', '{}');
INSERT INTO events VALUES (12, 1770000000020, 'task_failed', 'task_failed', NULL, '{}');
INSERT INTO events VALUES (13, 1770000000020, 'run_failed', 'task_failed', 'task_failed', '{"result": "lost", "exit_code": null, "summary": "a summary"}');
INSERT INTO events VALUES (14, 1770000000000, 'task_submitted', 'task_cancelled', NULL, '{"by": "user", "via": "cli", "rule": "", "reasons": ["''echo'' is on the list"]}');
INSERT INTO events VALUES (15, 1770000000010, 'run_started', 'task_cancelled', 'task_cancelled', '{}');
INSERT INTO events VALUES (16, 1770000000020, 'task_cancelled', 'task_cancelled', NULL, '{}');
INSERT INTO events VALUES (17, 1770000000020, 'run_cancelled', 'task_cancelled', 'task_cancelled', '{"result": "signal", "exit_code": 143, "summary": "a summary"}');
INSERT INTO events VALUES (18, 1770000000000, 'task_submitted', 'task_running', NULL, '{"by": "user", "via": "cli", "rule": "", "reasons": ["''echo'' is on the list"]}');
INSERT INTO events VALUES (19, 1770000000010, 'run_started', 'task_running', 'task_running', '{}');
INSERT INTO events VALUES (20, 1770000000015, 'cancel_requested', 'task_running', 'task_running', '{}');
INSERT INTO events VALUES (21, 1770000000000, 'task_submitted', 'task_pending', NULL, '{"by": "user", "via": "cli", "rule": "", "reasons": ["''echo'' is on the list"]}');
INSERT INTO events VALUES (22, 1770000000000, 'task_submitted', 'task_blocked', NULL, '{"by": "user", "via": "cli", "rule": "", "reasons": ["''echo'' is on the list"]}');
INSERT INTO events VALUES (23, 1770000000000, 'task_recorded', 'task_kept', 'task_kept', '{}');
INSERT INTO dependencies VALUES ('task_blocked', 'task_pending');
INSERT INTO runs VALUES (1, 'task_completed', 'task_completed', 1, 'completed', 'exit', 0, NULL, 'a summary', 3, 'tasks/task_completed', 'cdff5c409186945a', '1b5dd9d14593a3c5c2a2154e70c4a9f9', '93237772d50e0cdc', 'engine', '11:111:boot', NULL, 1770000000000, 1770000000010, 1770000000020, NULL, 0, 0, NULL, NULL, NULL, NULL, NULL, 0, '{}', '', NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, '', NULL);
INSERT INTO runs VALUES (2, 'task_failed', 'task_failed', 1, 'failed', 'lost', NULL, NULL, 'a summary', 3, 'tasks/task_failed', 'd75111a40279c1ff', 'd94caadc983420b65fa99bf528430ef0', '50eb7f6de98db896', 'engine', '11:111:boot', NULL, 1770000000000, 1770000000010, 1770000000020, NULL, 0, 0, NULL, NULL, NULL, NULL, NULL, 0, '{}', '', NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, '', NULL);
INSERT INTO runs VALUES (3, 'task_cancelled', 'task_cancelled', 1, 'cancelled', 'signal', 143, NULL, 'a summary', 3, 'tasks/task_cancelled', 'e7947b4d96ec7cf0', '1de962cf42d77d2a3e3b5c93ab28e98b', '53a66d95a635f059', 'engine', '11:111:boot', NULL, 1770000000000, 1770000000010, 1770000000020, NULL, 0, 0, NULL, NULL, NULL, NULL, NULL, 0, '{}', '', NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, '', NULL);
INSERT INTO runs VALUES (4, 'task_running', 'task_running', 1, 'running', NULL, NULL, NULL, NULL, NULL, 'tasks/task_running', 'af1977f182b4766e', 'bead7f027363bcb1f73abced9e929f9a', '1bcb87a968362ff6', 'engine', '11:111:boot', '77:7:boot', 1770000000000, 1770000000010, NULL, 1770000000015, 0, 0, NULL, NULL, NULL, NULL, NULL, 0, '{}', '', NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, '', NULL);
INSERT INTO runs VALUES (5, 'task_pending', 'task_pending', 1, 'pending', NULL, NULL, NULL, NULL, NULL, 'tasks/task_pending', 'e2de329f6e795b7c', '0205f35586875e547cfac35bffe65fb9', '4d895195912f8e2e', 'engine', NULL, NULL, 1770000000000, NULL, NULL, NULL, 0, 0, NULL, NULL, NULL, NULL, NULL, 0, '{}', '', NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, '', NULL);
INSERT INTO runs VALUES (6, 'task_blocked', 'task_blocked', 1, 'pending', NULL, NULL, NULL, NULL, NULL, 'tasks/task_blocked', 'e11f5be49dcfc17c', 'b97330b3b99d7be33d2877b57b06a505', 'c66fde0f22ef9e35', 'engine', NULL, NULL, 1770000000000, NULL, NULL, NULL, 1, 1, 1770000005000, NULL, NULL, NULL, NULL, 0, '{}', '', NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, '', NULL);
INSERT INTO runs VALUES (7, 'task_kept', 'task_kept', 1, 'running', NULL, NULL, NULL, NULL, NULL, 'tasks/task_kept', 'af1977f182b4766e', 'bead7f027363bcb1f73abced9e929f9a', '1bcb87a968362ff6', 'record', '11:111:boot', '77:7:boot', 1770000000000, 1770000000010, NULL, 1770000000015, 0, 0, NULL, NULL, NULL, NULL, NULL, 0, '{}', '', NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, '', NULL);
INSERT INTO notices VALUES (1, 'task_completed:inbox', 'task_completed', 'task_completed', '/p', 'inbox', 'Background task task_completed completed: a summary. Output: /home/me/.backburner/tasks/task_completed/output.log', 1770000000020, NULL, NULL, 0, 0, NULL, NULL, NULL, NULL, 'ended', 'person');
INSERT INTO notices VALUES (2, 'task_failed:inbox', 'task_failed', 'task_failed', '/p', 'inbox', 'Background task task_failed failed: its end was not observed; a summary. Output: /home/me/.backburner/tasks/task_failed/output.log', 1770000000020, 1770000000030, NULL, 0, 0, NULL, NULL, NULL, NULL, 'ended', 'person');
INSERT INTO notices VALUES (3, 'task_cancelled:inbox', 'task_cancelled', 'task_cancelled', '/p', 'inbox', 'Background task task_cancelled cancelled: killed by signal 15; a summary. Output: /home/me/.backburner/tasks/task_cancelled/output.log', 1770000000020, NULL, NULL, 0, 0, NULL, NULL, NULL, NULL, 'ended', 'person');
PRAGMA user_version = 20;
