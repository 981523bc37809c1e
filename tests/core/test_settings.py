"""Settings: which layer wins, where a value came from, and what a wrong one is told."""

import pytest

from backburner.core.errors import ConfigError
from backburner.core.settings import SETTINGS, Config, resolve

PATH = "/home/me/.backburner/config.toml"


def refused(text: str | None = None, environ: dict[str, str] | None = None, flags: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve(text, PATH, environ, flags)
    return str(caught.value)


def test_without_layers_every_setting_is_its_default() -> None:
    config = resolve()
    assert config.values == {name: setting.default for name, setting in SETTINGS.items()}
    assert set(config.origins.values()) == {"default"}


def test_the_defaults_are_those_that_were_specified() -> None:
    config = resolve()
    assert config.whole("commands.max_concurrent") == 5
    assert config.number("commands.retention_days") == 7
    assert config.flag("commands.auto_cleanup") is True
    assert config.whole("commands.output_cap_mb") == 64
    assert config.number("commands.cancel_grace_seconds") == 5
    assert config.flag("approval.yes_without_terminal") is False


def test_each_layer_lies_over_the_one_before_and_says_so() -> None:
    text = "[commands]\nmax_concurrent = 2\nretention_days = 3\noutput_cap_mb = 4\n"
    environ = {"BACKBURNER_COMMANDS_RETENTION_DAYS": "30", "BACKBURNER_COMMANDS_OUTPUT_CAP_MB": "40"}
    config = resolve(text, PATH, environ, {"commands.output_cap_mb": "400"})
    assert where(config, "commands.cancel_grace_seconds") == (5, "default")
    assert where(config, "commands.max_concurrent") == (2, f"{PATH}, line 2")
    assert where(config, "commands.retention_days") == (30, "BACKBURNER_COMMANDS_RETENTION_DAYS")
    assert where(config, "commands.output_cap_mb") == (400, "--set commands.output_cap_mb")


def where(config: Config, name: str) -> tuple[object, str]:
    return config.values[name], config.origins[name]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[commands]\n\nmax_concurrent = 0\n", 3),
        ("# settings\n[engine]\nidle_exit_seconds = 1\n[commands]\nmax_concurrent = 0\n", 5),
        ("commands.max_concurrent = 0\n", 1),
        ("# one line\ncommands = { max_concurrent = 0 }\n", 2),
        ("[ commands ]\n'max_concurrent' = 0\n", 2),
        ('["commands"]\n"max_concurrent"=0\n', 2),
    ],
)
def test_a_wrong_value_is_named_with_its_line_however_it_is_written(text: str, line: int) -> None:
    message = refused(text)
    assert message.startswith(f"{PATH}, line {line}: 'commands.max_concurrent' must be ") and message.endswith("not 0")


def test_a_wrong_key_is_named_with_its_line_and_what_was_meant() -> None:
    message = refused("[commands]\nauto_cleanup = true\nmax_concurent = 3\n")
    assert message == f"{PATH}, line 3: unknown setting 'commands.max_concurent'; did you mean 'commands.max_concurrent'?"


def test_a_key_like_no_other_lists_them_all() -> None:
    message = refused("[engine]\nwholly_unlike_anything_there_is = 3\n")
    assert "did you mean" not in message
    assert all(name in message for name in SETTINGS)


@pytest.mark.parametrize("text", ["[commands]\n[comands]\nx = 1\n", "\ncomands = 3\n", "\n[comands.deeper]\nx = 1\n"])
def test_a_wrong_section_is_named_with_its_line_and_those_there_are(text: str) -> None:
    assert (
        refused(text)
        == f"{PATH}, line 2: unknown section 'comands'; valid sections: agents, approval, channels, commands, engine, integrations, mcp, models, "
        "notify, tasks, telemetry, webhooks"
    )


def test_a_section_that_is_a_value_is_refused() -> None:
    assert refused("commands = 3\n").startswith(f"{PATH}, line 1: unknown section 'commands'")


