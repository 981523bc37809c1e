"""Imitates `opencode serve`: its HTTP interface and its quirks. The prompt contains the script of what its model does.

    [[script: [{"tool": "bash", "args": {"command": "ls"}}, {"say": "done"}]]]

The current step is the number of non-empty messages after the newest scripted prompt. A step may have `say`, `tool` with `args` or several
of them in `tools`, `tokens`, `cost`, `finish`, `until` (a file that must exist first), `slow` (seconds before the session is busy), `error`
(an HTTP status of its provider), and `retry` (how often its provider fails first). The first step may also have `lose` and `drop` (how
often the prompt is stored but ignored, or not stored at all). Tools are bash, which really runs, read, write, webfetch, question and task;
any other name is treated as a tool of an MCP server.

Sessions are files below XDG_DATA_HOME and survive the server; a turn does not. `journal.jsonl` beside them records the requests.
`knobs.json` is read at every use and may have:

- `cut`: a number; event streams that were opened with another number are closed
- `deaf`: no event stream is opened
- `mute`: types of events that are not sent
- `twice`: each event is sent twice
- `status`: with `busy`, every session is always busy
- `refuse`: connections are closed without an answer
- `hold`: requests to a path with this ending are not answered
- `boot`: seconds in which requests are dropped
- `rules`: the permissions in the server's own settings
"""

import base64
import contextlib
import fnmatch
import itertools
import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

Json = dict[str, Any]
DATA = Path(os.environ.get("XDG_DATA_HOME") or Path(os.environ["HOME"]) / ".local" / "share") / "opencode"
OPENING = "[[script:"
_TICK = 0.01
_LATE_SECONDS = 0.25  # between the first idle after an error and the error itself
_START_SECONDS = 0.1  # between a prompt and a busy session
_RETRY_SECONDS = 0.05
_NEVER_LISTED = ("webfetch",)  # GET /permission answers 400 while one of these is pending
_REJECTED = "The user rejected permission to use this specific tool call"


class Aborted(Exception):
    """The turn must end now."""


class Stopped(Exception):
    """A request was rejected without a message: the turn ends after this step."""


class Refused(Exception):
    """The tool ends with an error, and the turn continues."""


class Missing(Exception):
    """The object does not exist (404)."""


def knob(name: str, otherwise: Any = None) -> Any:
    try:
        return json.loads((DATA / "knobs.json").read_text()).get(name, otherwise)
    except (OSError, ValueError):
        return otherwise


