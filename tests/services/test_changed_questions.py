"""A yes is for what was shown: where that is not what would run any more, nothing is approved and the question is shown anew."""

import os
import pty
import re
import select
import sys
import time
from collections.abc import Callable

import pytest
from conftest import Place, wait_until

from backburner import BackburnerSync, QuestionChanged

FINGERPRINT = re.compile(r"Fingerprint: ([0-9a-f]{12})\b")


def _proposed(place: Place) -> str:
    """A script that nobody has said yes to, changed after it was asked about."""
    (place.cwd / "job.sh").write_text("echo good\n")
    return place.cli("run", "--", "sh", "job.sh").stdout.strip()


def _typed(place: Place, keys: str, *words: str, at: bytes = b"[y/n", before: Callable[[], object] = lambda: None) -> tuple[str, int]:
    """One command line in a terminal of its own, typing `keys` where it asks; the screen and the exit code."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(place.cwd)
        os.execve(sys.executable, [sys.executable, "-m", "backburner", *words], {**place.environ, "TERM": "xterm"})
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


def test_a_plain_approve_is_for_what_was_asked_about(place: Place) -> None:
    task_id = _proposed(place)
    (place.cwd / "job.sh").write_text("echo evil\n")
    refused = place.cli("approve", task_id)
    assert refused.returncode == 3 and "Command requires approval:" in refused.stderr and "sh job.sh" in refused.stderr
    assert f"the command of {task_id} has changed" in refused.stderr and place.status(task_id)["status"] == "proposed"
    assert place.cli("approve", task_id).returncode == 3, "having been refused is not having said yes to the new one"
    (shown,) = set(FINGERPRINT.findall(refused.stderr))
    place.ok("approve", task_id, "--seen", shown)
    place.ok("wait", task_id)
    assert place.log(task_id) == b"evil\n"


def test_what_was_seen_and_is_not_any_more_is_refused(place: Place) -> None:
    task_id = _proposed(place)
    shown = str(place.status(task_id)["fingerprint"])
    assert len(shown) == 12 and f"Fingerprint: {shown}" in place.ok("status", task_id)
    (place.cwd / "job.sh").write_text("echo evil\n")
    refused = place.cli("approve", task_id, "--seen", shown)
    assert refused.returncode == 3 and place.status(task_id)["status"] == "proposed"
    (place.cwd / "job.sh").write_text("echo good\n")
    place.ok("approve", task_id, "--seen", shown)
    place.ok("wait", task_id)
    assert place.log(task_id) == b"good\n"


@pytest.mark.parametrize("wrong", ["", "abc", "x" * 12])
def test_a_fingerprint_that_is_none_is_wrong_input(place: Place, wrong: str) -> None:
    task_id = _proposed(place)
    done = place.cli("approve", task_id, "--seen", wrong)
    assert done.returncode == 2 and "--seen" in done.stderr and place.status(task_id)["status"] == "proposed"


def test_one_fingerprint_is_for_one_task(place: Place) -> None:
    one, two = _proposed(place), place.cli("run", "--", "install", "-d", "made").stdout.strip()
    done = place.cli("approve", one, two, "--seen", str(place.status(one)["fingerprint"]))
    assert done.returncode == 2 and place.status(one)["status"] == place.status(two)["status"] == "proposed"


def test_at_a_terminal_the_question_is_shown_before_the_yes(place: Place) -> None:
    place.configure("")
    task_id = _proposed(place)
    screen, code = _typed(place, "n\n", "approve", task_id)
    assert code == 3 and "sh job.sh" in screen and FINGERPRINT.search(screen) and place.status(task_id)["status"] == "proposed"
    (place.cwd / "job.sh").write_text("echo new\n")  # the person sees the new one
    screen, code = _typed(place, "y\n", "approve", task_id)
    assert code == 0 and FINGERPRINT.search(screen), screen
    place.ok("wait", task_id)
    assert place.log(task_id) == b"new\n"


def test_at_a_terminal_what_changes_while_the_person_reads_is_not_approved(place: Place) -> None:
    place.configure("")
    task_id = _proposed(place)
    screen, code = _typed(place, "y\n", "approve", task_id, before=lambda: (place.cwd / "job.sh").write_text("echo evil\n"))
    assert code == 3 and len(set(FINGERPRINT.findall(screen))) == 2, screen
    assert place.status(task_id)["status"] == "proposed"


def test_what_changes_while_run_asks_is_not_started(place: Place) -> None:
    place.configure("")
    (place.cwd / "job.sh").write_text("echo good\n")
    screen, code = _typed(place, "y\n", "run", "--", "sh", "job.sh", before=lambda: (place.cwd / "job.sh").write_text("echo evil\n"))
    assert code == 3 and FINGERPRINT.search(screen) and "the command changed while approval was requested" in screen, screen
    assert place.json("list") == []


def test_what_was_parked_and_changed_once_more_is_asked_about_again(place: Place) -> None:
    place.configure("[approval]\nyes_without_terminal = true\n[commands]\nmax_concurrent = 1\n")
    script = place.cwd / "job.sh"
    script.write_text("echo good\n")
    blocker = place.run("sleep", "600")
    task_id = place.run("sh", "job.sh")
    script.write_text("echo worse\n")
    place.ok("cancel", blocker)
    wait_until(lambda: place.status(task_id)["status"] == "waiting", "it to be parked")
    script.write_text("echo evil\n")
    refused = place.cli("approve", task_id)
    assert refused.returncode == 3 and place.status(task_id)["status"] == "waiting"
    script.write_text("echo worse\n")
    place.ok("approve", task_id)
    place.ok("wait", task_id)
    assert place.log(task_id) == b"worse\n"


def test_the_library_hands_back_what_was_shown(place: Place) -> None:
    task_id = _proposed(place)
    with BackburnerSync.open(place.root) as bb:
        seen = bb.get(task_id).question_fingerprint
        (place.cwd / "job.sh").write_text("echo evil\n")
        for said in (seen, None):
            with pytest.raises(QuestionChanged) as refused:
                bb.approve(task_id, seen=said)
        assert bb.get(task_id).status == "proposed"
        bb.approve(task_id, seen=str(refused.value.fields["seen"]))
    place.ok("wait", task_id)
