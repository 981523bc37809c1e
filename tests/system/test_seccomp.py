"""System call filters: what a filtered command cannot do, that ordinary programs still run, and that only the command is affected.

Every attempt is made twice by a real process: with the filter it fails, and without it the same attempt succeeds.
"""

import errno
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from test_landlock import DONE, ORDINARY, SOURCE, attempt, attempts, identity, needs_tcp, python_for, run

from backburner.system import landlock, seccomp
from backburner.system.landlock import Rules

pytestmark = pytest.mark.skipif(
    not seccomp.is_available() or landlock.abi() == 0, reason="needs Linux on x86_64 or aarch64, with Landlock to forbid new privileges"
)

COLUMN = ("x86_64", "aarch64").index(os.uname().machine) if seccomp.is_available() else 0
UNRESTRICTED = Rules(write=("/",), bind=True, connect_any=True)
EVERY_FILE = Rules(read=("/",), write=(tempfile.gettempdir(),), devices=("/dev/null", "/dev/tty"))
FILTERS = ("no_sockets", "listening", "inside_namespaces")
# The calls that are refused whatever their arguments are. None of them does anything with arguments that are all -1.
REFUSED_EVERYWHERE = ["add_key", "bpf", "keyctl", "open_by_handle_at", "perf_event_open", "request_key", "setns", "userfaultfd"]
REFUSED = [
    *REFUSED_EVERYWHERE,
    *("acct", "adjtimex", "chroot", "clock_adjtime", "clock_settime", "delete_module", "finit_module", "fsconfig", "fsmount", "fsopen"),
    *("fspick", "init_module", "kcmp", "kexec_file_load", "kexec_load", "lookup_dcookie", "mount", "mount_setattr", "move_mount"),
    *("open_tree", "open_tree_attr", "pidfd_getfd", "pivot_root", "process_madvise", "process_vm_readv", "process_vm_writev", "ptrace"),
    *("quotactl", "quotactl_fd", "reboot", "setdomainname", "sethostname", "settimeofday", "swapoff", "swapon", "syslog", "umount2"),
    *(call for call in ("ioperm", "iopl") if seccomp.NUMBERS[call][COLUMN]),
]
MISSING = ["clone3", "io_uring_enter", "io_uring_register", "io_uring_setup"]


def number(call: str) -> int:
    found = seccomp.NUMBERS[call][COLUMN]
    assert found is not None
    return found


@pytest.fixture(params=["this user", "ordinary user"])
def user(request: pytest.FixtureRequest) -> int | None:
    """The user who runs the tests; if that is root, also an ordinary one."""
    if request.param == "this user":
        return None
    if os.getuid() != 0:
        pytest.skip("only root can change the user")
    return ORDINARY


def errors_of(calls: list[str], user: int | None, program: str = "") -> dict[str, str]:
    """The error of each of these calls with arguments that are all -1. Root keeps its capabilities, so that only the filter refuses."""
    codes = {f"call({number(call)}, -1, -1, -1, -1, -1, -1)": call for call in calls}
    is_root = user is None and os.getuid() == 0
    rules = UNRESTRICTED if program and not is_root else None
    return {codes[code]: result for code, result in attempts(codes, user, rules, program).items()}


@pytest.mark.parametrize("program", FILTERS)
def test_privileged_calls_are_refused(user: int | None, program: str) -> None:
    refused = REFUSED_EVERYWHERE if program == "inside_namespaces" else REFUSED
    assert errors_of(refused, user, program) == dict.fromkeys(refused, "EPERM")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make these calls without a filter")
def test_root_can_make_privileged_calls_that_are_not_refused() -> None:
    assert "EPERM" not in errors_of(REFUSED, None).values()
    allowed = [call for call in REFUSED if call not in REFUSED_EVERYWHERE]
    assert "EPERM" not in errors_of(allowed, None, "inside_namespaces").values()


@pytest.mark.parametrize("program", FILTERS)
def test_calls_that_programs_can_do_without_seem_not_to_exist(user: int | None, program: str) -> None:
    assert errors_of(MISSING, user, program) == dict.fromkeys(MISSING, "ENOSYS")
    assert "ENOSYS" not in errors_of(MISSING, user).values()


