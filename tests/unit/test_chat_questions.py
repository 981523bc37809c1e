"""What a chat asks its person, without a face."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from backburner.core.errors import BadInput, QuestionChanged
from backburner.core.models import ENGINE, ProcessId, Submission
from backburner.interfaces.cli.questions import open_questions, settle
from backburner.services.runtime import Runtime, open_runtime

ME = ProcessId(1, "1", "boot")
SESSION = "chat:1"


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runtime]:
    """A home in which no engine is started."""
    monkeypatch.setattr(Runtime, "_start_engine", lambda self: None)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.toml").write_text("[approval]\nyes_without_terminal = true\n")
    with open_runtime(str(tmp_path / "home"), {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}) as opened:
        yield opened


def test_a_run_that_waits_before_its_beginning_is_asked_about(runtime: Runtime, tmp_path: Path) -> None:
    entry = runtime.submit(Submission(command=("echo", "x"), cwd=str(tmp_path), environment={}, session=SESSION))
    (work,) = runtime.store.claim(ENGINE, ME, 1, runtime.clock())
    runtime.store.park(work.run.run_id, ME, "it has changed since a person said yes", runtime.clock())
    (question,) = open_questions(runtime, SESSION)
    assert question.about == entry.task.task_id and "it has changed" in question.text
    assert settle(runtime, question, "yes").status == "pending" and not open_questions(runtime, SESSION)
    with pytest.raises(BadInput):
        settle(runtime, question, "yes")


def test_an_answer_in_a_chat_is_for_what_was_shown_there(runtime: Runtime, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("echo good\n")
    environment = {"PATH": "/usr/bin:/bin"}
    entry = runtime.submit(Submission(command=("sh", "job.sh"), cwd=str(tmp_path), environment=environment, session=SESSION))
    (question,) = open_questions(runtime, SESSION)
    assert f"Fingerprint: {question.seen[:12]}" in question.text
    script.write_text("echo evil\n")
    with pytest.raises(QuestionChanged):
        settle(runtime, question, "yes")
    assert runtime.show(entry.task.task_id).status == "proposed"
    (again,) = open_questions(runtime, SESSION)
    assert again.seen != question.seen and settle(runtime, again, "yes").status == "pending"
