"""Discord: letters go out as messages of a bot, and ✅ or ❌ under a question comes back as an answer.

A letter comes in, the id of its last message goes out; the gateway is open only while somebody iterates over the answers. It never pings
anybody, never counts the reaction of a person who is not listed, and says a letter twice only if its second attempt comes later than
the few minutes for which Discord remembers the first.
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
from backburner.integrations.channels.message_split import LIMIT, chunks

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it imports a module for sound that Python is about to drop
    import discord
    from discord.gateway import DiscordWebSocket
    from discord.http import HTTPClient, Route

log = logging.getLogger("backburner")
YES, NO = "✅", "❌"
_MEANING = {YES: True, NO: False}
_ASK = f"\n\nReact with {YES} for yes or {NO} for no."
_MOST_MESSAGES, _FILE = 10, "letter.txt"  # a longer letter is one message with a file
_LONGEST_NONCE, _REMEMBERED = 25, 500
_CALL_SECONDS = 50.0
_LONGEST_RATE_LIMIT = 30.0  # discord.py sits out a shorter one by itself
_FIRST_WAIT, _LONGEST_WAIT, _LOOK_WAIT = 5.0, 300.0, 5.0  # Discord lets a bot in once in five seconds
_SETTLED_SECONDS = 5.0  # by then whoever sent a question has noted its id
_GOODBYE_SECONDS, _CANCEL_SECONDS = 3.0, 1.0
_PERMISSIONS = "View Channel, Send Messages, Attach Files, Add Reactions and Read Message History"


class Settings(NamedTuple):
    """A `[channels.NAME]` of this type, checked. `target` is the id of a channel, or of a person where it is `direct`."""

    name: str
    token: str
    token_from: str
    target: int
    direct: bool
    people: frozenset[int]
    base_url: str


def open_channel(name: str, settings: dict[str, str], environ: dict[str, str]) -> "Discord":
    """The channel as its settings say. Talks to nobody yet; ConfigError says which setting is wrong."""

    def wrong(message: str) -> ConfigError:
        return ConfigError(message, where=f"channels.{name}")

    token_env = settings.get("token_env") or "DISCORD_TOKEN"
    token_from = f"'token' of [channels.{name}]" if settings.get("token") else token_env
    if not (token := (settings.get("token") or environ.get(token_env, "")).strip()):
        raise wrong(f"there is no token: put the one of your Discord bot into the environment variable {token_env}")
    target = settings.get("target", "").strip()
    direct, number = target.startswith("user:"), target.removeprefix("user:").strip()
    if not _is_id(number):
        raise wrong(f"'target' must be the id of a Discord channel, or user:ID for a direct message, not {target!r}")
    people = [person.strip() for person in settings.get("people", "").split(",") if person.strip()]
    if strange := [person for person in people if not _is_id(person)]:
        raise wrong(f"'people' must be ids of Discord users with commas between them; {strange[0]!r} is none")
    people = people or ([number] if direct else [])
    base_url = settings.get("base_url", "").rstrip("/")
    if base_url and not _is_loopback(base_url):
        raise wrong(f"'base_url' is for tests: an http address of this machine, such as http://127.0.0.1:8080/api/v10, not {base_url!r}")
    return Discord(Settings(name, token, token_from, int(number), direct, frozenset(map(int, people)), base_url))


class Discord:
    """A bot's way to one Discord channel or person, as the port Channel has it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._client: _Client | None = None
        self._channel_id: int | None = None
        self._logging_in = asyncio.Lock()
        self._refused = ""
        self._closed = False
        self._posted: dict[str, str] = {}  # message ids by nonce
        self._asked: dict[str, float] = {}  # questions whose answer may still be unknown, and since when
        self._heard: asyncio.Queue[ChannelReply | None] = asyncio.Queue()
        self._missed = asyncio.Event()  # something may have happened that nobody heard
        self._listening: list[asyncio.Task[None]] = []

    async def send(self, letter: OutgoingMessage) -> str | None:
        """One message, or several in order. A question is always one message with its reactions; the end of a long one is in a file."""
        asks = letter.question and bool(self._settings.people)
        contents, attached = _contents(letter, asks)
        last = ""
        for number, content in enumerate(contents):
            name = f"{self._settings.target}\0{letter.key}\0{number}".encode("utf-8", "surrogatepass")
            last = await self._post(hashlib.sha256(name).hexdigest()[:_LONGEST_NONCE], content, attached)
        if asks:
            await self._add_reactions(last)
            _remember(self._asked, last, asyncio.get_running_loop().time())
            asyncio.get_running_loop().call_later(_SETTLED_SECONDS + 0.1, self._missed.set)
        return last

    async def catch_up(self, message_ids: Sequence[str]) -> list[ChannelReply]:
        """What was answered to these messages by now, each no before a yes. They are looked at again after every new connection.

        Undelivered where that could not be found out; messages that are gone, or are not the bot's, have no answers.
        """
        known = [message_id for message_id in message_ids if _is_id(message_id)]
        for message_id in known:
            _remember(self._asked, message_id, 0.0)
        found = [answer for message_id in known for answer in await self._look(message_id)]
        for answer in found:
            self._asked.pop(answer.message, None)
        return found

    async def replies(self) -> AsyncIterator[ChannelReply]:
        """The answers of the people who may give them, until `close`. One that is given soon after its question comes twice.

        Undelivered, for good, where Discord will never let the bot listen. Whatever else happens, it connects again.
        """
        if not self._settings.people or self._closed:
            return
        await _end(self._listening)
        gateway = asyncio.create_task(self._listen())
        gateway.add_done_callback(lambda _: self._heard.put_nowait(None))
        mine = self._listening = [gateway, asyncio.create_task(self._look_again())]
        try:
            while not gateway.done() or not self._heard.empty():
                if answer := await self._heard.get():
                    yield answer
            if not gateway.cancelled():
                gateway.result()
        finally:
            await _end(mine)

    async def close(self) -> None:
        """End the answers and every connection."""
        self._closed = True
        await _end(self._listening)
        async with self._logging_in:
            if self._client:
                await _hang_up(self._client)
                self._client = None

    async def _post(self, nonce: str, content: str, attached: str | None) -> str:
        """Send one message and return its id. The same nonce gives the same message, whoever lost the first reply to it."""
        if nonce not in self._posted:
            files = [discord.File(io.BytesIO(attached.encode()), _FILE)] if attached else []
            nobody = discord.AllowedMentions.none()
            async with self._place() as place:
                # No embeds: Discord would fetch every address that the text names.
                message = await place.send(content, files=files, nonce=nonce, allowed_mentions=nobody, suppress_embeds=True)
            _remember(self._posted, nonce, str(message.id))
        return self._posted[nonce]

    async def _add_reactions(self, message_id: str) -> None:
        async with self._place() as place:
            try:
                for emoji in (YES, NO):
                    await place.get_partial_message(int(message_id)).add_reaction(emoji)
            except (discord.Forbidden, discord.NotFound) as error:  # it was sent all the same, and people can add their own
                log.warning("%s: no reactions could be added to a question: %s", self._settings.name, error.text)

    async def _look(self, message_id: str) -> list[ChannelReply]:
        """The answers that a message has, as its reactions tell them."""
        found: list[ChannelReply] = []
        async with self._place() as place:
            try:
                message = await place.fetch_message(int(message_id))
                if message.author.id == self._me:
                    for reaction in sorted(message.reactions, key=lambda reaction: str(reaction.emoji) != NO):
                        if (yes := _MEANING.get(str(reaction.emoji))) is not None:
                            found += [ChannelReply(message_id, str(who), yes) for who in await _people(reaction) if self._may_answer(who)]
            except discord.NotFound:
                self._asked.pop(message_id, None)
        return found

    @property
    def _me(self) -> int | None:
        return self._client.user.id if self._client and self._client.user else None

    def _may_answer(self, person: int) -> bool:
        return person in self._settings.people and person != self._me

    @contextlib.asynccontextmanager
    async def _place(self) -> AsyncGenerator[discord.PartialMessageable]:
        """Where letters go, for a call or two. What goes wrong with them is raised as Undelivered."""
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                client = await self._logged_in()
                if self._channel_id is None:
                    target = self._settings.target
                    self._channel_id = (await client.create_dm(discord.Object(target))).id if self._settings.direct else target
                yield client.get_partial_messageable(self._channel_id)
        except Exception as error:
            raise self._undelivered(error) from error

    async def _logged_in(self) -> "_Client":
        if self._refused:  # asking again and again with a wrong token gets the whole address banned
            raise DeliveryFailed(self._refused, for_good=True)
        async with self._logging_in:
            if self._closed:
                raise DeliveryFailed("this channel was closed")
            if self._client is None:
                client = _Client(self._settings.base_url)
                try:
                    await client.login(self._settings.token)
                except BaseException:
                    await _hang_up(client)
                    raise
                self._client = client
            return self._client

    async def _listen(self) -> None:
        """Keep the gateway open. discord.py resumes a connection that was lost; where it gives up, or stumbles, this starts anew."""
        wait, now = _FIRST_WAIT, asyncio.get_running_loop().time
        while True:
            listener, began = _Client(self._settings.base_url, self._happened), now()
            try:
                async with self._place():
                    pass  # so that it is known whose reactions, and where, are answers
                await listener.start(self._settings.token)
            except Exception as error:
                problem = self._undelivered(error)
                if problem.for_good:
                    raise problem from error
                wait = max(_FIRST_WAIT if now() - began > _LONGEST_WAIT else wait, problem.retry_after or 0.0)
                log.warning("%s: answers are not heard for %.0f s: %s", self._settings.name, wait, problem)
            finally:
                await _hang_up(listener)
            await asyncio.sleep(wait)
            wait = min(wait * 2, _LONGEST_WAIT)

    def _happened(self, event: discord.RawReactionActionEvent | None) -> None:
        """A reaction came in, or a new connection stands. Whoever reacts elsewhere, or to others' messages, has not answered."""
        if event is None:
            self._missed.set()
            return
        yes, ours = _MEANING.get(str(event.emoji)), event.channel_id == self._channel_id and event.message_author_id == self._me
        if yes is not None and ours and self._may_answer(event.user_id):
            self._hear(ChannelReply(str(event.message_id), str(event.user_id), yes))

    def _hear(self, answer: ChannelReply) -> None:
        """Hand an answer on. While whoever asked may not have noted the question yet, it stays to be looked for once more."""
        self._heard.put_nowait(answer)
        if asyncio.get_running_loop().time() - self._asked.get(answer.message, 0.0) > _SETTLED_SECONDS:
            self._asked.pop(answer.message, None)

    async def _look_again(self) -> None:
        """After every new connection, find what was answered before it."""
        while True:
            await self._missed.wait()
            self._missed.clear()
            try:
                for message_id in list(self._asked):
                    for answer in (await self._look(message_id))[:1]:
                        self._hear(answer)
            except DeliveryFailed as error:
                log.warning("%s: answers were not looked for: %s", self._settings.name, error)
                if not error.for_good:
                    self._missed.set()
                    await asyncio.sleep(max(_LOOK_WAIT, error.retry_after or 0.0))

    def _undelivered(self, error: Exception) -> DeliveryFailed:
        problem = error if isinstance(error, DeliveryFailed) else _in_plain_words(error, self._settings)
        self._refused = str(problem) if isinstance(problem, _Refused) else self._refused
        return problem


