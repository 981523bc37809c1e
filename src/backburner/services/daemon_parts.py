"""The repositories and services that each daemon process needs."""

import contextlib
from collections.abc import Callable
from typing import NamedTuple

from backburner.coordination.changes import ChangeFeed
from backburner.coordination.config_file import ConfigFile
from backburner.coordination.ledger_file import dispatch_connection, open_home_ledger
from backburner.core.errors import LedgerUnavailable, NotAPerson
from backburner.core.hosts import integrations_leader_of
from backburner.core.models import Clock
from backburner.core.settings import Config
from backburner.core.store_ports import (
    DeliveryStore,
    DispatchStore,
    EventStore,
    HostRequestStore,
    HostStore,
    LedgerQueries,
    LiveWork,
    OutputExcerptStore,
    RecurringStore,
    RunQueue,
    SessionStore,
)
from backburner.services.agent_catalog import AgentCatalog
from backburner.services.app import App
from backburner.services.approvals import Approvals
from backburner.services.async_app import AsyncServices
from backburner.services.deliveries import Deliveries
from backburner.services.gate import Gate
from backburner.services.inbox import Inbox
from backburner.services.proposals import Proposals
from backburner.services.queries import Queries
from backburner.services.retention import Retention
from backburner.services.suggestions import Suggestions
from backburner.services.triggers import Triggers
from backburner.system.home import Home


class EngineParts(NamedTuple):
    """What the engine needs: the queue and schedules of the ledger, and the services it calls."""

    home: Home
    clock: Clock
    config: ConfigFile
    changes: ChangeFeed
    live_work: LiveWork
    runs: RunQueue
    queries: LedgerQueries
    hosts: HostStore
    dispatch: DispatchStore
    recurring: RecurringStore
    deliveries: DeliveryStore
    sessions: SessionStore
    events: EventStore
    gate: Gate
    catalog: AgentCatalog
    inbox: Inbox
    proposals: Proposals
    retention: Retention
    suggestions: Suggestions
    open_shared: "Callable[[], SharedLedger] | None"  # None if nobody else uses the ledger
    open_for_lease: Callable[[], tuple[HostStore, Callable[[], None]]]
    close: Callable[[], None]

    @property
    def host_id(self) -> str:
        """The host of this home in a ledger on Postgres; empty for a ledger file."""
        return self.live_work.host_id

    def dispatch_connection(self) -> str:
        """The parameters of a connection to the job queue of a ledger on Postgres."""
        return dispatch_connection(self.config.current)


class SharedLedger(NamedTuple):
    """What a second thread of the engine needs to answer other hosts: a connection of its own."""

    host_id: str
    requests: HostRequestStore
    excerpts: OutputExcerptStore
    close: Callable[[], None]


def open_shared_ledger(home: Home, config: ConfigFile) -> SharedLedger:
    """Open another connection to a ledger that several hosts use."""
    ledger = open_home_ledger(home, config)
    return SharedLedger(ledger.database.host_id, ledger.host_requests, ledger.output_excerpts, ledger.close)


def open_engine_parts(home: Home, environ: dict[str, str], flags: dict[str, str] | None = None) -> EngineParts:
    """Open a home for the engine, even if its config.toml is invalid.

    `close` also checkpoints the ledger, so that its file can be copied without the WAL.
    """
    config = ConfigFile(home, environ, flags, tolerant=True)
    ledger = open_home_ledger(home, config)
    app = App(home, ledger, config, environ)

    def open_for_lease() -> tuple[HostStore, Callable[[], None]]:
        other = open_home_ledger(home, config, for_lease=True)
        return other.hosts, other.close

    def close() -> None:
        ledger.checkpoint()
        ledger.close()

    return EngineParts(
        home=home,
        clock=app.now,
        config=app.config_file,
        changes=app.changes,
        live_work=ledger.live_work,
        runs=ledger.runs,
        queries=ledger.queries,
        hosts=ledger.hosts,
        dispatch=ledger.dispatch,
        recurring=ledger.recurring,
        deliveries=ledger.deliveries,
        sessions=ledger.sessions,
        events=ledger.events,
        gate=app.gate,
        catalog=app.agents,
        inbox=app.inbox,
        proposals=app.proposals,
        retention=app.retention,
        suggestions=app.suggestions,
        open_shared=(lambda: open_shared_ledger(home, config)) if ledger.database.host_id else None,
        open_for_lease=open_for_lease,
        close=close,
    )


class AgentParts(NamedTuple):
    """What the agent process needs: the queue of its lanes, and the App that its agents use like any other interface."""

    app: App
    live_work: LiveWork
    queue: RunQueue
    queries: LedgerQueries


def open_agent_parts(home: Home, environ: dict[str, str], config: ConfigFile) -> AgentParts:
    """Open a home for the agent process. Close the App afterwards."""
    ledger = open_home_ledger(home, config)
    return AgentParts(App(home, ledger, config, environ), ledger.live_work, ledger.runs, ledger.queries)


def open_shared_app(home: Home, environ: dict[str, str], config: ConfigFile) -> App:
    """Open another App for a second thread, with the settings object of the daemon."""
    return App(home, open_home_ledger(home, config), config, environ)


class IntegrationParts(NamedTuple):
    """What the integrations process needs: deliveries, event sources, and approvals for answers from channels."""

    home: Home
    environ: dict[str, str]
    clock: Clock
    config_file: ConfigFile
    changes: ChangeFeed
    deliveries: Deliveries
    triggers: Triggers
    approvals: Approvals
    queries: Queries
    leads: Callable[[], bool]  # whether this host handles what is not of one host: channels, and sources other than files
    close: Callable[[], None]

    @property
    def config(self) -> Config:
        """The current settings."""
        return self.config_file.current


def open_integration_parts(home: Home, environ: dict[str, str], config: ConfigFile) -> IntegrationParts:
    """Open a home for the integrations process."""
    ledger = open_home_ledger(home, config)
    app = App(home, ledger, config, environ)

    def leads() -> bool:
        host_id = ledger.live_work.host_id
        return not host_id or integrations_leader_of(ledger.hosts.beats()) == host_id

    with contextlib.suppress(NotAPerson, LedgerUnavailable):  # without the login of a person, answers in channels are refused
        app.become_person()
    return IntegrationParts(
        home, environ, app.now, app.config_file, app.changes, app.deliveries, app.triggers, app.approvals, app.queries, leads, ledger.close
    )


Services = AsyncServices[IntegrationParts]
