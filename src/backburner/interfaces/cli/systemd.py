"""`service`: manages a systemd user unit that runs the engine of a home from login on, so that schedules continue after a reboot.

Shows the unit, asks for confirmation, writes it and starts it with systemd; if that fails, every change is undone. The unit
contains no environment variables, because each command has its own environment. Never changes a unit of another program.
"""

import argparse
import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from hashlib import sha256

from backburner.coordination.config_file import load_config
from backburner.coordination.launcher import start_engine
from backburner.core import task_text
from backburner.core.errors import BackburnerError, BadInput
from backburner.core.models import ProcessId
from backburner.core.terminal_text import visible
from backburner.interfaces.cli.install import confirm
from backburner.interfaces.client_setup.files import Change, apply, read
from backburner.interfaces.client_setup.wiring import own_command
from backburner.system import processes, wakeups
from backburner.system.home import Home, lock
from backburner.system.paths import locate

_MARK = "# Written by: backburner service install"
# Commands run in the control group of the unit. They must outlive the engine (KillMode), must not end it when they run out of
# memory (OOMPolicy), and may be numerous (TasksMax). While another engine runs, systemd restarts the unit until that one exits.
_TEXT = """{mark}
[Unit]
Description=Backburner engine
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={command}
Restart=on-failure
RestartSec=5
KillMode=process
OOMPolicy=continue
TasksMax=infinity

[Install]
WantedBy=default.target
"""
_LINGER = "The service and its commands stop when you log out. To start it at boot and keep it running: loginctl enable-linger"
_NOT_CONFIRMED = 3
_SYSTEMCTL_TIMEOUT_SECONDS, _ENGINE_TIMEOUT_SECONDS = 120.0, 20.0


def service(args: argparse.Namespace, _flags: dict[str, str]) -> int:
    """Return 0 if the unit is in the wanted state, 3 without confirmation; `status` returns 1 if the unit is not active."""
    environ = dict(os.environ)
    unit = _Unit(Home(locate(args.home, environ)), environ)
    return {"install": _install, "uninstall": _uninstall, "status": _status}[args.what](unit, args)


class _Unit:
    """The unit of one home: its name, its file, and its state in systemd."""

    def __init__(self, home: Home, environ: dict[str, str]) -> None:
        self.home, self.environ, self.name = home, environ, _name(home)
        own = own_command({name: value for name, value in environ.items() if name != "BACKBURNER_HOME"})
        self.command: tuple[str, ...] = (*own, "serve", "--home", home.root)
        folder = environ.get("XDG_CONFIG_HOME", "")
        self.path = os.path.join(folder if os.path.isabs(folder) else os.path.expanduser("~/.config"), "systemd", "user", self.name)

    def text(self) -> str | None:
        """The content of its file; None if there is no file."""
        text = read(self.path)
        if text is not None and _MARK not in text.splitlines():
            raise BadInput(f"{self.path} was not written by Backburner; move or rename it first. Nothing was changed.")
        return text

    def systemctl(self, *words: str) -> str:
        """Run systemctl and return its output; if it fails, raise its last error line."""
        environ = {"XDG_RUNTIME_DIR": f"/run/user/{os.getuid()}", **self.environ, "LC_ALL": "C.UTF-8"}
        command = ["systemctl", "--user", *words]
        try:
            completed = subprocess.run(
                command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SYSTEMCTL_TIMEOUT_SECONDS
            )
            if completed.returncode == 0:
                return completed.stdout.decode(errors="replace")
            errors = completed.stderr.decode(errors="replace")
        except (OSError, subprocess.TimeoutExpired) as error:
            errors = f"systemctl: {error.strerror}" if isinstance(error, OSError) else "systemctl does not answer"
        reason = (errors.strip().splitlines() or ["unknown reason"])[-1].rstrip(".")
        raise BackburnerError(f"systemctl --user {words[0]} failed: {reason}.", reason=reason)

    def state(self) -> dict[str, str]:
        """The state of the unit in systemd; BadInput if systemd user services are not available."""
        try:
            output = self.systemctl("show", "--property=UnitFileState,ActiveState,MainPID", self.name)
        except BackburnerError as error:
            advice = f"run this with another service manager: {shlex.join(self.command)}"
            raise BadInput(f"systemd user services are not available ({error.fields['reason']}); {advice}") from None
        return dict(line.partition("=")[::2] for line in output.splitlines())

    def summary(self) -> dict[str, object]:
        state, installed = self.state(), self.text() is not None
        enabled, active = state["UnitFileState"].startswith("enabled"), state["ActiveState"] == "active"
        identity: dict[str, object] = {"unit": self.name, "path": self.path, "home": self.home.root}
        return {**identity, "installed": installed, "enabled": installed and enabled, "active": installed and active}

    def runs_engine(self) -> bool:
        """Whether this unit runs the current engine of the home."""
        state, engine = self.state(), processes.engine_of(self.home)
        return engine is not None and str(engine.pid) == state["MainPID"]

    def check_engine(self) -> None:
        """Raise BadInput if another program or person started the engine: only they should stop it."""
        if not self.runs_engine() and (engine := processes.engine_of(self.home)) and not _is_on_demand(engine):
            raise BadInput(f"An engine that was started manually is running for {self.home.root} (process {engine.pid}); stop it first.")


