"""Files in /etc that only root may read are hidden from what root runs in a sandbox: by one overlay, or by a mount for each."""

import os
import subprocess
from pathlib import Path

import pytest

from backburner.execution import bubblewrap, private_settings
from backburner.system.home import Home
from backburner.system.sandbox_support import NAMESPACES, find_support

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can read these files")


@pytest.fixture(autouse=True)
def fresh() -> None:
    private_settings._empty_copies.cache_clear()
    private_settings._hides.cache_clear()


@pytest.fixture
def program(tmp_path: Path) -> str:
    support = find_support(Home(str(tmp_path / "support")))
    if not support.bubblewrap or not support.overlay or private_settings._has_mounts("/etc"):
        pytest.skip("needs bubblewrap with overlays, and nothing that is mounted below /etc")
    return support.bubblewrap


def private(*, folders: bool) -> list[str]:
    return [path for path, is_folder in private_settings.private_settings() if is_folder == folders]


@pytest.mark.parametrize("by_overlay", [True, False])
def test_they_are_empty_in_the_sandbox(tmp_path: Path, program: str, by_overlay: bool) -> None:
    hidden = private_settings.empty_copies(str(tmp_path), program) if by_overlay else None
    assert bool(hidden) == by_overlay
    words = [program, *NAMESPACES, *bubblewrap._system(hidden, -1.0), "--"]

    def output(*command: str) -> str:
        return subprocess.run([*words, *command], capture_output=True, text=True, env={"PATH": os.defpath}).stdout

    assert "/etc/shadow" in private(folders=False)
    assert output("cat", *private(folders=False)) == ""
    assert [words[at + 1] for at, word in enumerate(words) if word == "--tmpfs"] == private(folders=True)
    assert output("cat", "/etc/passwd") == Path("/etc/passwd").read_text()
    assert sorted(output("ls", "-A", "/etc").split("\n")[:-1]) == sorted(os.listdir("/etc"))
    assert "Read-only" in subprocess.run([*words, "touch", "/etc/new"], capture_output=True, text=True).stderr
    assert words.count("/dev/null") == (0 if by_overlay else len(private(folders=False)))


def test_what_is_mounted_below_is_not_left_out(tmp_path: Path, program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An overlay would show the files below these mounts; containers mount some there."""
    assert private_settings._has_mounts("/proc") and not private_settings._has_mounts("/pro")
    monkeypatch.setattr(private_settings, "_has_mounts", lambda folder: folder == "/etc")
    assert private_settings.empty_copies(str(tmp_path), program) is None


def test_an_overlay_that_cannot_be_mounted_or_hides_too_little_is_not_used(tmp_path: Path, program: str) -> None:
    assert private_settings.empty_copies(str(tmp_path), "/bin/false") is None
    assert private_settings.empty_copies(str(tmp_path), str(tmp_path / "missing")) is None
    fresh_copies = tmp_path / "other"
    folder = private_settings.empty_copies(str(fresh_copies), program)
    assert folder
    (Path(folder) / "shadow").unlink()
    private_settings._empty_copies.cache_clear()
    private_settings._hides.cache_clear()
    assert private_settings.empty_copies(str(fresh_copies), program) is None
