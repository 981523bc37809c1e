"""What every ledger must do: one suite per repository, run by each adapter.

An adapter brings two fixtures: `open_ledger` opens the same, at first empty, ledger again with every call, as another process
would; `ledger` is the first one. See test_sqlite_contract.py.
"""
