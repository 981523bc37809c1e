"""The effects of programs that need more than a table: git, find, sed, awk, curl, cp and others. Pure.

Options and arguments that are not known to be harmless require approval.
"""

import itertools
import os
from collections.abc import Iterable, Iterator

from backburner.approval.effects import (
    OPENS_FILES,
    OWN_SERVER,
    CommandView,
    Effect,
    Finding,
    in_home,
    injects,
    names_secret_variable,
    names_secrets,
)
from backburner.approval.program_tables import CHANGES, DELETES
from backburner.approval.service_rules import looks_up_packages, registry
from backburner.approval.shell_parser import SimpleCommand, Word
from backburner.approval.wrappers import Options
from backburner.core.deferred_modules import re


def no_effect(_: CommandView) -> Iterable[Finding]:
    return [Finding(Effect.HARMLESS, "changes nothing")]


def jq(view: CommandView) -> Iterable[Finding]:
    """It can only read files and print, whatever its options are. A program can import files."""
    operands = [word for word in view.words if not word.text.startswith("-")]
    opens = len(operands) > 1 or any(not word.plain or re.search("import|include", word.text) for word in view.words)
    return [Finding(Effect.READS, "reads inside the project", OPENS_FILES if opens else None)]


def printf(view: CommandView) -> Iterator[Finding]:
    if view.words and (view.words[0].text.startswith("-") or not view.words[0].plain):
        yield Finding(Effect.UNKNOWN, "an option of printf can set a variable")
    yield Finding(Effect.HARMLESS, "prints")
    yield from view.printed_secrets()


def test(view: CommandView) -> Iterator[Finding]:
    """A test only reads, but some shells run code in the subscript of a variable."""
    if any("[" in word.text or word.pattern or "$" in word.text or word.text in ("-v", "-R") for word in view.words):
        yield Finding(Effect.UNKNOWN, "testing a variable can run code in its value")
    yield Finding(Effect.HARMLESS, "tests a condition")


def ps(view: CommandView) -> Iterator[Finding]:
    plain = [word.text for word in view.words] in ([], ["aux"], ["-ef"], ["-e"], ["-A"], ["ax"])
    yield Finding(Effect.READS, "lists processes") if plain else Finding(Effect.READS_SECRETS, "ps can show the environment of processes")


def date(view: CommandView) -> Iterator[Finding]:
    """Without an option it can set the clock. What follows `-d` is only a description of a time."""
    known = r"\+.*|-u|--utc|-R|-I(seconds|date|minutes|hours)?|--iso-8601|--rfc-email|-d.*|--date(=.*)?"
    before = ["", *(word.text for word in view.words)]
    is_harmless = all(
        word.plain and (text in ("-d", "--date") or re.fullmatch(known, word.text, re.DOTALL))
        for text, word in zip(before, view.words, strict=False)
    )
    yield Finding(Effect.HARMLESS, "prints") if is_harmless else Finding(Effect.PRIVILEGE, "could set the clock")


def hostname(view: CommandView) -> Iterator[Finding]:
    is_harmless = all(word.plain and word.text in ("-f", "-s", "-i", "-I", "--fqdn", "--short") for word in view.words)
    yield Finding(Effect.HARMLESS, "prints") if is_harmless else Finding(Effect.PRIVILEGE, "could set the host name")


def print_environment(_: CommandView) -> Iterator[Finding]:
    yield Finding(Effect.READS_SECRETS, "prints the environment, including secrets")


def env(view: CommandView) -> Iterator[Finding]:
    """`env` runs the given command, or prints all variables if there is none. It must not remove the variables that are set for git."""
    index = 0
    while index < len(view.words) and (view.words[index].text.startswith("-") or "=" in view.words[index].text):
        text = view.words[index].text
        name, equals, _ = text.partition("=")
        if text in ("-u", "--unset"):
            index += 1
            text = f"-u{view.words[index].text}" if index < len(view.words) else text
        if equals and not name.startswith("-") and injects(name):
            yield Finding(Effect.INJECTION, f"sets {name}, which may change what runs")
        if text.startswith("-") and text not in ("-v", "--debug") and not re.fullmatch(r"(-u|--unset=)(?!GIT_)\w+", text):
            yield Finding(Effect.INJECTION, f"'{text}' may remove variables that are set for git")
        index += 1
    if index >= len(view.words):
        yield from print_environment(view)
    else:
        yield Finding(Effect.HARMLESS, "runs the command that follows")


def printenv_in_sandbox(view: CommandView) -> Iterator[Finding]:
    """A sandbox has few variables, and none that are secret; who asks for one by name needs approval."""
    yield Finding(Effect.HARMLESS, "prints variables of the sandbox")
    if secret := next((word.text for word in view.words if names_secret_variable(word.text)), None):
        yield Finding(Effect.READS_SECRETS, f"prints {secret}, which looks like a secret")


def traces(view: CommandView) -> Iterator[Finding]:
    """Debuggers and tracers can start a program, or attach to one that runs."""
    texts = [word.text for word in view.words]
    if view.name in ("gcore", "pstack") or any(re.match(r"-p\d*$|--pid|--attach-pid|--attach|dump$", text) for text in texts):
        yield Finding(Effect.PROCESSES, f"'{view.name}' attaches to another process")
    yield Finding(Effect.UNKNOWN, f"'{view.name}' runs another program")


