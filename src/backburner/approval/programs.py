"""Determines the effects of simple commands from the tables of known programs.

A program that is not in the tables, an option that is not known to be harmless, and a word that is known only when the command runs
have the effect `unknown`, which requires approval.
"""

import itertools
import os
from collections.abc import Callable, Iterable

from backburner.approval import git_rules, service_rules
from backburner.approval import program_rules as rules
from backburner.approval.effects import WITHOUT_PROJECT, CommandContext, CommandView, Effect, Finding, injects, names_secret_variable
from backburner.approval.program_tables import (
    BUILD_FILES,
    CHANGES,
    DELETES,
    INSTALLS,
    INTERPRETERS,
    LOCAL_OPTIONS,
    LOCAL_SUBCOMMANDS,
    LOCAL_VERBS,
    MODULES,
    NETWORK,
    ONLY_SHOWS,
    PRINTS,
    PRIVILEGE,
    PROCESSES,
    PROJECT,
    READS,
    SHOWS_INSTALLED,
    SHOWS_PACKAGES,
    SHOWS_VERSION,
    SUBCOMMAND_OPTIONS,
    SUBCOMMANDS,
    SYSTEM_DIRECTORIES,
    SYSTEM_LIBRARIES,
)
from backburner.approval.shell_parser import COMPOUND, LATE_WORDS, SimpleCommand, Word
from backburner.approval.wrappers import RUNNERS, SHELLS, WRAPPERS, Options, found_names
from backburner.core.deferred_modules import re

_MAX_FOLDERS = 64
_PROGRAM_RULES: dict[str, Callable[[CommandView], Iterable[Finding]]] = {
    "git": rules.git,
    "find": rules.find,
    "sed": rules.sed,
    "awk": rules.awk,
    "gawk": rules.awk,
    "mawk": rules.awk,
    "curl": rules.curl,
    "cp": rules.cp,
    "tee": rules.tee,
    "touch": rules.touch_or_mkdir,
    "mkdir": rules.touch_or_mkdir,
    "env": rules.env,
    "printenv": rules.print_environment,
    "set": rules.print_environment,
    "uniq": rules.uniq,
    "date": rules.date,
    "hostname": rules.hostname,
    "ps": rules.ps,
    "printf": rules.printf,
    "test": rules.test,
    "[": rules.test,
    "cd": rules.no_effect,
    "xargs": rules.no_effect,
    "command": rules.no_effect,
    "break": rules.no_effect,
    "continue": rules.no_effect,
    "eval": rules.no_effect,
    "trap": rules.no_effect,
}
# Programs that have other rules in a sandbox, where only what leaves it matters.
_SANDBOX_RULES: dict[str, Callable[[CommandView], Iterable[Finding]]] = {
    "git": git_rules.git,
    "curl": rules.curl,
    "env": rules.no_effect,
    "printenv": rules.printenv_in_sandbox,
    "set": rules.no_effect,
    **dict.fromkeys(("gdb", "lldb", "strace", "ltrace", "py-spy", "gcore", "pstack"), rules.traces),
    **dict.fromkeys(("gh", "docker", "docker-compose", "kubectl", "helm"), service_rules.service),
    **dict.fromkeys(("ps", "ss", "netstat", "pgrep", "lsof", "fuser", "top"), service_rules.machine),
    "kill": service_rules.kill,
    **dict.fromkeys(("systemctl", "timedatectl", "hostnamectl", "localectl", "loginctl"), service_rules.systemd),
    "openssl": rules.openssl,
    "jq": rules.jq,
    "journalctl": service_rules.journalctl,
    "sed": rules.sed_in_sandbox,
    **dict.fromkeys(("npx", "bunx"), rules.npx),
    "dd": rules.dd,
    "nc": rules.netcat,
    "ssh-keygen": rules.ssh_keygen,
    **dict.fromkeys(("terraform", "tofu"), rules.terraform),
    **dict.fromkeys(("pip", "pip3"), rules.pip),
}
# What makes a sandbox permit more than running the code of the project.
_PERMITS_MORE = frozenset([Effect.READS_SERVICE, Effect.NETWORK_READ, Effect.LOOPBACK, Effect.READS_MACHINE, Effect.REPOSITORY])
_SPECIAL_FILES = ("/dev/", "/proc/", "/sys/")  # their content depends on the process that reads them
_NAME_PROGRAMS = frozenset(["PAGER", "GIT_PAGER", "MANPAGER", "LESSOPEN", "GIT_EXTERNAL_DIFF", "GIT_SSH", "GIT_SSH_COMMAND", "GIT_ASKPASS"])
# Values with which variables make other programs run nothing but `cat` or `true`, which are programs of the system wherever a sandbox permits more.
_HARMLESS_VALUES = (
    r"(GIT_|GH_|MAN|SYSTEMD_|AWS_)?PAGER=(cat)?|(EDITOR|VISUAL|GIT_EDITOR|GIT_SEQUENCE_EDITOR)=(true|:)"
    r"|GIT_(AUTHOR|COMMITTER)_(NAME|EMAIL|DATE)=[\w .@<>+:-]*|(GIT_TERMINAL_PROMPT|GIT_MERGE_AUTOEDIT|GH_PROMPT_DISABLED)=([01]|no|yes)"
)
_PRINTABLE_VARIABLES = frozenset(["HOME", "PWD", "USER", "SHELL", "LANG"])
_READS_CURRENT_DIRECTORY = frozenset(("ls", "du", "tree", "rg", "find", "git"))  # they read the current directory if no path is given
_FAST_PROGRAMS = frozenset(("cd", "echo", "printf", "pwd", "true", "test", "[", "head", "git"))  # they do not wait and do not take long
_OUTSIDE = ", outside the project"
_CHANGES_FILES = frozenset([Effect.EDITS, Effect.DELETES, Effect.CREATES, Effect.OVERWRITES])
_HAVE_PATTERNS = frozenset(("grep", "egrep", "fgrep", "rg"))  # their first operand is no file
_PRINT_NOTHING = frozenset(("true", "false", ":", "exit"))
_SAFE_WITH_PATTERNS = frozenset(("cat", "ls", "stat"))  # no file name could be an option that is harmful for them


