"""Chapter 5: servers, which run until they are cancelled: readiness, ports, and restarts after a failure."""

import json

from conftest import HomeCli

from backburner import Backburner

SERVER = "import socket; s = socket.create_server(('127.0.0.1', 0)); print('ready on', s.getsockname()[1], flush=True); s.accept()"


async def test_a_server_is_ready_when_its_output_matches_a_pattern(home_cli: HomeCli) -> None:
    """`ready_when` is a regular expression for a line of output."""
    async with Backburner.open(home_cli.root) as bb:
        entry = await bb.submit(["python3", "-c", SERVER], cwd=home_cli.cwd, ready_when=r"ready on \d+", approved=True)
        entry = await bb.ready(entry.task.task_id, timeout=60)
        assert entry.is_ready
        await bb.cancel(entry.task.task_id)


def test_status_shows_the_ports_of_a_server(home_cli: HomeCli) -> None:
    """`wait --ready` returns when the server is ready; the port comes from its processes."""
    task_id = home_cli.run("python3", "-c", SERVER, options=("--ready-when", r"ready on \d+"))
    home_cli.ok("wait", "--ready", task_id)
    port = int(home_cli.log(task_id).split()[-1])
    assert port in json.loads(home_cli.ok("status", task_id, "--json"))["ports"]
    home_cli.ok("cancel", task_id)


def test_wait_for_readiness_fails_when_the_server_ends_first(home_cli: HomeCli) -> None:
    """Exit code 1: at least one of the servers ended before it was ready."""
    task_id = home_cli.run("sh", "-c", "echo cannot start; exit 1", options=("--ready-when", "ready"))
    assert home_cli.cli("wait", "--ready", task_id).returncode == 1


def test_a_failed_server_is_restarted(home_cli: HomeCli) -> None:
    """Each restart is a new run of the same task. The first attempt here fails, the second one completes."""
    task_id = home_cli.run("sh", "-c", "mkdir tried && exit 1; exit 0", options=("--restart", "on-failure"))
    home_cli.ok("wait", task_id)
    status = home_cli.status(task_id)
    assert (status["status"], status["run_count"]) == ("completed", 2)
