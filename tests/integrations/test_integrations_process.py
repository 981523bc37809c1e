"""The integrations process with real processes: letters that arrive once and in order, channels that are down, sources, proposals, and what is refused."""

import contextlib
import http.server
import json
import signal
import threading
from collections.abc import Iterator
from typing import Any

import apsw
import pytest
from conftest import CONFIG, Place, wait_until

from backburner.system import processes as process


class Receiver:
    """An HTTP endpoint on loopback; `answers` are the status codes of the next requests, 204 when there are no more."""

    def __init__(self) -> None:
        self.letters: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.answers: list[int] = []
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                code = receiver.answers.pop(0) if receiver.answers else 204
                receiver.keys.append(self.headers["Idempotency-Key"])
                if code < 300:
                    receiver.letters.append(json.loads(body))
                self.send_response(code)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                return

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/in"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def texts(self) -> list[str]:
        return [str(letter["text"]).splitlines()[0] for letter in self.letters]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def home(place: Place, receiver: Receiver) -> Iterator[Place]:
    place.configure(f'{CONFIG}[channels.hook]\ntype = "webhook"\nurl = "{receiver.url}"\n[notify]\nto = "hook"\n')
    yield place
    place.stop_all()


def test_what_ended_arrives_at_the_channel_and_in_the_inbox(home: Place, receiver: Receiver) -> None:
    home.run("echo", "hello")
    wait_until(lambda: receiver.letters, "the letter", 40)
    assert "completed: hello" in receiver.texts[0] and receiver.letters[0]["question"] is False
    (notice,) = home.json("inbox", "--ack")  # type: ignore[misc]
    assert notice["text"] == receiver.letters[0]["text"]
    assert receiver.keys == [receiver.letters[0]["key"]]


def test_a_channel_that_is_down_delays_and_loses_nothing_and_the_order_stays(home: Place, receiver: Receiver) -> None:
    receiver.answers = [503] * 2
    for number in range(3):
        home.finish("echo", f"number {number}")
    wait_until(lambda: len(receiver.letters) == 3, "all three letters", 60)
    assert [text.split(": ")[1].split(".")[0] for text in receiver.texts] == ["number 0", "number 1", "number 2"]
    assert len(set(receiver.keys)) == 3 and receiver.keys[0] == receiver.keys[1] == receiver.keys[2]


def test_what_can_never_be_delivered_is_a_dead_letter_that_inbox_and_doctor_show(home: Place, receiver: Receiver) -> None:
    receiver.answers = [404]
    home.finish("echo", "hello")
    wait_until(lambda: "delivery failed (hook:" in home.cli("inbox").stderr, "the dead letter", 40)
    assert "delivery to channel 'hook' failed" in home.cli("doctor").stdout
    assert home.ok("inbox", "--again") == "Retrying 1 delivery.\n"
    wait_until(lambda: receiver.letters, "it to be delivered after all", 40)
    assert "delivery failed" not in home.cli("inbox").stderr


def test_a_channel_that_is_not_there_is_named(home: Place) -> None:
    done = home.cli("add", "x", "--every", "1h", "--to", "pigeon", "--", "true")
    assert done.returncode == 2 and "There is no channel 'pigeon'; there are hook." in done.stderr


def test_killed_in_the_middle_everything_is_delivered_at_least_once_with_the_same_key(home: Place, receiver: Receiver) -> None:
    for number in range(12):
        home.run("echo", str(number))
        if number % 3 == 2:
            wait_until(lambda: home.hosts("integrations.process"), "a integrations process", 40)
            for one in home.hosts("integrations.process"):
                process.send(one, signal.SIGKILL)
        if number % 4 == 3:
            home.kill_engine()
    wait_until(lambda: len({letter["key"] for letter in receiver.letters}) == 12, "all letters", 60)
    assert len(receiver.letters) - 12 <= 4  # once for each kill at the most


def test_quiet_hours_hold_back_what_can_wait_and_not_what_asks(home: Place, receiver: Receiver) -> None:
    settings = (home.root / "config.toml").read_text()
    home.configure(settings.replace("[notify]", '[notify]\nquiet_hours = "00:00-23:59"'))
    home.finish("echo", "hello")
    done = home.cli("add", "clean", "--every", "1h", "--description", "Clean up", "--", "rm", "-rf", "build")
    assert done.returncode == 3
    wait_until(lambda: any("Proposed: clean" in text for text in receiver.texts), "the question", 40)
    home.configure(settings)
    wait_until(lambda: any("hello" in text for text in receiver.texts), "the rest, when it is not quiet any more", 40)


def test_a_digest_gathers_what_is_told(home: Place, receiver: Receiver) -> None:
    home.configure((home.root / "config.toml").read_text().replace("[notify]", "[notify]\ndigest_minutes = 0.05"))
    for number in range(3):
        home.finish("echo", f"number {number}")
    wait_until(lambda: "number 2" in json.dumps(receiver.letters), "the digest", 40)
    assert len(receiver.letters) < 3 and any(letter["title"].endswith("notices") for letter in receiver.letters)


