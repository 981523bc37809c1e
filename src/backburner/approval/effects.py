"""The vocabulary of what a command would do, and one command seen in its world: its words, its paths, what they mean.

Pure: the world is asked through `World`. Creating, changing, reading and reaching outside the project are told apart here.
"""

import os
import re
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple, Protocol

from backburner.approval.shell import Part, Redirect, Word


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


class Found(NamedTuple):
    effect: Effect
    detail: str


class World(Protocol):
    """What has to be known of the machine to judge a command."""

    cwd: str
    project: str

    def resolve(self, path: str) -> str: ...  # absolute, links followed
    def matches(self, pattern: str) -> list[str]: ...  # what a shell's pattern fits
    def exists(self, path: str) -> bool: ...
    def is_folder(self, path: str) -> bool: ...
    def executable(self, name: str) -> str | None: ...
    def git_traps(self) -> list[str]: ...  # settings of the repository that run programs
    def hosts(self) -> Iterable[str]: ...  # hosts that may be read from


_SECRET = (
    r"(^|/)(\.env(\.[^/]*)?|[^/]*\.(pem|key|p12|pfx|jks|keystore|kdbx|gpg|asc)|id_(rsa|dsa|ecdsa|ed25519)[^/]*|\.netrc|\.npmrc|\.pypirc"
    r"|\.git-credentials|\.pgpass|\.htpasswd|[^/]*(credential|secret|password|token)[^/]*|shadow|gshadow|sudoers[^/]*|[^/]*_history|environ|\.backburner|ledger\.db)$"
    r"|(^|/)(\.ssh|\.aws|\.gnupg|\.kube|\.docker|\.azure|\.config/(gh|gcloud|op)|\.password-store|\.backburner)(/|$)"
)
_NOWHERE = ("/dev/null", "/dev/stdout", "/dev/stderr", "/dev/stdin", "/dev/fd/1", "/dev/fd/2", "/dev/zero", "/dev/urandom")
_INJECTING = (
    r"^(PATH|IFS|ENV|BASH_ENV|BASH_FUNC_.*|SHELLOPTS|PS4|PROMPT_COMMAND|CDPATH|LD_.*|DYLD_.*|GIT_.*|PAGER|MANPAGER|LESS.*|EDITOR|VISUAL|BROWSER|SHELL"
    r"|PYTHON.*|NODE_.*|NPM_.*|npm_.*|PERL.*|RUBY.*|GEM_.*|JAVA_TOOL_OPTIONS|_JAVA_OPTIONS|MAKEFLAGS|GREP_OPTIONS|RIPGREP_CONFIG_PATH|TAR_OPTIONS"
    r"|HOME|TMPDIR|XDG_.*|UV_.*|PIP_.*|CARGO_.*|RUSTC.*|GO[A-Z]+|CC|CXX|CFLAGS|SSH_.*|CURL_HOME|.*_PROXY|.*_proxy|BACKBURNER_.*)$"
)


# Both are compiled when first needed: a harmless command never comes by them.
def looks_secret(path: str) -> bool:
    """Whether a path looks like one that holds secrets."""
    return re.search(_SECRET, path, re.IGNORECASE) is not None


def injects(name: str) -> bool:
    """Whether a variable changes which program runs, or what it does."""
    return re.match(_INJECTING, name) is not None


def inside(path: str, world: World) -> bool:
    return path == world.project or path.startswith(world.project.rstrip("/") + "/")


class View:
    """One part seen in its world: the words of its command, and what its paths mean."""

    def __init__(self, part: Part, world: World, folders: list[str]) -> None:
        self.part, self.world, self._folders = part, world, folders
        self.name = os.path.basename(part.words[0].text) if part.words else ""
        self.words = part.words[1:]

    @property
    def operands(self) -> list[Word]:
        return [word for word in self.words if not word.text.startswith("-") or word.text == "-" or not word.known]

    @property
    def options(self) -> list[str]:
        return [word.text for word in self.words if word.text.startswith("-") and word.known]

    @property
    def dynamic(self) -> bool:
        return any(not word.known for word in self.words)

    def has(self, *options: str) -> str | None:
        """The first of its options that is one of these, also in a cluster or with a value joined on."""
        for given in self.options:
            for option in options:
                joined = (
                    given.startswith(option + "=") if option.startswith("--") else not given.startswith("--") and option[1:] in given[1:]
                )
                if given == option or (joined and len(option) > 1):
                    return option
        return None

    def paths(self, word: Word) -> list[str]:
        """Where a word would lead to, from every folder the command may start in; what a pattern fits now, too."""
        text = os.path.expanduser(word.text) if word.text.startswith("~") else word.text
        names = [os.path.join(folder, text) for folder in self._folders]
        if word.pattern:
            names += [name for pattern in names for name in self.world.matches(pattern)]
        return [self.world.resolve(name) for name in names]

    def reads(self, words: Iterable[Word]) -> Iterator[Found]:
        for word in words:
            if not word.known or (word.pattern and "{" in word.text):
                yield Found(Effect.UNKNOWN, f"reads {word.text}, which is only known when it runs")
                continue
            for path in self.paths(word):
                if path in _NOWHERE:
                    continue
                if looks_secret(path) or looks_secret(word.text):
                    yield Found(Effect.READS_SECRETS, f"may read a secret ({word.text})")
                elif not inside(path, self.world):
                    yield Found(Effect.READS_OUTSIDE, f"reads {word.text}, outside the project")
                else:
                    yield Found(Effect.READS, "reads inside the project")

    def option_paths(self) -> Iterator[Word]:
        """Paths that hide in options: `--file=/etc/x`, `-f/etc/x`."""
        for word in self.words:
            if word.known and word.text.startswith("-") and "/" in word.text:
                value = word.text.partition("=")[2] if "=" in word.text else word.text[word.text.index("/") :]
                yield Word(value, pattern=word.pattern)

    def writes(self, word: Word, *, append: bool = False) -> Iterator[Found]:
        """Creating is one thing, changing what is there another."""
        if not word.plain:
            yield Found(Effect.UNKNOWN, f"writes to {word.text}, which is only known when it runs")
            return
        for path in self.paths(word):
            if path in _NOWHERE:
                yield Found(Effect.HARMLESS, "writes nothing that stays")
            elif not inside(path, self.world):
                yield Found(Effect.WRITES_OUTSIDE, f"writes {word.text}, outside the project")
            elif "/.git/" in path + "/" or looks_secret(path):
                yield Found(Effect.OVERWRITES, f"writes {word.text}, which others rely on")
            elif self.world.exists(path):
                yield Found(Effect.OVERWRITES, f"{'appends to' if append else 'overwrites'} {word.text}")
            else:
                yield Found(Effect.CREATES, f"creates {word.text}")

    def redirect(self, redirect: Redirect) -> Iterator[Found]:
        operator, target = redirect
        if operator in (">&", "<&") and (target.text.isdigit() or target.text == "-"):
            return
        if operator == "<":
            yield from self.reads([target])
        else:
            yield from self.writes(target, append=operator in (">>", "&>>"))
