"""What an agent proposes by itself, what a person did not want, and how often anybody looks for work: a week in a moment."""

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backburner.core.errors import ApprovalDenied, BadInput, QuestionChanged
from backburner.core.models import DISCOVERY, ENGINE, LOCAL, OUT, Ending, Entry, ProcessId, Submission
from backburner.core.ports import Answer, Happening
from backburner.core.schedule import every
from backburner.core.states import Result, RunState
from backburner.services.runtime import Runtime, open_runtime
from backburner.services.schedule_requests import source_of
from backburner.services.suggestions import look, next_look
from backburner.testing import FakeClock

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
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runtime]:
    """A home whose clock is set by hand, and in which no engine is started."""
    monkeypatch.setattr(Runtime, "_start_engine", lambda self: None)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.toml").write_text(CONFIG)
    with open_runtime(str(tmp_path / "home"), {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}) as opened:
        opened.clock = FakeClock()
        opened.cwd = str(tmp_path)
        yield opened


def task(runtime: Runtime, name: str, *, session: str | None = "claude:1", **more: Any) -> Submission:
    made = Submission(
        command=(), cwd=str(runtime.cwd), environment={}, name=name, agent="default", prompt=f"Look at {name}.", session=session
    )
    return made._replace(schedule=every(HOUR, runtime.clock()).fields(), notify="on_change", **more)


def propose(runtime: Runtime, name: str, **more: Any) -> Entry:
    return runtime.submit(task(runtime, name, proposed=True, **more))


# -- what broke in this very design


def test_a_proposal_never_stores_the_id_of_its_message(runtime: Runtime) -> None:
    """A reaction finds the proposal by the message that it was sent as, also after a restart."""
    entry = propose(runtime, "watch-pr", channels=("chat",))
    (notice,) = runtime.outgoing(OUT + "chat")
    runtime.delivered([notice.notice_id], "message-77")
    assert list(runtime.questions(OUT + "chat")) == ["message-77"]
    runtime.answer(OUT + "chat", Answer("another-message", "9", True))
    assert runtime.known_as(entry.task.task_id).status == "proposed"
    runtime.answer(OUT + "chat", Answer("message-77", "9", True))
    after = runtime.known_as(entry.task.task_id)
    assert (after.status, after.task.approved_by, after.task.approved_via) == ("active", "user", "channel:chat:9")
    assert list(runtime.questions(OUT + "chat")) == []


def test_rejecting_deletes_what_the_cooldown_needs(runtime: Runtime) -> None:
    """The same name, or the same in other words, is refused for 24 hours; also when the task itself was cleared."""
    entry = propose(runtime, "watch-pr")
    runtime.reject(entry.task.task_id)
    runtime.clear([entry.task.task_id])
    for again in ({"name": "Watch PR"}, {"name": "another", "prompt": "look  at WATCH-PR."}):
        with pytest.raises(ApprovalDenied, match="rejected"):
            runtime.submit(task(runtime, "x", proposed=True)._replace(**again))
    runtime.clock.advance(24 * HOUR + 1)  # type: ignore[attr-defined]
    assert propose(runtime, "watch-pr").status == "proposed"


def test_presence_is_the_start_of_the_process(runtime: Runtime) -> None:
    """Nobody is here until they do something at a door; then discovery has two hours."""
    assert runtime.last_present() is None and next_look(runtime) is None
    runtime.present("cli")
    assert next_look(runtime) is not None
    runtime.clock.advance(2 * HOUR + 1)  # type: ignore[attr-defined]
    assert next_look(runtime) is None
    runtime.present("cli")
    assert next_look(runtime) is not None


def test_event_baselines_are_in_memory(runtime: Runtime) -> None:
    """What a source saw is kept with the run that followed, and a change while a run is at work makes one more."""
    entry = runtime.submit(task(runtime, "files", source={"kind": "file", "path": "/tmp/x"}, session=None))
    task_id = entry.task.task_id
    runtime.happened(task_id, {"seen": 1}, None)
    assert runtime.watch_state(task_id) == {"seen": 1} and runtime.known_as(task_id).run is None
    runtime.happened(task_id, {"seen": 2}, Happening("one", {"n": 1}))
    for number in (3, 4):
        runtime.happened(task_id, {"seen": number}, Happening("more", {"n": number}))
    first = runtime.known_as(task_id).run
    assert first is not None and first.cause == "event" and runtime.watch_state(task_id) == {"seen": 4}
    (work,) = runtime.store.claim(LOCAL, ME, 5, runtime.clock())
    runtime.store.settle([Ending(work.run.run_id, RunState.COMPLETED, Result.EXIT, runtime.clock(), 0, digest="x")], ME)
    second = runtime.known_as(task_id).run
    assert second is not None and second.n == 2 and '"n": 3' in str(second.payload) and '"n": 4' in str(second.payload)