def effects_of(parts: list[SimpleCommand], context: CommandContext) -> list[tuple[SimpleCommand, list[Finding]]]:
    """Return each simple command with its effects. A `cd` applies to all commands: paths are resolved from every directory it may lead to."""
    folders, unresolved_target = folders_of(parts, context)
    made: set[str] = set()
    if context.confined:
        parts, names = _with_temporary_names(parts)
        parts, made = _with_found_names(parts), {f"/tmp/{name}" for name in names}
    judged = []
    prints_environment = context.confined and any(
        part.name in ("env", "printenv", "set", "export") and _only_options(part) for part in parts
    )
    own_variables = {name for part in parts for name, _ in part.assigned} if context.confined else set()
    for part in parts:
        view = CommandView(part, context, folders, made)
        findings = [Finding(Effect.UNKNOWN, doubt) for doubt in part.doubts if not (context.confined and doubt in (COMPOUND, LATE_WORDS))]
        findings += [Finding(Effect.UNREADABLE, reason) for reason in part.unreadable]
        findings += _assignments(part, context) + [finding for redirect in part.redirects for finding in view.redirect(redirect)]
        if part.words and context.confined:
            findings += [*_program_in_sandbox(view), *view.named_paths(), *_dynamic_words(view)]
        elif part.words:
            findings += [*_program(view), *_dynamic_words(view)]
        if part.words and view.name in _READS_CURRENT_DIRECTORY and not context.inside(context.cwd):
            findings.append(Finding(Effect.READS_OUTSIDE, f"reads {context.cwd}, outside the project"))
        if unresolved_target and part.words:
            findings.append(Finding(Effect.UNKNOWN, f"changes to {unresolved_target}, so its paths are not known"))
            if context.confined and unresolved_target.endswith(_OUTSIDE) and any(finding.effect in _CHANGES_FILES for finding in findings):
                findings.append(Finding(Effect.WRITES_OUTSIDE, f"changes files in {unresolved_target}"))
            if context.confined and _deletes_folders(part):
                findings.append(Finding(Effect.WRITES_OUTSIDE, f"deletes folders in {unresolved_target}"))
        if context.confined and part.inside[-1:] == ("xargs",) and rules.changes_files(part.words) and rules.searches_outside(parts, view):
            findings.append(Finding(Effect.WRITES_OUTSIDE, "changes the files that find finds, outside the project"))
        findings = [finding for finding in findings if finding.effect is not Effect.READS_SECRETS or finding.value not in own_variables]
        if prints_environment and part.name in _HAVE_PATTERNS and any(map(names_secret_variable, _patterns(part))):
            findings.append(Finding(Effect.READS_SECRETS, "searches the environment for secrets"))
        judged.append((part, list(dict.fromkeys(findings))))
        made |= _temporary_files(view) if context.confined else set()
    if context.confined:
        return judged
    if any(finding.effect == Effect.CREATES for _, findings in judged for finding in findings):
        for part, findings in judged:
            if part.name == "git" or any(finding.effect == Effect.PROJECT_CODE for finding in findings):
                findings.append(Finding(Effect.UNKNOWN, "uses files that the same command line creates"))
    if not context.ours and any(part.name not in _FAST_PROGRAMS for part in parts):
        for part, findings in judged:
            if part.name == "git" and not all(context.exists(os.path.join(folder, ".git")) for folder in folders):
                findings.append(Finding(Effect.UNKNOWN, "git would search for a repository after other commands, and could find a new one"))
    return judged


