"""Interleaved rounds: every candidate runs once in each round, so that load on the machine affects all of them equally.

The order of the candidates rotates with every round.
"""

import sys
from collections.abc import Callable, Mapping

Figures = dict[str, float]
Candidate = Callable[[], "float | Figures"]


def run_rounds(candidates: Mapping[str, Candidate], rounds: int, *, warm_up: bool = True) -> list[Figures]:
    """Return the figures of each round by candidate. A candidate that returns several figures names them itself."""
    names = list(candidates)
    results: list[Figures] = []
    for number in range(-1 if warm_up else 0, rounds):
        first = number % len(names)
        figures: Figures = {}
        for name in names[first:] + names[:first]:
            figure = candidates[name]()
            figures |= figure if isinstance(figure, dict) else {name: figure}
        if number >= 0:
            results.append(figures)
            print(".", end="", file=sys.stderr, flush=True)
    return results
