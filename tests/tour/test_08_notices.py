"""Chapter 8: notices. Every task that ends leaves one for whoever requested it, and copies for the channels of the task."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from conftest import CONFIG, HomeCli, wait_until
from mcp_client import Raw

from backburner import Backburner


def test_the_inbox_shows_a_notice_until_it_is_acknowledged(home_cli: HomeCli) -> None:
    """`inbox --ack` prints the notices and marks them as read."""
    task_id = home_cli.ok("run", "--", "echo", "done").strip()
    wait_until(lambda: home_cli.status(task_id)["status"] == "completed", "the end of the task")
    notices = home_cli.json("inbox")
    assert isinstance(notices, list) and [notice["task_id"] for notice in notices] == [task_id]
    assert task_id in home_cli.ok("inbox", "--ack")
    assert home_cli.json("inbox") == []


def test_waiting_for_a_task_acknowledges_its_notice(home_cli: HomeCli) -> None:
    """Who has waited for the end does not need a notice about it."""
    home_cli.ok("run", "--wait", "--", "true")
    assert home_cli.json("inbox") == []


async def test_a_python_program_reads_and_acknowledges_notices(home_cli: HomeCli) -> None:
    """The text of a notice begins with the task and its result."""
    async with Backburner.open(home_cli.root) as bb:
        entry = await bb.submit(["echo", "hello"], cwd=home_cli.cwd)
        await bb.wait(entry.task.task_id)
        (notice,) = await bb.notices()
        assert notice.text.startswith(f"Background task {entry.task.task_id} completed: hello.")
        await bb.acknowledge(notice.notice_id)
        assert not await bb.notices()


def test_an_agent_gets_the_notices_of_its_own_session(home_cli: HomeCli) -> None:
    """Over MCP, pending notices are part of the next result. The inbox of the person stays empty meanwhile."""
    with Raw(home_cli) as client:
        started = client.call("start_background_task", command="echo from the agent", description="Say it")
        task_id = started["structuredContent"]["task_id"]
        wait_until(lambda: home_cli.status(task_id)["status"] == "completed", "the end of the task")
        assert home_cli.json("inbox") == []
        answer = client.call("list_background_tasks")
        assert "from the agent" in json.dumps(answer)


@pytest.fixture
def endpoint() -> Iterator[tuple[str, list[dict[str, object]]]]:
    """An HTTP server on this machine: its address, and the JSON bodies that it received."""
    received: list[dict[str, object]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/notices", received
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_channel_receives_a_copy_of_each_notice(home_cli: HomeCli, endpoint: tuple[str, list[dict[str, object]]]) -> None:
    """`notify.to` names the channels that also get the notices for the person."""
    url, received = endpoint
    home_cli.configure(f'{CONFIG}[channels.ops]\ntype = "webhook"\nurl = "{url}"\nsecret = "s3cret"\n[notify]\nto = "ops"\n')
    task_id = home_cli.ok("run", "--", "echo", "deployed").strip()
    wait_until(lambda: received, "the webhook to be called")
    assert received[0]["task_id"] == task_id and "deployed" in str(received[0]["text"])
    home_cli.stop_all()