def _only_options(part: SimpleCommand) -> bool:
    return all(word.text.startswith("-") for word in part.words[1:])


def _patterns(part: SimpleCommand) -> list[str]:
    texts = [word.text for word in part.words[1:]]
    return [] if any(re.fullmatch(r"-\w*v\w*", text) for text in texts) else [text for text in texts if not text.startswith("-")]


def _deletes_folders(part: SimpleCommand) -> bool:
    """Whether it deletes folders that it names relative to the current directory."""
    texts = [word.text for word in part.words]
    recursive = any(re.match(r"-\w*[rR]|--recursive", text) for text in texts[1:])
    is_relative = any(not text.startswith(("-", "/", "~", "$", '"')) for text in texts[1:])
    return (part.name == "rm" and recursive and is_relative) or (part.name == "find" and "-delete" in texts)


def _temporary_files(view: CommandView) -> set[str]:
    """The temporary files and folders that a command creates, as far as its words name them. Appending to a file does not create it."""
    words = [word for word in view.words if not word.text.startswith("-")]
    if view.name in ("cp", "mv", "install", "rsync"):
        words = words[-1:]
    elif view.name not in ("touch", "mkdir", "tee") or {"-a", "--append"} & {word.text for word in view.words}:
        words = []
    words += [redirect.target for redirect in view.part.redirects if redirect.operator in (">", ">|", "&>", ">&")]
    paths = {path for word in words if word.plain and len(word.text) < 4096 for path in view.paths(word)}
    return {path for path in paths if view.context.is_temporary(path) and not view.context.inside(path) and path != "/tmp"}


def _with_temporary_names(parts: list[SimpleCommand]) -> tuple[list[SimpleCommand], set[str]]:
    """Replace variables that the same line sets once, to what `mktemp` prints, by a name in /tmp. Return also their names."""
    assigned = [name for part in parts for name, _ in part.assigned]
    names = {
        name
        for part in parts
        for name, value in part.assigned
        if re.fullmatch(r"\"?\$\(mktemp( -[dqtu]+| --suffix=[\w.]+| /tmp/[\w.-]+)*\)\"?", value.text) and assigned.count(name) == 1
    }
    names -= {word.text for part in parts for word in part.words}
    if not names or any(COMPOUND in part.doubts for part in parts):
        return parts, set()

    def known(word: Word) -> Word:
        found = None if word.known else re.fullmatch(r"\"?\$(?:(\w+)|\{(\w+)\})\"?(/[\w.-]+)?\"?", word.text)
        name = found and (found.group(1) or found.group(2))
        return Word(f"/tmp/{name}{found.group(3) or ''}") if found and name in names else word

    return [
        part._replace(
            words=tuple(map(known, part.words)),
            redirects=tuple(redirect._replace(target=known(redirect.target)) for redirect in part.redirects),
        )
        for part in parts
    ], names


def _with_found_names(parts: list[SimpleCommand]) -> list[SimpleCommand]:
    """In `find … | xargs rm`, replace what is only known when it runs by the pattern of the names that are found."""
    if [part.name for part in parts] != ["find", "xargs", "rm"] or any(part.doubts for part in parts):
        return parts
    *before, rm = parts
    found = found_names(parts[0].words[1:], [])
    return [*before, rm._replace(words=(*rm.words[:-1], found))] if found and not rm.words[-1].known else parts


def _dynamic_words(view: CommandView) -> list[Finding]:
    """Report words that are known only at run time: they could be options, or several words. `echo` may print harmless variables."""
    adds = view.name == "git" and view.context.confined and view.words[:1] == (Word("add"),)
    for word in view.words:
        harmless = (
            view.name == "echo"
            and not word.pattern
            and all(
                name in _PRINTABLE_VARIABLES or (name.islower() and not view.context.has_variable(name))
                for name in re.findall(r"\$(\w+)", word.text)
            )
        )
        if not word.known and not harmless:
            return [Finding(Effect.UNKNOWN, f"'{word.text}' is only known when it runs")]
        if view.name == "curl":
            word = rules.without_pattern(view, word)
        if word.known and word.pattern and (not (adds or view.name in _SAFE_WITH_PATTERNS) or set(word.text) & set("[]{~")):
            return [Finding(Effect.UNKNOWN, f"what '{word.text}' matches is only known when it runs")]
    return []


