"""Process identities that remain valid if a pid is reused, and the processes that belong to a run.

A run's processes are those in its session and those with its process tag in their environment. A process that left both
(`env -i setsid …`) cannot be found. Linux reads /proc; other systems use `ps`, and cannot see the tag.
"""

import _thread
import contextlib
import functools
import os
import sys
import time

from backburner.core.models import ProcessId
from backburner.system.home import Home

TAG_VARIABLE = "BACKBURNER_MARK"
_TAG = f"\0{TAG_VARIABLE}=".encode()
# The hard limit of file locks of every process that Backburner starts. Linux (since 2.4) does not enforce it, every child inherits it
# whatever it resets, and only root can raise it. Other systems have no such limit.
INSIDE = 48_673
_LOCKS = 10
_MAX_NAMES = 256  # names of programs whose paths are kept
HAS_PROC = os.path.exists("/proc/self/stat")


@functools.cache
def boot_id() -> str:
    """Changes with every boot of the machine. Tests set BACKBURNER_BOOT_ID to simulate a reboot."""
    if simulated := os.environ.get("BACKBURNER_BOOT_ID"):
        return simulated
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip().replace("-", "")
    except FileNotFoundError:
        return _output("sysctl", "-n", "kern.bootsessionuuid").strip().replace("-", "") or "unknown"


def identify(pid: int) -> ProcessId | None:
    """The identity of a running process; None if it does not exist or is a zombie."""
    if not HAS_PROC:
        started = _output("ps", "-o", "lstart=", "-p", str(pid)).strip().replace(" ", "-").replace(":", ".")
        return ProcessId(pid, started, boot_id()) if started else None
    fields = _stat(pid)
    return ProcessId(pid, fields[19], boot_id()) if fields and fields[0] not in "ZX" else None


@functools.cache
def myself() -> ProcessId:
    """The identity of this process."""
    found = identify(os.getpid())
    assert found is not None
    return found


def is_alive(process: ProcessId | None) -> bool:
    """Whether exactly this process is running, not another one with its pid."""
    if process is not None and process.pid == os.getpid() and process == myself():
        return True
    return process is not None and process.boot == boot_id() and identify(process.pid) == process


def members(leader: ProcessId | None, process_tag: str) -> list[ProcessId]:
    """Every running process of a run: those in its leader's session, and those with its tag."""
    if not HAS_PROC:
        return _group_by_ps(leader.pid) if leader and leader.boot == boot_id() else []
    return ProcessTable().members(leader, process_tag)


class ProcessTable:
    """The running processes by session and by tag, read once for any number of runs. Needs /proc."""

    def __init__(self) -> None:
        self._started: dict[int, str] = {}
        self._sessions: dict[int, list[ProcessId]] = {}
        self._tags: dict[bytes, list[ProcessId]] = {}
        mine = os.getpid()
        for name in os.listdir("/proc"):
            if not name.isdigit() or not (fields := _stat(int(name))) or fields[0] in "ZX":
                continue
            found = ProcessId(int(name), fields[19], boot_id())
            self._started[found.pid] = found.started
            if found.pid == mine:
                continue
            self._sessions.setdefault(int(fields[3]), []).append(found)
            if tag := _tag_of(name):
                self._tags.setdefault(tag, []).append(found)

    def members(self, leader: ProcessId | None, process_tag: str) -> list[ProcessId]:
        """Every process of a run."""
        found = self._tags.get(process_tag.encode(), [])
        if leader is None or leader.boot != boot_id() or self._started.get(leader.pid, leader.started) != leader.started:
            return list(found)  # its pid was reused: then its session has ended too, because a session's id is not reused while it exists
        in_session = [one for one in self._sessions.get(leader.pid, ()) if int(one.started) >= int(leader.started)]
        return list(dict.fromkeys([*in_session, *found]))


def send(process: ProcessId, number: int) -> bool:
    """Send a signal to exactly this process; False if it has exited. The identity is checked while a pidfd holds the pid."""
    if not hasattr(os, "pidfd_open"):
        if is_alive(process):
            os.kill(process.pid, number)
            return True
        return False
    import signal  # slow to import, and only needed to send signals

    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        if not is_alive(process):
            return False
        signal.pidfd_send_signal(descriptor, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)


def end_all(leader: ProcessId | None, process_tag: str) -> int:
    """Kill all processes of a run whose owner died; returns how many."""
    ended: set[ProcessId] = set()
    for _ in range(100):  # each may have started another one before it was killed
        if not (left := members(leader, process_tag)):
            break
        ended.update(member for member in left if send(member, 9))
    return len(ended)


