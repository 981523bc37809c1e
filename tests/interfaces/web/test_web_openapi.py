"""The OpenAPI description is valid, complete, and true."""

from collections.abc import AsyncIterator

import pytest_asyncio
from conftest import CONFIG, HomeCli
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator
from web_client import Web, open_web

from backburner.core.version import VERSION
from backburner.interfaces.cli.parsers import VERBS
from backburner.interfaces.web.openapi import describe
from backburner.interfaces.web.operations import BASE, OPERATIONS, Who

# The commands that have no operation, and why.
WITHOUT_OPERATION = {
    "at a terminal only": {"chat", "top", "completion", "install", "setup", "service", "serve", "web", "mcp", "trust", "apply"},
    "of the machine's owner": {"backup", "restore", "export", "compact", "migrate", "join", "worker", "hosts"},
    "for agents": {"brief"},
    "waits, which a stream does": {"wait"},
    "comes with the second half": {"add", "propose", "edit", "traces"},
}
NAMES = {
    "run": "/tasks",
    "ask": "/tasks",
    "list": "/tasks",
    "status": "/tasks/{id}",
    "logs": "/runs/{id}/log",
    "batch": "/batches",
    "clear": "/tasks/clear",
    "fetch": "/runs/{id}/artifacts/{name}",
}


@pytest_asyncio.fixture
async def web(home_cli: HomeCli) -> AsyncIterator[Web]:
    home_cli.configure(CONFIG)
    async with open_web(home_cli.home, home_cli.environ) as web:
        yield web


def test_the_description_is_valid_openapi() -> None:
    described = describe(OPERATIONS, BASE, VERSION)
    OpenAPIV31SpecValidator(described).validate()
    assert sum(len(path) for path in described["paths"].values()) == len(OPERATIONS)
    assert len({operation.name for operation in OPERATIONS}) == len(OPERATIONS)


def test_every_operation_says_what_it_does() -> None:
    assert all(operation.summary.endswith((".", ":")) or operation.summary for operation in OPERATIONS)


def test_every_command_has_an_operation_or_a_reason_why_not() -> None:
    paths = {operation.path for operation in OPERATIONS}
    without = set().union(*WITHOUT_OPERATION.values())
    for verb in VERBS:
        candidates = {NAMES.get(verb, ""), f"/{verb}", f"/tasks/{{id}}/{verb}"}
        assert (verb in without) != bool(candidates & paths), verb


async def test_the_description_is_served_and_answers_are_as_it_says(web: Web, home_cli: HomeCli) -> None:
    task_id = str(home_cli.finish("echo", "hello")["task_id"])
    described = (await web.token.get("/api/openapi.json")).json()
    assert (await web.nobody.get("/api/openapi.json")).status_code == 401
    for operation in OPERATIONS:
        if (
            operation.method != "GET"
            or operation.who is Who.OPEN
            or operation.path in ("/stream", "/tasks/{id}/diff")
            or operation.answers in (str, bytes)
        ):
            continue
        query = {"q": "hello"} if operation.path.endswith("/search") else {}
        answer = (await web.token.get(operation.path.replace("{id}", task_id), **query)).json()
        content = described["paths"][BASE + operation.path]["get"]["responses"]["200"]["content"]
        schema = {**content["application/json"]["schema"], "components": described["components"]}
        errors = [f"{error.json_path}: {error.message}" for error in Draft202012Validator(schema).iter_errors(answer)]
        assert errors == [], operation.name
