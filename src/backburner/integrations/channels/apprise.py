"""The Apprise channel: sends notices by e-mail, Slack, ntfy, desktop notification and other services, through one Apprise URL.

The URL contains secrets, so no log and no error message shows any part of it. If the service accepts headers, every attempt sends the
key of the message as `Idempotency-Key`. The library blocks, so it runs in a thread; it is slow to import, so the first message loads it.
"""

import asyncio
import functools
import logging
import re
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote_plus

from backburner.core.ports import ChannelReply, DeliveryFailed, OutgoingMessage
from backburner.core.terminal_text import clean, shortened

if TYPE_CHECKING:
    from apprise import Apprise

_SERVICE_TIMEOUT = 45.0  # seconds
_HEADER = "Idempotency-Key"
_MAX_REASON_LENGTH = 300  # characters
_CAUSE = "Socket Exception"  # start of the only debug line in which the library gives the cause of a failed connection


def open_channel(name: str, settings: dict[str, str], environ: dict[str, str]) -> "AppriseChannel":
    """Open the channel `[channels.NAME]`. Invalid settings are reported when the first message is sent."""
    variable = settings.get("url_env", "")
    return AppriseChannel(name, environ.get(variable, "") if variable else settings.get("url", ""), variable)


class AppriseChannel:
    """Sends messages through one Apprise URL. `url_env` is the environment variable that the URL was read from, or empty."""

    def __init__(self, name: str, url: str, url_env: str = "") -> None:
        self._name, self._url, self._url_env = name, url.strip(), url_env
        self._service: Apprise | None = None

    async def send(self, message: OutgoingMessage) -> str | None:
        """Send the message. Cancelling stops the wait, but the thread may still send it."""
        self._require_url()
        await asyncio.to_thread(self._send, message)
        return None

    async def check(self) -> None:
        """Check the URL, without contacting the service."""
        self._require_url()
        await asyncio.to_thread(self._get_service, "")

    def _require_url(self) -> None:
        if not self._url and self._url_env:
            raise DeliveryFailed(f"environment variable {self._url_env} is not set (url of [channels.{self._name}])")

    async def replies(self) -> AsyncIterator[ChannelReply]:
        """Yield nothing: the library can only send."""
        return
        yield

    async def close(self) -> None:
        self._service = None

    def _send(self, message: OutgoingMessage) -> None:
        apprise = _library()
        title, text = clean(_valid_utf8(message.title)), _valid_utf8(message.text)
        try:
            service = self._get_service(message.key)
            result = service.notify(
                body=text if text.strip() else title,
                title=title,
                body_format=apprise.NotifyFormat.TEXT,  # otherwise a service that shows HTML would interpret the text as HTML
                log_level=logging.DEBUG,
            )
        except DeliveryFailed:
            raise
        except Exception as error:
            raise DeliveryFailed(self._masked([f"{type(error).__name__}: {error}"])) from None
        # An option of the URL can make the library ignore failures, so the result of every attempt is checked here.
        if not any(attempt.status == apprise.AppriseResultStatus.SUCCESS for sent in result.results for attempt in sent.attempts):
            reasons = [record.message for record in result.logs() if _is_reason(record.level, record.message)]
            raise DeliveryFailed(self._masked(reasons) or "the service did not accept the message")

    def _get_service(self, key: str) -> "Apprise":
        """Return the object that sends a message.

        If the service accepts headers, a new one is created for each message, because the headers contain its key. Otherwise one object
        is kept, because it observes the rate limit of its service.
        """
        if self._service is not None:
            return self._service
        apprise = _library()
        from apprise.plugins import url_to_dict

        if re.search(r"[\s,;]\w+://", self._url):
            raise self._unusable("it contains more than one URL; a channel has exactly one")
        tokens = url_to_dict(self._url)
        if tokens is None:
            raise self._unusable("it names no service or is incomplete")
        accepts_headers = "headers" in tokens
        if accepts_headers:
            tokens["headers"] = {**(tokens["headers"] or {}), _HEADER: key}
        else:
            # A service may limit the length of a message. Only here: parts with the same key would look like duplicates.
            tokens.setdefault("overflow", "split")
        asset = apprise.AppriseAsset(
            app_id="Backburner", app_desc="Backburner", app_url="", image_url_mask="", image_url_logo="", service_timeout=_SERVICE_TIMEOUT
        )
        try:
            # With suppressed exceptions the library would log an invalid URL with all its secrets.
            service = apprise.Apprise.instantiate(tokens, asset=asset, suppress_exceptions=False)
        except Exception as error:
            raise self._unusable(self._masked([str(error)])) from None
        if service is None:
            raise self._unusable("software that this service needs is not installed")
        sender = apprise.Apprise(service, asset=asset)
        if not accepts_headers:
            self._service = sender
        return sender

    def _unusable(self, reason: str) -> DeliveryFailed:
        origin = f"the url in {self._url_env}" if self._url_env else "the url"
        reason = reason.rstrip(".") or "the service rejects it"
        return DeliveryFailed(f"{origin} of [channels.{self._name}] cannot be used: {reason}", permanent=True)

    def _masked(self, reasons: Iterable[str]) -> str:
        text = "; ".join(dict.fromkeys(reasons))
        for secret in _secrets(self._url):
            text = text.replace(secret, "***")
        return shortened(clean(text), longest=_MAX_REASON_LENGTH)


@functools.cache
def _library() -> Any:
    """Import the library and keep its log records away from other handlers: they may contain parts of a URL.

    The debug records of urllib3, which it uses, are disabled for the same reason.
    """
    import apprise

    logging.getLogger("urllib3").setLevel(logging.WARNING)
    logger = logging.getLogger("apprise")
    logger.propagate = False
    logger.addHandler(logging.NullHandler())
    logger.setLevel(logging.DEBUG)
    return apprise


def _is_reason(level: str, message: str) -> bool:
    return level not in ("TRACE", "DEBUG", "INFO") or message.startswith(_CAUSE)


def _secrets(url: str) -> list[str]:
    """Return every word of an Apprise URL, the longest first. All are masked, because each service puts its secrets elsewhere."""
    location, _, query = (url.partition("://")[2] or url).partition("?")
    words = set()
    for part in (location, *(pair.partition("=")[2] for pair in query.split("&"))):
        for form in (part, unquote_plus(part)):
            words |= {form, *re.split(r"[\s/:@,;|&?=]+", form)}
    words |= {quote(word, safe="") for word in words}
    return sorted((word for word in words if len(word) >= 3), key=len, reverse=True)


def _valid_utf8(text: str) -> str:
    """Replace the characters of `text` that UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode()