def uniq(view: CommandView) -> Iterator[Finding]:
    operands, _, unknown_option = view.split_options(
        Options(frozenset(["-c", "-d", "-u", "-i", "-z", "--count", "--repeated", "--unique"]))
    )
    if unknown_option or any(word.pattern for word in operands):
        yield Finding(Effect.UNKNOWN, f"'{unknown_option or '*'}' of uniq is not known to be harmless")
    yield Finding(Effect.READS, "reads inside the project")
    yield from view.reads(operands[:1])
    for word in operands[1:]:
        yield from view.writes(word)


def touch_or_mkdir(view: CommandView) -> Iterator[Finding]:
    """`touch` and `mkdir` do not change existing files."""
    operands, _, unknown_option = view.split_options(Options(frozenset(("-p", "-v", "--parents", "--verbose"))))
    if unknown_option:
        yield Finding(Effect.UNKNOWN, f"'{unknown_option}' of {view.name} is not known to be harmless")
    for word in operands:
        for finding in view.writes(word):
            exists = finding.effect == Effect.OVERWRITES and finding.detail.startswith(("overwrites", "appends"))
            yield Finding(Effect.CREATES, f"creates {word.text}") if exists else finding


def tee(view: CommandView) -> Iterator[Finding]:
    operands, _, unknown_option = view.split_options(Options(frozenset(("-a", "-i", "--append"))))
    if unknown_option:
        yield Finding(Effect.UNKNOWN, f"'{unknown_option}' of tee is not known to be harmless")
    for word in operands:
        yield from view.writes(word, append=any(option.text in ("-a", "--append") for option in view.words))
    yield Finding(Effect.HARMLESS, "prints")


def cp(view: CommandView) -> Iterator[Finding]:
    """Only copies of single files are checked. A directory may contain anything."""
    operands, _, unknown_option = view.split_options(Options(frozenset(("-v", "-n", "-p", "--verbose", "--no-clobber"))))
    if unknown_option or len(operands) < 2 or not all(word.plain for word in operands):
        yield Finding(Effect.OVERWRITES, "copies in a way that is not checked")
        return
    *sources, target = operands
    yield from view.reads(sources)
    into = any(map(view.context.is_folder, view.paths(target)))
    for source in sources:
        if any(map(view.context.is_folder, view.paths(source))):
            yield Finding(Effect.OVERWRITES, "copies a whole directory")
        name = os.path.join(target.text, os.path.basename(source.text.rstrip("/"))) if into else target.text
        yield from view.writes(Word(name))


_FIND_FLAGS = frozenset(
    [
        "-print",
        "-print0",
        "-not",
        "!",
        "-o",
        "-a",
        "-or",
        "-and",
        "(",
        ")",
        "-empty",
        "-prune",
        "-ls",
        "-readable",
        "-writable",
        "-executable",
        "-true",
        "-false",
        "-depth",
        "-xdev",
    ]
)
_FIND_VALUES = frozenset(
    [
        "-name",
        "-iname",
        "-path",
        "-ipath",
        "-wholename",
        "-regex",
        "-iregex",
        "-type",
        "-maxdepth",
        "-mindepth",
        "-size",
        "-mtime",
        "-mmin",
        "-atime",
        "-ctime",
        "-cmin",
        "-amin",
        "-user",
        "-group",
        "-perm",
        "-links",
        "-printf",
        "-newer",
    ]
)
_FIND_RUNS = frozenset(("-exec", "-ok"))
_CHANGE_FILES = DELETES | CHANGES.keys()


def find(view: CommandView) -> Iterator[Finding]:
    """`find` reads its start directories. Every predicate must be known; the command of `-exec` is checked separately."""
    words, index = view.words, 0
    while index < len(words) and not words[index].text.startswith(("-", "(", "!")):
        index += 1
    roots = words[:index]
    yield Finding(Effect.READS, "searches files")
    yield from view.reads(roots)
    if any(word.pattern for word in roots):
        yield Finding(Effect.UNKNOWN, "a file name could be an option")
    while index < len(words):
        text = words[index].text
        if not words[index].known:
            yield Finding(Effect.UNKNOWN, f"'{text}' is only known when it runs")
        elif text == "-delete":
            yield from _deletes_found(view, roots)
        elif text.startswith(("-fprint", "-fls")):
            yield Finding(Effect.OVERWRITES, f"'{text}' writes a file")
            index += 1
        elif text in _FIND_RUNS:
            if view.context.confined and _is_outside(view, roots) and changes_files(words[index + 1 :]):
                yield Finding(Effect.WRITES_OUTSIDE, "changes the files it finds, outside the project")
            index = next(
                (i for i in range(index + 1, len(words)) if words[i].text == ";" or (words[i].text == "+" and words[i - 1].text == "{}")),
                len(words),
            )
        elif text in _FIND_VALUES:
            index += 1
            if index >= len(words) or not words[index].plain:
                yield Finding(Effect.UNKNOWN, f"the value of {text} is only known when it runs")
            elif text in ("-name", "-iname") and _FIND_RUNS & {word.text for word in words} and names_secrets(words[index].text):
                yield Finding(Effect.READS_SECRETS, f"may read a secret ({words[index].text})")
            if text == "-newer":
                yield from view.reads(words[index : index + 1])
        elif text not in _FIND_FLAGS:
            yield Finding(Effect.UNKNOWN, f"'{text}' of find is not known to be harmless")
        index += 1


def searches_outside(parts: Iterable[SimpleCommand], view: CommandView) -> bool:
    """Whether one of the commands of a line is a `find` that starts outside the project."""
    return any(
        _is_outside(view, itertools.takewhile(lambda word: not word.text.startswith(("-", "(", "!")), part.words[1:]))
        for part in parts
        if part.name in ("find", "fd", "fdfind")
    )