def send_group(leader: ProcessId, number: int) -> bool:
    """Signal the process group that `leader` leads, including processes it forks meanwhile; False if that group no longer exists."""
    if not is_alive(leader):
        return False
    try:
        os.killpg(leader.pid, number)
    except ProcessLookupError:
        return False
    return True


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the third on (state), because the name before them may contain any character."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return os.read(descriptor, 4096).rpartition(b")")[2].decode().split()
    except ProcessLookupError:
        return None
    finally:
        os.close(descriptor)


def tag_of(pid: int) -> str | None:
    """The tag in the environment of a process."""
    found = _tag_of(str(pid))
    return found.decode("ascii", "replace") if found else None


def _tag_of(pid: str) -> bytes | None:
    """The tag in the environment of a process."""
    try:
        descriptor = os.open(f"/proc/{pid}/environ", os.O_RDONLY)
    except OSError:
        return None
    try:
        environ = b"\0"
        while piece := os.read(descriptor, 1 << 17):
            environ += piece
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return environ.partition(_TAG)[2].partition(b"\0")[0] or None


def _group_by_ps(group: int) -> list[ProcessId]:
    rows = [line.split() for line in _output("ps", "-A", "-o", "pid=,pgid=,stat=").splitlines()]
    pids = [int(row[0]) for row in rows if row[1] == str(group) and not row[2].startswith("Z")]
    return [process for process in map(identify, pids) if process]


def _output(*command: str) -> str:
    import subprocess  # slow to import, and not needed with /proc

    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def parent_of(pid: int) -> int | None:
    """The parent of a process; None if it is not known."""
    if not HAS_PROC:
        text = _output("ps", "-o", "ppid=", "-p", str(pid)).strip()
        return int(text) if text.isdigit() else None
    fields = _stat(pid)
    return int(fields[1]) if fields else None


def variables_of(pid: int) -> dict[str, str]:
    """The variables that a process was started with; empty if they cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = [entry.partition("=") for entry in file.read().decode("utf-8", "replace").split("\0")]
    except OSError:
        return {}
    return {name: value for name, _, value in entries}


@functools.cache
def inherited_variables() -> frozenset[str]:
    """The names of the variables that any ancestor of this process was started with."""
    found: set[str] = set()
    pid = parent_of(os.getpid())
    for _ in range(64):
        if not pid or pid == 1:
            break
        found.update(variables_of(pid))
        pid = parent_of(pid)
    return frozenset(found)


def mark_inside(pid: int = 0) -> None:
    """Mark a process (this one without a pid) and all processes it will start as started by Backburner: they cannot give approvals."""
    if sys.platform != "linux":
        return
    import resource  # only needed by processes that start others

    with contextlib.suppress(OSError, ValueError):  # it has exited, or already has a lower limit
        resource.prlimit(pid, _LOCKS, (INSIDE, INSIDE))


def is_inside() -> bool:
    """Whether this process or any of its ancestors was started by Backburner."""
    if sys.platform != "linux":
        return False
    import resource

    return 0 <= resource.getrlimit(_LOCKS)[1] <= INSIDE  # any process may lower it further; unlimited is -1


@functools.cache
def is_confined() -> bool:
    """Whether Backburner or another program has confined this process in a sandbox. A container as a whole is not one.

    The first process of a sandbox is as confined as all others: it is bubblewrap, or a shell of the sandbox starter.
    """
    if not HAS_PROC:
        return False
    own, first = _restrictions("self"), _restrictions("1")
    return own == ("1", "2") and (own != first or name_of(1) == "bwrap" or (name_of(1) == "sh" and is_inside()))


def _restrictions(pid: str) -> tuple[str, str]:
    """Whether a process can get no new privileges, and the mode of its system call filter."""
    try:
        with open(f"/proc/{pid}/status") as file:
            fields = dict(line.split(":", 1) for line in file if ":" in line)
    except OSError:
        return "", ""
    return fields.get("NoNewPrivs", "").strip(), fields.get("Seccomp", "").strip()


def name_of(pid: int) -> str:
    """The name of a process's program; empty if it has exited."""
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return ""


def state_of(pid: int) -> str | None:
    """The kernel's letter for the state of a process: R, S, T (stopped), Z …"""
    fields = _stat(pid) if HAS_PROC else None
    return fields[0] if fields else None


