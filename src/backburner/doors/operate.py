"""`serve` and `doctor`: the verbs of the person who looks after a home."""

import argparse
import logging
import os
import sys

from backburner.doors import render
from backburner.errors import BadInput
from backburner.home import Home, locate


def serve(args: argparse.Namespace, flags: dict[str, str]) -> int:
    """The engine in the foreground, until Ctrl-C; commands at work go on without it."""
    from backburner import engine

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO, stream=sys.stderr)
    environ = dict(os.environ)
    home = Home(locate(args.home, environ))

    def ready() -> None:
        print(f"Serving {home.root}. Ctrl-C stops it; commands at work go on.", file=sys.stderr)

    if not engine.serve(home, environ, flags, foreground=True, ready=ready):
        raise BadInput(f"Another engine serves {home.root} already.")
    return 0


def doctor(args: argparse.Namespace, flags: dict[str, str]) -> int:
    """Exit 0 when nothing is wrong."""
    from backburner.doctor import examine

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
