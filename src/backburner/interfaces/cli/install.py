"""`install`: adds Backburner to the configuration files of an agent's client, or removes it with `--undo`.

Shows the changes as a diff first and writes nothing without confirmation.
"""

import argparse
import difflib
import os
import re
import sys
from collections.abc import Iterator, Sequence

from backburner.core import task_text
from backburner.core.errors import NotAPerson
from backburner.core.ids import masked
from backburner.core.terminal_text import shortened, visible
from backburner.interfaces.cli.approval_prompt import can_ask
from backburner.interfaces.client_setup import wiring
from backburner.interfaces.client_setup.files import Change, apply

_MAX_LINE_CHARS = 2000
_NOT_CONFIRMED = 3
_TITLES = {"opencode": "opencode", "claude": "Claude Code", "codex": "Codex", "gemini": "Gemini CLI"}
_TRUST = {"codex": ", trust the new hooks when it asks (notices need them)"}
# A named value ("name": "value" or name = 'value'), and a long word of letters and digits that looks like an API key.
_NAMED = re.compile(r"""(["']?)([\w.-]+)\1(\s*[:=]\s*)("(?:[^"\\]|\\.)*"|'[^']*')""")
_KEY_LIKE = re.compile(r"(?<![\w/.+=-])(?=[\w+=-]*\d)(?=[\w+=-]*[A-Za-z])[\w+=-]{20,}(?![\w/.+=-])")


def install(args: argparse.Namespace, _flags: dict[str, str], environ: dict[str, str] | None = None) -> int:
    """Return 0 if the client is set up, also if it already was, and 3 without confirmation."""
    client, title, environ = args.client, _TITLES[args.client], dict(os.environ) if environ is None else environ
    found = wiring.is_found(client, environ)
    changes = wiring.plan(client, environ, wiring.own_command(environ, args.home), undo=args.undo)
    shown = "\n".join(line for change in changes for line in diff(change))
    if changes:
        if args.json and not args.yes and not can_ask():
            paths = [change.path for change in changes]
            task_text.print_json({"client": client, "changed": [], "would_change": paths, "diff": shown})
        elif not args.json or not args.yes:
            print(shown, file=sys.stderr if args.json else sys.stdout, flush=True)
        if not args.yes and not confirm():
            return _NOT_CONFIRMED
        apply(changes, undo=args.undo)
    if args.json:
        task_text.print_json({"client": client, "changed": [change.path for change in changes], "diff": shown})
        return 0
    print(_outcome(title, bool(changes), args.undo))
    if changes and not args.undo:
        if not found:
            print(f"{title} was not found on this machine; Backburner will be available once it is installed.")
        print(f"Restart {title}{_TRUST.get(client, '')}, then enter: run the tests in the background and tell me the result.")
    return 0


def diff(change: Change) -> Iterator[str]:
    """The lines of a unified diff with two lines of context. What is added is shown as it is written; secrets of the file are masked."""
    before, after = (_lines(text) for text in (change.before, change.after))
    names = [change.path if text is not None else "/dev/null" for text in (change.before, change.after)]
    for line in difflib.unified_diff(before, after, *map(visible, names), n=2, lineterm=""):
        yield shortened(visible(mask_secrets(line, change.before or "").expandtabs(4)), longest=_MAX_LINE_CHARS)


def mask_secrets(line: str, before: str) -> str:
    """A line of a diff, in which keys and passwords that the file contained `before` are masked."""

    def mask_named(match: re.Match[str]) -> str:
        quote, name, sign, value = match.groups()
        is_own = name.rpartition(".")[2].startswith("BACKBURNER_")
        is_secret = not is_own and value in before and masked({name: value})[name] != value
        return f"{quote}{name}{quote}{sign}{f'{value[0]}***{value[0]}' if is_secret else value}"

    return _KEY_LIKE.sub(lambda match: "***" if match[0] in before else match[0], _NAMED.sub(mask_named, line))


def _lines(text: str | None) -> Sequence[str]:
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def confirm() -> bool:
    """Ask at the terminal whether to change the files."""
    if not can_ask():
        raise NotAPerson(reason="the confirmation needs a terminal. Review the diff, then use --yes. Nothing was changed")
    print("Change these files? [y/N] ", end="", file=sys.stderr, flush=True)
    try:
        confirmed = sys.stdin.readline().strip().lower() in ("y", "yes")
    except KeyboardInterrupt:
        print("\nNothing was changed.", file=sys.stderr)
        raise
    if not confirmed:
        print("Nothing was changed.", file=sys.stderr)
    return confirmed


def _outcome(title: str, changed: bool, undo: bool) -> str:
    if undo:
        return f"Backburner was removed from {title}." if changed else f"Backburner is not set up in {title}; nothing to undo."
    return f"Backburner is set up in {title}." if changed else f"Backburner is already set up in {title}; nothing to change."
