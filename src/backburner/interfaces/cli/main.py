"""The command line: parses the arguments, opens the home, runs the command, and turns errors into a message and an exit code.

To start fast, a call builds only the parser of its own command and imports only what that command needs.
"""

import contextlib
import gc
import os
import sys

from backburner.core import optional_dependencies
from backburner.core.errors import BackburnerError, BadInput
from backburner.core.light_typing import TYPE_CHECKING
from backburner.interfaces.cli.plain_run import parse_plain_run

if TYPE_CHECKING:
    import argparse
    from types import ModuleType, SimpleNamespace

    from backburner.services.app import App

# The module of each command; those that are not here are in `cli.tasks`.
_COMMAND_MODULES = {
    **dict.fromkeys(("run", "restart"), "cli.run"),
    **dict.fromkeys(("logs", "send", "events"), "cli.logs"),
    **dict.fromkeys(("apply", "check", "trust", "audit"), "cli.approval"),
    **dict.fromkeys(("ask", "resume", "agents", "sessions"), "cli.agents"),
    **dict.fromkeys(("add", "propose", "edit", "pause", "unpause", "run-now", "compact"), "cli.recurring"),
    **dict.fromkeys(("backup", "export"), "cli.backup"),
    "devices": "cli.web",
    "fetch": "cli.fetch",
    "hosts": "cli.hosts",
    "inbox": "cli.inbox",
    "traces": "cli.traces",
    "top": "tui.top",
}
# The same for commands that open the home themselves or do not need one.
_COMMANDS_WITHOUT_HOME = {
    **dict.fromkeys(("serve", "doctor"), "cli.serve"),
    "web": "cli.web",
    "restore": "cli.backup",
    **dict.fromkeys(("join", "migrate", "worker"), "cli.hosts"),
    "mcp": "mcp.stdio",
    "chat": "tui.chat.command",
    "install": "cli.install",
    "setup": "cli.setup",
    "service": "cli.systemd",
}
_USES_ENGINE_SETTINGS = ("run", "restart", "ask", "resume", "add", "run-now")
_GC_THRESHOLD = 50_000  # most commands end before they have so many objects, and then a collection is a waste of time
# With an invalid config.toml, these commands use the default settings. They start nothing, so that no rule of the file is bypassed.
_TOLERANT = frozenset(
    ("list", "status", "logs", "wait", "cancel", "inbox", "brief", "batch", "events", "traces", "audit", "pause", "backup", "export")
)


