"""What can be seen of a run from outside."""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from backburner.core.progress import Progress


class RunInspection(NamedTuple):
    """What can be seen of a task from outside. `waits_for` is why a pending one has not started."""

    progress: "Progress | None" = None
    ports: tuple[int, ...] = ()
    artifacts: tuple[str, ...] = ()
    pending_reason: str | None = None
