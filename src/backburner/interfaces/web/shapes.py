"""The types of what the API answers, from which its schemas are made. Fields that only some tasks have are not required."""

from typing import Any, NotRequired, TypedDict


class Progress(TypedDict):
    fraction: float | None
    text: str


class Row(TypedDict, total=False):
    task_id: str
    name: str | None
    kind: str
    type: str
    status: str
    result: str | None
    description: str
    command: list[str]
    shell: bool
    cwd: str
    project: str
    created_by: str
    created_at: str
    updated_at: str
    started_at: str | None
    completed_at: str | None
    duration_seconds: float | None
    exit_code: int | None
    error: str | None
    summary: str | None
    pid: int | None
    approved_by: str | None
    approved_via: str | None
    approved_at: str | None
    rule: str | None
    reasons: list[str]
    run_count: int
    next_run_at: str | None
    seq: int
    line: str
    run_id: str | None
    run_n: int | None
    client: str
    session: str | None
    parent_task: str | None
    needs_you: bool
    doing: str
    progress: Progress | None
    usage: dict[str, Any]
    expires_at: str | None


class TaskDetails(Row, total=False):
    details: dict[str, Any]
    folder: str | None
    log: str | None
    output_removed: bool
    env: dict[str, Any]
    next_runs: list[str]
    children: int
    is_live: bool
    can: list[str]
    conversation: bool
    changes: dict[str, Any] | None


class TaskList(TypedDict):
    items: list[Row]
    next: str | None
    total: int | str | None


class HomeState(TypedDict):
    version: str
    home_id: str
    home: str
    server_time: str
    engine: dict[str, Any]
    caller: dict[str, Any]
    may: dict[str, Any]
    address: str
    passkeys_here: bool
    started_by_agent: str | None
    limits: dict[str, Any]
    last_event: int
    counts: dict[str, Any]


class Board(TypedDict):
    at: str
    last_event: int
    needs_you: list[Row]
    running: list[Row]
    queued: list[Row]
    next: list[Row]
    recent: list[Row]
    recent_next: str | None
    counts: dict[str, Any]
    limits: dict[str, Any]
    max_concurrent: int
    projects: list[str]
    clients: list[str]
    home: NotRequired[HomeState]


class Submitted(TypedDict):
    task: Row
    verdict: str
    reasons: list[str]


class Cleared(TypedDict):
    cleared: list[str]


class Verdict(TypedDict):
    verdict: str
    sandbox: str | None
    rule: str
    part: str
    reasons: list[str]
    effects: list[str]
    parts: list[dict[str, Any]]


class Run(TypedDict, total=False):
    run_id: str
    n: int
    status: str
    cause: str
    slot: str | None
    started_at: str | None
    completed_at: str | None
    duration_seconds: float | None
    exit_code: int | None
    result: str | None
    error: str | None
    problem: str | None
    tokens_used: float
    cost: float | None
    origin: str | None


class RunDetails(Run, total=False):
    task_id: str
    folder: str | None
    has_output: bool
    size: int | None


class RunList(TypedDict):
    items: list[Run]
    total: int


class Event(TypedDict):
    event_id: int
    at: str
    kind: str
    task_id: str | None
    run_id: str | None
    data: dict[str, Any]


class EventItems(TypedDict):
    items: list[Event]


class Events(TypedDict):
    items: list[Event]
    last: int


class ConversationItem(TypedDict):
    n: int
    who: str
    text: str
    at: str | None
    tool: dict[str, Any] | None


class Conversation(TypedDict):
    items: list[ConversationItem]
    next: int | None
    total: int
    doing: str


class ChangedFile(TypedDict):
    path: str
    old_path: str | None
    status: str
    added: int
    removed: int
    binary: bool
    folded: bool
    text: str


class Diff(TypedDict):
    path: str
    branch: str | None
    files: list[ChangedFile]
    cut: bool


