"""How the ledger is put together: repositories that are small, composed, and just what their protocols promise."""

import ast
from pathlib import Path

import pytest

import backburner.store
from backburner.core import store_ports
from backburner.store.ledger import Ledger, open_ledger

PORTS = {
    "tasks": store_ports.TaskStore,
    "runs": store_ports.RunQueue,
    "queries": store_ports.LedgerQueries,
    "events": store_ports.EventStore,
    "notices": store_ports.NoticeStore,
    "deliveries": store_ports.DeliveryStore,
    "triggers": store_ports.TriggerStore,
    "sessions": store_ports.SessionStore,
    "recurring": store_ports.RecurringStore,
    "grants": store_ports.GrantStore,
    "memory": store_ports.MemoryStore,
    "refusals": store_ports.RefusalStore,
    "external_tasks": store_ports.ExternalTaskStore,
}
MAX_VERBS = 15


def verbs(kind: type) -> set[str]:
    return {name for name, member in vars(kind).items() if callable(member) and not name.startswith("_")}


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return open_ledger(str(tmp_path / "ledger.db"))


def test_every_part_of_a_ledger_is_a_repository_with_a_protocol(ledger: Ledger) -> None:
    assert set(vars(ledger)) - {"database"} == set(PORTS)


@pytest.mark.parametrize("name", PORTS)
def test_a_repository_has_the_verbs_of_its_protocol_and_no_others(ledger: Ledger, name: str) -> None:
    assert verbs(type(getattr(ledger, name))) == verbs(PORTS[name])


@pytest.mark.parametrize("name", PORTS)
def test_a_repository_is_small(name: str) -> None:
    assert 1 < len(verbs(PORTS[name])) <= MAX_VERBS


def test_no_verb_is_in_two_repositories() -> None:
    every = [verb for port in PORTS.values() for verb in verbs(port)]
    assert len(every) == len(set(every)) == sum(len(verbs(port)) for port in PORTS.values())


def test_no_class_of_the_store_stands_on_another_one() -> None:
    for path in Path(backburner.store.__file__ or "").parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                assert [ast.unparse(base) for base in node.bases] in ([], ["NamedTuple"], ["Protocol"]), f"{path.name}: {node.name}"
