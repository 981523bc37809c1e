"""An MCP client for tests that only writes and reads lines, so that it can also send invalid messages."""

import json
import os
import select
import subprocess
import sys
import time
from typing import Any

from conftest import HomeCli, wait_until

HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}


class Raw:
    """`with Raw(place) as client: client.call("list_background_tasks")`. `env` adds to the server's environment."""

    def __init__(self, home_cli: HomeCli, *words: str, env: dict[str, str] | None = None, hello: bool = True) -> None:
        command = [sys.executable, "-m", "backburner", "mcp", *words]
        self.process = subprocess.Popen(
            command,
            cwd=home_cli.cwd,
            env={**home_cli.environ, **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        self._place, self._number, self._rest = home_cli, 0, b""
        self.notes: list[dict[str, Any]] = []
        if hello:
            self.request("initialize", HELLO)
            self.write({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def __enter__(self) -> "Raw":
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()
        try:
            self.process.wait(15)
        finally:
            self.process.kill()
            self.errors = self.process.stderr.read() if self.process.stderr else b""
            if self.process.stderr:
                self.process.stderr.close()

    def write(self, message: object) -> None:
        data = message if isinstance(message, bytes) else json.dumps(message).encode()
        assert self.process.stdin is not None
        view = memoryview(data + b"\n")
        while view:
            view = view[os.write(self.process.stdin.fileno(), view) :]

    def read(self, seconds: float = 30.0) -> dict[str, Any]:
        """Return the next message of the server."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + seconds
        while b"\n" not in self._rest:
            left = deadline - time.monotonic()
            assert left > 0 and select.select([self.process.stdout], [], [], left)[0], "the server sent nothing"
            piece = os.read(self.process.stdout.fileno(), 1 << 16)
            assert piece, "the server has exited"
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    def send(self, method: str, params: object = None) -> int:
        self._number += 1
        self.write({"jsonrpc": "2.0", "id": self._number, "method": method, **({"params": params} if params is not None else {})})
        return self._number

    def answer(self, number: int) -> dict[str, Any]:
        """Wait for the response to a request; other messages are kept in `notes`."""
        while (message := self.read()).get("id") != number or "method" in message:
            self.notes.append(message)
        return message

    def request(self, method: str, params: object = None) -> dict[str, Any]:
        return self.answer(self.send(method, params))

    def call(self, tool: str, meta: dict[str, Any] | None = None, **arguments: Any) -> dict[str, Any]:
        """Call a tool; returns its result with `content`, `structuredContent` and `isError`."""
        params = {"name": tool, "arguments": arguments, **({"_meta": meta} if meta else {})}
        done = self.request("tools/call", params)
        assert "result" in done, done
        return done["result"]

    def ended(self, meta: dict[str, Any] | None = None, **more: Any) -> str:
        """Start a task and wait for its end; it ends only after the client has received its ID."""
        gate = self._place.cwd / "gate"
        if not gate.exists():
            os.mkfifo(gate)
        task_id = self.value("start_background_task", meta, command="cat gate", description="Quick", **more)["task_id"]
        gate.write_text("done\n")
        wait_until(lambda: self._place.status(task_id)["status"] == "completed", "the task to end")
        return task_id

    def value(self, tool: str, meta: dict[str, Any] | None = None, **arguments: Any) -> dict[str, Any]:
        """Call a tool that must succeed; returns its structured content."""
        done = self.call(tool, meta, **arguments)
        assert not done.get("isError"), done
        return done["structuredContent"]
