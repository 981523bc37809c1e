"""What agents from outside say, each in its own way: what they ask for, which tool, what they used, what went wrong."""

import json
import shlex
from collections.abc import Sequence
from typing import Any

from backburner.agents.permissions import PermissionRequest, cut, shown
from backburner.core.terminal_text import clean, shortened

_KINDS = {"execute": "command", "edit": "edit", "delete": "edit", "read": "read"}
_GOOSE = {"shell": "command", "write": "edit", "edit": "edit", "tree": "read"}  # the kind of its tools is always other
_PATHS = ("path", "file_path", "filePath", "filepath", "absolute_path", "notebook_path")
_CWDS = ("cwd", "workdir", "directory", "dir_path")
# What a command's call may hold besides it without meaning another effect; `directories` and `patterns` are OpenCode's own remarks.
_REMARKS = {"command", "description", "is_background", "run_in_background", "timeout", "directories", "patterns", *_CWDS}
_LONGEST_DIFF = 3000


def asked_of(call: dict[str, Any], agent: str = "") -> PermissionRequest:
    """What a permission request asks for, as far as it can be told for certain; the rest is for a person to judge, with all of it."""
    given = call.get("rawInput")
    raw: dict[str, Any] = given if isinstance(given, dict) else {}
    title, kind = str(call.get("title") or call.get("kind") or "do something"), str(call.get("kind") or "")
    whole = json.dumps([kind, title, raw, call.get("content")], sort_keys=True, ensure_ascii=False)
    known = _GOOSE.get(title, "other") if agent == "goose" else _KINDS.get(kind, "other")
    if known == "other" and agent == "opencode-acp" and raw.get("directories"):
        known = "command"  # it asks for the folders that a command leads to, and then for that
    unknown = PermissionRequest("other", f"use {title}: {cut(json.dumps(raw, ensure_ascii=False))}" if raw else title, whole=whole)
    if known == "command":
        command = raw.get("command")
        command = shlex.join(map(str, command)) if isinstance(command, list) else command
        if not command:  # a title is made for people: what it leaves out nobody has seen
            return PermissionRequest("other", f"run `{title}`", whole=whole)
        if not isinstance(command, str) or raw.keys() - _REMARKS:
            return unknown
        cwd = next((str(raw[name]) for name in _CWDS if raw.get(name)), "")
        return PermissionRequest("command", f"run `{command}`", command, cwd=cwd, whole=f"{command}\0{cwd}")
    diffs = [one for one in call.get("content") or [] if isinstance(one, dict) and one.get("type") == "diff"]
    more = [one.get("path") for one in (*diffs, *(call.get("locations") or [])) if isinstance(one, dict)]
    paths = _paths(raw, more, whole_ones=agent == "opencode-acp")
    if not paths or known == "other":
        return unknown
    if known == "read":
        return PermissionRequest("read", f"read {', '.join(paths)}", paths=paths, whole=whole)
    changes = "; ".join(f"from {shown(str(one.get('oldText') or ''))}, to {shown(str(one.get('newText') or ''))}" for one in diffs)
    if not changes and isinstance(content := raw.get("content", raw.get("after")), str):
        changes = f"to {shown(content)}"
    verb = "delete" if kind == "delete" else "change"
    return PermissionRequest(
        "edit", f"{verb} {', '.join(paths)}{': ' + changes if changes else ', and does not say how'}", paths=paths, whole=whole
    )


def _paths(given: dict[str, Any], more: Sequence[Any] = (), *, whole_ones: bool = False) -> tuple[str, ...]:
    """The files that a step is about. `whole_ones`: none where one is not told from the root on; OpenCode names many as one, from elsewhere."""
    named = [given.get(name) for name in _PATHS]
    if isinstance(files := given.get("files"), list):
        named = [one.get(name) for one in files if isinstance(one, dict) for name in ("filePath", "movePath")]
    found = tuple(dict.fromkeys(str(path) for path in (*named, *more) if path))
    return found if not whole_ones or all(path.startswith("/") for path in found) else ()


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


def error_message(error: Any) -> str:
    """An error of the protocol in words."""
    data = error.data if isinstance(error.data, dict) else {}
    more = data.get("details") or data.get("message") or data.get("errorName") or (error.data if isinstance(error.data, str) else "")
    return f"{error}" + (f": {more}" if more and str(more) not in str(error) else "")


def of_opencode(request: dict[str, Any], part: dict[str, Any]) -> PermissionRequest:
    """What a permission request asks for, with what is known of the tool's call."""
    name, about = str(request.get("permission")), request.get("metadata") or {}
    given = (part.get("state") or {}).get("input") or {}
    patterns = ", ".join(map(str, request.get("patterns") or []))
    whole = json.dumps([name, request.get("patterns"), about, given], sort_keys=True, ensure_ascii=False)
    of_shell = name == "bash" or (name == "external_directory" and part.get("tool") == "bash")
    if of_shell and (command := str(about.get("command") or given.get("command") or "")):
        return PermissionRequest(
            "command", f"run `{command}`", command, cwd=str(given.get("workdir") or ""), whole=f"{command}\0{given.get('workdir')}"
        )
    if name == "grep" and given.get("pattern"):  # judged as the command that does the same
        where = str(given.get("path") or ".")
        line = shlex.join(["grep", "-rn", "--", str(given["pattern"]), where])
        return PermissionRequest("command", f"search {where} for {given['pattern']!r}", line, whole=whole)
    if name == "edit" and (paths := _paths(about, whole_ones=True)):
        return PermissionRequest(
            "edit", f"change {', '.join(paths)}: {cut(str(about.get('diff') or ''), _LONGEST_DIFF)}", paths=paths, whole=whole
        )
    if name == "read" and (paths := _paths(given)):
        return PermissionRequest("read", f"read {', '.join(paths)}", paths=paths, whole=whole)
    if name == "external_directory" and part.get("tool") in ("read", "edit", "write"):
        return PermissionRequest("free", f"reach {patterns}", whole=whole)  # what it does there is asked for by itself
    return PermissionRequest("other", f"use {name} ({patterns}): {cut(json.dumps(given or about, ensure_ascii=False))}", whole=whole)


def opencode_tokens(info: dict[str, Any]) -> float:
    tokens = info.get("tokens") or {}
    cache = tokens.get("cache") or {}
    parts = [tokens.get(name) for name in ("input", "output", "reasoning")] + [cache.get("read"), cache.get("write")]
    return float(tokens.get("total") or sum(float(one or 0) for one in parts))