def folders_of(parts: list[SimpleCommand], context: CommandContext) -> tuple[list[str], str | None]:
    """Return the directories that the commands may run in, and the target of a `cd` that cannot be resolved, otherwise None.

    A shell resolves `cd ..` without following links, the system follows them: both directories are included.
    """
    folders = [context.cwd]
    for part in parts:
        if part.name not in ("cd", "pushd", "popd") or (part.name == "popd" and context.confined):
            continue  # where `popd` returns to, the line was before
        target = part.words[1] if len(part.words) == 2 else None
        if (part.name != "cd" and not context.confined) or target is None or not target.plain or target.text.startswith("-"):
            return folders, "a directory that is only known when it runs"
        for folder in list(folders):
            logical = os.path.normpath(os.path.join(folder, target.text))
            for target_path in (context.resolve(logical), context.resolve(os.path.join(folder, target.text)), logical):
                if not context.inside(target_path):
                    temporary = context.confined and context.is_temporary(target_path)
                    return folders, f"{target.text}{', which is temporary' if temporary else _OUTSIDE}"
                if target_path not in folders:
                    folders.append(target_path)
        if len(folders) > _MAX_FOLDERS:
            return folders, "too many directories"
    return folders, None


def _assignments(part: SimpleCommand, context: CommandContext) -> list[Finding]:
    """Report assignments that may change what runs. A lower-case variable without a command is only used by the shell."""
    findings = []
    for name, value in part.assigned:
        if context.confined and value.plain and re.fullmatch(_HARMLESS_VALUES, f"{name}={value.text}"):
            continue
        if not value.plain or (not injects(name) and "/" in value.text):
            findings.append(Finding(Effect.INJECTION, f"sets {name} to a path, or to a value that is only known when it runs"))
        elif injects(name) and (part.words or not name.islower() or context.has_variable(name)):
            findings.append(Finding(Effect.INJECTION, f"sets {name}, which may change what runs"))
        if context.confined and part.words and name in _NAME_PROGRAMS and not re.fullmatch(git_rules.SHOWS_TEXT, value.text):
            findings.append(Finding(Effect.PROTECTED, f"sets {name}, which makes other programs run '{value.text}'"))
    return findings


def _program(view: CommandView) -> list[Finding]:
    """Return the effects of the program, after finding out which file would run."""
    part, context = view.part, view.context
    if part.name is None:
        return [Finding(Effect.UNKNOWN, "the program is only known when it runs")]
    if "/" in part.name:
        return _named_by_path(view, part.name)
    path = context.executable(view.name)
    if path is None:
        return _known_program(view, None)
    if context.inside(path) or context.inside(context.resolve(path)):
        project_detail = f"runs {path}, a file of the project"
        if view.name in PROJECT or view.name in INTERPRETERS or view.name in SUBCOMMANDS:
            return [Finding(Effect.PROJECT_CODE, project_detail), *_known_program(view, project_detail)]
        return [Finding(Effect.UNKNOWN, f"'{view.name}' would run {path}, a file of the project")]
    if not _is_system_program(context.resolve(path)) and (view.name in PRINTS or view.name in READS or view.name in _PROGRAM_RULES):
        return [Finding(Effect.UNKNOWN, f"'{view.name}' would run {path}, which is not a system program")]
    return _known_program(view, None)


def _program_in_sandbox(view: CommandView) -> list[Finding]:
    """Return what a program could do that a sandbox prevents or must permit. Which file runs does not matter inside."""
    name, context = view.name, view.context
    if view.part.name is None:
        return [Finding(Effect.UNKNOWN, "the program is only known when it runs")]
    if "/" in view.part.name:
        paths = [os.path.join(folder, view.part.name) for folder in view.folders]
    else:
        paths = [path] if (path := context.executable(name)) else []
    if name == "npm" and view.words[:1] and view.words[0].text in ("exec", "x"):
        found = list(rules.npx(view))
    elif name in _SANDBOX_RULES:
        found = list(_SANDBOX_RULES[name](view))
    else:
        found = _only_local(view) or _changing(view) or _known_program(view, None)
    if changeable := next((path for path in paths if _may_be_changed(path, view)), None):
        if any(finding.value == WITHOUT_PROJECT for finding in found):
            found.append(Finding(Effect.NETWORK_CHANGE, f"'{name}' connects to a registry"))
        found = [finding for finding in found if finding.effect not in _PERMITS_MORE]
        found.append(Finding(Effect.PROJECT_CODE, f"runs {changeable}, which sandboxed commands may have written"))
    for path in map(context.resolve, paths):
        if not (context.inside(path) or context.is_visible(path)):
            found.append(Finding(Effect.READS_OUTSIDE, f"runs {path}, which is not part of the sandbox"))
    if os.path.dirname(view.part.name) == "/etc/init.d":
        found.append(Finding(Effect.PROCESSES, f"'{view.part.name}' affects other processes or services"))
    found += [*rules.delivers(view), *rules.discards_data(view)]
    return found + ([Finding(Effect.LISTENS, "waits for connections")] if rules.listens(view) else [])