_copied: tuple[dict[bytes, bytes], dict[str, str]] = ({}, {})  # the variables of this process as bytes and as text


def current_environment() -> dict[str, str]:
    """The variables of this process, not to be changed: the same copy as before if they have not changed.

    `dict(os.environ)` encodes every name and decodes every name and value again, which takes longer than judging a command.
    """
    global _copied
    raw = getattr(os.environ, "_data", None)
    if not isinstance(raw, dict):  # only CPython has it
        return dict(os.environ)
    if raw != _copied[0]:
        _copied = dict(raw), dict(os.environ)
    return _copied[1]


def umask() -> int:
    """This process's file mode mask. With one thread it is found by changing it for a moment, which is faster than reading /proc."""
    if _thread._count() > 0:
        with contextlib.suppress(OSError, ValueError), open("/proc/self/status", "rb", buffering=0) as file:
            return int(file.read(256).partition(b"\nUmask:\t")[2][:4], 8)
    current = os.umask(0o077)
    os.umask(current)
    return current


def engine_of(home: Home) -> ProcessId | None:
    """The engine that currently serves a home; None if there is none."""
    try:
        with open(home.engine_lock) as file:
            found = ProcessId.parse(file.read().strip())
    except (OSError, ValueError):
        return None
    return found if is_alive(found) else None


def record_heartbeat(lock_fd: int) -> None:
    """Record that the engine's main loop is running: in the modification time of its lock, as time since the machine booted.

    That clock does not count while the machine sleeps, so an engine does not seem to hang afterwards.
    """
    now = time.monotonic_ns()
    os.utime(lock_fd, ns=(now, now))


def heartbeat_age(home: Home) -> float:
    """The seconds since the engine's main loop has last run; 0 if that is not known, for example while it starts."""
    try:
        age = (time.monotonic_ns() - os.stat(home.engine_lock).st_mtime_ns) / 1e9
    except OSError:
        return 0.0
    return max(0.0, age)  # negative: the lock was just written, at the time of day


def daemons_of(home: Home) -> list[ProcessId]:
    """The engine and the other daemons of a home, of any version, except this process. Without /proc only the engine."""
    found = [engine] if (engine := engine_of(home)) else []
    for name in os.listdir("/proc") if HAS_PROC else ():
        if not name.isdecimal() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue  # it has exited
        ours = len(words) > 2 and words[1] == b"-Pc" and b"from backburner." in words[2]
        if ours and os.fsencode(home.root) in words and (process := identify(int(name))) and process not in found:
            found.append(process)
    return [process for process in found if process.pid != os.getpid()]


def users_of(root: str) -> list[ProcessId]:
    """The processes, except this one, that have files below a folder open. Without /proc none."""
    found = []
    for name in os.listdir("/proc") if HAS_PROC else ():
        if name.isdecimal() and int(name) != os.getpid() and _has_open(name, root) and (process := identify(int(name))):
            found.append(process)
    return found


def _has_open(pid: str, root: str) -> bool:
    try:
        for number in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                if os.readlink(f"/proc/{pid}/fd/{number}").startswith(f"{root}/"):
                    return True
    except OSError:
        return False  # it has exited, or belongs to another user
    return False


def executable_of(name: str, cwd: str, path: str) -> str | None:
    """The file that `name` would run in `cwd` with this PATH; None if there is no executable file."""
    for candidate in _candidates(name, cwd, path):
        if os.access(candidate, os.X_OK) and not os.path.isdir(candidate):
            return os.path.normpath(candidate)
    return None


def can_execute(name: str, cwd: str, path: str) -> bool:
    """Whether there is an executable file that `name` can run in `cwd` with this PATH. Looks first where it was found the last time."""
    last = _last_found(name, cwd, path)
    if last and os.access(last[0], os.X_OK) and not os.path.isdir(last[0]):
        return True
    last[:] = filter(None, (executable_of(name, cwd, path),))
    return bool(last)


@functools.lru_cache(_MAX_NAMES)
def _last_found(name: str, cwd: str, path: str) -> list[str]:
    """Where `can_execute` has found a name: a list of one path, or an empty one."""
    return []


@functools.lru_cache(_MAX_NAMES)
def _candidates(name: str, cwd: str, path: str) -> tuple[str, ...]:
    """The paths that a name can stand for."""
    if "/" in name:
        return (os.path.join(cwd, name),)
    return tuple(f"{folder}/{name}" if folder.startswith("/") else os.path.join(cwd, folder, name) for folder in path.split(os.pathsep))
