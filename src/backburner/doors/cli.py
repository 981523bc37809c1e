"""The command line: reads the words, opens the home, calls the verb, turns errors into one sentence and an exit code.

Only the parser of the verb that was asked for is built, and only what that verb needs is imported: `backburner list`
has to feel like `ls`.
"""

import argparse
import contextlib
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from backburner.errors import BackburnerError, BadInput

Parser = argparse.ArgumentParser


def _ids(parser: Parser, many: bool = True, optional: bool = False) -> None:
    about = "an id, a unique part of one, a label, or `last`"
    parser.add_argument("id", nargs=("*" if optional else "+") if many else None, metavar="ID", help=about)


def _starting(parser: Parser) -> None:
    parser.add_argument(
        "--wait",
        nargs="?",
        const=True,
        type=_seconds,
        metavar="SECONDS",
        help="follow the output to the end and exit with the command's code; with SECONDS leave it in the background after that",
    )
    parser.add_argument("--yes", action="store_true", help="approve it here and now; never overrides a deny")


def _run(parser: Parser) -> None:
    parser.usage = "backburner run [OPTION]… -- COMMAND ARG…"
    parser.add_argument("--name", metavar="LABEL", help="a label; it becomes part of the id and can be used for it")
    parser.add_argument("--description", metavar="TEXT", help="what it is for, shown in lists and notices")
    parser.add_argument("--timeout", metavar="5m", help="stop it after this long")
    _starting(parser)
    _what(parser)


def _what(parser: Parser) -> None:
    parser.add_argument("--cwd", metavar="DIR", help="where it would run (default: here)")
    parser.add_argument("--env", action="append", default=[], metavar="K=V", help="set a variable for it; may be given again")
    parser.add_argument("--shell", action="store_true", help="as a line of /bin/sh, with pipes and redirects")
    parser.add_argument("command", nargs="*", metavar="COMMAND ARG", help="the command, after `--`")


def _check(parser: Parser) -> None:
    parser.usage = "backburner check [OPTION]… -- COMMAND ARG…"
    _what(parser)


def _trust(parser: Parser) -> None:
    parser.add_argument("folder", nargs="?", metavar="DIR", help="a folder of the project (default: this one)")
    parser.add_argument("--list", action="store_true", help="show what was said for good")
    parser.add_argument("--revoke", type=_count, metavar="N", help="take grant N back")


def _audit(parser: Parser) -> None:
    parser.add_argument("--here", action="store_true", help="only of this project")
    parser.add_argument("--limit", type=_count, default=100, metavar="N", help="how many at the most, 0 for all (default: 100)")


def _list(parser: Parser) -> None:
    parser.add_argument(
        "status", nargs="?", metavar="STATUS", help="only those: pending, running, completed, failed, cancelled, proposed …"
    )
    parser.add_argument("--all", action="store_true", help="of all projects, not only of this one")
    parser.add_argument("--limit", type=_count, metavar="N", help="how many at the most, 0 for all (default: 200)")


def _status(parser: Parser) -> None:
    _ids(parser, many=False)


def _logs(parser: Parser) -> None:
    _ids(parser, many=False)
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the task has ended")
    parser.add_argument("--tail", type=_count, metavar="N", help="only the last N lines")
    parser.add_argument("--raw", action="store_true", help="with the header that says what ran")


def _wait(parser: Parser) -> None:
    _ids(parser)
    parser.add_argument("--timeout", type=_seconds, metavar="S", help="give up after S seconds, with exit code 124")


def _restart(parser: Parser) -> None:
    _ids(parser, many=False)
    _starting(parser)


def _clear(parser: Parser) -> None:
    _ids(parser, optional=True)
    parser.add_argument("--ended", action="store_true", help="everything that has ended in this project")
    parser.add_argument("--all", action="store_true", help="with --ended: in all projects")
    parser.add_argument("--old", action="store_true", help="everything past its retention")


def _inbox(parser: Parser) -> None:
    parser.add_argument("--ack", action="store_true", help="mark what is shown as read")
    parser.add_argument("--read", action="store_true", help="show what was read before, too")
    parser.add_argument("--here", action="store_true", help="only of this project")


