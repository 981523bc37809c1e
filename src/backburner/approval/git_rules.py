"""The effects of git in a sandbox, where the git folder is read-only: only what changes it, discards work or connects matters. Pure."""

import itertools
from collections.abc import Iterable, Iterator

from backburner.approval.effects import OPENS_FILES, RUNS_PROGRAMS, CommandView, Effect, Finding, is_protected, may_be_secret
from backburner.approval.shell_parser import Word
from backburner.core.deferred_modules import re

_CONNECTS = frozenset(
    [
        "push",
        "fetch",
        "pull",
        "clone",
        "ls-remote",
        "submodule",
        "send-email",
        "request-pull",
        "remote-https",
        "svn",
        "p4",
        "lfs",
        "daemon",
        "instaweb",
    ]
)
_DISCARDS = frozenset(["reset", "clean", "gc", "prune", "filter-branch", "filter-repo", "update-ref", "symbolic-ref", "reflog-expire"])
_REWRITES = frozenset(
    [
        "rebase",
        "am",
        "bisect",
        "notes",
        "worktree",
        "replace",
        "fast-import",
        "init",
        "maintenance",
        "repack",
        "pack-refs",
    ]
)
_ADDS = frozenset(
    ["add", "commit", "stash", "switch", "restore", "tag", "checkout", "branch", "mv", "rm", "merge", "cherry-pick", "revert"]
)
# Commands that run no program, unless an option or the settings of the repository name one. Others, also aliases, could run any.
_RUN_NOTHING = frozenset(
    ["status", "log", "diff", "show", "rev-parse", "rev-list", "ls-files", "ls-tree", "remote", "describe", "blame", "shortlog", "reflog"]
    + [
        "merge-base",
        "cat-file",
        "for-each-ref",
        "show-ref",
        "check-ignore",
        "config",
        "branch",
        "tag",
        "stash",
        "worktree",
        "grep",
        "name-rev",
    ]
    + ["count-objects", "cherry", "version", "clean", "symbolic-ref"]
)
_WRITES_FILES = frozenset(["format-patch", "archive", "bundle", "checkout-index", "mailsplit"])
_RUNS = {"grep": r"-\w*O|--o|--textc"}  # options that do
_RUNS_FOR_OTHERS = r"--ext|--textc"
_OPENS = r"--no-index|--contents|-f|--file|-F|-O|-S$|/|.*\.\."  # options and names with which git prints files outside the repository
_OPTIONS_WITH_VALUE = ("-C", "-c", "--git-dir", "--work-tree", "--namespace", "--exec-path", "--super-prefix", "--config-env")
# Settings that name a program, and names of programs that only show text.
_NAMES_PROGRAM = (
    r"(?i)core\.(pager|editor|sshcommand|fsmonitor|hookspath|askpass|gitproxy)|(pager|alias)\..*|diff\.external|sequence\.editor|gpg\.program"
    r"|(diff|merge|filter|difftool|mergetool|gpg|credential|remote|sendemail|web|man|browser|interactive|trailer)\..*"
    r"(command|textconv|driver|clean|smudge|process|cmd|path|program|helper|editor|difffilter|receivepack|uploadpack)|credential\.helper"
)
_HARMLESS_SETTINGS = r"(?i)(user\.(name|email)|color\.\w+|core\.quotepath|advice\.\w+|log\.\w+|commit\.gpgsign|tag\.gpgsign)=[\w .@<>+:-]*"
SHOWS_TEXT = r"(?i)(cat|less|more|delta|bat|true|false|:|vi|vim|nano)?( -\w+)*"
_HARMLESS_OPTIONS = ("--no-pager", "-P", "--no-optional-locks", "--literal-pathspecs", "--no-replace-objects")
# The hooks that git runs for these commands, and those that `--no-verify` turns off. A setting may name hooks in another folder.
_ANY_HOOKS = ("reference-transaction", "post-index-change", "core.hooksPath")
_RUNS_HOOKS = {
    "commit": frozenset(["pre-commit", "prepare-commit-msg", "commit-msg", "post-commit", "post-rewrite", *_ANY_HOOKS]),
    **dict.fromkeys(("switch", "checkout"), frozenset(["post-checkout", *_ANY_HOOKS])),
    "merge": frozenset(["pre-merge-commit", "pre-commit", "prepare-commit-msg", "commit-msg", "post-commit", "post-merge", *_ANY_HOOKS]),
    "rebase": frozenset(["pre-rebase", "pre-commit", "prepare-commit-msg", "post-commit", "post-checkout", "post-rewrite", *_ANY_HOOKS]),
    "notes": frozenset(_ANY_HOOKS),
    **dict.fromkeys(("cherry-pick", "revert"), frozenset(["pre-commit", "prepare-commit-msg", "commit-msg", "post-commit", *_ANY_HOOKS])),
}
_VERIFIES = frozenset(["pre-commit", "commit-msg"])
# Options of the commands that may change the git folder. Others require approval.
_KNOWN = {
    "add": r"-A|--all|-u|--update|-v|--verbose|-N|--intent-to-add|--",
    "commit": r"-[aqvs]*m?|--all|--message=.*|--message|--amend|--no-edit|--allow-empty|--quiet|--signoff|--no-verify|-n|--fixup=[^:]+|--fixup|--author=.*|--date=.*|--no-gpg-sign|--reset-author|--dry-run|-F|--file|--file=.*|-|--",
    "reset": r"-q|--quiet|--mixed|--soft|--",
    "stash": r"-m|--message|-u|--include-untracked|-k|--keep-index|-q|--quiet|-p|--stat|--",
    "switch": r"-c|--create|-q|--quiet|--no-track|--detach|-",
    "restore": r"--staged|-S|-q|--quiet|--",
    "tag": r"-a|-m|-l|--list|-n\d*|--message|--message=.*|--sort=.*|--points-at|--contains|--merged",
    "checkout": r"-b|-q|--quiet|--no-track|-",
    "merge": r"--ff|--no-ff|--ff-only|--squash|--no-edit|-q|--quiet|-m|--message=.*|--stat|--no-stat|--continue",
    "cherry-pick": r"-x|--no-edit|-n|--no-commit",
    "rebase": r"-q|--quiet|--onto|--autostash|--no-autostash|--continue",
    "notes": r"-m|--message=.*",
    "revert": r"--no-edit|-n|--no-commit",
    "mv": r"-v|-k|--verbose|--",
    "rm": r"-r|-q|--cached|--quiet|--",
    "branch": r"-d|--delete|--list|-a|-r|-v|-vv|--show-current|--sort=.*|--merged|--no-merged|--contains|--format=.*|--all",
}
_STASH_READS = ("list", "show")
_STASH_CHANGES = ("push", "save", "pop", "apply")


