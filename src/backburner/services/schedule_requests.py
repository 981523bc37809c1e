"""Parses the schedule options that users and models give, the same way for every interface."""

import os
import re

from backburner.core.errors import BadInput
from backburner.core.models import Caller, Submission
from backburner.core.optional_dependencies import need
from backburner.core.schedule import cron, every, zone_of
from backburner.core.task_spec import AgentOptions, Recurrence, Schedule, Source, SourceKind
from backburner.core.time_input import duration_ms, interval_ms, moment_ms
from backburner.services.queries import Queries
from backburner.system.timezone import zone_name

_AT_ONCE_MS = 200


def parse_schedule(
    queries: Queries,
    submission: Submission,
    caller: Caller,
    now: int,
    *,
    notify: str | None = None,
    every_: str | None = None,
    cron_: str | None = None,
    zone: str | None = None,
    at: str | None = None,
    in_: str | None = None,
    after: str | None = None,
    on: str | None = None,
    about: dict[str, str] | None = None,
    until: str | None = None,
    max_runs: int | None = None,
    missed: str = "run_once",
    window: str | None = None,
    jitter: str | None = None,
) -> Submission:
    """Return the submission with its schedule. Exactly one of `every_`, `cron_`, `at`, `in_`, `after` and `on` must be given."""
    if sum(option is not None for option in (every_, cron_, at, in_, after, on)) != 1:
        raise BadInput("Use exactly one of `every`, `cron`, `at`, `in`, `after` (another task) and `on` (an event).")
    here = _zone_of_caller(caller, zone, cron_)
    source: Source | None = None
    if timed := _timed(here, now, every_, cron_, zone, at, in_):
        schedule = timed
    elif on is not None:
        source, schedule = parse_source(on, about or {}, submission.spec.cwd), Schedule(zone=here)
    else:
        other = queries.find(after or "", caller)
        if not other.task.is_recurring:  # it completes only once, so this task also runs once
            if (
                (submission.spec.prompt and submission.spec.command.words)
                or submission.spec.options != AgentOptions()
                or max_runs
                or until
                or jitter
            ):
                raise BadInput(
                    f"{other.task.task_id} runs only once. A task after it can be a command or a prompt, not both,"
                    " and cannot have options for recurring tasks (max_runs, until, jitter …)."
                )
            return submission.with_spec(order=submission.spec.order._replace(after=(other.task.task_id,)))
        if other.has_ended:
            raise BadInput(f"{other.task.task_id} is {other.status} and will not run again, so no task can run after it.")
        submission = submission.with_spec(order=submission.spec.order._replace(after=(other.task.task_id,)))
        schedule = Schedule(zone=here)
    schedule = _limited(schedule, now, until, max_runs, missed, window, jitter)
    return submission.with_spec(recurrence=Recurrence(schedule, notify, source))


def edit_schedule(
    schedule: Schedule,
    caller: Caller,
    now: int,
    *,
    every_: str | None = None,
    cron_: str | None = None,
    zone: str | None = None,
    at: str | None = None,
    in_: str | None = None,
    until: str | None = None,
    max_runs: int | None = None,
    missed: str | None = None,
    window: str | None = None,
    jitter: str | None = None,
) -> Schedule:
    """Return a schedule with what is given replaced. Of `every_`, `cron_`, `at` and `in_`, only one counts."""
    if timed := _timed(_zone_of_caller(caller, zone, cron_), now, every_, cron_, zone, at, in_):
        if not (schedule.every_ms or schedule.cron or schedule.at):
            raise BadInput("The task runs on an event or after another task. To give it a schedule, cancel it and add it again.")
        kept = schedule if timed.at is None else schedule._replace(max_runs=None, until=None)
        schedule = kept._replace(**{name: getattr(timed, name) for name in ("every_ms", "cron", "zone", "at", "anchor")})
    return _limited(schedule, now, until, max_runs, missed, window, jitter)


def _zone_of_caller(caller: Caller, zone: str | None, cron_: str | None) -> str:
    if zone is not None and cron_ is None:
        raise BadInput("A time zone can only be used with `cron`.")
    here = zone_name(caller.environ)
    zone_of(here)
    return here


