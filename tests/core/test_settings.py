"""Settings: which layer wins, where a value came from, and the errors for invalid values."""

import pytest

from backburner.core.errors import ConfigError
from backburner.core.settings import SETTINGS, Config, resolve

PATH = "/home/me/.backburner/config.toml"


def error_message(text: str | None = None, environ: dict[str, str] | None = None, flags: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve(text, PATH, environ, flags)
    return str(caught.value)


def test_without_configuration_every_setting_has_its_default() -> None:
    config = resolve()
    assert config.values == {name: setting.default for name, setting in SETTINGS.items()}
    assert set(config.origins.values()) == {"default"}


def test_the_defaults_are_the_specified_ones() -> None:
    config = resolve()
    assert config.whole("commands.max_concurrent") == 5
    assert config.number("commands.retention_days") == 7
    assert config.flag("commands.auto_cleanup") is True
    assert config.whole("commands.output_cap_mb") == 64
    assert config.number("commands.cancel_grace_seconds") == 5
    assert config.flag("approval.yes_without_terminal") is False


def test_each_layer_overrides_the_previous_one_and_is_recorded_as_origin() -> None:
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
def test_an_invalid_value_is_reported_with_its_line_in_every_notation(text: str, line: int) -> None:
    message = error_message(text)
    assert message.startswith(f"{PATH}, line {line}: 'commands.max_concurrent' must be ") and message.endswith("not 0")


def test_an_unknown_key_is_reported_with_its_line_and_a_suggestion() -> None:
    message = error_message("[commands]\nauto_cleanup = true\nmax_concurent = 3\n")
    assert message == f"{PATH}, line 3: unknown setting 'commands.max_concurent'; did you mean 'commands.max_concurrent'?"


def test_an_unknown_key_without_a_similar_one_lists_all_settings() -> None:
    message = error_message("[engine]\nwholly_unlike_anything_there_is = 3\n")
    assert "did you mean" not in message
    assert all(name in message for name in SETTINGS)


@pytest.mark.parametrize("text", ["[commands]\n[comands]\nx = 1\n", "\ncomands = 3\n", "\n[comands.deeper]\nx = 1\n"])
def test_an_unknown_section_is_reported_with_its_line_and_the_valid_ones(text: str) -> None:
    assert (
        error_message(text)
        == f"{PATH}, line 2: unknown section 'comands'; valid sections: agents, approval, channels, commands, engine, integrations, lanes, mcp, models, "
        "notify, sandbox, store, tasks, telemetry, web, webhooks, worker"
    )


def test_a_value_in_place_of_a_section_is_rejected() -> None:
    assert error_message("commands = 3\n").startswith(f"{PATH}, line 1: unknown section 'commands'")


def test_invalid_toml_is_reported_with_its_line() -> None:
    message = error_message("[commands]\nmax_concurrent = \n")
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
def test_a_value_of_the_wrong_type_is_rejected_with_the_expected_type(name: str, value: str, wanted: str) -> None:
    variable = "BACKBURNER_" + name.replace(".", "_").upper()
    assert error_message(environ={variable: value}) == f"{variable}: '{name}' {wanted}"
    assert error_message(flags={name: value}) == f"--set {name}: '{name}' {wanted}"


@pytest.mark.parametrize("value", ["true", "[1]", "2.5", "1979-05-27", "{ a = 1 }"])
def test_an_integer_setting_in_the_file_must_be_an_integer(value: str) -> None:
    assert "'commands.max_concurrent' must be a whole number" in error_message(f"[commands]\nmax_concurrent = {value}\n")


@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "1" + "0" * 400, "1" + "0" * 5000])
@pytest.mark.parametrize("name", ["max_concurrent", "retention_days"])
def test_infinite_and_huge_numbers_are_rejected(name: str, value: str) -> None:
    assert error_message(f"[commands]\n{name} = {value}\n").startswith(PATH)
    variable = f"BACKBURNER_COMMANDS_{name.upper()}"
    assert error_message(environ={variable: value}).startswith(f"{variable}: 'commands.{name}' must be ")


