"""Optional dependencies: which packages each optional feature needs, and the extra that installs them."""

from collections.abc import Callable

from backburner.core.errors import BadInput

# Installs the packages of an extra and returns whether it could; set by the command line of a clone.
installer: Callable[[str], bool] | None = None

_MODULES = {
    "agent": ("pydantic_ai", "acp", "httpx2"),
    "mcp": ("uvicorn",),
    "web": ("starlette", "uvicorn", "fido2"),
    "tui": ("prompt_toolkit", "wcwidth"),
    "toml": ("tomlkit",),
    "file": ("watchfiles",),
    "github": ("httpx2",),
    "webhook": ("httpx2", "uvicorn"),
    "discord": ("discord",),
    "apprise": ("apprise",),
    "postgres": ("psycopg", "procrastinate"),
}
_EXTRAS = {"agent": "agent", "tui": "tui", "mcp": "mcp", "toml": "mcp", "web": "web", "postgres": "postgres"}


def need(part: str, what: str) -> None:
    """Raise BadInput with the install command if `part` is not installed and cannot be installed now.

    `part` is an extra, or a kind of source or channel. `what` is the start of the message, up to the verb: "Agents require".
    """
    if is_installed(part):
        return
    extra = _EXTRAS.get(part, "integrations")
    if installer is None or not installer(extra) or not is_installed(part):
        raise BadInput(f"{what} the extra `{extra}`: pip install 'backburner[{extra}]'.")


def is_installed(part: str) -> bool:
    """Return whether all packages that a part needs are installed."""
    return all(map(_is_importable, _MODULES.get(part, ())))


def _is_importable(module: str) -> bool:
    from importlib.util import find_spec  # not needed for most commands

    try:
        return find_spec(module) is not None
    except ImportError:
        return False
