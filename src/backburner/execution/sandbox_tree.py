"""The files of one sandbox, made from the arguments that bubblewrap would get: one description, whoever makes the sandbox.

The tree of mounts is put together where no process sees it. What comes from the machine is copied from where the calling thread sees it; places are
found inside the tree, so that no link that another command makes meanwhile leads anywhere else.
"""

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from stat import S_ISDIR, S_ISLNK

from backburner.system import mounts
from backburner.system.mounts import ORDINARY, READ_ONLY

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "core": "/proc/kcore",
    "ptmx": "pts/ptmx",
}
_FOLDER_MODE, _FILE_MODE, _PRIVATE_MODE, _SHARED_MODE = 0o755, 0o644, 0o700, 0o1777
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_READ_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_MAX_FILE_BYTES = 1 << 20


class SandboxTree:
    """What one command sees. `descriptors` are open files by the numbers that the arguments have for them."""

    def __init__(self, words: Iterable[str], descriptors: Mapping[int, int], system: "SystemTree | None" = None) -> None:
        self.cwd = "/"
        self.process_attributes = ORDINARY  # of /proc, which is mounted when the command's namespace exists
        self.root = _in_memory(_FOLDER_MODE)
        # Folders that were made here, in memory, where no other process can put a link; None if one is not opened yet.
        self._made: dict[str, int | None] = {"": self.root}
        self._opened: list[int] = []
        self._descriptors, self._system = descriptors, system
        self._layers: list[str] = []  # of the next overlay
        self._mode, self._size = _FOLDER_MODE, ""  # of the next folder
        try:
            if system:
                system.add_to(self.root)
                self.process_attributes = system.process_attributes
            found = iter(words)
            for word in found:
                _ACTIONS[word](self, found)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for descriptor in (*self._made.values(), *self._opened):
            if descriptor is not None:
                os.close(descriptor)
        self._made, self._opened = {}, []

    # Each of these takes the words that follow its own.

    def _bind(self, words: Iterator[str]) -> None:
        self._mount(mounts.copy(next(words)), next(words))

    def _bind_read_only(self, words: Iterator[str]) -> None:
        self._mount(mounts.copy(next(words), ORDINARY | READ_ONLY), next(words))

    def _bind_existing(self, words: Iterator[str], attributes: int = ORDINARY) -> None:
        source, place = next(words), next(words)
        try:
            mount = mounts.copy(source, attributes)
        except FileNotFoundError:
            return
        self._mount(mount, place)

    def _bind_existing_read_only(self, words: Iterator[str]) -> None:
        self._bind_existing(words, ORDINARY | READ_ONLY)

    def _bind_opened(self, words: Iterator[str]) -> None:
        """The file was opened elsewhere, where no link was followed; only what this process opens itself can be copied."""
        wanted, place = self._descriptors[int(next(words))], next(words)
        found = self._keep(os.open(place, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC))
        if not os.path.sameopenfile(found, wanted):
            raise OSError(errno.ESTALE, f"{place} was replaced by another file meanwhile")
        self._mount(mounts.copy(found, ORDINARY | READ_ONLY), place)

    def _add_folder(self, words: Iterator[str]) -> None:
        with contextlib.suppress(FileExistsError):
            self._make_folder(next(words), self._mode)
        self._mode = _FOLDER_MODE

    def _add_memory(self, words: Iterator[str]) -> None:
        self._mount(_in_memory(self._mode, self._size), next(words))
        self._mode, self._size = _FOLDER_MODE, ""

    def _add_link(self, words: Iterator[str]) -> None:
        target, (above, _, name) = next(words), next(words).rpartition("/")
        os.symlink(target, name, dir_fd=self._folder(above))

    def _add_file(self, words: Iterator[str]) -> None:
        source = self._descriptors[int(next(words))]
        content = os.pread(source, min(os.fstat(source).st_size, _MAX_FILE_BYTES), 0)
        above, _, name = next(words).rpartition("/")
        file = os.open(name, _NEW_FILE, _FILE_MODE, dir_fd=self._folder(above))
        try:
            os.write(file, content)
        finally:
            os.close(file)

    def _add_layer(self, words: Iterator[str]) -> None:
        self._layers.append(next(words))

    def _add_read_only_overlay(self, words: Iterator[str]) -> None:
        self._overlay(next(words))

    def _add_overlay_in_memory(self, words: Iterator[str]) -> None:
        memory = self._keep(_in_memory(_PRIVATE_MODE))
        for name in ("upper", "work"):
            os.mkdir(name, _FOLDER_MODE, dir_fd=memory)
        self._overlay(next(words), *(self._keep(os.open(name, _READ_FOLDER, dir_fd=memory)) for name in ("upper", "work")))

    def _add_overlay(self, words: Iterator[str]) -> None:
        upper, work, place = next(words), next(words), next(words)
        self._overlay(place, *(self._keep(os.open(path, _READ_FOLDER)) for path in (upper, work)))

    def _add_devices(self, words: Iterator[str]) -> None:
        """Devices are the same for all commands; terminals and shared memory are not."""
        assert self._system
        place = next(words)
        self._mount(mounts.copy(self._system.devices, READ_ONLY), place)
        self._mount(mounts.new("devpts", [("mode", "620"), ("ptmxmode", "666")], mounts.NO_SETUID), f"{place}/pts")
        self._make_folder("/run", _FOLDER_MODE)
        self._make_folder("/run/shm", _SHARED_MODE)
        self._mount(mounts.copy(self._folder("/run/shm")), f"{place}/shm")

    def _add_processes(self, words: Iterator[str]) -> None:
        """Only their place: what is mounted there belongs to a namespace that does not exist yet."""
        self._make_folder(next(words), _FOLDER_MODE)

    def _make_read_only(self, words: Iterator[str]) -> None:
        if next(words) != "/proc":
            raise ValueError("only /proc can be made read-only afterwards")
        self.process_attributes |= READ_ONLY

    def _set_mode(self, words: Iterator[str]) -> None:
        self._mode = int(next(words), 8)

    def _set_size(self, words: Iterator[str]) -> None:
        self._size = next(words)

    def _set_cwd(self, words: Iterator[str]) -> None:
        self.cwd = next(words)

    def _overlay(self, place: str, *changes: int) -> None:
        """`changes` are the folder for them and one to work in; without these it is read-only. The first layer is the lowest one."""
        layers: list[mounts.Option] = [("lowerdir+", self._keep(os.open(path, _READ_FOLDER))) for path in reversed(self._layers)]
        self._layers = []
        layers += zip(("upperdir", "workdir"), changes, strict=False)
        self._mount(mounts.new("overlay", [*layers, ("userxattr", None)], ORDINARY if changes else ORDINARY | READ_ONLY), place)

    def _mount(self, mount: int, path: str) -> None:
        """Put a mount in its place, which is made if it does not exist, and close it."""
        above, _, name = path.rpartition("/")
        try:
            folder = self._folder(above)
            if above in self._made and path not in self._made:
                self._make(name, folder, mount)
            try:
                mounts.attach(mount, folder, name)
            except FileNotFoundError:
                self._make(name, folder, mount)
                mounts.attach(mount, folder, name)
        finally:
            os.close(mount)
        if path in self._made:  # what was opened there is covered now
            for covered in [made for made in self._made if made == path or made.startswith(f"{path}/")]:
                if (folder := self._made.pop(covered)) is not None:
                    self._opened.append(folder)

    @staticmethod
    def _make(name: str, folder: int, mount: int) -> None:
        """Make the place of a mount."""
        try:
            if S_ISDIR(os.fstat(mount).st_mode):
                os.mkdir(name, _FOLDER_MODE, dir_fd=folder)
            else:
                os.close(os.open(name, _NEW_FILE, _FILE_MODE, dir_fd=folder))
        except FileExistsError:
            return

    def _folder(self, path: str) -> int:
        """Open a folder, which is made, with those above it, if it does not exist. It is closed with the tree."""
        if (found := self._made.get(path)) is not None:
            return found
        if path not in self._made:
            try:
                return self._keep(mounts.open_inside(self.root, path))
            except FileNotFoundError:
                self._make_folder(path, _FOLDER_MODE)
        above, _, name = path.rpartition("/")
        folder = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._folder(above))
        if path in self._made:
            self._made[path] = folder
            return folder
        return self._keep(folder)

    def _make_folder(self, path: str, mode: int) -> None:
        above, _, name = path.rpartition("/")
        os.mkdir(name, mode, dir_fd=self._folder(above))
        if above in self._made:
            self._made[path] = None

    def _keep(self, descriptor: int) -> int:
        """Close a descriptor with the tree."""
        self._opened.append(descriptor)
        return descriptor