def changes_files(words: tuple[Word, ...]) -> bool:
    texts = [word.text for word in words]
    return bool({*texts[:1]} & _CHANGE_FILES) or (texts[:1] == ["sed"] and any(re.match(r"-\w*i|--in-place", text) for text in texts))


def _is_outside(view: CommandView, roots: Iterable[Word]) -> bool:
    return any(not view.context.inside(path) for word in map(in_home, roots) if word.known for path in view.paths(word))


def _deletes_found(view: CommandView, roots: Iterable[Word]) -> Iterator[Finding]:
    """`find -delete`: in a sandbox, what a build makes again may be deleted."""
    texts = [word.text for word in view.words]
    names = [after for text, after in itertools.pairwise(texts) if text in ("-name", "-iname")]
    others = {"-o", "-or", "!", "-not", "(", ","} & set(texts)
    if view.context.confined and _is_outside(view, roots):
        yield Finding(Effect.WRITES_OUTSIDE, "deletes the files it finds, outside the project")
    elif view.context.confined and names and not others and all(re.fullmatch(_GENERATED, name) for name in names):
        yield Finding(Effect.EDITS, f"deletes {' '.join(names)}")
    else:
        yield Finding(Effect.DELETES, "deletes the files it finds")


_SED_LINE = r"(\d+|\$|/[^/\\\n]*/)"
_SED_READS = rf"({_SED_LINE}(,{_SED_LINE})?)?!?[pdq=]|s([/|,#])[^\\\n/|,#]*\5[^\\\n/|,#&]*\5[gp0-9]?"
_SED_SAFE = r"(\d+|\$)?(,(\d+|\$))?[pdq=]|s([/|,#])[^\\\n/|,#]*\4[^\\\n/|,#&]*\4[gp0-9]?"


def sed(view: CommandView) -> Iterator[Finding]:
    """Only scripts that print, delete or substitute lines are known to write no file and run no command."""
    words = list(view.words)
    while words and words[0].plain and words[0].text in ("-n", "-E", "-r", "-u"):
        words.pop(0)
    if words and words[0].plain and words[0].text == "-e":
        words.pop(0)
    if any(word.text.startswith(("-i", "--in-place")) or re.match(r"-\w*i", word.text) for word in words[:1]):
        yield Finding(Effect.OVERWRITES, "sed -i changes files in place")
        return
    if not words or not words[0].plain or len(words[0].text) > 200 or not re.fullmatch(_SED_SAFE, words[0].text):
        yield Finding(Effect.INTERPRETER, "a sed script can write files and run commands")
        return
    if any(word.text.startswith("-") or word.pattern for word in words[1:]):
        yield Finding(Effect.INTERPRETER, "sed has options after its script")
    yield Finding(Effect.READS, "reads inside the project")
    yield from view.reads(words[1:])


def sed_in_sandbox(view: CommandView) -> Iterator[Finding]:
    """With `-i` it changes the files after its script. Other scripts can write files and run commands too, unless they are simple."""
    operands = [word for word in map(in_home, view.words) if word.plain and not word.text.startswith("-")]
    scripts = [after for word, after in itertools.pairwise(view.words) if re.fullmatch(r"-[nErsuz]*e", word.text)] or operands[:1]
    is_simple = all(script.plain and len(script.text) <= 200 and re.fullmatch(_SED_READS, script.text) for script in scripts)
    if not is_simple or any(
        word.text.startswith("-") and not re.fullmatch(r"-[nErsuz]*[ei]?|--in-place", word.text) for word in view.words
    ):
        yield Finding(Effect.UNKNOWN, "a sed script can write files and run commands")
    if any(re.match(r"-[nErsu]*i|--in-place", word.text) for word in view.words):
        yield Finding(Effect.EDITS, "sed -i changes files in place")
        for word in operands[1:]:
            yield from view.writes(word)
    for file in (found for script in scripts for found in re.findall(r"(?:^|[/|,#;}\d$])[gpiIme\d]*w[ \t]+([^\n;}]+)", script.text)):
        yield from view.writes(in_home(Word(file.strip(), pattern=file.startswith("~"))))
    yield Finding(Effect.READS, "reads inside the project", OPENS_FILES if set(operands) - set(scripts) else None)


# What a build or a test makes again.
_GENERATED = (
    r"(build|dist|out|target|node_modules|__pycache__|\.pytest_cache|\.mypy_cache|\.ruff_cache|\.tox|\.nox|coverage|htmlcov|\.coverage|\.next|\.nuxt|\.turbo"
    r"|\.parcel-cache|\.svelte-kit|\.?cache|\.eggs|tmp|temp|\.DS_Store|Thumbs\.db|.+\.(egg-info|pyc|pyo|o|obj|log|tmp|class|map|swp|gcda|gcno|profraw|orig|rej))"
)


def deletes(view: CommandView) -> Iterator[Finding]:
    """`rm` in a sandbox: single files of the project, and folders that can be made again; the rest is not known or cannot be undone."""
    recursive = any(re.match(r"-\w*[rR]|--recursive", word.text) for word in view.words)
    operands = [in_home(word) for word in view.words if not word.text.startswith("-")]
    shown = " ".join(word.text for word in operands) or "files"
    yield from view.edits([*operands, Word(".")])
    named = all(word.known and _can_be_deleted(view, word, recursive) for word in operands)

    def is_own(path: str) -> bool:
        return view.context.inside(path) or (not recursive and view.context.is_temporary(path)) or view.has_made(path)

    if any(not is_own(path) for word in operands if word.known for path in view.paths(word)):
        yield Finding(Effect.WRITES_OUTSIDE, f"deletes {shown}, outside the project")
    elif operands and named and view.name in ("rm", "rmdir", "unlink"):
        yield Finding(Effect.EDITS, f"deletes {shown}")
    else:
        yield Finding(Effect.DELETES, f"deletes {shown}")


