"""Watches a file or a folder. What is there is compared with what was seen last: notifications only say when to look.

So nothing is missed while nobody watched, nothing is told twice, and a storm is one happening. Never follows a link inside
the folder, opens nothing but a plain file that was asked for by name, and takes what it may not read for unchanged.
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

MOST_FILES = 20_000  # that a state lists one by one; of more it holds a digest
MOST_NAMED_BYTES = 2 << 20  # of names in a state; likewise
MOST_HELD = 200_000  # that are held in memory one by one
MOST_FOLDERS = 10_000  # that are watched; with more, they are only looked at
MOST_CONTENT = 16 << 20  # bytes of a single file that are compared
MOST_NAMES = 50  # in a happening
LOOK_SECONDS = 2.0  # between looks where nothing notifies, and at the root in any case
WHOLE_LOOK_SECONDS = 60.0  # between whole looks where something does: not every file system notifies
RETRY_SECONDS = 60.0  # before notifications are asked for again
LONGEST_STORM = 10.0  # seconds, or ten times the debounce: then it is told though it goes on

_IGNORED_FOLDERS = frozenset({".git", ".hg", ".svn", "__pycache__"})
_IGNORED_FILES = (".*.sw[a-p]", ".sw[a-p]", "*~", ".#*", "#*#", ".~lock.*#", ".goutputstream-*", "*___jb_tmp___", "*___jb_old___")
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)

_Signature = tuple[int, int, int]  # size, time of the last change in nanoseconds, inode
_Place = tuple[int, int]  # device, inode


class _View(NamedTuple):
    """What is there. `files` is None where there are too many; then there is only their `digest`."""

    kind: str  # missing, file, folder, special (neither), unseen (not to be read now)
    files: dict[str, _Signature] | None
    count: int = 0
    digest: str = ""
    content: str | None = None  # a hash, of a single file that is not too large
    folders: dict[str, _Place] | None = None  # what has to be watched; None where that is too much
    mark: object = None  # of the root: where this changed, it is worth a look
    took: float = 0.0  # seconds


class FileSource:
    """A source of changes under one path. `trouble` says what keeps it from being notified, where something does."""

    def __init__(self, path: str, debounce: float, pattern: str | None) -> None:
        self.path, self.debounce, self.pattern = path, debounce, pattern
        self.trouble: str | None = None

    async def watch(self, state: dict[str, object]) -> AsyncGenerator[tuple[dict[str, object], TriggerEvent | None], None]:
        """Every change since `state`, coalesced. Closing it ends its thread; what was not looked at yet is seen the next time."""
        known = self._remembered(state)
        bell, stopped = _FolderNotifier(self.path, self.debounce), threading.Event()
        rung = False
        try:
            while True:
                view = None if rung else await asyncio.to_thread(self._look, known, stopped)
                if view is None or (known and _differ(known, view)):
                    view = await self._settled(bell, view, known, stopped)
                await bell.start(view.folders)
                self.trouble = bell.trouble
                if known is None or (known.kind == "unseen" and view.kind != "unseen"):
                    known = view
                    yield await asyncio.to_thread(self._state, view), None
                elif _differ(known, view):
                    happening = await asyncio.to_thread(self._happening, known, view)
                    known = view
                    yield await asyncio.to_thread(self._state, view), happening
                elif view.kind != "unseen":
                    known = view._replace(content=view.content or known.content)
                rung = await self._rest(bell, view)
        finally:
            stopped.set()
            await bell.take_down()

    async def _rest(self, bell: "_FolderNotifier", view: _View) -> bool:
        """Until there is a reason to look: True where somebody rang."""
        since = time.monotonic()
        while True:
            if await bell.wait(LOOK_SECONDS):
                await asyncio.sleep(since + 4 * view.took - time.monotonic())  # a large folder is not looked at all the time
                return True
            if await asyncio.to_thread(self._mark) != view.mark:
                bell.stale = bell.is_running  # nobody rang: perhaps it hangs at a folder that is no more
                return False
            if time.monotonic() - since >= max(WHOLE_LOOK_SECONDS if bell.is_running else LOOK_SECONDS, 20 * view.took):
                return False

    async def _settled(self, bell: "_FolderNotifier", view: _View | None, known: _View | None, stopped: threading.Event) -> _View:
        """What is there when it has been quiet for as long as the debounce, or after the longest storm."""
        deadline = time.monotonic() + max(LONGEST_STORM, 10 * self.debounce)
        while time.monotonic() < deadline:
            if await bell.wait(self.debounce):
                continue
            before, view = view, await asyncio.to_thread(self._look, known, stopped)
            if bell.is_running or (before and not _differ(before, view)):
                return view
        return await asyncio.to_thread(self._look, known, stopped)

    def _look(self, known: _View | None, stopped: threading.Event) -> _View:
        started = time.monotonic()
        mark = self._mark()
        try:
            status = os.stat(self.path)
        except OSError as error:
            view = _View("missing" if error.errno in _GONE else "unseen", {}, folders=self._around())
        else:
            name = _safe(os.path.basename(self.path))
            if stat.S_ISDIR(status.st_mode):
                view = self._walk(known, stopped)
            elif stat.S_ISREG(status.st_mode):
                view = _View("file", {name: _signature(status)}, 1, content=self._content(status), folders=self._around())
            else:
                view = _View("special", {name: (stat.S_IFMT(status.st_mode), 0, 0)}, 1, folders=self._around())
        digest = _digest(view) if known and known.files is None else view.digest
        return view._replace(digest=digest, mark=mark, took=time.monotonic() - started)

    def _walk(self, known: _View | None, stopped: threading.Event) -> _View:
        files: dict[str, _Signature] = {}
        folders: dict[str, _Place] = {}
        unread: list[str] = []
        folded, count, unseen = 0, 0, [""]
        while unseen:
            if stopped.is_set():
                return _View("unseen", {})
            inside = unseen.pop()
            place = os.path.join(self.path, inside) if inside else self.path
            try:
                found = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | (os.O_NOFOLLOW if inside else 0))
            except OSError as error:
                if error.errno not in _GONE:
                    unread.append(inside)
                elif not inside:
                    return _View("missing", {}, folders=self._around())
                continue
            try:
                status = os.fstat(found)
                if _safe(place) == place:  # others cannot be named to the notifier; they are only looked at
                    folders[place] = status.st_dev, status.st_ino
                with os.scandir(found) as entries:
                    for entry in entries:
                        self._enter(entry, f"{inside}/{entry.name}" if inside else entry.name, files, unseen, unread)
            except OSError:
                unread.append(inside)
            finally:
                os.close(found)
            if len(files) > MOST_HELD:
                folded, count = _fold(files, folded), count + len(files)
                files.clear()
        if "" in unread:
            return _View("unseen", {}, folders=self._around())
        before = known.files if known and known.files else {}
        for hidden in map(_safe, unread):
            files |= {name: was for name, was in before.items() if name == hidden or name.startswith(hidden + "/")}
        armed = folders if len(folders) <= MOST_FOLDERS else None
        if count:
            return _View("folder", None, count + len(files), f"{_fold(files, folded):032x}", folders=armed)
        return _View("folder", files, len(files), folders=armed)

    def _enter(self, entry: "os.DirEntry[str]", name: str, files: dict[str, _Signature], unseen: list[str], unread: list[str]) -> None:
        """Take one entry down: a file or a link as it is, a folder for later. Pipes, sockets and devices are nothing to us."""
        try:
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in _IGNORED_FOLDERS:
                    unseen.append(name)
            elif (entry.is_symlink() or entry.is_file(follow_symlinks=False)) and not _ignored(entry.name) and self._fits(name):
                files[_safe(name)] = _signature(entry.stat(follow_symlinks=False))
        except FileNotFoundError:
            pass
        except OSError:
            unread.append(name)

    def _fits(self, name: str) -> bool:
        return self.pattern is None or fnmatchcase(name if "/" in self.pattern else os.path.basename(name), self.pattern)

    def _content(self, status: os.stat_result) -> str | None:
        """A hash of the file; None where it is too large or cannot be read."""
        try:
            found = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError:
            return None
        digest, size = hashlib.sha256(), status.st_size
        try:
            while size <= MOST_CONTENT and stat.S_ISREG(os.fstat(found).st_mode):
                if not (piece := os.read(found, 1 << 18)):
                    return digest.hexdigest()
                digest.update(piece)
                size = max(size, os.lseek(found, 0, os.SEEK_CUR))
        except OSError:
            pass
        finally:
            os.close(found)
        return None

    def _mark(self) -> object:
        """What a glance at the root shows."""
        try:
            status = os.stat(self.path)
        except OSError as error:
            return error.errno, self._around()
        return status.st_dev, status.st_mode, *_signature(status)

    def _around(self) -> dict[str, _Place]:
        """The nearest folders that exist above the path, and above what it leads to where it is a link."""
        found: dict[str, _Place] = {}
        for above in {self.path, os.path.realpath(self.path)}:
            while above != (above := os.path.dirname(above)):
                with suppress(OSError):
                    status = os.stat(above)
                    if stat.S_ISDIR(status.st_mode):
                        found[above] = status.st_dev, status.st_ino
                        break
        return found

    def _state(self, view: _View) -> dict[str, object]:
        state: dict[str, object] = {"path": _safe(self.path), "pattern": self.pattern, "kind": view.kind, "content": view.content}
        files = view.files
        if files is not None and len(files) <= MOST_FILES and sum(map(len, files)) <= MOST_NAMED_BYTES:
            return state | {"files": {name: list(signature) for name, signature in files.items()}}
        return state | {"count": view.count, "digest": _digest(view)}

    def _remembered(self, state: Mapping[str, object]) -> _View | None:
        """The view that `state` was made from; None where it is of another path, or of none."""
        kind, files, content = state.get("kind"), state.get("files"), state.get("content")
        if state.get("path") != _safe(self.path) or state.get("pattern") != self.pattern or not isinstance(kind, str):
            return None
        hashed = content if isinstance(content, str) else None
        if isinstance(files, dict):
            return _View(kind, {str(name): tuple(signature) for name, signature in files.items()}, len(files), content=hashed)
        count = state.get("count")
        return _View(kind, None, count if isinstance(count, int) else 0, str(state.get("digest")), content=hashed)

    def _happening(self, known: _View, view: _View) -> TriggerEvent:
        where, changes = visible(_safe(self.path)), _changes(known, view)
        payload: dict[str, object] = {"path": _safe(self.path), "added": [], "modified": [], "deleted": [], "count": None}
        if changes is None:
            return TriggerEvent(shortened(where, f": something changed among {view.count} files"), payload)
        labelled = ([(change, name) for name in names[:MOST_NAMES]] for change, names in changes.items())
        chosen = set(islice(filter(None, chain.from_iterable(zip_longest(*labelled))), MOST_NAMES))
        for change, names in changes.items():
            payload[change] = [shortened(name, longest=500) for name in names[:MOST_NAMES] if (change, name) in chosen]
        counted = ", ".join(f"{len(names)} {change}" for change, names in changes.items() if names)
        return TriggerEvent(shortened(where, f": {counted}"), payload | {"count": sum(map(len, changes.values()))})


class _FolderNotifier:
    """Rings when something moved in one of the folders it hangs at. Its thread waits for the system, and ends when taken down."""

    def __init__(self, path: str, debounce: float) -> None:
        self.trouble: str | None = None
        self.stale = False
        self._path, self._debounce = path, round(1000 * debounce)
        self._folders: dict[str, _Place] | None = None
        self._rung = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._again_at = 0.0

    @property
    def is_running(self) -> bool:
        return bool(self._thread and self._thread.is_alive() and self.trouble is None)

    async def wait(self, seconds: float) -> bool:
        """Wait that long; whether something moved by then, or since the last time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, 0.02)):
                await self._rung.wait()
                self._rung.clear()
                return True
        return False

    async def start(self, folders: dict[str, _Place] | None) -> None:
        """Hang at these folders, anew where one of them was replaced; rings once more when it does, as something may have moved."""
        if not self.stale and folders == self._folders and (self.is_running or time.monotonic() < self._again_at):
            return
        await self.stop()
        self.stale, self._folders = False, folders
        if folders is None:
            self.trouble, self._again_at = f"There are more than {MOST_FOLDERS} folders to watch.", time.monotonic() + RETRY_SECONDS
            return
        self.trouble, self._stop = None, threading.Event()
        targets = (self._path, os.path.realpath(self._path))
        self._thread = threading.Thread(target=self._wait, args=(folders, targets, self._stop), name="backburner-files", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        self._stop.set()
        if self._thread:
            await asyncio.to_thread(self._thread.join)
            self._thread = None

    def _wait(self, folders: dict[str, _Place], targets: tuple[str, str], stop: threading.Event) -> None:
        def matters(_: Change, path: str) -> bool:
            return path in folders or any(_concerns(path, target) for target in targets)

        # A file that is written all the time is reported every second step, a storm after each debounce of theirs: both
        # have to be shorter than ours, or a storm would seem to be over.
        try:
            reports = notifications(
                *folders,
                watch_filter=matters,
                debounce=max(self._debounce // 2, 10),
                step=min(max(self._debounce // 4, 5), 200),
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
                    self._tell(stop, any(change != Change.modified and path in folders for change, path in changes))
        except FileNotFoundError:
            self._tell(stop, True)
        except Exception as error:  # whatever the system lacks: looking still works
            self._tell(stop, False, f"Looking every {LOOK_SECONDS:.0f} s, as the system does not notify: {error}")

    def _tell(self, stop: threading.Event, stale: bool, trouble: str | None = None) -> None:
        def told() -> None:
            if not stop.is_set():
                self.stale |= stale
                if trouble:
                    self.trouble, self._again_at = trouble, time.monotonic() + RETRY_SECONDS
                self._rung.set()

        try:
            self._loop.call_soon_threadsafe(told)
        except RuntimeError:  # the loop is closed: nobody is left to be told
            stop.set()


def open_source(config: Mapping[str, str], clock: Callable[[], int]) -> FileSource:
    """The source that `config` describes: `path` (absolute; need not exist), `debounce_ms`, `pattern` of names in a folder.

    It needs no `clock`: it is taken for the sake of one way to open any source.
    """
    path, debounce = config.get("path", ""), config.get("debounce_ms", "500")
    if not os.path.isabs(path) or "\0" in path:
        raise BadInput(f"'{path}' is not an absolute path; a file source needs one as its `path`.")
    if not (debounce.isascii() and debounce.isdecimal() and int(debounce[:9]) <= 600_000):
        raise BadInput(f"'{debounce}' is no `debounce_ms`; it is a number of milliseconds up to 600000.")
    return FileSource(os.path.normpath(path), int(debounce[:9]) / 1000, config.get("pattern") or None)


def _signature(status: os.stat_result) -> _Signature:
    return status.st_size, status.st_mtime_ns, status.st_ino


def _safe(name: str) -> str:
    """A name that can be written as UTF-8, whatever bytes it has."""
    return name.encode("utf-8", "backslashreplace").decode()


def _ignored(name: str) -> bool:
    return name in _IGNORED_FOLDERS or any(fnmatchcase(name, pattern) for pattern in _IGNORED_FILES)


def _concerns(path: str, target: str) -> bool:
    """Whether a change at `path` can concern the target: it is at, above or inside it, and not ignored there."""
    inside = path.removeprefix(target.rstrip("/") + "/")
    if inside != path:
        parts = inside.split("/")
        return not _ignored(parts[-1]) and _IGNORED_FOLDERS.isdisjoint(parts)
    return path == target or target.startswith(path.rstrip("/") + "/")


def _fold(files: Mapping[str, _Signature], into: int = 0) -> int:
    """A digest that does not depend on the order."""
    for name, signature in files.items():
        one = hashlib.blake2b(f"{name}\0{signature}".encode(), digest_size=16).digest()
        into = (into + int.from_bytes(one, "big")) % (1 << 128)
    return into


def _digest(view: _View) -> str:
    return view.digest or f"{_fold(view.files or {}):032x}"


def _differ(known: _View, view: _View) -> bool:
    if "unseen" in (known.kind, view.kind):
        return False
    if (known.kind, known.count) != (view.kind, view.count):
        return True
    if known.content and view.content:
        return known.content != view.content
    return known.files != view.files if known.files is not None and view.files is not None else _digest(known) != _digest(view)


def _changes(known: _View, view: _View) -> dict[str, list[str]] | None:
    """The names of what changed; None where there were too many to remember their names."""
    if (was := known.files) is None or (now := view.files) is None:
        return None
    both = now.keys() & was.keys()
    changes = {
        "added": sorted(now.keys() - was.keys()),
        "modified": sorted(name for name in both if now[name] != was[name] or known.content != view.content),
        "deleted": sorted(was.keys() - now.keys()),
    }
    if not any(changes.values()):  # an empty folder came, or went
        changes["added" if known.kind == "missing" else "deleted" if view.kind == "missing" else "modified"] = ["."]
    return changes
