"""A model from its name: any that pydantic-ai knows, one behind an OpenAI-compatible server, and a second one to fall back on."""

import os
from typing import Any

from pydantic_ai.models import Model, infer_model

_HANDED_ON = ("_API_KEY", "_BASE_URL", "_API_BASE", "_API_TOKEN", "_REGION", "_PROJECT", "_HOST")
_OLLAMA = "http://127.0.0.1:11434/v1"


def model_of(settings: dict[str, str], environ: dict[str, str], timeout: float) -> Model:
    """The model that an agent's settings name; the keys come from the environment of whoever asked."""
    first = _one(settings["model"], settings, environ, timeout)
    if not settings.get("fallback"):
        return first
    from pydantic_ai.models.fallback import FallbackModel

    return FallbackModel(first, _one(settings["fallback"], settings, environ, timeout))


def _one(name: str, settings: dict[str, str], environ: dict[str, str], timeout: float) -> Model:
    kind, _, rest = name.partition(":")
    base = settings.get("base_url") or (environ.get("OLLAMA_BASE_URL") or _OLLAMA if kind == "ollama" else "")
    more: Any = {"settings": {"timeout": timeout}}
    if base and kind in ("ollama", "openai", "openai-chat"):
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

        key = environ.get(settings.get("api_key_env") or "OPENAI_API_KEY") or "none"
        return OpenAIChatModel(rest, provider=OpenAICompatibleProvider(kind, base_url=base, api_key=key), **more)
    if base and kind == "anthropic":
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        key = environ.get(settings.get("api_key_env") or "ANTHROPIC_API_KEY") or "none"
        return AnthropicModel(rest, provider=AnthropicProvider(base_url=base, api_key=key), **more)
    for variable, value in environ.items():  # the providers look for their keys there
        if variable.endswith(_HANDED_ON):
            os.environ[variable] = value
    return infer_model(name)
