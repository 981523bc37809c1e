"""Agents in an OpenCode server, over HTTP and its events: listened to for speed, read for truth.

Every prompt has an id of ours, so that one which was swallowed is sent again and none is said twice. The server goes on when we die; who
comes after us finds the session and what was said in it, and sees the turn to its end.
"""

import asyncio
import contextlib
import uuid
from typing import Any

from backburner import standing
from backburner.agents.dialects import of_opencode, opencode_tokens
from backburner.agents.outside import EXPIRED, GO_ON, REFUSED, Failed, Talk
from backburner.agents.servers import CONNECTED, CUT, Gone, Server, Servers, Unreachable
from backburner.home import Home
from backburner.lifecycle import Result
from backburner.models import Notice
from backburner.notification import notification
from backburner.ports import Outcome
from backburner.ready import OPENCODE_RULES
from backburner.text import shortened

_POLL_SECONDS = 5.0
_START_SECONDS = 5.0  # within which a prompt shows that it was taken up
_SENDS = 6
_SETTLE_SECONDS = 0.5  # an error is written down a moment after the session is idle, and what is said before that is lost
_MOST_RETRIES = 5  # of its provider; it would go on without end
_MOST_TIMES = 3  # that it is asked to go on after its server died
_REFUSALS = 20
_UNLISTED = ("webfetch", "glob")  # whose requests make it fail to list any
_MOST_STUCK = 4


class OpenCode:
    """Drives sessions in the servers of a home."""

    def __init__(self, home: Home) -> None:
        self.servers = Servers(home)

    async def drive(self, talk: Talk) -> Outcome:
        away = False
        while True:
            server = await self.servers.find(talk.turn.settings, talk.environment, away=away)
            try:
                return await _Turn(talk, server).go()
            except Unreachable:
                away = True

    async def check(self, settings: dict[str, str], environ: dict[str, str]) -> str | None:
        """Why it could not be asked now: its server answers, its model is not asked."""
        try:
            await self.servers.find(settings, environ)
        except (Failed, OSError) as error:
            return str(error)
        finally:
            await self.servers.close(leave=False)
        return None


