"""Ledger reads for `doctor`. Works even if no App can be opened, and changes nothing."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from backburner.core.models import Run, RunFolder
from backburner.core.notices import Notice

if TYPE_CHECKING:
    from backburner.coordination.config_file import ConfigFile
    from backburner.store.ledger import Ledger
    from backburner.system.home import Home


class Health:
    """Reads one ledger. Must be closed."""

    def __init__(self, ledger: "Ledger") -> None:
        self._ledger = ledger
        self.close = ledger.close

    def damage(self, seconds: float | None) -> Sequence[str] | None:
        """Return the problems that the database's own integrity check finds; None if it took longer than `seconds`."""
        return self._ledger.check(seconds)

    def server_settings(self) -> Mapping[str, str]:
        """Return what is known about the server of a ledger on Postgres; empty for a file."""
        return self._ledger.database.server_settings()

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

    def newest_folders(self, limit: int | None) -> Sequence[RunFolder]:
        """Return the folders of the newest runs, or of all."""
        return self._ledger.records.newest_folders(limit)

    def folders_of(self, run_ids: Sequence[str]) -> Sequence[RunFolder]:
        """Return the folders of these runs."""
        return self._ledger.records.folders_of(run_ids)


def open_health(home: "Home", config: "ConfigFile") -> Health:
    """Open the ledger of a home; LedgerUnavailable or LedgerTooNew if that is not possible."""
    from backburner.coordination.ledger_file import open_home_ledger

    return Health(open_home_ledger(home, config))
