"""Edits of TOML files: our table is added and removed, and everything else stays unchanged byte for byte."""

import re
import subprocess
import sys
import tomllib

import pytest
import tomlkit
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tomlkit.exceptions import TOMLKitError

from backburner.core.errors import BadInput
from backburner.interfaces.client_setup import toml_edit as toml

OURS = {"command": "/opt/back burner", "args": ["mcp", 'a "quoted" \x7f word'], "required": True, "tool_timeout_sec": 60}
PATH = ("mcp_servers", "backburner")
BLOCK = """[mcp_servers.backburner]
command = "/opt/back burner"
args = ["mcp", "a \\"quoted\\" \\u007f word"]
required = true
tool_timeout_sec = 60
"""
MULTILINE = '''# mine
model = "x" # why
note = """
[mcp_servers.backburner]
command = "not a table"
"""
list = [
  "a", # ]
  [1, 2],
]

[mcp_servers.other]
command = 'y'

[[profiles]]
"odd = key".x = nan
when = 2026-01-01T00:00:00Z
'''


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a = 1\n",
        "\ufeffa = 1\r\n[b]\r\nc = 2\r\n",
        MULTILINE,
        "[mcp_servers]\n",
        "[mcp_servers]\nother = { command = 'y' }\n\n[z]\n",
        "mcp_servers.other.command = 'y'\n[z]\na = 1\n",
        "mcp_servers = { other = { command = 'a,}' } } # all\nb = 1\n",
        "mcp_servers = {}\n",
        "# only a comment\n",
        "['mcp_servers'.\"other\"]\ncommand = 'y'\n",
        "\ufeff",
        "\n\n",
        "  # indented\n  [a]\n    b.c = 1\n\n\n",
        "mcp_servers = { }\r\n[a]\r\nb = [\r\n  1, # c\r\n]\r\n",
        "\ufeffmcp_servers = {other.command='y',third={}}\n",
        "mcp_servers.other = { command = 'y' } # mine",
        "[mcp_servers.other]\ncommand = 'y'\n\n# about z\n[z]\n[mcp_servers.third]\nenv.A = 'b'\n",
        '["mcp_\\u0073ervers" . other]\n"" = 1\n\'a.b\' = 2\n',
        "[[profiles]]\na = 1\n\n[[profiles]] # second\n[profiles.env]\nb = 2\n[[hooks.Stop]]\n[[hooks.Stop.hooks]]\nc = 3\n",
        "a = " + "[" * 200 + "]" * 200 + "\n",  # deeper than tomlkit reads
        "[[a]]\nx = 1\n[b]\n[[a]]\nx = 2\n",  # tomlkit writes the second [[a]] before [b]
    ],
)
def test_adding_and_removing_our_table_restores_the_text(text: str) -> None:
    before = tomllib.loads(text.removeprefix("\ufeff"))
    put = toml.put(text, PATH, OURS)
    after = tomllib.loads(put.removeprefix("\ufeff"))
    servers = after["mcp_servers"]
    assert servers.pop("backburner") == OURS
    assert servers == before.get("mcp_servers", {})
    assert repr({**after, "mcp_servers": 0}) == repr({**before, "mcp_servers": 0})
    assert toml.put(put, PATH, OURS) is put
    assert toml.remove(put, PATH) == (text if text.endswith("\n") or text in ("", "\ufeff") else text + "\n")


def test_our_table_is_added_at_the_end() -> None:
    assert toml.put("a = 1\n", PATH, OURS) == "a = 1\n\n" + BLOCK
    assert toml.put("a = 1", PATH, OURS) == "a = 1\n\n" + BLOCK
    assert toml.put("a = 1\r\n", PATH, OURS) == ("a = 1\n\n" + BLOCK).replace("\n", "\r\n")


def test_an_older_table_of_ours_is_replaced_in_place() -> None:
    older = "[a]\nx = 1\n\n{}# about z\n[z]\ny = 2\n"
    text = older.format("[mcp_servers.backburner]\ncommand = 'old'\n[mcp_servers.backburner.env]\nA = 'b'\n\n")
    assert toml.put(text, PATH, OURS) == older.format(BLOCK + "\n")