def journal(**about: Any) -> None:
    line = json.dumps({"pid": os.getpid(), "at": time.time(), **about}) + "\n"
    descriptor = os.open(DATA / "journal.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(descriptor, line.encode())
    os.close(descriptor)


def script_in(text: str) -> list[Json] | None:
    """The last script in a text."""
    start = text.rfind(OPENING)
    return json.JSONDecoder().raw_decode(text[start + len(OPENING) :].lstrip())[0] if start >= 0 else None


class Turn:
    """A running turn of a session. It ends with the server."""

    def __init__(self) -> None:
        self.abort, self.over = threading.Event(), threading.Event()
        self.retrying = False

    def wait(self, until: Callable[[], object] = lambda: False, seconds: float = 3600.0) -> None:
        deadline = time.monotonic() + seconds
        while not until() and time.monotonic() < deadline:
            if self.abort.wait(_TICK):
                raise Aborted


class Session:
    """A conversation, saved at every change."""

    def __init__(self, about: Json) -> None:
        self.info, self.messages = about["info"], about["messages"]
        self.silent: set[str] = set(about["silent"])  # user messages that need no answer
        self.turn: Turn | None = None
        self.lost_until = 0.0
        self.times: Counter[str] = Counter()

    @property
    def id(self) -> str:
        return self.info["id"]

    @property
    def directory(self) -> str:
        return self.info["directory"]

    def save(self) -> None:
        path = DATA / "sessions" / f"{self.id}.json"
        text = json.dumps({"info": self.info, "messages": self.messages, "silent": sorted(self.silent)})
        other = path.with_name(f"{self.id}.{threading.get_ident()}.new")
        other.write_text(text)
        other.replace(path)

    def message(self, known: str) -> Json | None:
        return next((one for one in self.messages if one["info"]["id"] == known), None)

    def add(self, role: str, known: str = "", **about: Any) -> Json:
        created = max(int(time.time() * 1000), *(one["info"]["time"]["created"] + 1 for one in self.messages), 0)
        info = {"id": known or f"msg_{uuid.uuid4().hex}", "sessionID": self.id, "role": role, "time": {"created": created}, **about}
        self.messages.append({"info": info, "parts": []})
        return self.messages[-1]

    @property
    def unanswered(self) -> Json | None:
        """The user message that the next turn would answer."""
        asked = [n for n, one in enumerate(self.messages) if one["info"]["role"] == "user" and one["info"]["id"] not in self.silent]
        if not asked:
            return None
        after = [one["info"] for one in self.messages[asked[-1] :] if one["info"]["role"] == "assistant"]
        done = after and after[-1]["time"].get("completed") and after[-1].get("finish") != "tool-calls"
        return None if done else self.messages[asked[-1]]

    def step(self) -> Json:
        """The current step of the script."""
        for n in range(len(self.messages) - 1, -1, -1):
            one = self.messages[n]
            text = "\n".join(part.get("text", "") for part in one["parts"]) if one["info"]["role"] == "user" else ""
            if (script := script_in(text)) is not None:
                said = sum(bool(other["parts"]) for other in self.messages[n:] if other["info"]["role"] == "assistant")
                return script[said] if said < len(script) else {"say": "the script is at its end"}
        return {"say": "there is no script"}


class Server:
    """All sessions, event listeners and pending requests."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.sessions: dict[str, Session] = {}
        self.statuses: dict[str, Json] = {}
        self.listeners: list[queue.Queue[Json]] = []
        self.pending: dict[str, Json] = {}
        self.numbers = itertools.count()

    # Sessions

    def find(self, known: str) -> Session:
        with self.lock:
            path = DATA / "sessions" / f"{known}.json"
            if not path.exists() and known not in self.statuses:
                raise Missing(f"Session not found: {known}")
            if known not in self.sessions:
                self.sessions[known] = Session(json.loads(path.read_text()))
            return self.sessions[known]

    def make(self, body: Json, directory: str) -> Json:
        known = f"ses_{uuid.uuid4().hex[:24]}"
        info = {"id": known, "directory": directory, "permission": [], **body, "time": {"created": int(time.time() * 1000)}}
        session = Session({"info": info, "messages": [], "silent": []})
        with self.lock:
            self.sessions[known] = session
            session.save()
        self.emit(session, "session.created", info=info)
        return info

    def delete(self, session: Session) -> bool:
        (DATA / "sessions" / f"{session.id}.json").unlink()
        self.emit(session, "session.deleted", info=session.info)
        return True

    # Events

    def emit(self, session: Session, kind: str, **about: Any) -> None:
        if kind in knob("mute", []):
            return
        properties = about if kind in ("session.created", "session.deleted") else {"sessionID": session.id, **about}
        payload = {"id": f"evt_{uuid.uuid4().hex}", "type": kind, "properties": properties}
        around = {"directory": session.directory, "project": "global"}
        data = {"sessionID": session.id, **about}
        sync = {"id": payload["id"], "type": f"{kind}.1", "seq": next(self.numbers), "aggregateID": session.id, "data": data}
        text = json.loads(json.dumps([{**around, "payload": payload}, {**around, "payload": {"type": "sync", "syncEvent": sync}}]))
        with self.lock:
            for listener in self.listeners:
                for _ in range(2 if knob("twice") else 1):
                    for event in text if kind.startswith("message.") else text[:1]:
                        listener.put(event)

    def status(self, session: Session, status: Json) -> None:
        with self.lock:
            if status["type"] == "idle":
                self.statuses.pop(session.id, None)
            else:
                self.statuses[session.id] = status
        self.emit(session, "session.status", status=status)

    def idle(self, session: Session) -> None:
        self.status(session, {"type": "idle"})
        self.emit(session, "session.idle")

    # Prompts

    def prompt(self, session: Session, body: Json) -> Json:
        known = body.get("messageID") or f"msg_{uuid.uuid4().hex}"
        with self.lock:
            session.times[known] += 1
            first = (script_in("\n".join(part.get("text", "") for part in body["parts"])) or [{}])[0]
            if session.times[known] <= first.get("drop", 0):
                return {}
            message = session.message(known) or session.add("user", known)
            for part in body["parts"]:
                part = {"id": f"prt_{uuid.uuid4().hex}", **part, "sessionID": session.id, "messageID": known}
                message["parts"] = [*(one for one in message["parts"] if one["id"] != part["id"]), part]
            if body.get("tools"):  # they replace the session rules
                session.info["permission"] = [{"permission": name, "pattern": "*", "action": "deny"} for name in body["tools"]]
            if body.get("noReply"):
                session.silent.add(known)
            session.save()
            self.emit(session, "message.updated", info=message["info"])
            for part in message["parts"]:
                self.emit(session, "message.part.updated", part=part)
            lost = time.monotonic() < session.lost_until or session.times[known] <= first.get("lose", 0)
            if not body.get("noReply") and session.turn is None and not lost:
                session.turn = Turn()
                threading.Thread(target=self.turn, args=(session, session.turn), daemon=True).start()
        return message

    def turn(self, session: Session, turn: Turn) -> None:
        late: Callable[[], None] | None = None
        try:
            turn.wait(seconds=max(_START_SECONDS, session.step().get("slow", 0)))
            self.status(session, {"type": "busy"})
            while True:
                with self.lock:
                    if session.unanswered is None:
                        session.turn = None
                        break
                late = self.act(session, turn)
                if late:
                    break
        except Stopped:
            pass
        except Aborted:
            last = session.messages[-1]["info"] if session.messages else {}
            if last.get("role") == "assistant":
                last["time"]["completed"] = int(time.time() * 1000)
                if not turn.retrying:
                    last["error"] = {"name": "MessageAbortedError", "data": {"message": "Aborted"}}
                    self.emit(session, "session.error", error=last["error"])
                session.save()
                self.emit(session, "message.updated", info=last)
        with self.lock:
            if session.turn is turn:
                session.turn = None
            if late:
                session.lost_until = time.monotonic() + _LATE_SECONDS
        turn.over.set()
        self.idle(session)
        if late:
            time.sleep(_LATE_SECONDS)
            late()
            self.idle(session)

    def act(self, session: Session, turn: Turn) -> Callable[[], None] | None:
        """Create one assistant message. If the provider failed, returns a function that stores the error later."""
        step = session.step()
        with self.lock:
            parent = [one["info"]["id"] for one in session.messages if one["info"]["role"] == "user"][-1]
            message = session.add("assistant", parentID=parent, agent="build", mode="build", cost=0)
            session.save()
        info = message["info"]
        self.emit(session, "message.updated", info=info)
        if "until" in step:
            turn.wait(Path(step["until"]).exists)
        for attempt in range(1, step.get("retry", 0) + 1):
            turn.retrying = True
            about = {"attempt": attempt, "message": "the provider is overloaded", "next": int(time.time() * 1000) + 2000}
            self.status(session, {"type": "retry", **about})
            turn.wait(seconds=_RETRY_SECONDS)
            self.status(session, {"type": "busy"})
        turn.retrying = False
        if code := step.get("error"):
            about = {"message": f"scripted error {code}", "statusCode": code, "isRetryable": False}
            error = {"name": "APIError", "data": about}
            self.emit(session, "session.error", error=error)

            def late() -> None:
                with self.lock:
                    info["error"], info["time"]["completed"] = error, int(time.time() * 1000)
                    session.save()
                self.emit(session, "message.updated", info=info)

            return late
        calls = step.get("tools") or ([step] if "tool" in step else [])
        self.part(session, message, type="step-start")
        if "say" in step:
            self.part(session, message, type="text", text=step["say"])
        threads, stopped = [], []
        for call in calls:
            threads.append(threading.Thread(target=self.call, args=(session, turn, message, call, stopped), daemon=True))
            threads[-1].start()
        for thread in threads:
            thread.join()
        if any(isinstance(one, Aborted) for one in stopped):
            raise Aborted
        total = step.get("tokens", 2)
        tokens = {"total": total, "input": total - 1, "output": 1, "reasoning": 0, "cache": {"read": 0, "write": 0}}
        cost = step.get("cost", 0.003)
        finish = step.get("finish", "tool-calls" if calls else "stop")
        self.part(session, message, type="step-finish", reason=finish, tokens=tokens, cost=cost)
        with self.lock:
            info |= {"tokens": tokens, "cost": cost, "finish": finish}
            self.emit(session, "message.updated", info=info)
            info["time"]["completed"] = int(time.time() * 1000)
            session.save()
            self.emit(session, "message.updated", info=info)
        self.status(session, {"type": "busy"})
        if stopped:
            raise Stopped
        return None

    def part(self, session: Session, message: Json, known: str = "", **about: Any) -> Json:
        with self.lock:
            part = next((one for one in message["parts"] if one["id"] == known), None)
            if part is None:
                part = {"id": f"prt_{uuid.uuid4().hex}", "sessionID": session.id, "messageID": message["info"]["id"]}
                message["parts"].append(part)
            part |= about
            session.save()
            self.emit(session, "message.part.updated", part=part)
            return part

    # Tools

    def call(self, session: Session, turn: Turn, message: Json, call: Json, stopped: list[Exception]) -> None:
        name, given, known = call["tool"], call.get("args", {}), f"call_{uuid.uuid4().hex}"
        part = self.part(session, message, type="tool", tool=name, callID=known, state={"status": "pending", "input": {}})

        def state(status: str, **about: Any) -> None:
            self.part(session, message, part["id"], state={"status": status, "input": given, **about})

        state("running")

        def ask(permission: str, patterns: list[str], metadata: Json) -> None:
            tool = {"messageID": message["info"]["id"], "callID": known}
            self.ask(session, turn, permission, patterns, metadata, tool)

        try:
            state("completed", output=self.use(session, turn, name, given, ask))
        except Aborted as aborted:
            stopped.append(aborted)

            def late() -> None:
                turn.over.wait(10)
                state("completed", output="User aborted the command")

            threading.Thread(target=late, daemon=True).start()
        except Stopped as no:
            stopped.append(no)
            state("error", error=f"{no or _REJECTED}")
        except Refused as refused:
            state("error", error=str(refused))

    def use(self, session: Session, turn: Turn, name: str, given: Json, ask: Callable[[str, list[str], Json], None]) -> str:
        path = os.path.join(session.directory, str(given.get("filePath", "")))
        if "filePath" in given and os.path.commonpath([path, session.directory]) != session.directory:
            parent = os.path.dirname(path)
            ask("external_directory", [f"{parent}/*"], {"filepath": path, "parentDir": parent})
        match name:
            case "bash":
                if (folder := given.get("workdir", session.directory)) != session.directory:
                    ask("external_directory", [f"{folder}/*"], {"filepath": folder, "parentDir": folder})
                ask("bash", [given["command"]], {"command": given["command"]})
                return self.bash(session, turn, given)
            case "read":
                ask("read", [path.lstrip("/")], {})
                return Path(path).read_text()
            case "write":
                ask("edit", [path.lstrip("/")], {"filepath": path, "diff": f"--- {path}\n+++ {path}\n+{given['content']}\n"})
                Path(path).write_text(given["content"])
                return "Wrote file successfully."
            case "webfetch":
                ask("webfetch", [given["url"]], {"url": given["url"], "format": "text"})
                return "a page"
            case "question":
                if not given.get("anyway"):
                    ask("question", ["*"], {})
                self.pend(session, turn, "question", {"questions": [{"question": given["question"], "header": "?", "options": []}]})
                return "answered"
            case _:
                ask(name, ["*"], {})
                return f"{name} was used"

    def bash(self, session: Session, turn: Turn, given: Json) -> str:
        with subprocess.Popen(
            ["/bin/sh", "-c", given["command"]],
            cwd=given.get("workdir") or session.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        ) as child:
            journal(ran=given["command"], child=child.pid, session=session.id)
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return child.communicate(timeout=_TICK)[0] or "(no output)"
                if turn.abort.is_set():
                    os.killpg(child.pid, signal.SIGKILL)
                    child.communicate()
                    raise Aborted

    # Permissions and questions

    def ask(self, session: Session, turn: Turn, permission: str, patterns: list[str], metadata: Json, tool: Json) -> None:
        rules = [*knob("rules", [{"permission": "*", "pattern": "*", "action": "allow"}]), *session.info["permission"]]
        action = "ask"
        for rule in rules:
            if fnmatch.fnmatchcase(permission, rule["permission"]) and all(fnmatch.fnmatchcase(one, rule["pattern"]) for one in patterns):
                action = rule["action"]
        if action == "deny":
            raise Refused("The user has specified a rule which prevents you from using this specific tool call.")
        if action == "ask":
            about = {"permission": permission, "patterns": patterns, "metadata": metadata, "always": ["*"], "tool": tool}
            self.pend(session, turn, "permission", about)

    def pend(self, session: Session, turn: Turn, kind: str, about: Json) -> None:
        """Add a request and wait for the answer. A request from before an abort stays listed."""
        known = f"{kind[:3]}_{uuid.uuid4().hex}"
        asked = {"id": known, "sessionID": session.id, **about}
        waiting: Json = {"kind": kind, "asked": asked, "directory": session.directory, "answer": None}
        with self.lock:
            self.pending[known] = waiting
        self.emit(session, f"{kind}.asked", **{name: value for name, value in asked.items() if name != "sessionID"})
        turn.wait(lambda: waiting["answer"])
        self.emit(session, f"{kind}.{'replied' if kind == 'permission' else 'rejected'}", requestID=known)
        answer = waiting["answer"]
        if kind == "question":
            raise Stopped("The user dismissed this question")
        if answer["reply"] == "reject" and answer.get("message"):
            raise Refused(f"{_REJECTED} with the following feedback: {answer['message']}")
        if answer["reply"] == "reject":
            raise Stopped

    def reply(self, kind: str, known: str, directory: str, answer: Json) -> bool:
        with self.lock:
            found = self.pending.get(known)
            if found is None or found["kind"] != kind or found["directory"] != directory:
                raise Missing(f"{kind} request not found: {known}")
            session = found["asked"]["sessionID"]
            others = [one for one, waiting in self.pending.items() if waiting["asked"]["sessionID"] == session and one != known]
            del self.pending[known]
            if kind == "permission" and answer["reply"] == "reject":
                for other in others:
                    self.pending.pop(other)["answer"] = {"reply": "reject"}
            found["answer"] = answer
        return True

    def listed(self, kind: str, directory: str) -> tuple[int, Any]:
        with self.lock:
            found = [one["asked"] for one in self.pending.values() if one["kind"] == kind and one["directory"] == directory]
        if any(one.get("permission") in _NEVER_LISTED for one in found):
            message = 'Expected JSON value, got undefined\n  at [0]["metadata"]["timeout"]'
            return 400, {"name": "BadRequest", "data": {"message": message, "kind": "Body"}}
        return 200, found

    def abort(self, session: Session) -> bool:
        with self.lock:
            turn = session.turn
        if turn:
            turn.abort.set()
            turn.over.wait(10)
        return True


class Handler(BaseHTTPRequestHandler):
    """The routes."""

    protocol_version = "HTTP/1.1"
    server_here: Server

    def log_message(self, *_: object) -> None:
        return

    def do_GET(self) -> None:
        self.serve()

    def do_POST(self) -> None:
        self.serve()

    def do_DELETE(self) -> None:
        self.serve()

    def serve(self) -> None:
        address = urlsplit(self.path)
        directory = parse_qs(address.query).get("directory", [os.getcwd()])[0]
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        if knob("refuse"):
            journal(refused=address.path)
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        if not self.allowed():
            self.send(401, None)
            return
        if address.path == "/global/event":
            self.events()
            return
        try:
            code, answer = self.route(self.command, address.path, body, directory)
        except Missing as missing:
            code, answer = 404, {"name": "NotFoundError", "data": {"message": str(missing)}}
        journal(method=self.command, path=address.path, body=body, directory=directory, status=code)
        while (held := knob("hold")) and self.command == "POST" and address.path.endswith(held):
            time.sleep(_TICK)
        self.send(code, answer)

    def allowed(self) -> bool:
        if not (password := os.environ.get("OPENCODE_SERVER_PASSWORD")):
            return True
        user = os.environ.get("OPENCODE_SERVER_USERNAME") or "opencode"
        return self.headers.get("Authorization") == "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

    def send(self, code: int, answer: Any) -> None:
        data = b"" if code in (204, 401) else json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def route(self, method: str, path: str, body: Json, directory: str) -> tuple[int, Any]:
        here = self.server_here
        match method, *path.strip("/").split("/"):
            case "GET", "global", "health":
                return 200, {"healthy": True, "version": "1.18.33"}
            case "GET", "agent":
                rules = knob("rules", [{"permission": "*", "pattern": "*", "action": "allow"}])
                return 200, [{"name": name, "permission": rules} for name in ("build", "plan")]
            case "POST", "session":
                return 200, here.make(body, directory)
            case "GET", "session", "status":
                with here.lock:
                    known = {one: {"type": "busy"} for one in here.sessions} if knob("status") == "busy" else here.statuses
                    return 200, {one: about for one, about in known.items() if here.find(one).directory == directory}
            case "GET", "session", session:
                return 200, here.find(session).info
            case "DELETE", "session", session:
                return 200, here.delete(here.find(session))
            case "GET", "session", session, "message":
                with here.lock:
                    return 200, json.loads(json.dumps(here.find(session).messages))
            case "POST", "session", session, "message" | "prompt_async" as how:
                if not re.match("msg", body.get("messageID", "msg")):
                    return 400, {"name": "BadRequest", "data": {"message": 'Expected a string starting with "msg"'}}
                message = here.prompt(here.find(session), body)
                return (204, None) if how == "prompt_async" else (200, message)
            case "POST", "session", session, "abort":
                return 200, here.abort(here.find(session))
            case "GET", "permission" | "question" as kind:
                return here.listed(kind, directory)
            case "POST", "permission", known, "reply":
                if body.get("reply") not in ("once", "always", "reject"):
                    return 400, {"name": "BadRequest"}
                return 200, here.reply("permission", known, directory, body)
            case "POST", "question", known, "reject":
                return 200, here.reply("question", known, directory, {"reject": True})
        raise Missing(path)

    def events(self) -> None:
        if knob("deaf"):
            self.send(503, {})
            return
        here, cut = self.server_here, knob("cut", 0)
        mine: queue.Queue[Json] = queue.Queue()
        mine.put({"payload": {"id": "evt_0", "type": "server.connected", "properties": {}}})
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        with here.lock:
            here.listeners.append(mine)
        journal(listens=True)
        beat = time.monotonic()
        try:
            while knob("cut", 0) == cut:
                try:
                    event = mine.get(timeout=0.05)
                except queue.Empty:
                    if time.monotonic() < beat + 10:
                        continue
                    beat, event = time.monotonic(), {"payload": {"type": "server.heartbeat", "properties": {}}}
                self.wfile.write(f"data: {json.dumps(event, separators=(',', ':'))}\n\n".encode())
        except OSError:
            pass
        finally:
            with here.lock:
                here.listeners.remove(mine)


def main(words: list[str]) -> None:
    """`serve --hostname 127.0.0.1 --port N`."""
    assert words[0] == "serve" and words[words.index("--hostname") + 1] == "127.0.0.1", words
    (DATA / "sessions").mkdir(parents=True, exist_ok=True)
    Handler.server_here = Server()
    server = ThreadingHTTPServer(("127.0.0.1", int(words[words.index("--port") + 1])), Handler, bind_and_activate=False)
    server.daemon_threads, server.request_queue_size = True, 128
    server.allow_reuse_address = True
    server.server_bind()
    server.server_activate()
    journal(started=True, key=os.environ.get("FAKE_API_KEY", ""))
    swallowed = []
    deadline = time.monotonic() + knob("boot", 0.1)
    while (left := deadline - time.monotonic()) > 0:
        server.socket.settimeout(left)
        with contextlib.suppress(TimeoutError):
            swallowed.append(server.socket.accept())
    server.socket.settimeout(None)
    if not os.environ.get("OPENCODE_SERVER_PASSWORD"):
        print("Warning: OPENCODE_SERVER_PASSWORD is not set; server is unsecured.", flush=True)
    print(f"opencode server listening on http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
