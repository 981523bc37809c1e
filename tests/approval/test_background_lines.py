"""Lines that start a server or another command and then talk to it or end it: they have a loopback device and processes of their own."""

from pathlib import Path

import pytest

from approval.command_world import make_project, sandbox_verdict
from backburner.core.sandbox import Level, Network

OWN = [
    "python3 -m http.server 8123 & PID=$!; sleep 1; curl -s localhost:8123/; kill $PID",
    "(node server.js & echo $! > server.pid); sleep 1; curl -sf localhost:3000; kill $(cat server.pid)",
    "python3 app.py & sleep 2; curl -s -X POST localhost:5000/api -H 'content-type: application/json' -d '{\"name\":\"x\"}'; kill $!",
    'PORT=5001; python3 app.py & curl -s -F file=@README.md "http://localhost:$PORT/upload"',
    "sleep 5 & curl -X DELETE http://127.0.0.1:5432/",
]
ASKS = [
    "kill $PID",
    "kill $(cat server.pid)",
    "kill -9 1234",
    "sleep 1 & kill -9 1234",
    "sleep 1 & kill $! 1234",
    "sleep 1 & kill $(pgrep node)",
    "sleep 1 & ps aux; kill $PID",
    "sleep 1 & ss -ltn; kill $PID",
    "sleep 1 & top -b -n1; kill $PID",
    "sleep 1 & systemctl status; kill $PID",
    "sleep 1 & kill $(lsof -t -i:3000)",
    "curl -X POST localhost:5000/api -d x",
    "curl -F file=@README.md http://localhost:5000/",
    "python3 app.py & curl -X POST https://example.org -d x",
    "python3 app.py & curl -X POST localhost:5000 https://example.org",
    "python3 app.py & curl -d x http://localhost.example.org/",
    "python3 app.py & curl -d x http://localhost@example.org/",
    "python3 app.py & curl -d x http://localhost:80@example.org/",
    'python3 app.py & curl -d x "$URL"',
    'python3 app.py & curl -d x "http://localhost$X/"',
    "python3 app.py & git push",
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path)


@pytest.mark.parametrize("trusted", [True, False], ids=["trusted", "new"])
@pytest.mark.parametrize("line", OWN)
def test_a_line_reaches_only_what_it_has_started(project: Path, line: str, trusted: bool) -> None:
    found = sandbox_verdict(project, line, trusted=trusted)
    assert found.sandbox, found.reasons
    assert (found.sandbox.network, found.sandbox.connect, found.sandbox.processes) == (Network.NONE, (), False)


@pytest.mark.parametrize("line", ASKS)
def test_what_may_reach_others_needs_approval(project: Path, line: str) -> None:
    assert sandbox_verdict(project, line, trusted=True).sandbox is None


@pytest.mark.parametrize("line", OWN)
def test_with_landlock_alone_they_need_approval(project: Path, line: str) -> None:
    assert sandbox_verdict(project, line, trusted=True, level=Level.PARTIAL).sandbox is None