def _events(parser: Parser) -> None:
    parser.add_argument("-f", "--follow", action="store_true", help="go on as things happen")
    parser.add_argument("--since", type=_event_number, default=0, metavar="N", help="only after event N; -10 for the last ten")


def _config(parser: Parser) -> None:
    parser.add_argument("what", choices=["show"], help="every setting, its value, and where that came from")


def _completion(parser: Parser) -> None:
    parser.add_argument("shell", choices=["bash", "zsh", "fish"])


def _none(_: Parser) -> None:
    return


VERBS: dict[str, tuple[str, Callable[[Parser], None]]] = {
    "run": ("Start a command in the background and print its id.", _run),
    "list": ("Show the tasks of this project.", _list),
    "status": ("Show everything about one task.", _status),
    "logs": ("Print a task's output.", _logs),
    "wait": ("Wait for tasks to end; exit 1 if one did not complete.", _wait),
    "cancel": ("Stop tasks, and say so only once nothing of them is left.", _ids),
    "restart": ("Start a task's command again, as a new task.", _restart),
    "approve": ("Say yes to what waits for approval.", _ids),
    "reject": ("Say no to what waits for approval.", _ids),
    "check": ("Say what the gate would say to a command; run nothing.", _check),
    "trust": ("Let the code of this project run without asking, from now on.", _trust),
    "audit": ("Show who said yes to what, and by which rule.", _audit),
    "clear": ("Forget ended tasks and their output.", _clear),
    "inbox": ("Show what ended and was not told yet.", _inbox),
    "events": ("Show everything that happened, in order.", _events),
    "serve": ("Be the engine, in the foreground.", _none),
    "config": ("Show the settings.", _config),
    "doctor": ("Check the home and say how to mend what is wrong.", _none),
    "completion": ("Print a completion script for a shell.", _completion),
}


_TAKES_COMMAND = ("run", "check")
# Elsewhere it is the engine that goes by the settings, and a flag of one call would silently do nothing.
TAKES_SETTINGS = ("serve", "config", "clear", "doctor")


class _Help(argparse.HelpFormatter):
    """As wide as the terminal. Left to find that out by itself it would load more than `list` needs in all."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=_columns())


def _columns() -> int:
    width = os.environ.get("COLUMNS", "").strip()
    if width.isdecimal() and len(width) < 5:
        return max(40, int(width))
    return (os.get_terminal_size(1).columns or 82) - 2 if sys.stdout.isatty() else 80


class _Parser(Parser):
    """Says what is wrong in one sentence."""

    def error(self, message: str) -> NoReturn:
        raise BadInput(f"{message[0].upper()}{message[1:]}. See: {self.prog} --help")


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e8:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of seconds")
    return value


def _event_number(text: str) -> int:
    return -_count(text[1:]) if text.startswith("-") else _count(text)


def _count(text: str) -> int:
    if not text.isdecimal() or len(text) > 12:
        raise argparse.ArgumentTypeError(f"'{text}' is not a count")
    return int(text)


def verb_parser(verb: str) -> Parser:
    """The parser of one verb, with the options that every verb has."""
    about, build = VERBS[verb]
    parser = _Parser(prog=f"backburner {verb}", description=about, allow_abbrev=False, formatter_class=_Help)
    build(parser)
    common = parser.add_argument_group("everywhere")
    common.add_argument("--home", metavar="DIR", help="the home to use (default: $BACKBURNER_HOME, else ~/.backburner)")
    common.add_argument("--json", action="store_true", help="print JSON")
    if verb in TAKES_SETTINGS:
        common.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override a setting for this call")
    return parser


_MORE = """Start with: backburner run --wait -- echo hello
What is not known to be harmless asks at the terminal first; without one it waits for: backburner approve ID
backburner VERB --help tells more; --home DIR and --json work with every verb."""


def overview() -> str:
    """What `backburner --help` says."""
    lines = [f"  {verb:<11} {about}" for verb, (about, _) in VERBS.items()]
    start = "usage: backburner VERB [OPTION]…\n\nBackground work for AI agents and the person beside them.\n"
    return "\n".join([start, *lines, "", _MORE])


def split(argv: list[str]) -> tuple[list[str], str | None, list[str], list[str]]:
    """Options before the verb, the verb, the words after it, and everything behind `--`."""
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


def main(argv: list[str] | None = None) -> int:
    """Run one command line; the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    ours = argv[: argv.index("--")] if "--" in argv else argv
    as_json, waits = "--json" in ours, any(word == "--wait" or word.startswith("--wait=") for word in ours)
    _restore_streams()
    try:
        code = _main(argv)
        sys.stdout.flush()
        return code
    except SystemExit as done:  # argparse, after --help
        sys.stdout.flush()
        return int(done.code or 0)
    except BackburnerError as error:
        _say(error, as_json)
        return 125 if waits and error.exit_code in (1, 2, 4) else error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _forget_stdout()  # nobody reads on
        return 141
    except Exception as error:
        if os.environ.get("BACKBURNER_DEBUG"):
            raise
        _forget_stdout()
        _say(_unexpected(error), as_json)
        return 125 if waits else 1


