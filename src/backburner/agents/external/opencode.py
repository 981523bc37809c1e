"""Drives OpenCode sessions over HTTP. Events make it fast; every decision is made from messages read back from the server.

We choose the id of every prompt, so that a lost prompt can be sent again and none is processed twice. The server survives our process:
the next agent process finds the session and its messages, and follows the turn to its end.
"""

import asyncio
import contextlib
import uuid
from typing import Any

from backburner.agents.external.message_fields import opencode_permission_request
from backburner.agents.external.opencode_server import (
    STREAM_LOST,
    STREAM_OPEN,
    NotFound,
    OpenCodeServer,
    OpenCodeServers,
    ServerUnreachable,
)
from backburner.agents.external.opencode_transcript import Transcript
from backburner.agents.external.turn import CONTINUE_PROMPT, EXPIRED, REFUSED, AgentFailed, ExternalTurn
from backburner.core import recurring
from backburner.core.known_agents import OPENCODE_RULES
from backburner.core.notice_text import notification
from backburner.core.notices import Notice
from backburner.core.ports import Outcome
from backburner.core.states import WaitKind
from backburner.core.terminal_text import shortened
from backburner.system.home import Home

_POLL_INTERVAL_SECONDS = 5.0
_PROMPT_START_TIMEOUT_SECONDS = 5.0
_MAX_SENDS = 6
_SETTLE_DELAY_SECONDS = 0.5  # after "idle": an error is stored a moment later, and a prompt sent before that is lost
_MAX_PROVIDER_RETRIES = 5  # OpenCode itself would retry without limit
_MAX_INTERRUPTIONS = 3  # prompts to continue after its server died
_MAX_REFUSALS = 20
_MAX_SERVER_LOSSES = 6
_MAX_REPLY_ATTEMPTS, _MAX_READ_ATTEMPTS = 30, 10
_UNLISTED_TOOLS = ("webfetch", "glob")  # OpenCode cannot list permission requests if one of these is open
_MAX_STUCK_POLLS = 4


class OpenCode:
    """Drives sessions in the servers of a home."""

    def __init__(self, home: Home) -> None:
        self.servers = OpenCodeServers(home)

    async def drive(self, external_turn: ExternalTurn) -> Outcome:
        silence_timeout = await external_turn.home.call(lambda app: app.config.number("models.timeout_seconds"))
        for losses in range(_MAX_SERVER_LOSSES):
            server = await self.servers.find(external_turn.turn.settings, external_turn.environment, was_lost=losses > 0)
            with contextlib.suppress(ServerUnreachable):
                return await _OpenCodeTurn(external_turn, server, silence_timeout).run()
        raise AgentFailed(f"its OpenCode server was lost {_MAX_SERVER_LOSSES} times", recurring.TRANSIENT)

    async def check(self, settings: dict[str, str], environ: dict[str, str]) -> str | None:
        """Why the agent is not available, or None. Checks the server only; the model gets no prompt."""
        try:
            await self.servers.find(settings, environ)
        except (AgentFailed, OSError) as error:
            return str(error)
        finally:
            await self.servers.close(keep_running=True, stop_started=True)
        return None


