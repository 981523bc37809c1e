"""Prepares the sandbox of a run: the folders that it uses, its environment, and how its process is started.

With bubblewrap, the shim stays outside and starts the command in the sandbox. With Landlock alone, the shim is in it too, because only
a thread of the process that starts it can restrict it without another interpreter.
"""

import contextlib
import fcntl
import functools
import itertools
import os
import shlex
import stat
import sys
import time
from collections.abc import Generator, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from backburner.core.ports import CannotStart
from backburner.core.sandbox import Level, Network, Sandbox, Support, View
from backburner.execution import bubblewrap
from backburner.execution.private_settings import empty_copies, private_settings
from backburner.execution.sandbox_ending import protected_before
from backburner.system import landlock, run_files, seccomp, toolchains
from backburner.system.git_repository import Repository, content_of
from backburner.system.home import Home, write_pieces
from backburner.system.log_file import NAME
from backburner.system.paths import is_below, real_path
from backburner.system.project_files import ProjectFiles, TooManyFolders, without_credentials
from backburner.system.restricted_thread import Restriction
from backburner.system.sandbox_environment import SECRET_NAMES, git_settings, sandbox_environment, search_path
from backburner.system.sandbox_storage import CACHES, TEMPORARY, shared_folder

_SEARCH_INTERVAL = 60.0  # seconds after which new tools and settings of the system are noticed
_MAX_SETTINGS_BYTES = 256 * 1024
_MAX_CONTENTS = 8
_ATTRIBUTES_SETTING = f"[core]\n\tattributesFile = ~/{bubblewrap.ATTRIBUTES}\n"
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx", "/dev/pts", "/dev/shm")
_READABLE = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/opt",
    "/nix",
    "/proc",
    "/sys/devices/system",
    "/sys/fs/cgroup",
)


class Confinement(NamedTuple):
    """How a command is started in its sandbox.

    With bubblewrap: `prefix` comes before its words and `redirects` opens the files that the prefix uses. With the sandbox starter: what it sees
    is in `layout`, and `variables` are those of the command. With Landlock: `rules` and those of the machine restrict the shim. `environment` is that of
    the shim. `kept` is needed after the end.
    """

    environment: dict[str, str]
    prefix: tuple[str, ...] = ()
    redirects: str = ""
    kept: str = ""
    layout: bubblewrap.Layout | None = None
    variables: Mapping[str, str] = MappingProxyType({})
    rules: landlock.Rules | None = None  # of this run
    machine: "_MachineRules | None" = None
    files: tuple[int, ...] = ()  # open ones, which the arguments name by their numbers
    to_close: contextlib.ExitStack | None = None

    def close(self) -> None:
        if self.to_close:
            self.to_close.close()

    @contextlib.contextmanager
    def restriction(self) -> Generator[Restriction | None]:
        """What the shim is restricted to, if it is in the sandbox too. The files of the run must exist: rules are not for names."""
        if self.rules is None:
            yield None
            return
        machine = self.machine
        own = landlock.ruleset(self.rules, machine.roots if machine else None)
        try:
            yield Restriction(own, machine.descriptor, machine.number) if machine else Restriction(own)
        finally:
            os.close(own)


class Request(NamedTuple):
    """Everything that a sandbox is made from. `variables` are those given with the task, `own` those that Backburner sets."""

    sandbox: Sandbox
    home: Home
    folder: str  # of the run
    cwd: str
    environment: Mapping[str, str]  # of the caller
    variables: Mapping[str, str]
    own: dict[str, str]
    passed: tuple[str, ...]  # names of further variables of the caller that are passed on

    @property
    def user_home(self) -> str:
        return real_path(self.environment.get("HOME") or os.path.expanduser("~"))


def confine(request: Request, support: Support, *, by_starter: bool = False) -> Confinement:
    """Prepare the sandbox of a run, for bubblewrap or for the sandbox starter. CannotStart if this machine no longer offers it."""
    sandbox = request.sandbox
    if support.level is not sandbox.level or (sandbox.view is View.COPY and not support.overlay):
        raise CannotStart(f"the sandbox is not available any more: {support.reason or support.level}")
    try:
        files = bubblewrap.find_files(sandbox.project) if sandbox.project else ProjectFiles([], [], [])
    except TooManyFolders:
        raise CannotStart("the project has too many folders to search them for secrets") from None
    if sandbox.level is not Level.FULL:
        return _with_landlock(request, files)
    with contextlib.ExitStack() as stack:  # closes the descriptors that were opened before an error
        confinement = _with_namespaces(request, support, files, stack, by_starter=by_starter)
        return confinement._replace(to_close=stack.pop_all())


