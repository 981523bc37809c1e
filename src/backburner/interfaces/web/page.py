"""The shell of the page and its files. The shell contains no data: everything comes through the API, with a credential.

`app.js` is served together with all modules that it imports, so that the first view needs one request. The other views are loaded by
`import()`, and import from the joined module, too. Joining means to write the modules one after the other, so no two of them may declare the same
name at the top level.
"""

import gzip
import hashlib
import html
import os
import posixpath
import re
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

SHELL_PATHS = (
    *("/", "/ask", "/ask/{id}", "/t/{id}", "/t/{id}/{n}", "/inbox", "/audit", "/settings", "/pair"),
    *("/timeline", "/schedules", "/search", "/spend", "/trace/{id}"),  # not written yet: the page says so
)
_TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}
_FOLDER = os.path.join(os.path.dirname(__file__), "static")
_MAIN = "app.js"
_IMPORT = re.compile(r'^import (.*) from "(\..*)";\n', re.M)


class Asset(NamedTuple):
    content: bytes
    type: str


class Assets(NamedTuple):
    """The files of the page by path, and one hash of all of them, which is part of their addresses."""

    files: Mapping[str, Asset]
    hash: str


@cache
def compressed(content: bytes) -> bytes:
    """A file as it is sent to browsers that accept gzip."""
    return gzip.compress(content, mtime=0)


@cache
def assets(folder: str = _FOLDER) -> Assets:
    """Read the files of the page."""
    texts = {}
    for where, _, names in os.walk(folder):
        for name in names:
            if os.path.splitext(name)[1] in _TYPES:
                with open(os.path.join(where, name), encoding="utf-8") as file:
                    texts[os.path.relpath(os.path.join(where, name), folder)] = file.read()
    served = {path: text.encode() for path, text in sorted(join_modules(texts).items())}
    digest = hashlib.sha256(b"".join(path.encode() + b"\0" + hashlib.sha256(content).digest() for path, content in served.items()))
    files = {path: Asset(content, _TYPES[os.path.splitext(path)[1]]) for path, content in served.items()}
    return Assets(files, digest.hexdigest()[:16])


def join_modules(texts: Mapping[str, str]) -> dict[str, str]:
    """The files with the modules that `app.js` imports in one, and the imports of the others changed accordingly."""
    joined: dict[str, None] = {}

    def add(path: str, above: frozenset[str]) -> None:
        for _, target in _IMPORT.findall(texts[path]):
            found = _resolved(path, target)
            if found not in above and found not in joined:
                add(found, above | {found})
        joined[path] = None

    def redirect(path: str) -> str:
        to_main = os.path.relpath(_MAIN, posixpath.dirname(path) or ".")
        to_main = to_main if to_main.startswith(".") else f"./{to_main}"
        return _IMPORT.sub(
            lambda match: f'import {match[1]} from "{to_main}";\n' if _resolved(path, match[2]) in joined else match[0], texts[path]
        )

    add(_MAIN, frozenset({_MAIN}))
    others = {path: redirect(path) if path.endswith(".js") else text for path, text in texts.items() if path not in joined}
    return {_MAIN: "\n".join(_IMPORT.sub("", texts[path]) for path in joined), **others}


def _resolved(path: str, target: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), target))


def shell(found: Assets) -> bytes:
    """The page that loads everything else."""

    def address(path: str) -> str:
        return html.escape(f"/_/{found.hash}/{path}")

    lines = [
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1, viewport-fit=cover">',
        '<meta name="color-scheme" content="light dark">',
        f'<meta name="backburner" content="{found.hash}">',
        "<title>Backburner</title>",
        f'<link rel="stylesheet" href="{address("app.css")}">',
        f'<script type="module" src="{address(_MAIN)}"></script>',
        "</head>",
        "<body><noscript>This page needs JavaScript.</noscript></body>",
        "</html>",
    ]
    return "\n".join(lines).encode() + b"\n"
