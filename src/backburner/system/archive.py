"""The file of a backup: a compressed tar archive of regular files and folders, with a checksum of everything at its end.

Reading trusts nothing: a path that is absolute or contains `..`, a link, a device, a repeated path, or a missing or wrong checksum is
refused with ArchiveError.
"""

import contextlib
import errno
import gzip
import io
import json
import os
import stat
import tarfile
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any

from backburner.core.digests import sha256
from backburner.system.home import open_plain

MANIFEST = "backup.json"  # the last member
FORMAT = 1
_PIECE_BYTES = 1 << 18
_MAX_MANIFEST_BYTES = 1 << 16
_MAX_PATH_BYTES = 2000  # longer paths, and folders nested deeper than this, could not be created again
_MAX_DEPTH = 200
_DAMAGED = (tarfile.TarError, EOFError, zlib.error, ValueError, OverflowError, UnicodeError)


class ArchiveError(Exception):
    """What is wrong with an archive."""


class ArchiveWriter:
    """Writes an archive to an open file. `skipped` counts what cannot be stored: links, pipes, and files that cannot be read."""

    def __init__(self, file: IO[bytes]) -> None:
        # a low level is several times faster, for a few percent more bytes
        self._compressed = gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=1)
        self._tar = tarfile.open(fileobj=self._compressed, mode="w", format=tarfile.PAX_FORMAT)
        self._digest = sha256()
        self.count = self.skipped = 0

    def __enter__(self) -> "ArchiveWriter":
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        if kind is not None:
            setattr(self._compressed, "fileobj", None)  # noqa: B010  # nothing more is written to a file that is not complete

    def add_file(self, path: str, name: str) -> None:
        """Add a file; FileNotFoundError if there is no regular file with this path."""
        self._add(open_plain(path), name)

    def add_folder(self, path: str, name: str, wanted: Callable[[str], bool]) -> None:
        """Add a folder with what is in it and `wanted`, by the path below the folder. Does nothing if it does not exist."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # it was cleared meanwhile
            self._add_folder(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW), name, "", wanted, 0)

    def close(self, manifest: dict[str, object]) -> None:
        """Finish the archive with these facts and its checksum."""
        facts = {"format": FORMAT, **manifest, "members": self.count, "sha256": self._digest.hexdigest()}
        content = json.dumps(facts, indent=2).encode()
        member = tarfile.TarInfo(MANIFEST)
        member.size, member.mode = len(content), 0o600
        self._tar.addfile(member, io.BytesIO(content))
        self._tar.close()
        self._compressed.close()

    def _add_folder(self, descriptor: int, name: str, below: str, wanted: Callable[[str], bool], depth: int) -> None:
        try:
            member = tarfile.TarInfo(name)
            status = os.fstat(descriptor)
            member.type, member.mode, member.mtime = tarfile.DIRTYPE, stat.S_IMODE(status.st_mode), int(status.st_mtime)
            self._start(member)
            self._tar.addfile(member)
            _forget_members(self._tar)
            for entry in sorted(os.listdir(descriptor)):
                path = f"{below}/{entry}" if below else entry
                if not wanted(path):
                    continue
                if depth > _MAX_DEPTH or len(os.fsencode(f"{name}/{entry}")) > _MAX_PATH_BYTES:
                    self.skipped += 1
                    continue
                try:
                    child = os.open(entry, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=descriptor)
                except FileNotFoundError:
                    continue  # deleted meanwhile
                except OSError as error:
                    if error.errno not in (errno.ELOOP, errno.EACCES, errno.EPERM, errno.ENXIO):
                        raise
                    self.skipped += 1
                    continue
                mode = os.fstat(child).st_mode
                if stat.S_ISDIR(mode):
                    self._add_folder(child, f"{name}/{entry}", path, wanted, depth + 1)
                elif stat.S_ISREG(mode):
                    self._add(child, f"{name}/{entry}")
                else:
                    os.close(child)
                    self.skipped += 1
        finally:
            os.close(descriptor)

    def _add(self, descriptor: int, name: str) -> None:
        with open(descriptor, "rb", buffering=0) as file:
            status = os.fstat(descriptor)
            member = tarfile.TarInfo(name)
            member.size, member.mode, member.mtime = status.st_size, stat.S_IMODE(status.st_mode), int(status.st_mtime)
            self._start(member)
            self._tar.addfile(member, _Content(file, status.st_size, self._digest))
            _forget_members(self._tar)

    def _start(self, member: tarfile.TarInfo) -> None:
        self.count += 1
        self._digest.update(_heading(member))


class _Content(io.RawIOBase):
    """Exactly `size` bytes of a file that may change while it is read: what was added is left out, what was cut off is read as zeros."""

    def __init__(self, file: IO[bytes], size: int, digest: Any) -> None:
        self._file, self._left, self._digest = file, size, digest

    def read(self, size: int = -1) -> bytes:
        wanted = self._left if size < 0 else min(size, self._left)
        content = b""
        while len(content) < wanted and (piece := self._file.read(wanted - len(content))):
            content += piece
        content = content.ljust(wanted, b"\0")
        self._left -= wanted
        self._digest.update(content)
        return content


class ArchiveReader:
    """Reads an archive from an open file. `manifest` is known after all members were read."""

    def __init__(self, file: IO[bytes]) -> None:
        self.manifest: dict[str, Any] = {}
        self._digest = sha256()
        try:
            self._tar = tarfile.open(fileobj=file, mode="r|gz")
        except _DAMAGED as error:
            raise ArchiveError(f"it is not a backup ({error})") from None
        except OSError as error:
            raise _unreadable(error) from None

    def members(self) -> Iterator[tuple[str, "Member"]]:
        """Yield the path and the member of each file and folder; each must be read before the next. ArchiveError for any deviation."""
        count = 0
        try:
            while (info := self._tar.next()) is not None:
                if self.manifest:
                    raise ArchiveError(f"something follows after {MANIFEST}")
                if info.name == MANIFEST:
                    self._read_manifest(info)
                    continue
                _check_member(info)
                count += 1
                self._digest.update(_heading(info))
                member = Member(self._tar, info, self._digest)
                yield info.name, member
                member.skip_rest()
                _forget_members(self._tar)
        except _DAMAGED as error:
            raise ArchiveError(f"it is damaged or incomplete ({error})") from None
        except OSError as error:
            raise _unreadable(error) from None
        if not self.manifest:
            raise ArchiveError("it is incomplete")
        if self.manifest.get("members") != count or self.manifest.get("sha256") != self._digest.hexdigest():
            raise ArchiveError("its checksum is wrong")

    def _read_manifest(self, info: tarfile.TarInfo) -> None:
        if not info.isreg() or info.size > _MAX_MANIFEST_BYTES:
            raise ArchiveError(f"its {MANIFEST} is not valid")
        file = self._tar.extractfile(info)
        found = json.loads(file.read()) if file else None
        if not isinstance(found, dict) or not isinstance(found.get("format"), int):
            raise ArchiveError(f"its {MANIFEST} is not valid")
        if found["format"] > FORMAT:
            raise ArchiveError("it was written by a newer version of Backburner")
        self.manifest = found


class Member:
    """A file or a folder of an archive."""

    def __init__(self, tar: tarfile.TarFile, info: tarfile.TarInfo, digest: Any) -> None:
        self.is_folder, self.size, self._name = info.isdir(), info.size, info.name
        self._mode, self._time = info.mode & 0o777, info.mtime
        self._file = tar.extractfile(info) if info.isreg() else None
        self._digest = digest

    def write(self, path: str) -> None:
        """Create the file or the folder, accessible only by the user. Never replaces anything."""
        try:
            if self.is_folder:
                os.mkdir(path, 0o700)
                return
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        except FileExistsError:
            raise ArchiveError(f"it contains {self._name!r} twice") from None
        except FileNotFoundError:
            raise ArchiveError(f"it contains {self._name!r} without its folder") from None
        with open(descriptor, "wb") as target:
            for piece in self._pieces():
                target.write(piece)
            os.fchmod(target.fileno(), self._mode & 0o700 | 0o400)
        with contextlib.suppress(OSError, OverflowError):
            os.utime(path, (self._time, self._time))

    def skip_rest(self) -> None:
        for _ in self._pieces():
            pass

    def _pieces(self) -> Iterator[bytes]:
        while self._file and (piece := self._read(self._file)):
            self._digest.update(piece)
            yield piece

    def _read(self, file: IO[bytes]) -> bytes:
        try:
            return file.read(_PIECE_BYTES)
        except _DAMAGED as error:
            raise ArchiveError(f"it is damaged or incomplete ({error})") from None


def _forget_members(tar: tarfile.TarFile) -> None:
    """A TarFile remembers every member; the memory must not grow with the archive."""
    getattr(tar, "members").clear()  # noqa: B009


def _check_member(info: tarfile.TarInfo) -> None:
    if not (info.isreg() or info.isdir()) or info.issparse():
        raise ArchiveError(f"it contains {info.name!r}, which is not a regular file or a folder")
    parts = info.name.split("/")
    if info.name.startswith("/") or "\0" in info.name or any(part in ("", ".", "..") for part in parts):
        raise ArchiveError(f"it contains the path {info.name!r}")


def _heading(info: tarfile.TarInfo) -> bytes:
    return f"{'folder' if info.isdir() else 'file'} {info.size} {info.name}\n".encode("utf-8", "surrogateescape")


def _unreadable(error: OSError) -> ArchiveError:
    return ArchiveError(f"it is not a backup, or it cannot be read ({error.strerror or error})")
