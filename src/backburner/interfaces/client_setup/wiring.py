"""Which configuration files each coding agent reads, the entries of Backburner in them, and the changes that add or remove these.

Reads the files and changes nothing; `files.apply` applies the changes.
"""

import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import NamedTuple, Protocol

from backburner.core.errors import BackburnerError, BadInput
from backburner.core.optional_dependencies import is_installed
from backburner.interfaces.client_setup import jsonc
from backburner.interfaces.client_setup import toml_edit as toml
from backburner.interfaces.client_setup.files import BACKUP, Change, read
from backburner.system.paths import locate

CLIENTS = ("opencode", "claude", "codex", "gemini")

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_ROOT = os.path.dirname(os.path.dirname(_PACKAGE))
_NAME = "backburner"
# Environment variables that commands of a project often need.
_PASSED_VARIABLES = (
    "CARGO_HOME",
    "CONDA_PREFIX",
    "GOPATH",
    "JAVA_HOME",
    "NVM_DIR",
    "PNPM_HOME",
    "PYENV_ROOT",
    "SSH_AUTH_SOCK",
    "VIRTUAL_ENV",
)
_TURN_EVENTS = ("SessionStart", "UserPromptSubmit", "PostToolUse", "Stop")
_GEMINI_EVENTS = ("SessionStart", "BeforeAgent", "AfterTool", "AfterAgent")
# After every tool call. `sh` starts Backburner only if the ledger has changed since nothing waited for the client; see `client_hooks`.
_FREQUENT_EVENTS = {"PostToolUse", "AfterTool"}
_UNLESS_QUIET = 'shift; f=$h/hooks/$0; [ -e "$f" ] && [ ! "$h/ledger.db" -nt "$f" ] && [ ! "$h/ledger.db-wal" -nt "$f" ] || exec "$@"'
# Claude Code keeps this hook running after the turn ends, and starts a new turn when the hook prints something.
_ASYNC_STOP_HOOK: dict[str, object] = {"asyncRewake": True, "timeout": 86_400}


class Edit(Protocol):
    """Adds an entry of Backburner to a text, or removes it. `where` is the name of the file in error messages."""

    def add(self, text: str, where: str) -> str: ...

    def remove(self, text: str, where: str) -> str: ...


class ServerEntry(NamedTuple):
    """The MCP server of Backburner in the configuration of a client. Keeps settings that the user added, or set instead of `defaults`."""

    path: tuple[str, ...]
    required: dict[str, object]
    defaults: dict[str, object]

    def add(self, text: str, where: str) -> str:
        editor = _editor_for(where)
        found = editor.get(text, self.path, where)
        return editor.put(
            text, self.path, {**self.required, **self.defaults, **(found if isinstance(found, dict) else {}), **self.required}, where
        )

    def remove(self, text: str, where: str) -> str:
        return _editor_for(where).remove(text, self.path, where)


class HookEntries(NamedTuple):
    """The hook command of Backburner for each event. It is recognized by the end of the command."""

    client: str
    hooks: dict[str, dict[str, object]]

    def add(self, text: str, where: str) -> str:
        for event in dict.fromkeys([*self.hooks, *self._events_with_hook(text, where)]):
            hook, positions = self.hooks.get(event), list(self._positions(text, event, where))
            for group, index in reversed(positions[1:] if hook else positions):
                text = self._remove_hook(text, event, group, index, where)
            if hook and not positions:
                text = jsonc.append(text, ("hooks", event), {"hooks": [hook]}, where)
            elif hook:
                position = ("hooks", event, positions[0][0], "hooks", positions[0][1])
                found = jsonc.get(text, position, where)
                text = jsonc.put(text, position, {**(found if isinstance(found, dict) else {}), **hook}, where)
        return text

    def remove(self, text: str, where: str) -> str:
        for event in self._events_with_hook(text, where):
            for group, index in reversed(list(self._positions(text, event, where))):
                text = self._remove_hook(text, event, group, index, where)
        return text

    def _events_with_hook(self, text: str, where: str) -> list[str]:
        hooks = jsonc.get(text, ("hooks",), where)
        return [event for event in hooks if list(self._positions(text, event, where))] if isinstance(hooks, dict) else []

    def _positions(self, text: str, event: str, where: str) -> Iterable[tuple[int, int]]:
        """The positions of the hook command: the index of the group, and the index in the group."""
        groups = jsonc.get(text, ("hooks", event), where)
        for number, group in enumerate(groups if isinstance(groups, list) else ()):
            hooks = group.get("hooks") if isinstance(group, dict) else None
            for index, hook in enumerate(hooks if isinstance(hooks, list) else ()):
                command = hook.get("command") if isinstance(hook, dict) else None
                if isinstance(command, str) and command.endswith(f" inbox --hook {self.client}"):
                    yield number, index

    def _remove_hook(self, text: str, event: str, group: int, index: int, where: str) -> str:
        """Remove a hook, or its whole group if it is the only hook: an empty group would be an error."""
        hooks = jsonc.get(text, ("hooks", event, group, "hooks"), where)
        is_only = isinstance(hooks, list) and len(hooks) == 1
        return jsonc.remove(text, ("hooks", event, group) if is_only else ("hooks", event, group, "hooks", index), where)


