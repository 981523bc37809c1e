"""Optional dependencies: which packages each optional feature needs, and the extra that installs them."""

from backburner.core.errors import BadInput

_MODULES = {
    "agent": ("pydantic_ai", "acp", "httpx2"),
    "mcp": ("mcp", "uvicorn"),
    "tui": ("prompt_toolkit", "wcwidth"),
    "toml": ("tomlkit",),
    "file": ("watchfiles",),
    "github": ("httpx2",),
    "webhook": ("httpx2", "uvicorn"),
    "discord": ("discord",),
    "apprise": ("apprise",),
}
_EXTRAS = {"agent": "agent", "tui": "tui", "mcp": "mcp", "toml": "mcp"}


def need(part: str, what: str) -> None:
    """Raise BadInput with the install command if `part` is not installed. `part` is an extra, or a kind of source or channel.

    `what` is the start of the message, up to the verb: "Agents require".
    """
    if not is_installed(part):
        extra = _EXTRAS.get(part, "integrations")
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
