"""Edits of JSON with comments: our entry is added and removed, and everything else stays unchanged byte for byte."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from backburner.core.errors import BadInput
from backburner.interfaces.client_setup import jsonc

COMMENTED = """\ufeff{\r
\t// which model\r
\t"model": "fake/one", /* the small one */\r
\t"mcp": {\r
\t\t"other": {"type": "local", "command": ["x"]}, // keep\r
\t},\r
}\r
"""
OURS = {"type": "local", "command": ["bb", "mcp"]}
PATH = ("mcp", "backburner")

_space = st.sampled_from(["", " ", "\n", "\n  ", "\t", "\r\n\t", " // note\n", "/* { */", '\n// "a": 1,\n  ', " /* , */ "])
_names = st.sampled_from(["a", "b", "hooks", "", "a b", "é", '"', "//", "/*", "}"])


@st.composite
def _documents(draw: st.DrawFn, depth: int = 3) -> str:
    """Any value in any notation that JSON with comments allows."""
    if depth == 0 or draw(st.booleans()):
        scalars = st.one_of(st.text(max_size=5), st.integers(), st.booleans(), st.none(), st.sampled_from(["// x", "/* x", "}", ","]))
        return json.dumps(draw(scalars), ensure_ascii=draw(st.booleans()))
    return draw(_objects(depth) if draw(st.booleans()) else _arrays(depth))


@st.composite
def _objects(draw: st.DrawFn, depth: int = 3) -> str:
    members = [
        f"{draw(_space)}{json.dumps(name)}{draw(_space)}:{draw(_space)}{draw(_documents(depth - 1))}{draw(_space)}"
        for name in draw(st.lists(_names, max_size=4, unique=True))
    ]
    return "{" + _joined(draw, members) + "}"


@st.composite
def _arrays(draw: st.DrawFn, depth: int = 3) -> str:
    elements = [f"{draw(_space)}{draw(_documents(depth - 1))}{draw(_space)}" for _ in range(draw(st.integers(0, 3)))]
    return "[" + _joined(draw, elements) + "]"


def _joined(draw: st.DrawFn, items: list[str]) -> str:
    return ",".join(items) + (draw(st.sampled_from(["", ",", ",\n", ", // last\n"])) if items else "")


@settings(max_examples=400, deadline=None)
@given(_space, _objects(), _space)
@example("", '{"a": 1 // note\n}', "\n")
@example("", '{\n  "a": 1, // note\n  // "b": 2\n}', "\n")
@example("", "{/* nothing */}", "")
def test_adding_and_removing_a_member_restores_the_text(before: str, body: str, after: str) -> None:
    text = before + body + after
    put = jsonc.put(text, ("backburner",), OURS)
    everything = jsonc.get(text)
    assert isinstance(everything, dict)
    assert jsonc.get(put) == {**everything, "backburner": OURS}
    assert list(everything) == [name for name in jsonc.get(put) if name != "backburner"]  # type: ignore[union-attr]
    assert jsonc.remove(put, ("backburner",)) == text


@settings(max_examples=200, deadline=None)
@given(_arrays(), st.integers(0, 3))
def test_adding_and_removing_an_element_restores_the_text(body: str, index: int) -> None:
    text = '{"list": ' + body + ', "rest": 1}'
    elements = jsonc.get(text, ("list",))
    assert isinstance(elements, list)
    more = jsonc.append(text, ("list",), OURS)
    assert jsonc.get(more) == {"list": [*elements, OURS], "rest": 1}
    back = jsonc.remove(more, ("list", len(elements)))
    assert back == text or not elements
    if index < len(elements):
        less = jsonc.get(jsonc.remove(text, ("list", index)))
        kept = [*elements[:index], *elements[index + 1 :]]
        assert less == ({"list": kept, "rest": 1}) or not kept


@settings(max_examples=200, deadline=None)
@given(_objects(), _names)
def test_removing_a_member_keeps_the_others(body: str, name: str) -> None:
    before, after = jsonc.get(body), jsonc.get(jsonc.remove(body, (name,)))
    assert isinstance(before, dict)
    before.pop(name, None)
    assert after == before


@settings(max_examples=200, deadline=None)
@given(_documents())
def test_valid_json_is_accepted(text: str) -> None:
    try:
        expected = json.loads(text)
    except ValueError:
        return
    assert jsonc.get(text) == expected


def test_comments_commas_tabs_line_ends_and_bom_are_kept() -> None:
    put = jsonc.put(COMMENTED, PATH, OURS)
    ours = '\r\n\t\t"backburner": {\r\n\t\t\t"type": "local",\r\n\t\t\t"command": [\r\n\t\t\t\t"bb",\r\n\t\t\t\t"mcp"\r\n\t\t\t]\r\n\t\t},'
    assert put == COMMENTED.replace("// keep", "// keep" + ours)
    assert jsonc.remove(put, PATH) == COMMENTED


def test_a_changed_value_replaces_the_old_one() -> None:
    text = '{\n    "mcp": {\n        "backburner": [1], // mine\n        "z": 0\n    }\n}'
    assert jsonc.put(text, PATH, "x") == text.replace("[1]", '"x"')
    assert jsonc.put(text, PATH, [1]) is text


def test_an_empty_file_becomes_a_document() -> None:
    assert jsonc.put("", ("a", "b"), 1) == '{\n  "a": {\n    "b": 1\n  }\n}\n'
    assert jsonc.put("// mine", ("a",), 1) == '// mine\n{\n  "a": 1\n}\n'
    assert jsonc.put("{}", ("a",), 1) == '{\n  "a": 1\n}'


def test_empty_containers_are_removed_but_comments_are_kept() -> None:
    assert jsonc.remove('{"a": {"b": {"c": 1}}, "d": 2}', ("a", "b", "c")) == '{"d": 2}'
    assert jsonc.remove('{"a": {"b": 1 /* why */}}', ("a", "b")) == '{"a": { /* why */}}'
    assert jsonc.remove('{"a": [{"b": 1}]}', ("a", 0)) == "{}"


def test_of_a_duplicate_member_the_last_counts_and_both_are_removed() -> None:
    text = '{"a": 1, "b": 0, "a": 2}'
    assert jsonc.get(text, ("a",)) == 2
    assert jsonc.put(text, ("a",), 3) == '{"a": 1, "b": 0, "a": 3}'
    assert jsonc.remove(text, ("a",)) == '{"b": 0}'


def test_an_edit_never_moves_text_into_a_comment() -> None:
    text = '{ // one\n "a": 1, "b": 2, // two\n "c": 3 }'
    for name, left in (("a", {"b": 2, "c": 3}), ("b", {"a": 1, "c": 3}), ("c", {"a": 1, "b": 2})):
        assert jsonc.get(jsonc.remove(text, (name,))) == left


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ('{"a": 1,\n  "b" 2}', "line 2, column 7"),
        ('{"a": 1', "line 1, column 8"),
        ('{"a": 1}}', "line 1, column 9"),
        ("{'a': 1}", "line 1, column 2"),
        ('{"a": "x\ny"}', "line 1, column 7"),
        ('{"a": 01}', "line 1, column 8"),
        ('{"a": nope}', "line 1, column 7"),
        ('{"a": 1, /* \n', "line 1, column 10"),
        ("[,]", "line 1, column 2"),
        ("[" * 5000, "line 1, column 202"),
    ],
)
def test_a_syntax_error_is_reported_with_line_and_column(text: str, position: str) -> None:
    with pytest.raises(BadInput, match=rf"^x\.json, {position}: not valid JSON"):
        jsonc.put(text, PATH, OURS, "x.json")


@pytest.mark.parametrize("text", ['{"mcp": []}', '{"mcp": null}', "[]", "3"])
def test_a_value_of_another_type_at_the_path_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match=r"^x\.json, line 1: .* is not an object"):
        jsonc.put(text, PATH, OURS, "x.json")
    assert jsonc.remove(text, PATH, "x.json") == text
    with pytest.raises(BadInput, match="is not a list"):
        jsonc.append('{"hooks": {"Stop": {}}}', ("hooks", "Stop"), 1)
