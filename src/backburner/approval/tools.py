"""Programs that need a closer look than a table: git, find, sed, awk, curl, cp and a few more. Pure; in doubt they ask."""

import os
import re
from collections.abc import Iterable, Iterator

from backburner.approval.effects import Effect, Found, View, injects
from backburner.approval.shell import Word


def nothing(_: View) -> Iterable[Found]:
    return [Found(Effect.HARMLESS, "changes nothing outside itself")]


def uniq(view: View) -> Iterator[Found]:
    yield from view.reads(view.operands[:1])
    for word in view.operands[1:2]:
        yield from view.writes(word)
    yield Found(Effect.READS, "reads inside the project")


def xxd(view: View) -> Iterator[Found]:
    yield from view.reads(view.operands[:1])
    for word in view.operands[1:2]:
        yield from view.writes(word)


def date(view: View) -> Iterator[Found]:
    if all(
        word.plain and (word.text.startswith("+") or word.text in ("-u", "--utc", "-R", "-I", "-Iseconds", "--iso-8601", "--rfc-email"))
        for word in view.words
    ):
        yield Found(Effect.HARMLESS, "prints")
    else:
        yield Found(Effect.PRIVILEGE, "could set the clock")


def hostname(view: View) -> Iterator[Found]:
    quiet = all(word.plain and word.text in ("-f", "-s", "-i", "-I", "--fqdn", "--short") for word in view.words)
    yield Found(Effect.HARMLESS, "prints") if quiet else Found(Effect.PRIVILEGE, "could set the host's name")


def env(view: View) -> Iterator[Found]:
    runs = any(not word.text.startswith("-") and "=" not in word.text for word in view.words)
    yield Found(Effect.HARMLESS, "runs what follows") if runs else Found(Effect.READS_SECRETS, "prints the environment, secrets included")
    for word in view.words:
        key = word.text.partition("=")[0]
        if "=" in word.text and not word.text.startswith("-") and injects(key):
            yield Found(Effect.INJECTION, f"sets {key}, which changes what runs")


def environment(view: View) -> Iterator[Found]:
    yield Found(Effect.READS_SECRETS, "prints the environment, secrets included")


def set_(view: View) -> Iterator[Found]:
    yield Found(Effect.HARMLESS, "changes the shell") if view.words else Found(Effect.READS_SECRETS, "prints every variable")


def alias(view: View) -> Iterator[Found]:
    yield Found(Effect.UNKNOWN, "gives a name another meaning")


def creates(view: View) -> Iterator[Found]:
    for word in view.operands:
        for found in view.writes(word):
            yield (
                Found(Effect.CREATES, f"creates {word.text}")
                if found.effect == Effect.OVERWRITES and "relies" not in found.detail and "others" not in found.detail
                else found
            )


def tee(view: View) -> Iterator[Found]:
    for word in view.operands:
        yield from view.writes(word, append=bool(view.has("-a", "--append")))
    yield Found(Effect.HARMLESS, "prints")


def cp(view: View) -> Iterator[Found]:
    if view.has("-t", "--target-directory", "-l", "--link", "-s", "--symbolic-link", "--backup", "-b") or len(view.operands) < 2:
        yield Found(Effect.OVERWRITES, "copies in a way that is not looked into")
        return
    *sources, target = view.operands
    yield from view.reads(sources)
    if not target.plain or not all(source.plain for source in sources):
        yield Found(Effect.UNKNOWN, "what it copies is only known when it runs")
        return
    into = any(map(view.world.is_folder, view.paths(target)))
    for source in sources:
        name = os.path.join(target.text, os.path.basename(source.text.rstrip("/"))) if into else target.text
        yield from view.writes(Word(name))


def find(view: View) -> Iterator[Found]:
    yield Found(Effect.READS, "searches files")
    for word in view.words:
        if not word.known:
            yield Found(Effect.UNKNOWN, f"'{word.text}' is only known when it runs")
        elif word.text == "-delete":
            yield Found(Effect.DELETES, "deletes what it finds")
        elif word.text.startswith(("-fprint", "-fls")):
            yield Found(Effect.OVERWRITES, f"'{word.text}' writes a file")
        elif word.text in ("-files0-from",):
            yield Found(Effect.UNKNOWN, "takes its paths from elsewhere")


