"""Deliveries of notices to channels, and messages that wait for an answer."""

import pytest

from backburner.core.models import ENGINE
from backburner.core.notices import Notice
from backburner.store.ledger import Ledger
from contract.cases import NOW, OURS, OpenOn, approve, done, ended, kinds, propose, recurring, running, waiting_agent_run, watching_task


def pending_deliveries(ledger: Ledger, *names: str) -> list[Notice]:
    """The pending deliveries of a task that has ended, to these channels."""
    ledger.runs.settle([done(running(ledger, channels=names or ("phone",)))], OURS)
    return list(ledger.deliveries.pending())


class DeliveryContract:
    def test_pending_deliveries_are_in_order_for_each_channel(self, ledger: Ledger) -> None:
        assert ledger.deliveries.pending() == []
        for name in ("task_a", "task_b"):
            ledger.runs.settle([done(running(ledger, name, channels=("phone", "~last", "Zulu", "ärger")))], OURS)
        assert [(notice.task_id, notice.channel) for notice in ledger.deliveries.pending()] == [
            (name, f"to:{channel}") for name in ("task_a", "task_b") for channel in ("phone", "~last", "Zulu", "ärger")
        ]
        assert [notice.task_id for notice in ledger.deliveries.pending("to:~last")] == ["task_a", "task_b"]
        assert ledger.deliveries.pending("to:nobody") == [] == ledger.deliveries.pending("inbox")

    def test_a_delivered_notice_is_found_by_the_channels_message_id(self, ledger: Ledger) -> None:
        first, second = pending_deliveries(ledger, "phone", "desk")
        ledger.deliveries.mark_failed([first.notice_id], "no answer", NOW + 60, NOW + 1)
        ledger.deliveries.mark_delivered([first.notice_id], "message-1", NOW + 2)
        assert ledger.deliveries.pending() == [second]
        sent = ledger.deliveries.find_sent("to:phone", "message-1")
        assert sent and (sent.notice_id, sent.acknowledged_at, sent.external_id, sent.error) == (
            first.notice_id,
            NOW + 2,
            "message-1",
            None,
        )
        assert ledger.deliveries.find_sent("to:desk", "message-1") is None is ledger.deliveries.find_sent("to:phone", "message-2")

    def test_a_delivered_notice_stays_delivered(self, ledger: Ledger) -> None:
        (notice,) = pending_deliveries(ledger)
        ledger.deliveries.mark_delivered([notice.notice_id], "message-1", NOW + 2)
        ledger.deliveries.mark_delivered([notice.notice_id, 999], "message-2", NOW + 3)
        ledger.deliveries.mark_failed([notice.notice_id], "too late", None, NOW + 4)
        sent = ledger.deliveries.find_sent("to:phone", "message-1")
        assert sent and (sent.acknowledged_at, sent.attempts, sent.failed_at) == (NOW + 2, 0, None)
        assert ledger.deliveries.failed() == []

    def test_a_failed_delivery_is_retried_or_given_up_and_can_be_retried_manually(self, ledger: Ledger) -> None:
        (notice,) = pending_deliveries(ledger)
        ledger.deliveries.mark_failed([notice.notice_id], "no answer", NOW + 60, NOW + 1)
        (again,) = ledger.deliveries.pending()
        assert (again.attempts, again.error, again.next_attempt_at, again.failed_at) == (1, "no answer", NOW + 60, None)
        assert "notice_undeliverable" not in kinds(ledger)
        ledger.deliveries.mark_failed([notice.notice_id], "gone", None, NOW + 70)
        (dead,) = ledger.deliveries.failed()
        assert (dead.attempts, dead.error, dead.failed_at) == (2, "gone", NOW + 70)
        assert ledger.deliveries.pending() == [] and kinds(ledger)[-1] == "notice_undeliverable"
        ledger.deliveries.retry([notice.notice_id])
        (alive,) = ledger.deliveries.pending()
        assert (alive.attempts, alive.next_attempt_at, alive.failed_at) == (0, None, None) and ledger.deliveries.failed() == []

    def test_a_message_is_sent_by_one_host_at_a_time(self, open_on: OpenOn) -> None:
        first, second = open_on("a"), open_on("b")
        first.hosts.enrol(NOW)
        notices = [notice.notice_id for notice in pending_deliveries(first, "phone", "desk")]
        assert first.deliveries.reserve(notices, NOW, NOW + 90) is True
        assert (
            second.deliveries.reserve(notices, NOW + 89, NOW + 180) is False is second.deliveries.reserve(notices[1:], NOW + 89, NOW + 180)
        )
        assert second.deliveries.reserve(notices, NOW + 90, NOW + 180) is True  # the first host has died meanwhile
        second.deliveries.mark_failed(notices[:1], "no answer", NOW + 100, NOW + 95)
        assert first.deliveries.reserve(notices[:1], NOW + 100, NOW + 190) is True
        first.deliveries.mark_delivered(notices[:1], None, NOW + 101)
        assert (
            first.deliveries.reserve(notices[:1], NOW + 900, NOW + 990) is False is second.deliveries.reserve(notices, NOW + 900, NOW + 990)
        )

    def test_in_a_ledger_of_one_home_a_message_can_be_sent_again_at_once(self, ledger: Ledger) -> None:
        if ledger.database.host_id:
            return
        (notice,) = pending_deliveries(ledger)
        assert all(ledger.deliveries.reserve([notice.notice_id], NOW, NOW + 90) for _ in range(2))

    def test_a_proposal_is_an_open_question_until_it_is_answered(self, ledger: Ledger) -> None:
        propose(ledger, channels=("phone", "desk"), question=lambda _: "May it?")
        phone, desk = ledger.deliveries.pending()
        assert ledger.deliveries.open_questions() == []
        ledger.deliveries.mark_delivered([phone.notice_id], "message-1", NOW)
        ledger.deliveries.mark_delivered([desk.notice_id], "message-2", NOW)
        assert sorted(ledger.deliveries.open_questions()) == ["message-1", "message-2"]
        assert ledger.deliveries.open_questions("to:phone") == ["message-1"]
        approve(ledger, "task_x")
        assert ledger.deliveries.open_questions() == []

    def test_only_the_latest_question_about_a_proposal_can_be_answered(self, ledger: Ledger) -> None:
        propose(ledger, channels=("phone",), question=lambda _: "May it?", asked="print1")
        ledger.deliveries.mark_delivered([ledger.deliveries.pending()[0].notice_id], "message-1", NOW)
        ledger.tasks.ask_again("task_x", "task_x", "print2", "May it now?", NOW + 1)
        assert ledger.deliveries.open_questions() == []
        ledger.deliveries.mark_delivered([ledger.deliveries.pending()[0].notice_id], "message-2", NOW + 2)
        assert ledger.deliveries.open_questions() == ["message-2"]

    def test_a_waiting_recurring_run_is_an_open_question_until_it_continues(self, ledger: Ledger) -> None:
        recurring(ledger, channels=("phone",))
        ledger.recurring.run_now("task_r", NOW, "tasks")
        ledger.runs.suspend(ledger.runs.claim(ENGINE, OURS, 1, NOW)[0].run.run_id, OURS, "it changed", NOW + 1)
        ledger.deliveries.mark_delivered([ledger.deliveries.pending()[0].notice_id], "message-1", NOW + 2)
        assert ledger.deliveries.open_questions("to:phone") == ["message-1"] and ledger.deliveries.open_questions("to:desk") == []
        approve(ledger, "task_r")
        assert ledger.deliveries.open_questions() == []

    @pytest.mark.parametrize("reason", ["notice", "source", "question"])
    def test_integrations_are_needed_for_deliveries_sources_and_open_questions(self, ledger: Ledger, reason: str) -> None:
        ended(ledger, "task_done")
        waiting_agent_run(ledger, "task_waiting")
        assert not ledger.deliveries.integrations_needed()
        match reason:
            case "notice":
                ids = [notice.notice_id for notice in pending_deliveries(ledger)]
                assert ledger.deliveries.integrations_needed()
                ledger.deliveries.mark_failed(ids, "gone", None, NOW)
            case "source":
                watching_task(ledger)
                assert ledger.deliveries.integrations_needed()
                ledger.recurring.pause("task_w", "by hand", NOW)
            case _:
                propose(ledger, channels=("phone",), question=lambda _: "May it?")
                ledger.deliveries.mark_delivered([ledger.deliveries.pending()[0].notice_id], "message-1", NOW)
                assert ledger.deliveries.integrations_needed()
                ledger.tasks.refuse("task_x", expired=False, now=NOW)
        assert not ledger.deliveries.integrations_needed()