def _only_local(view: CommandView) -> list[Finding]:
    """Return the effects of a program that could connect or install, with words with which it does not; nothing for other programs."""
    name, texts = view.name, [word.text for word in view.words]
    if name in ONLY_SHOWS and all(word.plain for word in view.words) and re.fullmatch(ONLY_SHOWS[name], " ".join(texts)):
        return [Finding(Effect.READS, "shows settings of the sandbox")]
    if name in SHOWS_PACKAGES and all(word.plain for word in view.words) and re.fullmatch(SHOWS_PACKAGES[name], " ".join(texts)):
        return [Finding(Effect.PROJECT_CODE, "shows what is installed")]
    if not view.words or not all(word.plain for word in view.words[:2]):
        return []
    if service_rules.looks_up_packages(view):
        return [service_rules.registry(view)]
    first, second = [*texts, ""][:2]
    if _asks_for_help(name, texts):
        return [Finding(Effect.PROJECT_CODE, "prints its options")]
    if set(texts) & LOCAL_OPTIONS.get(name, frozenset()):
        return [Finding(Effect.PROJECT_CODE, f"{name} uses no network")]
    if (texts in SHOWS_VERSION and name in NETWORK | INSTALLS | PROCESSES) or first in SHOWS_INSTALLED.get(name, ()):
        return [Finding(Effect.PROJECT_CODE, "shows what is installed")]
    local = LOCAL_SUBCOMMANDS.get((name, first))
    if first in LOCAL_VERBS.get(name, ()) or (local is not None and (not local or second in local)):
        return [Finding(Effect.PROJECT_CODE, f"{name} {first} uses no network")]
    return []


def _asks_for_help(name: str, texts: list[str]) -> bool:
    """Whether it is `PROGRAM VERB --help`, of a program that does not pass its words on to another one."""
    is_known = (name in NETWORK or name in INSTALLS or name in SUBCOMMANDS) and name not in ("ssh", "mosh", "rsh")
    return is_known and texts[-1:] == ["--help"] and len(texts) <= 3 and all(re.fullmatch(r"[a-z-]+", text) for text in texts)


def _may_be_changed(path: str, view: CommandView) -> bool:
    """Whether sandboxed commands of this project could write a program: a file of the project, or one in their own /tmp."""
    context = view.context
    return any(
        context.inside(place) or place.startswith(_SPECIAL_FILES) or ("/" in (view.part.name or "") and context.is_temporary(place))
        for place in (os.path.normpath(path), context.resolve(path))
    )


def _changing(view: CommandView) -> list[Finding]:
    """Return the effects of a program that deletes or changes the files in its arguments; nothing for other programs."""
    if view.name in DELETES:
        return list(rules.deletes(view))
    if view.name in ("touch", "mkdir") and all(word.plain and (not word.text.startswith("-") or word.text == "-p") for word in view.words):
        return [finding for word in view.words if not word.text.startswith("-") for finding in view.writes(word)]
    if view.name in CHANGES or view.name in ("cp", "tee"):
        remote = view.name == "rsync" and any(re.match(r"[\w.@-]+:", word.text) for word in view.words)
        found = [Finding(Effect.NETWORK_CHANGE, "connects to another machine")] if remote else list(view.edits(view.words))
        return [*found, Finding(Effect.EDITS, CHANGES.get(view.name, "writes files"))]
    return []


def _is_system_program(path: str) -> bool:
    """Whether a resolved path is a program of the system."""
    return os.path.dirname(path) in SYSTEM_DIRECTORIES or path.startswith(SYSTEM_LIBRARIES)


def _named_by_path(view: CommandView, name: str) -> list[Finding]:
    context = view.context
    for folder in view.folders:
        path = context.resolve(os.path.join(folder, name))
        if "://" in name or (context.inside(path) and not context.exists(path)):
            return [Finding(Effect.UNKNOWN, f"runs {name}, which does not exist")]
        if context.inside(path):
            return _project_code(view, f"runs {name} of the project", Options())
        if os.path.dirname(name) not in SYSTEM_DIRECTORIES or not _is_system_program(path) or os.path.basename(path) != view.name:
            return [Finding(Effect.UNKNOWN, f"runs {name}, an unknown program")]
    return _known_program(view, None)


