"""`service` installs a systemd unit for the engine completely or not at all, replaces an engine that was started on demand, and
can be removed completely. A fake `systemctl` starts and stops the program of the unit like systemd does.
"""

import argparse
import configparser
import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import HomeCli, wait_until

from backburner.core.errors import BackburnerError
from backburner.core.models import ProcessId
from backburner.interfaces.cli import systemd
from backburner.interfaces.client_setup import wiring
from backburner.system import processes

# What the folder of the script holds is what it knows: whether the unit is enabled, its process, and which verbs are to fail.
SYSTEMCTL = r"""#!/bin/sh
here=${0%/*}
echo "$*" >>"$here/calls"
verb=$2
for name; do :; done
[ ! -e "$here/fail-$verb" ] || { echo "Some noise." >&2; cat "$here/fail-$verb" >&2; exit 1; }
lives() { grep -qs '^State:.[^ZX]' "/proc/$pid/status"; }
pid=$(cat "$here/pid" 2>/dev/null) && lives || pid=0
stop() {
    [ $pid = 0 ] || kill $pid
    while lives; do sleep 0.02; done
    pid=0
    rm -f "$here/pid"
}
case $verb in
    show)
        printf 'MainPID=%s\n' $pid
        [ $pid = 0 ] && echo ActiveState=inactive || echo ActiveState=active
        [ -e "$here/enabled" ] && echo UnitFileState=enabled || echo UnitFileState=
        ;;
    enable) touch "$here/enabled" ;;
    disable) rm -f "$here/enabled"; stop ;;
    restart)
        stop
        [ ! -e "$here/meanwhile" ] || sh "$here/meanwhile"
        [ ! -e "$here/stillborn" ] || exit 0
        command=$(sed -n 's/^ExecStart=//p' "${XDG_CONFIG_HOME:-$HOME/.config}/systemd/user/$name")
        setsid sh -c "exec $command" </dev/null >>"$here/journal" 2>&1 &
        echo $! >"$here/pid"
        ;;
esac
"""
DRIVER = """
import sys
from argparse import Namespace
from backburner.interfaces.cli.systemd import service
sys.exit(service(Namespace(what=sys.argv[1], yes=False, json=False, home=None), {}))
"""


