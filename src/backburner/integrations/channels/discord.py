"""The Discord channel: a bot sends notices as messages, and a ✅ or ❌ reaction to a question is a reply.

`send` returns the id of the last Discord message. The gateway connection is open only while `replies` is iterated. The bot mentions
nobody and ignores reactions of users who are not listed. A notice can appear twice only if its second attempt comes later than the few
minutes for which Discord remembers the nonce of the first.
"""

import asyncio
import contextlib
import hashlib
import io
import ipaddress
import itertools
import logging
import re
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import aiohttp

from backburner.core.errors import ConfigError
from backburner.core.ports import ChannelReply, DeliveryFailed, OutgoingMessage
from backburner.core.terminal_text import encodable
from backburner.integrations.channels.message_split import LIMIT, chunks

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it imports the deprecated module `audioop`
    import discord
    from discord.gateway import DiscordWebSocket
    from discord.http import HTTPClient, Route

log = logging.getLogger("backburner")
APPROVE_EMOJI, REJECT_EMOJI = "✅", "❌"
_IS_APPROVAL = {APPROVE_EMOJI: True, REJECT_EMOJI: False}
_REPLY_INSTRUCTIONS = f"\n\nReact with {APPROVE_EMOJI} to approve or {REJECT_EMOJI} to reject."
_MAX_MESSAGES, _FILE_NAME = 10, "notice.txt"  # a longer notice is sent as one message with a file
_MAX_NONCE_LENGTH = 25  # characters
_MAX_REMEMBERED = 500  # entries
_CALL_TIMEOUT = 50.0  # seconds
_MAX_RATE_LIMIT_WAIT = 30.0  # seconds; discord.py waits for shorter ones itself
_MIN_RECONNECT_DELAY, _MAX_RECONNECT_DELAY = 5.0, 300.0  # seconds; Discord allows one login every five seconds
_RECHECK_DELAY = 5.0  # seconds
_ID_STORED_AFTER = 5.0  # seconds; by then the caller has stored the id of a question
_CLOSE_TIMEOUT, _CANCEL_INTERVAL = 3.0, 1.0  # seconds
_PERMISSIONS = "View Channel, Send Messages, Attach Files, Add Reactions and Read Message History"


class Settings(NamedTuple):
    """The validated settings of a `[channels.NAME]` section. `target` is the id of a channel, or of a user if `direct` is true."""

    name: str
    token: str
    token_from: str
    target: int
    direct: bool
    people: frozenset[int]
    base_url: str


def open_channel(name: str, settings: dict[str, str], environ: dict[str, str]) -> "Discord":
    """Open the channel from its settings, without connecting. An invalid setting raises ConfigError."""

    def invalid(message: str) -> ConfigError:
        return ConfigError(message, where=f"channels.{name}")

    token_env = settings.get("token_env") or "DISCORD_TOKEN"
    token_from = f"'token' of [channels.{name}]" if settings.get("token") else token_env
    if not (token := (settings.get("token") or environ.get(token_env, "")).strip()):
        raise invalid(f"no token: put the token of your Discord bot into the environment variable {token_env}")
    target = settings.get("target", "").strip()
    direct, number = target.startswith("user:"), target.removeprefix("user:").strip()
    if not _is_id(number):
        raise invalid(f"'target' must be the id of a Discord channel, or user:ID for a direct message, not {target!r}")
    people = [person.strip() for person in settings.get("people", "").split(",") if person.strip()]
    if invalid_ids := [person for person in people if not _is_id(person)]:
        raise invalid(f"'people' must be a comma-separated list of Discord user ids; {invalid_ids[0]!r} is not a user id")
    people = people or ([number] if direct else [])
    base_url = settings.get("base_url", "").rstrip("/")
    if base_url and not _is_loopback(base_url):
        raise invalid(f"'base_url' is for tests: it must be a loopback address such as http://127.0.0.1:8080/api/v10, not {base_url!r}")
    return Discord(Settings(name, token, token_from, int(number), direct, frozenset(map(int, people)), base_url))


