"""The programs of systemd: what only asks the system gets its bus, and nothing else of the machine."""

from pathlib import Path

import pytest

from approval.command_world import PATH, make_project, sandbox_verdict
from backburner.core.sandbox import Level, Network, View

READS = [
    "systemctl status nginx",
    "systemctl status nginx --no-pager -l -n 20",
    "systemctl list-units --type=service | head",
    "systemctl is-active docker",
    "systemctl -t service list-units",
    "systemctl",
    "timedatectl",
    "timedatectl status | grep zone",
    "hostnamectl",
    "loginctl list-sessions",
]
ASKS = [
    "systemctl restart nginx",
    "systemctl show nginx",
    "systemctl cat nginx",
    "systemctl show-environment",
    "systemctl --user status",
    "systemctl -H host status",
    "systemctl --host=host status",
    "systemctl -M box status",
    "systemctl --root=/x is-enabled a",
    "systemctl status $UNIT",
    "systemctl status; systemctl stop nginx",
    "systemctl -n 5 stop nginx",
    "systemctl -t status stop nginx",
    "systemctl status | sh",
    "systemctl status && make",
    "systemctl status > out.txt",
    "systemctl status; cat README.md",
    "systemctl status; docker ps",
    "systemctl status; ps aux",
    "systemctl status; npm view react",
    "timedatectl set-time 12:00",
    "hostnamectl set-hostname x",
    "hostnamectl hostname x",
    "loginctl terminate-session 1",
    "./systemctl status",
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = make_project(tmp_path)
    (project / "systemctl").write_text("#!/bin/sh\n")
    (project / "systemctl").chmod(0o755)
    return project


@pytest.mark.parametrize("line", READS)
def test_asking_the_system_gets_its_bus(project: Path, line: str) -> None:
    found = sandbox_verdict(project, line).sandbox
    assert found and "/run/dbus/system_bus_socket" in found.sockets
    assert (found.network, found.view, found.processes, found.connect) == (Network.NONE, View.READ_ONLY, False, ())
    assert found.only_known_programs


@pytest.mark.parametrize("line", ASKS)
def test_everything_else_needs_approval(project: Path, line: str) -> None:
    found = sandbox_verdict(project, line, trusted=True)
    assert found.sandbox is None or not found.sandbox.sockets, found.sandbox


def test_a_program_of_the_project_does_not_get_the_bus(project: Path) -> None:
    found = sandbox_verdict(project, "systemctl status", trusted=True, environ={"PATH": f"{project}:{PATH}"}).sandbox
    assert found is None or not found.sockets


@pytest.mark.parametrize("level", [Level.PARTIAL, Level.NONE])
def test_without_bubblewrap_it_needs_approval(project: Path, level: Level) -> None:
    assert sandbox_verdict(project, "systemctl status nginx", trusted=True, level=level).sandbox is None
