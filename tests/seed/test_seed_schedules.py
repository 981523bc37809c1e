"""The examples of the recurring tasks design, word for word, with a fake `gh`, a fake `kubectl` and a repository."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import CAUTIOUS, NO_TERMINAL, HomeCli, wait_until
from mcp_client import Raw

from backburner.services.app import open_app
from backburner.testing.scripted_model import ScriptedModel

WATCH_CI = {
    "name": "watch-ci-main",
    "description": "Monitor CI pipeline for main branch",
    "prompt": "Check the CI status for the main branch. Run `gh run list --branch main --limit 5` and look at the status. If any runs "
    "failed since the last check, report which ones and what failed. If all passing, report nothing.",
    "kind": "scheduled",
    "interval": "30m",
    "notify": "on_change",
}
WATCH_DEPLOY = {
    "name": "watch-deploy-staging",
    "description": "Watch staging deploy progress",
    "prompt": "Check if the staging deploy is still in progress. Run `kubectl rollout status deployment/app -n staging --timeout=10s`. "
    "If the rollout is complete, report success. If it failed, report the error. If still in progress, report nothing.",
    "kind": "scheduled",
    "interval": "2m",
    "notify": "on_change",
    "max_runs": 30,
}
TEST_ON_PUSH = {
    "name": "test-on-push",
    "description": "Run test suite when feature branch changes",
    "prompt": "Check `git log --oneline -1` for the feature/auth branch. If the HEAD commit changed since last check, run `bun test` and "
    "report results. If unchanged, do nothing.",
    "kind": "scheduled",
    "interval": "5m",
    "notify": "on_change",
}


def called(command: str) -> dict[str, Any]:
    return {"tool": "run_command", "args": {"command": command}}


def result(state: str, message: str = "") -> dict[str, Any]:
    return {"tool": "final_result", "args": {"report": bool(message), "state": state, "message": message}}


def answer_prompt(said: list[tuple[str, str]]) -> dict[str, Any]:
    """The answer of a capable model to these prompts: the wording differs each time, the state does not."""
    prompt = next(text for role, text in said if role == "user")
    tools = [text for role, text in said if role == "tool"]
    how = f" (look {next(LOOKS)})"
    if "gh run list" in prompt:
        if not tools:
            return called("gh run list --branch main --limit 5")
        failed = [line.split("\t")[2] for line in tools[-1].splitlines() if "\tfailure\t" in line]
        return result(f"failed: {' '.join(failed)}", f"CI failed on main: {', '.join(failed)}{how}") if failed else result("passing")
    if "kubectl" in prompt:
        if not tools:
            return called("kubectl rollout status deployment/app -n staging --timeout=10s")
        if "successfully rolled out" in tools[-1]:
            return result("done", f"The staging deploy is done.{how}")
        return result("failed", f"The deploy failed{how}") if "exceeded its progress deadline" in tools[-1] else result("in progress")
    if len(tools) == 0:
        return called("git log --oneline -1 feature/auth")
    if len(tools) == 1:
        return {"tool": "memory_get", "args": {"key": "auth-head"}}
    head = next(line for line in tools[0].splitlines() if line[:7].isalnum() and " " in line).split()[0]
    if head in tools[1]:
        return result(head)
    if len(tools) == 2:
        return called("bun test")
    if len(tools) == 3:
        return {"tool": "memory_set", "args": {"key": "auth-head", "value": head}}
    return result(head, f"{'Tests pass' if '12 pass' in tools[2] else 'Tests fail'} on {head}{how}")


LOOKS: Iterator[int] = iter(range(10_000))


@pytest.fixture
def home(home_cli: HomeCli) -> Iterator[HomeCli]:
    (home_cli.root.parent / "bin").mkdir()
    home_cli.environ["PATH"] = f"{home_cli.root.parent / 'bin'}:{os.environ['PATH']}"
    with ScriptedModel(answer_prompt) as model:
        rules = "".join(f'[[approval.rules]]\nname = "{program}"\ndecision = "allow"\ncommand = "{program} **"\n' for program in PROGRAMS)
        home_cli.configure(f'{NO_TERMINAL}{rules}{CAUTIOUS}[models]\nlocal = "openai-chat:local"\nlocal_base_url = "{model.url}/v1"\n')
        yield home_cli
        home_cli.stop_all()


PROGRAMS = ("gh run list", "kubectl rollout status", "bun test")


def program(home_cli: HomeCli, name: str, prints: str, code: int = 0) -> None:
    path = home_cli.root.parent / "bin" / name
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{prints}\nEND\nexit {code}\n")
    path.chmod(0o755)


def add(home_cli: HomeCli, task: dict[str, Any]) -> str:
    with Raw(home_cli) as client:
        added = client.call("task_add", **task)["structuredContent"]
        assert added["status"] == "active", added
        return str(added["task_id"])


def run_now(home_cli: HomeCli, name: str) -> dict[str, Any]:
    run_id = home_cli.ok("run-now", name).strip()

    def run() -> dict[str, Any]:
        return next(run for run in home_cli.status(name)["runs"] if run["run_id"] == run_id)  # type: ignore[union-attr, attr-defined]

    wait_until(lambda: run()["completed_at"] or run()["status"] == "waiting", f"{run_id} to end")
    assert run()["status"] == "completed", run()
    return run()


def notice_texts(home_cli: HomeCli) -> list[str]:
    """The new notices, of all recipients."""
    with open_app(home_cli.home, home_cli.environ) as app:
        notices = app._ledger.notices.notices(project=None, unread=True)
        app.inbox.acknowledge(notice_ids=[notice.notice_id for notice in notices])
        return [notice.text.split(" (look")[0] for notice in notices if "(look" in notice.text]


def test_check_ci_every_30_minutes(home: HomeCli) -> None:
    """A notice when CI breaks, none while it stays broken with another wording, and none while it passes."""
    task = add(home, WATCH_CI)
    passing, failing = "completed\tsuccess\t4520", "completed\tfailure\t4521"
    for prints in (passing, passing, failing, failing, passing, failing, failing.replace("4521", "4522")):
        program(home, "gh", prints)
        run_now(home, "watch-ci-main")
    assert notice_texts(home) == [f"watch-ci-main: CI failed on main: {run}" for run in (4521, 4521, 4522)]
    assert str(home.status(task)["when"]).startswith("every 30m; next: ")


def test_watch_this_deploy(home: HomeCli) -> None:
    """No notice during the deploy, one when it is done; the task ends after 30 checks."""
    task = add(home, WATCH_DEPLOY)
    program(home, "kubectl", "Waiting for deployment rollout to finish: 1 of 3 updated replicas are available...", 1)
    run_now(home, "watch-deploy-staging")
    run_now(home, "watch-deploy-staging")
    assert notice_texts(home) == []
    program(home, "kubectl", 'deployment "app" successfully rolled out')
    run_now(home, "watch-deploy-staging")
    run_now(home, "watch-deploy-staging")
    assert notice_texts(home) == ["watch-deploy-staging: The staging deploy is done."]
    assert home.status(task)["max_runs"] == 30 and "at most 30 times" in str(home.status(task)["when"])


def test_run_tests_on_this_branch_when_i_push(home: HomeCli) -> None:
    git: Callable[..., object] = lambda *words: subprocess.run(  # noqa: E731
        ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=home.cwd, check=True, capture_output=True
    )
    git("init", "-q", "-b", "feature/auth")
    git("commit", "-q", "--allow-empty", "-m", "one")
    add(home, TEST_ON_PUSH)
    program(home, "bun", "12 pass")
    run_now(home, "test-on-push")
    run_now(home, "test-on-push")
    git("commit", "-q", "--allow-empty", "-m", "two")
    program(home, "bun", "11 pass, 1 fail", 1)
    run_now(home, "test-on-push")
    run_now(home, "test-on-push")
    assert [" ".join(text.split()[:4]) for text in notice_texts(home)] == ["test-on-push: Tests pass on", "test-on-push: Tests fail on"]
    commands = [
        task["command"] for task in [*home.json("list", "completed"), *home.json("list", "failed")] if task["command"][:1] == ["bun"]
    ]  # type: ignore[union-attr, index, call-overload]
    assert len(commands) == 2


def test_the_notice_of_an_agents_recurring_task_reaches_its_session_once(home: HomeCli) -> None:
    """The discovery example after the approval: the notice of a task added by an agent goes to its session, once."""
    program(home, "gh", "completed\tfailure\t42")
    with Raw(home) as client:
        client.call("task_add", **{**WATCH_CI, "name": "watch-pr-42", "description": "Watch CI of PR #42"})
        run_now(home, "watch-pr-42")
        assert home.json("inbox") == []  # the notice belongs to the session of the agent, which is open
        assert "watch-pr-42: CI failed on main" in json.dumps(client.call("task_list"))
        assert "watch-pr-42: CI failed on main" not in json.dumps(client.call("task_list"))
