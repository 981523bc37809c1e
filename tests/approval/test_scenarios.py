"""Runs the scenarios of `scenario_table.py`: each one is set up with real files and checked, and run by the engine if it is allowed.

Everything goes through the command line, which `backburner` below calls inside this process. The directory of the session is the current
directory of the call; the directory given by the caller is `--cwd`.
"""

import contextlib
import itertools
import json
import os
import shutil
import signal
import stat
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, NamedTuple
from unittest import mock

import pytest
from conftest import NO_TERMINAL, HomeCli, wait_until

from approval.scenario_table import SCENARIOS, SECRET, Sandbox, Scenario, Step, make_template
from backburner.interfaces.cli.main import main
from backburner.system.home import RESERVED_NAMES

_CALL_TIMEOUT = 30  # seconds for one call of the command line
_LONG_COMMAND = ("sleep", "611")  # keeps the engine of the shared home running


_sandbox_numbers = itertools.count()


class CallResult(NamedTuple):
    code: int
    out: str
    err: str


class CallTimedOut(BaseException):
    """A call of the command line did not end in time."""


class SharedSetup(NamedTuple):
    """What all scenarios share: the sandbox to copy, a home of Backburner with an engine, and sandboxes that are used several times."""

    template: Path
    home_cli: HomeCli
    scratch: Path
    reusable: dict[tuple[Step, ...], Sandbox]


def backburner(session: Path, environ: dict[str, str], *words: str) -> CallResult:
    """Call the command line inside this process, because there are a thousand calls. Its output is captured at the file descriptors."""

    def raise_timeout(*_: object) -> None:
        raise CallTimedOut(f"no result within {_CALL_TIMEOUT} seconds: {words}")

    streams = sys.stdin, sys.stdout, sys.stderr
    saved_descriptors = [os.dup(number) for number in range(3)]
    before = signal.signal(signal.SIGALRM, raise_timeout)
    with TemporaryFile() as out, TemporaryFile() as err, open(os.devnull, "rb") as nothing:
        for number, stream in enumerate((nothing, out, err)):
            os.dup2(stream.fileno(), number)
        signal.alarm(_CALL_TIMEOUT)
        try:
            with (
                open(0, closefd=False) as sys.stdin,
                open(1, "w", closefd=False) as sys.stdout,
                open(2, "w", closefd=False) as sys.stderr,
                chdir(session),
                mock.patch.dict(os.environ, environ, clear=True),
            ):
                code = main(list(words))
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
            sys.stdin, sys.stdout, sys.stderr = streams
            for number, descriptor in enumerate(saved_descriptors):
                os.dup2(descriptor, number)
                os.close(descriptor)
        return CallResult(code, _text(out), _text(err))


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "surrogateescape")


def call(sandbox: Sandbox, scenario: Scenario, *verb: str) -> CallResult:
    """Call a subcommand that takes a command, with the directory, variables and command of the scenario."""
    changed = {name: None if value is None else sandbox.expand(value) for name, value in scenario.environ.items()}
    environ = {name: value for name, value in {**sandbox.environ, **changed}.items() if value is not None}
    options = ["--cwd", sandbox.expand(scenario.cwd)] if scenario.cwd is not None else []
    options += [word for name, value in scenario.env.items() for word in ("--env", f"{name}={sandbox.expand(value)}")]
    command = (
        ["--shell", "--", sandbox.expand(scenario.line)] if isinstance(scenario.line, str) else ["--", *map(sandbox.expand, scenario.line)]
    )
    return backburner(sandbox.path(scenario.session), environ, *verb, *options, *command)


def decide(sandbox: Sandbox, scenario: Scenario) -> str:
    """Return the decision about a scenario: allow, ask, deny, or `refused` if the call itself is an error."""
    result = call(sandbox, scenario, "check", "--json")
    assert "Internal error" not in result.err, result.err
    return str(json.loads(result.out)["verdict"]) if result.code in (0, 3) else "refused"


def execute(sandbox: Sandbox, scenario: Scenario) -> str:
    """Run an allowed scenario until it ends, and return its output."""
    result = call(sandbox, scenario, "run", f"--wait={_CALL_TIMEOUT - 5}", "--timeout", "20s")
    return result.out + result.err


def trust(sandbox: Sandbox, scenario: Scenario, folder: str) -> None:
    result = backburner(sandbox.path(scenario.session), sandbox.environ, "trust", sandbox.expand(folder))
    assert result.code == 0 or scenario.expected != "allow", result.err


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedSetup]:
    """The sandbox that all scenarios copy, and one home whose engine runs until the last scenario."""
    root = tmp_path_factory.mktemp("base")
    make_template(root / "template")
    home_cli = HomeCli(root / "bbhome", root)
    home_cli.configure(NO_TERMINAL)
    shared_setup = SharedSetup(root / "template", home_cli, root, {})
    environ = {**Sandbox(root, home_cli.root).environ, "HOME": str(root)}
    assert backburner(root, environ, "run", "--yes", "--", *_LONG_COMMAND).code == 0
    yield shared_setup
    for process in home_cli.processes():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            if _LONG_COMMAND[1].encode() in Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0"):
                os.kill(process.pid, signal.SIGKILL)
    home_cli.stop_engine()


@pytest.fixture
def sandbox_root(shared: SharedSetup) -> Iterator[Path]:
    """A path for one sandbox, which does not exist yet and is removed afterwards."""
    root = shared.scratch / f"w{next(_sandbox_numbers)}"  # never the same path twice, because trust is permanent
    yield root
    shutil.rmtree(root, ignore_errors=True)


