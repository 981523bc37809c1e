"""What a command has changed in its copy-on-write view of a project: lists the changes, shows them, and applies them to the project.

The command ran on an overlay file system; everything that it wrote is in the upper folder. Nothing in there is trusted: no link is
followed, neither there nor in the project, and pipes, sockets and devices are never opened or applied. Extended attributes, owners and
times are not applied, nor is the mode of the project folder itself.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple, assert_never

from backburner.core.digests import sha256
from backburner.core.terminal_text import visible
from backburner.system.home import open_folder

MAX_TOTAL_BYTES = 4 << 30
# What is nested deeper, or has a longer path, is not applied: every level takes an open file, and ordinary programs could not remove it.
_MAX_DEPTH = 100
_MAX_PATH_BYTES = 3_000
_MAX_SHOWN_FILE_BYTES = 1 << 20
_BINARY_CHECK_BYTES = 8_000  # as git does
_CONTEXT_LINES = 3
# Pairs of lines that are compared for the diff of one file, and of all files. Beyond them, lines are shown as removed and added.
_MAX_PAIRS_PER_FILE, _MAX_PAIRS = 250_000, 5_000_000
_CHUNK_BYTES = 1 << 20
_PERMISSIONS = 0o777  # the bits of a mode that are compared and applied; setuid and setgid are not among them
_READ, _WRITE = 0o500, 0o700  # what the owner needs to use a folder
_TEMPORARY_PREFIX, _TEMPORARY_SUFFIX = ".backburner-", ".new"
_TRIAL_TIMEOUT = 20
_JUST_CHANGED = "changed by another program while the changes were applied"


class TooManyChanges(Exception):
    """The command changed more files, or wrote more bytes, than can be reviewed and applied."""


class Kind(StrEnum):
    """What happens to a path."""

    ADDED = "added"
    CHANGED = "changed"  # the content, and perhaps the mode
    DELETED = "deleted"
    MODE = "mode"  # only the mode
    SPECIAL = "special"  # a pipe, a socket, a device, or a folder that is nested too deeply: listed, and never applied


class Change(NamedTuple):
    """One difference between the project and what the command made of it.

    `path` is relative to the project, `size` is that of the new file in bytes. The flags describe what is added, changed or deleted. A file
    that became a link or a folder, or the other way round, is deleted and added.
    """

    kind: Kind
    path: str
    size: int | None = None
    is_link: bool = False
    is_folder: bool = False


def changes(upper: str, project: str, limit: int = 10_000, max_bytes: int = MAX_TOTAL_BYTES) -> list[Change]:
    """What applying would do, sorted by path. TooManyChanges if there are more than `limit`, or if new files have more bytes than `max_bytes`.

    A folder is listed as added only if nothing is added in it. A deleted folder is one change.
    """
    with _Tree(upper, _READ) as new, _Tree(project, _READ) as old:
        return _Comparison(new, old, limit, max_bytes).run()


def fingerprint(upper: str, project: str, found: Iterable[Change]) -> str:
    """A digest of everything that applying these changes would do: names, kinds, modes, contents and the project's path."""
    digest = sha256()

    def add(*fields: str | int) -> None:
        for field in fields:
            content = os.fsencode(str(field))
            digest.update(b"%d:" % len(content) + content)

    add(os.path.abspath(project))
    with _Tree(upper, _READ) as new:
        for change in found:
            add(change.kind, change.path, int(change.is_link), int(change.is_folder))
            if change.kind in (Kind.DELETED, Kind.SPECIAL):
                continue
            with _naming(upper, change.path):
                status = new.status(change.path)
                add(*new.modes, "mode", status.st_mode & _PERMISSIONS)
                if stat.S_ISREG(status.st_mode):
                    content = sha256()
                    with _closing(new.open_file(change.path, unlock=True)) as descriptor:
                        for chunk in _chunks(descriptor):
                            content.update(chunk)
                    add("file", content.hexdigest())
                elif stat.S_ISLNK(status.st_mode):
                    add("link", new.link_target(change.path))
    return digest.hexdigest()


def diff(upper: str, project: str, found: Sequence[Change], max_bytes: int) -> str:
    """The changes as text, like `git diff`, with control characters made visible.

    If they take more than `max_bytes`, a last line says how many changes are missing.
    """
    shown: list[str] = []
    left = max_bytes
    with _Tree(upper, _READ) as new, _Tree(project, _READ) as old:
        text = _DiffText(new, old)
        for number, change in enumerate(found):
            for line in text.lines(change):
                content = f"{line}\n".encode()
                if len(content) > left:
                    shown.append(content[:left].decode("utf-8", "ignore").rstrip("\n") + "\n" if left else "")
                    missing = len(found) - number
                    shown.append(f"[cut after {max_bytes:,} bytes: {missing:,} of {len(found):,} changes are incomplete or not shown]\n")
                    return "".join(shown)
                shown.append(f"{line}\n")
                left -= len(content)
    return "".join(shown)


