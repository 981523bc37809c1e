"""A home whose ledger is on Postgres: everything as with a file, also while the server is away."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import CONFIG, HomeCli, wait_until
from postgres_server import PERSON, WORKER, LedgerDatabase, PostgresServer

from backburner.coordination.ledger_checks import login_of, problems_of
from backburner.system import processes

WAIT = 60.0  # seconds; a machine with many tests at a time is slow


@pytest.fixture
def home(home_cli: HomeCli, database: LedgerDatabase) -> Iterator[HomeCli]:
    """A home with an empty ledger on Postgres."""
    database.empty()
    home_cli.configure(f'{CONFIG}\n[store]\nurl = "{database.url}"\n')
    home_cli.ok("migrate")
    yield home_cli
    assert not (home_cli.root / "ledger.db").exists()


def wait_for_file(cwd: Path, name: str) -> tuple[str, ...]:
    """A command that runs until a file exists, and then ends with exit code 7."""
    return "sh", "-c", f"until [ -e {name} ]; do sleep 0.05; done; echo ended; exit 7"


def has_status(home: HomeCli, task_id: str, status: str) -> bool:
    done = home.cli("status", task_id, "--json")
    return done.returncode == 0 and json.loads(done.stdout)["status"] == status


def running(home: HomeCli) -> str:
    """A command that has started and runs until the file `go` exists."""
    task_id = home.run(*wait_for_file(home.cwd, "go"))
    wait_until(lambda: has_status(home, task_id, "running") and home.status(task_id)["pid"], "the command to run", WAIT)
    return task_id


def end(home: HomeCli, task_id: str) -> None:
    """Let the command end; its shim has then written its exit code."""
    (home.cwd / "go").touch()
    wait_until(lambda: b"ended" in (home.folder(task_id) / "output.log").read_bytes(), "the command to end", WAIT)


# -- ordinary use


def test_a_command_runs_and_is_listed_with_its_output(home: HomeCli) -> None:
    task_id = home.run("echo", "hello")
    home.ok("wait", task_id)
    status = home.status(task_id)
    assert (status["status"], status["exit_code"]) == ("completed", 0)
    assert home.log(task_id) == b"hello\n" and task_id in home.ok("list") and "hello" in home.ok("status", task_id)
    assert "run_completed" in home.ok("events")


def test_a_running_command_is_cancelled(home: HomeCli) -> None:
    task_id = running(home)
    home.ok("cancel", task_id)
    wait_until(lambda: has_status(home, task_id, "cancelled"), "the cancellation", WAIT)


def test_a_proposal_is_approved_and_its_requester_is_notified(home: HomeCli) -> None:
    done = home.cli("run", "--", "install", "-d", "made")
    task_id = done.stdout.strip()
    assert done.returncode == 3 and home.status(task_id)["status"] == "proposed" and not (home.cwd / "made").exists()
    home.ok("approve", task_id)
    wait_until(lambda: has_status(home, task_id, "completed"), "the command to end", WAIT)
    assert (home.cwd / "made").exists()
    assert [notice["task_id"] for notice in home.json("inbox", "--ack")] == [task_id]  # type: ignore[attr-defined]
    assert home.json("inbox") == []


def test_tasks_run_after_others_and_on_a_schedule(home: HomeCli) -> None:
    home.ok("add", "tick", "--every", "1s", "--notify", "never", "--", "echo", "hello")
    first = home.run("true")
    second = home.run("echo", "second", options=("--after", first))
    wait_until(lambda: has_status(home, second, "completed"), "the dependent command", WAIT)

    def completed() -> list[dict[str, object]]:
        return [run for run in home.status("tick")["runs"] if run["status"] == "completed"]  # type: ignore[attr-defined]

    wait_until(lambda: len(completed()) >= 2, "two runs of the schedule", WAIT)
    home.ok("cancel", "tick")
    slots = [run["slot"] for run in completed()]
    assert len(slots) == len(set(slots))


def test_a_hook_is_not_kept_quiet_by_an_older_ledger_file(home: HomeCli) -> None:
    """Hooks compare the time of a ledger file with that of a mark, to start no interpreter while nothing has changed."""
    mark = home.root / "hooks" / "claude"
    mark.parent.mkdir()
    mark.touch()
    home.ok("list")
    assert not mark.exists()
    call = [sys.executable, "-m", "backburner", "inbox", "--hook", "claude"]
    event = json.dumps({"session_id": "one", "hook_event_name": "PostToolUse"})
    done = subprocess.run(call, input=event, env=home.environ, cwd=home.cwd, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "") and not mark.exists()


# -- the server


def test_a_running_command_survives_that_the_engine_is_killed(home: HomeCli) -> None:
    task_id = running(home)
    home.kill_engine()
    end(home, task_id)
    wait_until(lambda: has_status(home, task_id, "failed"), "the end to be recorded", WAIT)
    assert home.status(task_id)["exit_code"] == 7


def test_a_run_continues_without_the_server_and_its_end_is_recorded_later(home: HomeCli, postgres_server: PostgresServer) -> None:
    task_id = running(home)
    postgres_server.stop()
    try:
        done = home.cli("list")
        assert done.returncode == 1 and done.stderr.startswith("Cannot reach the ledger postgresql://ledger@/test_postgres_home?host=")
        assert done.stderr.count("\n") == 1
        end(home, task_id)
        kept = "the results of 1 runs are kept and written later"
        wait_until(lambda: (home.root / "engine.log").read_text().count(kept) >= 8, "the engine to try for several seconds", WAIT)
    finally:
        postgres_server.start()
    wait_until(lambda: has_status(home, task_id, "failed"), "the end to be recorded", WAIT)
    assert home.status(task_id)["exit_code"] == 7
    assert [event for event in home.ok("events").split() if event == "run_failed"] == ["run_failed"]


def test_an_engine_that_starts_without_the_server_waits_for_it(home: HomeCli, postgres_server: PostgresServer) -> None:
    task_id = running(home)
    postgres_server.stop()
    try:
        home.kill_engine()
        end(home, task_id)
        wait_until(lambda: "trying again every second" in (home.root / "engine.log").read_text(), "the next engine to wait", WAIT)
    finally:
        postgres_server.start()
    wait_until(lambda: has_status(home, task_id, "failed"), "the end to be recorded", WAIT)
    assert home.status(task_id)["exit_code"] == 7


def test_lost_connections_are_replaced(home: HomeCli, postgres_server: PostgresServer) -> None:
    task_id, engine = running(home), home.engine
    assert postgres_server.terminate_connections("test_postgres_home") >= 1
    end(home, task_id)
    wait_until(lambda: has_status(home, task_id, "failed"), "the end to be recorded", WAIT)
    assert home.status(task_id)["exit_code"] == 7 and home.engine == engine
    assert home.finish("true")["status"] == "completed"


def test_a_host_that_does_not_lead_limits_the_size_of_its_home(home: HomeCli, database: LedgerDatabase) -> None:
    database.join("0", state="active")  # the smallest id leads
    limited = "[commands]\nhome_limit_gb = 0.000001\n[worker]\nlease_seconds = 600\n"
    home.configure(f'{CONFIG}\n[store]\nurl = "{database.url}"\n{limited}')
    task_id = home.finish("seq", "10000")["task_id"]
    home.stop_engine()
    home.cli("run", "--", "true")  # the next engine looks at the size when it starts
    log = home.folder(task_id) / "output.log"
    wait_until(lambda: log.read_text().startswith("[backburner: the output was removed"), "the output to be removed", WAIT)


def test_a_stopped_engine_does_not_keep_others_from_writing(home: HomeCli) -> None:
    task_id, engine = running(home), home.engine
    assert engine
    processes.send(engine, signal.SIGSTOP)
    try:
        home.ok("run", "--yes", "--", "true")
    finally:
        processes.send(engine, signal.SIGCONT)
    end(home, task_id)
    wait_until(lambda: has_status(home, task_id, "failed"), "the end to be recorded", WAIT)


# -- settings


def test_without_tables_every_command_says_how_to_create_them(home_cli: HomeCli, postgres_server: PostgresServer) -> None:
    url = postgres_server.create_database("not_migrated")
    try:
        home_cli.configure(f'{CONFIG}\n[store]\nurl = "{url}"\n')
        done = home_cli.cli("run", "--", "true")
        assert done.returncode == 1 and "it has no tables yet; create them with: backburner migrate" in done.stderr
        # What follows depends on whether the server has the roles already.
        assert home_cli.ok("migrate").startswith(f"Created the tables of the ledger {url}.\n")
        assert home_cli.ok("migrate").startswith(f"The ledger {url} is up to date.\n")
        assert home_cli.finish("true")["status"] == "completed"
    finally:
        home_cli.stop_engine()
        postgres_server.administer("DROP DATABASE not_migrated WITH (FORCE)")


def test_migrate_has_nothing_to_do_for_a_ledger_file(home_cli: HomeCli) -> None:
    assert "is a file, which is upgraded when it is opened" in home_cli.ok("migrate")
    assert not (home_cli.root / "host_id").exists()


@pytest.mark.parametrize("url", ["postgresql://anna:secret@db/ledger", "postgresql://anna@db/ledger?password=secret"])
def test_a_password_in_the_settings_is_refused(home_cli: HomeCli, url: str) -> None:
    home_cli.configure(f'[store]\nurl = "{url}"\n')
    done = home_cli.cli("run", "--", "true")
    assert done.returncode == 2 and "'store.url' must not contain a password; put it into ~/.pgpass" in done.stderr
    assert "line 2" in done.stderr and "secret" not in done.stderr


@pytest.mark.parametrize(
    ("url", "problem"), [("mysql://db/ledger", "must begin with postgresql://"), ("postgresql://db:x/l", "not a valid address")]
)
def test_an_address_of_another_kind_is_refused(home_cli: HomeCli, url: str, problem: str) -> None:
    home_cli.configure(f'[store]\nurl = "{url}"\n')
    done = home_cli.cli("run", "--", "true")
    assert done.returncode == 2 and f"'store.url' {problem}" in done.stderr


def test_the_address_can_only_be_set_in_the_file(home_cli: HomeCli, database: LedgerDatabase) -> None:
    done = home_cli.cli("run", "--", "true", env={"BACKBURNER_STORE_URL": database.url})
    assert done.returncode == 2 and "can only be set in" in done.stderr


def test_the_password_is_read_from_a_file_that_a_variable_names(home_cli: HomeCli, postgres_server: PostgresServer, tmp_path: Path) -> None:
    postgres_server.require_password("guarded", "secret")
    postgres_server.create_database("guarded")
    passwords = tmp_path / "passwords"
    passwords.touch(0o600)
    passwords.write_text("*:*:*:guarded:secret\n")
    home_cli.configure(f'{CONFIG}\n[store]\nurl = "{postgres_server.url("guarded", "guarded")}"\n')
    done = home_cli.cli("migrate")
    assert done.returncode == 1 and "no password supplied" in done.stderr
    home_cli.environ["PGPASSFILE"] = str(passwords)
    home_cli.ok("migrate")
    task_id = home_cli.run("true")  # by the engine, which needs the file too
    wait_until(lambda: has_status(home_cli, task_id, "completed"), "the command to end", WAIT)
    home_cli.stop_engine()


def test_an_invalid_config_does_not_lead_to_another_ledger(home: HomeCli) -> None:
    task_id = home.run("true")
    home.ok("wait", task_id)
    home.configure("[store\n")
    done = home.cli("list")
    assert done.returncode == 2 and "not valid TOML" in done.stderr and done.stdout == ""


def test_the_engine_starts_again_when_the_ledger_was_changed_in_the_settings(home: HomeCli) -> None:
    task_id = home.run("true")
    home.ok("wait", task_id)
    engine = home.engine
    assert engine
    home.configure(CONFIG)
    other = home.run("echo", "other")  # wakes the engine of the other ledger, and nobody waits
    wait_until(lambda: not processes.is_alive(engine), "the engine of the other ledger to exit", WAIT)
    wait_until(lambda: (home.folder(other) / "result.json").exists(), "the next engine to run the command", WAIT)
    assert task_id not in home.ok("list") and other in home.ok("list")
    home.stop_engine()
    for path in home.root.glob("ledger.db*"):
        path.unlink()


def test_another_home_uses_the_ledger_after_it_has_joined(home: HomeCli, database: LedgerDatabase, tmp_path: Path) -> None:
    other = HomeCli(tmp_path / "other", home.cwd)
    other.configure(f'{CONFIG}\n[store]\nurl = "{database.url}"\n')
    done = other.cli("list")
    assert done.returncode == 1 and "this home has not joined it; join it with: backburner join" in done.stderr
    task_id = home.run("true")
    other.ok("migrate")
    assert task_id in other.ok("list") and task_id in home.ok("list")
    wait_until(lambda: has_status(other, task_id, "completed"), "the command to end", WAIT)


def test_doctor_checks_the_server(home: HomeCli, database: LedgerDatabase, postgres_server: PostgresServer) -> None:
    done = home.cli("doctor")
    lines = done.stdout
    assert f"ledger {database.url}: Postgres 18" in lines and "fsync is off" in lines  # as the tests start it
    assert "collation" not in lines and "encrypted" not in lines
    postgres_server.administer('ALTER TABLE backburner.cursors ALTER name TYPE TEXT COLLATE "POSIX"', database.name)
    try:
        assert "some columns of the ledger have another collation than C" in home.cli("doctor").stdout
    finally:
        postgres_server.administer('ALTER TABLE backburner.cursors ALTER name TYPE TEXT COLLATE "C"', database.name)


_SOUND = {
    "server_version_num": "150018",
    "server_version": "15.18",
    "server_encoding": "UTF8",
    "collations": "C",
    "fsync": "on",
    "synchronous_commit": "on",
    "encrypted": "yes",
    "sslmode": "verify-full",
    "host": "db.example.net",
}


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({}, None),
        ({"server_version_num": "140011", "server_version": "14.11"}, "the server is Postgres 14.11, which is too old"),
        ({"server_encoding": "SQL_ASCII"}, "the encoding of the database is SQL_ASCII"),
        ({"synchronous_commit": "off"}, "synchronous_commit is off"),
        ({"encrypted": "no", "sslmode": "prefer"}, "the connection to db.example.net is not encrypted"),
        ({"sslmode": "require"}, "the connection to db.example.net is encrypted, but the server is not verified"),
        ({"clock_offset_ms": "2001"}, "the clock of this host is 2.0 s ahead of that of the server"),
        ({"clock_offset_ms": "-9000"}, "the clock of this host is 9.0 s behind that of the server"),
        ({"clock_offset_ms": "1999"}, None),
        *[({"encrypted": "no", "sslmode": "prefer", "host": host}, None) for host in ("/run/postgresql", "127.0.0.1", "localhost", "::1")],
    ],
)
def test_doctor_names_what_is_wrong_with_a_server(changed: dict[str, str], problem: str | None) -> None:
    found = list(problems_of({**_SOUND, **changed}))
    assert [finding.what.startswith(problem or "") and not finding.ok for finding in found] == ([True] if problem else [])


@pytest.mark.parametrize(
    ("login", "ok", "what"),
    [
        (("anna", "owner", "no", "no"), True, "the ledger has no roles, so whoever can open it can also approve"),
        (("anna", "owner", "yes", "no"), False, "owns the tables and may do everything"),
        (("anna", "person", "yes", "no"), False, "may approve, and run tasks, and so can every program of this host"),
        (("gpu1", "worker", "yes", "yes"), False, "can give itself roles"),
        (("gpu1", "worker", "yes", "no"), True, "runs tasks and cannot approve; people decide here as bert"),
        (("laptop", "agent", "yes", "no"), True, "submits tasks, and can neither run nor approve them"),
    ],
)
def test_doctor_says_what_the_database_user_may_do(login: tuple[str, str, str, str], ok: bool, what: str) -> None:
    (found,) = login_of(dict(zip(("user", "role", "has_roles", "can_administer"), login, strict=True)), "bert")
    assert found.ok is ok and what in found.what and (ok or found.fix)


def test_doctor_of_a_worker_shows_its_role(home_cli: HomeCli, postgres_server: PostgresServer) -> None:
    database = LedgerDatabase(postgres_server, "doctor", "bytes", roles=True)
    home_cli.configure(f'{CONFIG}\n[store]\nurl = "{database.url}"\n')
    home_cli.ok("migrate")
    assert "database user ledger: owns the tables" in home_cli.cli("doctor").stdout
    home_cli.configure(f'{CONFIG}\n[store]\nurl = "{database.url_of(WORKER)}"\nperson = "{PERSON}"\n')
    assert f"database user {WORKER}: runs tasks and cannot approve; people decide here as {PERSON}" in home_cli.cli("doctor").stdout
    postgres_server.administer("CREATE ROLE nobody LOGIN")
    home_cli.configure(f'{CONFIG}\n[store]\nurl = "{database.url_of("nobody")}"\n')
    assert "the database user nobody has none of the roles" in home_cli.cli("list").stderr


def test_a_decision_at_a_terminal_needs_the_login_of_a_person(home_cli: HomeCli, postgres_server: PostgresServer) -> None:
    database = LedgerDatabase(postgres_server, "decisions", "bytes", roles=True)
    home_cli.configure(f'{CONFIG}\n[store]\nurl = "{database.url}"\n')
    home_cli.ok("migrate")
    home_cli.configure(f'{CONFIG}\n[store]\nurl = "{database.url_of(WORKER)}"\n')
    task_id = home_cli.cli("run", "--", "install", "-d", "made").stdout.strip()
    for words in (("approve", task_id), ("trust",), ("run", "--yes", "--", "install", "-d", "other")):
        refused = home_cli.cli(*words)
        assert refused.returncode == 3 and f"The database user {WORKER} may not do this" in refused.stderr
    home_cli.configure(f'{CONFIG}\n[store]\nurl = "{database.url_of(WORKER)}"\nperson = "{PERSON}"\n')
    home_cli.ok("approve", task_id)
    home_cli.ok("trust")
    wait_until(lambda: has_status(home_cli, task_id, "completed"), "the command to end", WAIT)
    assert str(home_cli.status(task_id)["approved_via"]).endswith(f":{PERSON}")


def test_a_backup_is_left_to_the_tools_of_postgres(home: HomeCli, tmp_path: Path) -> None:
    done = home.cli("backup", str(tmp_path / "backup"))
    assert done.returncode == 2 and "pg_dump" in done.stderr and not (tmp_path / "backup").exists()


def test_a_ledger_file_needs_no_postgres_library(home_cli: HomeCli) -> None:
    home_cli.ok("wait", home_cli.run("true"))
    for words in (["list", "--json"], ["run", "--wait", "--", "true"]):
        call = [sys.executable, "-X", "importtime", "-m", "backburner", *words]
        done = subprocess.run(call, env=home_cli.environ, cwd=home_cli.cwd, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and "backburner.store.sqlite" in done.stderr and "psycopg" not in done.stderr
