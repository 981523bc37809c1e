"""The vocabulary of what a command would do, and one command seen in its world: its words, its paths, what they mean.

Pure: the world is asked through `World`. Creating, changing, reading and reaching outside the project are told apart here.
"""

import functools
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple, Protocol

from backburner.approval.shell_parser import Redirect, SimpleCommand, Word
from backburner.approval.wrappers import Options, taken_by

_LONGEST = 4096


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


class Finding(NamedTuple):
    effect: Effect
    detail: str


class CommandContext(Protocol):
    """What has to be known of the machine to judge a command."""

    cwd: str
    ours: bool  # it would be started by Backburner
    clean: bool  # it would run in a clean environment, with git's repository and settings given
    project: str | None

    @property
    def trustable(self) -> bool: ...  # whether the folder could be made a trusted project
    def inside(self, path: str) -> bool: ...  # whether a path without links belongs to the project
    def shortened(self, path: str) -> str: ...  # from the root of the project on, where it belongs to it
    def resolve(self, path: str) -> str: ...  # absolute, links followed

    relative_path: bool  # PATH leads to folders relative to wherever one is

    def matches(self, folder: str, pattern: str) -> list[str]: ...  # what a shell's pattern fits there
    def exists(self, path: str) -> bool: ...
    def is_folder(self, path: str) -> bool: ...
    def secrets_below(self, path: str, skipped: Iterable[str], *, ignored: bool) -> str | None: ...
    def has_variable(self, name: str) -> bool: ...  # in the environment of the command
    def executable(self, name: str) -> str | None: ...
    def git_config_that_runs_code(self, folders: Iterable[str]) -> list[str]: ...  # what would make git run a program there
    def git_secrets(self, folders: Iterable[str], *, contents: bool) -> list[str]: ...  # what git could show there
    def git_unknown(self, folders: Iterable[str], names: Iterable[str]) -> str | None: ...  # the first name that is no commit's
    def hosts(self) -> Iterable[str]: ...  # hosts that may be read from


_SECRET = (
    r"(^|/)([^/]*\.env(rc|[._-][^/]*)?|[^/]*\.tfvars|[^/]*\.(pem|key|p8|p12|pfx|ppk|jks|keystore|keytab|kdbx|gpg|asc|ovpn)"
    r"|id_(rsa|dsa|ecdsa|ed25519)[^/]*|\.netrc|\.npmrc|\.pypirc|\.git-credentials|\.pgpass|\.htpasswd|\.my\.cnf|\.s3cfg|\.boto|\.dockercfg|\.authinfo"
    r"|\.vault_pass[^/]*|[^/]*(credential|secret|passw|token|api[_-]?key|service[_-]?account)[^/]*|[^/]*[_-]key\.json|shadow|gshadow|sudoers[^/]*"
    r"|[^/]*_history|environ|ledger\.db[^/]*|[^/]*\.tfstate(\.[^/]*)?|kubeconfig[^/]*|auth\.json|oauth_creds\.json|local\.settings\.json)$"
    r"|(^|/)\.git/(.*/)?config(\.worktree)?$"
    r"|(^|/)([^/]*(secret|credential)[^/]*|\.ssh|\.aws|\.gnupg|\.kube|\.docker|\.azure|gcloud|\.password-store|\.backburner)(/|$)"
)
# Files that other programs run, or that agents go by, as soon as they are there; so does whatever begins with a dot.
_RELIED_ON = frozenset(
    ["conftest.py", "sitecustomize.py", "usercustomize.py", "setup.py", "pyproject.toml", "tox.ini", "noxfile.py", "pytest.ini", "setup.cfg"]
    + ["makefile", "gnumakefile", "justfile", "rakefile", "package.json", "opencode.json", "opencode.jsonc", "build.rs"]
    + ["dockerfile", "containerfile", "vagrantfile", "procfile", "tiltfile", "earthfile", "jenkinsfile", "mise.toml", "devbox.json", "devenv.nix"]
    + [f"{name}.{ending}" for name in ("docker-compose", "compose", "docker-compose.override", "compose.override") for ending in ("yml", "yaml")]
    + [f"{name}.{ending}" for name in ("lefthook", "lefthook-local", "taskfile", "taskfile.dist") for ending in ("yml", "yaml", "toml", "json")]
    + [f"{name}.{ending}" for name in ("azure-pipelines", "bitbucket-pipelines", "appveyor", "cloudbuild", "buildspec") for ending in ("yml", "yaml")]
)  # fmt: skip
_NO_HARM = frozenset([".", "..", ".gitkeep", ".keep"])
_COPY = r"(~|\.(bak|backup|old|orig|save|swp))+$"  # what editors and people put behind the name of a copy
_SECRET_NAME = r"(?i)key|token|secret|passw|cred|auth|cookie|session"
_NOWHERE = ("/dev/null", "/dev/stdout", "/dev/stderr", "/dev/stdin", "-")
# Variables that only change how things look; every other one may change what runs.
_HARMLESS_NAMES = (
    r"(LANG|LANGUAGE|LC_[A-Z]+|TZ|NO_COLOR|FORCE_COLOR|CLICOLOR|TERM|COLUMNS|LINES|CI|DEBUG|VERBOSE|LOG_LEVEL|RUST_LOG|RUST_BACKTRACE)"
)


# The patterns are compiled when first needed: a harmless command never comes by them.
def looks_secret(path: str) -> bool:
    """Whether a path looks like one that holds secrets."""
    return re.search(_SECRET, re.sub(_COPY, "", path), re.IGNORECASE) is not None


