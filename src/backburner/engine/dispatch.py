"""Takes runs of lanes from the job queue of a ledger on Postgres, with Procrastinate. Loaded only by an engine that serves lanes.

A job is a hint: the guarded transition of its run decides whether the run begins here. So jobs need not be durable, and a job that is
handed out twice, or late, does no harm; that also allows to execute a query again whenever the connection was lost.

All workers share one connection for queries and the connection that listens. Procrastinate's own connector would stop its worker after
a longer outage, or leave it without a listener; this one waits until the server is back.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import psycopg
from procrastinate import App, JobContext
from procrastinate.connector import BaseAsyncConnector, Notify
from procrastinate.exceptions import NoResult
from procrastinate.job_context import AbortReason
from procrastinate.jobs import Job
from procrastinate.sql import queries
from procrastinate.worker import Worker
from psycopg.rows import dict_row

from backburner.system.home import write_atomically

log = logging.getLogger("backburner")
logging.getLogger("procrastinate").setLevel(logging.WARNING)

Subscribe = Callable[[str, Callable[[str], None]], Callable[[], None] | None]
_LONGEST_QUEUE = 40  # bytes, as in `store/postgres_dispatch.py`
_RECONNECT_INTERVAL = 1.0
_LONGEST_RETRY_DELAY = 30.0
_CLOSE_TIMEOUT = 2.0
_SWEEP_INTERVAL = 60.0
_NEW_JOB = json.dumps({"type": "job_inserted", "job_id": 0})
# Jobs and aborts are announced, so these intervals matter only if an announcement is lost. Whether a host is alive is decided by its
# lease; no worker may delete another one's registration, without which it cannot take jobs.
_OPTIONS: dict[str, Any] = {
    "fetch_job_polling_interval": 30.0,
    "abort_job_polling_interval": 60.0,
    "update_heartbeat_interval": 20.0,
    "stalled_worker_timeout": 1e9,
    "shutdown_graceful_timeout": 0.0,
    "delete_jobs": "always",
    "install_signal_handlers": False,
}


def job_queue(queue: str) -> str:
    """The name of a queue in Procrastinate, which must be short enough for the name of a channel."""
    encoded = queue.encode()
    return queue if len(encoded) <= _LONGEST_QUEUE else hashlib.sha256(encoded).hexdigest()[:_LONGEST_QUEUE]


class ProcrastinateDispatch:
    """The `Dispatch` of an engine. `conninfo` are the parameters of its connection; `subscribe` is that of the change feed.

    `workers_file` remembers the workers of this engine, so that the next engine of the home can take back what this one was handed and
    has not begun.
    """

    def __init__(self, conninfo: str, subscribe: Subscribe, workers_file: str) -> None:
        self._connector = _Connector(conninfo, subscribe, workers_file)
        self._workers = 0

    async def work(
        self, queues: Sequence[str], capacity: int, begin: Callable[[str], Awaitable[None]], abort: Callable[[str], None]
    ) -> None:
        app = App(connector=self._connector)

        @app.task(name="run", pass_context=True)
        async def run(context: JobContext, run_id: str) -> None:
            try:
                await _hold_seat(context, run_id, begin, abort)
            except asyncio.CancelledError:  # this engine ends, perhaps before the run has begun
                await self._connector.give_back(context.job)
                raise

        worker = Worker(app, queues=[job_queue(queue) for queue in queues], concurrency=capacity, **_OPTIONS)
        self._workers += 1
        sweeping = asyncio.create_task(self._sweep())
        working = asyncio.create_task(worker.run())
        try:
            await asyncio.shield(working)
        finally:
            sweeping.cancel()
            self._workers -= 1
            self._connector.is_closing = not self._workers
            await _cancel(working)
            if not self._workers:
                await self._connector.close_async()

    async def _sweep(self) -> None:
        """Take back jobs that were handed out to hosts which have not been heard of since, and offer their runs again."""
        while True:
            await self._connector.execute_query_async("SELECT take_back_jobs(NULL, NULL)")
            await asyncio.sleep(_SWEEP_INTERVAL)


async def _hold_seat(context: JobContext, run_id: str, begin: Callable[[str], Awaitable[None]], abort: Callable[[str], None]) -> None:
    """Wait until the run has ended. A cancellation is either a request to cancel the run, or means that this engine ends."""
    delay = _RECONNECT_INTERVAL
    while True:
        beginning = asyncio.ensure_future(begin(run_id))
        while not beginning.done():
            try:
                await asyncio.wait([beginning])
            except asyncio.CancelledError:
                if context.abort_reason() is not AbortReason.USER_REQUEST:
                    beginning.cancel()
                    await asyncio.wait([beginning])
                    raise
                abort(run_id)
        if beginning.cancelled():
            return
        if (error := beginning.exception()) is None:
            return
        log.warning("run %s: %s; trying again", run_id, error, exc_info=None if isinstance(error, OSError) else error)
        await asyncio.sleep(delay)
        delay = min(2 * delay, _LONGEST_RETRY_DELAY)


async def _cancel(task: "asyncio.Task[None]") -> None:
    """End a worker. It waits for the server to forget it, but not for long."""
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=_CLOSE_TIMEOUT)
    if done and not task.cancelled() and (error := task.exception()):
        log.warning("the worker of the job queue ended: %s", error)


class _Connector(BaseAsyncConnector):
    """One connection for the queries of all workers, which is opened again when it is lost, for as long as it takes."""

    def __init__(self, conninfo: str, subscribe: Subscribe, workers_file: str) -> None:
        self._conninfo, self._subscribe, self._workers_file = conninfo, subscribe, workers_file
        self._former = _read_workers(workers_file)  # those of an earlier engine of this home, which has ended
        self._connection: psycopg.AsyncConnection | None = None
        self._lock = asyncio.Lock()
        self._jobs: dict[int, set[int]] = {}  # that each worker has, by its id
        self.is_closing = False

    async def open_async(self, pool: object = None) -> None:
        """It is opened by the first query."""

    async def close_async(self) -> None:
        if self._connection:
            await self._connection.close()
            self._connection = None

    async def execute_query_async(self, query: str, **arguments: Any) -> None:
        await self._execute(query, arguments)

    async def execute_query_one_async(self, query: str, **arguments: Any) -> dict[str, Any]:
        jobs = self._jobs.setdefault(arguments["worker_id"], set()) if query == queries["fetch_job"] else None
        rows = await self._execute(query, arguments)
        if not rows:
            raise NoResult
        if jobs is not None and rows[0]["id"] is not None:
            jobs.add(rows[0]["id"])
        if query == queries["register_worker"]:
            self._jobs.setdefault(rows[0]["worker_id"], set())
            write_atomically(self._workers_file, " ".join(map(str, self._jobs)))
        return rows[0]

    async def execute_query_all_async(self, query: str, **arguments: Any) -> list[dict[str, Any]]:
        return await self._execute(query, arguments)

    async def listen_notify(self, on_notification: Notify, channels: Iterable[str]) -> None:
        """Forward notifications until the call is cancelled. After the listener was away, look for jobs that were announced meanwhile."""
        loop = asyncio.get_running_loop()
        heard: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

        def forward(channel: str) -> Callable[[str], None]:
            def hear(payload: str) -> None:
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(heard.put_nowait, (channel, payload or _NEW_JOB))

            return hear

        subscriptions = [self._subscribe(channel, forward(channel)) for channel in channels]
        try:
            while True:
                channel, payload = await heard.get()
                await on_notification(channel=channel, payload=payload)
        finally:
            for unsubscribe in filter(None, subscriptions):
                unsubscribe()

    async def give_back(self, job: Job) -> None:
        """Let another host have a job, unless its run has begun."""
        assert job.worker_id is not None and job.id is not None
        jobs = self._jobs[job.worker_id]
        jobs.discard(job.id)
        await self._execute("SELECT take_back_jobs(%(worker)s, %(known)s::bigint[])", {"worker": job.worker_id, "known": list(jobs)})

    async def _execute(self, query: str, arguments: dict[str, Any]) -> list[dict[str, Any]]:
        warned = False
        while True:
            try:
                async with self._lock:
                    connection = self._connection or await self._connect()
                    cursor = connection.cursor(row_factory=dict_row)
                    await cursor.execute(query.encode(), arguments or None)
                    rows = await cursor.fetchall() if cursor.description else []
                    break
            except psycopg.errors.RaiseException:
                rows = []  # the job is not there any more
                break
            except psycopg.Error as error:
                if self._connection and not self._connection.closed:
                    raise
                self._connection = None
                if self.is_closing:
                    raise
                if not warned:
                    log.warning("the job queue cannot be reached: %s; trying again every second", " ".join(str(error).split()))
                warned = True
            await asyncio.sleep(_RECONNECT_INTERVAL)
        if query == queries["finish_job"]:
            for jobs in self._jobs.values():
                jobs.discard(arguments["job_id"])
        return rows

    async def _connect(self) -> psycopg.AsyncConnection:
        """Connect, and take back the jobs of which a worker was not told because the connection was lost, or its engine has ended."""
        connection = await psycopg.AsyncConnection.connect(self._conninfo, autocommit=True)
        self._connection = connection
        for worker, jobs in (*((former, ()) for former in self._former), *self._jobs.items()):
            await connection.execute("SELECT take_back_jobs(%s, %s::bigint[])", (worker, list(jobs)))
        self._former = []
        return connection


def _read_workers(path: str) -> list[int]:
    try:
        with open(path, encoding="ascii") as file:
            return [int(word) for word in file.read().split()]
    except (OSError, ValueError):
        return []  # there was no such engine, or the file is damaged: the jobs are taken back later, by the sweep
