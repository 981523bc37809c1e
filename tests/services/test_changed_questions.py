"""An approval is bound to what was shown: if the command has changed, nothing is approved and the question is shown again."""

import os
import pty
import re
import select
import sys
import time
from collections.abc import Callable

import pytest
from conftest import CAUTIOUS, CONFIG, HomeCli, wait_until

from backburner import BackburnerSync, QuestionChanged

FINGERPRINT = re.compile(r"Fingerprint: ([0-9a-f]{12})\b")


def _propose_script(home_cli: HomeCli) -> str:
    """Propose a script that needs approval; returns the id of its task."""
    (home_cli.cwd / "job.sh").write_text("echo good\n")
    return home_cli.cli("run", "--", "sh", "job.sh").stdout.strip()


def _run_in_terminal(
    home_cli: HomeCli, keys: str, *words: str, at: bytes = b"[y/n", before: Callable[[], object] = lambda: None
) -> tuple[str, int]:
    """Run a command in a new terminal and type `keys` when it asks; returns the screen and the exit code."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(home_cli.cwd)
        os.execve(sys.executable, [sys.executable, "-m", "backburner", *words], {**home_cli.environ, "TERM": "xterm"})
    screen, typed, deadline = b"", False, time.monotonic() + 30
    while time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                screen += os.read(terminal, 4096)
            except OSError:
                break
        if at in screen and not typed:
            before()
            os.write(terminal, keys.encode())
            typed = True
    os.close(terminal)
    return screen.decode().replace("\r\n", "\n"), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_approve_without_fingerprint_requires_the_original_command(home_cli: HomeCli) -> None:
    task_id = _propose_script(home_cli)
    (home_cli.cwd / "job.sh").write_text("echo evil\n")
    refused = home_cli.cli("approve", task_id)
    assert refused.returncode == 3 and "Command requires approval:" in refused.stderr and "sh job.sh" in refused.stderr
    assert f"the command of {task_id} has changed" in refused.stderr and home_cli.status(task_id)["status"] == "proposed"
    assert home_cli.cli("approve", task_id).returncode == 3, "a refused approval does not approve the new command"
    (shown,) = set(FINGERPRINT.findall(refused.stderr))
    home_cli.ok("approve", task_id, "--seen", shown)
    home_cli.ok("wait", task_id)
    assert home_cli.log(task_id) == b"evil\n"


def test_approve_with_an_outdated_fingerprint_is_rejected(home_cli: HomeCli) -> None:
    task_id = _propose_script(home_cli)
    shown = str(home_cli.status(task_id)["fingerprint"])
    assert len(shown) == 12 and f"Fingerprint: {shown}" in home_cli.ok("status", task_id)
    (home_cli.cwd / "job.sh").write_text("echo evil\n")
    refused = home_cli.cli("approve", task_id, "--seen", shown)
    assert refused.returncode == 3 and home_cli.status(task_id)["status"] == "proposed"
    (home_cli.cwd / "job.sh").write_text("echo good\n")
    home_cli.ok("approve", task_id, "--seen", shown)
    home_cli.ok("wait", task_id)
    assert home_cli.log(task_id) == b"good\n"


@pytest.mark.parametrize("wrong", ["", "abc", "x" * 12])
def test_an_invalid_fingerprint_is_bad_input(home_cli: HomeCli, wrong: str) -> None:
    task_id = _propose_script(home_cli)
    done = home_cli.cli("approve", task_id, "--seen", wrong)
    assert done.returncode == 2 and "--seen" in done.stderr and home_cli.status(task_id)["status"] == "proposed"


def test_a_fingerprint_cannot_approve_several_tasks(home_cli: HomeCli) -> None:
    one, two = _propose_script(home_cli), home_cli.cli("run", "--", "install", "-d", "made").stdout.strip()
    done = home_cli.cli("approve", one, two, "--seen", str(home_cli.status(one)["fingerprint"]))
    assert done.returncode == 2 and home_cli.status(one)["status"] == home_cli.status(two)["status"] == "proposed"


def test_a_terminal_shows_the_command_before_it_is_approved(home_cli: HomeCli) -> None:
    home_cli.configure(CAUTIOUS)
    task_id = _propose_script(home_cli)
    screen, code = _run_in_terminal(home_cli, "n\n", "approve", task_id)
    assert code == 3 and "sh job.sh" in screen and FINGERPRINT.search(screen) and home_cli.status(task_id)["status"] == "proposed"
    (home_cli.cwd / "job.sh").write_text("echo new\n")  # the person sees the new one
    screen, code = _run_in_terminal(home_cli, "y\n", "approve", task_id)
    assert code == 0 and FINGERPRINT.search(screen), screen
    home_cli.ok("wait", task_id)
    assert home_cli.log(task_id) == b"new\n"


def test_a_command_that_changes_during_the_prompt_is_not_approved(home_cli: HomeCli) -> None:
    home_cli.configure(CAUTIOUS)
    task_id = _propose_script(home_cli)
    screen, code = _run_in_terminal(home_cli, "y\n", "approve", task_id, before=lambda: (home_cli.cwd / "job.sh").write_text("echo evil\n"))
    assert code == 3 and len(set(FINGERPRINT.findall(screen))) == 2, screen
    assert home_cli.status(task_id)["status"] == "proposed"


def test_a_command_that_changes_during_the_prompt_of_run_is_not_started(home_cli: HomeCli) -> None:
    home_cli.configure(CAUTIOUS)
    (home_cli.cwd / "job.sh").write_text("echo good\n")
    screen, code = _run_in_terminal(
        home_cli, "y\n", "run", "--", "sh", "job.sh", before=lambda: (home_cli.cwd / "job.sh").write_text("echo evil\n")
    )
    assert code == 3 and FINGERPRINT.search(screen) and "the command changed while approval was requested" in screen, screen
    assert home_cli.json("list") == []


def test_a_suspended_task_that_changes_again_needs_another_approval(home_cli: HomeCli) -> None:
    home_cli.configure(CONFIG + "[commands]\nmax_concurrent = 1\n")
    script = home_cli.cwd / "job.sh"
    script.write_text("echo good\n")
    blocker = home_cli.run("sleep", "600")
    task_id = home_cli.run("sh", "job.sh")
    script.write_text("echo worse\n")
    home_cli.ok("cancel", blocker)
    wait_until(lambda: home_cli.status(task_id)["status"] == "waiting", "the task to be suspended")
    script.write_text("echo evil\n")
    refused = home_cli.cli("approve", task_id)
    assert refused.returncode == 3 and home_cli.status(task_id)["status"] == "waiting"
    script.write_text("echo worse\n")
    home_cli.ok("approve", task_id)
    home_cli.ok("wait", task_id)
    assert home_cli.log(task_id) == b"worse\n"


def test_the_library_rejects_an_outdated_fingerprint(home_cli: HomeCli) -> None:
    task_id = _propose_script(home_cli)
    with BackburnerSync.open(home_cli.root) as bb:
        seen = bb.get(task_id).question_fingerprint
        (home_cli.cwd / "job.sh").write_text("echo evil\n")
        for fingerprint in (seen, None):
            with pytest.raises(QuestionChanged) as refused:
                bb.approve(task_id, seen=fingerprint)
        assert bb.get(task_id).status == "proposed"
        bb.approve(task_id, seen=str(refused.value.fields["seen"]))
    home_cli.ok("wait", task_id)