def apply(upper: str, project: str, found: Sequence[Change], since_ns: int) -> list[str]:
    """Apply the changes to the project. Returns the paths that cannot be applied; if there are any, nothing was applied.

    These are files of the project that changed after `since_ns` or have another type than before, paths below a folder that became a link,
    and new links that are absolute or lead out of the project. After a crash, applying the same changes again finishes the rest: what is
    already as it should be is no conflict. OSError names the path that could not be written, or that another program changed just then.
    """
    with _Tree(upper, _READ) as new:
        with _Tree(project, _READ) as old:
            check = _ConflictCheck(new, old, found, since_ns)
            conflicts = check.run()
        if not conflicts:
            with _Tree(project, _WRITE) as old:
                _Application(new, old, found, check).run()
        return conflicts


def make_removable(folder: str) -> None:
    """Give the owner access to a folder and all folders in it, at any depth, so that they can be removed. Follows no link."""
    current, _ = _open_unlocked(folder, None, _WRITE)
    above: list[tuple[list[str], tuple[int, int]]] = []  # the names left in each folder above, and which folder it is
    try:
        names = _subfolders(current)
        while names or above:
            if names:
                try:
                    below, _ = _open_unlocked(names.pop(), current, _WRITE)
                except OSError:  # of another owner, or removed just now
                    continue
                above.append((names, _identity(current)))
                names = _subfolders(below)
            else:
                # A descriptor for every level would be too many.
                below = open_folder("..", current)
                names, identity = above.pop()
                if _identity(below) != identity:
                    os.close(below)
                    raise OSError(errno.ESTALE, "a folder was moved", folder)
            os.close(current)
            current = below
    finally:
        os.close(current)


def works(folder: str, bubblewrap: str) -> bool:
    """Try whether this bubblewrap can mount an overlay that keeps changes in `folder`. Versions before 0.11 cannot."""
    import shutil  # these are slow to import
    import subprocess
    import tempfile

    try:
        trial = tempfile.mkdtemp(prefix="overlay-", dir=folder)
    except OSError:
        return False
    lower, upper, work = (os.path.join(trial, name) for name in ("lower", "upper", "work"))
    try:
        for path in (lower, upper, work):
            os.mkdir(path, 0o700)
        os.close(os.open(os.path.join(lower, "old"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        command = [bubblewrap, "--unshare-user", "--die-with-parent", "--ro-bind", "/", "/"]
        command += ["--overlay-src", lower, "--overlay", upper, work, lower]
        command += ["--chdir", lower, "--", "/bin/sh", "-c", "echo new > new && rm old"]
        done = subprocess.run(
            command,
            env={"PATH": os.defpath},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TRIAL_TIMEOUT,
        )
        expected = [Change(Kind.ADDED, "new", len("new\n")), Change(Kind.DELETED, "old")]
        return done.returncode == 0 and changes(upper, lower) == expected
    except (OSError, subprocess.TimeoutExpired):
        return False
    finally:
        with contextlib.suppress(OSError):
            make_removable(trial)
        shutil.rmtree(trial, ignore_errors=True)


def _open_unlocked(name: str, inside: int | None, bits: int) -> tuple[int, int]:
    """Open a folder after giving its owner the missing permissions `bits`; returns the descriptor and the mode that it had before."""
    reference = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=inside)
    try:
        mode = stat.S_IMODE(os.fstat(reference).st_mode)
        if bits & ~mode and os.geteuid() != 0:  # root needs no permissions
            os.chmod(f"/proc/self/fd/{reference}", mode | bits)
        return open_folder(".", reference), mode
    finally:
        os.close(reference)


def _set_folder_mode(name: str, inside: int, mode: int) -> None:
    reference = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=inside)
    try:
        os.chmod(f"/proc/self/fd/{reference}", mode)
    finally:
        os.close(reference)


def _subfolders(descriptor: int) -> list[str]:
    with os.scandir(descriptor) as entries:
        return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]