def test_a_file_that_changes_sets_off_a_run_also_when_it_changed_while_all_was_down(home: Place) -> None:
    watched = home.cwd / "watched.txt"
    watched.write_text("one")
    home.ok("add", "look", "--on", "file:watched.txt", "--shell", "--yes", "--", "cat $BACKBURNER_EVENT")
    wait_until(lambda: state_of(home, "look"), "the source to have seen the present", 40)
    watched.write_text("two")
    wait_until(lambda: runs(home, "look") == 1, "the first run", 40)
    assert b"watched.txt" in home.log("look") and home.status("look")["event_source"] == "file"
    home.stop_all()
    watched.write_text("three")
    home.ok("list")
    wait_until(lambda: runs(home, "look") == 2, "the change of before to be seen", 40)
    home.ok("cancel", "look")


def test_what_a_command_prints_sets_off_a_run_when_it_changes(home: Place) -> None:
    value = home.cwd / "value.txt"
    value.write_text("one")
    home.ok("add", "look", "--on", "command:cat value.txt", "--with", "every=1s", "--notify", "always", "--", "echo", "seen")
    wait_until(lambda: runs(home, "look:watch") >= 2, "the present to be taken down", 40)
    assert runs(home, "look") == 0
    value.write_text("two")
    wait_until(lambda: runs(home, "look") == 1, "the change", 40)
    home.ok("cancel", "look")
    assert home.status("look:watch")["status"] == "cancelled"


def test_an_exit_code_that_is_compared_is_the_watchers_and_the_task_itself_still_fails(home: Place) -> None:
    home.ok("add", "look", "--on", "command:test -e flag", "--with", "every=1s", "--with", "compare=exit", "--", "false")
    wait_until(lambda: runs(home, "look:watch") >= 2, "the present to be taken down", 40)
    known = {run["status"] for run in home.status("look:watch")["runs"]}  # type: ignore[attr-defined]
    assert known <= {"completed", "running", "pending", "skipped"}
    (home.cwd / "flag").touch()
    wait_until(lambda: [run["status"] for run in home.status("look")["runs"]][-1:] == ["failed"], "its failure", 40)  # type: ignore[attr-defined]
    home.ok("cancel", "look")


def test_a_task_that_is_over_ends_what_watches_for_it(home: Place) -> None:
    value = home.cwd / "value.txt"
    value.write_text("one")
    home.ok("add", "look", "--on", "command:cat value.txt", "--with", "every=1s", "--max-runs", "1", "--", "echo", "seen")
    wait_until(lambda: runs(home, "look:watch") >= 2, "the present to be taken down", 40)
    value.write_text("two")
    wait_until(lambda: home.status("look")["status"] == "done", "its one run", 40)
    assert home.status("look:watch")["status"] == "cancelled"


@pytest.mark.parametrize("module, source", [("watchfiles", "file:x"), ("httpx2", "github:a/b")])
def test_what_is_not_installed_is_said_with_how_to_get_it(home: Place, module: str, source: str) -> None:
    without = home.cwd / "without"
    without.mkdir()
    (without / "sitecustomize.py").write_text(f"import sys; sys.modules['{module}'] = None")
    done = home.cli("add", "look", "--on", source, "--", "true", env={"PYTHONPATH": str(without)})
    assert done.returncode == 2 and "the extra `integrations`: pip install 'backburner[integrations]'" in done.stderr
    assert home.json("list") == []


def test_a_proposal_of_an_agent_is_a_question_in_plain_words(home: Place, receiver: Receiver) -> None:
    task_id = home.ok(
        "propose", "watch", "--cron", "0 9 * * 1-5", "--tz", "UTC", "--description", "CI was red twice.", "--", "true"
    ).strip()
    wait_until(lambda: receiver.letters, "the question", 40)
    letter = receiver.letters[0]
    assert letter["question"] is True and letter["priority"] == 1
    for words in (
        "Proposed: watch",
        "CI was red twice.",
        "When: every weekday at 09:00 UTC; next:",
        "It would run: true",
        f"approve {task_id}",
    ):
        assert words in letter["text"]
    assert home.status(task_id)["status"] == "proposed" and any(str(n["text"]).startswith("Proposed") for n in home.json("inbox"))  # type: ignore[union-attr, index, call-overload]
    home.ok("approve", "watch")
    assert home.status(task_id)["status"] == "active" and home.json("inbox") == []
    home.ok("cancel", "watch")


def state_of(place: Place, name: str) -> bool:
    with contextlib.closing(apsw.Connection(place.home.ledger)) as ledger:
        ledger.set_busy_timeout(5000)
        return bool(ledger.execute("SELECT 1 FROM watches WHERE state <> '{}'").fetchall())


def runs(place: Place, name: str) -> int:
    return sum(run["status"] == "completed" for run in place.status(name)["runs"])  # type: ignore[union-attr, attr-defined]
