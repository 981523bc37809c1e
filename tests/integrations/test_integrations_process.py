"""The integrations process with real processes: order of delivery, unavailable channels, failed deliveries, sources and proposals."""

import contextlib
import http.server
import json
import signal
import threading
from collections.abc import Iterator
from typing import Any

import apsw
import pytest
from conftest import CONFIG, HomeCli, wait_until

from backburner.system import processes


class Receiver:
    """An HTTP endpoint on loopback. `statuses` are the status codes of the next requests; then it statuses 204."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.statuses: list[int] = []
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                code = receiver.statuses.pop(0) if receiver.statuses else 204
                receiver.keys.append(self.headers["Idempotency-Key"])
                if code < 300:
                    receiver.messages.append(json.loads(body))
                self.send_response(code)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                return

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/in"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def texts(self) -> list[str]:
        return [str(message["text"]).splitlines()[0] for message in self.messages]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    created = Receiver()
    yield created
    created.server.shutdown()
    created.server.server_close()


@pytest.fixture
def home(home_cli: HomeCli, receiver: Receiver) -> Iterator[HomeCli]:
    home_cli.configure(f'{CONFIG}[channels.hook]\ntype = "webhook"\nurl = "{receiver.url}"\n[notify]\nto = "hook"\n')
    yield home_cli
    home_cli.stop_all()


def test_a_notice_arrives_at_the_channel_and_in_the_inbox(home: HomeCli, receiver: Receiver) -> None:
    home.run("echo", "hello")
    wait_until(lambda: receiver.messages, "the message")
    assert "completed: hello" in receiver.texts[0] and receiver.messages[0]["question"] is False
    (notice,) = home.json("inbox", "--ack")  # type: ignore[misc]
    assert notice["text"] == receiver.messages[0]["text"]
    assert receiver.keys == [receiver.messages[0]["key"]] and receiver.messages[0]["title"] == notice["task_id"]


def test_the_title_of_a_message_is_the_name_of_the_task(home: HomeCli, receiver: Receiver) -> None:
    home.ok("add", "watch", "--every", "1h", "--", "echo", "hello")
    home.ok("run-now", "watch")
    wait_until(lambda: receiver.messages, "the message")
    assert (receiver.messages[0]["title"], receiver.texts) == ("watch", ["watch: hello"])


def test_an_unavailable_channel_delays_notices_and_keeps_their_order(home: HomeCli, receiver: Receiver) -> None:
    receiver.statuses = [503] * 2
    for number in range(3):
        home.finish("echo", f"number {number}")
    wait_until(lambda: len(receiver.messages) == 3, "all three messages", 60)
    assert [text.split(": ")[1].split(".")[0] for text in receiver.texts] == ["number 0", "number 1", "number 2"]
    assert len(set(receiver.keys)) == 3 and receiver.keys[0] == receiver.keys[1] == receiver.keys[2]


def test_a_failed_delivery_is_shown_by_inbox_and_doctor_and_can_be_retried(home: HomeCli, receiver: Receiver) -> None:
    receiver.statuses = [404]
    home.finish("echo", "hello")
    wait_until(lambda: "delivery failed (hook:" in home.cli("inbox").stderr, "the failed delivery")
    assert "delivery to channel 'hook' failed" in home.cli("doctor").stdout
    assert home.ok("inbox", "--again") == "Retrying 1 delivery.\n"
    wait_until(lambda: receiver.messages, "the delivery after the retry")
    assert "delivery failed" not in home.cli("inbox").stderr


def test_an_unknown_channel_is_rejected_by_name(home: HomeCli) -> None:
    done = home.cli("add", "x", "--every", "1h", "--to", "pigeon", "--", "true")
    assert done.returncode == 2 and "Unknown channel 'pigeon'. Configured channels: hook." in done.stderr


def test_all_notices_are_delivered_when_processes_are_killed(home: HomeCli, receiver: Receiver) -> None:
    for number in range(12):
        home.run("echo", str(number))
        if number % 3 == 2:
            wait_until(lambda: home.hosts("integrations.process"), "an integrations process")
            for process_id in home.hosts("integrations.process"):
                processes.send(process_id, signal.SIGKILL)
        if number % 4 == 3:
            home.kill_engine()
    wait_until(lambda: len({message["key"] for message in receiver.messages}) == 12, "all messages", 60)
    assert len(receiver.messages) - 12 <= 4  # at most one duplicate per kill


def test_quiet_hours_delay_notices_but_not_questions(home: HomeCli, receiver: Receiver) -> None:
    settings = (home.root / "config.toml").read_text()
    home.configure(settings.replace("[notify]", '[notify]\nquiet_hours = "00:00-23:59"'))
    home.finish("echo", "hello")
    done = home.cli("add", "clean", "--every", "1h", "--description", "Clean up", "--", "rm", "-rf", "build")
    assert done.returncode == 3
    wait_until(lambda: any("Proposed: clean" in text for text in receiver.texts), "the question")
    home.configure(settings)
    wait_until(lambda: any("hello" in text for text in receiver.texts), "the delayed notice")


def test_a_digest_combines_notices(home: HomeCli, receiver: Receiver) -> None:
    home.configure((home.root / "config.toml").read_text().replace("[notify]", "[notify]\ndigest_minutes = 0.05"))
    for number in range(3):
        home.finish("echo", f"number {number}")
    wait_until(lambda: "number 2" in json.dumps(receiver.messages), "the digest")
    assert len(receiver.messages) < 3 and any(message["title"].endswith("notices") for message in receiver.messages)


def test_a_changed_file_starts_a_run_also_after_downtime(home: HomeCli) -> None:
    watched = home.cwd / "watched.txt"
    watched.write_text("one")
    home.ok("add", "look", "--on", "file:watched.txt", "--shell", "--yes", "--", "cat $BACKBURNER_EVENT")
    wait_until(lambda: has_source_state(home, "look"), "the first state of the source")
    watched.write_text("two")
    wait_until(lambda: runs(home, "look") == 1, "the first run")
    assert b"watched.txt" in home.log("look") and home.status("look")["event_source"] == "file"
    home.stop_all()
    watched.write_text("three")
    home.ok("list")
    wait_until(lambda: runs(home, "look") == 2, "the run for the change during downtime")
    home.ok("cancel", "look")


def test_a_changed_command_output_starts_a_run(home: HomeCli) -> None:
    value = home.cwd / "value.txt"
    value.write_text("one")
    home.ok("add", "look", "--on", "command:cat value.txt", "--with", "every=1s", "--notify", "always", "--", "echo", "seen")
    wait_until(lambda: runs(home, "look:watch") >= 2, "the first output")
    assert runs(home, "look") == 0
    value.write_text("two")
    wait_until(lambda: runs(home, "look") == 1, "the change")
    home.ok("cancel", "look")
    assert home.status("look:watch")["status"] == "cancelled"


def test_a_changed_exit_code_starts_a_run_that_can_fail_itself(home: HomeCli) -> None:
    home.ok("add", "look", "--on", "command:test -e flag", "--with", "every=1s", "--with", "compare=exit", "--", "false")
    wait_until(lambda: runs(home, "look:watch") >= 2, "the first output")
    known = {run["status"] for run in home.status("look:watch")["runs"]}  # type: ignore[attr-defined]
    assert known <= {"completed", "running", "pending", "skipped"}
    (home.cwd / "flag").touch()
    wait_until(lambda: [run["status"] for run in home.status("look")["runs"]][-1:] == ["failed"], "the failed run")  # type: ignore[attr-defined]
    home.ok("cancel", "look")


def test_a_done_task_cancels_its_watcher(home: HomeCli) -> None:
    value = home.cwd / "value.txt"
    value.write_text("one")
    home.ok("add", "look", "--on", "command:cat value.txt", "--with", "every=1s", "--max-runs", "1", "--", "echo", "seen")
    wait_until(lambda: runs(home, "look:watch") >= 2, "the first output")
    value.write_text("two")
    wait_until(lambda: home.status("look")["status"] == "done", "the only run")
    assert home.status("look:watch")["status"] == "cancelled"


@pytest.mark.parametrize("module, source", [("watchfiles", "file:x"), ("httpx2", "github:a/b")])
def test_a_missing_library_is_reported_with_the_install_command(home: HomeCli, module: str, source: str) -> None:
    site = home.cwd / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(f"import sys; sys.modules['{module}'] = None")
    done = home.cli("add", "look", "--on", source, "--", "true", env={"PYTHONPATH": str(site)})
    assert done.returncode == 2 and "the extra `integrations`: pip install 'backburner[integrations]'" in done.stderr
    assert home.json("list") == []


def test_a_proposal_is_sent_as_a_question_with_its_details(home: HomeCli, receiver: Receiver) -> None:
    task_id = home.ok(
        "propose", "watch", "--cron", "0 9 * * 1-5", "--tz", "UTC", "--description", "CI was red twice.", "--", "true"
    ).strip()
    wait_until(lambda: receiver.messages, "the question")
    message = receiver.messages[0]
    assert message["question"] is True and message["priority"] == 1
    for expected in (
        "Proposed: watch",
        "CI was red twice.",
        "When: every weekday at 09:00 UTC; next:",
        "Command: true",
        f"approve {task_id}",
    ):
        assert expected in message["text"]
    assert home.status(task_id)["status"] == "proposed" and any(str(n["text"]).startswith("Proposed") for n in home.json("inbox"))  # type: ignore[union-attr, index, call-overload]
    home.ok("approve", "watch")
    assert home.status(task_id)["status"] == "active" and home.json("inbox") == []
    home.ok("cancel", "watch")


def has_source_state(home_cli: HomeCli, name: str) -> bool:
    with contextlib.closing(apsw.Connection(home_cli.home.ledger)) as ledger:
        ledger.set_busy_timeout(5000)
        return bool(ledger.execute("SELECT 1 FROM source_states WHERE state <> '{}'").fetchall())


def runs(home_cli: HomeCli, name: str) -> int:
    return sum(run["status"] == "completed" for run in home_cli.status(name)["runs"])  # type: ignore[union-attr, attr-defined]
