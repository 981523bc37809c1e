"""`install`: shows what would change in a coding agent's own files so that it knows Backburner, asks, and changes just that;
`--undo` takes it back. Writes nothing without a yes.
"""

import argparse
import difflib
import os
import re
import sys
from collections.abc import Iterator, Sequence

from backburner.core import task_text as render
from backburner.core.errors import NotAPerson
from backburner.core.ids import masked
from backburner.core.terminal_text import shortened, visible
from backburner.interfaces.cli.approval_prompt import can_ask
from backburner.interfaces.client_setup import wiring
from backburner.interfaces.client_setup.files import Change, apply

_LONGEST_LINE = 2000
_NOT_AGREED = 3
_TITLES = {"opencode": "opencode", "claude": "Claude Code", "codex": "Codex", "gemini": "Gemini CLI"}
_TRUST = {"codex": ", trust the new hooks when it asks (without that it is told nothing)"}
# "name": "value" or name = 'value', and a long word of letters and digits as only keys have it.
_NAMED = re.compile(r"""(["']?)([\w.-]+)\1(\s*[:=]\s*)("(?:[^"\\]|\\.)*"|'[^']*')""")
_KEY_LIKE = re.compile(r"(?<![\w/.+=-])(?=[\w+=-]*\d)(?=[\w+=-]*[A-Za-z])[\w+=-]{20,}(?![\w/.+=-])")


def install(args: argparse.Namespace, _flags: dict[str, str], environ: dict[str, str] | None = None) -> int:
    """Exit 0 when it is done or was so already, 3 without a yes."""
    client, title, environ = args.client, _TITLES[args.client], dict(os.environ) if environ is None else environ
    found = wiring.is_found(client, environ)
    changes = wiring.plan(client, environ, wiring.own_command(environ, args.home), undo=args.undo)
    shown = "\n".join(line for change in changes for line in diff(change))
    if changes:
        if not args.json or not args.yes:
            print(shown, file=sys.stderr if args.json else sys.stdout, flush=True)
        if not args.yes and not agreed():
            return _NOT_AGREED
        apply(changes, undo=args.undo)
    if args.json:
        render.print_json({"client": client, "changed": [change.path for change in changes], "diff": shown})
        return 0
    print(_outcome(title, bool(changes), args.undo))
    if changes and not args.undo:
        if not found:
            print(f"{title} was not found on this machine; it will know Backburner once it is there.")
        print(f"Restart {title}{_TRUST.get(client, '')}, then say: run the tests in the background and tell me.")
    return 0


def diff(change: Change) -> Iterator[str]:
    """What changes in a file, with little around it; values that look secret are hidden."""
    before, after = (_lines(text) for text in (change.before, change.after))
    names = [change.path if text is not None else "/dev/null" for text in (change.before, change.after)]
    for line in difflib.unified_diff(before, after, *map(visible, names), n=2, lineterm=""):
        yield shortened(visible(discreet(line).expandtabs(4)), longest=_LONGEST_LINE)


def discreet(line: str) -> str:
    """A line of somebody's settings without what looks like a key or a password in it."""
    line = _NAMED.sub(lambda found: f"{found[1]}{found[2]}{found[1]}{found[3]}{_hidden(found[2], found[4])}", line)
    return _KEY_LIKE.sub("***", line)


def _hidden(name: str, value: str) -> str:
    return value if masked({name: value})[name] == value else f"{value[0]}***{value[0]}"


def _lines(text: str | None) -> Sequence[str]:
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def agreed() -> bool:
    if not can_ask():
        raise NotAPerson(reason="there is no terminal to ask at, so give --yes after a look at the diff; nothing was changed")
    print("Change these files? [y/N] ", end="", file=sys.stderr, flush=True)
    try:
        agreed = sys.stdin.readline().strip().lower() in ("y", "yes")
    except KeyboardInterrupt:
        print("\nNothing was changed.", file=sys.stderr)
        raise
    if not agreed:
        print("Nothing was changed.", file=sys.stderr)
    return agreed


def _outcome(title: str, changed: bool, undo: bool) -> str:
    if undo:
        return f"{title} does not know Backburner any more." if changed else f"{title} does not know Backburner; nothing to undo."
    return f"{title} knows Backburner now." if changed else f"{title} knows Backburner already; nothing to change."
