"""Landlock: what a command started by a restricted thread can do with files, ports, abstract sockets and other processes.

Every attempt is made twice by a real process: with the restriction it fails, and without it the same attempt succeeds.
"""

import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from backburner.system import landlock
from backburner.system.landlock import Rules

pytestmark = pytest.mark.skipif(landlock.abi() < landlock.TRUNCATE_ABI, reason="needs Linux 6.2 with Landlock")
needs_tcp = pytest.mark.skipif(landlock.abi() < landlock.TCP_ABI, reason="needs Linux 6.7")
needs_devices = pytest.mark.skipif(landlock.abi() < landlock.DEVICE_ABI, reason="needs Linux 6.10")
needs_scopes = pytest.mark.skipif(landlock.abi() < landlock.SCOPE_ABI, reason="needs Linux 6.12")

SOURCE = Path(landlock.__file__).parents[2]
ORDINARY = 65534
PROGRAMS = ("/usr", "/bin", "/lib", "/lib64", "/etc", sys.base_prefix)
DONE = "done"

# Starts a command as Backburner does: from a thread that restricts itself and ends.
_START = """
import json, subprocess, sys, threading
source, options, command = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3:]
sys.path.insert(0, source)
from backburner.system import capabilities, landlock, seccomp
results = []
def start():
    if options["rules"] is not None:
        capabilities.drop_capabilities()
        landlock.restrict(landlock.ruleset(landlock.Rules(*options["rules"])))
    if options["filter"]:
        seccomp.install(getattr(seccomp, options["filter"])())
    results.append(subprocess.Popen(command))
thread = threading.Thread(target=start)
thread.start()
thread.join()
code = results[0].wait()
sys.exit(code if code >= 0 else 128 - code)
"""
# Runs each piece of code in a process of its own, and prints how they ended.
_ATTEMPT = """
import ctypes, errno, json, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    result = libc.syscall(*(ctypes.c_long(one) if isinstance(one, int) else one for one in arguments))
    if result == -1:
        raise OSError(ctypes.get_errno(), "")
    return result
def outcome(code):
    try:
        exec(code, globals())
        return "done"
    except OSError as error:
        return errno.errorcode[error.errno]
    except BaseException as error:
        return repr(error)
results = {}
for code in json.loads(sys.argv[1]):
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(writer, outcome(code).encode())
        os._exit(0)
    os.close(writer)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    results[code] = os.read(reader, 10000).decode() or status
print(json.dumps(results))
"""


@functools.cache
def python_for(user: int | None) -> str:
    """A Python that this user can run."""
    for path in (os.path.realpath(sys.executable), "/usr/bin/python3"):
        try:
            if subprocess.run([path, "-I", "-S", "-c", f"import os; os.stat({str(SOURCE)!r})"], **identity(user)).returncode == 0:
                return path
        except OSError:
            continue
    pytest.skip("the ordinary user can run no Python here")


def identity(user: int | None) -> dict:
    return {} if user is None else {"user": user, "group": user, "extra_groups": []}