class _Refused(DeliveryFailed):
    """The bot is not let in."""


class _Client(discord.Client):
    """discord.py without voice and without a memory of messages and members."""

    def __init__(self, base_url: str, happened: Callable[[discord.RawReactionActionEvent | None], None] = lambda _: None) -> None:
        discord.VoiceClient.warn_nacl = discord.VoiceClient.warn_dave = False  # what voice would need is not missed,
        logging.getLogger("discord.state").setLevel(logging.ERROR)  # nor the lists of servers
        super().__init__(
            intents=discord.Intents(guild_reactions=True, dm_reactions=True),
            member_cache_flags=discord.MemberCacheFlags.none(),
            chunk_guilds_at_startup=False,
            guild_ready_timeout=0.0,
            max_messages=None,
            max_ratelimit_timeout=_LONGEST_RATE_LIMIT,
        )
        if base_url:
            self.http = self._connection.http = _Elsewhere(self.loop, base_url)
        self._happened = happened

    async def on_raw_reaction_add(self, event: discord.RawReactionActionEvent) -> None:
        self._happened(event)

    async def on_connect(self) -> None:
        self._happened(None)

    on_resumed = on_connect


class _Elsewhere(HTTPClient):
    """Discord's REST and gateway at another address, for one client alone."""

    def __init__(self, loop: asyncio.AbstractEventLoop, base_url: str) -> None:
        super().__init__(loop, max_ratelimit_timeout=_LONGEST_RATE_LIMIT)
        self._base_url = base_url
        self._gateway = f"ws://{urlsplit(base_url).netloc}/gateway"

    async def request(self, route: Route, **options: Any) -> Any:
        route.url = self._base_url + route.url.removeprefix(Route.BASE)
        return await super().request(route, **options)

    async def ws_connect(self, url: str, *, compress: int = 0) -> aiohttp.ClientWebSocketResponse:
        return await super().ws_connect(url.replace(str(DiscordWebSocket.DEFAULT_GATEWAY), self._gateway), compress=compress)


