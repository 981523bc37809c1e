"""Formats durations, times, results of runs and notices as text for people and agents. Imports little: see `interfaces/cli/short_reads.py`."""

import time

from backburner.core.terminal_text import visible

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from backburner.core.models import Entry, Run, Task
    from backburner.core.states import Result, RunState

CPU_TIME_UP = 128 + 24  # exit code of a command that was killed because it had used up its CPU time
_UNQUOTED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789@%+=:,./-_")
_SECONDS: dict[int, str] = {}  # formatted before: most of the times of a run are in the same few seconds
_MAX_SECONDS = 64


def iso(at: int | None) -> str | None:
    """Format milliseconds UTC as ISO 8601: `2026-02-09T14:30:22.123Z`."""
    if at is None:
        return None
    return f"{_second(at // 1000)}.{at % 1000:03d}Z"


def _second(at: int) -> str:
    if at not in _SECONDS:
        if len(_SECONDS) >= _MAX_SECONDS:
            _SECONDS.clear()
        _SECONDS[at] = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at))
    return _SECONDS[at]


def local_time(at: int | None) -> str:
    """Format milliseconds UTC in the local time zone; `-` for None."""
    return "-" if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at / 1000))


def duration(milliseconds: int | None) -> str:
    """Format a duration in its two largest units: `850ms`, `12s`, `4m 56s`, `2h 5m`, `3d 4h`."""
    if milliseconds is None:
        return "-"
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    seconds = milliseconds // 1000
    for size, big, small, divisor in ((86400, "d", "h", 3600), (3600, "h", "m", 60), (60, "m", "s", 1)):
        if seconds >= size:
            return f"{seconds // size}{big} {seconds % size // divisor}{small}"
    return f"{seconds}s"


def elapsed(entry: "Entry", now: int) -> int | None:
    """Return how long the latest run took or has been running, in milliseconds; None if it never started."""
    run = entry.run
    if run is None or run.started_at is None:
        return None
    return max(0, (run.ended_at if run.ended_at is not None else now) - run.started_at)


def exit_text(code: int | None, *, killed: bool = False) -> str:
    """Format an exit code. 137 can be an ordinary exit code or mean SIGKILL; `killed` says that it was the signal."""
    if code is None:
        return "unknown"
    if not 128 < code < 193:
        return str(code)
    name = _signal_name(code - 128)
    return f"{code} (killed, {name})" if killed else f"{code} (possibly killed by {name})"


def _signal_name(number: int) -> str:
    import signal  # slow to load, and few exit codes need it

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def run_error(run: "Run") -> str | None:
    """Return why a run failed, is waiting or was skipped. One skipped run can stand for several skipped slots."""
    if run.error and run.cause.skipped_before:
        return f"{run.error} (and {run.cause.skipped_before:,} earlier slots)"
    return run.error


def describe_result(result: "Result", exit_code: int | None, error: str | None, timeout_ms: int | None, *, agent: bool = False) -> str:
    """Describe in a few words how a run ended. The run of an agent has no process of its own: if it failed, its error says why."""
    from backburner.core.states import Result

    match result:
        case Result.EXIT | Result.SIGNAL if agent and error and exit_code != 0:
            return error
        case Result.EXIT if exit_code == CPU_TIME_UP and error:
            return error
        case Result.EXIT:
            return f"exit {exit_text(exit_code)}"
        case Result.SIGNAL:
            return f"killed by signal {(exit_code or 137) - 128}"
        case Result.TIMEOUT:
            return f"stopped after its timeout of {duration(timeout_ms)}"
        case Result.AMBIGUOUS:
            return f"killed after its timeout of {duration(timeout_ms)}; it may or may not have taken effect"
        case Result.LOST:
            return error or "its end was not observed"
        case Result.UNSTARTED:
            return error or "never started"
        case Result.DEPENDENCY | Result.DENIED | Result.BUDGET:
            return error or str(result)


