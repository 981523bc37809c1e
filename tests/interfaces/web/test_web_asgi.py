"""Routes and answers: what the web interface has in the place of a web framework."""

import asyncio
from collections.abc import AsyncGenerator, Generator
from typing import Any

import pytest

from backburner.interfaces.web.asgi import Request, Response, Routes


def endpoint(name: str) -> Any:
    async def named(request: Request) -> Response:
        return Response(200, name.encode())

    named.__name__ = name
    return named


ROUTES = Routes(
    [
        ("GET", "/tasks/{id}", endpoint("one")),
        ("GET", "/tasks/all", endpoint("all")),
        ("POST", "/tasks/{id}/cancel", endpoint("cancel")),
        ("GET", "/runs/{id}/files/{name:path}", endpoint("file")),
        ("GET", "/", endpoint("root")),
    ]
)


@pytest.mark.parametrize(
    ("method", "path", "name", "values"),
    [
        ("GET", "/", "root", {}),
        ("GET", "/tasks/7", "one", {"id": "7"}),
        ("HEAD", "/tasks/7", "one", {"id": "7"}),
        ("GET", "/tasks/all", "all", {}),
        ("POST", "/tasks/7/cancel", "cancel", {"id": "7"}),
        ("GET", "/runs/7/files/a/b.txt", "file", {"id": "7", "name": "a/b.txt"}),
    ],
)
def test_a_path_leads_to_its_endpoint(method: str, path: str, name: str, values: dict[str, str]) -> None:
    found = ROUTES.find(method, path)
    assert found and (found[0].__name__, found[1]) == (name, values)  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", ["", "/tasks", "/tasks/", "/tasks/7/", "//", "/runs/7/files/", "/tasks//cancel", "/tasks/{id}/x"])
def test_other_paths_lead_nowhere(path: str) -> None:
    assert ROUTES.find("GET", path) is None and not ROUTES.has(path)


def test_a_path_may_be_used_with_another_method() -> None:
    assert ROUTES.find("GET", "/tasks/7/cancel") is None and ROUTES.has("/tasks/7/cancel")


class Client:
    """What an answer was sent to. `leave` ends the connection."""

    def __init__(self, *, reads: bool = True) -> None:
        self.reads, self.sent, self.left, self.received = reads, list[Any](), asyncio.Event(), asyncio.Event()

    async def receive(self) -> Any:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)
        self.received.set()
        if not self.reads and message["type"] == "http.response.body":
            await asyncio.Event().wait()

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


def test_pieces_are_sent_one_after_the_other_also_empty_ones() -> None:
    def pieces() -> Generator[bytes]:
        yield from (b"one", b"", b"two")

    async def main() -> Client:
        client = Client()
        await Response(200, pieces()).send(client.receive, client.send)
        return client

    client = asyncio.run(main())
    assert client.body == b"onetwo" and not client.sent[-1].get("more_body")


def test_a_stream_ends_when_its_client_leaves() -> None:
    closed = []

    async def endless() -> AsyncGenerator[bytes]:
        try:
            yield b"hello"
            await asyncio.Event().wait()
        finally:
            closed.append(True)

    async def main() -> Client:
        client = Client()
        sending = asyncio.create_task(Response(200, endless()).send(client.receive, client.send))
        await client.received.wait()
        client.left.set()
        await sending
        return client

    assert asyncio.run(main()).sent[0]["status"] == 200 and closed == [True]


def test_a_client_that_does_not_read_is_dropped() -> None:
    async def endless() -> AsyncGenerator[bytes]:
        while True:
            yield b"more"

    async def main() -> Client:
        client = Client(reads=False)
        await Response(200, endless(), send_timeout=0.01).send(client.receive, client.send)
        return client

    assert asyncio.run(main()).body == b"more"


def test_an_error_in_a_stream_is_raised() -> None:
    async def broken() -> AsyncGenerator[bytes]:
        yield b"one"
        raise ValueError("broken")

    async def main() -> None:
        client = Client()
        await Response(200, broken()).send(client.receive, client.send)

    with pytest.raises(ValueError, match="broken"):
        asyncio.run(main())


def test_a_body_that_is_too_long_is_not_read_to_its_end() -> None:
    async def main() -> bytes | None:
        async def receive() -> Any:
            return {"type": "http.request", "body": b"x" * 100, "more_body": True}

        request = Request({"headers": [], "query_string": b"a=1&a=%C3%A9&b="}, receive, {})
        assert request.query == [("a", "1"), ("a", "é"), ("b", "")]
        return await request.body(1000)

    assert asyncio.run(main()) is None