def _can_be_deleted(view: CommandView, word: Word, recursive: bool) -> bool:
    if word.plain and all(map(view.has_made, view.paths(word))):
        return True
    if word.pattern:
        folder, name = os.path.split(word.text)
        is_generated = bool(re.fullmatch(_GENERATED, name) or (recursive and re.fullmatch(_GENERATED, os.path.basename(folder))))
        return is_generated and not set(word.text) & set("~{") and ".." not in folder
    if all(not view.context.is_folder(path) for path in view.paths(word)):
        return True
    return view.name == "rmdir" or (recursive and re.fullmatch(_GENERATED, os.path.basename(word.text.rstrip("/"))) is not None)


def npx(view: CommandView) -> Iterator[Finding]:
    """`npx TOOL` runs a tool of the project. If the project does not have it, npx asks its registry for it, also with `--no-install`."""
    words = [word for word in view.words if word.text not in ("--no-install", "--no", "--")]
    if view.name == "npm":  # npm exec
        words = words[1:]
    tool = words[0].text if words and words[0].plain else ""
    if tool in ("--version", "-v", "--help"):
        yield Finding(Effect.PROJECT_CODE, "prints")
        return
    installed = re.fullmatch(r"[\w@./-]+", tool) and any(
        view.context.exists(os.path.join(folder, "node_modules/.bin", os.path.basename(tool)))
        for start in view.folders
        for folder in _folders_above(view, start)
    )
    yield from installs(view, words[1:])
    yield (
        Finding(Effect.PROJECT_CODE, f"runs {tool} of the project")
        if installed
        else Finding(Effect.INSTALLS, f"'npx {tool}' downloads and runs a package")
    )


def _folders_above(view: CommandView, folder: str) -> Iterator[str]:
    while view.context.inside(folder):
        yield folder
        folder = os.path.dirname(folder)


def pip(view: CommandView) -> Iterator[Finding]:
    texts = [word.text for word in view.words]
    only_shows = re.match(
        r"(list|show|freeze|check|--version|-V|help|inspect|debug|config (list|get|debug)|cache (dir|info|list))( |$)", " ".join(texts)
    )
    if only_shows and not {"--outdated", "-o", "--uptodate", "-u"} & set(texts):
        yield Finding(Effect.READS, "lists installed packages")
    elif looks_up_packages(view):
        yield registry(view)
    else:
        yield Finding(Effect.INSTALLS, "pip installs or downloads packages")


def terraform(view: CommandView) -> Iterator[Finding]:
    verb = view.words[0] if view.words else None
    if verb and verb.plain and verb.text == "fmt":
        yield Finding(Effect.EDITS, "formats files")
    elif verb and verb.plain and " ".join(word.text for word in view.words[:2]) in ("workspace list", "workspace show"):
        yield Finding(Effect.PROJECT_CODE, "lists workspaces")
    elif (
        verb and verb.plain and verb.text in ("validate", "version", "-version", "--version", "-v", "providers", "graph", "-help", "--help")
    ):
        yield Finding(Effect.PROJECT_CODE, "runs the providers that the project has downloaded")
    else:
        yield Finding(Effect.NETWORK_CHANGE, f"'{view.name}' connects to other machines or containers")


def dd(view: CommandView) -> Iterator[Finding]:
    targets = [word.text.removeprefix("of=") for word in view.words if word.text.startswith("of=")]
    if any(target.startswith("/dev/") and target not in ("/dev/null", "/dev/stdout") for target in targets):
        yield Finding(Effect.PRIVILEGE, "writes to a device")
    for target in targets:
        yield from view.writes(in_home(Word(target, pattern=target.startswith("~"))))
    yield Finding(Effect.EDITS, "writes raw data")


def ssh_keygen(view: CommandView) -> Iterator[Finding]:
    """Without `-f FILE` it writes to the home directory, which is another one in a sandbox."""
    files = [after for word, after in itertools.pairwise(view.words) if word.text == "-f"]
    if not files:
        yield Finding(Effect.WRITES_OUTSIDE, "writes to ~/.ssh, outside the project")
    for word in files:
        yield from view.writes(word)


def openssl(view: CommandView) -> Iterator[Finding]:
    verb = view.words[0] if view.words else Word("help")
    if not verb.plain or verb.text in ("s_client", "s_server", "s_time", "ocsp", "cmp", "ts"):
        yield Finding(Effect.NETWORK_CHANGE, "'openssl' connects to another machine")
    yield Finding(Effect.UNKNOWN, "openssl may write files")


def netcat(view: CommandView) -> Iterator[Finding]:
    """`nc -z` only tells whether a port is open."""
    texts = [word.text for word in view.words if word.plain]
    options = [text for text in texts if text.startswith("-")]
    values = [text for text in texts if not text.startswith("-")]
    if "-w" in texts:
        del values[0:1]
    only_asks = all(re.fullmatch(r"-[zvn46]*[zvn46]|-w\d*", text) for text in options) and any("z" in text for text in options)
    is_port = len(texts) == len(view.words) and len(values) == 2 and values[0] in _LOOPBACK and values[1].isdecimal()
    if only_asks and is_port and 0 < int(values[1]) < 1 << 16 and ("-w" not in texts or texts[texts.index("-w") + 1].isdecimal()):
        yield Finding(Effect.LOOPBACK, f"connects to port {values[1]} of this machine", int(values[1]))
    else:
        yield Finding(Effect.NETWORK_CHANGE, "'nc' connects to other machines or containers")