class Question(TypedDict):
    task: Row
    open: bool
    kind: str
    title: str
    line: str
    command: list[str]
    shell: bool
    cwd: str
    prompt: str | None
    agent: str | None
    git: dict[str, Any] | None
    parts: list[dict[str, Any]]
    effects: list[str]
    reasons: list[str]
    rule: str
    decided_by: str
    decision: str
    bound: list[str]
    files: list[dict[str, Any]]
    env: dict[str, Any]
    before: list[dict[str, Any]]
    asked_at: str
    expires_at: str | None
    when: str | None
    next_runs: list[str]
    question: str | None
    used: dict[str, Any]
    text: str | None
    seen: str
    choices: list[str]
    level: str
    terminal: str
    answered: dict[str, Any] | None


class Challenge(TypedDict):
    nonce: str
    text: str
    challenge: str
    publicKey: dict[str, Any]
    expires_at: str


class LogPart(TypedDict):
    run_id: str
    n: int
    text: str
    start: str
    cursor: str
    first_line: int
    lines: int
    total_lines: int
    size: int
    more: bool
    live: bool
    removed: bool
    note: NotRequired[str]


class LogHit(TypedDict):
    line: int
    text: str
    start: int
    end: int


class LogHits(TypedDict):
    hits: list[LogHit]
    total: int
    more: bool
    next: int | None


class Artifact(TypedDict):
    name: str
    size: int
    modified_at: str


class Artifacts(TypedDict):
    items: list[Artifact]


class Why(TypedDict):
    status: str
    sentence: str
    do: str | None
    decision: str
    by: str | None
    via: str | None
    at: str | None
    rule: str
    reasons: list[str]


class Notice(TypedDict, total=False):
    notice_id: int
    task_id: str
    run_id: str | None
    project: str
    channel: str
    kind: str
    priority: int
    text: str
    created_at: str
    told_at: str | None
    to: str
    comes_at: str | None
    error: str | None
    attempts: int
    failed_at: str | None


class NoticeItems(TypedDict):
    items: list[Notice]


class InboxItems(TypedDict):
    items: list[Notice]
    quiet_hours: str
    digest_minutes: float
    failed: int


class Acknowledged(TypedDict):
    acknowledged: int


class Retried(TypedDict):
    retried: int


class AuditItem(TypedDict):
    id: str
    at: str
    decision: str
    by: str | None
    via: str | None
    device: dict[str, Any] | None
    level: str | None
    task_id: str | None
    line: str
    cwd: str | None
    rule: str | None
    reasons: list[str]
    reason: str | None
    proof: bool
    verified: bool | None
    status: str | None
    exit_code: int | None
    duration_seconds: float | None


class AuditList(TypedDict):
    items: list[AuditItem]
    next: str | None


class Items(TypedDict):
    items: list[dict[str, Any]]


class Findings(TypedDict):
    ok: bool
    findings: list[dict[str, Any]]


class Settings(TypedDict):
    items: list[dict[str, Any]]
    path: str
    rules: int
    problem: str | None


class Passkey(TypedDict, total=False):
    passkey_id: str
    name: str
    rp_id: str
    state: str
    created_at: str
    last_used_at: str | None
    number: str | None
    expires_at: str | None
    confirm: str


class Device(TypedDict):
    device_id: str
    name: str
    address: str
    created_at: str
    last_seen_at: str
    expires_at: str
    paired_via: str
    own: bool
    passkeys: list[Passkey]


class Devices(TypedDict):
    items: list[Device]


class Pairing(TypedDict):
    pairing: str
    number: str
    expires_at: str


class PairingState(TypedDict):
    state: str
    device_id: str | None


class PasskeyOptions(TypedDict):
    nonce: str
    publicKey: dict[str, Any]
    first: bool


class StreamQuery(TypedDict, total=False):
    after: int
    run: list[str]
    cursor: list[str]
    quiet: bool


def stream() -> None:
    """The live stream of a page, as server-sent events: rows, log, ask, bye."""