def test_a_repeated_delivery_is_none(runtime: Runtime) -> None:
    entry = runtime.submit(task(runtime, "hook", source={"kind": "webhook", "name": "h", "secret_env": "S"}, session=None))
    assert runtime.happened(entry.task.task_id, None, Happening("a", {}), "delivery-1")
    assert not runtime.happened(entry.task.task_id, None, Happening("a", {}), "delivery-1")
    assert runtime.known_as(entry.task.task_id).task.run_count == 1


# -- rights


def test_a_task_that_the_person_deleted_does_not_come_back(runtime: Runtime) -> None:
    entry = runtime.submit(task(runtime, "nag"))
    runtime.cancel(entry.task.task_id, for_good=True)
    runtime.clock.advance(30 * DAY)  # type: ignore[attr-defined]
    for proposed in (True, False):
        with pytest.raises(ApprovalDenied, match="only they can add it again"):
            runtime.submit(task(runtime, "nag", proposed=proposed))
    assert runtime.submit(task(runtime, "nag", session=None)).status == "active"  # the person can


def test_what_an_agent_makes_has_no_more_tools_than_it_has(runtime: Runtime) -> None:
    maker = runtime.submit(task(runtime, "maker", session=None, terms={"tools": "read,background"}))
    made = runtime.submit(task(runtime, "made", session=f"task:{maker.task.task_id}", terms={"tools": "files,commands,read"}))
    assert made.task.terms["tools"] == "read"
    usual = runtime.submit(task(runtime, "usual", session=f"task:{maker.task.task_id}"))
    assert usual.task.terms["tools"] == "read"


def test_a_proposal_does_not_run_whatever_the_gate_would_say(runtime: Runtime) -> None:
    entry = propose(runtime, "harmless", command=("true",), agent=None, prompt="")
    assert entry.status == "proposed" and entry.task.next_run_at is None


def test_an_old_yes_does_not_answer_what_is_asked_later(runtime: Runtime) -> None:
    entry = propose(runtime, "watch", channels=("chat",))
    (notice,) = runtime.outgoing(OUT + "chat")
    runtime.delivered([notice.notice_id], "100")
    runtime.answer(OUT + "chat", Answer("100", "9", True))
    runtime.run_now(entry.task.task_id)
    (work,) = runtime.store.claim(LOCAL, ME, 5, runtime.clock())
    runtime.store.park(work.run.run_id, ME, "it wants to write prod.cfg", runtime.clock(), "tool")
    (notice,) = runtime.outgoing(OUT + "chat")
    runtime.delivered([notice.notice_id], "101")
    assert list(runtime.questions(OUT + "chat")) == ["101"]
    runtime.answer(OUT + "chat", Answer("100", "9", True))
    assert runtime.known_as(entry.task.task_id).run.state == "waiting"  # type: ignore[union-attr]
    runtime.answer(OUT + "chat", Answer("101", "9", True))
    assert runtime.known_as(entry.task.task_id).run.state == "pending"  # type: ignore[union-attr]


def _sent(runtime: Runtime, message: str) -> str:
    """The question that is on its way, as delivered under a name; its text."""
    (notice,) = runtime.outgoing(OUT + "chat")
    runtime.delivered([notice.notice_id], message)
    return notice.text


def _fingerprint(text: str) -> str:
    return re.findall(r"[Ff]ingerprint:? ([0-9a-f]{12})", text)[0]


def test_a_yes_to_an_old_message_does_not_approve_what_has_changed_since(runtime: Runtime) -> None:
    script = Path(str(runtime.cwd)) / "job.sh"
    script.write_text("echo good\n")
    entry = propose(runtime, "job", channels=("chat",), command=("sh", "job.sh"), agent=None, prompt="")
    first = _fingerprint(_sent(runtime, "100"))
    script.write_text("echo evil\n")
    runtime.answer(OUT + "chat", Answer("100", "9", True))
    assert runtime.known_as(entry.task.task_id).status == "proposed"
    again = _sent(runtime, "101")
    assert "has changed since you were asked" in again and "sh job.sh" in again and _fingerprint(again) != first
    assert list(runtime.questions(OUT + "chat")) == ["101"]
    runtime.answer(OUT + "chat", Answer("100", "9", True))  # the old message asks nothing any more
    assert runtime.known_as(entry.task.task_id).status == "proposed" and not runtime.outgoing(OUT + "chat")
    runtime.answer(OUT + "chat", Answer("101", "9", True))
    assert runtime.known_as(entry.task.task_id).status == "active"


