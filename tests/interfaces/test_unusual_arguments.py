"""Arguments, labels and settings with unusual content: bytes that are not text, control codes, paths, huge values."""

import subprocess
import sys

from conftest import HomeCli

ME = f"{sys.executable} -m backburner"


def _sh(home_cli: HomeCli, line: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(line, shell=True, env=home_cli.environ, cwd=home_cli.cwd, capture_output=True, text=True, timeout=40)


def test_an_option_after_the_separator_belongs_to_the_command(home_cli: HomeCli) -> None:
    done = home_cli.cli("run", "--cwd", "/nowhere", "--", "cat", "--json")
    assert done.stderr == "The working directory /nowhere does not exist.\n"


def test_arguments_that_are_not_utf8_are_bad_input_and_no_internal_error(home_cli: HomeCli) -> None:
    for line in (f"{ME} status $(printf '\\377')", f"{ME} --home /tmp/$(printf '\\377') list", f"{ME} events --since 99999999999999999999"):
        done = _sh(home_cli, line)
        assert done.returncode in (2, 4) and "Internal error" not in done.stderr, (line, done.stderr)


def test_settings_with_absurd_values_are_rejected_with_their_line(home_cli: HomeCli) -> None:
    for value in ("inf", "1e9", "9" * 400, "nan"):
        home_cli.configure(f"[commands]\nmax_concurrent = {value}\n")
        done = home_cli.cli("run", "--", "true")
        assert done.returncode == 2 and "line 2" in done.stderr and "Internal error" not in done.stderr, done.stderr


def test_control_codes_in_arguments_are_escaped(home_cli: HomeCli) -> None:
    done = home_cli.cli("status", "x\x1b[2J\ny")
    assert done.stderr == "Task x\\x1b[2J\\ny not found.\n"
    proposed = home_cli.cli("run", "--", "rm\x1b[2K\rls")
    assert "\x1b" not in proposed.stderr and "\r" not in proposed.stderr


def test_a_label_with_path_separators_stays_inside_the_home(home_cli: HomeCli) -> None:
    task_id = home_cli.ok("run", "--wait", "--name", "../../etc/\npasswd", "--", "true") or str(home_cli.status("last")["task_id"])
    assert "/" not in task_id and home_cli.folder(task_id).is_dir()
    assert home_cli.status("../../etc/\npasswd")["task_id"] == task_id


def test_the_header_of_a_very_long_command_line_is_not_output(home_cli: HomeCli) -> None:
    words = [f"{n:06d}" * 20 for n in range(3000)]
    done = home_cli.finish("true", *words)
    assert home_cli.log(str(done["task_id"])) == b""
