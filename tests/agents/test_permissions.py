"""Which permission requests of an external agent are allowed without a person."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import HomeCli, caller

from backburner.agents.external.message_fields import opencode_permission_request
from backburner.agents.permissions import PermissionRequest, check_permission
from backburner.core.claims import ClaimedRun
from backburner.core.known_agents import KNOWN_AGENTS, asks_before_acting
from backburner.core.models import Entry
from backburner.services.app import App, open_app
from backburner.testing import records


@pytest.fixture
def app(home_cli: HomeCli) -> Iterator[App]:
    home_cli.configure('[agents.fake]\ntype = "acp"\ncommand = "sh"\nasks = "yes"\n')
    with open_app(home_cli.home, home_cli.environ) as opened:
        yield opened


def work(app: App, home_cli: HomeCli, **about: Any) -> ClaimedRun:
    """A claimed run of an agent task in the project, which nothing executes."""
    fields = {"agent": "fake", "prompt": "Do it.", "start_at": 4_000_000_000_000, "opened": str(home_cli.cwd)}
    entry: Entry = app.submissions.submit(records.request((), str(home_cli.cwd), dict(home_cli.environ), **fields), caller(app))
    assert entry.run is not None
    spec = records.spec((), str(home_cli.cwd), agent="fake", prompt="Do it.", **about)
    return ClaimedRun(entry.task._replace(spec=spec), entry.run, dict(home_cli.environ))


def edit(*paths: Path | str) -> PermissionRequest:
    return PermissionRequest("edit", "change it", paths=tuple(map(str, paths)))


def test_changing_agent_settings_needs_approval_even_in_a_worktree(app: App, home_cli: HomeCli) -> None:
    run = work(app, home_cli, terms={"worktree": True})
    assert check_permission(app, run, edit(home_cli.cwd / "a.py"))[0] == "allow"
    for name in ("opencode.json", ".claude/settings.json", ".mcp.json", ".opencode/plugin/x.js", "sub/.gemini/settings.json"):
        assert check_permission(app, run, edit(home_cli.cwd / name)) == ("ask", "it changes settings of agents"), name


def test_a_new_file_needs_approval_only_if_other_programs_act_on_it(app: App, home_cli: HomeCli) -> None:
    run = work(app, home_cli)
    assert check_permission(app, run, edit("new.py"))[0] == "allow"
    (home_cli.cwd / "old.py").write_text("x")
    for path in ("old.py", "conftest.py", ".git/hooks/pre-commit", "../outside.py", "/etc/x"):
        assert check_permission(app, run, edit("new.py", path))[0] == "ask", path


def test_a_command_is_checked_in_its_environment_and_directory(app: App, home_cli: HomeCli) -> None:
    listing = PermissionRequest("command", "run `ls`", "ls")
    assert check_permission(app, work(app, home_cli), listing)[0] == "allow"
    assert check_permission(app, work(app, home_cli, env={"LD_PRELOAD": "/tmp/x.so"}), listing)[0] == "ask"
    assert check_permission(app, work(app, home_cli), listing._replace(cwd=str(home_cli.cwd.parent)))[0] == "ask"
    assert check_permission(app, work(app, home_cli), PermissionRequest("command", "run nothing", " "))[0] == "ask"


def request(name: str, arguments: dict[str, Any], tool: str = "", **metadata: Any) -> PermissionRequest:
    return opencode_permission_request(
        {"permission": name, "patterns": ["*"], "metadata": metadata},
        {"tool": tool or name, "state": {"status": "running", "input": arguments}},
    )


def test_an_opencode_patch_has_the_paths_of_all_its_files(home_cli: HomeCli) -> None:
    files = [{"filePath": "/p/a.py", "movePath": "/p/b.py"}, {"filePath": "/p/.git/hooks/pre-commit"}]
    permission = request("edit", {}, "apply_patch", filepath="a.py, .git/hooks/pre-commit", diff="+x", files=files)
    assert permission.kind == "edit" and permission.paths == ("/p/a.py", "/p/b.py", "/p/.git/hooks/pre-commit")
    assert all(path in permission.description for path in permission.paths)
    assert request("edit", {}, "apply_patch", filepath="a.py, b.py", diff="+x").kind == "other", (
        "several files in one path are not recognised"
    )


def test_an_opencode_search_is_checked_like_the_equivalent_command(app: App, home_cli: HomeCli) -> None:
    permission = request("grep", {"pattern": "KEY", "path": "."})
    assert check_permission(app, work(app, home_cli), permission)[0] == "allow"
    (home_cli.cwd / ".env").write_text("KEY=secret")
    assert check_permission(app, work(app, home_cli), permission)[0] == "ask"


def test_a_request_for_the_folders_of_a_command_includes_the_command(home_cli: HomeCli) -> None:
    permission = request("external_directory", {"command": "cat x", "workdir": "/etc"}, "bash", command="cat x")
    assert (permission.kind, permission.command, permission.cwd) == ("command", "cat x", "/etc")
    assert request("external_directory", {"pattern": "x"}, "glob").kind == "other", "no other request follows it"
    assert request("external_directory", {"filePath": "/etc/hosts"}, "read").kind == "unrestricted", "the read is requested separately"


def test_requests_with_equal_truncated_descriptions_have_different_details() -> None:
    one, other = (request("toy", {"text": "x" * 5000 + end}) for end in "ab")
    assert one.description == other.description and one.details != other.details
    assert " more characters)" in one.description


@pytest.mark.parametrize("name", [name for name, about in KNOWN_AGENTS.items() if about["type"] == "acp"])
def test_an_agent_configured_not_to_ask_counts_as_not_asking(name: str) -> None:
    settings = {"name": name, **KNOWN_AGENTS[name]}
    assert asks_before_acting(settings)
    assert not asks_before_acting({**settings, "command": "another"}) and not asks_before_acting({**settings, "mode": "full-access"})
    assert asks_before_acting({**settings, "command": "another", "asks": "yes"})


def test_links_are_resolved_before_the_check(app: App, home_cli: HomeCli) -> None:
    os.symlink("/etc", home_cli.cwd / "docs")
    assert check_permission(app, work(app, home_cli), edit("docs/new.conf"))[0] == "ask"
    assert check_permission(app, work(app, home_cli), PermissionRequest("read", "read it", paths=("docs/hostname",)))[0] == "ask"
