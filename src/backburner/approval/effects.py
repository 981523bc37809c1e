"""The effects that a command can have, and a view of one command that resolves its words and paths.

This module decides whether a path is read, created, overwritten or outside the project. It is pure: everything about the machine comes
from a `CommandContext`.
"""

import functools
import os
import unicodedata
from collections.abc import Iterable, Iterator
from enum import StrEnum

from backburner.approval.shell_parser import Redirect, SimpleCommand, Word
from backburner.approval.wrappers import Options, count_option_words
from backburner.core.deferred_modules import re
from backburner.core.light_typing import NamedTuple, Protocol

_MAX_WORD_CHARACTERS = 4096


class Effect(StrEnum):
    HARMLESS = "harmless"
    READS = "reads"
    CREATES = "creates"
    PROJECT_CODE = "project_code"
    NETWORK_READ = "network_read"
    READS_OUTSIDE = "reads_outside"
    READS_SECRETS = "reads_secrets"
    OVERWRITES = "overwrites"
    WRITES_OUTSIDE = "writes_outside"
    DELETES = "deletes"
    NETWORK_CHANGE = "network_change"
    PRIVILEGE = "privilege"
    INTERPRETER = "interpreter"
    INSTALLS = "installs"
    PUBLISHES = "publishes"
    PROCESSES = "processes"
    INJECTION = "injection"
    UNKNOWN = "unknown"
    UNREADABLE = "unreadable"  # what would run cannot be determined at all
    # The following are decided by the sandbox that this machine offers.
    EDITS = "edits"  # changes or deletes named files of the project
    PROTECTED = "protected"  # changes files that other programs use automatically
    REPOSITORY = "repository"  # changes the git folder
    DISCARDS = "discards"  # can discard work that was not committed
    READS_MACHINE = "reads_machine"  # shows processes and ports of this machine
    READS_SERVICE = "reads_service"  # reads from a service with the user's credentials
    LOOPBACK = "loopback"  # connects to a port of this machine
    LISTENS = "listens"  # waits for connections


RUNS_PROGRAMS = (
    "runs programs"  # in a finding: it may run programs of the project, which must not reach more than other code of the project
)
OPENS_FILES = "opens files"  # in a finding: it prints the content of files, which must not be the credentials of a service
OWN_SERVER = "own server"  # in a finding: harmless on the loopback device of a line that starts its own server, as is one with a port
OWN_PROCESS = (
    "own process"  # in a finding: harmless where no other processes can be seen, in a line that starts something in the background
)
SYSTEM_BUS = "/run/dbus/system_bus_socket"
WITHOUT_PROJECT = "without the project"  # in a finding: it needs the network, but no files, so that none can be sent


class Finding(NamedTuple):
    """One effect of a command, with the text that is shown to the user."""

    effect: Effect
    detail: str
    value: str | int | None = None  # what the sandbox must contain for it: a folder or a port of this machine; or `RUNS_PROGRAMS`


