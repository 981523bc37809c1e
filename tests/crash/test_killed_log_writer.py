"""The log writer killed at any time, alone and with the engine, its keeper and shims: the log is the same as without any kill."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import CONFIG, LONG, HomeCli, wait_until

from backburner.core.models import ProcessId
from backburner.system import processes
from backburner.system.home import is_locked
from backburner.system.log_file import Log

ROUNDS = 40 if LONG else 2
MAX_ROUNDS = 2 * ROUNDS + 8  # on a fast machine a command may end before its log writer is found
SEED = int(os.environ.get("BACKBURNER_SEED") or random.randrange(1 << 32))
PYTHON = [sys.executable, "-uc"]
# Exit code and text. Each prints the same bytes in every run; `grandchild` ends at once, and a descendant of it goes on printing.
PROGRAMS = {
    "flood": (0, "import os\nfor n in range(400): os.write(1, b''.join(b'%08d %06d\\n' % (n, m) for m in range(1024)))"),
    "trickle": (3, "import sys, time\nfor n in range(600): print('line', n, flush=True); time.sleep(0.002)\nsys.exit(3)"),
    "binary": (0, "import random, sys, time\nr = random.Random(1)\nfor n in range(300): sys.stdout.buffer.write(r.randbytes(r.randrange(9000))); time.sleep(0.003)"),
    "no newline": (0, "import sys, time\nfor n in range(500): sys.stdout.write('%06d,' % n); sys.stdout.flush(); time.sleep(0.002)"),
    "grandchild": (
        5,
        "import os, time\nif os.fork(): os._exit(5)\nfor n in range(400): os.write(1, b'later %d\\n' % n); time.sleep(0.004)",
    ),
}  # fmt: skip


def expected(program: str) -> bytes:
    code, text = PROGRAMS[program]
    done = subprocess.run([*PYTHON, text], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)
    assert done.returncode == code
    return done.stdout


def kill(victims: list[ProcessId]) -> int:
    return sum(processes.send(victim, signal.SIGKILL) for victim in victims)


def output(folder: Path) -> bytes:
    with Log(str(folder)) as log:
        return b"".join(piece for _, piece in log.chunks(log.body_start()))


def play(home_cli: HomeCli, program: str, who: str, chance: random.Random) -> int:
    """Run a program to the end of its output while processes are killed; returns the number of killed log writers."""
    code, text = PROGRAMS[program]
    if who != "log writer":
        home_cli.stop_engine()  # a keeper waits longer after each crash of its engine
    task_id = home_cli.run(*PYTHON, text)
    folder, killed, engines = home_cli.folder(task_id), 0, 0
    deadline = time.monotonic() + 60

    def done() -> bool:
        return (folder / ".exit").exists() and (folder / ".exit").read_text()[4:5] == "e"

    while not done():
        assert time.monotonic() < deadline, f"{program} did not end"
        if who != "log writer" and chance.random() < 0.3 and engines < 3:
            if who == "everything but shims":
                kill(home_cli.processes("backburner-keeper"))
            home_cli.kill_engine()
            engines += 1
        if who == "everything but shims" and chance.random() < 0.5:
            home_cli.cli("status", task_id)  # starts another engine
        elif who != "everything but shims" and chance.random() < 0.5:  # so that the output continues
            wait_until(lambda: done() or is_locked(str(folder / "output.log")), "a log writer")
        killed += kill(home_cli.log_writers)
        time.sleep(chance.random() ** 2 * 0.1)
    home_cli.cli("wait", task_id, "--timeout", "60")
    found = home_cli.status(task_id)
    assert (found["exit_code"], found["result"], found["error"]) == (code, "exit", None)
    return killed


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("who", ["log writer", "log writer and engine", "everything but shims"])
def test_a_killed_log_writer_loses_nothing(home_cli: HomeCli, who: str, program: str, capsys: pytest.CaptureFixture[str]) -> None:
    chance, wanted, killed = random.Random(f"{SEED} {who} {program}"), expected(program), 0
    for round_number in range(MAX_ROUNDS):
        if round_number >= ROUNDS and killed:
            break
        killed += play(home_cli, program, who, chance)
        last = home_cli.json("list", "--all")[0]["task_id"]
        assert output(home_cli.folder(last)) == wanted, f"seed {SEED}, round {round_number}"
    if LONG:
        with capsys.disabled():
            print(f"\n{who}, {program}: {ROUNDS} rounds, {killed} log writers killed, 0 bytes lost")
    assert killed


def test_a_killed_log_writer_loses_nothing_of_a_capped_log(home_cli: HomeCli) -> None:
    home_cli.configure(CONFIG + "[commands]\noutput_cap_mb = 1\n")
    wanted, killed = expected("flood"), 0
    task_id = home_cli.run(*PYTHON, PROGRAMS["flood"][1])
    while home_cli.status(task_id)["status"] in ("pending", "running"):
        killed += kill(home_cli.log_writers)
    shown = output(home_cli.folder(task_id))
    head, _, rest = shown.partition(b"\n[backburner: ")
    missing, _, tail = rest.partition(b" bytes of output left out here]\n")
    assert wanted.startswith(head) and wanted.endswith(tail) and len(head) > 1 << 18 and len(tail) > 1 << 18
    assert len(head) + int(missing.replace(b",", b"")) + len(tail) == len(wanted)
    assert killed


def test_when_its_shim_is_killed_output_goes_on_and_the_exit_code_is_unknown(home_cli: HomeCli) -> None:
    gate = home_cli.cwd / "gate"
    os.mkfifo(gate)
    task_id = home_cli.run(f"echo before; read x <{gate}; echo after; exit 7", options=("--shell",))
    wait_until(lambda: b"before" in home_cli.log(task_id), "the first line")
    (shim,) = (found for found in home_cli.processes("-s") if os.getsid(found.pid) == found.pid)
    kill([shim])
    gate.write_text("open\n")
    home_cli.cli("wait", task_id, "--timeout", "30")
    done = home_cli.status(task_id)
    assert home_cli.log(task_id) == b"before\nafter\n"
    assert (done["status"], done["result"], done["exit_code"]) == ("failed", "lost", None)
    assert done["error"] == "its end was not observed: its supervisor was killed while it ran"


def test_when_its_shim_and_everything_else_are_killed_the_run_and_its_notice_say_so(home_cli: HomeCli) -> None:
    gate = home_cli.cwd / "gate"
    os.mkfifo(gate)
    task_id = home_cli.run(f"echo before; read x <{gate}; sleep 0.2; exit 7", options=("--shell",))
    wait_until(lambda: b"before" in home_cli.log(task_id), "the first line")
    shims = [found for found in home_cli.processes("-s") if os.getsid(found.pid) == found.pid]
    kill([*home_cli.processes("backburner-keeper"), *shims])
    home_cli.kill_engine()
    kill(home_cli.log_writers)
    gate.write_text("open\n")
    home_cli.cli("wait", task_id, "--timeout", "30")
    done = home_cli.status(task_id)
    sentence = "part of its output may be missing: its supervisor and the log writer were killed"
    assert (done["status"], done["result"]) == ("failed", "lost") and sentence in str(done["error"])
    assert sentence in home_cli.ok("inbox", "--read")