_SERVERS = (
    r"(npm|pnpm|yarn|bun)( run)? (dev|start|serve|preview|watch|storybook)\b.*|(npx )?(vite|next dev|nuxt dev|astro dev|ng serve|webpack serve|http-server|serve)\b.*"
    r"|(\S*python[0-9.]* (\S+ )*)?(-m )?(http\.server|uvicorn|gunicorn|hypercorn|flask run|streamlit run)\b.*|\S*python[0-9.]* \S*manage\.py runserver.*"
    r"|(bin/)?rails (s|server)\b.*|(bundle exec )?(puma|jekyll serve)\b.*|php -S .*|hugo server.*|mkdocs serve.*|deno run .*|cargo run.*serve.*|uv run (uvicorn|flask).*"
)


# Text without any of these is none of the servers. Compiling the pattern takes a few milliseconds, and few commands need it.
_IN_SERVERS = (
    "dev",
    "start",
    "serve",
    "preview",
    "watch",
    "storybook",
    "vite",
    "corn",
    "flask",
    "streamlit",
    "rails",
    "puma",
    "php",
    "deno",
)


def listens(view: CommandView) -> bool:
    """Whether this is a server for development."""
    words = view.part.words
    text = " ".join(word.text for word in words)[:300]
    is_known = bool(words) and words[0].plain and any(part in text for part in _IN_SERVERS)
    return is_known and re.fullmatch(_SERVERS, text) is not None


_DELIVERY = r"(.+[:_-])?(deploy|publish|upload|provision|rollback)([:_-].+)?|(semantic-)?release([:_-].+)?"
_DELIVERING_TASK = r"(publish|upload|deploy|release|install(Debug|Release))(?![a-z]).*|[a-z]\w*(Upload|Publish|Deploy)"  # of Gradle
_DELIVERING_GOAL = (
    r"(deploy|release|site-deploy|nexus-staging)(:.*)?|dependency:(get|resolve|go-offline)|.+:(deploy|publish|push|upload)(-file)?"
)
_ONLY_CHECKS = frozenset(["dry", "check", "test", "tests", "verify", "validate", "lint", "notes", "plan", "status", "help"])  # in a name
_SHELL_SCRIPT = r"(.+[_-])?(deploy|publish|release|install|uninstall)([_-].+)?"
_RUN_TARGETS = frozenset(
    ["mvn", "mvnw", "make", "gmake", "just", "task", "rake", "mage", "invoke", "inv", "poe", "gradle", "gradlew", "ant"]
)
_INSTALL_TARGETS = frozenset(["make", "gmake", "ninja", "just", "task", "rake", "mage", "invoke", "inv"])
_PREFIX = r"(?:DESTDIR|prefix|PREFIX|--prefix|--destdir)(?:=(.*))?"
_OWN_FOLDER = (
    r"\"?(?!.*\.\.)(\$PWD|\$\{PWD\}|\$\(pwd\)|/tmp/|[\w.]+(?![\w.]*:)).*"  # a sandbox can only write to the project and to its /tmp
)
_RUN_SCRIPTS = frozenset(["npm", "pnpm", "yarn", "bun"])
_RUN_FILES = frozenset(["sh", "bash", "dash", "zsh", "python", "python3", "node", "ruby", "php", "perl"])
_ONLY_TRIES = frozenset(["-n", "--dry-run", "--just-print", "--recon"])


def delivers(view: CommandView) -> list[Finding]:
    """A target or script of the project whose name says that it delivers or installs something. A person should decide about that."""
    texts = [word.text for word in view.words]
    targets = [text for text in texts if not text.startswith("-") and "=" not in text]
    pattern, named = _DELIVERY, []
    if view.name in _RUN_TARGETS and not _ONLY_TRIES & set(texts):
        named = targets
        pattern = {"mvn": _DELIVERING_GOAL, "mvnw": _DELIVERING_GOAL}.get(view.name, _DELIVERY)
        if view.name in ("gradle", "gradlew"):
            named, pattern = [text.rpartition(":")[2] for text in targets], f"{_DELIVERY}|{_DELIVERING_TASK}"
    elif view.name in _RUN_SCRIPTS:
        named = [text for text in texts if text not in ("run", "run-script") and not text.startswith("-")][:1]
    else:
        files = texts[:1] if view.name in _RUN_FILES else [view.part.name or ""] if "/" in (view.part.name or "") else []
        names = [os.path.basename(text).partition(".")[0] for text in files]
        is_shell = any(os.path.splitext(text)[1] in ("", ".sh", ".bash") and not os.path.dirname(text).startswith("/") for text in files)
        named = [name for name in names if re.fullmatch(_SHELL_SCRIPT, name)] if is_shell else []
        named = named or [name for name in names if name in ("deploy", "publish", "release")]
        pattern = ".*"
    found = [
        Finding(Effect.PUBLISHES, f"'{text}' delivers to other machines")
        for text in named
        if re.fullmatch(pattern, text) and _ONLY_CHECKS.isdisjoint(re.split("[:_-]", text))
    ]
    return found or _installs_on_system(view, targets)


_DISCARDS_DATA = (
    r"(.+[:_-])?((db|database|schema)[:_-](drop|reset|wipe|purge)|(drop|reset|wipe|purge)[_-](db|database))([:_-].+)?|ecto\.(drop|reset)"
)
_HAVE_TASKS = frozenset(["artisan", "console", "sequelize", "sequelize-cli"])  # their first word is a task
_FOR_TESTS = r"([A-Z]+_ENV|--env)=test(ing)?"


