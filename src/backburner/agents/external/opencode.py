"""Agents in an OpenCode server, over HTTP and its events: listened to for speed, read for truth.

Every prompt has an id of ours, so that one which was swallowed is sent again and none is said twice. The server goes on when we die; who
comes after us finds the session and what was said in it, and sees the turn to its end.
"""

import asyncio
import contextlib
import uuid
from typing import Any

from backburner.agents.external.message_fields import of_opencode
from backburner.agents.external.opencode_server import (
    STREAM_LOST,
    STREAM_OPEN,
    NotFound,
    OpenCodeServer,
    OpenCodeServers,
    ServerUnreachable,
)
from backburner.agents.external.opencode_transcript import Transcript
from backburner.agents.external.turn import EXPIRED, GO_ON, REFUSED, ExternalTurn, Failed
from backburner.core import recurring as standing
from backburner.core.known_agents import OPENCODE_RULES
from backburner.core.notice_text import notification
from backburner.core.notices import Notice
from backburner.core.ports import Outcome
from backburner.core.states import WaitKind
from backburner.core.terminal_text import shortened
from backburner.system.home import Home

_POLL_SECONDS = 5.0
_START_SECONDS = 5.0  # within which a prompt shows that it was taken up
_SENDS = 6
_SETTLE_SECONDS = 0.5  # an error is written down a moment after the session is idle, and what is said before that is lost
_MOST_RETRIES = 5  # of its provider; it would go on without end
_MOST_TIMES = 3  # that it is asked to go on after its server died
_REFUSALS = 20
_MOST_AWAY = 6
_REPLIES, _READS = 30, 10
_UNLISTED = ("webfetch", "glob")  # whose requests make it fail to list any
_MOST_STUCK = 4


class OpenCode:
    """Drives sessions in the servers of a home."""

    def __init__(self, home: Home) -> None:
        self.servers = OpenCodeServers(home)

    async def drive(self, talk: ExternalTurn) -> Outcome:
        patience = await talk.home.call(lambda app: app.config.number("models.timeout_seconds"))
        for times in range(_MOST_AWAY):
            server = await self.servers.find(talk.turn.settings, talk.environment, away=times > 0)
            with contextlib.suppress(ServerUnreachable):
                return await _Turn(talk, server, patience).go()
        raise Failed(f"its OpenCode server went away {_MOST_AWAY} times", standing.TRANSIENT)

    async def check(self, settings: dict[str, str], environ: dict[str, str]) -> str | None:
        """Why it could not be asked now: its server answers, its model is not asked."""
        try:
            await self.servers.find(settings, environ)
        except (Failed, OSError) as error:
            return str(error)
        finally:
            await self.servers.close(leave=True, started=True)
        return None


