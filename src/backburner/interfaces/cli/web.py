"""`web` and `devices`: serve the web interface, pair pages by the numbers that they show, and list and revoke devices."""

import argparse
import contextlib
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Generator

from backburner.core import formatting, task_text
from backburner.core.devices import Pairing, Passkey
from backburner.core.errors import BackburnerError, BadInput, NotAPerson
from backburner.core.models import Caller
from backburner.core.optional_dependencies import need
from backburner.core.terminal_text import visible
from backburner.interfaces.cli.main import ask_password
from backburner.interfaces.cli.tasks import hint
from backburner.services.app import App, open_app
from backburner.system.caller_identity import current_caller
from backburner.system.home import Home
from backburner.system.paths import locate

_STOP_TIMEOUT_SECONDS = 5
_MAX_QUICK_RESTARTS = 5
_PAUSE_SECONDS = 0.25  # between two looks for pages that wait to be paired, while tasks change
_LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")


def web(args: argparse.Namespace, flags: dict[str, str]) -> int:
    """Serve the web interface until Ctrl-C. At a terminal, pages are paired by the numbers that they show."""
    need("web", "The web interface needs")
    from backburner.interfaces.web.ports import port_of, running_port

    environ = dict(os.environ)
    home = Home(locate(args.home, environ)).make()
    running = running_port(home)
    with contextlib.ExitStack() as stack:
        app = stack.enter_context(open_app(home, environ, flags))
        app.ask_password_with(ask_password)
        if running is None:
            port = args.port if args.port is not None else app.config.whole("web.port") or port_of(home, locate(None, {}))
            _, port = stack.enter_context(web_server(home, environ, f"127.0.0.1:{port}"))
        elif args.port not in (None, running):
            raise BadInput(f"The web interface of this home already runs on port {running}.")
        else:
            port = running
            hint("The web interface is already running; this terminal pairs pages.")
        address = app.config.text("web.origin") or f"http://backburner.localhost:{port}"
        print(f"Web interface: {address}", flush=True)
        if not args.no_open and sys.stdin.isatty() and (environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY")):
            import webbrowser

            webbrowser.open(address)
        with contextlib.suppress(KeyboardInterrupt):
            _pair(app, current_caller("cli", environ))
    return 0


def _pair(app: App, caller: Caller) -> None:
    """Read numbers from the terminal until its end. Without a terminal, wait for Ctrl-C."""
    try:
        window = app.devices.open_window(caller) if sys.stdin.isatty() else None
    except NotAPerson as error:
        hint(f"Pages cannot be paired here: {error}")
        window = None
    if window is None:
        if sys.stdin.isatty():
            hint("Another terminal pairs pages. Press Ctrl-C to stop.")
        else:
            hint("To pair a page, run `backburner web` in a terminal of your own.")
        threading.Event().wait()
        return
    hint("To pair a browser, open this address and type the number that it shows. Press Ctrl-C to stop.")
    listener, told = app.changes.listen(), set[str]()
    try:
        while True:
            for waiting in app.devices.waiting_numbers():
                _announce(waiting, told)
            ready, _, _ = select.select([sys.stdin, listener], [], [])
            if listener in ready:
                for waiting in app.devices.waiting_numbers():
                    _announce(waiting, told)
                listener.pause()  # many tasks may change now
                ready, _, _ = select.select([sys.stdin], [], [], _PAUSE_SECONDS)
                listener.resume()
            if sys.stdin in ready:
                line = sys.stdin.readline()
                if not line:
                    return
                if line.strip():
                    _accept(app, caller, line)
    finally:
        listener.close()
        os.close(window)


def _announce(waiting: Pairing | Passkey, told: set[str]) -> None:
    number = waiting.pairing_id if isinstance(waiting, Pairing) else waiting.passkey_id
    if number in told:
        return
    told.add(number)
    if isinstance(waiting, Pairing):
        what = f"A browser asks to be paired: {visible(waiting.name)}, from {visible(waiting.address)}."
    else:
        what = f"A page asks to approve with a passkey from now on: {visible(waiting.name)}."
    print(f"{what}\nIf that is you, type the number that the page shows: ", end="", flush=True)


def _accept(app: App, caller: Caller, number: str) -> None:
    try:
        accepted = app.devices.accept_number(number, caller)
    except BackburnerError as error:
        hint(str(error))
        return
    if isinstance(accepted, Passkey):
        print(f"Passkey {visible(accepted.name)} can now approve. To revoke it: backburner devices revoke {accepted.device_id}", flush=True)
    else:
        print(
            f"Paired {visible(accepted.name)} as {accepted.device_id}. To revoke it: backburner devices revoke {accepted.device_id}",
            flush=True,
        )


@contextlib.contextmanager
def web_server(home: Home, environ: dict[str, str], address: str) -> "Generator[tuple[WebProcess, int]]":
    """Run the server in a child process while the context is open; it is started again if it dies. Gives the process and the port."""
    host, _, port = address.rpartition(":")
    host = host or "127.0.0.1"
    if not port.isdecimal() or int(port[:6]) > 65535:
        raise BadInput(f"'{address}' is not a port; use 1 to 65535, or 0 for any free port.")
    if host not in _LOOPBACK:
        raise BadInput(f"HTTP is available on loopback only, not on {host}; use a tunnel to reach it from another machine.")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host.strip("[]"), int(port)))
        except OSError as error:
            raise BadInput(f"Cannot listen on {address}: {error.strerror}. Use another port with --port.") from None
        listening.listen(128)
        home.make()
        process = WebProcess(home, environ, listening)
        try:
            yield process, listening.getsockname()[1]
        finally:
            process.stop()


