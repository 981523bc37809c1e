"""What many hosts cost a ledger on Postgres: measures the parts on this machine, and estimates from them what 100 and 1,000 hosts need.

`python -m bench.scale`. The parts: statements and time of a run, during which no other host can write; notifications for each connection
that listens; the beats of the hosts; and the size of a run on disk. The wait for the writer's lock is simulated.
"""

import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import psycopg

from backburner.core.claims import RunResult
from backburner.core.models import Approval, ProcessId
from backburner.core.states import Result, RunState
from backburner.store.ledger import Ledger, open_postgres_ledger
from backburner.store.postgres import PostgresDatabase, connect
from backburner.store.postgres_schema import migrate
from backburner.testing.records import request
from bench.home import children, exact_cpu_seconds, scratch_folder
from bench.postgres import PostgresServer, postgres_server

RUNS, NOTIFIES, LISTENERS = 200, 200, (0, 100, 400)
LAN_ROUND_TRIP = 0.3  # milliseconds
DAY = 86_400
PEAK = 4  # times the mean rate
SCALES = ((100, 200_000), (100, 1_000_000), (1_000, 200_000), (1_000, 1_000_000))
BEAT_SECONDS = 2.0


class Cost(NamedTuple):
    """What a part of a run's life costs: `held` is how long nobody else could write, in milliseconds."""

    statements: float
    round_trips: float
    transactions: float
    held: float


class Counted:
    """A ledger whose statements, round trips and transactions are counted."""

    def __init__(self, url: str, folder: Path) -> None:
        self.ledger: Ledger = open_postgres_ledger(url, str(folder), "bench")
        self.statements, self.round_trips, self.held = 0, 0, list[float]()
        database: PostgresDatabase = self.ledger.database  # type: ignore[assignment]
        exchange = database._exchange

        def counted(statement: bytes, values: Sequence[object] | None) -> psycopg.Cursor:
            if database._in_transaction and not database._has_begun:
                self._since = time.perf_counter()  # the lock is taken by the first of these statements
            self.statements += len(database._waiting) + 1
            self.round_trips += 1
            cursor = exchange(statement, values)
            if statement == b"COMMIT":
                self.held.append((time.perf_counter() - self._since) * 1000)
            return cursor

        database._exchange = counted  # type: ignore[method-assign]

    def take(self) -> Cost:
        """The cost since the last call."""
        taken = Cost(self.statements, self.round_trips, len(self.held), sum(self.held))
        self.statements, self.round_trips, self.held = 0, 0, []
        return taken


def life_of_a_run(counted: Counted, number: int) -> dict[str, Cost]:
    """Submit, claim and end a run of a lane, as three processes do; what each of these costs."""
    ledger, now, owner, name = counted.ledger, time.time_ns() // 1_000_000, ProcessId(1, "1", "boot"), f"task_{number}"
    counted.take()
    ledger.tasks.submit(
        request(command=("true",), cwd="/p", environment={"PATH": "/bin"}), project="/p", wanted_id=name, reasons=("prints",), rule="sandbox",
        approval=Approval("auto", "gate", now), runner="engine/bench", folder="tasks", now=now, expires_at=now,
    )  # fmt: skip
    costs = {"submit": counted.take()}
    ledger.dispatch.take([name], owner, now)
    ledger.runs.record_sandbox(name, owner, "full")
    costs["start"] = counted.take()
    ledger.runs.settle([RunResult(name, RunState.COMPLETED, Result.EXIT, now, 0, summary="done", lines=1)], owner)
    costs["end"] = counted.take()
    return costs


def server_cpu(server: PostgresServer) -> float:
    return sum(exact_cpu_seconds(pid) for pid in (server.pid, *children(server.pid)))


def notify_cost(server: PostgresServer, url: str, listeners: int) -> float:
    """Milliseconds of server CPU for one notification that `listeners` connections hear."""
    heard = [connect(url) for _ in range(listeners)]
    for connection in heard:
        connection.execute("LISTEN backburner")
    with psycopg.connect(url, autocommit=True) as sender:
        time.sleep(1)
        before = server_cpu(server)
        for number in range(NOTIFIES):
            sender.execute("SELECT pg_notify('backburner', %s)", (str(number),))
            time.sleep(0.005)
        time.sleep(0.5)
        cost = (server_cpu(server) - before) * 1000 / NOTIFIES
    for connection in heard:
        connection.close()
    return cost


