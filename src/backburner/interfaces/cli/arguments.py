"""Parses the arguments of a command line with argparse. `plain_run.py` parses the most frequent ones without it."""

import argparse
import os
import sys

from backburner.core.errors import BadInput
from backburner.core.light_typing import TYPE_CHECKING, NoReturn
from backburner.interfaces.cli.parsers import VERBS, Parser

if TYPE_CHECKING:
    from collections.abc import Iterable

TAKES_COMMAND = ("run", "check", "add", "propose", "edit")
# Other commands do not take --set: the engine applies the settings, so an override for one call would have no effect.
TAKES_SETTINGS = ("serve", "web", "config", "clear", "doctor", "mcp", "chat")


# argparse looks up translations of its messages; that lookup would noticeably slow down `list`.
setattr(argparse, "_", str)  # noqa: B010


class _Help(argparse.HelpFormatter):
    """Formats help to the width of the terminal. The default formatter imports `shutil` to find that width, which is slow."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=_columns())

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)  # examples keep their lines


def _columns() -> int:
    width = os.environ.get("COLUMNS", "").strip()
    if width.isdecimal() and len(width) < 5:
        return max(40, int(width))
    return (os.get_terminal_size(1).columns or 82) - 2 if sys.stdout.isatty() else 80


class _Parser(Parser):
    """Raises BadInput instead of exiting, and prints examples at the end of the help."""

    def format_help(self) -> str:
        from backburner.interfaces.cli.help import examples

        self.epilog = examples(self.prog.removeprefix("backburner "))
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        problem = f"{message[0].upper()}{message[1:]}."
        if message.startswith("unrecognized arguments: -"):
            option = message.removeprefix("unrecognized arguments: ").split()[0].partition("=")[0]
            problem += _suggestion(option, self._option_string_actions)
        raise BadInput(f"{problem} See: {self.prog} --help", problem=problem)


def _suggestion(word: str, known: "Iterable[str]") -> str:
    """What the user may have meant, as a sentence."""
    import difflib

    near = difflib.get_close_matches(word, known, 1, 0.7)
    return f" Did you mean {near[0]}?" if near else ""


def verb_parser(verb: str) -> Parser:
    """The parser of one command, including the global options."""
    description, add_arguments = VERBS[verb]
    parser = _Parser(prog=f"backburner {verb}", description=description, allow_abbrev=False, formatter_class=_Help)
    add_arguments(parser)
    common = parser.add_argument_group("global options")
    common.add_argument("--home", metavar="DIR", help="data directory (default: $BACKBURNER_HOME, else ~/.backburner)")
    common.add_argument("--json", action="store_true", help="print JSON")
    if verb in TAKES_SETTINGS:
        common.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override a setting for this call")
    return parser


def split(argv: list[str]) -> tuple[list[str], str | None, list[str], list[str]]:
    """The options before the name of our command, the name, the arguments after it, and everything after `--`."""
    words, command = (argv[: argv.index("--")], argv[argv.index("--") + 1 :]) if "--" in argv else (argv, [])
    before: list[str] = []
    rest = iter(words)
    for word in rest:
        if not word.startswith("-"):
            return before, word, list(rest), command
        before.append(word)
        if word in ("--home", "--set"):
            before += [next(rest, "")]
    return before, None, [], command


def parse(argv: list[str]) -> argparse.Namespace:
    """Parse a command line that has the name of a command."""
    before, verb, after, command = split(argv)
    if verb not in VERBS:
        raise BadInput(f"Unknown command '{verb}'.{_suggestion(str(verb), VERBS)} See: backburner --help")
    parser = verb_parser(verb)
    if verb in ("run", "check") and "--" not in argv:
        after, command = _split_at_command(parser, after)
    args = parser.parse_args([*before, *after])
    if command:
        if verb not in TAKES_COMMAND:
            raise BadInput(f"backburner {verb} does not take a command after `--`.")
        args.command = [*args.command, *command]
    return args


def _split_at_command(parser: Parser, words: list[str]) -> tuple[list[str], list[str]]:
    """Split arguments without `--` at the first word that is not an option or the value of one: there the command begins."""
    options = {name: action for action in parser._actions for name in action.option_strings}
    position = 0
    while position < len(words) and words[position].startswith("-"):
        action, following = options.get(words[position]), "".join(words[position + 1 : position + 2])
        if action and (action.nargs is None or (action.nargs == "?" and following.replace(".", "", 1).isdecimal())):
            position += 1
        position += 1
    own, command = words[:position], words[position:]
    if own_option := next((word for word in command if word.partition("=")[0] in options), None):
        raise BadInput(f"{own_option} could be an option of {parser.prog} or of {command[0]}. Write `--` before the command.")
    return own, command
