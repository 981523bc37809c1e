"""The arguments of bubblewrap for one run: what the command sees of the machine. The same layout for every command, whatever it is.

Later mounts cover earlier ones. Another command in the same project could exchange a folder for a link to somewhere else while a sandbox is
prepared, so what is bound from inside the project is opened before, without following links.
"""

import contextlib
import fcntl
import functools
import os
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from backburner.core.sandbox import Network, Sandbox, View
from backburner.execution.private_settings import overlay_arguments, private_settings
from backburner.system import run_files, toolchains
from backburner.system.git_repository import OddRepository, Repository, repository_of
from backburner.system.paths import is_below, real_path
from backburner.system.project_files import ProjectFiles, search, settings_with_credentials, untracked

_SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "opt", "nix", "gnu", "etc")
_MACHINE = tuple(word for path in ("/sys/devices/system", "/sys/fs/cgroup") for word in ("--ro-bind-try", path, path))
_MAX_TEMPORARY_BYTES = 4 << 30
_FIRST_DESCRIPTOR = 20  # that bubblewrap is given; the shim uses lower ones
_SEARCH_INTERVAL = 60.0  # seconds after which changes of the system are noticed
ATTRIBUTES = ".gitattributes"  # in the home directory, as the settings for git say


class Places(NamedTuple):
    """The folders that one run uses besides its project. `empty` is an empty file, `changes` the place for the copy of a project."""

    home: str  # of Backburner
    run: str
    user_home: str
    cache: str | None  # None: empty ones, in which no other command could have left anything
    temporary: str | None
    empty: str
    git_config: int  # an open file
    attributes: int  # for git, an open file
    opened: dict[str, int] | None = None  # protected files of the project; None if this bubblewrap cannot use descriptors
    overlay: bool = False
    hidden: str | None = None  # empty files for an overlay that hides those in /etc; None: a mount hides each

    def settings(self, number: int) -> str:
        """A copy of git settings without credentials."""
        return os.path.join(self.run, f".git-settings-{number}")

    @property
    def changes(self) -> str:
        return os.path.join(self.run, run_files.CHANGES)


class Layout(NamedTuple):
    """The arguments of bubblewrap in parts; together with the variables they describe a sandbox, whoever makes it.

    `machine` is best mounted last by bubblewrap itself, which looks at each mount again for every later one.
    """

    namespaces: tuple[str, ...]
    system: Sequence[str]  # the same for many commands, as `machine`
    own: tuple[str, ...]
    machine: tuple[str, ...]
    later: tuple[str, ...]  # after `machine`

    def arguments(self, environment: Mapping[str, str]) -> list[str]:
        variables = (word for pair in environment.items() for word in ("--setenv", *pair))
        return [*self.namespaces, *self.system, *self.own, *self.machine, *self.later, "--clearenv", *variables]


def layout(sandbox: Sandbox, places: Places, cwd: str, path: str, files: ProjectFiles) -> Layout:
    """What the command sees. `path` is its search path."""
    cwd = real_path(cwd)
    own = (
        *_of_each(sandbox, places),
        *_user_home(places, path),
        *(_project(sandbox, sandbox.project, places, files) if sandbox.project else ("--dir", cwd)),
        *_own(places, sandbox.project),
    )
    later = (
        *(word for extra in sandbox.read for word in ("--ro-bind-try", extra, extra)),
        *(word for extra in sandbox.sockets for word in ("--bind-try", extra, extra)),
        *("--chdir", cwd),
    )
    system = _system(places.hidden, time.monotonic() // _SEARCH_INTERVAL)
    return Layout(tuple(_namespaces(sandbox)), system, own, _MACHINE, later)


def open_protected(stack: contextlib.ExitStack, project: str, files: ProjectFiles) -> dict[str, int]:
    """Open the protected files of a project by their names. Links, and what has disappeared, are left out.

    Each of them must be in the arguments of bubblewrap, which closes these: the command could leave the sandbox through an open folder.
    """
    opened = {}
    for name in _bound(project, files):
        with contextlib.ExitStack() as folders, contextlib.suppress(FileNotFoundError, NotADirectoryError):
            descriptor = -1
            for part in (project, *name.split("/")):
                flags = os.O_PATH | os.O_CLOEXEC | (os.O_NOFOLLOW if descriptor >= 0 else os.O_DIRECTORY)
                descriptor = os.open(part, flags, dir_fd=descriptor if descriptor >= 0 else None)
                folders.callback(os.close, descriptor)
            if not stat.S_ISLNK(os.fstat(descriptor).st_mode):
                opened[name] = kept(stack, os.dup(descriptor))
    return opened


def kept(stack: contextlib.ExitStack, descriptor: int) -> int:
    """The descriptor with a number that the shim does not use. It is closed with the stack."""
    try:
        moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _FIRST_DESCRIPTOR)
    finally:
        os.close(descriptor)
    stack.callback(os.close, moved)
    return moved


