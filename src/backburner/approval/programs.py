"""What programs do: which effects a simple command has, from the catalogue of the programs that are known.

A program that is not in it, an option that is not known to be harmless, and anything dynamic that matters is `unknown`, and
unknown asks.
"""

import itertools
import os
import re
from collections.abc import Callable, Iterable

from backburner.approval import program_rules as tools
from backburner.approval.effects import CommandContext, CommandView, Effect, Finding, injects
from backburner.approval.program_tables import (
    BUILD_FILES,
    CHANGES,
    DELETES,
    INSTALLS,
    INTERPRETERS,
    MODULES,
    NETWORK,
    PRINTS,
    PRIVILEGE,
    PROCESSES,
    PROJECT,
    READS,
    SUBCOMMAND_OPTIONS,
    SUBCOMMANDS,
    SYSTEM,
    SYSTEM_LIBRARIES,
)
from backburner.approval.shell_parser import SimpleCommand, Word
from backburner.approval.wrappers import RUNNERS, SHELLS, WRAPPERS, Options

_MOST_FOLDERS = 64
_SPECIAL: dict[str, Callable[[CommandView], Iterable[Finding]]] = {
    "git": tools.git,
    "find": tools.find,
    "sed": tools.sed,
    "awk": tools.awk,
    "gawk": tools.awk,
    "mawk": tools.awk,
    "curl": tools.curl,
    "cp": tools.cp,
    "tee": tools.tee,
    "touch": tools.creates,
    "mkdir": tools.creates,
    "env": tools.env,
    "printenv": tools.environment,
    "set": tools.environment,
    "uniq": tools.uniq,
    "date": tools.date,
    "hostname": tools.hostname,
    "ps": tools.ps,
    "printf": tools.printf,
    "test": tools.test,
    "[": tools.test,
    "cd": tools.nothing,
    "xargs": tools.nothing,
    "command": tools.nothing,
    "eval": tools.nothing,
    "trap": tools.nothing,
}
_NO_FILES = ("/dev/", "/proc/", "/sys/")  # not the same for everybody who looks
_SHOWN = frozenset(["HOME", "PWD", "USER", "SHELL", "LANG"])
_LOOKS_AROUND = frozenset(("ls", "du", "tree", "rg", "find", "git"))  # they read the folder they are in, without being told to
_NO_TIME = frozenset(("cd", "echo", "printf", "pwd", "true", "test", "[", "head", "git"))  # they neither wait nor take long
_LEADING_PATTERNS = frozenset(("cat", "ls", "stat"))  # no file's name could be an option of theirs that matters


def effects_of(parts: list[SimpleCommand], world: CommandContext) -> list[tuple[SimpleCommand, list[Finding]]]:
    """Each part with everything it would do. A `cd` counts for all parts: each path is judged from every folder it may start from."""
    folders, lost = folders_of(parts, world)
    judged = []
    for part in parts:
        view = CommandView(part, world, folders)
        found = [Finding(Effect.UNKNOWN, doubt) for doubt in part.doubts]
        found += _assigned(part, world) + [one for redirect in part.redirects for one in view.redirect(redirect)]
        if part.words:
            found += [*_command(view), *_dynamic(view)]
            if view.name in _LOOKS_AROUND and not world.inside(world.cwd):
                found.append(Finding(Effect.READS_OUTSIDE, f"looks into {world.cwd}, outside the project"))
        if lost and part.words:
            found.append(Finding(Effect.UNKNOWN, f"changes to {lost}, so its paths cannot be told"))
        judged.append((part, list(dict.fromkeys(found))))
    if any(one.effect == Effect.CREATES for _, found in judged for one in found):
        for part, found in judged:
            if part.name == "git" or any(one.effect == Effect.PROJECT_CODE for one in found):
                found.append(Finding(Effect.UNKNOWN, "uses what the same line creates"))
    if not world.ours and any(part.name not in _NO_TIME for part in parts):
        for part, found in judged:
            if part.name == "git" and not all(world.exists(os.path.join(folder, ".git")) for folder in folders):
                found.append(Finding(Effect.UNKNOWN, "git would look for a repository after other commands, and might find a new one"))
    return judged


