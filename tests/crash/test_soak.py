"""A home with every kind of work at once for an hour, while its processes are killed at random and config.toml is edited every minute.

Commands, schedules of a few seconds, webhooks, file events, channels, agents with a scripted model, and a reader of the inbox. In the
first half, the engine, the agent process and the integrations process are killed. In the second half nothing is killed, and the memory and
the descriptors of the processes are compared at its beginning and its end.

Only with BACKBURNER_LONG. BACKBURNER_SOAK_MINUTES sets another length; edits are then closer together, and below 30 minutes the growth is
only printed, because the processes have not done everything once before they are measured. To repeat a failure, use the seed it printed:
BACKBURNER_SEED=… pytest -k soak.
"""

import hashlib
import hmac
import http.server
import json
import os
import random
import signal
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import LONG, NO_TERMINAL, HomeCli, wait_until
from recorder import ENDED, Job, JobRecorder, Row, query

from backburner.core.models import ProcessId
from backburner.system import processes
from backburner.testing.scripted_model import ScriptedModel

MINUTES = float(os.environ.get("BACKBURNER_SOAK_MINUTES") or 60)
HALF = MINUTES * 30  # seconds
SEED = int(os.environ.get("BACKBURNER_SEED") or random.randrange(1 << 32))
SECRET = "s3cret-of-the-soak"
SCHEDULES = {"tick2": 2, "tick3": 3, "tick5": 5, "tick7": 7}  # seconds
AGENT_EVERY = 20
KILL_EVERY = (3.0, 12.0)  # seconds
EDITS = 60  # in an hour, or in whatever length the test has
MAX_AGE_MS = 60_000  # of a run without a process
LIMIT = 180.0  # seconds: for a hang, not for a slow machine
MAX_GROWTH_KB, MAX_GROWTH_PER_ASK_KB = 2048, 20
WARM_UP_MINUTES = 30  # a shorter test does not limit the growth


class Size(NamedTuple):
    """The memory of a process in KiB and the number of its descriptors, when the home has nothing to do."""

    process: ProcessId
    memory: int
    descriptors: int