class ListItem(NamedTuple):
    """One item of Backburner in a list of the client."""

    path: tuple[str, ...]
    item: str

    def add(self, text: str, where: str) -> str:
        return text if self._positions(text, where) else jsonc.append(text, self.path, self.item, where)

    def remove(self, text: str, where: str) -> str:
        for index in reversed(self._positions(text, where)):
            text = jsonc.remove(text, (*self.path, index), where)
        return text

    def _positions(self, text: str, where: str) -> list[int]:
        found = jsonc.get(text, self.path, where)
        return [index for index, item in enumerate(found) if item == self.item] if isinstance(found, list) else []


class OwnFile(NamedTuple):
    """A file that belongs to Backburner, of any version. It is recognized by the name in its text."""

    content: str

    def add(self, text: str, where: str) -> str:
        return self.content

    def remove(self, text: str, where: str) -> str:
        return "" if _NAME in text.lower() else text


class ConfigFile(NamedTuple):
    """A file of a client and the entries of Backburner in it."""

    path: str
    edits: tuple[Edit, ...]

    def with_entries(self, text: str) -> str:
        for edit in self.edits:
            text = edit.add(text, self.path)
        return text

    def without_entries(self, text: str) -> str:
        for edit in self.edits:
            text = edit.remove(text, self.path)
        return text


class Client(NamedTuple):
    """A coding agent: the folders that exist if it is used on this machine, and its configuration files."""

    folders: tuple[str, ...]
    files: tuple[ConfigFile, ...]


class ClientStatus(NamedTuple):
    """Whether a client is on this machine, and whether Backburner is set up in it."""

    client: str
    found: bool
    wired: bool
    detail: str
    never_wired: bool = False  # its configuration has no entry of Backburner


def plan(client: str, environ: dict[str, str], command: tuple[str, ...], *, undo: bool = False) -> list[Change]:
    """The changes that set up Backburner in a client, started with `command`; with `undo`, the changes that remove it."""
    changes = (_undo_change(file) if undo else _setup_change(file) for file in _client(client, environ, command).files)
    return [change for change in changes if change]


def is_found(client: str, environ: dict[str, str]) -> bool:
    """Whether a client is on this machine."""
    return bool(shutil.which(client, path=environ.get("PATH", os.defpath))) or any(
        os.path.exists(folder) for folder in _client(client, environ, ()).folders
    )


def examine(environ: dict[str, str], home: str | None = None) -> list[ClientStatus]:
    """The status of each client. A problem with a file is reported in `detail`, not raised."""
    return [_client_status(client, environ, home) for client in CLIENTS]


def own_command(environ: dict[str, str], home: str | None = None) -> tuple[str, ...]:
    """The command that starts this installation of Backburner from any folder and with any PATH.

    It names the home if that is not the default one, because clients do not pass on all environment variables.
    """
    home_option = ("--home", os.path.abspath(locate(home, environ))) if home or environ.get("BACKBURNER_HOME") else ()
    return (*_program(environ), *home_option)


