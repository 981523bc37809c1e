"""`service`: a systemd user unit that has a home's engine run from login on, so that nothing waits for a door after a reboot.

Shows the unit, asks, writes it and has systemd start it; where that fails it is taken back whole. Copies nothing of the
environment: commands have their own. Never touches a unit that somebody else wrote.
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
from backburner.core import task_text as render
from backburner.core.errors import BackburnerError, BadInput
from backburner.core.models import ProcessId
from backburner.core.terminal_text import visible
from backburner.interfaces.cli.install import agreed
from backburner.interfaces.client_setup.files import Change, apply, read
from backburner.interfaces.client_setup.wiring import own_command
from backburner.system import processes as process
from backburner.system import wakeups as wake
from backburner.system.home import Home, locate, lock

_MARK = "# Written by: backburner service install"
# Commands are in the unit's control group: they outlive the engine, their lack of memory is not its end, and they are more
# than a limit for one program allows. Where another engine serves for a while, the unit comes again until that has left.
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
_LINGER = "It ends when you log out, and its commands with it. To have it run from boot on, logged in or not: loginctl enable-linger"
_NOT_AGREED = 3
_SYSTEMCTL_SECONDS, _ENGINE_SECONDS = 120.0, 20.0


def service(args: argparse.Namespace, _flags: dict[str, str]) -> int:
    """Exit 0 when it is so or was so already, 3 without a yes; `status` exits 1 where the unit does not run."""
    environ = dict(os.environ)
    unit = _Unit(Home(locate(args.home, environ)), environ)
    return {"install": _install, "uninstall": _uninstall, "status": _status}[args.what](unit, args)


class _Unit:
    """The unit of one home: its name, its file, and what systemd says of it."""

    def __init__(self, home: Home, environ: dict[str, str]) -> None:
        self.home, self.environ, self.name = home, environ, _name(home)
        own = own_command({name: value for name, value in environ.items() if name != "BACKBURNER_HOME"})
        self.command: tuple[str, ...] = (*own, "serve", "--home", home.root)
        folder = environ.get("XDG_CONFIG_HOME", "")
        self.path = os.path.join(folder if os.path.isabs(folder) else os.path.expanduser("~/.config"), "systemd", "user", self.name)

    def text(self) -> str | None:
        """What its file holds; None where there is none."""
        text = read(self.path)
        if text is not None and _MARK not in text.splitlines():
            raise BadInput(f"{self.path} was not written by Backburner; move it away first. Nothing was changed.")
        return text

    def systemctl(self, *words: str) -> str:
        """What systemctl prints; its last complaint is raised."""
        environ = {"XDG_RUNTIME_DIR": f"/run/user/{os.getuid()}", **self.environ, "LC_ALL": "C.UTF-8"}
        command = ["systemctl", "--user", *words]
        try:
            done = subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SYSTEMCTL_SECONDS)
            if done.returncode == 0:
                return done.stdout.decode(errors="replace")
            said = done.stderr.decode(errors="replace")
        except (OSError, subprocess.TimeoutExpired) as error:
            said = f"systemctl: {error.strerror}" if isinstance(error, OSError) else "systemctl gives no answer"
        reason = (said.strip().splitlines() or ["it does not say why"])[-1].rstrip(".")
        raise BackburnerError(f"systemctl --user {words[0]} failed: {reason}.", reason=reason)

    def state(self) -> dict[str, str]:
        """What systemd knows of it; BadInput where there is none for users."""
        try:
            shown = self.systemctl("show", "--property=UnitFileState,ActiveState,MainPID", self.name)
        except BackburnerError as error:
            instead = f"have your own supervisor run: {shlex.join(self.command)}"
            raise BadInput(f"There is no systemd for users here ({error.fields['reason']}); {instead}") from None
        return dict(line.partition("=")[::2] for line in shown.splitlines())

    def found(self) -> dict[str, object]:
        state, ours = self.state(), self.text() is not None
        enabled, active = state["UnitFileState"].startswith("enabled"), state["ActiveState"] == "active"
        about: dict[str, object] = {"unit": self.name, "path": self.path, "home": self.home.root}
        return {**about, "installed": ours, "enabled": ours and enabled, "active": ours and active}

    def serves(self) -> bool:
        """Whether the engine of the home is this unit's."""
        state, engine = self.state(), process.engine_of(self.home)
        return engine is not None and str(engine.pid) == state["MainPID"]

    def check_engine(self) -> None:
        """An engine that was not started on demand is for whoever started it to stop."""
        if not self.serves() and (engine := process.engine_of(self.home)) and not _is_on_demand(engine):
            raise BadInput(f"{self.home.root} is served by process {engine.pid}, which somebody started; stop it first.")


def _install(unit: _Unit, args: argparse.Namespace) -> int:
    unit.check_engine()
    before, after = unit.text(), _TEXT.format(mark=_MARK, command=_line(unit.command))
    config = load_config(unit.home, unit.environ)
    if before != after and not _allowed(Change(unit.path, before, after), args):
        return _NOT_AGREED
    with _no_door_starts_one(unit):
        if before != after:
            apply([Change(unit.path, before, after)], undo=True)
        try:
            unit.systemctl("daemon-reload")
            unit.systemctl("enable", unit.name)
            if before != after or not unit.serves():
                _start(unit)
        except BaseException:
            if before != after:
                _take_back(unit, Change(unit.path, after, before))
            raise
    done = "is installed already" if before == after else "is installed"
    told = [f"{unit.path} {done}: it serves {unit.home.root} now and from each login on."]
    if before is None:
        told.append(_LINGER)
    if own := sorted({where for where in config.origins.values() if where.startswith("BACKBURNER_")}):
        told.append(f"What is only set here does not reach it, so write it into {unit.home.config}: {', '.join(own)}")
    return _tell(args, {**unit.found(), "changed": before != after}, told)


