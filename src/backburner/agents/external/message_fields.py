"""Reads the fields of external agents' messages, which differ by agent: permission requests, tool names, usage, and errors."""

import json
import shlex
from collections.abc import Sequence
from typing import Any

from backburner.agents.permissions import PermissionRequest, quote, truncate
from backburner.core.terminal_text import clean, shortened

_KINDS = {"execute": "command", "edit": "edit", "delete": "edit", "read": "read"}
_GOOSE_KINDS = {"shell": "command", "write": "edit", "edit": "edit", "tree": "read"}  # goose always sends the kind "other"
_PATH_KEYS = ("path", "file_path", "filePath", "filepath", "absolute_path", "notebook_path")
_CWD_KEYS = ("cwd", "workdir", "directory", "dir_path")
# Other keys of a command call that do not change its effect; `directories` and `patterns` are added by OpenCode.
_HARMLESS_KEYS = {"command", "description", "is_background", "run_in_background", "timeout", "directories", "patterns", *_CWD_KEYS}
_MAX_DIFF_CHARACTERS = 3000


def acp_permission_request(call: dict[str, Any], agent: str = "") -> PermissionRequest:
    """Read an ACP permission request. If its effect is not certain, its kind is "other", and a person decides with all its details."""
    raw_input = call.get("rawInput")
    raw: dict[str, Any] = raw_input if isinstance(raw_input, dict) else {}
    title, kind = str(call.get("title") or call.get("kind") or "do something"), str(call.get("kind") or "")
    details = json.dumps([kind, title, raw, call.get("content")], sort_keys=True, ensure_ascii=False)
    known = _GOOSE_KINDS.get(title, "other") if agent == "goose" else _KINDS.get(kind, "other")
    if known == "other" and agent == "opencode-acp" and raw.get("directories"):
        known = "command"  # it requests the folders that a command uses, and then the command itself
    unknown = PermissionRequest("other", f"use {title}: {truncate(json.dumps(raw, ensure_ascii=False))}" if raw else title, details=details)
    if known == "command":
        command = raw.get("command")
        command = shlex.join(map(str, command)) if isinstance(command, list) else command
        if not command:  # a title may leave out parts of the command
            return PermissionRequest("other", f"run `{title}`", details=details)
        if not isinstance(command, str) or raw.keys() - _HARMLESS_KEYS:
            return unknown
        cwd = next((str(raw[name]) for name in _CWD_KEYS if raw.get(name)), "")
        return PermissionRequest("command", f"run `{command}`", command, cwd=cwd, details=f"{command}\0{cwd}")
    diffs = [item for item in call.get("content") or [] if isinstance(item, dict) and item.get("type") == "diff"]
    more = [item.get("path") for item in (*diffs, *(call.get("locations") or [])) if isinstance(item, dict)]
    paths = _paths(raw, more, absolute_only=agent == "opencode-acp")
    if not paths or known == "other":
        return unknown
    if known == "read":
        return PermissionRequest("read", f"read {', '.join(paths)}", paths=paths, details=details)
    changes = "; ".join(f"from {quote(str(diff.get('oldText') or ''))}, to {quote(str(diff.get('newText') or ''))}" for diff in diffs)
    if not changes and isinstance(content := raw.get("content", raw.get("after")), str):
        changes = f"to {quote(content)}"
    verb = "delete" if kind == "delete" else "change"
    return PermissionRequest(
        "edit", f"{verb} {', '.join(paths)}{': ' + changes if changes else ' (the change is not shown)'}", paths=paths, details=details
    )


def _paths(arguments: dict[str, Any], more: Sequence[Any] = (), *, absolute_only: bool = False) -> tuple[str, ...]:
    """The files of a request. `absolute_only`: an empty tuple if one is relative, because OpenCode then may name several files as one."""
    paths = [arguments.get(name) for name in _PATH_KEYS]
    if isinstance(files := arguments.get("files"), list):
        paths = [file.get(name) for file in files if isinstance(file, dict) for name in ("filePath", "movePath")]
    found = tuple(dict.fromkeys(str(path) for path in (*paths, *more) if path))
    return found if not absolute_only or all(path.startswith("/") for path in found) else ()


