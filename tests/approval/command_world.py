"""A project to judge commands in: real files, so that what exists and what is linked is as it is."""

import os
from collections.abc import Iterable
from pathlib import Path

from backburner.approval.policy import Rule, Verdict, judge
from backburner.system.command_context import LocalCommandContext, project_for
from backburner.testing.records import request

ENVIRON = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/root"}


def make_project(root: Path) -> Path:
    """A git project with sources, a secret, a link that leads out, and a program that borrows a name."""
    project = root / "project"
    for folder in (".git/hooks", ".git/refs/heads", "src", "tests", "build", "bin"):
        (project / folder).mkdir(parents=True)
    (project / ".git/config").write_text("[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n")
    (project / ".git/refs/heads/main").write_text("0" * 40 + "\n")
    for name in ("README.md", "LICENSE", "Makefile", "package.json", "setup.py", "src/main.py", "data.csv", ".env", "run.sh", "bin/ls"):
        (project / name).write_text("x\n")
    for name in ("run.sh", "bin/ls"):
        (project / name).chmod(0o755)
    (project / "out").symlink_to("/etc")
    (project / "notes").symlink_to("/etc/passwd")
    return project


def verdict(
    project: Path,
    line: str,
    *,
    argv: bool = False,
    trusted: bool = False,
    rules: tuple[Rule, ...] = (),
    env: dict[str, str] | None = None,
    hosts: tuple[str, ...] = (),
    ours: bool = True,
) -> Verdict:
    """What the gate says to a shell line, or to its words as an argv."""
    import shlex

    command = tuple(shlex.split(line)) if argv else (line,)
    submission = request(command, str(project), ENVIRON, shell=not argv, env=env or {})
    return judge(submission, world_of(project, {**ENVIRON, **(env or {})}, hosts, ours=ours), rules, trusted=trusted)


def world_of(
    cwd: Path | str, environ: dict[str, str], hosts: Iterable[str] = (), opened: Path | str | None = None, *, ours: bool = True
) -> LocalCommandContext:
    """The machine as a command in `cwd` finds it, for a session that was opened there or in `opened`; `ours` where Backburner starts it."""
    project = project_for(str(cwd), str(opened or cwd), (), environ)
    return LocalCommandContext(str(cwd), environ, hosts, project=project, clean=ours)


def is_root() -> bool:
    return os.getuid() == 0
