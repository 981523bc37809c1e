"""How things are said to people: durations, times, how a run ended, and the text of its notice. Pure."""

import shlex
import time
from collections.abc import Sequence

from backburner.core.models import Entry, Run, Task
from backburner.core.states import Result, RunState
from backburner.core.terminal_text import visible


def iso(at: int | None) -> str | None:
    """Milliseconds UTC as ISO 8601: `2026-02-09T14:30:22.123Z`."""
    if at is None:
        return None
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(at // 1000))}.{at % 1000:03d}Z"


def local_time(at: int | None) -> str:
    """Milliseconds UTC as a person's clock shows them."""
    return "-" if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at / 1000))


def duration(milliseconds: int | None) -> str:
    """`850ms`, `12s`, `4m 56s`, `2h 5m`, `3d 4h`."""
    if milliseconds is None:
        return "-"
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    seconds = milliseconds // 1000
    for size, big, small, divisor in ((86400, "d", "h", 3600), (3600, "h", "m", 60), (60, "m", "s", 1)):
        if seconds >= size:
            return f"{seconds // size}{big} {seconds % size // divisor}{small}"
    return f"{seconds}s"


def elapsed(entry: Entry, now: int) -> int | None:
    """How long the latest run took, or has taken so far; None for one that never started."""
    run = entry.run
    if run is None or run.started_at is None:
        return None
    return max(0, (run.ended_at if run.ended_at is not None else now) - run.started_at)


def exit_text(code: int | None) -> str:
    """An exit code as it can truly be told: 137 may be an exit or signal 9."""
    if code is None:
        return "unknown"
    return f"{code} or signal {code - 128}" if 128 < code < 193 else str(code)


def run_error(run: Run) -> str | None:
    """Why a run failed, waits, or was skipped; a skipped one may stand for more slots than its own."""
    if run.error and run.cause.skipped_before:
        return f"{run.error} (and {run.cause.skipped_before:,} slots before it)"
    return run.error


def describe_result(result: Result, exit_code: int | None, error: str | None, timeout_ms: int | None) -> str:
    """How a run ended, in a few words."""
    match result:
        case Result.EXIT:
            return f"exit {exit_text(exit_code)}"
        case Result.SIGNAL:
            return f"killed by signal {(exit_code or 137) - 128}"
        case Result.TIMEOUT:
            return f"stopped at its timeout of {duration(timeout_ms)}"
        case Result.AMBIGUOUS:
            return f"killed at its timeout of {duration(timeout_ms)}; its effect may or may not have happened"
        case Result.LOST:
            return error or "its end was not observed"
        case Result.UNSTARTED:
            return error or "never started"
        case Result.DEPENDENCY | Result.DENIED | Result.BUDGET:
            return error or str(result)


def command_line(command: Sequence[str], shell: bool) -> str:
    """The command as one would type it, with nothing hidden: control and formatting characters are made visible."""
    text = command[0] if shell else shlex.join(command)
    shown = visible(text)
    edges = len(shown) - len(shown.lstrip(" ")), len(shown) - len(shown.rstrip(" "))
    return "␠" * edges[0] + shown.strip(" ") + "␠" * edges[1] if any(edges) else shown


def delay_text(task_id: str, reason: str) -> str:
    """What a person is told when commands cannot be started for now."""
    return f"Commands cannot be started: {reason}. {task_id} and what comes after it wait, and start by themselves once there is room."


def refusal_text(task_id: str, *, expired: bool) -> str:
    """What the agent is told that asked for something which a person did not allow."""
    how = "expired: nobody answered in time" if expired else "was rejected by a person"
    return f"Background task {task_id} {how}. It did not run, and must not be tried in another way."


_MAX_ANSWER_CHARACTERS = 8000


def agent_notice(task: Task, n: int, state: RunState, how: str, answer: str | None) -> str:
    """What the session is told that asked an agent, when it has answered or failed; the whole answer, up to a size."""
    title = "[BACKGROUND RESUME COMPLETED]" if n > 1 else "[BACKGROUND TASK COMPLETED]"
    if state != RunState.COMPLETED:
        title = title.replace("COMPLETED", "CANCELLED" if state == RunState.CANCELLED else "ERROR")
    lines = [f"{title} {task.task_id}: {visible(task.spec.description)}", *([how] if state != RunState.COMPLETED else [])]
    if answer:
        lines.append(answer[:_MAX_ANSWER_CHARACTERS])
        if len(answer) > _MAX_ANSWER_CHARACTERS:
            lines.append(
                f'[cut after {_MAX_ANSWER_CHARACTERS:,} of {len(answer):,} characters; all of it: background_output("{task.task_id}")]'
            )
    return "\n".join(lines)


def notice_text(task_id: str, state: RunState, how: str, summary: str | None, log: str, artifacts: Sequence[str] = ()) -> str:
    """What the person or the agent who asked is told when a run ends."""
    parts = [how if state != RunState.COMPLETED else "", summary or ""]
    told = "; ".join(part for part in parts if part)
    files = f" Files in work/ beside it: {', '.join(artifacts)}" if artifacts else ""
    return f"Background task {task_id} {state}{': ' + told if told else ''}. Output: {log}{files}"


def short_fingerprint(fingerprint: str | None) -> str | None:
    """A fingerprint as people are shown it, and hand it back."""
    return fingerprint[:12] if fingerprint else None
