"""The command line: reads the words, opens the home, calls the verb, turns errors into one sentence and an exit code.

Only the parser of the verb that was asked for is built, and only what that verb needs is imported: `backburner list`
has to feel like `ls`.
"""

import argparse
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
    parser.add_argument("--cwd", metavar="DIR", help="where to run it (default: here)")
    parser.add_argument("--env", action="append", default=[], metavar="K=V", help="set a variable for it; may be given again")
    parser.add_argument("--shell", action="store_true", help="run it as a line of /bin/sh, with pipes and redirects")
    parser.add_argument("--timeout", metavar="5m", help="stop it after this long")
    _starting(parser)
    parser.add_argument("command", nargs="*", metavar="COMMAND ARG", help="the command, after `--`")


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
    parser.add_argument("--since", type=int, default=0, metavar="N", help="only after event N; -10 for the last ten")


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
    "clear": ("Forget ended tasks and their output.", _clear),
    "inbox": ("Show what ended and was not told yet.", _inbox),
    "events": ("Show everything that happened, in order.", _events),
    "serve": ("Be the engine, in the foreground.", _none),
    "config": ("Show the settings.", _config),
    "doctor": ("Check the home and say how to mend what is wrong.", _none),
    "completion": ("Print a completion script for a shell.", _completion),
}


class _Help(argparse.HelpFormatter):
    """As wide as the terminal. Left to find that out by itself it would load more than `list` needs in all."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=_columns())


def _columns() -> int:
    if width := os.environ.get("COLUMNS", "").strip():
        return int(width) if width.isdecimal() else 80
    return os.get_terminal_size(1).columns - 2 if sys.stdout.isatty() else 80


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
    common.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override a setting for this call")
    return parser


def overview() -> str:
    """What `backburner --help` says."""
    lines = [f"  {verb:<11} {about}" for verb, (about, _) in VERBS.items()]
    start = "usage: backburner VERB [OPTION]…\n\nBackground work for AI agents and the person beside them.\n"
    return "\n".join([start, *lines, "", "backburner VERB --help tells more; --home, --json and --set work with every verb."])


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
    as_json, waits = "--json" in argv, False
    try:
        before, verb, after, command = split(argv)
        if verb in (None, "help") and not {"--version", "-V"} & set(before):
            print(overview())
            return 0 if verb or {"--help", "-h"} & set(before) else 2
        if verb is None:
            from importlib.metadata import version

            print(f"backburner {version('backburner')}")
            return 0
        if verb not in VERBS:
            raise BadInput(f"There is no verb '{verb}'. See: backburner --help")
        args = verb_parser(verb).parse_args([*before, *after])
        if command:
            if verb != "run":
                raise BadInput(f"backburner {verb} takes no command after `--`.")
            args.command = [*args.command, *command]
        waits = getattr(args, "wait", None) is not None
        return _call(verb, args)
    except BackburnerError as error:
        _say(error.code, str(error), as_json)
        return 125 if waits and error.exit_code in (1, 2, 4) else error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nobody reads on: nothing is to be flushed at exit
        return 141
    except OSError as error:
        _say("os_error", f"{error.filename + ': ' if error.filename else ''}{error.strerror}.", as_json)
        return 125 if waits else 1
    except Exception as error:
        if os.environ.get("BACKBURNER_DEBUG"):
            raise
        _say("internal_error", f"Backburner made a mistake: {type(error).__name__}: {error}. BACKBURNER_DEBUG=1 shows where.", as_json)
        return 125 if waits else 1


def _call(verb: str, args: argparse.Namespace) -> int:
    if verb == "completion":
        from backburner.doors.completion import script

        print(script(args.shell))
        return 0
    flags = dict(_setting(word) for word in args.set)
    if verb in ("serve", "doctor"):
        from backburner.doors import operate

        return getattr(operate, verb)(args, flags)
    from backburner.doors import verbs
    from backburner.runtime import open_runtime

    with open_runtime(args.home, dict(os.environ), flags) as runtime:
        return getattr(verbs, "list_" if verb == "list" else verb)(runtime, args)


def _setting(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not equals:
        raise BadInput(f"--set takes SECTION.KEY=VALUE, not '{word}'.")
    return name, value


def _say(code: str, message: str, as_json: bool) -> None:
    if as_json:
        import json

        message = json.dumps({"error": {"code": code, "message": message}})
    print(message, file=sys.stderr)
