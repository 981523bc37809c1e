"""Sessions, user activity, and interactive priority."""

from backburner.core.models import AGENT_LANE, LOCAL_AGENT_LANE
from backburner.core.session_records import InteractiveLease, Session
from backburner.core.states import RunState, WaitKind
from backburner.store.ledger import Ledger
from contract.cases import NOW, OURS, THEIRS, Open, done, latest, propose, running, submit, waiting_agent_run


class SessionContract:
    def test_a_session_keeps_its_creation_time_and_its_latest_process(self, ledger: Ledger) -> None:
        ledger.sessions.register(Session("claude:1", "claude", "/p", OURS, NOW, NOW))
        ledger.sessions.register(Session("codex:2", "codex", "/p", None, NOW + 1, NOW + 1))
        ledger.sessions.register(Session("claude:1", "claude", "/q", THEIRS, NOW + 5, NOW + 5))
        first, second = ledger.sessions.sessions()
        assert (
            first == Session("claude:1", "claude", "/p", THEIRS, NOW, NOW + 5, ledger.database.host_id) and second.session_id == "codex:2"
        )
        assert [one.session_id for one in ledger.sessions.sessions("codex")] == ["codex:2"]

    def test_a_session_has_open_work_until_its_last_task_has_ended(self, ledger: Ledger) -> None:
        assert not ledger.sessions.has_open_work(["claude:1"])
        propose(ledger, "task_a", session="claude:1")
        run = running(ledger, "task_b", session="claude:1")
        assert ledger.sessions.has_open_work(["claude:1", "x:y"]) and not ledger.sessions.has_open_work(["x:y"])
        ledger.tasks.refuse("task_a", expired=False, now=NOW)
        assert ledger.sessions.has_open_work(["claude:1"])
        ledger.runs.settle([done(run)], OURS)
        assert not ledger.sessions.has_open_work(["claude:1"])

    def test_a_session_without_a_name_has_no_open_work(self, ledger: Ledger) -> None:
        submit(ledger)
        assert not ledger.sessions.has_open_work([])

    def test_the_last_user_activity_is_the_latest_of_all_interfaces(self, ledger: Ledger, open_ledger: Open) -> None:
        assert ledger.sessions.last_activity() is None
        for interface, now in (("chat", NOW + 5), ("cli", NOW + 9), ("chat", NOW + 7)):
            ledger.sessions.record_activity(interface, now)
        assert open_ledger().sessions.last_activity() == NOW + 9

    def test_a_process_has_one_interactive_lease_at_a_time(self, ledger: Ledger) -> None:
        assert ledger.sessions.interactive_leases() == []
        ledger.sessions.begin_interactive(InteractiveLease(OURS, AGENT_LANE, "task_x", NOW + 5))
        ledger.sessions.begin_interactive(InteractiveLease(THEIRS, LOCAL_AGENT_LANE, None, NOW + 3))
        ledger.sessions.begin_interactive(InteractiveLease(OURS, LOCAL_AGENT_LANE, None, NOW + 6))
        assert ledger.sessions.interactive_leases() == [
            InteractiveLease(THEIRS, LOCAL_AGENT_LANE, None, NOW + 3),
            InteractiveLease(OURS, LOCAL_AGENT_LANE, None, NOW + 6),
        ]
        assert ledger.sessions.end_interactive(OURS, NOW + 9) and not ledger.sessions.end_interactive(OURS, NOW + 9)
        assert [turn.process for turn in ledger.sessions.interactive_leases()] == [THEIRS]

    def test_yielding_runs_continue_after_the_last_lease_of_their_lane(self, ledger: Ledger) -> None:
        ledger.sessions.begin_interactive(InteractiveLease(OURS, AGENT_LANE, None, NOW))
        ledger.sessions.begin_interactive(InteractiveLease(THEIRS, AGENT_LANE, None, NOW))
        assert waiting_agent_run(ledger, "task_a", waits_for=(WaitKind.INTERACTIVE, AGENT_LANE)).state == RunState.WAITING
        waiting_agent_run(ledger, "task_b", waits_for=(WaitKind.TOOL, None))
        ledger.sessions.end_interactive(OURS, NOW + 5)
        assert latest(ledger, "task_a").state == RunState.WAITING
        ledger.sessions.end_interactive(THEIRS, NOW + 6)
        assert (latest(ledger, "task_a").state, latest(ledger, "task_b").state) == (RunState.PENDING, RunState.WAITING)

    def test_a_run_that_yielded_continues_when_a_user_begins_to_wait_for_it(self, ledger: Ledger) -> None:
        ledger.sessions.begin_interactive(InteractiveLease(THEIRS, AGENT_LANE, None, NOW))
        assert waiting_agent_run(ledger, "task_a", waits_for=(WaitKind.INTERACTIVE, AGENT_LANE)).state == RunState.WAITING
        assert ledger.sessions.must_yield("task_a", AGENT_LANE) and not ledger.sessions.must_yield("task_a", LOCAL_AGENT_LANE)
        ledger.sessions.begin_interactive(InteractiveLease(OURS, AGENT_LANE, "task_a", NOW + 5))
        assert latest(ledger, "task_a").state == RunState.PENDING
        assert not ledger.sessions.must_yield("task_a", AGENT_LANE)

    def test_a_run_does_not_yield_when_a_user_waits_for_it_since_just_before(self, ledger: Ledger) -> None:
        ledger.sessions.begin_interactive(InteractiveLease(THEIRS, AGENT_LANE, None, NOW))
        ledger.sessions.begin_interactive(InteractiveLease(OURS, AGENT_LANE, "task_a", NOW))
        assert waiting_agent_run(ledger, "task_a", waits_for=(WaitKind.INTERACTIVE, AGENT_LANE)).state == RunState.PENDING

    def test_a_task_requested_by_the_agent_or_in_the_chat_that_a_user_waits_for_does_not_yield(self, ledger: Ledger) -> None:
        submit(ledger, "task_chat", session="chat:1")
        submit(ledger, "task_beside", session="chat:1")
        submit(ledger, "task_agent")
        submit(ledger, "task_child", session="agent:task_agent")
        submit(ledger, "task_grandchild", session="agent:task_child")
        ledger.sessions.begin_interactive(InteractiveLease(THEIRS, AGENT_LANE, "task_agent", NOW))
        tasks = ("task_chat", "task_beside", "task_agent", "task_child", "task_grandchild")
        assert [ledger.sessions.must_yield(task, AGENT_LANE) for task in tasks] == [True, True, False, False, False]
        ledger.sessions.begin_interactive(InteractiveLease(THEIRS, AGENT_LANE, "task_chat", NOW))
        assert [ledger.sessions.must_yield(task, AGENT_LANE) for task in tasks] == [False, False, True, True, True]
