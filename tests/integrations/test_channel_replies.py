"""Replies from a channel: an approval covers exactly what its message showed."""

import os
import re
from pathlib import Path

import pytest
from conftest import caller
from proposal_app import ME, app, make_submission, propose

from backburner.core.errors import QuestionChanged
from backburner.core.models import ENGINE, LOCAL_AGENT_LANE
from backburner.core.ports import ChannelReply
from backburner.core.states import WaitKind
from backburner.services.app import App

__all__ = ["app"]


def _deliver_question(app: App, message_id: str) -> str:
    """Mark the pending question as delivered with this message id, after the confirmation of an earlier answer. Return its text."""
    *confirmations, notice = app.deliveries.pending("chat")
    assert all(confirmation.kind == "answered" for confirmation in confirmations)
    app.deliveries.mark_delivered([confirmation.notice_id for confirmation in confirmations], None)
    app.deliveries.mark_delivered([notice.notice_id], message_id)
    return notice.text


def _fingerprint(text: str) -> str:
    return re.findall(r"[Ff]ingerprint:? ([0-9a-f]{12})", text)[0]


def test_a_reaction_finds_its_proposal_by_message_id(app: App) -> None:
    """The message id is stored with the notice, so this also works after a restart."""
    entry = propose(app, "watch-pr", channels=("chat",))
    (notice,) = app.deliveries.pending("chat")
    app.deliveries.mark_delivered([notice.notice_id], "message-77")
    assert list(app.deliveries.open_questions("chat")) == ["message-77"]
    app.approvals.answer("chat", ChannelReply("another-message", "9", True))
    assert app.queries.get(entry.task.task_id).status == "proposed"
    app.approvals.answer("chat", ChannelReply("message-77", "9", True))
    after = app.queries.get(entry.task.task_id)
    assert (after.status, after.task.decision.by, after.task.decision.via) == ("active", "user", "channel:chat:9")
    assert list(app.deliveries.open_questions("chat")) == []


def test_an_answer_is_confirmed_in_its_channel(app: App) -> None:
    propose(app, "watch-pr", channels=("chat",))
    _deliver_question(app, "1")
    app.approvals.answer("chat", ChannelReply("1", "9", True))
    (confirmation,) = app.deliveries.pending("chat")
    assert confirmation.text.startswith("watch-pr is approved: every 1h; next: ") and confirmation.priority > 0
    app.deliveries.mark_delivered([confirmation.notice_id], "2")
    propose(app, "watch-ci", channels=("chat",))
    _deliver_question(app, "3")
    app.approvals.answer("chat", ChannelReply("3", "9", False))
    (confirmation,) = app.deliveries.pending("chat")  # and nothing that is meant for the agent
    assert confirmation.text == "watch-ci is rejected and does not run. An agent cannot propose it again for a day."


def test_an_earlier_approval_does_not_answer_a_later_question(app: App) -> None:
    entry = propose(app, "watch", channels=("chat",))
    (notice,) = app.deliveries.pending("chat")
    app.deliveries.mark_delivered([notice.notice_id], "100")
    app.approvals.answer("chat", ChannelReply("100", "9", True))
    app.recurring.run_now(entry.task.task_id, caller(app))
    (work,) = app._ledger.runs.claim(LOCAL_AGENT_LANE, ME, 5, app.now())
    app._ledger.runs.suspend(work.run.run_id, ME, "it wants to write prod.cfg", app.now(), WaitKind.TOOL)
    _deliver_question(app, "101")
    assert list(app.deliveries.open_questions("chat")) == ["101"]
    app.approvals.answer("chat", ChannelReply("100", "9", True))
    assert app.queries.get(entry.task.task_id).run.state == "waiting"  # type: ignore[union-attr]
    app.approvals.answer("chat", ChannelReply("101", "9", True))
    assert app.queries.get(entry.task.task_id).run.state == "pending"  # type: ignore[union-attr]


