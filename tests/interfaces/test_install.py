"""`install` edits files of other programs: it shows the changes, asks for confirmation, and can undo them completely."""

import argparse
import json
import os
import pty
import select
import shlex
import stat
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from backburner.core.errors import BackburnerError, NotAPerson
from backburner.interfaces.cli.install import install, mask_secrets
from backburner.interfaces.client_setup import jsonc, wiring
from backburner.interfaces.client_setup.files import BACKUP, Change, apply

ROOT = Path(__file__).parent.parent.parent
LAUNCHER = str(ROOT / "backburner")
CLIENTS = wiring.CLIENTS
OPENCODE = """{
\t// mine
\t"model": "fake/one",
\t"mcp": {
\t\t"other": { "type": "local", "command": ["x"], "environment": { "API_KEY": "hush-hush" } }, // keep
\t},
}
"""
SETTINGS = """{
  "permissions": {"allow": ["Bash(ls)"]},
  "hooks": {
    "Stop": [
      {"hooks": [{"type": "command", "command": "say done"}]}
    ]
  }
}"""
DRIVER = """
import os, sys
from argparse import Namespace
from backburner.interfaces.cli.install import install
from backburner.core.errors import BackburnerError
try:
    sys.exit(install(Namespace(client=sys.argv[1], undo=False, yes=False, json=False, home=None), {}))
except BackburnerError as error:
    print(error)
    sys.exit(error.exit_code)
"""


