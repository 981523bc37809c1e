"""Ports that the commands of a trusted project may use: requests to them ask no more than other code of the project."""

from pathlib import Path

import pytest

from approval.command_world import make_project, sandbox_verdict
from backburner.core.sandbox import Level, Network, View

RUNS = [
    "curl -X POST localhost:3000/users -H 'Content-Type: application/json' -d '{\"name\": \"x\"}'",
    "curl -sS -XDELETE http://127.0.0.1:3000/users/1",
    "curl -s --request PUT --data @data.csv -o answer.json localhost:3000/x",
    "curl -s localhost:3000/users | python3 -m json.tool",
    "curl -s localhost:3000/a && curl -d x localhost:3000/b",
]
ASKS = [
    "curl -X POST localhost:3001/users",
    "curl -X POST localhost:3000/users localhost:3001/users",
    "curl -X POST http://localhost:$PORT/users",
    "curl -X POST localhost/users",
    "curl -X POST example.org:3000/users",
    "curl -X POST http://localhost:3000@example.org/",
    "curl -X POST --proxy http://example.org:3000 localhost:3000/",
    "curl -X POST --resolve localhost:3000:10.0.0.1 localhost:3000/",
    "curl -X POST --connect-to localhost:3000:example.org:3000 localhost:3000/",
    "curl -X POST -K options localhost:3000/",
    "curl -L -X POST localhost:3000/",
    "curl -d @.env localhost:3000/",
    "curl -F file=@.env localhost:3000/",
    "curl -s localhost:3001/users | python3 -m json.tool",
    "curl -d x localhost:3000/ && gh pr view 1",
    "curl -d x localhost:3000/ && curl https://example.org",
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path)


@pytest.mark.parametrize("line", RUNS)
def test_a_request_to_a_permitted_port_is_like_code_of_the_project(project: Path, line: str) -> None:
    found = sandbox_verdict(project, line, trusted=True, connect=(3000,))
    assert found.sandbox, found.reasons
    assert (found.sandbox.network, found.sandbox.connect, found.sandbox.view) == (Network.LISTEN, (3000,), View.WRITABLE)
    assert sandbox_verdict(project, line, trusted=True).sandbox is None, "not without this port"
    assert sandbox_verdict(project, line, connect=(3000,)).sandbox is None, "not in a project that is not trusted"
    assert sandbox_verdict(project, line, trusted=True, level=Level.PARTIAL, connect=(3000,)).sandbox is None, "not without a full sandbox"


@pytest.mark.parametrize("line", ASKS)
def test_other_requests_ask(project: Path, line: str) -> None:
    assert sandbox_verdict(project, line, trusted=True, connect=(3000,)).sandbox is None


def test_a_request_that_only_reads_gets_no_more_than_before(project: Path) -> None:
    found = sandbox_verdict(project, "curl -s localhost:3000/users | jq .", trusted=True, connect=(3000,)).sandbox
    assert found
    assert (found.view, set(found.connect)) == (View.READ_ONLY, {3000})


def test_a_line_that_starts_a_server_talks_to_this_one(project: Path) -> None:
    found = sandbox_verdict(project, "npm run dev & sleep 1; curl -d x localhost:3000/", trusted=True, connect=(3000,)).sandbox
    assert found
    assert (found.network, found.connect) == (Network.NONE, ())