def _identity(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


@contextlib.contextmanager
def _closing(descriptor: int) -> Generator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _naming(root: str, path: str) -> Generator[None]:
    """Errors of the operating system name the whole path. Otherwise they name what was relative to an open folder."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.path.join(root, path)) from error


def _chunks(descriptor: int) -> Iterator[bytes]:
    while chunk := os.read(descriptor, _CHUNK_BYTES):
        yield chunk


class _Tree:
    """A folder whose subfolders are opened one name at a time, so that no link is followed. The folders above the last one stay open.

    Folders that lack the permissions `bits` for their owner get them for as long as they are open.
    """

    def __init__(self, root: str, bits: int) -> None:
        self.root = root
        self._bits = bits
        descriptor, mode = _open_unlocked(root, None, bits)
        self._names: list[str] = []
        self._descriptors = [descriptor]
        self._modes = [mode]  # before permissions were added

    def __enter__(self) -> "_Tree":
        return self

    def __exit__(self, *_: object) -> None:
        self._close_below(-1)

    @property
    def modes(self) -> list[int]:
        """The modes of the folders from the root to the last one that was opened, without the root's."""
        return [mode & _PERMISSIONS for mode in self._modes[1:]]

    def folder(self, path: str) -> int:
        """The descriptor of a folder, which is valid until the next call. NotADirectoryError names the part of the path that is no folder."""
        names = path.split("/") if path else []
        same = 0
        while same < min(len(names), len(self._names)) and names[same] == self._names[same]:
            same += 1
        self._close_below(same)
        for name in names[same:]:
            try:
                descriptor, mode = _open_unlocked(name, self._descriptors[-1], self._bits)
            except OSError as error:
                raise OSError(error.errno, error.strerror, "/".join([*self._names, name])) from None
            self._names.append(name)
            self._descriptors.append(descriptor)
            self._modes.append(mode)
        return self._descriptors[-1]

    def _close_below(self, depth: int) -> None:
        while len(self._descriptors) > depth + 1:
            descriptor, mode = self._descriptors.pop(), self._modes.pop()
            try:
                if self._bits & ~mode and os.geteuid() != 0:
                    os.fchmod(descriptor, mode)
            finally:
                os.close(descriptor)
        del self._names[max(depth, 0) :]

    def parent(self, path: str) -> tuple[int, str]:
        """The descriptor of the folder that a path is in, and the path's last name."""
        folder, _, name = path.rpartition("/")
        return self.folder(folder), name

    def status(self, path: str) -> os.stat_result:
        folder, name = self.parent(path)
        return os.stat(name, dir_fd=folder, follow_symlinks=False)

    def find(self, path: str) -> os.stat_result | None:
        """The status of a path; None if it does not exist. NotADirectoryError if something above it is no folder."""
        try:
            return self.status(path)
        except FileNotFoundError:
            return None

    def link_target(self, path: str) -> str:
        folder, name = self.parent(path)
        return os.readlink(name, dir_fd=folder)

    def open_file(self, path: str, *, unlock: bool) -> int:
        """Open a regular file for reading. With `unlock`, its mode is changed for a moment if its owner may not read it."""
        folder, name = self.parent(path)
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        except PermissionError:
            if not unlock:
                raise
            descriptor = self._open_unreadable(folder, name)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "not a regular file", path)
        return descriptor

    @staticmethod
    def _open_unreadable(folder: int, name: str) -> int:
        reference = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=folder)
        try:
            mode = os.fstat(reference).st_mode
            if not stat.S_ISREG(mode):
                raise OSError(errno.EINVAL, "not a regular file", name)
            os.chmod(f"/proc/self/fd/{reference}", stat.S_IMODE(mode) | stat.S_IRUSR)
            try:
                return os.open(f"/proc/self/fd/{reference}", os.O_RDONLY)
            finally:
                os.chmod(f"/proc/self/fd/{reference}", stat.S_IMODE(mode))
        finally:
            os.close(reference)

    def walk(self, path: str) -> Iterator[tuple[str, list[str]]]:
        """Each folder at or below a path, parents first, with the names in it that are not folders."""
        left = [path]
        while left:
            current = left.pop()
            with os.scandir(self.folder(current)) as entries:
                found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
            left += [f"{current}/{name}" for name, is_folder in found if is_folder]
            yield current, [name for name, is_folder in found if not is_folder]


def _same_content(new: _Tree, old: _Tree, path: str, *, unlock_old: bool) -> bool:
    """Whether two regular files have the same bytes. One in the project that may not be read counts as different."""
    with _closing(new.open_file(path, unlock=True)) as ours:
        try:
            theirs = old.open_file(path, unlock=unlock_old)
        except PermissionError:
            return False
        with _closing(theirs):
            if os.fstat(ours).st_size != os.fstat(theirs).st_size:
                return False
            return all(chunk == os.read(theirs, len(chunk)) for chunk in _chunks(ours))


