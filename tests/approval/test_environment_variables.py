"""Variables: setting them can change what runs, and printing them can show secrets."""

from pathlib import Path

import pytest

from approval.command_world import make_project_with_traps, verdict

LINES = [
    ('export "PATH=./bin"; ls', "a quoted assignment"),
    ("export 'PATH=./bin' && ls", "a quoted assignment"),
    ("command export PATH=./bin; ls", "inside a wrapper"),
    ("\\export PATH=./bin; ls", "escaped"),
    ('"export" PATH=./bin; ls', "quoted"),
    ("readonly PATH=./bin; ls", ""),
    ("read PATH < README.md; ls", "read sets variables"),
    ("for PATH in ./bin; do ls; done", "a loop sets its variable"),
    ('unset PATH; : "${PATH:=./bin}"; ls', "an expansion assigns"),
    (": $((PATH=5)); ls", "arithmetic can assign: PATH becomes a directory named 5"),
    ("PATH=./bin ls", ""),
    ("env PATH=./bin ls", ""),
    ("LD_PRELOAD=./x.so ls", ""),
    ("GREP=./bin/ls zgrep x README.md", "zgrep runs the program in GREP"),
    ("OPENSSL_CONF=./x curl https://docs.example.org/", "loads libraries"),
    ("SSLKEYLOGFILE=README.md curl https://docs.example.org/", "writes a file"),
    ("HOSTALIASES=./x curl http://docs.example.org/", "connects to another host"),
    ("CURL_CA_BUNDLE=./x curl https://docs.example.org/", "trusts another host"),
    ("GCONV_PATH=. ls", "loads libraries"),
    ("LOCPATH=. ls", "loads files"),
    ("MAGIC=./x file README.md", "loads files"),
    ("ACKRC=./x ack x", "reads options from a file"),
    ("ls; export -p", "prints the environment"),
    ("ls; declare -p", "prints the environment"),
    ("set", "prints the environment"),
    ("env", "prints the environment"),
    ("env -u X", "prints the environment"),
    ("env -C .", "prints the environment"),
    ("printenv", "prints the environment"),
    ("jq -n env", "prints the environment"),
    ("jq -n '$ENV'", "prints the environment"),
    ("ps e", "prints the environment of processes"),
    ("ps auxe", "prints the environment of processes"),
    ("ps eww", "prints the environment of processes"),
    ("cat /proc/self/environ", "prints the environment"),
    ("echo $AWS_SECRET_ACCESS_KEY", "prints a secret"),
    ("echo ${GITHUB_TOKEN}", "prints a secret"),
    ("x=$GITHUB_TOKEN; echo $x", "prints a variable that may be a secret"),
    ("x=$GITHUB_TOKEN && printf %s $x", "prints a variable that may be a secret"),
    ("echo $DATABASE_URL", "prints a variable that may be a secret"),
    ("TZ=$GITHUB_TOKEN date +%Z", "prints a variable that may be a secret"),
    ("LANGUAGE=../../src ls", "reads a file outside the project"),
]

INHERITED = [
    ({"GIT_EXTERNAL_DIFF": "./x"}, "git diff"),
    ({"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.fsmonitor", "GIT_CONFIG_VALUE_0": "./x"}, "git status"),
    ({"GIT_DIR": "/elsewhere"}, "git status"),
    ({"BASH_ENV": "./x"}, "bash -c ls"),
    ({"CDPATH": "/etc"}, "cd src && ls"),
    ({"LD_PRELOAD": "./x.so"}, "ls"),
    ({"RIPGREP_CONFIG_PATH": "./x"}, "rg a"),
    ({"https_proxy": "http://proxy.example"}, "https_proxy=http://evil.example; curl https://docs.example.org/"),
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project_with_traps(tmp_path)


@pytest.mark.parametrize(("line", "reason"), LINES, ids=[repr(line) for line, _ in LINES])
def test_setting_or_printing_a_risky_variable_requires_approval(project: Path, line: str, reason: str) -> None:
    assert verdict(project, line).decision == "ask", reason or "not harmless"


@pytest.mark.parametrize(("environ", "line"), INHERITED, ids=[" ".join(environ) for environ, _ in INHERITED])
def test_an_inherited_variable_that_changes_what_runs_requires_approval(project: Path, environ: dict[str, str], line: str) -> None:
    assert verdict(project, line, environ=environ, ours=False).decision == "ask"
    assert verdict(project, f"{line}; make", environ=environ, trusted=True).decision == "ask"


@pytest.mark.parametrize("name", ["PATH", "LD_PRELOAD", "GIT_DIR", "GREP", "OPENSSL_CONF", "SSLKEYLOGFILE", "GCONV_PATH"])
def test_a_task_variable_that_changes_what_runs_requires_approval(project: Path, name: str) -> None:
    assert verdict(project, ("zgrep", "x", "README.md"), env={name: "./x"}).decision == "ask"


@pytest.mark.parametrize(
    ("name", "value", "decision"),
    [
        ("TZ", "Europe/Berlin", "allow"),
        ("LC_ALL", "C.UTF-8", "allow"),
        ("TZ", ":/etc/passwd", "ask"),
        ("LANGUAGE", "../../x", "ask"),
        ("LC_ALL", "/srv/x", "ask"),
        ("TERM", "./x", "ask"),
        ("LANGUAGE", "x/../../y", "ask"),
    ],
)
def test_a_harmless_variable_requires_approval_if_its_value_is_a_path(project: Path, name: str, value: str, decision: str) -> None:
    assert verdict(project, "ls", env={name: value}).decision == decision


@pytest.mark.parametrize(("line", "ours", "trusted"), [("echo $database_url", False, False), ("echo $database_url; make", True, True)])
def test_printing_an_inherited_lower_case_variable_requires_approval(project: Path, line: str, ours: bool, trusted: bool) -> None:
    environ = {"database_url": "postgres://u:p@h/d"}
    assert verdict(project, line, environ=environ, ours=ours, trusted=trusted).decision == "ask"
