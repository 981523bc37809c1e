"""What users met and must not meet again: each was a bug once."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from conftest import Place, wait_until

from backburner.system import processes as process

ME = f"{sys.executable} -m backburner"


def _sh(place: Place, line: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(line, shell=True, env=place.environ, cwd=place.cwd, capture_output=True, text=True, timeout=40)


def test_the_id_of_a_cleared_task_never_comes_to_mean_another(place: Place) -> None:
    place.ok("run", "--wait", "--name", "a", "--", "true")
    first = str(place.status("last")["task_id"])
    other = place.run("sleep", "600", options=("--name", f"x-{first}"))
    assert first in other
    place.ok("clear", first)
    assert place.cli("cancel", first).returncode == 4 and place.cli("cancel", "").returncode == 4
    place.ok("cancel", other)


def test_the_engine_leaves_after_its_last_task(place: Place) -> None:
    place.configure("[engine]\nidle_exit_seconds = 0.2\n")
    place.ok("run", "--wait", "--", "true")
    wait_until(lambda: place.engine is None, "the engine to leave")


def test_an_engine_whose_socket_was_taken_away_is_found_again(place: Place) -> None:
    place.ok("run", "--wait", "--", "true")
    for bell in (place.root / "sockets").iterdir():
        bell.unlink()
    (place.root / "sockets").rmdir()
    assert place.ok("run", "--wait", "--", "echo", "heard") == "heard\n"


def test_a_notice_nobody_could_read_is_not_marked_as_read(place: Place) -> None:
    task_id = place.ok("run", "--", "true").strip()
    wait_until(lambda: place.status(task_id)["status"] == "completed", "the end")
    _sh(place, f"{ME} inbox --ack | true")
    _sh(place, f"{ME} inbox --ack > /dev/full")
    done = place.json("inbox")
    assert isinstance(done, list) and len(done) == 1


def test_output_that_cannot_be_written_is_one_sentence(place: Place) -> None:
    place.ok("run", "--wait", "--", "true")
    full = _sh(place, f"{ME} list > /dev/full")
    assert (full.returncode, full.stderr) == (1, "No space left on device.\n")
    closed = _sh(place, f"{ME} list | true; {ME} list >&-; {ME} list <&- 2>&- >/dev/null; {ME} run -- echo hi 2>&- <&-")
    assert closed.stderr == "" and closed.stdout.startswith("task_")


def test_the_environment_keeps_names_that_no_shell_can_hold(place: Place) -> None:
    names = {"A.B": "1", "x y": "2", "BASH_FUNC_f%%": "() { :; }", "OPTIND": "abc", "PPID": "7"}
    options = tuple(word for name, value in names.items() for word in ("--env", f"{name}={value}"))
    done = place.finish(sys.executable, "-c", "import os,json; print(json.dumps(dict(os.environ)))", options=options)
    seen = json.loads(place.log(str(done["task_id"])))
    assert {name: seen.get(name) for name in names} == names


def test_a_command_ignores_no_signal_and_has_the_door_s_umask(place: Place) -> None:
    place.ok("run", "--wait", "--", "true")
    done = _sh(place, f"umask 027; {ME} run --yes --wait --shell -- 'umask; grep SigIgn /proc/self/status'")
    assert done.stdout.split() == ["0027", "SigIgn:", "0000000000000000"]


def test_a_stopped_command_is_cancelled_without_waiting_for_the_grace(place: Place) -> None:
    place.configure("[approval]\nyes_without_terminal = true\n[commands]\ncancel_grace_seconds = 30\n")
    task_id = place.run("sleep", "600")
    wait_until(lambda: place.status(task_id)["pid"], "it to run")
    os.killpg(int(str(place.status(task_id)["pid"])), signal.SIGSTOP)
    place.ok("cancel", task_id)
    assert place.status(task_id)["result"] == "exit"


def test_the_shell_s_own_words_are_not_the_command_s_output(place: Place) -> None:
    place.cli("run", "--wait", "--timeout", "0.2", "--", "sleep", "600")
    assert place.log("last") == b""


def test_the_end_of_a_command_that_outlived_everything_is_when_it_ended(place: Place) -> None:
    gate = place.cwd / "gate"
    task_id = place.run(f"while [ ! -e {gate} ]; do sleep 0.02; done", options=("--shell",))
    wait_until(lambda: place.status(task_id)["pid"], "it to run")
    engine = place.engine
    assert engine
    for one in place.processes("backburner-keeper"):
        process.send(one, signal.SIGKILL)
    place.kill_engine()
    gate.touch()
    code = place.folder(task_id) / ".exit"
    wait_until(lambda: code.read_text().strip() == "0", "the exit file")
    os.utime(code, (gate.stat().st_mtime + 100, gate.stat().st_mtime + 100))
    took = place.status(task_id)["duration_seconds"]
    assert isinstance(took, float) and took >= 99


def test_yes_inside_a_task_is_refused_also_for_what_would_be_allowed(place: Place) -> None:
    done = place.finish(f"{ME} run --yes -- echo hi; echo $?", options=("--shell",))
    assert place.log(str(done["task_id"])).decode().endswith("\n3\n")


def test_an_option_of_the_command_is_not_ours(place: Place) -> None:
    done = place.cli("run", "--cwd", "/nowhere", "--", "cat", "--json")
    assert done.stderr == "The working directory /nowhere does not exist.\n"


def test_a_proposal_s_id_is_in_the_json_error(place: Place) -> None:
    error = json.loads(place.cli("run", "--json", "--", "install", "-d", "x").stderr)["error"]
    assert error["code"] == "approval_required" and place.status(error["task_id"])["status"] == "proposed"


def test_the_id_stands_alone_after_output_without_an_end(place: Place) -> None:
    done = place.cli("run", "--yes", "--wait", "0.5", "--shell", "--", "printf abc; sleep 600")
    assert done.stdout.splitlines()[0] == "abc" and done.stdout.splitlines()[1].startswith("task_")
    place.ok("cancel", "last")


def test_a_long_tail_is_given_whole(place: Place) -> None:
    place.finish("seq", "1", "300000")
    assert place.ok("logs", "--tail", "290000", "last").splitlines()[0] == "10001"
    assert len(json.loads(place.ok("logs", "--json", "last"))["output"].splitlines()) == 300000


def test_a_command_line_longer_than_the_header_shows_no_header(place: Place) -> None:
    words = [f"{n:06d}" * 20 for n in range(3000)]
    done = place.finish("true", *words)
    assert place.log(str(done["task_id"])) == b""


def test_words_that_are_no_text_are_bad_input_and_no_mistake_of_ours(place: Place) -> None:
    for line in (f"{ME} status $(printf '\\377')", f"{ME} --home /tmp/$(printf '\\377') list", f"{ME} events --since 99999999999999999999"):
        done = _sh(place, line)
        assert done.returncode in (2, 4) and "mistake" not in done.stderr, (line, done.stderr)


def test_settings_beyond_reason_are_named(place: Place) -> None:
    for value in ("inf", "1e9", "9" * 400, "nan"):
        place.configure(f"[commands]\nmax_concurrent = {value}\n")
        done = place.cli("list")
        assert done.returncode == 2 and "line 2" in done.stderr and "mistake" not in done.stderr, done.stderr


def test_names_that_move_the_cursor_are_written_out(place: Place) -> None:
    done = place.cli("status", "x\x1b[2J\ny")
    assert done.stderr == "Task x\\x1b[2J\\ny not found.\n"
    parked = place.cli("run", "--", "rm\x1b[2K\rls")
    assert "\x1b" not in parked.stderr and "\r" not in parked.stderr


def test_a_label_with_dots_and_newlines_stays_inside_the_home(place: Place) -> None:
    task_id = place.ok("run", "--wait", "--name", "../../etc/\npasswd", "--", "true") or str(place.status("last")["task_id"])
    assert "/" not in task_id and place.folder(task_id).is_dir()
    assert place.status("../../etc/\npasswd")["task_id"] == task_id


def test_logs_can_be_read_where_nothing_can_be_written(place: Place, tmp_path: Path) -> None:
    place.ok("run", "--wait", "--", "echo", "kept")
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", str(place.root), str(copy)], check=True)
    for bell in (copy / "sockets").iterdir():
        bell.unlink()
    (copy / "sockets").rmdir()
    assert place.ok("--home", str(copy), "logs", "last") == "kept\n" and not (copy / "sockets").exists()


def test_output_that_is_gone_is_told(place: Place) -> None:
    task_id = str(place.finish("true")["task_id"])
    (place.folder(task_id) / "output.log").unlink()
    done = place.cli("logs", task_id)
    assert done.returncode == 2 and "is gone" in done.stderr
