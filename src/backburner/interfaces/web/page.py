"""The shell of the page and its files. The shell contains no data: everything comes through the API, with a credential."""

import hashlib
import html
import os
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

SHELL_PATHS = (
    *("/", "/ask", "/ask/{id}", "/t/{id}", "/t/{id}/{n}", "/inbox", "/audit", "/settings", "/pair"),
    *("/timeline", "/schedules", "/search", "/spend", "/trace/{id}"),  # not written yet: the page says so
)
_TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".json": "application/json",
    ".webmanifest": "application/manifest+json",
}
_FOLDER = os.path.join(os.path.dirname(__file__), "static")


class Asset(NamedTuple):
    content: bytes
    type: str


class Assets(NamedTuple):
    """The files of the page by path, and one hash of all of them, which is part of their addresses."""

    files: Mapping[str, Asset]
    hash: str


@cache
def assets(folder: str = _FOLDER) -> Assets:
    """Read the files of the page."""
    files: dict[str, Asset] = {}
    digest = hashlib.sha256()
    for where, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            kind = _TYPES.get(os.path.splitext(name)[1])
            if kind is None:
                continue
            path = os.path.relpath(os.path.join(where, name), folder)
            with open(os.path.join(where, name), "rb") as file:
                files[path] = Asset(file.read(), kind)
            digest.update(path.encode() + b"\0" + hashlib.sha256(files[path].content).digest())
    return Assets(files, digest.hexdigest()[:16])


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
    ]
    if "icon.svg" in found.files:
        lines.append(f'<link rel="icon" href="{address("icon.svg")}" type="image/svg+xml">')
    if "manifest.webmanifest" in found.files:
        lines.append(f'<link rel="manifest" href="{address("manifest.webmanifest")}">')
    lines.append(f'<link rel="stylesheet" href="{address("app.css")}">')
    lines += [f'<link rel="modulepreload" href="{address(path)}">' for path in found.files if path.endswith(".js")]
    lines += [
        f'<script type="module" src="{address("app.js")}"></script>',
        "</head>",
        "<body><noscript>This page needs JavaScript.</noscript></body>",
        "</html>",
    ]
    return "\n".join(lines).encode() + b"\n"