def git(view: CommandView) -> Iterator[Finding]:
    words, special = list(view.words), False
    while words and words[0].text.startswith("-"):
        option = words.pop(0).text
        value = words.pop(0).text if option in _OPTIONS_WITH_VALUE and words else ""
        special = special or not (option in _HARMLESS_OPTIONS or (option == "-c" and re.fullmatch(_HARMLESS_SETTINGS, value)))
        if option == "-c" and _makes_git_run(value):
            yield Finding(Effect.PROTECTED, f"sets {value.partition('=')[0]}, which makes git run a program")
        elif option.startswith("--exec-path=") or (option == "--exec-path" and value):
            yield Finding(Effect.PROTECTED, "makes git run programs of another folder")
    if special:
        yield Finding(Effect.UNKNOWN, "an option before the git subcommand can change what runs")
    if not words:
        yield Finding(Effect.HARMLESS, "prints")
        return
    verb, rest = words[0].text, words[1:]
    if not words[0].plain:
        yield Finding(Effect.DISCARDS, "its subcommand is only known when it runs")
    elif verb in _CONNECTS and not (verb == "submodule" and _texts(rest)[:1] in ([], ["status"], ["summary"])):
        effect = Effect.PUBLISHES if verb in ("push", "send-email") else Effect.NETWORK_CHANGE
        yield Finding(effect, f"git {verb} connects to another machine")
    elif verb == "reset" and (_only_unstages(view, rest) or _keeps_files(view, rest)):
        yield from _adds(view, verb, rest)
    elif (verb in _DISCARDS and not _only_shows_what_it_would_discard(verb, _texts(rest))) or _discards(verb, _texts(rest)):
        yield Finding(Effect.DISCARDS, f"git {verb} can discard work")
    elif verb == "archive" and any(text.startswith("--remote") for text in _texts(rest)):
        yield Finding(Effect.NETWORK_CHANGE, "git archive connects to another machine")
    elif verb.startswith("credential"):
        yield Finding(Effect.READS_SECRETS, f"git {verb} shows or changes passwords")
    elif verb == "config" and not _reads_settings(_texts(rest)):
        yield Finding(Effect.PROTECTED, "changes the settings of git")
    elif verb in _REWRITES and not _lists(verb, _texts(rest)) and not _is_plain_rebase(verb, rest) and not _adds_note(verb, rest):
        yield from (
            Finding(Effect.REPOSITORY, f"git {verb} changes the repository"),
            Finding(Effect.UNKNOWN, f"git {verb} may run hooks and programs"),
        )
    elif (verb in _ADDS or verb == "rebase" or _adds_note(verb, rest)) and not _only_reads(verb, rest):
        yield from _adds(view, verb, rest)
    elif verb == "remote" and _texts(rest)[:1] not in ([], ["-v"], ["show"], ["get-url"]):
        yield Finding(Effect.PROTECTED, "changes the settings of git")
    elif program := _named_program(verb, rest):
        yield Finding(Effect.PROTECTED, f"makes git run {program}")
    elif verb == "apply":
        yield Finding(Effect.EDITS, "changes files")
    else:
        yield from _reads(view, verb, rest)