def test_what_is_not_toml_is_told_with_its_line() -> None:
    message = refused("[commands]\nmax_concurrent = \n")
    assert message.startswith(f"{PATH}, line 2: not valid TOML: ")


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("commands.max_concurrent", "many", "must be a whole number, not 'many'"),
        ("commands.max_concurrent", "2.5", "must be a whole number, not '2.5'"),
        ("commands.max_concurrent", "", "must be a whole number, not ''"),
        ("commands.retention_days", "nan", "must be a number, not 'nan'"),
        ("commands.auto_cleanup", "maybe", "must be true or false, not 'maybe'"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_with_the_kind_that_is_wanted(name: str, value: str, wanted: str) -> None:
    variable = "BACKBURNER_" + name.replace(".", "_").upper()
    assert refused(environ={variable: value}) == f"{variable}: '{name}' {wanted}"
    assert refused(flags={name: value}) == f"--set {name}: '{name}' {wanted}"


@pytest.mark.parametrize("value", ["true", "[1]", "2.5", "1979-05-27", "{ a = 1 }"])
def test_a_whole_number_in_the_file_must_be_one(value: str) -> None:
    assert "'commands.max_concurrent' must be a whole number" in refused(f"[commands]\nmax_concurrent = {value}\n")


@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "1" + "0" * 400, "1" + "0" * 5000])
@pytest.mark.parametrize("name", ["max_concurrent", "retention_days"])
def test_a_number_beyond_all_measure_is_refused_like_any_other(name: str, value: str) -> None:
    assert refused(f"[commands]\n{name} = {value}\n").startswith(PATH)
    variable = f"BACKBURNER_COMMANDS_{name.upper()}"
    assert refused(environ={variable: value}).startswith(f"{variable}: 'commands.{name}' must be ")


@pytest.mark.parametrize(
    ("name", "value"), [("max_concurrent", -1), ("max_concurrent", 0), ("retention_days", -0.5), ("max_concurrent", 2 * 10**9)]
)
def test_a_number_outside_its_bounds_is_told_with_them(name: str, value: float) -> None:
    least = 1 if name == "max_concurrent" else 0
    message = refused(f"[commands]\n{name} = {value}\n")
    assert f"'commands.{name}' must be between {least} and " in message and message.endswith(f"not {value!r}")


@pytest.mark.parametrize(("text", "flag"), [("yes", True), ("ON", True), ("1", True), ("no", False), ("Off", False), ("0", False)])
def test_a_switch_takes_the_usual_words(text: str, flag: bool) -> None:
    assert resolve(environ={"BACKBURNER_COMMANDS_AUTO_CLEANUP": text}).flag("commands.auto_cleanup") is flag


def test_a_whole_number_will_do_where_a_number_is_wanted() -> None:
    assert resolve("[commands]\nretention_days = 3\n").values["commands.retention_days"] == 3.0


def test_approval_is_read_from_the_file() -> None:
    config = resolve("[approval]\nyes_without_terminal = true\n", PATH)
    assert where(config, "approval.yes_without_terminal") == (True, f"{PATH}, line 2")


def test_approval_is_refused_from_the_environment_and_from_flags() -> None:
    told = f"'approval.yes_without_terminal' can only be set in {PATH}"
    assert refused(environ={"BACKBURNER_APPROVAL_YES_WITHOUT_TERMINAL": "1"}) == f"BACKBURNER_APPROVAL_YES_WITHOUT_TERMINAL: {told}"
    assert refused(flags={"approval.yes_without_terminal": "1"}) == f"--set approval.yes_without_terminal: {told}"


def test_an_unknown_key_of_a_known_section_in_the_environment_is_an_error() -> None:
    message = refused(environ={"BACKBURNER_COMMANDS_MAX_CONCURENT": "3"})
    assert message.startswith("BACKBURNER_COMMANDS_MAX_CONCURENT: unknown setting 'commands.max_concurent'")


def test_other_variables_that_merely_start_alike_are_left_alone() -> None:
    config = resolve(environ={"BACKBURNER_HOME": "/x", "BACKBURNER_TASK_ID": "t", "BACKBURNERX_COMMANDS_A": "1", "COMMANDS_A": "1"})
    assert set(config.origins.values()) == {"default"}


def test_an_unknown_setting_in_a_flag_is_an_error() -> None:
    assert refused(flags={"commands.nothing": "3"}).startswith("--set commands.nothing: unknown setting 'commands.nothing'")