def find_files(project: str) -> ProjectFiles:
    """What must be hidden and protected in a project."""
    found = search(project)
    repository = _repository(project)
    folders = [path for name in found.protected if os.path.basename(name) == ".git" and os.path.isdir(path := os.path.join(project, name))]
    folders += [repository.common, repository.git] if repository else []
    tracked_by = repository.git if repository and repository.top == project else None
    settings = settings_with_credentials(dict.fromkeys(folders))
    return found._replace(secrets=untracked(found.secrets, tracked_by), git_settings=settings, repository=repository)


def _namespaces(sandbox: Sandbox) -> Iterator[str]:
    yield from ("--unshare-user", "--unshare-ipc", "--unshare-uts", "--disable-userns", "--cap-drop", "ALL")
    if not sandbox.processes:
        yield "--unshare-pid"
    if sandbox.network is Network.NONE:
        yield "--unshare-net"


def _of_each(sandbox: Sandbox, places: Places) -> Iterator[str]:
    """Devices and temporary files."""
    yield from ("--dev", "/dev", "--symlink", "../tmp", "/var/tmp", "--dir", "/run")
    if places.temporary:
        yield from ("--bind", places.temporary, "/tmp")
    else:
        yield from ("--size", str(_MAX_TEMPORARY_BYTES), "--perms", "1777", "--tmpfs", "/tmp")
    if sandbox.network is Network.OPEN and is_below(resolver := os.path.realpath("/etc/resolv.conf"), "/run"):
        yield from ("--ro-bind-try", resolver, resolver)


@functools.lru_cache(2)
def _system(hidden: str | None, _: float) -> Sequence[str]:
    """The system, which is the same in every sandbox."""
    words = []
    for name in _SYSTEM:
        if os.path.islink(f"/{name}"):
            words += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
        elif name == "etc" and hidden:
            words += overlay_arguments(hidden)
        elif os.path.isdir(f"/{name}"):
            words += ["--dir", f"/{name}"] if _is_empty(f"/{name}") else ["--ro-bind", f"/{name}", f"/{name}"]
    for path, is_folder in private_settings():
        if is_folder:
            words += ["--tmpfs", path]
        elif not hidden:
            words += ["--ro-bind", os.devnull, path]
    words += ["--proc", "/proc"]
    if os.geteuid() == 0:  # it could write to settings of the kernel even without capabilities, because it owns them
        words += ["--remount-ro", "/proc"]
    return words


def _is_empty(folder: str) -> bool:
    try:
        return not os.listdir(folder)
    except PermissionError:
        return False


