"""The command line on one host, for tasks that run on another: the same verbs, and nothing but the ledger between them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import CONFIG, HomeCli, wait_until
from mcp_client import Raw
from postgres_server import LedgerDatabase, PostgresServer

WAIT = 60.0  # seconds


class Hosts:
    """`there` runs commands, `here` has no engine."""

    def __init__(self, there: HomeCli, here: HomeCli, server: PostgresServer, database: LedgerDatabase) -> None:
        self.there, self.here, self._server, self._database = there, here, server, database

    def set_state(self, state: str) -> None:
        changed = f"UPDATE backburner.hosts SET state = '{state}' WHERE host_id = '{self.there.home.host_id()}'"
        self._server.administer(changed, self._database.name)

    def name(self) -> str:
        selected = f"SELECT name FROM backburner.hosts WHERE host_id = '{self.there.home.host_id()}'"
        return self._server.administer(selected, self._database.name)[0][0]

    def run(self, script: str, *options: str) -> str:
        task_id = self.there.run("sh", "-c", script, options=options)
        wait_until(lambda: self.there.status(task_id)["status"] != "pending", "the command to start", WAIT)
        return task_id

    def terminate_connections(self) -> None:
        self._server.terminate_connections(self._database.name)


@pytest.fixture
def hosts(home_cli: HomeCli, database: LedgerDatabase, postgres_server: PostgresServer, tmp_path: Path) -> Iterator[Hosts]:
    database.empty()
    here = HomeCli(tmp_path / "here", home_cli.cwd)
    for home in (home_cli, here):
        home.configure(f'{CONFIG}\n[store]\nurl = "{database.url}"\n')
        home.ok("migrate")
    yield Hosts(home_cli, here, postgres_server, database)
    assert not here.processes()


def follow(home: HomeCli, task_id: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "backburner", "logs", "-f", task_id]
    return subprocess.Popen(command, cwd=home.cwd, env=home.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def read(process: "subprocess.Popen[bytes]", size: int) -> bytes:
    assert process.stdout
    found = b""
    while len(found) < size and (piece := os.read(process.stdout.fileno(), size - len(found))):
        found += piece
    return found


def test_logs_status_and_wait_work_from_another_host(hosts: Hosts) -> None:
    task_id = hosts.run(
        'echo one; echo two >&2; printf three; touch work.txt "$BACKBURNER_RUN_DIR"/kept.txt; until [ -e go ]; do sleep 0.05; done'
    )
    wait_until(lambda: hosts.here.log(task_id).endswith(b"three"), "the output", WAIT)
    assert hosts.here.log(task_id) == b"one\ntwo\nthree" == hosts.there.log(task_id)
    assert hosts.here.ok("logs", task_id, "--tail", "1") == "three" and hosts.here.ok("logs", task_id, "--grep", "tw") == "two\n"
    assert hosts.here.json("logs", task_id)["cursor"] == hosts.there.json("logs", task_id)["cursor"]  # type: ignore[index]
    status = hosts.here.status(task_id)
    assert status["status"] == "running" and status["output"] == "one\ntwo\nthree" and status["log"] is None
    shown = hosts.here.ok("status", task_id)
    assert "three" in shown and f"Full output: backburner logs {task_id}" in shown and str(hosts.there.root) not in shown
    (hosts.there.cwd / "go").touch()
    hosts.here.ok("wait", task_id, "--timeout", "60")
    assert hosts.here.log(task_id) == b"one\ntwo\nthree"


def test_output_is_followed_until_the_task_ends_there(hosts: Hosts) -> None:
    task_id = hosts.run("for n in 1 2 3; do until [ -e go$n ]; do sleep 0.02; done; echo line $n; done")
    process = follow(hosts.here, task_id)
    try:
        for n in (1, 2, 3):
            (hosts.there.cwd / f"go{n}").touch()
            assert read(process, 7) == f"line {n}\n".encode()
        out, err = process.communicate(timeout=WAIT)
        assert out == b"" and b"completed" in err and process.returncode == 0
    finally:
        process.kill()
        process.communicate()


def test_following_survives_a_killed_engine_and_lost_connections(hosts: Hosts) -> None:
    task_id = hosts.run("n=0; while [ $n -lt 400 ]; do echo $n; n=$((n + 1)); sleep 0.01; done; printf end")
    expected = b"".join(b"%d\n" % n for n in range(400)) + b"end"
    process = follow(hosts.here, task_id)
    try:
        found = read(process, 30)
        hosts.there.kill_engine()
        found += read(process, 300)
        hosts.terminate_connections()
        rest, err = process.communicate(timeout=WAIT)
        assert found + rest == expected, err
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


def test_input_is_sent_from_another_host(hosts: Hosts) -> None:
    task_id = hosts.run("while read line; do echo got $line; done; echo over", "--stdin")
    hosts.here.ok("send", task_id, "hello")
    wait_until(lambda: hosts.here.log(task_id) == b"got hello\n", "the input", WAIT)
    hosts.here.ok("send", task_id, "bye", "--eof")
    hosts.here.ok("wait", task_id, "--timeout", "60")
    assert hosts.here.log(task_id) == b"got hello\ngot bye\nover\n"
    done = hosts.here.cli("send", task_id, "late")
    assert done.returncode != 0 and "completed" in done.stderr


def test_files_are_fetched_from_any_host(hosts: Hosts, tmp_path: Path) -> None:
    task_id = hosts.run('cd "$BACKBURNER_RUN_DIR" && mkdir sub && head -c 3000000 /dev/urandom > sub/data.bin && echo x > a.txt')
    hosts.here.ok("wait", task_id, "--timeout", "60")
    content = (hosts.there.folder(task_id) / "work" / "sub" / "data.bin").read_bytes()
    for home in (hosts.here, hosts.there):
        target = tmp_path / f"fetched-{home.root.name}"
        target.mkdir()
        listed = home.json("fetch", task_id)
        assert isinstance(listed, list) and [(file["name"], file["size"]) for file in listed] == [("a.txt", 2), ("sub/data.bin", 3_000_000)]
        assert "sub/data.bin" in home.ok("fetch", task_id)
        assert home.ok("fetch", task_id, "sub/data.bin", cwd=target).strip() == "data.bin"
        assert (target / "data.bin").read_bytes() == content
        assert home.ok("fetch", task_id, "a.txt", "-o", "-") == "x\n"
        home.ok("fetch", task_id, "a.txt", "-o", "other", cwd=target)
        assert (target / "other").read_text() == "x\n"
        again = home.cli("fetch", task_id, "sub/data.bin", cwd=target)
        assert again.returncode == 2 and "data.bin exists" in again.stderr
        missing = home.cli("fetch", task_id, "../output.log", cwd=target)
        assert missing.returncode == 2 and "has no file '../output.log'" in missing.stderr


def test_a_sentence_says_that_a_host_does_not_answer(hosts: Hosts) -> None:
    task_id = hosts.run("echo last words")
    hosts.there.ok("wait", task_id, "--timeout", "60")

    def reported() -> bool:
        size = "SELECT size FROM backburner.output_excerpts"
        return bool(hosts._server.administer(size, hosts._database.name))

    wait_until(reported, "the report", WAIT)
    hosts.there.stop_engine()
    hosts.set_state("suspected")
    done = hosts.here.cli("logs", task_id)
    assert done.stdout == "last words\n" and done.stderr.startswith(
        f"Host {hosts.name()} does not answer; this is what it last reported at 20"
    )
    shown = hosts.here.ok("status", task_id)
    assert "last words" in shown and f"Note: Host {hosts.name()} does not answer; this is what it last reported at 20" in shown
    fetched = hosts.here.cli("fetch", task_id)
    assert fetched.returncode == 1 and f"Host {hosts.name()} does not answer" in fetched.stderr


def test_the_folder_of_a_task_that_is_cleared_on_another_host_is_deleted(hosts: Hosts) -> None:
    task_id = hosts.run("echo x")
    hosts.here.ok("wait", task_id, "--timeout", "60")
    hosts.here.ok("clear", task_id)
    other = hosts.run("echo y")  # a pass of the engine
    wait_until(lambda: not hosts.there.folder(task_id).exists(), "the folder to be deleted", WAIT)
    hosts.there.ok("wait", other, "--timeout", "60")
    assert hosts.there.folder(other).exists()


def test_the_library_reads_the_output_of_another_host(hosts: Hosts) -> None:
    task_id = hosts.run('echo hello; cd "$BACKBURNER_RUN_DIR"; echo content > made.txt')
    hosts.here.ok("wait", task_id, "--timeout", "60")
    script = (
        "import sys; from backburner import BackburnerSync\n"
        "with BackburnerSync.open() as bb:\n"
        "    print(bb.tail(sys.argv[1]), [file.name for file in bb.files(sys.argv[1])], bb.read_file(sys.argv[1], 'made.txt'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, task_id], cwd=hosts.here.cwd, env=hosts.here.environ, capture_output=True, text=True, timeout=WAIT
    )
    assert done.stdout == "hello\n ['made.txt'] b'content\\n'\n", done.stderr


def test_a_home_with_a_ledger_file_imports_nothing_of_this(home_cli: HomeCli) -> None:
    task_id = home_cli.run("echo", "x")
    home_cli.ok("wait", task_id)
    script = (
        "import sys; from backburner.interfaces.cli.main import main\n"
        f"main(['logs', '-f', '{task_id}']); main(['status', '{task_id}', '--json'])\n"
        "names = ('remote_', 'host_client', 'host_records', 'host_requests', 'output_excerpts', 'psycopg')\n"
        "sys.exit(str([name for name in sys.modules if any(word in name for word in names)]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=home_cli.cwd, env=home_cli.environ, capture_output=True, text=True, timeout=WAIT
    )
    assert done.stderr.strip().splitlines()[-1] == "[]", done.stderr


def test_agents_read_the_output_of_another_host(hosts: Hosts) -> None:
    task_id = hosts.run("echo hello from there; until [ -e go ]; do sleep 0.05; done")
    wait_until(lambda: hosts.here.log(task_id), "the output", WAIT)
    with Raw(hosts.here) as client:
        read = client.call("read_background_output", task_id=task_id)["structuredContent"]
        assert read["output"] == "hello from there\n"
        status = client.call("check_task_status", task_id=task_id)["structuredContent"]
        assert status["status"] == "running" and "hello from there" in status["output"]
    (hosts.there.cwd / "go").touch()
    hosts.here.ok("wait", task_id, "--timeout", "60")
