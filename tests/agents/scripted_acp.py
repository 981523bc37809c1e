"""A scripted agent of the Agent Client Protocol: executes the steps in the prompt and imitates the behaviour of real agents.

`scripted_acp.py FOLDER [WORD…]`. A prompt contains its steps as `[[script: […]]]`; a prompt without steps continues the last script.
FOLDER/journal.jsonl records the events, and FOLDER/sessions contains the sessions. Words:

load, resume, close   the capabilities of its sessions
late                  a loaded session is also replayed after the answer to the load request
forgetful             a session is saved only when the agent exits
minute                a session that is loaded in the minute of its creation is lost
stubborn              a pending permission request keeps it from stopping
deaf, stays           it does not exit on SIGTERM, or at the end of its input
mode=NAME             the initial mode of its sessions; the modes are `ask` and `auto`
"""

import functools
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from typing import Any

FOLDER, WORDS = sys.argv[1], sys.argv[2:]
OPTIONS = [
    {"optionId": "for-ever", "name": "Always", "kind": "allow_always"},
    {"optionId": "once", "name": "Yes", "kind": "allow_once"},
    {"optionId": "no", "name": "No", "kind": "reject_once"},
]
USAGE = {"totalTokens": 7, "inputTokens": 4, "outputTokens": 3}
MODE = next((word.removeprefix("mode=") for word in WORDS if word.startswith("mode=")), "")
writing = threading.Lock()


def note(event: str, /, **about: Any) -> None:
    """Write a line to the journal."""
    line = json.dumps({"event": event, "pid": os.getpid(), **about}) + "\n"
    with open(os.path.join(FOLDER, "journal.jsonl"), "ab", buffering=0) as file:
        file.write(line.encode())


def write(text: str) -> None:
    with writing:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def send(*messages: dict[str, Any]) -> None:
    write("\n".join(json.dumps({"jsonrpc": "2.0", **message}) for message in messages))


class Wrong(Exception):
    """An error answer with code, message and data."""


class Session:
    """One conversation: the prompts so far and the steps still to do."""

    def __init__(self, known: str, cwd: str) -> None:
        self.known, self.cwd = known, cwd
        self.prompts: list[str] = []
        self.todo: list[dict[str, Any]] = []
        self.cancelled = threading.Event()

    @property
    def path(self) -> str:
        return os.path.join(FOLDER, "sessions", self.known)

    def keep(self, *, leaving: bool = False) -> None:
        if "forgetful" in WORDS and not leaving:
            return
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        with open(self.path + ".new", "w") as file:
            json.dump({"cwd": self.cwd, "prompts": self.prompts, "todo": self.todo}, file)
        os.replace(self.path + ".new", self.path)

    def update(self, kind: str, /, **about: Any) -> None:
        send({"method": "session/update", "params": {"sessionId": self.known, "update": {"sessionUpdate": kind, **about}}})

    def say(self, text: str, kind: str = "agent_message_chunk", /, **about: Any) -> None:
        self.update(kind, content={"type": "text", "text": text}, **about)


