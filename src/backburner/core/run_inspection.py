"""The record of what can be observed about a run from outside."""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from backburner.core.progress import Progress


class RunInspection(NamedTuple):
    """Progress, listening ports and created files of a run. `pending_reason` says why a pending run has not started.

    `note` says that all this, and its output, is old because its host does not answer.
    """

    progress: "Progress | None" = None
    ports: tuple[int, ...] = ()
    artifacts: tuple[str, ...] = ()
    pending_reason: str | None = None
    note: str = ""
