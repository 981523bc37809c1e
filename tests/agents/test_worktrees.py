"""An agent in its own git worktree: the user's working tree does not change, and the result is a branch and a diff."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import CONFIG, HomeCli, wait_until

from backburner.core.errors import WorktreeFailed
from backburner.system.git_worktree import Worktree
from backburner.testing.scripted_model import ScriptedModel


def script(*steps: dict[str, object]) -> str:
    return f"[[script: {json.dumps(steps)}]]"


def git(home_cli: HomeCli, *words: str) -> str:
    named = ["git", "-c", "user.name=Ada", "-c", "user.email=ada@example.org", *words]
    return subprocess.run(named, cwd=home_cli.cwd, capture_output=True, text=True, check=True, timeout=30).stdout


def write(path: str, content: str) -> dict[str, object]:
    return {"tool": "write_file", "args": {"path": path, "content": content}}


@pytest.fixture
def home(home_cli: HomeCli) -> Iterator[HomeCli]:
    with ScriptedModel() as model:
        home_cli.configure(
            f'{CONFIG}[models]\ndefault = "openai-chat:scripted"\nbase_url = "{model.url}/v1"\n[tasks]\nmax_concurrent = 8\n'
        )
        git(home_cli, "init", "--quiet", "--initial-branch=main")
        (home_cli.cwd / "a.txt").write_text("one\n")
        (home_cli.cwd / "sub").mkdir()
        (home_cli.cwd / "sub" / "b.txt").write_text("two\n")
        git(home_cli, "add", "--all")
        git(home_cli, "commit", "--quiet", "--message", "first")
        (home_cli.cwd / "a.txt").write_text("one, being changed by the person\n")
        yield home_cli
        home_cli.stop_all()


def is_unchanged(home_cli: HomeCli) -> bool:
    changed = git(home_cli, "status", "--porcelain") == " M a.txt\n"
    return (
        changed
        and (home_cli.cwd / "a.txt").read_text() == "one, being changed by the person\n"
        and git(home_cli, "branch", "--show-current") == "main\n"
    )


def test_changes_are_a_branch_and_a_diff_and_the_working_tree_is_unchanged(home: HomeCli) -> None:
    steps = [write("a.txt", "changed\n"), write("new.txt", "new\n"), {"tool": "run_command", "args": {"command": "ls"}}, {"say": "Done."}]
    answer = home.ok("ask", "--worktree", "--wait", script(*steps))
    (task,) = home.json("list", "completed")[-1:]  # type: ignore[index]
    branch = f"backburner/{task['task_id']}"
    assert answer.startswith("Done.\n\n2 files changed") and f"git merge {branch}" in answer
    assert is_unchanged(home) and git(home, "worktree", "list").count("\n") == 1
    assert git(home, "show", f"{branch}:a.txt") == "changed\n" and git(home, "show", f"{branch}:new.txt") == "new\n"
    diff = (home.root / "tasks" / task["task_id"] / "work" / "changes.diff").read_text()
    assert "-one\n+changed\n" in diff and "changes.diff" in json.dumps(home.status(task["task_id"]))

    home.ok("resume", task["task_id"], script(write("a.txt", "changed again\n"), {"say": "Again."}))
    home.ok("wait", task["task_id"])
    assert git(home, "show", f"{branch}:a.txt") == "changed again\n" and git(home, "show", f"{branch}:new.txt") == "new\n"
    home.ok("clear", task["task_id"])
    assert is_unchanged(home) and branch in git(home, "branch", "--list", "backburner/*"), "the branch is kept"
    assert git(home, "for-each-ref", "refs/backburner") == ""


def test_an_agent_without_changes_leaves_no_branch(home: HomeCli) -> None:
    assert home.ok("ask", "--worktree", "--wait", script({"say": "Looked."})) == "Looked.\n\nIt changed nothing.\n"
    assert git(home, "branch", "--list", "backburner/*") == "" and is_unchanged(home)
    assert git(home, "worktree", "list").count("\n") == 1 and git(home, "for-each-ref", "refs/backburner") == ""


def test_the_memory_of_an_agent_in_a_worktree_is_that_of_the_project(home: HomeCli) -> None:
    home.ok("ask", "--worktree", "--wait", script({"tool": "memory_set", "args": {"key": "port", "value": "8123"}}, {"say": "Stored."}))
    for options in ([], ["--worktree"]):
        home.ok("ask", *options, "--wait", script({"tool": "memory_get", "args": {"key": "port"}}, {"say": "Read."}))
        (task,) = home.json("list")[-1:]  # type: ignore[index]
        assert "8123" in (home.folder(task["task_id"]) / "conversation.json").read_text()


def test_a_task_in_a_subdirectory_runs_in_the_same_subdirectory(home: HomeCli) -> None:
    answer = home.ok(
        "ask",
        "--worktree",
        "--wait",
        "--cwd",
        "sub",
        script({"tool": "read_file", "args": {"path": "b.txt"}}, write("c.txt", "x"), {"say": "ok"}),
    )
    assert "1 file changed" in answer
    branch = git(home, "branch", "--list", "backburner/*", "--format=%(refname:short)").strip()
    assert git(home, "show", f"{branch}:sub/c.txt") == "x"


def test_a_stopped_agent_leaves_its_changes_on_the_branch(home: HomeCli) -> None:
    task_id = home.ok("ask", "--worktree", script(write("a.txt", "half\n"), {"hang": 30, "say": "never"})).strip()
    checkout = home.root / "worktrees" / task_id / "a.txt"
    wait_until(lambda: checkout.exists() and checkout.read_text() == "half\n", "the first change")
    home.ok("cancel", task_id)
    assert git(home, "show", f"backburner/{task_id}:a.txt") == "half\n"
    assert is_unchanged(home) and not checkout.exists()


def test_a_killed_agent_can_be_resumed_in_its_worktree(home: HomeCli) -> None:
    task_id = home.ok("ask", "--worktree", script(write("a.txt", "half\n"), {"hang": 30, "say": "never"})).strip()
    checkout = home.root / "worktrees" / task_id / "a.txt"
    wait_until(lambda: checkout.exists() and checkout.read_text() == "half\n", "the first change")
    for host in home.hosts("agents.process"):
        os.kill(host.pid, signal.SIGKILL)
    wait_until(lambda: home.status(task_id)["status"] == "failed", "the task to be interrupted")
    assert checkout.read_text() == "half\n"
    home.ok("resume", task_id, script(write("new.txt", "rest\n"), {"say": "Now it is done."}))
    home.ok("wait", task_id)
    branch = f"backburner/{task_id}"
    assert git(home, "show", f"{branch}:a.txt") == "half\n" and git(home, "show", f"{branch}:new.txt") == "rest\n" and is_unchanged(home)


def test_a_worktree_without_a_repository_gives_a_one_line_error(home: HomeCli) -> None:
    (home.cwd.parent / "bare").mkdir()
    done = home.cli("ask", "--worktree", "x", cwd=home.cwd.parent / "bare")
    assert done.returncode == 2 and "is not in a git repository" in done.stderr
    (home.cwd.parent / "empty").mkdir()
    subprocess.run(["git", "init", "--quiet"], cwd=home.cwd.parent / "empty", check=True, timeout=30)
    done = home.cli("ask", "--worktree", "--wait", "x", cwd=home.cwd.parent / "empty")
    assert done.returncode == 1 and "Cannot use the git worktree" in done.stderr


def test_a_directory_laid_out_like_a_repository_is_not_checked_out(tmp_path: Path) -> None:
    """Unapproved commands can create such files, with a filter that would run at checkout."""
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    made, laid_out = tmp_path / "made", tmp_path / "laid_out"
    subprocess.run([*git, "init", "-q", str(made)], check=True)
    (made / "a.txt").write_text("x\n")
    for words in (["add", "."], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *words], cwd=made, check=True)
    (made / ".git").rename(laid_out)
    (laid_out / "info" / "attributes").write_text("* filter=x\n")
    with open(laid_out / "config", "a") as config:
        config.write(f'[filter "x"]\n\tsmudge = "touch {tmp_path}/canary; cat"\n')
    with pytest.raises(WorktreeFailed):
        Worktree(str(laid_out), str(tmp_path / "worktrees" / "task_x"), "task_x").make()
    assert not (tmp_path / "canary").exists()
