"""Lines of an ordinary day of development: which of them need approval, in a project that is trusted and in one that is not.

The tables are `everyday_lines*.tsv`: a class, where the line asks, and the line. Classes: `a` only looks, `t` runs the code of the project,
`e` edits files of the project, `k` should be decided by a person. All but the first table were written without knowing how the gate
decides; `tools` is about many languages, and `sessions` and `blind` are like what agents for code run all day, with many lines of class `k`.
"""

import os
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from approval.command_world import make_project, sandbox_verdict

_MAX_ASKS = {True: 0.03, False: 0.15}  # of the lines in the classes a, t and e


class Line(NamedTuple):
    kind: str
    asks: str  # never, new (only in a project that is not trusted), always
    text: str


def _read(name: str) -> list[Line]:
    rows = (Path(__file__).parent / name).read_text().splitlines()
    return [Line(kind, asks, _unescaped(text)) for kind, asks, text in (row.split("\t") for row in rows)]


def _unescaped(text: str) -> str:
    return "\\".join(piece.replace("\\n", "\n") for piece in text.split("\\\\"))


TABLES = {
    name: _read(name)
    for name in (
        "everyday_lines.tsv",
        "everyday_lines_more.tsv",
        "everyday_lines_tools.tsv",
        "everyday_lines_sessions.tsv",
        "everyday_lines_blind.tsv",
    )
}
_RUNS_TOOL = re.compile(r"(?:npx|bunx|npm exec --) (?:--no-install )?([\w@][\w@./-]*)")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with two commits, a key that git ignores, a branch to switch to, the main branch of a remote, and the tools that npx runs."""
    project = make_project(tmp_path_factory.mktemp("everyday"))
    for name in ("out", "notes"):
        (project / name).unlink()
    (project / "src/app.py").write_text("def handler(): ...\n")
    (project / "src/settings.py").write_text("DEBUG = True\n")
    for name in ("src/app/main.py", "certs/server.key"):
        (project / name).parent.mkdir()
        (project / name).write_text("x\n")
    (project / ".gitignore").write_text(".env\n*.key\n")
    (project / "node_modules/.bin").mkdir(parents=True)
    for tool in (tool for table in TABLES.values() for line in table if line.kind != "k" for tool in _RUNS_TOOL.findall(line.text)):
        (project / "node_modules/.bin" / os.path.basename(tool)).touch()
    environ = {"PATH": os.environ["PATH"], "HOME": str(project)}
    for words in (
        "add src",
        "-c user.name=a -c user.email=a@b commit -q -m two",
        "branch topic",
        "switch -q topic",
        "switch -q main",
        "update-ref refs/remotes/origin/main HEAD",
    ):
        subprocess.run(["git", "-C", str(project), *words.split()], check=True, env=environ, capture_output=True)
    return project


def _asks(project: Path, line: Line) -> str:
    environ = {"HOME": str(project.parent / "person")}  # without settings of its own
    asks = {trusted: sandbox_verdict(project, line.text, trusted=trusted, environ=environ).sandbox is None for trusted in (True, False)}
    return "always" if asks[True] else "new" if asks[False] else "never"


@pytest.mark.parametrize("table", TABLES)
def test_each_line_asks_where_the_table_says(project: Path, table: str) -> None:
    found = {line.text: _asks(project, line) for line in TABLES[table]}
    assert {line.text: found[line.text] for line in TABLES[table] if found[line.text] != line.asks} == {}


@pytest.mark.parametrize("table", TABLES)
def test_every_line_that_a_person_should_decide_asks(table: str) -> None:
    assert [line.text for line in TABLES[table] if line.kind == "k" and line.asks != "always"] == []


@pytest.mark.parametrize("trusted", [True, False], ids=["trusted", "new"])
@pytest.mark.parametrize("table", TABLES)
def test_few_everyday_lines_ask(table: str, trusted: bool) -> None:
    everyday = [line for line in TABLES[table] if line.kind != "k"]
    asking = [line.text for line in everyday if line.asks == "always" or (line.asks == "new" and not trusted)]
    assert len(asking) <= _MAX_ASKS[trusted] * len(everyday), asking
