"""The parts that are installed only where they are wanted."""

from importlib.util import find_spec

from backburner.core.errors import BadInput

_WITH = {
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
    """BadInput, with how to get it, where something is wanted that is not installed. `part` is an extra, or a kind of source or channel."""
    if not is_installed(part):
        extra = _EXTRAS.get(part, "integrations")
        raise BadInput(f"{what} the extra `{extra}`: pip install 'backburner[{extra}]'.")


def is_installed(part: str) -> bool:
    """Whether everything that a part needs is installed."""
    return all(map(_found, _WITH.get(part, ())))


def _found(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:
        return False
