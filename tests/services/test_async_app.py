"""Services in an event loop: changes of the ledger that nobody has taken yet."""

import asyncio
import time

from conftest import CONFIG, HomeCli

from backburner.services.app import open_app
from backburner.services.async_app import AsyncApp

LONG = 600.0  # seconds until an unchanged ledger is read again: longer than any test
PAUSE = 0.5  # seconds


async def test_a_change_is_kept_for_a_consumer_that_is_busy_and_costs_nothing_meanwhile(home_cli: HomeCli) -> None:
    home_cli.configure(CONFIG)
    async with AsyncApp(lambda: open_app(str(home_cli.root), home_cli.environ)) as app:
        changes = app.changes(lambda: LONG)
        await anext(changes)  # as it is now
        await app.call(lambda services: services.changes.announce())
        start = time.thread_time()
        await asyncio.sleep(PAUSE)
        spent = time.thread_time() - start
        await asyncio.wait_for(anext(changes), 30)
        await changes.aclose()  # type: ignore[attr-defined]
    assert spent < PAUSE / 10