def _flags(status: os.stat_result) -> dict[str, bool]:
    return {"is_link": stat.S_ISLNK(status.st_mode), "is_folder": stat.S_ISDIR(status.st_mode)}


def _has_attribute(path: int | str, name: str, value: bytes | None = None) -> bool:
    """Whether a folder or file of the upper layer has an attribute of overlayfs, with this value if given."""
    try:
        found = os.getxattr(path, f"user.overlay.{name}")
    except OSError:
        return False
    return value is None or found == value


class _Folder(NamedTuple):
    """A folder of the upper layer. An opaque folder hides what the project has in it, and so do all folders in it."""

    path: str
    is_opaque: bool
    in_project: bool


class _Comparison:
    """Compares the upper folder with the project."""

    def __init__(self, new: _Tree, old: _Tree, limit: int, max_bytes: int) -> None:
        self._new, self._old = new, old
        self._limit, self._max_bytes, self._bytes = limit, max_bytes, 0
        self._found: list[Change] = []
        self._empty: set[str] = set()  # added folders in which nothing was found yet

    def run(self) -> list[Change]:
        left = [_Folder("", is_opaque=False, in_project=True)]
        while left:
            left += self._compare_folder(left.pop())
        self._found += [Change(Kind.ADDED, path, is_folder=True) for path in self._empty]
        return sorted(self._found, key=lambda change: (change.path.split("/"), change.kind != Kind.DELETED))

    def _compare_folder(self, folder: _Folder) -> list[_Folder]:
        """Compare what is in a folder; returns its subfolders."""
        with _naming(self._new.root, folder.path):
            descriptor = self._new.folder(folder.path)
            is_opaque = folder.is_opaque or _has_attribute(descriptor, "opaque", b"y")
            has_empty_whiteouts = _has_attribute(descriptor, "opaque", b"x")
            names = set(os.listdir(descriptor))
        prefix = f"{folder.path}/" if folder.path else ""
        if is_opaque and folder.in_project:
            with _naming(self._old.root, folder.path):
                hidden = set(os.listdir(self._old.folder(folder.path))) - names
            for name in hidden:
                self._delete(f"{prefix}{name}", self._old.find(f"{prefix}{name}"))
        subfolders = []
        for name in names:
            path = f"{prefix}{name}"
            with _naming(self._new.root, path):
                status = self._new.status(path)
            with _naming(self._old.root, path):
                before = self._old.find(path) if folder.in_project else None
            if self._is_whiteout(path, status, has_empty_whiteouts):
                self._delete(path, before)
            elif stat.S_ISDIR(status.st_mode) and not _is_too_deep(path):
                self._compare_mode_of_folder(path, status, before)
                subfolders.append(_Folder(path, is_opaque, in_project=before is not None and stat.S_ISDIR(before.st_mode)))
            elif (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)) and not _is_too_deep(path):
                self._compare_file(path, status, before)
            else:
                self._record(Change(Kind.SPECIAL, path, **_flags(status)))
        return subfolders

    def _is_whiteout(self, path: str, status: os.stat_result, has_empty_whiteouts: bool) -> bool:
        """Whether an entry only says that the name was deleted. Such files are devices, on some kernels also empty files."""
        if stat.S_ISCHR(status.st_mode):
            return status.st_rdev == 0
        if not (has_empty_whiteouts and stat.S_ISREG(status.st_mode) and status.st_size == 0):
            return False
        with _closing(self._new.open_file(path, unlock=True)) as descriptor:
            return _has_attribute(descriptor, "whiteout")

    def _compare_mode_of_folder(self, path: str, status: os.stat_result, before: os.stat_result | None) -> None:
        if before is None or not stat.S_ISDIR(before.st_mode):
            self._delete(path, before)
            self._empty.discard(os.path.dirname(path))
            self._empty.add(path)
            self._check_limit()
        elif (status.st_mode ^ before.st_mode) & _PERMISSIONS:
            self._record(Change(Kind.MODE, path, is_folder=True))

    def _compare_file(self, path: str, status: os.stat_result, before: os.stat_result | None) -> None:
        kind = Kind.CHANGED
        if before is None or stat.S_IFMT(status.st_mode) != stat.S_IFMT(before.st_mode):
            self._delete(path, before)
            self._empty.discard(os.path.dirname(path))
            kind = Kind.ADDED
        elif stat.S_ISLNK(status.st_mode):
            if self._new.link_target(path) == self._old.link_target(path):
                return
        elif status.st_size == before.st_size and _same_content(self._new, self._old, path, unlock_old=False):
            if not (status.st_mode ^ before.st_mode) & _PERMISSIONS:
                return
            kind = Kind.MODE
        self._bytes += status.st_size
        self._record(Change(kind, path, status.st_size, **_flags(status)))

    def _delete(self, path: str, before: os.stat_result | None) -> None:
        if before is not None:
            self._record(Change(Kind.DELETED, path, **_flags(before)))

    def _record(self, change: Change) -> None:
        self._found.append(change)
        self._check_limit()

    def _check_limit(self) -> None:
        if self._bytes > self._max_bytes or len(self._found) + len(self._empty) > self._limit:
            raise TooManyChanges(f"more than {self._limit:,} changes, or {self._max_bytes:,} bytes")