def _user_home(places: Places, path: str) -> Iterator[str]:
    """An empty home directory with the toolchains of the user, a place for caches, and the git settings without credentials."""
    home = places.user_home
    is_in_memory = home.split("/")[1] not in (*_SYSTEM, "tmp", "var", "dev", "sys", "proc")  # as everything that is not mounted
    yield from ("--perms", "0700", "--dir" if is_in_memory else "--tmpfs", home)
    written = {f"{home}/{name}" for name in toolchains.WRITTEN} if places.overlay else ()
    for folder in toolchains.readable(home, path):
        if folder in written:
            yield from ("--overlay-src", folder, "--tmp-overlay", folder)  # what is written is discarded
        else:
            yield from ("--ro-bind", folder, folder)
    for path in toolchains.credentials(home):
        yield from ("--tmpfs", path) if os.path.isdir(path) else ("--ro-bind", places.empty, path)
    yield from ("--bind", places.cache, os.path.join(home, ".cache")) if places.cache else ()
    # Copies, because a mount takes bubblewrap many times longer.
    yield from ("--file", str(places.git_config), os.path.join(home, ".gitconfig"))
    yield from ("--file", str(places.attributes), os.path.join(home, ATTRIBUTES))


def _project(sandbox: Sandbox, project: str, places: Places, files: ProjectFiles) -> Iterator[str]:
    match sandbox.view:
        case View.WRITABLE:
            yield from ("--bind", project, project)
        case View.COPY:
            upper, work = (os.path.join(places.changes, name) for name in ("upper", "work"))
            yield from ("--overlay-src", project, "--overlay", upper, work, project)
        case View.READ_ONLY:
            yield from ("--ro-bind", project, project)
    repository = files.repository
    if repository and repository.top == project:
        yield from _git(repository, writable=sandbox.git)
    readable = {real_path(extra) for extra in sandbox.read}
    if places.opened is None:
        for path in (os.path.join(project, name) for name in _bound(project, files)):
            if not os.path.islink(path):
                yield from ("--ro-bind", path, path)
    for name, descriptor in (places.opened or {}).items():
        yield from ("--ro-bind-fd", str(descriptor), os.path.join(project, name))
    for name in files.secrets:
        path = os.path.join(project, name)
        if path not in readable:
            yield from ("--ro-bind", places.empty, path)
    for number, path in enumerate(files.git_settings):
        yield from ("--ro-bind", places.settings(number), path)


def _bound(project: str, files: ProjectFiles) -> list[str]:
    """The protected files that are mounts of their own; the git folder of the project is one in any case."""
    own_git = os.path.join(files.repository.top, ".git") if files.repository else ""
    return [name for name in files.protected if os.path.join(project, name) != own_git]


def _git(repository: Repository, *, writable: bool) -> Iterator[str]:
    """The git folders, which are mounts of their own: otherwise one could be renamed and replaced."""
    kind = "--bind" if writable else "--ro-bind"
    for path in dict.fromkeys((repository.common, repository.git)):
        yield from (kind, path, path)
    if repository.git != repository.common:
        pointer = os.path.join(repository.top, ".git")
        yield from ("--ro-bind", pointer, pointer)
    if writable:  # what git runs stays as it is
        for name in ("config", "hooks", "modules", "info", "config.worktree", "commondir"):
            for folder in dict.fromkeys((repository.common, repository.git)):
                if os.path.lexists(path := os.path.join(folder, name)) and not os.path.islink(path):
                    yield from ("--ro-bind", path, path)


def _own(places: Places, project: str | None) -> Iterator[str]:
    """Of Backburner's home only the folders of this run; its own program cannot be changed."""
    if project and is_below(places.home, project):
        yield from ("--tmpfs", places.home)
    for folder in _installation() if project else ():
        if is_below(folder, str(project)):
            yield from ("--ro-bind", folder, folder)
    work, inputs = (os.path.join(places.run, name) for name in ("work", "inputs"))
    yield from ("--bind", work, work)
    if os.path.isdir(inputs):
        yield from ("--ro-bind", inputs, inputs)


@functools.cache
def _installation() -> Iterable[str]:
    """Where this program and its interpreter are installed."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return tuple(dict.fromkeys(real_path(folder) for folder in (sys.prefix, package)))


def _repository(folder: str) -> Repository | None:
    try:
        return repository_of(folder)
    except OddRepository:
        return None