def tool_name(call: dict[str, Any]) -> str:
    """The name of the tool of a call, from the shortest field that has it."""
    meta = call.get("_meta") or {}
    name = call.get("name") or meta.get("toolName") or ((meta.get("goose") or {}).get("toolCall") or {}).get("toolName")
    if not name and "__" in (call_id := str(call.get("toolCallId") or "")):
        name = call_id.partition("__")[0]
    return shortened(clean(str(name or call.get("kind") or call.get("title") or "tool")), longest=60)


def used_tokens(answer: dict[str, Any]) -> float:
    """The tokens that a turn used, from the field of the agent."""
    if (usage := answer.get("usage")) and usage.get("totalTokens"):
        return float(usage["totalTokens"])
    counted = ((answer.get("_meta") or {}).get("quota") or {}).get("token_count") or {}
    return float(counted.get("totalTokens") or (counted.get("input_tokens") or 0) + (counted.get("output_tokens") or 0))


def system_error(update: dict[str, Any]) -> str:
    """The error of Codex's provider, or an empty string. Codex reports it only in this update."""
    codex = (update.get("_meta") or {}).get("codex") or {}
    status = codex.get("threadStatus") or {}
    if status.get("type") != "systemError":
        return ""
    return f"its provider failed: {(codex.get('error') or {}).get('message') or status.get('message') or 'system error'}"


def error_message(error: Any) -> str:
    """The text of a protocol error with its details."""
    data = error.data if isinstance(error.data, dict) else {}
    more = data.get("details") or data.get("message") or data.get("errorName") or (error.data if isinstance(error.data, str) else "")
    return f"{error}" + (f": {more}" if more and str(more) not in str(error) else "")


def opencode_permission_request(request: dict[str, Any], part: dict[str, Any]) -> PermissionRequest:
    """Read an OpenCode permission request, with the arguments of its tool call from `part`."""
    name, metadata = str(request.get("permission")), request.get("metadata") or {}
    arguments = (part.get("state") or {}).get("input") or {}
    patterns = ", ".join(map(str, request.get("patterns") or []))
    details = json.dumps([name, request.get("patterns"), metadata, arguments], sort_keys=True, ensure_ascii=False)
    is_shell = name == "bash" or (name == "external_directory" and part.get("tool") == "bash")
    if is_shell and (command := str(metadata.get("command") or arguments.get("command") or "")):
        return PermissionRequest(
            "command",
            f"run `{command}`",
            command,
            cwd=str(arguments.get("workdir") or ""),
            details=f"{command}\0{arguments.get('workdir')}",
        )
    if name == "grep" and arguments.get("pattern"):  # decided like the equivalent command
        folder = str(arguments.get("path") or ".")
        line = shlex.join(["grep", "-rn", "--", str(arguments["pattern"]), folder])
        return PermissionRequest("command", f"search {folder} for {arguments['pattern']!r}", line, details=details)
    if name == "edit" and (paths := _paths(metadata, absolute_only=True)):
        return PermissionRequest(
            "edit",
            f"change {', '.join(paths)}: {truncate(str(metadata.get('diff') or ''), _MAX_DIFF_CHARACTERS)}",
            paths=paths,
            details=details,
        )
    if name == "read" and (paths := _paths(arguments)):
        return PermissionRequest("read", f"read {', '.join(paths)}", paths=paths, details=details)
    if name == "external_directory" and part.get("tool") in ("read", "edit", "write"):
        return PermissionRequest("unrestricted", f"reach {patterns}", details=details)  # the action there is requested separately
    return PermissionRequest(
        "other", f"use {name} ({patterns}): {truncate(json.dumps(arguments or metadata, ensure_ascii=False))}", details=details
    )


def opencode_tokens(info: dict[str, Any]) -> float:
    tokens = info.get("tokens") or {}
    cache = tokens.get("cache") or {}
    parts = [tokens.get(name) for name in ("input", "output", "reasoning")] + [cache.get("read"), cache.get("write")]
    return float(tokens.get("total") or sum(float(part or 0) for part in parts))
