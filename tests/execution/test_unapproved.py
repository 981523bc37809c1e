"""Commands that run without approval, through the real interfaces: environment, git, files and working directory."""

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import HomeCli, wait_until
from mcp_client import Raw

from backburner import TaskRunner, TaskStorage

GIT = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]


def git(folder: Path, *words: str) -> None:
    subprocess.run([*GIT, "-C", str(folder), *words], check=True, capture_output=True)


@pytest.fixture
def repository(home_cli: HomeCli) -> Path:
    """The project as a git repository with one commit, and an existing home directory of the user."""
    Path(home_cli.environ["HOME"]).mkdir()
    git(home_cli.cwd, "init", "-q")
    (home_cli.cwd / "a.txt").write_text("one\n")
    git(home_cli.cwd, "add", "a.txt")
    git(home_cli.cwd, "commit", "-q", "-m", "first")
    (home_cli.cwd / "a.txt").write_text("two\n")
    return home_cli.cwd


def test_an_approved_command_gets_the_environment_of_the_caller(home_cli: HomeCli) -> None:
    home_cli.environ |= {"TOKEN_FOR_IT": "given"}
    task_id = home_cli.run("sh", "-c", "echo $TOKEN_FOR_IT $GIT_CONFIG_GLOBAL")
    home_cli.ok("wait", task_id)
    assert home_cli.log(task_id).splitlines()[-1] == b"given"


