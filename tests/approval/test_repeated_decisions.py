"""A gate that is asked the same again answers from memory, but not after anything has changed that it had looked at."""

from collections.abc import Callable
from pathlib import Path

import pytest

from approval.command_world import PATH, gate_with_permissions, make_project_with_traps
from backburner.core.models import Submission
from backburner.testing.records import request


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project_with_traps(tmp_path)


def _line(project: Path, line: str, path: str = PATH) -> Submission:
    return request((line,), str(project), {"PATH": path, "HOME": str(project.parent)}, shell=True)._replace(opened=str(project))


def _program(folder: Path, name: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("#!/bin/sh\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize("line", ["true", "echo hello", "cat README.md", "python3 run.py", "rm -rf build"])
def test_the_same_question_gets_the_same_verdict_without_judging_again(project: Path, line: str) -> None:
    gate = gate_with_permissions(project)
    assert gate.judge(_line(project, line)) is gate.judge(_line(project, line))


@pytest.mark.parametrize(
    ("line", "change"),
    [
        ("cat notes", lambda project: (project / "notes").symlink_to("/etc/hostname")),
        ("echo a > made", lambda project: (project / "made").write_text("")),
        ("frob", lambda project: _program(project / "bin", "frob")),
        ("wc README.md", lambda project: _program(project / "bin", "wc")),
        ("cat sub/a", lambda project: (project / "sub").symlink_to("/etc")),
        ("cat *.txt", lambda project: (project / "x.txt").symlink_to("/etc/hostname")),
        ("git status", lambda project: (project / ".git" / "config").write_text("[core]\n\tfsmonitor = ./x\n")),
        ("grep -r a src", lambda project: (project / "src" / "server.pem").write_text("a")),
    ],
)
def test_a_change_of_the_machine_is_judged_like_by_a_new_gate(project: Path, line: str, change: Callable[[Path], object]) -> None:
    submission = _line(project, line, f"{project}/bin:{PATH}")
    gate = gate_with_permissions(project)
    before = gate.judge(submission, ours=False)
    change(project)
    after = gate.judge(submission, ours=False)
    assert after != before and after == gate_with_permissions(project).judge(submission, ours=False)


def test_a_folder_that_becomes_writable_for_everyone_is_no_project_any_more(project: Path) -> None:
    gate, submission = gate_with_permissions(project), _line(project, "cat README.md")
    before = gate.judge(submission)
    project.chmod(0o777)
    after = gate.judge(submission)
    assert after != before and after == gate_with_permissions(project).judge(submission)


def test_other_variables_arguments_and_permissions_are_other_questions(project: Path) -> None:
    gate = gate_with_permissions(project, ("frob", "a"))
    assert gate.judge(request(("frob", "a"), str(project), {"PATH": PATH})).decision == "allow"
    assert gate.judge(request(("frob", "a"), str(project), {"PATH": PATH}, env={"LD_PRELOAD": "./x"})).decision == "ask"
    assert gate.judge(request(("frob", "a", "b"), str(project), {"PATH": PATH})).decision == "ask"
    assert gate.judge(request(("frob", "a"), str(project), {"PATH": PATH}), confined=True).decision == "ask"
    assert gate.judge(request(("frob", "a"), str(project), {"PATH": PATH})).decision == "allow"


@pytest.mark.parametrize("line", ["true", "sh run.sh", "cd src && make"])
def test_an_approval_gets_the_same_verdict_and_fingerprint_as_asking_for_each(project: Path, line: str) -> None:
    gate, submission = gate_with_permissions(project), _line(project, line)
    assert gate.judge_for_approval(submission) == (gate.judge(submission), gate.fingerprint(submission))
    (project / "run.sh").write_text("other\n")
    assert gate.judge_for_approval(submission) == (gate.judge(submission), gate_with_permissions(project).fingerprint(submission))
