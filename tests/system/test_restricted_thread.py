"""Threads that are restricted, and what they start. Each test has its own process, because kept threads last as long as it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from backburner.system import landlock, seccomp

pytestmark = pytest.mark.skipif(
    landlock.abi() < landlock.SCOPE_ABI or not seccomp.is_available(), reason="needs Linux 6.12 with Landlock and a known machine"
)

SOURCE = Path(landlock.__file__).parents[2]
START = """
import os, subprocess, sys, threading
sys.path.insert(0, sys.argv[1])
from backburner.system import capabilities, landlock, restricted_thread
from backburner.system.landlock import Rules
from backburner.system.restricted_thread import Restriction, RestrictedThreads, call_restricted
folder = sys.argv[2]
everything = landlock.ruleset(Rules(write=("/",)))
def only(name):
    return landlock.ruleset(Rules(read=("/usr", "/bin", "/lib", "/lib64", "/proc", "/dev", f"{folder}/{name}")))
def sh(line):
    return subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True)
threads = RestrictedThreads()
"""


def run(code: str, folder: Path) -> str:
    (folder / "a").write_text("A")
    (folder / "b").write_text("B")
    done = subprocess.run([sys.executable, "-IS", "-c", START + code, str(SOURCE), str(folder)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_each_call_has_what_is_shared_and_its_own_rules(tmp_path: Path) -> None:
    code = """
for name in ("a", "b", "a"):
    found = threads.call(b"7", [only(name), everything], lambda: sh(f"cd {folder}; cat a b; grep -E 'CapEff|NoNew|Seccomp:' /proc/self/status"))
    print(*found.stdout.split())
print(threading.active_count(), *sh(f"cd {folder}; cat a b; grep Seccomp: /proc/self/status").stdout.split())
"""
    restricted = "CapEff: 0000000000000000 NoNewPrivs: 1 Seccomp: 2"
    assert run(code, tmp_path).splitlines() == [f"A{restricted}", f"B{restricted}", f"A{restricted}", "1 ABSeccomp: 0"]


def test_calls_with_the_same_shared_rules_cannot_signal_each_other(tmp_path: Path) -> None:
    code = """
sleep = threads.call(b"7", [only("a"), everything], lambda: subprocess.Popen(["sleep", "60"]))
line = f"kill {sleep.pid}"
print(threads.call(b"7", [only("a"), everything], lambda: sh(line)).stderr)
print(sleep.poll())
print(sh(line).returncode, sleep.wait())
"""
    out = run(code, tmp_path)
    assert "ermi" in out and out.splitlines()[-2:] == ["None", "0 -15"]


@pytest.mark.parametrize("rulesets", ["[only('a'), 999]", "[999, everything]"])
def test_nothing_is_called_without_restrictions(tmp_path: Path, rulesets: str) -> None:
    code = f"""
called = []
for call in (
    lambda: threads.call(b"7", {rulesets}, lambda: called.append(1)),
    lambda: call_restricted(Restriction(*{rulesets}, number=7), lambda: called.append(1)),
):
    try:
        call()
    except OSError as error:
        print(error.strerror or error, called)
print(threads.call(b"7", [only("b"), everything], lambda: sh(f"cat {{folder}}/a {{folder}}/b").stdout))
"""
    assert run(code, tmp_path).splitlines() == ["syscall: Bad file descriptor []"] * 2 + ["B"]


def test_few_threads_are_kept(tmp_path: Path) -> None:
    code = """
import time
for number in range(1, 30):
    print(threads.call(b"%d" % number, [only("a"), everything], lambda: sh(f"cat {folder}/a {folder}/b").stdout), end="")
until = time.monotonic() + 10
while (left := len(os.listdir("/proc/self/task"))) > 1 + restricted_thread._MAX_KEPT and time.monotonic() < until:
    time.sleep(0.01)
print(left)
"""
    assert run(code, tmp_path) == "A" * 29 + "9\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has capabilities")
def test_ambient_capabilities_are_dropped_too(tmp_path: Path) -> None:
    code = """
import struct
kill = 1 << 5
capabilities.call_libc("capset", struct.pack("=Ii", 0x20080522, 0), struct.pack("=6I", kill, kill, kill, 0, 0, 0))
capabilities.call_libc("prctl", 47, 2, 5, 0, 0)
show = "grep CapAmb /proc/self/status"
print(sh(show).stdout, end="")
print(call_restricted(Restriction(only("a"), everything, 7), lambda: sh(show).stdout), end="")
"""
    assert run(code, tmp_path).split() == ["CapAmb:", "0000000000000020", "CapAmb:", "0000000000000000"]
