"""Drives agents that implement the Agent Client Protocol. The program is started for each turn and ended with all its processes.

The stop reason alone does not prove that a turn succeeded: some agents end their turn normally when their provider has failed, and some
end it without noticing that a request was rejected.
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

from backburner.agents import child_process
from backburner.agents.external.acp_transport import START_TIMEOUT_SECONDS, JsonLineConnection, handshake, start_program, stderr_tail
from backburner.agents.external.message_fields import acp_permission_request, error_message, system_error, tool_name, used_tokens
from backburner.agents.external.turn import EXPIRED, REFUSED, AgentFailed, ExternalTurn
from backburner.core import recurring
from backburner.core.known_agents import OPENCODE_RULES
from backburner.core.ports import Outcome
from backburner.core.states import Result
from backburner.core.terminal_text import clean, shortened
from backburner.system import processes
from backburner.system.home import Home
from backburner.system.run_files import ERRORS

_CANCEL_TIMEOUT_SECONDS = 3.0
_EXIT_TIMEOUT_SECONDS = 3.0  # some agents save their session only when they exit
_MAX_REFUSALS = 20  # follow-up prompts about rejected requests in one turn
# Variables that make some agents request permission before they act; for the others the session mode does.
_PERMISSION_VARIABLES = {"opencode-acp": {"OPENCODE_PERMISSION": json.dumps(OPENCODE_RULES)}, "goose": {"GOOSE_MODE": "approve"}}
_MINUTE_SECONDS = 60.0
# An agent may still replay messages after it has answered that the session is loaded.
_REPLAY_PAUSE_SECONDS, _REPLAY_TIMEOUT_SECONDS = 0.3, 10.0
# Agents that authenticate with an API key: the authentication method and the variable of the key.
_KEY_AUTHENTICATION = {"gemini": ("gemini-api-key", "GEMINI_API_KEY"), "qwen": ("openai", "OPENAI_API_KEY")}
_REPORTS_USAGE = ("codex", "goose")  # report usage with every answer, except when their provider has failed
# Claude can never switch off its questions. With this possibility it also refuses to run as root where IS_SANDBOX is set.
_META = {"claudeCode": {"options": {"allowDangerouslySkipPermissions": False}}}


class AcpAgent:
    """Runs each turn in a process of its own."""

    def __init__(self, home: Home) -> None:
        self._home = home

    async def drive(self, external_turn: ExternalTurn) -> Outcome:
        work, settings = external_turn.turn.work, external_turn.turn.settings
        env = {**child_process.agent_environment(self._home, work), **_PERMISSION_VARIABLES.get(settings["name"], {})}
        errors = os.path.join(external_turn.turn.folder, ERRORS)
        async with start_program(
            settings, env, work.task.spec.cwd, work.run.process_tag, errors, external_turn.turn.on_process_started
        ) as connection:
            silence_timeout = await external_turn.home.call(lambda app: app.config.number("models.timeout_seconds"))
            acp_turn = _AcpTurn(external_turn, connection, silence_timeout)
            outcome = None
            try:
                outcome = await acp_turn.run(env)
                return outcome
            except ConnectionError:
                raise AgentFailed(
                    connection.failure or f"{connection.program} exited during the turn{stderr_tail(errors)}", recurring.TRANSIENT
                ) from None
            finally:
                await acp_turn.close(politely=outcome is not None)

    async def check(self, settings: dict[str, str], environ: dict[str, str]) -> str | None:
        """Why the agent is not available, or None. Starts its program and makes the handshake; the model gets no prompt."""
        process_tag = os.urandom(8).hex()
        env = {
            **child_process.without_client_variables(environ),
            **_PERMISSION_VARIABLES.get(settings["name"], {}),
            processes.TAG_VARIABLE: process_tag,
        }
        try:
            async with start_program(settings, env, os.getcwd(), process_tag, os.devnull) as transport:
                connection = Connection(_ignore_message, transport)
                try:
                    await handshake(connection)
                finally:
                    await connection.close()
        except (AgentFailed, ConnectionError, RequestError, OSError) as error:
            return shortened(clean(str(error)), longest=300)
        return None


class _AcpTurn:
    """One turn with an agent's program."""

    def __init__(self, external_turn: ExternalTurn, transport: JsonLineConnection, silence_timeout: float) -> None:
        self._external_turn, self._transport, self._silence_timeout = external_turn, transport, silence_timeout
        self._connection = Connection(self._on_message, transport)
        self._listening = False  # messages replayed while a session is loaded are ignored
        self._texts: list[tuple[str | None, str]] = []  # message id and text, since the last tool call
        self._calls: dict[str, dict[str, Any]] = {}
        self._refused = ""  # a rejected request whose rejection the agent may not have noticed
        self._failure = ""
        self._permissions: set[asyncio.Future[Any]] = set()
        self._last_update_at = 0.0
        self._supports_close = False
        self._prompt_request: asyncio.Future[dict[str, Any]] | None = None
        self._acknowledged: asyncio.Future[None] | None = None
        self._processed_updates = 0
        self._approved_commands: dict[str, str] = {}
        self._cost_before = self._cost = float(external_turn.record.get("cost") or 0)  # cost of the whole session, before this turn and now

    async def close(self, *, politely: bool = False) -> None:
        """Close the connection. `politely`: let the agent save its session first, by session/close or by time to exit."""
        if politely and not self._supports_close:
            self._transport.exit_timeout_seconds = _EXIT_TIMEOUT_SECONDS
        elif politely:
            with contextlib.suppress(AgentFailed, ConnectionError, TimeoutError):
                async with asyncio.timeout(_EXIT_TIMEOUT_SECONDS):
                    await self._request("session_close", sessionId=self._external_turn.session)
        await self._connection.close()

    async def run(self, env: dict[str, str]) -> Outcome:
        """Make the handshake, open the session, send the prompt, and wait for the end of the turn."""
        settings = self._external_turn.turn.settings
        answer = await handshake(self._connection)
        method, variable = _KEY_AUTHENTICATION.get(settings["name"], ("", ""))
        if method := settings.get("auth") or (method if env.get(variable) else ""):
            await self._request("authenticate", methodId=method)
        await self._open(answer.get("agentCapabilities") or {})
        text = await self._external_turn.next_prompt()
        self._listening = True
        for _ in range(_MAX_REFUSALS):
            answer = await self._prompt(text)
            if not self._refused:
                return self._outcome(answer)
            text = f"{REFUSED} The request was: {self._refused}. Continue without it."
            self._refused = ""
        raise AgentFailed("it kept requesting what was rejected")

    async def _open(self, capabilities: dict[str, Any]) -> None:
        self._supports_close = "close" in (capabilities.get("sessionCapabilities") or {})
        cwd, session = self._external_turn.turn.work.task.spec.cwd, self._external_turn.session
        params: dict[str, Any] = {"cwd": cwd, "mcpServers": [], "_meta": _META}
        supports_resume = "resume" in (capabilities.get("sessionCapabilities") or {})
        if session:
            if not supports_resume and not capabilities.get("loadSession"):
                raise AgentFailed(EXPIRED)
            # A Gemini session that is loaded in the same minute in which it was created would lose its history.
            if self._external_turn.turn.settings["name"] == "gemini":
                left = (float(self._external_turn.record.get("opened") or 0) // _MINUTE_SECONDS + 1) * _MINUTE_SECONDS - time.time()
                await asyncio.sleep(min(max(0.0, left), _MINUTE_SECONDS))
            try:
                opened = await self._request("session_resume" if supports_resume else "session_load", sessionId=session, **params)
            except AgentFailed as error:
                raise AgentFailed(f"{EXPIRED} ({error})") from None
        else:
            opened = await self._request("session_new", **params)
            session = str(opened.get("sessionId") or "")
            self._external_turn.save_state(session=session, cwd=cwd, opened=time.time())
        await self._set_mode_and_model(session, opened)
        if self._external_turn.record.get("heard") and not supports_resume:
            await self._wait_for_replay()

    async def _wait_for_replay(self) -> None:
        """Wait until the agent has replayed the messages of a loaded session."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _REPLAY_TIMEOUT_SECONDS
        self._last_update_at = loop.time()
        while loop.time() < min(deadline, self._last_update_at + _REPLAY_PAUSE_SECONDS):
            await asyncio.sleep(_REPLAY_PAUSE_SECONDS / 4)

    async def _set_mode_and_model(self, session: str, opened: dict[str, Any]) -> None:
        """Set the mode in which the agent requests permission, and the model of the settings."""
        settings = self._external_turn.turn.settings
        mode = settings.get("mode", "")
        modes = {str(offered.get("id")) for offered in (opened.get("modes") or {}).get("availableModes") or []}
        if mode and modes and mode not in modes:
            raise AgentFailed(f"unknown mode '{mode}'; available: {', '.join(sorted(modes))}")
        if mode and (opened.get("modes") or {}).get("currentModeId") != mode:
            await self._request("session_set_mode", sessionId=session, modeId=mode)
        if model := settings.get("model"):
            options = [str(option.get("id")) for option in opened.get("configOptions") or []]
            if "model" in options:
                await self._request("session_set_config_option", sessionId=session, configId="model", value=model)
            else:
                await self._send("session/set_model", sessionId=session, modelId=model)

    async def _prompt(self, text: str) -> dict[str, Any]:
        """Send a prompt and wait for the end of its turn. If cancelled, the agent is sent a cancel notification first."""
        self._texts.clear()
        self._acknowledged = None
        session = self._external_turn.session
        request = self._prompt_request = asyncio.ensure_future(
            self._request("session_prompt", sessionId=session, prompt=[{"type": "text", "text": text}])
        )
        self._last_update_at = asyncio.get_running_loop().time()
        try:
            while not (await asyncio.wait({request}, timeout=self._silence_left()))[0]:
                if self._silence_left() <= 0:
                    raise AgentFailed("it has been silent for too long (models.timeout_seconds)", recurring.TIMEOUT)
            await self._process_updates()
            answer = request.result()
        except (asyncio.CancelledError, AgentFailed):
            with contextlib.suppress(Exception):
                await self._connection.send_notification(AGENT_METHODS["session_cancel"], {"sessionId": session})
                for permission in self._permissions:  # some agents do not stop before they have an answer
                    permission.cancel()
                await asyncio.wait({request}, timeout=_CANCEL_TIMEOUT_SECONDS)
            request.cancel()
            raise
        self._acknowledge()
        assert self._acknowledged is not None
        await self._acknowledged
        self._external_turn.save_state(cost=self._cost)
        self._external_turn.tokens += used_tokens(answer)
        self._external_turn.progress_changed()
        return answer

    def _acknowledge(self) -> None:
        """Record that the agent has received the prompt: it has reacted to it."""
        if self._acknowledged is None:
            self._acknowledged = asyncio.ensure_future(self._external_turn.prompt_received())

    def _silence_left(self) -> float:
        """How long the agent may still be silent, in seconds. There is no limit while a tool runs or a permission is pending."""
        if self._permissions or self._external_turn.turn.running_tools:
            return self._silence_timeout
        return self._silence_timeout - (asyncio.get_running_loop().time() - self._last_update_at)

    async def _process_updates(self) -> None:
        """Wait until all updates from before the end of the turn are processed; each has an asyncio task of its own."""
        while self._processed_updates < self._transport.updates_at_response:
            await asyncio.sleep(0)

    def _outcome(self, answer: dict[str, Any]) -> Outcome:
        reason, text = answer.get("stopReason"), self._text()
        if self._failure:
            raise AgentFailed(f"{self._failure}: {text}" if text else self._failure, recurring.TRANSIENT)
        if self._external_turn.turn.settings["name"] in _REPORTS_USAGE and not answer.get("usage"):
            raise AgentFailed(f"its provider failed: {text or 'no details'}", recurring.TRANSIENT)
        if reason != "end_turn":
            raise AgentFailed(f"it stopped before the end: {reason}" + (f". Its last text: {text}" if text else ""))
        if not text:
            raise AgentFailed("it ended its turn without an answer", recurring.TRANSIENT)
        return Outcome(Result.EXIT, 0, answer=text)

    def _text(self) -> str:
        """The final text: the last message if messages have ids, else all text since the last tool call."""
        last = next((message for message, _ in reversed(self._texts) if message), None)
        return "".join(text for message, text in self._texts if last is None or message == last).strip()

    # Messages from the agent

    async def _on_message(self, method: str, params: Any, is_notification: bool) -> Any:
        fields = params if isinstance(params, dict) else {}
        if method == "session/update":
            self._processed_updates += 1
            self._on_update(fields.get("update") or {})
            return None
        if method == "session/request_permission":
            return {"outcome": await self._answer_permission(fields)}
        if is_notification:
            return None  # agents send many notifications of their own
        raise RequestError.method_not_found(method)

    def _on_update(self, update: dict[str, Any]) -> None:
        self._last_update_at = asyncio.get_running_loop().time()
        if not self._listening or (
            (self._prompt_request is None or self._prompt_request.done()) and self._processed_updates > self._transport.updates_at_response
        ):
            return  # replayed, or sent outside of a prompt
        self._acknowledge()
        match update.get("sessionUpdate"):
            case "agent_message_chunk":
                if text := (update.get("content") or {}).get("text") or "":
                    self._texts.append((update.get("messageId"), text))
                    self._refused = ""
                self._external_turn.tokens += float(((update.get("_meta") or {}).get("usage") or {}).get("totalTokens") or 0)
            case "tool_call" | "tool_call_update":
                self._on_tool_call(update)
            case "usage_update":
                cost = (update.get("cost") or {}).get("amount")
                if isinstance(cost, int | float):
                    self._cost = float(cost)
                    self._external_turn.cost = self._cost - self._cost_before if self._cost >= self._cost_before else self._cost
            case "session_info_update":
                self._failure = system_error(update) or self._failure
        self._external_turn.progress_changed()

    def _on_tool_call(self, update: dict[str, Any]) -> None:
        call_id = str(update.get("toolCallId") or "")
        before = self._calls.get(call_id)
        call = self._calls[call_id] = {**(before or {}), **{name: value for name, value in update.items() if value}}
        running_tools = self._external_turn.turn.running_tools
        if before is None:
            self._refused = ""
            self._texts.clear()
            self._external_turn.tools.append(tool_name(call))
            running_tools.append(call_id)
        if call.get("status") in ("completed", "failed") and call_id in running_tools:
            running_tools.remove(call_id)

    async def _answer_permission(self, params: dict[str, Any]) -> dict[str, Any]:
        tool_call = params.get("toolCall") or {}
        call = {
            **self._calls.get(str(tool_call.get("toolCallId") or ""), {}),
            **{name: value for name, value in tool_call.items() if value},
        }
        request = acp_permission_request(call, self._external_turn.turn.settings["name"])
        self._acknowledge()
        call_id = str(tool_call.get("toolCallId") or "")
        if request.kind == "command" and self._approved_commands.pop(call_id, "") == request.command:
            return _select_option("allow_once", params) or {"outcome": "cancelled"}
        permission = asyncio.ensure_future(self._external_turn.request_permission(request))
        self._permissions.add(permission)
        try:
            allowed, reason = await permission
        except asyncio.CancelledError:
            return {"outcome": "cancelled"}
        finally:
            self._permissions.discard(permission)
            self._last_update_at = asyncio.get_running_loop().time()
        self._on_tool_call({**tool_call, "status": "in_progress" if allowed else "failed"})
        if not allowed:
            self._refused = f"{request.description} ({reason})" if reason != REFUSED else request.description
        if allowed and (call.get("rawInput") or {}).get("directories"):
            self._approved_commands[call_id] = request.command  # OpenCode requests the same command once more
        if (answer := _select_option("allow_once" if allowed else "reject_once", params)) is not None:
            return answer
        self._refused = self._refused or f"{request.description} (the request offers no option to allow or reject it once)"
        return {"outcome": "cancelled"}

    async def _request(self, method: str, **params: Any) -> dict[str, Any]:
        return await self._send(AGENT_METHODS[method], **params)

    async def _send(self, method: str, **params: Any) -> dict[str, Any]:
        try:
            if method == AGENT_METHODS["session_prompt"]:
                return await self._connection.send_request(method, params) or {}
            async with asyncio.timeout(START_TIMEOUT_SECONDS):
                return await self._connection.send_request(method, params) or {}
        except TimeoutError:
            raise AgentFailed(f"it did not answer {method} within {START_TIMEOUT_SECONDS:.0f} s") from None
        except RequestError as error:
            raise AgentFailed(error_message(error), recurring.TRANSIENT) from None


def _select_option(kind: str, params: dict[str, Any]) -> dict[str, Any] | None:
    """The answer that selects the option of this kind, or None. Only options that are valid once are used."""
    found = next((option for option in params.get("options") or [] if isinstance(option, dict) and option.get("kind") == kind), None)
    return {"outcome": "selected", "optionId": found.get("optionId")} if found else None


async def _ignore_message(method: str, params: Any, is_notification: bool) -> Any:
    return None