def _is_too_deep(path: str) -> bool:
    return path.count("/") >= _MAX_DEPTH or len(os.fsencode(path)) > _MAX_PATH_BYTES


def _is_done(new: _Tree, old: _Tree, path: str, before: os.stat_result) -> bool:
    """Whether the project already has this file or link as it should become."""
    status = new.status(path)
    if stat.S_IFMT(status.st_mode) != stat.S_IFMT(before.st_mode):
        return False
    if stat.S_ISLNK(status.st_mode):
        return new.link_target(path) == old.link_target(path)
    if status.st_size != before.st_size or (status.st_mode ^ before.st_mode) & _PERMISSIONS:
        return False
    return _same_content(new, old, path, unlock_old=True)


def _stays_inside(path: str, target: str) -> bool:
    """Whether a link at `path` leads to the project. `..` is accepted only at the beginning, because behind a link it leads elsewhere."""
    names = [name for name in target.split("/") if name not in ("", ".")]
    steps_up = next((at for at, name in enumerate(names) if name != ".."), len(names))
    return not target.startswith("/") and steps_up <= path.count("/") and ".." not in names[steps_up:]


_Signature = tuple[int, int, int, int] | None


def _signature(status: os.stat_result | None) -> _Signature:
    """A value that changes when a file is written or replaced. Without the ctime: that changes when another hard link is removed."""
    return None if status is None else (status.st_ino, status.st_mtime_ns, status.st_size, stat.S_IFMT(status.st_mode))


class _ConflictCheck:
    """Looks for changes that cannot be applied to the project as it is now."""

    def __init__(self, new: _Tree, old: _Tree, found: Iterable[Change], since_ns: int) -> None:
        self._new, self._old, self._found, self._since_ns = new, old, found, since_ns
        self.deleted = {change.path: change for change in found if change.kind == Kind.DELETED}
        self.added = {change.path for change in found if change.kind == Kind.ADDED}
        self.folders = {
            folder for change in found if change.kind not in (Kind.DELETED, Kind.SPECIAL) for folder in _folders_above(change.path)
        }
        self.signatures: dict[str, _Signature] = {}  # of what will be replaced or deleted

    def run(self) -> list[str]:
        conflicts = []
        for change in self._found:
            with _naming(self._old.root, change.path):
                conflict = self._conflict(change)
            if conflict is not None:
                conflicts.append(conflict)
        return list(dict.fromkeys(conflicts))

    def _conflict(self, change: Change) -> str | None:
        path = change.path
        if change.kind == Kind.SPECIAL:
            return None
        try:
            before = self._old.find(path)
        except NotADirectoryError as error:
            if error.filename not in self.deleted:
                return path
            before = None  # what is in the way will be deleted
        self.signatures[path] = _signature(before)
        match change.kind:
            case Kind.DELETED:
                return self._conflict_of_deleted(change, before)
            case Kind.ADDED:
                is_possible = self._can_be_written(change) and self._can_be_added(change, before)
            case Kind.CHANGED | Kind.MODE:
                is_possible = self._can_be_written(change) and before is not None and self._can_be_replaced(change, before)
            case _:
                assert_never(change.kind)
        return None if is_possible else path

    def _conflict_of_deleted(self, change: Change, before: os.stat_result | None) -> str | None:
        if before is None:
            return None
        if not _is_type_of(change, before):
            # In a second attempt, the new folder or file may be there already.
            is_new = change.path in self.added or (change.path in self.folders and stat.S_ISDIR(before.st_mode))
            return None if is_new else change.path
        if change.is_folder:
            return next((path for path in self._files_in(change.path) if self._is_newer(self._old.status(path))), None)
        return change.path if self._is_newer(before) else None

    def _files_in(self, path: str) -> Iterator[str]:
        for folder, names in self._old.walk(path):
            for name in names:
                yield f"{folder}/{name}"

    def _can_be_written(self, change: Change) -> bool:
        name = change.path.rpartition("/")[2]
        if name.startswith(_TEMPORARY_PREFIX) and name.endswith(_TEMPORARY_SUFFIX):
            return False  # it could be replaced while another file is written
        return not change.is_link or _stays_inside(change.path, self._new.link_target(change.path))

    def _can_be_added(self, change: Change, before: os.stat_result | None) -> bool:
        if before is None or (change.is_folder and stat.S_ISDIR(before.st_mode)):
            return True
        deleted = self.deleted.get(change.path)
        if deleted and _is_type_of(deleted, before):
            return True  # whether that can be deleted is checked there
        return not change.is_folder and _is_done(self._new, self._old, change.path, before)

    def _can_be_replaced(self, change: Change, before: os.stat_result) -> bool:
        if not _is_type_of(change, before):
            return False
        # The times of a folder change with every file that is applied in it.
        return change.is_folder or not self._is_newer(before) or _is_done(self._new, self._old, change.path, before)

    def _is_newer(self, status: os.stat_result) -> bool:
        return max(status.st_mtime_ns, status.st_ctime_ns) > self._since_ns