def _program(environ: dict[str, str]) -> tuple[str, ...]:
    script = os.path.join(os.path.dirname(sys.executable), _NAME)
    candidates = [os.path.join(_ROOT, _NAME), script] if os.path.join(_ROOT, "src", _NAME) == _PACKAGE else [script]
    own = next((path for path in candidates if os.path.isfile(path) and os.access(path, os.X_OK)), None)
    if own is None:
        command = (sys.executable, "-P", "-m", _NAME)
    else:
        # A link on the PATH stays valid after an upgrade that moves its target.
        linked = shutil.which(_NAME, path=environ.get("PATH", os.defpath))
        command = (os.path.abspath(linked) if linked and os.path.samefile(linked, own) else own,)
    if any("\udc80" <= character <= "\udcff" for word in command for character in word):
        raise BadInput("The path of Backburner must be valid UTF-8 for a client to start it.")
    return command


def _setup_change(file: ConfigFile) -> Change | None:
    before = read(file.path)
    after = file.with_entries(before or "")
    return None if after == before else Change(file.path, before, after, first=before is None or file.without_entries(before) == before)


def _undo_change(file: ConfigFile) -> Change | None:
    """Remove the entries of Backburner. Restores the original content if nothing else was changed since."""
    before = read(file.path)
    if before is None:
        return None
    stripped = file.without_entries(before)
    if stripped == before:
        return None
    original = read(file.path + BACKUP)
    try:
        if original is not None and file.without_entries(original) != original:
            original = None  # a backup of a later install, of a file that the first one created
        untouched = stripped == file.without_entries(file.with_entries(original or ""))
    except BadInput:
        untouched = False
    return Change(file.path, before, original if untouched else stripped)


def _client_status(client: str, environ: dict[str, str], home: str | None) -> ClientStatus:
    found = is_found(client, environ)
    if not found:
        return ClientStatus(client, False, False, "is not on this machine")
    files = _client(client, environ, ()).files
    try:
        changes = plan(client, environ, own_command(environ, home))
    except BackburnerError as error:
        # Without tomlkit no change of the file of Codex can be planned. That is no problem if Backburner was never set up in it.
        unplanned = client == "codex" and not is_installed("toml") and not any(map(_has_entries, files))
        return ClientStatus(client, True, False, f"is not set up for Backburner; {error}" if unplanned else str(error), unplanned)
    if not changes:
        return ClientStatus(client, True, True, "is set up for Backburner")
    never_set_up = len(changes) == len(files) and all(change.first for change in changes)
    problem = "is not set up for Backburner" if never_set_up else "is set up for another installation of Backburner, or incompletely"
    return ClientStatus(client, True, False, f"{problem}; run: backburner install {client}", never_set_up)


def _has_entries(file: ConfigFile) -> bool:
    """Whether a file contains an entry of Backburner, or cannot be read."""
    try:
        text = read(file.path)
        return text is not None and file.without_entries(text) != text
    except BackburnerError:
        return True


def _client(client: str, environ: dict[str, str], command: tuple[str, ...]) -> Client:
    match client:
        case "opencode":
            return _opencode(environ, command)
        case "claude":
            return _claude(environ, command)
        case "codex":
            return _codex(environ, command)
        case "gemini":
            return _gemini(environ, command)
        case _:
            raise BadInput(f"There is no client '{client}'. Supported clients: {', '.join(CLIENTS)}.")


def _opencode(environ: dict[str, str], command: tuple[str, ...]) -> Client:
    folder = os.path.join(_folder(environ, "XDG_CONFIG_HOME", ".config"), "opencode")
    commented = os.path.join(folder, "opencode.jsonc")
    config = commented if os.path.exists(commented) else os.path.join(folder, "opencode.json")
    required = {"type": "local", "command": [*command, "mcp", "--client", "opencode"], "enabled": True}
    plugin = _packaged_text("interfaces", "client_setup", "opencode.js") or "// Backburner\nexport {}\n"
    return Client(
        (folder,),
        (
            ConfigFile(config, (ServerEntry(("mcp", _NAME), required, {"timeout": 60000}),)),
            ConfigFile(os.path.join(folder, "plugins", "backburner.js"), (OwnFile(plugin.replace("__BACKBURNER__", json.dumps(command))),)),
        ),
    )


