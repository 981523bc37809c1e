"""The command line: reads the words, opens the home, calls the verb, turns errors into one sentence and an exit code.

Only the parser of the verb that was asked for is built, and only what that verb needs is imported: `backburner list`
has to feel like `ls`.
"""

import argparse
import contextlib
import gc
import os
import sys
from importlib import import_module
from typing import NoReturn

from backburner.core.errors import BackburnerError, BadInput
from backburner.interfaces.cli.parsers import VERBS, Parser

# The module of each command; those that are not here are in `cli.tasks`.
_COMMAND_MODULES = {
    **dict.fromkeys(("run", "restart"), "cli.run"),
    **dict.fromkeys(("logs", "send", "events"), "cli.logs"),
    **dict.fromkeys(("check", "trust", "audit"), "cli.approval"),
    **dict.fromkeys(("ask", "resume", "agents", "sessions"), "cli.agents"),
    **dict.fromkeys(("add", "propose", "pause", "unpause", "run-now", "compact"), "cli.recurring"),
    "inbox": "cli.inbox",
    "traces": "cli.traces",
    "top": "tui.top",
}
# The same for commands that open the home themselves, or need none.
_COMMANDS_WITHOUT_HOME = {
    **dict.fromkeys(("serve", "doctor"), "cli.serve"),
    "mcp": "mcp.stdio",
    "chat": "tui.chat.command",
    "install": "cli.install",
    "service": "cli.systemd",
}
_TAKES_COMMAND = ("run", "check", "add", "propose")
# Elsewhere it is the engine that goes by the settings, and a flag of one call would silently do nothing.
TAKES_SETTINGS = ("serve", "config", "clear", "doctor", "mcp", "chat")


# Its words are not translated: looking for translations would take as long as much of `list`.
setattr(argparse, "_", str)  # noqa: B010


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
        problem = f"{message[0].upper()}{message[1:]}."
        raise BadInput(f"{problem} See: {self.prog} --help", problem=problem)


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
    if verb in ("run", "check") and "--" not in argv and not {"-h", "--help"} & set(after):
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
        from backburner.interfaces.cli.completion import script

        print(script(args.shell))
        return 0
    flags = dict(_setting(word) for word in getattr(args, "set", []))
    if verb in _COMMANDS_WITHOUT_HOME:
        gc.enable()
        return getattr(import_module(f"backburner.interfaces.{_COMMANDS_WITHOUT_HOME[verb]}"), verb)(args, flags)
    from backburner.services.app import open_app
    from backburner.system.caller_identity import current_caller

    module = import_module(f"backburner.interfaces.{_COMMAND_MODULES.get(verb, 'cli.tasks')}")
    gc.enable()  # the launcher turns it off for as long as modules load
    environ = dict(os.environ)
    with open_app(args.home, environ, flags) as app:
        if sys.stdin.isatty():
            app.sessions.record_activity("cli")
        return getattr(module, "list_" if verb == "list" else verb.replace("-", "_"))(app, current_caller("cli", environ), args)


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