NEW_TERMINAL = "import fcntl; os.setsid(); terminal = os.openpty()[1]; fcntl.ioctl(terminal, 0x540E, 0); key = ctypes.c_char_p(b'x')\n"
# The filters that refuse an attempt, the error, and the attempt.
ATTEMPTS = [
    (FILTERS, "EPERM", f"call({number('keyctl')}, 0, -3, 0)"),
    (FILTERS, "EPERM", f"call({number('add_key')}, b'user', b'name', b'value', 5, -2)"),
    (FILTERS, "ENOSYS", f"call({number('io_uring_setup')}, 1, ctypes.create_string_buffer(256))"),
    (FILTERS, "EPERM", f"call({number('userfaultfd')}, 1)"),
    (FILTERS, "EPERM", f"call({number('unshare')}, 0x10000000)"),
    (FILTERS, "EPERM", f"call({number('unshare')}, 0x10020000); call({number('mount')}, b'x', b'/tmp', b'tmpfs', 0, b'')"),
    (FILTERS, "EPERM", f"os._exit(0) if call({number('clone')}, 0x10000000 | 17, 0, 0, 0, 0) == 0 else None"),
    (FILTERS, "EPERM", f"os._exit(0) if call({number('clone')}, 0x50000000 | 17, 0, 0, 0, 0) == 0 else None"),
    (FILTERS, "EPERM", f"{NEW_TERMINAL}call({number('ioctl')}, terminal, 0x5412, key)"),
    (FILTERS, "EPERM", f"{NEW_TERMINAL}call({number('ioctl')}, terminal, 0x500005412, key)"),
    (FILTERS, "EPERM", "import resource; resource.prlimit(os.getppid(), resource.RLIMIT_CORE, (0, 0))"),
    (FILTERS, "EACCES", "socket.socket(40, socket.SOCK_STREAM)  # to the host of a virtual machine"),
    (FILTERS[:2], "EPERM", f"call({number('ptrace')}, 0, 0, 0, 0)"),
    (FILTERS[:2], "EPERM", f"call({number('kcmp')}, os.getpid(), os.getpid(), 1, 0, 0)"),
    (FILTERS[:2], "EPERM", f"call({number('process_vm_readv')}, os.getpid(), 0, 0, 0, 0, 0)"),
    (FILTERS[:2], "EPERM", f"call({number('personality')}, 0x400000)"),
    (FILTERS[:2], "EACCES", "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)"),
    (FILTERS[:2], "EACCES", "socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)"),
    (FILTERS[:2], "EACCES", "socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)  # MPTCP"),
    (FILTERS[:1], "EACCES", "socket.socket(socket.AF_INET, socket.SOCK_STREAM)"),
    (FILTERS[:1], "EACCES", "socket.socket(socket.AF_INET6, socket.SOCK_STREAM)"),
    (FILTERS[:1], "EACCES", "socket.socket(socket.AF_UNIX)"),
    (FILTERS[:1], "EACCES", "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)"),
    (FILTERS[:1], "EACCES", "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)"),
    (FILTERS[:1], "EACCES", "socket.socketpair(socket.AF_UNIX, socket.SOCK_RAW)"),
]


@pytest.mark.parametrize("program", FILTERS)
def test_an_attempt_fails_only_with_a_filter(user: int | None, program: str) -> None:
    unfiltered = attempts([code for _, _, code in ATTEMPTS], user)
    possible = [one for one in ATTEMPTS if unfiltered[one[2]] == DONE]  # a machine may lack MPTCP, AF_VSOCK or TIOCSTI
    assert len(possible) > len(ATTEMPTS) - 8, unfiltered
    expected = {code: error if program in filters else DONE for filters, error, code in possible}
    assert attempts(expected, user, UNRESTRICTED, program) == expected


# Attempts that fail with another error without a filter.
INVALID_ATTEMPTS = {
    f"call({number('sendmmsg')}, -1, 0, 0, 0x20000000)": ("listening", "EPERM"),
    f"call({number('sendmmsg')}, -1, 0, 0, 0x4000)": ("listening", "EBADF"),
    f"call({number('prctl')}, 35, 1, 0, 0, 1)": ("no_sockets", "EPERM"),
    f"call({number('ioctl')}, -1, 0x541C, 0)": ("inside_namespaces", "EPERM"),
    f"call({number('unshare')}, 0x81)": ("no_sockets", "EPERM"),
    "socket.socketpair(30, socket.SOCK_STREAM)": ("listening", "EACCES"),
}


@pytest.mark.parametrize("program", FILTERS)
def test_the_arguments_of_invalid_calls_are_filtered_too(user: int | None, program: str) -> None:
    expected = {code: error for code, (wanted, error) in INVALID_ATTEMPTS.items() if wanted == program}
    assert attempts(expected, user, UNRESTRICTED, program) == expected
    assert not {"EPERM", "EACCES", DONE} & set(attempts(expected, user).values())