def _with_namespaces(
    request: Request, support: Support, files: ProjectFiles, stack: contextlib.ExitStack, *, by_starter: bool
) -> Confinement:
    """The variables of the command are set inside: the programs outside, which are not confined, must not be started with them."""
    sandbox, home, folder, user_home = request.sandbox, request.home, request.folder, request.user_home
    env = sandbox_environment(request.environment, sandbox, request.passed)
    env |= {"HOME": user_home, "TMPDIR": "/tmp", **request.variables, **request.own}
    path = env.get("PATH", os.defpath)
    if sandbox.only_known_programs:
        changeable = [os.path.join(user_home, ".cache"), *([sandbox.project] if sandbox.project else [])]
        changeable += ["/tmp"] if not is_below(user_home, "/tmp") else []
        env["PATH"] = path = search_path(path, changeable)
    assert support.bubblewrap is not None
    root = real_path(home.root)
    is_shared = sandbox.network is not Network.OPEN  # what other commands have left must not run where there is a network
    places = bubblewrap.Places(
        home=root,
        run=real_path(folder),
        user_home=user_home,
        cache=shared_folder(root, CACHES, sandbox.project) if is_shared else None,
        temporary=shared_folder(root, TEMPORARY, sandbox.project) if is_shared else None,
        empty=_shared(home, "empty", b""),
        git_config=_file(stack, (git_settings(request.environment) + _ATTRIBUTES_SETTING).encode(), shared=by_starter),
        attributes=_file(stack, _secret_names(), shared=by_starter),
        opened=bubblewrap.open_protected(stack, sandbox.project, files) if sandbox.project and support.overlay else None,
        overlay=support.overlay,
        hidden=empty_copies(root, support.bubblewrap) if support.overlay else None,
    )
    if sandbox.view is View.COPY and sandbox.project:
        for name in ("upper", "work"):
            os.makedirs(os.path.join(places.changes, name), 0o700, exist_ok=True)
        os.chmod(
            os.path.join(places.changes, "upper"), stat.S_IMODE(os.stat(sandbox.project).st_mode)
        )  # the copy has the mode of this folder
    for number, path in enumerate(files.git_settings):
        write_pieces(places.settings(number), (without_credentials(content_of(path, _MAX_SETTINGS_BYTES)),))
    layout = bubblewrap.layout(sandbox, places, request.cwd, path, files)
    confinement = Confinement(
        {"PATH": os.defpath, **request.own},
        kept=protected_before(sandbox, files),
        variables=env,
        files=(places.git_config, places.attributes, *(places.opened or {}).values()),
    )
    if by_starter:
        return confinement._replace(layout=layout)
    listens = sandbox.network is Network.LISTEN
    program = _shared(home, "listening.bpf" if listens else "default.bpf", seccomp.listening() if listens else seccomp.inside_namespaces())
    arguments = bubblewrap.kept(stack, in_memory(os.fsencode("\0".join((*layout.arguments(env), "")))))
    return confinement._replace(
        prefix=(support.bubblewrap, "--args", str(arguments), "--seccomp", "6", "--json-status-fd", "7", "--"),
        redirects=f"6<{shlex.quote(program)} 7>>{shlex.quote(os.path.join(folder, run_files.EXIT))}",
        rules=landlock.Rules(files=False, connect=sandbox.connect, bind=True) if listens else None,
        files=(*confinement.files, arguments),
    )


_contents: dict[bytes, int] = {}


def _file(stack: contextlib.ExitStack, content: bytes, *, shared: bool) -> int:
    """A file in memory: one that stays open, which the sandbox starter reads without moving its position, or one for a single bubblewrap."""
    if not shared:
        return bubblewrap.kept(stack, in_memory(content))
    if content not in _contents:
        while len(_contents) >= _MAX_CONTENTS:
            os.close(_contents.pop(next(iter(_contents))))
        _contents[content] = in_memory(content)
    return _contents[content]


@functools.cache
def _secret_names() -> bytes:
    with open(SECRET_NAMES, "rb") as file:
        return file.read()


def in_memory(content: bytes, *, sealed: bool = False) -> int:
    """A descriptor to read this from. If it is sealed, nobody can change it."""
    descriptor = os.memfd_create("backburner", os.MFD_CLOEXEC | (os.MFD_ALLOW_SEALING if sealed else 0))
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    if sealed:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return descriptor


