"""What the stream reads at once when many tasks change, what it puts off, and that nothing is left out in the end."""

import random

from backburner.interfaces.web.backlog import MAX_BEHIND, MAX_LOOKS_BEHIND, ROWS_AT_ONCE, Backlog

Events = list[tuple[int, str, str | None]]


def events(kind: str, *task_ids: str) -> Events:
    return [(0, kind, task_id) for task_id in task_ids]


def tasks(count: int, name: str = "task") -> list[str]:
    return [f"{name}_{number}" for number in range(count)]


def test_a_few_changes_are_read_at_once() -> None:
    backlog = Backlog()
    found = backlog.choose([*events("task_submitted", *tasks(ROWS_AT_ONCE)), (0, "device_paired", None)], ())
    assert (sorted(found.now), found.later, found.changed) == (sorted(tasks(ROWS_AT_ONCE)), [], ROWS_AT_ONCE)
    assert backlog.is_empty


def test_of_many_changes_the_last_are_read_and_the_others_when_there_is_time_the_last_first() -> None:
    backlog, all_tasks = Backlog(), tasks(3 * ROWS_AT_ONCE)
    found = backlog.choose(events("task_done", *all_tasks), ())
    assert found.now == all_tasks[-ROWS_AT_ONCE:] and found.later == all_tasks[:-ROWS_AT_ONCE]
    assert not backlog.is_empty
    assert backlog.choose([], ()).now == all_tasks[ROWS_AT_ONCE : 2 * ROWS_AT_ONCE][::-1]
    assert backlog.choose(events("task_done", "new"), ()).now == ["new", *all_tasks[1:ROWS_AT_ONCE][::-1]]
    assert backlog.choose([], ()).now == [all_tasks[0]]
    assert backlog.is_empty


def test_tasks_that_somebody_looks_at_or_that_may_wait_for_a_person_are_never_put_off() -> None:
    many, asking = tasks(500), tasks(2 * ROWS_AT_ONCE, "asks")
    found = Backlog().choose(
        [*events("run_started", "watched"), *events("task_proposed", *asking), *events("task_done", *many)], {"watched"}
    )
    assert {"watched", *asking} == set(found.now)
    assert found.later == many


def test_a_task_that_has_started_is_read_before_those_that_ended_and_those_before_queued_ones() -> None:
    started = events("run_started", *tasks(2, "started"))
    ended = [*events("run_started", *tasks(5, "ended")), *events("run_completed", *tasks(5, "ended"))]
    found = Backlog().choose([*started, *ended, *events("task_submitted", *tasks(100))], ())
    assert {*tasks(2, "started"), *tasks(5, "ended")} < set(found.now)


def test_after_too_many_changes_everything_is_loaded_again_when_the_flood_is_over() -> None:
    backlog = Backlog()
    for number in range(5):
        found = backlog.choose(events("task_done", *tasks(MAX_BEHIND, str(number))), ())
        assert len(found.now) == ROWS_AT_ONCE and not found.must_reset
    assert not backlog.is_empty
    found = backlog.choose(events("task_done", "last"), ())
    assert found.now == ["last"] and found.must_reset
    assert backlog.is_empty


def test_a_flood_that_does_not_end_is_loaded_again_from_time_to_time() -> None:
    backlog = Backlog()
    resets = [backlog.choose(events("task_done", *tasks(500, str(number))), ()).must_reset for number in range(3 * MAX_LOOKS_BEHIND)]
    assert resets.count(True) == 2


def test_what_could_not_be_read_is_loaded_again() -> None:
    backlog = Backlog()
    backlog.choose(events("task_done", "task"), ())
    backlog.lose()
    assert backlog.choose([], ()).must_reset


def test_every_change_is_read_or_loaded_afterwards_whatever_the_order() -> None:
    for seed in range(200):
        draw = random.Random(seed)
        backlog, known, looks = Backlog(), dict.fromkeys(tasks(300), 0), 0
        versions = dict(known)
        while not (looks > 30 and backlog.is_empty):
            looks += 1
            changed = draw.sample(sorted(versions), draw.choice((0, 1, 5, 40, 200))) if looks <= 30 else []
            for task_id in changed:
                versions[task_id] += 1
            kind = draw.choice(("task_submitted", "run_started", "task_done"))
            found = backlog.choose(events(kind, *changed), draw.sample(sorted(versions), 3))
            assert set(changed) <= {*found.now, *found.later} or found.must_reset
            known = dict(versions) if found.must_reset else {**known, **{task_id: versions[task_id] for task_id in found.now}}
            assert looks < 100
        assert known == versions
