"""The enumerations of `core/light_typing.py` behave like those of `enum`."""

import copy
import enum
import json
import pickle

import pytest

from backburner.core import light_typing


class Ours(light_typing.StrEnum):
    """Colours."""

    RED = "red"
    DARK_BLUE = "dark blue"

    @property
    def is_dark(self) -> bool:
        return self.startswith("dark")


class Theirs(enum.StrEnum):
    """Colours."""

    RED = "red"
    DARK_BLUE = "dark blue"

    @property
    def is_dark(self) -> bool:
        return self.startswith("dark")


@pytest.mark.parametrize("name", ["RED", "DARK_BLUE"])
def test_a_member_behaves_the_same(name: str) -> None:
    ours, theirs = getattr(Ours, name), getattr(Theirs, name)
    assert (ours.name, ours.value, str(ours), f"{ours:>12}", hash(ours)) == (
        theirs.name, theirs.value, str(theirs), f"{theirs:>12}", hash(theirs),
    )  # fmt: skip
    assert repr(ours).replace("Ours", "Theirs") == repr(theirs)
    assert (type(str(ours)), type(ours.value), isinstance(ours, str)) == (str, str, True)
    assert ours == theirs == theirs.value
    assert {theirs.value: 1}[ours] == 1
    assert json.dumps([ours, {ours: 1}]) == json.dumps([theirs, {theirs: 1}])
    assert ours.is_dark == theirs.is_dark
    assert Ours(ours) is Ours(theirs.value) is ours
    for copied in (copy.copy(ours), copy.deepcopy([ours])[0], pickle.loads(pickle.dumps(ours))):
        assert copied is ours


def test_the_members_are_the_same() -> None:
    assert [member.name for member in Ours] == [member.name for member in Theirs]
    assert (len(Ours), list(Ours.__members__), Ours.__doc__) == (len(Theirs), list(Theirs.__members__), Theirs.__doc__)
    assert all(isinstance(member, Ours) for member in Ours) and Ours.RED in Ours


@pytest.mark.parametrize("value", ["RED", "", None, 1, []])
def test_other_values_are_refused(value: object) -> None:
    messages = []
    for kind in (Ours, Theirs):
        with pytest.raises(ValueError, match="is not a valid") as error:
            kind(value)
        messages.append(str(error.value).replace("Ours", "Theirs"))
    assert messages[0] == messages[1]


def test_members_can_be_matched() -> None:
    match Ours("dark blue"):
        case Ours.RED:
            pytest.fail("a wrong member matches")
        case Ours.DARK_BLUE:
            pass
        case _:
            pytest.fail("no member matches")
