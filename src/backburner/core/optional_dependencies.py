"""The parts that are installed only where they are wanted."""

from importlib.util import find_spec

from backburner.core.errors import BadInput

_WITH = {
    "agent": ("pydantic_ai", "acp", "httpx2"),
    "mcp": ("mcp", "uvicorn"),
    "tui": ("prompt_toolkit", "wcwidth"),
    "file": ("watchfiles",),
    "github": ("httpx2",),
    "webhook": ("httpx2", "uvicorn"),
    "discord": ("discord",),
    "apprise": ("apprise",),
}


def need(part: str, what: str) -> None:
    """BadInput, with how to get it, where something is wanted that is not installed. `part` is an extra, or a kind of source or channel."""
    if not all(map(_found, _WITH.get(part, ()))):
        extra = part if part in ("agent", "mcp", "tui") else "post"
        raise BadInput(f"{what} the extra `{extra}`: pip install 'backburner[{extra}]'.")


def _found(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:
        return False
