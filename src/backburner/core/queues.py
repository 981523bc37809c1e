"""Names of run queues, as in `runs.runner`: which process claims a run, and on which hosts.

A queue has a base, `engine`, `agents` or `agents:local`, and a place: empty in a ledger file, where this home is the only one;
`@HOST_ID` for one host; `/LANE` for every host that serves a lane. A program that runs its own commands is no queue: its runner
begins with its process id.
"""

from itertools import combinations

from backburner.core.light_typing import TYPE_CHECKING
from backburner.core.models import AGENT_LANE, ENGINE, LOCAL_AGENT_LANE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

BASES = (AGENT_LANE, ENGINE, LOCAL_AGENT_LANE)
MAX_LABELS = 6
_SEPARATOR = "+"
_LABEL_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:-")
_MAX_LABEL_CHARACTERS = 64


def base_of(runner: str) -> str:
    """The base of a queue; empty if the runner is not a queue."""
    if runner in BASES:
        return runner
    base = runner[: len(runner) - len(place_of(runner))]
    return base if base in BASES else ""


def place_of(runner: str) -> str:
    """The place of a queue: empty, `@HOST_ID` or `/LANE`."""
    starts = [start for start in (runner.find("@"), runner.find("/")) if start >= 0]
    return runner[min(starts) :] if starts else ""


def is_queue(runner: str) -> bool:
    """Whether a daemon of Backburner claims the runs, and not a program that embeds it."""
    return base_of(runner) != ""


def is_for_agents(runner: str) -> bool:
    """Whether the agent process claims the runs."""
    return base_of(runner) in (AGENT_LANE, LOCAL_AGENT_LANE)


def lane_of(place_or_runner: str) -> str:
    """The lane of a place or of a queue; empty if it is not for a lane."""
    place = place_of(place_or_runner)
    return place[1:] if place[:1] == "/" else ""


def host_of(place_or_runner: str) -> str:
    """The host that a place or a queue is for; empty if it is not for one host."""
    place = place_of(place_or_runner)
    return place[1:] if place[:1] == "@" else ""


def at(runner: str, place: str) -> str:
    """The queue with this base at a place. A runner that has a place, or is a program, stays the same."""
    return runner + place if place and runner in BASES else runner


def at_host(runner: str, host_id: str) -> str:
    """The queue with this base on one host. In a ledger file (`host_id` is empty), and for a runner that has a place, the runner itself."""
    return f"{runner}@{host_id}" if host_id and runner in BASES else runner


def is_label(text: str) -> bool:
    """Whether a text can be a label of a lane."""
    return 0 < len(text) <= _MAX_LABEL_CHARACTERS and _LABEL_CHARACTERS.issuperset(text)


def lane_name(labels: "Iterable[str]") -> str:
    """The lane of runs that need all these labels."""
    return _SEPARATOR.join(sorted(set(labels)))


def labels_of(lane: str) -> "Sequence[str]":
    """The labels that a lane needs."""
    return lane.split(_SEPARATOR)


def lanes_served(labels: "Iterable[str]") -> "Sequence[str]":
    """Every lane that a host with these labels serves: one for each combination of them."""
    known = sorted(set(labels))
    return [lane_name(chosen) for size in range(1, len(known) + 1) for chosen in combinations(known, size)]
