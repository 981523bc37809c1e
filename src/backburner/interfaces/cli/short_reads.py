"""Answers frequent questions without loading the rest of Backburner: `list`, `status` and `logs` of ordinary commands, and hooks of clients.

`answer` returns what to print, or None for everything that this module does not know: options, recurring tasks, agents, running
commands, text with control characters, work without an engine, errors. Then the ordinary command line answers. Both print the same
(`tests/interfaces/test_short_reads.py` compares them), so this module may always say None and must never guess.

It reads the ledger itself, with apsw, and imports no module that needs `typing`, `enum`, `re`, `json` or `contextlib`: each of them
takes as long to load as this whole module takes to run. JSON is read by SQLite.
"""

import os
import sys
import time

import apsw

from backburner.core.formatting import command_line, duration, exit_text, local_time
from backburner.core.masking import masked_line
from backburner.core.task_table import colour, tab_separated, table
from backburner.core.terminal_text import clean, readable, shortened, visible
from backburner.system.paths import CHECKED_CONFIG, checked_mark, locate, project_of
from backburner.system.wakeups import ENGINE_SOCKET, wake

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

LEDGER_VERSION = 20  # the schema that this module knows; a newer ledger is read by the ordinary command line
_OPTIONS = {"list": {"--all", "--limit"}, "status": set(), "logs": {"--tail", "--raw"}, "inbox": {"--hook"}}
_WITH_VALUE = {"--home", "--limit", "--tail", "--hook"}
_LIST_LIMIT = 200
_ENGINE_LANES = {"agents", "agents:local", "engine"}
_HUNG_AFTER_SECONDS = 60
_ACTIVITY_INTERVAL_MS = 60_000
_MAX_LOG_BYTES = 8 << 20  # a longer log is printed in pieces, by the ordinary command line
_MAX_STATUS_BYTES, _MAX_STATUS_LINES, _MAX_LINE_CHARACTERS, _MAX_FILES = 1 << 16, 20, 1000, 20
_MAX_HOOK_INPUT = 64 << 20
_REGISTER_INTERVAL_MS = 60_000
_SESSION_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
_NEWEST = "t.project = ? AND t.chat = 0 AND NOT (t.approved_by IS NULL AND coalesce(t.rule, '') = 'sandbox') ORDER BY t.seq DESC LIMIT 1"


class _OrdinaryWay(Exception):
    """Something that this module does not know."""


def answer(words: list[str], environ: "Mapping[str, str]") -> tuple[str | bytes, str] | None:
    """What a command line prints on stdout and on stderr; None if the ordinary command line has to answer it. The exit code is 0."""
    try:
        verb, options, reference = _parse(words)
        home = os.path.abspath(locate(options.get("--home"), environ))
        now = time.time_ns() // 1_000_000
        _require_usual_home(home, environ)
        ledger = _open(home)
        if sys.stdin.isatty() and verb != "inbox":
            _require(abs(now - (_first(ledger, "SELECT max(at) FROM user_activity") or 0)) <= _ACTIVITY_INTERVAL_MS)
        read_at = _ledger_time(home)
        idle = _require_attended(ledger, home, now)
        if verb == "inbox":
            return _hook(ledger, home, options["--hook"], environ, now, read_at if idle else None)
        project = project_of(os.getcwd())
        if verb == "list":
            return _list(ledger, None if "--all" in options else project, options.get("--limit"), now)
        where, value = ("t.task_id = ?", reference) if reference not in (None, "last") else (_NEWEST, project)
        if verb == "status":
            return _status(ledger, home, where, value)
        return _logs(ledger, home, where, value, options)
    except Exception:  # also a path that is not text, or a ledger that cannot be read: the ordinary command line says what is wrong
        return None


def _require(known: bool) -> None:
    if not known:
        raise _OrdinaryWay


