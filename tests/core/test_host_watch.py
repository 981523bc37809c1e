"""When a host counts as silent, by the clock of the one that watches it; and who leads."""

from typing import Any

from backburner.core.hosts import Host, HostState, HostWatch, leader_of

LEASE, LOST = 8.0, 600.0


def host(host_id: str = "b", beat: int = 0, state: HostState = HostState.ACTIVE, **more: Any) -> Host:
    return Host(host_id, f"host {host_id}", state, 1, beat, 0, 0, **more)


def watched(*reads: tuple[float, Host]) -> HostWatch:
    watch = HostWatch("a", LEASE)
    for at, found in reads:
        watch.note([host("a"), found], at, at)
    return watch


def every(seconds: float, until: float, found: Host, start: float = 0.0) -> list[tuple[float, Host]]:
    return [(start + n * seconds, found) for n in range(int((until - start) / seconds) + 1)]


def test_a_host_is_silent_after_a_lease_without_a_beat() -> None:
    assert watched(*every(2, 6, host())).silent() == [] and watched(*every(2, 8, host())).silent() == [host()]


def test_a_beat_or_a_new_epoch_starts_the_lease_anew() -> None:
    assert watched(*every(2, 6, host()), *every(2, 14, host(beat=1), start=8)).silent() == []
    assert watched(*every(2, 6, host()), *every(2, 14, host()._replace(epoch=2), start=8)).silent() == []
    assert watched(*every(2, 6, host()), *every(2, 16, host(beat=1), start=8)).silent() == [host(beat=1)]


def test_nobody_is_silent_if_the_ledger_could_not_be_reached_meanwhile() -> None:
    assert watched(*every(2, 6, host()), *every(2, 16, host(), start=10)).silent() == []
    assert watched(*every(2, 6, host()), *every(2, 18, host(), start=10)).silent() == [host()]


def test_the_time_in_which_a_read_was_on_its_way_counts_for_the_other_host() -> None:
    watch = HostWatch("a", LEASE)
    for n in range(5):
        watch.note([host()], 2.0 * n, 2.0 * n + 1)
    assert watch.silent() == []
    watch.note([host()], 10.0, 11.0)
    assert watch.silent() == [host()]


def test_the_time_at_which_a_host_will_be_silent_is_known_before() -> None:
    assert HostWatch("a", LEASE).next_silent_at() == float("inf")
    assert watched(*every(2, 5, host(), start=1)).next_silent_at() == 1 + LEASE
    assert watched(*every(2, 5, host(), start=1), (7, host(beat=1))).next_silent_at() == 7 + LEASE
    assert watched((1, host(state=HostState.LEFT))).next_silent_at() == float("inf")


def test_hosts_that_left_or_are_suspected_are_not_suspected_again() -> None:
    for state in (HostState.LEFT, HostState.SUSPECTED, HostState.FENCED):
        assert watched(*every(2, 20, host(state=state))).silent() == []


def test_a_suspected_host_is_overdue_after_some_minutes_even_if_the_ledger_was_away_for_a_while() -> None:
    suspected = host(state=HostState.SUSPECTED)
    assert watched(*every(2, 598, suspected)).overdue(LOST) == [] and watched(*every(2, 600, suspected)).overdue(LOST) == [suspected]
    assert watched(*every(2, 20, suspected), *every(2, 606, suspected, start=600)).overdue(LOST) == []  # it had no chance to say anything
    assert watched(*every(2, 20, suspected), *every(2, 608, suspected, start=600)).overdue(LOST) == [suspected]


def test_the_leader_is_one_of_the_active_hosts() -> None:
    assert leader_of([host("c"), host("b"), host("a", state=HostState.SUSPECTED)]) == "b"
    assert leader_of([host(state=HostState.LEFT)]) == ""
