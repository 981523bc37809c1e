"""Questions to a registry about packages: they run in an empty folder with network, so that only the names of the packages leave the machine."""

from pathlib import Path

import pytest

from approval.command_world import PATH, make_project, sandbox_verdict
from backburner.core.sandbox import Level, Network, View

LOOKS_UP = [
    "npm view react version",
    "npm view @types/node@22 --json",
    "npm info lodash | head -3",
    "pnpm view react | jq .version",
    "pip index versions requests",
    "pip list --outdated --format=json",
    "python3 -m pip list -o",
    "cargo search serde --limit 3",
]
ASKS = [
    "npm view ../x",
    "npm view foo/bar",
    "npm view git+https://example.org/x",
    "npm view https://example.org/x.tgz",
    "npm view react --registry=http://example.org",
    "npm view $(cat README.md)",
    'npm view "$NAME"',
    "npm view react > out.json",
    "npm view react | tee out.json",
    "npm view react | sh",
    "npm view react && npm test",
    "cat README.md; npm view react",
    "cd src && npm view react",
    "npm_config_registry=http://example.org npm view react",
    "npm view react; gh pr list",
    "npm audit",
    "npm search react",
    "pip list -o --index-url http://example.org",
    "pip index versions requests -i http://example.org",
    "pip download requests",
    "cargo search serde --registry x",
    "npm view " + "ab-" * 30,
    "npm view a-" + "0123456789abcdef",
    "pip index versions " + "Zm9vYmFy" * 4,
    "cargo search " + "x9" * 16,
    "npm view react --registry example.org",
    "npm view react --no-strict-ssl",
    "npm view react --script-shell sh",
    "npm view react --userconfig rc",
    "npm view react -g",
    "npm view -g react",
    "npm view react ..",
    "cargo search -Zx",
    "cargo search --offline",
    "pip list -o -i example.org",
    "pip list -o --path x",
    "pip index versions -r",
    "for name in a b; do npm view $name; done",
    "npm view react@$VERSION",
    "npm view re*",
    "npm view react | jq -r '.x' README.md",
]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "person").mkdir()
    return tmp_path / "person"


@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize("line", LOOKS_UP)
def test_only_the_names_of_packages_leave_the_machine(tmp_path: Path, home: Path, line: str, trusted: bool) -> None:
    found = sandbox_verdict(make_project(tmp_path), line, trusted=trusted, environ={"HOME": str(home)}).sandbox
    assert found is not None and found.project is None
    assert (found.network, found.view, found.sockets, found.connect) == (Network.OPEN, View.READ_ONLY, (), ())
    assert found.only_known_programs


@pytest.mark.parametrize("line", ASKS)
def test_other_questions_need_approval(tmp_path: Path, home: Path, line: str) -> None:
    assert sandbox_verdict(make_project(tmp_path), line, trusted=True, environ={"HOME": str(home)}).sandbox is None


@pytest.mark.parametrize(
    ("line", "settings"),
    [
        ("npm view react", "person/.npmrc"),
        ("npm view react", "project/.npmrc"),
        ("pip list -o", "person/.config/pip/pip.conf"),
        ("pnpm view react", "project/pnpm-workspace.yaml"),
        ("pip list -o", "project/.venv/pip.conf"),
        ("cargo search serde", "project/.cargo/config.toml"),
    ],
)
def test_another_registry_needs_approval(tmp_path: Path, home: Path, line: str, settings: str) -> None:
    project = make_project(tmp_path)
    (tmp_path / settings).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / settings).touch()
    assert sandbox_verdict(project, line, trusted=True, environ={"HOME": str(home)}).sandbox is None


@pytest.mark.parametrize(
    ("line", "variable"),
    [
        ("pip list -o", "PIP_INDEX_URL"),
        ("pip list -o", "PIP_FIND_LINKS"),
        ("npm view react", "npm_config_userconfig"),
        ("cargo search x", "CARGO_HOME"),
    ],
)
def test_a_registry_in_the_environment_needs_approval(tmp_path: Path, home: Path, line: str, variable: str) -> None:
    environ = {"HOME": str(home), variable: "http://example.org"}
    assert sandbox_verdict(make_project(tmp_path), line, trusted=True, environ=environ).sandbox is None


def test_a_program_of_the_project_needs_approval(tmp_path: Path, home: Path) -> None:
    project = make_project(tmp_path)
    (project / "bin/pip").write_text("x\n")
    (project / "bin/pip").chmod(0o755)
    environ = {"HOME": str(home), "PATH": f"{project}/bin:{PATH}"}
    assert sandbox_verdict(project, "pip list -o", trusted=True, environ=environ).sandbox is None


def test_with_landlock_alone_it_needs_approval(tmp_path: Path, home: Path) -> None:
    found = sandbox_verdict(make_project(tmp_path), "npm view react", trusted=True, level=Level.PARTIAL, environ={"HOME": str(home)})
    assert found.sandbox is None