def discards_data(view: CommandView) -> Iterator[Finding]:
    """A task of the project whose name says that it deletes a database. The sandbox cannot tell which one, and git does not keep it."""
    texts, settings = [word.text for word in view.words], [f"{name}={value.text}" for name, value in view.part.assigned]
    tries = {"--dry-run", "--dump-sql", "--help", *(_ONLY_TRIES if view.name in _RUN_TARGETS else ())}
    if tries & set(texts) or any(re.fullmatch(_FOR_TESTS, text) for text in (*texts, *settings)):
        return
    words = [os.path.basename(text) for text in (view.name, *texts) if not text.startswith("-")]
    if view.name in _RUN_TARGETS or view.name in ("rails", "mix"):
        named = words[1:]
    elif view.name in _RUN_SCRIPTS:
        named = [word for word in words[1:] if word not in ("run", "run-script")][:1]
    else:
        named = [after for before, after in itertools.pairwise(words[:3]) if before in _HAVE_TASKS]
    tasks = [name for name in named if re.fullmatch(_DISCARDS_DATA, name) and _ONLY_CHECKS.isdisjoint(re.split("[:_-]", name))]
    tasks += [
        after for name, after in itertools.pairwise(words) if name in ("manage.py", "django-admin") and after in ("flush", "reset_db")
    ]
    tasks += ["prisma"] if "prisma" in words[:2] and (words[-2:] == ["migrate", "reset"] or "--force-reset" in texts) else []
    yield from (Finding(Effect.DISCARDS, f"'{task}' deletes the data of a database") for task in tasks[:1])


def _has_own_prefix(texts: list[str]) -> bool:
    for text, after in zip(texts, (*texts[1:], ""), strict=False):
        if (found := re.fullmatch(_PREFIX, text)) and re.fullmatch(_OWN_FOLDER, after if found.group(1) is None else found.group(1)):
            return True
    return False


def _installs_on_system(view: CommandView, targets: list[str]) -> list[Finding]:
    """What copies the result of a build to the folders of the system, unless another folder is named."""
    texts = [word.text for word in view.words]
    by_target = view.name in _INSTALL_TARGETS and {"install", "uninstall"} & set(targets) and not _ONLY_TRIES & set(texts)
    by_option = view.name == "cmake" and "--install" in texts
    is_setup = view.name.startswith("python") and os.path.basename(next(iter(texts), "")) == "setup.py"
    by_setup = is_setup and {"install", "develop", "upload", "register"} & set(texts[1:])
    if (by_target or by_option or by_setup) and not _has_own_prefix(texts):
        return [Finding(Effect.INSTALLS, f"'{view.name}' installs or delivers what was built")]
    return []


_MIGRATES = frozenset(["alembic", "aerich", "dbmate", "goose", "yoyo", "diesel"])  # their `upgrade` changes a database of the project


def installs(view: CommandView, words: Iterable[Word]) -> Iterator[Finding]:
    """A program that is not known, with a verb that means the same for almost every program."""
    words = list(words)
    verb = next(iter(words), Word(""))
    if view.name in _MIGRATES or any(word.text in ("--help", "-h") for word in words):
        return
    if verb.plain and verb.text in ("install", "uninstall", "upgrade", "update", "self-update", "autoupdate", "pull", "download"):
        yield Finding(Effect.INSTALLS, f"'{view.name} {verb.text}' installs or downloads packages")
    elif verb.plain and verb.text in ("login", "logout", "deploy", "publish", "push", "upload"):
        yield Finding(Effect.PUBLISHES, f"'{view.name} {verb.text}' connects to another machine")


_ADDRESS = (
    r"(?:--?[\w-]+=)?(?:https?|ftps?|sftp|ssh|git|wss?|grpc|s3|gs|rsync|redis|mongodb(?:\+srv)?|postgres(?:ql)?|mysql|amqps?)://"
    r"(?:[^/@]*@)?(\[[^\]]*\]|[\w.-]*).*"
)


def names_address(view: CommandView) -> Iterator[Finding]:
    """A program that is not known, with the address of another machine."""
    for word in view.words:
        if (found := re.fullmatch(_ADDRESS, word.text, re.DOTALL)) and found.group(1).strip("[]") not in ("", *_LOOPBACK):
            yield Finding(Effect.NETWORK_CHANGE, f"'{view.name}' gets the address of another machine ({found.group(1)})")


_AWK_SAFE = r"\{ ?print( \$(\d+|NF)(, ?\$(\d+|NF))*)? ?\}"


def awk(view: CommandView) -> Iterator[Finding]:
    words = list(view.words)
    if len(words) > 1 and words[0].plain and words[0].text == "-F" and words[1].plain:
        words = words[2:]
    elif words and words[0].plain and re.fullmatch(r"-F.", words[0].text):
        words = words[1:]
    if not words or not words[0].plain or len(words[0].text) > 200 or not re.fullmatch(_AWK_SAFE, words[0].text):
        yield Finding(Effect.INTERPRETER, "an awk program can write files and run commands")
        return
    if any(word.text.startswith("-") or word.pattern or "=" in word.text for word in words[1:]):
        yield Finding(Effect.INTERPRETER, "awk has options after its program")
    yield Finding(Effect.READS, "reads inside the project")
    yield from view.reads(words[1:])