def _uninstall(unit: _Unit, args: argparse.Namespace) -> int:
    serves, before = unit.serves(), unit.text()
    if before is not None:
        if not _allowed(Change(unit.path, before, None), args):
            return _NOT_AGREED
        unit.systemctl("disable", "--now", unit.name)
        if serves:
            start_engine(unit.home, unit.environ)  # somebody has to go on with what is at work
        apply([Change(unit.path, before, None)], undo=True)
        unit.systemctl("daemon-reload")
    told = "is removed; engines are started on demand again" if before is not None else "is not there; nothing to remove"
    return _tell(args, {**unit.found(), "changed": before is not None}, [f"{unit.path} {told}."])


def _status(unit: _Unit, args: argparse.Namespace) -> int:
    found = unit.found()
    words = [word if found[word] else f"not {word}" for word in ("installed", "enabled", "active")]
    _tell(args, found, [f"{unit.name}: {', '.join(words)}", unit.path])
    return 0 if found["active"] else 1


def _tell(args: argparse.Namespace, found: dict[str, object], told: list[str]) -> int:
    if args.json:
        render.print_json(found)
    else:
        print("\n".join(map(visible, told)))
    return 0


def _allowed(change: Change, args: argparse.Namespace) -> bool:
    """Shows all that will be written; what was there before may be somebody's own."""
    if not args.json or not args.yes:
        shown = [f"Write {change.path}:", *change.after.splitlines()] if change.after else [f"Remove {change.path}."]
        print("\n  ".join(map(visible, shown)), file=sys.stderr if args.json else sys.stdout, flush=True)
    return args.yes or agreed()


@contextlib.contextmanager
def _no_door_starts_one(unit: _Unit) -> Generator[None]:
    """Holds the lock that says: an engine is on its way and will read the ledger. In the end there is one, whatever happened."""
    home = unit.home.make()
    held = _until(lambda: lock(home.start_lock), f"An engine is starting and does not get on; see {home.engine_log}")
    try:
        yield
    finally:
        os.close(held)
        if not wake.wake(home.socket_dir, wake.ENGINE_SOCKET):
            start_engine(home, unit.environ)


def _start(unit: _Unit) -> None:
    unit.check_engine()
    relieve(unit.home)
    unit.systemctl("restart", unit.name)  # `start` would wait for the next try of one that has failed
    otherwise = f"{unit.name} does not come up; see: journalctl --user -u {unit.name}"
    _until(lambda: (wake.wake(unit.home.socket_dir, wake.ENGINE_SOCKET) and unit.serves()) or None, otherwise)


def relieve(home: Home) -> None:
    """Have an engine that was started on demand leave. By SIGTERM it does so on purpose: its keeper goes too, commands live on."""
    if (engine := process.engine_of(home)) and _is_on_demand(engine):
        process.send(engine, signal.SIGTERM)
        os.close(_until(lambda: lock(home.engine_lock), f"The engine of {home.root}, process {engine.pid}, does not leave"))


def _is_on_demand(engine: ProcessId) -> bool:
    """Whether a keeper started it, which says so in its words; one that is just gone is nobody's any more."""
    try:
        with open(f"/proc/{engine.pid}/cmdline", "rb") as file:
            return b"--lock-on-stdin" in file.read().split(b"\0")
    except OSError:
        return True


def _take_back(unit: _Unit, change: Change) -> None:
    """What went wrong first is what is told, so nothing is raised."""
    with contextlib.suppress(BackburnerError):
        if change.after is None:
            unit.systemctl("disable", "--now", unit.name)
    with contextlib.suppress(BackburnerError):
        apply([change], undo=True)
        unit.systemctl("daemon-reload")


def _until(attempt: Callable[[], int | None], otherwise: str) -> int:
    deadline = time.monotonic() + _ENGINE_SECONDS
    while (got := attempt()) is None:
        if time.monotonic() > deadline:
            raise BackburnerError(otherwise)
        time.sleep(0.02)
    return got


def _name(home: Home) -> str:
    """The usual home has the plain name; any other has its own."""
    real = os.path.realpath(home.root)
    if real == os.path.realpath(locate(None, {})):
        return "backburner.service"
    word = re.sub(r"[^a-z0-9]+", "-", os.path.basename(real).lower()).strip("-")[:32]
    return "-".join(filter(None, ("backburner", word, sha256(real.encode()).hexdigest()[:8]))) + ".service"


def _line(command: tuple[str, ...]) -> str:
    """A command as systemd reads it: % stands doubled, and a colon before it all leaves $ alone."""
    if re.search(r"[\"'\\\x00-\x1f\x7f]", command[0]):
        raise BadInput(f"systemd starts no program with quotes or backslashes in its path: {command[0]}")
    words = " ".join(word if re.fullmatch(r"[\w@+,./:=-]+", word) else f'"{_escaped(word)}"' for word in command)
    return f":{words}" if "$" in words else words


def _escaped(word: str) -> str:
    word = re.sub(r"[\\\"]", r"\\\g<0>", word.replace("%", "%%"))
    return re.sub(r"[\x00-\x1f\x7f]", lambda found: f"\\x{ord(found[0]):02x}", word)
