"""Whatever Apprise speaks as a channel: e-mail, Slack, ntfy, desktops and the rest, by one Apprise URL.

Such a URL holds secrets: no log and no reason shows a word of it. Where the service takes headers, every attempt has the letter's key as
`Idempotency-Key`. The library blocks, so it works in a thread; it is slow to load, so that happens with the first letter.
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

_SECONDS = 45.0
_HEADER = "Idempotency-Key"
_LONGEST_REASON = 300
_CAUSE = "Socket Exception"  # how the library begins the one line of its debugging that says why a connection failed


def open_channel(name: str, settings: dict[str, str], environ: dict[str, str]) -> "AppriseChannel":
    """The channel of `[channels.NAME]`. What is wrong with its settings is said by the first letter that it is to send."""
    variable = settings.get("url_env", "")
    return AppriseChannel(name, environ.get(variable, "") if variable else settings.get("url", ""), variable)


class AppriseChannel:
    """Sends letters through one Apprise URL, which came from the variable `url_env` where that is named."""

    def __init__(self, name: str, url: str, url_env: str = "") -> None:
        self._name, self._url, self._url_env = name, url.strip(), url_env
        self._kept: Apprise | None = None

    async def send(self, letter: OutgoingMessage) -> str | None:
        """Hand it to the service. Cancelling stops the waiting; what the thread began may still arrive."""
        if not self._url and self._url_env:
            raise DeliveryFailed(f"{self._url_env} is not set, which [channels.{self._name}] names for its url")
        await asyncio.to_thread(self._send, letter)
        return None

    async def replies(self) -> AsyncIterator[ChannelReply]:
        """None: the library only sends."""
        return
        yield

    async def close(self) -> None:
        self._kept = None

    def _send(self, letter: OutgoingMessage) -> None:
        apprise = _library()
        title, text = clean(_writable(letter.title)), _writable(letter.text)
        try:
            service = self._service(letter.key)
            result = service.notify(
                body=text if text.strip() else title,
                title=title,
                body_format=apprise.NotifyFormat.TEXT,  # or a service that shows HTML would take a letter for that
                log_level=logging.DEBUG,
            )
        except DeliveryFailed:
            raise
        except Exception as error:
            raise DeliveryFailed(self._masked([f"{type(error).__name__}: {error}"])) from None
        # A URL can say that its failures do not count; for a letter they do.
        if not any(attempt.status == apprise.AppriseResultStatus.SUCCESS for one in result.results for attempt in one.attempts):
            said = [one.message for one in result.logs() if _tells(one.level, one.message)]
            raise DeliveryFailed(self._masked(said) or "the service did not take it")

    def _service(self, key: str) -> "Apprise":
        """What sends a letter: made anew where its headers name that letter, else kept, as it keeps the pace its service wants."""
        if self._kept is not None:
            return self._kept
        apprise = _library()
        from apprise.plugins import url_to_dict

        if re.search(r"[\s,;]\w+://", self._url):
            raise self._unusable("it is more than one; a channel has one")
        tokens = url_to_dict(self._url)
        if tokens is None:
            raise self._unusable("it names no service, or is not complete")
        named = "headers" in tokens
        if named:
            tokens["headers"] = {**(tokens["headers"] or {}), _HEADER: key}
        else:
            tokens.setdefault("overflow", "split")  # a service may take less than a letter has; parts with one key would look like repeats
        asset = apprise.AppriseAsset(
            app_id="Backburner", app_desc="Backburner", app_url="", image_url_mask="", image_url_logo="", service_timeout=_SECONDS
        )
        try:
            # It would log a refused URL with everything in it; an exception comes back to us alone.
            service = apprise.Apprise.instantiate(tokens, asset=asset, suppress_exceptions=False)
        except Exception as error:
            raise self._unusable(self._masked([str(error)])) from None
        if service is None:
            raise self._unusable("this machine has not what that service needs")
        made = apprise.Apprise(service, asset=asset)
        if not named:
            self._kept = made
        return made

    def _unusable(self, why: str) -> DeliveryFailed:
        origin = f"the url in {self._url_env}" if self._url_env else "the url"
        return DeliveryFailed(f"{origin} of [channels.{self._name}] cannot be used: {why.rstrip('.') or 'it is refused'}", for_good=True)

    def _masked(self, said: Iterable[str]) -> str:
        text = "; ".join(dict.fromkeys(said))
        for secret in _secrets(self._url):
            text = text.replace(secret, "***")
        return shortened(clean(text), longest=_LONGEST_REASON)


@functools.cache
def _library() -> Any:
    """The library; its logger then speaks to nobody but us, as what it says may hold parts of a URL, and the one below it not at all."""
    import apprise

    logging.getLogger("urllib3").setLevel(logging.WARNING)
    logger = logging.getLogger("apprise")
    logger.propagate = False
    logger.addHandler(logging.NullHandler())
    logger.setLevel(logging.DEBUG)
    return apprise


def _tells(level: str, message: str) -> bool:
    return level not in ("TRACE", "DEBUG", "INFO") or message.startswith(_CAUSE)


def _secrets(url: str) -> list[str]:
    """Every word of an Apprise URL, the longest first: which of them are secret differs between services."""
    place, _, query = (url.partition("://")[2] or url).partition("?")
    words = set()
    for part in (place, *(pair.partition("=")[2] for pair in query.split("&"))):
        for form in (part, unquote_plus(part)):
            words |= {form, *re.split(r"[\s/:@,;|&?=]+", form)}
    words |= {quote(word, safe="") for word in words}
    return sorted((word for word in words if len(word) >= 3), key=len, reverse=True)


def _writable(text: str) -> str:
    """`text` without what UTF-8 cannot say."""
    return text.encode("utf-8", "replace").decode()
