"""Projects with real files, and a helper that checks a command in them."""

import hashlib
import shlex
import zlib
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from backburner.approval.policy import Rule, SandboxSettings, Verdict, judge, judge_for_sandbox
from backburner.core.grants import Grant
from backburner.core.sandbox import Level, Support
from backburner.services.gate import Gate
from backburner.system.command_context import LocalCommandContext, project_for
from backburner.testing.records import request

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENVIRON = {"PATH": PATH, "HOME": "/root"}
LISTED_HOST = "docs.example.org"


def make_project(root: Path) -> Path:
    """Create a git project with sources, a secret, links to files outside, and a program with the name of a system program."""
    project = root / "project"
    for folder in (".git/hooks", ".git/refs/heads", "src", "tests", "build", "bin"):
        (project / folder).mkdir(parents=True)
    (project / ".git/config").write_text("[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n")
    _commit_nothing(project / ".git")
    (project / ".gitignore").write_text(".env\n")
    for name in ("README.md", "LICENSE", "Makefile", "package.json", "setup.py", "src/main.py", "data.csv", ".env", "run.sh", "bin/ls"):
        (project / name).write_text("x\n")
    for name in ("run.sh", "bin/ls"):
        (project / name).chmod(0o755)
    (project / "out").symlink_to("/etc")
    (project / "notes").symlink_to("/etc/passwd")
    return project


def _commit_nothing(git: Path) -> None:
    """Give a repository a branch with one commit without files. It takes less time than to run git."""
    person = "a <a@b> 0 +0000"
    text = f"tree 4b825dc642cb6eb9a060e54bf8d69288fbee4904\nauthor {person}\ncommitter {person}\n\none\n".encode()
    content = b"commit %d\0" % len(text) + text
    name = hashlib.sha1(content, usedforsecurity=False).hexdigest()
    (git / "objects" / name[:2]).mkdir(parents=True)
    (git / "objects" / name[:2] / name[2:]).write_bytes(zlib.compress(content))
    (git / "refs/heads/main").write_text(f"{name}\n")
    (git / "HEAD").write_text("ref: refs/heads/main\n")


def make_project_with_traps(root: Path) -> Path:
    """Create a git project with hidden secrets, links to directories outside, and programs and links with the names of system programs."""
    project = root / "project"
    for folder in (".git/hooks", "src/deep", "lib", "bin", "tools", "backup/src", "linked", "conf"):
        (project / folder).mkdir(parents=True)
    (project / ".git/config").write_text("[core]\n\tbare = false\n")
    for name in ("README.md", "LICENSE", "Makefile", "run.sh", "run.py", "other.mk", "x.awk"):
        (project / name).write_text("hello\n")
    for name in ("src/main.py", "src/run.sh", "src/Makefile", "lib/main.py", "backup/src/main.py"):
        (project / name).write_text("print(1)\n")
    for name in (".env", "conf/.env", ".env-production"):
        (project / name).write_text("KEY=topsecret\n")
    (project / "bin/ls").write_text("#!/bin/sh\n")
    for name in ("run.sh", "src/run.sh", "bin/ls"):
        (project / name).chmod(0o755)
    (project / "out").symlink_to("/etc")
    (project / "linked/etc").symlink_to("/etc")
    (project / "link").symlink_to("src/deep")
    (project / "tools/ls").symlink_to("/bin/rm")
    return project


def verdict(
    cwd: Path,
    command: str | tuple[str, ...],
    *,
    argv: bool = False,
    trusted: bool = False,
    rules: tuple[Rule, ...] = (),
    env: dict[str, str] | None = None,
    environ: dict[str, str] | None = None,
    hosts: tuple[str, ...] = (LISTED_HOST,),
    ours: bool = True,
) -> Verdict:
    """Check a command in `cwd`. A text is a shell line, or a command without a shell if `argv` is true; a tuple is a command without a shell.

    `env` are variables given with the task, `environ` are inherited variables, and `ours` is false if another program starts the command.
    """
    shell = isinstance(command, str) and not argv
    words = command if isinstance(command, tuple) else (command,) if shell else tuple(shlex.split(command))
    inherited = {**ENVIRON, **(environ or {})}
    submission = request(words, str(cwd), inherited, shell=shell, env=env or {})
    return judge(submission, context_for(cwd, {**inherited, **(env or {})}, hosts, ours=ours), rules, trusted=trusted)


def sandbox_verdict(
    cwd: Path,
    command: str | tuple[str, ...],
    *,
    trusted: bool = False,
    level: Level = Level.FULL,
    rules: tuple[Rule, ...] = (),
    env: dict[str, str] | None = None,
    environ: dict[str, str] | None = None,
    stdin: bool = False,
    connect: tuple[int, ...] = (),
) -> Verdict:
    """Check a command that Backburner would start itself, on a machine that offers this kind of sandbox. A text is a shell line.

    `env` are variables given with the task, `environ` are inherited variables, and `connect` are the ports that the project may use.
    """
    words = (command,) if isinstance(command, str) else command
    inherited = {**ENVIRON, **(environ or {})}
    submission = request(words, str(cwd), inherited, shell=isinstance(command, str), env=env or {})
    submission = submission.with_spec(command=submission.spec.command._replace(stdin=stdin))
    project = project_for(str(cwd), str(cwd), (), ENVIRON)
    context = LocalCommandContext(str(cwd), {**inherited, **(env or {})}, (LISTED_HOST,), project=project, confined=True)
    is_full = level is Level.FULL
    settings = SandboxSettings(Support(level, "/usr/bin/bwrap" if is_full else None, is_full, is_full), "/root", connect)
    return judge_for_sandbox(submission, context, rules, settings, trusted=trusted)


def context_for(
    cwd: Path | str, environ: dict[str, str], hosts: Iterable[str] = (), opened: Path | str | None = None, *, ours: bool = True
) -> LocalCommandContext:
    """Return the context of a command in `cwd`, for a session opened in `opened` (default: `cwd`).

    `ours` is false if another program starts the command.
    """
    project = project_for(str(cwd), str(opened or cwd), (), environ)
    return LocalCommandContext(str(cwd), environ, hosts, project=project, clean=ours)


class _Permissions:
    """A store with permanent permissions for these commands in a project."""

    def __init__(self, project: Path, commands: tuple[tuple[str, ...], ...]) -> None:
        self._project, self._commands = str(project), commands

    def grants(self) -> list[Grant]:
        return [Grant(number, "always", self._project, command, "cli", 0) for number, command in enumerate(self._commands)]


def gate_with_permissions(project: Path, *commands: tuple[str, ...]) -> Gate:
    """Return a gate without rules, with permanent permissions for these commands in a project."""
    settings = {"sandbox.level": "none", "sandbox.connect": (), "sandbox.read": ()}
    config = SimpleNamespace(current=SimpleNamespace(hosts=(), rules=(), text=settings.get, listed=settings.get))
    ledger = SimpleNamespace(failed_in_sandbox=lambda *_: ())
    return Gate(cast("Any", _Permissions(project, commands)), cast("Any", ledger), cast("Any", None), cast("Any", config), "/nowhere")