def _stores(view: CommandView, words: list[Word]) -> Iterator[Finding]:
    """`--output=FILE` of the commands that show differences."""
    for word, after in zip(words, (*words[1:], None), strict=False):
        if word.text.startswith("--output="):
            yield from view.writes(word._replace(text=word.text.partition("=")[2]))
        elif word.text == "--output" and after:
            yield from view.writes(after)


def _named_program(verb: str, words: list[Word]) -> str | None:
    """The program that an option of a subcommand makes git run: `grep -O PAGER`, `difftool -x PROGRAM`."""
    options = {"grep": r"-O(.*)|--open-files-in-pager=(.*)", "difftool": r"-x(.*)|--extcmd=?(.*)"}.get(verb)
    for word, after in zip(words if options else (), (*words[1:], Word("")), strict=False):
        if (found := re.fullmatch(options or "", word.text)) and (
            program := next(filter(None, found.groups()), after.text if verb == "difftool" else "")
        ):
            return program if re.fullmatch(SHOWS_TEXT, program) is None else None
    return None


def _makes_git_run(setting: str) -> bool:
    name, _, value = setting.partition("=")
    is_alias = name.casefold().startswith("alias.")
    return re.fullmatch(_NAMES_PROGRAM, name) is not None and (
        value.startswith("!") if is_alias else re.fullmatch(SHOWS_TEXT, value) is None
    )


