"""The named tuples of `core/light_typing.py` behave like those of `typing`."""

import copy
import pickle
import typing

import pytest

from backburner.core import light_typing


class Ours(light_typing.NamedTuple):
    """A record."""

    name: str
    count: int = 1
    tags: tuple[str, ...] = ()

    @property
    def is_many(self) -> bool:
        return self.count > 1


class Theirs(typing.NamedTuple):
    """A record."""

    name: str
    count: int = 1
    tags: tuple[str, ...] = ()

    @property
    def is_many(self) -> bool:
        return self.count > 1


@pytest.fixture(params=["first", "often"], autouse=True)
def often_used(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the constructor of the first uses, and with the one that is compiled for a class that is used often."""
    monkeypatch.setattr(light_typing, "_created", {})
    monkeypatch.setattr(Ours, "__new__", light_typing.NamedTuple.__new__)
    for _ in range(light_typing._COMPILE_AT if request.param == "often" else 0):
        Ours("a")
    assert (Ours.__new__ is light_typing.NamedTuple.__new__) == (request.param == "first")


@pytest.mark.parametrize(
    ("values", "named"),
    [
        (("a",), {}),
        (("a", 2), {}),
        (("a", 2, ("x",)), {}),
        ((), {"name": "a"}),
        (("a",), {"tags": ("x",)}),
        ((), {"tags": ("x",), "count": 0, "name": "a"}),
    ],
)
def test_a_record_has_the_same_values_and_methods(values: tuple[typing.Any, ...], named: dict[str, typing.Any]) -> None:
    ours, theirs = Ours(*values, **named), Theirs(*values, **named)
    assert tuple(ours) == theirs
    assert (ours.name, ours.count, ours.tags, ours.is_many) == (theirs.name, theirs.count, theirs.tags, theirs.is_many)
    assert repr(ours).replace("Ours", "Theirs") == repr(theirs)
    assert hash(ours) == hash(theirs)
    assert ours._asdict() == theirs._asdict()
    assert tuple(ours._replace(count=7)) == theirs._replace(count=7)
    assert tuple(Ours._make(theirs)) == Theirs._make(ours)
    for copied in (copy.copy(ours), copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert copied == ours
        assert type(copied) is Ours


@pytest.mark.parametrize(
    ("values", "named"),
    [((), {}), (("a", 1, (), 4), {}), (("a",), {"name": "b"}), (("a",), {"other": 1}), ((), {"count": 1})],
)
def test_wrong_arguments_are_refused(values: tuple[typing.Any, ...], named: dict[str, typing.Any]) -> None:
    for kind in (Ours, Theirs):
        with pytest.raises(TypeError):
            kind(*values, **named)


def test_unknown_fields_cannot_be_replaced() -> None:
    for record in (Ours("a"), Theirs("a")):
        with pytest.raises(ValueError, match="other"):
            record._replace(other=1)


def test_a_record_cannot_be_changed() -> None:
    for record in (Ours("a"), Theirs("a")):
        with pytest.raises(AttributeError):
            record.name = "b"  # type: ignore[misc]
        with pytest.raises(AttributeError):
            record.other = "b"  # type: ignore[attr-defined]


def test_the_classes_describe_themselves_alike() -> None:
    for name in ("_fields", "_field_defaults", "__match_args__", "__annotations__", "__doc__"):
        assert getattr(Ours, name) == getattr(Theirs, name), name
    match Ours("a", 2):
        case Ours("a", count):
            assert count == 2
        case _:
            pytest.fail("the fields are not matched by position")