def _contents(letter: OutgoingMessage, asks: bool) -> tuple[list[str], str | None]:
    """The messages of a letter, and the file that the last one carries where it would be too many."""
    title = " ".join(_sound(letter.title).split())
    head = f"**{discord.utils.escape_markdown(title)}**\n" if title else ""
    text, tail = head + _sound(letter.text), _ASK if asks else ""
    most = 1 if letter.question else _MOST_MESSAGES
    found = list(itertools.islice(chunks(text, LIMIT - len(tail)), most + 1)) or [letter.task_id]
    attached = None
    if len(found) > most:
        tail = f"\n\n*This is its beginning. All of it, {len(text):,} characters, is in the attached file.*" + tail
        found, attached = [next(chunks(text, LIMIT - len(tail)))], f"{title}\n\n{_sound(letter.text)}".lstrip()
    found[-1] += tail
    return found, attached


def _in_plain_words(error: Exception, settings: Settings) -> DeliveryFailed:
    """What went wrong, in plain words, and what to do where it will not get better by itself."""
    target = f"the user {settings.target}" if settings.direct else f"the channel {settings.target}"
    join = "share a server with the bot and allow direct messages from its members"
    rights = join if settings.direct else f"add the bot to its server and give it {_PERMISSIONS} there"
    said = " ".join(error.text.split())[:200] if isinstance(error, discord.HTTPException) and error.code else "no reason given"
    match error:
        case discord.LoginFailure() | discord.HTTPException(status=401) | discord.ConnectionClosed(code=4004):
            return _Refused(f"Discord does not accept the bot's token: put a valid one into {settings.token_from}", for_good=True)
        case discord.RateLimited():
            return DeliveryFailed(f"Discord asks the bot to wait for {error.retry_after:.0f} s", retry_after=error.retry_after)
        case discord.HTTPException(status=429):
            header = error.response.headers.get("Retry-After", "")
            return DeliveryFailed("Discord asks the bot to wait", retry_after=float(header) if header.isdecimal() else 60.0)
        case discord.HTTPException(status=403):
            return DeliveryFailed(f"Discord does not let the bot write to {target}: {rights} ({said})", for_good=True)
        case discord.HTTPException(status=404):
            return DeliveryFailed(f"Discord does not know {target}: correct 'target' of [channels.{settings.name}]", for_good=True)
        case discord.HTTPException(status=413):
            return DeliveryFailed("the letter is longer than Discord takes", for_good=True)
        case discord.HTTPException():
            return DeliveryFailed(f"Discord answered {error.status} ({said})")
        case TimeoutError():
            return DeliveryFailed(f"Discord did not answer within {_CALL_SECONDS:.0f} s")
        case OSError() | aiohttp.ClientError():
            return DeliveryFailed(f"Discord could not be reached, or broke off ({str(error) or type(error).__name__})")
        case _:
            return DeliveryFailed(f"Discord was not understood ({type(error).__name__}: {error})")