class WebProcess(threading.Thread):
    """Starts the server, and starts it again if it dies. The socket stays open meanwhile, so clients wait and do not fail."""

    def __init__(self, home: Home, environ: dict[str, str], listening: socket.socket) -> None:
        super().__init__(name="web", daemon=True)
        self._home, self._environ, self._listening = home, environ, listening
        self._stopping = threading.Event()
        self._child = self._start_child()
        self.start()

    def _start_child(self) -> "subprocess.Popen[bytes]":
        from backburner.coordination.launcher import process_command

        descriptor = self._listening.fileno()
        command = [*process_command(self._home, "interfaces.web.server"), str(descriptor)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, env=self._environ, pass_fds=[descriptor], start_new_session=True)

    def run(self) -> None:
        for attempt in range(1_000_000):
            self._child.wait()
            if self._stopping.wait(0 if attempt < _MAX_QUICK_RESTARTS else min(60, attempt)):
                return
            self._child = self._start_child()

    def stop(self) -> None:
        self._stopping.set()
        child = self._child
        if child.stdin:
            child.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_STOP_TIMEOUT_SECONDS)
        child.kill()
        child.wait()


def devices(app: App, caller: Caller, args: argparse.Namespace) -> int:
    """List the paired pages and their passkeys, or revoke one."""
    if args.what == "revoke":
        if not args.device:
            raise BadInput("No device given. Usage: backburner devices revoke DEVICE")
        app.devices.revoke(args.device, caller)
        if args.json:
            task_text.print_json({"revoked": args.device})
        else:
            print(f"Device {args.device} revoked.")
        return 0
    passkeys = app.passkeys.active()
    rows = [
        {
            **{name: value for name, value in device._asdict().items() if name not in ("credential_hash", "revoked_at")},
            "created_at": formatting.iso(device.created_at),
            "seen_at": formatting.iso(device.seen_at),
            "passkeys": [passkey.name for passkey in passkeys if passkey.device_id == device.device_id],
        }
        for device in app.devices.list()
    ]
    if args.json:
        task_text.print_json(rows)
        return 0
    for device in app.devices.list():
        own = [visible(passkey.name) for passkey in passkeys if passkey.device_id == device.device_id]
        level = f"passkeys: {', '.join(own)}" if own else "no passkey"
        print(f"{device.device_id}  last seen {formatting.local_time(device.seen_at)}  {visible(device.name)}  {level}")
    if not rows:
        hint("No paired devices. To pair one, run: backburner web")
    return 0
