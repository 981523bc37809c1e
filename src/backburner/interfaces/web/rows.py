"""A task as the API answers it: the JSON of the command line, and what a page needs to draw it in a list."""

from backburner.core import formatting, task_text
from backburner.core.masking import hide_secrets, masked_line
from backburner.core.models import Entry, Task
from backburner.core.sessions import SessionId
from backburner.core.states import RUNNING_STATES, RunState
from backburner.core.task_filter import Listed
from backburner.core.terminal_text import clean, shortened, visible
from backburner.services.app import App
from backburner.services.overview import needs_person

_MAX_LINE_CHARACTERS = 2000
_MAX_DOING_CHARACTERS = 200


def row(app: App, item: Listed) -> dict[str, object]:
    """A task in a list, on the board or in the stream."""
    (task, run), entry = item.entry, item.entry
    progress = app.runs.progress(entry)
    usage = dict(run.end.usage) if run else {}
    if run and run.state in RUNNING_STATES and task.spec.agent_name is not None:
        usage = task_text.used_json(app.runs.activity(entry))
    extra = {"when": app.recurring.explain(task, upcoming=False)} if task.is_recurring else {}
    return {
        **task_text.as_json(entry, app.now()),
        "seq": item.seq,
        "line": line_of(task),
        "run_id": run.run_id if run else None,
        "run_n": run.n if run else None,
        "client": client_of(task),
        "session": task.session,
        "parent_task": task.parent_task,
        "needs_you": entry.status != "expired" and needs_person(entry),
        "doing": _doing(app, entry, progress.text if progress else ""),
        "progress": {"fraction": progress.fraction, "text": progress.text} if progress else None,
        "usage": {name: usage.get(name) for name in ("tokens", "cost", "tool_calls")},
        "expires_at": formatting.iso(task.expires_at) if entry.status == "proposed" else None,
        **extra,
    }


def line_of(task: Task) -> str:
    """What a task does, as one line without secrets and control characters."""
    if task.spec.command.words and task.spec.agent_name is None:
        return shortened(visible(masked_line(task.spec.command.words, task.spec.command.shell)), longest=_MAX_LINE_CHARACTERS)
    return shortened(clean(hide_secrets(task.spec.prompt)), longest=_MAX_LINE_CHARACTERS)


def client_of(task: Task) -> str:
    """The client that submitted a task; `you` for a person."""
    return SessionId.parse(task.session).client if task.session else "you"


def _doing(app: App, entry: Entry, progress: str) -> str:
    """What a task does now, waits for, or has come to, as one short text."""
    task, run = entry
    text = ""
    if run is None:
        text = "; ".join(task.decision.reasons) if entry.status == "proposed" else ""
    elif run.state in RUNNING_STATES:
        text = progress or ("ready" if entry.is_ready else "")
    elif run.state == RunState.PENDING:
        text = f"waiting for {app.runs.pending_reason(entry) or 'the engine'}"
    elif run.state == RunState.WAITING:
        text = run.error or ""
    else:
        result = ""
        if run.end.result and run.state != RunState.COMPLETED:
            is_agent = task.spec.agent_name is not None
            result = formatting.describe_result(run.end.result, run.end.exit_code, run.error, task.spec.timeout_ms, agent=is_agent)
        text = " · ".join(filter(None, (result, run.end.summary)))
    if entry.status == "paused" and task.recurring.paused_because:
        text = f"paused: {task.recurring.paused_because}"
    return shortened(clean(hide_secrets(text)), longest=_MAX_DOING_CHARACTERS)
