"""A fake Discord server on loopback, with the REST and gateway API that the channel uses, and failures on demand.

It runs in a thread with its own event loop, so that tests can call it from anywhere. Requests are checked as Discord checks them:
token, message length, nonces and intents. Messages are kept until the server ends, across connections of the bot.
"""

import asyncio
import contextlib
import itertools
import json
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote

from aiohttp import WSMsgType, web

BOT = "100000000000000001"
PERSON = "200000000000000001"
STRANGER = "200000000000000002"
CHANNEL = "300000000000000001"
TOKEN = "a.bots.token"
_EPOCH_MS = 1_420_070_400_000
_GUILD_REACTIONS, _DM_REACTIONS = 1 << 10, 1 << 13
_LOST_RESPONSE, _SUCCESS = 0, 200
T = TypeVar("T")


class Failure(NamedTuple):
    """What happens at the next call whose method and path contain `on`: an error, a lost connection after the call was executed, or nothing."""

    on: str
    status: int
    code: int
    retry_after: float


class Session:
    """A gateway session of a bot, connected or resumable."""

    def __init__(self, intents: int) -> None:
        self.intents = intents
        self.events: list[dict[str, Any]] = []
        self.socket: web.WebSocketResponse | None = None


class FakeDiscord:
    """The server. `with FakeDiscord() as discord:` and then `discord.base_url`."""

    def __init__(self) -> None:
        self.base_url = ""
        self.requests: list[str] = []
        self.messages: dict[str, dict[str, Any]] = {}  # by id, in order of arrival
        self.connections = 0  # how often a bot has connected or resumed
        self.resumed = 0
        self.heartbeats = 0
        self.identified: list[dict[str, Any]] = []
        self.known_channels = {CHANNEL}
        self.direct: dict[str, str] = {}  # direct message channels by user
        self._nonces: dict[str, str] = {}
        self._files: dict[str, bytes] = {}
        self._reactions: dict[str, dict[str, list[tuple[str, int]]]] = {}  # by message and emoji: user, and whether it was a burst
        self._failures: list[Failure] = []
        self._sessions: dict[str, Session] = {}
        self._numbers = itertools.count(1)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="fake-discord", daemon=True)
        self._started = threading.Event()

    def __enter__(self) -> "FakeDiscord":
        self._thread.start()
        assert self._started.wait(5)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(5)
        assert not self._thread.is_alive()

    def react(self, message_id: str, person: str, emoji: str, *, burst: bool = False) -> None:
        """Add a reaction of a user to a message."""
        self._call(self._react(message_id, person, emoji, burst))

    def post_message(self, person: str, content: str) -> str:
        """Add a message of a user to the channel. Return its id."""

        async def store() -> str:
            return self._store(CHANNEL, person, {"content": content})["id"]

        return self._call(store())

    def delete(self, message_id: str) -> None:
        self.messages.pop(message_id)

    def file(self, message_id: str) -> str:
        """Return the content of the file attached to a message."""
        return self._files[message_id].decode()

    def contents(self, channel: str = CHANNEL) -> list[str]:
        return [message["content"] for message in list(self.messages.values()) if message["channel_id"] == channel]

    def reactions(self, message_id: str) -> dict[str, list[str]]:
        return {emoji: [user for user, _ in people] for emoji, people in self._reactions.get(message_id, {}).items()}

    def fail(self, on: str, status: int, *, after: int = 0, times: int = 1, code: int = 0, retry_after: float = 0.0) -> None:
        """Fail the next calls whose method and path (as in 'POST /channels/1/messages') contain `on`, except the first `after` of them."""
        self._failures += [Failure(on, _SUCCESS, 0, 0.0)] * after + [Failure(on, status, code, retry_after)] * times

    def lose_response(self, on: str = "POST /channels", times: int = 1) -> None:
        """Execute the next calls, but close the connection instead of responding."""
        self.fail(on, _LOST_RESPONSE, times=times)

    def forget_nonces(self) -> None:
        """Forget all nonces, as Discord does after a few minutes."""
        self._nonces.clear()

    def drop_gateway(self, *, resumable: bool = True, abort: bool = False, code: int = 4000) -> None:
        """Close all gateway connections. A session that cannot be resumed misses the events until the bot is back."""
        self._call(self._drop(resumable, abort, code))

    def hold_gateway(self) -> None:
        """Accept no gateway connection until `admit`."""
        self._call(self._hold(True))

    def admit(self) -> None:
        self._call(self._hold(False))

    def dispatch(self, kind: str, data: object) -> None:
        """Send any event to every bot."""
        self._call(self._dispatch(kind, data, lambda _: True))

    @property
    def connected(self) -> int:
        """Return the number of bots connected to the gateway."""
        return sum(session.socket is not None for session in list(self._sessions.values()))

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(5)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._stopping, self._open = asyncio.Event(), asyncio.Event()
        self._open.set()
        app = web.Application(client_max_size=16 << 20, middlewares=[self._check_request])
        app.add_routes(
            [
                web.get("/gateway", self._gateway),
                web.get("/api/v10/users/@me", self._me),
                web.get("/api/v10/oauth2/applications/@me", self._application),
                web.post("/api/v10/users/@me/channels", self._open_direct),
                web.post("/api/v10/channels/{channel}/messages", self._create),
                web.get("/api/v10/channels/{channel}/messages/{message}", self._message),
                web.put("/api/v10/channels/{channel}/messages/{message}/reactions/{emoji}/@me", self._add_reaction),
                web.get("/api/v10/channels/{channel}/messages/{message}/reactions/{emoji}", self._list_reactions),
            ]
        )
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        self.base_url = f"http://{host}:{port}/api/v10"
        self._started.set()
        await self._stopping.wait()
        self._open.set()
        await self._drop(resumable=False, abort=True, code=1001)
        await runner.cleanup()

    @web.middleware
    async def _check_request(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if request.path == "/gateway":
            return await handler(request)
        call = f"{request.method} {request.path.removeprefix('/api/v10')}"
        self.requests.append(call)
        failure = next((failure for failure in self._failures if failure.on in call), None)
        if failure:
            self._failures.remove(failure)
        if failure and failure.status == 429:
            rate_limit = {"message": "You are being rate limited.", "retry_after": failure.retry_after, "global": False}
            return _json(rate_limit, 429, {"Via": "1.1 google", "Retry-After": str(failure.retry_after)})
        if failure and failure.status not in (_LOST_RESPONSE, _SUCCESS):
            return _json({"message": f"requested failure {failure.status}", "code": failure.code}, failure.status)
        if request.headers.get("Authorization") != f"Bot {TOKEN}":
            return _json({"message": "401: Unauthorized", "code": 0}, 401)
        answer = await handler(request)
        if failure and failure.status == _LOST_RESPONSE and request.transport:
            request.transport.abort()
        return answer

    async def _me(self, _: web.Request) -> web.Response:
        return _json(_user(BOT))

    async def _application(self, _: web.Request) -> web.Response:
        return _json(
            {
                "id": BOT,
                "name": "bot",
                "description": "",
                "icon": None,
                "bot_public": False,
                "bot_require_code_grant": False,
                "owner": _user(PERSON),
                "verify_key": "",
                "flags": 0,
            }
        )

    async def _open_direct(self, request: web.Request) -> web.Response:
        person = str((await request.json())["recipient_id"])
        if person not in (PERSON, STRANGER):
            return _json({"message": "Unknown User", "code": 10013}, 404)
        channel = self.direct.setdefault(person, self._id())
        self.known_channels.add(channel)
        return _json({"id": channel, "type": 1, "recipients": [_user(person)], "last_message_id": None})

    async def _create(self, request: web.Request) -> web.Response:
        channel, files = request.match_info["channel"], []
        if request.content_type == "multipart/form-data":
            form = await request.post()
            sent = json.loads(str(form["payload_json"]))
            files = [part.file.read() for part in form.values() if isinstance(part, web.FileField)]
        else:
            sent = await request.json()
        if channel not in self.known_channels:
            return _json({"message": "Unknown Channel", "code": 10003}, 404)
        content, nonce = (sent.get("content") or "").strip(), sent.get("nonce")
        if not content and not files:
            return _json({"message": "Cannot send an empty message", "code": 50006}, 400)
        if len(content) > 2000 or len(nonce or "") > 25:
            return _json({"message": "Invalid Form Body", "code": 50035}, 400)
        if sent.get("enforce_nonce") and nonce in self._nonces:
            return _json(self._with_reactions(self._nonces[nonce]))
        message = self._store(channel, BOT, {**sent, "content": content})
        if files:
            self._files[message["id"]] = files[0]
        if nonce:
            self._nonces[nonce] = message["id"]
        return _json(self._with_reactions(message["id"]))

    async def _message(self, request: web.Request) -> web.Response:
        message = self.messages.get(request.match_info["message"])
        if message is None or message["channel_id"] != request.match_info["channel"]:
            return _json({"message": "Unknown Message", "code": 10008}, 404)
        return _json(self._with_reactions(message["id"]))

    async def _add_reaction(self, request: web.Request) -> web.Response:
        message_id = request.match_info["message"]
        if message_id not in self.messages:
            return _json({"message": "Unknown Message", "code": 10008}, 404)
        await self._react(message_id, BOT, unquote(request.match_info["emoji"]), False)
        return web.Response(status=204)

    async def _list_reactions(self, request: web.Request) -> web.Response:
        reactions = self._reactions.get(request.match_info["message"], {})
        burst, after = int(request.query.get("type", "0")), int(request.query.get("after", "0"))
        people = sorted((int(user) for user, kind in reactions.get(unquote(request.match_info["emoji"]), []) if kind == burst))
        page = [str(user) for user in people if user > after][: int(request.query.get("limit", "25"))]
        return _json([_user(user) for user in page])

    def _store(self, channel: str, author: str, sent: dict[str, Any]) -> dict[str, Any]:
        mentions = sent.get("allowed_mentions", {"parse": ["everyone"]}).get("parse", [])
        message = {
            "id": self._id(),
            "channel_id": channel,
            "author": _user(author),
            "content": sent["content"],
            "timestamp": "2026-01-01T00:00:00.000000+00:00",
            "edited_timestamp": None,
            "tts": False,
            "mention_everyone": "@everyone" in sent["content"] and "everyone" in mentions,
            "mentions": [],
            "mention_roles": [],
            "attachments": [],
            "embeds": [],
            "pinned": False,
            "type": 0,
            "flags": sent.get("flags", 0),
        }
        self.messages[message["id"]] = message
        return message

    def _with_reactions(self, message_id: str) -> dict[str, Any]:
        """Return a message with its current reactions."""
        reactions = []
        for emoji, people in self._reactions.get(message_id, {}).items():
            bursts = sum(burst for _, burst in people)
            reactions.append(
                {
                    "emoji": {"id": None, "name": emoji},
                    "me": (BOT, 0) in people,
                    "count": len(people),
                    "count_details": {"normal": len(people) - bursts, "burst": bursts},
                    "me_burst": False,
                    "burst_colors": [],
                }
            )
        return {**self.messages[message_id], "reactions": reactions}

    async def _react(self, message_id: str, person: str, emoji: str, burst: bool) -> None:
        people = self._reactions.setdefault(message_id, {}).setdefault(emoji, [])
        if (person, int(burst)) in people:
            return
        people.append((person, int(burst)))
        message = self.messages[message_id]
        event = {
            "user_id": person,
            "channel_id": message["channel_id"],
            "message_id": message_id,
            "message_author_id": message["author"]["id"],
            "emoji": {"id": None, "name": emoji},
            "burst": burst,
            "type": int(burst),
        }
        if message["channel_id"] in self.direct.values():
            await self._dispatch("MESSAGE_REACTION_ADD", event, lambda session: bool(session.intents & _DM_REACTIONS))
        else:
            event["guild_id"] = "400000000000000001"
            await self._dispatch("MESSAGE_REACTION_ADD", event, lambda session: bool(session.intents & _GUILD_REACTIONS))

    async def _dispatch(self, kind: str, data: object, is_wanted: Callable[[Session], bool]) -> None:
        for session in filter(is_wanted, list(self._sessions.values())):
            event = {"op": 0, "t": kind, "d": data, "s": len(session.events) + 1}
            session.events.append(event)
            if session.socket:
                with contextlib.suppress(ConnectionError):  # it is disconnecting and may resume
                    await session.socket.send_json(event)

    async def _drop(self, resumable: bool, abort: bool, code: int) -> None:
        for name, session in list(self._sessions.items()):
            socket, session.socket = session.socket, None
            if not resumable:
                del self._sessions[name]
            if socket and abort and socket._req and socket._req.transport:
                socket._req.transport.abort()
            elif socket:
                await socket.close(code=code)

    async def _hold(self, held: bool) -> None:
        if held:
            self._open.clear()
        else:
            self._open.set()

    async def _gateway(self, request: web.Request) -> web.StreamResponse:
        await self._open.wait()
        socket = web.WebSocketResponse(timeout=0.2)
        await socket.prepare(request)
        with contextlib.suppress(ConnectionError):  # the bot disconnected
            await self._serve_gateway(socket, request)
        for session in self._sessions.values():
            if session.socket is socket:
                session.socket = None
        return socket

    async def _serve_gateway(self, socket: web.WebSocketResponse, request: web.Request) -> None:
        await socket.send_json({"op": 10, "d": {"heartbeat_interval": 41_250}, "s": None, "t": None})
        async for frame in socket:
            if frame.type != WSMsgType.TEXT:
                break
            frame_data = json.loads(frame.data)
            match frame_data["op"]:
                case 1:
                    self.heartbeats += 1
                    await socket.send_json({"op": 11, "d": None})
                case 2 if frame_data["d"]["token"] != TOKEN:
                    await socket.close(code=4004)
                case 2:
                    await self._identify(socket, request, frame_data["d"])
                case 6 if frame_data["d"]["session_id"] not in self._sessions:
                    await socket.send_json({"op": 9, "d": False})
                case 6:
                    await self._resume(socket, frame_data["d"])

    async def _identify(self, socket: web.WebSocketResponse, request: web.Request, frame_data: dict[str, Any]) -> None:
        self.identified.append(frame_data)
        session = Session(frame_data["intents"])
        name = f"session-{next(self._numbers)}"
        ready = {
            "v": 10,
            "user": _user(BOT),
            "guilds": [],
            "session_id": name,
            "resume_gateway_url": f"ws://{request.host}/gateway",
            "application": {"id": BOT, "flags": 0},
        }
        session.events.append({"op": 0, "t": "READY", "d": ready, "s": 1})
        await socket.send_json(session.events[0])
        session.socket, self._sessions[name] = socket, session
        self.connections += 1

    async def _resume(self, socket: web.WebSocketResponse, frame_data: dict[str, Any]) -> None:
        session = self._sessions[frame_data["session_id"]]
        session.events.append({"op": 0, "t": "RESUMED", "d": {}, "s": len(session.events) + 1})
        for event in session.events[frame_data["seq"] :]:
            await socket.send_json(event)
        session.socket = socket
        self.connections += 1
        self.resumed += 1

    def _id(self) -> str:
        return str((int(time.time() * 1000) - _EPOCH_MS << 22) | next(self._numbers))


def _user(user_id: str) -> dict[str, Any]:
    return {"id": user_id, "username": f"user{user_id[-2:]}", "discriminator": "0", "avatar": None, "bot": user_id == BOT}


def _json(data: object, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    # discord.py treats every other content type as text.
    return web.Response(body=json.dumps(data).encode(), status=status, headers={"Content-Type": "application/json", **(headers or {})})