def _with_landlock(request: Request, files: ProjectFiles) -> Confinement:
    sandbox, home, folder, user_home = request.sandbox, request.home, request.folder, request.user_home
    root, work = real_path(home.root), os.path.join(folder, run_files.WORK)
    temporary = shared_folder(root, TEMPORARY, sandbox.project)
    settings = _shared(home, "gitconfig", git_settings(request.environment).encode())
    env = sandbox_environment(request.environment, sandbox, request.passed, user_home=user_home, attributes=SECRET_NAMES)
    env |= {"HOME": work, "TMPDIR": temporary, "GIT_CONFIG_GLOBAL": settings, **request.variables, **request.own}
    project: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    if sandbox.project:
        hidden = {os.path.join(sandbox.project, name) for name in files.secrets} | set(files.git_settings)
        places = (sandbox.project, *_git_elsewhere(sandbox.project, files.repository))
        project = tuple(part for place in places for part in _without(place, hidden | {root}))
    own = (root, *places, *sandbox.read)
    versions = (*map(_identity, own), *toolchains.credentials(user_home), int(time.monotonic() // _SEARCH_INTERVAL))
    machine = _machine_rules(user_home, env.get("PATH", os.defpath), own, sandbox.project, versions)
    rules = landlock.Rules(
        read=(*project, settings, *sandbox.read, os.path.join(folder, run_files.INPUTS)),
        list_only=own[1:2] if sandbox.project else (),
        write=(work, temporary, os.path.join(folder, run_files.EXIT), os.path.join(folder, NAME)),
    )
    return Confinement(env, rules=rules, machine=machine)


def _git_elsewhere(project: str, repository: Repository | None) -> tuple[str, ...]:
    """The git folders of a linked worktree, which are in the folder of another one."""
    if repository is None or repository.top != project:
        return ()
    return tuple(folder for folder in dict.fromkeys((repository.common, repository.git)) if not is_below(folder, project))


class _MachineRules:
    """What sandboxes may use of the machine with Landlock: the system, the tools of the user, and this program, which the shim may need.

    A run is restricted to this and, by few rules of its own, to its project and its folders; only what both permit is permitted. Here are
    the many rules: Landlock can permit but not except, so /etc is permitted file by file around those that only root may read. The ruleset
    is kept, because making it takes longer than everything else. `roots` are few rules that permit at least the same, for those of a run.
    """

    _numbers = itertools.count(1)

    def __init__(self, user_home: str, path: str, own: tuple[str, ...], project: str | None) -> None:
        """`own` are the home of Backburner and what else the rules of a run decide about."""
        program = (os.path.dirname(os.path.dirname(os.path.abspath(__file__))), sys.prefix, sys.base_prefix)
        places = {os.path.realpath(place) for place in (*_READABLE, "/etc", *toolchains.readable(user_home, path), *program)}
        excluded = {own[0], project or own[0]}
        roots = [part for place in places if os.path.exists(place) for part in _without(place, excluded)]
        self.roots = landlock.OpenedRules(landlock.Rules(read=tuple({_widest(root, excluded) for root in roots}), devices=("/dev",)))
        self.number = next(self._numbers)
        hidden = {path for path, _ in private_settings()} | set(toolchains.credentials(user_home))
        parts = tuple(part for root in roots for part in _without(root, hidden))
        self.descriptor = landlock.ruleset(landlock.Rules(read=(*parts, *own[1:]), write=own[:1], devices=_DEVICES))

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # it could not be made
            os.close(self.descriptor)


@functools.lru_cache(8)
def _machine_rules(user_home: str, path: str, own: tuple[str, ...], project: str | None, _: tuple[object, ...]) -> _MachineRules:
    """The last argument changes when other rules are needed, for example because a folder was replaced by another one."""
    return _MachineRules(user_home, path, own, project)


def _widest(path: str, excluded: set[str]) -> str:
    """The outermost folder above a path that holds none of the excluded ones."""
    while (above := os.path.dirname(path)) != "/" and not any(is_below(other, above) for other in excluded):
        path = above
    return path


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
        return found.st_dev, found.st_ino
    except OSError:
        return None


def _without(root: str, hidden: set[str]) -> Iterator[str]:
    """The parts of a folder that together hold everything but the hidden paths: Landlock can permit, but not except."""
    if root in hidden:
        return
    if not any(is_below(path, root) for path in hidden):
        yield root
        return
    with os.scandir(root) as entries:
        parts = [entry.path for entry in entries if not entry.is_symlink()]
    for path in parts:
        yield from _without(path, hidden)


_written: dict[str, tuple[bytes, tuple[int, ...]]] = {}  # by path: the content of a shared file, and its version


def _shared(home: Home, name: str, content: bytes) -> str:
    """A file that all sandboxes of this home use, with this content."""
    path = os.path.join(home.root, "sandbox", name)
    if _written.get(path) != (content, _version(path)):
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        write_pieces(path, (content,))
        _written[path] = content, _version(path)
    return path


def _version(path: str) -> tuple[int, ...]:
    try:
        found = os.stat(path)
        return found.st_ino, found.st_size, found.st_mtime_ns
    except FileNotFoundError:
        return ()