@pytest.mark.parametrize(
    "ours",
    [
        "[mcp_servers]\nbackburner = { command = 'old' }\n",
        "[mcp_servers]\nbackburner.command = 'old'\nbackburner.args = [\n  'a', # ]\n]\n",
        "mcp_servers.backburner.command = 'old'\n",
        "[mcp_servers.'backburner']\n'command' = 'old'\n",
        "mcp_servers = { backburner = { command = 'old' } }\n",
        "mcp_servers = { backburner.command = 'old' }\n",
    ],
)
def test_our_table_is_recognised_in_every_notation(ours: str) -> None:
    text = "a = 1\n" + ours + "[z]\nb = 2\n"
    assert tomllib.loads(toml.put(text, PATH, OURS)) == {"a": 1, "mcp_servers": {"backburner": OURS}, "z": {"b": 2}}
    left = tomllib.loads(toml.remove(text, PATH))
    assert left.pop("mcp_servers", {}) == {} and left == {"a": 1, "z": {"b": 2}}


def test_only_our_member_of_an_inline_table_is_removed() -> None:
    for text in (
        "mcp_servers = { backburner = { a = ',' }, x = { b = '}' } }\n",
        "mcp_servers = { x = { b = '}' }, backburner = { a = ',' } }\n",
        "mcp_servers = { x = { b = '}' }, backburner.a = ',' }\n",
    ):
        assert toml.remove(text, PATH) == "mcp_servers = { x = { b = '}' } }\n"


def test_comments_next_to_our_table_are_kept() -> None:
    text = "[a]\nx = 1\n\n# ours\n[mcp_servers.backburner]\ncommand = 'old'\n# and this\n\n[z]\n"
    assert toml.remove(text, PATH) == "[a]\nx = 1\n\n# ours\n# and this\n\n[z]\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a = \n", "not valid TOML: .*line 1"),
        ("a = 1\na = 2\n", "not valid TOML"),
        ("mcp_servers = 3\n", '"mcp_servers" is not a table'),
        ("[[mcp_servers]]\nx = 1\n", '"mcp_servers" is not a table'),
    ],
)
def test_invalid_files_and_conflicting_values_are_refused(text: str, says: str) -> None:
    with pytest.raises(BadInput, match=f"^x.toml: {says}"):
        toml.put(text, PATH, OURS, "x.toml")


def test_entries_a_person_added_to_our_table_can_be_rewritten() -> None:
    table = {**OURS, "env": {"A b": "c", "n": 1.5}, "empty": {}, "since": tomllib.loads("a = 2026-01-01")["a"]}
    assert tomllib.loads(toml.put("", PATH, table))["mcp_servers"]["backburner"] == table


@pytest.mark.parametrize(
    ("text", "put", "removed"),
    [
        # Separate tables, the first without a header of its own; both comments are about something else.
        (
            "[mcp_servers.backburner.env]\nA = 'b'\n\n# about y\n[y]\n[mcp_servers.backburner]\ncommand = 'old' # gone\n# last\n",
            BLOCK + "\n# about y\n[y]\n# last\n",
            "\n# about y\n[y]\n# last\n",
        ),
        # Dotted keys between others: a table in their place would take the pair below it.
        (
            "mcp_servers.backburner.command = 'old'\nb = 1\nmcp_servers.backburner.args = []\n[z]",
            "b = 1\n[z]\n\n" + BLOCK,
            "b = 1\n[z]",
        ),
        ("[[mcp_servers.backburner]]\na = 1\n# mine\n[[mcp_servers.backburner]]\n[z]\n", BLOCK + "# mine\n[z]\n", "# mine\n[z]\n"),
        (
            "['mcp_servers' . \"backb\\u0075rner\"] # old\r\ncommand = 'old'\r\n\r\n[z]\r\n",
            (BLOCK + "\n[z]\n").replace("\n", "\r\n"),
            "\r\n[z]\r\n",
        ),
        ("[a]\n\n  [mcp_servers.backburner]\n  command = 'old'", "[a]\n\n" + BLOCK, "[a]\n"),
        ("[mcp_servers]\nbackburner = 3\n", "[mcp_servers]\n" + BLOCK, "[mcp_servers]\n"),
    ],
)
def test_our_table_in_another_notation_is_replaced_and_removed(text: str, put: str, removed: str) -> None:
    assert toml.put(text, PATH, OURS) == put
    assert toml.remove(text, PATH) == removed


