"""Agents that speak the Agent Client Protocol, each started by its command for one turn, and ended with all that it started.

A turn's success is shown by evidence, never by its stop reason alone: some agents end their turn as usual when their provider failed, and
some end it without having heard of a refusal.
"""

import asyncio
import contextlib
import json
import os
import time
from typing import Any

from acp import RequestError
from acp.core import Connection
from acp.meta import AGENT_METHODS

from backburner.agents import child_process as child
from backburner.agents.external.acp_transport import START_SECONDS, JsonLineConnection, handshake, started, stderr_tail
from backburner.agents.external.message_fields import asked_of, error_message, system_error, tokens, tool
from backburner.agents.external.turn import EXPIRED, REFUSED, ExternalTurn, Failed
from backburner.core import recurring as standing
from backburner.core.known_agents import OPENCODE_RULES
from backburner.core.ports import Outcome
from backburner.core.states import Result
from backburner.core.terminal_text import clean, shortened
from backburner.system import processes as process
from backburner.system.home import Home
from backburner.system.run_files import ERRORS

_CANCEL_SECONDS = 3.0
_LEAVE_SECONDS = 3.0  # some write their session down only now
_REFUSALS = 20  # that are told in a prompt of their own, in one turn
# What makes some ask before they act; the rest are told so by their session's mode.
_ASKING = {"opencode-acp": {"OPENCODE_PERMISSION": json.dumps(OPENCODE_RULES)}, "goose": {"GOOSE_MODE": "approve"}}
_MINUTE = 60.0
_QUIET_SECONDS, _REPLAY_SECONDS = 0.3, 10.0  # what a loaded session replays may come after it says that it is loaded
# How some are let in with a key of the environment: the method, and the variable.
_KEYS = {"gemini": ("gemini-api-key", "GEMINI_API_KEY"), "qwen": ("openai", "OPENAI_API_KEY")}
_COUNTING = ("codex", "goose")  # say what was used with every answer, and nothing where their provider failed


class AcpAgent:
    """Drives one turn after the other, each in a process of its own."""

    def __init__(self, home: Home) -> None:
        self._home = home

    async def drive(self, talk: ExternalTurn) -> Outcome:
        work, settings = talk.turn.work, talk.turn.settings
        env = {**child.environment(self._home, work), **_ASKING.get(settings["name"], {})}
        errors = os.path.join(talk.turn.folder, ERRORS)
        async with started(settings, env, work.task.spec.cwd, work.run.process_tag, errors, talk.turn.on_process_started) as line:
            patience = await talk.home.call(lambda app: app.config.number("models.timeout_seconds"))
            peer = _Peer(talk, line, patience)
            outcome = None
            try:
                outcome = await peer.go(env)
                return outcome
            except ConnectionError:
                raise Failed(line.broken or f"{line.program} ended in the middle of it{stderr_tail(errors)}", standing.TRANSIENT) from None
            finally:
                await peer.close(politely=outcome is not None)

    async def check(self, settings: dict[str, str], environ: dict[str, str]) -> str | None:
        """Why it could not be asked now: its program is started and greeted, its model is not asked."""
        mark = os.urandom(8).hex()
        env = {**child.without_client_variables(environ), **_ASKING.get(settings["name"], {}), process.TAG_VARIABLE: mark}
        try:
            async with started(settings, env, os.getcwd(), mark, os.devnull) as line:
                connection = Connection(_nothing, line)
                try:
                    await handshake(connection)
                finally:
                    await connection.close()
        except (Failed, ConnectionError, RequestError, OSError) as error:
            return shortened(clean(str(error)), longest=300)
        return None


