"""A model from its name: any that pydantic-ai knows, one behind an OpenAI-compatible server, and a second one to fall back on."""

import contextlib
import os
from collections.abc import Generator
from typing import Any

from pydantic_ai.models import Model, infer_model

from backburner.errors import BadInput

_HANDED_ON = ("_API_KEY", "_BASE_URL", "_API_BASE", "_API_TOKEN", "_REGION", "_PROJECT", "_HOST")
_OLLAMA = "http://127.0.0.1:11434/v1"


def model_of(settings: dict[str, str], environ: dict[str, str], timeout: float) -> Model:
    """The model that an agent's settings name; the keys come from the environment of whoever asked."""
    first = _one(settings["model"], settings, environ, timeout)
    if not settings.get("fallback"):
        return first
    from pydantic_ai.models.fallback import FallbackModel

    # Where one server is, and what its key is called, says nothing of another.
    other = {key: settings.get(f"fallback_{key}", "") for key in ("base_url", "api_key_env")}
    return FallbackModel(first, _one(settings["fallback"], other, environ, timeout))


def escalated(settings: dict[str, str]) -> dict[str, str]:
    """The settings of an agent that goes on with its second model alone."""
    other = {key: settings.get(f"fallback_{key}", "") for key in ("base_url", "api_key_env")}
    return {**settings, **other, "model": settings["fallback"], "fallback": ""}


def _one(name: str, settings: dict[str, str], environ: dict[str, str], timeout: float) -> Model:
    kind, _, rest = name.partition(":")
    base = settings.get("base_url") or (environ.get("OLLAMA_BASE_URL") or _OLLAMA if kind == "ollama" else "")
    more: Any = {"settings": {"timeout": timeout}}
    if base and kind in ("ollama", "openai", "openai-chat"):
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

        usual = "OLLAMA_API_KEY" if kind == "ollama" else "OPENAI_API_KEY"
        key = environ.get(settings.get("api_key_env") or usual) or "none"
        return OpenAIChatModel(rest, provider=OpenAICompatibleProvider(kind, base_url=base, api_key=key), **more)
    if base and kind == "anthropic":
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        key = environ.get(settings.get("api_key_env") or "ANTHROPIC_API_KEY") or "none"
        return AnthropicModel(rest, provider=AnthropicProvider(base_url=base, api_key=key), **more)
    if settings.get("base_url"):
        raise BadInput(f"A base_url is for ollama, openai, openai-chat and anthropic models, not for '{name}'.")
    with _variables(environ):
        model = infer_model(name)
    model._settings = {**(model.settings or {}), "timeout": timeout}
    return model


@contextlib.contextmanager
def _variables(environ: dict[str, str]) -> Generator[None]:
    """The keys of whoever asks, and no one else's, where the providers look for them."""
    before = {name: value for name, value in os.environ.items() if name.endswith(_HANDED_ON)}
    wanted = {name: value for name, value in environ.items() if name.endswith(_HANDED_ON)}
    try:
        for name in before.keys() - wanted.keys():
            del os.environ[name]
        os.environ.update(wanted)
        yield
    finally:
        for name in wanted:
            os.environ.pop(name, None)
        os.environ.update(before)