def test_members_of_an_inline_table_are_replaced_and_removed() -> None:
    text = "mcp_servers = { backburner.a = ',', x = 1 , 'backburner'.b = 2, y = '}' } # mine\n"
    assert toml.remove(text, PATH) == "mcp_servers = { x = 1 , y = '}' } # mine\n"
    put = toml.put(text, PATH, {"c": {"d": [1]}})
    assert put == "mcp_servers = { backburner = {c = {d = [1]}}, x = 1 , y = '}' } # mine\n"


def test_a_file_that_tomlkit_would_reorder_is_refused() -> None:
    text = "[[a]]\n[mcp_servers.backburner]\ncommand = 'old'\n[[a]]\n"
    with pytest.raises(
        BadInput, match=r"^\[mcp_servers.backburner\] cannot be added to x.toml because of how it is written; add it by hand"
    ):
        toml.put(text, PATH, OURS, "x.toml")
    with pytest.raises(
        BadInput, match=r"^\[mcp_servers.backburner\] cannot be removed from x.toml because of how it is written; remove it"
    ):
        toml.remove(text, PATH, "x.toml")
    ours = toml.put("[[a]]\n[b]\n[[a]]\n", PATH, OURS) + "[later]\n"
    assert toml.put(ours, PATH, {"command": "new"}) == '[[a]]\n[b]\n[[a]]\n\n[mcp_servers.backburner]\ncommand = "new"\n[later]\n'


@pytest.mark.parametrize(
    "wrong",
    [
        "a = 1 # mine\n[b]\nc = 3\n",  # another value
        "a = 2 # mine\n[b]\nc = 2\n",  # another pair changed
        "a = 1\n[b]\nc = 2\n",  # a comment is missing
        "[b]\nc = 2\na = 1 # mine\n",  # a pair moved into the table
        "a = 1 # mine\n[b]\nc = 2\n[d]\n",  # another table added
        "a = 1 # mine\n[b]\nc = \n",  # not valid
    ],
)
def test_an_edit_that_changes_other_settings_is_discarded(wrong: str) -> None:
    text, right = "a = 1 # mine\n", "a = 1 # mine\n[b]\nc = 2\n"
    assert toml._first_valid([wrong, right], text, text, ("b",), {"c": 2}, "refused") == right
    with pytest.raises(BadInput, match=r"^refused$"):
        toml._first_valid([wrong], text, text, ("b",), {"c": 2}, "refused")
    with pytest.raises(BadInput, match=r"^refused$"):
        toml._first_valid(["a = 1 # yours\n"], "a = 1 # yours\n", right, ("b",), None, "refused")


def test_a_file_nested_too_deeply_to_compare_is_refused() -> None:
    with pytest.raises(BadInput, match=r"cannot be added to x\.toml because of how it is written"):
        toml.put(f"[{'.'.join('a' * 5000)}]\n", PATH, OURS, "x.toml")


def test_only_an_edit_imports_tomlkit() -> None:
    code = """
import sys
from backburner.interfaces.cli import install, main
from backburner.interfaces.client_setup import toml_edit, wiring
text = toml_edit.put(toml_edit.remove("a = 1", ("b",)), ("c",), {"d": 1}) if len(sys.argv) > 1 else toml_edit.get("a = 1")
print("tomlkit" in sys.modules)
"""
    for words, imported in (((), "False"), (("edit",), "True")):
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout.strip() == imported


_space = st.sampled_from(["", " ", "\t "])
_names = st.sampled_from(["a", "b", "1", '""', '"é # {"', "'odd = [key]'", "other", "mcp_servers", "'mcp_servers'", '"mcp_\\u0073ervers"'])
_scalars = st.sampled_from(
    ["1", "nan", "true", "2026-01-01T00:00:00Z", "07:32:00", "'#'", '"\\"]}"', '"""a""""', "'''\n\n'''", "[]", "[ 1, # ]\n  [2],\n\n]"]
    + ['"""\n[mcp_servers.backburner]\n# part of a string\n"""', "[{ x = 1 }, { y.z = '}' }]"]
)
_own = st.sampled_from(
    ["[mcp_servers.backburner]", "command = 'old'", "[mcp_servers.backburner.env]", "[[mcp_servers.backburner]]", "[mcp_servers]"]
    + ["backburner.x = 1", "mcp_servers.backburner.x = 1", "'backburner' = { x = 1 }", "mcp_servers = { x = 1, backburner = { y = 1 } }"]
)


