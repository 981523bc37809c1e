"""The entry point of the command `backburner`: `short_reads` if it knows the answer, else the ordinary command line in `main`.

Imports as little as possible, because every call pays for it.
"""

import os
import sys

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import NoReturn

_SHORT = ("list", "status", "logs", "inbox", "--home")


def run() -> "NoReturn":
    """Run the command line of this process, and exit."""
    _leave(main())


def main(argv: list[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        if argv and argv[0] in _SHORT and _answer_shortly(argv):
            return 0
    except KeyboardInterrupt:
        return 130
    except OSError as error:  # the output could not be written
        from backburner.interfaces.cli.main import report

        return report(error, argv)
    from backburner.interfaces.cli.main import main

    return main(argv)


def _answer_shortly(argv: list[str]) -> bool:
    """Print the answer of `short_reads`; False if it has none."""
    try:
        from backburner.interfaces.cli.short_reads import answer
    except ImportError:
        return False
    if (shown := answer(argv, os.environ)) is None:
        return False
    output, hint = shown
    if isinstance(output, bytes):
        sys.stdout.buffer.write(output)
        sys.stdout.buffer.flush()
        return True
    try:
        sys.stdout.write(output)
    except UnicodeEncodeError:
        return False  # nothing was written
    sys.stderr.write(hint)
    sys.stdout.flush()
    return True


def _leave(code: int) -> "NoReturn":
    """Exit without the work that Python does at the end of a process, which takes a tenth of a `backburner list`."""
    import atexit

    threading = sys.modules.get("threading")
    if atexit._ncallbacks() or (threading and threading.active_count() > 1):
        sys.exit(code)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        sys.exit(code)
    os._exit(code)
