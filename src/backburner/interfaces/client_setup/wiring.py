"""Which files a coding agent reads, what they must hold so that it knows Backburner, and the changes that lead there or back.
Reads the files and changes nothing; `files.apply` makes the changes.
"""

import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import NamedTuple, Protocol

from backburner.core.errors import BackburnerError, BadInput
from backburner.core.optional_dependencies import is_installed
from backburner.interfaces.client_setup import jsonc
from backburner.interfaces.client_setup import toml_edit as toml
from backburner.interfaces.client_setup.files import BACKUP, Change, read
from backburner.system.home import locate

CLIENTS = ("opencode", "claude", "codex", "gemini")

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_ROOT = os.path.dirname(os.path.dirname(_PACKAGE))
_NAME = "backburner"
# What commands of a project often need from the environment.
_HANDED_ON = ("CARGO_HOME", "CONDA_PREFIX", "GOPATH", "JAVA_HOME", "NVM_DIR", "PNPM_HOME", "PYENV_ROOT", "SSH_AUTH_SOCK", "VIRTUAL_ENV")
_TURN_EVENTS = ("SessionStart", "UserPromptSubmit", "PostToolUse", "Stop")
_GEMINI_EVENTS = ("SessionStart", "BeforeAgent", "AfterTool", "AfterAgent")
# Claude Code lets this hook stay behind when the turn ends, and goes on when it says something.
_STAYS_BEHIND: dict[str, object] = {"asyncRewake": True, "timeout": 86_400}


class Edit(Protocol):
    """Something of ours in a text: how it comes and how it goes. `where` is how errors call the file."""

    def wire(self, text: str, where: str) -> str: ...

    def unwire(self, text: str, where: str) -> str: ...


class Server(NamedTuple):
    """Our server among those of a client. What a person added to it, or set in place of `may`, stays."""

    path: tuple[str, ...]
    must: dict[str, object]
    may: dict[str, object]

    def wire(self, text: str, where: str) -> str:
        language = _language(where)
        found = language.get(text, self.path, where)
        return language.put(text, self.path, {**self.must, **self.may, **(found if isinstance(found, dict) else {}), **self.must}, where)

    def unwire(self, text: str, where: str) -> str:
        return _language(where).remove(text, self.path, where)


class Hooks(NamedTuple):
    """Our command at each event where it is to be called. It is known by how it ends."""

    client: str
    hooks: dict[str, dict[str, object]]

    def wire(self, text: str, where: str) -> str:
        for event in dict.fromkeys([*self.hooks, *self._told(text, where)]):
            hook, places = self.hooks.get(event), list(self._places(text, event, where))
            for group, index in reversed(places[1:] if hook else places):
                text = self._removed(text, event, group, index, where)
            if hook and not places:
                text = jsonc.append(text, ("hooks", event), {"hooks": [hook]}, where)
            elif hook:
                place = ("hooks", event, places[0][0], "hooks", places[0][1])
                found = jsonc.get(text, place, where)
                text = jsonc.put(text, place, {**(found if isinstance(found, dict) else {}), **hook}, where)
        return text

    def unwire(self, text: str, where: str) -> str:
        for event in self._told(text, where):
            for group, index in reversed(list(self._places(text, event, where))):
                text = self._removed(text, event, group, index, where)
        return text

    def _told(self, text: str, where: str) -> list[str]:
        hooks = jsonc.get(text, ("hooks",), where)
        return [event for event in hooks if list(self._places(text, event, where))] if isinstance(hooks, dict) else []

    def _places(self, text: str, event: str, where: str) -> Iterable[tuple[int, int]]:
        """Where our command stands: the number of the group and its own in that."""
        groups = jsonc.get(text, ("hooks", event), where)
        for number, group in enumerate(groups if isinstance(groups, list) else ()):
            hooks = group.get("hooks") if isinstance(group, dict) else None
            for index, hook in enumerate(hooks if isinstance(hooks, list) else ()):
                command = hook.get("command") if isinstance(hook, dict) else None
                if isinstance(command, str) and command.endswith(f" inbox --hook {self.client}"):
                    yield number, index

    def _removed(self, text: str, event: str, group: int, index: int, where: str) -> str:
        """A group goes with the only hook it has: without one it would be an error."""
        hooks = jsonc.get(text, ("hooks", event, group, "hooks"), where)
        alone = isinstance(hooks, list) and len(hooks) == 1
        return jsonc.remove(text, ("hooks", event, group) if alone else ("hooks", event, group, "hooks", index), where)


class Listed(NamedTuple):
    """One word of ours in a list of theirs."""

    path: tuple[str, ...]
    word: str

    def wire(self, text: str, where: str) -> str:
        return text if self._places(text, where) else jsonc.append(text, self.path, self.word, where)

    def unwire(self, text: str, where: str) -> str:
        for index in reversed(self._places(text, where)):
            text = jsonc.remove(text, (*self.path, index), where)
        return text

    def _places(self, text: str, where: str) -> list[int]:
        found = jsonc.get(text, self.path, where)
        return [index for index, word in enumerate(found) if word == self.word] if isinstance(found, list) else []