class Discord:
    """Implements the port `Channel` for one Discord channel or one user's direct messages."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._client: _Client | None = None
        self._channel_id: int | None = None
        self._logging_in = asyncio.Lock()
        self._rejection = ""  # why Discord rejected the token, or empty
        self._closed = False
        self._posted: dict[str, str] = {}  # message ids by nonce
        self._open_questions: dict[str, float] = {}  # message ids whose reply may still be unknown, and when they were sent
        self._replies: asyncio.Queue[ChannelReply | None] = asyncio.Queue()
        self._recheck = asyncio.Event()  # reactions may have been missed
        self._listener_tasks: list[asyncio.Task[None]] = []

    async def send(self, message: OutgoingMessage) -> str | None:
        """Send one Discord message, or several in order.

        A question is always a single message with reactions; if it is too long, its full text is in an attached file.
        """
        expects_reply = message.question and bool(self._settings.people)
        contents, attachment = _contents(message, expects_reply)
        last = ""
        for number, content in enumerate(contents):
            name = f"{self._settings.target}\0{message.key}\0{number}".encode("utf-8", "surrogatepass")
            last = await self._post(hashlib.sha256(name).hexdigest()[:_MAX_NONCE_LENGTH], content, attachment)
        if expects_reply:
            await self._add_reactions(last)
            _remember(self._open_questions, last, asyncio.get_running_loop().time())
            asyncio.get_running_loop().call_later(_ID_STORED_AFTER + 0.1, self._recheck.set)
        return last

    async def check(self) -> None:
        """Log in and look for the target, without a message."""
        async with self._connect():
            pass

    async def catch_up(self, message_ids: Sequence[str]) -> list[ChannelReply]:
        """Return the replies to these messages so far; for each message, rejections come before approvals.

        The messages are checked again after every new connection. Raises DeliveryFailed if the check fails. Messages that were deleted
        or that the bot did not send have no replies.
        """
        valid_ids = [message_id for message_id in message_ids if _is_id(message_id)]
        for message_id in valid_ids:
            _remember(self._open_questions, message_id, 0.0)
        replies = [reply for message_id in valid_ids for reply in await self._read_replies(message_id)]
        for reply in replies:
            self._open_questions.pop(reply.message, None)
        return replies

    async def replies(self) -> AsyncIterator[ChannelReply]:
        """Yield the replies of the listed users until `close`. A reply sent soon after its question may be yielded twice.

        Raises a permanent DeliveryFailed if Discord does not allow the bot to listen. After any other error it reconnects.
        """
        if not self._settings.people or self._closed:
            return
        await _cancel(self._listener_tasks)
        gateway = asyncio.create_task(self._listen())
        gateway.add_done_callback(lambda _: self._replies.put_nowait(None))
        tasks = self._listener_tasks = [gateway, asyncio.create_task(self._recheck_questions())]
        try:
            while not gateway.done() or not self._replies.empty():
                if reply := await self._replies.get():
                    yield reply
            if not gateway.cancelled():
                gateway.result()
        finally:
            await _cancel(tasks)

    async def close(self) -> None:
        """End `replies` and close every connection."""
        self._closed = True
        await _cancel(self._listener_tasks)
        async with self._logging_in:
            if self._client:
                await _close_client(self._client)
                self._client = None

    async def _post(self, nonce: str, content: str, attachment: str | None) -> str:
        """Send one message and return its id. Sending again with the same nonce returns the id of the existing message."""
        if nonce not in self._posted:
            files = [discord.File(io.BytesIO(attachment.encode()), _FILE_NAME)] if attachment else []
            no_mentions = discord.AllowedMentions.none()
            async with self._connect() as channel:
                # Embeds are suppressed, because Discord would fetch every URL in the text.
                message = await channel.send(content, files=files, nonce=nonce, allowed_mentions=no_mentions, suppress_embeds=True)
            _remember(self._posted, nonce, str(message.id))
        return self._posted[nonce]

    async def _add_reactions(self, message_id: str) -> None:
        async with self._connect() as channel:
            try:
                for emoji in (APPROVE_EMOJI, REJECT_EMOJI):
                    await channel.get_partial_message(int(message_id)).add_reaction(emoji)
            except (discord.Forbidden, discord.NotFound) as error:  # the message was sent, and users can add reactions themselves
                log.warning("%s: no reactions could be added to a question: %s", self._settings.name, error.text)

    async def _read_replies(self, message_id: str) -> list[ChannelReply]:
        """Return the replies to a message, read from its reactions."""
        replies: list[ChannelReply] = []
        async with self._connect() as channel:
            try:
                message = await channel.fetch_message(int(message_id))
                if message.author.id == self._bot_id:
                    for reaction in sorted(message.reactions, key=lambda reaction: str(reaction.emoji) != REJECT_EMOJI):
                        if (approved := _IS_APPROVAL.get(str(reaction.emoji))) is not None:
                            users = [user for user in await _users(reaction) if self._may_reply(user)]
                            replies += [ChannelReply(message_id, str(user), approved) for user in users]
            except discord.NotFound:
                self._open_questions.pop(message_id, None)
        return replies

    @property
    def _bot_id(self) -> int | None:
        return self._client.user.id if self._client and self._client.user else None

    def _may_reply(self, user: int) -> bool:
        return user in self._settings.people and user != self._bot_id

    @contextlib.asynccontextmanager
    async def _connect(self) -> AsyncGenerator[discord.PartialMessageable]:
        """Yield the target channel for a few API calls. Their errors are raised as DeliveryFailed."""
        try:
            async with asyncio.timeout(_CALL_TIMEOUT):
                client = await self._logged_in()
                if self._channel_id is None:
                    target = self._settings.target
                    self._channel_id = (await client.create_dm(discord.Object(target))).id if self._settings.direct else target
                yield client.get_partial_messageable(self._channel_id)
        except Exception as error:
            raise self._delivery_failed(error) from error

    async def _logged_in(self) -> "_Client":
        if self._rejection:  # Discord bans the IP address after repeated logins with an invalid token
            raise DeliveryFailed(self._rejection, permanent=True)
        async with self._logging_in:
            if self._closed:
                raise DeliveryFailed("the channel is closed")
            if self._client is None:
                client = _Client(self._settings.base_url)
                try:
                    await client.login(self._settings.token)
                except BaseException:
                    await _close_client(client)
                    raise
                self._client = client
            return self._client

    async def _listen(self) -> None:
        """Keep the gateway connection open. discord.py resumes a lost connection; if it gives up or fails, this connects again."""
        delay, now = _MIN_RECONNECT_DELAY, asyncio.get_running_loop().time
        while True:
            listener, started = _Client(self._settings.base_url, self._on_event), now()
            try:
                async with self._connect():
                    pass  # sets the ids of the bot and of the channel, which `_on_event` compares
                await listener.start(self._settings.token)
            except Exception as error:
                failure = self._delivery_failed(error)
                if failure.permanent:
                    raise failure from error
                was_stable = now() - started > _MAX_RECONNECT_DELAY
                delay = max(_MIN_RECONNECT_DELAY if was_stable else delay, failure.retry_after or 0.0)
                log.warning("%s: not listening for replies, reconnecting in %.0f s: %s", self._settings.name, delay, failure)
            finally:
                await _close_client(listener)
            await asyncio.sleep(delay)
            delay = min(delay * 2, _MAX_RECONNECT_DELAY)

    def _on_event(self, event: discord.RawReactionActionEvent | None) -> None:
        """Handle a reaction, or a new connection if `event` is None.

        Reactions in other channels or to messages of others are ignored.
        """
        if event is None:
            self._recheck.set()
            return
        approved = _IS_APPROVAL.get(str(event.emoji))
        is_own_message = event.channel_id == self._channel_id and event.message_author_id == self._bot_id
        if approved is not None and is_own_message and self._may_reply(event.user_id):
            self._queue_reply(ChannelReply(str(event.message_id), str(event.user_id), approved))

    def _queue_reply(self, reply: ChannelReply) -> None:
        """Pass a reply on. A very recent question stays open, because the caller may not have stored its id yet; it is rechecked."""
        self._replies.put_nowait(reply)
        if asyncio.get_running_loop().time() - self._open_questions.get(reply.message, 0.0) > _ID_STORED_AFTER:
            self._open_questions.pop(reply.message, None)

    async def _recheck_questions(self) -> None:
        """After every new connection, find the replies that were sent before it."""
        while True:
            await self._recheck.wait()
            self._recheck.clear()
            try:
                for message_id in list(self._open_questions):
                    for reply in (await self._read_replies(message_id))[:1]:
                        self._queue_reply(reply)
            except DeliveryFailed as error:
                log.warning("%s: could not check for replies: %s", self._settings.name, error)
                if not error.permanent:
                    self._recheck.set()
                    await asyncio.sleep(max(_RECHECK_DELAY, error.retry_after or 0.0))

    def _delivery_failed(self, error: Exception) -> DeliveryFailed:
        failure = error if isinstance(error, DeliveryFailed) else _describe_error(error, self._settings)
        self._rejection = str(failure) if isinstance(failure, _TokenRejected) else self._rejection
        return failure


class _TokenRejected(DeliveryFailed):
    """Discord does not accept the bot's token."""