def _unexpected(error: Exception) -> BackburnerError:
    """An error nobody foresaw, in one sentence all the same."""
    match error:
        case OSError():
            return BackburnerError(f"{error.filename}: {error.strerror}." if error.filename else f"{error.strerror}.")
        case UnicodeEncodeError():
            return BadInput("That holds bytes that are not valid UTF-8.")
        case _:
            return BackburnerError(f"Backburner made a mistake: {type(error).__name__}: {error}. BACKBURNER_DEBUG=1 shows where.")


def _restore_streams() -> None:
    """A caller may have closed any of the three; what is opened next must not take their place."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            setattr(sys, name, open(number, mode, closefd=False))


def _forget_stdout() -> None:
    """Whatever is still in the buffer cannot be written and must not be complained about at exit."""
    with contextlib.suppress(OSError, ValueError):
        empty = os.open(os.devnull, os.O_WRONLY)
        os.dup2(empty, 1)
        os.close(empty)
        sys.stdout.flush()


def _main(argv: list[str]) -> int:
    before, verb, after, command = split(argv)
    if verb is None:
        return _without_verb(before)
    if verb == "help":
        print(overview())
        return 0
    if verb not in VERBS:
        raise BadInput(f"There is no verb '{verb}'. See: backburner --help")
    if verb in _TAKES_COMMAND and "--" not in argv and not {"-h", "--help"} & set(after):
        raise BadInput(f"Put the command after `--`: backburner {verb} [OPTION]… -- COMMAND ARG…")
    args = verb_parser(verb).parse_args([*before, *after])
    if command:
        if verb not in _TAKES_COMMAND:
            raise BadInput(f"backburner {verb} takes no command after `--`.")
        args.command = [*args.command, *command]
    return _call(verb, args)


def _without_verb(options: list[str]) -> int:
    match options:
        case [] | ["-h"] | ["--help"]:
            print(overview())
            return 0 if options else 2
        case ["-V"] | ["--version"]:
            from importlib.metadata import version

            print(f"backburner {version('backburner')}")
            return 0
        case _:
            raise BadInput(f"What should be done? There is no verb beside {' '.join(options)}. See: backburner --help")


def _call(verb: str, args: argparse.Namespace) -> int:
    if verb == "completion":
        from backburner.doors.completion import script

        print(script(args.shell))
        return 0
    flags = dict(_setting(word) for word in getattr(args, "set", []))
    if verb in ("serve", "doctor"):
        from backburner.doors import operate

        return getattr(operate, verb)(args, flags)
    from backburner.runtime import open_runtime

    if verb in ("check", "trust", "audit"):
        from backburner.doors import gatehouse as door
    else:
        from backburner.doors import verbs as door
    with open_runtime(args.home, dict(os.environ), flags) as runtime:
        return getattr(door, "list_" if verb == "list" else verb)(runtime, args)


def _setting(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not equals:
        raise BadInput(f"--set takes SECTION.KEY=VALUE, not '{word}'.")
    return name, value


def _say(error: BackburnerError, as_json: bool) -> None:
    message = str(error)
    if as_json:
        import json

        about = {"task_id": error.fields["task_id"]} if "task_id" in error.fields else {}
        message = json.dumps({"error": {"code": error.code, "message": message, **about}})
    with contextlib.suppress(OSError):
        print(message, file=sys.stderr, flush=True)
