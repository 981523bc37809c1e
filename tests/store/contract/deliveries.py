"""Notices on their way to channels, and the messages that wait for an answer."""

import pytest

from backburner.core.models import ENGINE
from backburner.core.notices import Notice
from backburner.store.ledger import Ledger
from contract.cases import NOW, OURS, approve, asking, done, ended, kinds, propose, recurring, running, watching


def letters(ledger: Ledger, *names: str) -> list[Notice]:
    """The end of a task on its way to channels."""
    ledger.runs.settle([done(running(ledger, channels=names or ("phone",)))], OURS)
    return list(ledger.deliveries.outgoing())


class DeliveryContract:
    def test_what_is_to_be_delivered_comes_in_order_to_each_channel(self, ledger: Ledger) -> None:
        assert ledger.deliveries.outgoing() == []
        for name in ("task_a", "task_b"):
            ledger.runs.settle([done(running(ledger, name, channels=("phone", "~last", "Zulu", "ärger")))], OURS)
        assert [(letter.task_id, letter.channel) for letter in ledger.deliveries.outgoing()] == [
            (name, f"to:{channel}") for name in ("task_a", "task_b") for channel in ("phone", "~last", "Zulu", "ärger")
        ]
        assert [letter.task_id for letter in ledger.deliveries.outgoing("to:~last")] == ["task_a", "task_b"]
        assert ledger.deliveries.outgoing("to:nobody") == [] == ledger.deliveries.outgoing("inbox")

    def test_what_was_delivered_is_known_by_what_the_other_side_calls_it(self, ledger: Ledger) -> None:
        first, second = letters(ledger, "phone", "desk")
        ledger.deliveries.undelivered([first.notice_id], "no answer", NOW + 60, NOW + 1)
        ledger.deliveries.delivered([first.notice_id], "message-1", NOW + 2)
        assert ledger.deliveries.outgoing() == [second]
        sent = ledger.deliveries.sent_as("to:phone", "message-1")
        assert sent and (sent.notice_id, sent.told_at, sent.external, sent.error) == (first.notice_id, NOW + 2, "message-1", None)
        assert ledger.deliveries.sent_as("to:desk", "message-1") is None is ledger.deliveries.sent_as("to:phone", "message-2")

    def test_what_was_delivered_stays_so(self, ledger: Ledger) -> None:
        (letter,) = letters(ledger)
        ledger.deliveries.delivered([letter.notice_id], "message-1", NOW + 2)
        ledger.deliveries.delivered([letter.notice_id, 999], "message-2", NOW + 3)
        ledger.deliveries.undelivered([letter.notice_id], "too late", None, NOW + 4)
        sent = ledger.deliveries.sent_as("to:phone", "message-1")
        assert sent and (sent.told_at, sent.attempts, sent.dead_at) == (NOW + 2, 0, None)
        assert ledger.deliveries.dead_letters() == []

    def test_what_failed_is_tried_again_or_given_up_and_can_be_revived(self, ledger: Ledger) -> None:
        (letter,) = letters(ledger)
        ledger.deliveries.undelivered([letter.notice_id], "no answer", NOW + 60, NOW + 1)
        (again,) = ledger.deliveries.outgoing()
        assert (again.attempts, again.error, again.next_attempt_at, again.dead_at) == (1, "no answer", NOW + 60, None)
        assert "notice_undeliverable" not in kinds(ledger)
        ledger.deliveries.undelivered([letter.notice_id], "gone", None, NOW + 70)
        (dead,) = ledger.deliveries.dead_letters()
        assert (dead.attempts, dead.error, dead.dead_at) == (2, "gone", NOW + 70)
        assert ledger.deliveries.outgoing() == [] and kinds(ledger)[-1] == "notice_undeliverable"
        ledger.deliveries.revive([letter.notice_id])
        (alive,) = ledger.deliveries.outgoing()
        assert (alive.attempts, alive.next_attempt_at, alive.dead_at) == (0, None, None) and ledger.deliveries.dead_letters() == []

    def test_a_proposal_is_a_question_until_it_is_answered(self, ledger: Ledger) -> None:
        propose(ledger, channels=("phone", "desk"), question=lambda _: "May it?")
        phone, desk = ledger.deliveries.outgoing()
        assert ledger.deliveries.questions() == []
        ledger.deliveries.delivered([phone.notice_id], "message-1", NOW)
        ledger.deliveries.delivered([desk.notice_id], "message-2", NOW)
        assert sorted(ledger.deliveries.questions()) == ["message-1", "message-2"]
        assert ledger.deliveries.questions("to:phone") == ["message-1"]
        approve(ledger, "task_x")
        assert ledger.deliveries.questions() == []

    def test_only_the_latest_question_about_a_proposal_can_be_answered(self, ledger: Ledger) -> None:
        propose(ledger, channels=("phone",), question=lambda _: "May it?", asked="print1")
        ledger.deliveries.delivered([ledger.deliveries.outgoing()[0].notice_id], "message-1", NOW)
        ledger.tasks.ask_again("task_x", "task_x", "print2", "May it now?", NOW + 1)
        assert ledger.deliveries.questions() == []
        ledger.deliveries.delivered([ledger.deliveries.outgoing()[0].notice_id], "message-2", NOW + 2)
        assert ledger.deliveries.questions() == ["message-2"]

    def test_a_recurring_run_that_waits_is_a_question_until_it_goes_on(self, ledger: Ledger) -> None:
        recurring(ledger, channels=("phone",))
        ledger.recurring.run_now("task_r", NOW, "tasks")
        ledger.runs.park(ledger.runs.claim(ENGINE, OURS, 1, NOW)[0].run.run_id, OURS, "it changed", NOW + 1)
        ledger.deliveries.delivered([ledger.deliveries.outgoing()[0].notice_id], "message-1", NOW + 2)
        assert ledger.deliveries.questions("to:phone") == ["message-1"] and ledger.deliveries.questions("to:desk") == []
        approve(ledger, "task_r")
        assert ledger.deliveries.questions() == []

    @pytest.mark.parametrize("reason", ["letter", "source", "question"])
    def test_the_integrations_are_needed_while_something_is_to_be_sent_watched_or_answered(self, ledger: Ledger, reason: str) -> None:
        ended(ledger, "task_done")
        asking(ledger, "task_waiting")
        assert not ledger.deliveries.post_wanted()
        match reason:
            case "letter":
                ids = [letter.notice_id for letter in letters(ledger)]
                assert ledger.deliveries.post_wanted()
                ledger.deliveries.undelivered(ids, "gone", None, NOW)
            case "source":
                watching(ledger)
                assert ledger.deliveries.post_wanted()
                ledger.recurring.pause("task_w", "by hand", NOW)
            case _:
                propose(ledger, channels=("phone",), question=lambda _: "May it?")
                ledger.deliveries.delivered([ledger.deliveries.outgoing()[0].notice_id], "message-1", NOW)
                assert ledger.deliveries.post_wanted()
                ledger.tasks.refuse("task_x", expired=False, now=NOW)
        assert not ledger.deliveries.post_wanted()
