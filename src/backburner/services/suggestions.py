"""Looking for work: now and then, when the person is about but silent, an agent with a local model may propose something."""

from backburner.core.errors import BadInput
from backburner.core.models import DISCOVERY, Submission
from backburner.core.settings import agent_settings, is_local
from backburner.services.runtime import Runtime

_PRESENT_MS = 2 * 3_600_000
MOST_PROPOSALS = 3
_PROMPT = """Based on the recent context below, is there any useful background work to propose? Consider the state of CI, open pull requests, \
what was left to do, and the files that were talked about. Propose with task_propose, at most three, and only what is genuinely useful: do not \
make work for the sake of it. Nothing that is open already, nothing that needs no watching. If there is nothing, say so and stop."""


def next_look(runtime: Runtime) -> int | None:
    """When to look for work next, in milliseconds UTC; None while there is no reason to: nobody about, no local model, or turned off."""
    config, now = runtime.config, runtime.clock()
    if not config.flag("tasks.enabled") or not config.flag("tasks.discovery_enabled"):
        return None
    try:
        if not is_local(agent_settings(config, "default", standing=True)):
            return None
    except BadInput:
        return None  # no model
    seen = runtime.last_present()
    if seen is None or now - seen > _PRESENT_MS or now < seen:
        return None
    last = runtime.store.cursor(DISCOVERY)
    due = max(seen + config.whole("tasks.idle_threshold_ms"), last + config.whole("tasks.discovery_interval_ms"))
    return due if due - seen <= _PRESENT_MS else None


def look(runtime: Runtime) -> bool:
    """Ask the agent that looks for work, if it is time; whether it was asked."""
    due = next_look(runtime)
    if due is None or due > runtime.clock():
        return False
    runtime.store.advance_cursor(DISCOVERY, runtime.clock())
    latest = next(iter(runtime.list(everywhere=True, limit=1)), None)
    if latest is None or any(entry.task.session == DISCOVERY and entry.live for entry in runtime.list(everywhere=True, limit=50)):
        return False
    environment = runtime.environment(latest)
    runtime.submit(
        Submission(
            command=(),
            cwd=latest.task.project,
            opened=latest.task.opened,
            environment=environment,
            description="Looks for work to propose",
            agent="default",
            prompt=_PROMPT,
            session=DISCOVERY,
            priority=-1,
            timeout_ms=runtime.config.whole("tasks.task_timeout_ms"),
        )
    )
    return True
