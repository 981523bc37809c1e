"""The page at `/api`, which describes the operations for people. It is made from the table of operations and contains no data."""

import html
import types
import typing
from collections.abc import Sequence
from typing import Any, Literal

from backburner.interfaces.web.openapi import WHO
from backburner.interfaces.web.operations import Operation
from backburner.interfaces.web.page import Assets


def reader_page(operations: Sequence[Operation], base: str, found: Assets) -> bytes:
    """The whole page."""
    groups: dict[str, list[Operation]] = {}
    for operation in operations:
        groups.setdefault(operation.path.split("/")[1], []).append(operation)
    lines = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta name="color-scheme" content="light dark"><link rel="stylesheet" href="/_/{found.hash}/app.css">',
        "<title>API · Backburner</title></head>",
        '<body class="bare"><main class="reader"><h1>The API of Backburner</h1>',
        "<p>Send <code>Authorization: Bearer TOKEN</code> with the content of the file <code>token</code> in the home. Programs read",
        "<code>/api/openapi.json</code>, which needs the token, too.</p>",
    ]
    for name, members in groups.items():
        lines.append(f"<section><h2>{html.escape(name)}</h2>")
        lines += [_operation(operation, base) for operation in members]
        lines.append("</section>")
    lines.append("</main></body></html>")
    return "\n".join(lines).encode() + b"\n"


def _operation(operation: Operation, base: str) -> str:
    parameters = ", ".join(f"<code>{html.escape(name)}</code> ({html.escape(kind)})" for name, kind in _parameters(operation.takes))
    return (
        f"<article><h3><code>{operation.method} {html.escape(base + operation.path)}</code></h3><p>{html.escape(operation.summary)}</p>"
        f'{f"<p>Takes {parameters}.</p>" if parameters else ""}<p class="muted">{html.escape(WHO[operation.who])}</p></article>'
    )


def _parameters(takes: type | None) -> list[tuple[str, str]]:
    if takes is None:
        return []
    required = getattr(takes, "__required_keys__", frozenset())
    hints = typing.get_type_hints(takes).items()
    return [(name, _kind(hint) + ("" if name in required else ", optional")) for name, hint in hints]


def _kind(hint: Any) -> str:
    """A type in words."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, types.UnionType):
        return " or ".join(_kind(member) for member in inner if member is not type(None))
    if origin is Literal:
        return " or ".join(map(str, inner))
    if origin is list:
        return f"list of {_kind(inner[0])}"
    if origin is dict:
        return "object"
    return {str: "text", int: "whole number", float: "number", bool: "true or false"}.get(hint, "object")
