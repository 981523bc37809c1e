"""Notices for users and sessions."""

import pytest

from backburner.core.models import DISCOVERY
from backburner.store.ledger import Ledger
from contract.cases import NOW, OURS, Open, done, ended, propose, recurring, run_once, running


class NoticeContract:
    def test_an_acknowledged_notice_is_not_pending(self, ledger: Ledger) -> None:
        for letter in "abc":
            ended(ledger, f"task_{letter}")
        first, _, _ = ledger.notices.notices(project=None, unread=True)
        ledger.notices.acknowledge(notice_ids=[first.notice_id], task_ids=["task_c"], now=NOW + 7)
        assert [notice.task_id for notice in ledger.notices.notices(project=None, unread=True)] == ["task_b"]
        assert [notice.acknowledged_at for notice in ledger.notices.notices(project=None, unread=False)] == [NOW + 7, None, NOW + 7]

    def test_acknowledging_again_does_not_change_the_time(self, ledger: Ledger) -> None:
        ended(ledger)
        ledger.notices.acknowledge(task_ids=["task_x"], now=NOW + 7)
        ledger.notices.acknowledge(task_ids=["task_x", "task_missing"], notice_ids=[999], now=NOW + 1000)
        assert [notice.acknowledged_at for notice in ledger.notices.notices(project=None, unread=False)] == [NOW + 7]

    def test_notices_belong_to_their_project(self, ledger: Ledger) -> None:
        for project in ("/p", "/q"):
            ledger.runs.settle([done(running(ledger, f"task{project[1:]}", project=project))], OURS)
        assert [notice.task_id for notice in ledger.notices.notices(project="/q", unread=True)] == ["taskq"]

    def test_every_notice_has_a_unique_key(self, ledger: Ledger) -> None:
        for _ in range(3):
            ended(ledger)
        assert len({notice.key for notice in ledger.notices.notices(project=None, unread=True)}) == 3

    def test_the_requester_is_notified_of_the_end_of_a_task(self, ledger: Ledger) -> None:
        for name, session in (("task_a", "claude:1"), ("task_b", "codex:2"), ("task_c", None)):
            ledger.runs.settle([done(running(ledger, name, session=session))], OURS)
        channels = {notice.task_id: notice.channel for notice in ledger.notices.notices(project=None, unread=True)}
        assert channels == {"task_a": "session:claude:1", "task_b": "session:codex:2", "task_c": "inbox"}
        assert [one.task_id for one in ledger.notices.notices(project=None, unread=True, channels=["inbox", "session:codex:2"])] == [
            "task_b",
            "task_c",
        ]
        assert sorted(ledger.notices.channels_with_notices()) == ["inbox", "session:claude:1", "session:codex:2"]

    def test_unread_notices_are_counted_for_some_recipients(self, ledger: Ledger) -> None:
        for name, session in (("task_a", "claude:1"), ("task_b", "codex:2"), ("task_c", None), ("task_d", None)):
            ledger.runs.settle([done(running(ledger, name, session=session, channels=("phone",)))], OURS)
        assert ledger.notices.unread_count(["inbox"]) == 2 and ledger.notices.unread_count(["inbox", "session:codex:2"]) == 3
        ledger.notices.acknowledge(task_ids=["task_c"], now=NOW)
        assert ledger.notices.unread_count(["inbox", "to:phone"]) == 1 and ledger.notices.unread_count([]) == 0

    def test_an_acknowledgement_of_one_recipient_does_not_count_for_another(self, ledger: Ledger) -> None:
        ledger.runs.settle([done(running(ledger, "task_a", session="claude:1"))], OURS)
        ledger.notices.acknowledge(task_ids=["task_a"], now=NOW)
        assert ledger.notices.channels_with_notices() == ["session:claude:1"]
        ledger.notices.acknowledge(task_ids=["task_a"], channel="session:claude:1", now=NOW)
        assert ledger.notices.channels_with_notices() == []

    def test_an_answer_is_confirmed_only_in_the_channel_in_which_it_was_given(self, ledger: Ledger) -> None:
        propose(ledger, "task_a", session="claude:1", channels=("phone", "chat"))
        ledger.tasks.confirm_answer("task_a", "chat", "task_a is approved.", NOW)
        ledger.tasks.confirm_answer("task_a", "chat", "task_a is approved.", NOW)
        found = [(notice.channel, notice.kind, notice.priority, notice.text) for notice in ledger.deliveries.pending()]
        assert found == [("to:chat", "answered", 1, "task_a is approved.")] * 2

    def test_a_suggestion_run_that_completed_gives_no_notice(self, ledger: Ledger) -> None:
        ledger.runs.settle([done(running(ledger, "task_a", session=DISCOVERY))], OURS)
        assert ledger.notices.notices(project=None, unread=True) == []

    @pytest.mark.parametrize("expired", [False, True])
    def test_a_session_is_notified_that_its_proposal_was_refused(self, ledger: Ledger, expired: bool) -> None:
        propose(ledger, "task_a", session="claude:1")
        propose(ledger, "task_b")
        for task_id in ("task_a", "task_b"):
            ledger.tasks.refuse(task_id, expired=expired, now=NOW)
        (notice,) = ledger.notices.notices(project=None, unread=True)
        assert (notice.task_id, notice.run_id, notice.channel) == ("task_a", None, "session:claude:1")
        assert ("nobody answered" if expired else "rejected") in notice.text and "did not run" in notice.text

    def test_a_notice_is_leased_to_one_process_at_a_time(self, ledger: Ledger, open_ledger: Open) -> None:
        for letter in "abc":
            ended(ledger, f"task_{letter}")
        ids = [notice.notice_id for notice in ledger.notices.notices()]
        assert ledger.notices.lease(ids[:2], NOW, NOW + 10) == ids[:2]
        assert open_ledger().notices.lease(ids, NOW + 9, NOW + 20) == ids[2:]
        assert ledger.notices.lease(ids, NOW + 10, NOW + 30) == ids[:2]
        ledger.notices.acknowledge(notice_ids=ids, now=NOW + 11)
        assert ledger.notices.lease([*ids, 999], NOW + 99, NOW + 199) == [] == ledger.notices.lease([], NOW, NOW)

    def test_a_delivery_to_a_channel_is_not_in_an_inbox(self, ledger: Ledger) -> None:
        ledger.runs.settle([done(running(ledger, channels=("~phone", "ärger")))], OURS)
        assert (
            [notice.channel for notice in ledger.notices.notices(unread=False)] == ["inbox"] == list(ledger.notices.channels_with_notices())
        )
        assert ledger.notices.notices(channels=["to:~phone"]) == []

    def test_notices_of_very_many_recipients_are_in_order(self, ledger: Ledger) -> None:
        for n in (3, 700, 5):
            ledger.runs.settle([done(running(ledger, f"task_{n}", session=f"s:{n}"))], OURS)
        channels = [f"session:s:{n}" for n in range(1000)]
        assert [notice.task_id for notice in ledger.notices.notices(channels=[*channels, *channels])] == ["task_3", "task_700", "task_5"]
        assert ledger.notices.notices(channels=[]) == []

    def test_only_the_latest_run_of_a_recurring_task_is_acknowledged(self, ledger: Ledger) -> None:
        task = recurring(ledger)
        first, second = run_once(ledger, task, NOW), run_once(ledger, task, NOW + 1)
        ledger.notices.acknowledge(task_ids=["task_r"], now=NOW + 2)
        assert [notice.run_id for notice in ledger.notices.notices()] == [first.run_id] != [second.run_id]

    @pytest.mark.parametrize(("session", "channels"), [("chat:1", ["inbox", "session:chat:1"]), ("claude:1", ["session:claude:1"])])
    def test_the_user_of_a_chat_is_notified_too(self, ledger: Ledger, session: str, channels: list[str]) -> None:
        ledger.runs.settle([done(running(ledger, session=session))], OURS)
        assert sorted(ledger.notices.channels_with_notices()) == channels