def test_an_approval_of_an_outdated_message_sends_a_new_question(app: App) -> None:
    script = Path(os.getcwd()) / "job.sh"
    script.write_text("echo good\n")
    entry = propose(app, "job", channels=("chat",), command=("sh", "job.sh"), agent=None, prompt="")
    first = _fingerprint(_deliver_question(app, "100"))
    script.write_text("echo evil\n")
    app.approvals.answer("chat", ChannelReply("100", "9", True))
    assert app.queries.get(entry.task.task_id).status == "proposed"
    new_text = _deliver_question(app, "101")
    assert "has changed since approval was requested" in new_text and "sh job.sh" in new_text and _fingerprint(new_text) != first
    assert list(app.deliveries.open_questions("chat")) == ["101"]
    app.approvals.answer("chat", ChannelReply("100", "9", True))  # the old message is no longer an open question
    assert app.queries.get(entry.task.task_id).status == "proposed" and not app.deliveries.pending("chat")
    app.approvals.answer("chat", ChannelReply("101", "9", True))
    assert app.queries.get(entry.task.task_id).status == "active"


def test_an_approval_of_a_suspended_run_covers_only_what_was_shown(app: App) -> None:
    script = Path(os.getcwd()) / "job.sh"
    script.write_text("echo good\n")
    entry = propose(app, "job", channels=("chat",), command=("sh", "job.sh"), agent=None, prompt="")
    _deliver_question(app, "100")
    app.approvals.answer("chat", ChannelReply("100", "9", True))
    app.recurring.run_now(entry.task.task_id, caller(app))
    (work,) = app._ledger.runs.claim(ENGINE, ME, 5, app.now())
    script.write_text("echo worse\n")
    changed = app.gate.recheck(work.task, work.environment)
    assert changed.reason is not None
    app._ledger.runs.suspend(work.run.run_id, ME, changed.reason, app.now(), asked=changed.fingerprint)
    first = _fingerprint(_deliver_question(app, "101"))
    script.write_text("echo evil\n")
    app.approvals.answer("chat", ChannelReply("101", "9", True))
    assert app.queries.get(entry.task.task_id).run.state == "waiting"  # type: ignore[union-attr]
    assert _fingerprint(_deliver_question(app, "102")) != first and list(app.deliveries.open_questions("chat")) == ["102"]
    app.approvals.answer("chat", ChannelReply("102", "9", True))
    assert app.queries.get(entry.task.task_id).run.state == "pending"  # type: ignore[union-attr]


def test_an_approval_of_a_prompt_covers_only_the_agent_that_was_shown(app: App) -> None:
    entry = propose(app, "watch", channels=("chat",))
    seen = app.queries.get(entry.task.task_id).question_fingerprint
    assert seen and _fingerprint(_deliver_question(app, "100")) == seen[:12]
    app.config.agents["default"] = {**app.config.agents.get("default", {}), "instructions": "Delete everything."}
    for fingerprint in (seen, None):
        with pytest.raises(QuestionChanged):
            app.approvals.approve(entry.task.task_id, caller(app), seen=fingerprint)
    app.approvals.answer("chat", ChannelReply("100", "9", True))
    assert app.queries.get(entry.task.task_id).status == "proposed"
    now = app.gate.fingerprint_of(app.queries.get(entry.task.task_id))
    assert app.approvals.approve(entry.task.task_id, caller(app), seen=now).status == "active"


def test_an_approval_of_one_agent_step_does_not_cover_the_next(app: App) -> None:
    entry = app.submissions.submit(make_submission(app, "watch", session=None), caller(app))
    app.recurring.run_now(entry.task.task_id, caller(app))
    (work,) = app._ledger.runs.claim(LOCAL_AGENT_LANE, ME, 5, app.now())
    app._ledger.runs.suspend(work.run.run_id, ME, "it wants to read a.txt", app.now(), WaitKind.TOOL)
    seen = app.gate.fingerprint_of(app.queries.get(entry.task.task_id))
    app.approvals.approve(entry.task.task_id, caller(app))
    (work,) = app._ledger.runs.claim(LOCAL_AGENT_LANE, ME, 5, app.now())
    app._ledger.runs.suspend(work.run.run_id, ME, "it wants to write prod.cfg", app.now(), WaitKind.TOOL)
    with pytest.raises(QuestionChanged):
        app.approvals.approve(entry.task.task_id, caller(app), seen=seen)
    assert app.queries.get(entry.task.task_id).run.state == "waiting"  # type: ignore[union-attr]