def _parse(words: list[str]) -> tuple[str, dict[str, str], str | None]:
    """The command, its options and its argument."""
    verb, reference, options = "", None, {}
    rest = iter(words)
    for word in rest:
        if word == "--home" or (verb and word in _OPTIONS[verb]):
            options[word] = next(rest, "-") if word in _WITH_VALUE else ""
            _require(not options[word].startswith("-"))
        elif not verb:
            _require(word in _OPTIONS)
            verb = word
        else:
            _require(verb in ("status", "logs") and reference is None and not word.startswith("-"))
            reference = word
    _require(verb != "" and (verb != "inbox" or options.get("--hook") in ("claude", "codex", "gemini")))
    return verb, options, reference


def _require_usual_home(home: str, environ: "Mapping[str, str]") -> None:
    """The home is complete and private, and its settings are valid: nothing has to be created, corrected or said."""
    _require(None not in (sys.stdin, sys.stdout, sys.stderr))
    _require(not any(name.startswith("BACKBURNER_") and name.count("_") > 1 for name in environ))  # could be settings
    _require(not os.stat(home).st_mode & 0o077 and os.path.isdir(f"{home}/tasks"))
    config = f"{home}/config.toml"
    if os.stat(config).st_size:
        with open(f"{home}/{CHECKED_CONFIG}", encoding="utf-8") as file:
            _require(file.read() == checked_mark(config))


def _open(home: str) -> apsw.Connection:
    ledger = apsw.Connection(f"{home}/ledger.db", flags=apsw.SQLITE_OPEN_READWRITE)
    ledger.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    _require(_first(ledger, "PRAGMA user_version") == LEDGER_VERSION)
    return ledger


def _rows(ledger: apsw.Connection, sql: str, *values: object) -> "list[Any]":
    return ledger.execute(sql, values).fetchall()


def _first(ledger: apsw.Connection, sql: str, *values: object) -> "Any":
    """The first value of the first row; None if there is none."""
    rows = _rows(ledger, sql, *values)
    return rows[0][0] if rows else None


def _ledger_time(home: str) -> int:
    return max(os.stat(path).st_mtime_ns for path in (f"{home}/ledger.db", f"{home}/ledger.db-wal") if os.path.exists(path))


def _require_attended(ledger: apsw.Connection, home: str, now: int) -> bool:
    """Every open run has a living process, and an engine that is needed is running. Returns whether nothing needs an engine.

    The ordinary command line does the same before it reads (`coordination/supervision.py`), and starts an engine or replaces it.
    """
    active = _rows(
        ledger,
        "SELECT state, runner, owner, cancel_requested_at FROM runs"
        " WHERE seq IN (SELECT seq FROM runs WHERE ended_at IS NULL AND state <> 'pending') AND runner <> 'record'",
    )
    lanes = [""]
    while found := _first(ledger, "SELECT runner FROM runs WHERE state = 'pending' AND runner > ? ORDER BY runner LIMIT 1", lanes[-1]):
        lanes.append(found)
    pending = [lane for lane in lanes if lane not in ("", "record")]
    _require(_ENGINE_LANES.issuperset(pending))
    for state, runner, owner, cancel_requested_at in active:
        _require(runner in _ENGINE_LANES and cancel_requested_at is None and (state == "waiting" or _is_alive(owner)))
    if active or pending:
        _require(time.monotonic_ns() - os.stat(f"{home}/engine.lock").st_mtime_ns <= _HUNG_AFTER_SECONDS * 1_000_000_000)
    open_work = (
        "SELECT 1 FROM tasks WHERE next_run_at IS NOT NULL",
        "SELECT 1 FROM tasks WHERE state = 'proposed'",
        "SELECT 1 FROM tasks WHERE source <> '{}' AND state = 'active' AND kind = 'event'",
        "SELECT 1 FROM notices WHERE acknowledged_at IS NULL AND failed_at IS NULL AND recipient = 'channel'",
    )
    is_open = any(state == "waiting" for state, *_ in active) or any(_first(ledger, f"{sql} LIMIT 1") for sql in open_work)
    if pending or is_open:
        _require(wake(f"{home}/sockets", ENGINE_SOCKET))
    return not active and not pending and not is_open


