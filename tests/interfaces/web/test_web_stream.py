"""The live stream and the server process: nothing is lost when the server or the engine is killed."""

import asyncio
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from conftest import CONFIG, HomeCli, wait_until

from backburner import BackburnerSync
from backburner.interfaces.library.client import submission
from backburner.interfaces.web.backlog import ROWS_AT_ONCE
from backburner.interfaces.web.calls import Call
from backburner.interfaces.web.stream import Hub, Stream
from backburner.services.app import App, open_app
from backburner.services.async_app import AsyncApp
from backburner.system import processes
from backburner.system.caller_identity import current_caller


class Server:
    """`backburner web`, and a client with the token."""

    def __init__(self, home_cli: HomeCli, log: Path) -> None:
        self._home_cli, self._log = home_cli, log
        command = [sys.executable, "-m", "backburner", "web", "--port", "0", "--no-open"]
        with log.open("wb") as file:
            self.process = subprocess.Popen(command, cwd=home_cli.cwd, env=home_cli.environ, stdin=subprocess.DEVNULL, stdout=file)
        wait_until(lambda: "Web interface" in log.read_text(), "the address of the server")
        found = re.search(r"http://backburner.localhost:(\d+)", log.read_text())
        assert found
        self.base = f"http://127.0.0.1:{found[1]}/api/v1"
        wait_until((home_cli.root / "token").exists, "the token")
        token = (home_cli.root / "token").read_text().strip()
        self.http = httpx2.Client(headers={"Authorization": f"Bearer {token}"}, timeout=30)
        wait_until(lambda: self.get("/home").status_code == 200, "the server to answer")

    def get(self, path: str, **query: Any) -> httpx2.Response:
        return self.http.get(self.base + path, params=query)

    def statuses(self) -> dict[str, str]:
        """The status of each task, from all pages of the list."""
        found: dict[str, str] = {}
        query: dict[str, Any] = {"limit": 200}
        while True:
            page = self.get("/tasks", **query).json()
            found |= {row["task_id"]: row["status"] for row in page["items"]}
            if page["next"] is None:
                return found
            query["before"] = page["next"]

    def kill(self) -> None:
        """Kill the web process with SIGKILL."""
        (found,) = self._home_cli.hosts("interfaces.web.server")
        processes.send(found, signal.SIGKILL)
        wait_until(lambda: not processes.is_alive(found), "the web process to die")

    def close(self) -> None:
        self.http.close()
        self.process.send_signal(signal.SIGINT)
        self.process.wait(30)


@pytest.fixture
def server(home_cli: HomeCli, tmp_path: Path) -> Iterator[Server]:
    home_cli.configure(CONFIG)
    server = Server(home_cli, tmp_path / "web.log")
    yield server
    server.close()


class Reader(threading.Thread):
    """A page: follows the stream, reconnects when it ends, and puts the output of one run together from the pieces."""

    def __init__(self, server: Server, run_id: str = "") -> None:
        super().__init__(daemon=True)
        self._server, self._run_id = server, run_id
        self.text, self.cursor, self.connections = "", "1:0", 0
        self.last_id = "0"
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.known: dict[str, str] = {}  # the status of each task
        self.is_over = False
        self.start()

    def run(self) -> None:
        while not self.is_over:
            query = {"run": self._run_id, "cursor": self.cursor} if self._run_id else {}
            try:
                headers = {"Last-Event-ID": self.last_id}
                with self._server.http.stream("GET", f"{self._server.base}/stream", params=query, headers=headers) as answer:
                    self.connections += 1
                    kind = ""
                    for line in answer.iter_lines():
                        name, _, value = line.partition(": ")
                        if name == "event":
                            kind = value
                        elif name == "id":
                            self.last_id = value
                        elif name == "data":
                            self._received(kind, json.loads(value))
                        if self.is_over:
                            return
            except httpx2.HTTPError:
                continue

    def _received(self, kind: str, data: dict[str, Any]) -> None:
        self.events.append((kind, data))
        if kind == "rows":
            self.known |= {row["task_id"]: row["status"] for row in data["tasks"]}
        elif kind == "reset":
            self.known = self._server.statuses()
        if kind == "log":
            assert data["start"] == self.cursor or self.cursor == "1:0"
            self.text, self.cursor = self.text + data["text"], data["cursor"]
            self.is_over = not data["live"]

    def statuses(self, task_id: str) -> list[str]:
        rows = [row for kind, data in self.events if kind == "rows" for row in data["tasks"]]
        return [row["status"] for row in rows if row["task_id"] == task_id]