def _known_program(view: CommandView, project_detail: str | None) -> list[Finding]:
    name = view.name
    if name in _PROGRAM_RULES:
        return list(_PROGRAM_RULES[name](view))
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
        return [Finding(Effect.PROCESSES, f"'{name}' affects other processes or services")]
    if name in INSTALLS:
        return [Finding(Effect.INSTALLS, f"'{name}' installs or downloads packages")]
    if name in NETWORK:
        return [Finding(Effect.NETWORK_CHANGE, f"'{name}' connects to other machines or containers")]
    if name in INTERPRETERS:
        return _interpreter(view)
    if name in SHELLS:
        return _shell(view)
    if name in (".", "source"):
        return _script(view, view.words[0]) if view.words else [Finding(Effect.UNKNOWN, "runs an unnamed script")]
    if name in SUBCOMMANDS:
        return _subcommand(view)
    if name in PROJECT:
        return _project_code(view, project_detail or f"'{name}' runs the project's code", PROJECT[name])
    if name in WRAPPERS:
        return [Finding(Effect.HARMLESS, "runs the command that follows")]
    return [
        Finding(Effect.UNKNOWN, f"'{name}' is an unknown program"),
        *(rules.installs(view, view.words) if view.context.confined else ()),
        *(rules.names_address(view) if view.context.confined else ()),
    ]


def _prints(view: CommandView) -> list[Finding]:
    if view.name not in ("echo", ":", "expr"):
        _, _, unknown_option = view.split_options(PRINTS[view.name])
        if unknown_option:
            return [Finding(Effect.UNKNOWN, f"'{unknown_option}' of {view.name} is not known to be harmless")]
    detail = "waits" if view.name in ("sleep", "wait") else "changes nothing" if view.name in _PRINT_NOTHING else "prints"
    return [Finding(Effect.HARMLESS, detail), *view.printed_secrets()]


def _reads(view: CommandView, known: Options) -> list[Finding]:
    operands, _, unknown_option = view.split_options(known)
    findings = [Finding(Effect.READS, "reads inside the project")]
    if unknown_option:
        findings.append(Finding(Effect.UNKNOWN, f"'{unknown_option}' of {view.name} is not known to be harmless"))
    for word in operands:
        if word.pattern and word.text[:1] in "*?[" and (view.name not in _SAFE_WITH_PATTERNS or view.can_match_option(word)):
            findings.append(Finding(Effect.UNKNOWN, f"a file name that matches {word.text} could be an option"))
    if view.name == "diff" and any(view.context.is_folder(path) for word in operands for path in view.paths(word)):
        findings.append(Finding(Effect.UNKNOWN, "compares whole directories and follows links in them"))
    has_pattern_option = any(re.match(r"-\w*e|--regexp|--files", word.text) for word in view.words)
    if view.name == "rg" or (view.name.endswith("grep") and any(re.match(r"-\w*r|--recursive", word.text) for word in view.words)):
        findings += _secrets_below(view, operands if has_pattern_option and operands else operands[1:] or [Word(".")])
    is_pattern = view.context.confined and view.name in _HAVE_PATTERNS and not has_pattern_option
    return [*findings, *view.reads(operands[1:] if is_pattern else operands)]


def _secrets_below(view: CommandView, words: Iterable[Word]) -> list[Finding]:
    """Report a possible secret in the directories that are searched, except those that options exclude."""
    if view.context.confined:
        return []  # they are hidden there
    texts = [word.text for word in view.words]
    skipped = [after for text, after in itertools.pairwise(texts) if text == "--exclude-dir"]
    skipped += [text.partition("=")[2] for text in texts if text.startswith("--exclude-dir=")]
    for word in words:
        for path in view.paths(word) if word.known else []:
            if "/.git/" in f"{path}/":
                return [Finding(Effect.READS_SECRETS, "searches git's own files")]
            if secret := view.context.secrets_below(path, skipped, ignored=view.name == "rg"):
                return [Finding(Effect.READS_SECRETS, f"searches {secret}")]
    return []


def _interpreter(view: CommandView) -> list[Finding]:
    words = list(view.words)
    if [word.text for word in words] in (["--version"], ["-V"], ["--help"]):
        return [Finding(Effect.HARMLESS, "prints")]
    while words and words[0].plain and words[0].text in INTERPRETERS[view.name]:
        words.pop(0)
    if not words or not words[0].plain:
        return [Finding(Effect.INTERPRETER, f"{view.name} would run its input, or code that is only known when it runs")]
    if words[0].text == "-m" and view.name.startswith(("python", "pypy")) and len(words) > 1 and words[1].plain:
        return _module(view, words[1].text, words[2:])
    if words[0].text.startswith("-"):
        return [Finding(Effect.INTERPRETER, f"runs code given to {view.name}")]
    return _script(view, words[0])