def _dynamic(view: CommandView) -> list[Finding]:
    """A word that is not known could be an option, or several words: only what prints its words can have one."""
    for word in view.words:
        harmless = (
            view.name == "echo"
            and not word.pattern
            and all(name in _SHOWN or (name.islower() and not view.world.has_variable(name)) for name in re.findall(r"\$(\w+)", word.text))
        )
        if not word.known and not harmless:
            return [Finding(Effect.UNKNOWN, f"'{word.text}' is only known when it runs")]
        if word.known and word.pattern and (view.name not in _LEADING_PATTERNS or set(word.text) & set("[]{~")):
            return [Finding(Effect.UNKNOWN, f"what '{word.text}' fits is only known when it runs")]
    return []


def folders_of(parts: list[SimpleCommand], world: CommandContext) -> tuple[list[str], str | None]:
    """The folders that commands may run in, and where to if that cannot be told. A shell's `cd ..` forgets links, ours does not: both count."""
    folders = [world.cwd]
    for part in parts:
        if part.name not in ("cd", "pushd", "popd"):
            continue
        target = part.words[1] if len(part.words) == 2 else None
        if part.name != "cd" or target is None or not target.plain or target.text.startswith("-"):
            return folders, "a folder that is only known when it runs"
        for folder in list(folders):
            logical = os.path.normpath(os.path.join(folder, target.text))
            for there in (world.resolve(logical), world.resolve(os.path.join(folder, target.text)), logical):
                if not world.inside(there):
                    return folders, f"{target.text}, outside the project"
                if there not in folders:
                    folders.append(there)
        if len(folders) > _MOST_FOLDERS:
            return folders, "too many folders"
    return folders, None


def _assigned(part: SimpleCommand, world: CommandContext) -> list[Finding]:
    """A variable in front of a command or in the environment may change what runs; a lower-case one on its own is the shell's."""
    found = []
    for name, value in part.assigned:
        if not value.plain or (not injects(name) and "/" in value.text):
            found.append(Finding(Effect.INJECTION, f"sets {name} to something that is only known when it runs, or leads elsewhere"))
        elif injects(name) and (part.words or not name.islower() or world.has_variable(name)):
            found.append(Finding(Effect.INJECTION, f"sets {name}, which may change what runs"))
    return found


def _command(view: CommandView) -> list[Finding]:
    """The effects of the program itself, after looking at which program that really is."""
    part, world = view.part, view.world
    if part.name is None:
        return [Finding(Effect.UNKNOWN, "what it runs is only known when it runs")]
    if "/" in part.name:
        return _named_by_path(view, part.name)
    path = world.executable(view.name)
    if path is None:
        return _known(view, None)
    if world.inside(path) or world.inside(world.resolve(path)):
        own = f"runs {path}, a file of the project"
        if view.name in PROJECT or view.name in INTERPRETERS or view.name in SUBCOMMANDS:
            return [Finding(Effect.PROJECT_CODE, own), *_known(view, own)]
        return [Finding(Effect.UNKNOWN, f"'{view.name}' would run {path}, a file of the project")]
    if not _is_systems(world.resolve(path)) and (view.name in PRINTS or view.name in READS or view.name in _SPECIAL):
        return [Finding(Effect.UNKNOWN, f"'{view.name}' would run {path}, which is not the system's own")]
    return _known(view, None)


def _is_systems(path: str) -> bool:
    """Whether a program, without links in its path, is the system's own."""
    return os.path.dirname(path) in SYSTEM or path.startswith(SYSTEM_LIBRARIES)


