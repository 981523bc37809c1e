"""Files that other programs or agents use automatically are not created without approval."""

from pathlib import Path

import pytest

from approval.command_world import make_project, verdict
from backburner.approval.effects import relied_on

NAMES = """.claude/settings.json .mcp.json .vscode/tasks.json .idea/x.xml .cursor/mcp.json .gemini/settings.json .codex/config.toml opencode.json
.opencode/plugin/x.js .husky/pre-commit .devcontainer/devcontainer.json .zed/tasks.json .envrc .github/workflows/x.yml .gitlab-ci.yml .git/hooks/post-checkout
.pre-commit-config.yaml conftest.py src/conftest.py sitecustomize.py evil.pth CLAUDE.md AGENTS.md .Claude/settings.json .MCP.json Opencode.json .gitattributes
lefthook.yml lefthook-local.yaml lefthook.toml Jenkinsfile ci/Jenkinsfile Taskfile.yml taskfile.dist.yaml .gitlab-ci.yml azure-pipelines.yml
bitbucket-pipelines.yml cloudbuild.yaml buildspec.yml Containerfile compose.override.yml Vagrantfile Procfile mise.toml"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path)


@pytest.mark.parametrize("name", NAMES.split())
def test_creating_a_file_that_is_used_automatically_requires_approval(project: Path, name: str) -> None:
    assert relied_on(name)
    for line in (f"touch {name}", f"mkdir -p {name}", f"echo x > {name}", f"cp README.md {name}", f"echo x | tee {name}"):
        assert verdict(project, line).decision == "ask", line


@pytest.mark.parametrize("name", ["new.py", "src/new.py", "out/.gitkeep", "notes.md"])
def test_creating_another_file_is_allowed(project: Path, name: str) -> None:
    assert not relied_on(name)
    (project / "out").unlink()  # it is a link to a directory outside the project
    assert verdict(project, f"touch {name}").decision == "allow"