# By the arguments of bubblewrap.
_ACTIONS = {
    "--bind": SandboxTree._bind,
    "--bind-try": SandboxTree._bind_existing,
    "--chdir": SandboxTree._set_cwd,
    "--dev": SandboxTree._add_devices,
    "--dir": SandboxTree._add_folder,
    "--file": SandboxTree._add_file,
    "--overlay": SandboxTree._add_overlay,
    "--overlay-src": SandboxTree._add_layer,
    "--perms": SandboxTree._set_mode,
    "--proc": SandboxTree._add_processes,
    "--remount-ro": SandboxTree._make_read_only,
    "--ro-bind": SandboxTree._bind_read_only,
    "--ro-bind-fd": SandboxTree._bind_opened,
    "--ro-bind-try": SandboxTree._bind_existing_read_only,
    "--ro-overlay": SandboxTree._add_read_only_overlay,
    "--size": SandboxTree._set_size,
    "--symlink": SandboxTree._add_link,
    "--tmp-overlay": SandboxTree._add_overlay_in_memory,
    "--tmpfs": SandboxTree._add_memory,
}


class SystemTree:
    """What many commands see of the machine, read-only: the outermost folders, with what is mounted in them, and links."""

    def __init__(self, words: Sequence[str]) -> None:
        self._links: list[tuple[str, str]] = []
        self._folders: list[str] = []  # empty ones
        self._mounts: list[tuple[str, int]] = []
        self.devices = _devices()
        self._tree = SandboxTree(words, {})
        self.process_attributes = self._tree.process_attributes
        root = self._tree.root
        entries = os.open(".", _READ_FOLDER, dir_fd=root)
        for name in os.listdir(entries):
            if S_ISLNK(os.stat(name, dir_fd=root, follow_symlinks=False).st_mode):
                self._links.append((name, os.readlink(name, dir_fd=root)))
                continue
            folder = os.open(name, _READ_FOLDER, dir_fd=root)
            if os.listdir(folder):
                self._mounts.append((name, folder))
            else:
                self._folders.append(name)
                os.close(folder)
        os.close(entries)

    def add_to(self, root: int) -> None:
        """Make the same in an empty folder."""
        for name, target in self._links:
            os.symlink(target, name, dir_fd=root)
        for name in self._folders:
            os.mkdir(name, _FOLDER_MODE, dir_fd=root)
        for name, mount in self._mounts:
            os.mkdir(name, _FOLDER_MODE, dir_fd=root)
            copy = mounts.copy(mount, READ_ONLY)
            try:
                mounts.attach(copy, root, name)
            finally:
                os.close(copy)

    def close(self) -> None:
        self._tree.close()
        for descriptor in (self.devices, *(mount for _, mount in self._mounts)):
            os.close(descriptor)


def _devices() -> int:
    """A tree for /dev: ordinary devices, and the places of what each command has of its own."""
    root = _in_memory(_FOLDER_MODE)
    for name in _DEVICES:
        os.close(os.open(name, _NEW_FILE, _FILE_MODE, dir_fd=root))
        device = mounts.copy(f"/dev/{name}", mounts.NO_SETUID)
        mounts.attach(device, root, name)
        os.close(device)
    for name, target in _DEVICE_LINKS.items():
        os.symlink(target, name, dir_fd=root)
    for name in ("pts", "shm"):
        os.mkdir(name, _FOLDER_MODE, dir_fd=root)
    return root


def _in_memory(mode: int, size: str = "") -> int:
    return mounts.new("tmpfs", [("mode", f"{mode:o}"), *([("size", size)] if size else [])])
