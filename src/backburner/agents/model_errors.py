"""Describes the failure of a model in a sentence that names its address and says what to do. The library's own text is only logged."""

import ipaddress
import logging
from urllib.parse import urlsplit

from pydantic_ai.exceptions import (
    ContentFilterError,
    FallbackExceptionGroup,
    IncompleteToolCall,
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelNotFoundError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelRequestRejectedError,
    ModelRequestTimeout,
    ModelTimeoutError,
)
from pydantic_ai.messages import ModelResponse

from backburner.agents.model_factory import fallback_settings, model_address

log = logging.getLogger("backburner")
# Their streams never say why a model stopped.
_STREAMS_WITHOUT_FINISH_REASON = {"xai", "snowflake"}


class AnswerCutOff(Exception):
    """The stream of an answer ended before the model had finished."""


def is_cut_off(response: ModelResponse) -> bool:
    """Whether a streamed answer ended without the reason why the model stopped, which is sent last."""
    if (response.provider_details or {}).get("finish_reason"):
        return False
    # For an OpenAI-compatible server that sends no reason, pydantic-ai assumes "stop".
    return response.finish_reason is None or (
        response.finish_reason == "stop" and response.provider_name not in _STREAMS_WITHOUT_FINISH_REASON
    )


def describe_model_error(error: BaseException, settings: dict[str, str], environ: dict[str, str]) -> str:
    """Describe the failure of a model, or of both models."""
    if isinstance(error, FallbackExceptionGroup):
        pairs = zip(error.exceptions, ({**settings, "fallback": ""}, fallback_settings(settings)), strict=False)
        return " ".join(describe_model_error(each_error, its_settings, environ) for each_error, its_settings in pairs)
    name = getattr(error, "model_name", None)
    if name and settings.get("fallback") and settings["model"].partition(":")[2] != name:
        settings = fallback_settings(settings)
    log.warning("model %s: %s: %s", settings["model"], type(error).__name__, error)
    model, server = settings["model"], f"model server at {(address := model_address(settings, environ))}"
    match error:
        case TimeoutError() | ModelTimeoutError() | ModelRequestTimeout():
            return f"The {server} did not answer in time (models.timeout_seconds)."
        case ModelConnectionError(phase="connect") if _is_loopback(address):
            return f"No {server}. Is it running?"
        case ModelConnectionError(phase="connect"):
            return f"Cannot connect to the {server}. Check the address and the network."
        case ModelConnectionError() | AnswerCutOff():
            return f"The {server} ended the connection in the middle of an answer."
        case ModelAuthenticationError():
            problem = f"The {server} refused the API key"
        case ModelNotFoundError():
            problem = f"The {server} does not have the model '{model.partition(':')[2]}'"
        case ModelContextWindowExceededError():
            problem = f"The conversation is too long for model {model}"
        case ModelQuotaExceededError():
            problem = f"The quota at the {server} is used up"
        case ModelRateLimitError():
            problem = f"The {server} accepts no more requests at the moment"
        case ModelRequestRejectedError():
            problem = f"The {server} refused the request"
        case ModelHTTPError():
            problem = f"The {server} has an error"
        case ContentFilterError():
            return f"A content filter of the {server} stopped the answer."
        case IncompleteToolCall():
            return f"The answer of model {model} was longer than its limit."
        case ModelAPIError():
            return f"The {server} sent something that is not an answer of a model. Is the address right?"
        case _:
            return f"The {server} gave no valid answer. Is the address right, and can model {model} call tools?"
    status = f" (HTTP {error.status_code})" if isinstance(error, ModelHTTPError) else ""
    message = _server_message(getattr(error, "body", None))
    return f"{problem}{status}: {message}" if message else f"{problem}{status}."


def _server_message(body: object) -> str:
    """The message in the JSON body of an error; empty if it has none."""
    inner = body.get("error") if isinstance(body, dict) else None
    found = (inner if isinstance(inner, dict) else body if isinstance(body, dict) else {}).get("message")
    return found if isinstance(found, str) else ""


def _is_loopback(address: str) -> bool:
    host = urlsplit(address).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
