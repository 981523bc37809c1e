"""System call filters, built without a library, for the calling thread or for bubblewrap's `--seccomp`. Linux on x86_64 and aarch64.

A filter only refuses calls: it returns an error to the program. The exception is a call of another architecture, such as a 32-bit one,
which kills the process.
"""

import errno
import functools
import os
import struct
import sys
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from backburner.system.capabilities import call_libc

# The numbers of the calls on x86_64 and aarch64.
NUMBERS = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "chmod": (90, None),
    "chown": (92, None),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "clone": (56, 220),
    "clone3": (435, 435),
    "delete_module": (176, 106),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "file_setattr": (469, 469),
    "finit_module": (313, 273),
    "fremovexattr": (199, 16),
    "fsconfig": (431, 431),
    "fsetxattr": (190, 7),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "futimesat": (261, None),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioctl": (16, 29),
    "ioperm": (173, None),
    "iopl": (172, None),
    "ioprio_set": (251, 30),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lchown": (94, None),
    "lookup_dcookie": (212, 18),
    "lremovexattr": (198, 15),
    "lsetxattr": (189, 6),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "prctl": (157, 167),
    "prlimit64": (302, 261),
    "process_madvise": (440, 440),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "removexattr": (197, 14),
    "removexattrat": (466, 466),
    "request_key": (249, 218),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sendmmsg": (307, 269),
    "sendmsg": (46, 211),
    "sendto": (44, 206),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "setpriority": (141, 140),
    "setsockopt": (54, 208),
    "settimeofday": (164, 170),
    "setxattr": (188, 5),
    "setxattrat": (463, 463),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "splice": (275, 76),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "utime": (132, None),
    "utimensat": (280, 88),
    "utimes": (235, None),
}
_MACHINES = ("x86_64", "aarch64")
_AUDIT_ARCHITECTURES = (0xC000003E, 0xC00000B7)
_X32_CALLS = 0x40000000  # added to the numbers of the x32 ABI, which x86_64 programs can call too

_RETURN_ALLOW, _RETURN_ERRNO, _RETURN_KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT = 0x15, 0x35, 0x45
_NUMBER_OFFSET, _ARCHITECTURE_OFFSET, _ARGUMENTS_OFFSET = 0, 4, 16
_MAX_STEPS = 4096
_GROUP_SIZE = 8

_PR_SET_SECCOMP, _MODE_FILTER = 22, 2

_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_SOCK_STREAM, _SOCK_SEQPACKET, _SOCK_TYPE_MASK = 1, 5, 0xF
_IPPROTO_TCP, _TCP_FASTOPEN_CONNECT, _TCP_ULP, _MSG_FASTOPEN = 6, 30, 31, 0x20000000
_CLONE_NEWUSER = 0x10000000
_CLONE_NEW_ANY = 0x7E020000
_CLONE_NEWTIME = 0x80  # only for unshare: for clone these bits are a signal
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_PR_SET_MM = 35
_PERSONALITY_ASK = 0xFFFFFFFF
_PERSONALITIES = 0x60008  # ADDR_NO_RANDOMIZE, UNAME26, PER_LINUX32


class _Step(NamedTuple):
    """One instruction. Where a condition leads: the number of steps to skip, `_ALLOW` or `_REFUSE`."""

    code: int
    value: int
    then: int = 0
    otherwise: int = 0


_NEXT, _ALLOW, _REFUSE = 0, -1, -2


def _argument(index: int) -> _Step:
    """Load the low half of an argument, which is all that the kernel uses of the arguments tested here."""
    return _Step(_LOAD, _ARGUMENTS_OFFSET + 8 * index)


def _high_half(index: int) -> _Step:
    return _Step(_LOAD, _ARGUMENTS_OFFSET + 8 * index + 4)


def _mask(bits: int) -> _Step:
    return _Step(_AND, bits)


def _if_equal(value: int, then: int, otherwise: int = _NEXT) -> _Step:
    return _Step(_IF_EQUAL, value, then, otherwise)


