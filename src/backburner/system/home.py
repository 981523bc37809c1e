"""The home directory: the paths of its files, and its locks. Contains no policy and does not open the ledger."""

import contextlib
import errno
import fcntl
import functools
import os
import stat
from collections.abc import Iterable

from backburner.core.errors import HomeUnusable
from backburner.system.paths import CHECKED_CONFIG

# The kernel's limit for the path of a socket is 108 bytes including the terminator, 104 on some systems.
_MAX_SOCKET_DIR_BYTES = 104 - len("/12345678901-12345678.sock") - 1


_AT_FDCWD = -100
_RENAME_EXCHANGE = 2

CONNECTIONS_LOCK = "connections.lock"
OPENCODE_SERVERS = "opencode"  # below a home: a file for each OpenCode server that Backburner has started

# The names in a home besides run folders.
RESERVED_NAMES = frozenset(
    [
        "agents.lock",
        "chat_history",
        CHECKED_CONFIG,
        "config.toml",
        CONNECTIONS_LOCK,
        "engine.lock",
        "engine.log",
        "engine.log.1",
        "environments",
        "hooks",
        "host_id",
        "integrations.lock",
        "job_workers",
        "ledger.db",
        "ledger.db-shm",
        "ledger.db-wal",
        "lease",
        "opencode",
        "pairing.lock",
        "sandbox",
        "setup.lock",
        "sockets",
        "start.lock",
        "tasks",
        "token",
        "waiting.lock",
        "web.lock",
        "worktrees",
    ]
)


