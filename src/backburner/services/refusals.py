"""Remembers tasks that a person rejected (for a day) or cancelled (for a year), so that agents cannot submit them again."""

from collections.abc import Sequence

from backburner.core.digests import sha256
from backburner.core.errors import ApprovalDenied
from backburner.core.light_typing import TYPE_CHECKING
from backburner.core.models import Clock, Submission, Task
from backburner.system.paths import project_of

if TYPE_CHECKING:
    from backburner.core.store_ports import RefusalStore

REJECTED, DELETED = "rejected", "deleted"
_REJECTION_PERIOD_MS = 24 * 3_600_000
_DELETION_PERIOD_MS = 365 * 86_400_000


class Refusals:
    """Refused tasks, recognised by their name or by what they do."""

    def __init__(self, refusal_store: "RefusalStore", clock: Clock) -> None:
        self._refusal_store, self._clock = refusal_store, clock

    def record(self, task: Task, why: str) -> None:
        """Remember that a person refused a recurring or proposed task; `why` is REJECTED or DELETED."""
        if task.is_recurring or task.decision.rule == "proposal":
            self._refusal_store.record(task, _digest(task.spec.command.words, task.spec.prompt), why, self._clock())

    def require_not_refused(self, submission: Submission, *, by_agent: bool) -> None:
        """Raise ApprovalDenied if an agent submits a task again that a person refused."""
        if not by_agent or not (submission.is_recurring or submission.proposed):
            return
        now, digest = self._clock(), _digest(submission.spec.command.words, submission.spec.prompt)
        project, name = project_of(submission.spec.cwd), submission.spec.name or ""
        if self._refusal_store.refused_since(project, name, digest, now - _DELETION_PERIOD_MS, DELETED) is not None:
            raise ApprovalDenied(reason=f"the user cancelled '{name}'; only they can add it again")
        if self._refusal_store.refused_since(project, name, digest, now - _REJECTION_PERIOD_MS, REJECTED) is not None:
            raise ApprovalDenied(reason=f"the user rejected '{name}' less than 24 hours ago; do not propose it again yet")


def _digest(command: Sequence[str], prompt: str) -> str:
    """Return a hash of what a task does, independent of its name and of whether it uses a shell."""
    words = " ".join(" ".join(command).split())
    return sha256(f"{words}\0{' '.join(prompt.split()).casefold()}".encode("utf-8", "surrogateescape")).hexdigest()
