"""The sandbox starter: a process that starts sandboxed commands in namespaces of their own, faster than bubblewrap. Run as a script.

The process that runs commands starts one and asks it for each sandbox over a socket. It lives in a user namespace, in which it may
mount and in which nobody can create another one. For each command it puts a tree of mounts together, from the arguments that bubblewrap would
get; a thread takes on new namespaces, makes the tree its root, and starts a shell there, which runs the command. What a thread starts has no capabilities.

The shell is the first process of its pid namespace and the shim of the command: all that the command has left ends with it. It reports the exit code to
the log writer, and ends only when the log writer says that the output is in the log. So nothing depends on this process once a command runs.
"""

import _signal  # type: ignore
import _socket
import _thread
import fcntl
import os
import resource
import select
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence

if __name__ == "__main__":  # run with as little of the interpreter as possible
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from backburner.core.light_typing import NamedTuple
from backburner.execution import log_writer
from backburner.execution.sandbox_tree import SandboxTree, SystemTree
from backburner.system import mounts, seccomp
from backburner.system.capabilities import call_libc

MAX_REQUEST_BYTES, MAX_DESCRIPTORS = 96 * 1024, 240
READY, UNAVAILABLE = b"ready", b"unavailable"  # messages: whether sandboxes can be started here, with the reason
STARTED, GONE = b"started", b"gone"  # a first process still runs after a moment, with its pid; it and everything in its sandbox has ended
# Descriptors of a first process: a socket to the log writer, the read end of its output, the other end of the socket, and a pipe with a line
# when the sandbox is complete. It only holds the second and the third, for a log writer that is started later.
REPORT, READER, OTHER_END, PREPARED = 3, 5, 6, 8
FAILED = 1  # the exit code of a command whose sandbox could not be made, as with bubblewrap

_NEW_MOUNTS, _NEW_IPC, _NEW_USER, _NEW_PIDS, _NEW_NETWORK = 0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
_MS_SLAVE, _MS_RECURSIVE = 0x80000, 0x4000
_PR_CAPBSET_READ, _PR_CAPBSET_DROP, _PR_SET_SECUREBITS, _PR_SET_NO_NEW_PRIVS = 23, 24, 28, 38
_NO_ROOT = 0x1 | 0x2 | 0x4 | 0x8  # user 0 gets no capabilities from programs, nor keeps any; both locked
_GET_MOUNT_NAMESPACE, _GET_PID_NAMESPACE = 0xFF03, 0xFF05  # of a pidfd
_ALL_SIGNALS = _signal.valid_signals()
_MAX_KEPT_NAMESPACES = 256  # of a project; each may hold what its command has left in memory
_SET_FLAGS, _UP = 0x8914, 0x1  # of network devices
_MAX_IDLE_NETWORKS = 8
_REPORT_SECONDS = 0.01  # a first process that ends earlier is not reported as started
_MAX_SYSTEM_SECONDS = 5.0  # after which the system is looked at again: what an overlay shows of a changed folder is undefined
_TRIAL_SYSTEM = [word for name in ("usr", "bin", "lib", "lib64") for word in ("--ro-bind-try", f"/{name}", f"/{name}")]
_TRIAL_SCRIPT = f"read -r prepared <&{PREPARED} && [ -d /proc/1 ] && echo works >&{REPORT}\n"


class Streams(NamedTuple):
    """The first open files of a request: what a first process gets, and the exit file of its run."""

    report: int
    other_end: int
    reader: int
    output: int
    script: int
    exit_file: int


def request(
    number: int, project: str | None, system: Sequence[str], words: Sequence[str], environment: Mapping[str, str], numbers: Sequence[int]
) -> bytes:
    """The text of a request; the open files follow. Messages name it by its number. `system` are the arguments that are the same for many commands.

    The arguments use the open files after `Streams` by these numbers.
    """
    head = (str(number), project or "", " ".join(map(str, numbers)), str(len(system)), str(len(environment)))
    return os.fsencode("\0".join((*head, *system, *[f"{name}={value}" for name, value in environment.items()], *words)))