class Home:
    """Paths below one home. `tasks` is the folder of new run folders; for a bare `TaskStorage` it is the home itself."""

    def __init__(self, root: str, tasks: str = "tasks") -> None:
        self.root = os.path.abspath(root)
        self.tasks = tasks
        self.ledger = os.path.join(self.root, "ledger.db")
        self.config = os.path.join(self.root, "config.toml")
        self.engine_lock = os.path.join(self.root, "engine.lock")
        self.start_lock = os.path.join(self.root, "start.lock")
        self.setup_lock = os.path.join(self.root, "setup.lock")
        self.lease = os.path.join(self.root, "lease")
        self.job_workers = os.path.join(self.root, "job_workers")
        self.engine_log = os.path.join(self.root, "engine.log")

    def make(self) -> "Home":
        """Create what is missing, accessible only by the user."""
        for path in (self.root, os.path.join(self.root, self.tasks)):
            try:
                os.makedirs(path, 0o700, exist_ok=True)
            except FileExistsError:
                raise HomeUnusable(f"{path} is not a folder", home=self.root) from None
            except OSError as error:
                raise HomeUnusable(f"{path}: {error.strerror}", home=self.root) from None
        with contextlib.suppress(OSError):  # a read-only home can still be read
            if stat.S_IMODE(os.stat(self.root).st_mode) & 0o077 and (
                os.path.exists(self.ledger) or RESERVED_NAMES.issuperset(os.listdir(self.root))
            ):
                os.chmod(self.root, 0o700)  # not if it contains other files: then others may need access
            if not os.path.lexists(self.config):
                # created in advance, so that a process that may only create files cannot add rules
                os.close(os.open(self.config, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        return self

    def ledger_time(self) -> int:
        """When the ledger was last changed, in nanoseconds; its newest changes are in the write-ahead log."""
        found = []
        for path in (self.ledger, f"{self.ledger}-wal"):
            with contextlib.suppress(FileNotFoundError):
                found.append(os.stat(path).st_mtime_ns)
        return max(found, default=0)

    def host_id(self) -> str:
        """The random identity of a home whose ledger is on Postgres; empty if it has none yet."""
        try:
            return read_plain(os.path.join(self.root, "host_id"), 100).decode().strip()
        except FileNotFoundError:
            return ""

    def create_host_id(self) -> str:
        """The identity of this home, which is created on first use."""
        if not self.host_id():
            import secrets

            write_atomically(os.path.join(self.root, "host_id"), secrets.token_hex(16) + "\n")
        return self.host_id()

    def nothing_waits_since(self, client: str) -> str:
        """The file whose time says how old the ledger was when nothing waited for a client; its hooks compare the two."""
        return os.path.join(self.root, "hooks", client)

    def folder(self, name: str) -> str:
        """A run's folder, from the relative name that the ledger keeps."""
        return f"{self.root}/{name}"

    @functools.cached_property
    def socket_dir(self) -> str:
        """The folder of the sockets: in the home, or below /tmp if that path would be too long for a socket."""
        inside = os.path.join(self.root, "sockets")
        if len(os.fsencode(inside)) <= _MAX_SOCKET_DIR_BYTES:
            return inside
        import zlib

        name = os.fsencode(os.path.realpath(self.root))
        return f"/tmp/backburner-{os.getuid()}/{zlib.crc32(name):08x}{zlib.adler32(name):08x}"

    def create_socket_dir(self) -> str:
        """Create the folder of the sockets; HomeUnusable if another user could have created it."""
        folder = self.socket_dir
        try:
            for path in dict.fromkeys((os.path.dirname(folder), folder)):
                if path != self.root:
                    os.makedirs(path, 0o700, exist_ok=True)
                    found = os.lstat(path)
                    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077 or not stat.S_ISDIR(found.st_mode):
                        raise HomeUnusable(f"{path} is not a folder that only you can access; remove it", home=self.root)
        except OSError as error:
            raise HomeUnusable(f"{folder}: {error.strerror}", home=self.root) from None
        return folder


def lock(path: str, *, wait: bool = False, shared: bool = False) -> int | None:
    """Take a lock file; returns its descriptor, or None if another process holds it. Closing the descriptor releases the lock."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError as error:  # for example, a network file system without locks
        os.close(descriptor)
        raise OSError(error.errno, f"cannot be locked: {error.strerror}", path) from None
    return descriptor


def open_plain(path: str, flags: int = os.O_RDONLY) -> int:
    """Open a file that another process could have replaced; FileNotFoundError if it is not a regular file (a link, a pipe, a device)."""
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


def read_plain(path: str, max_bytes: int) -> bytes:
    """The beginning of such a file."""
    descriptor = open_plain(path)
    try:
        return os.read(descriptor, max_bytes)
    finally:
        os.close(descriptor)


def is_locked(path: str) -> bool:
    """Whether some process holds the lock. Takes it for a moment if none does, so use it only for files that nobody waits for."""
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
    """Whether Backburner has started OpenCode servers that are not removed yet."""
    try:
        return any(name.endswith(".json") for name in os.listdir(os.path.join(home.root, OPENCODE_SERVERS)))
    except OSError:
        return False


def create(path: str, mode: int = 0o600) -> int:
    """Create a new file for writing; an existing file is removed, not written through."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        return os.open(path, flags, mode)
    except FileExistsError:
        os.unlink(path)
        return os.open(path, flags, mode)


def write_all(descriptor: int, content: bytes) -> None:
    """Write to a file that was just opened, and close it. Faster than a file object."""
    try:
        while content:
            content = content[os.write(descriptor, content) :]
    finally:
        os.close(descriptor)


def open_folder(path: str, inside: int | None = None) -> int:
    """Open a folder that another process could have replaced, below the open folder `inside` if given; OSError for a link."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=inside)


def write_atomically(path: str, text: str, mode: int = 0o600) -> None:
    """Replace a file atomically: a reader sees the old or the new content, never a part of it."""
    write_pieces(path, (text.encode("utf-8", "surrogateescape"),), mode)


def write_pieces(path: str, pieces: Iterable[bytes], mode: int = 0o600) -> None:
    """Like `write_atomically`, for content that should not be in memory all at once."""
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


def swap_folders(first: str, second: str) -> None:
    """Exchange two folders of one file system atomically; on a file system that cannot do that, with two renames."""
    from backburner.system.capabilities import call_libc  # slow to import

    try:
        call_libc("renameat2", _AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE)
    except (OSError, AttributeError) as error:
        if isinstance(error, OSError) and error.errno not in (errno.EINVAL, errno.ENOSYS):
            raise OSError(error.errno, os.strerror(error.errno or 0), second) from None
        aside = f"{first}.old"
        os.rename(second, aside)
        os.rename(first, second)
        os.rename(aside, first)