@functools.lru_cache(4096)
def injects(name: str) -> bool:
    """Whether a variable may change which program runs, or what it does."""
    return re.fullmatch(_HARMLESS_NAMES, name) is None


def relied_on(path: str) -> bool:
    """Whether other programs, or agents, do something of their own with a file of this name. `path` is relative to the project."""
    parts = unicodedata.normalize("NFKC", os.path.normpath(path)).casefold().split(os.sep)
    if os.path.basename(path) in ("AGENTS.md", "CLAUDE.md", "GEMINI.md") or parts[-1] in _RELIED_ON or parts[-1].endswith(".pth"):
        return True
    return any(part.startswith(".") and part not in _NO_HARM for part in parts)


def may_climb(pattern: str) -> bool:
    """Whether a shell's pattern may fit `.` or `..`: some shells do that for every part that begins with a dot."""
    return any(part.lstrip("\\")[:1] in (".", "[") and set(part) & set("*?[") for part in pattern.split("/"))


class CommandView:
    """One part seen in its world: the words of its command, and what its paths mean."""

    def __init__(self, part: SimpleCommand, world: CommandContext, folders: list[str]) -> None:
        self.part, self.world, self.folders = part, world, folders
        self.name = os.path.basename(part.words[0].text) if part.words else ""
        self.words = part.words[1:]

    def split(self, known: Options) -> tuple[list[Word], list[Word], str | None]:
        """Operands, the values of options, and the first option that is not known. Options stand before and among operands."""
        operands: list[Word] = []
        values: list[Word] = []
        at = 0
        while at < len(self.words):
            word = self.words[at]
            if word.known and word.text == "--":
                return [*operands, *self.words[at + 1 :]], values, None
            if not word.text.startswith("-") or word.text == "-":
                operands.append(word)
                at += 1
                continue
            taken = taken_by(word.text, known) if word.plain else 0
            given = self.words[at + 1 : at + taken]
            if taken == 0 or len(given) != taken - 1 or any(not one.plain or one.text.startswith("-") for one in given):
                return operands, values, word.text
            values += [*given, *([Word(word.text.partition("=")[2])] if "=" in word.text else [])]
            at += taken
        return operands, values, None

    def paths(self, word: Word) -> list[str]:
        """Where a word would lead to, from every folder the command may start in; what a pattern fits now, too."""
        text = os.path.expanduser(word.text) if word.text.startswith("~") else word.text
        names = [os.path.join(folder, text) for folder in self.folders]
        if word.pattern:
            names += [name for folder in self.folders for name in self.world.matches(folder, text)]
        return [self.world.resolve(name) for name in names]

    def fits_option(self, word: Word) -> bool:
        """Whether a pattern fits a file whose name begins as an option does."""
        return any(
            os.path.relpath(name, folder).startswith("-") for folder in self.folders for name in self.world.matches(folder, word.text)
        )

    def reads(self, words: Iterable[Word]) -> Iterator[Finding]:
        for word in words:
            if not word.known or (word.pattern and ("{" in word.text or may_climb(word.text))) or len(word.text) > _LONGEST:
                yield Finding(Effect.UNKNOWN, f"reads {word.text[:80]}, which is only known when it runs")
            elif word.text in _NOWHERE:
                continue
            elif word.text.startswith(("/proc", "/dev", "@")):
                yield Finding(Effect.READS_OUTSIDE, f"reads {word.text}, outside the project")
            else:
                yield from self._reads_paths(word)

    def _reads_paths(self, word: Word) -> Iterator[Finding]:
        for path in self.paths(word):
            if looks_secret(self.world.shortened(path)) or looks_secret(word.text):
                yield Finding(Effect.READS_SECRETS, f"may read a secret ({word.text})")
            elif not self.world.inside(path):
                yield Finding(Effect.READS_OUTSIDE, f"reads {word.text}, outside the project")
            else:
                yield Finding(Effect.READS, "reads inside the project")

    def writes(self, word: Word, *, append: bool = False) -> Iterator[Finding]:
        """Creating is one thing, changing what is there another."""
        if not word.plain or len(word.text) > _LONGEST:
            yield Finding(Effect.UNKNOWN, f"writes to {word.text[:80]}, which is only known when it runs")
            return
        for path in self.paths(word):
            if path in _NOWHERE:
                yield Finding(Effect.HARMLESS, "writes nothing that stays")
            elif not self.world.inside(path):
                yield Finding(Effect.WRITES_OUTSIDE, f"writes {word.text}, outside the project")
            elif relied_on(name := self.world.shortened(path)) or looks_secret(name):
                yield Finding(Effect.OVERWRITES, f"writes {word.text}, which others rely on")
            elif self.world.exists(path):
                yield Finding(Effect.OVERWRITES, f"{'appends to' if append else 'overwrites'} {word.text}")
            else:
                yield Finding(Effect.CREATES, f"creates {word.text}")

    def redirect(self, redirect: Redirect) -> Iterator[Finding]:
        operator, target = redirect
        if not target.plain:
            yield Finding(Effect.UNKNOWN, f"redirects to {target.text}, which is only known when it runs")
        elif operator in (">&", "<&") and (target.text.isdigit() or target.text == "-"):
            return
        elif operator == "<":
            yield from self.reads([target])
        else:
            yield from self.writes(target, append=operator in (">>", "&>>"))

    def shown(self) -> Iterator[Finding]:
        """What a command that prints its words may give away."""
        for word in self.words:
            if not word.known and re.search(_SECRET_NAME, word.text):
                yield Finding(Effect.READS_SECRETS, f"prints {word.text}, which looks like a secret")
