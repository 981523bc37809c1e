"""Readable ids that are safe as folder names, and masked values of secret variables."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backburner.core.ids import base_id, generate_task_id, masked, run_id, short_id, slug, stem


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("nightly", "nightly"),
        ("two words", "two-words"),
        ("../../etc/passwd", "etc-passwd"),
        ("line\none\r\n\0", "line-one"),
        ("..", "task"),
        ("", "task"),
        ("\n", "task"),
        ("-rf", "rf"),
        (".hidden", "hidden"),
        ("naïve", "na-ve"),
        ("日本語", "task"),
        ("$(reboot)`x`;*", "reboot-x"),
    ],
)
def test_a_name_becomes_a_safe_part_of_an_id(text: str, wanted: str) -> None:
    assert slug(text) == wanted


@given(st.text())
def test_no_name_can_escape_its_folder_or_contain_a_newline(text: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}", slug(text))


@pytest.mark.parametrize(
    ("command", "shell", "wanted"),
    [
        (["pytest", "-q"], False, "pytest"),
        (["/usr/bin/python3.11", "x.py"], False, "python3"),
        (["./build.sh"], False, "build"),
        (["tools/"], False, "tools"),
        (["make all && make test"], True, "make"),
        (["  cd x; ls"], True, "cd"),
        (["   "], True, "task"),
        ([], False, "task"),
    ],
)
def test_a_task_id_contains_the_name_of_the_program(command: list[str], shell: bool, wanted: str) -> None:
    assert stem(command, shell) == wanted


def test_a_task_id_contains_the_time_in_seconds_and_the_name() -> None:
    assert re.fullmatch(r"task_\d{8}_\d{6}_pytest", base_id("pytest"))
    assert base_id("x", 0.0) == base_id("x", 0.9) != base_id("x", 1.0)


def test_ids_generated_in_the_same_second_are_unique() -> None:
    made = [generate_task_id(["pytest"]) for _ in range(500)]
    assert len(set(made)) == 500
    assert all(re.fullmatch(r"task_\d{8}_\d{6}_pytest(_\d+)?", one) for one in made)


def test_a_command_named_like_a_numbered_id_gets_a_unique_id() -> None:
    made = [generate_task_id([name]) for name in ("twin", "twin", "twin_2", "twin_2", "twin")]
    assert len(set(made)) == len(made)


def test_a_short_id_has_no_date() -> None:
    assert short_id("task_20260209_143022_make_2") == "143022_make_2" and short_id("task_x") == "task_x"


def test_the_first_run_has_the_task_id_and_later_runs_are_numbered() -> None:
    assert [run_id("task_x", n) for n in (1, 2, 10)] == ["task_x", "task_x.2", "task_x.10"]


@pytest.mark.parametrize(
    "name",
    [
        "API_KEY",
        "OPENAI_APIKEY",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_ACCESS_KEY_ID",
        "GITHUB_TOKEN",
        "token",
        "DB_PASSWORD",
        "MYSQL_PWD",
        "PGPASSWD",
        "SSH_PRIVATE_FILE",
        "HTTP_AUTHORIZATION",
        "SESSION_ID",
        "COOKIE",
        "GOOGLE_CREDENTIALS",
    ],
)
def test_the_value_of_a_secret_looking_variable_is_masked(name: str) -> None:
    assert masked({name: "hunter2"}) == {name: "***"}


@pytest.mark.parametrize("name", ["PATH", "PWD_OLD", "HOME", "KEYBOARD", "MODE"])
def test_values_of_other_variables_are_shown(name: str) -> None:
    assert masked({name: "plain"}) == {name: "plain"}
