"""How the ledger is put together: repositories that are small, composed, and just what their protocols promise."""

import ast
import inspect
from pathlib import Path

import pytest

import backburner.store
from backburner.core import store_ports
from backburner.store.ledger import Ledger, open_ledger

PORTS = {
    "tasks": store_ports.TaskStore,
    "runs": store_ports.RunQueue,
    "live_work": store_ports.LiveWork,
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
    parts = {name for name in (*vars(ledger), *vars(Ledger)) if not name.startswith("_")}
    assert parts == {*PORTS, "database", "fold", "check", "close"}


@pytest.mark.parametrize("name", PORTS)
def test_a_repository_has_the_verbs_of_its_protocol_and_no_others(ledger: Ledger, name: str) -> None:
    assert verbs(type(getattr(ledger, name))) == verbs(PORTS[name])


@pytest.mark.parametrize("name", PORTS)
def test_a_repository_is_small(name: str) -> None:
    assert 1 < len(verbs(PORTS[name])) <= MAX_VERBS


@pytest.mark.parametrize("name", PORTS)
def test_every_verb_has_a_case_in_the_contract(name: str) -> None:
    """A call of it somewhere in a test of the suites, which every adapter runs."""
    called = {
        node.func.attr
        for path in (Path(__file__).parent / "contract").glob("*.py")
        for test in ast.walk(ast.parse(path.read_text()))
        if isinstance(test, ast.FunctionDef)
        for node in ast.walk(test)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Attribute)
        and node.func.value.attr == name
    }
    assert verbs(PORTS[name]) - called == set()


@pytest.mark.parametrize("name", PORTS)
def test_a_repository_takes_just_what_its_protocol_says(ledger: Ledger, name: str) -> None:
    for verb in verbs(PORTS[name]):
        promised, taken = (inspect.signature(getattr(kind, verb)) for kind in (PORTS[name], type(getattr(ledger, name))))
        assert [(one.name, one.kind, one.default) for one in promised.parameters.values()] == [
            (one.name, one.kind, one.default) for one in taken.parameters.values()
        ], verb


def test_a_smaller_protocol_is_a_part_of_one_repository(ledger: Ledger) -> None:
    kinds = [kind for kind in vars(store_ports).values() if isinstance(kind, type) and kind.__module__ == store_ports.__name__]
    smaller = [kind for kind in kinds if kind not in PORTS.values()]
    assert len(kinds) == len(PORTS) + len(smaller) and smaller
    for kind in smaller:
        (whole,) = [port for port in PORTS.values() if verbs(kind) < verbs(port)]
        for verb in verbs(kind):
            assert inspect.signature(getattr(kind, verb)) == inspect.signature(getattr(whole, verb)), f"{kind.__name__}.{verb}"


def test_no_verb_is_in_two_repositories() -> None:
    every = [verb for port in PORTS.values() for verb in verbs(port)]
    assert len(every) == len(set(every)) == sum(len(verbs(port)) for port in PORTS.values())


def test_no_class_of_the_store_stands_on_another_one() -> None:
    for path in Path(backburner.store.__file__ or "").parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                assert [ast.unparse(base) for base in node.bases] in ([], ["NamedTuple"], ["Protocol"]), f"{path.name}: {node.name}"
