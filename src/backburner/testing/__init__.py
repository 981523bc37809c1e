"""Fakes for tests: a clock that only advances when it is told to, and a disk that loses its power.

They replace the environment, not Backburner: a test with them uses the real ledger.
"""

import random
from typing import Any

import apsw

_SECTOR = 512


class FakeClock:
    """A `Clock` that does not move until it is advanced. Milliseconds UTC."""

    def __init__(self, now: int = 1_770_000_000_000) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def advance(self, milliseconds: int) -> int:
        """Advance the time (or move it back, with a negative number); returns the new time."""
        self.now += milliseconds
        return self.now


class PowerLossVFS(apsw.VFS):
    """A disk in memory for `open_ledger(path, vfs=disk.name, exclusive=True)`, for one connection at a time.

    A write is only safe after its file was synced. When the power is cut, each file keeps what was synced and, if
    `keep` is above 0, a random share of the other writes, some of them torn at a sector. Files that are open at that time
    only raise errors; the next connection finds what the disk kept. The same seed loses the same writes.
    """

    def __init__(self, name: str, seed: int = 0, keep: float = 0.0) -> None:
        self.name, self.keep = name, keep
        self.cuts = self.operations = 0
        self._random = random.Random(seed)
        self._files: dict[str, _Content] = {}
        self._deleted: dict[str, _Content] = {}
        self._countdown: int | None = None
        super().__init__(name, base="")

    def cut_power(self) -> None:
        """Lose everything that is not safe, immediately."""
        self.cuts += 1
        self._countdown = None
        for path, content in self._deleted.items():
            if path not in self._files and self._random.random() < self.keep:
                self._files[path] = content
        self._deleted = {}
        survived = {path: content.after_power_loss(self._random, self.keep) for path, content in self._files.items()}
        self._files = {path: _Content(data) for path, data in survived.items() if data is not None}

    def cut_power_after(self, operations: int) -> None:
        """Cut the power during the n-th write, sync, truncation or deletion from now on."""
        self._countdown = operations

    def spend(self) -> None:
        """Count one operation; raises if the power is cut during it."""
        self.operations += 1
        if self._countdown is None:
            return
        self._countdown -= 1
        if self._countdown <= 0:
            self.cut_power()
            raise apsw.IOError("the power is gone")

    def sync_folder(self) -> None:
        """Make the creation and deletion of files safe."""
        self._deleted = {}
        for content in self._files.values():
            if content.safe is None:
                content.safe = b""

    # -- called by SQLite

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> Any:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        flags[1] = flags[0]
        if path is None:
            return _Handle(self, _Content(None))
        if path not in self._files:
            if not flags[0] & apsw.SQLITE_OPEN_CREATE:
                raise apsw.CantOpenError(path)
            self._files[path] = _Content(None)
        return _Handle(self, self._files[path])

    def xDelete(self, filename: str, syncdir: bool) -> None:
        if filename not in self._files:
            missing: Any = apsw.IOError(filename)
            missing.extendedresult = apsw.SQLITE_IOERR_DELETE_NOENT
            raise missing
        self.spend()
        content = self._files.pop(filename)
        if content.safe is not None:
            self._deleted[filename] = content
        if syncdir:
            self.sync_folder()

    def xAccess(self, pathname: str, flags: int) -> bool:
        return pathname in self._files

    def xFullPathname(self, name: str) -> str:
        return name


class _Content:
    """A file: its `safe` content (None if even its name is not safe), what a reader sees, and the changes between them."""

    def __init__(self, safe: bytes | None) -> None:
        self.safe = safe
        self.seen = bytearray(safe or b"")
        self.unsafe: list[tuple[int, bytes | None]] = []

    def write(self, offset: int, data: bytes | None) -> None:
        """Write data at an offset, or truncate the file there if data is None."""
        _apply(self.seen, offset, data)
        self.unsafe.append((offset, data))

    def sync(self) -> None:
        self.safe = bytes(self.seen)
        self.unsafe = []

    def after_power_loss(self, chance: random.Random, keep: float) -> bytes | None:
        if self.safe is None and chance.random() >= keep:
            return None
        left = bytearray(self.safe or b"")
        for offset, data in self.unsafe:
            if chance.random() >= keep:
                continue
            if data is None or chance.random() < keep:
                _apply(left, offset, data)
                continue
            for start in range(0, len(data), _SECTOR):
                if chance.random() < 0.5:
                    _apply(left, offset + start, data[start : start + _SECTOR])
        return bytes(left)


def _apply(content: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        del content[offset:]
        return
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


class _Handle:
    """An open file. If it was open when the power was cut, it only raises errors."""

    def __init__(self, disk: PowerLossVFS, content: _Content) -> None:
        self._disk, self._content, self._power = disk, content, disk.cuts

    def _change(self) -> None:
        self._check()
        self._disk.spend()

    def _check(self) -> None:
        if self._power != self._disk.cuts:
            raise apsw.IOError("the power is gone")

    def xRead(self, amount: int, offset: int) -> bytes:
        self._check()
        return bytes(self._content.seen[offset : offset + amount])

    def xWrite(self, data: bytes, offset: int) -> None:
        self._change()
        self._content.write(offset, bytes(data))

    def xTruncate(self, newsize: int) -> None:
        self._change()
        self._content.write(newsize, None)

    def xSync(self, flags: int) -> None:
        if self._power != self._disk.cuts:
            return  # SQLite may sync once more when it closes, and cannot report an error then
        self._disk.spend()
        self._content.sync()
        self._disk.sync_folder()

    def xFileSize(self) -> int:
        return len(self._content.seen)

    def xLock(self, level: int) -> None:
        self._check()

    def xUnlock(self, level: int) -> None: ...

    def xCheckReservedLock(self) -> bool:
        return False

    def xSectorSize(self) -> int:
        return 4096

    def xDeviceCharacteristics(self) -> int:
        return apsw.SQLITE_IOCAP_POWERSAFE_OVERWRITE

    def xFileControl(self, op: int, ptr: int) -> bool:
        return False

    def xClose(self) -> None: ...
