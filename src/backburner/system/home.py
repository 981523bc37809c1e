"""The folder that holds everything: where each file lies, and the two locks. No policy, no ledger."""

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterable

from backburner.core.errors import BadInput, HomeUnusable

# The kernel's limit for a socket's path is 108 bytes with its end, 104 on some systems.
_MAX_SOCKET_DIR_BYTES = 104 - len("/12345678901-12345678.sock") - 1


OPENCODE_SERVERS = "opencode"  # below a home: a file for each server of OpenCode that we have started
SPARE_LOG_PREFIX = ".spare-"  # how the name of a log begins that waits for its command

# What a home holds beside run folders.
RESERVED_NAMES = frozenset(
    [
        "agents.lock",
        "chat_history",
        "config.toml",
        "engine.lock",
        "engine.log",
        "integrations.lock",
        "ledger.db",
        "ledger.db-shm",
        "ledger.db-wal",
        "opencode",
        "setup.lock",
        "sockets",
        "start.lock",
        "tasks",
        "token",
        "waiting.lock",
        "worktrees",
    ]
)


class Home:
    """Paths below one home. `tasks` is where new run folders go, the home itself for a bare `TaskStorage`."""

    def __init__(self, root: str, tasks: str = "tasks") -> None:
        self.root = os.path.abspath(root)
        self.tasks = tasks
        self.ledger = os.path.join(self.root, "ledger.db")
        self.config = os.path.join(self.root, "config.toml")
        self.engine_lock = os.path.join(self.root, "engine.lock")
        self.start_lock = os.path.join(self.root, "start.lock")
        self.setup_lock = os.path.join(self.root, "setup.lock")
        self.engine_log = os.path.join(self.root, "engine.log")

    def make(self) -> "Home":
        """Create what is missing, private to the user."""
        for path in (self.root, os.path.join(self.root, self.tasks)):
            try:
                os.makedirs(path, 0o700, exist_ok=True)
            except FileExistsError:
                raise HomeUnusable(f"{path} is not a folder", home=self.root) from None
            except OSError as error:
                raise HomeUnusable(f"{path}: {error.strerror}", home=self.root) from None
        with contextlib.suppress(OSError):  # a home that cannot be changed can still be read
            if stat.S_IMODE(os.stat(self.root).st_mode) & 0o077 and (
                os.path.exists(self.ledger) or RESERVED_NAMES.issuperset(os.listdir(self.root))
            ):
                os.chmod(self.root, 0o700)  # a folder that holds something else as well may be meant for others
            if not os.path.lexists(self.config):
                # there from the start: whoever may create files, but not change them, cannot make its rules
                os.close(os.open(self.config, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        return self

    def folder(self, name: str) -> str:
        """A run's folder, from the relative name that the ledger keeps."""
        return os.path.join(self.root, name)

    @property
    def socket_dir(self) -> str:
        """Where sockets are bound: in the home, or, because a socket's path must be short, below /tmp."""
        inside = os.path.join(self.root, "sockets")
        if len(os.fsencode(inside)) <= _MAX_SOCKET_DIR_BYTES:
            return inside
        import zlib

        name = os.fsencode(os.path.realpath(self.root))
        return f"/tmp/backburner-{os.getuid()}/{zlib.crc32(name):08x}{zlib.adler32(name):08x}"

    def create_socket_dir(self) -> str:
        """The folder of sockets, made if missing; refused if somebody else could have put it there."""
        folder = self.socket_dir
        try:
            for path in dict.fromkeys((os.path.dirname(folder), folder)):
                if path != self.root:
                    os.makedirs(path, 0o700, exist_ok=True)
                    found = os.lstat(path)
                    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077 or not stat.S_ISDIR(found.st_mode):
                        raise HomeUnusable(f"{path} is not a private folder of yours; remove it", home=self.root)
        except OSError as error:
            raise HomeUnusable(f"{folder}: {error.strerror}", home=self.root) from None
        return folder


def locate(flag: str | None, environ: dict[str, str]) -> str:
    """The home that is meant: `--home`, else BACKBURNER_HOME, else ~/.backburner."""
    chosen = flag or environ.get("BACKBURNER_HOME") or "~/.backburner"
    if "\0" in chosen or chosen.encode("utf-8", "replace").decode() != chosen:
        raise BadInput("The path of a home must be valid UTF-8.")
    return os.path.expanduser(chosen)


def lock(path: str, *, wait: bool = False, shared: bool = False) -> int | None:
    """Take a lock file; its descriptor, or None where somebody else holds it. Closing it lets go."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def open_plain(path: str, flags: int = os.O_RDONLY) -> int:
    """Open a file that somebody else could have replaced: nothing that blocks, never ends or leads elsewhere; FileNotFoundError then."""
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise FileNotFoundError(errno.ENOENT, "not a plain file", path) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, "not a plain file", path)
    return descriptor


def read_plain(path: str, most: int) -> bytes:
    """The beginning of such a file."""
    descriptor = open_plain(path)
    try:
        return os.read(descriptor, most)
    finally:
        os.close(descriptor)


def is_locked(path: str) -> bool:
    """Whether some process holds the lock; takes it for a moment where none does, so only for files nobody waits on."""
    try:
        descriptor = open_plain(path)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)


def opencode_server_files(home: Home) -> bool:
    """Whether there are servers of ours that somebody has to look after."""
    try:
        return any(name.endswith(".json") for name in os.listdir(os.path.join(home.root, OPENCODE_SERVERS)))
    except OSError:
        return False


def project_of(cwd: str) -> str:
    """The project a folder belongs to: the git root above it, else the folder itself."""
    return project_above(os.path.realpath(cwd))


def project_above(cwd: str) -> str:
    """The same for a path without links in it."""
    folder = cwd
    while not os.path.exists(f"{folder}/.git"):
        above = os.path.dirname(folder)
        if above == folder:
            return cwd
        folder = above
    return folder


def is_below(path: str, folder: str) -> bool:
    """Whether a path is a folder or lies in it; both absolute."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def create(path: str, mode: int = 0o600) -> int:
    """A new file, open for writing; what was there goes, and is not written through."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        return os.open(path, flags, mode)
    except FileExistsError:
        os.unlink(path)
        return os.open(path, flags, mode)


def open_folder(path: str, inside: int | None = None) -> int:
    """Open a folder that somebody else could have replaced, below the open folder `inside` if there is one; OSError for a link."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=inside)


def write_atomically(path: str, text: str, mode: int = 0o600) -> None:
    """Replace a file as a whole: a reader sees the old or the new one, never half of it."""
    write_pieces(path, (text.encode("utf-8", "surrogateescape"),), mode)


def write_pieces(path: str, pieces: Iterable[bytes], mode: int = 0o600) -> None:
    """The same with content that is more than should be in memory at once."""
    temporary = f"{path}.{os.getpid()}.new"
    descriptor = create(temporary, mode)
    try:
        for rest in pieces:
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise
    finally:
        os.close(descriptor)


def stamp(path: str) -> tuple[int, int] | None:
    """What changes when a file does; None where there is none."""
    try:
        found = os.stat(path)
        return found.st_mtime_ns, found.st_size
    except OSError:
        return None
