"""Opens a home for one process: `open_app` builds the services that interfaces and daemons use.

Each service is created on first use, so that `backburner list` does not load what `backburner run` needs. An App belongs to one thread.
"""

import os
import time
from functools import cached_property

from backburner.coordination.changes import ChangeFeed
from backburner.coordination.config_file import ConfigFile
from backburner.coordination.supervision import EngineSupervisor
from backburner.core.light_typing import TYPE_CHECKING
from backburner.core.models import ENGINE, Clock
from backburner.core.settings import Config
from backburner.services.queries import Queries
from backburner.system.home import Home
from backburner.system.paths import locate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from backburner.coordination.ledger_checks import Check
    from backburner.coordination.publisher import Publisher
    from backburner.services.agent_catalog import AgentCatalog
    from backburner.services.agent_runs import AgentRuns
    from backburner.services.approvals import Approvals
    from backburner.services.backup import Backups
    from backburner.services.changes import Changes
    from backburner.services.conversations import Conversations
    from backburner.services.deliveries import Deliveries
    from backburner.services.devices import Devices
    from backburner.services.embedding import Embedding
    from backburner.services.export import Export
    from backburner.services.gate import Gate
    from backburner.services.hosts import Hosts
    from backburner.services.identity import Identity
    from backburner.services.inbox import Inbox
    from backburner.services.overview import Overview
    from backburner.services.passkeys import Passkeys
    from backburner.services.proposals import Proposals
    from backburner.services.recurring import RecurringTasks
    from backburner.services.refusals import Refusals
    from backburner.services.remote_runs import RemoteRuns
    from backburner.services.retention import Retention
    from backburner.services.runs import Runs
    from backburner.services.sessions import Sessions
    from backburner.services.submissions import Submissions
    from backburner.services.suggestions import Suggestions
    from backburner.services.tasks import Tasks
    from backburner.services.triggers import Triggers
    from backburner.services.waiting import Waiting
    from backburner.store.ledger import Ledger


def now_ms() -> int:
    """The time in milliseconds UTC."""
    return time.time_ns() // 1_000_000