class Receiver:
    """The other end of a channel: the keys of all messages, in the order in which they arrived."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                receiver.keys.append(self.headers["Idempotency-Key"])
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                return

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/in"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class Soak:
    """The work, what was asked for, and everything that was wrong."""

    def __init__(self, home_cli: HomeCli, model: ScriptedModel, receiver: Receiver) -> None:
        self.home_cli, self.receiver, self.recorder = home_cli, receiver, JobRecorder(home_cli)
        self.ticks, self.hooks, self.files = (home_cli.cwd / name for name in ("ticks.book", "hooks.book", "files.book"))
        self.watched = home_cli.cwd / "watched.txt"
        self.wrong: list[str] = []
        self.jobs: list[Job] = []
        self.asks: list[str] = []
        self.answered: list[int] = []  # the statuses of webhooks
        self.changes = 0
        self.printed: Counter[int] = Counter()  # notices by the number of times that the inbox printed them
        self.killed: Counter[str] = Counter()
        self.edits: Counter[str] = Counter()
        self.orphans: dict[str, float] = {}
        self._chance = random.Random(SEED)
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._hosts, self._extra = "", ""
        with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as free:
            self.port = free.server_port
        self._lines = (
            f'{NO_TERMINAL}[models]\ndefault = "openai-chat:scripted"\nbase_url = "{model.url}/v1"\n'
            "[engine]\nidle_exit_seconds = 9000\n[agents]\nidle_exit_seconds = 9000\n[integrations]\nidle_exit_seconds = 9000\n"
            f'[notify]\nto = "out"\n[channels.out]\ntype = "webhook"\nurl = "{receiver.url}"\n'
        )
        self._configure()

    # -- the settings

    def _configure(self, broken: str = "") -> None:
        """Replace config.toml in one step, as editors do."""
        self.home_cli.root.mkdir(parents=True, exist_ok=True)
        new = self.home_cli.root / "config.toml.new"
        new.write_text(f'{self._lines}[webhooks]\nport = {self.port}\nhosts = "{self._hosts}"\n{self._extra}{broken}')
        new.replace(self.home_cli.root / "config.toml")

    def edit(self) -> None:
        """Change something in config.toml; an invalid file is repaired after a moment."""
        number = self.edits.total()
        match kind := self._chance.choice(("limits", "hosts", "channel", "invalid")):
            case "limits":
                self._extra = f"[commands]\nmax_concurrent = {self._chance.randrange(3, 9)}\n[tasks]\nmax_active = {20 + number}\n"
                self._configure()
            case "hosts":
                self._hosts = f"h{number}.example"
                self._configure()
            case "channel":
                self._extra = f'[channels.other{number}]\ntype = "webhook"\nurl = "{self.receiver.url}"\n'
                self._configure()
            case "invalid":
                self._configure(broken="[tasks\n")
                self._stop.wait(self._chance.uniform(0.1, 3))
                self._configure()
        self.edits[kind] += 1

    # -- the work

    def add(self) -> None:
        """Add the recurring tasks."""
        self.watched.write_text("0\n")
        for book in (self.ticks, self.hooks, self.files):
            book.touch()
        self.home_cli.ok("trust")  # so that sandboxed commands can write what they have done
        for name, seconds in SCHEDULES.items():
            sign = f'echo "$BACKBURNER_RUN_ID" >>{self.ticks}; echo "$BACKBURNER_RUN_ID"'
            self._call("add", name, "--every", f"{seconds}s", "--notify", "on_change", "--yes", "--", "sh", "-c", sign)
        steps = [
            {"tool": "memory_set", "args": {"key": "seen", "value": "x"}},
            {"tool": "final_result", "args": {"report": True, "state": "fine", "message": "All is well."}},
        ]
        self._call("add", "look", "--every", f"{AGENT_EVERY}s", "--notify", "always", "--prompt", f"Look. [[script: {json.dumps(steps)}]]")
        take = f'cat "$BACKBURNER_EVENT" >>{self.hooks}; echo >>{self.hooks}'
        self.home_cli.ok(
            *("add", "hook", "--on", "webhook:soak", "--with", "secret_env=HOOK_SECRET", "--notify", "never", "--yes"),
            *("--", "sh", "-c", take),
            env={"HOOK_SECRET": SECRET},
        )
        read = self.home_cli.cwd / "read.sh"  # the approval of a command covers the files that it names
        read.write_text(f"cat {self.watched} >>{self.files}\n")
        self._call("add", "file", "--on", f"file:{self.watched}", "--notify", "never", "--yes", "--", "sh", str(read))
        watching = "SELECT count(*) FROM source_states WHERE state <> '{}'"
        wait_until(lambda: query(self.home_cli, watching)[0][0] and self._post(b"{}", {}) == 401, "the sources", LIMIT)

    def start(self) -> None:
        self._stop.clear()
        work: list[tuple[Callable[[], None], float, float]] = [
            (self.run_command, 0.2, 2),
            (self.send_webhook, 0.5, 3),
            (self.change_file, 1, 5),
            (self.ask, 0.5, 3),
            (self.read_inbox, 1, 5),
            (self.find_orphans, 2, 2),
            (self.edit, MINUTES * 60 / EDITS * 0.9, MINUTES * 60 / EDITS * 1.1),
        ]
        for action, shortest, longest in work:
            chance = random.Random(f"{SEED}:{action.__name__}:{len(self.jobs)}")
            pause = lambda chance=chance, shortest=shortest, longest=longest: chance.uniform(shortest, longest)  # noqa: E731
            self._threads.append(threading.Thread(target=self._repeat, args=(action, pause), daemon=True))
        for thread in self._threads:
            thread.start()

    def _repeat(self, action: Callable[[], None], pause: Callable[[], float]) -> None:
        while not self._stop.wait(pause()):
            try:
                action()
            except BaseException as error:
                self.report(f"{action.__name__}: {type(error).__name__}: {error}")

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(LIMIT)
            if thread.is_alive():
                self.report(f"{thread.name} did not end")
        self._threads.clear()

    def report(self, what: str) -> None:
        self.wrong.append(f"{time.strftime('%H:%M:%S')} {what}"[:2000])

    def _call(self, *words: str) -> str:
        """Call the command line, again while config.toml is invalid."""
        while True:
            done = self.home_cli.cli(*words)
            if done.returncode == 0:
                return done.stdout
            assert done.returncode == 2 and "config.toml" in done.stderr, (words, done.returncode, done.stdout, done.stderr)
            time.sleep(0.2)

    def run_command(self) -> None:
        chance = random.Random(f"{SEED}:job:{len(self.jobs)}")
        job = self.recorder.job(
            f"job{len(self.jobs)}", lines=chance.randrange(300), code=chance.choice((0, 0, 1, 7)), pause=chance.choice((0, 0.01, 0.1))
        )
        approval = chance.choice((["--yes"], []))
        self._call("run", *approval, "--description", job.name, "--", *self.recorder.command(job))
        self.jobs.append(job)

    def send_webhook(self) -> None:
        """Send a webhook with the same delivery id until it is answered, as its senders do."""
        number = len(self.answered)
        deadline = time.monotonic() + LIMIT
        while not (status := self._post(json.dumps({"n": number}).encode(), {"Backburner-Delivery": f"soak-{number}"})):
            if time.monotonic() > deadline:
                self.report(f"webhook {number} was not answered in {LIMIT:.0f} s")
                break
            time.sleep(0.2)
        if status not in (0, 202, 409):
            self.report(f"webhook {number} was answered with {status}")
        self.answered.append(status)

    def _post(self, body: bytes, headers: dict[str, str]) -> int:
        """The status of a request, or 0 without an answer. A request with headers is signed."""
        timestamp = str(int(time.time()))
        digest = hmac.new(SECRET.encode(), f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()
        signed = {"Backburner-Timestamp": timestamp, "Backburner-Signature": f"sha256={digest}"} if headers else {}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/hooks/soak", body, {**signed, **headers}, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=20) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        except OSError:
            return 0

    def change_file(self) -> None:
        self.changes += 1
        new = self.watched.with_suffix(".new")
        new.write_text(f"{self.changes}\n")
        new.replace(self.watched)

    def ask(self) -> None:
        """Ask an agent that calls tools, and wait for its end, so that there is one at a time."""
        number = len(self.asks)
        steps = [
            {"tool": "run_command", "args": {"command": f"echo {number}"}},
            {"tool": "memory_list", "args": {}},
            {"say": f"answer {number}"},
        ]
        task_id = self._call("ask", f"Do it. [[script: {json.dumps(steps)}]]").strip()
        self.asks.append(task_id)
        state = "SELECT state FROM runs WHERE task_id = ? ORDER BY seq DESC LIMIT 1"
        wait_until(lambda: query(self.home_cli, state, task_id)[0][0] in ENDED, f"the end of {task_id}", LIMIT)

    def read_inbox(self) -> None:
        for notice in json.loads(self._call("inbox", "--ack", "--json")):
            self.printed[notice["notice_id"]] += 1

    # -- the kills

    def kill(self) -> None:
        """Kill one process, or the engine together with its keeper."""
        match self._chance.choices(("engine", "engine and keeper", "agents.process", "integrations.process"), (3, 1, 2, 2))[0]:
            case "engine":
                self._kill("engine", [self.home_cli.engine])
            case "engine and keeper":
                self._kill("keeper", self.home_cli.processes("backburner-keeper"))
                self._kill("engine", [self.home_cli.engine])
            case module:
                self._kill(module, self.home_cli.hosts(module))

    def _kill(self, kind: str, victims: "list[ProcessId] | list[ProcessId | None]") -> None:
        for victim in victims:
            if victim and processes.send(victim, signal.SIGKILL):
                self.killed[kind] += 1

    # -- what is checked while it runs

    def find_orphans(self) -> None:
        """Report each run that has been running for more than a minute, and for as long has had no process."""
        now = time.time_ns() // 1_000_000
        old = query(
            self.home_cli,
            "SELECT r.run_id, r.process_tag, r.owner, t.type, r.started_at FROM runs r JOIN tasks t ON t.task_id = r.task_id"
            " WHERE r.state IN ('running', 'resumed')",
        )
        seen = {}
        for run_id, tag, owner, kind, started_at in old:
            alive = processes.is_alive(ProcessId.parse(owner)) if kind == "agent" else processes.members(None, tag)
            if not alive:
                seen[run_id] = since = self.orphans.get(run_id, now)
                if now - since > MAX_AGE_MS:
                    self.report(f"{run_id} has had no process for {(now - since) / 1000:.0f} s; it is running since {started_at}")
                    seen[run_id] = now
        self.orphans = seen

    # -- a rest

    def rest(self) -> dict[str, Size]:
        """Let the home finish everything; returns the size of each process. `go_on` ends the rest."""
        for name, state, reason in query(self.home_cli, "SELECT name, state, paused_because FROM tasks WHERE kind <> 'oneshot'"):
            interrupted = name == "look" and self.killed["agents.process"] > 1  # two runs in a row that do not complete pause a task
            if state != "active" and not interrupted:
                self.report(f"{name} is {state}: {reason}")
            elif state == "active" and name in (*SCHEDULES, "look"):
                self._call("pause", name)
        open_runs = "SELECT run_id, state, wait_kind FROM runs WHERE ended_at IS NULL"
        undelivered = "SELECT key, error FROM notices WHERE recipient = 'channel' AND acknowledged_at IS NULL"
        self._wait_for(lambda: not query(self.home_cli, open_runs), lambda: f"runs that do not end: {query(self.home_cli, open_runs)}")
        self._wait_for(
            lambda: self._last_change() == self.changes, lambda: f"change {self.changes} was not seen, only {self._last_change()}"
        )
        self._wait_for(lambda: not query(self.home_cli, open_runs), lambda: f"runs that do not end: {query(self.home_cli, open_runs)}")
        self._wait_for(lambda: not query(self.home_cli, undelivered), lambda: f"not delivered: {query(self.home_cli, undelivered)}")
        self.read_inbox()
        return self._sizes()

    def go_on(self) -> None:
        self._call("unpause", *SCHEDULES, "look")

    def _wait_for(self, condition: Callable[[], bool], what: Callable[[], str]) -> None:
        try:
            wait_until(condition, "", LIMIT)
        except AssertionError:
            self.report(what())

    def _last_change(self) -> int:
        return int((self.files.read_text().split() or ["0"])[-1])

    def _sizes(self) -> dict[str, Size]:
        """The sizes, once the descriptors have not changed for ten seconds."""
        sizes: dict[str, Size] = {}
        since = time.monotonic()

        def unchanged() -> bool:
            nonlocal sizes, since
            before, sizes = sizes, self._sizes_now()
            if {kind: size.descriptors for kind, size in before.items()} != {kind: size.descriptors for kind, size in sizes.items()}:
                since = time.monotonic()
            time.sleep(0.5)
            return time.monotonic() - since > 10

        wait_until(unchanged, "the descriptors of an idle home to stay the same", LIMIT)
        return sizes

    def _sizes_now(self) -> dict[str, Size]:
        home_cli = self.home_cli
        found = {
            "engine": [home_cli.engine],
            "keeper": home_cli.processes("backburner-keeper"),
            "log writer": home_cli.log_writers,
            "agent process": home_cli.hosts("agents.process"),
            "integrations process": home_cli.hosts("integrations.process"),
        }
        sizes = {}
        for kind, members in found.items():
            for number, member in enumerate(filter(None, members)):
                status = dict(line.split(":", 1) for line in Path(f"/proc/{member.pid}/status").read_text().splitlines())
                memory, descriptors = int(status["RssAnon"].split()[0]), len(os.listdir(f"/proc/{member.pid}/fd"))
                sizes[f"{kind} {number + 1}" if number else kind] = Size(member, memory, descriptors)
        return sizes

    # -- what is checked in the end

    def check(self) -> None:
        """Compare the ledger with what was asked for and with what the commands have written."""
        self._check_jobs()
        self._check_slots()
        self._check_webhooks()
        self._check_notices()
        log = "".join(path.read_text(errors="replace") for path in self.home_cli.root.glob("engine.log*"))
        if "Traceback" in log:
            self.report(f"engine.log: {log[log.index('Traceback') :]}")
        if (found := query(self.home_cli, "PRAGMA integrity_check")) != [("ok",)]:
            self.report(f"the ledger: {found}")

    def _check_jobs(self) -> None:
        rows: dict[str, list[Row]] = {}
        for row in self.recorder.rows():
            rows.setdefault(row.name, []).append(row)
        for job in self.jobs:
            try:
                self.recorder.check_job(job, rows.get(job.name, []))
            except AssertionError as error:
                self.report(f"{job.name}: {error}")

    def _check_slots(self) -> None:
        """Each slot is one run or one skipped slot, except while the tasks were paused; each run started once."""
        lines = Counter(self.ticks.read_text().split())
        self.wrong += [f"{run_id} ran {count} times" for run_id, count in lines.items() if count > 1]
        for name, seconds in {**SCHEDULES, "look": AGENT_EVERY}.items():
            ((task_id, schedule),) = query(self.home_cli, "SELECT task_id, schedule FROM tasks WHERE name = ?", name)
            rows = query(
                self.home_cli,
                "SELECT run_id, n, state, result, error, slot, skipped_before, cause FROM runs WHERE task_id = ? ORDER BY seq",
                task_id,
            )
            slots: Counter[int] = Counter()
            for run_id, n, state, result, error, slot, before, cause in rows:
                self._check_run(name, run_id, n, state, result, error, cause, lines[run_id])
                slots.update(range(slot - before * seconds * 1000, slot + 1, seconds * 1000))
            there = range(json.loads(schedule)["anchor"] + seconds * 1000, max(slots) + 1, seconds * 1000)
            self.wrong += [f"{name}: slot {slot} is {count} times in the ledger" for slot, count in slots.items() if count > 1]
            self.wrong += [f"{name}: {slot} is no slot" for slot in slots if slot not in there]
            pauses = self._pauses(task_id)
            forgotten = [slot for slot in there if slot not in slots and not any(start <= slot <= end for start, end in pauses)]
            self.wrong += [f"{name}: slot {slot} was forgotten" for slot in forgotten]
            end = pauses[-1][0]
            if max(slots) < end - seconds * 1000 - MAX_AGE_MS:
                self.report(f"{name}: the last slot is {(end - max(slots)) / 1000:.0f} s before the end")

    def _pauses(self, task_id: str) -> list[tuple[int, int]]:
        """When a task was paused; the last pause has no end."""
        events = "SELECT kind, at FROM events WHERE task_id = ? AND kind IN ('task_paused', 'task_unpaused') ORDER BY event_id"
        rows = query(self.home_cli, events, task_id)
        assert [kind for kind, _ in rows] == ["task_paused", "task_unpaused"] * (len(rows) // 2) + ["task_paused"], rows
        times = [at for _, at in rows] + [1 << 60]
        return list(zip(times[::2], times[1::2], strict=True))

    def _check_run(self, name: str, run_id: str, n: int, state: str, result: str, error: str | None, cause: str, signed: int) -> None:
        seen = f"{name}: {run_id} {state}, {result}, {error}; from {cause}, signed {signed} times"
        if n < 0:
            if state != "skipped" or not error:
                self.report(f"{seen}: a slot without a run and without a reason")
        elif name == "look":
            if state != "completed" and not (result == "lost" and self.killed["agents.process"]):
                self.report(f"{seen}: an agent that was not killed must complete")
        elif (state, signed) != ("completed", 1):
            self.report(f"{seen}: a command that was not killed must run once")

    def _check_webhooks(self) -> None:
        """Each webhook that was answered is in exactly one event of one run."""
        events = [event for line in self.hooks.read_text().splitlines() if line for event in json.loads(line)["events"]]
        seen = Counter(event["n"] for event in events)
        expected = {number for number, status in enumerate(self.answered) if status}
        self.wrong += [f"webhook {number} started {count} runs" for number, count in seen.items() if count > 1]
        if missing := sorted(expected - seen.keys()):
            self.report(f"webhooks that started no run: {missing}")

    def _check_notices(self) -> None:
        twice = query(
            self.home_cli,
            "SELECT run_id, recipient, channel, count(*) FROM notices WHERE run_id IS NOT NULL GROUP BY 1, 2, 3, kind HAVING count(*) > 1",
        )
        self.wrong += [f"several notices: {row}" for row in twice]
        person = {row[0] for row in query(self.home_cli, "SELECT notice_id FROM notices WHERE recipient = 'person'")}
        self.wrong += [f"notice {notice_id} was printed {count} times" for notice_id, count in self.printed.items() if count > 1]
        if missing := person - self.printed.keys():
            self.report(f"{len(missing)} of {len(person)} notices were not printed: {sorted(missing)[:10]}")
        sent, arrived = (
            {row[0] for row in query(self.home_cli, "SELECT key FROM notices WHERE recipient = 'channel'")},
            Counter(self.receiver.keys),
        )
        if missing := sent - arrived.keys():
            self.report(f"messages that did not arrive: {sorted(missing)[:10]}")
        # A process that is killed between sending a message and recording that sends it again, with the same key.
        repeated = sum(count - 1 for count in arrived.values())
        if repeated > self.killed["integrations.process"]:
            self.report(f"{repeated} messages arrived again, after {self.killed['integrations.process']} kills of the integrations process")
        ends = query(
            self.home_cli,
            "SELECT run_id, count(*) FROM events WHERE kind IN ('run_completed', 'run_failed', 'run_cancelled') GROUP BY 1 HAVING count(*) > 1",
        )
        self.wrong += [f"{run_id} ended {count} times" for run_id, count in ends]

    def check_asks(self, first: int, *, killed: bool) -> None:
        """Every agent since `first` has answered; if the agent process was killed, it may have been interrupted."""
        for number, task_id in enumerate(self.asks[first:], first):
            rows = query(self.home_cli, "SELECT state, result, error FROM runs WHERE task_id = ?", task_id)
            notices = query(self.home_cli, "SELECT count(*) FROM notices WHERE task_id = ? AND recipient = 'person'", task_id)
            if [row[0] for row in rows] == ["completed"]:
                answered = (self.home_cli.folder(task_id) / "output.log").read_text().endswith(f"answer {number}\n")
                if not answered:
                    self.report(f"{task_id} completed without its answer")
            elif not (killed and [row[:2] for row in rows] == [("failed", "lost")]):
                self.report(f"{task_id}: {rows}")
            if notices != [(1,)]:
                self.report(f"{task_id} has {notices[0][0]} notices")

    def check_sizes(self, half: dict[str, Size], end: dict[str, Size], asks: int) -> str:
        """Compare the sizes of the processes before and after the second half; returns them as a table."""
        table = []
        for kind in sorted({*half, *end}):
            if kind not in half or kind not in end or half[kind].process != end[kind].process:
                self.report(f"{kind}: {half.get(kind)} at the half, {end.get(kind)} at the end")
                continue
            before, after = half[kind], end[kind]
            growth = after.memory - before.memory
            limit = MAX_GROWTH_PER_ASK_KB * asks if kind == "agent process" else MAX_GROWTH_KB
            table.append(
                f"{kind}: {before.memory:,} KiB {growth:+,}, {before.descriptors} descriptors {after.descriptors - before.descriptors:+}"
            )
            if growth > limit and MINUTES >= WARM_UP_MINUTES:
                self.report(f"{kind} grew by {growth:,} KiB in the second half ({asks} asks); the limit is {limit:,}")
            if before.descriptors != after.descriptors:
                self.report(f"{kind}: {before.descriptors} descriptors at the half, {after.descriptors} at the end")
        return "; ".join(table)


@pytest.fixture
def soak(home_cli: HomeCli) -> Iterator[Soak]:
    receiver = Receiver()
    with ScriptedModel() as model:
        soak = Soak(home_cli, model, receiver)
        yield soak
        soak.stop()
        home_cli.stop_all()
    receiver.close()


@pytest.mark.long
@pytest.mark.skipif(not LONG, reason="an hour; scripts/test --long")
def test_a_home_under_all_kinds_of_work_loses_and_repeats_nothing_and_does_not_grow(soak: Soak, capsys: pytest.CaptureFixture[str]) -> None:
    def say(text: str) -> None:
        with capsys.disabled():
            print(f"\nsoak: {time.strftime('%H:%M:%S')} {text}", flush=True)

    def work_until(end: float, step: Callable[[], None], pause: Callable[[], float]) -> None:
        reported = 0
        while time.monotonic() < end:
            time.sleep(min(pause(), max(0.0, end - time.monotonic())))
            step()
            if soak.wrong[reported:]:
                say("; ".join(soak.wrong[reported:]))
                reported = len(soak.wrong)

    say(f"seed {SEED}, {MINUTES:g} minutes")
    chance = random.Random(f"{SEED}:kills")
    soak.add()
    soak.start()
    started_at = time.monotonic()
    killing = HALF * 5 / 6  # then all processes do some work before they are measured
    work_until(started_at + killing, soak.kill, lambda: chance.uniform(*KILL_EVERY))
    work_until(started_at + HALF, lambda: None, lambda: 1.0)
    soak.stop()
    half, asks, messages = soak.rest(), len(soak.asks), len(soak.receiver.keys)
    say(f"half: {dict(soak.killed)} killed, {half}")
    soak.go_on()
    soak.start()
    work_until(time.monotonic() + HALF, lambda: None, lambda: 1.0)
    soak.stop()
    end = soak.rest()
    sizes = soak.check_sizes(half, end, len(soak.asks) - asks)
    soak.check_asks(0, killed=True)
    soak.check_asks(asks, killed=False)
    if again := [key for key, count in Counter(soak.receiver.keys[messages:]).items() if count > 1]:
        soak.report(f"messages that arrived again although nothing was killed: {again[:10]}")
    soak.check()
    runs = dict(query(soak.home_cli, "SELECT state, count(*) FROM runs GROUP BY 1"))
    figures = (
        f"{(time.monotonic() - started_at) / 60:.0f} min, {len(soak.jobs)} commands, {len(soak.asks)} asks, {len(soak.answered)} webhooks,"
        f" {soak.changes} file changes, {soak.printed.total()} notices, {len(soak.receiver.keys)} messages, runs {runs},"
        f" killed {dict(soak.killed)}, edits {dict(soak.edits)}; {sizes}"
    )
    say(figures)
    assert not soak.wrong, f"seed {SEED}: {len(soak.wrong)} wrong; {figures}\n" + "\n".join(soak.wrong)
    assert soak.killed.total() > killing / KILL_EVERY[1] / 2, figures