def test_a_yes_to_a_run_that_was_parked_is_for_what_it_was_parked_with(runtime: Runtime) -> None:
    script = Path(str(runtime.cwd)) / "job.sh"
    script.write_text("echo good\n")
    entry = propose(runtime, "job", channels=("chat",), command=("sh", "job.sh"), agent=None, prompt="")
    _sent(runtime, "100")
    runtime.answer(OUT + "chat", Answer("100", "9", True))
    runtime.run_now(entry.task.task_id)
    (work,) = runtime.store.claim(ENGINE, ME, 5, runtime.clock())
    script.write_text("echo worse\n")
    changed = runtime.gate.changed(work.task, work.environment)
    assert changed is not None
    runtime.store.park(work.run.run_id, ME, changed[0], runtime.clock(), asked=changed[1])
    first = _fingerprint(_sent(runtime, "101"))
    script.write_text("echo evil\n")
    runtime.answer(OUT + "chat", Answer("101", "9", True))
    assert runtime.known_as(entry.task.task_id).run.state == "waiting"  # type: ignore[union-attr]
    assert _fingerprint(_sent(runtime, "102")) != first and list(runtime.questions(OUT + "chat")) == ["102"]
    runtime.answer(OUT + "chat", Answer("102", "9", True))
    assert runtime.known_as(entry.task.task_id).run.state == "pending"  # type: ignore[union-attr]


def test_a_yes_to_a_prompt_is_for_the_agent_that_was_shown(runtime: Runtime) -> None:
    entry = propose(runtime, "watch", channels=("chat",))
    seen = runtime.known_as(entry.task.task_id).asked
    assert seen and _fingerprint(_sent(runtime, "100")) == seen[:12]
    runtime.config.agents["default"] = {**runtime.config.agents.get("default", {}), "instructions": "Delete everything."}
    for said in (seen, None):
        with pytest.raises(QuestionChanged):
            runtime.approve(entry.task.task_id, via="library", seen=said)
    runtime.answer(OUT + "chat", Answer("100", "9", True))
    assert runtime.known_as(entry.task.task_id).status == "proposed"
    now = runtime.fingerprint(runtime.known_as(entry.task.task_id))
    assert runtime.approve(entry.task.task_id, via="library", seen=now).status == "active"


def test_a_yes_to_one_step_of_an_agent_is_none_to_its_next(runtime: Runtime) -> None:
    entry = runtime.submit(task(runtime, "watch", session=None))
    runtime.run_now(entry.task.task_id)
    (work,) = runtime.store.claim(LOCAL, ME, 5, runtime.clock())
    runtime.store.park(work.run.run_id, ME, "it wants to read a.txt", runtime.clock(), "tool")
    seen = runtime.fingerprint(runtime.known_as(entry.task.task_id))
    runtime.approve(entry.task.task_id, via="library")
    (work,) = runtime.store.claim(LOCAL, ME, 5, runtime.clock())
    runtime.store.park(work.run.run_id, ME, "it wants to write prod.cfg", runtime.clock(), "tool")
    with pytest.raises(QuestionChanged):
        runtime.approve(entry.task.task_id, via="library", seen=seen)
    assert runtime.known_as(entry.task.task_id).run.state == "waiting"  # type: ignore[union-attr]


def test_no_other_secret_than_githubs_is_sent_and_to_nobody_else() -> None:
    for wrong in (
        {"base_url": "https://evil.example"},
        {"token_env": "ANTHROPIC_API_KEY"},
        {"base_url": "http://127.0.0.1:1@evil.example"},
    ):
        with pytest.raises(BadInput):
            source_of("github:owner/repo", wrong, "/")
    assert source_of("github:owner/repo", {"token_env": "GH_WORK_TOKEN"}, "/")["token_env"] == "GH_WORK_TOKEN"


def test_whatever_an_agent_makes_it_has_no_more_tools(runtime: Runtime) -> None:
    maker = runtime.submit(task(runtime, "maker", session=None, terms={"tools": "read,background,commands"}))
    session = f"task:{maker.task.task_id}"
    hook = runtime.submit(task(runtime, "hook", session=session, source={"kind": "webhook", "name": "h", "secret_env": "S"}))
    assert hook.task.terms["tools"] == "read"  # what comes from outside does not reach commands
    child = runtime.submit(Submission((), str(runtime.cwd), {}, agent="default", prompt="Do it.", session=session))
    assert child.task.terms["tools"] == "read,commands,background"


