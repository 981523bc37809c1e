"""What the repositories need of a database. Each adapter is a file of its own; SQLite is `sqlite.py`.

A repository is written once, in SQL that every adapter understands: `?` for values, no test that depends on the order of text,
and nothing that only one database offers. Where two databases must differ, the difference is a method here.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol


class Database(Protocol):
    """One connection to a ledger. Not for several threads at the same moment."""

    upgraded: bool  # whether opening it brought an older ledger to the present version

    dialect: str

    def execute(self, sql: str, params: Sequence[object] = ()) -> list[tuple]:
        """Run a statement and return its rows; none where a value is not text that a ledger can hold."""
        ...

    def one(self, sql: str, params: Sequence[object] = ()) -> tuple:
        """Run a statement and return its first row; an empty tuple where there is none."""
        ...

    def write(self, sql: str, params: Sequence[object] = ()) -> int:
        """Run a statement that changes rows and return how many rows this statement changed. A guarded one must look at that."""
        ...

    def insert(self, table: str, row: Mapping[str, object]) -> None:
        """Add a row. Values may be records of the core: they are stored as `rows.plain` writes them."""
        ...

    def transaction(self, *, durable: bool = True) -> AbstractContextManager[None]:
        """Write alone until the block ends: all of it is committed, or nothing where it raises.

        A durable one is on disk when the block has ended. Other connections read the state from before until then.
        """
        ...

    def change_counter(self) -> int:
        """A number that is another one as soon as another connection has committed, so that what was read may be kept until then.

        An adapter that cannot tell returns another number at every call.
        """
        ...

    def checkpoint(self) -> None:
        """Write a log that the adapter may keep beside the ledger back into it."""
        ...

    def check(self) -> Sequence[str]:
        """What the database itself finds wrong with the ledger; empty when it is sound."""
        ...

    def close(self) -> None: ...