class CommandContext(Protocol):
    """The facts about the machine that the gate needs to check a command."""

    cwd: str
    user_home: str
    ours: bool  # Backburner itself would start the command
    clean: bool  # it would run in a clean environment, with a fixed git repository and fixed git settings
    confined: bool  # it would run in a sandbox, so only what leaves the sandbox matters
    project: str | None

    def unconfined(self) -> "CommandContext": ...  # the same without a sandbox
    @property
    def trustable(self) -> bool: ...  # whether the user could trust the project of `cwd`
    def inside(self, path: str) -> bool: ...  # whether a resolved path is in the project
    def shortened(self, path: str) -> str: ...  # relative to the project if the path is in it
    def resolve(self, path: str) -> str: ...  # the absolute path, with links resolved

    relative_path: bool  # PATH contains a relative directory

    def matches(self, folder: str, pattern: str) -> list[str]: ...  # the paths in `folder` that a shell pattern matches
    def exists(self, path: str) -> bool: ...
    def is_folder(self, path: str) -> bool: ...
    # What a search below `path` would read that may be a secret. Directories named in `skipped` are left out; with `ignored`, so are
    # hidden files and directories in .gitignore.
    def secrets_below(self, path: str, skipped: Iterable[str], *, ignored: bool) -> str | None: ...
    def has_variable(self, name: str) -> bool: ...  # whether the environment of the command has this variable
    def caller_has_variable(self, name: str) -> bool: ...  # the same for the environment of the caller, of which a sandbox gets little
    def executable(self, name: str) -> str | None: ...  # the path of the program that a name runs
    def git_config_that_runs_code(self, folders: Iterable[str]) -> list[str]: ...  # settings and hooks that make git run a program
    def git_secrets(self, folders: Iterable[str], *, contents: bool) -> list[str]: ...  # secrets that git could print
    def git_hooks(self, folders: Iterable[str]) -> list[str]: ...  # the names of active hooks
    def git_unknown(self, folders: Iterable[str], names: Iterable[str]) -> str | None: ...  # the first name that is not a commit
    def git_steps(self, folders: Iterable[str]) -> list[str] | None: ...  # what a stopped rebase has left to do; None if it is not known
    def git_names(self, folders: Iterable[str], *words: str) -> list[str] | None: ...  # the files that a git command lists
    def hosts(self) -> Iterable[str]: ...  # hosts that curl may read from
    def is_temporary(self, path: str) -> bool: ...  # whether a path is in /tmp, of which sandboxes have their own
    def is_visible(self, path: str) -> bool: ...  # whether a path outside the project is part of every sandbox


_SECRET_PATH = (
    r"(^|/)([^/]*\.env(rc|[._-][^/]*)?|[^/]*\.tfvars|[^/]*\.(pem|key|p8|p12|pfx|ppk|jks|keystore|keytab|kdbx|gpg|asc|ovpn)"
    r"|id_(rsa|dsa|ecdsa|ed25519)[^/]*|\.netrc|\.npmrc|\.pypirc|\.git-credentials|\.pgpass|\.htpasswd|\.my\.cnf|\.s3cfg|\.boto|\.dockercfg|\.authinfo"
    r"|\.vault_pass[^/]*|[^/]*(credential|secret|passw|token|api[_-]?key|service[_-]?account)[^/]*|[^/]*[_-]key\.json|shadow|gshadow|sudoers[^/]*"
    r"|[^/]*_history|environ|ledger\.db[^/]*|[^/]*\.tfstate(\.[^/]*)?|kubeconfig[^/]*|auth\.json|oauth_creds\.json|local\.settings\.json)$"
    r"|(^|/)\.git/(.*/)?config(\.worktree)?$"
    r"|(^|/)([^/]*(secret|credential)[^/]*|\.ssh|\.aws|\.gnupg|\.kube|\.docker|\.azure|gcloud|\.password-store|\.backburner)(/|$)"
)
# Files that other programs run, or that agents read, as soon as they exist. The same is true of every name that begins with a dot.
_AUTOMATICALLY_USED = frozenset(
    ["conftest.py", "sitecustomize.py", "usercustomize.py", "setup.py", "pyproject.toml", "tox.ini", "noxfile.py", "pytest.ini", "setup.cfg"]
    + ["makefile", "gnumakefile", "justfile", "rakefile", "package.json", "opencode.json", "opencode.jsonc", "build.rs"]
    + ["dockerfile", "containerfile", "vagrantfile", "procfile", "tiltfile", "earthfile", "jenkinsfile", "mise.toml", "devbox.json", "devenv.nix"]
    + [f"{name}.{ending}" for name in ("docker-compose", "compose", "docker-compose.override", "compose.override") for ending in ("yml", "yaml")]
    + [f"{name}.{ending}" for name in ("lefthook", "lefthook-local", "taskfile", "taskfile.dist") for ending in ("yml", "yaml", "toml", "json")]
    + [f"{name}.{ending}" for name in ("azure-pipelines", "bitbucket-pipelines", "appveyor", "cloudbuild", "buildspec") for ending in ("yml", "yaml")]
)  # fmt: skip
_HARMLESS_DOT_NAMES = frozenset([".", "..", ".gitkeep", ".keep"])
# Names that look like secrets but are meant to be read: source code, and examples.
_READABLE = (
    r"\.(py|pyi|pyc|js|cjs|mjs|jsx|ts|cts|mts|tsx|map|rs|go|c|cc|cpp|h|hpp|java|kt|class|rb|php|cs|swift|css|scss|html|md|rst|svg|snap"
    r"|sh|sql|proto|vue|svelte|ex|exs|erl|hs|scala|lua|pl|r|ipynb|lock)$|[._-](example|sample|template|dist|defaults?|schema)(\.[a-z]+)?$|^/etc/passwd$"
)
_BACKUP_SUFFIX = r"(~|\.(bak|backup|old|orig|save|swp))+$"  # suffixes of backup copies
_PRINTED_VARIABLE = r"\$(?=\w|\{\w+\})\{?([A-Z][A-Z0-9_]+)"  # of the environment; `${NAME:+yes}` only tells whether it is set
_SECRET_VARIABLE = r"(?i)key|token|secret|passw|cred|auth|cookie|session"
_SHOW_NO_CONTENT = frozenset(
    ["test", "[", "ls", "stat", "find", "du", "tree", "realpath", "readlink", "basename", "dirname", "echo", "printf", "cd"]
)
_ONLY_WRITE = frozenset(["tee", "touch", "mkdir"])
_WRITE_LAST = frozenset(["cp", "mv", "install", "rsync"])
_SYSTEM_LOGS = r"/var/log/(syslog|messages|kern\.log|dmesg|boot\.log|dpkg\.log|apt/history\.log)(\.\d)?"  # what journalctl shows, too
_STANDARD_STREAMS = ("/dev/null", "/dev/stdout", "/dev/stderr", "/dev/stdin", "-")
# Variables that change only the output. Every other variable may change what runs.
_HARMLESS_VARIABLES = (
    r"(LANG|LANGUAGE|LC_[A-Z]+|TZ|NO_COLOR|FORCE_COLOR|CLICOLOR|TERM|COLUMNS|LINES|CI|DEBUG|VERBOSE|LOG_LEVEL|RUST_LOG|RUST_BACKTRACE)"
)