def _timed(
    here: str, now: int, every_: str | None, cron_: str | None, zone: str | None, at: str | None, in_: str | None
) -> Schedule | None:
    """Return the schedule of one of these options; None if none is given."""
    if every_ is not None:
        return every(interval_ms(every_), now)._replace(zone=here)
    if cron_ is not None:
        return cron(cron_, zone or here)
    if at is not None:
        return Schedule(at=now + _AT_ONCE_MS if at == "now" else moment_ms(at, now), zone=here)
    return Schedule(at=now + duration_ms(in_), zone=here) if in_ is not None else None


def _limited(
    schedule: Schedule, now: int, until: str | None, max_runs: int | None, missed: str | None, window: str | None, jitter: str | None
) -> Schedule:
    """Return the schedule with those limits that are given."""
    if max_runs is not None and (max_runs < 1 or schedule.at is not None):
        raise BadInput("The maximum number of runs must be at least 1, and cannot be combined with `at` or `in`.")
    spread = duration_ms(jitter) if jitter else schedule.jitter_ms
    if schedule.every_ms is not None and spread >= schedule.every_ms:
        raise BadInput("The jitter must be shorter than the interval.")
    return schedule._replace(
        until=moment_ms(until, now) if until else schedule.until,
        max_runs=schedule.max_runs if max_runs is None else max_runs,
        missed=missed or schedule.missed,
        window_ms=duration_ms(window) if window else schedule.window_ms,
        jitter_ms=spread,
    )


_OPTIONS = {
    "file": ("debounce_ms", "pattern"),
    "command": ("every", "compare", "shell"),
    "github": ("events", "branch", "interval_seconds", "token_env", "base_url"),
    "webhook": ("secret_env", "style"),
}
_COMPARISONS = ("hash", "full", "exit")


def parse_source(text: str, options: dict[str, str], cwd: str) -> Source:
    """Parse an event source: `file:PATH`, `command:LINE`, `github:OWNER/REPO` or `webhook:NAME`, with its options."""
    kind, _, rest = text.partition(":")
    if kind not in _OPTIONS or not rest.strip():
        raise BadInput(f"'{text}' is not a valid source; use file:PATH, command:'…', github:OWNER/REPO or webhook:NAME.")
    if unknown := [name for name in options if name not in _OPTIONS[kind]]:
        raise BadInput(f"Unknown option '{unknown[0]}' for the source {kind}. Valid options: {', '.join(_OPTIONS[kind])}.")
    need(kind, f"The source {kind} requires")
    match kind:
        case "file":
            return Source(SourceKind.FILE, os.path.normpath(os.path.join(cwd, os.path.expanduser(rest))), **options)
        case "command":
            duration_ms(options.get("every", "1m"))
            if options.get("compare", "hash") not in _COMPARISONS:
                raise BadInput(f"compare must be one of {', '.join(_COMPARISONS)}, not '{options['compare']}'.")
            return Source(SourceKind.COMMAND, rest, **options)
        case "github":
            if not re.fullmatch(r"https?://(127\.0\.0\.1|localhost)(:\d+)?", options.get("base_url", "http://localhost")):
                raise BadInput("base_url must be an address on this machine, such as http://127.0.0.1:8080.")
            if not re.fullmatch(r"(GH|GITHUB)(_[A-Z0-9]+)*_TOKEN", options.get("token_env", "GITHUB_TOKEN")):
                raise BadInput("token_env must be the name of a GitHub token variable, such as GITHUB_TOKEN or GH_WORK_TOKEN.")
            if not re.fullmatch(r"[\w.-]+/[\w.-]+", rest):
                raise BadInput(f"'{rest}' is not a valid repository; use OWNER/REPO.")
            return Source(SourceKind.GITHUB, rest, **options)
        case _:
            if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", rest):
                raise BadInput(f"'{rest}' is not a valid webhook name; use up to 64 letters, digits, - and _.")
            if not options.get("secret_env"):
                raise BadInput("A webhook requires the name of the environment variable with its secret: --with secret_env=NAME")
            return Source(SourceKind.WEBHOOK, rest, **options)
