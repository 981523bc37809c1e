"""Arguments, labels and settings with unusual content: bytes that are not text, control codes, paths, huge values."""

import subprocess
import sys

from conftest import Place

ME = f"{sys.executable} -m backburner"


def _sh(place: Place, line: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(line, shell=True, env=place.environ, cwd=place.cwd, capture_output=True, text=True, timeout=40)


def test_an_option_after_the_separator_belongs_to_the_command(place: Place) -> None:
    done = place.cli("run", "--cwd", "/nowhere", "--", "cat", "--json")
    assert done.stderr == "The working directory /nowhere does not exist.\n"


def test_arguments_that_are_not_utf8_are_bad_input_and_no_internal_error(place: Place) -> None:
    for line in (f"{ME} status $(printf '\\377')", f"{ME} --home /tmp/$(printf '\\377') list", f"{ME} events --since 99999999999999999999"):
        done = _sh(place, line)
        assert done.returncode in (2, 4) and "Internal error" not in done.stderr, (line, done.stderr)


def test_settings_with_absurd_values_are_rejected_with_their_line(place: Place) -> None:
    for value in ("inf", "1e9", "9" * 400, "nan"):
        place.configure(f"[commands]\nmax_concurrent = {value}\n")
        done = place.cli("list")
        assert done.returncode == 2 and "line 2" in done.stderr and "Internal error" not in done.stderr, done.stderr


def test_control_codes_in_arguments_are_escaped(place: Place) -> None:
    done = place.cli("status", "x\x1b[2J\ny")
    assert done.stderr == "Task x\\x1b[2J\\ny not found.\n"
    proposed = place.cli("run", "--", "rm\x1b[2K\rls")
    assert "\x1b" not in proposed.stderr and "\r" not in proposed.stderr


def test_a_label_with_path_separators_stays_inside_the_home(place: Place) -> None:
    task_id = place.ok("run", "--wait", "--name", "../../etc/\npasswd", "--", "true") or str(place.status("last")["task_id"])
    assert "/" not in task_id and place.folder(task_id).is_dir()
    assert place.status("../../etc/\npasswd")["task_id"] == task_id


def test_the_header_of_a_very_long_command_line_is_not_output(place: Place) -> None:
    words = [f"{n:06d}" * 20 for n in range(3000)]
    done = place.finish("true", *words)
    assert place.log(str(done["task_id"])) == b""