def run(
    command: list[str], user: int | None, rules: Rules | None = None, program: str = "", cwd: Path | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a command, restricted by these rules and by this filter of `seccomp`."""
    options = json.dumps({"rules": rules, "filter": program})
    words = [python_for(user), "-I", "-S", "-c", _START, str(SOURCE), options, *command]
    return subprocess.run(words, capture_output=True, text=True, cwd=cwd, **identity(user))


def attempts(
    codes: Iterable[str], user: int | None, rules: Rules | None = None, program: str = "", cwd: Path | None = None
) -> dict[str, str]:
    """How each of these attempts ends: `done`, or the name of its error."""
    done = run([python_for(user), "-I", "-S", "-c", _ATTEMPT, json.dumps(list(codes))], user, rules, program, cwd)
    assert done.returncode == 0, done
    assert not done.stderr
    return json.loads(done.stdout)


def attempt(code: str, user: int | None, rules: Rules | None = None, program: str = "", cwd: Path | None = None) -> str:
    return attempts([code], user, rules, program, cwd)[code]


@pytest.fixture(params=["this user", "ordinary user"])
def user(request: pytest.FixtureRequest) -> int | None:
    """The user who runs the tests; if that is root, also an ordinary one."""
    if request.param == "this user":
        return None
    if os.getuid() != 0:
        pytest.skip("only root can change the user")
    return ORDINARY


@pytest.fixture
def folder(user: int | None) -> Iterator[Path]:
    """A folder of the user with the folders `inside` and `outside`, each with files."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for part in ("inside", "outside", "outside/deep"):
            (root / part).mkdir()
            (root / part / "file").write_text("text")
            (root / part / "other").write_text("text")
        (root / "outside" / "empty").mkdir()
        shutil.copy("/bin/sh", root / "outside" / "program")
        for path in (root, *root.rglob("*")):
            os.chown(path, -1 if user is None else user, -1)
        yield root


@pytest.fixture
def inside(folder: Path) -> Rules:
    """Programs can be read, and the folder `inside` can be changed."""
    return Rules(read=PROGRAMS, write=(f"{folder}/inside",), devices=("/dev/null",))


@pytest.fixture
def other(user: int | None) -> Iterator[subprocess.Popen]:
    """Another process of the same user."""
    with subprocess.Popen(["sleep", "60"], env={"SECRET": "secret"}, **identity(user)) as process:
        yield process
        process.kill()


OUTSIDE = {
    "open('outside/file').read()": "EACCES",
    "open('outside/deep/file').read()": "EACCES",
    "os.listdir('outside')": "EACCES",
    "open('outside/file', 'a')": "EACCES",
    "open('outside/new file', 'w')": "EACCES",
    "os.truncate('outside/file', 0)": "EACCES",
    "os.mkdir('outside/new folder')": "EACCES",
    "os.rmdir('outside/empty')": "EACCES",
    "os.symlink('x', 'outside/new link')": "EACCES",
    "os.mkfifo('outside/new pipe')": "EACCES",
    "os.link('outside/file', 'inside/linked')": "EXDEV",
    "os.link('inside/file', 'outside/linked')": "EACCES",
    "os.rename('inside/file', 'outside/moved')": "EACCES",
    "os.rename('outside/file', 'inside/moved')": "EACCES",
    "os.rename('outside/deep/file', 'outside/deep/renamed')": "EACCES",
    "os.unlink('outside/deep/other')": "EACCES",
}


def test_files_outside_the_rules_cannot_be_used(user: int | None, folder: Path, inside: Rules) -> None:
    assert attempts(OUTSIDE, user, inside, cwd=folder) == OUTSIDE
    assert attempts(OUTSIDE, user, cwd=folder) == dict.fromkeys(OUTSIDE, DONE)


def test_a_program_outside_the_rules_cannot_be_run(user: int | None, folder: Path, inside: Rules) -> None:
    code = "import subprocess; subprocess.run(['outside/program', '-c', ''], check=True)"
    assert attempt(code, user, inside, cwd=folder) == "EACCES"
    assert attempt(code, user, cwd=folder) == DONE


def test_files_inside_a_writable_folder_can_be_used(user: int | None, folder: Path, inside: Rules) -> None:
    codes = [
        "open('inside/file').read()",
        "open('inside/new', 'w').write('x')",
        "os.truncate('inside/file', 0)",
        "os.unlink('inside/new')",
        "os.link('inside/file', 'inside/linked')",
        "os.mkdir('inside/folder'); os.rename('inside/file', 'inside/folder/file'); os.listdir('inside/folder')",
        "socket.socketpair(); os.pipe(); open('/dev/null', 'w').write('x')",
        "assert os.system('ls inside | cat > /dev/null') == 0",
    ]
    assert attempts(codes, user, inside, cwd=folder) == dict.fromkeys(codes, DONE)


def test_a_readable_folder_cannot_be_changed(user: int | None, folder: Path) -> None:
    rules = Rules(read=(*PROGRAMS, f"{folder}/outside"))
    assert attempt("os.listdir('outside/deep'); open('outside/deep/file').read()", user, rules, cwd=folder) == DONE
    assert attempt("open('outside/file', 'a')", user, rules, cwd=folder) == "EACCES"
    assert attempt("os.unlink('outside/file')", user, rules, cwd=folder) == "EACCES"


def test_a_folder_can_be_listed_although_its_files_cannot_be_read(user: int | None, folder: Path) -> None:
    rules = Rules(read=PROGRAMS, list_only=(f"{folder}/outside",))
    assert attempt("os.listdir('outside'); os.listdir('outside/deep')", user, rules, cwd=folder) == DONE
    assert attempt("open('outside/deep/file')", user, rules, cwd=folder) == "EACCES"
    assert attempt("open('outside/deep/file')", user, cwd=folder) == DONE


def test_rules_can_name_single_files(user: int | None, folder: Path) -> None:
    rules = Rules(read=(*PROGRAMS, f"{folder}/outside/file"), list_only=(f"{folder}/inside/file",), write=(f"{folder}/outside/deep/file",))
    assert attempt("open('outside/file').read(); open('outside/deep/file', 'w').write('x')", user, rules, cwd=folder) == DONE
    assert attempt("open('outside/file', 'w')", user, rules, cwd=folder) == "EACCES"
    assert attempt("os.unlink('outside/deep/file')", user, rules, cwd=folder) == "EACCES"
    assert attempt("open('inside/file')", user, rules, cwd=folder) == "EACCES"


@needs_devices
def test_devices_can_be_written_and_controlled(user: int | None) -> None:
    terminal_settings = "import fcntl; fcntl.ioctl(open('/dev/null'), 0x5401, bytes(64))"
    write = "open('/dev/null', 'w').write('x')"
    assert attempt(write, user, Rules(read=(*PROGRAMS, "/dev"))) == "EACCES"
    assert attempt(terminal_settings, user, Rules(read=(*PROGRAMS, "/dev"))) == "EACCES"
    assert attempt(write, user, Rules(read=PROGRAMS, devices=("/dev/null",))) == DONE
    assert attempt(terminal_settings, user, Rules(read=PROGRAMS, devices=("/dev/null",))) == "ENOTTY"


@needs_tcp
def test_files_are_not_restricted_without_file_rules(user: int | None, folder: Path) -> None:
    assert attempt("open('outside/new', 'w')", user, Rules(files=False), cwd=folder) == DONE


@needs_tcp
def test_only_the_given_ports_can_be_connected_to(user: int | None) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as one, closing(socket.create_server(("127.0.0.1", 0))) as two:
        to_one, to_two = (f"socket.create_connection({server.getsockname()!r})" for server in (one, two))
        rules = Rules(files=False, connect=(two.getsockname()[1],))
        assert attempt(to_one, user, rules) == "EACCES"
        assert attempt(to_two, user, rules) == DONE
        assert attempt(to_one, user, Rules(files=False, connect_any=True)) == DONE
        assert attempt(to_one, user) == DONE


@needs_tcp
def test_listening_on_a_port_must_be_allowed(user: int | None) -> None:
    code = "socket.create_server(('127.0.0.1', 0))"
    assert attempt(code, user, Rules(files=False)) == "EACCES"
    assert attempt(code, user, Rules(files=False, bind=True)) == DONE


@needs_scopes
def test_abstract_sockets_of_other_processes_cannot_be_used(user: int | None) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind("")  # the kernel chooses an abstract name
        server.listen()
        code = f"socket.socket(socket.AF_UNIX).connect({server.getsockname()!r})"
        assert attempt(code, user, Rules(files=False)) == "EPERM"
        assert attempt(code, user) == DONE


@needs_scopes
def test_other_processes_cannot_be_signalled(user: int | None, other: subprocess.Popen) -> None:
    code = f"os.kill({other.pid}, 15)"
    assert attempt(code, user, Rules(files=False)) == "EPERM"
    assert other.poll() is None
    assert attempt(code, user) == DONE
    assert other.wait() == -signal.SIGTERM


@needs_scopes
def test_the_own_processes_can_be_signalled(user: int | None) -> None:
    assert attempt("import subprocess; subprocess.Popen(['sleep', '60']).kill()", user, Rules(files=False)) == DONE


@needs_tcp
def test_the_environment_of_other_processes_cannot_be_read(user: int | None, other: subprocess.Popen) -> None:
    code = f"assert b'SECRET' in open('/proc/{other.pid}/environ', 'rb').read()"
    assert attempt(code, user, Rules(files=False)) == "EACCES"
    assert attempt(code, user) == DONE


def test_metadata_is_not_restricted(user: int | None, folder: Path, inside: Rules) -> None:
    """A limit of Landlock: if this fails, the kernel has learned to restrict it."""
    code = "os.stat('outside/file'); os.chmod('outside/file', 0o600); os.utime('outside/file', (1, 1))"
    assert attempt(code, user, inside, cwd=folder) == DONE


def test_paths_that_do_not_exist_are_left_out(folder: Path) -> None:
    rules = Rules(read=(f"{folder}/missing", f"{folder}/inside/file/below"), write=(f"{folder}/missing",))
    descriptor = landlock.ruleset(rules)
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)


@needs_tcp
def test_a_failed_ruleset_leaves_no_descriptor_open() -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="Invalid argument"):
        landlock.ruleset(Rules(connect=(70_000,)))
    assert os.listdir("/proc/self/fd") == before


def test_a_ruleset_restricts_the_threads_that_use_it_and_no_other(folder: Path) -> None:
    descriptor = landlock.ruleset(Rules(write=(f"{folder}/inside",)))
    results = []

    def write() -> None:
        landlock.restrict(descriptor)
        (folder / "inside" / "file").write_text("changed")
        try:
            (folder / "outside" / "file").write_text("changed")
        except PermissionError as error:
            results.append(error)

    for _ in range(2):
        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
    os.close(descriptor)
    assert len(results) == 2
    assert (folder / "inside" / "file").read_text() == "changed"
    (folder / "outside" / "file").write_text("changed")