def test_an_agent_without_a_session_cannot_bring_back_what_was_deleted(runtime: Runtime) -> None:
    entry = runtime.submit(task(runtime, "nag", session=None))
    runtime.cancel(entry.task.task_id, for_good=True)
    runtime.environ["CURSOR_AGENT"] = "1"
    with pytest.raises(ApprovalDenied):
        runtime.submit(task(runtime, "nag", session=None))


def test_the_same_command_in_a_shell_is_the_same_proposal(runtime: Runtime) -> None:
    entry = propose(runtime, "lint", command=("make", "lint"), agent=None, prompt="")
    runtime.reject(entry.task.task_id)
    with pytest.raises(ApprovalDenied):
        propose(runtime, "tidy", command=("make  lint",), shell=True, agent=None, prompt="")


def test_what_happens_while_a_task_is_paused_is_dealt_with_when_it_goes_on(runtime: Runtime) -> None:
    entry = runtime.submit(task(runtime, "files", source={"kind": "file", "path": "/tmp/x"}, session=None))
    task_id = entry.task.task_id
    runtime.happened(task_id, {"seen": 1}, Happening("one", {"n": 1}))
    runtime.pause(task_id)
    assert runtime.store.claim(LOCAL, ME, 5, runtime.clock()) == []  # it is held
    runtime.happened(task_id, {"seen": 2}, Happening("two", {"n": 2}))
    runtime.unpause(task_id, via="library")
    (work,) = runtime.store.claim(LOCAL, ME, 5, runtime.clock())
    assert '"n": 1' in str(work.run.payload)
    runtime.store.settle([Ending(work.run.run_id, RunState.COMPLETED, Result.EXIT, runtime.clock(), 0, digest="x")], ME)
    run = runtime.known_as(task_id).run
    assert run is not None and run.state == "pending" and '"n": 2' in str(run.payload)


# -- looking for work


def test_a_simulated_week_of_looking(runtime: Runtime) -> None:
    """Only while the person is about and silent, every half hour at the most, three proposals at a time, none again that was rejected."""
    clock: Any = runtime.clock
    chance = random.Random(5)
    runtime.submit(Submission(command=("true",), cwd=str(runtime.cwd), environment={}))
    seen, looks, proposed, rejected = 0, [], 0, {}
    names = [f"idea {number}" for number in range(12)]
    for _ in range(7 * 24 * 12):
        clock.advance(5 * MINUTE)
        if chance.random() < (0.12 if 8 <= (clock.now // HOUR) % 24 < 20 else 0.0):
            runtime.present("cli")
            seen = clock.now
        if not look(runtime):
            continue
        assert seen and 10 * MINUTE <= clock.now - seen <= 2 * HOUR
        assert not looks or clock.now - looks[-1] >= 30 * MINUTE
        looks.append(clock.now)
        asked = next(entry for entry in runtime.list(everywhere=True, limit=5) if entry.task.session == DISCOVERY)
        assert asked.task.lane == LOCAL
        session, accepted, over = f"agent:{asked.task.task_id}", 0, []
        for name in chance.sample(names, 5):
            try:
                entry = propose(runtime, name, session=session)
            except (ApprovalDenied, BadInput):
                continue
            accepted += 1
            assert clock.now - rejected.get(name, -DAY) >= DAY
            if chance.random() < 0.7:
                runtime.reject(entry.task.task_id)
                rejected[name] = clock.now
            else:
                runtime.approve(entry.task.task_id, via="library")
                runtime.cancel(entry.task.task_id)
                over.append(entry.task.task_id)
        assert accepted <= 3
        runtime.clear(over)
        proposed += accepted
        runtime.cancel(asked.task.task_id)
    assert 10 < len(looks) < 7 * 24 * 2 and proposed > 10 and rejected


@pytest.mark.parametrize(
    "settings",
    ['[models]\nlocal = "openai-chat:gpt-5"\n', "", '[models]\nlocal = "ollama:small"\n[tasks]\ndiscovery_enabled = false\n'],
    ids=["a remote model", "no model", "turned off"],
)
def test_nobody_looks_with(runtime: Runtime, settings: str) -> None:
    from backburner.core.settings import resolve

    runtime.present("cli")
    assert next_look(runtime) is not None
    runtime.config = resolve(settings)
    assert next_look(runtime) is None
