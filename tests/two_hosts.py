"""Two homes on one ledger, in one test process: `there` answers requests as its engine does, `here` reads through its services."""

from collections.abc import Iterator
from pathlib import Path

from postgres_server import LedgerDatabase

from backburner.coordination.changes import ChangeFeed
from backburner.coordination.config_file import ConfigFile
from backburner.coordination.ledger_file import open_home_ledger
from backburner.core.claims import RunResult
from backburner.core.models import ENGINE, Approval, Entry, ProcessId
from backburner.core.states import Result, RunState
from backburner.engine.host_requests import HostRequestServer
from backburner.services.app import App, now_ms, open_app
from backburner.services.daemon_parts import open_shared_ledger
from backburner.services.log_follower import LogFollower
from backburner.store.ledger import Ledger
from backburner.system.home import Home
from backburner.system.log_file import NAME, header
from backburner.testing.records import request

THERE, HERE = "there0123456789", "here0123456789"
OWNER = ProcessId(1, "1", "boot of there")
HEADER = header({"Background task": "task_x", "Started": "now"})


def make_home(database: LedgerDatabase, root: Path, host_id: str) -> Home:
    """A home that has joined the ledger."""
    root.mkdir(parents=True)
    (root / "config.toml").write_text(f'[store]\nurl = "{database.url}"\n')
    (root / "host_id").write_text(host_id + "\n")
    database.join(host_id)
    return Home(str(root)).make()


class TwoHosts:
    """`there` has the runs, `here` is where somebody reads them."""

    def __init__(self, database: LedgerDatabase, folder: Path) -> None:
        self._database = database
        self.there_home, self.here_home = make_home(database, folder / "there", THERE), make_home(database, folder / "here", HERE)
        self._config = ConfigFile(self.there_home, {})
        self.there: Ledger = open_home_ledger(self.there_home, self._config)
        self.here: App = open_app(self.here_home, {})
        self.server: HostRequestServer | None = None
        self.set_state("active")
        self.start()

    def set_state(self, state: str) -> None:
        self.there.database.write("UPDATE hosts SET state = ? WHERE host_id = ?", (state, THERE))

    def start(self) -> None:
        subscribe = ChangeFeed(self.there_home, self.there.database).subscribe
        self.server = HostRequestServer(self.there_home, lambda: open_shared_ledger(self.there_home, self._config), subscribe, now_ms)
        self.server.start()

    def stop(self) -> None:
        if self.server:
            self.server.close()
            self.server = None

    def close(self) -> None:
        self.stop()
        self.there.close()
        self.here.close()

    def run(self, wanted: str = "task_x", output: bytes | None = b"", **more: object) -> "Running":
        """A run that has begun there, with a log."""
        approval = Approval("user", "cli", now_ms())
        submission = request(**{"command": ("make",), "cwd": "/p", **more})
        entry = self.there.tasks.submit(
            submission, project="/p", wanted_id=wanted, approval=approval, reasons=(), runner=ENGINE, folder="tasks", now=now_ms(), expires_at=None
        )  # fmt: skip
        self.there.runs.claim(ENGINE, OWNER, 1, now_ms())
        assert entry.run
        running = Running(self, entry.task.task_id, entry.run.run_id, Path(self.there_home.folder(entry.run.folder)))
        if output is not None:
            running.write(HEADER + output)
        return running


class Running:
    """A run there."""

    def __init__(self, hosts: TwoHosts, task_id: str, run_id: str, folder: Path) -> None:
        self._hosts, self.task_id, self.run_id, self.folder = hosts, task_id, run_id, folder
        (folder / "work").mkdir(parents=True)

    @property
    def log(self) -> Path:
        return self.folder / NAME

    def write(self, data: bytes) -> None:
        with open(self.log, "ab") as file:
            file.write(data)

    def end(self) -> None:
        result = RunResult(self.run_id, RunState.COMPLETED, Result.EXIT, now_ms(), exit_code=0)
        self._hosts.there.runs.settle([result], OWNER)

    @property
    def entry(self) -> Entry:
        return self._hosts.here.queries.get(self.task_id)

    def follow(self, **options: object) -> "Iterator[bytes]":
        return LogFollower(self._hosts.here, self.entry, **options).pieces(60)  # type: ignore[arg-type]