def main(argv: list[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    argv = sys.argv[1:] if argv is None else argv
    _restore_streams()
    optional_dependencies.installer = _install_extra
    try:
        code = _main(argv)
        sys.stdout.flush()
        return code
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        return report(error, argv)


def report(error: BaseException, argv: list[str]) -> int:
    """Print an error that ended a command, and return the exit code."""
    own_arguments = argv[: argv.index("--")] if "--" in argv else argv
    as_json, waits = "--json" in own_arguments, any(word == "--wait" or word.startswith("--wait=") for word in own_arguments)
    match error:
        case SystemExit():  # argparse, after --help
            sys.stdout.flush()
            return int(error.code or 0)
        case BackburnerError():
            _print_error(error, as_json)
            return 125 if waits and error.exit_code in (1, 2, 4) else error.exit_code
        case KeyboardInterrupt():
            return 130
        case BrokenPipeError():
            discard_stdout()  # the reader has closed the pipe
            return 141
        case Exception() if not os.environ.get("BACKBURNER_DEBUG"):
            discard_stdout()
            _print_error(_to_backburner_error(error), as_json)
            return 125 if waits else 1
        case _:
            raise error


def _install_extra(extra: str) -> bool:
    from backburner.interfaces.cli.setup import install

    return install(extra)


def _to_backburner_error(error: Exception) -> BackburnerError:
    """The message for an exception that no code above handled."""
    match error:
        case OSError():
            return BackburnerError(f"{error.filename}: {error.strerror}." if error.filename else f"{error.strerror}.")
        case UnicodeEncodeError():
            return BadInput("The input is not valid UTF-8.")
        case _:
            return BackburnerError(
                f"Internal error: {type(error).__name__}: {error}. Run again with BACKBURNER_DEBUG=1 for a traceback, and please report it."
            )


def _restore_streams() -> None:
    """Reopen standard streams that the caller has closed, so that files opened later do not get their descriptors."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            setattr(sys, name, open(number, mode, closefd=False))


def discard_stdout() -> None:
    """Drop buffered output that cannot be written, so that Python reports no error for it at exit."""
    with contextlib.suppress(OSError, ValueError):
        empty = os.open(os.devnull, os.O_WRONLY)
        os.dup2(empty, 1)
        os.close(empty)
        sys.stdout.flush()


def _main(argv: list[str]) -> int:
    if (plain := parse_plain_run(argv)) is not None:
        return _run("run", plain)
    from backburner.interfaces.cli import arguments

    before, verb, *_ = arguments.split(argv)
    if verb is None:
        return _run_without_command(before)
    if verb == "help":
        return _print_overview()
    return _run(verb, arguments.parse(argv))


def _run_without_command(options: list[str]) -> int:
    match options:
        case [] | ["-h"] | ["--help"]:
            _print_overview()
            return 0 if options else 2
        case ["-V"] | ["--version"]:
            from backburner.core.version import VERSION

            print(f"backburner {VERSION}")
            return 0
        case _:
            raise BadInput(f"No command given with {' '.join(options)}. See: backburner --help")


def _print_overview() -> int:
    from backburner.interfaces.cli.help import overview

    print(overview())
    return 0


def _run(verb: str, args: "argparse.Namespace | SimpleNamespace") -> int:
    if verb == "completion":
        from backburner.interfaces.cli.completion import script

        print(script(args.shell))
        return 0
    flags = dict(_parse_setting(word) for word in getattr(args, "set", []))
    if verb in _COMMANDS_WITHOUT_HOME:
        gc.enable()
        return getattr(_interface(_COMMANDS_WITHOUT_HOME[verb]), verb)(args, flags)
    from backburner.services.app import open_app
    from backburner.system.caller_identity import current_caller

    module = _interface(_COMMAND_MODULES.get(verb, "cli.tasks"))
    gc.set_threshold(_GC_THRESHOLD)
    gc.enable()  # the launcher turns it off while modules load
    environ = dict(os.environ)
    with open_app(args.home, environ, flags, tolerant=verb in _TOLERANT) as app:
        app.ask_password_with(ask_password)
        if problem := app.config_file.problem:
            from backburner.core.formatting import sentence

            print(f"Warning: {sentence(str(problem))} The default settings are used.", file=sys.stderr)
        if sys.stdin.isatty():
            app.sessions.record_activity("cli")
        if verb in _USES_ENGINE_SETTINGS and any(origin.startswith("BACKBURNER_") for origin in app.config.origins.values()):
            _warn_of_ignored_settings(app)
        return getattr(module, "list_" if verb == "list" else verb.replace("-", "_"))(app, current_caller("cli", environ), args)


def ask_password(user: str) -> str | None:
    """Ask for the password of a database user at the terminal, which is never stored; None without a terminal."""
    from getpass import getpass

    try:
        with open("/dev/tty", "w") as terminal:
            return getpass(f"Password of the database user {user}: ", terminal)
    except OSError:
        return None


def _interface(name: str) -> "ModuleType":
    """A module of `interfaces`. Like `importlib.import_module`, without loading `importlib`."""
    __import__(f"backburner.interfaces.{name}")
    return sys.modules[f"backburner.interfaces.{name}"]


def _warn_of_ignored_settings(app: "App") -> None:
    """Say which variables have no effect, because an engine that was started without them is running."""
    for name, value in app.config_file.engine_values().items():
        if (variable := app.config.origins[name]).startswith("BACKBURNER_"):
            where = "set it in config.toml, which the engine reloads"
            print(f"{variable} has no effect: the running engine uses {name} = {value}; {where}.", file=sys.stderr)


def _parse_setting(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not equals:
        raise BadInput(f"--set takes SECTION.KEY=VALUE, not '{word}'.")
    return name, value


def _print_error(error: BackburnerError, as_json: bool) -> None:
    message = str(error)
    if as_json:
        import json

        details = {"task_id": error.fields["task_id"]} if "task_id" in error.fields else {}
        message = json.dumps({"error": {"code": error.code, "message": message, **details}})
    with contextlib.suppress(OSError):
        print(message, file=sys.stderr, flush=True)
