"""What programs do: which effects a simple command has, from tables of the programs that are known.

A program that is not in them, and anything dynamic that matters about one that is, is `unknown`, and unknown asks.
"""

import os
from collections.abc import Callable, Iterable, Iterator

from backburner.approval import tools
from backburner.approval.catalogue import (
    BAD_OPTIONS,
    CHANGES,
    DELETES,
    INSTALLS,
    INTERPRETERS,
    LISTS,
    MODULES,
    NETWORK,
    PRINTS,
    PRIVILEGE,
    PROCESSES,
    PROJECT,
    READS,
    SUBCOMMANDS,
    SYSTEM,
)
from backburner.approval.effects import Effect, Found, View, World, injects, inside
from backburner.approval.shell import Part, Word
from backburner.approval.wrappers import RUNNERS, SHELLS, WRAPPERS


def effects_of(parts: list[Part], world: World) -> list[tuple[Part, list[Found]]]:
    """Each part with everything it would do. A `cd` counts for all parts: each path is judged from every folder it may start from."""
    folders, lost = _folders(parts, world)
    judged = []
    for part in parts:
        view = View(part, world, folders)
        found = [Found(Effect.UNKNOWN, doubt) for doubt in part.doubts]
        found += _assigned(part) + [one for redirect in part.redirects for one in view.redirect(redirect)]
        if part.words:
            found += _command(view)
        if lost and part.words:
            found.append(Found(Effect.UNKNOWN, f"changes to {lost}, so its paths cannot be told"))
        judged.append((part, list(dict.fromkeys(found))))
    return judged


def _folders(parts: list[Part], world: World) -> tuple[list[str], str | None]:
    """The folders that commands may run in, and where to if that cannot be told."""
    folders = [world.cwd]
    for part in parts:
        if part.name not in ("cd", "pushd", "popd"):
            continue
        target = part.words[1] if len(part.words) > 1 else None
        if part.name == "popd" or target is None or not target.plain or target.text.startswith("-"):
            return folders, "a folder that is only known when it runs"
        for folder in list(folders):
            there = world.resolve(os.path.join(folder, target.text))
            if not inside(there, world):
                return folders, f"{target.text}, outside the project"
            folders.append(there)
    return folders, None


def _assigned(part: Part) -> list[Found]:
    return [Found(Effect.INJECTION, f"sets {name}, which changes what runs") for name, _ in part.assigned if injects(name)]


def _command(view: View) -> list[Found]:
    """The effects of the program itself, after looking at which program that really is."""
    part, world = view.part, view.world
    if part.name is None:
        return [Found(Effect.UNKNOWN, "what it runs is only known when it runs")]
    if "/" in part.name:
        path = world.resolve(os.path.join(world.cwd, part.name))
        if inside(path, world):
            return _project_code(view, f"runs {part.name} of the project")
        if os.path.dirname(path) not in SYSTEM and os.path.dirname(part.name) not in SYSTEM:
            return [Found(Effect.UNKNOWN, f"runs {part.name}, which is not known")]
    elif view.name not in _BUILTINS:
        path = world.executable(view.name)
        own = (path is not None and inside(world.resolve(path), world)) or (path is not None and inside(path, world))
        if own and view.name not in PROJECT | set(INTERPRETERS) | set(SUBCOMMANDS):
            return [Found(Effect.UNKNOWN, f"'{view.name}' would run {path}, a file of the project")]
        if own:
            return _known(view, f"runs {path}, a file of the project")
        if path is not None and os.path.dirname(path) not in SYSTEM and view.name in PRINTS | LISTS | READS | {"find", "git", "sed", "awk"}:
            return [Found(Effect.UNKNOWN, f"'{view.name}' would run {path}, which is not the system's own")]
    return _known(view, None)


_BUILTINS = frozenset(
    [
        ":",
        "[",
        "cd",
        "pushd",
        "popd",
        "exit",
        "return",
        "break",
        "continue",
        "shift",
        "set",
        "unset",
        "read",
        "local",
        "let",
        "wait",
        "test",
        "true",
        "false",
        "echo",
        "printf",
        "pwd",
        "type",
        "hash",
        "export",
        "eval",
        "trap",
        "exec",
        "command",
        "builtin",
        ".",
        "source",
        "coproc",
        "time",
    ]
)


