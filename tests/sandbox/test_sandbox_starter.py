"""The process that starts sandboxed commands in namespaces of its own: what they cannot do, and what happens when it is killed or cannot work."""

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
    for process in (*home_cli.processes("backburner-keeper"), home_cli.engine, *home_cli.log_writers, starter):
        assert process and processes.send(process, signal.SIGKILL)
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
    for process in (*home_cli.processes("backburner-keeper"), home_cli.engine, *home_cli.log_writers, starter):
        assert process and processes.send(process, signal.SIGKILL)
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


def test_a_command_that_needs_bubblewrap_gets_it(home_cli: HomeCli, starter: ProcessId) -> None:
    for options in (("--stdin",), ("--tty",), ("--nice", "1"), ("--env", "IFS=x"), ("--env", f"LARGE={'x' * 100_000}")):
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
