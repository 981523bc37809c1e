"""Every operation of the API, tried by every kind of caller, from every origin and host: only what the table says is possible."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any, Literal, NotRequired, Required, get_args, get_origin, get_type_hints

import pytest_asyncio
from conftest import CONFIG, HomeCli
from web_client import HOST, Web, open_web

from backburner.interfaces.web.operations import BASE, OPERATIONS, Operation, Who

FOREIGN = ("http://backburner.localhost:8766", "http://localhost:8765", "https://evil.example", "null")
HOSTS = ("evil.example", "evil.example:8765", "backburner.localhost:8766", "192.168.1.5:8765")
STREAMS = ("/stream",)  # it does not end; it has tests of its own


@pytest_asyncio.fixture
async def web(home_cli: HomeCli) -> AsyncIterator[Web]:
    home_cli.configure(CONFIG)
    async with open_web(home_cli.home, home_cli.environ) as web:
        yield web


def path_of(operation: Operation, reference: str) -> str:
    return re.sub(r"\{\w+\}", reference, operation.path)


async def send(web: Web, operation: Operation, reference: str, headers: dict[str, str]) -> int:
    sent = {"host": HOST, **headers}
    content = b"{}" if operation.method != "GET" else None
    if content:
        sent = {"content-type": "application/json", **sent}
    answer = await web.client.request(operation.method, f"{BASE}{path_of(operation, reference)}", headers=sent, content=content)
    if answer.status_code >= 400:
        error = json.loads(answer.content)["error"]
        assert error["code"] and error["message"] and "fields" in error
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"] and answer.headers["cache-control"] == "no-store"
    return answer.status_code


async def test_nobody_and_unknown_credentials_get_401_from_every_operation_but_pairing(web: Web) -> None:
    for operation in OPERATIONS:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Bearer dev_wrong", "origin": f"http://{HOST}"}):
            found = await send(web, operation, "x", headers)
            assert (found == 401) == (operation.who is not Who.OPEN), (operation.name, headers, found)


async def test_no_operation_is_answered_for_pages_of_other_origins_or_other_hosts(web: Web) -> None:
    page = await web.pair()
    for operation in OPERATIONS:
        for credential in (page.credential, "a-token"):
            own = {"authorization": f"Bearer {credential}"}
            for origin in FOREIGN:
                assert await send(web, operation, "x", {**own, "origin": origin}) == 403, (operation.name, origin)
            for site in ("same-site", "cross-site"):
                assert await send(web, operation, "x", {**own, "sec-fetch-site": site}) == 403, (operation.name, site)
            for host in HOSTS:
                assert await send(web, operation, "x", {**own, "host": host}) == 421, (operation.name, host)
        if operation.method != "GET":
            own = {"authorization": f"Bearer {page.credential}"}
            assert await send(web, operation, "x", own) == 403, operation.name  # a page always sends its origin
            form = {**own, "origin": f"http://{HOST}", "content-type": "text/plain"}
            assert await send(web, operation, "x", form) == 415, operation.name


def complete_body(operation: Operation) -> dict[str, object]:
    """A body with every field that the operation takes, so that nothing is refused because something is missing."""

    def example(kind: Any) -> object:
        if get_origin(kind) in (Required, NotRequired):
            return example(get_args(kind)[0])
        if get_origin(kind) is Literal:
            return get_args(kind)[0]
        if get_origin(kind) is list:
            return [example(get_args(kind)[0])]
        return {} if get_origin(kind) is dict else {str: "0" * 64, int: 1, bool: True, dict: {}}[kind]

    return {name: example(kind) for name, kind in get_type_hints(operation.takes or object, include_extras=True).items()}


async def test_a_token_is_refused_by_every_operation_for_people(web: Web, home_cli: HomeCli) -> None:
    task_id = str(home_cli.finish("true")["task_id"])
    for operation in OPERATIONS:
        if operation.who in (Who.DEVICE, Who.PASSKEY):
            path, sent = path_of(operation, task_id), complete_body(operation)
            found = await web.token.post(path, sent) if operation.method == "POST" else await web.token.delete(path)
            assert found.status_code == 403, (operation.name, found.text)


async def test_a_page_without_a_passkey_succeeds_with_no_operation_that_needs_one(web: Web, home_cli: HomeCli) -> None:
    page = await web.pair()
    home_cli.cli("run", "--", "touch", "made")
    (task,) = home_cli.json("list", "proposed")  # type: ignore[misc]
    for operation in OPERATIONS:
        if operation.who is Who.PASSKEY:
            found = await page.post(path_of(operation, str(task["task_id"])), complete_body(operation))  # type: ignore[index, call-overload]
            assert 400 <= found.status_code < 500, (operation.name, found.text)
    assert home_cli.json("list", "proposed") and not (home_cli.cwd / "made").exists()


async def test_a_revoked_page_gets_401_from_every_operation(web: Web) -> None:
    page = await web.pair()
    (device,) = (await page.get("/devices")).json()["items"]
    assert (await page.delete(f"/devices/{device['device_id']}")).status_code == 204
    for operation in OPERATIONS:
        if operation.who is not Who.OPEN:
            own = {"authorization": f"Bearer {page.credential}", "origin": f"http://{HOST}"}
            assert await send(web, operation, "x", own) == 401, operation.name


async def test_every_operation_that_reads_answers_a_token_and_a_page(web: Web, home_cli: HomeCli) -> None:
    task_id, page = str(home_cli.finish("true")["task_id"]), await web.pair()
    for operation in OPERATIONS:
        if operation.who is Who.READ and operation.method == "GET" and operation.path not in STREAMS:
            query = {"q": "x"} if operation.path.endswith("/search") else {}
            for caller in (page, web.token):
                answer = await caller.get(path_of(operation, task_id), **query)
                assert answer.status_code == (404 if operation.path.endswith(("/diff", "{name}")) else 200), (operation.name, answer.text)


def test_only_pairing_is_open_and_approving_needs_a_passkey() -> None:
    assert {operation.path for operation in OPERATIONS if operation.who is Who.OPEN} == {"/pair", "/pair/{id}"}
    approving = [operation for operation in OPERATIONS if "approve" in operation.path or "challenge" in operation.path]
    assert approving and all(operation.who is Who.PASSKEY for operation in approving)


async def test_mcp_needs_the_token_and_the_own_host(web: Web) -> None:
    page = await web.pair()
    assert (await page.post("/mcp")).status_code == 401 and (await web.nobody.post("/mcp")).status_code == 401
    assert (await web.token.post("/mcp", headers={"host": "evil.example"})).status_code == 421
    assert (await web.token.post("/mcp", headers={"origin": "https://evil.example"})).status_code == 403


async def test_the_page_holds_no_data_and_needs_no_credential(web: Web) -> None:
    answer = await web.client.get("/", headers={"host": HOST})
    assert answer.status_code == 200 and "require-trusted-types-for 'script'" in answer.headers["content-security-policy"]
    assert (await web.client.get("/", headers={"host": "evil.example"})).status_code == 421
    assert (await web.client.get("/nothing", headers={"host": HOST})).status_code == 404
    assert (await web.client.get("/_/wrong/app.js", headers={"host": HOST})).status_code == 404
