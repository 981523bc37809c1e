"""Where there is a network, a sandbox has caches and temporary files of its own: what other commands have left there could run."""

import os
from pathlib import Path

import pytest
from execution.test_sandbox_descriptors import SUPPORT, request

from backburner.core.sandbox import Network, View
from backburner.execution.sandbox import confine


def arguments(tmp_path: Path, network: Network) -> list[str]:
    wanted = request(tmp_path)
    confinement = confine(wanted._replace(sandbox=wanted.sandbox._replace(network=network, view=View.READ_ONLY)), SUPPORT)
    try:
        number = int(confinement.prefix[confinement.prefix.index("--args") + 1])
        return os.pread(number, 1 << 16, 0).decode().split("\0")
    finally:
        confinement.close()


@pytest.mark.parametrize("network", [Network.NONE, Network.LISTEN])
def test_commands_of_a_project_share_caches_and_temporary_files(tmp_path: Path, network: Network) -> None:
    words = arguments(tmp_path, network)
    assert words[words.index("/tmp") - 2] == "--bind" and f"{tmp_path}/user/.cache" in words


def test_a_command_with_network_gets_empty_ones(tmp_path: Path) -> None:
    words = arguments(tmp_path, Network.OPEN)
    assert words[words.index("/tmp") - 1] == "--tmpfs" and f"{tmp_path}/user/.cache" not in words
    folders = [Path(word) for word in words if word.startswith(f"{tmp_path}/home/sandbox/") and Path(word).is_dir()]
    assert not [folder for folder in folders if not folder.name.startswith("etc-")]  # for root: empty files in place of private ones