def _install(unit: _Unit, args: argparse.Namespace) -> int:
    unit.check_engine()
    before, after = unit.text(), _TEXT.format(mark=_MARK, command=_line(unit.command))
    config = load_config(unit.home, unit.environ)
    if before != after and not _confirm_change(Change(unit.path, before, after), args):
        return _NOT_CONFIRMED
    with _hold_start_lock(unit):
        if before != after:
            apply([Change(unit.path, before, after)], undo=True)
        try:
            unit.systemctl("daemon-reload")
            unit.systemctl("enable", unit.name)
            if before != after or not unit.runs_engine():
                _start(unit)
        except BaseException:
            if before != after:
                _undo(unit, Change(unit.path, after, before))
            raise
    outcome = "is already installed" if before == after else "is installed"
    messages = [f"{unit.path} {outcome}: the engine of {unit.home.root} is running and starts at each login."]
    if before is None:
        messages.append(_LINGER)
    if variables := sorted({origin for origin in config.origins.values() if origin.startswith("BACKBURNER_")}):
        messages.append(f"The service does not inherit these variables; add the settings to {unit.home.config}: {', '.join(variables)}")
    return _print_summary(args, {**unit.summary(), "changed": before != after}, messages)


def _uninstall(unit: _Unit, args: argparse.Namespace) -> int:
    runs_engine, before = unit.runs_engine(), unit.text()
    if before is not None:
        if not _confirm_change(Change(unit.path, before, None), args):
            return _NOT_CONFIRMED
        unit.systemctl("disable", "--now", unit.name)
        if runs_engine:
            start_engine(unit.home, unit.environ)  # running commands need an engine
        apply([Change(unit.path, before, None)], undo=True)
        unit.systemctl("daemon-reload")
    outcome = "is removed; engines start on demand again" if before is not None else "is not installed; nothing to remove"
    return _print_summary(args, {**unit.summary(), "changed": before is not None}, [f"{unit.path} {outcome}."])


def _status(unit: _Unit, args: argparse.Namespace) -> int:
    summary = unit.summary()
    states = [state if summary[state] else f"not {state}" for state in ("installed", "enabled", "active")]
    _print_summary(args, summary, [f"{unit.name}: {', '.join(states)}", unit.path])
    return 0 if summary["active"] else 1


def _print_summary(args: argparse.Namespace, summary: dict[str, object], messages: list[str]) -> int:
    if args.json:
        task_text.print_json(summary)
    else:
        print("\n".join(map(visible, messages)))
    return 0


