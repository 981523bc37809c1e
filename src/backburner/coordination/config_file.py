"""The settings of a home, from config.toml, the environment and the command line; reloaded when the file changes."""

import contextlib
import os

from backburner.core.errors import BackburnerError, BadInput
from backburner.core.light_typing import Any
from backburner.core.settings import Config, Value, resolve
from backburner.system.home import Home, read_plain, write_atomically
from backburner.system.paths import CHECKED_CONFIG, checked_mark, stamp
from backburner.system.processes import engine_of, variables_of


class ConfigFile:
    """The current settings of one home, shared by everything in a process.

    With `tolerant`, an invalid file is not an error: `current` is what applies without the file, and `problem` says what is wrong with it.
    """

    def __init__(self, home: Home, environ: dict[str, str], flags: dict[str, str] | None = None, *, tolerant: bool = False) -> None:
        self._home, self.environ, self._flags = home, environ, flags
        self.path = home.config
        self._stamp = stamp(home.config)  # taken before the file is read, so that no change is missed
        self.problem: BackburnerError | None = None
        try:
            mark = checked_mark(home.config)
            self.current = load_config(home, environ, flags)
            _record_check(home, mark, self.current)
        except BackburnerError as error:
            if not tolerant:
                raise
            self.current = resolve(None, home.config, environ, flags)
            self.problem = error

    def reload_if_changed(self) -> bool:
        """Reload the file if it changed; returns whether it was reloaded.

        Raises BackburnerError once for an invalid file and keeps the previous settings until the file changes again.
        """
        if (current := stamp(self._home.config)) == self._stamp:
            return False
        self._stamp = current
        self.current = load_config(self._home, self.environ, self._flags)
        self.problem = None
        return True

    def engine_values(self) -> dict[str, Value]:
        """The settings that have another value in the running engine, because it was started with other variables."""
        engine = engine_of(self._home)
        if engine is None or not (variables := variables_of(engine.pid)):
            return {}
        values = load_config(self._home, variables).values
        return {name: value for name, value in values.items() if value != self.current.values[name]}


def _record_check(home: Home, mark: str, config: Config) -> None:
    """Record that config.toml is valid, so that a command that uses no settings need not read it to say that it is not."""
    path = os.path.join(home.root, CHECKED_CONFIG)
    if config.text("store.url"):
        return  # such a command would read the ledger file
    with contextlib.suppress(OSError):  # a read-only home
        if os.path.getsize(home.config) and (not os.path.exists(path) or read_plain(path, 200).decode() != mark):
            write_atomically(path, mark)


def load_config(home: Home, environ: dict[str, str], flags: dict[str, str] | None = None) -> Config:
    """Read the current settings."""
    try:
        with open(home.config, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        text = None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"Cannot read {home.config}: {error}.") from None
    return resolve(text, home.config, environ, flags, _read_rules)


def _read_rules(table: object, where: str) -> tuple[Any, ...]:
    from backburner.approval.policy import rules_from  # slow to load, and few configurations have rules

    return rules_from(table, where)