def test_output_is_the_same_as_the_file_after_the_web_process_and_the_engine_were_killed(server: Server, home_cli: HomeCli) -> None:
    go = home_cli.cwd / "go"
    script = "i=0; while [ $i -lt 200 ]; do i=$((i+1)); echo line $i äöü; done; until [ -e go ]; do sleep 0.05; done; echo end ✓"
    task_id = home_cli.run("sh", "-c", script)
    reader = Reader(server, task_id)
    wait_until(lambda: "line 200" in reader.text, "the output before the kill")
    server.kill()
    home_cli.kill_engine()
    wait_until(lambda: reader.connections > 1, "the page to reconnect")
    go.write_text("")
    wait_until(lambda: reader.is_over, "the end of the output", 60)
    assert reader.text.encode() == home_cli.log(task_id)


def test_changes_reach_a_page_and_what_it_missed_comes_after_the_reconnect(server: Server, home_cli: HomeCli) -> None:
    reader = Reader(server)
    wait_until(lambda: reader.connections, "the page to connect")
    first = str(home_cli.finish("true")["task_id"])
    wait_until(lambda: "completed" in reader.statuses(first), "the end of the first task")
    server.kill()
    second = str(home_cli.finish("true")["task_id"])
    wait_until(lambda: "completed" in reader.statuses(second), "the end of the second task")
    reader.is_over = True


def test_the_progress_of_a_command_that_ran_before_the_page_was_opened_is_sent(server: Server, home_cli: HomeCli) -> None:
    script = "echo 25%; until [ -e half ]; do sleep 0.05; done; echo 75%; until [ -e end ]; do sleep 0.05; done"
    task_id = home_cli.run("sh", "-c", script)
    wait_until(lambda: b"25%" in home_cli.log(task_id), "the command to run")
    reader = Reader(server)
    wait_until(lambda: any(kind == "hello" for kind, _ in reader.events), "the page to connect")
    (home_cli.cwd / "half").touch()

    def fractions() -> list[float]:
        rows = [row for kind, data in reader.events if kind == "rows" for row in data["tasks"] if row["task_id"] == task_id]
        return [row["progress"]["fraction"] for row in rows if row["progress"]]

    wait_until(lambda: 0.75 in fractions(), "the progress")
    (home_cli.cwd / "end").touch()
    reader.is_over = True
    home_cli.ok("wait", task_id)


def test_a_question_is_sent_at_once(server: Server, home_cli: HomeCli) -> None:
    reader = Reader(server)
    wait_until(lambda: any(kind == "hello" for kind, _ in reader.events), "the page to connect")
    home_cli.cli("run", "--", "touch", "made")
    wait_until(lambda: any(kind == "ask" for kind, _ in reader.events), "the question")
    asked = next(data["task"] for kind, data in reader.events if kind == "ask")
    assert asked["needs_you"] and asked["line"] == "touch made"
    reader.is_over = True


@pytest.mark.parametrize("count", [60, 400])
def test_after_a_flood_a_client_knows_the_state_of_every_task(count: int, server: Server, home_cli: HomeCli) -> None:
    reader = Reader(server)
    wait_until(lambda: any(kind == "hello" for kind, _ in reader.events), "the page to connect")
    with BackburnerSync.open(home_cli.root) as library:
        task_ids = [library.submit(["true"], cwd=home_cli.cwd, approved=True).task.task_id for _ in range(count)]
        library.wait(*task_ids)
    wait_until(lambda: reader.known == dict.fromkeys(task_ids, "completed"), "the client to know all ends")
    wait_until(lambda: not [data for kind, data in reader.events if kind == "rows"][-1]["more"], "the client to know that this is all")
    assert int(reader.last_id) == server.get("/home").json()["last_event"]
    reader.is_over = True


