"""What is owed to a person or a session."""

import pytest

from backburner.store.ledger import Ledger
from contract.cases import NOW, OURS, done, ended, propose, running


class NoticeContract:
    def test_what_was_told_is_not_owed_any_more(self, ledger: Ledger) -> None:
        for letter in "abc":
            ended(ledger, f"task_{letter}")
        first, _, _ = ledger.notices.notices(project=None, unread=True)
        ledger.notices.tell(notice_ids=[first.notice_id], task_ids=["task_c"], now=NOW + 7)
        assert [notice.task_id for notice in ledger.notices.notices(project=None, unread=True)] == ["task_b"]
        assert [notice.told_at for notice in ledger.notices.notices(project=None, unread=False)] == [NOW + 7, None, NOW + 7]

    def test_telling_again_does_not_change_when_it_was_told(self, ledger: Ledger) -> None:
        ended(ledger)
        ledger.notices.tell(task_ids=["task_x"], now=NOW + 7)
        ledger.notices.tell(task_ids=["task_x", "task_missing"], notice_ids=[999], now=NOW + 1000)
        assert [notice.told_at for notice in ledger.notices.notices(project=None, unread=False)] == [NOW + 7]

    def test_notices_are_owed_to_their_project(self, ledger: Ledger) -> None:
        for project in ("/p", "/q"):
            ledger.runs.settle([done(running(ledger, f"task{project[1:]}", project=project))], OURS)
        assert [notice.task_id for notice in ledger.notices.notices(project="/q", unread=True)] == ["taskq"]

    def test_every_notice_has_a_key_of_its_own(self, ledger: Ledger) -> None:
        for _ in range(3):
            ended(ledger)
        assert len({notice.key for notice in ledger.notices.notices(project=None, unread=True)}) == 3

    def test_the_end_of_a_task_is_owed_to_whoever_asked(self, ledger: Ledger) -> None:
        for name, session in (("task_a", "claude:1"), ("task_b", "codex:2"), ("task_c", None)):
            ledger.runs.settle([done(running(ledger, name, session=session))], OURS)
        owed = {notice.task_id: notice.channel for notice in ledger.notices.notices(project=None, unread=True)}
        assert owed == {"task_a": "session:claude:1", "task_b": "session:codex:2", "task_c": "inbox"}
        assert [one.task_id for one in ledger.notices.notices(project=None, unread=True, channels=["inbox", "session:codex:2"])] == [
            "task_b",
            "task_c",
        ]
        assert sorted(ledger.notices.owing()) == ["inbox", "session:claude:1", "session:codex:2"]

    def test_what_one_channel_was_told_is_still_owed_to_another(self, ledger: Ledger) -> None:
        ledger.runs.settle([done(running(ledger, "task_a", session="claude:1"))], OURS)
        ledger.notices.tell(task_ids=["task_a"], now=NOW)
        assert ledger.notices.owing() == ["session:claude:1"]
        ledger.notices.tell(task_ids=["task_a"], channel="session:claude:1", now=NOW)
        assert ledger.notices.owing() == []

    @pytest.mark.parametrize("expired", [False, True])
    def test_a_session_is_told_that_its_proposal_was_refused(self, ledger: Ledger, expired: bool) -> None:
        propose(ledger, "task_a", session="claude:1")
        propose(ledger, "task_b")
        for task_id in ("task_a", "task_b"):
            ledger.tasks.refuse(task_id, expired=expired, now=NOW)
        (notice,) = ledger.notices.notices(project=None, unread=True)
        assert (notice.task_id, notice.run_id, notice.channel) == ("task_a", None, "session:claude:1")
        assert ("nobody answered" if expired else "rejected") in notice.text and "did not run" in notice.text
