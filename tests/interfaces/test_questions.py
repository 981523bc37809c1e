"""Open questions of a chat, tested without a user interface."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import CONFIG, caller

from backburner.coordination.supervision import EngineSupervisor
from backburner.core.errors import BadInput, QuestionChanged
from backburner.core.models import AGENT_LANE, ENGINE, Approval, Caller, ProcessId
from backburner.interfaces.cli.questions import open_questions, settle
from backburner.services.app import App, open_app
from backburner.testing.records import request

ME = ProcessId(1, "1", "boot")
SESSION = "chat:1"


def in_chat(app: App) -> Caller:
    return caller(app)._replace(via="chat", session=SESSION)


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    """An app of a home in which no engine is started."""
    monkeypatch.setattr(EngineSupervisor, "start_engine", lambda self: None)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.toml").write_text(CONFIG)
    with open_app(str(tmp_path / "home"), {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}) as opened:
        yield opened


def test_a_run_that_waits_before_its_start_has_a_question(app: App, tmp_path: Path) -> None:
    entry = app.submissions.submit(request(command=("echo", "x"), cwd=str(tmp_path), environment={}, session=SESSION), caller(app))
    (work,) = app._ledger.runs.claim(ENGINE, ME, 1, app.now())
    app._ledger.runs.suspend(work.run.run_id, ME, "it has changed since a person said yes", app.now())
    (question,) = open_questions(app, in_chat(app), SESSION)
    assert question.about == entry.task.task_id and "it has changed" in question.text
    assert settle(app, in_chat(app), question, "yes").status == "pending" and not open_questions(app, in_chat(app), SESSION)
    with pytest.raises(BadInput):
        settle(app, in_chat(app), question, "yes")


def test_a_chat_asks_about_proposals_of_its_agents_but_not_of_recurring_tasks(app: App, tmp_path: Path) -> None:
    def propose(name: str, session: str | None) -> str:
        submission = request(command=("rm", name), cwd=str(tmp_path), environment={"PATH": "/usr/bin:/bin"}, session=session)
        return app.submissions.submit(submission, caller(app)).task.task_id

    first = propose("a", SESSION)
    expected = [first, propose("b", f"agent:{first}")]
    propose("c", f"task:{first}")
    propose("d", "agent:another")
    assert [question.about for question in open_questions(app, in_chat(app), SESSION)] == expected


def test_stopping_a_turn_withdraws_only_its_own_questions(app: App, tmp_path: Path) -> None:
    asked = request(command=(), cwd=str(tmp_path), environment={}, agent="default", prompt="hello", session=SESSION, terms={"chat": True})
    chat = app._ledger.tasks.submit(
        asked, project=str(tmp_path), wanted_id="task_chat", approval=Approval("auto", "prompt", app.now()), reasons=(), runner=AGENT_LANE,
        folder="tasks", now=app.now(), expires_at=None
    )  # fmt: skip
    assert chat.run is not None
    own = request(command=("rm", "a"), cwd=str(tmp_path), environment={}, session=SESSION, parent_run=chat.run.run_id)
    besides = request(command=("rm", "b"), cwd=str(tmp_path), environment={}, session=SESSION, key=f"{chat.run.run_id}:1:b")
    proposed = [app.submissions.submit(one, caller(app)).task.task_id for one in (own, besides)]
    app.tasks.cancel(chat.task.task_id, in_chat(app))
    assert [app.queries.get(task_id).status for task_id in proposed] == ["rejected", "proposed"]


def test_an_answer_in_a_chat_applies_only_to_the_question_shown(app: App, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("echo good\n")
    environment = {"PATH": "/usr/bin:/bin"}
    entry = app.submissions.submit(
        request(command=("sh", "job.sh"), cwd=str(tmp_path), environment=environment, session=SESSION), caller(app)
    )
    (question,) = open_questions(app, in_chat(app), SESSION)
    assert f"Fingerprint: {question.seen[:12]}" in question.text
    script.write_text("echo evil\n")
    with pytest.raises(QuestionChanged):
        settle(app, in_chat(app), question, "yes")
    assert app.queries.find(entry.task.task_id, caller(app)).status == "proposed"
    (again,) = open_questions(app, in_chat(app), SESSION)
    assert again.seen != question.seen and settle(app, in_chat(app), again, "yes").status == "pending"
