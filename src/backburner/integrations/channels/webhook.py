"""A webhook as a channel: every letter is one POST of JSON, signed where there is a secret; a 2xx says that it has arrived.

Every attempt has the letter's key as `Idempotency-Key`, so that a receiver can drop what it has already. Redirects are not followed,
answers are read for their first few KB at most, and no reason names more of the URL than its host: its path may be a secret.
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
_MOST_READ = 4096
_READ_SECONDS = 2.0
_LONGEST_RETRY_AFTER = 86_400.0
_TRIED_AGAIN = frozenset({408, 425, 429})  # of 4xx


def open_channel(name: str, settings: dict[str, str], environ: dict[str, str]) -> "Webhook":
    """The channel of `[channels.NAME]`. What is wrong with its settings is said by the first letter that it is to send."""
    variable = settings.get("secret_env", "")
    return Webhook(name, settings.get("url", ""), environ.get(variable, "") if variable else "", variable)


class Webhook:
    """Posts letters to one URL. An empty `secret` signs nothing, unless `secret_env` says that there should be one."""

    def __init__(
        self, name: str, url: str, secret: str = "", secret_env: str = "", *, now: Callable[[], float] = time.time, seconds: float = 10.0
    ) -> None:
        self._name, self._url, self._secret, self._secret_env, self._now, self._seconds = name, url, secret, secret_env, now, seconds
        self._client: httpx2.AsyncClient | None = None

    async def send(self, letter: OutgoingMessage) -> str | None:
        """Post it and wait for the status, 10 seconds at most."""
        url, body = self._checked_url(), _body(letter)
        host = url.netloc.decode("ascii")
        client = self._client = self._client or httpx2.AsyncClient(follow_redirects=False, timeout=self._seconds)
        try:
            async with asyncio.timeout(self._seconds):  # the client's own timeouts are for each step alone
                response = await client.send(
                    client.build_request("POST", url, content=body, headers=self._headers(letter, body)), stream=True
                )
        except (TimeoutError, httpx2.TimeoutException):
            raise DeliveryFailed(f"{host} did not answer within {self._seconds:g} seconds") from None
        except httpx2.HTTPError as error:
            raise DeliveryFailed(f"{host} could not be reached: {shortened(clean(str(error)) or type(error).__name__)}") from None
        try:
            if not response.is_success:
                raise self._failure(host, response, await _said(response))
        finally:
            with contextlib.suppress(httpx2.HTTPError):
                await response.aclose()
        return None

    async def replies(self) -> AsyncIterator[ChannelReply]:
        """None: nobody answers to a webhook."""
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
            raise DeliveryFailed(f"the url of [channels.{self._name}] is not an http:// or https:// address", for_good=True)
        if self._secret_env and not self._secret:
            raise DeliveryFailed(f"{self._secret_env} is not set, which [channels.{self._name}] names for its secret")
        return url

    def _headers(self, letter: OutgoingMessage, body: bytes) -> dict[str, str]:
        timestamp = str(int(self._now()))
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "backburner",
            "Accept-Encoding": "identity",
            "Idempotency-Key": letter.key,
            "Backburner-Timestamp": timestamp,
        }
        if self._secret:
            headers["Backburner-Signature"] = signature(self._secret, timestamp, body)
        return headers

    def _failure(self, host: str, response: httpx2.Response, said: str) -> DeliveryFailed:
        status = response.status_code
        reason = f"{host} answered {status}{f': {said}' if said else ''}"
        if response.is_redirect:
            return DeliveryFailed(f"{host} answered {status}: it has moved, and redirects are not followed")
        if 400 <= status < 500 and status not in _TRIED_AGAIN:
            return DeliveryFailed(reason, for_good=True)
        return DeliveryFailed(reason, retry_after=_retry_after(response.headers.get("Retry-After", ""), self._now()))


def _body(letter: OutgoingMessage) -> bytes:
    at = datetime.fromtimestamp(letter.created_at / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return json.dumps({**letter._asdict(), "created_at": at}).encode()


async def _said(response: httpx2.Response) -> str:
    """The first words of an answer as one line, whatever becomes of the rest."""
    said = b""
    with contextlib.suppress(httpx2.HTTPError, TimeoutError):
        async with asyncio.timeout(_READ_SECONDS), contextlib.aclosing(response.aiter_raw(_MOST_READ)) as pieces:
            async for piece in pieces:
                said += piece
                if len(said) >= _MOST_READ:
                    break
    plain = response.headers.get("Content-Encoding", "identity") == "identity"
    return shortened(clean(said[:_MOST_READ].decode("utf-8", "replace"))) if plain else ""


def _retry_after(value: str, now: float) -> float | None:
    """Seconds from now, given as a number or as a date; a day at most."""
    if value.isascii() and value.isdigit():
        seconds = float(value)
    else:
        try:
            at = parsedate_to_datetime(value)
        except ValueError:
            return None
        seconds = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() - now
    return min(max(seconds, 0.0), _LONGEST_RETRY_AFTER)
