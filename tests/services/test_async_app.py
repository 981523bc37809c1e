"""Services in an event loop: changes of the ledger that nobody has taken yet."""

import asyncio
import os
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


async def test_a_consumer_that_pauses_is_not_announced_to_and_misses_nothing(home_cli: HomeCli) -> None:
    home_cli.configure(CONFIG)
    pauses = [0.001, 0.0]
    async with AsyncApp(lambda: open_app(str(home_cli.root), home_cli.environ)) as app:
        sockets = await app.call(lambda services: services.home.socket_dir)
        listeners: list[list[str]] = []

        def pause() -> float:
            asyncio.get_running_loop().call_soon(lambda: listeners.append(os.listdir(sockets)))
            return pauses.pop(0)

        changes = app.changes(lambda: LONG, pause)
        await anext(changes)  # as it is now
        await asyncio.wait_for(anext(changes), 30)  # after the pause, without a change
        assert listeners == [[]]
        waiting = asyncio.ensure_future(anext(changes))
        await app.call(lambda services: services.changes.announce())
        await asyncio.wait_for(waiting, 30)
        await changes.aclose()  # type: ignore[attr-defined]
