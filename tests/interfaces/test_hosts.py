"""Several homes with one ledger on Postgres: each is a host."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from conftest import CONFIG, NO_TERMINAL, HomeCli, wait_until
from postgres_server import LedgerDatabase, PostgresServer

from backburner.coordination.launcher import start_engine
from backburner.core.models import ProcessId
from backburner.system import processes

WAIT = 90.0  # seconds; a machine with many tests at a time is slow
NewHost = Callable[..., HomeCli]


@pytest.fixture
def new_host(database: LedgerDatabase, tmp_path: Path) -> Iterator[NewHost]:
    """Homes that have joined the ledger. With lanes, an engine serves them."""
    database.empty()
    homes: list[HomeCli] = []
    (tmp_path / "shared").mkdir()

    def new_host(name: str, *lanes: str, settings: str = "") -> HomeCli:
        home = HomeCli(tmp_path / name, tmp_path / "shared")
        worker = f"[worker]\nlanes = {json.dumps(lanes)}\n{settings}" if lanes or settings else ""
        home.configure(f"{NO_TERMINAL}\n{worker}")
        home.ok("join", database.url, "--name", name)
        homes.append(home)
        if lanes:
            start_engine(home.home, home.environ)
            wait_until(lambda: state_of(home, name) == "active", f"host {name} to enrol", WAIT)
        return home

    yield new_host
    for home in homes:
        home.stop_engine()


def hosts(home: HomeCli) -> dict[str, dict]:
    return {host["name"]: host for host in home.json("hosts")}  # type: ignore[attr-defined]


def state_of(home: HomeCli, name: str) -> str:
    return hosts(home)[name]["state"]


def has_status(home: HomeCli, task_id: str, status: str) -> bool:
    done = home.cli("status", task_id, "--json")
    return done.returncode == 0 and json.loads(done.stdout)["status"] == status


def start(home: HomeCli, script: str, *options: str) -> str:
    """Submit a shell script, which runs in a sandbox without approval; returns the ID of the task."""
    return home.ok("run", *options, "--", "sh", "-c", script).strip()


def until(name: str) -> str:
    """A script that runs until a file exists in the project, and then ends with exit code 7."""
    return f"echo begun; until [ -e {name} ]; do sleep 0.05; done; echo ended; exit 7"


def is_running(home: HomeCli, there: HomeCli, task_id: str) -> bool:
    """Whether a command of one host runs on another, and has printed something."""
    log = there.folder(task_id) / "output.log"
    return log.exists() and b"begun" in log.read_bytes() and has_status(home, task_id, "running")


def kill_host(home: HomeCli, *, with_commands: bool = True) -> None:
    """Kill the processes of a host at once, as a loss of power does: keeper, engine, its children, and the commands with their shims."""

    def found() -> list[ProcessId]:
        return [*home.processes("backburner-keeper"), *home.processes("" if with_commands else str(home.root))]

    def dead() -> bool:
        for process in found():
            processes.send(process, signal.SIGKILL)
        return not found()

    wait_until(dead, "the host to be dead", WAIT)


# -- places


def test_what_is_submitted_without_a_place_runs_where_it_was_submitted(new_host: NewHost) -> None:
    here, there = new_host("here"), new_host("there", "gpu")
    task_id = here.run("true")
    wait_until(lambda: has_status(there, task_id, "completed"), "the command to end", WAIT)
    assert (here.folder(task_id) / "output.log").exists() and not (there.folder(task_id) / "output.log").exists()


def test_a_command_runs_in_a_lane_on_the_host_that_serves_it(new_host: NewHost) -> None:
    here, there = new_host("here"), new_host("there", "gpu")
    task_id = start(here, "echo done", "--lane", "gpu")
    wait_until(lambda: has_status(here, task_id, "completed"), "the command to end", WAIT)
    assert b"done" in (there.folder(task_id) / "output.log").read_bytes() and not (here.folder(task_id) / "output.log").exists()
    assert not here.engine  # nobody needed it
    assert "Where: host there\n" in here.ok("status", task_id) and "Where:" not in there.ok("status", task_id)
    assert "(on there)" in here.ok("list") and "(on there)" not in there.ok("list")
    assert here.status(start(here, "true", "--lane", "cpu"))["where"] == "lane cpu, which no active host serves"


def test_a_command_runs_on_a_named_host_with_its_environment(new_host: NewHost) -> None:
    here = new_host("here")
    there = new_host("there", "gpu", settings='[worker.env]\nJAVA_HOME = "of there"\nLANG = "of there"\n')
    here.environ |= {"JAVA_HOME": "of here", "LANG": "as here"}
    task_id = start(here, 'echo "$JAVA_HOME, $LANG"', "--host", "there")
    wait_until(lambda: has_status(here, task_id, "completed"), "the command to end", WAIT)
    assert b"of there, as here" in (there.folder(task_id) / "output.log").read_bytes()  # `pass_env` names LANG


def test_a_command_that_a_rule_of_its_host_allows_runs_there_without_a_sandbox(new_host: NewHost) -> None:
    rule = '[[approval.rules]]\nname = "notes"\ndecision = "allow"\ncommand = "touch **"\n'
    here, there = new_host("here"), new_host("there", "gpu", settings=rule)
    task_id = here.ok("run", "--lane", "gpu", "--", "touch", "note").strip()
    wait_until(lambda: has_status(here, task_id, "completed"), "the command to end", WAIT)
    assert (here.cwd / "note").exists()
    assert "(rule: notes;" in (there.folder(task_id) / "output.log").read_text()


def test_a_rule_of_the_host_applies_to_what_it_submits_for_its_own_lane(new_host: NewHost) -> None:
    rule = '[[approval.rules]]\nname = "notes"\ndecision = "allow"\ncommand = "touch **"\n'
    here = new_host("here", "gpu", settings=rule)
    task_id = here.ok("run", "--lane", "gpu", "--", "touch", "note").strip()
    wait_until(lambda: has_status(here, task_id, "completed"), "the command to end", WAIT)
    assert (here.cwd / "note").exists()


def test_a_place_that_does_not_exist_is_refused(new_host: NewHost, home_cli: HomeCli) -> None:
    here = new_host("here")
    assert "There is no host nowhere. Known hosts: " in here.cli("run", "--host", "nowhere", "--", "true").stderr
    assert "Use either --lane or --host" in here.cli("run", "--host", "here", "--lane", "gpu", "--", "true").stderr
    assert "--rerun needs --lane or --host" in here.cli("run", "--rerun", "--", "true").stderr
    done = home_cli.cli("run", "--lane", "gpu", "--", "true")
    assert done.returncode == 2 and "There is no lane gpu. To have one on this machine, add to" in done.stderr
    assert "is a file, which no other host uses" in home_cli.cli("run", "--host", "x", "--", "true").stderr


def test_a_running_command_is_cancelled_from_another_host(new_host: NewHost) -> None:
    here, there = new_host("here"), new_host("there", "gpu")
    task_id = start(here, until("never"), "--lane", "gpu")
    wait_until(lambda: is_running(here, there, task_id), "the command to start", WAIT)
    here.ok("cancel", task_id)
    wait_until(lambda: has_status(here, task_id, "cancelled"), "the cancellation", WAIT)
    assert there.engine


# -- a host that dies


def test_a_command_for_a_lane_that_nobody_serves_says_so(new_host: NewHost) -> None:
    home = new_host("laptop")
    submitted = home.cli("run", "--lane", "gpu", "--", "echo", "hello")
    assert submitted.returncode == 0
    assert submitted.stderr == "It waits: lane gpu, which no active host serves.\n"
    assert home.status(submitted.stdout.strip())["status"] == "pending"


def test_a_dead_host_is_suspected_reported_once_and_given_up_by_a_person(new_host: NewHost) -> None:
    here, there = new_host("here", "cpu"), new_host("there", "gpu")
    task_id = start(here, until("go"), "--lane", "gpu")
    wait_until(lambda: is_running(here, there, task_id), "the command to run", WAIT)
    assert here.cli("hosts", "forget", "there").returncode == 2
    kill_host(there)
    wait_until(lambda: state_of(here, "there") == "suspected", "the host to be suspected", WAIT)
    assert has_status(here, task_id, "running") and "host there, out of reach since 20" in here.ok("status", task_id)
    notices = here.json("inbox")
    assert [notice["text"].startswith("Host there does not answer. 1 run is there") for notice in notices] == [True]  # type: ignore[attr-defined]
    here.ok("hosts", "forget", "there")
    assert here.status(task_id)["status"] == "failed" and here.status(task_id)["result"] == "lost"
    assert len(here.json("inbox")) == 2  # type: ignore[arg-type]


def test_a_host_whose_engine_and_keeper_were_killed_comes_back_with_the_exit_code(new_host: NewHost) -> None:
    here, there = new_host("here", "cpu"), new_host("there", "gpu")
    task_id = start(here, until("go"), "--lane", "gpu")
    wait_until(lambda: is_running(here, there, task_id), "the command to run", WAIT)
    kill_host(there, with_commands=False)
    (here.cwd / "go").touch()
    wait_until(lambda: state_of(here, "there") == "suspected", "the host to be suspected", WAIT)
    assert has_status(here, task_id, "running")
    start_engine(there.home, there.environ)
    wait_until(lambda: has_status(here, task_id, "failed"), "the end to be recorded", WAIT)
    assert here.status(task_id)["exit_code"] == 7 and state_of(here, "there") == "active"


def test_a_host_that_comes_back_too_late_ends_what_was_given_up(new_host: NewHost) -> None:
    here, there = new_host("here", "cpu"), new_host("there", "gpu")
    task_id = start(here, until("never"), "--lane", "gpu")
    wait_until(lambda: is_running(here, there, task_id), "the command to run", WAIT)
    kill_host(there, with_commands=False)
    wait_until(lambda: state_of(here, "there") == "suspected", "the host to be suspected", WAIT)
    here.ok("hosts", "forget", "there")
    assert there.processes()  # the command goes on
    start_engine(there.home, there.environ)
    wait_until(lambda: "run_ended_late" in here.ok("events"), "the host to end the command", WAIT)
    assert here.status(task_id)["result"] == "lost"


def test_what_may_run_twice_runs_again_if_the_process_that_enforces_its_lease_is_killed(new_host: NewHost) -> None:
    here, there = new_host("here"), new_host("there", "gpu")
    script = "[ -e second ] && exit; echo begun; while :; do sleep 0.02; done"
    task_id = start(here, script, "--lane", "gpu", "--rerun")
    wait_until(lambda: is_running(here, there, task_id), "the command to run", WAIT)
    (here.cwd / "second").touch()
    (enforcer,) = there.processes(there.home.lease)
    processes.send(enforcer, signal.SIGKILL)
    wait_until(lambda: has_status(here, task_id, "completed"), "the second run to end", WAIT)
    assert here.status(task_id)["run_count"] == 2 and len(here.json("inbox")) == 1  # type: ignore[arg-type]


# -- the command line


def test_hosts_are_listed_drained_and_leave(new_host: NewHost) -> None:
    here, there = new_host("here"), new_host("there", "gpu", settings="capacity = 3\n")
    found = hosts(here)
    assert (found["there"]["lanes"], found["there"]["capacity"], found["here"]["is_here"]) == (["gpu"], 3, True)
    lines = here.ok("hosts").splitlines()
    assert lines[0].split() == ["NAME", "STATE", "LANES", "RUNS", "CAPACITY", "VERSION", "SEEN"]
    assert any("left, this host" in line for line in lines)
    here.ok("hosts", "drain", "there")
    assert hosts(here)["there"]["draining"]
    there.stop_engine()
    wait_until(lambda: state_of(here, "there") == "left", "the host to leave", WAIT)


def test_a_worker_runs_in_the_foreground_with_lanes(new_host: NewHost) -> None:
    here, there = new_host("here"), new_host("there")
    done = there.cli("worker")
    assert done.returncode == 2 and "No lanes to serve" in done.stderr
    command = [sys.executable, "-m", "backburner", "worker", "--lane", "gpu", "--capacity", "2"]
    worker = subprocess.Popen(command, env=there.environ, cwd=there.cwd, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: hosts(here)["there"]["lanes"] == ["gpu"] and hosts(here)["there"]["capacity"] == 2, "the worker to enrol", WAIT)
        task_id = start(here, "true", "--lane", "gpu")
        wait_until(lambda: has_status(here, task_id, "completed"), "the command to end", WAIT)
    finally:
        os.kill(worker.pid, signal.SIGTERM)
        worker.wait(WAIT)
    assert state_of(here, "there") == "left"


def test_joining_needs_tables_and_a_free_name(new_host: NewHost, home_cli: HomeCli, postgres_server: PostgresServer) -> None:
    new_host("here")
    url = postgres_server.create_database("joined")
    try:
        home_cli.configure(CONFIG)
        done = home_cli.cli("join", url)
        assert done.returncode == 1 and "it has no tables yet; create them with: backburner migrate" in done.stderr
        assert home_cli.ok("migrate", url).startswith("Created the tables")
        assert "is now the host desk of" in home_cli.ok("join", url, "--name", "desk")
        assert home_cli.json("hosts")[0]["name"] == "desk"  # type: ignore[index]
        assert "already uses the ledger" in home_cli.cli("join", f"{url}&application_name=x").stderr
        other = HomeCli(home_cli.root.parent / "other", home_cli.cwd)
        assert "is already named desk" in other.cli("join", url, "--name", "desk").stderr
        other.ok("join", url, "--name", "chair")
        other.stop_engine()
    finally:
        home_cli.stop_engine()
        postgres_server.administer("DROP DATABASE joined WITH (FORCE)")


def test_a_drained_worker_finishes_and_takes_nothing_else(new_host: NewHost) -> None:
    here, there = new_host("here"), new_host("there", "gpu")
    first = start(here, until("go"), "--lane", "gpu")
    wait_until(lambda: is_running(here, there, first), "the command to run", WAIT)
    there.ok("worker", "--drain")
    wait_until(lambda: "no more runs of lanes are taken" in (there.root / "engine.log").read_text(), "the worker to notice", WAIT)
    second = start(here, "true", "--lane", "gpu")
    (here.cwd / "go").touch()
    wait_until(lambda: has_status(here, first, "failed"), "the first command to end", WAIT)
    assert here.status(second)["where"] == "lane gpu, which no active host serves" and has_status(here, second, "pending")
    there.stop_engine()
    start_engine(there.home, there.environ)
    wait_until(lambda: has_status(here, second, "completed"), "the worker to serve the lane again", WAIT)


def test_a_host_that_cannot_renew_its_lease_starts_nothing(
    new_host: NewHost, database: LedgerDatabase, postgres_server: PostgresServer
) -> None:
    """Somebody holds the rows of the hosts, so beats fail, but everything else works."""
    here, there = new_host("here"), new_host("there", "gpu")
    task_id = start(here, "[ ! -e second ] || exit 0; echo begun; while :; do sleep 0.02; done", "--lane", "gpu", "--rerun")
    wait_until(lambda: is_running(here, there, task_id), "the command to run", WAIT)
    (here.cwd / "second").touch()
    log = there.root / "engine.log"
    with psycopg.connect(postgres_server.url(database.name, "postgres")) as connection:
        connection.execute("SELECT 1 FROM backburner.hosts FOR UPDATE")
        wait_until(lambda: has_status(here, task_id, "pending"), "the run to be given back", WAIT)
        failed = log.read_text().count("was not renewed")
        wait_until(lambda: log.read_text().count("was not renewed") > failed + 1, "the next beats to fail", WAIT)
        assert here.status(task_id)["run_count"] == 2 and has_status(here, task_id, "pending")
    wait_until(lambda: has_status(here, task_id, "completed"), "the second run to end", WAIT)
