"""A home on Postgres under random faults: the engine is killed, connections are ended, the server crashes. Every command runs once."""

import random
import sys
from collections import Counter

from conftest import CONFIG, LONG, HomeCli, wait_until
from postgres_server import PostgresServer

ROUNDS = 40 if LONG else 6
PER_ROUND = 3
_WAIT = 120.0  # seconds


def test_every_command_runs_once_and_is_reported_once(home_cli: HomeCli, postgres_server: PostgresServer) -> None:
    url = postgres_server.create_database("faults")
    home_cli.configure(f'{CONFIG}\n[store]\nurl = "{url}"\n')
    home_cli.ok("migrate")
    seed = random.randrange(1 << 32)
    print(f"seed {seed}", file=sys.stderr)
    chosen = random.Random(seed)

    def restart_server() -> None:
        postgres_server.stop()
        postgres_server.start()

    faults = {
        "engine killed": home_cli.kill_engine,
        "connections ended": lambda: postgres_server.terminate_connections("faults"),
        "server crashed": restart_server,
    }
    made = Counter[str]()
    wanted: dict[str, int] = {}
    # The engine that survives the last fault has to go on by itself.
    for name in [*chosen.choices(list(faults), k=ROUNDS - 1), "server crashed"]:
        for _ in range(PER_ROUND):
            number = len(wanted)
            task_id = home_cli.run("sh", "-c", f"echo {number} >> ran.txt; sleep 0.{chosen.randrange(4)}; exit {number % 3}")
            wanted[task_id] = number
        faults[name]()
        made[name] += 1
    ended = ("completed", "failed")

    def all_ended() -> bool:
        listed = home_cli.json("list", "--limit", "1000")
        assert isinstance(listed, list)
        return sum(task["status"] in ended for task in listed) == len(wanted)

    wait_until(all_ended, f"all commands to end ({dict(made)})", _WAIT)
    ran = Counter((home_cli.cwd / "ran.txt").read_text().split())
    assert ran == {str(number): 1 for number in wanted.values()}
    assert {task_id: home_cli.status(task_id)["exit_code"] for task_id in wanted} == {
        task_id: number % 3 for task_id, number in wanted.items()
    }
    notices = Counter(row[0] for row in postgres_server.administer("SELECT task_id FROM backburner.notices", "faults"))
    assert notices == dict.fromkeys(wanted, 1)
    ends = "SELECT task_id FROM backburner.events WHERE kind IN ('run_completed', 'run_failed')"
    assert Counter(row[0] for row in postgres_server.administer(ends, "faults")) == dict.fromkeys(wanted, 1)