def _is_alive(process: str) -> bool:
    """Whether a process exists; see `system/processes.py`."""
    pid, started, boot = process.split(":")[:3]
    with open("/proc/sys/kernel/random/boot_id") as file:
        if file.read().strip().replace("-", "") != boot:
            return False
    return _started(int(pid)) == started


def _started(pid: int) -> str:
    """When a running process was started; empty if it is a zombie."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].decode().split()
    return fields[19] if fields[0] not in "ZX" else ""


def _words(ledger: apsw.Connection, text: str) -> list[str]:
    """The words of a command from its JSON."""
    if text == "[]":
        return []
    if "\\" not in text:  # without escapes, no word contains a quote
        return text[2:-2].split('", "')
    return [word for (word,) in _rows(ledger, "SELECT value FROM json_each(?)", text)]


def _list(ledger: apsw.Connection, project: str | None, limit: str | None, now: int) -> tuple[str, str]:
    most = _LIST_LIMIT
    if limit is not None:
        _require(limit.isdecimal() and len(limit) <= 12)
        most = int(limit) or -1
    entries = _rows(
        ledger,
        "SELECT t.task_id, coalesce(r.state, t.state), t.schedule, t.expires_at, r.started_at, r.ended_at, t.description, t.command, t.shell"
        " FROM tasks t LEFT JOIN runs r ON r.task_id = t.task_id AND r.n = t.run_count"
        " WHERE NOT (coalesce(t.client, '') = 'task' AND coalesce(r.state, '') = 'completed') AND t.chat = 0"
        f"{'' if project is None else ' AND t.project = ?'} ORDER BY t.seq DESC LIMIT ?",
        *((most,) if project is None else (project, most)),
    )
    if not entries:
        return "", "No background tasks.\n" if project is None else "No background tasks in this project.\n"
    rows = []
    for task_id, status, schedule, expires_at, started_at, ended_at, description, command, shell in entries:
        _require(schedule == "{}")
        if status == "proposed" and expires_at is not None and expires_at <= now:
            status = "expired"
        elapsed = None if started_at is None else max(0, (now if ended_at is None else ended_at) - started_at)
        text = clean(description) or masked_line(_words(ledger, command), bool(shell))
        rows.append((task_id, status, local_time(started_at), duration(elapsed), text))
    hint = f"Showing the newest {_LIST_LIMIT} tasks; use --limit 0 for all.\n" if limit is None and len(rows) == _LIST_LIMIT else ""
    return (table(rows) if sys.stdout.isatty() else tab_separated(rows)) + "\n", hint


def _status(ledger: apsw.Connection, home: str, where: str, value: object) -> tuple[str, str]:
    """The details of a command that has ended, if they are the usual ones; see `core/task_text.py:details`."""
    rows = _rows(
        ledger,
        "SELECT t.task_id, t.name, t.command, t.shell, t.description, t.cwd, t.restarted_from, t.approved_by, t.approved_at, t.rule,"
        " t.agent IS NULL AND t.schedule = '{}' AND t.batch IS NULL AND NOT coalesce(t.priority, 0) AND t.after = '[]' AND t.limits = '{}'"
        " AND NOT coalesce(t.restarts, 0) AND r.state IN ('completed', 'failed', 'cancelled') AND r.result = 'exit' AND r.error IS NULL"
        " AND r.problem IS NULL AND r.notes IS NULL AND r.usage = '{}',"
        " r.state, r.started_at, r.ended_at, r.exit_code, r.span_id, r.folder, r.sandbox"
        f" FROM tasks t JOIN runs r ON r.task_id = t.task_id AND r.n = t.run_count WHERE {where}",
        value,
    )
    _require(len(rows) == 1)
    (task_id, name, command, shell, description, cwd, restarted_from, approved_by, approved_at, rule, usual, *run) = rows[0]
    state, started_at, ended_at, exit_code, span_id, folder, sandbox = run
    _require(usual == 1 and started_at is not None)
    folder = os.path.join(home, folder)
    with open(f"{folder}/metadata.json", encoding="utf-8") as file:
        _require(_first(ledger, "SELECT json_type(?)", file.read()) == "object")  # else it is repaired
    lines = [f"Task: {task_id}", f"Status: {colour(state)}"]
    if name:
        lines.append(f"Label: {visible(name)}")
    if words := _words(ledger, command):
        lines.append(f"Command: {command_line(words, bool(shell))}")
    if description:
        lines.append(f"Description: {clean(description)}")
    lines.append(f"Directory: {visible(cwd)}")
    if restarted_from:
        lines.append(f"Restarted from: {restarted_from}")
    lines.append(f"Approved: {approved_by} at {local_time(approved_at)} (rule: {rule or '-'})")
    if sandbox:
        lines.append(f"Sandbox: {visible(_sandbox(ledger, sandbox))}")
    lines += [
        f"Started: {local_time(started_at)}",
        f"Completed: {local_time(ended_at)}",
        f"Duration: {duration(max(0, ended_at - started_at))}",
    ]
    lines.append(f"Exit code: {exit_text(exit_code)}")
    if files := _files(folder):
        lines.append(f"Files: {', '.join(map(visible, files))}")
    output = _tail(_log(folder, _MAX_STATUS_BYTES), _MAX_STATUS_LINES)
    if text := readable(output.decode("utf-8", "replace")).removesuffix("\n"):
        shown = [shortened(line.rstrip(), longest=_MAX_LINE_CHARACTERS) for line in text.split("\n")]
        lines += ["", f"Recent output (last {'1 line' if len(shown) == 1 else f'{len(shown)} lines'}):", "─" * 60, *shown]
    return "\n".join([*lines, "", f"Full output: {folder}/output.log", f"Trace: backburner traces --span {span_id}\n"]), ""


def _sandbox(ledger: apsw.Connection, sandbox: str) -> str:
    ((level, project, view, usual),) = _rows(
        ledger,
        "SELECT value ->> 'level', value ->> 'project', value ->> 'view', value ->> 'network' = 'none'"
        " AND value -> 'git' IS NULL AND value -> 'connect' IS NULL FROM (SELECT ? AS value)",
        sandbox,
    )
    _require(usual == 1 and project is not None and view in ("copy", "writable", "read-only"))
    return f"{level}: {f'a copy of {project}' if view == 'copy' else f'{project} {view}'}; no network"


def _files(folder: str) -> list[str]:
    """The files that the command left in `work/`."""
    descriptor = os.open(f"{folder}/work", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        with os.scandir(descriptor) as found:
            files = [
                f"{item.name}/" if item.is_dir(follow_symlinks=False) else item.name for item in found if not item.name.startswith(".")
            ]
    finally:
        os.close(descriptor)
    _require(len(files) <= _MAX_FILES)
    return sorted(name for name in files if name.rstrip("/") != "progress.jsonl")


def _log(folder: str, most: int, *, raw: bool = False) -> bytes:
    """The last bytes of a log without its header, or, if `raw`, with it. Only of a log from which nothing was removed."""
    _require(not os.path.exists(f"{folder}/.capped"))
    descriptor = os.open(f"{folder}/output.log", os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        beginning = os.pread(descriptor, 2048, 0)
        start = 0
        if beginning.startswith(b"# Background task: ") and not raw:
            start = beginning.index(b"\n", beginning.index(b"\n# Started: ") + 1) + 1
        size = os.fstat(descriptor).st_size
        return os.pread(descriptor, min(most, size - start), max(start, size - most))
    finally:
        os.close(descriptor)


def _tail(output: bytes, lines: int) -> bytes:
    kept = output.split(b"\n")
    return b"\n".join(kept[-lines - (kept[-1] == b"") :]) if lines else b""


def _logs(ledger: apsw.Connection, home: str, where: str, value: object, options: dict[str, str]) -> tuple[bytes, str]:
    folder = _first(ledger, f"SELECT r.folder FROM tasks t JOIN runs r ON r.task_id = t.task_id AND r.n = t.run_count WHERE {where}", value)
    _require(folder is not None)
    raw, lines = "--raw" in options, options.get("--tail")
    output = _log(os.path.join(home, folder), _MAX_LOG_BYTES, raw=raw and lines is None)
    _require(len(output) < _MAX_LOG_BYTES)
    if lines is not None:
        _require(lines.isdecimal() and len(lines) <= 12)
        output = _tail(output, int(lines))
    if sys.stdout.isatty() and not raw:
        _require(output.decode().replace("\n", "").replace("\t", "").isprintable())
    return output, ""


def _hook(
    ledger: apsw.Connection, home: str, client: str, environ: "Mapping[str, str]", now: int, quiet_since: int | None
) -> tuple[str, str]:
    """A hook for which nothing waits prints nothing; see `interfaces/mcp/client_hooks.py`.

    `quiet_since` is the time of the ledger if nothing needs an engine. It is recorded, so that the next hooks start no interpreter.
    """
    waiting = "SELECT DISTINCT channel FROM notices WHERE acknowledged_at IS NULL AND NOT (recipient = 'channel')"
    _require(not any(channel.split(":")[:2] == ["session", client] for (channel,) in _rows(ledger, waiting)))
    _require(hasattr(os, "memfd_create") and not sys.stdin.isatty())  # only Linux can put the input back
    hook_input = b""
    while len(hook_input) < _MAX_HOOK_INPUT and (piece := os.read(0, 1 << 16)):
        hook_input += piece
    try:
        _require_nothing_to_do(ledger, client, hook_input.decode(), environ, now)
        if quiet_since is not None:
            os.utime(f"{home}/hooks/{client}", ns=(quiet_since, quiet_since))
    except BaseException:
        _put_back(hook_input)
        raise
    return "", ""


def _require_nothing_to_do(ledger: apsw.Connection, client: str, hook_input: str, environ: "Mapping[str, str]", now: int) -> None:
    """The hook is not one that waits or prints the open tasks, and its session is registered already."""
    if not hook_input:
        return
    _require(_first(ledger, "SELECT json_valid(?1) AND json_type(?1) = 'object'", hook_input) == 1)
    named = "SELECT ?1 ->> 'hook_event_name', ?1 ->> 'session_id', json_type(?1, '$.session_id')"
    ((event, session, kind),) = _rows(ledger, named, hook_input)
    _require(event not in ("Stop", "AfterAgent", "SessionStart"))
    if kind != "text":
        return
    _require(0 < len(session) <= 120 and _SESSION_CHARACTERS.issuperset(session))
    pid = environ.get("CLAUDE_PID", "")
    pid = pid if pid.isdecimal() and len(pid) < 10 else str(os.getppid())
    newest = "SELECT session_id, process, seen_at FROM sessions WHERE client = ? ORDER BY seen_at DESC LIMIT 1"
    ((session_id, process, seen_at),) = _rows(ledger, newest, client)
    _require(session_id == f"{client}:{session}" and abs(now - seen_at) < _REGISTER_INTERVAL_MS)
    _require(process.split(":")[0] == pid and _is_alive(process))


def _put_back(hook_input: bytes) -> None:
    """Let the ordinary command line read standard input once more."""
    copy = os.memfd_create("hook")
    os.write(copy, hook_input)
    os.lseek(copy, 0, os.SEEK_SET)
    os.dup2(copy, 0)
    os.close(copy)
