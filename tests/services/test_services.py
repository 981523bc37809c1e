"""The verbs where doors meet at the same moment, and what they refuse before anything is stored."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from conftest import caller

from backburner.coordination.config_file import ConfigFile, load_config
from backburner.core.errors import AmbiguousId, BadInput, IllegalTransition, NotAPerson, NotRunning, TaskNotFound
from backburner.core.models import Submission
from backburner.services.app import App, open_app
from backburner.store.ledger import Ledger, open_ledger
from backburner.system.home import Home
from backburner.system.processes import myself
from backburner.testing import FakeClock
from backburner.testing.records import request

RUNNER = f"{myself()}:test"
HOUR = 3_600_000


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(str(tmp_path / "home")).make()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def app(home: Home, clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """A door that keeps what it submits for itself, so that no engine is needed."""
    monkeypatch.chdir(tmp_path)
    with App(home, open_ledger(home.ledger), ConfigFile(home, {}), {}, clock=clock, runner=RUNNER) as one:
        yield one


def ask(*command: str, **more: object) -> Submission:
    return request(command or ("make",), "/tmp", {"PATH": "/usr/bin:/bin"}, **more)  # type: ignore[arg-type]


def late_ledger(path: str) -> Ledger:
    """A ledger in which another process is always a moment quicker to record that a proposal expired."""
    ledger = open_ledger(path)
    overdue_proposals = ledger.live_work.overdue_proposals

    def expired_meanwhile(now: int) -> Sequence[str]:
        found = overdue_proposals(now)
        other = open_ledger(path)
        for task_id in found:
            other.tasks.refuse(task_id, expired=True, now=now)
        other.close()
        return found

    ledger.live_work.overdue_proposals = expired_meanwhile  # type: ignore[method-assign]
    return ledger


def test_a_proposal_that_another_door_expires_at_the_same_moment_is_no_error(home: Home, clock: FakeClock) -> None:
    with App(home, late_ledger(home.ledger), ConfigFile(home, {}), {}, clock=clock, runner=RUNNER) as app:
        proposal = app.submissions.submit(ask(), caller(app)).task
        clock.advance(25 * HOUR)
        assert app.queries.find(proposal.task_id, caller(app)).status == "expired"


def test_a_proposal_expires_when_its_time_is_over_and_not_before(app: App, clock: FakeClock) -> None:
    proposal = app.submissions.submit(ask(), caller(app)).task
    assert proposal.expires_at == clock() + 24 * HOUR
    clock.advance(24 * HOUR - 1)
    assert app.queries.find(proposal.task_id, caller(app)).status == "proposed"
    clock.advance(1)
    assert app.queries.find(proposal.task_id, caller(app)).status == "expired"
    with pytest.raises(IllegalTransition, match="expired and cannot be approved"):
        app.approvals.approve(proposal.task_id, caller(app))


def test_a_yes_makes_a_run_and_a_second_yes_is_refused(app: App) -> None:
    proposal = app.submissions.submit(ask(), caller(app)).task
    assert app.approvals.approve(proposal.task_id, caller(app)).status == "pending"
    with pytest.raises(IllegalTransition):
        app.approvals.approve(proposal.task_id, caller(app))
    assert [event.kind for event in app.queries.events(0)] == ["task_proposed", "task_approved"]


def test_a_no_ends_it(app: App) -> None:
    proposal = app.submissions.submit(ask(), caller(app)).task
    assert app.approvals.reject(proposal.task_id, caller(app)).status == "rejected"
    with pytest.raises(IllegalTransition):
        app.approvals.approve(proposal.task_id, caller(app))
    with pytest.raises(NotRunning):
        app.tasks.cancel(proposal.task_id, caller(app))


def test_inside_a_task_nobody_is_a_person(home: Home) -> None:
    with App(home, open_ledger(home.ledger), ConfigFile(home, {}), {"BACKBURNER_TASK_ID": "task_x"}, runner=RUNNER) as app:
        proposal = app.submissions.submit(ask(), caller(app)).task
        with pytest.raises(NotAPerson, match="inside the background task task_x"):
            app.approvals.approve(proposal.task_id, caller(app))
        assert app.queries.find(proposal.task_id, caller(app)).status == "proposed"


@pytest.mark.parametrize(
    "submission",
    [
        request((), "/tmp", {}),
        ask(""),
        ask("  "),
        ask("a\0b"),
        ask("x" * 131_072),
        ask(env={"": "x"}),
        ask(env={"A=B": "x"}),
        ask(env={"A": "x\0"}),
        ask(name="\udcff"),
        ask(description="\udcff"),
        ask(timeout_ms=0),
        request(("true",), "/no/such/folder", {}),
    ],
)
def test_what_cannot_be_run_is_refused_and_nothing_is_stored(app: App, submission: Submission) -> None:
    with pytest.raises(BadInput):
        app.submissions.submit(submission, caller(app))
    assert app.queries.list(caller(app), everywhere=True) == []


@pytest.mark.parametrize("reference", ["", "nothing-like-it", "%", "\udcff"])
def test_a_reference_that_means_nothing_finds_nothing(app: App, reference: str) -> None:
    app.submissions.submit(ask(), caller(app))
    with pytest.raises(TaskNotFound):
        app.queries.find(reference, caller(app))


def test_a_reference_that_means_several_lists_them(app: App) -> None:
    first, second = app.submissions.submit(ask(), caller(app)).task, app.submissions.submit(ask(), caller(app)).task
    with pytest.raises(AmbiguousId) as caught:
        app.queries.find("make", caller(app))
    assert first.task_id in str(caught.value) and second.task_id in str(caught.value)


def test_a_status_that_does_not_exist_is_refused(app: App) -> None:
    with pytest.raises(BadInput, match="Unknown status 'strange'"):
        app.queries.list(caller(app), status="strange")


def test_only_what_has_ended_can_be_cleared(app: App) -> None:
    kept = [app.submissions.submit(ask(), caller(app)).task.task_id, app.submissions.submit(ask("true"), caller(app)).task.task_id]
    for task_id in kept:
        with pytest.raises(BadInput, match="only finished tasks can be cleared"):
            app.tasks.clear([task_id], caller(app))
    gone = app.submissions.submit(ask(), caller(app)).task.task_id
    app.approvals.reject(gone, caller(app))
    assert app.tasks.clear((), caller(app), ended=True, everywhere=True) == [gone]
    assert {entry.task.task_id for entry in app.queries.list(caller(app), everywhere=True)} == set(kept)


def test_what_ended_long_ago_is_forgotten_and_what_lives_never(app: App, clock: FakeClock) -> None:
    pending, gone = (
        app.submissions.submit(ask("true"), caller(app)).task.task_id,
        app.submissions.submit(ask("true"), caller(app)).task.task_id,
    )
    app.tasks.cancel(gone, caller(app))
    clock.advance(7 * 24 * HOUR)
    assert app.retention.clean_up() == []
    clock.advance(1)
    assert app.retention.clean_up() == [gone]
    assert [entry.task.task_id for entry in app.queries.list(caller(app), everywhere=True)] == [pending]


def upkeep(app: App) -> Sequence[str]:
    """What an engine does by itself at its start, and now and then."""
    as_of = app.retention.confirmed_time()
    return [] if as_of is None else app.retention.clean_up(as_of=as_of)


def ended(app: App) -> str:
    task_id = app.submissions.submit(ask("true"), caller(app)).task.task_id
    app.tasks.cancel(task_id, caller(app))
    return task_id


def test_a_clock_that_leaps_deletes_nothing_also_when_it_is_set_back(app: App, clock: FakeClock) -> None:
    kept = ended(app)
    assert upkeep(app) == []
    clock.advance(400 * 24 * HOUR)
    later = ended(app)  # what is written meanwhile does not make the time true
    assert [upkeep(app) for _ in range(3)] == [[]] * 3
    clock.advance(23 * HOUR)
    assert upkeep(app) == []
    clock.advance(-401 * 24 * HOUR)
    for _ in range(20):
        assert upkeep(app) == []
        clock.advance(6 * HOUR)
    assert {entry.task.task_id for entry in app.queries.list(caller(app), everywhere=True)} == {kept, later}


@pytest.mark.parametrize("days", [1, 2, 7])
def test_a_clock_that_leaps_again_and_again_deletes_nothing(app: App, home: Home, clock: FakeClock, days: int) -> None:
    Path(home.config).write_text(f"[commands]\nretention_days = {days}\n")
    kept = ended(app)
    upkeep(app)
    for leap in (400, 402, 900):
        clock.now = clock.now + leap * 24 * HOUR
        assert [upkeep(app) for _ in range(3)] == [[]] * 3, leap
    clock.advance(-1702 * 24 * HOUR)
    for _ in range(3 * days):
        assert upkeep(app) == []
        clock.advance(6 * HOUR)
    assert [entry.task.task_id for entry in app.queries.list(caller(app), everywhere=True)] == [kept]


def test_the_retention_is_kept_after_a_clock_that_was_ahead_for_days_is_set_right(app: App, clock: FakeClock) -> None:
    upkeep(app)
    clock.advance(400 * 24 * HOUR)
    for _ in range(10):
        upkeep(app)
        clock.advance(24 * HOUR)
    clock.advance(-410 * 24 * HOUR)
    kept = ended(app)
    for _ in range(8):
        assert upkeep(app) == []
        clock.advance(24 * HOUR)
    assert upkeep(app) == [kept]


def test_a_machine_that_was_off_for_long_is_cleaned_up_after_a_week_of_use(app: App, clock: FakeClock) -> None:
    """The time that it was off counts as one day, because a clock that leaps looks the same."""
    gone = ended(app)
    clock.advance(1)
    upkeep(app)
    clock.advance(400 * 24 * HOUR)
    for _ in range(6):
        assert upkeep(app) == []
        clock.advance(24 * HOUR)
    assert upkeep(app) == [gone]


def test_an_engine_that_stays_forgets_what_ended_within_a_day_and_a_few_hours_of_its_time(app: App, clock: FakeClock) -> None:
    gone, hours = ended(app), 0
    while not upkeep(app):
        clock.advance(6 * HOUR)
        hours += 6
    assert 7 * 24 < hours <= 9 * 24
    assert app.queries.list(caller(app), everywhere=True) == [], gone


def test_a_machine_that_is_used_once_a_week_is_cleaned_up(app: App, clock: FakeClock) -> None:
    """Each week counts as one day of use, so it takes seven of them."""
    ended(app)
    clock.advance(1)
    for _ in range(8):
        upkeep(app)
        clock.advance(7 * 24 * HOUR)
    assert app.queries.list(caller(app), everywhere=True) == []


def test_settings_that_cannot_be_read_are_bad_input(home: Home) -> None:
    Path(home.config).unlink()
    Path(home.config).mkdir()
    with pytest.raises(BadInput, match="Cannot read"):
        load_config(home, {})


def test_a_home_is_opened_with_its_settings(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[commands]\nmax_concurrent = 2\n")
    with open_app(str(tmp_path), {"BACKBURNER_COMMANDS_RETENTION_DAYS": "1"}, {"commands.output_cap_mb": "3"}) as app:
        assert [app.config.whole(f"commands.{key}") for key in ("max_concurrent", "retention_days", "output_cap_mb")] == [2, 1, 3]