def _reads(view: CommandView, verb: str, words: list[Word]) -> Iterator[Finding]:
    """Diffs do not show files with secret names. A file that is named does, and an object without a name could be any file."""
    opens = any(re.match(_OPENS, word.text) or "=/" in word.text or not word.plain for word in words)
    yield Finding(Effect.READS, f"git {verb} reads", OPENS_FILES if opens else None)
    if verb in _WRITES_FILES:
        yield Finding(Effect.EDITS, f"git {verb} writes files")
    if verb not in _RUN_NOTHING or any(re.match(_RUNS.get(verb, _RUNS_FOR_OTHERS), word.text) or not word.plain for word in words):
        yield Finding(Effect.READS, f"git {verb} may run a program", RUNS_PROGRAMS)
    for risk in view.context.git_config_that_runs_code(view.folders):
        yield Finding(Effect.READS, f"this repository may make git run a program ({risk})", RUNS_PROGRAMS)
    named = [word.text.rpartition(":")[2] for word in words if ":" in word.text]
    if secret := next((name for name in named if may_be_secret(name)), None):
        yield Finding(Effect.READS_SECRETS, f"may read a secret ({secret})")
    if verb in ("log", "diff", "show"):
        yield from _stores(view, words)
    if verb == "diff" and "--no-index" in _texts(words):
        yield from view.reads([word for word in words if not word.text.startswith("-")])
        return
    if verb not in ("show", "diff", "cat-file") or (verb == "cat-file" and words[:1] and words[0].text in ("-t", "-s", "-e")):
        return
    if verb == "cat-file" and words[:1] and words[0].text in ("blob", "commit", "tree", "tag"):
        words = words[1:]
    before_paths = itertools.takewhile(lambda word: word.text != "--", words)
    operands = [
        word
        for word in before_paths
        if word.plain and not word.text.startswith("-") and not any(map(view.context.exists, view.paths(word)))
    ]
    names = [name for word in operands for name in re.split(r"\.{2,3}", word.text.partition(":")[0].removeprefix("^")) if name]
    if unknown := view.context.git_unknown(view.folders, names):
        yield Finding(Effect.READS_SECRETS, f"git {verb} could show any file, because {unknown} is not known to be a commit")


def _texts(words: list[Word]) -> list[str]:
    return [word.text for word in words]


def _only_shows_what_it_would_discard(verb: str, texts: list[str]) -> bool:
    if verb == "symbolic-ref":  # with two names it changes the first one
        return (
            len([text for text in texts if text not in ("-q", "--quiet", "--short")]) == 1 and "-d" not in texts and "--delete" not in texts
        )
    return (
        verb == "clean"
        and any(re.fullmatch(r"-[dxX]*n[dxX]*|--dry-run", text) for text in texts)
        and not re.search(r" (-\w*[fi]|--[fi])", f" {' '.join(texts)}")
    )


def _only_unstages(view: CommandView, words: list[Word]) -> bool:
    """Whether `git reset` names only files. A name that is both a file and a commit is an error of git."""
    operands = [word for word in words if not re.fullmatch(_KNOWN["reset"], word.text)]
    names = operands[1:] if operands[:1] and operands[0].text in ("HEAD", "@") else operands
    return all(word.plain and not word.text.startswith("-") and any(map(view.context.exists, view.paths(word))) for word in names)


def _lists(verb: str, texts: list[str]) -> bool:
    """Whether one of the commands that change the repository in many ways only shows something."""
    return " ".join([verb, *texts[:1]]) in ("worktree list", "notes", "notes list", "notes show", "bisect log", "replace", "replace -l")


def _is_plain_rebase(verb: str, words: list[Word]) -> bool:
    """Whether it is `git rebase COMMIT`, also with `--onto`, or `--continue`: the commits before it are in the reflog."""
    if _texts(words) == ["--continue"]:
        return verb == "rebase"
    operands = len([word for word in words if not re.fullmatch(_KNOWN["rebase"], word.text)])
    return verb == "rebase" and (2 <= operands <= 3 if "--onto" in _texts(words) else operands == 1)


def _adds_note(verb: str, words: list[Word]) -> bool:
    """Whether it adds a note with a text to a commit, and replaces none."""
    return (
        verb == "notes"
        and _texts(words)[:1] in (["add"], ["append"])
        and {"-m", "--message"} & {text.split("=")[0] for text in _texts(words)} != set()
    )


def _keeps_files(view: CommandView, words: list[Word]) -> bool:
    """Whether `git reset` only moves the branch to another commit: the files stay, and the commits are in the reflog."""
    operands = [word for word in words if not re.fullmatch(_KNOWN["reset"], word.text)]
    return len(operands) == 1 and operands[0].plain and not operands[0].text.startswith("-") and "--" not in _texts(words)


