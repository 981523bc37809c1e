"""The structure of the ledger: small repositories without inheritance that match their protocols exactly."""

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
    "dispatch": store_ports.DispatchStore,
    "live_work": store_ports.LiveWork,
    "queries": store_ports.LedgerQueries,
    "events": store_ports.EventStore,
    "notices": store_ports.NoticeStore,
    "deliveries": store_ports.DeliveryStore,
    "triggers": store_ports.TriggerStore,
    "sessions": store_ports.SessionStore,
    "recurring": store_ports.RecurringStore,
    "grants": store_ports.GrantStore,
    "hosts": store_ports.HostStore,
    "memory": store_ports.MemoryStore,
    "refusals": store_ports.RefusalStore,
    "external_tasks": store_ports.ExternalTaskStore,
    "records": store_ports.RecordStore,
    "pages": store_ports.TaskPages,
    "devices": store_ports.DeviceStore,
    "proofs": store_ports.ProofStore,
    "host_requests": store_ports.HostRequestStore,
    "output_excerpts": store_ports.OutputExcerptStore,
}
MAX_METHODS = 15


def methods(kind: type) -> set[str]:
    return {name for name, member in vars(kind).items() if callable(member) and not name.startswith("_")}


def class_of(ledger: Ledger, name: str) -> type:
    """The class of a repository, which is built when one of its methods is used."""
    return type(getattr(getattr(ledger, name), min(methods(PORTS[name]))).__self__)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return open_ledger(str(tmp_path / "ledger.db"))


def test_every_part_of_a_ledger_is_a_repository_with_a_protocol(ledger: Ledger) -> None:
    parts = {name for name in (*vars(ledger), *vars(Ledger)) if not name.startswith("_")}
    assert parts == {*PORTS, "database", "checkpoint", "copy_to", "unexpected_objects", "check", "close"}


@pytest.mark.parametrize("name", PORTS)
def test_a_repository_has_exactly_the_methods_of_its_protocol(ledger: Ledger, name: str) -> None:
    assert methods(class_of(ledger, name)) == methods(PORTS[name])


@pytest.mark.parametrize("name", PORTS)
def test_a_repository_is_small(name: str) -> None:
    assert 1 < len(methods(PORTS[name])) <= MAX_METHODS


@pytest.mark.parametrize("name", PORTS)
def test_every_method_is_called_in_the_contract_suites(name: str) -> None:
    """Each method is called somewhere in the suites that every adapter runs."""
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
    assert methods(PORTS[name]) - called == set()


@pytest.mark.parametrize("name", PORTS)
def test_a_repository_has_the_signatures_of_its_protocol(ledger: Ledger, name: str) -> None:
    for method in methods(PORTS[name]):
        expected, actual = (inspect.signature(getattr(kind, method)) for kind in (PORTS[name], class_of(ledger, name)))
        assert [(parameter.name, parameter.kind, parameter.default) for parameter in expected.parameters.values()] == [
            (parameter.name, parameter.kind, parameter.default) for parameter in actual.parameters.values()
        ], method


def test_a_smaller_protocol_is_a_subset_of_one_repository(ledger: Ledger) -> None:
    kinds = [kind for kind in vars(store_ports).values() if isinstance(kind, type) and kind.__module__ == store_ports.__name__]
    smaller = [kind for kind in kinds if kind not in PORTS.values()]
    assert len(kinds) == len(PORTS) + len(smaller) and smaller
    for kind in smaller:
        (whole,) = [port for port in PORTS.values() if methods(kind) < methods(port)]
        for method in methods(kind):
            assert inspect.signature(getattr(kind, method)) == inspect.signature(getattr(whole, method)), f"{kind.__name__}.{method}"


def test_no_method_is_in_two_repositories() -> None:
    """Except those whose name means the same in each: `list` and `record` act on the rows of their own repository."""
    names = [name for port in PORTS.values() for name in methods(port)]
    assert {name for name in names if names.count(name) > 1} == {"list", "record"}


def test_no_class_of_the_store_inherits_from_another_one() -> None:
    for path in Path(backburner.store.__file__ or "").parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                bases = [ast.unparse(base) for base in node.bases]
                assert bases in ([], ["NamedTuple"], ["Protocol"], ["psycopg.Pipeline"]), f"{path.name}: {node.name}"
