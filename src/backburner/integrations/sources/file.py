"""The file source: watches a file or a folder and reports changes as trigger events.

The current content is compared with the last known state; notifications of the operating system only decide when to compare. So changes
during downtime are found, no change is reported twice, and a burst of changes is one event. The source never follows a link inside the
folder, opens only the regular file that is configured by name, and treats files it cannot read as unchanged.
"""

import asyncio
import errno
import hashlib
import os
import stat
import threading
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from itertools import chain, islice, zip_longest
from typing import NamedTuple

from watchfiles import Change
from watchfiles import watch as notifications

from backburner.core.errors import BadInput
from backburner.core.ports import TriggerEvent
from backburner.core.terminal_text import shortened, visible

MAX_STATE_FILES = 20_000  # listed in a state; with more files, the state contains only a digest
MAX_STATE_NAME_BYTES = 2 << 20  # total length of the names in a state; with more, likewise
MAX_FILES_IN_MEMORY = 200_000  # with more files, they are reduced to a digest while scanning
MAX_WATCHED_FOLDERS = 10_000  # with more folders, there are no notifications, only scans
MAX_CONTENT_BYTES = 16 << 20  # size up to which the content of a single file is compared
MAX_EVENT_NAMES = 50  # file names in one event
POLL_INTERVAL = 2.0  # seconds between scans without notifications, and between checks of the root in any case
FULL_SCAN_INTERVAL = 60.0  # seconds between full scans with notifications: not every file system sends them
RETRY_INTERVAL = 60.0  # seconds before notifications are requested again
MAX_BURST_SECONDS = 10.0  # or ten times the debounce; then changes are reported although more are coming

_IGNORED_FOLDERS = frozenset({".git", ".hg", ".svn", "__pycache__"})
_IGNORED_FILES = (".*.sw[a-p]", ".sw[a-p]", "*~", ".#*", "#*#", ".~lock.*#", ".goutputstream-*", "*___jb_tmp___", "*___jb_old___")
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)

_Signature = tuple[int, int, int]  # size, time of the last change in nanoseconds, inode
_FolderId = tuple[int, int]  # device, inode


class _Snapshot(NamedTuple):
    """The result of a scan. With too many files, `files` is None and only their `digest` is known."""

    kind: str  # missing, file, folder, special (neither), unseen (cannot be read now)
    files: dict[str, _Signature] | None
    count: int = 0
    digest: str = ""
    content: str | None = None  # hash of a single file that is not too large
    folders: dict[str, _FolderId] | None = None  # folders to watch; None if there are too many
    root_status: object = None  # a scan is needed if this changes
    scan_seconds: float = 0.0


