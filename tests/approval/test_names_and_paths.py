"""What a name in a command leads to: patterns that climb, programs by their real path, secrets, and files that others act on."""

import os
import subprocess
from pathlib import Path

import pytest

from approval.command_world import ENVIRON, make_project, verdict, world_of
from backburner.approval.effects import looks_secret, relied_on
from backburner.approval.policy import judge
from backburner.testing.records import request


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path)


@pytest.mark.parametrize(
    "line",
    ["cat .*", "cat .?", "cat .*/.en*", "ls .*", "stat .*/x", "cat src/.*/x", "cat < .*", "bash -c 'cat .*/x'", "cat .?/*", "cat '.'*/x"]
    + [
        "cat \\.*/x",
        "cat .[.]/x",
        "cat [.]*/x",
        "cat src/.?/README.md",
        "wc .*",
        "head .*",
        "cat <src/*.py",
        "echo x > *.log",
        "echo x >> new?",
    ],
)
def test_a_pattern_that_some_shells_let_climb_and_one_in_a_redirect_are_asked_about(project: Path, line: str) -> None:
    assert verdict(project, line).decision == "ask"


@pytest.mark.parametrize("line", ["cat src/*.py", "ls src/*", "cat README.*"])
def test_other_patterns_are_not(project: Path, line: str) -> None:
    assert verdict(project, line).decision == "allow"


def test_a_program_named_by_a_path_is_judged_by_where_it_really_lies(project: Path, tmp_path: Path) -> None:
    deep = tmp_path / "outside" / "a" / "b" / "c" / "d"
    deep.mkdir(parents=True)
    planted = tmp_path / "outside" / "usr" / "bin" / "ls"
    planted.parent.mkdir(parents=True)
    planted.write_text("#!/bin/sh\n")
    planted.chmod(0o755)
    (project / "link").symlink_to(deep)
    for name in ("link/../../../../usr/bin/ls", str(planted), "/usr/bin/../bin/ls", "../outside/usr/bin/ls"):
        assert verdict(project, name).decision == "ask", name
    assert verdict(project, "/bin/ls").decision == "allow"
    assert verdict(project, "/usr/bin/ls").decision == "allow"


def test_a_name_that_leads_by_a_link_to_a_program_elsewhere_is_asked_about(project: Path, tmp_path: Path) -> None:
    planted = tmp_path / "elsewhere" / "ls"
    planted.parent.mkdir()
    planted.write_text("#!/bin/sh\n")
    planted.chmod(0o755)
    environ = {**ENVIRON, "PATH": f"{planted.parent}:{ENVIRON['PATH']}"}
    assert judge(request(("ls",), str(project), environ), world_of(project, environ)).decision == "ask"


@pytest.mark.parametrize(
    "words", [("npm", "--version"), ("python3", "--version"), ("node", "--help"), ("go", "version"), ("uv", "--version")]
)
def test_a_program_inside_the_project_is_its_code_whatever_its_words(project: Path, words: tuple[str, ...]) -> None:
    tools = project / ".venv" / "bin"
    tools.mkdir(parents=True)
    (tools / words[0]).write_text("#!/bin/sh\n")
    (tools / words[0]).chmod(0o755)
    environ = {**ENVIRON, "PATH": f"{tools}:{ENVIRON['PATH']}"}
    submission = request(words, str(project), environ)
    found = judge(submission, world_of(project, environ))
    assert (found.decision, found.trust_would_do) == ("ask", True)
    assert judge(submission, world_of(project, environ), trusted=True).decision == "allow"


SECRETS = """terraform.tfstate terraform.tfstate.backup kubeconfig serviceAccount.json service-account.json gcp-key.json .vault_pass a.p8 a.ppk
.my.cnf .s3cfg .dockercfg auth.json oauth_creds.json apikey.txt api_key.json API-KEY local.settings.json .git/config .git/modules/x/config a.keytab
.git/worktrees/x/config.worktree .boto ledger.db-wal"""


@pytest.mark.parametrize("name", SECRETS.split())
def test_secrets_are_known_by_these_names_too(project: Path, name: str) -> None:
    assert looks_secret(name)
    assert verdict(project, f"cat {name}").decision == "ask"


def test_a_search_is_judged_by_what_it_would_read(project: Path) -> None:
    (project / ".env").unlink()
    assert verdict(project, "grep -rn x .").decision == "allow"
    (project / ".git/config").write_text('[core]\n\tbare = false\n[remote "o"]\n\turl = https://ghp_abc@example.org/x\n')
    assert verdict(project, "grep -rn x .").decision == "ask"
    assert verdict(project, "git remote -v").decision == "ask"
    assert verdict(project, "grep -rn --exclude-dir=.git x .").decision == "allow"
    assert verdict(project, "grep -rn --exclude-dir .git x .").decision == "allow"
    (project / ".git/config").write_text('[core]\n\tbare = false\n[remote "o"]\n\turl = git@example.org:x/y\n')
    assert verdict(project, "git remote -v").decision == "allow"
    for folder in ("node_modules/x", ".venv/lib", "target/out"):
        (project / folder).mkdir(parents=True)
        (project / folder / "tokenizer.js").write_text("x")
        assert verdict(project, "grep -rn x .").decision == "allow", "the code of others has names of all kinds"
        (project / folder / ".env").write_text("KEY=1")
        assert verdict(project, "grep -rn x .").decision == "ask", folder
        (project / folder / ".env").unlink()
    assert verdict(project, "grep -rn x .git").decision == "ask"


