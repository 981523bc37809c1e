"""`fetch`: lists the files that a run has left, and copies one of them, from this home or from another host."""

import argparse
import os
import sys

from backburner.core import formatting, task_text
from backburner.core.errors import BadInput
from backburner.core.models import Caller
from backburner.interfaces.cli.tasks import hint
from backburner.services.app import App
from backburner.system.disk_usage import size_text
from backburner.system.home import write_pieces
from backburner.system.processes import umask


def fetch(app: App, caller: Caller, args: argparse.Namespace) -> int:
    _, run = app.queries.find_run(args.id, caller)
    if args.file is None:
        if args.output is not None:
            raise BadInput("--output needs the name of a file.")
        files = app.runs.files(run)
        if args.json:
            task_text.print_json([{**file._asdict(), "modified_at": formatting.iso(file.modified_at)} for file in files])
            return 0
        for file in files:
            print(f"{size_text(file.size):>10}  {formatting.local_time(file.modified_at)}  {file.name}")
        if not files:
            hint(f"{run.run_id} has left no files.")
        return 0
    file, pieces = app.runs.read_file(run, args.file)
    if args.output == "-":
        for piece in pieces:
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
        return 0
    path = _target(args.output, file.name.rpartition("/")[2])
    try:
        write_pieces(path, pieces, 0o666 & ~umask())
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}.") from None
    if args.json:
        task_text.print_json({"run_id": run.run_id, "file": file.name, "size": file.size, "path": os.path.abspath(path)})
    else:
        print(path)
    return 0


def _target(given: str | None, name: str) -> str:
    """Where to write. An existing file is replaced only if it was named."""
    if given is not None and not os.path.isdir(given):
        return given
    path = os.path.join(given, name) if given else name
    if os.path.lexists(path):
        raise BadInput(f"{path} exists; choose another name with --output.")
    return path
