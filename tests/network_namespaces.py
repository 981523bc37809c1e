"""Hosts in network namespaces: one namespace for the server, and one for each host, which is connected to the first by a link of its own.

Nothing is added to the network of the machine, so several tests can have such networks at the same time. Needs root.
"""

import itertools
import os
import subprocess
from collections.abc import Sequence
from typing import Self

SERVER_ADDRESSES = "10.213.0.0/16"
_numbers = itertools.count()


def can_be_made() -> bool:
    """Whether this process may create network namespaces and links between them."""
    if os.getuid() != 0:
        return False
    try:
        Network(["try"]).close()
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


class Network:
    """A server and some hosts. `close` removes the namespaces; what runs in them must have ended."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._name = f"bb{os.getpid()}-{next(_numbers)}"
        self._numbers = {host: number for number, host in enumerate(hosts, 1)}
        self._made: list[str] = []
        try:
            self._make("server")
            for host in hosts:
                self._make(host)
                self._connect(host)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def enter(self, where: str) -> list[str]:
        """The words before a command that runs at `where`: `server`, or the name of a host."""
        return ["nsenter", f"--net=/run/netns/{self._name}-{where}"]

    def server_address(self, host: str) -> str:
        """The address of the server as seen from a host."""
        return f"10.213.{self._numbers[host]}.1"

    def cut(self, host: str) -> None:
        """Take the link of a host down: nothing reaches it any more, and nobody is told."""
        self._set_link(host, "down")

    def mend(self, host: str) -> None:
        self._set_link(host, "up")

    def close(self) -> None:
        while self._made:
            _ip("netns", "del", self._made.pop())

    def _make(self, where: str) -> None:
        _ip("netns", "add", f"{self._name}-{where}")
        self._made.append(f"{self._name}-{where}")
        _ip("-n", f"{self._name}-{where}", "link", "set", "lo", "up")

    def _connect(self, host: str) -> None:
        number, there, here = self._numbers[host], f"{self._name}-{host}", f"{self._name}-server"
        _ip("-n", here, "link", "add", f"to{number}", "type", "veth", "peer", "name", "net0", "netns", there)
        _ip("-n", here, "address", "add", f"{self.server_address(host)}/24", "dev", f"to{number}")
        _ip("-n", there, "address", "add", f"10.213.{number}.2/24", "dev", "net0")
        _ip("-n", here, "link", "set", f"to{number}", "up")
        _ip("-n", there, "link", "set", "net0", "up")

    def _set_link(self, host: str, state: str) -> None:
        _ip("-n", f"{self._name}-server", "link", "set", f"to{self._numbers[host]}", state)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=True)
