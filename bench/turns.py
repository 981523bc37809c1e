"""Rounds in which everybody takes a turn, so that a busy machine is equally busy for all; the order moves on with every round."""

import sys
from collections.abc import Callable, Mapping

Figures = dict[str, float]
Contestant = Callable[[], "float | Figures"]


def take_turns(contestants: Mapping[str, Contestant], rounds: int, *, warm_up: bool = True) -> list[Figures]:
    """The figures of each round by contestant; one that gives several figures names them itself."""
    names = list(contestants)
    found: list[Figures] = []
    for number in range(-1 if warm_up else 0, rounds):
        first = number % len(names)
        figures: Figures = {}
        for name in names[first:] + names[:first]:
            figure = contestants[name]()
            figures |= figure if isinstance(figure, dict) else {name: figure}
        if number >= 0:
            found.append(figures)
            print(".", end="", file=sys.stderr, flush=True)
    return found
