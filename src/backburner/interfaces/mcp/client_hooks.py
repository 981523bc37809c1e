"""`inbox --hook CLIENT`: called by the hooks of an agent's client. Prints pending notices in the form that the client passes to its model.

Each notice is delivered once. The Stop hook of Claude Code keeps running while tasks are open and wakes the session when one ends.
The plugin for OpenCode keeps one process running and exchanges JSON lines with it. Without pending notices nothing is printed.
"""

import contextlib
import fcntl
import json
import os
import select
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from backburner.core.models import Caller, ProcessId
from backburner.core.notice_text import brief, fitting, notification
from backburner.core.notices import Notice
from backburner.core.sessions import SessionId
from backburner.services.app import App, now_ms
from backburner.system.caller_identity import ancestors, client_process, session_name
from backburner.system.paths import project_of
from backburner.system.processes import is_alive

_MAX_INPUT = 64 << 20  # bytes
_MAX_LINE = 1 << 20  # bytes
_POLL_INTERVAL = 5.0  # seconds
_BATCH_DELAY = 0.3  # seconds; notices within it are delivered together, and a tool result under way can deliver them first
_WAKE_EXIT_CODE = 2  # with it, Claude Code passes the text on stderr to its model
_PLAIN_TEXT_CLIENTS = {"gemini", "claude"}  # Gemini CLI shows tags to its model as text; Claude Code escapes them, one is its own
_STOP_EVENTS = {"Stop", "AfterAgent"}
_SOURCES_WITHOUT_CONTEXT = {"compact", "resume", "clear"}  # starts of a session after which the model does not know the open tasks


def answer(app: App, caller: Caller, client: str) -> int:
    """Answer one call of a hook; returns the exit code that the client expects."""
    if client == "opencode":
        return _PluginConnection(app, caller).run()
    hook_input = _read_input()
    event = str(hook_input.get("hook_event_name", ""))
    sessions = _sessions(app, client, hook_input)
    if isinstance(hook_input.get("session_id"), str) and sessions:
        # The MCP server of the same client uses this if its calls do not name the conversation.
        app.sessions.register(sessions[0], client, project_of(caller.cwd), client_process(caller.environ) or next(ancestors(), None))
    if event in _STOP_EVENTS:
        return _answer_stop(app, caller, client, hook_input)
    read_at = app.home.ledger_time()  # before the notices are read, so that later ones are noticed
    notices = _lease_notices(app, client, sessions)
    parts = [notification(notices, plain=client in _PLAIN_TEXT_CLIENTS)] if notices else []
    if event == "SessionStart" and hook_input.get("source") in _SOURCES_WITHOUT_CONTEXT and (open_tasks := _open_tasks_text(app, caller)):
        parts.insert(0, open_tasks)
    if parts:
        _print_json({"hookSpecificOutput": {"hookEventName": event, "additionalContext": "\n\n".join(parts)}})
        app.inbox.acknowledge(notice_ids=[notice.notice_id for notice in notices])
    elif not app.inbox.waits_for(client) and app.supervisor.is_idle():
        _record_quiet(app, client, read_at)
    return 0


def _record_quiet(app: App, client: str, read_at: int) -> None:
    """Record that nothing waits for any session of a client. Its frequent hooks start no interpreter until the ledger changes.

    Not while there is open work, because then a hook also makes sure that the engine runs.
    """
    if app.config.text("store.url"):
        return  # there is no ledger file whose time could tell that it has changed
    path = app.home.nothing_waits_since(client)
    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        os.utime(path, ns=(read_at, read_at))


def _read_input() -> dict[str, Any]:
    """The JSON object that the client sends to the hook; empty if there is none."""
    if sys.stdin.isatty():
        return {}
    with contextlib.suppress(ValueError, RecursionError):
        hook_input = json.loads(sys.stdin.buffer.read(_MAX_INPUT))
        return hook_input if isinstance(hook_input, dict) else {}
    return {}


def _sessions(app: App, client: str, hook_input: dict[str, Any]) -> list[str]:
    """The named session, and other sessions of the same client process (`/clear` starts a new one in it)."""
    named = hook_input.get("session_id")
    found = [session_name(client, named)] if isinstance(named, str) and named else []
    if client != "codex":
        parents = set(ancestors())
        found += [known.session_id for known in app.sessions.list(client) if known.process in parents and known.session_id not in found]
    return found


def _pending_notices(app: App, sessions: Iterable[str]) -> list[Notice]:
    return [notice for session in sessions for notice in app.inbox.notices(session=session)]


