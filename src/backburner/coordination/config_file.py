"""The settings of a home, from config.toml, the environment and the command line; reloaded when the file changes."""

from typing import Any

from backburner.core.errors import BadInput
from backburner.core.settings import Config, resolve
from backburner.system.home import Home, stamp


class ConfigFile:
    """The current settings of one home, shared by everything in a process."""

    def __init__(self, home: Home, environ: dict[str, str], flags: dict[str, str] | None = None) -> None:
        self._home, self._environ, self._flags = home, environ, flags
        self._stamp = stamp(home.config)  # taken before the file is read, so that no change is missed
        self.current = load_config(home, environ, flags)

    def reload_if_changed(self) -> bool:
        """Reload the file if it changed; returns whether it was reloaded.

        Raises BackburnerError once for an invalid file and keeps the previous settings until the file changes again.
        """
        if (current := stamp(self._home.config)) == self._stamp:
            return False
        self._stamp = current
        self.current = load_config(self._home, self._environ, self._flags)
        return True


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
