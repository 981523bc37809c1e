"""Other people's TOML is edited as text: our table comes and goes, all the rest stays byte for byte and means the same."""

import tomllib

import pytest

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
    ],
)
def test_what_is_put_in_and_taken_out_again_leaves_no_trace(text: str) -> None:
    before = tomllib.loads(text.removeprefix("\ufeff"))
    put = toml.put(text, PATH, OURS)
    after = tomllib.loads(put.removeprefix("\ufeff"))
    servers = after["mcp_servers"]
    assert servers.pop("backburner") == OURS
    assert servers == before.get("mcp_servers", {})
    assert repr({**after, "mcp_servers": 0}) == repr({**before, "mcp_servers": 0})
    assert toml.put(put, PATH, OURS) is put
    assert toml.remove(put, PATH) == text


def test_it_comes_as_a_table_of_its_own_at_the_end() -> None:
    assert toml.put("a = 1\n", PATH, OURS) == "a = 1\n\n" + BLOCK
    assert toml.put("a = 1", PATH, OURS) == "a = 1\n\n" + BLOCK
    assert toml.put("a = 1\r\n", PATH, OURS) == ("a = 1\n\n" + BLOCK).replace("\n", "\r\n")


def test_an_older_table_of_ours_is_replaced_where_it_stands() -> None:
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
def test_ours_is_known_in_every_way_to_write_it(ours: str) -> None:
    text = "a = 1\n" + ours + "[z]\nb = 2\n"
    assert tomllib.loads(toml.put(text, PATH, OURS)) == {"a": 1, "mcp_servers": {"backburner": OURS}, "z": {"b": 2}}
    left = tomllib.loads(toml.remove(text, PATH))
    assert left.pop("mcp_servers", {}) == {} and left == {"a": 1, "z": {"b": 2}}


def test_of_an_inline_table_only_our_member_goes() -> None:
    for text in (
        "mcp_servers = { backburner = { a = ',' }, x = { b = '}' } }\n",
        "mcp_servers = { x = { b = '}' }, backburner = { a = ',' } }\n",
        "mcp_servers = { x = { b = '}' }, backburner.a = ',' }\n",
    ):
        assert toml.remove(text, PATH) == "mcp_servers = { x = { b = '}' } }\n"


def test_comments_beside_ours_stay() -> None:
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
def test_what_cannot_be_read_or_has_no_place_for_us_is_refused(text: str, says: str) -> None:
    with pytest.raises(BadInput, match=f"^x.toml: {says}"):
        toml.put(text, PATH, OURS, "x.toml")


def test_what_a_person_added_to_our_table_can_be_written_again() -> None:
    table = {**OURS, "env": {"A b": "c", "n": 1.5}, "empty": {}, "since": tomllib.loads("a = 2026-01-01")["a"]}
    assert tomllib.loads(toml.put("", PATH, table))["mcp_servers"]["backburner"] == table
