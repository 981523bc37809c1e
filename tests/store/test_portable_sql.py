"""The SQL of the repositories contains nothing that only one database understands; only the adapter may."""

import ast
import re
from pathlib import Path

import pytest

import backburner.store

FOLDER = Path(backburner.store.__file__ or "").parent
_ADAPTERS = (
    "sqlite.py",
    "sqlite_constraints.py",
    "postgres.py",
    "postgres_dispatch.py",
    "postgres_listener.py",
    "postgres_requests.py",
    "postgres_roles.py",
    "postgres_schema.py",
    "migrations.py",
    "__init__.py",
)
SHARED = [path for path in sorted(FOLDER.glob("*.py")) if path.name not in _ADAPTERS]
NOT_PORTABLE = {
    "IS between values": r"\bIS (NOT )?['?]",
    "a parameter whose type cannot be known": r"(?<![=<>+(] )\? IS (NOT )?NULL",
    "no limit as a negative one": r"LIMIT -",
    "JSON inside SQL": r"\bjson_\w+",
    "a hint for the planner": r"CROSS JOIN|NOT INDEXED|INDEXED BY",
    "the order of text": r"(?<!<)>=? '|<=? '|BETWEEN '",
    "columns that are not named": r"SELECT \*",
    "an empty list": r"IN \(\)",
    "words of SQLite": r"\bPRAGMA\b|\bAUTOINCREMENT\b|\browid\b|INSERT OR |\bifnull\b|\binstr\b|\bGLOB\b|sqlite_",
    "the count of another statement": r"\bchanges\(\)",
    "a boolean compared with a number": r"NULL\) = [01]",
    "a place for a value inside a text": r"= '[^' ]*\?[^' ]*'",
}


def texts(path: Path) -> list[str]:
    """Every string of a module, f-strings as they are written."""
    tree = ast.parse(path.read_text())
    return [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)] + [
        node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def test_the_checked_modules_include_the_repositories() -> None:
    assert {"tasks.py", "run_queue.py", "run_endings.py", "rows.py"} <= {path.name for path in SHARED}
    assert any("UPDATE runs SET" in text for path in SHARED for text in texts(path))


@pytest.mark.parametrize("what", NOT_PORTABLE)
def test_no_sql_is_specific_to_one_database(what: str) -> None:
    found = [f"{path.name}: {text}" for path in SHARED for text in texts(path) if re.search(NOT_PORTABLE[what], text)]
    assert found == []


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("IS between values", "waits_on IS 'budget'"),
        ("a parameter whose type cannot be known", "WHERE ? IS NULL OR project = ?"),
        ("no limit as a negative one", "LIMIT -1"),
        ("JSON inside SQL", "IN (SELECT value FROM json_each(?))"),
        ("a hint for the planner", "FROM fallen f CROSS JOIN runs"),
        ("the order of text", "channel >= 'to:' AND channel < 'to:~'"),
        ("the count of another statement", "SELECT changes()"),
        ("a boolean compared with a number", "(due_at IS NOT NULL) = 0"),
    ],
)
def test_each_pattern_finds_an_example(what: str, text: str) -> None:
    assert re.search(NOT_PORTABLE[what], text)


@pytest.mark.parametrize(
    ("library", "adapter"),
    [
        ("apsw", {"sqlite.py"}),
        ("psycopg", {"postgres.py", "postgres_dispatch.py", "postgres_listener.py", "postgres_roles.py", "postgres_schema.py"}),
    ],
)
def test_only_the_adapter_imports_the_database_library(library: str, adapter: set[str]) -> None:
    imports = rf"^\s*(import|from) {library}"
    assert {path.name for path in FOLDER.glob("*.py") if re.search(imports, path.read_text(), re.M)} == adapter
