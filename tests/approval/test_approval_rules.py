"""Rules of the configuration and permanent permissions: what they match and what they do not."""

from pathlib import Path

import pytest

from approval.command_world import PATH, gate_with_permissions, make_project_with_traps, sandbox_verdict, verdict
from backburner.approval.effects import Effect
from backburner.approval.policy import Decision, Rule
from backburner.testing.records import request


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project_with_traps(tmp_path)


@pytest.mark.parametrize("name", ["LD_PRELOAD", "PATH", "GIT_DIR"])
def test_an_allow_rule_without_a_sandbox_does_not_cover_variables(project: Path, name: str) -> None:
    rule = Rule("always", Decision.ALLOW, ("mv", "a", "b"))
    assert sandbox_verdict(project, ("mv", "a", "b"), rules=(rule,)).decision == "allow"
    assert sandbox_verdict(project, ("mv", "a", "b"), rules=(rule,), env={name: "./x"}).decision == "sandbox"


def test_a_line_of_which_rules_allow_only_a_part_needs_approval(project: Path) -> None:
    rule = Rule("always", Decision.ALLOW, ("npm", "install"))
    assert sandbox_verdict(project, "npm install", rules=(rule,)).decision == "allow"
    assert sandbox_verdict(project, "npm install && ls", rules=(rule,)).decision == "allow", "the rest is known to be harmless"
    assert sandbox_verdict(project, "npm install && make", rules=(rule,)).decision == "ask"
    reading = Rule("reading", Decision.ALLOW, effects=frozenset([Effect.READS]))
    assert sandbox_verdict(project, "cat README.md", rules=(reading,)).decision == "allow"
    assert sandbox_verdict(project, "git log --output=README.md", rules=(reading,)).decision == "sandbox", (
        "its option is not known to be harmless"
    )
    assert sandbox_verdict(project, "ls", rules=(Rule("no", Decision.ASK, ("ls",)),)).decision == "ask"
    assert sandbox_verdict(project, "ls; rm x", rules=(Rule("no", Decision.DENY, ("rm", "**")),)).decision == "deny"


@pytest.mark.parametrize("name", ["LD_PRELOAD", "PATH", "GIT_DIR"])
def test_an_allow_rule_does_not_cover_variables_given_with_the_task(project: Path, name: str) -> None:
    rule = Rule("always", Decision.ALLOW, ("mv", "a", "b"))
    assert verdict(project, ("mv", "a", "b"), rules=(rule,)).decision == "allow"
    assert verdict(project, ("mv", "a", "b"), rules=(rule,), env={name: "./x"}).decision == "ask"


@pytest.mark.parametrize("command", [("cat", "src/../.env"), "cat src/../../../etc/hostname"])
def test_the_pattern_of_an_allow_rule_does_not_match_a_parent_directory(project: Path, command: str | tuple[str, ...]) -> None:
    assert verdict(project, command, rules=(Rule("r", Decision.ALLOW, ("cat", "src/*")),)).decision == "ask"


@pytest.mark.parametrize("line", ["/bin/echo a", "LANG=C echo a", "echo $x", "echo *", "echo a 2>/dev/null", "env echo a"])
def test_a_deny_rule_matches_every_spelling_of_the_command(project: Path, line: str) -> None:
    assert verdict(project, line, rules=(Rule("r", Decision.DENY, ("echo", "**")),)).decision == "deny"


@pytest.mark.parametrize(
    ("permitted", "command"),
    [(("frob", "*"), ("frob", "x")), (("frob", "**"), ("frob", "-rf", "x")), (("frob", "[ab]"), ("frob", "a")), (("*",), ("reboot",))],
)
def test_a_permanent_permission_is_not_a_pattern(project: Path, permitted: tuple[str, ...], command: tuple[str, ...]) -> None:
    gate = gate_with_permissions(project, permitted)
    assert gate.judge(request(permitted, str(project), {"PATH": PATH})).decision == "allow"
    assert gate.judge(request(command, str(project), {"PATH": PATH})).decision == "ask"


def test_a_permanent_permission_does_not_apply_to_a_part_of_a_shell_line(project: Path) -> None:
    submission = request(("cd src && make deploy",), str(project), {"PATH": PATH}, shell=True)
    assert gate_with_permissions(project, ("make", "deploy")).judge(submission).decision == "ask"