class _OpenCodeTurn:
    """One turn in a session, from the prompt to its confirmed end."""

    def __init__(self, external_turn: ExternalTurn, server: OpenCodeServer, silence_timeout: float) -> None:
        self._external_turn, self._server, self._silence_timeout = external_turn, server, silence_timeout
        self._last_event_at = self._notices_checked_at = asyncio.get_running_loop().time()
        self._approved_calls: set[str] = set()  # tool calls whose command was already approved together with its folders
        self._directory = external_turn.turn.work.task.spec.cwd
        self._transcript = Transcript(external_turn)
        self._permissions: dict[str, asyncio.Task[None]] = {}
        self._refusals, self._idle_checks, self._stuck_polls = 0, 0, 0
        self._has_all_events = False  # no event since the prompt was missed
        self._events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._early_events: list[dict[str, Any]] = []  # received while a prompt was being sent

    async def run(self) -> Outcome:
        external_turn = self._external_turn
        if external_turn.record.get("run") != external_turn.turn.work.run.run_id:
            external_turn.save_state(run=external_turn.turn.work.run.run_id, messages=[], pending=None, interruptions=0)
        external_turn.earlier, external_turn.tools = {}, []  # the usage of this run is counted from its messages
        await self._open()
        async with self._server.listen(external_turn.session) as self._events:
            with contextlib.suppress(TimeoutError):  # polling works without events
                async with asyncio.timeout(_PROMPT_START_TIMEOUT_SECONDS):
                    await self._server.connected.wait()
            try:
                outcome = await self._start()
                while outcome is None:
                    outcome = await self._process_next_event()
                await self._delete_session()
                return outcome
            except asyncio.CancelledError:
                if not external_turn.is_detaching:
                    await self._abort()
                raise
            except NotFound:
                raise AgentFailed(EXPIRED) from None
            except AgentFailed:
                await self._delete_session()
                raise
            finally:
                for permission in self._permissions.values():
                    permission.cancel()

    # Sending prompts

    async def _open(self) -> None:
        """Open the session of the conversation, or create one that requests permission before it acts."""
        if session := self._external_turn.session:
            try:
                await self._server.call("GET", f"/session/{session}")
            except NotFound:
                raise AgentFailed(EXPIRED) from None
            return
        task, settings = self._external_turn.turn.work.task, self._external_turn.turn.settings
        rules = [{"permission": name, "pattern": "*", "action": action} for name, action in OPENCODE_RULES.items()]
        rules += await self._deny_rules()
        title = shortened(" ".join(f"{task.spec.description or task.spec.name or ''} ({task.task_id})".split()), longest=120)
        body: dict[str, Any] = {"title": title, "permission": rules}
        if settings.get("mode"):
            body["agent"] = settings["mode"]
        created = await self._server.call("POST", "/session", body, directory=self._directory)
        self._external_turn.save_state(session=str(created["id"]), directory=self._directory)

    async def _deny_rules(self) -> list[dict[str, str]]:
        """The deny rules of OpenCode's own settings. Session rules are applied after those and must repeat them."""
        name = self._external_turn.turn.settings.get("mode") or "build"
        agents = await self._server.call("GET", "/agent", directory=self._directory)
        found = next((agent for agent in agents or [] if isinstance(agent, dict) and agent.get("name") == name), {})
        rules = found.get("permission")
        return [rule for rule in rules if isinstance(rule, dict) and rule.get("action") == "deny"] if isinstance(rules, list) else []

    async def _start(self) -> Outcome | None:
        """Send the prompt, unless an earlier process sent it and the turn is running or has ended."""
        messages, our_ids = await self._read(), self._external_turn.record.get("messages") or []
        first = next((n for n, message in enumerate(messages) if message["info"]["id"] in our_ids), len(messages))
        self._transcript.earlier_ids = {message["info"]["id"] for message in messages[:first]}
        self._transcript.add_messages(messages)
        if (telling := self._external_turn.record.get("telling")) and telling["id"] in {message["info"]["id"] for message in messages}:
            await self._external_turn.notices_delivered(telling["notices"])  # an earlier process delivered them
        if pending := self._external_turn.record.get("pending"):
            await self._send(pending)
            return await self._check_session()
        is_stopped = self._external_turn.turn.work.run.wait_kind is WaitKind.BUDGET  # we aborted it, so its error does not count
        if our_ids and (
            await self._is_busy()
            or self._transcript.has_answer()
            or (not is_stopped and (self._transcript.last_message() or {}).get("error"))
        ):
            return await self._check_session()
        await self._prompt(await self._external_turn.next_prompt(), interrupted=bool(our_ids) and not is_stopped)
        return None

    async def _prompt(self, text: str, *, interrupted: bool = False) -> None:
        if interrupted:
            count = int(self._external_turn.record.get("interruptions") or 0)
            if count >= _MAX_INTERRUPTIONS:
                raise AgentFailed(f"it was interrupted {count} times in the middle of its work", recurring.TRANSIENT)
            self._external_turn.save_state(interruptions=count + 1)
        pending = {
            "id": f"msg_{uuid.uuid4().hex}",
            "part": f"prt_{uuid.uuid4().hex}",
            "text": text,
            "notices": self._external_turn.delivering_notices,
        }
        self._external_turn.save_state(pending=pending, messages=[*(self._external_turn.record.get("messages") or []), pending["id"]])
        self._has_all_events = self._server.connected.is_set()
        await self._send(pending)

    async def _send(self, pending: dict[str, Any]) -> None:
        """Send the prompt, and send it again if OpenCode does not start; the same ids make sure that it is processed once."""
        body = self._body(pending["id"], pending["part"], pending["text"])
        seen = {*self._transcript.earlier_ids, *self._transcript.messages}
        for _ in range(_MAX_SENDS):
            await self._server.call("POST", f"/session/{self._external_turn.session}/prompt_async", body)
            deadline = asyncio.get_running_loop().time() + _PROMPT_START_TIMEOUT_SECONDS
            while (left := deadline - asyncio.get_running_loop().time()) > 0:
                try:
                    async with asyncio.timeout(left):
                        event = await self._events.get()
                except TimeoutError:
                    break
                self._early_events.append(event)
                properties = event.get("properties") or {}
                status = (properties.get("status") or {}).get("type")
                info = properties.get("info") or {}
                if status in ("busy", "retry") or (info.get("role") == "assistant" and info.get("id") not in seen):
                    return await self._on_prompt_accepted(pending)
            self._transcript.add_messages(await self._read())
            if self._transcript.messages.keys() - seen or await self._is_busy():
                return await self._on_prompt_accepted(pending)
            self._has_all_events = False
        raise AgentFailed("OpenCode accepted the prompt but did not start", recurring.TRANSIENT)

    async def _on_prompt_accepted(self, pending: dict[str, Any]) -> None:
        await self._external_turn.prompt_received(pending.get("notices"))
        self._external_turn.save_state(pending=None)

    def _body(self, message: str, part: str, text: str, *, synthetic: bool = False) -> dict[str, Any]:
        body: dict[str, Any] = {"messageID": message}
        settings = self._external_turn.turn.settings
        if model := settings.get("model"):
            provider, _, name = model.partition("/")
            body["model"] = {"providerID": provider, "modelID": name}
        if settings.get("mode"):
            body["agent"] = settings["mode"]
        piece = {"id": part, "type": "text", "text": text, **({"synthetic": True} if synthetic else {})}
        return {**body, "parts": [piece]}

    async def _send_notices(self, notices: list[Notice]) -> None:
        """Post notices into the session; the agent reads them before its next step."""
        message, ids = f"msg_{uuid.uuid4().hex}", [notice.notice_id for notice in notices]
        self._external_turn.save_state(
            messages=[*(self._external_turn.record.get("messages") or []), message], telling={"id": message, "notices": ids}
        )
        body = self._body(message, f"prt_{uuid.uuid4().hex}", notification(notices), synthetic=True)
        await self._server.call("POST", f"/session/{self._external_turn.session}/message", {**body, "noReply": True})
        await self._external_turn.notices_delivered(ids)

    # Receiving events

    async def _process_next_event(self) -> Outcome | None:
        """Process the next event. Returns the outcome if the turn has ended."""
        if self._early_events:
            return await self._on_event(self._early_events.pop(0))
        if not self._events.empty():  # events come in bursts
            return await self._on_stream_event(self._events.get_nowait())
        if (now := asyncio.get_running_loop().time()) - self._notices_checked_at >= _POLL_INTERVAL_SECONDS:
            self._notices_checked_at = now
            if notices := await self._external_turn.new_notices():
                await self._send_notices(notices)
        try:
            async with asyncio.timeout(_POLL_INTERVAL_SECONDS):
                event = await self._events.get()
        except TimeoutError:
            await self._check_silence()
            return await self._check_session()
        return await self._on_stream_event(event)

    async def _on_stream_event(self, event: dict[str, Any]) -> Outcome | None:
        self._last_event_at = asyncio.get_running_loop().time()
        if event is STREAM_OPEN or event is STREAM_LOST:
            self._has_all_events = False
            return await self._check_session()
        return await self._on_event(event)

    async def _check_silence(self) -> None:
        """Fail if the session has sent nothing for too long while no tool runs and no permission is pending."""
        is_asking = any(not task.done() for task in self._permissions.values())
        if (
            not is_asking
            and not self._external_turn.turn.running_tools
            and asyncio.get_running_loop().time() - self._last_event_at > self._silence_timeout
        ):
            await self._abort()
            raise AgentFailed("it has been silent for too long (models.timeout_seconds)", recurring.TIMEOUT)

    async def _on_event(self, event: dict[str, Any]) -> Outcome | None:
        properties = event.get("properties") or {}
        match event.get("type"):
            case "message.updated":
                self._transcript.on_message(properties.get("info") or {})
            case "message.part.updated":
                self._transcript.on_part(properties.get("part") or {})
            case "session.status" if (properties.get("status") or {}).get("type") == "retry":
                await self._check_retries(properties["status"])
            case "session.idle":
                if self._has_all_events and self._transcript.has_answer():
                    return self._transcript.outcome()
                await asyncio.sleep(_SETTLE_DELAY_SECONDS)
                return await self._check_session(idle=True)
            case "permission.asked":
                self._start_permission(properties)
            case "permission.replied":  # by us, or by OpenCode itself: it rejects all pending requests when one is rejected
                self._withdraw(str(properties.get("requestID") or properties.get("permissionID")))
            case "question.asked":
                self._transcript.refused = "a question to the user, who is not present"
                with contextlib.suppress(NotFound):
                    await self._server.call("POST", f"/question/{properties.get('id')}/reject", directory=self._directory)
            case "session.deleted":
                raise AgentFailed(EXPIRED)
            case "backburner.broken":
                await self._abort()
                raise AgentFailed(f"its permission request could not be answered: {properties.get('error')}", recurring.TRANSIENT)
            case _:
                return None
        self._external_turn.progress_changed()
        return None

    async def _read(self) -> list[dict[str, Any]]:
        return await self._server.call("GET", f"/session/{self._external_turn.session}/message") or []

    async def _is_busy(self) -> bool:
        return self._external_turn.session in (await self._server.call("GET", "/session/status", directory=self._directory) or {})

    async def _check_session(self, *, idle: bool = False) -> Outcome | None:
        """Read the state of the session. Returns the outcome if the turn has ended. `idle`: the session has reported that it is idle."""
        status = (await self._server.call("GET", "/session/status", directory=self._directory) or {}).get(self._external_turn.session)
        if status is not None:
            self._idle_checks = 0
            if status.get("type") == "retry":
                await self._check_retries(status)
            await self._check_permissions()
            return None
        self._transcript.add_messages(await self._read())
        self._external_turn.progress_changed()
        last = self._transcript.last_message()
        if last and (last.get("error") or self._transcript.has_answer()):
            return self._transcript.outcome()
        self._idle_checks += 1
        if self._idle_checks < 2 and not idle:  # it may be about to start, or to store how it ended
            return None
        self._idle_checks = 0
        if self._transcript.refused and self._refusals < _MAX_REFUSALS:
            self._refusals += 1
            refused, self._transcript.refused = self._transcript.refused, ""
            await self._prompt(f"{REFUSED} The request was: {refused}. Continue without it.")
        elif last and (last.get("time") or {}).get("completed"):
            raise AgentFailed("it was stopped in OpenCode before it answered")
        else:
            await self._prompt(CONTINUE_PROMPT, interrupted=True)
        return None

    async def _check_retries(self, status: dict[str, Any]) -> None:
        """Fail after too many retries of the provider; OpenCode would retry without limit."""
        if int(status.get("attempt") or 0) >= _MAX_PROVIDER_RETRIES:
            await self._abort()
            raise AgentFailed(f"its provider failed {status['attempt']} times: {status.get('message')}", recurring.TRANSIENT)

    async def _abort(self) -> None:
        with contextlib.suppress(ServerUnreachable, NotFound, AgentFailed):
            await self._server.call("POST", f"/session/{self._external_turn.session}/abort")

    async def _delete_session(self) -> None:
        """Delete the session of a recurring task's run. It is aborted first, because a deleted session would keep running."""
        if not self._external_turn.turn.work.task.is_recurring:
            return
        await self._abort()
        with contextlib.suppress(ServerUnreachable, NotFound, AgentFailed):
            await self._server.call("DELETE", f"/session/{self._external_turn.session}")

    # Permissions

    async def _check_permissions(self) -> None:
        """Handle permission requests whose events were missed, and drop requests that are no longer open."""
        open_ids = [request_id for request_id, permission in self._permissions.items() if not permission.done()]
        try:
            requests = await self._server.call("GET", "/permission", directory=self._directory) or []
        except AgentFailed:  # it cannot list requests while some are open, in this session or another
            await self._retry_stuck_tool(bool(open_ids))
            return
        listed = {str(request.get("id")): request for request in requests if request.get("sessionID") == self._external_turn.session}
        for request in listed.values():
            self._start_permission(request)
        for request_id in open_ids:
            if request_id not in listed:
                self._withdraw(request_id)

    async def _retry_stuck_tool(self, has_open_requests: bool) -> None:
        """If a tool whose requests cannot be listed does not end, and we missed its request: abort, and prompt to continue."""
        self._transcript.add_messages(await self._read())
        running = [
            call
            for call in self._external_turn.turn.running_tools
            if (self._transcript.calls.get(call) or {}).get("tool") in _UNLISTED_TOOLS
        ]
        self._stuck_polls = 0 if has_open_requests or not running else self._stuck_polls + 1
        if self._stuck_polls >= _MAX_STUCK_POLLS:
            self._stuck_polls = 0
            await self._abort()
            await asyncio.sleep(_SETTLE_DELAY_SECONDS)
            await self._prompt(CONTINUE_PROMPT, interrupted=True)

    def _withdraw(self, request_id: str) -> None:
        """Cancel a permission request that is no longer open."""
        if (permission := self._permissions.get(request_id)) and permission is not asyncio.current_task():
            permission.cancel()

    def _start_permission(self, request: dict[str, Any]) -> None:
        request_id = str(request.get("id"))
        if request_id not in self._permissions:
            task = self._permissions[request_id] = asyncio.get_running_loop().create_task(self._answer_permission(request_id, request))
            task.add_done_callback(self._on_permission_done)

    def _on_permission_done(self, permission: "asyncio.Task[None]") -> None:
        if not permission.cancelled() and (error := permission.exception()):
            self._events.put_nowait({"type": "backburner.broken", "properties": {"error": str(error)}})

    async def _answer_permission(self, request_id: str, request: dict[str, Any]) -> None:
        tool = request.get("tool") or {}
        call = f"{tool.get('messageID')}:{tool.get('callID')}"
        part = await self._tool_part(call)
        if (part.get("state") or {}).get("status") in ("completed", "error"):
            return  # the turn was aborted; OpenCode keeps listing the request
        permission = opencode_permission_request(request, part)
        if request.get("permission") == "bash" and call in self._approved_calls:
            allowed, reason = True, ""
        else:
            allowed, reason = await self._external_turn.request_permission(permission)
        if allowed and permission.kind == "command":
            self._approved_calls.add(call)
        body = {"reply": "once"} if allowed else {"reply": "reject", "message": reason}
        if not allowed:
            self._transcript.refused = permission.description if reason == REFUSED else f"{permission.description} ({reason})"
        for _ in range(_MAX_REPLY_ATTEMPTS):
            try:
                await self._server.call("POST", f"/permission/{request_id}/reply", body, directory=self._directory)
                return
            except NotFound:
                return  # the request is no longer open
            except (AgentFailed, ServerUnreachable) as error:
                problem = error
                await asyncio.sleep(1.0)
        raise problem

    async def _tool_part(self, call: str) -> dict[str, Any]:
        """The message part of a tool call. Only it contains the arguments, and only after the call is no longer pending."""
        for _ in range(_MAX_READ_ATTEMPTS):
            part = self._transcript.calls.get(call, {})
            if (part.get("state") or {}).get("status") not in (None, "pending"):
                return part
            with contextlib.suppress(ServerUnreachable, NotFound, AgentFailed):
                self._transcript.add_messages(await self._read())
            await asyncio.sleep(0.1)
        return self._transcript.calls.get(call, {})