def _module(view: CommandView, module: str, words: list[Word]) -> list[Finding]:
    if module == "pip" and view.context.confined:
        return list(rules.pip(CommandView(SimpleCommand((Word(module), *words)), view.context, view.folders)))
    if view.context.confined and (module in NETWORK or module in SUBCOMMANDS or module in INSTALLS):
        return _known_program(CommandView(SimpleCommand((Word(module), *words)), view.context, view.folders), None)
    if module in ("pip", "ensurepip", "venv", "virtualenv"):
        return [Finding(Effect.INSTALLS, "installs packages")]
    if module not in MODULES:
        return [Finding(Effect.INTERPRETER, f"runs the module {module}")]
    inner = CommandView(SimpleCommand((Word(module), *words)), view.context, view.folders)
    return _project_code(inner, f"runs {module} on the project's code", PROJECT.get(module, PROJECT["mypy"]))


def _shell(view: CommandView) -> list[Finding]:
    texts = [word.text for word in view.words]
    if texts in (["--version"], ["--help"]):
        return [Finding(Effect.HARMLESS, "prints")]
    if len(view.words) >= 2 and view.words[0].plain and texts[0] in ("-c", "-ec", "-ce", "-lc"):
        return [Finding(Effect.HARMLESS, "runs the line that follows")]
    if view.words and view.words[0].plain and not texts[0].startswith(("-", "+")):
        return _script(view, view.words[0])
    return [Finding(Effect.INTERPRETER, f"{view.name} would run its input, or has options that are not checked")]


def _script(view: CommandView, word: Word) -> list[Finding]:
    if not word.plain:
        return [Finding(Effect.INTERPRETER, "runs a script that is only known when it runs")]
    if "://" in word.text or not (view.context.confined or all(map(view.context.inside, view.paths(word)))):
        return [Finding(Effect.INTERPRETER, f"runs {word.text}, outside the project")]
    read = view.reads([word]) if view.context.confined and view.name in (".", "source") else ()
    secrets = [finding for finding in read if finding.effect is Effect.READS_SECRETS]
    if view.name in (".", "source") and "/" not in word.text:
        return [*secrets, Finding(Effect.INTERPRETER, f"searches PATH for {word.text}")]
    return [*secrets, *_project_code(view, f"runs {word.text} of the project", None)]


def _subcommand(view: CommandView) -> list[Finding]:
    texts = [word.text for word in view.words]
    if texts in (["--version"], ["-V"], ["-v"], ["--help"], ["version"]):
        return [Finding(Effect.HARMLESS, "prints")]
    verb = view.words[0].text if view.words and view.words[0].plain else ""
    if view.name in ("yarn", "bundle") and (not verb or verb.startswith("-")):
        verb = "install"  # without a subcommand
    effect = SUBCOMMANDS[view.name].get(verb, Effect.UNKNOWN)
    detail = f"{view.name} {verb}"
    match effect:
        case Effect.PROJECT_CODE if (view.name, verb) in RUNNERS:
            return [Finding(effect, f"{detail} runs the project's code")]
        case Effect.PROJECT_CODE:
            inner = CommandView(SimpleCommand(view.part.words[1:]), view.context, view.folders)
            return [
                *_project_code(inner, f"{detail} runs the project's code", SUBCOMMAND_OPTIONS.get(view.name, Options())),
                *_further_goals(view, verb),
            ]
        case Effect.INSTALLS:
            return [Finding(effect, f"{detail} installs or downloads packages")]
        case Effect.PUBLISHES:
            return [Finding(effect, f"{detail} publishes")]
        case Effect.NETWORK_CHANGE:
            return [Finding(effect, f"{detail} connects to another machine")]
        case Effect.HARMLESS:
            return [Finding(effect, "prints")]
        case _:
            found = _changes_settings(view) if view.context.confined else []
            return [*found, Finding(Effect.UNKNOWN, f"the effect of {detail} is not known")]


