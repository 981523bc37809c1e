"""`setup`, and the installation of the packages of an extra when they are first needed.

Only in a clone of the repository, whose `scripts/setup` manages its environment. Elsewhere the message names the extra to install.
"""

import argparse
import os
import subprocess
import sys

from backburner.core import task_text
from backburner.core.errors import BackburnerError, BadInput

EXTRAS = ("agent", "integrations", "mcp", "postgres", "telemetry", "tui", "web")
_ALL = tuple(name for name in EXTRAS if name != "telemetry")  # what `scripts/setup all` installs


def setup(args: argparse.Namespace, _: dict[str, str]) -> int:
    """Install the packages of optional parts now, for example before the machine goes offline."""
    unknown = [name for name in args.parts if name not in EXTRAS]
    if unknown:
        raise BadInput(f"Unknown part '{unknown[0]}'. Parts: {', '.join(EXTRAS)}.")
    if not args.parts and not args.all:
        raise BadInput(f"Name the parts to install, or use --all. Parts: {', '.join(EXTRAS)}.")
    if script() is None:
        raise BadInput("Backburner was installed as a package. To add a part, install its extra: pip install 'backburner[agent]'.")
    if not install(*(["all"] if args.all else []), *args.parts):
        raise BackburnerError("The setup failed; see the messages above.")
    if args.json:
        task_text.print_json({"installed": sorted({*args.parts, *(_ALL if args.all else ())})})
    else:
        print("Everything is installed.")
    return 0


def script() -> str | None:
    """The setup script of the clone that this program runs from; None if it does not run in the environment of a clone."""
    root = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 4))
    found = os.path.join(root, "scripts", "setup")
    is_own = os.path.dirname(os.path.dirname(sys.executable)) == os.path.join(root, ".venv")
    return found if is_own and os.access(found, os.X_OK) else None


def install(*parts: str) -> bool:
    """Install parts with the setup script, which prints what it does to standard error. False if it failed, or if this is no clone."""
    if (found := script()) is None:
        return False
    done = subprocess.run([found, *parts], stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno(), check=False)
    from importlib import invalidate_caches

    invalidate_caches()
    return done.returncode == 0
