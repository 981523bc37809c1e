"""What a decision has read is read again before the decision is used again."""

from pathlib import Path

import pytest

from backburner.system.recorded_reads import Answers, RecordedReads


def _text(path: str) -> str:
    return Path(path).read_text()


def test_an_answer_is_found_until_what_was_read_for_it_changes(tmp_path: Path) -> None:
    file, answers, reads = tmp_path / "file", Answers[str](), RecordedReads()
    file.write_text("one")
    answers.keep("about", ["question"], reads, f"it says {reads(_text, str(file))}")
    assert answers.find("about", ["question"]) == "it says one"
    assert answers.find("about", ["another question"]) is None and answers.find("other", ["question"]) is None
    file.write_text("two")
    assert answers.find("about", ["question"]) is None
    file.unlink()
    assert answers.find("about", ["question"]) is None


def test_one_decision_reads_a_thing_only_once(tmp_path: Path) -> None:
    file, reads = tmp_path / "file", RecordedReads()
    file.write_text("one")
    assert reads(_text, str(file)) == "one"
    file.write_text("two")
    assert reads(_text, str(file)) == "one" and not reads.are_current


def test_a_decision_is_not_kept_if_something_could_not_be_read_or_was_not_recorded(tmp_path: Path) -> None:
    failed, incomplete = RecordedReads(), RecordedReads()
    with pytest.raises(FileNotFoundError):
        failed(_text, str(tmp_path / "missing"))
    incomplete.mark_incomplete()
    assert not failed.are_current and not incomplete.are_current and RecordedReads().are_current


def test_only_a_limited_number_of_answers_is_kept() -> None:
    answers = Answers[int]()
    for number in range(1000):
        answers.keep(number, "question", RecordedReads(), number)
    answers.keep(980, "question", RecordedReads(), 980)
    answers.keep(1000, "question", RecordedReads(), 1000)
    kept = [number for number in range(1001) if answers.find(number, "question") is not None]
    assert kept == list(range(1001 - len(kept), 1001)) and 20 < len(kept) < 500, "the newest ones"