def _if_any_bit(bits: int, then: int, otherwise: int = _NEXT) -> _Step:
    return _Step(_IF_ANY_BIT, bits, then, otherwise)


class _Rule(NamedTuple):
    """Decides about a call by its arguments. It is allowed if the last step leads nowhere else."""

    call: str
    steps: tuple[_Step, ...]
    error: int = errno.EPERM


_NO_TERMINAL_INPUT = _Rule("ioctl", (_argument(1), _if_equal(_TIOCSTI, _REFUSE), _if_equal(_TIOCLINUX, _REFUSE)))
# The limits of other processes cannot be changed: a CPU limit would end the engine.
_OWN_LIMITS = _Rule(
    "prlimit64",
    (_argument(0), _if_equal(0, _ALLOW), _argument(2), _if_equal(0, _NEXT, _REFUSE), _high_half(2), _if_equal(0, _ALLOW, _REFUSE)),
)
# Without a pid namespace, other processes of the user can be named. A process changes only its own priority and processors.
_OWN_SCHEDULING = tuple(
    _Rule(call, (_argument(process), _if_equal(0, _ALLOW, _REFUSE)))
    for call, process in (
        ("setpriority", 1),
        ("ioprio_set", 1),
        ("sched_setaffinity", 0),
        ("sched_setattr", 0),
        ("sched_setparam", 0),
        ("sched_setscheduler", 0),
    )
)
_NO_USER_NAMESPACES = (
    _Rule("unshare", (_argument(0), _if_any_bit(_CLONE_NEWUSER, _REFUSE))),
    _Rule("clone", (_argument(0), _if_any_bit(_CLONE_NEWUSER, _REFUSE))),
)
_NO_NAMESPACES = (
    _Rule("unshare", (_argument(0), _if_any_bit(_CLONE_NEW_ANY | _CLONE_NEWTIME, _REFUSE))),
    _Rule("clone", (_argument(0), _if_any_bit(_CLONE_NEW_ANY, _REFUSE))),
)
_UNPRIVILEGED = (
    _NO_TERMINAL_INPUT,
    _OWN_LIMITS,
    *_OWN_SCHEDULING,
    *_NO_NAMESPACES,
    _Rule("personality", (_argument(0), _if_equal(_PERSONALITY_ASK, _ALLOW), _if_any_bit(0xFFFFFFFF ^ _PERSONALITIES, _REFUSE))),
    _Rule("prctl", (_argument(0), _if_equal(_PR_SET_MM, _REFUSE))),
)
# A datagram socket of a pair could still send to any path, and Linux makes one for SOCK_RAW too.
_CONNECTED_PAIRS = _Rule(
    "socketpair",
    (
        _argument(0),
        _if_equal(_AF_UNIX, _NEXT, _REFUSE),
        _argument(1),
        _mask(_SOCK_TYPE_MASK),
        _if_equal(_SOCK_STREAM, _ALLOW),
        _if_equal(_SOCK_SEQPACKET, _ALLOW, _REFUSE),
    ),
    errno.EACCES,
)
_LISTENING = (
    _Rule(
        "socket",
        (
            _argument(0),
            _if_equal(_AF_UNIX, _ALLOW),
            _if_equal(_AF_NETLINK, _ALLOW),
            _if_equal(_AF_INET, 1),
            _if_equal(_AF_INET6, _NEXT, _REFUSE),
            _argument(1),
            _mask(_SOCK_TYPE_MASK),
            _if_equal(_SOCK_STREAM, _NEXT, _REFUSE),
            _argument(2),
            _if_equal(0, _ALLOW),
            _if_equal(_IPPROTO_TCP, _ALLOW, _REFUSE),
        ),
        errno.EACCES,
    ),
    _Rule("socketpair", (_argument(0), _if_equal(_AF_UNIX, _ALLOW, _REFUSE)), errno.EACCES),
    # These connect without asking Landlock: with the first data, or as a protocol other than TCP (the ULP `smc`).
    _Rule("sendto", (_argument(3), _if_any_bit(_MSG_FASTOPEN, _REFUSE))),
    _Rule("sendmsg", (_argument(2), _if_any_bit(_MSG_FASTOPEN, _REFUSE))),
    _Rule("sendmmsg", (_argument(3), _if_any_bit(_MSG_FASTOPEN, _REFUSE))),
    _Rule(
        "setsockopt",
        (
            _argument(1),
            _if_equal(_IPPROTO_TCP, _NEXT, _ALLOW),
            _argument(2),
            _if_equal(_TCP_FASTOPEN_CONNECT, _REFUSE),
            _if_equal(_TCP_ULP, _REFUSE),
        ),
    ),
)
# The other families are not part of a network namespace: AF_VSOCK reaches the host of a virtual machine.
_NAMESPACED_FAMILIES = _Rule(
    "socket",
    (
        _argument(0),
        _if_equal(_AF_UNIX, _ALLOW),
        _if_equal(_AF_INET, _ALLOW),
        _if_equal(_AF_INET6, _ALLOW),
        _if_equal(_AF_NETLINK, _ALLOW, _REFUSE),
    ),
    errno.EACCES,
)