def command_line(command: "Sequence[str]", shell: bool) -> str:
    """Format a command as it would be typed. Control and formatting characters are escaped, so that nothing is hidden."""
    text = command[0] if shell else quoted(command)
    shown = visible(text)
    edges = len(shown) - len(shown.lstrip(" ")), len(shown) - len(shown.rstrip(" "))
    return "␠" * edges[0] + shown.strip(" ") + "␠" * edges[1] if any(edges) else shown


def quoted(words: "Iterable[str]") -> str:
    """Join words as a shell would read them. Like `shlex.join`, which loads `re`."""
    return " ".join(word if word and _UNQUOTED.issuperset(word) else "'" + word.replace("'", "'\"'\"'") + "'" for word in words)


def sentence(text: str) -> str:
    """Return a text with a full stop at its end, unless it ends with one."""
    return text if text.endswith((".", "!", "?", "…")) else f"{text}."


def delay_text(task_id: str, reason: str) -> str:
    """Return the notice for a person when commands cannot be started at the moment."""
    return f"Commands cannot be started: {reason}. {task_id} and later tasks are waiting and start automatically when resources are free."


def refusal_text(task_id: str, *, expired: bool, reason: str | None = None) -> str:
    """Return the notice for an agent whose proposal was rejected or expired. `reason` is what the person wrote."""
    outcome = "expired: nobody answered in time" if expired else "was rejected by a person"
    why = f" Their reason: {reason}" if reason else ""
    return f"Background task {task_id} {outcome}. It did not run. Do not try to do the same thing in another way.{why}"


_MAX_ANSWER_CHARACTERS = 8000


def agent_notice(task: "Task", n: int, state: "RunState", outcome: str, answer: str | None) -> str:
    """Return the notice for the session that submitted an agent task, with the agent's answer (up to 8,000 characters).

    `outcome` describes how the run ended.
    """
    from backburner.core.states import RunState

    title = "[BACKGROUND RESUME COMPLETED]" if n > 1 else "[BACKGROUND TASK COMPLETED]"
    if state != RunState.COMPLETED:
        title = title.replace("COMPLETED", "CANCELLED" if state == RunState.CANCELLED else "ERROR")
    lines = [f"{title} {task.task_id}: {visible(task.spec.description)}", *([outcome] if state != RunState.COMPLETED else [])]
    if answer:
        lines.append(answer[:_MAX_ANSWER_CHARACTERS])
        if len(answer) > _MAX_ANSWER_CHARACTERS:
            lines.append(
                f'[first {_MAX_ANSWER_CHARACTERS:,} of {len(answer):,} characters; full answer: background_output("{task.task_id}")]'
            )
    return "\n".join(lines)


def notice_text(
    task_id: str,
    state: "RunState",
    outcome: str,
    summary: str | None,
    log: str,
    artifacts: "Sequence[str]" = (),
    notes: "Sequence[str]" = (),
    output: str = "",
) -> str:
    """Return the notice about the end of a command. `outcome` describes how the run ended.

    `log` is the path of its output; empty if readers may be on other hosts.
    """
    from backburner.core.states import RunState

    parts = [outcome if state != RunState.COMPLETED else "", summary or "", *notes]
    description = "; ".join(part for part in parts if part)
    where = "Files in the work/ folder next to it" if log else f"Files (backburner fetch {task_id})"
    files = f" {where}: {', '.join(artifacts)}" if artifacts else ""
    ended = f"Background task {task_id} {state}{': ' + description if description else ''}"
    text = f"{sentence(ended)} Output: {log or f'backburner logs {task_id}'}{files}"
    return text if output in ("", summary) else f"{text}\n{output}"


def short_fingerprint(fingerprint: str | None) -> str | None:
    """Return the first 12 characters of a fingerprint: the form that is shown to people and accepted from them."""
    return fingerprint[:12] if fingerprint else None