@pytest.mark.parametrize("program", FILTERS)
def test_ordinary_calls_are_allowed(user: int | None, program: str) -> None:
    codes = [
        "socket.socketpair(); socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)",
        "pid = os.fork(); os._exit(0) if pid == 0 else os.waitpid(pid, 0)",
        "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); resource.prlimit(os.getppid(), resource.RLIMIT_CORE)",
        "assert [libc.personality(one) for one in (0, 0xFFFFFFFF, 0x40000, 0)] == [0, 0, 0, 0x40000]",
        "assert os.get_terminal_size(os.openpty()[1])",
        "os.memfd_create('x'); os.eventfd(0)",
    ]
    assert attempts(codes, user, UNRESTRICTED, program) == dict.fromkeys(codes, DONE)


def test_a_command_that_listens_can_use_tcp_unix_and_netlink_sockets(user: int | None) -> None:
    code = "socket.create_server(('127.0.0.1', 0)); socket.socket(socket.AF_INET, socket.SOCK_STREAM, 6); socket.if_nameindex();"
    code += "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); socket.socket(socket.AF_UNIX).bind('\\0')"
    assert attempt(code, user, UNRESTRICTED, "listening") == DONE


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder in which every user can write."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o777)
        yield Path(name)


def test_no_socket_can_be_reached_by_its_path(user: int | None, open_folder: Path) -> None:
    with ExitStack() as servers:
        for kind in ("STREAM", "DGRAM", "SEQPACKET"):
            server = servers.enter_context(socket.socket(socket.AF_UNIX, getattr(socket, f"SOCK_{kind}")))
            server.bind(str(open_folder / kind))
            (open_folder / kind).chmod(0o666)
            if kind != "DGRAM":
                server.listen()
        refused = {
            "socket.socket(socket.AF_UNIX).connect('STREAM')": "EACCES",
            "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b'x', 'DGRAM')": "EACCES",
        }
        assert attempts(refused, user, EVERY_FILE, "no_sockets", open_folder) == refused
        assert attempts(refused, user, EVERY_FILE, "", open_folder) == dict.fromkeys(refused, DONE)
        connected = [f"socket.socketpair(socket.AF_UNIX, socket.SOCK_{kind})[0].connect({kind!r})" for kind in ("STREAM", "SEQPACKET")]
        assert attempts(connected, user, EVERY_FILE, "no_sockets", open_folder) == dict.fromkeys(connected, "EISCONN")


@needs_tcp
@pytest.mark.parametrize(
    "send",
    ["sendto(b'x', 0x20000000, {address})", "sendmsg([b'x'], [], 0x20000000, {address})"],
)
def test_landlock_cannot_be_avoided_by_sending_data_while_connecting(user: int | None, send: str) -> None:
    rules = Rules(files=False)
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        code = f"socket.socket().{send.format(address=server.getsockname())}"
        assert attempt(f"socket.socket().connect({server.getsockname()})", user, rules) == "EACCES"
        assert attempt(code, user, rules, "listening") == "EPERM"
        assert attempt(code, user) == DONE


def test_connecting_with_the_first_data_cannot_be_turned_on(user: int | None) -> None:
    for option in ("socket.IPPROTO_TCP, 30, 1", "socket.IPPROTO_TCP, 31, b'tls'"):
        assert attempt(f"socket.socket().setsockopt({option})", user, UNRESTRICTED, "listening") == "EPERM"
        assert attempt(f"socket.socket().setsockopt({option})", user) != "EPERM"
    keep_alive = "socket.socket().setsockopt(socket.SOL_SOCKET, 30, 1); socket.socket().setsockopt(socket.IPPROTO_TCP, 1, 1)"
    assert attempt(keep_alive, user, UNRESTRICTED, "listening") != "EPERM"


def test_a_32_bit_call_kills_the_process(user: int | None) -> None:
    """The same number is another call for a 32-bit program, so a filter cannot compare it."""
    if os.uname().machine != "x86_64":
        pytest.skip("needs the 32-bit calls of x86_64")
    get_pid = bytes.fromhex("b814000000 cd80 c3")  # mov eax, 20; int 0x80; ret
    code = f"""
import mmap
memory = mmap.mmap(-1, 4096, prot=7)
memory.write({get_pid})
assert ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))() == os.getpid()
"""
    if attempt(code, user) != DONE:
        pytest.skip("this kernel has no 32-bit calls")
    assert attempt(code, user, UNRESTRICTED, "no_sockets") == -signal.SIGSYS


def test_a_filter_needs_a_thread_without_new_privileges() -> None:
    user = ORDINARY if os.getuid() == 0 else None
    start = f"import sys; sys.path.insert(0, {str(SOURCE)!r}); from backburner.system import seccomp; seccomp.install(seccomp.no_sockets())"
    done = subprocess.run([python_for(user), "-I", "-S", "-c", start], capture_output=True, text=True, **identity(user))
    assert "Permission denied" in done.stderr