class Whole(NamedTuple):
    """A file that is ours alone, of this version or another: it says our name."""

    content: str

    def wire(self, text: str, where: str) -> str:
        return self.content

    def unwire(self, text: str, where: str) -> str:
        return "" if _NAME in text.lower() else text


class File(NamedTuple):
    path: str
    edits: tuple[Edit, ...]

    def wired(self, text: str) -> str:
        for edit in self.edits:
            text = edit.wire(text, self.path)
        return text

    def unwired(self, text: str) -> str:
        for edit in self.edits:
            text = edit.unwire(text, self.path)
        return text


class Client(NamedTuple):
    """A coding agent: the folders that show that it is used here, and its files."""

    folders: tuple[str, ...]
    files: tuple[File, ...]


class Examined(NamedTuple):
    client: str
    found: bool
    wired: bool
    detail: str
    never_wired: bool = False  # nothing of ours is in its settings


def plan(client: str, environ: dict[str, str], command: tuple[str, ...], *, undo: bool = False) -> list[Change]:
    """What has to change so that a client knows Backburner as `command`; with `undo`, so that it does not."""
    changes = (_back(file) if undo else _forth(file) for file in _client(client, environ, command).files)
    return [change for change in changes if change]


def is_found(client: str, environ: dict[str, str]) -> bool:
    """Whether a client is on this machine."""
    return bool(shutil.which(client, path=environ.get("PATH", os.defpath))) or any(
        os.path.exists(folder) for folder in _client(client, environ, ()).folders
    )


def examine(environ: dict[str, str], home: str | None = None) -> list[Examined]:
    """How it stands with each client; what is wrong with a file is said, not raised."""
    return [_examined(client, environ, home) for client in CLIENTS]


def own_command(environ: dict[str, str], home: str | None = None) -> tuple[str, ...]:
    """The command that starts this very Backburner from any folder, whatever PATH the client has.

    Where another home than the usual one is meant it is named: clients do not hand on all variables.
    """
    place = ("--home", os.path.abspath(locate(home, environ))) if home or environ.get("BACKBURNER_HOME") else ()
    return (*_program(environ), *place)


def _program(environ: dict[str, str]) -> tuple[str, ...]:
    script = os.path.join(os.path.dirname(sys.executable), _NAME)
    places = [os.path.join(_ROOT, _NAME), script] if os.path.join(_ROOT, "src", _NAME) == _PACKAGE else [script]
    own = next((path for path in places if os.path.isfile(path) and os.access(path, os.X_OK)), None)
    if own is None:
        command = (sys.executable, "-P", "-m", _NAME)
    else:
        # A link on the PATH outlives an upgrade that moves what it leads to.
        linked = shutil.which(_NAME, path=environ.get("PATH", os.defpath))
        command = (os.path.abspath(linked) if linked and os.path.samefile(linked, own) else own,)
    if any("\udc80" <= character <= "\udcff" for word in command for character in word):
        raise BadInput("The path of Backburner must be valid UTF-8 for a client to start it.")
    return command


def _forth(file: File) -> Change | None:
    before = read(file.path)
    after = file.wired(before or "")
    return None if after == before else Change(file.path, before, after, first=before is None or file.unwired(before) == before)


def _back(file: File) -> Change | None:
    """Without ours; just as it was before where nobody else changed it since."""
    before = read(file.path)
    if before is None:
        return None
    bare = file.unwired(before)
    if bare == before:
        return None
    original = read(file.path + BACKUP)
    try:
        if original is not None and file.unwired(original) != original:
            original = None  # from a second install into a file that the first one made
        untouched = bare == file.unwired(file.wired(original or ""))
    except BadInput:
        untouched = False
    return Change(file.path, before, original if untouched else bare)


def _examined(client: str, environ: dict[str, str], home: str | None) -> Examined:
    found = is_found(client, environ)
    if not found:
        return Examined(client, False, False, "is not on this machine")
    files = _client(client, environ, ()).files
    try:
        changes = plan(client, environ, own_command(environ, home))
    except BackburnerError as error:
        # Without tomlkit no change of Codex's file can be planned; that is not wrong if Codex never knew Backburner.
        unplanned = client == "codex" and not is_installed("toml") and not any(map(_has_ours, files))
        return Examined(client, True, False, f"does not know Backburner; {error}" if unplanned else str(error), unplanned)
    if not changes:
        return Examined(client, True, True, "knows Backburner")
    new = len(changes) == len(files) and all(change.first for change in changes)
    told = "does not know Backburner" if new else "knows another Backburner, or not all of this one"
    return Examined(client, True, False, f"{told}; see: backburner install {client}", new)