class _Client(discord.Client):
    """discord.py without voice and without caches for messages and members."""

    def __init__(self, base_url: str, on_event: Callable[[discord.RawReactionActionEvent | None], None] = lambda _: None) -> None:
        discord.VoiceClient.warn_nacl = discord.VoiceClient.warn_dave = False  # no warnings about missing voice libraries
        logging.getLogger("discord.state").setLevel(logging.ERROR)  # no warnings about missing lists of servers
        super().__init__(
            intents=discord.Intents(guild_reactions=True, dm_reactions=True),
            member_cache_flags=discord.MemberCacheFlags.none(),
            chunk_guilds_at_startup=False,
            guild_ready_timeout=0.0,
            max_messages=None,
            max_ratelimit_timeout=_MAX_RATE_LIMIT_WAIT,
        )
        if base_url:
            self.http = self._connection.http = _CustomServer(self.loop, base_url)
        self._on_event = on_event

    async def on_raw_reaction_add(self, event: discord.RawReactionActionEvent) -> None:
        self._on_event(event)

    async def on_connect(self) -> None:
        self._on_event(None)

    on_resumed = on_connect


class _CustomServer(HTTPClient):
    """Sends the REST and gateway requests of one client to another address than Discord's."""

    def __init__(self, loop: asyncio.AbstractEventLoop, base_url: str) -> None:
        super().__init__(loop, max_ratelimit_timeout=_MAX_RATE_LIMIT_WAIT)
        self._base_url = base_url
        self._gateway = f"ws://{urlsplit(base_url).netloc}/gateway"

    async def request(self, route: Route, **options: Any) -> Any:
        route.url = self._base_url + route.url.removeprefix(Route.BASE)
        return await super().request(route, **options)

    async def ws_connect(self, url: str, *, compress: int = 0) -> aiohttp.ClientWebSocketResponse:
        return await super().ws_connect(url.replace(str(DiscordWebSocket.DEFAULT_GATEWAY), self._gateway), compress=compress)


