"""`serve` and `doctor`: the verbs of the person who looks after a home."""

import argparse
import contextlib
import logging
import os
import sys
from typing import TYPE_CHECKING

from backburner.core import task_text as render
from backburner.core.errors import BadInput
from backburner.system.home import Home, locate

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Generator


_TRIES = 3


def serve(args: argparse.Namespace, flags: dict[str, str]) -> int:
    """The engine in the foreground, until Ctrl-C; commands at work go on without it."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO, stream=sys.stderr)
    environ = dict(os.environ)
    home = Home(locate(args.home, environ))

    def ready() -> None:
        print(f"Serving {home.root}. Ctrl-C stops it; commands at work go on.", file=sys.stderr)

    with _web(home, environ, args.http) if args.http else contextlib.nullcontext() as web:
        if not _served(home, environ, flags, ready):
            if web is None:
                raise BadInput(f"Another engine serves {home.root} already.")
            print(f"Another engine serves {home.root}; this one only listens. Ctrl-C stops it.", file=sys.stderr)
            with contextlib.suppress(KeyboardInterrupt):
                web.wait()
    return 0


def _served(home: Home, environ: dict[str, str], flags: dict[str, str], ready: "Callable[[], None]") -> bool:
    """Be the engine until the end. One that was started on demand makes place; False where another one serves."""
    from backburner.engine import startup as engine
    from backburner.interfaces.cli.systemd import relieve

    home.make()
    for _ in range(_TRIES):  # a door may start one just before us
        relieve(home)
        if engine.serve(home, environ, flags, foreground=True, ready=ready):
            return True
    return False


@contextlib.contextmanager
def _web(home: Home, environ: dict[str, str], where: str) -> "Generator[subprocess.Popen[bytes]]":
    """The process that speaks HTTP, for as long as this one lives."""
    import socket
    import subprocess

    from backburner.coordination.launcher import process_command
    from backburner.core.optional_dependencies import need
    from backburner.interfaces.mcp.http import PATH, token_of

    need("mcp", "HTTP needs")
    host, _, port = where.rpartition(":")
    host = host or "127.0.0.1"
    if not port.isdecimal() or int(port[:6]) > 65535:
        raise BadInput(f"'{where}' is not a port; there are 1 to 65535, and 0 for any that is free.")
    if host not in ("127.0.0.1", "localhost", "::1", "[::1]"):
        raise BadInput(f"HTTP is served on loopback only, not on {host}; use a tunnel to reach it from elsewhere.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host.strip("[]"), int(port)))
        except OSError as error:
            raise BadInput(f"{where} cannot be listened on: {error.strerror}.") from None
        listening.listen(128)
        home.make()
        token_of(home)
        command = [*process_command(home, "interfaces.mcp.http"), str(listening.fileno())]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, env=environ, pass_fds=[listening.fileno()], start_new_session=True)
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{listening.getsockname()[1]}{PATH}"
    print(f"MCP over HTTP: {address}, with the token in {os.path.join(home.root, 'token')}", file=sys.stderr)
    try:
        yield child
    finally:
        if child.stdin:
            child.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(5)
        child.kill()
        child.wait()


def doctor(args: argparse.Namespace, flags: dict[str, str]) -> int:
    """Exit 0 when nothing is wrong."""
    from backburner.interfaces.cli.doctor import examine

    findings = list(examine(locate(args.home, dict(os.environ)), dict(os.environ), flags))
    sound = all(finding.ok for finding in findings)
    if args.json:
        render.print_json({"ok": sound, "findings": [finding._asdict() for finding in findings]})
        return 0 if sound else 1
    for finding in findings:
        print(f"{'ok  ' if finding.ok else 'BAD '} {finding.what}")
        if finding.fix:
            print(f"     → {finding.fix}")
    return 0 if sound else 1
