"""Words after a redirect or after the start of a here-document belong to the command, although the parser takes them for a part of the redirect."""

from pathlib import Path

import pytest

from approval.command_world import make_project, sandbox_verdict, verdict
from backburner.approval.shell_parser import parse
from backburner.core.sandbox import Network

READ = [
    ("git 2>/dev/null push", ["git push"]),
    ("git 2>&1 >log push", ["git push"]),
    ("git >a push >b origin", ["git push origin"]),
    ("git >&2 push", ["git push"]),
    ("git 2>&- push", ["git push"]),
    ("true && git >log push", ["true", "git push"]),
    ("cat x | ! git >log push", ["cat x", "git push"]),
    ("cat $(ls) >log .env", ["cat $(ls) .env", "ls"]),
    ("(ls) && cat < a .env", ["ls", "cat .env"]),
    ("A=1 >log git push", ["git push"]),
    ("cat <<E .env\nx\nE", ["cat .env"]),
    ("cat <<E > log .env\nx\nE", ["cat .env"]),
    ("echo &>log git push", ["git push", "echo git push"]),  # dash, and bash
]
ASKS = [
    *(line for line, _ in READ),
    "find / -name x 2>/dev/null -exec cat ~/.ssh/id_rsa {} +",
    "for f in a b; do cat 2>/dev/null .env; done",
    "if true; then npm >log install; fi",
    "x=$(cat 2>/dev/null .env); echo $x",
    "time git >log push",
]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_project(tmp_path_factory.mktemp("late"))


@pytest.mark.parametrize(("line", "commands"), READ)
def test_a_word_after_a_redirect_is_read_as_a_word_of_the_command(line: str, commands: list[str]) -> None:
    assert [" ".join(word.text for word in part.words) for part in parse(line) if part.words] == commands


@pytest.mark.parametrize("line", ASKS)
def test_a_command_with_words_after_a_redirect_asks_like_any_other(project: Path, line: str) -> None:
    assert sandbox_verdict(project, line, trusted=True).sandbox is None


def test_a_service_is_read_with_words_after_a_redirect(project: Path) -> None:
    found = sandbox_verdict(project, "gh pr list 2>/dev/null --limit 5").sandbox
    assert found
    assert found.network is Network.OPEN
    assert sandbox_verdict(project, "gh pr list &>log --limit 5").sandbox is None, "dash reads this in another way"


def test_harmless_words_after_a_redirect_do_not_ask_in_a_sandbox(project: Path) -> None:
    for line in ("find . 2>/dev/null -name x", "grep 2>/dev/null -rn main src", "cat <<'E' README.md\nx\nE"):
        assert sandbox_verdict(project, line).sandbox, line
        assert verdict(project, line).decision == "ask", "not without a sandbox"