# These patterns are compiled on first use, because most harmless commands do not need them.
def looks_secret(path: str) -> bool:
    """Whether the name of a file or directory suggests that it contains secrets."""
    return re.search(_SECRET_PATH, re.sub(_BACKUP_SUFFIX, "", path), re.IGNORECASE) is not None


def may_be_secret(path: str) -> bool:
    """Whether a file of this name is hidden in a sandbox. `path` is relative to the project."""
    return looks_secret(path) and re.search(_READABLE, path, re.IGNORECASE) is None


def names_secrets(pattern: str) -> bool:
    """Whether a pattern names secrets and nothing else, such as `.env*`."""
    return may_be_secret(re.sub(r"[*?]", "", pattern))


def names_secret_variable(name: str) -> bool:
    """Whether a variable of this name is likely to be a secret."""
    return re.search(_SECRET_VARIABLE, name) is not None


@functools.lru_cache(4096)
def injects(name: str) -> bool:
    """Whether setting this variable may change which program runs, or what it does."""
    return re.fullmatch(_HARMLESS_VARIABLES, name) is None


def relied_on(path: str) -> bool:
    """Whether other programs or agents use a file of this name automatically. `path` is relative to the project."""
    parts = unicodedata.normalize("NFKC", os.path.normpath(path)).casefold().split(os.sep)
    if os.path.basename(path) in ("AGENTS.md", "CLAUDE.md", "GEMINI.md") or parts[-1] in _AUTOMATICALLY_USED or parts[-1].endswith(".pth"):
        return True
    return any(part.startswith(".") and part not in _HARMLESS_DOT_NAMES for part in parts)