def test_a_search_that_is_too_large_to_look_at_says_so(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backburner.system.command_context._MAX_SEARCHED_FILES", 3)
    found = verdict(project, "grep -rn x .")
    assert found.decision == "ask" and "more than 3 files" in found.reasons[0]


def test_a_search_by_rg_leaves_out_what_git_ignores_plainly(project: Path) -> None:
    (project / "build" / "api_key.txt").write_text("x")
    assert verdict(project, "rg x").decision == "ask"
    (project / ".gitignore").write_text("/build\n*.log\n")
    assert verdict(project, "rg x").decision == "allow"
    (project / ".gitignore").write_text("/build\n!build/api_key.txt\n")
    assert verdict(project, "rg x").decision == "ask"


def test_git_does_not_show_the_content_of_secrets_that_it_keeps(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "a.py").write_text("x")
    subprocess.run(["git", "add", "a.py"], cwd=tmp_path, check=True)
    for line in ("git diff", "git show", "git log -p"):
        assert verdict(tmp_path, line).decision == "allow", line
    (tmp_path / ".env").write_text("KEY=1")
    subprocess.run(["git", "add", "-f", ".env"], cwd=tmp_path, check=True)
    for line in ("git diff --cached", "git show abcd1234", "git log -p", "git log -pw", "git log -wU3", "git status -v", "git blame a.py"):
        assert verdict(tmp_path, line).decision == "ask", line
    assert verdict(tmp_path, "git log --oneline").decision == "allow"


def test_a_variable_of_the_environment_is_not_printed_whatever_its_case(project: Path) -> None:
    environ = {**ENVIRON, "database_url": "postgres://u:p@h/d"}
    for clean, trusted, line in ((False, False, "echo $database_url"), (True, True, "echo $database_url; make")):
        found = judge(request((line,), str(project), environ, shell=True), world_of(project, environ, ours=clean), trusted=trusted)
        assert found.decision == "ask", line


@pytest.mark.parametrize(
    ("name", "value", "decision"),
    [("TZ", "Europe/Berlin", "allow"), ("LC_ALL", "C.UTF-8", "allow"), ("TZ", ":/etc/passwd", "ask"), ("LANGUAGE", "../../x", "ask")]
    + [("LC_ALL", "/srv/x", "ask"), ("TERM", "./x", "ask"), ("LANGUAGE", "x/../../y", "ask")],
)
def test_a_harmless_variable_that_leads_to_a_file_is_asked_about(project: Path, name: str, value: str, decision: str) -> None:
    assert verdict(project, "ls", env={name: value}).decision == decision


PROTECTED = """.claude/settings.json .mcp.json .vscode/tasks.json .idea/x.xml .cursor/mcp.json .gemini/settings.json .codex/config.toml opencode.json
.opencode/plugin/x.js .husky/pre-commit .devcontainer/devcontainer.json .zed/tasks.json .envrc .github/workflows/x.yml .gitlab-ci.yml .git/hooks/post-checkout
.pre-commit-config.yaml conftest.py src/conftest.py sitecustomize.py evil.pth CLAUDE.md AGENTS.md .Claude/settings.json .MCP.json Opencode.json .gitattributes
lefthook.yml lefthook-local.yaml lefthook.toml Jenkinsfile ci/Jenkinsfile Taskfile.yml taskfile.dist.yaml .gitlab-ci.yml azure-pipelines.yml
bitbucket-pipelines.yml cloudbuild.yaml buildspec.yml Containerfile compose.override.yml Vagrantfile Procfile mise.toml"""


@pytest.mark.parametrize("name", PROTECTED.split())
def test_files_that_others_act_on_are_not_created_freely(project: Path, name: str) -> None:
    assert relied_on(name)
    for line in (f"touch {name}", f"mkdir -p {name}", f"echo x > {name}", f"cp README.md {name}", f"echo x | tee {name}"):
        assert verdict(project, line).decision == "ask", line


@pytest.mark.parametrize("name", ["new.py", "src/new.py", "out/.gitkeep", "notes.md"])
def test_other_files_are(project: Path, name: str) -> None:
    assert not relied_on(name)
    os.makedirs(project / "out", exist_ok=True) if not (project / "out").is_symlink() else (project / "out").unlink()
    assert verdict(project, f"touch {name}").decision == "allow"