def _has_ours(file: File) -> bool:
    """Whether a file holds anything of ours, or cannot be read to tell."""
    try:
        text = read(file.path)
        return text is not None and file.unwired(text) != text
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
            raise BadInput(f"There is no client '{client}'; there are {', '.join(CLIENTS)}.")


def _opencode(environ: dict[str, str], command: tuple[str, ...]) -> Client:
    folder = os.path.join(_folder(environ, "XDG_CONFIG_HOME", ".config"), "opencode")
    commented = os.path.join(folder, "opencode.jsonc")
    config = commented if os.path.exists(commented) else os.path.join(folder, "opencode.json")
    must = {"type": "local", "command": [*command, "mcp", "--client", "opencode"], "enabled": True}
    plugin = _own_file("interfaces", "client_setup", "opencode.js") or "// Backburner\nexport {}\n"
    return Client(
        (folder,),
        (
            File(config, (Server(("mcp", _NAME), must, {"timeout": 60000}),)),
            File(os.path.join(folder, "plugins", "backburner.js"), (Whole(plugin.replace("__BACKBURNER__", json.dumps(command))),)),
        ),
    )


def _claude(environ: dict[str, str], command: tuple[str, ...]) -> Client:
    folder = _folder(environ, "CLAUDE_CONFIG_DIR", ".claude")
    state = os.path.join(folder if environ.get("CLAUDE_CONFIG_DIR") else _home(environ), ".claude.json")
    older = os.path.join(folder, ".config.json")
    files = [
        File(older if os.path.exists(older) else state, (_stdio(command, "claude", {"type": "stdio"}, {"env": {}}),)),
        File(
            os.path.join(folder, "settings.json"),
            (
                # It need not ask before it calls us: the gate asks, and for the command itself.
                Listed(("permissions", "allow"), f"mcp__{_NAME}"),
                _hooks(command, "claude", _TURN_EVENTS, 10, {"Stop": _STAYS_BEHIND}),
            ),
        ),
    ]
    if skill := _own_file("skills", _NAME, "SKILL.md"):
        files.append(File(os.path.join(folder, "skills", _NAME, "SKILL.md"), (Whole(skill),)))
    return Client((folder, state), tuple(files))


def _codex(environ: dict[str, str], command: tuple[str, ...]) -> Client:
    folder = _folder(environ, "CODEX_HOME", ".codex")
    must = {"command": command[0] if command else "", "args": [*command[1:], "mcp", "--client", "codex"]}
    may = {
        "required": True,  # else the first turn may run without us
        "default_tools_approval_mode": "approve",  # the gate asks, for the command itself
        "env_vars": list(_HANDED_ON),  # Codex clears the environment of servers
        "startup_timeout_sec": 30,
        "tool_timeout_sec": 300,
    }
    return Client(
        (folder,),
        (
            File(os.path.join(folder, "config.toml"), (Server(("mcp_servers", _NAME), must, may),)),
            File(os.path.join(folder, "hooks.json"), (_hooks(command, "codex", _TURN_EVENTS, 10),)),
        ),
    )


def _gemini(environ: dict[str, str], command: tuple[str, ...]) -> Client:
    folder = os.path.join(environ.get("GEMINI_CLI_HOME") or _home(environ), ".gemini")
    trust: dict[str, object] = {"trust": True}  # else no tool is offered without a terminal; the gate asks for the command itself
    edits = (_stdio(command, "gemini", {}, trust), _hooks(command, "gemini", _GEMINI_EVENTS, 10_000))
    return Client((folder,), (File(os.path.join(folder, "settings.json"), edits),))


def _stdio(command: tuple[str, ...], client: str, first: dict[str, object], may: dict[str, object]) -> Server:
    must = {**first, "command": command[0] if command else "", "args": [*command[1:], "mcp", "--client", client]}
    return Server(("mcpServers", _NAME), must, may)


def _hooks(
    command: tuple[str, ...], client: str, events: tuple[str, ...], timeout: int, more: dict[str, dict[str, object]] | None = None
) -> Hooks:
    hook = {"type": "command", "command": shlex.join([*command, "inbox", "--hook", client]), "timeout": timeout}
    return Hooks(client, {event: {**hook, **(more or {}).get(event, {})} for event in events})


def _language(path: str) -> ModuleType:
    return toml if path.endswith(".toml") else jsonc


def _home(environ: dict[str, str]) -> str:
    return environ.get("HOME") or os.path.expanduser("~")


def _folder(environ: dict[str, str], variable: str, name: str) -> str:
    return os.path.abspath(environ.get(variable) or os.path.join(_home(environ), name))


def _own_file(*names: str) -> str | None:
    """A text that comes with Backburner: beside the modules, or at the root of the repository."""
    return next((text for root in (_PACKAGE, _ROOT) if (text := read(os.path.join(root, *names))) is not None), None)
