"""Makes services usable from an event loop: they run in a separate thread, and every call is awaited."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar

from backburner.coordination.changes import ChangeFeed
from backburner.services.app import App
from backburner.system.home import Home


class OpenApp(Protocol):
    """Services of one home, opened by one process."""

    @property
    def home(self) -> Home: ...
    @property
    def environ(self) -> dict[str, str]: ...
    @property
    def changes(self) -> ChangeFeed: ...
    @property
    def close(self) -> Callable[[], None]: ...


S = TypeVar("S", bound=OpenApp)
T = TypeVar("T")
_POLL_INTERVAL = 5.0


class AsyncServices(Generic[S]):
    """`async with AsyncApp(open_app) as app: await app.call(lambda app: app.queries.get(task_id))`."""

    def __init__(self, opened: Callable[[], S]) -> None:
        self._opened = opened
        self._thread = ThreadPoolExecutor(1, "backburner")

    async def __aenter__(self) -> "AsyncServices[S]":
        self._services = await asyncio.get_running_loop().run_in_executor(self._thread, self._opened)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.call(lambda services: services.close())
        self._thread.shutdown()

    async def call(self, function: Callable[[S], T]) -> T:
        """Call `function` with the services and return its result. Calls run one at a time."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, self._services)

    @property
    def root(self) -> str:
        """The path of the home directory."""
        return self._services.home.root

    @property
    def environ(self) -> dict[str, str]:
        """The environment that the home was opened with."""
        return self._services.environ

    @staticmethod
    def now() -> float:
        """Seconds on a monotonic clock."""
        return asyncio.get_running_loop().time()

    async def changes(
        self, interval: Callable[[], float | None] = lambda: None, pause: Callable[[], float] = lambda: 0
    ) -> AsyncIterator[None]:
        """Yield now, then after every change of the ledger, and at the latest after `interval()` seconds (5 if that is None).

        Changes that are announced before the consumer takes the next item wake nobody; that item comes at once. If `pause()` is not 0 when
        it is taken, it comes after so many seconds, without a change too. Nobody spends time on announcing changes to who pauses.
        """
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        listener = self._services.changes.listen()
        try:
            while True:
                listener.drain()
                woken.clear()
                yield
                if seconds := pause():
                    listener.pause()
                    await asyncio.sleep(seconds)
                    listener.resume()  # before the ledger is read
                    continue
                loop.add_reader(listener.fileno(), woken.set)
                try:
                    # `wait_for` may swallow a cancellation that arrives together with a change
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(interval() or _POLL_INTERVAL):
                            await woken.wait()
                finally:
                    loop.remove_reader(listener.fileno())
        finally:
            listener.close()


AsyncApp = AsyncServices[App]