def enter_user_namespace() -> None:
    """Let this process mount, and nothing that it starts. It must have one thread only."""
    uid, gid = os.geteuid(), os.getegid()
    mounts.unshare(_NEW_USER | _NEW_MOUNTS)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        _write(f"/proc/self/{name}", text)
    _write("/proc/sys/user/max_user_namespaces", "0")
    call_libc("mount", b"none", b"/", b"", _MS_SLAVE | _MS_RECURSIVE, b"")  # what is mounted outside later is seen, nothing goes out
    capability = 0
    while _capability(_PR_CAPBSET_READ, capability):
        _capability(_PR_CAPBSET_DROP, capability)
        capability += 1
    call_libc("prctl", _PR_SET_SECUREBITS, _NO_ROOT, 0, 0, 0)
    call_libc("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


class _Network:
    """A network namespace with a loopback device. It is used by one command at a time, and only for commands of one project.

    A thread of it has the system call filter, and a mount namespace with nothing but the machine's /proc. What it calls runs in another thread, which inherits these.
    """

    def __init__(self, project: str) -> None:
        self.project = project
        self._wanted, self._done = _thread.allocate_lock(), _thread.allocate_lock()
        self._wanted.acquire()
        self._done.acquire()
        self._function: Callable[[], tuple[int, int]] | None = None
        self._result = 0, 0
        self._error: BaseException | None = None
        self._thread = 0
        _thread.start_new_thread(self._serve, ())
        self._wait()

    def call(self, function: Callable[[], tuple[int, int]]) -> tuple[int, int]:
        """Call a function in a new thread, and wait for its result."""
        self._function = function
        self._wanted.release()
        return self._wait()

    def close(self) -> None:
        self._function = None
        self._wanted.release()

    def _wait(self) -> tuple[int, int]:
        self._done.acquire()
        error, self._error = self._error, None
        if error:
            raise error
        return self._result

    @property
    def is_unused(self) -> bool:
        """Whether nothing is left of the last command: no socket that was passed to another one, and no connection that holds a port."""
        with open(f"/proc/self/task/{self._thread}/net/sockstat", encoding="ascii") as file:
            text = file.read()
        return "sockets: used 0\n" in text and " tw 0 " in text

    def _serve(self) -> None:
        self._thread = _thread.get_native_id()
        self._run(_enter_network)
        if self._error:
            return
        self._wanted.acquire()
        while function := self._function:
            _thread.start_new_thread(self._run, (function,))
            self._wanted.acquire()

    def _run(self, function: Callable[[], tuple[int, int]]) -> None:
        try:
            self._result = function()
        except BaseException as error:
            self._error = error
        self._done.release()


def _enter_network() -> tuple[int, int]:
    mounts.unshare(_NEW_NETWORK | _NEW_MOUNTS)
    device = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
    fcntl.ioctl(device, _SET_FLAGS, struct.pack("16sH14x", b"lo", _UP))
    device.close()
    empty = mounts.new("tmpfs", [("mode", "555")])
    # Who does not see a whole /proc may not mount another one. This one is covered as soon as a thread has entered a sandbox.
    os.mkdir("proc", dir_fd=empty)
    processes = mounts.copy("/proc", mounts.ORDINARY | mounts.READ_ONLY)
    mounts.attach(processes, empty, "proc")
    os.close(processes)
    mounts.leave_all_others(empty)
    os.close(empty)
    seccomp.install(seccomp.inside_namespaces())
    return 0, 0


class Starter:
    """Starts commands, and keeps for the next ones what can be used again."""

    def __init__(self) -> None:
        self.running: dict[int, tuple[int, _Network]] = {}  # by the pidfd of the first process: the number of the request
        self._idle: list[_Network] = []
        # The mount namespaces of commands, by project, as long as another command of it runs: when a namespace ends, its mounts are separated. A
        # command that was passed an open folder could then reach what was covered there, such as secrets and the git folder.
        self._namespaces: dict[str, list[int]] = {}
        self._system: tuple[Sequence[str], SystemTree, float] | None = None
        self._umask = os.umask(0)

    def start(self, text: str, streams: Streams, passed: Sequence[int]) -> tuple[int, int]:
        """Start the first process of a sandbox; returns its pid and a pidfd of it. The descriptors stay open."""
        number, project, numbers, shared, variables, *words = text.split("\0")
        same, first = int(shared), int(shared) + int(variables)
        environment = dict([entry.split("=", 1) for entry in words[same:first]])
        named = dict(zip(map(int, numbers.split()), passed, strict=True))
        tree = SandboxTree(words[first:], named, self._system_tree(words[:same]))
        try:
            network = self._network(project)
            try:
                pid, process = self._start(tree, network, environment, streams)
            except BaseException:
                network.close()  # what has begun may still use it
                raise
        finally:
            tree.close()
        self.running[process] = int(number), network
        return pid, process

    def _keep_namespace(self, process: int, project: str) -> None:
        kept = self._namespaces.setdefault(project, [])
        kept.append(fcntl.ioctl(process, _GET_MOUNT_NAMESPACE))
        if len(kept) > _MAX_KEPT_NAMESPACES:
            os.close(kept.pop(0))

    def end(self, process: int) -> int:
        """Handle the end of a first process; returns the number of its request."""
        os.close(process)
        number, network = self.running.pop(process)
        if not any(other.project == network.project for _, other in self.running.values()):
            for namespace in self._namespaces.pop(network.project, ()):
                os.close(namespace)
        if network.is_unused:
            self._idle.append(network)
        else:
            network.close()
        if len(self._idle) > _MAX_IDLE_NETWORKS:
            self._idle.pop(0).close()
        return number

    def forget_system(self) -> bool:
        """Release what is kept of the system if it is too old, so that nothing there stays in use; returns whether anything is kept."""
        if self._system and time.monotonic() > self._system[2]:
            self._system[1].close()
            self._system = None
        return self._system is not None

    def _start(self, tree: SandboxTree, network: _Network, environment: dict[str, str], streams: Streams) -> tuple[int, int]:
        is_prepared, prepared = os.pipe()
        try:
            descriptors = {
                0: streams.script,
                1: streams.output,
                2: streams.output,
                REPORT: streams.report,
                READER: streams.reader,
                OTHER_END: streams.other_end,
                PREPARED: is_prepared,
            }
            pid, process = network.call(lambda: _start_inside(tree, environment, descriptors, self._umask))
            try:
                self._keep_namespace(process, network.project)
                os.pwrite(streams.exit_file, b"s", 0)  # from now on the run counts as begun
                os.write(prepared, b"\n")
            except OSError:
                os.close(process)
                raise
        finally:
            os.close(is_prepared)
            os.close(prepared)
        return pid, process

    def _network(self, project: str) -> _Network:
        found = next((network for network in self._idle if network.project == project), None)
        if found is None:
            return _Network(project)
        self._idle.remove(found)
        return found

    def _system_tree(self, words: Sequence[str]) -> SystemTree:
        if self.forget_system() and self._system and self._system[0] != words:
            self._system[1].close()
            self._system = None
        if self._system is None:
            self._system = words, SystemTree(words), time.monotonic() + _MAX_SYSTEM_SECONDS
        return self._system[1]


def _start_inside(tree: SandboxTree, environment: dict[str, str], descriptors: dict[int, int], umask: int) -> tuple[int, int]:
    """Make the namespaces of a sandbox for the calling thread, and start its first process; returns its pid and a pidfd of it."""
    mounts.unshare(_NEW_MOUNTS | _NEW_IPC | _NEW_PIDS)
    mounts.enter(tree.root)
    cwd = mounts.open_inside(tree.root, tree.cwd)
    os.fchdir(cwd)
    os.close(cwd)
    os.umask(umask)
    pid = os.posix_spawn(
        "/bin/sh",
        ["sh", "-s", "backburner"],
        environment,
        file_actions=[(os.POSIX_SPAWN_DUP2, descriptor, number) for number, descriptor in descriptors.items()],
        setsid=True,
        setsigdef=_ALL_SIGNALS,
    )
    process = os.pidfd_open(pid)
    try:
        namespace = fcntl.ioctl(process, _GET_PID_NAMESPACE)
        try:
            processes = mounts.new("proc", [("pidns", namespace)], tree.process_attributes)
        finally:
            os.close(namespace)
        mounts.attach(processes, tree.root, "proc")
        os.close(processes)
    except OSError:
        os.close(process)
        raise
    return pid, process


class _Unreported(NamedTuple):
    """A first process that was started just now."""

    report_at: float
    number: int
    pid: int
    process: int  # its pidfd


def serve(control: _socket.socket, starter: Starter) -> None:
    """Serve the process at the other end of `control` until that has ended."""
    buffer = bytearray(MAX_REQUEST_BYTES)
    poller = select.epoll()
    poller.register(control.fileno(), select.EPOLLIN)
    unreported: list[_Unreported] = []
    while True:
        for descriptor, _ in poller.poll(_timeout(starter, unreported)):
            if descriptor in starter.running:
                poller.unregister(descriptor)
                _say(control, b"%s %d" % (GONE, starter.end(descriptor)))
                continue
            text, descriptors = _receive(control, buffer)
            if not text:
                return
            try:
                streams = Streams(*descriptors[: len(Streams._fields)])
                pid, process = starter.start(os.fsdecode(text), streams, descriptors[len(streams) :])
                poller.register(process, select.EPOLLIN)
                unreported.append(_Unreported(time.monotonic() + _REPORT_SECONDS, starter.running[process][0], pid, process))
            except Exception as error:
                _fail(descriptors, error)
                _say(control, b"%s %s" % (GONE, text.partition(b"\0")[0]))
            finally:
                for number in descriptors:
                    os.close(number)
        while unreported and unreported[0].report_at <= time.monotonic():
            _, number, pid, process = unreported.pop(0)
            if process in starter.running and starter.running[process][0] == number:
                _say(control, b"%s %d %d %s" % (STARTED, number, pid, log_writer.start_time(pid)))


def _timeout(starter: Starter, unreported: "list[_Unreported]") -> float | None:
    while unreported and unreported[0].process not in starter.running:
        unreported.pop(0)  # it has already ended
    if unreported:
        return max(0.0, unreported[0].report_at - time.monotonic())
    return _MAX_SYSTEM_SECONDS if starter.forget_system() else None


def _say(control: _socket.socket, message: bytes) -> None:
    try:
        control.send(message)
    except OSError:
        return  # the process that runs commands has just ended


def _receive(control: _socket.socket, buffer: bytearray) -> tuple[bytes, list[int]]:
    """One request, with its open files; empty if the process that sends them has ended."""
    size, ancillary, _, _ = control.recvmsg_into([buffer], _socket.CMSG_SPACE(4 * MAX_DESCRIPTORS), _socket.MSG_CMSG_CLOEXEC)
    passed = b"".join(data for _, kind, data in ancillary if kind == _socket.SCM_RIGHTS)
    return bytes(buffer[:size]), [int.from_bytes(passed[at : at + 4], sys.byteorder) for at in range(0, len(passed), 4)]


def _fail(descriptors: Sequence[int], error: Exception) -> None:
    """Say in the log why a command was not started, and report an exit code for it."""
    try:
        streams = Streams(*descriptors[: len(Streams._fields)])
        os.write(streams.output, f"backburner: the sandbox could not be prepared: {error}\n".encode("utf-8", "replace"))
        os.pwrite(streams.exit_file, b"s", 0)
        os.write(streams.report, b"%d\n" % FAILED)
    except (OSError, TypeError):
        return  # nobody waits for it any more, or not all files have arrived


def _try(starter: Starter) -> None:
    """Start an empty sandbox. OSError if it does not work."""
    ours, theirs = _socket.socketpair()
    script, exit_file = os.memfd_create("script"), os.memfd_create("exit")
    os.pwrite(script, _TRIAL_SCRIPT.encode(), 0)
    with open(os.devnull, "r+b", buffering=0) as null:
        text = request(0, None, _TRIAL_SYSTEM, ("--dev", "/dev", "--proc", "/proc"), {}, ())
        streams = Streams(theirs.fileno(), null.fileno(), null.fileno(), null.fileno(), script, exit_file)
        _, process = starter.start(os.fsdecode(text), streams, ())
    theirs.close()
    os.close(script)
    os.close(exit_file)
    answer = ours.recv(16)
    ours.close()
    select.select([process], [], [])
    starter.end(process)
    if answer != b"works\n":
        raise OSError("a trial did not run")


def _capability(option: int, capability: int) -> int:
    try:
        return call_libc("prctl", option, capability, 0, 0, 0)
    except OSError:
        return 0


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def main() -> None:
    for number in range(3, PREPARED + 1):  # so that no other file gets a number that first processes are given one with
        os.dup2(0, number, inheritable=False)
    control = _socket.socket(fileno=0)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most[1], most[1]))
    _signal.signal(_signal.SIGCHLD, _signal.SIG_IGN)  # first processes need not be waited for
    try:
        enter_user_namespace()
        starter = Starter()
        _try(starter)
    except (OSError, AttributeError) as error:
        control.send(UNAVAILABLE + b" " + str(error).encode("utf-8", "replace"))
        return
    control.send(READY)
    serve(control, starter)


if __name__ == "__main__":
    main()