_GIT_FLAGS = (
    "-s -b -p -u -z -n -w -v -r -vv --short --branch --porcelain --oneline --stat --shortstat --numstat --name-only --name-status --graph --all"
    " --decorate --no-color --cached --staged --follow --no-merges --merges --first-parent --reverse --patch --no-patch --abbrev-ref --show-toplevel"
    " --show-current --list --ignored --summary --word-diff --ignore-all-space --color --raw --cc --date-order --topo-order --abbrev-commit --quiet -q -l"
    " --others --modified --deleted --exclude-standard --tags --always --no-ext-diff --no-textconv --full-history --date --is-inside-work-tree"
)
_GIT_VALUES = "-n --since --until --after --before --author --max-count --skip"
_GIT_JOINED = "--since --until --after --before --author --max-count --skip --date --format --pretty --diff-filter --abbrev --color --untracked-files -U"
_GIT_READS = frozenset(
    ["status", "log", "diff", "show", "rev-parse", "ls-files", "ls-tree", "blame", "describe", "shortlog", "rev-list", "merge-base"]
)
_GIT_SUMMARIES = frozenset(("--name-only", "--name-status", "--stat", "--shortstat", "--numstat", "--summary", "--no-patch", "-s"))
_GIT_PATCHES = frozenset(("-p", "-u", "--patch", "--cc", "--word-diff"))
_GIT_LISTS = {
    "branch": frozenset(("-a", "-r", "-v", "-vv", "--list", "--show-current", "--all")),
    "tag": frozenset(("-l", "--list")),
    "remote": frozenset(("-v",)),
    "stash": frozenset(("list",)),
    "worktree": frozenset(("list",)),
}
_GIT_CHANGES = {
    **dict.fromkeys(("push", "send-email"), (Effect.PUBLISHES, "publishes")),
    **dict.fromkeys(
        ("fetch", "pull", "clone", "ls-remote", "submodule"), (Effect.NETWORK_CHANGE, "connects to another machine and may run hooks")
    ),
    **dict.fromkeys(("clean", "reset", "checkout", "restore", "rm", "switch", "gc", "prune"), (Effect.DELETES, "can discard work")),
}


def git(view: CommandView) -> Iterator[Finding]:
    """Subcommands that read are allowed, with known options, in a repository whose settings and hooks run no program."""
    words = list(view.words)
    while words and words[0].plain and words[0].text in ("--no-pager", "-P", "--no-optional-locks"):
        words.pop(0)
    if not words or not words[0].plain or words[0].text.startswith("-"):
        plain = [word.text for word in view.words] == ["--version"]
        yield (
            Finding(Effect.HARMLESS, "prints")
            if plain
            else Finding(Effect.UNKNOWN, "an option before the git subcommand can change what runs")
        )
        return
    verb, rest = words[0].text, words[1:]
    if verb in _GIT_CHANGES:
        effect, description = _GIT_CHANGES[verb]
        yield Finding(effect, f"git {verb} {description}")
        return
    lists = (
        verb in _GIT_LISTS
        and all(word.plain and word.text in _GIT_LISTS[verb] for word in rest)
        and (rest or verb in ("branch", "tag", "remote"))
    )
    if verb not in _GIT_READS and not lists:
        yield Finding(Effect.OVERWRITES, f"git {verb} changes the repository or runs its hooks")
        return
    yield Finding(Effect.READS, f"git {verb} reads")
    for setting in view.context.git_config_that_runs_code(view.folders):
        yield Finding(Effect.UNKNOWN, f"this repository may make git run a program ({setting})")
    texts = {word.text for word in rest}
    patches = bool(texts & _GIT_PATCHES) or any(re.match("-[A-Za-z]*[puU]", text) for text in texts)
    staged = verb == "status" and any(re.match("-[A-Za-z]*v", text) for text in texts)
    contents = (
        verb == "blame" or staged or (verb == "log" and patches) or (verb in ("diff", "show") and (patches or not texts & _GIT_SUMMARIES))
    )
    if contents or (verb == "remote" and "-v" in texts):
        for secret in view.context.git_secrets(view.folders, contents=contents):
            yield Finding(Effect.READS_SECRETS, f"git {verb} could show {secret}")
    if not lists:
        yield from _git_words(view, verb, rest)


def _git_words(view: CommandView, verb: str, rest: list[Word]) -> Iterator[Finding]:
    inner = CommandView(view.part._replace(words=(Word("git"), *rest)), view.context, view.folders)
    operands, values, unknown_option = inner.split_options(
        Options(frozenset(_GIT_FLAGS.split()), frozenset(_GIT_VALUES.split()), joined=frozenset(_GIT_JOINED.split()))
    )
    if unknown_option:
        yield Finding(Effect.UNKNOWN, f"'{unknown_option}' of git {verb} is not known to be harmless")
    if verb in ("show", "diff") and not unknown_option:
        yield from _git_objects(view, verb, rest, operands)
    if any(re.search("%[-+ ]?G", word.text) for word in [*values, *rest]):
        yield Finding(Effect.UNKNOWN, "checking a signature runs a program")
    for word in operands:
        if not word.known or word.pattern or ":(" in word.text or set(word.text) & set("*?["):
            yield Finding(Effect.UNKNOWN, f"'{word.text}' is only known when it runs")
        else:
            yield from view.reads([Word(word.text), Word(word.text.rpartition(":")[2] or ".")])


