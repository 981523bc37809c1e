"""The settings of a home, from its config.toml, the environment and the command line; read again when the file changes."""

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
        """Read the file again if it changed; True if the settings did.

        BackburnerError for an invalid file, once: the settings stay as they are until the file changes again.
        """
        if (seen := stamp(self._home.config)) == self._stamp:
            return False
        self._stamp = seen
        self.current = load_config(self._home, self._environ, self._flags)
        return True


def load_config(home: Home, environ: dict[str, str], flags: dict[str, str] | None = None) -> Config:
    """The settings as they are now."""
    try:
        with open(home.config, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        text = None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{home.config} cannot be read: {error}.") from None
    return resolve(text, home.config, environ, flags, _read_rules)


def _read_rules(table: object, where: str) -> tuple[Any, ...]:
    from backburner.approval.policy import rules_from  # heavy, and few have rules of their own

    return rules_from(table, where)