class Machine:
    """A user directory whose default home is the home of the test, with a fake systemd."""

    def __init__(self, home_cli: HomeCli, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home_cli, self.monkeypatch = home_cli, monkeypatch
        self.person, self.systemd = Path(home_cli.environ["HOME"]), home_cli.root.parent / "systemd"
        self.person.mkdir()
        self.systemd.mkdir()
        (self.systemd / "systemctl").write_text(SYSTEMCTL)
        (self.systemd / "systemctl").chmod(0o755)
        (self.person / ".backburner").symlink_to(home_cli.root)
        self.unit = self.person / ".config" / "systemd" / "user" / "backburner.service"
        self.program = shlex.join(wiring.own_command({"PATH": os.environ["PATH"]}))
        for name in [name for name in os.environ if name.startswith("XDG_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("PATH", f"{self.systemd}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("HOME", str(self.person))
        monkeypatch.setenv("BACKBURNER_HOME", str(home_cli.root))

    def service(self, what: str, *, yes: bool = True, as_json: bool = False, home: str | None = None) -> int:
        return systemd.service(argparse.Namespace(what=what, yes=yes, json=as_json, home=home), {})

    def refused(self, what: str, *, yes: bool = True, home: str | None = None) -> tuple[int, str]:
        """Make a call that must fail without changing the unit; return its exit code and message."""
        before = self.state()
        with pytest.raises(BackburnerError) as raised:
            self.service(what, yes=yes, home=home)
        assert self.state() == before
        return raised.value.exit_code, str(raised.value)

    def state(self) -> tuple[bool, list[tuple[str, str]]]:
        files = [(str(path), path.read_text()) for path in sorted(self.person.rglob("*")) if path.is_file() and not path.is_symlink()]
        return (self.systemd / "enabled").exists(), files

    def make_fail(self, verb: str, message: str) -> None:
        (self.systemd / f"fail-{verb}").write_text(f"{message}\n")

    def calls(self) -> list[str]:
        """The systemctl calls that changed something since the previous call of this method."""
        calls = (self.systemd / "calls").read_text().splitlines()
        (self.systemd / "calls").write_text("")
        return [call.removeprefix("--user ") for call in calls if not call.startswith("--user show ")]

    @property
    def engine(self) -> ProcessId | None:
        """The engine of the home if the unit runs it, else None."""
        pid = self.systemd / "pid"
        return found if pid.exists() and (found := self.home_cli.engine) and found.pid == int(pid.read_text()) else None


@pytest.fixture
def machine(home_cli: HomeCli, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(home_cli, monkeypatch)


def start_command(home_cli: HomeCli) -> tuple[str, ProcessId, Path]:
    """Start a command that runs until a file exists and then exits with 7; return its task ID, its shell and the file."""
    go, shell = home_cli.cwd / "go", home_cli.cwd / "shell"
    task_id = home_cli.run("sh", "-c", f"echo $$ >{shell}.new; mv {shell}.new {shell}; until [ -e {go} ]; do sleep 0.05; done; exit 7")
    wait_until(shell.exists, "the command to start")
    found = processes.identify(int(shell.read_text()))
    assert found
    return task_id, found, go


def test_the_unit_starts_this_installation_for_this_home(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    assert machine.service("install") == 0
    assert machine.unit.read_text() == (
        "# Written by: backburner service install\n"
        "[Unit]\n"
        "Description=Backburner engine\n"
        "StartLimitIntervalSec=0\n"
        "\n"
        "[Service]\n"
        "Type=exec\n"
        f"ExecStart={machine.program} serve --home {machine.home_cli.root}\n"
        "Restart=on-failure\n"
        "RestartSec=5\n"
        "KillMode=process\n"
        "OOMPolicy=continue\n"
        "TasksMax=infinity\n"
        "\n"
        "[Install]\n"
        "WantedBy=default.target\n"
    )
    assert machine.calls() == ["daemon-reload", "enable backburner.service", "restart backburner.service"]
    assert machine.engine and list(machine.unit.parent.iterdir()) == [machine.unit]
    shown, (done, linger) = (lines := capsys.readouterr().out.splitlines())[:-2], lines[-2:]
    assert shown == [f"Write {machine.unit}:", *(f"  {line}" for line in machine.unit.read_text().splitlines())]
    assert done == f"{machine.unit} is installed: the engine of {machine.home_cli.root} is running and starts at each login."
    assert linger.endswith("loginctl enable-linger")


@pytest.mark.parametrize(
    ("home", "words"),
    [
        ("/srv/plain-home_1.0", "/srv/plain-home_1.0"),
        ("/srv/ä", "/srv/ä"),
        ("/srv/my home", '"/srv/my home"'),
        ("/srv/100%h", '"/srv/100%%h"'),
        ('/srv/it\'s ; "so"', '"/srv/it\'s ; \\"so\\""'),
        ("/srv/back\\slash\\", '"/srv/back\\\\slash\\\\"'),
        ("/srv/two\nlines", '"/srv/two\\x0alines"'),
        ("/srv/$HOME/${HOME}", '"/srv/$HOME/${HOME}"'),
    ],
)
def test_any_home_path_is_escaped_for_systemd(machine: Machine, home: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert machine.refused("install", yes=False, home=home)[0] == 3
    colon = ":" if "$" in home else ""
    assert f"  ExecStart={colon}{machine.program} serve --home {words}" in capsys.readouterr().out.splitlines()


def test_a_program_path_that_systemd_cannot_start_is_refused(machine: Machine) -> None:
    program = machine.person / "it's" / "backburner"
    program.parent.mkdir()
    program.symlink_to(shlex.split(machine.program)[0])
    machine.monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    assert machine.refused("install") == (2, f"systemd cannot start a program with quotes or backslashes in its path: {program}")


def test_each_home_has_its_own_unit_in_the_config_folder(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.monkeypatch.setenv("XDG_CONFIG_HOME", str(machine.person / "settings"))
    (machine.person / ".backburner").unlink()
    assert machine.service("install", as_json=True) == 0
    output = json.loads(capsys.readouterr().out)
    names = set()
    for home in (str(machine.home_cli.root), "/srv/a/Some Work!", "/srv/b/Some Work!", str(machine.person / ".backburner"), "/srv/!"):
        machine.service("status", as_json=True, home=home)
        names.add(Path(json.loads(capsys.readouterr().out)["path"]).name)
    assert len(names) == 5 and {"backburner.service", output["unit"]} < names
    assert sum(name.startswith("backburner-some-work-") for name in names) == 2
    assert output["path"] == str(machine.person / "settings" / "systemd" / "user" / output["unit"]) and Path(output["path"]).exists()
    assert (
        output["unit"].startswith("backburner-home-")
        and output["changed"]
        and output["active"]
        and output["home"] == str(machine.home_cli.root)
    )


def test_a_running_command_survives_the_change_of_engines(machine: Machine) -> None:
    task_id, shell, go = start_command(machine.home_cli)
    on_demand = machine.home_cli.engine
    assert on_demand and machine.home_cli.processes("backburner-keeper")

    assert machine.service("install") == 0
    assert machine.engine and not processes.is_alive(on_demand)
    assert not machine.home_cli.processes("backburner-keeper") and processes.is_alive(shell)
    of_unit = machine.engine

    assert machine.service("uninstall") == 0
    wait_until(lambda: machine.home_cli.engine not in (None, of_unit), "an engine that takes over")
    assert not processes.is_alive(of_unit) and processes.is_alive(shell)

    go.touch()
    assert machine.home_cli.cli("wait", task_id, "--timeout", "30").returncode == 1
    assert (machine.home_cli.status(task_id)["status"], machine.home_cli.status(task_id)["exit_code"]) == ("failed", 7)


@pytest.mark.parametrize("stillborn", [False, True])
def test_a_task_submitted_between_two_engines_is_started(machine: Machine, stillborn: bool) -> None:
    """A client that runs between two engines starts none; the next engine must read the ledger."""
    at_work, shell, go = start_command(machine.home_cli)
    submitted, done = machine.home_cli.cwd / "submitted", machine.home_cli.cwd / "done"
    (machine.systemd / "meanwhile").write_text(f"{shlex.quote(sys.executable)} -m backburner run --yes -- touch {done} >{submitted}\n")
    if stillborn:
        (machine.systemd / "stillborn").touch()
        machine.monkeypatch.setattr(systemd, "_ENGINE_TIMEOUT_SECONDS", 2.0)
        says = "backburner.service did not start; see: journalctl --user -u backburner.service"
        assert machine.refused("install") == (1, says)
        assert machine.calls()[-2:] == ["disable --now backburner.service", "daemon-reload"]
    else:
        assert machine.service("install") == 0 and machine.engine
    wait_until(done.exists, "the submitted task to run")
    (task_id,) = submitted.read_text().split()
    go.touch()
    machine.home_cli.cli("wait", task_id, at_work, "--timeout", "30")
    assert machine.home_cli.status(task_id)["exit_code"] == 0 and machine.home_cli.status(at_work)["exit_code"] == 7
    assert not processes.is_alive(shell)


def test_a_second_service_install_only_enables_the_unit_again(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.service("install")
    engine, stamp = machine.engine, machine.unit.stat()
    (machine.systemd / "enabled").unlink()
    machine.calls(), capsys.readouterr()
    assert machine.service("install", yes=False) == 0
    assert "is already installed" in capsys.readouterr().out
    assert machine.calls() == ["daemon-reload", "enable backburner.service"] and (machine.systemd / "enabled").exists()
    assert machine.engine == engine and machine.unit.stat() == stamp


def test_install_starts_an_installed_but_inactive_unit(machine: Machine) -> None:
    machine.service("install")
    machine.home_cli.stop_engine()
    machine.home_cli.finish("true")
    on_demand = machine.home_cli.engine
    assert on_demand and not machine.engine
    assert machine.service("install", yes=False) == 0
    assert machine.engine and not processes.is_alive(on_demand)


def test_after_moving_the_program_install_replaces_unit_and_engine(machine: Machine) -> None:
    machine.service("install")
    engine, text = machine.engine, machine.unit.read_text()
    machine.unit.write_text(text.replace(machine.program, "/old/backburner"))
    machine.calls()
    assert machine.service("install") == 0
    assert machine.unit.read_text() == text and list(machine.unit.parent.iterdir()) == [machine.unit]
    assert machine.calls()[-1] == "restart backburner.service" and machine.engine not in (None, engine)


@pytest.mark.parametrize("verb", ["daemon-reload", "enable", "restart"])
def test_if_systemd_fails_the_unit_file_is_restored(machine: Machine, verb: str) -> None:
    machine.make_fail(verb, "Failed to do it: \x1b[31mno.")
    assert machine.refused("install") == (1, f"systemctl --user {verb} failed: Failed to do it: \\x1b[31mno.")
    assert not machine.unit.exists()
    (machine.systemd / f"fail-{verb}").unlink()
    machine.service("install")
    machine.unit.write_text(machine.unit.read_text().replace(machine.program, "/old/backburner"))
    machine.make_fail(verb, "no")
    assert machine.refused("install")[0] == 1
    assert "/old/backburner" in machine.unit.read_text()


def test_if_the_unit_cannot_be_written_nothing_is_changed(machine: Machine) -> None:
    machine.unit.parent.parent.parent.mkdir()
    machine.unit.parent.parent.write_text("in the way")
    code, message = machine.refused("install")
    assert code == 1 and str(machine.unit) in message and machine.calls() == []


def test_a_unit_of_another_program_is_not_changed(machine: Machine) -> None:
    machine.unit.parent.mkdir(parents=True)
    machine.unit.write_text("[Service]\nExecStart=/bin/backburner # Written by: backburner service install\n")
    for what in ("install", "uninstall"):
        code, message = machine.refused(what)
        assert code == 2 and message == f"{machine.unit} was not written by Backburner; move or rename it first. Nothing was changed."
    assert machine.calls() == []


def test_a_manually_started_engine_is_not_stopped(machine: Machine) -> None:
    command = [sys.executable, "-m", "backburner", "serve"]
    with subprocess.Popen(command, env=machine.home_cli.environ, stderr=subprocess.DEVNULL) as serving:
        wait_until(lambda: machine.home_cli.engine, "the engine to serve")
        code, message = machine.refused("install")
        assert (code, message) == (
            2,
            f"An engine that was started manually is running for {machine.home_cli.root} (process {serving.pid}); stop it first.",
        )
        assert serving.poll() is None
        serving.send_signal(signal.SIGINT)


@pytest.mark.parametrize("what", ["install", "uninstall", "status"])
def test_without_systemd_the_error_names_the_command_to_run(machine: Machine, what: str) -> None:
    instead = f"run this with another service manager: {machine.program} serve --home {machine.home_cli.root}"
    machine.make_fail("show", "Failed to connect to bus: No medium found")
    assert machine.refused(what) == (2, f"systemd user services are not available (Failed to connect to bus: No medium found); {instead}")
    machine.monkeypatch.setenv("PATH", str(machine.person))
    assert machine.refused(what) == (2, f"systemd user services are not available (systemctl: No such file or directory); {instead}")
    assert not (machine.person / ".config").exists()


def test_uninstall_removes_everything(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.service("install")
    machine.calls(), capsys.readouterr()
    assert machine.service("uninstall") == 0
    assert machine.calls() == ["disable --now backburner.service", "daemon-reload"]
    assert capsys.readouterr().out.splitlines()[-1] == f"{machine.unit} is removed; engines start on demand again."
    assert list(machine.unit.parent.iterdir()) == [] and not machine.engine
    assert machine.service("uninstall", yes=False) == 0
    assert capsys.readouterr().out == f"{machine.unit} is not installed; nothing to remove.\n" and machine.calls() == []


def test_a_unit_that_systemd_cannot_stop_is_not_removed(machine: Machine) -> None:
    machine.service("install")
    machine.make_fail("disable", "no")
    assert machine.refused("uninstall") == (1, "systemctl --user disable failed: no.")


def test_status_shows_installed_enabled_and_active(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    def status() -> tuple[int, object, object, object]:
        code = machine.service("status", as_json=True)
        found = json.loads(capsys.readouterr().out)
        assert (found["unit"], found["path"], found["home"]) == ("backburner.service", str(machine.unit), str(machine.home_cli.root))
        return code, found["installed"], found["enabled"], found["active"]

    assert status() == (1, False, False, False)
    machine.service("install", as_json=True)
    assert json.loads(capsys.readouterr().out)["changed"] is True
    assert status() == (0, True, True, True)
    assert machine.service("status") == 0
    assert capsys.readouterr().out == f"backburner.service: installed, enabled, active\n{machine.unit}\n"
    machine.home_cli.stop_engine()
    assert status() == (1, True, True, False)
    assert machine.service("uninstall", as_json=True) == 0
    assert json.loads(capsys.readouterr().out)["changed"] is True and status() == (1, False, False, False)


def test_settings_from_the_environment_are_named_and_never_copied(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.monkeypatch.setenv("BACKBURNER_TELEMETRY_OTLP_HEADERS", "authorization=hush-hush")
    machine.monkeypatch.setenv("OPENAI_API_KEY", "hush-hush")
    machine.service("install")
    output = capsys.readouterr().out
    assert "hush-hush" not in output + machine.unit.read_text()
    assert output.splitlines()[-1].endswith(f"add the settings to {machine.home_cli.root}/config.toml: BACKBURNER_TELEMETRY_OTLP_HEADERS")


def test_invalid_settings_are_reported_before_anything_is_written(machine: Machine) -> None:
    machine.home_cli.configure("[commands]\nmax_concurrent = 0\n")
    code, message = machine.refused("install")
    assert code == 2 and "max_concurrent" in message and machine.calls() == []


def test_without_a_terminal_it_needs_yes(machine: Machine) -> None:
    code, message = machine.refused("install", yes=False)
    assert code == 3 and "--yes" in message
    machine.service("install")
    assert machine.refused("uninstall", yes=False)[0] == 3


@pytest.mark.parametrize(("keys", "code"), [("y\n", 0), ("n\n", 3)])
def test_at_a_terminal_install_shows_the_unit_and_asks(machine: Machine, keys: str, code: int) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", DRIVER, "install"])
    screen, deadline = b"", time.monotonic() + 30
    while time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                screen += os.read(terminal, 4096)
            except OSError:
                break
            if screen.endswith(b"[y/N] "):
                assert b"  ExecStart=" in screen and not machine.unit.exists()
                os.write(terminal, keys.encode())
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == code
    assert machine.unit.exists() == (code == 0) == bool(machine.engine)


def test_commands_outlive_a_worker_of_the_example_unit() -> None:
    docs = (Path(__file__).parents[2] / "docs" / "hosts.md").read_text()
    (example,) = re.findall(r"^```ini\n(.*?)^```", docs, re.MULTILINE | re.DOTALL)
    unit = configparser.ConfigParser(inline_comment_prefixes=None)  # as systemd, for which a comment behind a value is part of it
    unit.read_string(example)
    wanted = {"restart": "always", "killmode": "process", "oompolicy": "continue", "tasksmax": "infinity"}
    assert {name: unit["Service"][name] for name in wanted} == wanted