def _folders_above(path: str) -> list[str]:
    """The folders that a path is in, outermost first."""
    names = path.split("/")
    return ["/".join(names[:count]) for count in range(1, len(names))]


def _is_type_of(change: Change, status: os.stat_result) -> bool:
    """Whether this is still the file, link or folder that the change was found for."""
    return _flags(status) == {"is_link": change.is_link, "is_folder": change.is_folder}


def _free_temporary_name(path: str, folder: int) -> str:
    """The name under which a path is written before it is renamed; what an interrupted attempt has left there is removed."""
    name = f"{_TEMPORARY_PREFIX}{sha256(os.fsencode(path)).hexdigest()[:16]}{_TEMPORARY_SUFFIX}"
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        pass
    except IsADirectoryError:
        os.rmdir(name, dir_fd=folder)
    return name


class _Application:
    """Writes changes without conflicts to the project.

    New content comes first and deletions after it, so that at no time something is missing that was only moved. What is in the way of a new
    file or folder is deleted just before that is created.
    """

    def __init__(self, new: _Tree, old: _Tree, found: Iterable[Change], check: _ConflictCheck) -> None:
        self._new, self._old, self._found, self._check = new, old, found, check
        self._folders: set[str] = set()  # those whose mode is applied

    def run(self) -> None:
        for change in self._found:
            with _naming(self._old.root, change.path):
                if change.is_folder and change.kind in (Kind.ADDED, Kind.MODE):
                    self._folders.add(change.path)
                    self._make_folders([*_folders_above(change.path), change.path])
                elif change.kind in (Kind.ADDED, Kind.CHANGED, Kind.MODE):
                    self._write(change)
        for path in self._check.deleted:
            if path not in self._check.added and path not in self._check.folders:
                with _naming(self._old.root, path):
                    self._delete(path)
        for path in sorted(self._folders | self._check.folders, key=lambda path: path.count("/"), reverse=True):
            with _naming(self._old.root, path):
                self._set_mode(path)

    def _write(self, change: Change) -> None:
        """Write a file or link under a temporary name, and rename it."""
        path = change.path
        before = self._find_after_making_room(path)
        if before is not None and _is_done(self._new, self._old, path, before):
            return
        self._expect_unchanged(path, before)
        folder, name = self._old.parent(path)
        temporary = _free_temporary_name(path, folder)
        try:
            if change.is_link:
                os.symlink(self._new.link_target(path), temporary, dir_fd=folder)
            else:
                self._copy(path, temporary, folder)
            if before is not None and stat.S_ISDIR(before.st_mode):
                self._delete(path)
                folder, name = self._old.parent(path)
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=self._old.parent(path)[0])
            raise

    def _find_after_making_room(self, path: str) -> os.stat_result | None:
        """Create the folders above a path that are missing; returns what is at the path now."""
        with contextlib.suppress(NotADirectoryError):
            if (before := self._old.find(path)) is not None:
                return before
        self._make_folders(_folders_above(path))
        return self._old.find(path)

    def _copy(self, path: str, temporary: str, folder: int) -> None:
        with _closing(self._new.open_file(path, unlock=True)) as source:
            target = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder)
            with _closing(target):
                for chunk in _chunks(source):
                    while chunk:
                        chunk = chunk[os.write(target, chunk) :]
                os.fchmod(target, os.fstat(source).st_mode & _PERMISSIONS)

    def _make_folders(self, paths: Iterable[str]) -> None:
        """Create the folders that are missing, in place of files or links that are deleted. Their owner can write to them until all is applied."""
        for path in paths:
            before = self._old.find(path)
            if before is not None and stat.S_ISDIR(before.st_mode):
                continue
            if before is not None:
                if path not in self._check.deleted:
                    raise OSError(errno.EEXIST, _JUST_CHANGED, path)
                self._delete(path)
            self._folders.add(path)
            mode = self._new.status(path).st_mode & _PERMISSIONS
            folder, name = self._old.parent(path)
            temporary = _free_temporary_name(path, folder)
            os.mkdir(temporary, 0o700, dir_fd=folder)
            _set_folder_mode(temporary, folder, mode | _WRITE)
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)

    def _delete(self, path: str) -> None:
        """Delete what is there, unless it changed after it was checked."""
        before = self._old.find(path)
        if before is None:
            return
        self._expect_unchanged(path, before)
        if not stat.S_ISDIR(before.st_mode):
            folder, name = self._old.parent(path)
            os.unlink(name, dir_fd=folder)
            return
        for current, names in reversed([*self._old.walk(path)]):
            descriptor = self._old.folder(current)
            for name in names:
                os.unlink(name, dir_fd=descriptor)
            folder, name = self._old.parent(current)
            os.rmdir(name, dir_fd=folder)

    def _expect_unchanged(self, path: str, before: os.stat_result | None) -> None:
        if _signature(before) != self._check.signatures[path]:
            raise OSError(errno.EBUSY, _JUST_CHANGED, path)

    def _set_mode(self, path: str) -> None:
        wanted = self._new.status(path).st_mode & _PERMISSIONS
        now = self._old.status(path).st_mode
        if not stat.S_ISDIR(now) or now & _PERMISSIONS == wanted:
            return
        # A folder that only has more permissions for its owner may be left over from an attempt that was interrupted.
        if path in self._folders or now & _PERMISSIONS == wanted | _WRITE:
            folder, name = self._old.parent(path)
            _set_folder_mode(name, folder, wanted | (stat.S_IMODE(now) & ~_PERMISSIONS))


