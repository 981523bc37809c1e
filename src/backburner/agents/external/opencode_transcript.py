"""What was said and done in a session of OpenCode since the prompt, from its events and from its messages alike, and what it proves."""

from typing import Any

from backburner.agents.external.message_fields import opencode_tokens
from backburner.agents.external.turn import ExternalTurn, Failed
from backburner.core import recurring as standing
from backburner.core.ports import Outcome
from backburner.core.states import Result


class Transcript:
    """The assistant's side of one run."""

    def __init__(self, talk: ExternalTurn) -> None:
        self._talk = talk
        self.old: set[str] = set()  # messages from before
        self.messages: dict[str, dict[str, Any]] = {}
        self.calls: dict[str, dict[str, Any]] = {}
        self.refused = ""  # what it may not have heard that it was refused
        self._texts: dict[str, dict[str, str]] = {}

    def message(self, info: dict[str, Any]) -> None:
        if info.get("role") == "assistant" and info.get("id") not in self.old:
            self.messages[str(info["id"])] = info
            self.refused = "" if info.get("finish") not in (None, "tool-calls") else self.refused
            self._talk.tokens = sum(opencode_tokens(one) for one in self.messages.values())
            self._talk.cost = sum(float(one.get("cost") or 0) for one in self.messages.values())

    def part(self, part: dict[str, Any]) -> None:
        message = str(part.get("messageID"))
        if message in self.old:
            return
        if part.get("type") == "text":
            self._texts.setdefault(message, {})[str(part.get("id"))] = str(part.get("text") or "")
        elif part.get("type") == "tool":
            call, acting = f"{message}:{part.get('callID')}", self._talk.turn.running_tools
            if call not in self.calls:
                self._talk.tools.append(str(part.get("tool")))
            self.calls[call] = part
            status = (part.get("state") or {}).get("status")
            if status in ("pending", "running") and call not in acting:
                acting.append(call)
            elif status in ("completed", "error") and call in acting:
                acting.remove(call)

    def take(self, known: list[dict[str, Any]]) -> None:
        for message in known:
            self.message(message["info"])
            if message["info"].get("role") == "assistant":
                for part in message.get("parts") or []:
                    self.part(part)

    def last(self) -> dict[str, Any] | None:
        found = sorted(self.messages.values(), key=lambda one: ((one.get("time") or {}).get("created") or 0, one["id"]))
        return found[-1] if found else None

    def answered(self) -> bool:
        """Whether there is evidence of an answer: a last message that is complete, ended in words and not in an error."""
        last = self.last()
        return bool(
            last
            and (last.get("time") or {}).get("completed")
            and last.get("finish") not in (None, "tool-calls", "unknown")
            and not last.get("error")
        )

    def outcome(self) -> Outcome:
        last = self.last()
        assert last is not None
        if (error := last.get("error")) and error.get("name") == "MessageAbortedError":
            raise Failed("it was stopped in OpenCode before it had answered")
        if error:
            about = error.get("data") or {}
            problem = {401: standing.AUTH, 403: standing.AUTH, 429: standing.RATE_LIMIT}.get(about.get("statusCode"), standing.TRANSIENT)
            raise Failed(f"{error.get('name')}: {about.get('message') or ''}".rstrip(": "), problem)
        text = "".join(self._texts.get(str(last["id"]), {}).values()).strip()
        if last.get("finish") != "stop":
            raise Failed(f"it stopped before the end: {last.get('finish')}" + (f". It had said: {text}" if text else ""))
        if not text:
            raise Failed("it ended its turn without an answer", standing.TRANSIENT)
        return Outcome(Result.EXIT, 0, answer=text)