def _git_objects(view: CommandView, verb: str, rest: list[Word], operands: list[Word]) -> Iterator[Finding]:
    """Only content of commits may be shown, because file names are known there. An object ID shows a file without its name."""
    texts = [word.text for word in rest]
    if "--" in texts:
        operands = operands[: len(operands) - (len(texts) - texts.index("--") - 1)]
    else:  # git does not treat a name as a commit if a file of that name exists
        operands = [word for word in operands if not any(map(view.context.exists, view.paths(word)))]
    names = [name for word in operands for name in re.split(r"\.{2,3}", word.text.partition(":")[0].removeprefix("^")) if name]
    if unknown := view.context.git_unknown(view.folders, names):
        yield Finding(Effect.READS_SECRETS, f"git {verb} could show any file, because {unknown} is not known to be a commit")


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
_READING_HEADER = (  # others could make a server change something
    r"(?i)(accept[\w-]*|content-type|user-agent|cache-control|origin|referer|authorization|range|if-[\w-]+|x-request-id):[^\r\n]*"
)
_CURL_VALUES = frozenset(["-m", "--max-time", "--connect-timeout", "--retry", "-A", "--user-agent", "-w", "--write-out"])
_LOOPBACK = frozenset(("localhost", "127.0.0.1", "::1", "0.0.0.0"))


_OWN_URL = r"[\"']?(https?://)?(localhost|127\.0\.0\.1|0\.0\.0\.0|\[::1\])(:(\d+|\$\w+|\$\{\w+\}))?([/?#].*)?"


# Options that choose neither another machine nor a file with options.
_ORDINARY_OPTIONS = (
    r"-[sSfivg]*([XdHFmowuAb]?|X[A-Z]+)|--(request|header|json|data(-raw|-binary|-urlencode)?|form(-string)?|user|cookie|output|write-out"
    r"|max-time|silent|show-error|fail(-with-body)?|include|verbose|compressed|no-progress-meter)"
)


def curl(view: CommandView) -> Iterator[Finding]:
    """Requests that change something are harmless where the server is one of the same line. What is no option must be a value or the server."""
    urls = [word for before, word in zip((None, *view.words), view.words, strict=False) if not _may_be_value(before, word)]
    own = OWN_SERVER if view.context.confined and urls and all(re.fullmatch(_OWN_URL, word.text, re.DOTALL) for word in urls) else None
    options = [word.text for word in view.words if word.text.startswith("-")]
    ports = {_port(word.text) for word in urls} if own and all(re.fullmatch(_ORDINARY_OPTIONS, option) for option in options) else set()
    target = ports.pop() if len(ports) == 1 else None
    for finding in _curl(view):
        yield finding._replace(value=target or own) if own and finding.effect is Effect.NETWORK_CHANGE else finding


def _port(url: str) -> int | None:
    """The port of an address; None if it is only known when it runs."""
    if "$" in url.partition("://")[2].partition("/")[0] or "$" in url.partition("/")[0]:
        return None
    found = re.search(r"(?::(\d{1,5}))(?:[/?#]|$)", url.partition("://")[2] or url)
    return int(found.group(1)) if found else 443 if url.startswith("https:") else 80


def _may_be_value(before: Word | None, word: Word) -> bool:
    """Whether a word of curl is an option, or the value of the option before it."""
    return word.text.startswith("-") or (before is not None and re.fullmatch(r"-\w*[XdHFmowuAbc]|--[a-z][a-z-]+", before.text) is not None)


def without_pattern(view: CommandView, word: Word) -> Word:
    """An address with an unquoted `?`, which no file matches, is passed on as it is."""
    is_address = word.known and word.pattern and re.fullmatch(r"(https?://\[::1\])?[^*\[\]{}~\\]+", word.text) is not None
    return Word(word.text) if is_address and not any(view.context.matches(folder, word.text) for folder in view.folders) else word


def _curl(view: CommandView) -> Iterator[Finding]:
    urls, index = [], 0
    while index < len(view.words):
        word = without_pattern(view, view.words[index])
        if not word.plain:
            yield Finding(Effect.NETWORK_CHANGE, "its request is only known when it runs")
            return
        text = word.text
        if text in ("-o", "--output") and view.words[index + 1 : index + 2] == (Word("/dev/null"),):
            index += 1
        elif text in ("-o", "--output") and view.context.confined and index + 1 < len(view.words):
            index += 1
            yield from view.writes(view.words[index])
        elif (
            text in ("-H", "--header")
            and view.context.confined
            and (header := next(iter(view.words[index + 1 : index + 2]), None))
            and header.plain
            and re.fullmatch(_READING_HEADER, header.text)
        ):
            index += 1
        elif text in _CURL_VALUES:
            index += 1
            if index >= len(view.words) or not view.words[index].plain or re.search(r"output\{|^@", view.words[index].text):
                yield Finding(Effect.NETWORK_CHANGE, "its request is only known when it runs")
                return
        elif (
            text.startswith("-")
            and text not in _CURL_FLAGS
            and (text.startswith("--") or not all(f"-{c}" in _CURL_FLAGS for c in text[1:]))
        ):
            yield Finding(Effect.NETWORK_CHANGE, f"'{text}' may change, send or write something")
            return
        elif not text.startswith("-"):
            urls.append(text)
        index += 1
    known = set(view.context.hosts())
    for url in urls or ["?"]:
        matched = re.fullmatch(r"(?:https?://)?(?:\[([0-9a-fA-F:]+)\]|([A-Za-z0-9.-]+))(?::\d+)?(?:[/?#][^\s{}\[\]]*)?", url)
        host = (matched.group(1) or matched.group(2)).lower() if matched else None
        if host in _LOOPBACK and view.context.confined:
            port = _port(url)
            yield Finding(Effect.LOOPBACK, f"connects to port {port} of this machine", port)
        elif host is None or host not in known:
            yield Finding(Effect.NETWORK_CHANGE, f"requests {host or url}, which is not a listed host")
        else:
            yield Finding(Effect.NETWORK_READ, f"reads from {host}")