class _Turn:
    """One turn in a session, from the prompt to the evidence of its end."""

    def __init__(self, talk: ExternalTurn, server: OpenCodeServer, patience: float) -> None:
        self._talk, self._server, self._patience = talk, server, patience
        self._moved_at = self._told_at = asyncio.get_running_loop().time()
        self._passed: set[str] = set()  # calls whose commands were asked for with the folders they lead to
        self._directory = talk.turn.work.task.spec.cwd
        self._seen = Transcript(talk)
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._refusals, self._quiet, self._stuck = 0, 0, 0
        self._whole = False  # whether all since the prompt was heard
        self._events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._unheard: list[dict[str, Any]] = []  # events that came while a prompt was said

    async def go(self) -> Outcome:
        talk = self._talk
        if talk.record.get("run") != talk.turn.work.run.run_id:
            talk.save_state(run=talk.turn.work.run.run_id, messages=[], pending=None, interruptions=0)
        talk.earlier, talk.tools = {}, []  # all of this run is counted from its messages
        await self._open()
        async with self._server.listening(talk.session) as self._events:
            with contextlib.suppress(TimeoutError):  # there is still the poll
                async with asyncio.timeout(_START_SECONDS):
                    await self._server.connected.wait()
            try:
                outcome = await self._begin()
                while outcome is None:
                    outcome = await self._next()
                await self._forget()
                return outcome
            except asyncio.CancelledError:
                if not talk.leaving:
                    await self._abort()
                raise
            except NotFound:
                raise Failed(EXPIRED) from None
            except Failed:
                await self._forget()
                raise
            finally:
                for asking in self._asking.values():
                    asking.cancel()

    # -- saying something

    async def _open(self) -> None:
        """The session of the conversation; one that asks before it acts."""
        if session := self._talk.session:
            try:
                await self._server.call("GET", f"/session/{session}")
            except NotFound:
                raise Failed(EXPIRED) from None
            return
        task, settings = self._talk.turn.work.task, self._talk.turn.settings
        rules = [{"permission": name, "pattern": "*", "action": action} for name, action in OPENCODE_RULES.items()]
        rules += await self._denied()
        title = shortened(" ".join(f"{task.spec.description or task.spec.name or ''} ({task.task_id})".split()), longest=120)
        body: dict[str, Any] = {"title": title, "permission": rules}
        if settings.get("mode"):
            body["agent"] = settings["mode"]
        made = await self._server.call("POST", "/session", body, directory=self._directory)
        self._talk.save_state(session=str(made["id"]), directory=self._directory)

    async def _denied(self) -> list[dict[str, str]]:
        """What its own settings forbid: a session's rules come after those, and must not undo them."""
        name = self._talk.turn.settings.get("mode") or "build"
        agents = await self._server.call("GET", "/agent", directory=self._directory)
        found = next((one for one in agents or [] if isinstance(one, dict) and one.get("name") == name), {})
        rules = found.get("permission")
        return [rule for rule in rules if isinstance(rule, dict) and rule.get("action") == "deny"] if isinstance(rules, list) else []

    async def _begin(self) -> Outcome | None:
        """Say what there is to say, unless it was said before and is worked on, or has ended."""
        known, mine = await self._read(), self._talk.record.get("messages") or []
        first = next((n for n, message in enumerate(known) if message["info"]["id"] in mine), len(known))
        self._seen.old = {message["info"]["id"] for message in known[:first]}
        self._seen.take(known)
        if (telling := self._talk.record.get("telling")) and telling["id"] in {message["info"]["id"] for message in known}:
            await self._talk.notices_delivered(telling["notices"])  # by who was here before us
        if pending := self._talk.record.get("pending"):
            await self._send(pending)
            return await self._look()
        stopped = self._talk.turn.work.run.wait_kind is WaitKind.BUDGET  # by us, so that its error is none
        if mine and (await self._busy() or self._seen.answered() or (not stopped and (self._seen.last() or {}).get("error"))):
            return await self._look()
        await self._say(await self._talk.next_prompt(), interrupted=bool(mine) and not stopped)
        return None

    async def _say(self, text: str, *, interrupted: bool = False) -> None:
        if interrupted:
            times = int(self._talk.record.get("interruptions") or 0)
            if times >= _MOST_TIMES:
                raise Failed(f"it was interrupted {times} times in the middle of its work", standing.TRANSIENT)
            self._talk.save_state(interruptions=times + 1)
        pending = {
            "id": f"msg_{uuid.uuid4().hex}",
            "part": f"prt_{uuid.uuid4().hex}",
            "text": text,
            "notices": self._talk.delivering_notices,
        }
        self._talk.save_state(pending=pending, messages=[*(self._talk.record.get("messages") or []), pending["id"]])
        self._whole = self._server.connected.is_set()
        await self._send(pending)

    async def _send(self, pending: dict[str, Any]) -> None:
        """Say it, and again where nothing shows that it was heard: with the same ids it is heard once."""
        body = self._body(pending["id"], pending["part"], pending["text"])
        seen = {*self._seen.old, *self._seen.messages}
        for _ in range(_SENDS):
            await self._server.call("POST", f"/session/{self._talk.session}/prompt_async", body)
            deadline = asyncio.get_running_loop().time() + _START_SECONDS
            while (left := deadline - asyncio.get_running_loop().time()) > 0:
                try:
                    async with asyncio.timeout(left):
                        event = await self._events.get()
                except TimeoutError:
                    break
                self._unheard.append(event)
                about = event.get("properties") or {}
                status = (about.get("status") or {}).get("type")
                info = about.get("info") or {}
                if status in ("busy", "retry") or (info.get("role") == "assistant" and info.get("id") not in seen):
                    return await self._taken_up(pending)
            self._seen.take(await self._read())
            if self._seen.messages.keys() - seen or await self._busy():
                return await self._taken_up(pending)
            self._whole = False
        raise Failed("OpenCode took the prompt and did nothing about it", standing.TRANSIENT)

    async def _taken_up(self, pending: dict[str, Any]) -> None:
        await self._talk.prompt_received(pending.get("notices"))
        self._talk.save_state(pending=None)

    def _body(self, message: str, part: str, text: str, *, synthetic: bool = False) -> dict[str, Any]:
        about: dict[str, Any] = {"messageID": message}
        settings = self._talk.turn.settings
        if model := settings.get("model"):
            provider, _, name = model.partition("/")
            about["model"] = {"providerID": provider, "modelID": name}
        if settings.get("mode"):
            about["agent"] = settings["mode"]
        piece = {"id": part, "type": "text", "text": text, **({"synthetic": True} if synthetic else {})}
        return {**about, "parts": [piece]}

    async def _tell(self, notices: list[Notice]) -> None:
        """What it asked for has ended: it reads that before its next step."""
        message, ids = f"msg_{uuid.uuid4().hex}", [notice.notice_id for notice in notices]
        self._talk.save_state(messages=[*(self._talk.record.get("messages") or []), message], telling={"id": message, "notices": ids})
        body = self._body(message, f"prt_{uuid.uuid4().hex}", notification(notices), synthetic=True)
        await self._server.call("POST", f"/session/{self._talk.session}/message", {**body, "noReply": True})
        await self._talk.notices_delivered(ids)

    # -- hearing

    async def _next(self) -> Outcome | None:
        """Take in what comes next; the outcome where that was the end."""
        if self._unheard:
            return await self._hear(self._unheard.pop(0))
        if not self._events.empty():  # they come in bursts, of many sessions at once
            return await self._came(self._events.get_nowait())
        if (now := asyncio.get_running_loop().time()) - self._told_at >= _POLL_SECONDS:
            self._told_at = now
            if notices := await self._talk.new_notices():
                await self._tell(notices)
        try:
            async with asyncio.timeout(_POLL_SECONDS):
                event = await self._events.get()
        except TimeoutError:
            await self._not_silent()
            return await self._look()
        return await self._came(event)

    async def _came(self, event: dict[str, Any]) -> Outcome | None:
        self._moved_at = asyncio.get_running_loop().time()
        if event is STREAM_OPEN or event is STREAM_LOST:
            self._whole = False
            return await self._look()
        return await self._hear(event)

    async def _not_silent(self) -> None:
        """A session that neither works nor waits for a word says something now and then."""
        asking = any(not task.done() for task in self._asking.values())
        if not asking and not self._talk.turn.running_tools and asyncio.get_running_loop().time() - self._moved_at > self._patience:
            await self._abort()
            raise Failed("it has been silent for too long (models.timeout_seconds)", standing.TIMEOUT)

    async def _hear(self, event: dict[str, Any]) -> Outcome | None:
        about = event.get("properties") or {}
        match event.get("type"):
            case "message.updated":
                self._seen.message(about.get("info") or {})
            case "message.part.updated":
                self._seen.part(about.get("part") or {})
            case "session.status" if (about.get("status") or {}).get("type") == "retry":
                await self._retries(about["status"])
            case "session.idle":
                if self._whole and self._seen.answered():
                    return self._seen.outcome()
                await asyncio.sleep(_SETTLE_SECONDS)
                return await self._look(idle=True)
            case "permission.asked":
                self._ask(about)
            case "permission.replied":  # by us, or by OpenCode itself: a no to one is a no to all that wait
                self._withdraw(str(about.get("requestID") or about.get("permissionID")))
            case "question.asked":
                self._seen.refused = "a question to the user, who is not there"
                with contextlib.suppress(NotFound):
                    await self._server.call("POST", f"/question/{about.get('id')}/reject", directory=self._directory)
            case "session.deleted":
                raise Failed(EXPIRED)
            case "backburner.broken":
                await self._abort()
                raise Failed(f"what it asked for could not be answered: {about.get('error')}", standing.TRANSIENT)
            case _:
                return None
        self._talk.progress_changed()
        return None

    async def _read(self) -> list[dict[str, Any]]:
        return await self._server.call("GET", f"/session/{self._talk.session}/message") or []

    async def _busy(self) -> bool:
        return self._talk.session in (await self._server.call("GET", "/session/status", directory=self._directory) or {})

    async def _look(self, *, idle: bool = False) -> Outcome | None:
        """The truth, whatever was heard: the outcome where the session is done. `idle`: it has said that nothing more comes."""
        status = (await self._server.call("GET", "/session/status", directory=self._directory) or {}).get(self._talk.session)
        if status is not None:
            self._quiet = 0
            if status.get("type") == "retry":
                await self._retries(status)
            await self._pending()
            return None
        self._seen.take(await self._read())
        self._talk.progress_changed()
        last = self._seen.last()
        if last and (last.get("error") or self._seen.answered()):
            return self._seen.outcome()
        self._quiet += 1
        if self._quiet < 2 and not idle:  # it may be about to begin, or to write down how it ended
            return None
        self._quiet = 0
        if self._seen.refused and self._refusals < _REFUSALS:
            self._refusals += 1
            refused, self._seen.refused = self._seen.refused, ""
            await self._say(f"{REFUSED} That was: {refused}. Go on without it.")
        elif last and (last.get("time") or {}).get("completed"):
            raise Failed("it was stopped in OpenCode before it had answered")
        else:
            await self._say(GO_ON, interrupted=True)
        return None

    async def _retries(self, status: dict[str, Any]) -> None:
        """Its provider fails, and it would try again for ever."""
        if int(status.get("attempt") or 0) >= _MOST_RETRIES:
            await self._abort()
            raise Failed(f"its provider failed {status['attempt']} times: {status.get('message')}", standing.TRANSIENT)

    async def _abort(self) -> None:
        with contextlib.suppress(ServerUnreachable, NotFound, Failed):
            await self._server.call("POST", f"/session/{self._talk.session}/abort")

    async def _forget(self) -> None:
        """The conversation of a standing task's run is over for good. One that is deleted at work would go on."""
        if not self._talk.turn.work.task.is_recurring:
            return
        await self._abort()
        with contextlib.suppress(ServerUnreachable, NotFound, Failed):
            await self._server.call("DELETE", f"/session/{self._talk.session}")

    # -- permissions

    async def _pending(self) -> None:
        """What it asked for while nobody listened."""
        open_ones = [known for known, asking in self._asking.items() if not asking.done()]
        try:
            requests = await self._server.call("GET", "/permission", directory=self._directory) or []
        except Failed:  # there are requests that it cannot list, ours or another's
            await self._unlisted(bool(open_ones))
            return
        mine = {str(request.get("id")): request for request in requests if request.get("sessionID") == self._talk.session}
        for request in mine.values():
            self._ask(request)
        for known in open_ones:
            if known not in mine:
                self._withdraw(known)

    async def _unlisted(self, known: bool) -> None:
        """Where its call of a tool whose requests are not listed comes to no end, and nobody heard it ask: have it ask again."""
        self._seen.take(await self._read())
        running = [call for call in self._talk.turn.running_tools if (self._seen.calls.get(call) or {}).get("tool") in _UNLISTED]
        self._stuck = 0 if known or not running else self._stuck + 1
        if self._stuck >= _MOST_STUCK:
            self._stuck = 0
            await self._abort()
            await asyncio.sleep(_SETTLE_SECONDS)
            await self._say(GO_ON, interrupted=True)

    def _withdraw(self, known: str) -> None:
        """Nobody waits for an answer any more."""
        if (asking := self._asking.get(known)) and asking is not asyncio.current_task():
            asking.cancel()

    def _ask(self, request: dict[str, Any]) -> None:
        known = str(request.get("id"))
        if known not in self._asking:
            task = self._asking[known] = asyncio.get_running_loop().create_task(self._permission(known, request))
            task.add_done_callback(self._broken)

    def _broken(self, asking: "asyncio.Task[None]") -> None:
        if not asking.cancelled() and (error := asking.exception()):
            self._events.put_nowait({"type": "backburner.broken", "properties": {"error": str(error)}})

    async def _permission(self, known: str, request: dict[str, Any]) -> None:
        about = request.get("tool") or {}
        call = f"{about.get('messageID')}:{about.get('callID')}"
        part = await self._part_of(call)
        if (part.get("state") or {}).get("status") in ("completed", "error"):
            return  # of a turn that was aborted: it is listed for ever
        asked = of_opencode(request, part)
        if request.get("permission") == "bash" and call in self._passed:
            allowed, why = True, ""
        else:
            allowed, why = await self._talk.request_permission(asked)
        if allowed and asked.kind == "command":
            self._passed.add(call)
        body = {"reply": "once"} if allowed else {"reply": "reject", "message": why}
        if not allowed:
            self._seen.refused = asked.words if why == REFUSED else f"{asked.words} ({why})"
        for _ in range(_REPLIES):
            try:
                await self._server.call("POST", f"/permission/{known}/reply", body, directory=self._directory)
                return
            except NotFound:
                return  # it is not asked any more
            except (Failed, ServerUnreachable) as error:
                problem = error
                await asyncio.sleep(1.0)
        raise problem

    async def _part_of(self, call: str) -> dict[str, Any]:
        """What is known of a tool's call: what it is given stands there alone, and only once it is no longer pending."""
        for _ in range(_READS):
            part = self._seen.calls.get(call, {})
            if (part.get("state") or {}).get("status") not in (None, "pending"):
                return part
            with contextlib.suppress(ServerUnreachable, NotFound, Failed):
                self._seen.take(await self._read())
            await asyncio.sleep(0.1)
        return self._seen.calls.get(call, {})
