"""Services with a fake clock: expiry, approval, validation, queries, clearing and retention."""

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from conftest import CAUTIOUS, caller

from backburner.coordination.config_file import ConfigFile, load_config
from backburner.core import ids
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
    home = Home(str(tmp_path / "home")).make()
    Path(home.config).write_text(CAUTIOUS)
    return home


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def app(home: Home, clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """An App whose submissions no engine claims, so that none is started."""
    monkeypatch.chdir(tmp_path)
    with App(home, open_ledger(home.ledger), ConfigFile(home, {}), {}, clock=clock, runner=RUNNER) as opened:
        yield opened


def make_submission(*command: str, **more: object) -> Submission:
    return request(command or ("make",), "/tmp", {"PATH": "/usr/bin:/bin"}, **more)  # type: ignore[arg-type]


def test_a_task_gets_no_folder_that_a_task_of_another_ledger_has(app: App, home: Home) -> None:
    for seconds in range(120):  # until the next line
        Path(home.folder(f"{home.tasks}/{ids.base_id('make', time.time() + seconds)}")).mkdir()
    task_id = app.submissions.submit(make_submission(), caller(app)).task.task_id
    assert task_id.endswith("_make_2")


def ledger_with_faster_process(path: str) -> Ledger:
    """Return a ledger in which another process always records first that a proposal has expired."""
    ledger = open_ledger(path)
    overdue_proposals = ledger.live_work.overdue_proposals

    def expire_in_other_process(now: int) -> Sequence[str]:
        task_ids = overdue_proposals(now)
        other = open_ledger(path)
        for task_id in task_ids:
            other.tasks.refuse(task_id, expired=True, now=now)
        other.close()
        return task_ids

    ledger.live_work.overdue_proposals = expire_in_other_process  # type: ignore[method-assign]
    return ledger


def test_a_proposal_that_another_process_expires_first_is_no_error(home: Home, clock: FakeClock) -> None:
    with App(home, ledger_with_faster_process(home.ledger), ConfigFile(home, {}), {}, clock=clock, runner=RUNNER) as app:
        proposal = app.submissions.submit(make_submission(), caller(app)).task
        clock.advance(25 * HOUR)
        assert app.queries.find(proposal.task_id, caller(app)).status == "expired"


def test_a_proposal_expires_at_its_expiry_time(app: App, clock: FakeClock) -> None:
    proposal = app.submissions.submit(make_submission(), caller(app)).task
    assert proposal.expires_at == clock() + 24 * HOUR
    clock.advance(24 * HOUR - 1)
    assert app.queries.find(proposal.task_id, caller(app)).status == "proposed"
    clock.advance(1)
    assert app.queries.find(proposal.task_id, caller(app)).status == "expired"
    with pytest.raises(IllegalTransition, match="expired and cannot be approved"):
        app.approvals.approve(proposal.task_id, caller(app))


def test_an_approval_creates_a_run_and_a_second_one_is_rejected(app: App) -> None:
    proposal = app.submissions.submit(make_submission(), caller(app)).task
    assert app.approvals.approve(proposal.task_id, caller(app)).status == "pending"
    with pytest.raises(IllegalTransition):
        app.approvals.approve(proposal.task_id, caller(app))
    assert [event.kind for event in app.queries.events(0)] == ["task_proposed", "task_approved"]


def test_a_rejected_proposal_cannot_be_approved_or_cancelled(app: App) -> None:
    proposal = app.submissions.submit(make_submission(), caller(app)).task
    assert app.approvals.reject(proposal.task_id, caller(app)).status == "rejected"
    with pytest.raises(IllegalTransition):
        app.approvals.approve(proposal.task_id, caller(app))
    with pytest.raises(NotRunning):
        app.tasks.cancel(proposal.task_id, caller(app))


def test_a_caller_inside_a_task_cannot_approve(home: Home) -> None:
    with App(home, open_ledger(home.ledger), ConfigFile(home, {}), {"BACKBURNER_TASK_ID": "task_x"}, runner=RUNNER) as app:
        proposal = app.submissions.submit(make_submission(), caller(app)).task
        with pytest.raises(NotAPerson, match="inside the background task task_x"):
            app.approvals.approve(proposal.task_id, caller(app))
        assert app.queries.find(proposal.task_id, caller(app)).status == "proposed"


@pytest.mark.parametrize(
    "submission",
    [
        request((), "/tmp", {}),
        make_submission(""),
        make_submission("  "),
        make_submission("a\0b"),
        make_submission("x" * 131_072),
        make_submission(env={"": "x"}),
        make_submission(env={"A=B": "x"}),
        make_submission(env={"A": "x\0"}),
        make_submission(name="\udcff"),
        make_submission(description="\udcff"),
        make_submission(timeout_ms=0),
        request(("true",), "/no/such/folder", {}),
    ],
)
def test_an_invalid_submission_is_rejected_and_not_stored(app: App, submission: Submission) -> None:
    with pytest.raises(BadInput):
        app.submissions.submit(submission, caller(app))
    assert app.queries.list(caller(app), everywhere=True) == []


@pytest.mark.parametrize("reference", ["", "nothing-like-it", "%", "\udcff"])
def test_a_reference_without_a_match_is_not_found(app: App, reference: str) -> None:
    app.submissions.submit(make_submission(), caller(app))
    with pytest.raises(TaskNotFound):
        app.queries.find(reference, caller(app))


def test_an_ambiguous_reference_lists_the_matches(app: App) -> None:
    first, second = app.submissions.submit(make_submission(), caller(app)).task, app.submissions.submit(make_submission(), caller(app)).task
    with pytest.raises(AmbiguousId) as caught:
        app.queries.find("make", caller(app))
    assert first.task_id in str(caught.value) and second.task_id in str(caught.value)


def test_an_unknown_status_is_rejected(app: App) -> None:
    with pytest.raises(BadInput, match="Unknown status 'strange'"):
        app.queries.list(caller(app), status="strange")


def test_only_finished_tasks_can_be_cleared(app: App) -> None:
    kept = [
        app.submissions.submit(make_submission(), caller(app)).task.task_id,
        app.submissions.submit(make_submission("true"), caller(app)).task.task_id,
    ]
    for task_id in kept:
        with pytest.raises(BadInput, match="only finished tasks can be cleared"):
            app.tasks.clear([task_id], caller(app))
    gone = app.submissions.submit(make_submission(), caller(app)).task.task_id
    app.approvals.reject(gone, caller(app))
    assert app.tasks.clear((), caller(app), ended=True, everywhere=True) == [gone]
    assert {entry.task.task_id for entry in app.queries.list(caller(app), everywhere=True)} == set(kept)


def test_old_finished_tasks_are_deleted_and_live_ones_are_not(app: App, clock: FakeClock) -> None:
    pending, gone = (
        app.submissions.submit(make_submission("true"), caller(app)).task.task_id,
        app.submissions.submit(make_submission("true"), caller(app)).task.task_id,
    )
    app.tasks.cancel(gone, caller(app))
    clock.advance(7 * 24 * HOUR)
    assert app.retention.clean_up() == []
    clock.advance(1)
    assert app.retention.clean_up() == [gone]
    assert [entry.task.task_id for entry in app.queries.list(caller(app), everywhere=True)] == [pending]


def clean_up_like_engine(app: App) -> Sequence[str]:
    """Clean up as the engine does at its start and periodically; returns the ids of deleted tasks."""
    as_of = app.retention.confirmed_time()
    return [] if as_of is None else app.retention.clean_up(as_of=as_of)


def create_ended_task(app: App) -> str:
    task_id = app.submissions.submit(make_submission("true"), caller(app)).task.task_id
    app.tasks.cancel(task_id, caller(app))
    return task_id


def test_a_clock_that_jumps_ahead_and_back_deletes_nothing(app: App, clock: FakeClock) -> None:
    kept = create_ended_task(app)
    assert clean_up_like_engine(app) == []
    clock.advance(400 * 24 * HOUR)
    later = create_ended_task(app)  # writes in the meantime do not confirm the time
    assert [clean_up_like_engine(app) for _ in range(3)] == [[]] * 3
    clock.advance(23 * HOUR)
    assert clean_up_like_engine(app) == []
    clock.advance(-401 * 24 * HOUR)
    for _ in range(20):
        assert clean_up_like_engine(app) == []
        clock.advance(6 * HOUR)
    assert {entry.task.task_id for entry in app.queries.list(caller(app), everywhere=True)} == {kept, later}


@pytest.mark.parametrize("days", [1, 2, 7])
def test_a_clock_that_jumps_repeatedly_deletes_nothing(app: App, home: Home, clock: FakeClock, days: int) -> None:
    Path(home.config).write_text(f"[commands]\nretention_days = {days}\n")
    kept = create_ended_task(app)
    clean_up_like_engine(app)
    for leap in (400, 402, 900):
        clock.now = clock.now + leap * 24 * HOUR
        assert [clean_up_like_engine(app) for _ in range(3)] == [[]] * 3, leap
    clock.advance(-1702 * 24 * HOUR)
    for _ in range(3 * days):
        assert clean_up_like_engine(app) == []
        clock.advance(6 * HOUR)
    assert [entry.task.task_id for entry in app.queries.list(caller(app), everywhere=True)] == [kept]


def test_retention_applies_after_a_clock_that_was_ahead_is_corrected(app: App, clock: FakeClock) -> None:
    clean_up_like_engine(app)
    clock.advance(400 * 24 * HOUR)
    for _ in range(10):
        clean_up_like_engine(app)
        clock.advance(24 * HOUR)
    clock.advance(-410 * 24 * HOUR)
    kept = create_ended_task(app)
    for _ in range(8):
        assert clean_up_like_engine(app) == []
        clock.advance(24 * HOUR)
    assert clean_up_like_engine(app) == [kept]


def test_a_machine_that_was_off_for_a_year_is_cleaned_up_after_a_week(app: App, clock: FakeClock) -> None:
    """The time that it was off counts as one day, because it looks the same as a clock that jumps."""
    gone = create_ended_task(app)
    clock.advance(1)
    clean_up_like_engine(app)
    clock.advance(400 * 24 * HOUR)
    for _ in range(6):
        assert clean_up_like_engine(app) == []
        clock.advance(24 * HOUR)
    assert clean_up_like_engine(app) == [gone]


def test_a_clean_up_that_is_interrupted_keeps_what_it_has_done(app: App, clock: FakeClock) -> None:
    for _ in range(250):
        create_ended_task(app)
    clock.advance(30 * 24 * HOUR)
    batches = app.retention.clean_up_batches()
    assert len(next(batches)) == 100
    batches.close()  # type: ignore[attr-defined]
    assert len(app.queries.list(caller(app), everywhere=True)) == 150
    assert len(app.retention.clean_up()) == 150
    assert {event.kind for event in app.queries.events(0)} == {"task_cleared"}


def test_a_running_engine_deletes_tasks_within_two_days_after_retention(app: App, clock: FakeClock) -> None:
    gone, hours = create_ended_task(app), 0
    while not clean_up_like_engine(app):
        clock.advance(6 * HOUR)
        hours += 6
    assert 7 * 24 < hours <= 9 * 24
    assert app.queries.list(caller(app), everywhere=True) == [], gone


def test_a_machine_that_is_used_once_a_week_is_cleaned_up(app: App, clock: FakeClock) -> None:
    """Each week counts as one day of use, so that clean-up takes seven weeks."""
    create_ended_task(app)
    clock.advance(1)
    for _ in range(8):
        clean_up_like_engine(app)
        clock.advance(7 * 24 * HOUR)
    assert app.queries.list(caller(app), everywhere=True) == []


def test_an_unreadable_config_file_is_bad_input(home: Home) -> None:
    Path(home.config).unlink()
    Path(home.config).mkdir()
    with pytest.raises(BadInput, match="Cannot read"):
        load_config(home, {})


def test_open_app_reads_settings_from_file_environment_and_flags(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[commands]\nmax_concurrent = 2\n")
    with open_app(str(tmp_path), {"BACKBURNER_COMMANDS_RETENTION_DAYS": "1"}, {"commands.output_cap_mb": "3"}) as app:
        assert [app.config.whole(f"commands.{key}") for key in ("max_concurrent", "retention_days", "output_cap_mb")] == [2, 1, 3]


def test_in_a_home_above_its_limit_the_oldest_output_goes_first(app: App, home: Home, clock: FakeClock) -> None:
    tasks = [create_ended_task(app) for _ in range(4)]
    live = app.submissions.submit(make_submission("true"), caller(app)).task.task_id
    for task_id in (*tasks, live):
        folder = Path(home.root, "tasks", task_id)
        (folder / "work").mkdir(parents=True, exist_ok=True)
        (folder / "output.log").write_bytes(b"x" * (1 << 20))
        (folder / "work" / "file").write_bytes(b"x" * (1 << 20))
        (folder / "conversation.json").write_text("[]")
    Path(home.config).write_text(f"[commands]\nhome_limit_gb = {9 / 1024}\n")
    app.config_file.reload_if_changed()
    for _ in range(2):
        for _ in app.retention.limit_size_batches():
            pass
    logs = {task_id: Path(home.root, "tasks", task_id, "output.log").read_bytes()[:50] for task_id in (*tasks, live)}
    assert [log.startswith(b"[backburner: the output was removed") for log in logs.values()] == [True, True, False, False, False]
    removed = Path(home.root, "tasks", tasks[0])
    assert (removed / "conversation.json").exists() and not (removed / "work").exists()
    assert [event.kind for event in app.queries.events(0)].count("output_removed") == 1
    (notice,) = [notice for notice in app.inbox.notices() if notice.kind == "removed"]
    assert "removed the output of 2 runs that ended first" in notice.text and tasks[1] in notice.text


def test_without_a_limit_no_output_is_removed(app: App, home: Home) -> None:
    Path(home.config).write_text("[commands]\nhome_limit_gb = 0\n")
    app.config_file.reload_if_changed()
    assert list(app.retention.limit_size_batches()) == []
