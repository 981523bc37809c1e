"""`backburner web` and `backburner devices` in a terminal."""

import hashlib
import re
import sys

import httpx2
import pytest
from conftest import CAUTIOUS, HomeCli, wait_until
from terminal import Terminal

from backburner.interfaces.web.ports import port_of
from backburner.system.home import Home

COMMAND = [sys.executable, "-m", "backburner", "web", "--port", "0", "--no-open"]


def ask(client: httpx2.Client, credential: str) -> dict[str, str]:
    """Ask to be paired as a page does."""
    commitment = hashlib.sha256(credential.encode()).hexdigest()
    wait_until(lambda: client.get("/api/v1/pair/x").status_code == 200, "the server to answer")
    answer = client.post("/api/v1/pair", json={"commitment": commitment, "name": "Chromium 150 on Linux"})
    assert answer.status_code == 201, answer.text
    return answer.json()


def client_of(text: str) -> httpx2.Client:
    found = re.search(r"backburner\.localhost:(\d+)", text)
    assert found
    return httpx2.Client(base_url=f"http://127.0.0.1:{found[1]}", timeout=30)


def test_a_browser_is_paired_by_typing_its_number_at_the_terminal(home_cli: HomeCli) -> None:
    home_cli.configure(CAUTIOUS)
    with Terminal(COMMAND, cwd=home_cli.cwd, env={**home_cli.environ, "TERM": "xterm"}, columns=140) as terminal:
        terminal.wait("type the number that it shows")
        with client_of(terminal.text) as client:
            headers = {"Authorization": "Bearer dev_secret"}
            asked = ask(client, "dev_secret")
            terminal.wait("A browser asks to be paired: Chromium 150 on Linux")
            assert client.get("/api/v1/home", headers=headers).status_code == 401
            terminal.type("000000\r" if asked["number"] != "000000" else "000001\r")
            terminal.wait("No page shows this number")
            terminal.type(f"{asked['number'][:3]} {asked['number'][3:]}\r")
            terminal.wait("Paired Chromium 150 on Linux as device_")
            assert client.get(f"/api/v1/pair/{asked['pairing']}").json()["state"] == "paired"
            assert client.get("/api/v1/home", headers=headers).json()["caller"]["kind"] == "device"
        assert "Chromium 150 on Linux" in home_cli.ok("devices") and "no passkey" in home_cli.ok("devices")
        terminal.type("\x03")
        wait_until(lambda: not home_cli.hosts("interfaces.web.server"), "the server to exit")


def test_a_server_that_an_agent_started_pairs_nothing(home_cli: HomeCli) -> None:
    home_cli.configure(CAUTIOUS)
    env = {**home_cli.environ, "TERM": "xterm", "CLAUDECODE": "1"}
    with Terminal(COMMAND, cwd=home_cli.cwd, env=env, columns=140) as terminal:
        terminal.wait("Pages cannot be paired here: Only a person can approve")
        with client_of(terminal.text) as client:
            wait_until(lambda: client.get("/api/v1/pair/x").status_code == 200, "the server to answer")
            answer = client.post("/api/v1/pair", json={"commitment": "0" * 64, "name": "x"})
            assert answer.status_code == 403 and answer.json()["error"]["code"] == "pairing_closed"
        terminal.type("\x03")
        wait_until(lambda: not home_cli.hosts("interfaces.web.server"), "the server to exit")


def test_revoking_an_unknown_device_fails_and_needs_a_person(home_cli: HomeCli) -> None:
    home_cli.configure(CAUTIOUS)
    done = home_cli.cli("devices", "revoke", "device_x", env={"CLAUDECODE": "1"})
    assert done.returncode == 3 and "Only a person" in done.stderr
    assert home_cli.cli("devices", "revoke").returncode == 2 and home_cli.json("devices") == []


@pytest.mark.parametrize(("root", "port"), [("/home/me/.backburner", 8765), ("/other", 0)])
def test_every_home_has_a_fixed_port(root: str, port: int) -> None:
    found = port_of(Home(root), "/home/me/.backburner")
    assert found == port_of(Home(root), "/home/me/.backburner") and (found == port or 20_000 <= found < 30_000)