def _discards(verb: str, texts: list[str]) -> bool:
    if verb == "branch" and len(options := {text for text in texts if text.startswith("-")}) == 1 and options <= {"-d", "--delete"}:
        return False  # git deletes only a branch whose commits are in another one
    forced = any(re.fullmatch(r"-[a-zA-Z]*[fD][a-zA-Z]*|--force|--discard-changes|--hard|--delete|-d", text) for text in texts)
    match verb:
        case "checkout":
            names = [text for text in texts if not text.startswith("-") or text == "-"]
            creates = "-b" in texts or "-B" in texts
            return (
                forced or "-B" in texts or "--" in texts or len(names) != (1 if not creates else min(len(names), 2)) or names[:1] == ["."]
            )
        case "restore":
            return not any(text in ("--staged", "-S") for text in texts) or any(text in ("--worktree", "-W") for text in texts)
        case "switch" | "tag" | "branch":
            return forced or (verb == "switch" and "-C" in texts)
        case "stash":
            return texts[:1] in (["drop"], ["clear"])
        case "reflog":
            return texts[:1] in (["expire"], ["delete"])
    return False


def _reads_settings(texts: list[str]) -> bool:
    if any(text in ("--get", "--get-all", "--get-regexp", "--list", "-l", "get", "list") for text in texts[:3]):
        return True
    names = [text for text in texts if not text.startswith("-")]
    return len(names) == 1 and all(
        text in ("--global", "--local", "--show-origin", "--show-scope", "--type=bool") for text in texts if text.startswith("-")
    )


def _only_reads(verb: str, words: list[Word]) -> bool:
    texts = _texts(words)
    if verb == "stash":
        return texts[:1] in [[name] for name in _STASH_READS]
    if verb == "tag":
        return (
            not texts
            or texts[0] in ("-l", "--list")
            or all(text.startswith(("--sort", "--format", "-n", "--points-at", "--contains", "--merged")) for text in texts)
        )
    if verb == "branch":
        lists = any(re.match(r"--((no-)?(merged|contains)|list|points-at)(=|$)|-l$", text) for text in texts)
        changes = any(re.match(r"-[a-zA-Z]*[mMcCdDuf]|--(move|copy|delete|set|unset|edit|force|track)", text) for text in texts)
        return (lists or all(text.startswith("-") for text in texts)) and not changes
    return False


def _adds(view: CommandView, verb: str, words: list[Word]) -> Iterator[Finding]:
    """Commands that add to the repository. Unless everything is known, git could run a program while its folder is writable."""
    yield Finding(Effect.REPOSITORY, f"git {verb} changes the repository")
    for word in words:
        if not (word.plain or (verb == "add" and word.known and word.text[:1] not in "*?[-~")):
            yield Finding(Effect.UNKNOWN, f"'{word.text}' is only known when it runs")
        elif word.text.startswith("-") and not re.fullmatch(_KNOWN[verb], word.text):
            yield Finding(Effect.UNKNOWN, f"'{word.text}' of git {verb} is not known to be harmless")
    if any(before.text == "--fixup" and ":" in word.text for before, word in itertools.pairwise(words)):
        yield Finding(Effect.UNKNOWN, "git commit would open an editor")
    if verb == "stash" and _texts(words)[:1] and words[0].text not in _STASH_CHANGES and not words[0].text.startswith("-"):
        yield Finding(Effect.UNKNOWN, f"git stash {words[0].text} is not known to be harmless")
    risks = view.context.git_config_that_runs_code(view.folders)
    for risk in risks:
        yield Finding(Effect.UNKNOWN, f"this repository may make git run a program ({risk})")
    skipped = _VERIFIES if verb == "commit" and {"--no-verify", "-n"} & set(_texts(words)) else frozenset()
    run = _RUNS_HOOKS.get(verb, frozenset()) - skipped
    if run and (hooks := [name for name in view.context.git_hooks(view.folders) if name in run]):
        yield Finding(Effect.UNKNOWN, f"its hooks would not run in the sandbox ({', '.join(hooks)})")
    if not risks:
        yield from _changes(view, verb, words)


