"""A fake of the GitHub REST API on loopback, as far as the source uses it: pages, ETags, rate limits, and failures on demand."""

import asyncio
import hashlib
import json
from collections import deque
from typing import NamedTuple, Self
from urllib.parse import parse_qsl, urlsplit

REPO = "owner/name"


class RecordedRequest(NamedTuple):
    """A request and the status of its response."""

    path: str
    query: dict[str, str]
    headers: dict[str, str]
    status: int

    @property
    def page(self) -> str:
        return f"{self.path.rpartition('/')[2]}{self.query.get('page', '')}:{self.status}"


class Reply(NamedTuple):
    """A response. Status 0 means that the connection is closed without a response."""

    status: int
    headers: dict[str, str] = {}
    body: bytes = b'{"message": "no"}'


class FakeGitHub:
    """A repository and its server. Each of `replies` is returned once, for the first path that contains its key."""

    def __init__(self) -> None:
        self.events: list[dict[str, object]] = []
        self.runs: list[dict[str, object]] = []
        self.pulls: list[dict[str, object]] = []
        self.requests: list[RecordedRequest] = []
        self.replies: deque[tuple[str, Reply]] = deque()
        self.extra: dict[str, str] = {}  # headers of every response
        self.per_page: int | None = None
        self.token: str | None = None
        self.moved = False  # the repository was renamed
        self._count = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    def fail(self, status: int, times: int = 1, path: str = "", body: bytes = b"{}", **headers: str) -> None:
        """Answer the next requests with this response. Header names are written with `_`, as in `Retry_After`."""
        reply = Reply(status, {name.replace("_", "-"): value for name, value in headers.items()}, body)
        self.replies.extend([(path, reply)] * times)

    def event(self, kind: str, *, at: str | None = None, login: str = "ann", **payload: object) -> dict[str, object]:
        """Add an event; the newest is the first in the list."""
        self._count += 1
        event = {
            "id": str(10_000_000_000 - self._count),  # ids do not increase: GitHub does not guarantee that
            "type": kind,
            "actor": {"login": login},
            "created_at": at or f"2026-03-01T{self._count // 3600:02}:{self._count // 60 % 60:02}:{self._count % 60:02}Z",
            "payload": payload,
        }
        self.events.insert(0, event)
        return event

    def push(self, branch: str = "main") -> dict[str, object]:
        return self.event("PushEvent", ref=f"refs/heads/{branch}", head="abc123", before="000")

    def run(self, number: int, at: str, conclusion: str = "success", attempt: int = 1, branch: str = "main") -> dict[str, object]:
        """Add a completed Actions run. As on GitHub, runs are sorted by their start."""
        run: dict[str, object] = {
            "id": number,
            "run_number": number,
            "run_attempt": attempt,
            "name": "tests",
            "display_title": f"run {number}",
            "head_branch": branch,
            "conclusion": conclusion,
            "status": "completed",
            "updated_at": at,
            "html_url": f"https://github.com/{REPO}/actions/runs/{number}",
            "actor": {"login": "bot"},
        }
        self.runs = sorted([run, *(other for other in self.runs if other["id"] != number)], key=lambda other: -int(str(other["id"])))
        return run

    def pull(self, number: int, title: str, merged_at: str | None = None) -> dict[str, object]:
        """Add a pull request to the list."""
        page = f"https://github.com/{REPO}/pull/{number}"
        pull: dict[str, object] = {"number": number, "title": title, "html_url": page, "merged_at": merged_at}
        self.pulls.insert(0, pull)
        return pull

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            target = (await reader.readline()).decode().split(" ")[1]
            headers = {}
            while line := (await reader.readline()).decode().strip():
                name, _, value = line.partition(":")
                headers[name.lower()] = value.strip()
            url = urlsplit(target)
            query = dict(parse_qsl(url.query))
            reply = self._reply(url.path, query, headers)
            self.requests.append(RecordedRequest(url.path, query, headers, reply.status))
            if reply.status:
                lines = [f"HTTP/1.1 {reply.status} -", "Connection: close", f"Content-Length: {len(reply.body)}"]
                lines += [f"{name}: {value}" for name, value in {**self.extra, **reply.headers}.items()]
                writer.write("\r\n".join([*lines, "", ""]).encode() + reply.body)
                await writer.drain()
        finally:
            writer.close()

    def _reply(self, path: str, query: dict[str, str], headers: dict[str, str]) -> Reply:
        if self.replies and self.replies[0][0] in path:
            return self.replies.popleft()[1]
        if self.token and headers.get("authorization") != f"Bearer {self.token}":
            return Reply(401)
        if self.moved and path.startswith(f"/repos/{REPO}/"):
            return Reply(301, {"Location": f"{self.url}{path.replace(f'/repos/{REPO}/', '/repositories/1/')}?{_join(query)}"})
        match path.replace("/repositories/1/", f"/repos/{REPO}/").removeprefix(f"/repos/{REPO}/").split("/"):
            case ["events"]:
                return self._list(self.events, query, headers)
            case ["actions", "runs"]:
                assert query["status"] == "completed"
                runs = [run for run in self.runs if query.get("branch") in (None, run.get("head_branch"))]
                return self._list(runs, query, headers, "workflow_runs")
            case ["pulls"]:
                return self._list(self.pulls, query, headers)
            case ["pulls", number]:
                pulls = [pull for pull in self.pulls if str(pull["number"]) == number]
                return Reply(200, {}, json.dumps(pulls[0]).encode()) if pulls else Reply(404)
        return Reply(404)

    def _list(self, items: list[dict[str, object]], query: dict[str, str], headers: dict[str, str], key: str | None = None) -> Reply:
        size = self.per_page or int(query["per_page"])
        start = size * (int(query["page"]) - 1)
        page = items[start : start + size]
        body = json.dumps({"total_count": len(items), key: page} if key else page).encode()
        tags = {"ETag": f'W/"{hashlib.sha256(body).hexdigest()}"'}
        if headers.get("if-none-match") == tags["ETag"]:
            return Reply(304, tags, b"")
        if start + size < len(items):
            tags["Link"] = f'<{self.url}/next>; rel="next", <{self.url}/last>; rel="last"'
        return Reply(200, tags, body)


def _join(query: dict[str, str]) -> str:
    return "&".join(f"{name}={value}" for name, value in query.items())