_SED_LINES = r"^\s*((\d+|\$|/[^/]*/)(,(\d+|\$|\+\d+|/[^/]*/))?)?!?\s*[pdq=]?\s*$"
_SED_SUBSTITUTE = r"^\s*((\d+|\$|/[^/]*/)(,(\d+|\$|/[^/]*/))?)?s([/|,#@:])((?!\5).|\\.)*\5((?!\5).|\\.)*\5[gpIi0-9]*\s*$"


def sed(view: View) -> Iterator[Found]:
    """Only scripts of plain printing, deleting lines and substituting are known to write nothing and run nothing."""
    if any(option.startswith(("-i", "--in-place")) or ("i" in option[1:] and not option.startswith("--")) for option in view.options):
        yield Found(Effect.OVERWRITES, "sed -i changes files in place")
    if view.has("-f", "--file", "-s", "--separate"):
        yield Found(Effect.INTERPRETER, "runs a sed script")
        return
    scripts = [view.words[i + 1] for i, word in enumerate(view.words[:-1]) if word.text in ("-e", "--expression")]
    files = [word for word in view.operands if word not in scripts]
    if not scripts:
        scripts, files = files[:1], files[1:]
    for script in scripts:
        for line in re.split(r"[;\n]", script.text) if not re.match(_SED_SUBSTITUTE, script.text) else [script.text]:
            if (not script.plain and not script.known) or not (re.match(_SED_LINES, line) or re.match(_SED_SUBSTITUTE, line)):
                yield Found(Effect.INTERPRETER, "a sed script can write files and run commands")
                return
    yield Found(Effect.READS, "reads inside the project")
    yield from view.reads(files)


_AWK_PRINT = r"^\s*(NR\s*[=<>!]=?\s*\d+\s*)?(/[^/]*/\s*)?\{?\s*(print(\s+\$(\d+|NF)(\s*,\s*\$(\d+|NF))*)?)?\s*\}?\s*$"


def awk(view: View) -> Iterator[Found]:
    operands = list(view.operands)
    if "-F" in view.options and operands:
        operands.pop(0)
    if view.has("-f", "-i", "-e", "-l", "-E", "-v") or not operands or not operands[0].known or not re.match(_AWK_PRINT, operands[0].text):
        yield Found(Effect.INTERPRETER, "an awk program can write files and run commands")
        return
    yield Found(Effect.READS, "reads inside the project")
    yield from view.reads(operands[1:])


_GIT_READS = frozenset(
    [
        "status",
        "log",
        "diff",
        "show",
        "rev-parse",
        "ls-files",
        "ls-tree",
        "blame",
        "annotate",
        "describe",
        "shortlog",
        "rev-list",
        "cat-file",
        "name-rev",
        "merge-base",
        "whatchanged",
        "grep",
        "count-objects",
        "check-ignore",
    ]
)
_GIT_LISTS = {"branch": ("-a", "-r", "-v", "-vv", "--list", "--show-current", "--all"), "tag": ("-l", "--list", "-n"), "remote": ("-v", "show", "get-url"), "stash": ("list", "show"), "config": ("--get", "--list", "-l", "--get-all"), "worktree": ("list",)}  # fmt: skip
_GIT_BAD = (
    "--output",
    "--ext-diff",
    "--textconv",
    "-O",
    "--open-files-in-pager",
    "--exec-path",
    "--upload-pack",
    "--no-index",
    "--contents",
    "-c",
    "--git-dir",
    "--work-tree",
    "--config-env",
    "--filters",
)