def _changes_settings(view: CommandView) -> list[Finding]:
    """Report subcommands that change settings or caches in the home directory."""
    texts = [word.text for word in view.words if not word.text.startswith("-")]
    if texts[:1] in (["config"], ["c"]) and (
        texts[1:2] in (["set"], ["delete"], ["edit"], ["unset"]) or (len(texts) > 2 and view.name == "poetry")
    ):
        return [Finding(Effect.WRITES_OUTSIDE, f"{view.name} config changes settings in the home directory")]
    if texts[:1] in (["cache"], ["store"]) and texts[1:2] in (["clean"], ["clear"], ["prune"], ["rm"], ["purge"]):
        return [Finding(Effect.WRITES_OUTSIDE, f"{view.name} {' '.join(texts[:2])} deletes files in the home directory")]
    if (
        view.name in ("npm", "pnpm", "yarn")
        and texts[:1] == ["version"]
        and len(texts) > 1
        and not {"--no-git-tag-version", "--git-tag-version=false"} & {word.text for word in view.words}
    ):
        return [Finding(Effect.REPOSITORY, f"{view.name} version adds a commit and a tag")]
    if view.name == "npm" and texts[:1] in (["init"], ["innit"]) and len(texts) > 1 and not texts[1].startswith((".", "/")):
        return [Finding(Effect.INSTALLS, f"npm init {texts[1]} downloads and runs a package")]
    return []


def _further_goals(view: CommandView, verb: str) -> list[Finding]:
    """Report further goals of build tools (`mvn test deploy`), and packages that `go run` can download."""
    operands = [word.text for word in view.words[1:] if not word.text.startswith("-")]
    if view.name in ("mvn", "gradle", "gradlew") and any(SUBCOMMANDS[view.name].get(text) != Effect.PROJECT_CODE for text in operands):
        return [Finding(Effect.UNKNOWN, f"the effect of {' '.join(operands)} is not known")]
    is_local = all(text == "." or text.startswith(("./", "../")) or (text.endswith(".go") and "@" not in text) for text in operands[:1])
    if (view.name, verb) == ("go", "run") and not is_local:
        return [Finding(Effect.INSTALLS, "go run can download what it runs")]
    return []


def _project_code(view: CommandView, detail: str, known: Options | None) -> list[Finding]:
    """Code of the project is allowed in a trusted project if its arguments stay inside. `known` is None for scripts: their options are not checked."""
    findings = [Finding(Effect.PROJECT_CODE, detail)]
    operands, values, unknown_option = view.split_options(known) if known is not None else (list(view.words), [], None)
    if unknown_option:
        findings.append(Finding(Effect.UNKNOWN, f"'{unknown_option}' of {view.name} is not known to stay in the project"))
    for word in [*operands, *values]:
        if not word.known or "$(" in word.text or word.text == "-" or "://" in word.text or "@" in word.text:
            findings.append(Finding(Effect.UNKNOWN, f"'{word.text}' is only known when it runs"))
        elif "/" in word.text or word.text.startswith("~") or ".." in re.split("[=:/]", word.text):
            pieces = [
                Word(piece, pattern=word.pattern)
                for piece in {word.text, word.text.rpartition(":")[2], word.text.partition("::")[0]}
                if piece
            ]
            if not all(view.context.inside(path) for piece in pieces for path in view.paths(piece)):
                findings.append(Finding(Effect.UNKNOWN, f"names {word.text}, outside the project"))
        if "=" in word.text and view.name in ("make", "gmake", "just", "ninja"):
            findings.append(Finding(Effect.INJECTION, f"sets {word.text}"))
    return findings


# The content of the files given to these programs does not change what they do. Options that name a program are part of the command itself.
_DATA_ONLY = {"[", "test", "cp", "touch", "mkdir", "git", "tar", "zip", "gzip", "bzip2", "xz", "zstd", "rsync", "pg_dump", "mysqldump"}


def scripts_of(parts: list[SimpleCommand], context: CommandContext) -> list[str]:
    """Return the files whose content may decide what the commands do: named files that are not only data, and the files of build tools."""
    folders, _ = folders_of(parts, context)
    names = set()
    for part in parts:
        if part.name in DELETES or part.name in CHANGES or part.name in _DATA_ONLY:
            continue
        texts = [word.text for word in part.words if word.plain]
        # Files that are only written to do not matter.
        texts += [redirect.target.text for redirect in part.redirects if "<" in redirect.operator]
        names |= {piece for text in texts for piece in (text, text.partition("=")[2], text[2:] if text.startswith("-") else "") if piece}
        names |= {
            os.path.join(folder, file) for folder in ("", *texts[1:]) for file in BUILD_FILES.get(os.path.basename(part.name or ""), ())
        }
    folders += [
        target_path
        for folder in list(folders)
        for name in names
        if context.is_folder(target_path := context.resolve(os.path.join(folder, name[:4096])))
    ][:64]
    paths = {
        context.resolve(os.path.join(folder, name))
        for folder in folders
        for name in names
        if "\0" not in name and len(name) < 4096 and not name.startswith(_SPECIAL_FILES)
    }
    return sorted(path for path in paths if context.exists(path) and not context.is_folder(path))