def _lease_notices(app: App, client: str, sessions: Iterable[str]) -> Sequence[Notice]:
    """Lease the pending notices that fit into one notification."""
    return app.inbox.lease(fitting(_pending_notices(app, sessions), plain=client in _PLAIN_TEXT_CLIENTS))


def _open_tasks_text(app: App, caller: Caller) -> str | None:
    entries = [entry for entry in app.queries.open_and_recent(caller, limit=100) if not entry.has_ended]
    return brief(entries, now_ms()) if entries else None


def _print_json(value: object) -> None:
    print(json.dumps(value), flush=True)


def _answer_stop(app: App, caller: Caller, client: str, hook_input: dict[str, Any]) -> int:
    """Answer the end of a turn: pending notices make the agent continue. In Claude Code, wait for them while tasks are open."""
    notices = _lease_notices(app, client, _sessions(app, client, hook_input))
    if not notices and client == "claude" and caller.environ.get("CLAUDE_CODE_SESSION_ATTENDED") == "1":
        notices = _wait_for_notices(app, caller, client, hook_input)
    if not notices:
        return 0
    text = notification(notices, plain=client in _PLAIN_TEXT_CLIENTS)
    if client == "claude":
        print(text, file=sys.stderr, flush=True)
    else:
        _print_json({"decision": "block", "reason": text})
    app.inbox.acknowledge(notice_ids=[notice.notice_id for notice in notices])
    return _WAKE_EXIT_CODE if client == "claude" else 0


def _wait_for_notices(app: App, caller: Caller, client: str, hook_input: dict[str, Any]) -> Sequence[Notice]:
    """Wait for notices while tasks are open and the client is running. Only one process waits for each client."""
    process = client_process(caller.environ)
    lock = _lock_client(app, process)
    if process is None or lock is None:
        return ()
    try:
        for _ in app.changes.changes(interval=_POLL_INTERVAL):
            if not is_alive(process):
                break
            sessions = _sessions(app, client, hook_input)  # again, because a new session may have started in the same client
            if _pending_notices(app, sessions):
                time.sleep(_BATCH_DELAY)
                if notices := _lease_notices(app, client, sessions):
                    return notices
            if not app.sessions.has_open_work(sessions):
                return ()
        return ()
    finally:
        os.close(lock)


def _lock_client(app: App, client: ProcessId | None) -> int | None:
    """Take the lock for waiting on behalf of this client; None if another process has it."""
    if client is None:
        return None
    descriptor = os.open(os.path.join(app.home.root, "waiting.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, client.pid)  # one byte of the file for each client
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


class _PluginConnection:
    """The connection to the plugin of OpenCode. The plugin reports its sessions (`session`, `gone`) and the delivered notices (`told`)."""

    def __init__(self, app: App, caller: Caller) -> None:
        self._app, self._caller = app, caller
        self._sessions: dict[str, str] = {}
        self._partial_line = b""

    def run(self) -> int:
        listener = self._app.changes.listen()
        try:
            while True:
                select.select([0, listener], [], [], _POLL_INTERVAL)
                listener.drain()
                if select.select([0], [], [], 0)[0]:
                    piece = os.read(0, 1 << 16)
                    if not piece:
                        return 0
                    self._receive(piece)
                if any(_pending_notices(self._app, [name]) for name in self._sessions.values()):
                    time.sleep(_BATCH_DELAY)
                    self._send_notices()
        finally:
            listener.close()

    def _receive(self, piece: bytes) -> None:
        *lines, self._partial_line = (self._partial_line + piece).split(b"\n")
        self._partial_line = self._partial_line[:_MAX_LINE]
        for line in lines:
            with contextlib.suppress(ValueError, RecursionError):
                message = json.loads(line)
                if not isinstance(message, dict):
                    continue
                if isinstance(session := message.get("session"), str):
                    self._sessions[session] = session_name("opencode", session)
                    name, parent = self._sessions[session], next(ancestors(), None)
                    self._app.sessions.register(name, SessionId.parse(name).client, project_of(self._caller.cwd), parent)
                if isinstance(gone := message.get("gone"), str):
                    self._sessions.pop(gone, None)
                if isinstance(delivered := message.get("told"), list):
                    self._app.inbox.acknowledge(
                        notice_ids=[number for number in delivered if isinstance(number, int) and 0 < number < 1 << 62]
                    )

    def _send_notices(self) -> None:
        """Send each session its pending notices that no other process has leased."""
        for session, name in self._sessions.items():
            if notices := _lease_notices(self._app, "opencode", [name]):
                _print_json({"session": session, "text": notification(notices), "notices": [notice.notice_id for notice in notices]})