# Starts a command from a restricted thread. Prints the status of the main thread before that, of the restricted thread, of its command, of
# the main thread after it, and of a command that the main thread starts. The main thread then does what the restricted thread cannot do.
RESTRICT_A_THREAD = """
import json, os, socket, subprocess, sys, threading
sys.path.insert(0, sys.argv[1])
from backburner.system import capabilities, landlock, seccomp
results = []
def read_own():
    results.append(open("/proc/thread-self/status").read())
def start():
    results.append(subprocess.run(["cat", "/proc/self/status"], stdout=subprocess.PIPE, text=True).stdout)
def start_restricted():
    capabilities.drop_capabilities()
    landlock.restrict(landlock.ruleset(landlock.Rules(read=("/",))))
    seccomp.install(seccomp.no_sockets())
    read_own()
    start()
read_own()
thread = threading.Thread(target=start_restricted)
thread.start()
thread.join()
read_own()
start()
socket.socket().close()
os.kill(os.getppid(), 0)
open(f"/proc/{os.getppid()}/environ").close()
open(sys.argv[2], "w").close()
os.unlink(sys.argv[2])
assert os.stat("/proc/self/environ").st_uid == os.getuid()  # it can still be inspected by its user
print(json.dumps(results))
"""


def privileges(status: str) -> dict[str, str]:
    fields = dict(line.split(":\t", 1) for line in status.splitlines())
    return {name: value for name, value in fields.items() if name.startswith(("Cap", "NoNewPrivs", "Seccomp"))}


