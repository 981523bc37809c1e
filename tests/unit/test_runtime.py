"""The verbs where doors meet at the same moment, and what they refuse before anything is stored."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from backburner.coordination.config_file import load_config
from backburner.core.errors import AmbiguousId, BadInput, IllegalTransition, NotAPerson, NotRunning, TaskNotFound
from backburner.core.models import Submission
from backburner.core.settings import resolve
from backburner.services.runtime import Runtime, open_runtime
from backburner.store.sqlite import SQLiteStore
from backburner.system.home import Home
from backburner.system.processes import myself
from backburner.testing import FakeClock

RUNNER = f"{myself()}:test"
HOUR = 3_600_000


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(str(tmp_path / "home")).make()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def runtime(home: Home, clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """A door that keeps what it submits for itself, so that no engine is needed."""
    monkeypatch.chdir(tmp_path)
    with Runtime(home, SQLiteStore(home.ledger), resolve(), {}, clock=clock, runner=RUNNER) as one:
        yield one


def ask(*command: str, **more: object) -> Submission:
    return Submission(command or ("make",), "/tmp", {"PATH": "/usr/bin:/bin"}, **more)  # type: ignore[arg-type]


class LateStore(SQLiteStore):
    """A ledger in which another door is always a moment quicker to see a proposal expire."""

    def overdue_proposals(self, now: int) -> Sequence[str]:
        found = super().overdue_proposals(now)
        other = SQLiteStore(self.path)
        for task_id in found:
            other.refuse(task_id, expired=True, now=now)
        other.close()
        return found


def test_a_proposal_that_another_door_expires_at_the_same_moment_is_no_error(home: Home, clock: FakeClock) -> None:
    with Runtime(home, LateStore(home.ledger), resolve(), {}, clock=clock, runner=RUNNER) as runtime:
        proposal = runtime.submit(ask()).task
        clock.advance(25 * HOUR)
        assert runtime.show(proposal.task_id).status == "expired"


def test_a_proposal_expires_when_its_time_is_over_and_not_before(runtime: Runtime, clock: FakeClock) -> None:
    proposal = runtime.submit(ask()).task
    assert proposal.expires_at == clock() + 24 * HOUR
    clock.advance(24 * HOUR - 1)
    assert runtime.show(proposal.task_id).status == "proposed"
    clock.advance(1)
    assert runtime.show(proposal.task_id).status == "expired"
    with pytest.raises(IllegalTransition, match="expired cannot become approved"):
        runtime.approve(proposal.task_id, via="library")


def test_a_yes_makes_a_run_and_a_second_yes_is_refused(runtime: Runtime) -> None:
    proposal = runtime.submit(ask()).task
    assert runtime.approve(proposal.task_id, via="library").status == "pending"
    with pytest.raises(IllegalTransition):
        runtime.approve(proposal.task_id, via="library")
    assert [event.kind for event in runtime.events(0)] == ["task_proposed", "task_approved"]


def test_a_no_ends_it(runtime: Runtime) -> None:
    proposal = runtime.submit(ask()).task
    assert runtime.reject(proposal.task_id).status == "rejected"
    with pytest.raises(IllegalTransition):
        runtime.approve(proposal.task_id, via="library")
    with pytest.raises(NotRunning):
        runtime.cancel(proposal.task_id)


def test_inside_a_task_nobody_is_a_person(home: Home) -> None:
    with Runtime(home, SQLiteStore(home.ledger), resolve(), {"BACKBURNER_TASK_ID": "task_x"}, runner=RUNNER) as runtime:
        proposal = runtime.submit(ask()).task
        with pytest.raises(NotAPerson, match="inside the background task task_x"):
            runtime.approve(proposal.task_id, via="library")
        assert runtime.show(proposal.task_id).status == "proposed"


@pytest.mark.parametrize(
    "submission",
    [
        Submission((), "/tmp", {}),
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
        Submission(("true",), "/no/such/folder", {}),
    ],
)
def test_what_cannot_be_run_is_refused_and_nothing_is_stored(runtime: Runtime, submission: Submission) -> None:
    with pytest.raises(BadInput):
        runtime.submit(submission)
    assert runtime.list(everywhere=True) == []


@pytest.mark.parametrize("reference", ["", "nothing-like-it", "%", "\udcff"])
def test_a_reference_that_means_nothing_finds_nothing(runtime: Runtime, reference: str) -> None:
    runtime.submit(ask())
    with pytest.raises(TaskNotFound):
        runtime.show(reference)


def test_a_reference_that_means_several_lists_them(runtime: Runtime) -> None:
    first, second = runtime.submit(ask()).task, runtime.submit(ask()).task
    with pytest.raises(AmbiguousId) as caught:
        runtime.show("make")
    assert first.task_id in str(caught.value) and second.task_id in str(caught.value)


def test_a_status_that_does_not_exist_is_refused(runtime: Runtime) -> None:
    with pytest.raises(BadInput, match="There is no status 'strange'"):
        runtime.list(status="strange")


def test_only_what_has_ended_can_be_cleared(runtime: Runtime) -> None:
    kept = [runtime.submit(ask()).task.task_id, runtime.submit(ask("true")).task.task_id]
    for task_id in kept:
        with pytest.raises(BadInput, match="only what has ended can be cleared"):
            runtime.clear([task_id])
    gone = runtime.submit(ask()).task.task_id
    runtime.reject(gone)
    assert runtime.clear(ended=True, everywhere=True) == [gone]
    assert {entry.task.task_id for entry in runtime.list(everywhere=True)} == set(kept)


def test_what_ended_long_ago_is_forgotten_and_what_lives_never(runtime: Runtime, clock: FakeClock) -> None:
    pending, gone = runtime.submit(ask("true")).task.task_id, runtime.submit(ask("true")).task.task_id
    runtime.cancel(gone)
    clock.advance(7 * 24 * HOUR)
    assert runtime.clean_up() == []
    clock.advance(1)
    assert runtime.clean_up() == [gone]
    assert [entry.task.task_id for entry in runtime.list(everywhere=True)] == [pending]


def upkeep(runtime: Runtime) -> Sequence[str]:
    """What an engine does by itself at its start, and now and then."""
    as_of = runtime.confirmed_time()
    return [] if as_of is None else runtime.clean_up(as_of=as_of)


def ended(runtime: Runtime) -> str:
    task_id = runtime.submit(ask("true")).task.task_id
    runtime.cancel(task_id)
    return task_id


def test_a_clock_that_leaps_deletes_nothing_also_when_it_is_set_back(runtime: Runtime, clock: FakeClock) -> None:
    kept = ended(runtime)
    assert upkeep(runtime) == []
    clock.advance(400 * 24 * HOUR)
    later = ended(runtime)  # what is written meanwhile does not make the time true
    assert [upkeep(runtime) for _ in range(3)] == [[]] * 3
    clock.advance(23 * HOUR)
    assert upkeep(runtime) == []
    clock.advance(-401 * 24 * HOUR)
    for _ in range(20):
        assert upkeep(runtime) == []
        clock.advance(6 * HOUR)
    assert {entry.task.task_id for entry in runtime.list(everywhere=True)} == {kept, later}


def test_a_machine_that_was_off_for_long_is_cleaned_up_a_day_later(runtime: Runtime, clock: FakeClock) -> None:
    gone = ended(runtime)
    upkeep(runtime)
    clock.advance(400 * 24 * HOUR)
    assert upkeep(runtime) == []
    clock.advance(24 * HOUR)
    assert upkeep(runtime) == [gone]


def test_an_engine_that_stays_forgets_what_ended_within_a_day_and_a_few_hours_of_its_time(runtime: Runtime, clock: FakeClock) -> None:
    gone, hours = ended(runtime), 0
    while not upkeep(runtime):
        clock.advance(6 * HOUR)
        hours += 6
    assert 7 * 24 < hours <= 9 * 24
    assert runtime.list(everywhere=True) == [], gone


def test_a_machine_that_is_used_once_a_week_is_cleaned_up(runtime: Runtime, clock: FakeClock) -> None:
    ended(runtime)
    for _ in range(4):
        upkeep(runtime)
        clock.advance(7 * 24 * HOUR)
    assert runtime.list(everywhere=True) == []


def test_settings_that_cannot_be_read_are_bad_input(home: Home) -> None:
    Path(home.config).unlink()
    Path(home.config).mkdir()
    with pytest.raises(BadInput, match="cannot be read"):
        load_config(home, {})


def test_a_home_is_opened_with_its_settings(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[commands]\nmax_concurrent = 2\n")
    with open_runtime(str(tmp_path), {"BACKBURNER_COMMANDS_RETENTION_DAYS": "1"}, {"commands.output_cap_mb": "3"}) as runtime:
        assert [runtime.config.whole(f"commands.{key}") for key in ("max_concurrent", "retention_days", "output_cap_mb")] == [2, 1, 3]