# Programs do without these if the kernel does not have them. The arguments of clone3 cannot be read by a filter.
_MISSING = ("clone3", "io_uring_enter", "io_uring_register", "io_uring_setup")
_REFUSED_EVERYWHERE = (
    "add_key",
    "bpf",
    "keyctl",
    "open_by_handle_at",
    "perf_event_open",
    "request_key",
    "setns",
    "userfaultfd",
)
# Splicing between a pipe and a socket that is not read keeps the pipe locked, and whoever reads the output of the command waits uninterruptibly.
_NO_SPLICE = (("splice",), errno.EINVAL)  # programs copy in another way then
# What Landlock does not restrict: modes, owners, times and attributes of files that cannot be written. The calls do nothing, without an
# error, because many programs give up otherwise.
_IGNORED = (
    "chmod",
    "chown",
    "fchmod",
    "fchmodat",
    "fchmodat2",
    "fchown",
    "fchownat",
    "futimesat",
    "lchown",
    "utime",
    "utimensat",
    "utimes",
)
_UNSUPPORTED = (
    *("file_setattr", "fremovexattr", "fsetxattr", "lremovexattr", "lsetxattr", "removexattr", "removexattrat", "setxattr", "setxattrat"),
)
_REFUSED = (
    *_REFUSED_EVERYWHERE,
    "acct",
    "adjtimex",
    "chroot",
    "clock_adjtime",
    "clock_settime",
    "delete_module",
    "finit_module",
    "fsconfig",
    "fsmount",
    "fsopen",
    "fspick",
    "init_module",
    "ioperm",
    "iopl",
    "kcmp",
    "kexec_file_load",
    "kexec_load",
    "lookup_dcookie",
    "mount",
    "mount_setattr",
    "move_mount",
    "open_tree",
    "open_tree_attr",
    "pidfd_getfd",
    "pivot_root",
    "process_madvise",
    "process_vm_readv",
    "process_vm_writev",
    "ptrace",
    "quotactl",
    "quotactl_fd",
    "reboot",
    "setdomainname",
    "sethostname",
    "settimeofday",
    "swapoff",
    "swapon",
    "syslog",
    "umount2",
)


@functools.cache
def is_available() -> bool:
    """Whether this kernel has filters, and this module knows the system calls of this machine."""
    if _machine() not in _MACHINES or sys.maxsize < 2**32:
        return False
    try:
        call_libc("prctl", _PR_SET_SECCOMP, _MODE_FILTER, 0, 0, 0)
    except OSError as error:
        return error.errno == errno.EFAULT  # it would have read the filter
    return False


def no_sockets() -> bytes:
    """The filter of a command without namespaces: no sockets except connected pairs, no namespaces, mounts or tracing.

    Modes, owners and times of files stay as they are.
    """
    errors = ((("socket",), errno.EACCES), (_IGNORED, 0), (_UNSUPPORTED, errno.EOPNOTSUPP), _NO_SPLICE)
    return _program(_machine(), _REFUSED, (*_UNPRIVILEGED, _CONNECTED_PAIRS), errors)


