"""Describes the API as OpenAPI 3.1, from the table of operations. Loaded only when the description is asked for."""

import re
import typing
from collections.abc import Sequence
from typing import Any

from backburner.core.json_schema import schema_of
from backburner.interfaces.web.operations import Operation, Who

_ERRORS = {
    400: "The input is not valid.",
    401: "The credential is missing, unknown or revoked.",
    403: "This caller may not do that; the error says what would do.",
    404: "There is no such task, run or path.",
    409: "The state has changed in the meantime, or does not allow this.",
    413: "The request is too large.",
    415: "The body is not JSON.",
    421: "The request is not for this server.",
    422: "A rule denies it.",
    429: "Too many attempts; `Retry-After` says when to try again.",
    503: "The engine or the ledger is not available.",
}
_READ_ERRORS = (400, 401, 403, 404, 409, 421, 429, 503)
WHO = {
    Who.OPEN: "Needs no credential.",
    Who.READ: "For a token or a paired page.",
    Who.ACT: "For a token or a paired page; the gate decides as for every interface.",
    Who.DEVICE: "Only for a paired page.",
    Who.PASSKEY: "Only for a paired page with a passkey.",
}


def describe(operations: Sequence[Operation], base: str, version: str) -> dict[str, Any]:
    """The whole description."""
    components: dict[str, Any] = {"Error": _error_schema()}
    paths: dict[str, Any] = {}
    for operation in operations:
        described = _operation(operation, components)
        paths.setdefault(base + operation.path, {})[operation.method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Backburner",
            "version": version,
            "description": "Background work for AI agents. Send `Authorization: Bearer TOKEN`, with the token in the file `token` of the home.",
        },
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}}},
    }


def _operation(operation: Operation, components: dict[str, Any]) -> dict[str, Any]:
    is_get = operation.method == "GET"
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in re.findall(r"\{(\w+)\}", operation.path)
    ]
    if is_get:
        parameters += _query(operation.takes)
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "description": WHO[operation.who],
        "parameters": parameters,
        "security": [] if operation.who is Who.OPEN else [{"bearer": []}],
        "responses": _responses(operation, components),
        "x-who": str(operation.who),
    }
    if not is_get and operation.takes is not None:
        schema = schema_of(operation.takes, components)
        described["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return described


def _query(takes: type | None) -> list[dict[str, Any]]:
    if takes is None:
        return []
    required = getattr(takes, "__required_keys__", frozenset())
    return [
        {"name": name, "in": "query", "required": name in required, "schema": schema_of(hint)}
        for name, hint in typing.get_type_hints(takes).items()
    ]


def _responses(operation: Operation, components: dict[str, Any]) -> dict[str, Any]:
    success: dict[str, Any] = {"description": "Done."}
    if operation.answers is str:
        kind = "text/event-stream" if operation.path == "/stream" else "text/plain"
        success["content"] = {kind: {"schema": {"type": "string"}}}
    elif operation.answers is bytes:
        success["content"] = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    elif operation.answers is not None:
        success["content"] = {"application/json": {"schema": schema_of(operation.answers, components)}}
    responses = {str(operation.status): success}
    if operation.path == "/events":
        success["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    for status, text in _ERRORS.items():
        if operation.method != "GET" or status in _READ_ERRORS:
            responses[str(status)] = {"description": text, "content": error}
    if operation.path in ("/board", "/tasks", "/tasks/{id}") and operation.method == "GET":
        responses["304"] = {"description": "Nothing has changed since the answer with this `If-None-Match`."}
    return responses


def _error_schema() -> dict[str, Any]:
    text = {"type": "string"}
    error = {
        "type": "object",
        "properties": {"code": text, "message": text, "fields": {"type": "object", "additionalProperties": True}},
        "required": ["code", "fields", "message"],
    }
    return {"type": "object", "properties": {"error": error}, "required": ["error"]}
