"""`serve` and `doctor`: commands for operating a home."""

import argparse
import contextlib
import logging
import os
import sys
from typing import TYPE_CHECKING

from backburner.core import task_text
from backburner.core.errors import BadInput
from backburner.system.home import Home, locate

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Generator


_MAX_ATTEMPTS = 3


def serve(args: argparse.Namespace, flags: dict[str, str]) -> int:
    """Run the engine until Ctrl-C. Running commands continue without it."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO, stream=sys.stderr)
    environ = dict(os.environ)
    home = Home(locate(args.home, environ))

    def ready() -> None:
        print(f"Engine running for {home.root}. Press Ctrl-C to stop; running commands continue.", file=sys.stderr)

    with _http_server(home, environ, args.http) if args.http else contextlib.nullcontext() as server:
        if not _run_engine(home, environ, flags, ready):
            if server is None:
                raise BadInput(f"Another engine is already running for {home.root}.")
            print(f"Another engine is running for {home.root}; only the HTTP server runs here. Press Ctrl-C to stop.", file=sys.stderr)
            with contextlib.suppress(KeyboardInterrupt):
                server.wait()
    return 0


def _run_engine(home: Home, environ: dict[str, str], flags: dict[str, str], ready: "Callable[[], None]") -> bool:
    """Run the engine until it is stopped. Replaces an engine that was started on demand; False if another engine keeps running."""
    from backburner.engine import startup as engine
    from backburner.interfaces.cli.systemd import stop_engine_on_demand

    home.make()
    for _ in range(_MAX_ATTEMPTS):  # another process may start an engine at the same moment
        stop_engine_on_demand(home)
        if engine.serve(home, environ, flags, foreground=True, ready=ready):
            return True
    return False


@contextlib.contextmanager
def _http_server(home: Home, environ: dict[str, str], address: str) -> "Generator[subprocess.Popen[bytes]]":
    """Run the HTTP server in a child process while the context is open."""
    import socket
    import subprocess

    from backburner.coordination.launcher import process_command
    from backburner.core.optional_dependencies import need
    from backburner.interfaces.mcp.http import PATH, token_of

    need("mcp", "HTTP needs")
    host, _, port = address.rpartition(":")
    host = host or "127.0.0.1"
    if not port.isdecimal() or int(port[:6]) > 65535:
        raise BadInput(f"'{address}' is not a port; use 1 to 65535, or 0 for any free port.")
    if host not in ("127.0.0.1", "localhost", "::1", "[::1]"):
        raise BadInput(f"HTTP is available on loopback only, not on {host}; use a tunnel to reach it from another machine.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host.strip("[]"), int(port)))
        except OSError as error:
            raise BadInput(f"Cannot listen on {address}: {error.strerror}.") from None
        listening.listen(128)
        home.make()
        token_of(home)
        command = [*process_command(home, "interfaces.mcp.http"), str(listening.fileno())]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, env=environ, pass_fds=[listening.fileno()], start_new_session=True)
        url_host = f"[{host}]" if ":" in host else host
        url = f"http://{url_host}:{listening.getsockname()[1]}{PATH}"
    print(f"MCP over HTTP: {url}, with the token in {os.path.join(home.root, 'token')}", file=sys.stderr)
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
    """Print all findings; return 0 if no problem was found."""
    from backburner.interfaces.cli.doctor import examine

    findings = list(examine(locate(args.home, dict(os.environ)), dict(os.environ), flags))
    healthy = all(finding.ok for finding in findings)
    if args.json:
        task_text.print_json({"ok": healthy, "findings": [finding._asdict() for finding in findings]})
        return 0 if healthy else 1
    for finding in findings:
        print(f"{'ok  ' if finding.ok else 'BAD '} {finding.what}")
        if finding.fix:
            print(f"     → {finding.fix}")
    return 0 if healthy else 1
