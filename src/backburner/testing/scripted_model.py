"""A scripted model server on loopback, so that tests run real coding agents without a model and without a network.

Requests are OpenAI chat completions, OpenAI responses, Anthropic messages or Gemini contents; the scripted answer is sent
in the same dialect, streamed or complete. The server only listens on 127.0.0.1, and keeps the requests for tests to inspect.
"""

import json
import re
import sys
import threading
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice, pairwise
from typing import Any, NamedTuple, Self

from backburner.testing.request_texts import strings

_OPENING = "[[script:"
_REQUESTS_KEPT = 200
_MAX_HANG_SECONDS = 60.0
_MAX_FLOOD_BYTES = 64 * 1024 * 1024
_ERROR_TYPES = {400: "invalid_request_error", 429: "rate_limit_error"}
_TASK_ID = re.compile(r"task_\d{8}_\d{6}_[\w-]+")

Json = dict[str, Any]


class ScriptedModel:
    """A model that follows the script in the newest user message: `[[script: [{"tool": …, "args": …}, {"say": …}]]]`.

    Each assistant turn after that message is one step. After the script, and without one, it answers "ok". A step may have

    - `tool` with `args` (or `raw_args`, a text that is sent unchanged), or `tools`, a list of calls made together. A tool is found
      by the end of its name; in `args`, `{{task_id}}` is the newest task id of a tool result, `{{x}}` its newest field `x`.
    - `say`, a text; alone or before the calls. `flood`, a text with that many bytes. `finish`, another reason why the model stopped, such as
      `length` (OpenAI) or `max_tokens` (Anthropic).
    - `hang`, seconds to wait before the answer, at most 60; `drip`, seconds to wait in the middle of it.
    - `error`, an HTTP status, returned `times` times (default 1) for this script; then the next step follows.
    - `events`, the number of events after which a streamed answer is cut off; `raw`, a text that is sent as the whole body.

    A request without tools (a title, a summary) is answered "ok". Without a script, `think` makes a step from the roles and texts so far.
    """

    def __init__(self, think: "Callable[[list[tuple[str, str]]], Json] | None" = None) -> None:
        self._think = think
        self.requests: deque[Json] = deque(maxlen=_REQUESTS_KEPT)
        self.keys: set[str] = set()  # the values of `Authorization` and `x-api-key` in all requests
        self._errors_given: Counter[tuple[str, int]] = Counter()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._dripping = threading.local()

    def __enter__(self) -> Self:
        self._server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"model": self}))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def seen(self, text: str) -> bool:
        """Whether any kept request contains the text, in any of its strings."""
        with self._lock:
            requests = list(self.requests)
        return any(text in string for request in requests for string in strings(request))

    def answer(self, path: str, body: Json) -> tuple[int, str, bytes]:
        """Status, content type and body of the answer to one request; waits if the script says so."""
        with self._lock:
            self.requests.append(body)
        dialect = next((dialect for ending, dialect in _DIALECTS.items() if path.lower().endswith(ending)), None)
        if dialect is None:
            counting = path.endswith(("/count_tokens", ":countTokens"))
            return _as_json(200, {"input_tokens": 1, "totalTokens": 1}) if counting else _as_json(404, _error(404))
        tools = dialect.tools(body)
        step, results = self._step(dialect.turns(body)) if tools else ({}, [])
        if "error" in step:
            return _as_json(int(step["error"]), _error(int(step["error"])))
        if "hang" in step:
            self._closing.wait(min(float(step["hang"]), _MAX_HANG_SECONDS))
        self._dripping.seconds = min(float(step.get("drip", 0)), _MAX_HANG_SECONDS)
        is_stream = body.get("stream") or "streamGenerateContent" in path
        if "raw" in step:
            return 200, "text/event-stream" if is_stream else "application/json", str(step["raw"]).encode()
        answer = _answer(step, tools, results)
        if is_stream:
            return 200, "text/event-stream", "".join(map(_sse, islice(dialect.events(answer), step.get("events")))).encode()
        return _as_json(200, dialect.whole(answer))

    def drip(self) -> None:
        """Wait in the middle of an answer, as long as its step says."""
        self._closing.wait(getattr(self._dripping, "seconds", 0.0))
        self._dripping.seconds = 0.0

    def _step(self, turns: "list[_Turn]") -> tuple[Json, list[str]]:
        """The step to take now, and the tool results so far."""
        results = [turn.text for turn in turns if turn.role == "tool"]
        scripted = [(place, turn.text) for place, turn in enumerate(turns) if turn.role == "user" and _OPENING in turn.text]
        if not scripted and self._think:
            return self._think([(turn.role, turn.text) for turn in turns]), results
        start, text = scripted[-1] if scripted else (len(turns), "")
        script = _script(text)
        roles = [turn.role for turn in turns[start:]]
        taken = sum(role == "assistant" != before for before, role in pairwise(roles))
        for number, step in enumerate(script):
            if "error" not in step:
                if taken == 0:
                    return step, results
                taken -= 1
            elif taken == 0 and self._give_error(json.dumps(script), number, int(step.get("times", 1))):
                return step, results
        return {}, results

    def _give_error(self, script: str, number: int, times: int) -> bool:
        with self._lock:
            self._errors_given[script, number] += 1
            return self._errors_given[script, number] <= times


