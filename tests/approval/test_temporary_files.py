"""Temporary files: a sandbox has its own, so what a line has created itself can be read and deleted, whatever the machine has at this path."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from approval.command_world import make_project, sandbox_verdict
from backburner.core.sandbox import Level

RUNS = [
    "make > {there} 2>&1; tail -5 {there}",
    "npm run build &> {there}; grep -c x < {there}",
    "make | tee {there} | tail; cat {there}",
    "touch {there} && cat {there}",
    "cp README.md {there} && python3 {there}",
    "mkdir -p {folder} && cp -r src {folder} && cat {folder}/src/main.py && rm -rf {folder}",
    'd=$(mktemp -d) && cp -r src "$d" && rm -rf "$d"',
    'd=$(mktemp -d); ls "$d/x"; rm -r "$d/x" "$d"',
]
ASKS = [
    "tail -5 {there}",
    "tail -5 {there}; make > {there}",
    "cat {there} > {there}",
    "make >> {there}; cat {there}",
    "make | tee -a {there}; cat {there}",
    "rm -rf {folder}",
    "rm -rf /tmp/everyday-other",
    "mkdir -p {folder} && rm -rf {folder} /tmp/everyday-other",
    "mkdir -p /tmp && rm -rf /tmp",
    "mkdir -p /tmp && rm -rf {folder}",
    "mkdir -p {folder}/x && rm -rf {folder}",
    "mkdir -p {folder} && rm -rf {folder}/../everyday-other",
    "rm -rf /tmp/*",
    "mkdir -p src && rm -rf src",
    'd=$(mktemp -d); d=/tmp; rm -rf "$d"',
    'd=$(mktemp -d -p ~); rm -rf "$d"',
]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_project(tmp_path_factory.mktemp("temporary"))


@pytest.fixture
def folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        (Path(folder) / "there").write_text("x")
        yield folder


@pytest.mark.parametrize("line", RUNS)
def test_what_the_line_has_created_is_its_own(project: Path, folder: str, line: str) -> None:
    line = line.format(folder=folder, there=f"{folder}/there")
    found = sandbox_verdict(project, line, trusted=True)
    assert found.sandbox, found.reasons
    assert sandbox_verdict(project, line, trusted=True, level=Level.PARTIAL).sandbox is None, "there it could not write"


@pytest.mark.parametrize("line", ASKS)
def test_other_temporary_files_ask(project: Path, folder: str, line: str) -> None:
    assert sandbox_verdict(project, line.format(folder=folder, there=f"{folder}/there"), trusted=True).sandbox is None