class FileSource:
    """A source of changes under one path. `trouble` is the reason why the operating system sends no notifications, or None."""

    def __init__(self, path: str, debounce: float, pattern: str | None) -> None:
        self.path, self.debounce, self.pattern = path, debounce, pattern
        self.trouble: str | None = None

    async def watch(self, state: dict[str, object]) -> AsyncGenerator[tuple[dict[str, object], TriggerEvent | None], None]:
        """Yield every change since `state`, with bursts combined into one event.

        Closing the generator stops its thread; changes that were not scanned yet are found the next time.
        """
        known = self._snapshot_from_state(state)
        notifier, stopped = _FolderNotifier(self.path, self.debounce), threading.Event()
        was_notified = False
        try:
            while True:
                snapshot = None if was_notified else await asyncio.to_thread(self._scan, known, stopped)
                if snapshot is None or (known and _differ(known, snapshot)):
                    snapshot = await self._wait_until_quiet(notifier, snapshot, known, stopped)
                await notifier.start(snapshot.folders)
                self.trouble = notifier.trouble
                if known is None or (known.kind == "unseen" and snapshot.kind != "unseen"):
                    known = snapshot
                    yield await asyncio.to_thread(self._state, snapshot), None
                elif _differ(known, snapshot):
                    event = await asyncio.to_thread(self._event, known, snapshot)
                    known = snapshot
                    yield await asyncio.to_thread(self._state, snapshot), event
                elif snapshot.kind != "unseen":
                    known = snapshot._replace(content=snapshot.content or known.content)
                was_notified = await self._wait_for_change(notifier, snapshot)
        finally:
            stopped.set()
            await notifier.stop()

    async def _wait_for_change(self, notifier: "_FolderNotifier", snapshot: _Snapshot) -> bool:
        """Wait until a scan is needed. Return True if a notification is the reason."""
        started = time.monotonic()
        while True:
            if await notifier.wait(POLL_INTERVAL):
                # Limits the share of time that is spent on scans of a large folder.
                await asyncio.sleep(started + 4 * snapshot.scan_seconds - time.monotonic())
                return True
            if await asyncio.to_thread(self._root_status) != snapshot.root_status:
                notifier.stale = notifier.is_running  # no notification came: it may watch a folder that no longer exists
                return False
            if time.monotonic() - started >= max(FULL_SCAN_INTERVAL if notifier.is_running else POLL_INTERVAL, 20 * snapshot.scan_seconds):
                return False

    async def _wait_until_quiet(
        self, notifier: "_FolderNotifier", snapshot: _Snapshot | None, known: _Snapshot | None, stopped: threading.Event
    ) -> _Snapshot:
        """Return a snapshot once nothing has changed for the debounce time, or after the maximum length of a burst."""
        deadline = time.monotonic() + max(MAX_BURST_SECONDS, 10 * self.debounce)
        while time.monotonic() < deadline:
            if await notifier.wait(self.debounce):
                continue
            before, snapshot = snapshot, await asyncio.to_thread(self._scan, known, stopped)
            if notifier.is_running or (before and not _differ(before, snapshot)):
                return snapshot
        return await asyncio.to_thread(self._scan, known, stopped)

    def _scan(self, known: _Snapshot | None, stopped: threading.Event) -> _Snapshot:
        started = time.monotonic()
        root_status = self._root_status()
        try:
            status = os.stat(self.path)
        except OSError as error:
            snapshot = _Snapshot("missing" if error.errno in _GONE else "unseen", {}, folders=self._existing_parents())
        else:
            name = _encodable(os.path.basename(self.path))
            if stat.S_ISDIR(status.st_mode):
                snapshot = self._scan_folder(known, stopped)
            elif stat.S_ISREG(status.st_mode):
                files = {name: _signature(status)}
                snapshot = _Snapshot("file", files, 1, content=self._content_hash(status), folders=self._existing_parents())
            else:
                snapshot = _Snapshot("special", {name: (stat.S_IFMT(status.st_mode), 0, 0)}, 1, folders=self._existing_parents())
        digest = _digest(snapshot) if known and known.files is None else snapshot.digest
        return snapshot._replace(digest=digest, root_status=root_status, scan_seconds=time.monotonic() - started)

    def _scan_folder(self, known: _Snapshot | None, stopped: threading.Event) -> _Snapshot:
        files: dict[str, _Signature] = {}
        folders: dict[str, _FolderId] = {}
        unreadable: list[str] = []
        digest, count, remaining = 0, 0, [""]
        while remaining:
            if stopped.is_set():
                return _Snapshot("unseen", {})
            relative = remaining.pop()
            path = os.path.join(self.path, relative) if relative else self.path
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | (os.O_NOFOLLOW if relative else 0))
            except OSError as error:
                if error.errno not in _GONE:
                    unreadable.append(relative)
                elif not relative:
                    return _Snapshot("missing", {}, folders=self._existing_parents())
                continue
            try:
                status = os.fstat(descriptor)
                if _encodable(path) == path:  # the notifier cannot watch other names; those folders are only scanned
                    folders[path] = status.st_dev, status.st_ino
                with os.scandir(descriptor) as entries:
                    for entry in entries:
                        name = f"{relative}/{entry.name}" if relative else entry.name
                        self._add_entry(entry, name, files, remaining, unreadable)
            except OSError:
                unreadable.append(relative)
            finally:
                os.close(descriptor)
            if len(files) > MAX_FILES_IN_MEMORY:
                digest, count = _add_to_digest(files, digest), count + len(files)
                files.clear()
        if "" in unreadable:
            return _Snapshot("unseen", {}, folders=self._existing_parents())
        before = known.files if known and known.files else {}
        for hidden in map(_encodable, unreadable):
            files |= {name: signature for name, signature in before.items() if name == hidden or name.startswith(hidden + "/")}
        watched = folders if len(folders) <= MAX_WATCHED_FOLDERS else None
        if count:
            return _Snapshot("folder", None, count + len(files), f"{_add_to_digest(files, digest):032x}", folders=watched)
        return _Snapshot("folder", files, len(files), folders=watched)

    def _add_entry(
        self, entry: "os.DirEntry[str]", name: str, files: dict[str, _Signature], remaining: list[str], unreadable: list[str]
    ) -> None:
        """Add a file or link to `files`, a folder to `remaining`. Pipes, sockets and devices are ignored."""
        try:
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in _IGNORED_FOLDERS:
                    remaining.append(name)
            elif (entry.is_symlink() or entry.is_file(follow_symlinks=False)) and not _is_ignored(entry.name) and self._matches(name):
                files[_encodable(name)] = _signature(entry.stat(follow_symlinks=False))
        except FileNotFoundError:
            pass
        except OSError:
            unreadable.append(name)

    def _matches(self, name: str) -> bool:
        return self.pattern is None or fnmatchcase(name if "/" in self.pattern else os.path.basename(name), self.pattern)

    def _content_hash(self, status: os.stat_result) -> str | None:
        """Return a hash of the file, or None if it is too large or cannot be read."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError:
            return None
        digest, size = hashlib.sha256(), status.st_size
        try:
            while size <= MAX_CONTENT_BYTES and stat.S_ISREG(os.fstat(descriptor).st_mode):
                if not (piece := os.read(descriptor, 1 << 18)):
                    return digest.hexdigest()
                digest.update(piece)
                size = max(size, os.lseek(descriptor, 0, os.SEEK_CUR))
        except OSError:
            pass
        finally:
            os.close(descriptor)
        return None

    def _root_status(self) -> object:
        """Return a value that changes when the file or the folder itself changes."""
        try:
            status = os.stat(self.path)
        except OSError as error:
            return error.errno, self._existing_parents()
        return status.st_dev, status.st_mode, *_signature(status)

    def _existing_parents(self) -> dict[str, _FolderId]:
        """Return the nearest existing folder above the path and, if the path is a link, above its target."""
        parents: dict[str, _FolderId] = {}
        for parent in {self.path, os.path.realpath(self.path)}:
            while parent != (parent := os.path.dirname(parent)):
                with suppress(OSError):
                    status = os.stat(parent)
                    if stat.S_ISDIR(status.st_mode):
                        parents[parent] = status.st_dev, status.st_ino
                        break
        return parents

    def _state(self, snapshot: _Snapshot) -> dict[str, object]:
        state: dict[str, object] = {
            "path": _encodable(self.path),
            "pattern": self.pattern,
            "kind": snapshot.kind,
            "content": snapshot.content,
        }
        files = snapshot.files
        if files is not None and len(files) <= MAX_STATE_FILES and sum(map(len, files)) <= MAX_STATE_NAME_BYTES:
            return state | {"files": {name: list(signature) for name, signature in files.items()}}
        return state | {"count": snapshot.count, "digest": _digest(snapshot)}

    def _snapshot_from_state(self, state: Mapping[str, object]) -> _Snapshot | None:
        """Return the snapshot that `state` was made from, or None if the state is empty or belongs to another path or pattern."""
        kind, files, content = state.get("kind"), state.get("files"), state.get("content")
        if state.get("path") != _encodable(self.path) or state.get("pattern") != self.pattern or not isinstance(kind, str):
            return None
        content_hash = content if isinstance(content, str) else None
        if isinstance(files, dict):
            signatures = {str(name): tuple(signature) for name, signature in files.items()}
            return _Snapshot(kind, signatures, len(files), content=content_hash)
        count = state.get("count")
        return _Snapshot(kind, None, count if isinstance(count, int) else 0, str(state.get("digest")), content=content_hash)

    def _event(self, known: _Snapshot, snapshot: _Snapshot) -> TriggerEvent:
        path, changes = visible(_encodable(self.path)), _changes(known, snapshot)
        payload: dict[str, object] = {"path": _encodable(self.path), "added": [], "modified": [], "deleted": [], "count": None}
        if changes is None:
            return TriggerEvent(shortened(path, f": something changed among {snapshot.count} files"), payload)
        labelled = ([(change, name) for name in names[:MAX_EVENT_NAMES]] for change, names in changes.items())
        chosen = set(islice(filter(None, chain.from_iterable(zip_longest(*labelled))), MAX_EVENT_NAMES))
        for change, names in changes.items():
            payload[change] = [shortened(name, longest=500) for name in names[:MAX_EVENT_NAMES] if (change, name) in chosen]
        counts = ", ".join(f"{len(names)} {change}" for change, names in changes.items() if names)
        return TriggerEvent(shortened(path, f": {counts}"), payload | {"count": sum(map(len, changes.values()))})


class _FolderNotifier:
    """Reports when the operating system notifies of a change in one of the watched folders. Runs a thread until `stop`."""

    def __init__(self, path: str, debounce: float) -> None:
        self.trouble: str | None = None
        self.stale = False
        self._path, self._debounce_ms = path, round(1000 * debounce)
        self._folders: dict[str, _FolderId] | None = None
        self._notified = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._retry_at = 0.0

    @property
    def is_running(self) -> bool:
        return bool(self._thread and self._thread.is_alive() and self.trouble is None)

    async def wait(self, seconds: float) -> bool:
        """Wait for that long. Return whether a notification came in that time or since the last call."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, 0.02)):
                await self._notified.wait()
                self._notified.clear()
                return True
        return False

    async def start(self, folders: dict[str, _FolderId] | None) -> None:
        """Watch these folders; start again if one of them was replaced. A start also notifies once, as changes may have been missed."""
        if not self.stale and folders == self._folders and (self.is_running or time.monotonic() < self._retry_at):
            return
        await self.stop()
        self.stale, self._folders = False, folders
        if folders is None:
            self.trouble = f"There are more than {MAX_WATCHED_FOLDERS} folders to watch."
            self._retry_at = time.monotonic() + RETRY_INTERVAL
            return
        self.trouble, self._stop = None, threading.Event()
        targets = (self._path, os.path.realpath(self._path))
        arguments = (folders, targets, self._stop)
        self._thread = threading.Thread(target=self._read_notifications, args=arguments, name="backburner-files", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        self._stop.set()
        if self._thread:
            await asyncio.to_thread(self._thread.join)
            self._thread = None

    def _read_notifications(self, folders: dict[str, _FolderId], targets: tuple[str, str], stop: threading.Event) -> None:
        def is_relevant(_: Change, path: str) -> bool:
            return path in folders or any(_concerns(path, target) for target in targets)

        # watchfiles reports a file that is written continuously every second step, and a burst after each of its debounce intervals.
        # Both must be shorter than our debounce time, or a burst would appear to be over.
        try:
            reports = notifications(
                *folders,
                watch_filter=is_relevant,
                debounce=max(self._debounce_ms // 2, 10),
                step=min(max(self._debounce_ms // 4, 5), 200),
                stop_event=stop,
                rust_timeout=500,
                yield_on_timeout=True,
                raise_interrupt=False,
                force_polling=False,
                recursive=False,  # it would follow links
                ignore_permission_denied=True,
            )
            for number, changes in enumerate(reports):
                if changes or number == 0:
                    self._notify(stop, any(change != Change.modified and path in folders for change, path in changes))
        except FileNotFoundError:
            self._notify(stop, True)
        except Exception as error:  # the operating system cannot notify, for example because a limit is reached; scans still work
            self._notify(stop, False, f"Scanning every {POLL_INTERVAL:.0f} s, because file notifications are not available: {error}")

    def _notify(self, stop: threading.Event, stale: bool, trouble: str | None = None) -> None:
        def update() -> None:
            if not stop.is_set():
                self.stale |= stale
                if trouble:
                    self.trouble, self._retry_at = trouble, time.monotonic() + RETRY_INTERVAL
                self._notified.set()

        try:
            self._loop.call_soon_threadsafe(update)
        except RuntimeError:  # the event loop is closed
            stop.set()


def open_source(config: Mapping[str, str], clock: Callable[[], int]) -> FileSource:
    """Open the source for `config`: `path` (absolute; may be missing), `debounce_ms`, and a `pattern` for file names in a folder.

    `clock` is not used; all sources are opened with the same arguments.
    """
    path, debounce = config.get("path", ""), config.get("debounce_ms", "500")
    if not os.path.isabs(path) or "\0" in path:
        raise BadInput(f"'{path}' is not an absolute path; a file source needs one as its `path`.")
    if not (debounce.isascii() and debounce.isdecimal() and int(debounce[:9]) <= 600_000):
        raise BadInput(f"'{debounce}' is not a valid `debounce_ms`; use a number of milliseconds from 0 to 600000.")
    return FileSource(os.path.normpath(path), int(debounce[:9]) / 1000, config.get("pattern") or None)


def _signature(status: os.stat_result) -> _Signature:
    return status.st_size, status.st_mtime_ns, status.st_ino


def _encodable(name: str) -> str:
    """Escape the bytes of a file name that are not valid UTF-8."""
    return name.encode("utf-8", "backslashreplace").decode()


def _is_ignored(name: str) -> bool:
    return name in _IGNORED_FOLDERS or any(fnmatchcase(name, pattern) for pattern in _IGNORED_FILES)


def _concerns(path: str, target: str) -> bool:
    """Return whether a change at `path` can affect the target: it is at, above or inside it, and not ignored there."""
    inside = path.removeprefix(target.rstrip("/") + "/")
    if inside != path:
        parts = inside.split("/")
        return not _is_ignored(parts[-1]) and _IGNORED_FOLDERS.isdisjoint(parts)
    return path == target or target.startswith(path.rstrip("/") + "/")


def _add_to_digest(files: Mapping[str, _Signature], digest: int = 0) -> int:
    """Add files to a digest that does not depend on their order."""
    for name, signature in files.items():
        file_digest = hashlib.blake2b(f"{name}\0{signature}".encode(), digest_size=16).digest()
        digest = (digest + int.from_bytes(file_digest, "big")) % (1 << 128)
    return digest


def _digest(snapshot: _Snapshot) -> str:
    return snapshot.digest or f"{_add_to_digest(snapshot.files or {}):032x}"


def _differ(known: _Snapshot, snapshot: _Snapshot) -> bool:
    if "unseen" in (known.kind, snapshot.kind):
        return False
    if (known.kind, known.count) != (snapshot.kind, snapshot.count):
        return True
    if known.content and snapshot.content:
        return known.content != snapshot.content
    if known.files is not None and snapshot.files is not None:
        return known.files != snapshot.files
    return _digest(known) != _digest(snapshot)


def _changes(known: _Snapshot, snapshot: _Snapshot) -> dict[str, list[str]] | None:
    """Return the names of changed files by kind of change, or None if one of the snapshots has no names."""
    if (before := known.files) is None or (now := snapshot.files) is None:
        return None
    both = now.keys() & before.keys()
    changes = {
        "added": sorted(now.keys() - before.keys()),
        "modified": sorted(name for name in both if now[name] != before[name] or known.content != snapshot.content),
        "deleted": sorted(before.keys() - now.keys()),
    }
    if not any(changes.values()):  # an empty folder was created or deleted
        changes["added" if known.kind == "missing" else "deleted" if snapshot.kind == "missing" else "modified"] = ["."]
    return changes