class App:
    """The services of one home. `environ` is the environment for a new engine; `runner` says which process may claim submitted runs."""

    def __init__(
        self, home: Home, ledger: "Ledger", config: ConfigFile, environ: dict[str, str], *, clock: Clock = now_ms, runner: str = ENGINE
    ) -> None:
        self.home, self.config_file, self.environ, self.clock = home, config, environ, clock
        self._ledger, self._runner = ledger, runner
        self.changes = ChangeFeed(home, ledger.database)
        self.supervisor = EngineSupervisor(home, ledger.live_work, ledger.deliveries, self.changes, environ, self.now)
        self.queries = Queries(self._ledger.queries, self._ledger.events, self.supervisor, self.now)

    def now(self) -> int:
        """The time in milliseconds UTC, by this App's clock."""
        return self.clock()

    @property
    def config(self) -> Config:
        """The current settings."""
        return self.config_file.current

    @property
    def host_id(self) -> str:
        """The host of this home in a ledger on Postgres; empty for a ledger file."""
        return self._ledger.database.host_id

    def ask_password_with(self, ask: "Callable[[str], str | None]") -> None:
        """Use this to ask for the password of the database user with which a person decides, if no file has it."""
        self._ledger.database.ask_password = ask

    def server_checks(self) -> "Sequence[Check]":
        """What `join` and `doctor` say about the server of a ledger on Postgres; nothing for a file."""
        from backburner.coordination.ledger_checks import login_of, problems_of

        settings = self._ledger.database.server_settings()
        return [*problems_of(settings), *login_of(settings, self.config.text("store.person"))] if settings else []

    def become_person(self) -> None:
        """Open the ledger with the database user that decides, for a process that records what people decide elsewhere."""
        self._ledger.database.become_person()

    def close(self) -> None:
        self._ledger.close()

    def __enter__(self) -> "App":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @cached_property
    def publisher(self) -> "Publisher":
        from backburner.coordination.publisher import Publisher

        return Publisher(self.home, self._ledger.queries, self.changes, self.supervisor)

    @cached_property
    def identity(self) -> "Identity":
        from backburner.services.identity import Identity

        return Identity(self._ledger.runs, self.config_file)

    @cached_property
    def agents(self) -> "AgentCatalog":
        from backburner.services.agent_catalog import AgentCatalog

        return AgentCatalog(self.config_file)

    @cached_property
    def gate(self) -> "Gate":
        from backburner.services.gate import Gate, HostNames  # slow to load, and a command that only reads never needs it

        hosts = HostNames(self.host_id, (lambda: self._ledger.hosts) if self.host_id else None)
        return Gate(self._ledger.grants, self._ledger.queries, self.agents, self.config_file, self.home.root, hosts)

    @cached_property
    def project_changes(self) -> "Changes":
        from backburner.services.changes import Changes

        return Changes(self.home, self.queries, self.identity)

    @cached_property
    def runs(self) -> "Runs":
        from backburner.services.runs import Runs

        return Runs(self.home, self._ledger.live_work, self._ledger.queries, self.config_file, self.now, self._remote_runs)

    @cached_property
    def _remote_runs(self) -> "RemoteRuns | None":
        """The runs of other hosts; None for a ledger file."""
        if not self._ledger.database.host_id:
            return None
        from backburner.coordination.ledger_file import open_home_ledger
        from backburner.services.remote_runs import RemoteRuns

        return RemoteRuns(self._ledger, lambda: open_home_ledger(self.home, self.config_file), self.now)

    @cached_property
    def waiting(self) -> "Waiting":
        from backburner.services.waiting import Waiting

        return Waiting(self.queries, self.changes, self.supervisor)

    @cached_property
    def sessions(self) -> "Sessions":
        from backburner.services.sessions import Sessions

        return Sessions(self._ledger.sessions, self.changes, self.now)

    @cached_property
    def hosts(self) -> "Hosts":
        from backburner.services.hosts import Hosts

        return Hosts(self._ledger.hosts, self.config_file, self.identity, self.changes, self.now, self.host_id)

    @cached_property
    def inbox(self) -> "Inbox":
        from backburner.services.inbox import Inbox

        return Inbox(
            self._ledger.notices,
            self._ledger.sessions,
            self._ledger.devices,
            self._ledger.events,
            self.supervisor,
            self.agents,
            self.now,
        )

    @cached_property
    def deliveries(self) -> "Deliveries":
        from backburner.services.deliveries import Deliveries

        return Deliveries(self._ledger.deliveries, self.changes, self.supervisor, self.now)

    @cached_property
    def triggers(self) -> "Triggers":
        from backburner.services.triggers import Triggers

        return Triggers(self.home, self._ledger.triggers, self._ledger.recurring, self.config_file, self.queries, self.publisher, self.now)

    @cached_property
    def recurring(self) -> "RecurringTasks":
        from backburner.services.recurring import RecurringTasks

        return RecurringTasks(
            self.home, self._ledger.recurring, self.config_file, self.queries, self.identity, self.changes, self.publisher, self.now
        )

    @cached_property
    def refusals(self) -> "Refusals":
        from backburner.services.refusals import Refusals

        return Refusals(self._ledger.refusals, self.now)

    @cached_property
    def proposals(self) -> "Proposals":
        from backburner.services.proposals import Proposals

        return Proposals(self._ledger.live_work, self._ledger.tasks, self.publisher, self.now)

    @cached_property
    def overview(self) -> "Overview":
        from backburner.services.overview import Overview

        return Overview(self._ledger.pages, self.queries, self.supervisor, self.now)

    @cached_property
    def devices(self) -> "Devices":
        from backburner.services.devices import Devices

        return Devices(self.home, self._ledger.devices, self._ledger.proofs, self.identity, self.changes, self.now)

    @cached_property
    def passkeys(self) -> "Passkeys":
        from backburner.services.passkeys import Passkeys

        return Passkeys(self._ledger.devices, self._ledger.proofs, self.config_file, self.changes, self.now)

    @cached_property
    def approvals(self) -> "Approvals":
        from backburner.services.approvals import Approvals

        return Approvals(
            self.home,
            self._ledger.tasks,
            self._ledger.deliveries,
            self._ledger.grants,
            self.config_file,
            self.queries,
            self.gate,
            self.identity,
            self.proposals,
            self.recurring,
            self.refusals,
            self.sessions,
            self.publisher,
            lambda: self.passkeys,
            self.now,
            self._runner,
        )

    @cached_property
    def submissions(self) -> "Submissions":
        from backburner.services.submissions import Submissions

        return Submissions(
            self.home,
            self._ledger.tasks,
            self._ledger.queries,
            self._ledger.recurring,
            self.config_file,
            self.queries,
            self.agents,
            self.gate,
            self.refusals,
            self.identity,
            self.publisher,
            self.now,
            self._runner,
        )

    @cached_property
    def retention(self) -> "Retention":
        from backburner.services.retention import Retention

        return Retention(
            self.home,
            self._ledger.tasks,
            self._ledger.queries,
            self._ledger.events,
            self._ledger.recurring,
            self._ledger.records,
            self.config_file,
            self.changes,
            self.now,
        )

    @cached_property
    def backups(self) -> "Backups":
        from backburner.services.backup import Backups

        return Backups(self.home, self._ledger, self.now)

    @cached_property
    def export(self) -> "Export":
        from backburner.services.export import Export

        return Export(self.home, self._ledger.records, self.now)

    @cached_property
    def tasks(self) -> "Tasks":
        from backburner.services.tasks import Tasks

        return Tasks(
            self._ledger.tasks,
            self._ledger.events,
            self.queries,
            self.runs,
            self.waiting,
            self.retention,
            self.proposals,
            self.refusals,
            self.identity,
            self.publisher,
            self.now,
        )

    @cached_property
    def conversations(self) -> "Conversations":
        from backburner.services.conversations import Conversations

        return Conversations(
            self.home,
            self._ledger.tasks,
            self._ledger.sessions,
            self._ledger.memory,
            self.queries,
            self.agents,
            self.identity,
            self.publisher,
            self.now,
        )

    @cached_property
    def agent_runs(self) -> "AgentRuns":
        from backburner.services.agent_runs import AgentRuns

        ledger = self._ledger
        return AgentRuns(ledger.tasks, ledger.runs, ledger.events, self.queries, self.changes, self.publisher, self.now)

    @cached_property
    def suggestions(self) -> "Suggestions":
        from backburner.services.suggestions import Suggestions

        return Suggestions(self._ledger.events, self.config_file, self.queries, self.sessions, self.submissions, self.now)

    @cached_property
    def embedding(self) -> "Embedding":
        from backburner.services.embedding import Embedding

        return Embedding(self._ledger)


def open_app(
    home: str | Home | None = None,
    environ: dict[str, str] | None = None,
    flags: dict[str, str] | None = None,
    *,
    clock: Clock = now_ms,
    runner: str = ENGINE,
    tolerant: bool = False,
) -> App:
    """Open a home, and create it if it does not exist. Close the App, or use it in a `with` statement.

    With `tolerant`, an invalid config.toml is not an error: the default settings apply, and `config_file.problem` says what is wrong.
    """
    from backburner.coordination.ledger_file import open_home_ledger

    environ = dict(os.environ) if environ is None else environ
    place = home if isinstance(home, Home) else Home(locate(home, environ))
    place.make()
    config = ConfigFile(place, environ, flags, tolerant=tolerant)
    return App(place, open_home_ledger(place, config), config, environ, clock=clock, runner=runner)
