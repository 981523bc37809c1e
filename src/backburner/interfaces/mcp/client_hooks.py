"""`inbox --hook CLIENT`: what an agent's client calls at certain moments, answered in the form that it passes on to its model.

Each notice is told once. Claude Code's Stop hook stays behind while work is open, and wakes the session when it ends; OpenCode's
plugin keeps one running and speaks JSON lines with it. Nothing is printed where nothing is owed.
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
from backburner.system.home import project_of
from backburner.system.processes import is_alive

_LONGEST_INPUT = 64 << 20
_LONGEST_LINE = 1 << 20
_LOOK_SECONDS = 5.0
_TOGETHER_SECONDS = 0.3  # what ends within this time is told together, and not what an answer under way tells
_WAKE = 2  # the exit code by which Claude Code passes on what was said on stderr
_PLAIN = {"gemini"}  # it shows its model every tag as text
_STOPS = {"Stop", "AfterAgent"}
_FORGOT = {"compact", "resume", "clear"}


def answer(app: App, caller: Caller, client: str) -> int:
    """Answer one call of a hook; the exit code that the client expects."""
    if client == "opencode":
        return _Follower(app, caller).run()
    asked = _asked()
    event = str(asked.get("hook_event_name", ""))
    sessions = _sessions(app, client, asked)
    if isinstance(asked.get("session_id"), str) and sessions:
        # Also for the server of the same client, where that is told nothing of the conversation.
        app.sessions.register(sessions[0], client, project_of(caller.cwd), client_process(caller.environ) or next(ancestors(), None))
    if event in _STOPS:
        return _stop(app, caller, client, asked)
    owed = _taken(app, client, sessions)
    parts = [notification(owed, plain=client in _PLAIN)] if owed else []
    if event == "SessionStart" and asked.get("source") in _FORGOT and (open_work := _open(app, caller)):
        parts.insert(0, open_work)
    if parts:
        _say({"hookSpecificOutput": {"hookEventName": event, "additionalContext": "\n\n".join(parts)}})
        app.inbox.acknowledge(notice_ids=[notice.notice_id for notice in owed])
    return 0


def _asked() -> dict[str, Any]:
    """What the client says of the moment; nothing where it says nothing."""
    if sys.stdin.isatty():
        return {}
    with contextlib.suppress(ValueError, RecursionError):
        asked = json.loads(sys.stdin.buffer.read(_LONGEST_INPUT))
        return asked if isinstance(asked, dict) else {}
    return {}


def _sessions(app: App, client: str, asked: dict[str, Any]) -> list[str]:
    """Whom this speaks to: the session that is named, and those of the same running client (`/clear` begins another in it)."""
    told = asked.get("session_id")
    found = [session_name(client, told)] if isinstance(told, str) and told else []
    if client != "codex":
        above = set(ancestors())
        found += [one.session_id for one in app.sessions.list(client) if one.process in above and one.session_id not in found]
    return found


def _owed(app: App, sessions: Iterable[str]) -> list[Notice]:
    return [notice for session in sessions for notice in app.inbox.notices(session=session)]


def _taken(app: App, client: str, sessions: Iterable[str]) -> Sequence[Notice]:
    """What is ours to tell now, as much as fits."""
    return app.inbox.lease(fitting(_owed(app, sessions), plain=client in _PLAIN))


def _open(app: App, caller: Caller) -> str | None:
    entries = [entry for entry in app.queries.list(caller, limit=100) if not entry.has_ended]
    return brief(entries, now_ms()) if entries else None


def _say(value: object) -> None:
    print(json.dumps(value), flush=True)


def _stop(app: App, caller: Caller, client: str, asked: dict[str, Any]) -> int:
    """The agent has come to an end: it goes on where something is owed to it. Claude Code lets us wait for that."""
    owed = _taken(app, client, _sessions(app, client, asked))
    if not owed and client == "claude" and caller.environ.get("CLAUDE_CODE_SESSION_ATTENDED") == "1":
        owed = _awaited(app, caller, client, asked)
    if not owed:
        return 0
    text = notification(owed, plain=client in _PLAIN)
    if client == "claude":
        print(text, file=sys.stderr, flush=True)
    else:
        _say({"decision": "block", "reason": text})
    app.inbox.acknowledge(notice_ids=[notice.notice_id for notice in owed])
    return _WAKE if client == "claude" else 0


def _awaited(app: App, caller: Caller, client: str, asked: dict[str, Any]) -> Sequence[Notice]:
    """Wait until something is owed, for as long as work is open and the client lives. One waits for a client at a time."""
    process = client_process(caller.environ)
    held = _only_one(app, process)
    if process is None or held is None:
        return ()
    try:
        for _ in app.changes.changes(interval=_LOOK_SECONDS):
            if not is_alive(process):
                break
            sessions = _sessions(app, client, asked)  # anew: another may have begun in the same client
            if _owed(app, sessions):
                time.sleep(_TOGETHER_SECONDS)
                if owed := _taken(app, client, sessions):
                    return owed
            if not app.sessions.has_open_work(sessions):
                return ()
        return ()
    finally:
        os.close(held)


def _only_one(app: App, client: ProcessId | None) -> int | None:
    """A lock that is held for as long as one waits for this client; None where another does."""
    if client is None:
        return None
    descriptor = os.open(os.path.join(app.home.root, "waiting.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, client.pid)  # the byte that stands for this client
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


class _Follower:
    """The other end of OpenCode's plugin. It says which sessions it has (`session`, `gone`) and what it passed on (`told`)."""

    def __init__(self, app: App, caller: Caller) -> None:
        self._app, self._caller = app, caller
        self._sessions: dict[str, str] = {}
        self._text = b""

    def run(self) -> int:
        ear = self._app.changes.listen()
        try:
            while True:
                select.select([0, ear], [], [], _LOOK_SECONDS)
                ear.drain()
                if select.select([0], [], [], 0)[0]:
                    piece = os.read(0, 1 << 16)
                    if not piece:
                        return 0
                    self._take(piece)
                if any(_owed(self._app, [name]) for name in self._sessions.values()):
                    time.sleep(_TOGETHER_SECONDS)
                    self._offer()
        finally:
            ear.close()

    def _take(self, piece: bytes) -> None:
        *lines, self._text = (self._text + piece).split(b"\n")
        self._text = self._text[:_LONGEST_LINE]
        for line in lines:
            with contextlib.suppress(ValueError, RecursionError):
                said = json.loads(line)
                if not isinstance(said, dict):
                    continue
                if isinstance(session := said.get("session"), str):
                    self._sessions[session] = session_name("opencode", session)
                    name, parent = self._sessions[session], next(ancestors(), None)
                    self._app.sessions.register(name, SessionId.parse(name).client, project_of(self._caller.cwd), parent)
                if isinstance(gone := said.get("gone"), str):
                    self._sessions.pop(gone, None)
                if isinstance(told := said.get("told"), list):
                    self._app.inbox.acknowledge(notice_ids=[one for one in told if isinstance(one, int) and 0 < one < 1 << 62])

    def _offer(self) -> None:
        """What is owed to each session and nobody else is about to tell."""
        for session, name in self._sessions.items():
            if owed := _taken(self._app, "opencode", [name]):
                _say({"session": session, "text": notification(owed), "notices": [notice.notice_id for notice in owed]})