@st.composite
def _keys(draw: st.DrawFn) -> str:
    return draw(st.sampled_from([".", ".", " . "])).join(draw(st.lists(_names, min_size=1, max_size=3)))


@st.composite
def _values(draw: st.DrawFn, depth: int = 2) -> str:
    if depth == 0 or draw(st.integers(0, 2)):
        return draw(_scalars)
    pairs = (draw(_pairs(depth - 1)) + draw(_space) for _ in range(draw(st.integers(0, 3))))
    return "{" + ",".join(pairs) + "}"


@st.composite
def _pairs(draw: st.DrawFn, depth: int = 2) -> str:
    return f"{draw(_space)}{draw(_keys())}{draw(_space)}={draw(_space)}{draw(_values(depth))}"


@st.composite
def _headers(draw: st.DrawFn) -> str:
    opening, closing = draw(st.sampled_from([("[", "]"), ("[", "]"), ("[[", "]]")]))
    return f"{draw(_space)}{opening}{draw(_space)}{draw(_keys())}{draw(_space)}{closing}"


@st.composite
def _documents(draw: st.DrawFn, own: bool) -> str:
    """A valid document, with comments on lines of their own that say `# own line`."""
    lines = st.one_of(_pairs(), _pairs(), _headers(), _space, _space.map(lambda space: space + "# own line [a] {"))
    text = ""
    for line in draw(st.lists(st.one_of(lines, _own) if own else lines, max_size=10)):
        longer = text + line + draw(st.sampled_from(["", "", " # note"] if "=" in line else [""])) + "\n"
        text = longer if _valid(longer) else text
    text = draw(st.sampled_from(["", "\ufeff"])) + (text.replace("\n", "\r\n") if draw(st.booleans()) else text)
    shorter = text.removesuffix("\n").removesuffix("\r")
    return shorter if draw(st.booleans()) and _valid(shorter.removeprefix("\ufeff")) else text


def _valid(text: str) -> bool:
    try:
        return isinstance(tomllib.loads(text).get("mcp_servers", {}), dict)
    except tomllib.TOMLDecodeError:
        return False


def _is_kept_by_tomlkit(text: str) -> bool:
    text = text.removeprefix("\ufeff")
    try:
        return tomlkit.parse(text).as_string() == text
    except TOMLKitError:
        return False


def _others(text: str) -> str:
    """The content of a document without our table."""
    document = tomllib.loads(text.removeprefix("\ufeff"))
    servers = document.pop("mcp_servers", {})
    servers.pop("backburner", None)
    return repr(({name: document[name] for name in sorted(document)}, {name: servers[name] for name in sorted(servers)}))


@settings(max_examples=200, deadline=None)
@given(_documents(own=False))
@example("mcp_servers = { }")
@example("\ufeff\r\n[[a]]\r\n[b]\r\n[[a]]\r\n")
@example("a={}\nmcp_servers={}\n[[b.a]]\n[[b.a ]]\n")
def test_any_document_is_unchanged_after_an_edit_and_its_removal(text: str) -> None:
    try:
        put = toml.put(text, PATH, OURS)
    except BadInput as error:
        assert re.search("leaves no place for|because of how it is written", str(error)) and "{" in text and not _is_kept_by_tomlkit(text)
        return
    assert toml.get(put, PATH) == OURS and _others(put) == _others(text)
    removed = toml.remove(put, PATH)
    assert removed == text or (not text.endswith("\n") and removed in (text + "\n", text + "\r\n"))


@settings(max_examples=200, deadline=None)
@given(_documents(own=True))
@example("a.b = 1\nmcp_servers.backburner.x = 1\n# own line\nc = 2\n")
def test_replacing_and_removing_our_table_changes_nothing_else(text: str) -> None:
    for edit, ours in ((lambda: toml.put(text, PATH, OURS), OURS), (lambda: toml.remove(text, PATH), None)):
        try:
            edited = edit()
        except BadInput as error:
            assert "because of how it is written" in str(error) and not _is_kept_by_tomlkit(text)
            continue
        assert toml.get(edited, PATH) == ours and _others(edited) == _others(text)
        assert edited.count("# own line") == text.count("# own line")
        kept = iter(edited)
        assert all(character in kept for character in toml.remove(text, PATH))