class _Turn:
    """One turn in a session, from the prompt to the evidence of its end."""

    def __init__(self, talk: Talk, server: Server) -> None:
        self._talk, self._server = talk, server
        self._directory = talk.turn.work.task.cwd
        self._old: set[str] = set()  # messages from before
        self._messages: dict[str, dict[str, Any]] = {}  # of the assistant, in this run
        self._texts: dict[str, dict[str, str]] = {}
        self._calls: dict[str, dict[str, Any]] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._refused = ""
        self._refusals, self._quiet, self._stuck = 0, 0, 0
        self._whole = False  # whether all since the prompt was heard
        self._events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._unheard: list[dict[str, Any]] = []  # events that came while a prompt was said

    async def go(self) -> Outcome:
        talk = self._talk
        if talk.record.get("run") != talk.turn.work.run.run_id:
            talk.keep(run=talk.turn.work.run.run_id, messages=[], pending=None, interruptions=0)
        talk.earlier = {}  # all of this run is counted from its messages
        await self._open()
        async with self._server.listening(talk.session) as self._events:
            with contextlib.suppress(TimeoutError):  # there is still the poll
                async with asyncio.timeout(_START_SECONDS):
                    await self._server.connected.wait()
            try:
                outcome = await self._begin()
                while outcome is None:
                    outcome = await self._next()
                return outcome
            except asyncio.CancelledError:
                if not talk.leaving:
                    await self._abort()
                raise
            except Gone:
                raise Failed(EXPIRED) from None
            finally:
                if talk.turn.work.task.standing and not talk.leaving:
                    await self._forget()
                for asking in self._asking.values():
                    asking.cancel()

    # -- saying something

    async def _open(self) -> None:
        """The session of the conversation; one that asks before it acts."""
        if session := self._talk.session:
            try:
                await self._server.call("GET", f"/session/{session}")
            except Gone:
                raise Failed(EXPIRED) from None
            return
        task, settings = self._talk.turn.work.task, self._talk.turn.settings
        rules = [{"permission": name, "pattern": "*", "action": action} for name, action in OPENCODE_RULES.items()]
        rules += await self._denied()
        title = shortened(" ".join(f"{task.description or task.name or ''} ({task.task_id})".split()), longest=120)
        body: dict[str, Any] = {"title": title, "permission": rules}
        if settings.get("mode"):
            body["agent"] = settings["mode"]
        made = await self._server.call("POST", "/session", body, directory=self._directory)
        self._talk.keep(session=str(made["id"]), directory=self._directory)

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
        self._old = {message["info"]["id"] for message in known[:first]}
        self._take(known)
        if pending := self._talk.record.get("pending"):
            await self._send(pending)
            return await self._look()
        stopped = self._talk.turn.work.run.waits_on == "budget"  # by us, so that its error is none
        if mine and (await self._busy() or self._answered() or (not stopped and (self._last() or {}).get("error"))):
            return await self._look()
        await self._say(await self._talk.words())
        return None

    async def _say(self, text: str) -> None:
        if text == GO_ON:
            times = int(self._talk.record.get("interruptions") or 0)
            if times >= _MOST_TIMES:
                raise Failed(f"it was interrupted {times} times in the middle of its work", standing.TRANSIENT)
            self._talk.keep(interruptions=times + 1)
        pending = {"id": f"msg_{uuid.uuid4().hex}", "part": f"prt_{uuid.uuid4().hex}", "text": text}
        self._talk.keep(pending=pending, messages=[*(self._talk.record.get("messages") or []), pending["id"]])
        self._whole = self._server.connected.is_set()
        await self._send(pending)

    async def _send(self, pending: dict[str, str]) -> None:
        """Say it, and again where nothing shows that it was heard: with the same ids it is heard once."""
        body = self._body(pending["id"], pending["part"], pending["text"])
        seen = {*self._old, *self._messages}
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
                    return await self._taken_up()
            self._take(await self._read())
            if self._messages.keys() - seen or await self._busy():
                return await self._taken_up()
            self._whole = False
        raise Failed("OpenCode took the prompt and did nothing about it", standing.TRANSIENT)

    async def _taken_up(self) -> None:
        self._talk.keep(pending=None)
        await self._talk.heard()

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
        message = f"msg_{uuid.uuid4().hex}"
        self._talk.keep(messages=[*(self._talk.record.get("messages") or []), message])
        body = self._body(message, f"prt_{uuid.uuid4().hex}", notification(notices), synthetic=True)
        await self._server.call("POST", f"/session/{self._talk.session}/message", {**body, "noReply": True})
        await self._talk.heard(notices)

    # -- hearing

    async def _next(self) -> Outcome | None:
        """Take in what comes next; the outcome where that was the end."""
        if self._unheard:
            return await self._hear(self._unheard.pop(0))
        try:
            async with asyncio.timeout(_POLL_SECONDS):
                event = await self._events.get()
        except TimeoutError:
            if notices := await self._talk.news():
                await self._tell(notices)
            return await self._look()
        if event in (CONNECTED, CUT):
            self._whole = False
            return await self._look()
        return await self._hear(event)

    async def _hear(self, event: dict[str, Any]) -> Outcome | None:
        about = event.get("properties") or {}
        match event.get("type"):
            case "message.updated":
                self._message(about.get("info") or {})
            case "message.part.updated":
                self._part(about.get("part") or {})
            case "session.status" if (about.get("status") or {}).get("type") == "retry":
                await self._retries(about["status"])
            case "session.idle":
                if self._whole and self._answered():
                    return self._outcome()
                await asyncio.sleep(_SETTLE_SECONDS)
                return await self._look(idle=True)
            case "permission.asked":
                self._ask(about)
            case "permission.replied":  # by us, or by OpenCode itself: a no to one is a no to all that wait
                self._withdraw(str(about.get("requestID") or about.get("permissionID")))
            case "question.asked":
                self._refused = "a question to the user, who is not there"
                with contextlib.suppress(Gone):
                    await self._server.call("POST", f"/question/{about.get('id')}/reject", directory=self._directory)
            case "session.deleted":
                raise Failed(EXPIRED)
            case _:
                return None
        self._talk.moved()
        return None

    def _message(self, info: dict[str, Any]) -> None:
        if info.get("role") == "assistant" and info.get("id") not in self._old:
            self._messages[str(info["id"])] = info
            self._refused = "" if info.get("finish") not in (None, "tool-calls") else self._refused
            self._talk.tokens = sum(opencode_tokens(one) for one in self._messages.values())
            self._talk.cost = sum(float(one.get("cost") or 0) for one in self._messages.values())

    def _part(self, part: dict[str, Any]) -> None:
        message = str(part.get("messageID"))
        if message in self._old:
            return
        if part.get("type") == "text":
            self._texts.setdefault(message, {})[str(part.get("id"))] = str(part.get("text") or "")
        elif part.get("type") == "tool":
            call, acting = str(part.get("callID")), self._talk.turn.acting
            if call not in self._calls:
                self._talk.tools.append(str(part.get("tool")))
            self._calls[call] = part
            status = (part.get("state") or {}).get("status")
            if status in ("pending", "running") and call not in acting:
                acting.append(call)
            elif status in ("completed", "error") and call in acting:
                acting.remove(call)

    def _take(self, known: list[dict[str, Any]]) -> None:
        for message in known:
            self._message(message["info"])
            if message["info"].get("role") == "assistant":
                for part in message.get("parts") or []:
                    self._part(part)

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
        self._take(await self._read())
        self._talk.moved()
        last = self._last()
        if last and (last.get("error") or self._answered()):
            return self._outcome()
        self._quiet += 1
        if self._quiet < 2 and not idle:  # it may be about to begin, or to write down how it ended
            return None
        self._quiet = 0
        if self._refused and self._refusals < _REFUSALS:
            self._refusals += 1
            refused, self._refused = self._refused, ""
            await self._say(f"{REFUSED} That was: {refused}. Go on without it.")
        elif last and (last.get("time") or {}).get("completed"):
            raise Failed("it was stopped in OpenCode before it had answered")
        else:
            await self._say(GO_ON)
        return None

    def _last(self) -> dict[str, Any] | None:
        found = sorted(self._messages.values(), key=lambda one: ((one.get("time") or {}).get("created") or 0, one["id"]))
        return found[-1] if found else None

    def _answered(self) -> bool:
        """Whether there is evidence of an answer: a last message that is complete, ended in words and not in an error."""
        last = self._last()
        return bool(
            last
            and (last.get("time") or {}).get("completed")
            and last.get("finish") not in (None, "tool-calls", "unknown")
            and not last.get("error")
        )

    def _outcome(self) -> Outcome:
        last = self._last()
        assert last is not None
        if (error := last.get("error")) and error.get("name") == "MessageAbortedError":
            raise Failed("it was stopped in OpenCode before it had answered")
        if error:
            about = error.get("data") or {}
            problem = {401: standing.AUTH, 403: standing.AUTH, 429: standing.RATE_LIMIT}.get(about.get("statusCode"), standing.TRANSIENT)
            raise Failed(f"{error.get('name')}: {about.get('message') or ''}".rstrip(": "), problem)
        text = "".join(self._texts.get(str(last["id"]), {}).values()).strip()
        if last.get("finish") not in ("stop", "end_turn") and not text:
            raise Failed(f"it stopped before the end: {last.get('finish')}")
        if not text:
            raise Failed("it ended its turn without an answer", standing.TRANSIENT)
        return Outcome(Result.EXIT, 0, answer=text)

    async def _retries(self, status: dict[str, Any]) -> None:
        """Its provider fails, and it would try again for ever."""
        if int(status.get("attempt") or 0) >= _MOST_RETRIES:
            await self._abort()
            raise Failed(f"its provider failed {status['attempt']} times: {status.get('message')}", standing.TRANSIENT)

    async def _abort(self) -> None:
        with contextlib.suppress(Unreachable, Gone, Failed):
            await self._server.call("POST", f"/session/{self._talk.session}/abort")

    async def _forget(self) -> None:
        """The conversation of a standing task's run is over for good. One that is deleted at work would go on."""
        await self._abort()
        with contextlib.suppress(Unreachable, Gone, Failed):
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
        self._take(await self._read())
        running = [call for call in self._talk.turn.acting if (self._calls.get(call) or {}).get("tool") in _UNLISTED]
        self._stuck = 0 if known or not running else self._stuck + 1
        if self._stuck >= _MOST_STUCK:
            self._stuck = 0
            await self._abort()
            await asyncio.sleep(_SETTLE_SECONDS)
            await self._say(GO_ON)

    def _withdraw(self, known: str) -> None:
        """Nobody waits for an answer any more."""
        if (asking := self._asking.get(known)) and asking is not asyncio.current_task():
            asking.cancel()

    def _ask(self, request: dict[str, Any]) -> None:
        known = str(request.get("id"))
        if known not in self._asking:
            self._asking[known] = asyncio.get_running_loop().create_task(self._permission(known, request))

    async def _permission(self, known: str, request: dict[str, Any]) -> None:
        call = str((request.get("tool") or {}).get("callID"))
        if call not in self._calls:  # what it is to be given is said there alone
            with contextlib.suppress(Unreachable, Gone, Failed):
                self._take(await self._read())
        part = self._calls.get(call, {})
        if (part.get("state") or {}).get("status") in ("completed", "error"):
            return  # of a turn that was aborted: it is listed for ever
        asked = of_opencode(request, part)
        allowed, why = await self._talk.permit(asked)
        body = {"reply": "once"} if allowed else {"reply": "reject", "message": why}
        if not allowed:
            self._refused = asked.words if why == REFUSED else f"{asked.words} ({why})"
        with contextlib.suppress(Gone, Failed, Unreachable):  # where it is not asked any more, nobody needs the answer
            await self._server.call("POST", f"/permission/{known}/reply", body, directory=self._directory)