# What editors, agents, git hooks and shells run or obey as soon as it exists. Folders that are named here are protected as a whole.
PROTECTED = frozenset(
    [".git", ".gitmodules", ".githooks", ".husky", ".pre-commit-config.yaml", "lefthook.yml", "lefthook.yaml", ".lefthook.yml", ".lefthook.yaml"]
    + [".claude", ".claude.json", ".mcp.json", ".codex", ".gemini", ".opencode", "opencode.json", "opencode.jsonc", ".qwen", ".goose", ".goosehints"]
    + [".cursor", ".cursorrules", ".windsurf", ".windsurfrules", ".clinerules", ".roo", ".kiro", ".continue", ".aider.conf.yml", ".amazonq", ".trae"]
    + ["AGENTS.md", "CLAUDE.md", "GEMINI.md", ".vscode", ".idea", ".zed", ".fleet", ".devcontainer", ".devcontainer.json", ".envrc", ".direnv"]
    + [".exrc", ".vimrc", ".nvimrc", ".nvim.lua", ".lvimrc", ".dir-locals.el", ".gdbinit", ".lldbinit", ".autoenv", ".autoenv.zsh", ".tmuxp.yaml"]
    + [".github", ".gitlab-ci.yml", ".circleci", ".buildkite", "jenkinsfile", ".mise.toml", "mise.toml", ".tool-versions", "devbox.json", "devenv.nix"]
)  # fmt: skip


def is_protected(path: str) -> bool:
    """Whether a sandboxed command must not change a file. `path` is relative to the project."""
    parts = unicodedata.normalize("NFKC", os.path.normpath(path)).split(os.sep)
    return not PROTECTED.isdisjoint((*parts, *(part.casefold() for part in parts if part.startswith("."))))


def can_match_parent(pattern: str) -> bool:
    """Whether a shell pattern can match `.` or `..`. In some shells, every path component that begins with a dot can."""
    return any(part.lstrip("\\")[:1] in (".", "[") and set(part) & set("*?[") for part in pattern.split("/"))


def in_home(word: Word) -> Word:
    """A word that begins with `~` or `$HOME` and contains no other expansion names one path."""
    if not word.known and (found := re.fullmatch(r"\"?\$(?:HOME|\{HOME\})\"?(/[\w./@+-]*)?\"?", word.text)):
        return Word(f"~{found.group(1) or ''}")
    return word._replace(pattern=False) if word.known and word.text.startswith("~") and not set(word.text) & set("*?[{") else word