def beat_cost(server: PostgresServer, url: str, hosts: int) -> float:
    """Milliseconds of server CPU for one beat: an update that need not be durable, and the beats of all others."""
    with connect(url) as connection:
        connection.execute("SET synchronous_commit = off")
        added = "INSERT INTO hosts (host_id, name, state, changed_at, seen_at) SELECT 'h' || n, 'h' || n, 'active', 0, 0 FROM generate_series(1, %s) n ON CONFLICT DO NOTHING"
        connection.execute(added, (hosts,))
        before = server_cpu(server)
        for number in range(500):
            connection.execute("UPDATE hosts SET beat = beat + 1, seen_at = %s WHERE host_id = %s", (number, f"h{1 + number % hosts}"))
            connection.execute("SELECT host_id, epoch, beat, state FROM hosts").fetchall()
        cost = (server_cpu(server) - before) * 1000 / 500
        connection.execute("DELETE FROM hosts WHERE host_id LIKE 'h%'")
    return cost


def simulate(runs_per_second: float, holds: list[float], *, seconds: float = 600.0, seed: int = 1) -> tuple[float, float, float]:
    """Utilisation of the one writer's lock, and the median and 99th percentile of the wait for it, in milliseconds.

    Runs arrive at random. Each takes the lock as often as `holds` has entries, 50 ms apart, for about so many milliseconds.
    """
    chance = random.Random(seed)
    arrivals, at = [], 0.0
    while at < seconds:
        at += chance.expovariate(runs_per_second)
        arrivals += [(at + 0.05 * step, hold * chance.lognormvariate(0, 0.4) / 1000) for step, hold in enumerate(holds)]
    free, busy, waits = 0.0, 0.0, []
    for at, hold in sorted(arrivals):
        begin = max(free, at)
        waits.append((begin - at) * 1000)
        free, busy = begin + hold, busy + hold
    waits.sort()
    return busy / seconds, statistics.median(waits), waits[int(len(waits) * 0.99)]


def main() -> None:
    with scratch_folder() as folder, scratch_folder() as data, postgres_server(data, "max_connections=600") as server:
        url = server.create_database("scale")
        migrate(url, host_id="bench", home="bench:/")
        counted = Counted(url, folder)
        for number in range(20):
            life_of_a_run(counted, number)
        size = "SELECT pg_database_size('scale')"
        ((before,),) = server.execute(size)
        cpu = server_cpu(server)
        lives = [life_of_a_run(counted, 1000 + number) for number in range(RUNS)]
        cpu_per_run = (server_cpu(server) - cpu) * 1000 / RUNS
        server.execute("CHECKPOINT")
        ((after,),) = server.execute(size)
        steps = {step: Cost(*(statistics.median(life[step][part] for life in lives) for part in range(4))) for step in lives[0]}
        for step, cost in steps.items():
            print(
                f"{step}: {cost.statements:.0f} statements, {cost.round_trips:.0f} round trips, {cost.transactions:.0f} transactions, lock held {cost.held:.2f} ms"
            )
        total = Cost(*map(sum, zip(*steps.values(), strict=True)))
        print(
            f"a run: {total.statements:.0f} statements, {total.round_trips:.0f} round trips, lock held {total.held:.2f} ms, server CPU {cpu_per_run:.2f} ms"
        )
        print(f"size of a run: {(after - before) / RUNS / 1024:.1f} KiB")
        counted.ledger.close()
        notified = {listeners: notify_cost(server, url, listeners) for listeners in LISTENERS}
        for listeners, cost in notified.items():
            print(f"a notification with {listeners} listeners: {cost:.2f} ms of server CPU")
        beats = {hosts: beat_cost(server, url, hosts) for hosts in (100, 1_000)}
        for hosts, cost in beats.items():
            print(f"a beat among {hosts} hosts: {cost:.2f} ms of server CPU, {hosts / BEAT_SECONDS * cost / 10:.0f} % of a core in all")
    on_lan = [cost.held + LAN_ROUND_TRIP * cost.round_trips for cost in steps.values()]
    print(f"lock held per run at {LAN_ROUND_TRIP} ms round trip: {sum(on_lan):.1f} ms")
    for hosts, runs in SCALES:
        for name, rate in (("mean", runs / DAY), ("peak", PEAK * runs / DAY)):
            used, median, late = simulate(rate, on_lan)
            print(
                f"{hosts} hosts, {runs:,} runs a day, {name}: {rate:.1f} runs/s, lock {used:.0%} used, wait {median:.1f} ms, p99 {late:.0f} ms"
            )


if __name__ == "__main__":
    main()
