"""`backup`, `restore` and `export`: copies of a home."""

import argparse
import os
import sys

from backburner.core import task_text
from backburner.core.models import Caller
from backburner.core.terminal_text import visible
from backburner.interfaces.cli.tasks import hint
from backburner.services.app import App, now_ms
from backburner.system.disk_usage import size_text
from backburner.system.home import Home
from backburner.system.paths import locate


def backup(app: App, caller: Caller, args: argparse.Namespace) -> int:
    written = app.backups.write(args.file, output=not args.no_output)
    if args.json:
        task_text.print_json(written._asdict())
        return 0
    print(f"Backup written to {visible(written.path)}: {_count(written.tasks, 'task')}, {size_text(written.size)}.")
    if written.skipped:
        hint(f"Left out {_count(written.skipped, 'link or special file', 'links and special files')} in the folders of runs.")
    return 0


def restore(args: argparse.Namespace, flags: dict[str, str]) -> int:
    from backburner.services.restore import restore as restore_home

    environ = dict(os.environ)
    home = Home(locate(args.home, environ))
    restored = restore_home(home, args.file, environ, now_ms)
    if args.json:
        task_text.print_json({"home": home.root, **restored._asdict()})
        return 0
    print(f"Restored {visible(home.root)} as of {visible(restored.created_at)}: {_count(restored.tasks, 'task')}.")
    if restored.lost:
        hint(f"{_count(restored.lost, 'run')} had not ended when the backup was made: see `backburner list failed --all`.")
    if restored.replaced:
        hint(f"The previous home is in {visible(restored.replaced)}; delete it if you no longer need it.")
    return 0


def export(app: App, caller: Caller, args: argparse.Namespace) -> int:
    for piece in app.export.pieces():
        sys.stdout.write(piece)
    return 0


def _count(number: int, one: str, many: str = "") -> str:
    return f"1 {one}" if number == 1 else f"{number} {many or one + 's'}"