def _known(view: View, own: str | None) -> list[Found]:
    name = view.name
    special: dict[str, Callable[[View], Iterable[Found]]] = {
        "git": tools.git, "find": tools.find, "sed": tools.sed, "awk": tools.awk, "gawk": tools.awk, "mawk": tools.awk, "curl": tools.curl, "wget": tools.wget, "cp": tools.cp, "tee": tools.tee,
        "touch": tools.creates, "mkdir": tools.creates, "env": tools.env, "printenv": tools.environment, "export": tools.nothing, "cd": tools.nothing, "pushd": tools.nothing, "popd": tools.nothing,
        "uniq": tools.uniq, "date": tools.date, "xargs": tools.nothing, ".": _script, "source": _script, "alias": tools.alias, "set": tools.set_, "xxd": tools.xxd, "command": tools.nothing, "hostname": tools.hostname,
    }  # fmt: skip
    if name in special:
        return list(special[name](view))
    if name in PRINTS:
        return [Found(Effect.HARMLESS, "prints")]
    if name in LISTS | READS:
        return list(_reader(view))
    if name in DELETES:
        return [Found(Effect.DELETES, f"deletes {' '.join(word.text for word in view.operands) or 'files'}")]
    if name in CHANGES:
        return [Found(Effect.OVERWRITES, CHANGES[name])]
    if name.split(".")[0] in PRIVILEGE:
        return [Found(Effect.PRIVILEGE, f"'{name}' changes the system or acts as another user")]
    if name in PROCESSES:
        return [Found(Effect.PROCESSES, f"'{name}' acts on other processes or services")]
    if name in INSTALLS:
        return [Found(Effect.INSTALLS, f"'{name}' installs or downloads packages")]
    if name in NETWORK:
        return [Found(Effect.NETWORK_CHANGE, f"'{name}' talks to other machines or containers")]
    if name in INTERPRETERS:
        return _interpreter(view)
    if name in SHELLS:
        return _shell(view)
    if name in SUBCOMMANDS:
        return _subcommand(view)
    if name in PROJECT:
        return _project_code(view, own or f"'{name}' runs the project's code")
    if name in WRAPPERS:
        return [Found(Effect.HARMLESS, "runs what follows")]
    return [Found(Effect.UNKNOWN, f"'{name}' is not known")]


_BUILD_FILES = {
    "make": ("GNUmakefile", "makefile", "Makefile"),
    "gmake": ("GNUmakefile", "makefile", "Makefile"),
    "npm": ("package.json",),
    "pnpm": ("package.json",),
    "yarn": ("package.json",),
    "bun": ("package.json",),
    "just": ("justfile", "Justfile"),
    "rake": ("Rakefile",),
    "tox": ("tox.ini",),
    "nox": ("noxfile.py",),
}


def scripts_of(parts: list[Part], world: World) -> list[str]:
    """The files whose content decides what the commands do: scripts, and what build tools read first."""
    found = []
    for part in parts:
        if part.name is None:
            continue
        name, words = os.path.basename(part.name), [word for word in part.words[1:] if word.plain]
        if "/" in part.name:
            found.append(part.name)
        if name in INTERPRETERS or name in SHELLS or name in (".", "source"):
            found += [word.text for word in words if not word.text.startswith(("-", "+"))][:1]
        found += _BUILD_FILES.get(name, ())
        if name in ("make", "gmake"):
            found += [words[at + 1].text for at, word in enumerate(words[:-1]) if word.text in ("-f", "--file", "--makefile")]
    return sorted({path for name in found if world.exists(path := world.resolve(name)) and not world.is_folder(path)})


def _reader(view: View) -> Iterator[Found]:
    if bad := view.has(*BAD_OPTIONS.get(view.name, ())):
        yield Found(Effect.UNKNOWN, f"'{bad}' of {view.name} writes, runs a program, or takes its files from elsewhere")
    yield Found(Effect.READS, "reads inside the project")
    if view.name in LISTS:
        return
    yield from view.reads([*view.operands, *view.option_paths()])


