"""Creates models from their names: any that pydantic-ai knows, or one at an OpenAI-compatible server, with an optional fallback model."""

import contextlib
import os
import re
from collections.abc import Generator
from typing import Any

import pydantic_ai
from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model, infer_model, parse_model_id
from pydantic_ai.providers import infer_provider_class

from backburner.core.errors import BadInput
from backburner.core.settings import provider_of

pydantic_ai.BANNER_ENABLED = False  # ty: ignore[invalid-assignment] -- it would be printed between our own lines

_FORWARDED_SUFFIXES = ("_API_KEY", "_BASE_URL", "_API_BASE", "_API_TOKEN", "_REGION", "_PROJECT", "_HOST")
_MODEL_SETTINGS = ("model", "base_url", "api_key_env", "fallback", "fallback_base_url", "fallback_api_key_env")
_MAX_CACHED_MODELS = 16
_OLLAMA_URL = "http://127.0.0.1:11434/v1"
_KEY_VARIABLES = {"ollama": "OLLAMA_API_KEY", "openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}


def create_model(settings: dict[str, str], environ: dict[str, str], timeout: float) -> Model:
    """Create the model that an agent's settings name, with its fallback. API keys come from `environ`, the environment of the submitter."""
    first = _create(settings["model"], settings, environ, timeout)
    if not settings.get("fallback"):
        return first
    from pydantic_ai.models.fallback import FallbackModel

    # The address and the key variable of the first model are not used for the second one.
    fallback = {key: settings.get(f"fallback_{key}", "") for key in ("base_url", "api_key_env")}
    return FallbackModel(first, _create(settings["fallback"], fallback, environ, timeout))


class ModelCache:
    """The models of one process. Runs with the same settings and API keys share a model, and so its HTTP client with its TLS context.

    A client per run is only freed by a rare full garbage collection, so that the process would grow with every run.
    """

    def __init__(self) -> None:
        self._models: dict[object, Model] = {}

    def get(self, settings: dict[str, str], environ: dict[str, str], timeout: float) -> Model:
        """Like `create_model`."""
        own = {settings.get("api_key_env"), settings.get("fallback_api_key_env")}
        keys = {name: value for name, value in environ.items() if name.endswith(_FORWARDED_SUFFIXES) or name in own}
        identity = timeout, tuple(settings.get(name, "") for name in _MODEL_SETTINGS), tuple(sorted(keys.items()))
        model = self._models.pop(identity, None) or create_model(settings, environ, timeout)
        self._models[identity] = model  # the latest is the last
        if len(self._models) > _MAX_CACHED_MODELS:
            del self._models[next(iter(self._models))]
        return model


def fallback_settings(settings: dict[str, str]) -> dict[str, str]:
    """The settings of an agent that continues with its fallback model only."""
    fallback = {key: settings.get(f"fallback_{key}", "") for key in ("base_url", "api_key_env")}
    return {**settings, **fallback, "model": settings["fallback"], "fallback": ""}


def model_address(settings: dict[str, str], environ: dict[str, str]) -> str:
    """The address of the first model of an agent."""
    return (_create(settings["model"], settings, environ, 1.0).base_url or "its default address").rstrip("/")


def _create(name: str, settings: dict[str, str], environ: dict[str, str], timeout: float) -> Model:
    kind, _, rest = name.partition(":")
    _check_name(name)
    base_url = settings.get("base_url") or (environ.get("OLLAMA_BASE_URL") or _OLLAMA_URL if kind == "ollama" else "")
    key_variable = settings.get("api_key_env") or ""
    key = environ.get(key_variable or _KEY_VARIABLES.get(provider_of(name), "")) or ""
    options: Any = {"settings": {"timeout": timeout}}
    if base_url and kind in ("ollama", "openai", "openai-chat"):
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

        return OpenAIChatModel(rest, provider=OpenAICompatibleProvider(kind, base_url=base_url, api_key=key or "none"), **options)
    if base_url and kind == "anthropic":
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        return AnthropicModel(rest, provider=AnthropicProvider(base_url=base_url, api_key=key or "none"), **options)
    if settings.get("base_url"):
        raise BadInput(f"base_url is not supported for '{name}'. It is supported for ollama, openai, openai-chat and anthropic models.")
    if key_variable and not key:
        raise BadInput(f"Environment variable {key_variable} (the API key for '{name}') is not set.")

    def provider_with_key(provider: str) -> Any:
        provider_class: Any = infer_provider_class(provider)
        return provider_class(api_key=key)

    try:
        with _provider_variables(environ):
            model = infer_model(name, provider_with_key) if key_variable else infer_model(name)
    except UserError as error:
        variable = re.search(r"\b[A-Z_]+_(API_KEY|TOKEN)\b", str(error))
        raise BadInput(
            f"There is no API key for '{name}'. Set {variable[0] if variable else 'its environment variable'}, or name another variable as"
            " api_key_env in config.toml."
        ) from error
    except ImportError as error:
        install = re.search(r"pip install [^`]+", str(error))
        raise BadInput(f"Models of '{kind}' need a Python package that is not installed{f': {install[0]}' if install else ''}.") from error
    model._settings = {**(model.settings or {}), "timeout": timeout}
    return model


def _check_name(name: str) -> None:
    """BadInput unless the name has the form PROVIDER:NAME with a known provider."""
    provider, rest = parse_model_id(name)
    try:
        if not provider or not rest:
            raise ValueError
        with contextlib.suppress(ImportError):  # the provider is known, but its package is not installed
            infer_provider_class(provider)
    except ValueError:
        raise BadInput(
            f"'{name}' is not a model name. Use PROVIDER:NAME, such as ollama:qwen3, openai-chat:gpt-5 or anthropic:claude-sonnet-4-5."
        ) from None


@contextlib.contextmanager
def _provider_variables(environ: dict[str, str]) -> Generator[None]:
    """Set the submitter's keys in os.environ, where the providers read them, and remove all others; restore them afterwards."""
    before = {name: value for name, value in os.environ.items() if name.endswith(_FORWARDED_SUFFIXES)}
    forwarded = {name: value for name, value in environ.items() if name.endswith(_FORWARDED_SUFFIXES)}
    try:
        for name in before.keys() - forwarded.keys():
            del os.environ[name]
        os.environ.update(forwarded)
        yield
    finally:
        for name in forwarded:
            os.environ.pop(name, None)
        os.environ.update(before)