def _named_by_path(view: CommandView, name: str) -> list[Finding]:
    world = view.world
    for folder in view.folders:
        path = world.resolve(os.path.join(folder, name))
        if "://" in name or (world.inside(path) and not world.exists(path)):
            return [Finding(Effect.UNKNOWN, f"runs {name}, which is not there")]
        if world.inside(path):
            return _project_code(view, f"runs {name} of the project", Options())
        if os.path.dirname(name) not in SYSTEM or not _is_systems(path) or os.path.basename(path) != view.name:
            return [Finding(Effect.UNKNOWN, f"runs {name}, which is not known")]
    return _known(view, None)


def _known(view: CommandView, own: str | None) -> list[Finding]:
    name = view.name
    if name in _SPECIAL:
        return list(_SPECIAL[name](view))
    if name in PRINTS:
        return _prints(view)
    if name in READS:
        return _reads(view, READS[name])
    if name in DELETES:
        return [
            Finding(Effect.DELETES, f"deletes {' '.join(word.text for word in view.words if not word.text.startswith('-')) or 'files'}")
        ]
    if name in CHANGES:
        return [Finding(Effect.OVERWRITES, CHANGES[name])]
    if name.split(".")[0] in PRIVILEGE:
        return [Finding(Effect.PRIVILEGE, f"'{name}' changes the system or acts as another user")]
    if name in PROCESSES:
        return [Finding(Effect.PROCESSES, f"'{name}' acts on other processes or services")]
    if name in INSTALLS:
        return [Finding(Effect.INSTALLS, f"'{name}' installs or downloads packages")]
    if name in NETWORK:
        return [Finding(Effect.NETWORK_CHANGE, f"'{name}' talks to other machines or containers")]
    if name in INTERPRETERS:
        return _interpreter(view)
    if name in SHELLS:
        return _shell(view)
    if name in (".", "source"):
        return _script(view, view.words[0]) if view.words else [Finding(Effect.UNKNOWN, "runs nothing that is named")]
    if name in SUBCOMMANDS:
        return _subcommand(view)
    if name in PROJECT:
        return _project_code(view, own or f"'{name}' runs the project's code", PROJECT[name])
    if name in WRAPPERS:
        return [Finding(Effect.HARMLESS, "runs what follows")]
    return [Finding(Effect.UNKNOWN, f"'{name}' is not known")]


def _prints(view: CommandView) -> list[Finding]:
    if view.name not in ("echo", ":", "expr"):
        _, _, odd = view.split(PRINTS[view.name])
        if odd:
            return [Finding(Effect.UNKNOWN, f"'{odd}' of {view.name} is not known to be harmless")]
    return [Finding(Effect.HARMLESS, "prints"), *view.shown()]


def _reads(view: CommandView, known: Options) -> list[Finding]:
    operands, _, odd = view.split(known)
    found = [Finding(Effect.READS, "reads inside the project")]
    if odd:
        found.append(Finding(Effect.UNKNOWN, f"'{odd}' of {view.name} is not known to be harmless"))
    for word in operands:
        if word.pattern and word.text[:1] in "*?[" and (view.name not in _LEADING_PATTERNS or view.fits_option(word)):
            found.append(Finding(Effect.UNKNOWN, f"a file's name that {word.text} fits could be an option"))
    if view.name == "diff" and any(view.world.is_folder(path) for word in operands for path in view.paths(word)):
        found.append(Finding(Effect.UNKNOWN, "compares whole folders, and follows links in them"))
    if view.name == "rg" or (view.name.endswith("grep") and any(re.match(r"-\w*r|--recursive", word.text) for word in view.words)):
        given = any(re.match(r"-\w*e|--regexp|--files", word.text) for word in view.words)
        found += _secrets_below(view, operands if given and operands else operands[1:] or [Word(".")])
    return [*found, *view.reads(operands)]


