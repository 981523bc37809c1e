"""Who asks, who is here, and whose turn it is."""

from backburner.core.models import Session
from backburner.store.ledger import Ledger
from contract.cases import NOW, OURS, THEIRS, done, propose, running


class SessionContract:
    def test_a_session_is_known_from_when_it_was_met_and_where_it_is_now(self, ledger: Ledger) -> None:
        ledger.sessions.register(Session("claude:1", "claude", "/p", OURS, NOW, NOW))
        ledger.sessions.register(Session("codex:2", "codex", "/p", None, NOW + 1, NOW + 1))
        ledger.sessions.register(Session("claude:1", "claude", "/q", THEIRS, NOW + 5, NOW + 5))
        first, second = ledger.sessions.sessions()
        assert first == Session("claude:1", "claude", "/p", THEIRS, NOW, NOW + 5) and second.session_id == "codex:2"
        assert [one.session_id for one in ledger.sessions.sessions("codex")] == ["codex:2"]

    def test_a_session_has_open_work_until_the_last_of_it_ended(self, ledger: Ledger) -> None:
        assert not ledger.sessions.open_work(["claude:1"])
        propose(ledger, "task_a", session="claude:1")
        run = running(ledger, "task_b", session="claude:1")
        assert ledger.sessions.open_work(["claude:1", "x:y"]) and not ledger.sessions.open_work(["x:y"])
        ledger.tasks.refuse("task_a", expired=False, now=NOW)
        assert ledger.sessions.open_work(["claude:1"])
        ledger.runs.settle([done(run)], OURS)
        assert not ledger.sessions.open_work(["claude:1"])