class Agent:
    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        self.waiting: dict[str, tuple[threading.Event, dict[str, Any]]] = {}
        self.asked = 0

    # Requests

    def listen(self) -> None:
        for line in sys.stdin:
            message = json.loads(line)
            if "method" not in message:
                event, answer = self.waiting.pop(message["id"])
                answer.update(message)
                event.set()
            elif message["method"] == "session/prompt":
                threading.Thread(target=self.answer, args=(message,), daemon=True).start()
            else:
                self.answer(message)

    def answer(self, message: dict[str, Any]) -> None:
        method, params = message["method"], message.get("params") or {}
        after: list[Any] = []
        try:
            if (asked := getattr(self, method.replace("/", "_"), None)) is None:
                raise Wrong(-32601, f"Method not found: {method}", None)
            result = asked(params, after)
        except Wrong as wrong:
            code, text, data = wrong.args
            send({"id": message["id"], "error": {"code": code, "message": text, **({"data": data} if data else {})}})
        except Exception as error:  # report an invalid script instead of hanging
            sys.stderr.write(f"{error!r}\n")
            sys.stderr.flush()
            os._exit(70)
        else:
            if "id" in message:
                send({"id": message["id"], "result": result}, *(one for one in after if isinstance(one, dict)))
        for late in after:
            if callable(late):
                time.sleep(0.05)
                late()

    def initialize(self, params: dict[str, Any], _: Any) -> dict[str, Any]:
        note("greeted", capabilities=params["clientCapabilities"], environ=dict(os.environ), cwd=os.getcwd())
        can = {word: {} for word in ("resume", "close") if word in WORDS}
        return {"protocolVersion": 1, "agentCapabilities": {"loadSession": "load" in WORDS, "sessionCapabilities": can}}

    def authenticate(self, params: dict[str, Any], _: Any) -> dict[str, Any]:
        note("authenticated", method=params["methodId"])
        return {}

    def session_new(self, params: dict[str, Any], _: Any) -> dict[str, Any]:
        session = Session(uuid.uuid4().hex, params["cwd"])
        self.sessions[session.known] = session
        session.keep()
        note("new", session=session.known, cwd=params["cwd"], meta=params.get("_meta"))
        return {"sessionId": session.known, **modes()}

    def session_load(self, params: dict[str, Any], after: list[Any]) -> dict[str, Any]:
        if "load" not in WORDS:
            raise Wrong(-32601, "Method not found", None)
        session = self._open(params)
        if "minute" in WORDS and os.path.getmtime(session.path) // 60 == time.time() // 60:
            raise Wrong(-32603, "Internal error", {"details": "No previous sessions found for this project."})
        note("loaded", session=session.known)
        replay = [functools.partial(session.say, prompt, "user_message_chunk") for prompt in session.prompts]
        replay.append(lambda: session.update("tool_call", toolCallId="old", title="an old call", kind="read", status="completed"))
        replay.append(lambda: session.say("an old answer", messageId="old"))
        half = len(replay) // 2 if "late" in WORDS else len(replay)
        for one in replay[:half]:
            one()
        after += replay[half:]
        return modes()

    def session_resume(self, params: dict[str, Any], _: Any) -> dict[str, Any]:
        if "resume" not in WORDS:
            raise Wrong(-32601, "Method not found", None)
        note("resumed", session=self._open(params).known)
        return modes()

    def _open(self, params: dict[str, Any]) -> Session:
        session = Session(params["sessionId"], params["cwd"])
        try:
            with open(session.path) as file:
                kept = json.load(file)
        except FileNotFoundError:
            raise Wrong(-32002, "Resource not found", f"Session not found: {session.known}") from None
        session.prompts, session.todo = kept["prompts"], kept["todo"]
        self.sessions[session.known] = session
        return session

    def session_set_mode(self, params: dict[str, Any], _: Any) -> dict[str, Any]:
        note("mode", mode=params["modeId"])
        return {}

    def session_set_model(self, params: dict[str, Any], _: Any) -> dict[str, Any]:
        note("model", model=params["modelId"])
        return {}

    def session_close(self, params: dict[str, Any], _: Any) -> dict[str, Any]:
        if "close" not in WORDS:
            raise Wrong(-32601, "Method not found", None)
        note("closed")
        return {}

    def session_cancel(self, params: dict[str, Any], _: Any) -> None:
        note("cancelled")
        session = self.sessions[params["sessionId"]]
        session.cancelled.set()
        if "stubborn" not in WORDS:
            for event, _answer in self.waiting.values():
                event.set()

    # Turns

    def session_prompt(self, params: dict[str, Any], after: list[Any]) -> dict[str, Any]:
        session = self.sessions[params["sessionId"]]
        text = "".join(block["text"] for block in params["prompt"])
        note("prompted", text=text)
        if "[[script: " in text:
            session.todo, _ = json.JSONDecoder().raw_decode(text.rpartition("[[script: ")[2])
        elif text.startswith("The user rejected this") and session.todo and "ask" in session.todo[0]:
            session.todo = session.todo[1:]
        session.prompts.append(text)
        session.cancelled.clear()
        session.keep()
        result: dict[str, Any] = {"stopReason": "end_turn", "usage": USAGE}
        while session.todo and not session.cancelled.is_set():
            step = session.todo[0]
            ending = self.step(session, step, after)
            if session.cancelled.is_set():
                break
            session.todo = session.todo[1:]
            session.keep()
            if ending is not None:
                return ending
        return {**result, "stopReason": "cancelled"} if session.cancelled.is_set() else result

    def step(self, session: Session, step: dict[str, Any], after: list[Any]) -> dict[str, Any] | None:
        """Execute one step. Returns the answer of the turn if the step ends it."""
        (verb, given), *more = step.items()
        about = dict(more)
        match verb:
            case "say":
                session.say(given, **about)
            case "late":
                update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": given}}
                after.append({"method": "session/update", "params": {"sessionId": session.known, "update": update}})
            case "recall":
                session.say(f"I was told {len(session.prompts) - 1} things before: {' | '.join(session.prompts[:-1])}")
            case "update":
                session.update(given, **about)
            case "tool":
                known = uuid.uuid4().hex
                session.update("tool_call", toolCallId=known, title=given, status="pending", **about)
                session.update("tool_call_update", toolCallId=known, status="completed")
            case "ask":
                return self.ask(session, [{"ask": given, **about}])
            case "asks":
                return self.ask(session, given)
            case "hang":
                note("hangs")
                session.cancelled.wait()
            case "child":
                child = subprocess.Popen(
                    ["sleep", "600"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=given == "own"
                )
                note("child", child=child.pid)
            case "run":
                done = subprocess.run(given, cwd=session.cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL)
                note("ran", code=done.returncode, out=done.stdout, err=done.stderr)
            case "flood":
                session.say("x" * given)
            case "stderr":
                sys.stderr.write(("y" * 1000 + "\n") * given)
                sys.stderr.flush()
            case "raw":
                write(given)
            case "request":
                note("answered", answer=self.request(given, about)[1])
            case "error":
                raise Wrong(given["code"], given["message"], given.get("data"))
            case "end":
                return given
            case "die":
                sys.stderr.write(about.get("words", ""))
                sys.stderr.flush()
                os._exit(given)
        return None

    def ask(self, session: Session, calls: list[dict[str, Any]]) -> dict[str, Any] | None:
        """Request permission for all calls at once, and execute the allowed ones. `no` says how a rejection affects the turn."""
        requests = []
        for call in calls:
            tool = {"toolCallId": uuid.uuid4().hex, "status": "pending", **call["ask"]}
            if call.get("announced", True):
                session.update("tool_call", **{**tool, "rawInput": {}})
            params = {"sessionId": session.known, "toolCall": tool, "options": call.get("options", OPTIONS)}
            requests.append((call, tool, *self.send_request("session/request_permission", params)))
        for call, tool, event, answer in requests:
            event.wait()
            outcome = (answer.get("result") or {}).get("outcome") or {}
            note("outcome", title=tool.get("title"), **outcome)
            if session.cancelled.is_set():
                return {"stopReason": "cancelled", "usage": USAGE}
            kinds = {option["optionId"]: option["kind"] for option in call.get("options", OPTIONS)}
            if kinds.get(outcome.get("optionId", ""), "").startswith("allow"):
                if "do" in call:
                    subprocess.run(call["do"], shell=True, cwd=session.cwd)
                session.update("tool_call_update", toolCallId=tool["toolCallId"], status="completed")
                continue
            if call.get("no") != "cancels":
                session.update("tool_call_update", toolCallId=tool["toolCallId"], status="failed")
            match call.get("no"):
                case "ends":
                    return {"stopReason": "end_turn", "usage": USAGE}
                case "cancels":
                    return {"stopReason": "cancelled", "usage": USAGE}
        return None

    def send_request(self, method: str, params: dict[str, Any]) -> tuple[threading.Event, dict[str, Any]]:
        self.asked += 1
        known = f"q{self.asked}"
        event, answer = self.waiting[known] = threading.Event(), {}
        send({"id": known, "method": method, "params": params})
        return event, answer

    def request(self, method: str, params: dict[str, Any]) -> tuple[threading.Event, dict[str, Any]]:
        event, answer = self.send_request(method, params)
        event.wait()
        return event, answer


def modes() -> dict[str, Any]:
    if not MODE:
        return {}
    return {"modes": {"currentModeId": MODE, "availableModes": [{"id": name, "name": name} for name in ("ask", "auto")]}}


def main() -> None:
    if "deaf" in WORDS:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    agent = Agent()
    agent.listen()
    note("hung up")
    while "stays" in WORDS:
        time.sleep(600)
    for session in agent.sessions.values():
        session.keep(leaving=True)
    note("left")


if __name__ == "__main__":
    main()
