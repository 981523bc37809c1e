"""What agents from outside say, each in its own way: what they ask for, which tool, what they used, what went wrong."""

import json
import shlex
from typing import Any

from backburner.agents.territory import Asked, shown
from backburner.text import clean, shortened

_TOOLS = {"shell": "command", "bash": "command", "write": "edit", "edit": "edit", "tree": "read", "read": "read"}
_KINDS = {"execute": "command", "edit": "edit", "delete": "edit", "move": "edit", "read": "read", "search": "read"}
_PATHS = ("path", "file_path", "filePath", "filepath", "absolute_path", "notebook_path")


def asked_of(call: dict[str, Any]) -> Asked:
    """What a permission request asks for, as far as it can be told for certain."""
    given = call.get("rawInput")
    raw: dict[str, Any] = given if isinstance(given, dict) else {}
    title = str(call.get("title") or call.get("kind") or "do something")
    kind = _KINDS.get(str(call.get("kind") or ""), "other")
    if kind == "other":
        kind = _TOOLS.get(title, "other")
    command = raw.get("command")
    if isinstance(command, list):
        command = shlex.join(map(str, command))
    if command and raw.get("directories"):
        return Asked("free", f"run `{command}` in {raw['directories']}")  # OpenCode asks for the command itself, too
    if kind == "command":
        # A title is made for people: what it leaves out nobody has seen.
        cwd = str(raw.get("cwd") or raw.get("workdir") or "")
        return Asked("command", f"run `{command}`", str(command), cwd=cwd) if command else Asked("other", f"run `{title}`")
    diffs = [one for one in call.get("content") or [] if isinstance(one, dict) and one.get("type") == "diff"]
    named = [raw.get(name) for name in _PATHS] + [one.get("path") for one in (*diffs, *(call.get("locations") or []))]
    paths = tuple(dict.fromkeys(str(path) for path in named if path))
    if kind == "read" and paths:
        return Asked("read", f"read {', '.join(paths)}", paths=paths)
    if kind == "edit" and paths:
        changes = "; ".join(f"from {shown(str(one.get('oldText') or ''))}, to {shown(str(one.get('newText') or ''))}" for one in diffs)
        if not changes and isinstance(content := raw.get("content", raw.get("after")), str):
            changes = f"to {shown(content)}"
        verb = str(call.get("kind")) if call.get("kind") in ("delete", "move") else "change"
        return Asked("edit", f"{verb} {', '.join(paths)}" + (f": {changes}" if changes else ""), paths=paths)
    return Asked("other", f"use {title}: {shortened(json.dumps(raw, ensure_ascii=False), longest=1500)}" if raw else title)


def tool(call: dict[str, Any]) -> str:
    """The name of a tool, as short as it is told."""
    meta = call.get("_meta") or {}
    named = call.get("name") or meta.get("toolName") or ((meta.get("goose") or {}).get("toolCall") or {}).get("toolName")
    if not named and "__" in (known := str(call.get("toolCallId") or "")):
        named = known.partition("__")[0]
    return shortened(clean(str(named or call.get("kind") or call.get("title") or "tool")), longest=60)


def tokens(answer: dict[str, Any]) -> float:
    """What a turn used, in the words of each."""
    if (usage := answer.get("usage")) and usage.get("totalTokens"):
        return float(usage["totalTokens"])
    counted = ((answer.get("_meta") or {}).get("quota") or {}).get("token_count") or {}
    return float(counted.get("totalTokens") or (counted.get("input_tokens") or 0) + (counted.get("output_tokens") or 0))


def system_error(update: dict[str, Any]) -> str:
    """Codex says by this alone that its provider failed."""
    about = (update.get("_meta") or {}).get("codex") or {}
    status = about.get("threadStatus") or {}
    if status.get("type") != "systemError":
        return ""
    return f"its provider failed: {(about.get('error') or {}).get('message') or status.get('message') or 'system error'}"


def complaint(error: Any) -> str:
    """An error of the protocol in words."""
    data = error.data if isinstance(error.data, dict) else {}
    more = data.get("details") or data.get("message") or data.get("errorName") or (error.data if isinstance(error.data, str) else "")
    return f"{error}" + (f": {more}" if more and str(more) not in str(error) else "")


def of_opencode(request: dict[str, Any], part: dict[str, Any]) -> Asked:
    """What a permission request asks for, with what is known of the tool's call."""
    name, about = str(request.get("permission")), request.get("metadata") or {}
    given = (part.get("state") or {}).get("input") or {}
    patterns = ", ".join(map(str, request.get("patterns") or []))
    if name == "bash" and about.get("command"):
        command = str(about["command"])
        return Asked("command", f"run `{command}`", command, cwd=str(given.get("workdir") or ""))
    if name == "edit" and about.get("filepath"):
        path = str(about["filepath"])
        return Asked("edit", f"change {path}: {shortened(str(about.get('diff') or ''), longest=3000)}", paths=(path,))
    if name == "read" and given.get("filePath"):
        path = str(given["filePath"])
        return Asked("read", f"read {path}", paths=(path,))
    if name == "external_directory" and part.get("tool") in ("bash", "read", "edit", "write"):
        return Asked("free", f"reach {patterns}")
    shown = shortened(json.dumps(given or about, ensure_ascii=False), longest=1500)
    return Asked("other", f"use {name} ({patterns}): {shown}")


def opencode_tokens(info: dict[str, Any]) -> float:
    tokens = info.get("tokens") or {}
    cache = tokens.get("cache") or {}
    parts = [tokens.get(name) for name in ("input", "output", "reasoning")] + [cache.get("read"), cache.get("write")]
    return float(tokens.get("total") or sum(float(one or 0) for one in parts))
