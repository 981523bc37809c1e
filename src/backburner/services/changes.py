"""Shows what a sandboxed command has changed in its copy of a project, and applies it after a person has approved exactly that."""

import os
from typing import NamedTuple

from backburner.core.errors import BadInput, ChangesConflict, ChangesDiffer
from backburner.core.formatting import short_fingerprint
from backburner.core.models import Caller, Entry
from backburner.core.sandbox import View, sandbox_from
from backburner.core.terminal_text import visible
from backburner.services.identity import Identity
from backburner.services.queries import Queries
from backburner.system import overlay, run_files
from backburner.system.home import Home

_MAX_DIFF_BYTES = 1 << 20


class KeptChanges(NamedTuple):
    """The changes of one run that were not applied, with the fingerprint that an approval is bound to."""

    entry: Entry
    project: str
    upper: str
    found: list[overlay.Change]
    fingerprint: str

    def diff(self, max_bytes: int = _MAX_DIFF_BYTES) -> str:
        return overlay.diff(self.upper, self.project, self.found, max_bytes)


class Changes:
    """The changes that sandboxed commands made to copies of projects."""

    def __init__(self, home: Home, queries: Queries, identity: Identity) -> None:
        self._home, self._queries, self._identity = home, queries, identity

    def kept(self, reference: str, caller: Caller) -> KeptChanges:
        """The changes of the latest run of a task. BadInput if there are none."""
        entry = self._queries.find(reference, caller)
        task_id, run = entry.task.task_id, entry.run
        sandbox = sandbox_from(run.sandbox) if run and run.sandbox else None
        if run is None or sandbox is None or sandbox.view is not View.COPY or not sandbox.project:
            raise BadInput(f"Task {task_id} did not run in a copy of its project, so there are no changes to apply.")
        if entry.is_live:
            raise BadInput(f"Task {task_id} is still {entry.status}; its changes can be applied when it has ended.")
        upper = os.path.join(self._home.folder(run.folder), run_files.CHANGES, "upper")
        try:
            found = overlay.changes(upper, sandbox.project) if os.path.isdir(upper) else []
        except overlay.TooManyChanges as error:
            raise BadInput(f"The changes of task {task_id} cannot be applied: {error}.") from None
        if not found:
            raise BadInput(f"Task {task_id} has no changes that are not applied yet.")
        return KeptChanges(entry, sandbox.project, upper, found, overlay.fingerprint(upper, sandbox.project, found))

    def apply(self, kept: KeptChanges, caller: Caller, *, seen: str | None = None) -> int:
        """Apply changes that a person has seen; returns their number. Applies nothing if the project has changed meanwhile."""
        self._identity.require_person(caller)
        task_id, run = kept.entry.task.task_id, kept.entry.run
        now = overlay.fingerprint(kept.upper, kept.project, kept.found)
        if not now.startswith(seen or kept.fingerprint):
            raise ChangesDiffer(task_id=task_id, seen=short_fingerprint(now))
        started_at = run.started_at if run and run.started_at is not None else 0
        conflicts = overlay.apply(kept.upper, kept.project, kept.found, started_at * 1_000_000)
        if conflicts:
            raise ChangesConflict(task_id=task_id, paths=", ".join(map(visible, conflicts[:10])))
        return len(kept.found)