async def test_the_number_of_a_message_comes_before_the_changes_that_were_put_off(home_cli: HomeCli) -> None:
    home_cli.configure(CONFIG)
    caller = current_caller("cli", home_cli.environ)

    def submit(app: App) -> set[str]:
        wanted = submission(["true"], cwd=home_cli.cwd)
        return {app.submissions.submit(wanted, caller, approved_via="cli").task.task_id for _ in range(3 * ROWS_AT_ONCE)}

    async with asyncio.timeout(60), AsyncApp(lambda: open_app(str(home_cli.root), home_cli.environ)) as app:
        hub = Hub(app)
        stream, before = Stream(app, hub, {}), await app.call(lambda services: services.overview.last_event())
        client = await stream.open(Call(caller, {}, {}))
        messages = stream.messages(client, lambda: True)
        left = await app.call(submit)  # the hub looks afterwards
        numbers: dict[bool, list[int]] = {True: [], False: []}
        while left or not numbers[False]:
            fields = dict(line.split(": ", 1) for line in (await anext(messages)).decode().splitlines() if ": " in line)
            if fields.get("event") == "rows":
                data = json.loads(fields["data"])
                numbers[data["more"]].append(int(fields["id"]))
                left -= {row["task_id"] for row in data["tasks"] if row["status"] == "completed"}
        await messages.aclose()
        hub.remove(client)
        assert numbers[True][0] == before < numbers[False][-1]


def test_the_server_says_goodbye_when_it_stops(server: Server, home_cli: HomeCli) -> None:
    reader = Reader(server)
    wait_until(lambda: any(kind == "hello" for kind, _ in reader.events), "the page to connect")
    reader.is_over = False
    (found,) = home_cli.hosts("interfaces.web.server")
    processes.send(found, signal.SIGTERM)
    wait_until(lambda: any(kind == "bye" for kind, _ in reader.events), "the goodbye")
    reader.is_over = True


def test_a_log_is_read_by_line_by_cursor_and_from_the_end(server: Server, home_cli: HomeCli) -> None:
    task_id = str(home_cli.finish("sh", "-c", "for i in $(seq 1 2500); do echo line $i; done; printf '\\377x'")["task_id"])
    page = server.get(f"/runs/{task_id}/log", line=1042, lines=2).json()
    assert page["text"] == "line 1042\nline 1043\n" and (page["first_line"], page["total_lines"]) == (1042, 2501)
    tail = server.get(f"/runs/{task_id}/log", tail=2).json()
    assert tail["text"] == "line 2500\n\\xffx" and (tail["first_line"], tail["more"]) == (2500, False)
    first = server.get(f"/runs/{task_id}/log", bytes=1000).json()
    second = server.get(f"/runs/{task_id}/log", cursor=first["cursor"]).json()
    assert first["text"].startswith("line 1\n") and second["start"] == first["cursor"] and second["first_line"] == first["lines"] + 1
    assert (first["text"] + second["text"]).count("\n") == 2500
    found = server.get(f"/runs/{task_id}/log/search", q="LINE 249", limit=3).json()
    assert [hit["line"] for hit in found["hits"]] == [249, 2490, 2491] and (found["total"], found["next"]) == (11, 2491)
    pattern = server.get(f"/runs/{task_id}/log/search", q="line (7|8)$", regex="true").json()
    assert [hit["line"] for hit in pattern["hits"]] == [7, 8]
    assert server.get(f"/runs/{task_id}/log/search", q="(", regex="true").status_code == 400
    assert server.get(f"/runs/{task_id}/log.txt").content == home_cli.log(task_id)


def test_events_are_a_stream_that_continues_after_the_last_id(server: Server, home_cli: HomeCli) -> None:
    home_cli.finish("true")
    events = server.get("/events", after=0).json()
    headers = {"Accept": "text/event-stream", "Last-Event-ID": str(events["items"][0]["event_id"])}
    with server.http.stream("GET", f"{server.base}/events", headers=headers) as answer:
        numbers = []
        for line in answer.iter_lines():
            if line.startswith("id: "):
                numbers.append(int(line[4:]))
            if len(numbers) == len(events["items"]) - 1:
                break
    assert numbers == [event["event_id"] for event in events["items"][1:]]