def test_only_the_command_is_restricted_and_not_the_main_thread(user: int | None, open_folder: Path) -> None:
    words = [python_for(user), "-I", "-S", "-c", RESTRICT_A_THREAD, str(SOURCE), str(open_folder / "new")]
    words = ["sh", "-c", '"$@"; exit $?', "sh", *words]  # gives it a parent of the same user
    done = subprocess.run(words, capture_output=True, text=True, check=True, **identity(user))
    before, thread, restricted, after, unrestricted = map(privileges, json.loads(done.stdout))
    assert before == after == unrestricted
    assert thread == restricted
    assert (restricted["NoNewPrivs"], restricted["Seccomp"]) == ("1", "2")
    none = "0" * 16
    assert {restricted[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {none}


PYTHON = """
import asyncio, multiprocessing, subprocess, threading
thread = threading.Thread(target=print, args=(1,))
thread.start()
thread.join()
multiprocessing.Pipe()
asyncio.run(asyncio.sleep(0))
subprocess.run(["echo", "2"])
"""
NODE = 'new (require("worker_threads").Worker)(`require("child_process").execSync("true"); console.log(1)`, {eval: true})'
ORDINARY_PROGRAMS = {
    "sh": "printf 'b\\na\\n' | sort | grep a > sorted; cat sorted; sleep 0 & wait",
    "python3": f"python3 -c '{PYTHON}'",
    "git": "export HOME=$PWD; git init --quiet repository && git -C repository status",
    "node": f"node -e '{NODE}'",
    "gcc": "printf '#include <stdio.h>\\nint main() { puts(\"1\"); return 0; }' > hello.c && gcc hello.c -o hello && test -s hello && echo compiled",
}


@pytest.mark.parametrize("name", ORDINARY_PROGRAMS)
def test_ordinary_programs_run_without_sockets(user: int | None, open_folder: Path, name: str) -> None:
    if not shutil.which(name):
        pytest.skip(f"needs {name}")
    done = run(["sh", "-c", ORDINARY_PROGRAMS[name]], user, EVERY_FILE, "no_sockets", open_folder)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert done.stdout


def headers() -> dict[str, tuple[int | None, int | None]]:
    """The numbers in the header files of the kernel, on x86_64 and aarch64."""
    found = []
    for path in ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm-generic/unistd.h"):
        if not os.path.exists(path):
            pytest.skip(f"needs {path}")
        defined = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", Path(path).read_text())
        found.append({name: int(number) for name, number in defined})
    return {name: (found[0].get(name), found[1].get(name)) for name in found[0]}


def test_the_numbers_are_those_of_the_kernel() -> None:
    known = headers()
    assert {name: known[name] for name in seccomp.NUMBERS if name in known} == {
        name: numbers for name, numbers in seccomp.NUMBERS.items() if name in known
    }
    assert set(seccomp.NUMBERS) - set(known) <= {
        "file_setattr",
        "open_tree_attr",
        "removexattrat",
        "setxattrat",
        "fchmodat2",
    }  # newer than some header files


def decision(program: bytes, architecture: int, call: int, *arguments: int) -> str:
    """What the kernel would do for a call, from the instructions of a filter."""
    data = struct.pack("=IIQ6Q", call, architecture, 0, *arguments, *[0] * (6 - len(arguments)))
    position = value = 0
    while True:
        code, then, otherwise, operand = struct.unpack_from("=HBBI", program, 8 * position)
        position += 1
        match code:
            case 0x20:
                value = struct.unpack_from("=I", data, operand)[0]
            case 0x54:
                value &= operand
            case 0x15 | 0x35 | 0x45:
                is_true = {0x15: value == operand, 0x35: value >= operand, 0x45: bool(value & operand)}[code]
                position += then if is_true else otherwise
            case 0x06:
                match operand & 0xFFFF0000:
                    case 0x7FFF0000:
                        return "allow"
                    case 0x80000000:
                        return "kill"
                return errno.errorcode.get(operand & 0xFFFF, "ignore")


@pytest.mark.parametrize("name", FILTERS)
def test_the_filters_of_both_machines_decide_alike(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    machines = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
    cases: list[tuple[str, tuple[int, ...]]] = [(call, ()) for call in seccomp.NUMBERS]
    cases += [("socket", (family, kind, protocol)) for family in range(46) for kind in range(1, 6) for protocol in (0, 6, 17, 262)]
    cases += [("socketpair", (family, kind)) for family in (1, 30) for kind in range(1, 6)]
    cases += [(call, (1 << bit,)) for call in ("unshare", "clone", "personality") for bit in range(32)]
    cases += [("sendto", (3, 0, 0, 0x20004000)), ("sendmsg", (3, 0, 0x20000000)), ("sendmmsg", (3, 0, 0, 0x20000000))]
    cases += [("setsockopt", (3, level, option)) for level in (1, 6) for option in (1, 30, 31)]
    cases += [("prlimit64", (pid, 0, limit)) for pid in (0, 5) for limit in (0, 1, 1 << 32)]
    found = []
    for column, (machine, architecture) in enumerate(machines.items()):
        monkeypatch.setattr(os, "uname", lambda machine=machine: os.uname_result(("Linux", "", "", "", machine)))
        program = getattr(seccomp, name)()
        assert len(program) // 8 < 256
        numbers = {call: number[column] for call, number in seccomp.NUMBERS.items()}
        found.append({(call, values): decision(program, architecture, numbers[call] or 0, *values) for call, values in cases})
        assert decision(program, 0x40000003, 20) == "kill"
        assert decision(program, architecture, 0x40000000 + 39) == "ENOSYS"
        assert decision(program, architecture, 0) == decision(program, architecture, 300) == "allow"
    only_here = {(call, ()) for call, numbers in seccomp.NUMBERS.items() if numbers[1] is None}
    assert {case for case in found[0] if found[0][case] != found[1][case]} <= only_here


def test_a_machine_without_a_filter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "", "", "", "riscv64")))
    with pytest.raises(OSError, match="no system call filter for riscv64"):
        seccomp.no_sockets()


def test_modes_and_times_of_files_do_not_change_without_sockets(user: int | None, open_folder: Path) -> None:
    """Landlock does not restrict them. The calls succeed, because many programs give up otherwise."""
    path = open_folder / "file"
    path.write_text("x")
    path.chmod(0o640)
    if user is not None:
        os.chown(path, user, user)
    before = path.stat()
    code = f"import os; os.chmod('{path}', 0o777); os.utime('{path}', (1, 1)); os.fchmod(os.open('{path}', os.O_RDONLY), 0o777)"
    done = run(["python3", "-c", code], user, EVERY_FILE, "no_sockets", open_folder)
    assert (done.returncode, done.stderr) == (0, "")
    after = path.stat()
    assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)


@pytest.mark.parametrize("name", ["no_sockets", "listening"])
@pytest.mark.parametrize(("call", "position"), [("setpriority", 1), ("ioprio_set", 1), ("sched_setaffinity", 0), ("sched_setscheduler", 0)])
def test_a_process_changes_only_its_own_scheduling(monkeypatch: pytest.MonkeyPatch, name: str, call: str, position: int) -> None:
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "", "", "", "x86_64")))
    program = getattr(seccomp, name)()

    def decided(process: int) -> str:
        return decision(program, 0xC000003E, seccomp.NUMBERS[call][0] or 0, *([0] * position), process)

    assert (decided(0), decided(5)) == ("allow", "EPERM")
