"""The file of a backup: what goes in comes out, and an archive that was damaged or made by somebody else is refused."""

import gzip
import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from backburner.system.archive import MANIFEST, ArchiveError, ArchiveReader, ArchiveWriter


def written(folder: Path, wanted: Callable[[str], bool] = lambda _: True) -> tuple[bytes, int]:
    file = io.BytesIO()
    archive = ArchiveWriter(file)
    archive.add_folder(str(folder), "run", wanted)
    archive.close({"tasks": 1})
    return file.getvalue(), archive.skipped


def unpacked(content: bytes, target: Path) -> dict[str, object]:
    target.mkdir()
    reader = ArchiveReader(io.BytesIO(content))
    for name, member in reader.members():
        member.write(str(target / name))
    return reader.manifest


def made(*members: tarfile.TarInfo, manifest: bool = True) -> bytes:
    """An archive with these members, made without the code under test."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size))
        if manifest:
            content = json.dumps({"format": 1, "members": len(members), "sha256": ""}).encode()
            last = tarfile.TarInfo(MANIFEST)
            last.size = len(content)
            tar.addfile(last, io.BytesIO(content))
    return file.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def test_files_and_folders_come_out_as_they_went_in(tmp_path: Path) -> None:
    folder = tmp_path / "from"
    (folder / "work" / "ünïcode \udcff").mkdir(parents=True)
    (folder / "output.log").write_bytes(os.urandom(300_000))
    (folder / "work" / "ünïcode \udcff" / "a\nb").write_text("text")
    (folder / "empty").write_text("")
    (folder / "tool").write_text("#!/bin/sh")
    (folder / "tool").chmod(0o755)
    content, skipped = written(folder)
    assert unpacked(content, tmp_path / "to")["tasks"] == 1 and skipped == 0
    for path in folder.rglob("*"):
        copy = tmp_path / "to" / "run" / path.relative_to(folder)
        assert copy.is_dir() if path.is_dir() else copy.read_bytes() == path.read_bytes()
    assert (tmp_path / "to" / "run" / "tool").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "to" / "run" / "output.log").stat().st_mode & 0o077 == 0


def test_links_pipes_and_deep_folders_are_left_out_and_counted(tmp_path: Path) -> None:
    folder = tmp_path / "from"
    folder.mkdir()
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "folder").symlink_to("/etc")
    os.mkfifo(folder / "pipe")
    deep = os.open(folder, os.O_RDONLY)
    for _ in range(300):
        os.mkdir("d", dir_fd=deep)
        below = os.open("d", os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = below
    os.close(deep)
    content, skipped = written(folder)
    unpacked(content, tmp_path / "to")
    assert skipped == 4 and os.listdir(tmp_path / "to" / "run") == ["d"]


def test_only_what_is_wanted_is_stored(tmp_path: Path) -> None:
    folder = tmp_path / "from"
    (folder / "changes" / "x").mkdir(parents=True)
    (folder / "work" / "changes").mkdir(parents=True)
    content, _ = written(folder, lambda path: path != "changes")
    unpacked(content, tmp_path / "to")
    assert os.listdir(tmp_path / "to" / "run") == ["work"] and (tmp_path / "to" / "run" / "work" / "changes").is_dir()


@pytest.mark.parametrize(
    ("hostile", "sentence"),
    [
        (member("/etc/passwd"), "the path '/etc/passwd'"),
        (member("tasks/../../x"), "the path 'tasks/../../x'"),
        (member(".."), "the path '..'"),
        (member("a//b"), "the path 'a//b'"),
        (member("link", tarfile.SYMTYPE, "/etc/passwd"), "'link', which is not a regular file or a folder"),
        (member("link", tarfile.LNKTYPE, "ledger.db"), "'link', which is not a regular file or a folder"),
        (member("device", tarfile.CHRTYPE), "'device', which is not a regular file or a folder"),
        (member("pipe", tarfile.FIFOTYPE), "'pipe', which is not a regular file or a folder"),
    ],
)
def test_paths_outside_and_anything_but_files_and_folders_are_refused(tmp_path: Path, hostile: tarfile.TarInfo, sentence: str) -> None:
    with pytest.raises(ArchiveError, match=sentence.replace(".", r"\.")):
        unpacked(made(hostile), tmp_path / "to")
    assert os.listdir(tmp_path / "to") == [] and sorted(os.listdir(tmp_path)) == ["to"]


def test_a_path_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="'a' twice"):
        unpacked(made(member("a"), member("a")), tmp_path / "to")


def test_damaged_cut_off_and_foreign_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / "a").write_bytes(os.urandom(10_000))
    content, _ = written(tmp_path / "from")
    changed = bytearray(gzip.decompress(content))
    changed[2000] ^= 1
    cases = {
        "nothing": b"",
        "text": b"hello " * 1000,
        "gzip of text": gzip.compress(b"hello " * 1000),
        "another archive": made(member("a"), manifest=False),
        "a wrong checksum": gzip.compress(bytes(changed)),
        "no manifest": made(member("a")),
        **{f"the first {length} bytes": content[:length] for length in range(0, len(content) - 8, 997)},
    }
    for number, (name, case) in enumerate(cases.items()):
        with pytest.raises(ArchiveError):
            unpacked(case, tmp_path / f"to{number}")
            pytest.fail(name)
