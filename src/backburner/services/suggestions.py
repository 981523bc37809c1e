"""Suggests tasks: while the user is idle for a short time, an agent with a local model may propose tasks."""

from typing import TYPE_CHECKING

from backburner.coordination.config_file import ConfigFile
from backburner.core.errors import BadInput
from backburner.core.models import DISCOVERY, Caller, Clock, Submission
from backburner.core.settings import agent_settings, is_local
from backburner.core.task_spec import AgentSpec, Budget, Order, RunBudget, TaskSpec
from backburner.services.queries import Queries
from backburner.services.sessions import Sessions
from backburner.services.submissions import Submissions

if TYPE_CHECKING:
    from backburner.core.store_ports import EventStore

_MAX_IDLE_MS = 2 * 3_600_000
_MAX_TOOL_CALLS = 25
_PROMPT = """Based on the recent context below, is there any useful background work to propose? Consider the state of CI, open pull requests, \
unfinished work, and the files that were discussed. Use task_propose to propose at most three tasks, and only if they are genuinely useful: do not \
invent work. Do not propose anything that is already open or that needs no monitoring. If there is nothing useful, say so and stop."""


class Suggestions:
    """Decides when to run the agent that suggests tasks, and submits it."""

    def __init__(
        self, event_store: "EventStore", config: ConfigFile, queries: Queries, sessions: Sessions, submissions: Submissions, clock: Clock
    ) -> None:
        self._event_store, self._config, self._clock = event_store, config, clock
        self._queries, self._sessions, self._submissions = queries, sessions, submissions

    def next_at(self) -> int | None:
        """Return when to ask next, in milliseconds UTC; None if there was no recent activity or no local model, or if it is disabled."""
        config, now = self._config.current, self._clock()
        if not config.flag("tasks.enabled") or not config.flag("tasks.discovery_enabled"):
            return None
        try:
            if not is_local(agent_settings(config, "default", recurring=True)):
                return None
        except BadInput:
            return None  # no model
        seen = self._sessions.last_activity()
        if seen is None or now - seen > _MAX_IDLE_MS or now < seen:
            return None
        last = self._event_store.cursor(DISCOVERY)
        due = max(seen + config.whole("tasks.idle_threshold_ms"), last + config.whole("tasks.discovery_interval_ms"))
        return due if due - seen <= _MAX_IDLE_MS else None

    def ask_if_due(self) -> bool:
        """Ask the agent for suggestions if it is time; True if it was asked."""
        due = self.next_at()
        if due is None or due > self._clock():
            return False
        self._event_store.advance_cursor(DISCOVERY, self._clock())
        caller = Caller("/", {}, "engine", DISCOVERY)
        entries = self._queries.list(caller, everywhere=True, limit=50)
        if not entries or any(entry.task.session == DISCOVERY and entry.is_live for entry in entries):
            return False
        latest = entries[0]
        self._submissions.submit(
            Submission(
                spec=TaskSpec(
                    cwd=latest.task.project,
                    agent=AgentSpec("default", _PROMPT),
                    description="Suggest tasks",
                    timeout_ms=self._config.current.whole("tasks.task_timeout_ms"),
                    order=Order(priority=-1),
                    budget=Budget(per_run=RunBudget(tool_calls=_MAX_TOOL_CALLS)),
                ),
                environment=self._queries.environment(latest),
                session=DISCOVERY,
                opened=latest.task.opened,
            ),
            caller,
        )
        return True