@pytest.mark.parametrize(
    ("name", "value"), [("max_concurrent", -1), ("max_concurrent", 0), ("retention_days", -0.5), ("max_concurrent", 2 * 10**9)]
)
def test_a_number_out_of_range_is_rejected_with_the_range(name: str, value: float) -> None:
    least = 1 if name == "max_concurrent" else 0
    message = error_message(f"[commands]\n{name} = {value}\n")
    assert f"'commands.{name}' must be between {least} and " in message and message.endswith(f"not {value!r}")


@pytest.mark.parametrize(("text", "flag"), [("yes", True), ("ON", True), ("1", True), ("no", False), ("Off", False), ("0", False)])
def test_a_boolean_setting_accepts_the_usual_words(text: str, flag: bool) -> None:
    assert resolve(environ={"BACKBURNER_COMMANDS_AUTO_CLEANUP": text}).flag("commands.auto_cleanup") is flag


def test_a_float_setting_accepts_an_integer() -> None:
    assert resolve("[commands]\nretention_days = 3\n").values["commands.retention_days"] == 3.0


def test_approval_settings_are_read_from_the_file() -> None:
    config = resolve("[approval]\nyes_without_terminal = true\n", PATH)
    assert where(config, "approval.yes_without_terminal") == (True, f"{PATH}, line 2")


def test_approval_settings_are_rejected_from_environment_and_flags() -> None:
    message = f"'approval.yes_without_terminal' can only be set in {PATH}"
    assert (
        error_message(environ={"BACKBURNER_APPROVAL_YES_WITHOUT_TERMINAL": "1"}) == f"BACKBURNER_APPROVAL_YES_WITHOUT_TERMINAL: {message}"
    )
    assert error_message(flags={"approval.yes_without_terminal": "1"}) == f"--set approval.yes_without_terminal: {message}"


def test_an_unknown_key_in_the_environment_is_rejected() -> None:
    message = error_message(environ={"BACKBURNER_COMMANDS_MAX_CONCURENT": "3"})
    assert message.startswith("BACKBURNER_COMMANDS_MAX_CONCURENT: unknown setting 'commands.max_concurent'")


def test_other_variables_with_the_same_prefix_are_ignored() -> None:
    config = resolve(environ={"BACKBURNER_HOME": "/x", "BACKBURNER_TASK_ID": "t", "BACKBURNERX_COMMANDS_A": "1", "COMMANDS_A": "1"})
    assert set(config.origins.values()) == {"default"}


def test_an_unknown_setting_in_a_flag_is_rejected() -> None:
    assert error_message(flags={"commands.nothing": "3"}).startswith("--set commands.nothing: unknown setting 'commands.nothing'")


def test_lanes_projects_and_the_environment_of_a_worker_are_tables() -> None:
    config = resolve(
        '[lanes.gpu]\nmax_concurrent = 2\n[worker]\nlanes = ["gpu"]\n[worker.env]\nA = "b"\n[worker.projects]\nweb = "/srv/web"\n'
    )
    assert (config.lanes, config.labels, config.worker_env) == ({"gpu": 2}, ("gpu", "repo:web"), {"A": "b"})
    assert resolve(flags={"worker.lanes": "gpu, cpu"}).labels == ("gpu", "cpu")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[lanes."a b"]\n', "'lanes.a b' is not a valid lane"),
        ("[lanes.x]\nsize = 1\n", "unknown key 'size' for a lane"),
        ("[lanes.x]\nmax_concurrent = 0\n", "must be a whole number above 0"),
        ('[worker]\nlanes = ["a b"]\n', "contains 'a b', which is not a label"),
        ('[worker.projects]\nweb = "srv"\n', "must be a plain name with an absolute path"),
        ("[worker.env]\nA = 1\n", "must be a table of strings"),
    ],
)
def test_invalid_lanes_and_tables_of_a_worker_are_reported(text: str, problem: str) -> None:
    assert problem in error_message(text)