class _Turn(NamedTuple):
    """A message of `user`, `assistant` or `tool`; system and developer messages are not included."""

    role: str
    text: str = ""


class _Tool(NamedTuple):
    name: str
    namespace: str = ""


class _Call(NamedTuple):
    id: str
    tool: _Tool
    arguments: str

    @property
    def parsed(self) -> Any:
        """The arguments for a dialect that sends them as JSON; the raw text if they are not valid JSON."""
        with suppress(ValueError):
            return json.loads(self.arguments)
        return self.arguments


class _Answer(NamedTuple):
    text: str
    calls: list[_Call]
    finish: str | None = None  # why the model stopped, if not because it was done


def _script(text: str) -> list[Json]:
    """The last script in a text that is not inside another. A client may have quoted the prompt, so its quotes may be escaped."""
    script, rest = None, text
    while _OPENING in rest:
        inner = rest.partition(_OPENING)[2]
        script, rest = _decoded(inner) or ([{"say": f"the script is not JSON: {inner[:200]}"}] if script is None else script, inner)
    return script or []


def _decoded(text: str) -> tuple[list[Json], str] | None:
    """A script at the beginning of a text, and the text after it."""
    for unquoted in (text, text.replace('\\"', '"'), text.replace('\\"', '"').replace("\\\\", "\\")):
        with suppress(ValueError):
            script, end = json.JSONDecoder(strict=False).raw_decode(unquoted.lstrip())
            return script, unquoted.lstrip()[end:]
    return None