def _contents(message: OutgoingMessage, expects_reply: bool) -> tuple[list[str], str | None]:
    """Return the texts of the Discord messages, and the file to attach if the notice would need too many of them."""
    title = " ".join(encodable(message.title).split())
    head = f"**{discord.utils.escape_markdown(title)}**\n" if title else ""
    text, tail = head + encodable(message.text), _REPLY_INSTRUCTIONS if expects_reply else ""
    max_messages = 1 if message.question else _MAX_MESSAGES
    contents = list(itertools.islice(chunks(text, LIMIT - len(tail)), max_messages + 1)) or [message.task_id]
    attachment = None
    if len(contents) > max_messages:
        tail = f"\n\n*Shortened. The full text ({len(text):,} characters) is in the attached file.*" + tail
        contents, attachment = [next(chunks(text, LIMIT - len(tail)))], f"{title}\n\n{encodable(message.text)}".lstrip()
    contents[-1] += tail
    return contents, attachment


def _describe_error(error: Exception, settings: Settings) -> DeliveryFailed:
    """Return an error that says what failed and, if a retry cannot help, what to do."""
    target = f"the user {settings.target}" if settings.direct else f"the channel {settings.target}"
    join = "share a server with the bot and allow direct messages from its members"
    fix = join if settings.direct else f"add the bot to its server and give it {_PERMISSIONS} there"
    reason = " ".join(error.text.split())[:200] if isinstance(error, discord.HTTPException) and error.code else "no reason given"
    match error:
        case discord.LoginFailure() | discord.HTTPException(status=401) | discord.ConnectionClosed(code=4004):
            return _TokenRejected(f"Discord does not accept the bot's token: put a valid one into {settings.token_from}", permanent=True)
        case discord.RateLimited():
            return DeliveryFailed(f"rate limited by Discord for {error.retry_after:.0f} s", retry_after=error.retry_after)
        case discord.HTTPException(status=429):
            header = error.response.headers.get("Retry-After", "")
            return DeliveryFailed("rate limited by Discord", retry_after=float(header) if header.isdecimal() else 60.0)
        case discord.HTTPException(status=403):
            return DeliveryFailed(f"Discord does not let the bot write to {target}: {fix} ({reason})", permanent=True)
        case discord.HTTPException(status=404):
            return DeliveryFailed(f"Discord does not know {target}: correct 'target' of [channels.{settings.name}]", permanent=True)
        case discord.HTTPException(status=413):
            return DeliveryFailed("the message is larger than Discord accepts", permanent=True)
        case discord.HTTPException():
            return DeliveryFailed(f"Discord answered {error.status} ({reason})")
        case TimeoutError():
            return DeliveryFailed(f"Discord did not answer within {_CALL_TIMEOUT:.0f} s")
        case OSError() | aiohttp.ClientError():
            return DeliveryFailed(f"Discord could not be reached, or the connection was lost ({str(error) or type(error).__name__})")
        case _:
            return DeliveryFailed(f"unexpected answer from Discord ({type(error).__name__}: {error})")


