"""The webhook channel: sends every message as one POST request with JSON, signed if a secret is set. A 2xx status means delivered.

Every attempt sends the key of the message as `Idempotency-Key`, so that the receiver can drop duplicates. Redirects are not followed,
at most 4 KB of a response are read, and error messages show only the host of the URL, because its path may be secret.
"""

import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx2

from backburner.core.ports import ChannelReply, DeliveryFailed, OutgoingMessage
from backburner.core.terminal_text import clean, shortened
from backburner.integrations.sources.webhook import signature

_HOST = re.compile(rb"[a-z0-9._:-]+")
_MAX_RESPONSE_BYTES = 4096
_READ_TIMEOUT = 2.0  # seconds
_MAX_RETRY_AFTER = 86_400.0  # seconds
_TEMPORARY_4XX = frozenset({408, 425, 429})


def open_channel(name: str, settings: dict[str, str], environ: dict[str, str]) -> "Webhook":
    """Open the channel `[channels.NAME]`. Invalid settings are reported when the first message is sent."""
    variable = settings.get("secret_env", "")
    return Webhook(name, settings.get("url", ""), environ.get(variable, "") if variable else "", variable)


class Webhook:
    """Posts messages to one URL. With an empty `secret` they are not signed; if `secret_env` is set, an empty secret is an error."""

    def __init__(
        self, name: str, url: str, secret: str = "", secret_env: str = "", *, now: Callable[[], float] = time.time, timeout: float = 10.0
    ) -> None:
        self._name, self._url, self._secret, self._secret_env, self._now, self._timeout = name, url, secret, secret_env, now, timeout
        self._client: httpx2.AsyncClient | None = None

    async def send(self, message: OutgoingMessage) -> str | None:
        """Post the message and wait for the status, for 10 seconds by default."""
        url, body = self._checked_url(), _body(message)
        host = url.netloc.decode("ascii")
        client = self._client = self._client or httpx2.AsyncClient(follow_redirects=False, timeout=self._timeout)
        try:
            async with asyncio.timeout(self._timeout):  # the client applies its timeout to each step separately
                response = await client.send(
                    client.build_request("POST", url, content=body, headers=self._headers(message, body)), stream=True
                )
        except (TimeoutError, httpx2.TimeoutException):
            raise DeliveryFailed(f"{host} did not answer within {self._timeout:g} seconds") from None
        except httpx2.HTTPError as error:
            raise DeliveryFailed(f"{host} could not be reached: {shortened(clean(str(error)) or type(error).__name__)}") from None
        try:
            if not response.is_success:
                raise self._failure(host, response, await _read_reason(response))
        finally:
            with contextlib.suppress(httpx2.HTTPError):
                await response.aclose()
        return None

    async def check(self) -> None:
        """Check the address and the secret, without a request."""
        self._checked_url()

    async def replies(self) -> AsyncIterator[ChannelReply]:
        """Yield nothing: a webhook has no replies."""
        return
        yield

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    def _checked_url(self) -> httpx2.URL:
        try:
            url = httpx2.URL(self._url)
        except httpx2.InvalidURL:
            url = httpx2.URL("")
        if url.scheme not in ("http", "https") or not _HOST.fullmatch(url.raw_host):
            raise DeliveryFailed(f"the url of [channels.{self._name}] is not an http:// or https:// address", permanent=True)
        if self._secret_env and not self._secret:
            raise DeliveryFailed(f"environment variable {self._secret_env} is not set (secret of [channels.{self._name}])")
        return url

    def _headers(self, message: OutgoingMessage, body: bytes) -> dict[str, str]:
        timestamp = str(int(self._now()))
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "backburner",
            "Accept-Encoding": "identity",
            "Idempotency-Key": message.key,
            "Backburner-Timestamp": timestamp,
        }
        if self._secret:
            headers["Backburner-Signature"] = signature(self._secret, timestamp, body)
        return headers

    def _failure(self, host: str, response: httpx2.Response, details: str) -> DeliveryFailed:
        status = response.status_code
        if response.is_redirect:
            return DeliveryFailed(f"{host} answered {status}: redirects are not followed")
        reason = f"{host} answered {status}: {details}" if details else f"{host} answered {status}"
        if 400 <= status < 500 and status not in _TEMPORARY_4XX:
            return DeliveryFailed(reason, permanent=True)
        return DeliveryFailed(reason, retry_after=_retry_after(response.headers.get("Retry-After", ""), self._now()))


def _body(message: OutgoingMessage) -> bytes:
    at = datetime.fromtimestamp(message.created_at / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return json.dumps({**message._asdict(), "created_at": at}).encode()


async def _read_reason(response: httpx2.Response) -> str:
    """Return the beginning of a response as one line. Errors while reading it are ignored."""
    content = b""
    with contextlib.suppress(httpx2.HTTPError, TimeoutError):
        async with asyncio.timeout(_READ_TIMEOUT), contextlib.aclosing(response.aiter_raw(_MAX_RESPONSE_BYTES)) as pieces:
            async for piece in pieces:
                content += piece
                if len(content) >= _MAX_RESPONSE_BYTES:
                    break
    is_plain = response.headers.get("Content-Encoding", "identity") == "identity"
    return shortened(clean(content[:_MAX_RESPONSE_BYTES].decode("utf-8", "replace"))) if is_plain else ""


def _retry_after(value: str, now: float) -> float | None:
    """Return the value of a Retry-After header (a number or a date) in seconds from now, at most one day."""
    if value.isascii() and value.isdigit():
        seconds = float(value)
    else:
        try:
            at = parsedate_to_datetime(value)
        except ValueError:
            return None
        seconds = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() - now
    return min(max(seconds, 0.0), _MAX_RETRY_AFTER)
