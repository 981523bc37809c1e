"""Targets, scripts and programs whose names say that they deliver or install something: a person decides, although a sandbox would stop them."""

from pathlib import Path

import pytest

from approval.command_world import make_project, sandbox_verdict

ASKS = [
    "make deploy",
    "make -j2 deploy-staging",
    "npm run deploy",
    "npm run publish:beta -- --dry",
    "yarn deploy",
    "pnpm run deploy",
    "just deploy prod",
    "rake deploy",
    "./gradlew publish",
    "bash scripts/deploy.sh",
    "./scripts/deploy.sh prod",
    "python3 deploy.py",
    "playwright install chromium",
    "npx playwright install",
    "some-cli login",
    "some-cli deploy",
    "openssl s_client -connect example.org:443",
    "ssh-keygen -t ed25519 -f ~/.ssh/new -N ''",
]
RUNS = [
    "make -n deploy",
    "make all",
    "make DEPLOY=1 test",
    "npm run build",
    "npm test -- deploy",
    "bash -n scripts/deploy.sh",
    "cat scripts/deploy.sh",
    "pytest tests/test_upload.py",
    "python3 src/upload_handler.py",
    "some-cli status",
    "npx playwright test",
    "openssl version",
    "ssh-keygen -t ed25519 -f key -N ''",
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = make_project(tmp_path)
    (project / "node_modules/.bin").mkdir(parents=True)
    (project / "node_modules/.bin/playwright").touch()
    return project


@pytest.mark.parametrize("line", ASKS)
def test_a_delivery_needs_approval(project: Path, line: str) -> None:
    assert sandbox_verdict(project, line, trusted=True).sandbox is None


@pytest.mark.parametrize("line", RUNS)
def test_other_targets_run(project: Path, line: str) -> None:
    found = sandbox_verdict(project, line, trusted=True)
    assert found.sandbox, found.reasons
