"""Turns what people and models write about a schedule into one, the same for every interface."""

import os
import re

from backburner.core.errors import BadInput
from backburner.core.models import Caller, Submission
from backburner.core.optional_dependencies import need
from backburner.core.schedule import cron, every, zone_of
from backburner.core.task_spec import AgentOptions, Recurrence, Schedule, Source, SourceKind
from backburner.core.time_input import duration_ms, moment_ms
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
    after: str | None = None,
    on: str | None = None,
    about: dict[str, str] | None = None,
    until: str | None = None,
    max_runs: int | None = None,
    missed: str = "run_once",
    window: str | None = None,
    jitter: str | None = None,
) -> Submission:
    """A submission with the schedule that some words say. Just one of `every_`, `cron_`, `at`, `after` and `on` is one."""
    said = [word for word in (every_, cron_, at, after, on) if word is not None]
    if len(said) != 1:
        raise BadInput("Say when, in one way: every, cron, at, after another task, or on an event.")
    if zone is not None and cron_ is None:
        raise BadInput("A time zone is for cron; an interval counts, and a time has its own.")
    here = zone_name(caller.environ)
    zone_of(here)
    source: Source | None = None
    if every_ is not None:
        schedule = every(duration_ms(every_), now)._replace(zone=here)
    elif cron_ is not None:
        schedule = cron(cron_, zone or here)
    elif at is not None:
        schedule = Schedule(at=now + _AT_ONCE_MS if at == "now" else moment_ms(at, now), zone=here)
    elif on is not None:
        source, schedule = parse_source(on, about or {}, submission.spec.cwd), Schedule(zone=here)
    else:
        other = queries.find(after or "", caller)
        if not other.task.is_recurring:  # it completes once: this one, too, runs once
            if (
                (submission.spec.prompt and submission.spec.command.words)
                or submission.spec.options != AgentOptions()
                or max_runs
                or until
                or jitter
            ):
                raise BadInput(f"{other.task.task_id} runs once; what comes after it is a command or a prompt, with no more to say.")
            return submission.with_spec(order=submission.spec.order._replace(after=(other.task.task_id,)))
        if other.has_ended:
            raise BadInput(f"{other.task.task_id} is {other.status}; nothing will come after it.")
        submission = submission.with_spec(order=submission.spec.order._replace(after=(other.task.task_id,)))
        schedule = Schedule(zone=here)
    if max_runs is not None and (max_runs < 1 or at is not None):
        raise BadInput("How often at the most is a number from 1 on, and for what runs more than once.")
    spread = duration_ms(jitter) if jitter else 0
    if schedule.every_ms is not None and spread >= schedule.every_ms:
        raise BadInput("The jitter must be shorter than the interval.")
    schedule = schedule._replace(
        until=moment_ms(until, now) if until else None,
        max_runs=max_runs,
        missed=missed,
        window_ms=duration_ms(window) if window else schedule.window_ms,
        jitter_ms=spread,
    )
    return submission.with_spec(recurrence=Recurrence(schedule, notify, source))


_OPTIONS = {
    "file": ("debounce_ms", "pattern"),
    "command": ("every", "compare", "shell"),
    "github": ("events", "branch", "interval_seconds", "token_env", "base_url"),
    "webhook": ("secret_env", "style"),
}
_COMPARED = ("hash", "full", "exit")


def parse_source(text: str, about: dict[str, str], cwd: str) -> Source:
    """What `file:PATH`, `command:LINE`, `github:OWNER/REPO` or `webhook:NAME` means, with what else was said of it."""
    kind, _, rest = text.partition(":")
    if kind not in _OPTIONS or not rest.strip():
        raise BadInput(f"'{text}' is not a source; write file:PATH, command:'…', github:OWNER/REPO or webhook:NAME.")
    if unknown := [name for name in about if name not in _OPTIONS[kind]]:
        raise BadInput(f"A {kind} has no '{unknown[0]}'; it has {', '.join(_OPTIONS[kind])}.")
    need(kind, f"A {kind} as a source needs")
    match kind:
        case "file":
            return Source(SourceKind.FILE, os.path.normpath(os.path.join(cwd, os.path.expanduser(rest))), **about)
        case "command":
            duration_ms(about.get("every", "1m"))
            if about.get("compare", "hash") not in _COMPARED:
                raise BadInput(f"A command is compared by {', '.join(_COMPARED)}, not by '{about['compare']}'.")
            return Source(SourceKind.COMMAND, rest, **about)
        case "github":
            if not re.fullmatch(r"https?://(127\.0\.0\.1|localhost)(:\d+)?", about.get("base_url", "http://localhost")):
                raise BadInput("A base_url is for a server on this machine.")
            if not re.fullmatch(r"(GH|GITHUB)(_[A-Z0-9]+)*_TOKEN", about.get("token_env", "GITHUB_TOKEN")):
                raise BadInput("The token of GitHub is in a variable such as GITHUB_TOKEN or GH_WORK_TOKEN; no other is sent.")
            if not re.fullmatch(r"[\w.-]+/[\w.-]+", rest):
                raise BadInput(f"'{rest}' is not a repository; write OWNER/REPO.")
            return Source(SourceKind.GITHUB, rest, **about)
        case _:
            if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", rest):
                raise BadInput("A webhook is named with letters, digits, - and _.")
            if not about.get("secret_env"):
                raise BadInput("A webhook needs the variable that holds its secret: --with secret_env=NAME")
            return Source(SourceKind.WEBHOOK, rest, **about)
