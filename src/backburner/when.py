"""A schedule from the words that people and models write, the same at every door."""

from backburner.errors import BadInput
from backburner.models import Submission
from backburner.runtime import Runtime, now_ms
from backburner.schedule import Schedule, cron, every
from backburner.times import duration_ms, moment_ms
from backburner.zone import zone_name

_AT_ONCE_MS = 200


def scheduled(
    runtime: Runtime,
    submission: Submission,
    *,
    every_: str | None = None,
    cron_: str | None = None,
    zone: str | None = None,
    at: str | None = None,
    after: str | None = None,
    until: str | None = None,
    max_runs: int | None = None,
    missed: str = "run_once",
    window: str | None = None,
    jitter: str | None = None,
) -> Submission:
    """A submission with the schedule that some words say. Just one of `every_`, `cron_`, `at` and `after` is one."""
    said = [word for word in (every_, cron_, at, after) if word is not None]
    if len(said) != 1:
        raise BadInput("Say when, in one way: every, cron, at, or after another task.")
    if zone is not None and cron_ is None:
        raise BadInput("A time zone is for cron; an interval counts, and a time has its own.")
    now, here = now_ms(), zone_name(runtime.environ)
    if every_ is not None:
        schedule = every(duration_ms(every_), now)._replace(zone=here)
    elif cron_ is not None:
        schedule = cron(cron_, zone or here)
    elif at is not None:
        schedule = Schedule(at=now + _AT_ONCE_MS if at == "now" else moment_ms(at, now), zone=here)
    else:
        other = runtime.show(after or "")
        if not other.task.standing:  # it completes once: this one, too, runs once
            return submission._replace(after=(other.task.task_id,))
        submission, schedule = submission._replace(after=(other.task.task_id,)), Schedule(zone=here)
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
    return submission._replace(schedule=schedule.fields())