class _Side(NamedTuple):
    """A file or link before or after the change. `text` is None if it is not shown; `label` says why."""

    mode: int
    text: str | None
    label: str = ""


class _Edit(NamedTuple):
    """Lines of the old file that become lines of the new one."""

    is_equal: bool
    old_start: int
    old_end: int
    new_start: int
    new_end: int

    def first(self, count: int) -> "_Edit":
        count = min(count, self.old_end - self.old_start)
        return self._replace(old_end=self.old_start + count, new_end=self.new_start + count)

    def last(self, count: int) -> "_Edit":
        count = min(count, self.old_end - self.old_start)
        return self._replace(old_start=self.old_end - count, new_start=self.new_end - count)


class _DiffText:
    """Writes changes like `git diff`."""

    def __init__(self, new: _Tree, old: _Tree) -> None:
        self._new, self._old = new, old
        self._pairs_left = _MAX_PAIRS

    def lines(self, change: Change) -> Iterator[str]:
        name = visible(change.path)
        yield f"diff --git a/{name} b/{name}"
        if change.kind == Kind.SPECIAL:
            yield "nested too deeply, not applied" if change.is_folder else "special file, not applied"
            return
        before = None if change.kind == Kind.ADDED else self._side(self._old, change.path)
        after = None if change.kind == Kind.DELETED else self._side(self._new, change.path)
        noun = "folder" if change.is_folder else "file"
        if before and after:
            if before.mode != after.mode:
                yield f"old mode {before.mode:06o}"
                yield f"new mode {after.mode:06o}"
        elif after:
            yield f"new {noun} mode {after.mode:06o}"
        elif before:
            yield f"deleted {noun} mode {before.mode:06o}"
        if change.is_folder or change.kind == Kind.MODE:
            return
        yield from self._content(before, after, f"a/{name}" if before else "/dev/null", f"b/{name}" if after else "/dev/null")

    def _content(self, before: _Side | None, after: _Side | None, old_name: str, new_name: str) -> Iterator[str]:
        for side in (before, after):
            if side is not None and side.text is None:
                yield f"{side.label} {old_name} and {new_name} differ"
                return
        old_lines, new_lines = (_lines(side.text) if side and side.text else [] for side in (before, after))
        if old_lines != new_lines:
            yield f"--- {old_name}"
            yield f"+++ {new_name}"
            yield from self._hunks(old_lines, new_lines)

    def _side(self, tree: _Tree, path: str) -> _Side | None:
        try:
            status = tree.find(path)
        except NotADirectoryError:
            return None
        if status is None:
            return None
        mode = stat.S_IFMT(status.st_mode) | status.st_mode & _PERMISSIONS
        if stat.S_ISLNK(status.st_mode):
            return _Side(stat.S_IFLNK, tree.link_target(path))
        if not stat.S_ISREG(status.st_mode):
            return _Side(mode, "")
        try:
            descriptor = tree.open_file(path, unlock=tree is self._new)
        except PermissionError:
            return _Side(mode, None, "Unreadable files")
        with _closing(descriptor), open(descriptor, "rb", closefd=False) as file:
            start = file.read(_BINARY_CHECK_BYTES)
            if b"\0" in start:
                return _Side(mode, None, "Binary files")
            content = start + file.read(_MAX_SHOWN_FILE_BYTES + 1 - len(start))
        if len(content) > _MAX_SHOWN_FILE_BYTES:
            return _Side(mode, None, "Large files")
        return _Side(mode, content.decode("utf-8", "surrogateescape"))

    def _hunks(self, before: list[str], after: list[str]) -> Iterator[str]:
        for hunk in _grouped(self._edits(before, after)):
            first, last = hunk[0], hunk[-1]
            yield f"@@ -{_range(first.old_start, last.old_end)} +{_range(first.new_start, last.new_end)} @@"
            for edit in hunk:
                if edit.is_equal:
                    yield from _shown(" ", before[edit.old_start : edit.old_end])
                else:
                    yield from _shown("-", before[edit.old_start : edit.old_end])
                    yield from _shown("+", after[edit.new_start : edit.new_end])

    def _edits(self, before: list[str], after: list[str]) -> list[_Edit]:
        """How to get from one list of lines to the other. The first and the last edit are equal lines, perhaps none."""
        start = _common(before, after, lambda at: at)
        end = min(_common(before, after, lambda at: -1 - at), min(len(before), len(after)) - start)
        old_end, new_end = len(before) - end, len(after) - end
        edits = [_Edit(False, start, old_end, start, new_end)]
        pairs = (old_end - start) * (new_end - start)
        if pairs <= min(_MAX_PAIRS_PER_FILE, self._pairs_left):
            import difflib  # slow to import

            self._pairs_left -= pairs
            found = difflib.SequenceMatcher(None, before[start:old_end], after[start:new_end]).get_opcodes()
            edits = [_Edit(tag == "equal", *(start + at for at in places)) for tag, *places in found]
        return [_Edit(True, 0, start, 0, start), *edits, _Edit(True, old_end, len(before), new_end, len(after))]


