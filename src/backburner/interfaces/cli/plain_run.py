"""Parses `backburner run` without options: loading argparse, with `re` and `gettext`, takes a tenth of the time of that command."""

from types import SimpleNamespace

_WITHOUT_OPTIONS = {
    "after": (),
    "at": None,
    "batch": None,
    "cpu_time": None,
    "cwd": None,
    "description": None,
    "env": (),
    "home": None,
    "host": None,
    "in_": None,
    "json": False,
    "key": None,
    "lane": (),
    "memory": None,
    "name": None,
    "nice": None,
    "priority": "normal",
    "ready_when": None,
    "rerun": False,
    "restart": None,
    "shell": False,
    "stdin": False,
    "timeout": None,
    "tty": False,
    "wait": None,
    "yes": False,
}


def parse_plain_run(argv: list[str]) -> SimpleNamespace | None:
    """The arguments of `run -- COMMAND ARG…`, or of `run COMMAND ARG…` if no word begins with a hyphen; None for all others."""
    match argv:
        case ["run", "--", *command] if command:
            return SimpleNamespace(command=command, **_WITHOUT_OPTIONS)
        case ["run", *command] if command and not any(word.startswith("-") for word in command):
            return SimpleNamespace(command=command, **_WITHOUT_OPTIONS)
        case _:
            return None
