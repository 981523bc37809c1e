"""Ledger reads for `doctor`. Works even if no App can be opened, and changes nothing."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from backburner.core.models import Entry, Run
from backburner.core.notices import Notice

if TYPE_CHECKING:
    from backburner.store.ledger import Ledger
    from backburner.system.home import Home

_ALL_RUNS = 100_000


class Health:
    """Reads one ledger. Must be closed."""

    def __init__(self, ledger: "Ledger") -> None:
        self._ledger = ledger
        self.close = ledger.close

    def damage(self) -> Sequence[str]:
        """Return the problems that the database's own integrity check finds."""
        return self._ledger.check()

    def live_runs(self) -> Sequence[Run]:
        """Every run that has not ended."""
        return self._ledger.live_work.live_runs()

    def delay_reason(self) -> str | None:
        """Why a claimed run cannot be started yet."""
        return self._ledger.live_work.delayed_because()

    def failed_deliveries(self) -> Sequence[Notice]:
        """The notices that could not be delivered."""
        return self._ledger.deliveries.failed()

    def broken_sources(self) -> dict[str, str]:
        """The tasks whose sources cannot be watched, with the reasons."""
        return self._ledger.triggers.broken_sources()

    def tasks(self) -> Sequence[Entry]:
        """Every task."""
        return self._ledger.queries.list(status=None, project=None, limit=None)

    def runs_of(self, entry: Entry) -> Sequence[Run]:
        """Every run of a task."""
        return self._ledger.queries.history(entry.task.task_id, _ALL_RUNS)


def open_health(home: "Home") -> Health:
    """Open the ledger of a home; LedgerUnavailable or LedgerTooNew if that is not possible."""
    from backburner.coordination.ledger_file import open_home_ledger

    return Health(open_home_ledger(home))
