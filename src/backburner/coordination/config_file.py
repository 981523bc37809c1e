"""Reads the settings of a home from its config.toml, the environment and the command line."""

from typing import Any

from backburner.core.errors import BadInput
from backburner.core.settings import Config, resolve
from backburner.system.home import Home


def load_config(home: Home, environ: dict[str, str], flags: dict[str, str] | None = None) -> Config:
    """The settings as they stand now."""
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
