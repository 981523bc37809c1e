"""A model from its name: any that pydantic-ai knows, one behind an OpenAI-compatible server, and a second one to fall back on."""

import contextlib
import os
from collections.abc import Generator
from typing import Any

from pydantic_ai.exceptions import FallbackExceptionGroup, ModelConnectionError
from pydantic_ai.models import Model, infer_model, parse_model_id
from pydantic_ai.providers import infer_provider_class

from backburner.core.errors import BadInput
from backburner.core.settings import provider_of

_HANDED_ON = ("_API_KEY", "_BASE_URL", "_API_BASE", "_API_TOKEN", "_REGION", "_PROJECT", "_HOST")
_OLLAMA = "http://127.0.0.1:11434/v1"
_KEYS = {"ollama": "OLLAMA_API_KEY", "openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}


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


def describe_model(error: BaseException, settings: dict[str, str], environ: dict[str, str]) -> str:
    """What went wrong with an agent's model, or with both; of one that cannot be reached, which it is and where it should be."""
    if isinstance(error, FallbackExceptionGroup):
        each = zip(error.exceptions, ({**settings, "fallback": ""}, escalated(settings)), strict=False)
        return "; ".join(describe_model(one, its, environ) for one, its in each)
    if isinstance(error, ModelConnectionError):
        if settings.get("fallback") and settings["model"].partition(":")[2] != error.model_name:
            settings = escalated(settings)
        return f"Model {settings['model']} cannot be reached at {address_of(settings, environ)}: {error}"
    return f"{type(error).__name__}: {error}"


def address_of(settings: dict[str, str], environ: dict[str, str]) -> str:
    """Where the first model of an agent is asked."""
    return (_one(settings["model"], settings, environ, 1.0).base_url or "its usual address").rstrip("/")


def _one(name: str, settings: dict[str, str], environ: dict[str, str], timeout: float) -> Model:
    kind, _, rest = name.partition(":")
    _check(name)
    base = settings.get("base_url") or (environ.get("OLLAMA_BASE_URL") or _OLLAMA if kind == "ollama" else "")
    named = settings.get("api_key_env") or ""
    key = environ.get(named or _KEYS.get(provider_of(name), "")) or ""
    more: Any = {"settings": {"timeout": timeout}}
    if base and kind in ("ollama", "openai", "openai-chat"):
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

        return OpenAIChatModel(rest, provider=OpenAICompatibleProvider(kind, base_url=base, api_key=key or "none"), **more)
    if base and kind == "anthropic":
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        return AnthropicModel(rest, provider=AnthropicProvider(base_url=base, api_key=key or "none"), **more)
    if settings.get("base_url"):
        raise BadInput(f"A base_url is for ollama, openai, openai-chat and anthropic models, not for '{name}'.")
    if named and not key:
        raise BadInput(f"The key for '{name}' should be in the variable {named}, which is not set.")

    def with_key(provider: str) -> Any:
        made: Any = infer_provider_class(provider)
        return made(api_key=key)

    with _variables(environ):
        model = infer_model(name, with_key) if named else infer_model(name)
    model._settings = {**(model.settings or {}), "timeout": timeout}
    return model


def _check(name: str) -> None:
    """BadInput where a text does not name a provider that is known, and a model of it."""
    provider, rest = parse_model_id(name)
    try:
        if not provider or not rest:
            raise ValueError
        with contextlib.suppress(ImportError):  # known, but not installed
            infer_provider_class(provider)
    except ValueError:
        raise BadInput(
            f"'{name}' is not a model: write PROVIDER:NAME, such as ollama:qwen3, openai-chat:gpt-5 or anthropic:claude-sonnet-4-5."
        ) from None


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
