"""Proposals and tasks that agents add: rejected and cancelled tasks stay away, and tools are limited to those of the agent."""

import os

import pytest
from conftest import caller
from proposal_app import DAY, HOUR, app, make_submission, propose

from backburner.core.errors import ApprovalDenied
from backburner.services.app import App
from backburner.testing.records import request

__all__ = ["app"]


def test_a_rejected_proposal_is_refused_for_24_hours(app: App) -> None:
    """This applies to the same name and to the same prompt with another name, even if the task itself was cleared."""
    entry = propose(app, "watch-pr")
    app.approvals.reject(entry.task.task_id, caller(app))
    app.tasks.clear([entry.task.task_id], caller(app))
    for same in ({"name": "Watch PR"}, {"name": "another", "prompt": "look  at WATCH-PR."}):
        with pytest.raises(ApprovalDenied, match="rejected"):
            app.submissions.submit(make_submission(app, "x", **{"proposed": True, **same}), caller(app))
    app.clock.advance(24 * HOUR + 1)  # type: ignore[attr-defined]
    assert propose(app, "watch-pr").status == "proposed"


def test_an_agent_cannot_add_a_task_that_the_user_cancelled(app: App) -> None:
    entry = app.submissions.submit(make_submission(app, "nag"), caller(app))
    app.tasks.cancel(entry.task.task_id, caller(app), permanent=True)
    app.clock.advance(30 * DAY)  # type: ignore[attr-defined]
    for proposed in (True, False):
        with pytest.raises(ApprovalDenied, match="only they can add it again"):
            app.submissions.submit(make_submission(app, "nag", proposed=proposed), caller(app))
    assert app.submissions.submit(make_submission(app, "nag", session=None), caller(app)).status == "active"  # the user can


def test_a_task_added_by_an_agent_has_no_more_tools_than_the_agent(app: App) -> None:
    parent = app.submissions.submit(make_submission(app, "parent", session=None, terms={"tools": "read,background"}), caller(app))
    child = app.submissions.submit(
        make_submission(app, "child", session=f"task:{parent.task.task_id}", terms={"tools": "files,commands,read"}), caller(app)
    )
    assert child.task.spec.options.tools == "read"
    default_tools = app.submissions.submit(make_submission(app, "default_tools", session=f"task:{parent.task.task_id}"), caller(app))
    assert default_tools.task.spec.options.tools == "read"


def test_a_proposal_does_not_run_even_if_the_gate_would_allow_it(app: App) -> None:
    entry = propose(app, "harmless", command=("true",), agent=None, prompt="")
    assert entry.status == "proposed" and entry.task.recurring.next_run_at is None


def test_event_tasks_and_subagents_have_no_more_tools_than_the_agent(app: App) -> None:
    parent = app.submissions.submit(make_submission(app, "parent", session=None, terms={"tools": "read,background,commands"}), caller(app))
    session = f"task:{parent.task.task_id}"
    hook = app.submissions.submit(
        make_submission(app, "hook", session=session, source={"kind": "webhook", "name": "h", "secret_env": "S"}), caller(app)
    )
    assert hook.task.spec.options.tools == "read"  # external events cannot reach commands
    child = app.submissions.submit(request((), os.getcwd(), {}, agent="default", prompt="Do it.", session=session), caller(app))
    assert child.task.spec.options.tools == "read,commands,background"


def test_an_agent_without_a_session_cannot_add_a_cancelled_task_again(app: App) -> None:
    entry = app.submissions.submit(make_submission(app, "nag", session=None), caller(app))
    app.tasks.cancel(entry.task.task_id, caller(app), permanent=True)
    app.environ["CURSOR_AGENT"] = "1"
    with pytest.raises(ApprovalDenied):
        app.submissions.submit(make_submission(app, "nag", session=None), caller(app))


def test_a_rejected_command_is_also_refused_as_a_shell_command(app: App) -> None:
    entry = propose(app, "lint", command=("make", "lint"), agent=None, prompt="")
    app.approvals.reject(entry.task.task_id, caller(app))
    with pytest.raises(ApprovalDenied):
        propose(app, "tidy", command=("make  lint",), shell=True, agent=None, prompt="")