def _secrets_below(view: CommandView, words: Iterable[Word]) -> list[Finding]:
    """What may be a secret in the folders that are searched; what the options leave out is not read."""
    texts = [word.text for word in view.words]
    skipped = [after for text, after in itertools.pairwise(texts) if text == "--exclude-dir"]
    skipped += [text.partition("=")[2] for text in texts if text.startswith("--exclude-dir=")]
    for word in words:
        for path in view.paths(word) if word.known else []:
            if "/.git/" in f"{path}/":
                return [Finding(Effect.READS_SECRETS, "searches git's own files")]
            if secret := view.world.secrets_below(path, skipped, ignored=view.name == "rg"):
                return [Finding(Effect.READS_SECRETS, f"searches {secret}")]
    return []


def _interpreter(view: CommandView) -> list[Finding]:
    words = list(view.words)
    if [word.text for word in words] in (["--version"], ["-V"], ["--help"]):
        return [Finding(Effect.HARMLESS, "prints")]
    while words and words[0].plain and words[0].text in INTERPRETERS[view.name]:
        words.pop(0)
    if not words or not words[0].plain:
        return [Finding(Effect.INTERPRETER, f"{view.name} would run what comes on its input, or what is only known when it runs")]
    if words[0].text == "-m" and view.name.startswith(("python", "pypy")) and len(words) > 1 and words[1].plain:
        return _module(view, words[1].text, words[2:])
    if words[0].text.startswith("-"):
        return [Finding(Effect.INTERPRETER, f"runs code given to {view.name}")]
    return _script(view, words[0])


def _module(view: CommandView, module: str, words: list[Word]) -> list[Finding]:
    if module in ("pip", "ensurepip"):
        return [Finding(Effect.INSTALLS, "installs packages")]
    if module not in MODULES:
        return [Finding(Effect.INTERPRETER, f"runs the module {module}")]
    inner = CommandView(SimpleCommand((Word(module), *words)), view.world, view.folders)
    return _project_code(inner, f"runs {module} on the project's code", PROJECT.get(module, PROJECT["mypy"]))


def _shell(view: CommandView) -> list[Finding]:
    texts = [word.text for word in view.words]
    if texts in (["--version"], ["--help"]):
        return [Finding(Effect.HARMLESS, "prints")]
    if len(view.words) >= 2 and view.words[0].plain and texts[0] in ("-c", "-ec", "-ce", "-lc"):
        return [Finding(Effect.HARMLESS, "runs the line that follows")]
    if view.words and view.words[0].plain and not texts[0].startswith(("-", "+")):
        return _script(view, view.words[0])
    return [Finding(Effect.INTERPRETER, f"{view.name} would run what comes on its input, or in a way that is not looked into")]


def _script(view: CommandView, word: Word) -> list[Finding]:
    if not word.plain:
        return [Finding(Effect.INTERPRETER, "runs a script that is only known when it runs")]
    if not all(map(view.world.inside, view.paths(word))) or "://" in word.text:
        return [Finding(Effect.INTERPRETER, f"runs {word.text}, outside the project")]
    if view.name in (".", "source") and "/" not in word.text:
        return [Finding(Effect.INTERPRETER, f"looks for {word.text} along PATH")]
    return _project_code(view, f"runs {word.text} of the project", None)


def _subcommand(view: CommandView) -> list[Finding]:
    texts = [word.text for word in view.words]
    if texts in (["--version"], ["-V"], ["--help"], ["version"]):
        return [Finding(Effect.HARMLESS, "prints")]
    verb = view.words[0].text if view.words and view.words[0].plain else ""
    effect = SUBCOMMANDS[view.name].get(verb, Effect.UNKNOWN)
    detail = f"{view.name} {verb}"
    match effect:
        case Effect.PROJECT_CODE if (view.name, verb) in RUNNERS:
            return [Finding(effect, f"{detail} runs the project's code")]
        case Effect.PROJECT_CODE:
            inner = CommandView(SimpleCommand(view.part.words[1:]), view.world, view.folders)
            return [
                *_project_code(inner, f"{detail} runs the project's code", SUBCOMMAND_OPTIONS.get(view.name, Options())),
                *_goals(view, verb),
            ]
        case Effect.INSTALLS:
            return [Finding(effect, f"{detail} installs or downloads packages")]
        case Effect.PUBLISHES:
            return [Finding(effect, f"{detail} publishes")]
        case Effect.HARMLESS:
            return [Finding(effect, "prints")]
        case _:
            return [Finding(Effect.UNKNOWN, f"what {detail} would do is not known")]