class Person:
    """A home directory with the settings of agent clients."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.environ = {"HOME": str(home), "PATH": str(home / "bin")}
        self.opencode = home / ".config" / "opencode" / "opencode.jsonc"
        self.claude = home / ".claude.json"
        self.settings = home / ".claude" / "settings.json"
        self.codex = home / ".codex" / "config.toml"
        self.gemini = home / ".gemini" / "settings.json"

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())

    def install(self, client: str, *, undo: bool = False, yes: bool = True, as_json: bool = False) -> int:
        return install(argparse.Namespace(client=client, undo=undo, yes=yes, json=as_json, home=None), {}, self.environ)

    def refused(self, client: str, *, undo: bool = False, yes: bool = True) -> tuple[int, str]:
        before = self.all_files()
        with pytest.raises(BackburnerError) as raised:
            self.install(client, undo=undo, yes=yes)
        assert self.all_files() == before
        return raised.value.exit_code, str(raised.value)

    def all_files(self) -> dict[str, bytes | str]:
        """The content of every file, or the target of a link, by path."""
        return {
            str(path.relative_to(self.home)): os.readlink(path) if path.is_symlink() else path.read_bytes()
            for path in sorted(self.home.rglob("*"))
            if path.is_symlink() or path.is_file()
        }

    def start_at_prompt(self, client: str) -> tuple[int, int]:
        """Start `install` in a pseudo-terminal and wait for its question; return the process ID and the terminal."""
        pid, terminal = pty.fork()
        if pid == 0:
            os.execve(sys.executable, [sys.executable, "-c", DRIVER, client], {**self.environ, "TERM": "xterm"})
        read_until(terminal, "Change these files? [y/N]")
        return pid, terminal


def read_until(terminal: int, text: str = "") -> str:
    """The output of a terminal up to a text, or until its program has exited."""
    screen, deadline = b"", time.monotonic() + 30
    while time.monotonic() < deadline and not (text and text.encode() in screen):
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                screen += os.read(terminal, 4096)
            except OSError:
                break
    assert not text or text.encode() in screen, screen
    return screen.decode()


@pytest.fixture
def person(tmp_path: Path) -> Person:
    home = tmp_path / "person"
    home.mkdir()
    return Person(home)


def test_each_client_gets_the_command_of_this_installation(person: Person) -> None:
    for client in CLIENTS:
        assert person.install(client) == 0
    folder = person.home / ".config" / "opencode"
    assert json.loads((folder / "opencode.json").read_text())["mcp"]["backburner"] == {
        "type": "local",
        "command": [LAUNCHER, "mcp", "--client", "opencode"],
        "enabled": True,
        "timeout": 60000,
    }
    assert "__BACKBURNER__" not in (folder / "plugins" / "backburner.js").read_text()
    claude = json.loads(person.claude.read_text())["mcpServers"]["backburner"]
    assert claude == {"type": "stdio", "command": LAUNCHER, "args": ["mcp", "--client", "claude"], "env": {}}
    codex = tomllib.loads(person.codex.read_text())["mcp_servers"]["backburner"]
    assert (codex["command"], codex["args"], codex["required"]) == (LAUNCHER, ["mcp", "--client", "codex"], True)
    gemini = json.loads(person.gemini.read_text())
    assert gemini["mcpServers"]["backburner"] == {"command": LAUNCHER, "args": ["mcp", "--client", "gemini"], "trust": True}
    stop = json.loads(person.settings.read_text())["hooks"]["Stop"][0]["hooks"][0]
    assert (stop["asyncRewake"], stop["timeout"]) == (True, 86_400)
    events = {"claude": person.settings, "codex": person.home / ".codex" / "hooks.json", "gemini": person.gemini}
    for client, path in events.items():
        hooks = json.loads(path.read_text())["hooks"]
        assert len(hooks) == 4
        for event, groups in hooks.items():
            words = shlex.split(groups[0]["hooks"][0]["command"])
            assert words[-4:] == [LAUNCHER, "inbox", "--hook", client]
            assert len(words) == 4 or (event in ("PostToolUse", "AfterTool") and words[:2] == ["sh", "-c"])


def test_the_diff_shows_the_changes_and_masks_secrets(person: Person, capsys: pytest.CaptureFixture[str]) -> None:
    person.write(person.opencode, OPENCODE)
    person.install("opencode")
    shown = capsys.readouterr().out
    assert f"--- {person.opencode}" in shown and '"backburner": {' in shown
    assert "hush-hush" not in shown and '"API_KEY": "***"' in shown
    assert "Restart opencode, then enter: run the tests in the background and tell me the result." in shown


def test_the_diff_shows_added_text_exactly_as_it_is_written(person: Person, capsys: pytest.CaptureFixture[str]) -> None:
    person.write(person.opencode, OPENCODE)
    person.install("opencode")
    added = [line[1:] for line in capsys.readouterr().out.splitlines() if line.startswith("+") and not line.startswith("+++")]
    plugin = next(person.home.rglob("*.js"))
    assert "\n".join(plugin.read_text().splitlines()) in "\n".join(added)


def test_named_secrets_and_long_keys_of_the_file_are_masked() -> None:
    for line, shown in (
        (' token = "abc"', ' token = "***"'),
        ("  'args': ['--key', 'sk-proj-0123456789abcdef0123']", "  'args': ['--key', '***']"),
        (f'+ "command": "{LAUNCHER}"', f'+ "command": "{LAUNCHER}"'),
        ('+ env.BACKBURNER_SESSION = "opencode:"', '+ env.BACKBURNER_SESSION = "opencode:"'),
    ):
        assert mask_secrets(line, line) == shown
        assert mask_secrets(line, "") == line, "it is new, so it is ours"


def test_comments_commas_and_other_servers_stay(person: Person) -> None:
    person.write(person.opencode, OPENCODE)
    person.install("opencode")
    text = person.opencode.read_text()
    assert not person.opencode.with_suffix(".json").exists()
    assert jsonc.get(text, ("mcp", "other", "command")) == ["x"]
    assert "// mine" in text and text.replace(text[text.index("// keep") + 7 : text.index("\n\t},\n}")], "") == OPENCODE


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("form", ["none", "plain", "crlf", "mark", "empty", "one line"])
def test_undo_restores_every_file_byte_for_byte(person: Person, client: str, form: str) -> None:
    texts = {person.opencode: OPENCODE, person.claude: '{\n  "numStartups": 3,\n  "mcpServers": {}\n}', person.settings: SETTINGS}
    texts |= {person.codex: 'model = "x" # mine\n[mcp_servers.other]\ncommand = "y"', person.gemini: SETTINGS}
    for path, text in texts.items() if form != "none" else ():
        match form:
            case "crlf":
                text = text.replace("\n", "\r\n")
            case "mark":
                text = "\ufeff" + text
            case "empty":
                text = ""
            case "one line":
                text = "a = 1" if path == person.codex else '{ "a": 1 }'
        person.write(path, text)
    before = person.all_files()
    assert person.install(client) == 0
    changed = person.all_files()
    assert changed != before and {name for name in before if before[name] != changed[name]} <= {
        name.removesuffix(BACKUP) for name in changed
    }
    assert person.install(client, undo=True) == 0
    assert person.all_files() == before


@pytest.mark.parametrize(
    "text",
    [
        "mcp_servers = { other = { command = 'y' } } # mine\n\n[z]\na = 1\n",
        "mcp_servers = {}",
        "mcp_servers.other.command = 'y' # mine\r\n\r\n# about z\r\n[z]\r\n",
        "[mcp_servers]\nother.command = 'y'\n\n# about z\n[z]\n[mcp_servers.third]",
        "\ufeff['mcp_servers' . \"other\"]\n'a.b' = 1",
        "[[profiles]]\na = 1\n[z]\n[[profiles]]\na = 2\n# last",
        "# only a comment",
        "\n\n",
    ],
)
def test_undo_restores_codex_settings_of_any_form(person: Person, text: str) -> None:
    person.write(person.codex, text)
    before = person.all_files()
    assert person.install("codex") == 0
    after = tomllib.loads(person.codex.read_text().removeprefix("\ufeff"))
    servers = after.pop("mcp_servers")
    assert servers.pop("backburner")["command"] == LAUNCHER
    expected = tomllib.loads(text.replace("\r\n", "\n").removeprefix("\ufeff"))
    assert servers == expected.pop("mcp_servers", {}) and after == expected
    assert person.install("codex", undo=True) == 0
    assert person.all_files() == before


@pytest.mark.parametrize("client", CLIENTS)
def test_a_second_install_changes_nothing(person: Person, client: str, capsys: pytest.CaptureFixture[str]) -> None:
    person.install(client)
    before = person.all_files()
    capsys.readouterr()
    assert person.install(client, yes=False) == 0
    assert "already" in capsys.readouterr().out and person.all_files() == before
    person.install(client, undo=True)
    capsys.readouterr()
    assert person.install(client, undo=True, yes=False) == 0
    assert "nothing to undo" in capsys.readouterr().out


def test_undo_keeps_later_changes_of_the_person(person: Person) -> None:
    person.write(person.opencode, OPENCODE)
    person.write(person.settings, SETTINGS)
    person.write(person.codex, "a = 1\n")
    for client in ("opencode", "claude", "codex"):
        person.install(client)
    person.write(person.opencode, person.opencode.read_text().replace("fake/one", "fake/two"))
    settings = json.loads(person.settings.read_text())
    settings["hooks"]["Stop"][1]["hooks"].append({"type": "command", "command": "mine too"})
    settings["theme"] = "dark"
    person.write(person.settings, json.dumps(settings))
    person.write(person.codex, person.codex.read_text() + "\n[later]\nb = 2\n")
    for client in ("opencode", "claude", "codex"):
        person.install(client, undo=True)
    assert person.opencode.read_text() == OPENCODE.replace("fake/one", "fake/two")
    left = json.loads(person.settings.read_text())
    commands = [hook["command"] for group in left["hooks"]["Stop"] for hook in group["hooks"]]
    assert commands == ["say done", "mine too"] and list(left["hooks"]) == ["Stop"] and left["theme"] == "dark"
    assert tomllib.loads(person.codex.read_text()) == {"a": 1, "later": {"b": 2}}
    assert not [name for name in person.all_files() if name.endswith(BACKUP)]


def test_a_second_install_keeps_the_persons_server_settings(person: Person) -> None:
    mine = {"type": "local", "command": ["/old/backburner"], "enabled": False, "timeout": 5, "environment": {"A": "b"}}
    person.write(person.opencode, json.dumps({"mcp": {"backburner": mine}}))
    person.write(person.codex, "[mcp_servers.backburner]\ncommand = '/old'\ntool_timeout_sec = 7\nenv = { A = 'b' }\n")
    person.install("opencode")
    person.install("codex")
    ours = json.loads(person.opencode.read_text())["mcp"]["backburner"]
    assert ours == {**mine, "command": [LAUNCHER, "mcp", "--client", "opencode"], "enabled": True}
    codex = tomllib.loads(person.codex.read_text())["mcp_servers"]["backburner"]
    assert (codex["command"], codex["tool_timeout_sec"], codex["env"]) == (LAUNCHER, 7, {"A": "b"})


def test_hooks_of_another_installation_are_replaced_and_not_duplicated(person: Person) -> None:
    ours = {"type": "command", "command": "'/old place/backburner' inbox --hook claude", "timeout": 3}
    person.write(person.settings, json.dumps({"hooks": {"Stop": [{"hooks": [ours]}, {"hooks": [ours]}], "Setup": [{"hooks": [ours]}]}}))
    person.install("claude")
    hooks = json.loads(person.settings.read_text())["hooks"]
    assert "Setup" not in hooks and all(len(groups) == 1 for groups in hooks.values()) and "old place" not in person.settings.read_text()


def test_the_backup_has_the_state_before_the_first_install(person: Person) -> None:
    person.write(person.codex, "a = 1\n")
    person.install("codex")
    backup = Path(f"{person.codex}{BACKUP}")
    person.write(person.codex, person.codex.read_text().replace(LAUNCHER, "/old") + "[b]\n")
    person.install("codex")
    assert backup.read_text() == "a = 1\n"
    person.write(person.codex, "a = 2\n")  # undone by hand
    person.install("codex")
    assert backup.read_text() == "a = 2\n"


@pytest.mark.parametrize("client", CLIENTS)
def test_undo_works_after_installing_over_an_older_version(person: Person, client: str) -> None:
    person.write(person.claude, '{"a": 1}')
    before = person.all_files()
    person.install(client)
    paths = [person.home / name for name in person.all_files()]
    for path in paths:
        path.write_text(path.read_text().replace(LAUNCHER, "/old/backburner"))
    person.install(client)
    assert not [path for path in paths if "/old/backburner" in path.read_text()]
    person.install(client, undo=True)
    assert person.all_files() == before


def test_undo_restores_a_foreign_file_that_was_replaced(person: Person) -> None:
    plugin = person.opencode.parent / "plugins" / "backburner.js"
    person.write(plugin, "export const mine = 1\n")
    person.install("opencode")
    assert "export const mine" not in plugin.read_text()
    person.install("opencode", undo=True)
    assert plugin.read_text() == "export const mine = 1\n"


def test_a_symlinked_file_is_changed_in_place_and_keeps_its_mode(person: Person) -> None:
    real = person.home / "dotfiles" / "claude-settings"
    person.write(real, SETTINGS)
    real.chmod(0o640)
    person.settings.parent.mkdir()
    person.settings.symlink_to(os.path.relpath(real, person.settings.parent))
    before = person.all_files()
    person.install("claude")
    assert person.settings.is_symlink() and "inbox --hook claude" in real.read_text()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640 == stat.S_IMODE(os.stat(f"{person.settings}{BACKUP}").st_mode)
    person.install("claude", undo=True)
    assert person.all_files() == before


def test_a_dangling_symlink_is_kept(person: Person) -> None:
    person.codex.parent.mkdir()
    person.codex.symlink_to(person.home / "dotfiles" / "codex.toml")
    person.install("codex")
    assert "[mcp_servers.backburner]" in (person.home / "dotfiles" / "codex.toml").read_text()
    person.install("codex", undo=True)
    assert person.codex.is_symlink() and not person.codex.exists()


def test_new_files_are_private(person: Person) -> None:
    person.install("claude")
    assert stat.S_IMODE(person.claude.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("client", "path", "text", "says"),
    [
        ("opencode", "opencode", '{\n  "mcp": {,}\n}', "line 2, column 11"),
        ("opencode", "opencode", '{"mcp": []}', '"mcp" is not an object'),
        ("claude", "claude", "{'a': 1}", "line 1, column 2"),
        ("claude", "settings", '{"hooks": {"Stop": {}}}', '"hooks.Stop" is not a list'),
        ("codex", "codex", "a = = 1", "not valid TOML"),
        ("codex", "codex", "mcp_servers = 1", '"mcp_servers" is not a table'),
        ("codex", "codex", "[[mcp_servers]]\ncommand = 'x'\n", '"mcp_servers" is not a table'),
        ("codex", "codex", "[[a]]\n[b]\n[[a]]\n[mcp_servers]\nbackburner = {}\n", "because of how it is written; add it by hand"),
        ("gemini", "gemini", "[]", "is not an object"),
        ("gemini", "gemini", '{"a": 1', "unexpected end of the file"),
    ],
)
def test_invalid_settings_are_named_and_nothing_is_changed(person: Person, client: str, path: str, text: str, says: str) -> None:
    wrong = getattr(person, path)
    person.write(wrong, text)
    code, message = person.refused(client)
    assert code == 2 and str(wrong) in message and says in message and "Nothing was changed." in message


def test_without_tomlkit_only_codex_fails_and_the_extra_is_named(person: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    person.write(person.codex, "a = 1\n")
    monkeypatch.setitem(sys.modules, "tomlkit", None)
    needed = f"Editing {person.codex} needs the extra `mcp`: pip install 'backburner[mcp]'."
    assert person.refused("codex") == (2, needed)
    assert person.install("codex", undo=True) == 0 and person.install("claude") == 0
    codex = next(one for one in wiring.examine(person.environ) if one.client == "codex")
    assert codex == ("codex", True, False, f"is not set up for Backburner; {needed}", True)
    monkeypatch.undo()
    person.install("codex")
    monkeypatch.setitem(sys.modules, "tomlkit", None)
    assert "is set up for Backburner" in [one.detail for one in wiring.examine(person.environ) if one.client == "codex"]
    person.write(person.codex, person.codex.read_text().replace(LAUNCHER, "/old"))
    assert needed in [one.detail for one in wiring.examine(person.environ) if one.client == "codex"]
    assert person.refused("codex", undo=True) == (2, needed)


def test_settings_that_are_not_text_are_refused(person: Person) -> None:
    person.write(person.gemini, "")
    person.gemini.write_bytes(b'{"a": "\xff"}')
    assert person.refused("gemini") == (2, f"{person.gemini} is not valid UTF-8 (byte 7). Nothing was changed.")


def test_an_unwritable_file_is_named_and_nothing_is_changed(person: Person) -> None:
    person.gemini.mkdir(parents=True)
    assert person.refused("gemini") == (1, f"{person.gemini} is not a file. Nothing was changed.")
    (person.home / ".codex").write_text("in the way")
    code, message = person.refused("codex")
    assert code == 1 and message == f"{person.codex} cannot be changed: Not a directory. Nothing was changed."
    person.settings.parent.mkdir()
    os.mkfifo(person.settings)
    assert person.refused("claude")[0] == 1


def test_if_one_file_cannot_be_written_the_others_are_restored(person: Person) -> None:
    person.write(person.opencode, OPENCODE)
    (person.opencode.parent / "plugins").write_text("in the way of the folder for the second file")
    code, _ = person.refused("opencode")
    assert code == 1
    first, second = person.home / "made" / "first", person.home / "second"
    second.mkdir()
    before = person.all_files()
    with pytest.raises(BackburnerError, match="Nothing was changed"):
        apply([Change(str(first), None, "x"), Change(str(person.opencode), OPENCODE, "y"), Change(str(second), None, "z")])
    assert person.all_files() == before and not first.parent.exists()


def test_without_a_terminal_it_needs_yes(person: Person, capsys: pytest.CaptureFixture[str]) -> None:
    code, message = person.refused("claude", yes=False)
    assert code == 3 and "--yes" in message and "+++" in capsys.readouterr().out


def test_json_without_confirmation_prints_the_planned_changes_as_json(person: Person, capsys: pytest.CaptureFixture[str]) -> None:
    before = person.all_files()
    with pytest.raises(NotAPerson):
        person.install("claude", yes=False, as_json=True)
    printed = capsys.readouterr()
    planned = json.loads(printed.out)
    assert planned["changed"] == [] and str(person.claude) in planned["would_change"] and "mcpServers" in planned["diff"]
    assert printed.err == "" and person.all_files() == before


@pytest.mark.parametrize(("keys", "code"), [("y\n", 0), ("n\n", 3), ("\n", 3)])
def test_install_asks_for_confirmation_at_a_terminal(person: Person, keys: str, code: int) -> None:
    pid, terminal = person.start_at_prompt("codex")
    assert not person.codex.exists()
    os.write(terminal, keys.encode())
    screen = read_until(terminal)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == code
    assert person.codex.exists() == (code == 0) and ("Nothing was changed." in screen) == (code == 3)


def test_a_file_changed_during_the_question_stops_the_install(person: Person) -> None:
    person.write(person.codex, "a = 1\n")
    pid, terminal = person.start_at_prompt("codex")
    person.write(person.codex, "a = 2\n")
    before = person.all_files()
    os.write(terminal, b"y\n")
    screen = read_until(terminal)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    assert "was modified by another program meanwhile" in screen and person.all_files() == before


def test_json_output_names_the_changed_files(person: Person, capsys: pytest.CaptureFixture[str]) -> None:
    assert person.install("gemini", as_json=True) == 0
    output = json.loads(capsys.readouterr().out)
    assert (output["client"], output["changed"]) == ("gemini", [str(person.gemini)]) and "+++" in output["diff"]
    person.install("gemini", as_json=True)
    assert json.loads(capsys.readouterr().out) == {"client": "gemini", "changed": [], "diff": ""}


def test_variables_of_the_clients_move_their_settings_files(person: Person) -> None:
    person.environ |= {name: str(person.home / name) for name in ("XDG_CONFIG_HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME", "GEMINI_CLI_HOME")}
    for client in CLIENTS:
        person.install(client)
    assert {name.rsplit("/", 1)[0] for name in person.all_files()} >= {"CLAUDE_CONFIG_DIR", "CODEX_HOME", "GEMINI_CLI_HOME/.gemini"}
    assert (person.home / "XDG_CONFIG_HOME" / "opencode" / "opencode.json").exists() and not person.claude.exists()
    assert (person.home / "CLAUDE_CONFIG_DIR" / ".claude.json").exists()


def test_examine_reports_found_and_configured_clients_and_never_raises(person: Person) -> None:
    assert {(one.client, one.found, one.wired) for one in wiring.examine(person.environ)} == {(client, False, False) for client in CLIENTS}
    person.write(person.codex, "a = = 1")
    program = person.home / "bin" / "gemini"
    person.write(program, "#!/bin/sh\n")
    program.chmod(0o755)
    person.install("claude")
    person.write(person.opencode, '{"mcp": {"backburner": {"type": "local", "command": ["/old"]}}}')
    found = {one.client: one for one in wiring.examine(person.environ)}
    assert found["claude"][1:] == (True, True, "is set up for Backburner", False)
    assert not found["codex"].wired and "not valid TOML" in found["codex"].detail
    assert found["gemini"][1:3] == (True, False) and "backburner install gemini" in found["gemini"].detail
    assert {client for client, one in found.items() if one.never_wired} == {"gemini"}
    assert found["opencode"][1:3] == (True, False) and "another installation" in found["opencode"].detail


def test_own_command_exists_and_prefers_a_link_on_the_path(person: Person) -> None:
    assert wiring.own_command(person.environ) == (LAUNCHER,)
    (person.home / "bin").mkdir()
    (person.home / "bin" / "backburner").write_text("#!/bin/sh\necho somebody else\n")
    (person.home / "bin" / "backburner").chmod(0o755)
    assert wiring.own_command(person.environ) == (LAUNCHER,)
    (person.home / "bin" / "backburner").unlink()
    (person.home / "bin" / "backburner").symlink_to(LAUNCHER)
    assert wiring.own_command(person.environ) == (str(person.home / "bin" / "backburner"),)
    done = subprocess.run([*wiring.own_command(person.environ), "--version"], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("backburner ")
