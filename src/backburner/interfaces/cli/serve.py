"""`serve` and `doctor`: commands for operating a home."""

import argparse
import contextlib
import logging
import os
import sys
from typing import TYPE_CHECKING

from backburner.core import task_text
from backburner.core.errors import BadInput, HostFenced
from backburner.system.home import Home
from backburner.system.paths import locate

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from backburner.interfaces.cli.web import WebProcess


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
                server.join()
    return 0


def _run_engine(home: Home, environ: dict[str, str], flags: dict[str, str], ready: "Callable[[], None]") -> bool:
    """Run the engine until it is stopped. Replaces an engine that was started on demand; False if another engine keeps running."""
    from backburner.engine import startup as engine
    from backburner.interfaces.cli.systemd import stop_engine_on_demand

    home.make()
    for _ in range(_MAX_ATTEMPTS):  # another process may start an engine at the same moment
        stop_engine_on_demand(home)
        try:
            if engine.serve(home, environ, flags, foreground=True, ready=ready):
                return True
        except HostFenced as error:
            print(error, file=sys.stderr, flush=True)
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    return False


@contextlib.contextmanager
def _http_server(home: Home, environ: dict[str, str], address: str) -> "Generator[WebProcess]":
    """Serve the web interface and MCP over HTTP while the context is open."""
    from backburner.core.optional_dependencies import need
    from backburner.interfaces.cli.web import web_server
    from backburner.interfaces.mcp.http import PATH
    from backburner.system.token_file import token_of

    need("web", "HTTP needs")
    host = address.rpartition(":")[0] or "127.0.0.1"
    home.make()
    token_of(home)
    with web_server(home, environ, address) as (process, port):
        url = f"http://{f'[{host}]' if ':' in host.strip('[]') else host}:{port}{PATH}"
        print(f"MCP over HTTP: {url}, with the token in {os.path.join(home.root, 'token')}", file=sys.stderr)
        print(f"Web interface: http://backburner.localhost:{port}; to pair a browser, run: backburner web", file=sys.stderr)
        yield process


def doctor(args: argparse.Namespace, flags: dict[str, str]) -> int:
    """Print all findings; return 0 if no problem was found."""
    from backburner.interfaces.cli.doctor import examine

    findings = list(examine(locate(args.home, dict(os.environ)), dict(os.environ), flags, full=args.full))
    healthy = all(finding.ok for finding in findings)
    if args.json:
        task_text.print_json({"ok": healthy, "findings": [finding._asdict() for finding in findings]})
        return 0 if healthy else 1
    for finding in findings:
        print(f"{'ok  ' if finding.ok else 'BAD '} {finding.what}")
        if finding.fix:
            print(f"     → {finding.fix}")
    return 0 if healthy else 1