def make_sandbox(shared: SharedSetup, root: Path, scenario: Scenario) -> Sandbox:
    if (known := shared.reusable.get(scenario.steps)) is not None and _changes_nothing(scenario):
        return known
    if _changes_nothing(scenario) and _USES_BY_STEPS[scenario.steps] > 1:
        root = shared.scratch / f"shared{len(shared.reusable)}"
    shutil.copytree(shared.template, root, symlinks=True)
    sandbox = Sandbox(root, shared.home_cli.root)
    if scenario.bbhome is not None:
        os.makedirs(os.path.join(sandbox.expand(scenario.bbhome), "tasks"), exist_ok=True)
        sandbox = Sandbox(root, Path(sandbox.expand(scenario.bbhome)))
        if scenario.trusted:
            (sandbox.bbhome / "config.toml").write_text(NO_TERMINAL)
    for step in scenario.steps:
        step(sandbox)
    for folder in scenario.trusted:
        trust(sandbox, scenario, folder)
    for step in scenario.after_trust:
        step(sandbox)
    (root / "canary").unlink(missing_ok=True)
    if _changes_nothing(scenario) and _USES_BY_STEPS[scenario.steps] > 1:
        shared.reusable[scenario.steps] = sandbox
    return sandbox


def _changes_nothing(scenario: Scenario) -> bool:
    """Whether a scenario does not change its sandbox, so that others with the same setup can use it as well."""
    return scenario.expected in ("ask", "allow") and not scenario.trusted and scenario.bbhome is None


_USES_BY_STEPS = Counter(scenario.steps for group in SCENARIOS.values() for scenario in group if _changes_nothing(scenario))


def file_contents(root: Path) -> dict[str, bytes | str | None]:
    """Return every file and link below a directory with its content, except the index of git, which git may update."""
    found: dict[str, bytes | str | None] = {}
    for folder, _, names in os.walk(root):
        for name in names:
            path = os.path.join(folder, name)
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                found[path] = os.readlink(path)
            elif name != "index":
                found[path] = Path(path).read_bytes() if stat.S_ISREG(mode) else None
    return found


PARAMETERS = [pytest.param(scenario, id=f"{group}: {scenario.name}") for group, scenarios in SCENARIOS.items() for scenario in scenarios]


@pytest.mark.parametrize("scenario", PARAMETERS)
def test_a_command_in_a_scenario_gets_the_expected_decision(shared: SharedSetup, sandbox_root: Path, scenario: Scenario) -> None:
    sandbox = make_sandbox(shared, sandbox_root, scenario)
    decision = decide(sandbox, scenario)
    match scenario.expected:
        case "allow":
            assert decision == "sandbox"
        case "ask" | "harmless" if decision == "sandbox":
            check_effects(sandbox, scenario)
        case _:
            assert decision in ("ask", "deny", "refused", *(["sandbox"] if scenario.expected == "answers" else []))


def check_effects(sandbox: Sandbox, scenario: Scenario) -> None:
    """Run a command in the sandbox of the engine. In a trusted project it may change files, but not those of git."""
    before = file_contents(sandbox.root)
    printed = execute(sandbox, scenario)
    after = file_contents(sandbox.root)
    assert not [path for path in after if path.startswith(sandbox.expand("{canary}"))], f"a planted program ran: {printed}"
    assert not [text for text in (SECRET, *scenario.forbidden_output) if text in printed], printed
    project = sandbox.expand("{project}/")
    changed = [path for path in before.keys() | after.keys() if before.get(path) != after.get(path)]
    own = str(sandbox.bbhome) + "/"
    changed = [
        path for path in changed if not path.startswith(own) or path.removeprefix(own).split("/")[0] not in RESERVED_NAMES - {"config.toml"}
    ]
    if scenario.trusted:
        changed = [path for path in changed if not path.startswith(project) or "/.git/" in path]
    assert not changed, f"it changed files: {printed}"


def test_the_checks_of_harmless_scenarios_detect_harmful_effects(shared: SharedSetup, sandbox_root: Path) -> None:
    scenario = Scenario(
        "ask", "a planted program that a person approved", "{tool}; cat {outside}/data.txt; echo x >> README.md; touch ../new"
    )
    sandbox = make_sandbox(shared, sandbox_root, scenario)
    before = file_contents(sandbox.root)
    result = call(sandbox, scenario, "run", "--wait", "--yes")
    after = file_contents(sandbox.root)
    assert SECRET in result.out
    assert {sandbox.expand("{canary}"), sandbox.expand("{home}/code/new")} == after.keys() - before.keys()
    assert before[sandbox.expand("{project}/README.md")] != after[sandbox.expand("{project}/README.md")]


def test_a_command_without_approval_has_a_file_size_limit(shared: SharedSetup, sandbox_root: Path) -> None:
    scenario = Scenario("allow", "a file that grows", "sleep 613 > quiet.log")
    sandbox = make_sandbox(shared, sandbox_root, scenario)
    result = call(sandbox, scenario, "run")
    assert result.code == 0, result.err

    def sleepers() -> list[int]:
        processes = shared.home_cli.processes()
        return [process.pid for process in processes if b"613" in Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")]

    wait_until(sleepers, "the command to run")
    try:
        limits = Path(f"/proc/{sleepers()[0]}/limits").read_text()
    finally:
        for pid in sleepers():
            os.kill(pid, signal.SIGKILL)
    size = next(line for line in limits.splitlines() if line.startswith("Max file size"))
    assert "unlimited" not in size.split()[3:4], size
