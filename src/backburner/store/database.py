"""The database interface that the repositories use. Each adapter has its own file: `sqlite.py` and `postgres.py`.

A repository is written once, in SQL that every adapter understands: `?` for values, no comparison that depends on text order,
and no feature that only one database has. Where two databases must differ, the difference is a method here.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol


class Notifications(Protocol):
    """Hears what other hosts announce."""

    def subscribe(self, channel: str, heard: Callable[[str], None]) -> Callable[[], None]:
        """Call `heard`, in another thread, for every notification; returns a function that ends the subscription.

        An empty payload means that something may have been missed before.
        """
        ...


class Database(Protocol):
    """One connection to a ledger. Not thread-safe."""

    upgraded: bool  # whether opening it migrated an older ledger to the current version
    dialect: str
    ask_password: Callable[[str], str | None]  # of a database user, from the person at the terminal; None if nobody can be asked
    reuses_ids: bool  # whether the number of a deleted row may be given to a new one
    host_id: str  # the host that uses this connection; empty for a file, which belongs to one home
    epoch: int | None  # of that host, if this process enrolled it
    host_environment: Mapping[str, str]  # for runs that were submitted on another host, whose environment stays there

    @property
    def notifications(self) -> Notifications | None:
        """What other hosts announce; None for a file, which no other host uses."""
        ...

    def execute(self, sql: str, params: Sequence[object] = ()) -> list[tuple]:
        """Run a statement and return its rows; no rows if a value is not valid text."""
        ...

    def one(self, sql: str, params: Sequence[object] = ()) -> tuple:
        """Run a statement and return its first row; an empty tuple if there is none."""
        ...

    def write(self, sql: str, params: Sequence[object] = ()) -> int:
        """Run a statement that changes rows and return how many rows it changed. Guarded statements must check that number."""
        ...

    def write_later(self, sql: str, params: Sequence[object] = ()) -> object:
        """Run a statement that changes rows; how many is not needed.

        In a transaction, an adapter may send it together with the next statement, which then fails in its place.
        """
        ...

    def insert(self, table: str, row: Mapping[str, object]) -> None:
        """Add a row, as `write_later` does. Values may be core records: they are stored as `rows.plain` converts them."""
        ...

    def transaction(self, *, durable: bool = True, by_person: bool = False) -> AbstractContextManager[None]:
        """A write transaction: committed when the block ends, rolled back if it raises. There is one writer at a time.

        A durable transaction is on disk when the block has ended. Until then other connections read the previous state. With `by_person`
        it records what a person decided: a server with roles accepts it only from a login of a person, which is used from then on.
        """
        ...

    def listen(self, channel: str) -> None:
        """Let notifications on a channel end `wait` from now on. A file has none."""
        ...

    def unlisten(self, channel: str) -> None: ...
    def wait(self, seconds: float, *descriptors: int) -> bool:
        """Return after a notification, when one of the descriptors is readable, or after some seconds; False if there was certainly no notification."""
        ...

    def change_counter(self) -> int:
        """A number that changes whenever another connection commits. What was read may be cached until it changes.

        An adapter that cannot detect commits returns a different number at every call.
        """
        ...

    def keep_private(self, text: str) -> str:
        """Return what the ledger stores for a text that must not leave this host. For a file of this home that is the text itself."""
        ...

    def private_text(self, stored: str) -> str | None:
        """The text for which `stored` is in the ledger; None if it is on another host."""
        ...

    def delete_private_except(self, stored: Callable[[], Sequence[str]]) -> None:
        """Delete the private texts that are stored outside the ledger and are not among those that it refers to."""
        ...

    def checkpoint(self) -> None:
        """Write the write-ahead log, if the adapter has one, back into the ledger file."""
        ...

    def copy_to(self, path: str) -> None:
        """Write the state of one moment to a new file, while other connections may write."""
        ...

    def unexpected_objects(self) -> Sequence[str]:
        """The tables, indexes, triggers and views that the migrations do not create, by name. For a file of unknown origin."""
        ...

    def check(self, seconds: float | None = None) -> Sequence[str] | None:
        """The problems that the database's own integrity check finds; None if it took longer than `seconds` and was stopped."""
        ...

    def require_supported(self) -> None:
        """Raise LedgerTooNew if a newer version has changed the tables since they were opened, so that this one must not use them."""
        ...

    def server_settings(self) -> Mapping[str, str]:
        """What `doctor` checks about the server of the database and the connection to it; empty for a file."""
        ...

    def may_run_tasks(self) -> bool:
        """Whether the server lets this host run tasks; otherwise it can only submit them. A file always does."""
        ...

    def become_person(self) -> None:
        """Use the database user of the person from now on, if the server has one; NotAPerson if its password is not known."""
        ...

    def close(self) -> None: ...