def _confirm_change(change: Change, args: argparse.Namespace) -> bool:
    """Show the whole new content of the file and ask for confirmation."""
    if not args.json or not args.yes:
        lines = [f"Write {change.path}:", *change.after.splitlines()] if change.after else [f"Remove {change.path}."]
        print("\n  ".join(map(visible, lines)), file=sys.stderr if args.json else sys.stdout, flush=True)
    return args.yes or confirm()


@contextlib.contextmanager
def _hold_start_lock(unit: _Unit) -> Generator[None]:
    """Hold the lock that keeps other processes from starting an engine. On exit an engine is running, even after an error."""
    home = unit.home.make()
    held = _until(lambda: lock(home.start_lock), f"Another engine has not finished starting; see {home.engine_log}")
    try:
        yield
    finally:
        os.close(held)
        if not wakeups.wake(home.socket_dir, wakeups.ENGINE_SOCKET):
            start_engine(home, unit.environ)


def _start(unit: _Unit) -> None:
    unit.check_engine()
    stop_engine_on_demand(unit.home)
    unit.systemctl("restart", unit.name)  # after a failure, `start` would wait for the next automatic restart
    timeout_message = f"{unit.name} did not start; see: journalctl --user -u {unit.name}"
    _until(lambda: (wakeups.wake(unit.home.socket_dir, wakeups.ENGINE_SOCKET) and unit.runs_engine()) or None, timeout_message)


def stop_engine_on_demand(home: Home) -> None:
    """Stop an engine that was started on demand. SIGTERM also ends its keeper process; running commands continue."""
    if (engine := processes.engine_of(home)) and _is_on_demand(engine):
        processes.send(engine, signal.SIGTERM)
        os.close(_until(lambda: lock(home.engine_lock), f"The engine of {home.root} (process {engine.pid}) did not exit"))


def _is_on_demand(engine: ProcessId) -> bool:
    """Whether a keeper process started the engine, according to its arguments; True for an engine that has just exited."""
    try:
        with open(f"/proc/{engine.pid}/cmdline", "rb") as file:
            return b"--lock-on-stdin" in file.read().split(b"\0")
    except OSError:
        return True


def _undo(unit: _Unit, change: Change) -> None:
    """Undo the installation without raising: the caller reports the first error."""
    with contextlib.suppress(BackburnerError):
        if change.after is None:
            unit.systemctl("disable", "--now", unit.name)
    with contextlib.suppress(BackburnerError):
        apply([change], undo=True)
        unit.systemctl("daemon-reload")


def _until(attempt: Callable[[], int | None], timeout_message: str) -> int:
    deadline = time.monotonic() + _ENGINE_TIMEOUT_SECONDS
    while (result := attempt()) is None:
        if time.monotonic() > deadline:
            raise BackburnerError(timeout_message)
        time.sleep(0.02)
    return result


def _name(home: Home) -> str:
    """The name of the unit: `backburner.service` for the default home, a name of its own for any other."""
    real = os.path.realpath(home.root)
    if real == os.path.realpath(locate(None, {})):
        return "backburner.service"
    word = re.sub(r"[^a-z0-9]+", "-", os.path.basename(real).lower()).strip("-")[:32]
    return "-".join(filter(None, ("backburner", word, sha256(real.encode()).hexdigest()[:8]))) + ".service"


def _line(command: tuple[str, ...]) -> str:
    """The command in systemd syntax: % is doubled, and a leading colon keeps $ from being expanded."""
    if re.search(r"[\"'\\\x00-\x1f\x7f]", command[0]):
        raise BadInput(f"systemd cannot start a program with quotes or backslashes in its path: {command[0]}")
    words = " ".join(word if re.fullmatch(r"[\w@+,./:=-]+", word) else f'"{_escaped(word)}"' for word in command)
    return f":{words}" if "$" in words else words


def _escaped(word: str) -> str:
    word = re.sub(r"[\\\"]", r"\\\g<0>", word.replace("%", "%%"))
    return re.sub(r"[\x00-\x1f\x7f]", lambda match: f"\\x{ord(match[0]):02x}", word)