def _claude(environ: dict[str, str], command: tuple[str, ...]) -> Client:
    folder = _folder(environ, "CLAUDE_CONFIG_DIR", ".claude")
    state = os.path.join(folder if environ.get("CLAUDE_CONFIG_DIR") else _home(environ), ".claude.json")
    older = os.path.join(folder, ".config.json")
    files = [
        ConfigFile(older if os.path.exists(older) else state, (_stdio_server(command, "claude", {"type": "stdio"}, {"env": {}}),)),
        ConfigFile(
            os.path.join(folder, "settings.json"),
            (
                # Claude Code need not ask before it calls the tools: the gate asks for approval of the command itself.
                ListItem(("permissions", "allow"), f"mcp__{_NAME}"),
                _hooks(environ, command, "claude", _TURN_EVENTS, 10, {"Stop": _ASYNC_STOP_HOOK}),
            ),
        ),
    ]
    if skill := _packaged_text("skills", _NAME, "SKILL.md"):
        files.append(ConfigFile(os.path.join(folder, "skills", _NAME, "SKILL.md"), (OwnFile(skill),)))
    return Client((folder, state), tuple(files))


def _codex(environ: dict[str, str], command: tuple[str, ...]) -> Client:
    folder = _folder(environ, "CODEX_HOME", ".codex")
    required = {"command": command[0] if command else "", "args": [*command[1:], "mcp", "--client", "codex"]}
    defaults = {
        "required": True,  # otherwise the first turn may start without the server
        "default_tools_approval_mode": "approve",  # the gate asks for approval of the command itself
        "env_vars": list(_PASSED_VARIABLES),  # Codex clears the environment of its servers
        "startup_timeout_sec": 30,
        "tool_timeout_sec": 300,
    }
    return Client(
        (folder,),
        (
            ConfigFile(os.path.join(folder, "config.toml"), (ServerEntry(("mcp_servers", _NAME), required, defaults),)),
            ConfigFile(os.path.join(folder, "hooks.json"), (_hooks(environ, command, "codex", _TURN_EVENTS, 10),)),
        ),
    )


def _gemini(environ: dict[str, str], command: tuple[str, ...]) -> Client:
    folder = os.path.join(environ.get("GEMINI_CLI_HOME") or _home(environ), ".gemini")
    trust: dict[str, object] = {"trust": True}  # otherwise no tool is available without a terminal; the gate asks for approval
    edits = (_stdio_server(command, "gemini", {}, trust), _hooks(environ, command, "gemini", _GEMINI_EVENTS, 10_000))
    return Client((folder,), (ConfigFile(os.path.join(folder, "settings.json"), edits),))


def _stdio_server(command: tuple[str, ...], client: str, leading: dict[str, object], defaults: dict[str, object]) -> ServerEntry:
    required = {**leading, "command": command[0] if command else "", "args": [*command[1:], "mcp", "--client", client]}
    return ServerEntry(("mcpServers", _NAME), required, defaults)


def _hooks(
    environ: dict[str, str],
    command: tuple[str, ...],
    client: str,
    events: tuple[str, ...],
    timeout: int,
    more: dict[str, dict[str, object]] | None = None,
) -> HookEntries:
    words = [*command, "inbox", "--hook", client]
    hook = {"type": "command", "command": shlex.join(words), "timeout": timeout}
    hooks = {event: {**hook, **(more or {}).get(event, {})} for event in events}
    for event in _FREQUENT_EVENTS & hooks.keys():
        hooks[event]["command"] = hook_command(command, client, environ)
    return HookEntries(client, hooks)


def hook_command(command: Sequence[str], client: str, environ: dict[str, str]) -> str:
    """The hook after every tool call: starts Backburner, with the words of `command`, unless nothing waits for the client."""
    # The option names the home before the variable does.
    home, value = (command[command.index("--home") + 1], "$1") if "--home" in command else (locate(None, environ), "${BACKBURNER_HOME:-$1}")
    words = [*command, "inbox", "--hook", client]
    return shlex.join(["sh", "-c", f"h={value}; {_UNLESS_QUIET}", client, os.path.abspath(home), *words])


def _editor_for(path: str) -> ModuleType:
    return toml if path.endswith(".toml") else jsonc


def _home(environ: dict[str, str]) -> str:
    return environ.get("HOME") or os.path.expanduser("~")


def _folder(environ: dict[str, str], variable: str, name: str) -> str:
    return os.path.abspath(environ.get(variable) or os.path.join(_home(environ), name))


def _packaged_text(*names: str) -> str | None:
    """The text of a file of Backburner: in the package, or at the root of the repository."""
    return next((text for root in (_PACKAGE, _ROOT) if (text := read(os.path.join(root, *names))) is not None), None)
