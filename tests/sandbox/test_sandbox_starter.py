"""The process that starts sandboxed commands in namespaces of its own: what they cannot do, and what happens when it is killed or cannot work."""

import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest
from conftest import NO_TERMINAL, HomeCli, wait_until

import backburner
from backburner.core.models import ProcessId
from backburner.execution import sandbox_starter
from backburner.system import processes
from backburner.system.sandbox_environment import MAX_FILE_BYTES, MAX_PROCESSES
from backburner.system.sandbox_support import find_support

NO_CAPABILITIES = {f"Cap{kind}": "0000000000000000" for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")}


@pytest.fixture
def starter(home_cli: HomeCli) -> ProcessId:
    home_cli.configure(NO_TERMINAL)
    home_cli.ok("trust")
    home_cli.await_sandbox_starter()
    (found,) = home_cli.sandbox_starters
    return found


def script(home_cli: HomeCli, text: str) -> list[str]:
    """A script of the project: the gate does not read it."""
    (home_cli.cwd / "run.py").write_text(text)
    return ["python3", "run.py"]


def run(home_cli: HomeCli, text: str) -> str:
    """Run a script with the sandbox starter; returns its output."""
    task_id = home_cli.ok("run", "--", *script(home_cli, text)).strip()
    home_cli.cli("wait", task_id)
    assert home_cli.uses_sandbox_starter(task_id)
    assert home_cli.status(task_id)["exit_code"] == 0, home_cli.log(task_id)
    return home_cli.log(task_id).decode()


def runs(home_cli: HomeCli) -> list[str]:
    path = home_cli.cwd / "runs"
    return path.read_text().split() if path.exists() else []


def start(home_cli: HomeCli, name: str, code: int) -> str:
    """Start a command that writes a line to `runs`, waits for the file `go`, and ends with this code."""
    lines = f"echo {name} >> runs\nwhile [ ! -e go ]; do sleep 0.02; done\necho done\nexit {code}\n"
    (home_cli.cwd / "held.sh").write_text(lines)
    return home_cli.ok("run", "--", "sh", "held.sh").strip()


def kill_everything(home_cli: HomeCli, starter: ProcessId) -> None:
    """Kill all processes of Backburner but the shim."""
    for process in (*home_cli.processes("backburner-keeper"), home_cli.engine, *home_cli.log_writers, starter):
        assert process
        processes.send(process, signal.SIGKILL)  # the starter may have ended by itself


@contextmanager
def stopped(process: ProcessId) -> Iterator[None]:
    processes.send(process, signal.SIGSTOP)
    try:
        yield
    finally:
        processes.send(process, signal.SIGCONT)


def test_a_command_has_no_capabilities_and_cannot_get_any(home_cli: HomeCli, starter: ProcessId) -> None:
    text = """
import os, subprocess
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
print({name: value for name, value in status.items() if name.startswith("Cap")}, status["NoNewPrivs"], status["Seccomp"])
for words in (["unshare", "-U", "true"], ["mount", "-t", "tmpfs", "none", "/run"], ["chroot", "/usr", "/bin/true"], ["nsenter", "-t", "1", "-m", "true"]):
    print(subprocess.run(words, capture_output=True).returncode != 0)
"""
    first, *others = run(home_cli, text).splitlines()
    assert first == f"{NO_CAPABILITIES} 1 2" and others == ["True"] * 4


def test_a_command_does_not_see_the_machine(home_cli: HomeCli, starter: ProcessId) -> None:
    text = """
import json, os
from pathlib import Path
print(len([name for name in os.listdir("/proc") if name.isdigit()]) < 6, sorted(os.listdir("/sys")), os.listdir("/dev/shm"))
print(Path("/proc/net/dev").read_text().count(":"), len(Path("/proc/sysvipc/shm").read_text().splitlines()))
mounts = [line.split() for line in open("/proc/self/mountinfo")]
print(json.dumps([path for _, _, _, _, path, options, *_ in mounts if "rw" in options.split(",") and not path.startswith("/dev/")]))
"""
    seen, network, writable = run(home_cli, text).splitlines()
    assert (seen, network) == ("True ['devices', 'fs'] []", "1 1")
    home = home_cli.environ["HOME"]
    own = ("/", "/tmp", str(home_cli.cwd), home, f"{home}/.cache")
    assert all(path in own or path.startswith(f"{home_cli.root}/tasks/") for path in json.loads(writable))


def test_what_one_command_leaves_in_memory_is_gone_for_the_next(home_cli: HomeCli, starter: ProcessId) -> None:
    places = ("/dev/shm/x", "/run/x", "/x", os.path.join(home_cli.environ["HOME"], "x"))
    text = f"import os\nfor path in {places}:\n    print(os.path.exists(path))\n    open(path, 'w').close()"
    for _ in range(2):
        assert run(home_cli, text).split() == ["False"] * len(places)


def test_devices_and_system_are_shared_read_only(home_cli: HomeCli, starter: ProcessId) -> None:
    text = """
import os
for path in ("/dev/x", "/etc/x", "/usr/x", "/sys/x", "/etc/ssl/x"):
    try:
        open(path, "w")
    except OSError as error:
        print(error.strerror)
open("/dev/null", "w").write("x")
print(len(open("/dev/zero", "rb").read(5)), os.ttyname(os.openpty()[1]).startswith("/dev/pts/"))
"""
    assert run(home_cli, text).splitlines() == ["Read-only file system"] * 5 + ["5 True"]


def test_a_command_knows_that_it_is_confined(home_cli: HomeCli, starter: ProcessId) -> None:
    """An engine that it started, or an approval that it gave, would be none."""
    shutil.copytree(backburner.__path__[0], home_cli.cwd / "backburner", ignore=shutil.ignore_patterns("static", "__pycache__"))
    assert (
        run(home_cli, "from backburner.system.processes import is_confined, is_inside\nprint(is_confined(), is_inside())") == "True True\n"
    )


def test_everything_ends_with_the_command(home_cli: HomeCli, starter: ProcessId) -> None:
    text = (
        f"import subprocess\nsubprocess.Popen(['sh', '-c', 'sleep 0.5; touch {home_cli.cwd}/late; exec sleep 600'], start_new_session=True)"
    )
    run(home_cli, text)
    wait_until(lambda: not home_cli.processes("600"), "what it has started to end")
    assert not (home_cli.cwd / "late").exists()


def test_a_starter_that_is_killed_loses_no_command_and_is_replaced(home_cli: HomeCli, starter: ProcessId) -> None:
    task_id = start(home_cli, "x", 7)
    wait_until(lambda: runs(home_cli) == ["x"], "it to run")
    assert home_cli.uses_sandbox_starter(task_id)
    processes.send(starter, signal.SIGKILL)
    home_cli.await_sandbox_starter()
    (home_cli.cwd / "go").touch()
    home_cli.cli("wait", task_id)
    found = home_cli.status(task_id)
    assert (found["exit_code"], found["error"], home_cli.log(task_id)) == (7, None, b"done\n")


@pytest.mark.parametrize("victims", ["starter", "engine", "engine and starter", "log writer"])
def test_a_command_runs_once_if_processes_are_killed_before_it_starts(home_cli: HomeCli, starter: ProcessId, victims: str) -> None:
    (home_cli.cwd / "go").touch()
    with stopped(starter):
        task_id = start(home_cli, "x", 7)
        wait_until(lambda: (home_cli.folder(task_id) / ".exit").exists() and home_cli.uses_sandbox_starter(task_id), "the request")
        if "engine" in victims:
            home_cli.kill_engine()
        if "log writer" in victims:
            for log_writer in home_cli.log_writers:
                processes.send(log_writer, signal.SIGKILL)
        if "starter" in victims:
            processes.send(starter, signal.SIGKILL)
    home_cli.cli("wait", task_id, "--timeout", "60")
    assert (home_cli.status(task_id)["exit_code"], runs(home_cli)) == (7, ["x"])


def test_a_command_that_ends_while_nothing_of_ours_runs_is_recorded_later(home_cli: HomeCli, starter: ProcessId) -> None:
    task_id = start(home_cli, "x", 7)
    wait_until(lambda: runs(home_cli) == ["x"], "it to run")
    kill_everything(home_cli, starter)
    (home_cli.cwd / "go").touch()
    wait_until(lambda: not home_cli.processes("held.sh"), "it to end")
    ended_at = time.time()
    time.sleep(1.5)
    home_cli.cli("wait", task_id, "--timeout", "30")
    found = home_cli.status(task_id)
    assert (found["exit_code"], found["error"], home_cli.log(task_id)) == (7, None, b"done\n")
    assert abs(datetime.fromisoformat(found["completed_at"]).timestamp() - ended_at) < 1
    wait_until(lambda: not [one for one in home_cli.processes("-s") if namespace_depth(one.pid) > 1], "its shim to end")


def test_the_background_of_a_command_ends_with_it_while_nothing_of_ours_runs(home_cli: HomeCli, starter: ProcessId) -> None:
    (home_cli.cwd / "held.sh").write_text("sleep 600 &\necho x >> runs\nwhile [ ! -e go ]; do sleep 0.02; done\n")
    task_id = home_cli.ok("run", "--", "sh", "held.sh").strip()
    wait_until(lambda: runs(home_cli) == ["x"], "it to run")
    kill_everything(home_cli, starter)
    (home_cli.cwd / "go").touch()
    wait_until(lambda: not home_cli.processes("600"), "what it has started to end")
    assert home_cli.cli("wait", task_id, "--timeout", "30").returncode == 0


FORGED_REPORT = """
import ctypes, os, time
libc = ctypes.CDLL(None, use_errno=True)
report = libc.syscall(438, os.pidfd_open(1), 3, 0)
os.write(report, b"0 1e400\\n" if report >= 0 else b"")
print("reported", report >= 0, flush=True)
time.sleep(600)
"""


def test_a_command_that_pretends_to_have_ended_still_runs_and_can_be_cancelled(home_cli: HomeCli, starter: ProcessId) -> None:
    """It can trace the shim in its sandbox, because programs such as debuggers work there."""
    task_id = home_cli.ok("run", "--", *script(home_cli, FORGED_REPORT)).strip()
    wait_until(lambda: b"reported" in home_cli.log(task_id), "the report")
    assert home_cli.log(task_id) == b"reported True\n" and home_cli.uses_sandbox_starter(task_id)
    assert home_cli.status(task_id)["status"] == "running"
    home_cli.ok("cancel", task_id)
    assert home_cli.status(task_id)["status"] == "cancelled" and not home_cli.processes("run.py")


def test_a_command_whose_shim_in_the_sandbox_is_killed_ends_with_it(home_cli: HomeCli, starter: ProcessId) -> None:
    task_id = start(home_cli, "x", 0)
    wait_until(lambda: runs(home_cli) == ["x"], "it to run")
    first = min(
        (found for found in home_cli.processes("-s") if os.getsid(found.pid) == found.pid),
        key=lambda found: namespace_depth(found.pid) != 2,
    )
    processes.send(first, signal.SIGKILL)
    home_cli.cli("wait", task_id, "--timeout", "30")
    found = home_cli.status(task_id)
    assert (found["status"], found["exit_code"], found["result"]) == ("failed", None, "lost")
    assert not home_cli.processes("held.sh")


def namespace_depth(pid: int) -> int:
    """In how many pid namespaces a process has a number."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return len(next(line for line in lines if line.startswith("NSpid:")).split()) - 1


IN_SHIM = """
import ctypes, os, socket, time
libc = ctypes.CDLL(None, use_errno=True)
def of_shim(number):
    return libc.syscall(438, os.pidfd_open(1), number, 0)
"""
KEEPS_OUTPUT_OPEN = f"""{IN_SHIM}
socket.send_fds(socket.socket(fileno=of_shim(3)), [b"7 1.0\\n"], [1])
print("sent", flush=True)
"""
FILLS_SOCKET = f"""{IN_SHIM}
end = of_shim(6)
os.set_blocking(end, False)
try:
    while True:
        os.write(end, b"x")
except BlockingIOError:
    os.set_blocking(end, True)
os.write(of_shim(3), b"0 1.0\\n")
print("filled", flush=True)
while not os.path.exists("go"):
    time.sleep(0.02)
"""


def test_a_command_that_keeps_its_output_open_elsewhere_ends(home_cli: HomeCli, starter: ProcessId) -> None:
    """Its message in the socket of its shim holds the write end of the pipe."""
    task_id = home_cli.ok("run", "--", *script(home_cli, KEEPS_OUTPUT_OPEN)).strip()
    home_cli.cli("wait", task_id, "--timeout", "30")
    assert home_cli.uses_sandbox_starter(task_id) and home_cli.log(task_id) == b"sent\n"
    assert home_cli.status(task_id)["status"] in ("completed", "failed")


def test_a_command_that_fills_the_socket_of_its_shim_does_not_hold_up_others(home_cli: HomeCli, starter: ProcessId) -> None:
    task_id = home_cli.ok("run", "--", *script(home_cli, FILLS_SOCKET)).strip()
    wait_until(lambda: home_cli.log(task_id) == b"filled\n", "the socket to be full")
    other = home_cli.ok("run", "--", "echo", "other").strip()
    assert home_cli.cli("wait", other, "--timeout", "15").returncode == 0 and home_cli.log(other) == b"other\n"
    home_cli.ok("cancel", task_id)


def test_a_command_cannot_lock_its_output(home_cli: HomeCli, starter: ProcessId) -> None:
    """Splicing from it to a socket that nobody reads would, and whoever reads it would wait in the kernel."""
    text = """
import os, socket
reader, (full, unread) = os.open("/proc/self/fd/1", os.O_RDONLY), socket.socketpair()
try:
    os.splice(reader, full.fileno(), 1)
except OSError as error:
    print(error.strerror)
"""
    assert run(home_cli, text) == "Invalid argument\n"


def test_the_shim_has_the_limits_of_its_command_and_its_script_cannot_be_changed(home_cli: HomeCli, starter: ProcessId) -> None:
    text = """
limits = [[line[:26].strip(), *line[26:].split()[:2]] for line in open("/proc/1/limits")]
print([limit[1:] for limit in limits if limit[0] in ("Max file size", "Max processes")])
try:
    open("/proc/1/fd/0", "r+b", buffering=0).write(b"x")
except OSError as error:
    print(error.strerror)
"""
    limits, error = run(home_cli, text).splitlines()
    assert limits == str([[str(MAX_FILE_BYTES)] * 2, [str(MAX_PROCESSES)] * 2]) and error == "Operation not permitted"


def test_a_variable_whose_name_ends_with_a_newline_is_passed_on(home_cli: HomeCli, starter: ProcessId) -> None:
    (home_cli.cwd / "run.py").write_text("import os\nprint(os.environ['NAME\\n'])")
    task_id = home_cli.ok("run", "--env", "NAME\n=$(echo x)", "--", "python3", "run.py").strip()
    home_cli.cli("wait", task_id)
    assert not home_cli.uses_sandbox_starter(task_id) and home_cli.log(task_id) == b"$(echo x)\n"


PASSES_FOLDER = """
import os, socket, sys, time
if sys.argv[1] == "pass":
    there = socket.socket(socket.AF_UNIX)
    there.connect("/tmp/folder.sock")
    socket.send_fds(there, [b"x"], [os.open(".", os.O_PATH)])
    there.recv(1)
else:
    here = socket.socket(socket.AF_UNIX)
    here.bind("/tmp/folder.sock")
    here.listen()
    print("listens", flush=True)
    other, _ = here.accept()
    _, (folder,), _, _ = socket.recv_fds(other, 10, 1)
    other.send(b"x")
    while not os.path.exists("go"):
        time.sleep(0.02)
    print(open(os.open(".env", os.O_RDONLY, dir_fd=folder)).read() == "")
    try:
        os.open(".git/planted", os.O_WRONLY | os.O_CREAT, dir_fd=folder)
    except OSError as error:
        print(error.strerror)
"""


def pass_on(home_cli: HomeCli, words: list[str]) -> tuple[str, str]:
    """Run a command that waits for something, and one that passes it on and ends; returns both."""
    receiver = home_cli.ok("run", "--", *words, "receive").strip()
    wait_until(lambda: home_cli.log(receiver) == b"listens\n", "the receiver")
    sender = home_cli.ok("run", "--", *words, "pass").strip()
    assert home_cli.cli("wait", sender, "--timeout", "30").returncode == 0, home_cli.log(sender)
    return receiver, sender


def test_a_folder_that_was_passed_to_another_command_stays_covered(home_cli: HomeCli, starter: ProcessId) -> None:
    subprocess.run(["git", "init", "-q"], cwd=home_cli.cwd, check=True)
    (home_cli.cwd / ".env").write_text("KEY=1\n")
    receiver, sender = pass_on(home_cli, script(home_cli, PASSES_FOLDER))
    (home_cli.cwd / "go").touch()
    assert home_cli.cli("wait", receiver, "--timeout", "30").returncode == 0, home_cli.log(receiver)
    assert home_cli.uses_sandbox_starter(sender) and home_cli.uses_sandbox_starter(receiver)
    assert home_cli.log(receiver).decode().splitlines() == ["listens", "True", "Read-only file system"]
    assert not (home_cli.cwd / ".git/planted").exists()


PASSES_SOCKET = """
import os, socket, sys, time
if sys.argv[1] == "pass":
    server = socket.create_server(("127.0.0.1", 8080))
    there = socket.socket(socket.AF_UNIX)
    there.connect("/tmp/socket.sock")
    socket.send_fds(there, [b"x"], [server.fileno()])
    there.recv(1)
elif sys.argv[1] == "receive":
    here = socket.socket(socket.AF_UNIX)
    here.bind("/tmp/socket.sock")
    here.listen()
    print("listens", flush=True)
    other, _ = here.accept()
    _, (server,), _, _ = socket.recv_fds(other, 10, 1)
    other.send(b"x")
    while not os.path.exists("go"):
        time.sleep(0.02)
else:
    print(socket.socket().connect_ex(("127.0.0.1", 8080)))
"""


def test_a_command_does_not_reach_a_server_of_another_one(home_cli: HomeCli, starter: ProcessId) -> None:
    words = script(home_cli, PASSES_SOCKET)
    receiver, _ = pass_on(home_cli, words)
    third = home_cli.ok("run", "--", *words, "connect").strip()
    home_cli.cli("wait", third, "--timeout", "30")
    (home_cli.cwd / "go").touch()
    home_cli.cli("wait", receiver, "--timeout", "30")
    assert home_cli.uses_sandbox_starter(third) and home_cli.log(third) == f"{errno.ECONNREFUSED}\n".encode()


def test_a_port_that_a_command_has_used_is_free_for_the_next(home_cli: HomeCli, starter: ProcessId) -> None:
    text = """
import socket
server = socket.socket()
server.bind(("127.0.0.1", 9000))
server.listen()
client = socket.create_connection(("127.0.0.1", 9000))
server.accept()[0].close()
client.recv(1)
"""
    for _ in range(3):
        run(home_cli, text)


def started_directly(tmp_path: Path, text: str, *words: str) -> tuple[bytes, bytes]:
    """Start a shell with this script in a small sandbox; returns its output and what was reported."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    report, other_end = socket.socketpair()
    (tmp_path / "script").write_text(text)
    with ours, theirs, report, other_end, open(tmp_path / "output", "w+b") as output, open(tmp_path / "script", "r+b") as commands:
        exit_file = os.memfd_create("exit")
        process = subprocess.Popen([sys.executable, "-IS", sandbox_starter.__file__], stdin=theirs)
        theirs.close()
        assert ours.recv(1024) == sandbox_starter.READY
        system = [word for name in ("usr", "bin", "lib", "lib64") for word in ("--ro-bind-try", f"/{name}", f"/{name}")]
        own = ("--dev", "/dev", "--proc", "/proc", *words)
        request = sandbox_starter.request(1, "project", system, own, {"PATH": os.defpath}, ())
        files = (other_end.fileno(), other_end.fileno(), output.fileno(), output.fileno(), commands.fileno(), exit_file)
        socket.send_fds(ours, [request], files)
        os.close(exit_file)
        while not ours.recv(1024).startswith(sandbox_starter.GONE):
            pass
        report.setblocking(False)
        try:
            reported = report.recv(64)
        except BlockingIOError:
            reported = b""
        ours.close()
        assert process.wait(20) == 0
    return (tmp_path / "output").read_bytes(), reported


def test_a_first_process_never_sees_the_processes_of_the_machine(tmp_path: Path) -> None:
    for _ in range(5):
        output, _ = started_directly(tmp_path, "echo /proc/[0-9]*\nread -r prepared <&8\necho /proc/[0-9]*\n")
        early, late = output.decode().splitlines()
        assert early in ("/proc/[0-9]*", "/proc/1") and late == "/proc/1"


def test_a_folder_that_is_a_link_into_the_machine_is_not_entered(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/key").write_text("secret")
    (tmp_path / "project").mkdir()
    for target in (f"/proc/self/root{tmp_path}/outside", f"/proc/1/root{tmp_path}/outside", f"{tmp_path}/outside"):
        (tmp_path / "project/sub").unlink(missing_ok=True)
        (tmp_path / "project/sub").symlink_to(target)
        project = str(tmp_path / "project")
        output, reported = started_directly(
            tmp_path, "read -r prepared <&8\ncat key\n", "--bind", project, project, "--chdir", f"{project}/sub"
        )
        assert b"could not be prepared" in output and b"secret" not in output and reported == b"1\n", target


def test_a_command_that_needs_bubblewrap_gets_it(home_cli: HomeCli, starter: ProcessId) -> None:
    for options in (("--stdin",), ("--tty",), ("--nice", "1"), ("--env", "IFS=x"), ("--env", "BASHOPTS=x")):
        task_id = home_cli.ok("run", *options, "--", "true").strip()
        home_cli.cli("wait", task_id)
        assert (home_cli.uses_sandbox_starter(task_id), home_cli.status(task_id)["status"]) == (False, "completed"), options


def test_a_starter_that_may_not_make_namespaces_says_so(home_cli: HomeCli) -> None:
    program = find_support(home_cli.home).bubblewrap
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sandbox = [str(program), "--unshare-user", "--disable-userns", "--dev-bind", "/", "/", "--"]
    with ours, theirs:
        words = [*sandbox, sys.executable, "-IS", sandbox_starter.__file__]
        subprocess.run(words, stdin=theirs, timeout=30, check=True)
        assert ours.recv(1024).startswith(sandbox_starter.UNAVAILABLE)
