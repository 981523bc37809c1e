"""Which program a name runs: PATH, links, programs of the project, and the directories of the line."""

import os
from pathlib import Path

import pytest

from approval.command_world import PATH, make_project_with_traps, verdict

LINES = [
    ("tools/ls README.md", "a link in the project with the name of a harmless program"),
    ("./bin/ls", "a program of the project"),
    ("cd src/deep && ../../bin/ls", "a program of the project, from another directory"),
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project_with_traps(tmp_path)


@pytest.mark.parametrize(("line", "reason"), LINES, ids=[repr(line) for line, _ in LINES])
def test_a_program_of_the_project_with_a_harmless_name_requires_approval(project: Path, line: str, reason: str) -> None:
    assert verdict(project, line).decision == "ask", reason or "not harmless"


def make_program(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)


def test_a_relative_program_path_is_resolved_from_every_directory_of_the_line(project: Path) -> None:
    """From the first directory the path leads to the `ls` of the system, from the second to the one of the project."""
    up = len(project.parts) - 1
    folder = project.joinpath(*["d"] * (up - 1))
    folder.mkdir(parents=True)
    line = f"cd {os.path.relpath(folder, project)} && {'../' * up}bin/ls"
    assert verdict(project, line).decision == "ask"
    line = f"cd {os.path.relpath(folder, project)} && {'../' * (up - 1)}bin/ls"
    assert verdict(project, line).decision == "ask"


def test_cd_to_the_parent_of_a_linked_directory_follows_the_link_name(project: Path) -> None:
    """The shell goes up from the location of a link, not from its target."""
    (project / "a" / "b" / "c").mkdir(parents=True)
    (project / "up").symlink_to("a/b/c")
    assert verdict(project / "a" / "b", "cd ../../up && cd .. && cat ../other").decision == "ask"


@pytest.mark.parametrize("command", [("true",), ("echo", "x"), ("time", "ls"), "time ls", "env echo x", "xargs echo"])
def test_a_program_of_the_project_with_the_name_of_a_builtin_requires_approval(project: Path, command: str | tuple[str, ...]) -> None:
    for name in ("true", "echo", "time"):
        make_program(project / "bin" / name)
    assert verdict(project, command, environ={"PATH": f"{project}/bin:{PATH}"}).decision == "ask"


def test_a_relative_path_entry_is_resolved_from_every_directory_of_the_line(project: Path) -> None:
    make_program(project / "src" / "near" / "ls")
    assert verdict(project, "cd src && ls", environ={"PATH": f"near:{PATH}"}).decision == "ask"


def test_a_program_path_is_checked_after_links_are_resolved(project: Path, tmp_path: Path) -> None:
    deep = tmp_path / "outside" / "a" / "b" / "c" / "d"
    deep.mkdir(parents=True)
    planted = tmp_path / "outside" / "usr" / "bin" / "ls"
    make_program(planted)
    (project / "link").unlink()
    (project / "link").symlink_to(deep)
    for name in ("link/../../../../usr/bin/ls", str(planted), "/usr/bin/../bin/ls", "../outside/usr/bin/ls"):
        assert verdict(project, name).decision == "ask", name
    assert verdict(project, "/bin/ls").decision == "allow"
    assert verdict(project, "/usr/bin/ls").decision == "allow"


def test_a_program_outside_the_system_directories_requires_approval(project: Path, tmp_path: Path) -> None:
    planted = tmp_path / "elsewhere" / "ls"
    make_program(planted)
    assert verdict(project, ("ls",), environ={"PATH": f"{planted.parent}:{PATH}"}).decision == "ask"


@pytest.mark.parametrize(
    "command", [("npm", "--version"), ("python3", "--version"), ("node", "--help"), ("go", "version"), ("uv", "--version")]
)
def test_a_program_in_the_project_is_project_code_with_any_arguments(project: Path, command: tuple[str, ...]) -> None:
    tools = project / ".venv" / "bin"
    make_program(tools / command[0])
    environ = {"PATH": f"{tools}:{PATH}"}
    found = verdict(project, command, environ=environ)
    assert (found.decision, found.trust_would_do) == ("ask", True)
    assert verdict(project, command, environ=environ, trusted=True).decision == "allow"
