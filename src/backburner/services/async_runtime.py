"""A Runtime for an event loop: it lives in a thread of its own, and every call of it is awaited."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from backburner.services.runtime import Runtime
from backburner.system import wakeups as wake

T = TypeVar("T")
_LOOK_SECONDS = 5.0


class Awaited:
    """`async with Awaited(open_runtime) as home: await home.do(lambda runtime: runtime.show("last"))`."""

    def __init__(self, opened: Callable[[], Runtime]) -> None:
        self._opened = opened
        self._thread = ThreadPoolExecutor(1, "backburner")

    async def __aenter__(self) -> "Awaited":
        self._runtime = await asyncio.get_running_loop().run_in_executor(self._thread, self._opened)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.do(Runtime.close)
        self._thread.shutdown()

    async def do(self, call: Callable[[Runtime], T]) -> T:
        """What `call` makes of the Runtime. Calls are made one after the other."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, self._runtime)

    @property
    def root(self) -> str:
        """The folder of the home."""
        return self._runtime.home.root

    @staticmethod
    def now() -> float:
        """Seconds on a clock that only goes forward."""
        return asyncio.get_running_loop().time()

    async def changes(self, look: Callable[[], float | None] = lambda: None) -> AsyncIterator[None]:
        """Once now, and again after every change of the ledger, and now and then besides (as often as `look` says)."""
        loop, rung = asyncio.get_running_loop(), asyncio.Event()
        ear = wake.Ear(self._runtime.home.make_bells())
        loop.add_reader(ear.fileno(), rung.set)
        try:
            while True:
                ear.drain()
                rung.clear()
                yield
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(look() or _LOOK_SECONDS):  # `wait_for` may swallow a cancel that comes with a change
                        await rung.wait()
        finally:
            loop.remove_reader(ear.fileno())
            ear.close()