def test_a_library_in_the_working_directory_is_not_loaded(home_cli: HomeCli, tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        planted = home_cli.cwd / "libselinux.so.1"
        planted.write_bytes(b"not a library")  # `ls` would fail to start with it
    else:
        source = tmp_path / "x.c"
        source.write_text(f'#include <stdlib.h>\n__attribute__((constructor)) void f(void) {{ system("touch {tmp_path}/canary"); }}\n')
        subprocess.run([compiler, "-shared", "-fPIC", "-o", str(home_cli.cwd / "libselinux.so.1"), str(source)], check=True)
    done = home_cli.cli("run", "--wait", "--", "ls", env={"LD_LIBRARY_PATH": f":{home_cli.cwd}"})
    assert done.returncode == 0 and "libselinux.so.1" in done.stdout
    assert not (tmp_path / "canary").exists()


SETTINGS = {
    "fsmonitor": "[core]\n\tfsmonitor = {run}\n",
    "hooksPath": "[core]\n\thooksPath = {folder}\n",
    "pager": "[core]\n\tpager = {run}\n[pager]\n\tlog = {run}\n",
    "external diff": "[diff]\n\texternal = {run}\n",
    "textconv": '[diff "x"]\n\ttextconv = {run}\n',
    "diff command": '[diff "x"]\n\tcommand = {run}\n',
    "filter": '[filter "x"]\n\tclean = {run}\n\tsmudge = {run}\n',
    "process filter": '[filter "x"]\n\tprocess = {run}\n',
    "alias": "[alias]\n\tstatus = !{run}\n\tlog = !{run}\n",
    "signature": "[log]\n\tshowSignature = true\n[gpg]\n\tprogram = {run}\n",
    "include": "[include]\n\tpath = {folder}/more\n",
    "ssh": "[core]\n\tsshCommand = {run}\n",
}


@pytest.mark.parametrize("where", ["project", ".gitconfig", ".config/git/config"])
def test_no_git_setting_makes_an_allowed_git_command_run_a_program(home_cli: HomeCli, repository: Path, tmp_path: Path, where: str) -> None:
    """Each setting names a program that creates a file outside. In the sandbox it is not found, or cannot do so."""
    tools = tmp_path / "tools"
    tools.mkdir()
    program = tools / "evil"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/canary\ncat 2>/dev/null\n")
    program.chmod(0o755)
    for hook in ("post-index-change", "fsmonitor-watchman", "post-checkout"):
        shutil.copy(program, tools / hook)
    (tools / "more").write_text(f"[core]\n\tfsmonitor = {program}\n")
    (repository / ".gitattributes").write_text("*.txt diff=x filter=x\n")
    home = Path(home_cli.environ["HOME"])
    target = repository / ".git" / "config" if where == "project" else home / where
    target.parent.mkdir(parents=True, exist_ok=True)
    before = target.read_text() if target.exists() else ""
    line = "git status; git diff; git log -p -1; git show; git ls-files --modified; git blame a.txt"
    # the user's own settings are ignored completely, so that all settings can be tested in one file
    planted = {name: setting.format(run=program, folder=tools) for name, setting in SETTINGS.items()}
    for name, setting in planted.items() if where == "project" else [("all", "".join(planted.values()))]:
        target.write_text(before + setting)
        os.utime(repository / "a.txt", ns=(1, 1))  # makes git read the file again
        done = home_cli.cli("run", "--wait", "--shell", "--", line)
        assert done.returncode != 125, (name, done.stderr)
        assert not (tmp_path / "canary").exists(), name


def test_several_allowed_mcp_calls_cannot_run_a_program_together(home_cli: HomeCli, repository: Path, tmp_path: Path) -> None:
    config = Path(home_cli.environ["HOME"]) / ".config"
    config.mkdir()
    setting = f'[core]\\n\\tfsmonitor = "touch {tmp_path}/canary; false"\\n'
    with Raw(home_cli) as client:
        for command, folder, shell in (
            ("mkdir -p git", config, False),
            (f"printf '{setting}' > config", config, True),
            ("cat hosts.yml", config, False),
        ):
            arguments = {"command": command, "description": "x", "working_directory": str(folder), "shell": shell}
            assert client.value("start_background_task", **arguments)["status"] == "proposed", command
        (config / "git").mkdir()
        (config / "git" / "config").write_text(setting.replace("\\n", "\n").replace("\\t", "\t"))
        start_waiting_line = client.value("start_background_task", command="git status", description="x")
        assert start_waiting_line["status"] in ("running", "pending", "completed")
        client.value("wait_for_background_tasks", task_ids=[start_waiting_line["task_id"]])
        assert client.value("check_task_status", task_id=start_waiting_line["task_id"])["status"] == "completed"
    assert not (tmp_path / "canary").exists()


def test_a_command_cannot_create_the_settings_of_a_home(home_cli: HomeCli) -> None:
    """A new home has a private config.toml from the start, and a command that nobody approved cannot write there."""
    home = home_cli.cwd.parent / "another"
    env = {"BACKBURNER_HOME": str(home)}
    home.mkdir(mode=0o755)
    assert home_cli.cli("list", env=env).returncode == 0
    assert (home / "config.toml").stat().st_mode & 0o777 == 0o600 and home.stat().st_mode & 0o777 == 0o700
    line = "printf '[[approval.rules]]' > config.toml"
    for cwd in (home, home_cli.cwd):
        assert home_cli.cli("run", "--shell", "--cwd", str(home), "--", line, env=env, cwd=cwd).returncode == 3
    assert (home / "config.toml").read_text() == ""


def test_a_home_with_other_files_keeps_its_mode(home_cli: HomeCli) -> None:
    home = home_cli.cwd.parent / "another"
    home.mkdir(mode=0o755)
    (home / "somebody-elses").write_text("x")
    assert home_cli.cli("list", env={"BACKBURNER_HOME": str(home)}).returncode == 0
    assert home.stat().st_mode & 0o777 == 0o755


async def test_the_size_of_files_is_limited_for_unapproved_commands(home_cli: HomeCli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backburner.execution.shim.MAX_FILE_BYTES", 1 << 20)
    monkeypatch.chdir(home_cli.cwd)
    runner = TaskRunner(TaskStorage(home_cli.cwd.parent / "embedded"))
    task_id = await runner.start_task(["sh", "-c", "seq 300000 > big"], str(home_cli.cwd), "x", "auto")
    async with asyncio.timeout(60):
        while (found := runner.get_status(task_id)).exit_code is None:
            await asyncio.sleep(0.01)
    await runner.close()
    kept = home_cli.cwd.parent / "embedded" / task_id / "changes/upper/big"
    assert found.exit_code == 128 + 25 and kept.stat().st_size == 1 << 20
    output = home_cli.ok("--home", str(home_cli.cwd.parent / "embedded"), "status", task_id)
    assert "larger than 1 GiB" in output and "nobody approved" in output


def test_a_shell_pattern_does_not_reach_parent_folders(home_cli: HomeCli) -> None:
    (home_cli.cwd.parent / ".env").write_text("SECRET=abc\n")
    for line in ("cat .*/.en*", "cat .?/.e*", "cat < .*/.env"):
        done = home_cli.cli("run", "--wait", "--shell", "--", line)
        assert done.returncode == 3 and "SECRET" not in done.stdout, line


def test_trust_is_refused_for_a_home_directory_and_its_hidden_folders(home_cli: HomeCli) -> None:
    home = Path(home_cli.environ["HOME"])
    (home / ".config").mkdir(parents=True)
    for folder in (home, home / ".config", home.parent):
        done = home_cli.cli("trust", str(folder))
        assert done.returncode == 2 and "Cannot trust" in done.stderr, folder


def start_waiting_line(home_cli: HomeCli, *words: str, env: dict[str, str] | None = None) -> str:
    """Start a shell line that waits for input; returns its task id when it runs."""
    done = home_cli.cli("run", "--stdin", "--shell", *words, env=env)
    assert done.returncode == 0, done.stderr
    task_id = done.stdout.strip()
    wait_until(lambda: (found := home_cli.status(task_id))["status"] == "running" and found["pid"], "it to run")
    return task_id


def finish_line(home_cli: HomeCli, task_id: str) -> None:
    """Send the input, and wait for the end of the task."""
    wait_until(lambda: home_cli.cli("send", task_id, "go on").returncode == 0, "its input")
    home_cli.cli("wait", task_id)


def test_a_program_added_to_the_project_after_the_decision_is_not_run(home_cli: HomeCli, tmp_path: Path) -> None:
    """PATH contains a folder of the project, as with direnv; a program with a known name is added there after the decision."""
    (home_cli.cwd / "tools").mkdir()
    path = f"{home_cli.cwd / 'tools'}:{home_cli.environ['PATH']}"
    task_id = start_waiting_line(home_cli, "--", "head -n 1; wc -l a.txt", env={"PATH": path})
    program = home_cli.cwd / "tools" / "wc"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/canary\n")
    program.chmod(0o755)
    finish_line(home_cli, task_id)
    assert not (tmp_path / "canary").exists()


SECRETS = """.env .env.production config/prod.env .ENV deploy/id_rsa server.key tls/server.pem .npmrc terraform.tfstate secrets/plain.txt credentials.json
api_token.txt kubeconfig config/Secrets.yml .ssh/config"""


def test_git_does_not_print_secret_files_of_the_history(home_cli: HomeCli, repository: Path) -> None:
    """Files with secret names were committed, changed in two branches, merged and removed; other files are shown normally."""
    for name in SECRETS.split():
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text("KEY=abc123\nmore=abc123\n")
    (repository / "tokenizer.py").write_text("shown = 1\n")
    git(repository, "add", "-f", ".")
    git(repository, "commit", "-q", "-m", "second")
    git(repository, "checkout", "-q", "-b", "other")
    (repository / ".env").write_text("KEY=abc123abc\nmore=abc123\n")
    git(repository, "commit", "-q", "-a", "-m", "third")
    git(repository, "checkout", "-q", "main")
    (repository / ".env").write_text("KEY=abc123def\nmore=abc123\n")
    git(repository, "commit", "-q", "-a", "-m", "fourth")
    git(repository, "merge", "-q", "-s", "ours", "-m", "merged", "other")
    (repository / ".env").rename(repository / "renamed.txt")
    git(repository, "rm", "-q", "-r", "--ignore-unmatch", *SECRETS.split())
    git(repository, "commit", "-q", "-m", "removed")
    (repository / "renamed.txt").unlink()
    for line in (
        "git log -p",
        "git log -p --cc",
        "git diff HEAD~1",
        "git show HEAD~1 --cc",
        "git show main",
        "git diff HEAD~4 --word-diff",
        "git log --patch -U9",
    ):
        done = home_cli.cli("run", "--wait", "--shell", "--", line)
        assert done.returncode == 0, (line, done.stderr)
        assert "abc123" not in done.stdout, line
    shown = home_cli.ok("run", "--wait", "--shell", "--", "git log -p")
    assert "+shown = 1" in shown and "Binary files /dev/null and b/.env differ" in shown