class CommandView:
    """One simple command with its context: its arguments, and where its paths lead.

    `folders` are all directories that the command may start in, and `made` the temporary files and folders that the same line has created.
    """

    def __init__(self, part: SimpleCommand, context: CommandContext, folders: list[str], made: Iterable[str] = ()) -> None:
        self.part, self.context, self.folders = part, context, folders
        self._made = tuple(made)
        self.name = os.path.basename(part.words[0].text) if part.words else ""
        self.words = part.words[1:]

    def split_options(self, known: Options) -> tuple[list[Word], list[Word], str | None]:
        """Return the operands, the values of options, and the first unknown option. Options can come before and between operands."""
        operands: list[Word] = []
        values: list[Word] = []
        index = 0
        while index < len(self.words):
            word = self.words[index]
            if word.known and word.text == "--":
                return [*operands, *self.words[index + 1 :]], values, None
            if not word.text.startswith("-") or word.text == "-":
                operands.append(word)
                index += 1
                continue
            count = count_option_words(word.text, known) if word.plain else 0
            option_values = self.words[index + 1 : index + count]
            if (
                count == 0
                or len(option_values) != count - 1
                or any(not value.plain or value.text.startswith("-") for value in option_values)
            ):
                return operands, values, word.text
            values += [*option_values, *([Word(word.text.partition("=")[2])] if "=" in word.text else [])]
            index += count
        return operands, values, None

    def paths(self, word: Word) -> list[str]:
        """Return the resolved paths that a word can mean, from every directory the command may start in, including current pattern matches."""
        text = word.text
        if text == "~" or text.startswith("~/"):
            text = self.context.user_home + text[1:]
        elif text.startswith("~"):
            text = os.path.expanduser(text)
        names = [os.path.join(folder, text) for folder in self.folders]
        if word.pattern:
            names += [name for folder in self.folders for name in self.context.matches(folder, text)]
        return [self.context.resolve(name) for name in names]

    def has_made(self, path: str) -> bool:
        """Whether it is a temporary file or folder that the same line has created: the sandbox has it, whatever the machine has at this path."""
        return any(path == made or path.startswith(f"{made}/") for made in self._made)

    def can_match_option(self, word: Word) -> bool:
        """Whether a pattern matches a file whose name begins with `-`."""
        return any(
            os.path.relpath(name, folder).startswith("-") for folder in self.folders for name in self.context.matches(folder, word.text)
        )

    def reads(self, words: Iterable[Word]) -> Iterator[Finding]:
        """Return the effects of reading these paths."""
        for word in map(in_home, words) if self.context.confined else words:
            if (
                not word.known
                or (word.pattern and ("{" in word.text or can_match_parent(word.text)))
                or len(word.text) > _MAX_WORD_CHARACTERS
            ):
                is_shown = self.context.confined and word.pattern and self.name not in _SHOW_NO_CONTENT
                if is_shown and names_secrets(word.text[:_MAX_WORD_CHARACTERS]):
                    yield Finding(Effect.READS_SECRETS, f"may read a secret ({word.text[:80]})")
                yield Finding(Effect.UNKNOWN, f"reads {word.text[:80]}, which is only known when it runs")
            elif word.text in _STANDARD_STREAMS:
                continue
            elif self.context.confined:
                yield from self._reads_in_sandbox(word)
            elif word.text.startswith(("/proc", "/dev", "@")):
                yield Finding(Effect.READS_OUTSIDE, f"reads {word.text}, outside the project")
            else:
                yield from self._reads_paths(word)

    def _reads_in_sandbox(self, word: Word) -> Iterator[Finding]:
        """Return the effects of reading a path in a sandbox.

        A named secret needs approval although the sandbox hides it, and even if it does not exist yet. So does a path that is not in the sandbox.
        """
        for path in self.paths(word):
            if may_be_secret(self.context.shortened(path)):
                yield Finding(Effect.READS_SECRETS, f"may read a secret ({word.text})")
            elif re.fullmatch(_SYSTEM_LOGS, path):
                exists = self.context.exists(path)
                yield Finding(Effect.READS_MACHINE if exists else Effect.READS, "reads the log of the system", path if exists else None)
            elif not self.context.inside(path) and not self.context.is_visible(path) and not self.has_made(path):
                yield Finding(Effect.READS_OUTSIDE, f"reads {word.text}, outside the project")
            else:
                opens = None if self.name in _SHOW_NO_CONTENT else OPENS_FILES
                yield Finding(Effect.READS, "reads inside the project", opens)

    def _reads_paths(self, word: Word) -> Iterator[Finding]:
        for path in self.paths(word):
            if looks_secret(self.context.shortened(path)) or looks_secret(word.text):
                yield Finding(Effect.READS_SECRETS, f"may read a secret ({word.text})")
            elif not self.context.inside(path):
                yield Finding(Effect.READS_OUTSIDE, f"reads {word.text}, outside the project")
            else:
                yield Finding(Effect.READS, "reads inside the project")

    def writes(self, word: Word, *, append: bool = False) -> Iterator[Finding]:
        """Return the effects of writing to a path. Creating a file and overwriting one are different effects."""
        if self.context.confined:
            word = in_home(word)
        if not word.plain or len(word.text) > _MAX_WORD_CHARACTERS:
            yield Finding(Effect.UNKNOWN, f"writes to {word.text[:80]}, which is only known when it runs")
            return
        for path in self.paths(word):
            if path in _STANDARD_STREAMS:
                yield Finding(Effect.HARMLESS, "stores nothing")
            elif self.context.confined and self.context.inside(path) and self._is_kept(path):
                yield Finding(Effect.PROTECTED, f"writes {word.text}, which other programs use automatically")
            elif self.context.confined and (self.context.inside(path) or self.context.is_temporary(path)):
                yield Finding(Effect.EDITS, f"{'changes' if self.context.exists(path) else 'creates'} {word.text}")
            elif not self.context.inside(path):
                yield Finding(Effect.WRITES_OUTSIDE, f"writes {word.text}, outside the project")
            elif relied_on(name := self.context.shortened(path)) or looks_secret(name):
                yield Finding(Effect.OVERWRITES, f"writes {word.text}, which other programs use automatically")
            elif self.context.exists(path):
                yield Finding(Effect.OVERWRITES, f"{'appends to' if append else 'overwrites'} {word.text}")
            else:
                yield Finding(Effect.CREATES, f"creates {word.text}")

    def _is_kept(self, path: str) -> bool:
        """Whether a sandboxed command cannot change a file of the project: it is protected, or hidden because it may be a secret."""
        name = self.context.shortened(path)
        return is_protected(name) or (may_be_secret(name) and self.context.exists(path))

    def named_paths(self) -> Iterator[Finding]:
        """Return a finding for each word that names an existing file which the sandbox does not contain."""
        for number, word in enumerate(map(in_home, self.words) if self.name not in ("echo", "printf") else (), 1):
            is_target = self.name in _ONLY_WRITE or (self.name in _WRITE_LAST and number == len(self.words))
            sent = word.text.rpartition("@")[2] if self.name == "curl" else ""  # `-d @FILE`
            for text in (word.text, word.text.partition("=")[2], sent) if word.plain else ():
                if not text or len(text) > _MAX_WORD_CHARACTERS or "://" in text or "\0" in text:
                    continue
                is_path = "/" in text or text.startswith("~")
                for path in self.paths(Word(text)) if is_path or may_be_secret(text) else ():
                    is_own = (is_target and self.context.is_temporary(path)) or self.has_made(path)  # a sandbox has its own temporary files
                    in_other_home = text.startswith("~") and not self.context.is_visible(path)
                    if is_own or not (self.context.exists(path) or in_other_home) or re.fullmatch(_SYSTEM_LOGS, path):
                        continue
                    is_read = self.name not in _SHOW_NO_CONTENT and not self.context.is_folder(path)
                    if is_read and may_be_secret(self.context.shortened(path)):
                        yield Finding(Effect.READS_SECRETS, f"may read a secret ({text})")
                    elif is_path and not self.context.inside(path) and not self.context.is_visible(path):
                        yield Finding(Effect.READS_OUTSIDE, f"names {text}, outside the project")

    def edits(self, words: Iterable[Word]) -> Iterator[Finding]:
        """Return the effects of a program that changes the files in its arguments, in a sandbox. The last one may be where it writes to."""
        operands = [word for word in map(in_home, words) if word.plain and not word.text.startswith("-")]
        for number, word in enumerate(operands, 1):
            for path in self.paths(word):
                if self.context.inside(path):
                    if self._is_kept(path):
                        yield Finding(Effect.PROTECTED, f"changes {word.text}, which other programs use automatically")
                elif not self.context.is_temporary(path) and (number == len(operands) or not self.context.is_visible(path)):
                    yield Finding(Effect.WRITES_OUTSIDE, f"may write {word.text}, outside the project")

    def redirect(self, redirect: Redirect) -> Iterator[Finding]:
        operator, target = redirect
        if self.context.confined:
            target = in_home(target)
        if re.search(r"/dev/(tcp|udp)/", target.text):
            yield Finding(Effect.NETWORK_CHANGE, f"connects to {target.text}")
        elif not target.plain:
            yield Finding(Effect.UNKNOWN, f"redirects to {target.text}, which is only known when it runs")
        elif operator in (">&", "<&") and (target.text.isdigit() or target.text == "-"):
            return
        elif operator == "<":
            yield from self.reads([target])
        else:
            yield from self.writes(target, append=operator in (">>", "&>>"))

    def printed_secrets(self) -> Iterator[Finding]:
        """Return a finding for each printed variable whose name looks like a secret. A sandbox has none, but a person decides who asks for it."""
        for word in self.words:
            if self.context.confined and not word.known:
                secrets = filter(names_secret_variable, re.findall(_PRINTED_VARIABLE, word.text))
                yield from (Finding(Effect.READS_SECRETS, f"prints ${name}, which looks like a secret", name) for name in secrets)
            elif not word.known and re.search(_SECRET_VARIABLE, word.text):
                yield Finding(Effect.READS_SECRETS, f"prints {word.text}, which looks like a secret")
