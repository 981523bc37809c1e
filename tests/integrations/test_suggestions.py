"""Suggestions: when the suggestion agent is asked, and how many proposals it may make."""

import os
import random
from typing import Any

import pytest
from conftest import caller
from proposal_app import DAY, HOUR, ME, MINUTE, app, propose

from backburner.core.claims import RunResult
from backburner.core.errors import ApprovalDenied, BadInput
from backburner.core.models import DISCOVERY, LOCAL_AGENT_LANE
from backburner.core.states import Result, RunState
from backburner.services.app import App
from backburner.testing.records import request

__all__ = ["app"]


def test_suggestions_are_due_only_within_two_hours_of_user_activity(app: App) -> None:
    """There is no user activity until the user does something at an interface."""
    assert app.sessions.last_activity() is None and app.suggestions.next_at() is None
    app.sessions.record_activity("cli")
    assert app.suggestions.next_at() is not None
    app.clock.advance(2 * HOUR + 1)  # type: ignore[attr-defined]
    assert app.suggestions.next_at() is None
    app.sessions.record_activity("cli")
    assert app.suggestions.next_at() is not None


def test_a_run_that_suggests_nothing_is_not_announced(app: App) -> None:
    app.submissions.submit(request(command=("true",), cwd=os.getcwd(), environment={}), caller(app))
    app.sessions.record_activity("cli")
    app.clock.advance(HOUR)  # type: ignore[attr-defined]
    assert app.suggestions.ask_if_due()
    (work,) = app._ledger.runs.claim(LOCAL_AGENT_LANE, ME, 5, app.now())
    ending = RunResult(work.run.run_id, RunState.COMPLETED, Result.EXIT, app.now(), 0, answer="Nothing useful.")
    app._ledger.runs.settle([ending], ME, runner=LOCAL_AGENT_LANE, limit=0, now=app.now())
    assert app.queries.get(work.task.task_id).status == "completed"
    assert not app._ledger.database.execute("SELECT 1 FROM notices WHERE task_id = ?", (work.task.task_id,))


def test_suggestions_in_a_simulated_week_observe_all_limits(app: App) -> None:
    """Suggestions come only while the user is active but idle for ten minutes, at most every half hour, three at a time.

    A rejected suggestion is not made again for a day.
    """
    clock: Any = app.clock
    chooser = random.Random(5)
    app.submissions.submit(request(command=("true",), cwd=os.getcwd(), environment={}), caller(app))
    seen, asked_at, proposed, rejected = 0, [], 0, {}
    names = [f"idea {number}" for number in range(12)]
    for _ in range(7 * 24 * 12):
        clock.advance(5 * MINUTE)
        if chooser.random() < (0.12 if 8 <= (clock.now // HOUR) % 24 < 20 else 0.0):
            app.sessions.record_activity("cli")
            seen = clock.now
        if not app.suggestions.ask_if_due():
            continue
        assert seen and 10 * MINUTE <= clock.now - seen <= 2 * HOUR
        assert not asked_at or clock.now - asked_at[-1] >= 30 * MINUTE
        asked_at.append(clock.now)
        asked = next(entry for entry in app.queries.list(caller(app), everywhere=True, limit=5) if entry.task.session == DISCOVERY)
        assert asked.task.lane == LOCAL_AGENT_LANE
        session, accepted, cancelled = f"agent:{asked.task.task_id}", 0, []
        for name in chooser.sample(names, 5):
            try:
                entry = propose(app, name, session=session)
            except (ApprovalDenied, BadInput):
                continue
            accepted += 1
            assert clock.now - rejected.get(name, -DAY) >= DAY
            if chooser.random() < 0.7:
                app.approvals.reject(entry.task.task_id, caller(app))
                rejected[name] = clock.now
            else:
                app.approvals.approve(entry.task.task_id, caller(app))
                app.tasks.cancel(entry.task.task_id, caller(app))
                cancelled.append(entry.task.task_id)
        assert accepted <= 3
        app.tasks.clear(cancelled, caller(app))
        proposed += accepted
        app.tasks.cancel(asked.task.task_id, caller(app))
    assert 10 < len(asked_at) < 7 * 24 * 2 and proposed > 10 and rejected


@pytest.mark.parametrize(
    "settings",
    ['[models]\nlocal = "openai-chat:gpt-5"\n', "", '[models]\nlocal = "ollama:small"\n[tasks]\ndiscovery_enabled = false\n'],
    ids=["a remote model", "no model", "turned off"],
)
def test_there_are_no_suggestions_with(app: App, settings: str) -> None:
    from backburner.core.settings import resolve

    app.sessions.record_activity("cli")
    assert app.suggestions.next_at() is not None
    app.config_file.current = resolve(settings)
    assert app.suggestions.next_at() is None