def _interpreter(view: View) -> list[Found]:
    code = INTERPRETERS[view.name]
    for at, word in enumerate(view.words):
        if not word.plain:
            return [Found(Effect.INTERPRETER, "runs code that is only known when it runs")]
        if word.text in ("--version", "-V", "-v", "--help") and len(view.words) == 1:
            return [Found(Effect.HARMLESS, "prints")]
        if word.text == "-m" and view.name.startswith(("python", "pypy")):
            module = view.words[at + 1].text if at + 1 < len(view.words) else ""
            if module in ("pip", "ensurepip"):
                return [Found(Effect.INSTALLS, "installs packages")]
            if module not in MODULES:
                return [Found(Effect.INTERPRETER, f"runs the module {module or '?'}")]
            return _project_code(view, f"runs {module} on the project's code")
        if word.text in code or (not word.text.startswith("--") and any(len(c) == 2 and word.text.startswith(c) for c in code)):
            return [Found(Effect.INTERPRETER, f"runs code given to {view.name}")]
        if word.text.startswith("-"):
            if word.text not in ("-u", "-B", "-O", "-q", "-I", "-s", "-E", "--test"):
                return [Found(Effect.INTERPRETER, f"'{word.text}' of {view.name} is not known")]
            continue
        return _script_found(view, word)
    return [Found(Effect.INTERPRETER, f"{view.name} would run what comes on its input")]


def _script(view: View) -> Iterator[Found]:
    yield from _script_found(view, view.words[0]) if view.words else [Found(Effect.UNKNOWN, "runs nothing that is named")]


def _shell(view: View) -> list[Found]:
    for word in view.words:
        if not word.plain:
            return [Found(Effect.INTERPRETER, "runs a script that is only known when it runs")]
        if word.text.startswith("-") and "c" in word.text and not word.text.startswith("--"):
            return [Found(Effect.HARMLESS, "runs the line that follows")]
        if word.text in ("--version", "--help"):
            return [Found(Effect.HARMLESS, "prints")]
        if not word.text.startswith(("-", "+")):
            return _script_found(view, word)
    return [Found(Effect.INTERPRETER, f"{view.name} would run what comes on its input")]


def _script_found(view: View, word: Word) -> list[Found]:
    if not word.plain:
        return [Found(Effect.INTERPRETER, "runs a script that is only known when it runs")]
    if all(inside(path, view.world) for path in view.paths(word)):
        return _project_code(view, f"runs {word.text} of the project")
    return [Found(Effect.INTERPRETER, f"runs {word.text}, outside the project")]


def _subcommand(view: View) -> list[Found]:
    verb = next((word for word in view.words if not word.text.startswith(("-", "+"))), None)
    if (view.words and not view.words[0].plain) or verb is None:
        quiet = [word.text for word in view.words] in (["--version"], ["-V"], ["--help"])
        return [Found(Effect.HARMLESS, "prints")] if quiet else [Found(Effect.UNKNOWN, f"what {view.name} would do is not known")]
    effect = SUBCOMMANDS[view.name].get(verb.text, Effect.UNKNOWN)
    if view.words[0] != verb:
        effect = Effect.UNKNOWN if effect in (Effect.PROJECT_CODE, Effect.HARMLESS) else effect
    detail = f"{view.name} {verb.text}"
    match effect:
        case Effect.PROJECT_CODE if (view.name, verb.text) in RUNNERS:
            return [Found(effect, f"{detail} runs the project's code")]
        case Effect.PROJECT_CODE:
            return _project_code(view, f"{detail} runs the project's code")
        case Effect.INSTALLS:
            return [Found(effect, f"{detail} installs or downloads packages")]
        case Effect.PUBLISHES:
            return [Found(effect, f"{detail} publishes")]
        case Effect.HARMLESS:
            return [Found(effect, "prints")]
        case _:
            return [Found(Effect.UNKNOWN, f"what {detail} would do is not known")]


def _project_code(view: View, detail: str) -> list[Found]:
    """The project's own code: fine in a trusted project, as long as it stays there."""
    found = [Found(Effect.PROJECT_CODE, detail)]
    for word in [*view.operands, *view.option_paths()]:
        if not word.known:
            found.append(Found(Effect.UNKNOWN, f"'{word.text}' is only known when it runs"))
        elif word.text.startswith(("/", "~")) or ".." in word.text.split("/"):
            if not all(inside(path, view.world) for path in view.paths(word)):
                found.append(Found(Effect.UNKNOWN, f"names {word.text}, outside the project"))
        elif (
            "=" in word.text and not word.text.startswith("-") and (view.name in ("make", "gmake")) and injects(word.text.partition("=")[0])
        ):
            found.append(Found(Effect.INJECTION, f"sets {word.text}"))
    return found
