"""Detects that a file has grown, through inotify; without inotify the caller's timeout is used instead."""

import ctypes
import os
import select

_MODIFIED, _ONESHOT, _NONBLOCK = 0x2, 0x80000000, 0o4000


class FileWatch:
    """Watches each file for a single change: arm it, wait, arm it again. No events are queued for a file that is not armed."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._libc.inotify_init1(_NONBLOCK) if hasattr(self._libc, "inotify_init1") else -1

    @property
    def works(self) -> bool:
        return self._descriptor >= 0

    def fileno(self) -> int:
        return self._descriptor

    def arm(self, path: str) -> int:
        """Watch for the next change; returns the number that `fired` will report, -1 if the file cannot be watched."""
        if not self.works:
            return -1
        return self._libc.inotify_add_watch(self._descriptor, os.fsencode(path), _MODIFIED | _ONESHOT)

    def fired(self) -> set[int]:
        """The numbers of the files that changed since they were armed."""
        try:
            raw = os.read(self._descriptor, 1 << 16)
        except BlockingIOError:
            return set()
        numbers, at = set(), 0
        while at < len(raw):
            numbers.add(int.from_bytes(raw[at : at + 4], "little", signed=True))
            at += 16 + int.from_bytes(raw[at + 12 : at + 16], "little")
        return numbers

    def wait(self, seconds: float) -> None:
        """Block until an armed file changes, or until the timeout."""
        if self.works:
            select.select([self._descriptor], [], [], seconds)
            self.fired()
        else:
            select.select([], [], [], min(seconds, 0.2))

    def close(self) -> None:
        if self.works:
            os.close(self._descriptor)
            self._descriptor = -1