def _goals(view: CommandView, verb: str) -> list[Finding]:
    """Tools whose every word is something to do, or may come from elsewhere."""
    operands = [word.text for word in view.words[1:] if not word.text.startswith("-")]
    if view.name in ("mvn", "gradle", "gradlew") and any(SUBCOMMANDS[view.name].get(text) != Effect.PROJECT_CODE for text in operands):
        return [Finding(Effect.UNKNOWN, f"what all of {' '.join(operands)} would do is not known")]
    if (view.name, verb) == ("go", "run") and not all(text == "." or text.startswith("./") for text in operands[:1]):
        return [Finding(Effect.INSTALLS, "go run can fetch what it runs")]
    return []


def _project_code(view: CommandView, detail: str, known: Options | None) -> list[Finding]:
    """The project's own code: fine in a trusted project, as long as it stays there. A script's own words are its own (`known` None)."""
    found = [Finding(Effect.PROJECT_CODE, detail)]
    operands, values, odd = view.split(known) if known is not None else (list(view.words), [], None)
    if odd:
        found.append(Finding(Effect.UNKNOWN, f"'{odd}' of {view.name} is not known to stay in the project"))
    for word in [*operands, *values]:
        if not word.known or "$(" in word.text or word.text == "-" or "://" in word.text or "@" in word.text:
            found.append(Finding(Effect.UNKNOWN, f"'{word.text}' is only known when it runs"))
        elif "/" in word.text or word.text.startswith("~") or ".." in re.split("[=:/]", word.text):
            pieces = [
                Word(piece, pattern=word.pattern)
                for piece in {word.text, word.text.rpartition(":")[2], word.text.partition("::")[0]}
                if piece
            ]
            if not all(view.world.inside(path) for piece in pieces for path in view.paths(piece)):
                found.append(Finding(Effect.UNKNOWN, f"names {word.text}, outside the project"))
        if "=" in word.text and view.name in ("make", "gmake", "just", "ninja"):
            found.append(Finding(Effect.INJECTION, f"sets {word.text}"))
    return found


# What these are given to read or write decides nothing of what they do; an option that names a program is part of the words.
_DATA_ONLY = {"cp", "touch", "mkdir", "git", "tar", "zip", "gzip", "bzip2", "xz", "zstd", "rsync", "pg_dump", "mysqldump"}


def scripts_of(parts: list[SimpleCommand], world: CommandContext) -> list[str]:
    """The files whose content may decide what the commands do: every file that is named but as data, and what build tools read first."""
    folders, _ = folders_of(parts, world)
    names = set()
    for part in parts:
        if part.name in DELETES or part.name in CHANGES or part.name in _DATA_ONLY:
            continue
        texts = [word.text for word in part.words if word.plain]
        texts += [redirect.target.text for redirect in part.redirects if "<" in redirect.operator]  # what is written to decides nothing
        names |= {piece for text in texts for piece in (text, text.partition("=")[2], text[2:] if text.startswith("-") else "") if piece}
        names |= {
            os.path.join(folder, file) for folder in ("", *texts[1:]) for file in BUILD_FILES.get(os.path.basename(part.name or ""), ())
        }
    folders += [
        there for folder in list(folders) for name in names if world.is_folder(there := world.resolve(os.path.join(folder, name[:4096])))
    ][:64]
    paths = {
        world.resolve(os.path.join(folder, name))
        for folder in folders
        for name in names
        if "\0" not in name and len(name) < 4096 and not name.startswith(_NO_FILES)
    }
    return sorted(path for path in paths if world.exists(path) and not world.is_folder(path))
