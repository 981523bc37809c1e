"""Programs that show something of a service or of the system, and those that open windows outside of the sandbox."""

from pathlib import Path

import pytest

from approval.command_world import make_project, sandbox_verdict
from backburner.core.sandbox import Network

RUNS = [
    "docker inspect -f '{{.State.Status}}' web",
    "docker inspect --format '{{json .NetworkSettings.Ports}}' web",
    "docker volume inspect data",
    "docker network inspect bridge",
    "kubectl rollout status deploy/web",
    "kubectl auth can-i get pods",
    "helm list -A",
    "gh api repos/a/b/pulls/12/comments",
    "gh api repos/a/b/pulls/12/comments --paginate --jq '.[] | .body' | head",
    "gh api -H 'Accept: application/vnd.github+json' /repos/a/b/actions/runs/1/jobs",
    "gh api 'repos/{owner}/{repo}/issues?state=open&per_page=5' -q '.[].title'",
    "gh api -X GET user",
    "helm template ./chart",
    "kubectl kustomize overlays/staging | head",
    "kubectl create deployment web --image=web --dry-run=client -o yaml",
    "kubectl run web --image=web --dry-run=client -o yaml",
    "mount",
    "mount -l | head",
    "sysctl -n kernel.hostname",
    "date -d '3 days ago' +%F",
    "date --date=yesterday -u",
    "git symbolic-ref --short HEAD",
    "git worktree list --porcelain",
    "git notes show",
    "pip config list",
    "code --version",
]
ASKS = [
    "docker inspect web",
    "docker inspect -f '{{json .}}' web",
    "docker inspect -f '{{.Config.Env}}' '{{.State}}'",
    "docker inspect -f '{{.State}}' -f '{{.Config.Env}}' web",
    "docker inspect -f '{{.State}}{{.Config.Env}}' web",
    "docker inspect --format='{{.Config.Env}}' web",
    "docker image inspect app",
    "docker build -f x .",
    "kubectl rollout restart deploy/web",
    "kubectl config view",
    "kubectl kustomize https://github.com/a/b?ref=v1",
    "kubectl kustomize github.com/a/b",
    "kubectl create -f web.yaml --dry-run=client",
    "kubectl create deployment web --image=web --dry-run=server",
    "kubectl create secret generic web --from-env-file=.env --dry-run=client -o yaml",
    "kubectl apply -f web.yaml --dry-run=client",
    "helm list --kube-token x",
    "gh api repos/a/b/issues -f title=x",
    "gh api repos/a/b/issues --field title=x",
    "gh api repos/a/b/issues --input README.md",
    "gh api -X DELETE repos/a/b/branches/main/protection",
    "gh api -XPOST repos/a/b/issues",
    "gh api --method=PATCH repos/a/b/issues/1",
    "gh api repos/a/b/issues -X",
    "gh api repos/a/b/contents/.env",
    "gh api repos/a/b/git/blobs/1234",
    "gh api repos/a/b/actions/secrets",
    "gh api repos/a/b/pulls/../contents/x",
    "gh api repos/a/b/pulls repos/a/b/issues",
    "gh api graphql -f query=x",
    "gh api https://example.org/repos/a/b/pulls",
    "gh api --hostname example.org repos/a/b/pulls",
    "gh api -H 'Authorization: x' repos/a/b/pulls",
    "gh api repos/a/b/pulls/$(cat x)",
    "gh api user/keys",
    "helm get values web",
    "helm upgrade web ./chart",
    "mount -o remount,rw /",
    "sysctl -w vm.swappiness=1",
    "sysctl vm.swappiness=1",
    "date -s 12:00",
    "date -d 01011200 01011200",
    "date 01011200",
    "git symbolic-ref HEAD refs/heads/x",
    "git symbolic-ref -d HEAD",
    "git notes remove",
    "git worktree remove x",
    "code .",
    "cursor src/main.py",
    "subl .",
    "osascript -e x",
    "notify-send hi",
    "gdbus call --session",
]


@pytest.mark.parametrize("line", RUNS)
def test_what_only_shows_something_runs(tmp_path: Path, line: str) -> None:
    assert sandbox_verdict(make_project(tmp_path), line, trusted=True).sandbox is not None


@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize("line", ASKS)
def test_what_changes_something_asks(tmp_path: Path, line: str, trusted: bool) -> None:
    assert sandbox_verdict(make_project(tmp_path), line, trusted=trusted).sandbox is None


def test_the_names_in_a_compose_file_are_shown_without_network(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    for line in ("docker compose config --services", "docker compose config -q --profiles"):
        found = sandbox_verdict(project, line).sandbox
        assert found and found.network is Network.NONE and found.sockets == (), line
    assert sandbox_verdict(project, "docker compose config").sandbox is None, "it shows values from .env, which is hidden"
    (project / ".env").unlink()
    assert sandbox_verdict(project, "docker compose config").sandbox
    for line in (
        "docker compose config --output=x",
        "docker compose -f /etc/x.yml config --services",
        "docker compose --env-file x config --services",
        "docker compose config --services --resolve-image-digests",
        "docker compose config $X",
    ):
        assert sandbox_verdict(project, line, trusted=True).sandbox is None, line