def _changes(view: CommandView, verb: str, words: list[Word]) -> Iterator[Finding]:
    """What a command would do with files that a sandbox hides or keeps as they are: git would leave them out, or stop half-way."""
    messages = {at + 1 for at, word in enumerate(words) if verb == "merge" and word.text == "-m"}
    operands = [word for at, word in enumerate(words) if at not in messages and (not word.text.startswith("-") or word.text == "-")]
    paths = [path for word in operands for path in view.paths(word) if view.context.inside(path)]
    if verb in ("mv", "rm") and (kept := next((name for name in map(view.context.shortened, paths) if is_protected(name)), None)):
        yield Finding(Effect.PROTECTED, f"changes {kept}, which other programs use automatically")
    creates = verb == "branch" or {"-b", "-c", "--create"} & set(_texts(words))
    for start in operands[1:2] if creates and "--no-track" not in _texts(words) else ():
        if view.context.git_names(view.folders, "for-each-ref", "--format=%(refname)", f"refs/remotes/{start.text}"):
            yield Finding(Effect.PROTECTED, f"changes the settings of git: the new branch would follow {start.text}")
    steps = view.context.git_steps(view.folders) if _texts(words) == ["--continue"] else []
    if steps is None or not all(re.fullmatch(r"(pick|p) [0-9a-f]{4,64} .*", step) for step in steps):
        yield Finding(Effect.UNKNOWN, f"what git {verb} continues with may run programs")
        return
    for listing in _listings(verb, _texts(words), _texts(operands), paths, [step.split()[1] for step in steps]):
        names = view.context.git_names(view.folders, *listing)
        if names is None or (not names and listing[0] == "rev-parse"):
            yield Finding(Effect.UNKNOWN, f"which files git {verb} changes is not known")
        for name in names or ():
            if verb != "add" and is_protected(name):
                yield Finding(Effect.PROTECTED, f"changes {name}, which other programs use automatically")
            elif verb != "add" and name.rpartition("/")[2] in ("HEAD", "commondir"):
                yield Finding(Effect.PROTECTED, f"changes {name}, which can make a folder a repository")
            elif "--others" in listing and may_be_secret(name):
                yield Finding(Effect.READS_SECRETS, f"adds {name}, which may be a secret")


def _changed_by_commit(name: str) -> tuple[str, ...]:
    return "diff-tree", "--root", "-r", "--no-commit-id", "--name-only", "--no-renames", "-z", name, "--"


def _listings(verb: str, texts: list[str], operands: list[str], paths: list[str], steps: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """The git commands that list what a command changes in the work tree, or adds to the repository."""
    others, differ = ("ls-files", "--others", "--exclude-standard", "-z", "--"), ("diff", "--name-only", "--no-renames", "-z")
    match verb:
        case "add" if not {"-u", "--update"} & set(texts):
            yield (*others, *(f":(literal){path}" for path in paths)) if not any(set(path) & set("*?[") for path in paths) else others
        case "switch" | "checkout":
            created = {"-b", "-c", "--create"} & set(texts)
            for name in operands[1:2] if created else operands[:1]:
                commit = "@{-1}" if name == "-" else name
                yield ("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}")
                yield (*differ, "HEAD", commit, "--")
        case "stash" if {"pop", "apply"} & set(texts[:1]):
            name = next(iter(operands[1:]), "0")
            stash = f"stash@{{{name}}}" if name.isdecimal() else name
            yield (*differ, f"{stash}^1", stash, "--")
            yield ("ls-tree", "-r", "--name-only", "-z", f"{stash}^3", "--")
        case "stash":
            yield (*differ, "HEAD", "--")
            if {"-u", "--include-untracked"} & set(texts):
                yield others
        case "rebase" if texts == ["--continue"]:
            yield from (_changed_by_commit(name) for name in steps)
        case "rebase":
            for name in operands:
                yield (*differ, f"HEAD...{name}", "--")
                yield (*differ, f"{name}...HEAD", "--")
        case "merge":
            for name in operands:
                yield (*differ, f"HEAD...{name}", "--")
        case "cherry-pick" | "revert":
            for name in operands:
                yield _changed_by_commit(name)
        case "rm":
            yield ("ls-files", "-z", "--", *(f":(literal){path}" for path in paths))