class _Peer:
    """The other end of the line during one turn."""

    def __init__(self, talk: ExternalTurn, line: JsonLineConnection, patience: float) -> None:
        self._talk, self._line, self._patience = talk, line, patience
        self._connection = Connection(self._called, line)
        self._listening = False  # what a session replays while it is loaded is old
        self._said: list[tuple[str | None, str]] = []  # since its last tool call
        self._calls: dict[str, dict[str, Any]] = {}
        self._refused = ""  # what it may not have heard that it was refused
        self._failure = ""
        self._permits: set[asyncio.Future[Any]] = set()
        self._moved_at = 0.0
        self._closes = False
        self._asking: asyncio.Future[dict[str, Any]] | None = None
        self._acknowledged: asyncio.Future[None] | None = None
        self._taken = 0  # of the updates
        self._passed: dict[str, str] = {}
        self._spent = self._cost = float(talk.record.get("cost") or 0)  # by the whole session, before this turn and now

    async def close(self, *, politely: bool = False) -> None:
        """Hang up; `politely`, it may put its session in order first: when it is told to, or else when nobody listens any more."""
        if politely and not self._closes:
            self._line.patience = _LEAVE_SECONDS
        elif politely:
            with contextlib.suppress(Failed, ConnectionError, TimeoutError):
                async with asyncio.timeout(_LEAVE_SECONDS):
                    await self._ask("session_close", sessionId=self._talk.session)
        await self._connection.close()

    async def go(self, env: dict[str, str]) -> Outcome:
        """Greet, open the session, say what there is to say, and see the turn to its end."""
        settings = self._talk.turn.settings
        greeting = await handshake(self._connection)
        method, variable = _KEYS.get(settings["name"], ("", ""))
        if method := settings.get("auth") or (method if env.get(variable) else ""):
            await self._ask("authenticate", methodId=method)
        await self._open(greeting.get("agentCapabilities") or {})
        text = await self._talk.next_prompt()
        self._listening = True
        for _ in range(_REFUSALS):
            answer = await self._prompt(text)
            if not self._refused:
                return self._outcome(answer)
            text = f"{REFUSED} That was: {self._refused}. Go on without it."
            self._refused = ""
        raise Failed("it went on asking for what was refused")

    async def _open(self, capabilities: dict[str, Any]) -> None:
        self._closes = "close" in (capabilities.get("sessionCapabilities") or {})
        cwd, session = self._talk.turn.work.task.spec.cwd, self._talk.session
        about: dict[str, Any] = {"cwd": cwd, "mcpServers": []}
        resumes = "resume" in (capabilities.get("sessionCapabilities") or {})
        if session:
            if not resumes and not capabilities.get("loadSession"):
                raise Failed(EXPIRED)
            if self._talk.turn.settings["name"] == "gemini":  # loaded in the minute of its making, it would lose its history
                left = (float(self._talk.record.get("opened") or 0) // _MINUTE + 1) * _MINUTE - time.time()
                await asyncio.sleep(min(max(0.0, left), _MINUTE))
            try:
                opened = await self._ask("session_resume" if resumes else "session_load", sessionId=session, **about)
            except Failed as error:
                raise Failed(f"{EXPIRED} ({error})") from None
        else:
            opened = await self._ask("session_new", **about)
            session = str(opened.get("sessionId") or "")
            self._talk.save_state(session=session, cwd=cwd, opened=time.time())
        await self._choose(session, opened)
        if self._talk.record.get("heard") and not resumes:
            await self._quiet()

    async def _quiet(self) -> None:
        """Wait for the end of what is replayed."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _REPLAY_SECONDS
        self._moved_at = loop.time()
        while loop.time() < min(deadline, self._moved_at + _QUIET_SECONDS):
            await asyncio.sleep(_QUIET_SECONDS / 4)

    async def _choose(self, session: str, opened: dict[str, Any]) -> None:
        """The mode in which it asks, and the model that was named."""
        settings = self._talk.turn.settings
        mode = settings.get("mode", "")
        modes = {str(one.get("id")) for one in (opened.get("modes") or {}).get("availableModes") or []}
        if mode and modes and mode not in modes:
            raise Failed(f"it has no mode '{mode}'; it has {', '.join(sorted(modes))}")
        if mode and (opened.get("modes") or {}).get("currentModeId") != mode:
            await self._ask("session_set_mode", sessionId=session, modeId=mode)
        if model := settings.get("model"):
            options = [str(one.get("id")) for one in opened.get("configOptions") or []]
            if "model" in options:
                await self._ask("session_set_config_option", sessionId=session, configId="model", value=model)
            else:
                await self._send("session/set_model", sessionId=session, modelId=model)

    async def _prompt(self, text: str) -> dict[str, Any]:
        """One prompt, to the end of its turn. Cancelled, the agent is told so first."""
        self._said.clear()
        self._acknowledged = None
        session = self._talk.session
        asking = self._asking = asyncio.ensure_future(
            self._ask("session_prompt", sessionId=session, prompt=[{"type": "text", "text": text}])
        )
        self._moved_at = asyncio.get_running_loop().time()
        try:
            while not (await asyncio.wait({asking}, timeout=self._left()))[0]:
                if self._left() <= 0:
                    raise Failed("it has been silent for too long (models.timeout_seconds)", standing.TIMEOUT)
            await self._settled()
            answer = asking.result()
        except (asyncio.CancelledError, Failed):
            with contextlib.suppress(Exception):
                await self._connection.send_notification(AGENT_METHODS["session_cancel"], {"sessionId": session})
                for permit in self._permits:  # some do not stop before they have an answer
                    permit.cancel()
                await asyncio.wait({asking}, timeout=_CANCEL_SECONDS)
            asking.cancel()
            raise
        self._acknowledge()
        assert self._acknowledged is not None
        await self._acknowledged
        self._talk.save_state(cost=self._cost)
        self._talk.tokens += tokens(answer)
        self._talk.progress_changed()
        return answer

    def _acknowledge(self) -> None:
        """It has what was said to it: there is a sign of that."""
        if self._acknowledged is None:
            self._acknowledged = asyncio.ensure_future(self._talk.prompt_received())

    def _left(self) -> float:
        """How long it may still be silent: for ever while it works or waits for a word."""
        if self._permits or self._talk.turn.running_tools:
            return self._patience
        return self._patience - (asyncio.get_running_loop().time() - self._moved_at)

    async def _settled(self) -> None:
        """Let what came before the end of the turn be heard: each message is taken up by a task of its own."""
        while self._taken < self._line.ended:
            await asyncio.sleep(0)

    def _outcome(self, answer: dict[str, Any]) -> Outcome:
        reason, text = answer.get("stopReason"), self._text()
        if self._failure:
            raise Failed(f"{self._failure}: {text}" if text else self._failure, standing.TRANSIENT)
        if self._talk.turn.settings["name"] in _COUNTING and not answer.get("usage"):
            raise Failed(f"its provider failed: {text or 'it says no more'}", standing.TRANSIENT)
        if reason != "end_turn":
            raise Failed(f"it stopped before the end: {reason}" + (f". It had said: {text}" if text else ""))
        if not text:
            raise Failed("it ended its turn without an answer", standing.TRANSIENT)
        return Outcome(Result.EXIT, 0, answer=text)

    def _text(self) -> str:
        """What it said last: one message where it tells them apart, else all since its last tool call."""
        last = next((message for message, _ in reversed(self._said) if message), None)
        return "".join(text for message, text in self._said if last is None or message == last).strip()

    # -- what comes from it

    async def _called(self, method: str, params: Any, is_notification: bool) -> Any:
        about = params if isinstance(params, dict) else {}
        if method == "session/update":
            self._taken += 1
            self._heard(about.get("update") or {})
            return None
        if method == "session/request_permission":
            return {"outcome": await self._permission(about)}
        if is_notification:
            return None  # they have many of their own
        raise RequestError.method_not_found(method)

    def _heard(self, update: dict[str, Any]) -> None:
        self._moved_at = asyncio.get_running_loop().time()
        if not self._listening or ((self._asking is None or self._asking.done()) and self._taken > self._line.ended):
            return  # replayed, or said when nobody had asked
        self._acknowledge()
        match update.get("sessionUpdate"):
            case "agent_message_chunk":
                if text := (update.get("content") or {}).get("text") or "":
                    self._said.append((update.get("messageId"), text))
                    self._refused = ""
                self._talk.tokens += float(((update.get("_meta") or {}).get("usage") or {}).get("totalTokens") or 0)
            case "tool_call" | "tool_call_update":
                self._call(update)
            case "usage_update":
                cost = (update.get("cost") or {}).get("amount")
                if isinstance(cost, int | float):
                    self._cost = float(cost)
                    self._talk.cost = self._cost - self._spent if self._cost >= self._spent else self._cost
            case "session_info_update":
                self._failure = system_error(update) or self._failure
        self._talk.progress_changed()

    def _call(self, update: dict[str, Any]) -> None:
        known = str(update.get("toolCallId") or "")
        before = self._calls.get(known)
        call = self._calls[known] = {**(before or {}), **{name: value for name, value in update.items() if value}}
        acting = self._talk.turn.running_tools
        if before is None:
            self._refused = ""
            self._said.clear()
            self._talk.tools.append(tool(call))
            acting.append(known)
        if call.get("status") in ("completed", "failed") and known in acting:
            acting.remove(known)

    async def _permission(self, params: dict[str, Any]) -> dict[str, Any]:
        given = params.get("toolCall") or {}
        call = {**self._calls.get(str(given.get("toolCallId") or ""), {}), **{name: value for name, value in given.items() if value}}
        asked = asked_of(call, self._talk.turn.settings["name"])
        self._acknowledge()
        known = str(given.get("toolCallId") or "")
        if asked.kind == "command" and self._passed.pop(known, "") == asked.command:
            return _chosen("allow_once", params) or {"outcome": "cancelled"}
        permit = asyncio.ensure_future(self._talk.request_permission(asked))
        self._permits.add(permit)
        try:
            allowed, why = await permit
        except asyncio.CancelledError:
            return {"outcome": "cancelled"}
        finally:
            self._permits.discard(permit)
            self._moved_at = asyncio.get_running_loop().time()
        self._call({**given, "status": "in_progress" if allowed else "failed"})
        if not allowed:
            self._refused = f"{asked.words} ({why})" if why != REFUSED else asked.words
        if allowed and (call.get("rawInput") or {}).get("directories"):
            self._passed[known] = asked.command  # OpenCode asks for the same command once more
        if (answer := _chosen("allow_once" if allowed else "reject_once", params)) is not None:
            return answer
        self._refused = self._refused or f"{asked.words} (a yes for once is not among what you offer)"
        return {"outcome": "cancelled"}

    async def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        return await self._send(AGENT_METHODS[method], **params)

    async def _send(self, method: str, **params: Any) -> dict[str, Any]:
        try:
            if method == AGENT_METHODS["session_prompt"]:
                return await self._connection.send_request(method, params) or {}
            async with asyncio.timeout(START_SECONDS):
                return await self._connection.send_request(method, params) or {}
        except TimeoutError:
            raise Failed(f"it did not answer to {method} within {START_SECONDS:.0f} s") from None
        except RequestError as error:
            raise Failed(error_message(error), standing.TRANSIENT) from None


def _chosen(kind: str, params: dict[str, Any]) -> dict[str, Any] | None:
    """The option that stands for a word. That is for once, whatever else is offered."""
    found = next((one for one in params.get("options") or [] if isinstance(one, dict) and one.get("kind") == kind), None)
    return {"outcome": "selected", "optionId": found.get("optionId")} if found else None


async def _nothing(method: str, params: Any, is_notification: bool) -> Any:
    return None