async def _users(reaction: discord.Reaction) -> list[int]:
    """Return the ids of the users who added this reaction, as a normal or a burst reaction."""
    kinds = [kind for kind, count in ((0, reaction.normal_count), (1, reaction.burst_count)) if count]
    return [user.id for kind in kinds async for user in reaction.users(type=discord.ReactionType(kind))]


async def _cancel(tasks: Sequence["asyncio.Task[None]"]) -> None:
    running = set(tasks)
    while running:
        for task in running:
            task.cancel()  # repeated, because asyncio.wait_for in discord.py can swallow a cancellation
        _, running = await asyncio.wait(running, timeout=_CANCEL_INTERVAL)
    await asyncio.gather(*tasks, return_exceptions=True)


async def _close_client(client: discord.Client) -> None:
    """Close a client in any state. Waits at most 3 seconds for the server to close its side."""
    try:
        async with asyncio.timeout(_CLOSE_TIMEOUT):
            await client.close()
    except Exception as error:
        log.debug("a connection to Discord was not closed cleanly: %r", error)
    finally:
        await client.http.close()


def _remember(entries: dict[str, Any], key: str, value: str | float) -> None:
    """Add an entry; drop the oldest if there are too many."""
    entries[key] = value
    if len(entries) > _MAX_REMEMBERED:
        del entries[next(iter(entries))]


def _is_id(text: str) -> bool:
    return re.fullmatch(r"[0-9]{1,20}", text) is not None


def _is_loopback(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme == "http" and (parts.hostname == "localhost" or ipaddress.ip_address(parts.hostname or "").is_loopback)
    except ValueError:
        return False
