"""Trigger events of sources: stored states, duplicates, paused tasks, and allowed settings of the GitHub source."""

import pytest
from conftest import caller
from proposal_app import ME, app, make_submission

from backburner.core.claims import RunResult
from backburner.core.errors import BadInput
from backburner.core.models import LOCAL_AGENT_LANE
from backburner.core.ports import TriggerEvent
from backburner.core.states import Result, RunState
from backburner.services.app import App
from backburner.services.schedule_requests import parse_source

__all__ = ["app"]


def test_the_state_of_a_source_is_stored_and_events_during_a_run_are_combined(app: App) -> None:
    """All events during a run start one further run."""
    entry = app.submissions.submit(make_submission(app, "files", source={"kind": "file", "path": "/tmp/x"}, session=None), caller(app))
    task_id = entry.task.task_id
    app.triggers.record(task_id, {"seen": 1}, None)
    assert app.triggers.state(task_id) == {"seen": 1} and app.queries.get(task_id).run is None
    app.triggers.record(task_id, {"seen": 2}, TriggerEvent("one", {"n": 1}))
    for number in (3, 4):
        app.triggers.record(task_id, {"seen": number}, TriggerEvent("more", {"n": number}))
    first = app.queries.get(task_id).run
    assert first is not None and first.cause.kind == "event" and app.triggers.state(task_id) == {"seen": 4}
    (work,) = app._ledger.runs.claim(LOCAL_AGENT_LANE, ME, 5, app.now())
    app._ledger.runs.settle([RunResult(work.run.run_id, RunState.COMPLETED, Result.EXIT, app.now(), 0, digest="x")], ME)
    second = app.queries.get(task_id).run
    assert second is not None and second.n == 2 and '"n": 3' in str(second.cause.payload) and '"n": 4' in str(second.cause.payload)


def test_a_duplicate_delivery_is_ignored(app: App) -> None:
    entry = app.submissions.submit(
        make_submission(app, "hook", source={"kind": "webhook", "name": "h", "secret_env": "S"}, session=None), caller(app)
    )
    assert app.triggers.record(entry.task.task_id, None, TriggerEvent("a", {}), "delivery-1")
    assert not app.triggers.record(entry.task.task_id, None, TriggerEvent("a", {}), "delivery-1")
    assert app.queries.get(entry.task.task_id).task.run_count == 1


def test_events_while_a_task_is_paused_are_handled_after_unpause(app: App) -> None:
    entry = app.submissions.submit(make_submission(app, "files", source={"kind": "file", "path": "/tmp/x"}, session=None), caller(app))
    task_id = entry.task.task_id
    app.triggers.record(task_id, {"seen": 1}, TriggerEvent("one", {"n": 1}))
    app.recurring.pause(task_id, caller(app))
    assert app._ledger.runs.claim(LOCAL_AGENT_LANE, ME, 5, app.now()) == []  # the run is held back
    app.triggers.record(task_id, {"seen": 2}, TriggerEvent("two", {"n": 2}))
    app.recurring.unpause(task_id, caller(app))
    (work,) = app._ledger.runs.claim(LOCAL_AGENT_LANE, ME, 5, app.now())
    assert '"n": 1' in str(work.run.cause.payload)
    app._ledger.runs.settle([RunResult(work.run.run_id, RunState.COMPLETED, Result.EXIT, app.now(), 0, digest="x")], ME)
    run = app.queries.get(task_id).run
    assert run is not None and run.state == "pending" and '"n": 2' in str(run.cause.payload)


def test_a_github_source_accepts_only_github_tokens_and_addresses() -> None:
    for options in (
        {"base_url": "https://evil.example"},
        {"token_env": "ANTHROPIC_API_KEY"},
        {"base_url": "http://127.0.0.1:1@evil.example"},
    ):
        with pytest.raises(BadInput):
            parse_source("github:owner/repo", options, "/")
    assert parse_source("github:owner/repo", {"token_env": "GH_WORK_TOKEN"}, "/").token_env == "GH_WORK_TOKEN"
