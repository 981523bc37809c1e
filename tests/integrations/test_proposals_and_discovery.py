"""What an agent proposes by itself, what a person did not want, and how often anybody looks for work: a week in a moment."""

import os
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import caller

from backburner.coordination.supervision import EngineSupervisor
from backburner.core.claims import RunResult
from backburner.core.errors import ApprovalDenied, BadInput, QuestionChanged
from backburner.core.models import DISCOVERY, ENGINE, LOCAL_AGENT_LANE, Entry, ProcessId, Submission
from backburner.core.ports import ChannelReply, TriggerEvent
from backburner.core.schedule import every
from backburner.core.states import Result, RunState, WaitKind
from backburner.services.app import App, open_app
from backburner.services.schedule_requests import parse_source
from backburner.testing import FakeClock
from backburner.testing.records import request

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
ME = ProcessId(1, "1", "boot")
CONFIG = """[models]
local = "ollama:small"
default = "ollama:small"
[channels.chat]
type = "discord"
target = "1"
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    """A home whose clock is set by hand, and in which no engine is started."""
    monkeypatch.setattr(EngineSupervisor, "start_engine", lambda self: None)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.toml").write_text(CONFIG)
    with open_app(str(tmp_path / "home"), {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}) as opened:
        opened.clock = FakeClock()
        monkeypatch.chdir(tmp_path)
        yield opened


def task(app: App, called: str, *, session: str | None = "claude:1", **more: Any) -> Submission:
    usual = {"agent": "default", "prompt": f"Look at {called}.", "schedule": every(HOUR, app.now()), "notify": "on_change"}
    return request(cwd=os.getcwd(), session=session, **{**usual, "name": called, **more})


def propose(app: App, name: str, **more: Any) -> Entry:
    return app.submissions.submit(task(app, name, proposed=True, **more), caller(app))


# -- what broke in this very design


def test_a_proposal_never_stores_the_id_of_its_message(app: App) -> None:
    """A reaction finds the proposal by the message that it was sent as, also after a restart."""
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


def test_rejecting_deletes_what_the_cooldown_needs(app: App) -> None:
    """The same name, or the same in other words, is refused for 24 hours; also when the task itself was cleared."""
    entry = propose(app, "watch-pr")
    app.approvals.reject(entry.task.task_id, caller(app))
    app.tasks.clear([entry.task.task_id], caller(app))
    for again in ({"name": "Watch PR"}, {"name": "another", "prompt": "look  at WATCH-PR."}):
        with pytest.raises(ApprovalDenied, match="rejected"):
            app.submissions.submit(task(app, "x", **{"proposed": True, **again}), caller(app))
    app.clock.advance(24 * HOUR + 1)  # type: ignore[attr-defined]
    assert propose(app, "watch-pr").status == "proposed"


def test_presence_is_the_start_of_the_process(app: App) -> None:
    """Nobody is here until they do something at a door; then discovery has two hours."""
    assert app.sessions.last_activity() is None and app.suggestions.next_at() is None
    app.sessions.record_activity("cli")
    assert app.suggestions.next_at() is not None
    app.clock.advance(2 * HOUR + 1)  # type: ignore[attr-defined]
    assert app.suggestions.next_at() is None
    app.sessions.record_activity("cli")
    assert app.suggestions.next_at() is not None


def test_event_baselines_are_in_memory(app: App) -> None:
    """What a source saw is kept with the run that followed, and a change while a run is at work makes one more."""
    entry = app.submissions.submit(task(app, "files", source={"kind": "file", "path": "/tmp/x"}, session=None), caller(app))
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


def test_a_repeated_delivery_is_none(app: App) -> None:
    entry = app.submissions.submit(task(app, "hook", source={"kind": "webhook", "name": "h", "secret_env": "S"}, session=None), caller(app))
    assert app.triggers.record(entry.task.task_id, None, TriggerEvent("a", {}), "delivery-1")
    assert not app.triggers.record(entry.task.task_id, None, TriggerEvent("a", {}), "delivery-1")
    assert app.queries.get(entry.task.task_id).task.run_count == 1


# -- rights


def test_a_task_that_the_person_deleted_does_not_come_back(app: App) -> None:
    entry = app.submissions.submit(task(app, "nag"), caller(app))
    app.tasks.cancel(entry.task.task_id, caller(app), permanent=True)
    app.clock.advance(30 * DAY)  # type: ignore[attr-defined]
    for proposed in (True, False):
        with pytest.raises(ApprovalDenied, match="only they can add it again"):
            app.submissions.submit(task(app, "nag", proposed=proposed), caller(app))
    assert app.submissions.submit(task(app, "nag", session=None), caller(app)).status == "active"  # the person can


def test_what_an_agent_makes_has_no_more_tools_than_it_has(app: App) -> None:
    maker = app.submissions.submit(task(app, "maker", session=None, terms={"tools": "read,background"}), caller(app))
    made = app.submissions.submit(
        task(app, "made", session=f"task:{maker.task.task_id}", terms={"tools": "files,commands,read"}), caller(app)
    )
    assert made.task.spec.options.tools == "read"
    usual = app.submissions.submit(task(app, "usual", session=f"task:{maker.task.task_id}"), caller(app))
    assert usual.task.spec.options.tools == "read"


def test_a_proposal_does_not_run_whatever_the_gate_would_say(app: App) -> None:
    entry = propose(app, "harmless", command=("true",), agent=None, prompt="")
    assert entry.status == "proposed" and entry.task.recurring.next_run_at is None


def test_an_old_yes_does_not_answer_what_is_asked_later(app: App) -> None:
    entry = propose(app, "watch", channels=("chat",))
    (notice,) = app.deliveries.pending("chat")
    app.deliveries.mark_delivered([notice.notice_id], "100")
    app.approvals.answer("chat", ChannelReply("100", "9", True))
    app.recurring.run_now(entry.task.task_id, caller(app))
    (work,) = app._ledger.runs.claim(LOCAL_AGENT_LANE, ME, 5, app.now())
    app._ledger.runs.suspend(work.run.run_id, ME, "it wants to write prod.cfg", app.now(), WaitKind.TOOL)
    (notice,) = app.deliveries.pending("chat")
    app.deliveries.mark_delivered([notice.notice_id], "101")
    assert list(app.deliveries.open_questions("chat")) == ["101"]
    app.approvals.answer("chat", ChannelReply("100", "9", True))
    assert app.queries.get(entry.task.task_id).run.state == "waiting"  # type: ignore[union-attr]
    app.approvals.answer("chat", ChannelReply("101", "9", True))
    assert app.queries.get(entry.task.task_id).run.state == "pending"  # type: ignore[union-attr]


def _sent(app: App, message: str) -> str:
    """The question that is on its way, as delivered under a name; its text."""
    (notice,) = app.deliveries.pending("chat")
    app.deliveries.mark_delivered([notice.notice_id], message)
    return notice.text


def _fingerprint(text: str) -> str:
    return re.findall(r"[Ff]ingerprint:? ([0-9a-f]{12})", text)[0]


def test_a_yes_to_an_old_message_does_not_approve_what_has_changed_since(app: App) -> None:
    script = Path(os.getcwd()) / "job.sh"
    script.write_text("echo good\n")
    entry = propose(app, "job", channels=("chat",), command=("sh", "job.sh"), agent=None, prompt="")
    first = _fingerprint(_sent(app, "100"))
    script.write_text("echo evil\n")
    app.approvals.answer("chat", ChannelReply("100", "9", True))
    assert app.queries.get(entry.task.task_id).status == "proposed"
    again = _sent(app, "101")
    assert "the command has changed since approval was requested" in again and "sh job.sh" in again and _fingerprint(again) != first
    assert list(app.deliveries.open_questions("chat")) == ["101"]
    app.approvals.answer("chat", ChannelReply("100", "9", True))  # the old message asks nothing any more
    assert app.queries.get(entry.task.task_id).status == "proposed" and not app.deliveries.pending("chat")
    app.approvals.answer("chat", ChannelReply("101", "9", True))
    assert app.queries.get(entry.task.task_id).status == "active"


def test_a_yes_to_a_run_that_was_parked_is_for_what_it_was_parked_with(app: App) -> None:
    script = Path(os.getcwd()) / "job.sh"
    script.write_text("echo good\n")
    entry = propose(app, "job", channels=("chat",), command=("sh", "job.sh"), agent=None, prompt="")
    _sent(app, "100")
    app.approvals.answer("chat", ChannelReply("100", "9", True))
    app.recurring.run_now(entry.task.task_id, caller(app))
    (work,) = app._ledger.runs.claim(ENGINE, ME, 5, app.now())
    script.write_text("echo worse\n")
    changed = app.gate.changed(work.task, work.environment)
    assert changed is not None
    app._ledger.runs.suspend(work.run.run_id, ME, changed[0], app.now(), asked=changed[1])
    first = _fingerprint(_sent(app, "101"))
    script.write_text("echo evil\n")
    app.approvals.answer("chat", ChannelReply("101", "9", True))
    assert app.queries.get(entry.task.task_id).run.state == "waiting"  # type: ignore[union-attr]
    assert _fingerprint(_sent(app, "102")) != first and list(app.deliveries.open_questions("chat")) == ["102"]
    app.approvals.answer("chat", ChannelReply("102", "9", True))
    assert app.queries.get(entry.task.task_id).run.state == "pending"  # type: ignore[union-attr]


def test_a_yes_to_a_prompt_is_for_the_agent_that_was_shown(app: App) -> None:
    entry = propose(app, "watch", channels=("chat",))
    seen = app.queries.get(entry.task.task_id).question_fingerprint
    assert seen and _fingerprint(_sent(app, "100")) == seen[:12]
    app.config.agents["default"] = {**app.config.agents.get("default", {}), "instructions": "Delete everything."}
    for said in (seen, None):
        with pytest.raises(QuestionChanged):
            app.approvals.approve(entry.task.task_id, caller(app), seen=said)
    app.approvals.answer("chat", ChannelReply("100", "9", True))
    assert app.queries.get(entry.task.task_id).status == "proposed"
    now = app.gate.fingerprint_of(app.queries.get(entry.task.task_id))
    assert app.approvals.approve(entry.task.task_id, caller(app), seen=now).status == "active"


def test_a_yes_to_one_step_of_an_agent_is_none_to_its_next(app: App) -> None:
    entry = app.submissions.submit(task(app, "watch", session=None), caller(app))
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


def test_no_other_secret_than_githubs_is_sent_and_to_nobody_else() -> None:
    for wrong in (
        {"base_url": "https://evil.example"},
        {"token_env": "ANTHROPIC_API_KEY"},
        {"base_url": "http://127.0.0.1:1@evil.example"},
    ):
        with pytest.raises(BadInput):
            parse_source("github:owner/repo", wrong, "/")
    assert parse_source("github:owner/repo", {"token_env": "GH_WORK_TOKEN"}, "/").token_env == "GH_WORK_TOKEN"


def test_whatever_an_agent_makes_it_has_no_more_tools(app: App) -> None:
    maker = app.submissions.submit(task(app, "maker", session=None, terms={"tools": "read,background,commands"}), caller(app))
    session = f"task:{maker.task.task_id}"
    hook = app.submissions.submit(
        task(app, "hook", session=session, source={"kind": "webhook", "name": "h", "secret_env": "S"}), caller(app)
    )
    assert hook.task.spec.options.tools == "read"  # what comes from outside does not reach commands
    child = app.submissions.submit(request((), os.getcwd(), {}, agent="default", prompt="Do it.", session=session), caller(app))
    assert child.task.spec.options.tools == "read,commands,background"


def test_an_agent_without_a_session_cannot_bring_back_what_was_deleted(app: App) -> None:
    entry = app.submissions.submit(task(app, "nag", session=None), caller(app))
    app.tasks.cancel(entry.task.task_id, caller(app), permanent=True)
    app.environ["CURSOR_AGENT"] = "1"
    with pytest.raises(ApprovalDenied):
        app.submissions.submit(task(app, "nag", session=None), caller(app))


def test_the_same_command_in_a_shell_is_the_same_proposal(app: App) -> None:
    entry = propose(app, "lint", command=("make", "lint"), agent=None, prompt="")
    app.approvals.reject(entry.task.task_id, caller(app))
    with pytest.raises(ApprovalDenied):
        propose(app, "tidy", command=("make  lint",), shell=True, agent=None, prompt="")


def test_what_happens_while_a_task_is_paused_is_dealt_with_when_it_goes_on(app: App) -> None:
    entry = app.submissions.submit(task(app, "files", source={"kind": "file", "path": "/tmp/x"}, session=None), caller(app))
    task_id = entry.task.task_id
    app.triggers.record(task_id, {"seen": 1}, TriggerEvent("one", {"n": 1}))
    app.recurring.pause(task_id, caller(app))
    assert app._ledger.runs.claim(LOCAL_AGENT_LANE, ME, 5, app.now()) == []  # it is held
    app.triggers.record(task_id, {"seen": 2}, TriggerEvent("two", {"n": 2}))
    app.recurring.unpause(task_id, caller(app))
    (work,) = app._ledger.runs.claim(LOCAL_AGENT_LANE, ME, 5, app.now())
    assert '"n": 1' in str(work.run.cause.payload)
    app._ledger.runs.settle([RunResult(work.run.run_id, RunState.COMPLETED, Result.EXIT, app.now(), 0, digest="x")], ME)
    run = app.queries.get(task_id).run
    assert run is not None and run.state == "pending" and '"n": 2' in str(run.cause.payload)


# -- looking for work


def test_a_simulated_week_of_looking(app: App) -> None:
    """Only while the person is about and silent, every half hour at the most, three proposals at a time, none again that was rejected."""
    clock: Any = app.clock
    chance = random.Random(5)
    app.submissions.submit(request(command=("true",), cwd=os.getcwd(), environment={}), caller(app))
    seen, looks, proposed, rejected = 0, [], 0, {}
    names = [f"idea {number}" for number in range(12)]
    for _ in range(7 * 24 * 12):
        clock.advance(5 * MINUTE)
        if chance.random() < (0.12 if 8 <= (clock.now // HOUR) % 24 < 20 else 0.0):
            app.sessions.record_activity("cli")
            seen = clock.now
        if not app.suggestions.ask_if_due():
            continue
        assert seen and 10 * MINUTE <= clock.now - seen <= 2 * HOUR
        assert not looks or clock.now - looks[-1] >= 30 * MINUTE
        looks.append(clock.now)
        asked = next(entry for entry in app.queries.list(caller(app), everywhere=True, limit=5) if entry.task.session == DISCOVERY)
        assert asked.task.lane == LOCAL_AGENT_LANE
        session, accepted, over = f"agent:{asked.task.task_id}", 0, []
        for name in chance.sample(names, 5):
            try:
                entry = propose(app, name, session=session)
            except (ApprovalDenied, BadInput):
                continue
            accepted += 1
            assert clock.now - rejected.get(name, -DAY) >= DAY
            if chance.random() < 0.7:
                app.approvals.reject(entry.task.task_id, caller(app))
                rejected[name] = clock.now
            else:
                app.approvals.approve(entry.task.task_id, caller(app))
                app.tasks.cancel(entry.task.task_id, caller(app))
                over.append(entry.task.task_id)
        assert accepted <= 3
        app.tasks.clear(over, caller(app))
        proposed += accepted
        app.tasks.cancel(asked.task.task_id, caller(app))
    assert 10 < len(looks) < 7 * 24 * 2 and proposed > 10 and rejected


@pytest.mark.parametrize(
    "settings",
    ['[models]\nlocal = "openai-chat:gpt-5"\n', "", '[models]\nlocal = "ollama:small"\n[tasks]\ndiscovery_enabled = false\n'],
    ids=["a remote model", "no model", "turned off"],
)
def test_nobody_looks_with(app: App, settings: str) -> None:
    from backburner.core.settings import resolve

    app.sessions.record_activity("cli")
    assert app.suggestions.next_at() is not None
    app.config_file.current = resolve(settings)
    assert app.suggestions.next_at() is None