def _grouped(edits: list[_Edit]) -> Iterator[list[_Edit]]:
    """The hunks: edits with a few equal lines around them."""
    context = _CONTEXT_LINES
    head, *middle, tail = edits
    hunk = [head.last(context)]
    for edit in middle:
        if edit.is_equal and edit.old_end - edit.old_start > 2 * context:
            yield [*hunk, edit.first(context)]
            hunk = [edit.last(context)]
        else:
            hunk.append(edit)
    yield [*hunk, tail.first(context)]


def _common(before: list[str], after: list[str], index: Callable[[int], int]) -> int:
    """The number of equal lines at the beginning or the end, as `index` counts."""
    shorter = min(len(before), len(after))
    return next((at for at in range(shorter) if before[index(at)] != after[index(at)]), shorter)


def _lines(text: str) -> list[str]:
    """The lines with their newlines. Only newlines separate lines, unlike in `splitlines`."""
    *lines, last = text.split("\n")
    return [f"{line}\n" for line in lines] + ([last] if last else [])


def _range(start: int, end: int) -> str:
    """The lines of a hunk: an empty range is named by the line before it, the length 1 is left out."""
    if end - start == 1:
        return str(end)
    return f"{start + 1 if end > start else start},{end - start}"


def _shown(sign: str, lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield sign + "\t".join(map(visible, line.removesuffix("\n").split("\t")))
        if not line.endswith("\n"):
            yield "\\ No newline at end of file"