def listening() -> bytes:
    """The filter of a command that can listen on the network of the machine: TCP, unix and netlink sockets.

    Connecting with TCP, and with unix sockets that have no path, is left to Landlock.
    """
    return _program(_machine(), _REFUSED, (*_UNPRIVILEGED, *_LISTENING), (_NO_SPLICE,))


def inside_namespaces() -> bytes:
    """The filter of a command that has its own network: what namespaces do not separate. Tracing is allowed."""
    rules = (_NO_TERMINAL_INPUT, _OWN_LIMITS, *_NO_USER_NAMESPACES, _NAMESPACED_FAMILIES)
    return _program(_machine(), _REFUSED_EVERYWHERE, rules, (_NO_SPLICE,))


def install(program: bytes) -> None:
    """Apply a filter to the calling thread and every process it starts, after `landlock.restrict`, which forbids new privileges."""
    import ctypes  # slow to import

    buffer = ctypes.create_string_buffer(program, len(program))
    call_libc("prctl", _PR_SET_SECCOMP, _MODE_FILTER, struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer)), 0, 0)


def _machine() -> str:
    return os.uname().machine


@functools.cache
def _program(
    machine: str, refused: tuple[str, ...], rules: tuple[_Rule, ...], others: tuple[tuple[tuple[str, ...], int], ...] = ()
) -> bytes:
    """An array of `struct sock_filter`."""
    if machine not in _MACHINES:
        raise OSError(errno.ENOSYS, f"There is no system call filter for {machine}")
    column = _MACHINES.index(machine)

    def numbers(calls: Iterable[str]) -> list[int]:
        return [number for call in calls if (number := NUMBERS[call][column]) is not None]

    steps = [
        _Step(_LOAD, _ARCHITECTURE_OFFSET),
        _if_equal(_AUDIT_ARCHITECTURES[column], 1),
        _Step(_RETURN, _RETURN_KILL_PROCESS),
        _Step(_LOAD, _NUMBER_OFFSET),
        _Step(_IF_AT_LEAST, _X32_CALLS, _NEXT, 1),
        _Step(_RETURN, _RETURN_ERRNO | errno.ENOSYS),
    ]
    actions = {
        number: [_Step(_RETURN, _RETURN_ERRNO | error)]
        for calls, error in ((refused, errno.EPERM), (_MISSING, errno.ENOSYS), *others)
        for number in numbers(calls)
    }
    for rule in rules:
        for number in numbers((rule.call,)):
            actions.setdefault(number, _decide(rule))
    steps += _by_number(sorted(actions.items()))
    assert len(steps) < _MAX_STEPS
    return b"".join(struct.pack("=HBBI", step.code, step.then, step.otherwise, step.value) for step in steps)


def _by_number(actions: list[tuple[int, list[_Step]]]) -> Iterator[_Step]:
    """Steps that take the action of a call and allow every other call. `actions` are in order of their numbers.

    They are in groups that a call with a higher number skips: when a filter is installed, the kernel tries it with every number.
    """
    for start in range(0, len(actions), _GROUP_SIZE):
        group = actions[start : start + _GROUP_SIZE]
        steps = [step for number, action in group for step in (_if_equal(number, _NEXT, len(action)), *action)]
        yield _Step(_IF_AT_LEAST, group[-1][0] + 1, len(steps) + 1, _NEXT)
        yield from steps
        yield _Step(_RETURN, _RETURN_ALLOW)
    yield _Step(_RETURN, _RETURN_ALLOW)


def _decide(rule: _Rule) -> list[_Step]:
    """Apply a rule to a call. The steps end with a decision."""

    def skip(position: int, target: int) -> int:
        to_allow = len(rule.steps) - position - 1
        return {_ALLOW: to_allow, _REFUSE: to_allow + 1}.get(target, target)

    steps = [
        step._replace(then=skip(position, step.then), otherwise=skip(position, step.otherwise)) for position, step in enumerate(rule.steps)
    ]
    return [*steps, _Step(_RETURN, _RETURN_ALLOW), _Step(_RETURN, _RETURN_ERRNO | rule.error)]