async def _people(reaction: discord.Reaction) -> list[int]:
    """Who gave this reaction, plain or as a burst."""
    kinds = [kind for kind, count in ((0, reaction.normal_count), (1, reaction.burst_count)) if count]
    return [user.id for kind in kinds for user in [one async for one in reaction.users(type=discord.ReactionType(kind))]]


async def _end(tasks: Sequence["asyncio.Task[None]"]) -> None:
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()  # once is not always enough: asyncio.wait_for, in discord.py, can swallow it
        _, left = await asyncio.wait(left, timeout=_CANCEL_SECONDS)
    await asyncio.gather(*tasks, return_exceptions=True)


async def _hang_up(client: discord.Client) -> None:
    """Close a client whatever state it is in, and do not wait long for the other side's goodbye."""
    try:
        async with asyncio.timeout(_GOODBYE_SECONDS):
            await client.close()
    except Exception as error:
        log.debug("a connection to Discord did not end well: %r", error)
    finally:
        await client.http.close()


def _remember(known: dict[str, Any], key: str, value: str | float) -> None:
    """Keep the newest entries only."""
    known[key] = value
    if len(known) > _REMEMBERED:
        del known[next(iter(known))]


def _sound(text: str) -> str:
    """Without the halves of characters that broken output can hold: no JSON can carry them."""
    return text.encode("utf-8", "replace").decode()


def _is_id(text: str) -> bool:
    return re.fullmatch(r"[0-9]{1,20}", text) is not None


def _is_loopback(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme == "http" and (parts.hostname == "localhost" or ipaddress.ip_address(parts.hostname or "").is_loopback)
    except ValueError:
        return False