def git(view: View) -> Iterator[Found]:
    words = list(view.words)
    while words and words[0].text in ("--no-pager", "-P", "--no-optional-locks", "--literal-pathspecs"):
        words.pop(0)
    if not words or not words[0].plain or words[0].text.startswith("-"):
        if words and words[0].text in ("--version", "--help"):
            yield Found(Effect.HARMLESS, "prints")
        else:
            yield Found(Effect.UNKNOWN, "an option of git before its verb can change what runs")
        return
    verb, rest = words[0].text, words[1:]
    texts = [word.text for word in rest]
    if verb in ("push", "send-email", "request-pull"):
        yield Found(Effect.PUBLISHES, f"git {verb} publishes")
    elif verb in ("fetch", "pull", "clone", "ls-remote", "submodule"):
        yield Found(Effect.NETWORK_CHANGE, f"git {verb} talks to another machine and may run hooks")
    elif verb in ("clean", "reset", "checkout", "restore", "rm", "switch", "gc", "prune"):
        yield Found(Effect.DELETES, f"git {verb} can throw work away")
    elif verb in _GIT_READS or (
        verb in _GIT_LISTS and all(text in _GIT_LISTS[verb] for text in texts[:1]) and (texts or verb in ("branch", "tag", "remote"))
    ):
        if bad := next(
            (
                text
                for text in texts
                for option in _GIT_BAD
                if text == option or text.startswith(option + "=") or (option == "-O" and text.startswith("-O"))
            ),
            None,
        ):
            yield Found(Effect.UNKNOWN, f"'{bad}' of git {verb} can write a file or run a program")
        for trap in view.world.git_traps():
            yield Found(Effect.UNKNOWN, f"this repository's git settings run a program ({trap})")
        if any(not word.known for word in rest):
            yield Found(Effect.UNKNOWN, "its words are only known when it runs")
        if verb == "config" and texts[:1] not in (["--get"],):
            yield Found(Effect.READS_SECRETS, "git config may hold credentials")
        yield Found(Effect.READS, f"git {verb} reads")
    else:
        yield Found(Effect.OVERWRITES, f"git {verb} changes the repository or runs its hooks")


_CURL_FLAGS = frozenset(
    [
        "-s",
        "-S",
        "-f",
        "-i",
        "-I",
        "-v",
        "-g",
        "-4",
        "-6",
        "--silent",
        "--show-error",
        "--fail",
        "--include",
        "--head",
        "--verbose",
        "--compressed",
        "--http1.1",
        "--http2",
        "--no-progress-meter",
    ]
)
_CURL_VALUES = frozenset(["-m", "--max-time", "--connect-timeout", "--retry", "-A", "--user-agent", "-w", "--write-out", "-H", "--header"])


def curl(view: View) -> Iterator[Found]:
    urls, at = [], 0
    while at < len(view.words):
        word = view.words[at]
        if not word.known:
            yield Found(Effect.NETWORK_CHANGE, "its request is only known when it runs")
            return
        text = word.text
        if text in _CURL_VALUES:
            if at + 1 < len(view.words) and (not view.words[at + 1].known or view.words[at + 1].text.startswith("@")):
                yield Found(Effect.NETWORK_CHANGE, "sends what is only known when it runs")
                return
            at += 1
        elif (
            text.startswith("-")
            and text not in _CURL_FLAGS
            and not (not text.startswith("--") and all(f"-{c}" in _CURL_FLAGS for c in text[1:]))
        ):
            yield Found(Effect.NETWORK_CHANGE, f"'{text}' may change, send or write something")
            return
        elif not text.startswith("-"):
            urls.append(text)
        at += 1
    yield from _requests(view, urls)


def wget(view: View) -> Iterator[Found]:
    yield Found(Effect.NETWORK_CHANGE, "wget writes what it fetches")


def _requests(view: View, urls: list[str]) -> Iterator[Found]:
    known = set(view.world.hosts())
    for url in urls or ["?"]:
        found = re.match(r"^(?:https?://)?(?:\[([0-9a-fA-F:]+)\]|([A-Za-z0-9.-]+))(?::\d+)?(?:[/?#].*)?$", url)
        host = (found.group(1) or found.group(2)).lower() if found else None
        if host is None or host not in known:
            yield Found(Effect.NETWORK_CHANGE, f"asks {host or url}, which is not among the listed hosts")
        else:
            yield Found(Effect.NETWORK_READ, f"reads from {host}")