def _answer(step: Json, tools: list[_Tool], results: list[str]) -> _Answer:
    calls, missing = [], []
    for call in step.get("tools") or ([step] if "tool" in step else []):
        tool = _find(call["tool"], tools)
        if tool is None:
            missing.append(f"no tool {call['tool']} among {', '.join(sorted(tool.name for tool in tools))}")
        else:
            calls.append(_Call(_id("call"), tool, call.get("raw_args") or json.dumps(_filled(call.get("args", {}), results))))
    if "flood" in step:
        return _Answer("flood " * (min(int(step["flood"]), _MAX_FLOOD_BYTES) // 6 + 1), calls)
    return _Answer("; ".join(missing) or step.get("say", "" if calls else "ok"), calls, step.get("finish"))


def _find(wanted: str, tools: list[_Tool]) -> _Tool | None:
    """The tool with the shortest name that has this ending: clients add the server's name in front, with one underscore or two."""
    ending = "_" + re.sub("_+", "_", wanted)
    named = [(re.sub("_+", "_", f"_{tool.namespace}_{tool.name}"), tool) for tool in tools]
    return min(((len(name), tool) for name, tool in named if name.endswith(ending)), default=(0, None))[1]


def _filled(value: Any, results: list[str]) -> Any:
    """`value` with each `{{name}}` replaced by the newest value of that name in a tool result, if there is one."""
    if isinstance(value, dict):
        return {key: _filled(inner, results) for key, inner in value.items()}
    if isinstance(value, list):
        return [_filled(inner, results) for inner in value]
    if isinstance(value, str):
        return re.sub(r"\{\{(\w+)\}\}", lambda match: _newest(match[1], results) or match[0], value)
    return value


def _newest(name: str, results: list[str]) -> str | None:
    # Results may be JSON inside JSON: there may be any number of backslashes before a quote.
    pattern = _TASK_ID if name == "task_id" else re.compile(rf'"{name}\\*"\s*:\s*\\*"?([^"\\,}}\]]+)')
    found = [match[pattern.groups] for result in results for match in pattern.finditer(result)]
    return found[-1].strip() if found else None


def _text(content: Any) -> str:
    """The text of a message: a string, or a list of parts that have a `text`."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content or [] if isinstance(part.get("text"), str))


# A dialect reads turns and tools from a request, and writes an answer complete or as the events of a stream.
class _Chat:
    def turns(self, body: Json) -> list[_Turn]:
        messages = [(message["role"], _text(message.get("content"))) for message in body["messages"]]
        return [_Turn(role, text) for role, text in messages if role in ("user", "assistant", "tool")]

    def tools(self, body: Json) -> list[_Tool]:
        return [_Tool(tool["function"]["name"]) for tool in body.get("tools") or [] if tool["type"] == "function"]

    def whole(self, answer: _Answer) -> Json:
        calls = [
            {"index": index, "id": call.id, "type": "function", "function": {"name": call.tool.name, "arguments": call.arguments}}
            for index, call in enumerate(answer.calls)
        ]
        message = {"role": "assistant", "content": answer.text or None} | ({"tool_calls": calls} if calls else {})
        choice = {"index": 0, "message": message, "finish_reason": answer.finish or ("tool_calls" if calls else "stop")}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        return {"id": _id("chatcmpl"), "object": "chat.completion", "created": 0, "model": "scripted", "choices": [choice], "usage": usage}

    def events(self, answer: _Answer) -> Iterator[Json | str]:
        whole: Json = self.whole(answer) | {"object": "chat.completion.chunk"}
        choice, usage = whole["choices"][0], whole.pop("usage")
        yield whole | {"choices": [{"index": 0, "delta": choice["message"], "finish_reason": None}]}
        yield whole | {"choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}], "usage": usage}
        yield "[DONE]"


class _Responses:
    def turns(self, body: Json) -> list[_Turn]:
        items = body["input"] if isinstance(body["input"], list) else [{"role": "user", "content": body["input"]}]
        turns = []
        for item in items:
            kind = item.get("type", "message")
            if kind.endswith("_output"):
                turns.append(_Turn("tool", json.dumps(item.get("output"))))
            elif kind != "message" or item["role"] == "assistant":
                turns.append(_Turn("assistant"))
            elif item["role"] == "user":
                turns.append(_Turn("user", _text(item["content"])))
        return turns

    def tools(self, body: Json) -> list[_Tool]:
        tools = []
        for tool in body.get("tools") or []:
            if tool["type"] == "namespace":
                tools += [_Tool(inner["name"], tool["name"]) for inner in tool["tools"]]
            elif tool["type"] == "function":
                tools.append(_Tool(tool["name"]))
        return tools

    def whole(self, answer: _Answer) -> Json:
        output: list[Json] = []
        if answer.text:
            content = [{"type": "output_text", "text": answer.text, "annotations": []}]
            output.append({"type": "message", "id": _id("msg"), "status": "completed", "role": "assistant", "content": content})
        for call in answer.calls:
            item = {"type": "function_call", "id": _id("fc"), "status": "completed", "call_id": call.id}
            space = {"namespace": call.tool.namespace} if call.tool.namespace else {}
            output.append(item | {"name": call.tool.name, "arguments": call.arguments} | space)
        details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2} | details
        return {"id": _id("resp"), "object": "response", "created_at": 0, "status": "completed", "output": output, "usage": usage}

    def events(self, answer: _Answer) -> Iterator[Json | str]:
        whole = self.whole(answer)
        yield {"type": "response.created", "response": whole | {"status": "in_progress", "output": [], "usage": None}}
        for index, item in enumerate(whole["output"]):
            place = {"output_index": index, "item_id": item["id"]}
            if item["type"] == "message":
                empty, delta = {"content": []}, {"type": "response.output_text.delta", "content_index": 0, "delta": answer.text}
            else:
                empty, delta = {"arguments": ""}, {"type": "response.function_call_arguments.delta", "delta": item["arguments"]}
            yield {"type": "response.output_item.added", "output_index": index, "item": item | {"status": "in_progress"} | empty}
            yield delta | place
            yield {"type": "response.output_item.done", "output_index": index, "item": item}
        yield {"type": "response.completed", "response": whole}


class _Messages:
    def turns(self, body: Json) -> list[_Turn]:
        turns = []
        for message in body["messages"]:
            content = message["content"]
            if message["role"] == "assistant":
                turns.append(_Turn("assistant"))
            elif message["role"] == "user":
                parts = content if isinstance(content, list) else []
                turns += [_Turn("tool", json.dumps(part.get("content"))) for part in parts if part["type"] == "tool_result"]
                turns += [_Turn("user", text)] if (text := _text(content)) else []
        return turns

    def tools(self, body: Json) -> list[_Tool]:
        return [_Tool(tool["name"]) for tool in body.get("tools") or []]

    def whole(self, answer: _Answer) -> Json:
        content: list[Json] = [{"type": "text", "text": answer.text}] if answer.text else []
        content += [{"type": "tool_use", "id": call.id, "name": call.tool.name, "input": call.parsed} for call in answer.calls]
        stop = {"stop_reason": answer.finish or ("tool_use" if answer.calls else "end_turn"), "stop_sequence": None}
        usage = {"input_tokens": 1, "output_tokens": 1}
        return {"id": _id("msg"), "type": "message", "role": "assistant", "model": "scripted", "content": content, "usage": usage} | stop

    def events(self, answer: _Answer) -> Iterator[Json | str]:
        whole = self.whole(answer)
        yield {"type": "message_start", "message": whole | {"content": [], "stop_reason": None}}
        arguments = iter(call.arguments for call in answer.calls)
        for index, part in enumerate(whole["content"]):
            if part["type"] == "text":
                start, delta = part | {"text": ""}, {"type": "text_delta", "text": part["text"]}
            else:
                start, delta = part | {"input": {}}, {"type": "input_json_delta", "partial_json": next(arguments)}
            yield {"type": "content_block_start", "index": index, "content_block": start}
            yield {"type": "content_block_delta", "index": index, "delta": delta}
            yield {"type": "content_block_stop", "index": index}
        yield {"type": "message_delta", "delta": {"stop_reason": whole["stop_reason"], "stop_sequence": None}, "usage": whole["usage"]}
        yield {"type": "message_stop"}


class _Gemini:
    def turns(self, body: Json) -> list[_Turn]:
        turns = []
        for content in body["contents"]:
            parts = content.get("parts") or []
            if content.get("role") == "model":
                turns.append(_Turn("assistant"))
                continue
            turns += [_Turn("tool", json.dumps(part["functionResponse"].get("response"))) for part in parts if "functionResponse" in part]
            turns += [_Turn("user", text)] if (text := _text(parts)) else []
        return turns

    def tools(self, body: Json) -> list[_Tool]:
        return [_Tool(declared["name"]) for tool in body.get("tools") or [] for declared in tool.get("functionDeclarations") or []]

    def whole(self, answer: _Answer) -> Json:
        parts: list[Json] = [{"text": answer.text}] if answer.text else []
        parts += [{"functionCall": {"id": call.id, "name": call.tool.name, "args": call.parsed}} for call in answer.calls]
        candidate = {"index": 0, "content": {"role": "model", "parts": parts}, "finishReason": "STOP"}
        usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
        return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "scripted", "responseId": _id("resp")}

    def events(self, answer: _Answer) -> Iterator[Json | str]:
        yield self.whole(answer)


_DIALECTS = {"/chat/completions": _Chat(), "/responses": _Responses(), "/messages": _Messages(), "generatecontent": _Gemini()}


def _error(status: int) -> Json:
    """One body that each of the dialects reads as an error."""
    kind = _ERROR_TYPES.get(status, "api_error")
    return {"type": "error", "error": {"type": kind, "code": status, "status": kind.upper(), "message": f"scripted error {status}"}}


def _id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex[:24]}"


def _sse(event: Json | str) -> str:
    if isinstance(event, str):
        return f"data: {event}\n\n"
    return (f"event: {event['type']}\n" if "type" in event else "") + f"data: {json.dumps(event)}\n\n"


def _as_json(status: int, body: Json) -> tuple[int, str, bytes]:
    return status, "application/json", json.dumps(body).encode()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up is no error of ours."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    model: ScriptedModel
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        self.model.keys |= {value for name in ("Authorization", "x-api-key") if (value := self.headers.get(name))}
        self._send(*self.model.answer(self.path.partition("?")[0], body))

    def do_GET(self) -> None:
        self._send(*_as_json(200, {"object": "list", "data": [], "models": []}))

    do_HEAD = do_GET

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            self.model.drip()
            self.wfile.write(body[len(body) // 2 :])

    def log_message(self, format: str, *args: Any) -> None:
        pass
