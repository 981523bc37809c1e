"""`core/light_json.py` reads and writes the same as `json`."""

import json
import math

import hypothesis.strategies as some
import pytest
from hypothesis import example, given

from backburner.core import light_json
from backburner.core.states import RunState

_VALUES = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats(allow_nan=False) | some.text() | some.sampled_from(RunState),
    lambda parts: some.lists(parts) | some.tuples(parts, parts) | some.dictionaries(some.text(), parts),
    max_leaves=10,
)


@given(_VALUES)
@example({"\ud800": "\x00\x7f é \U0001f600", "b": [1e300, -0.0, math.inf]})
def test_values_are_written_and_read_like_json_does(value: object) -> None:
    text = json.dumps(value)
    assert light_json.dumps(value) == text
    assert light_json.dumps(value, sort_keys=True) == json.dumps(value, sort_keys=True)
    assert light_json.loads(text) == json.loads(text)


@pytest.mark.parametrize("text", [" [1, 2] \n", b'{"a": 1}', "NaN", "-Infinity", '"\\ud83d\\ude00"', "1.5e3", "\ufeff1"[1:]])
def test_other_forms_are_read(text: str | bytes) -> None:
    assert repr(light_json.loads(text)) == repr(json.loads(text))


@pytest.mark.parametrize("text", ["", "{", "[1,]", "1 2", '"a', "nul", "\ufeff1", '{"a" 1}', '"\n"', b"\xff"])
def test_what_is_not_json_is_refused_like_json_does(text: str | bytes) -> None:
    with pytest.raises(ValueError) as expected:
        json.loads(text)
    with pytest.raises(type(expected.value)) as found:
        light_json.loads(text)
    assert str(found.value) == str(expected.value)


def test_what_json_cannot_write_is_refused() -> None:
    for value in (object(), {(1, 2): 3}, {"a": {1}}):
        with pytest.raises(TypeError):
            json.dumps(value)
        with pytest.raises(TypeError):
            light_json.dumps(value)
