"""The project speaks plain English: retired names and phrases do not come back.

A newcomer should not have to learn a private vocabulary. Each entry was once a name or a phrase here; docs/concepts.md has the words that
replaced them. Ordinary meanings are not affected: HTTP POST, a of the alphabet, an agent's turn.
"""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from backburner.core.settings import SETTINGS

ROOT = Path(__file__).parent.parent
SOURCES = sorted(path for folder in ("src", "tests", "bench", "tests_agents", "tests_clients") for path in (ROOT / folder).rglob("*.py"))
DOCS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]

RETIRED_NAMES = frozenset(
    [
        "Aloud",
        "Attendance",
        "Awaited",
        "Company",
        "Desk",
        "Dialogue",
        "Ear",
        "Face",
        "Happening",
        "Letter",
        "Orphans",
        "OutsideAgent",
        "Outward",
        "Parcel",
        "Parked",
        "PersonsTurn",
        "Room",
        "Sequel",
        "Signs",
        "Surroundings",
        "Timetable",
        "Witness",
        "aloud",
        "asked_by",
        "attendance",
        "bell",
        "bells",
        "bury",
        "buried",
        "complaint",
        "dead_letters",
        "dialects",
        "dialogue",
        "dissect",
        "door",
        "doors",
        "fallen",
        "gate_hash",
        "gatehouse",
        "git_traps",
        "handed_on",
        "hire",
        "house",
        "if_known",
        "known_as",
        "last_present",
        "last_words",
        "make_bells",
        "move_gate",
        "outward",
        "owed",
        "owing",
        "over_all",
        "over_day",
        "parcel",
        "park",
        "parked",
        "post_wanted",
        "revive",
        "ring_all",
        "ring_engine",
        "ring_followers",
        "ring_process",
        "seats",
        "sequel",
        "staff",
        "stands_aside",
        "stop_asked",
        "takeover",
        "territory",
        "timetable",
        "timetables",
        "tombstones",
        "unpark",
        "untold_parents",
        "used_up",
        "waits_on",
        "witness",
        "_BREATH_SECONDS",
        "_DEAF_SECONDS",
        "_FLEETING",
        "_LOOK_SECONDS",
        "_MEET_SECONDS",
        "_PULSE_SECONDS",
        "_SEATS",
        "_rung",
        "_surely",
    ]
)

RETIRED_PHRASES = [
    r"the house\b(?! style)",
    r"\bdoors?\b",
    r"\bthe task of then\b",
    r"\bof then\b",
    r"\bsaid for good\b",
    r"\bout of turn\b",
    r"\bthe dead\b",
    r"\bstands? aside\b",
    r"\bstanding aside\b",
    r"\ba (person's )?yes\b",
    r"\bsay yes\b",
    r"\bstanding tasks?\b",
    r"\b(post|agent) host\b",
    r"\bdead letters?\b",
    r"(?<!`)\bbells?\b(?!/)",
    r"\bowed\b",
    r"\bwhom to tell\b",
    r"\bsuch a one\b",
    r"\bmade up for\b",
    r"\bin front of (a|the) prompt\b",
    r"\btalk on with\b",
    r"\bgone on with\b",
    r"\bbe the engine\b",
    r"\bat the most\b",
    r"\bnothing was said\b",
    r"\bthe settings of before\b",
    r"\bmade a mistake\b",
    r"\bbury|\bburied\b",
    r"\btombstones?\b",
]


@functools.cache
def strings() -> list[tuple[str, str]]:
    """Every string in the source and every line of the documents, with where it is."""
    found = [(f"{path.relative_to(ROOT)}:{number}", line) for path in DOCS for number, line in enumerate(path.read_text().splitlines(), 1)]
    for path in sorted((ROOT / "src").rglob("*.py")):
        if path.name == "migrations.py":  # it has names of earlier ledgers
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append((f"{path.relative_to(ROOT)}:{node.lineno}", node.value))
    return found


def defined_names(path: Path) -> Iterator[tuple[str, int]]:
    """Every name that a file defines, with its line: modules, classes, functions, parameters, variables, attributes, imports."""
    yield path.stem, 1
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.name, node.lineno
            case ast.arg():
                yield node.arg, node.lineno
            case ast.Name(ctx=ast.Store()):
                yield node.id, node.lineno
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr, node.lineno
            case ast.alias():
                yield node.asname or node.name, node.lineno


def test_no_retired_name_is_defined() -> None:
    found = [f"{path.relative_to(ROOT)}:{line}: {name}" for path in SOURCES for name, line in defined_names(path) if name in RETIRED_NAMES]
    assert not found, "\n".join(found)


def test_no_setting_has_a_retired_name() -> None:
    sections = {name.split(".")[0] for name in SETTINGS}
    assert not sections & {"post", "hooks"} and not [name for name in SETTINGS if name.split(".")[1] in RETIRED_NAMES]


@pytest.mark.parametrize("phrase", RETIRED_PHRASES)
def test_no_document_help_text_or_error_has_a_retired_phrase(phrase: str) -> None:
    """docs/reference.md has every help text, setting and error; the strings in the source have the rest."""
    pattern = re.compile(phrase, re.IGNORECASE)
    found = [f"{where}: {text.strip()[:120]!r}" for where, text in strings() if pattern.search(text)]
    assert not found, "\n".join(found)
