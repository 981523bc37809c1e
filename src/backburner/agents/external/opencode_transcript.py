"""The messages and tool calls of an OpenCode session since the prompt, from events and from messages, and the outcome they show."""

from typing import Any

from backburner.agents.external.message_fields import opencode_tokens
from backburner.agents.external.turn import AgentFailed, ExternalTurn
from backburner.core import recurring
from backburner.core.ports import Outcome
from backburner.core.states import Result


class Transcript:
    """The assistant's messages of one run."""

    def __init__(self, external_turn: ExternalTurn) -> None:
        self._external_turn = external_turn
        self.earlier_ids: set[str] = set()  # ids of messages from before the prompt
        self.messages: dict[str, dict[str, Any]] = {}
        self.calls: dict[str, dict[str, Any]] = {}
        self.refused = ""  # a rejected request whose rejection the agent may not have noticed
        self._texts: dict[str, dict[str, str]] = {}

    def on_message(self, info: dict[str, Any]) -> None:
        if info.get("role") == "assistant" and info.get("id") not in self.earlier_ids:
            self.messages[str(info["id"])] = info
            self.refused = "" if info.get("finish") not in (None, "tool-calls") else self.refused
            self._external_turn.tokens = sum(opencode_tokens(message) for message in self.messages.values())
            self._external_turn.cost = sum(float(message.get("cost") or 0) for message in self.messages.values())

    def on_part(self, part: dict[str, Any]) -> None:
        message = str(part.get("messageID"))
        if message in self.earlier_ids:
            return
        if part.get("type") == "text":
            self._texts.setdefault(message, {})[str(part.get("id"))] = str(part.get("text") or "")
        elif part.get("type") == "tool":
            call, running_tools = f"{message}:{part.get('callID')}", self._external_turn.turn.running_tools
            if call not in self.calls:
                self._external_turn.tools.append(str(part.get("tool")))
            self.calls[call] = part
            status = (part.get("state") or {}).get("status")
            if status in ("pending", "running") and call not in running_tools:
                running_tools.append(call)
            elif status in ("completed", "error") and call in running_tools:
                running_tools.remove(call)

    def add_messages(self, messages: list[dict[str, Any]]) -> None:
        for message in messages:
            self.on_message(message["info"])
            if message["info"].get("role") == "assistant":
                for part in message.get("parts") or []:
                    self.on_part(part)

    def last_message(self) -> dict[str, Any] | None:
        found = sorted(self.messages.values(), key=lambda info: ((info.get("time") or {}).get("created") or 0, info["id"]))
        return found[-1] if found else None

    def has_answer(self) -> bool:
        """Whether the last message is complete and ended with text, not with a tool call or an error."""
        last = self.last_message()
        return bool(
            last
            and (last.get("time") or {}).get("completed")
            and last.get("finish") not in (None, "tool-calls", "unknown")
            and not last.get("error")
        )

    def outcome(self) -> Outcome:
        last = self.last_message()
        assert last is not None
        if (error := last.get("error")) and error.get("name") == "MessageAbortedError":
            raise AgentFailed("it was stopped in OpenCode before it answered")
        if error:
            data = error.get("data") or {}
            problem = {401: recurring.AUTH, 403: recurring.AUTH, 429: recurring.RATE_LIMIT}.get(data.get("statusCode"), recurring.TRANSIENT)
            raise AgentFailed(f"{error.get('name')}: {data.get('message') or ''}".rstrip(": "), problem)
        text = "".join(self._texts.get(str(last["id"]), {}).values()).strip()
        if last.get("finish") != "stop":
            raise AgentFailed(f"it stopped before the end: {last.get('finish')}" + (f". Its last text: {text}" if text else ""))
        if not text:
            raise AgentFailed("it ended its turn without an answer", recurring.TRANSIENT)
        return Outcome(Result.EXIT, 0, answer=text)
