"""What the first gate lets through, and why it asks about the rest."""

import pytest

from backburner.approval.policy import HARMLESS, Decision, judge
from backburner.models import Submission


def verdict(
    *command: str, executable: str | None = "/usr/bin/x", shell: bool = False, env: dict[str, str] | None = None
) -> tuple[str, str]:
    decision, reasons = judge(Submission(command, "/tmp", {}, shell=shell, env=env or {}), executable)
    return str(decision), "; ".join(reasons)


@pytest.mark.parametrize("name", sorted(HARMLESS))
def test_a_harmless_command_of_the_system_is_allowed(name: str) -> None:
    assert verdict(name, executable=f"/usr/bin/{name}") == ("allow", f"'{name}' is on the list of harmless commands")


@pytest.mark.parametrize(
    "name", ["rm", "python", "sh", "bash", "env", "sudo", "xargs", "find", "git", "make", "curl", "kill", "ECHO", "echo "]
)
def test_a_command_that_is_not_on_the_list_asks(name: str) -> None:
    assert verdict(name) == ("ask", f"'{name}' is not on the list of harmless commands")


@pytest.mark.parametrize("name", ["./echo", "/bin/echo", "../bin/ls", "bin/true", "echo/"])
def test_a_program_named_by_a_path_asks(name: str) -> None:
    assert verdict(name) == ("ask", "it names its program by a path")


def test_a_shell_line_asks_however_harmless_it_looks() -> None:
    assert verdict("echo hello", shell=True) == ("ask", "it is a shell line")
    assert verdict("echo", shell=True) == ("ask", "it is a shell line")


@pytest.mark.parametrize("executable", ["/tmp/echo", "/home/me/bin/echo", "/usr/bin/../../tmp/echo", "/usr/bin/deeper/echo"])
def test_a_program_that_only_borrows_a_harmless_name_asks(executable: str) -> None:
    assert verdict("echo", executable=executable) == ("ask", f"'echo' would run {executable}, which is not the system's own")


def test_a_harmless_command_that_is_not_installed_needs_no_yes_to_fail() -> None:
    assert verdict("echo", executable=None)[0] == "allow"


@pytest.mark.parametrize("name", ["LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "DYLD_INSERT_LIBRARIES", "PATH"])
def test_a_variable_that_changes_what_runs_asks(name: str) -> None:
    assert verdict("echo", env={name: "x"}) == ("ask", f"it changes {name}")


def test_other_variables_do_not_ask() -> None:
    assert verdict("echo", env={"LANG": "C", "MY_PATH": "x"})[0] == "allow"


def test_every_reason_is_given() -> None:
    assert verdict("rm", env={"PATH": "x", "LD_PRELOAD": "y"}) == (
        "ask",
        "'rm' is not on the list of harmless commands; it changes LD_PRELOAD, PATH",
    )


@pytest.mark.parametrize("words", [("-s", "2001-01-01"), ("--set=2001-01-01",), ("-us", "2001-01-01"), ("010100002001",)])
def test_a_date_that_would_set_the_clock_asks(words: tuple[str, ...]) -> None:
    assert verdict("date", *words)[0] == "ask"


@pytest.mark.parametrize("words", [(), ("+%s",), ("-u",), ("-u", "+%F %T")])
def test_a_date_that_only_tells_the_time_is_allowed(words: tuple[str, ...]) -> None:
    assert verdict("date", *words)[0] == "allow"


def test_this_gate_never_denies() -> None:
    assert {verdict(name)[0] for name in ("rm", "echo", "./x")} <= {Decision.ALLOW, Decision.ASK}
