"""Finds the commands inside programs that run other programs, one layer at a time. Pure. An unknown option is a doubt."""

import itertools
import os
from collections.abc import Iterator

from backburner.approval.shell_parser import SimpleCommand, Word, parse
from backburner.core.deferred_modules import re
from backburner.core.light_typing import NamedTuple

_MAX_DEPTH = 12


class Options(NamedTuple):
    """The options of a program. For a wrapper, they decide where the inner command begins."""

    flags: frozenset[str] = frozenset()
    values: frozenset[str] = frozenset()  # options with a value in the same or the next word
    operands: int = 0  # the number of operands before the inner command
    joined: frozenset[str] = frozenset()  # options with a value in the same word only
    assignments: bool = False  # NAME=VALUE words may come before the inner command


def _options(flags: str = "", values: str = "", operands: int = 0, assignments: bool = False) -> Options:
    return Options(frozenset(flags.split()), frozenset(values.split()), operands, assignments=assignments)


WRAPPERS: dict[str, Options] = {
    "env": _options("-i --ignore-environment - -v --debug", "-u --unset", assignments=True),
    "sudo": _options(
        "-n -E -H -b -k -A -P --non-interactive --preserve-env --set-home",
        "-u -g -C -h -p -r -t -T -U -D -R --user --group",
        assignments=True,
    ),
    "doas": _options("-n -s -L", "-u -C", assignments=True),
    "nice": _options("", "-n --adjustment"),
    "ionice": _options("-t --ignore", "-c --class -n --classdata"),
    "timeout": _options("--preserve-status --foreground -v --verbose", "-k --kill-after -s --signal", 1),
    "nohup": _options(),
    "stdbuf": _options("", "-i --input -o --output -e --error"),
    "setsid": _options("-c --ctty -f --fork -w --wait"),
    "time": _options("-p -v --verbose"),
    "command": _options("-p"),
    "exec": _options("-l", "-a"),
    "busybox": _options(),
    "toybox": _options(),
    "xargs": _options(
        "-0 --null -r --no-run-if-empty -t --verbose -x -i --replace",
        "-n -P -L -d -s -I -a --max-args --max-procs --delimiter --arg-file",
    ),
}
# Programs with a subcommand that runs the command after it: `uv run pytest`.
RUNNERS = {
    ("uv", "run"),
    ("poetry", "run"),
    ("pipenv", "run"),
    ("pdm", "run"),
    ("hatch", "run"),
    ("rye", "run"),
    ("bundle", "exec"),
    ("opam", "exec"),
    ("mise", "exec"),
    ("asdf", "exec"),
    ("direnv", "exec"),
}
_INSERTED = "names that are only known when it runs are inserted"
SHELLS = frozenset(["sh", "bash", "dash", "zsh", "ksh", "ash", "mksh", "rbash"])
_FIND_EXEC = frozenset(("-exec", "-execdir", "-ok", "-okdir"))


def unwrap(part: SimpleCommand, depth: int) -> Iterator[SimpleCommand]:
    """Return the command itself and every command it would run."""
    if depth > _MAX_DEPTH:
        yield part._replace(unreadable=("it is nested too deeply",))
        return
    name = os.path.basename(part.name) if part.name else None
    if name is None or not part.words:
        doubt = ("the program is only known when it runs",) if part.words else ()
        yield part._replace(doubts=(*part.doubts, *doubt))
        return
    yield part
    words = part.words[1:]
    if name == "command" and words and words[0].plain and words[0].text in ("-v", "-V"):
        return  # it only prints which program would run
    if name == "env" and (text := _split_string(words)) is not None:
        yield from _shell_text(part, "env -S", text, depth)
    elif name in WRAPPERS:
        yield from _wrapped(part, name, words, WRAPPERS[name], depth)
    elif name in SHELLS:
        yield from _shell(part, name, words, depth)
    elif name == "find":
        yield from _find(part, words, depth)
    elif name == "eval":
        yield from _shell_text(part, "eval", words, depth)
    elif name == "trap" and words:
        yield from _shell_text(part, "trap", words[:1], depth)
    elif words and words[0].plain and (name, words[0].text) in RUNNERS:
        yield from _wrapped(part, f"{name} {words[0].text}", words[1:], Options(), depth)


def _inner(
    part: SimpleCommand, via: str, words: tuple[Word, ...], depth: int, *, assigned: tuple = (), doubts: tuple[str, ...] = ()
) -> Iterator[SimpleCommand]:
    inside = (*part.inside, via)
    yield from unwrap(SimpleCommand(words, assigned, (), inside, doubts), depth + 1)


def _wrapped(part: SimpleCommand, name: str, words: tuple[Word, ...], options: Options, depth: int) -> Iterator[SimpleCommand]:
    index, assigned, operands_left = 0, [], options.operands
    while index < len(words):
        word = words[index]
        if not word.plain:
            yield from _inner(part, name, words[index:], depth, doubts=(f"an option of {name} is only known when it runs",))
            return
        if word.text == "--":
            index += 1
            break
        if (word.text.startswith("-") and word.text != "-") or word.text in options.flags:
            count = count_option_words(word.text, options)
            if count == 0:
                yield SimpleCommand(part.words, (), (), (*part.inside, name), (f"'{word.text}' is an unknown option of {name}",))
                return
            if len(words[index + 1 : index + count]) != count - 1 or not all(value.plain for value in words[index + 1 : index + count]):
                yield SimpleCommand(part.words, (), (), (*part.inside, name), (f"the value of '{word.text}' is only known when it runs",))
                return
            index += count
        elif options.assignments and "=" in word.text and not word.text.startswith("="):
            key, _, value = word.text.partition("=")
            assigned.append((key, Word(value)))
            index += 1
        elif operands_left:
            operands_left -= 1
            index += 1
        else:
            break
    inner = words[index:]
    if not inner:
        return
    if name == "xargs" and (replaced := _replaced_by_xargs(words[:index])):
        yield from _inner(part, name, _with_unknown(inner, replaced), depth, doubts=(_INSERTED,))
        return
    if name == "xargs":
        inner = (*inner, Word("…", known=False))
    yield from _inner(part, name, inner, depth, assigned=tuple(assigned))


def _split_string(words: tuple[Word, ...]) -> tuple[Word, ...] | None:
    """The text that `env -S TEXT` splits into a command, and the words after it; None without this option."""
    for index, word in enumerate(words):
        if found := re.fullmatch(r"(?:-[iv]*S|--split-string=?)(.*)", word.text, re.DOTALL):
            rest = words[index + 1 :]
            return (Word(found.group(1), word.known, word.pattern), *rest) if found.group(1) else rest
        if not word.text.startswith("-"):
            break
    return None


def _replaced_by_xargs(options: tuple[Word, ...]) -> str | None:
    """The text that `xargs -I TEXT` replaces in its command."""
    texts = [word.text for word in options]
    for text, after in zip(texts, (*texts[1:], ""), strict=False):
        if found := re.fullmatch(r"-I(.*)|-i(.*)|--replace(?:=(.*))?", text):
            return next(filter(None, found.groups()), after if text == "-I" else "{}")
    return None


def _with_unknown(words: tuple[Word, ...], replaced: str) -> tuple[Word, ...]:
    """The words of a command in which names are inserted. Text for a shell is read as it is, because its other commands run too."""
    is_shell = bool(words) and os.path.basename(words[0].text) in SHELLS
    return tuple(
        Word(word.text, known=False) if replaced in word.text and not (is_shell and _is_text(word.text)) else word for word in words
    )


def _is_text(text: str) -> bool:
    return len(text.split()) > 1


def count_option_words(text: str, options: Options) -> int:
    """Return how many words an option takes, or 0 if the option is unknown."""
    name, equals, _ = text.partition("=")
    if text in options.flags or (name in options.joined and equals):
        return 1
    if text[:2] in options.joined and text[2:].isdigit():
        return 1
    if name in options.values:
        return 1 if equals else 2
    if not text.startswith("--"):
        if text[:2] in options.values:
            return 1
        if all(f"-{c}" in options.flags for c in text[1:]) or text[1:].isdigit():
            return 1
        cluster, last = text[1:-1], f"-{text[-1]}"
        if last in options.values and all(f"-{c}" in options.flags for c in cluster):
            return 2
    return 0


def _shell(part: SimpleCommand, name: str, words: tuple[Word, ...], depth: int) -> Iterator[SimpleCommand]:
    """Parse the line of `sh -c LINE`, also after other options. Scripts are handled by `programs`."""
    if (index := _shell_line(words)) is None:
        return
    if name not in ("sh", "dash", "bash"):
        yield SimpleCommand(part.words, (), (), part.inside, (f"{name} has its own syntax",))
    if index > 1:
        yield SimpleCommand(part.words, (), (), part.inside, (f"{name} has options that are not checked",))
    yield from _shell_text(part, f"{name} -c", words[index : index + 1], depth)


def _shell_line(words: tuple[Word, ...]) -> int | None:
    """Where the line of `sh -c LINE` is: after all options. None if there is none, or an option is only known when it runs."""
    index, is_line = 0, False
    while index < len(words) and words[index].plain and re.fullmatch(r"[-+][a-zA-Z]+|--[a-z-]+", words[index].text):
        option = words[index].text
        is_line = is_line or re.fullmatch(r"-[a-zA-Z]*c[a-zA-Z]*", option) is not None
        takes_value = option in ("--rcfile", "--init-file") or re.fullmatch(r"[-+][a-zA-Z]*[oO]", option)
        index += 2 if takes_value else 1
    index += words[index : index + 1] == (Word("--"),)
    return index if is_line and index < len(words) else None


def _shell_text(part: SimpleCommand, via: str, words: tuple[Word, ...], depth: int) -> Iterator[SimpleCommand]:
    """Parse words that the shell would run as shell text."""
    if not words or not all(word.plain for word in words):
        yield SimpleCommand(part.words, (), (), (*part.inside, via), (f"the text that {via} runs is only known when it runs",))
        return
    for command in parse(" ".join(word.text for word in words), depth + 1):
        yield from unwrap(command._replace(inside=(*part.inside, via)), depth + 1)


def _ends_exec(words: tuple[Word, ...], index: int) -> bool:
    return words[index].text == ";" or (words[index].text == "+" and words[index - 1].text == "{}")


def found_names(words: tuple[Word, ...], runs: list[str]) -> Word | None:
    """The pattern of all names that `find` finds below the current directory, if it runs only this; None if it is not known."""
    texts = [word.text for word in words]
    names = [after.text for word, after in itertools.pairwise(words) if word.text == "-name" and after.plain]
    found_runs = [after for text, after in itertools.pairwise(texts) if text in _FIND_EXEC]
    roots = list(itertools.takewhile(lambda text: not text.startswith(("-", "(", "!")), texts))
    is_below = all(word.plain or word.text == "{}" for word in words) and all(
        not root.startswith(("/", "~")) and ".." not in root for root in roots
    )
    return (
        Word(names[0], pattern=True)
        if is_below and len(names) == 1 and found_runs == runs and not {"-o", "-or", "!", "-not", "("} & set(texts)
        else None
    )


def _find(part: SimpleCommand, words: tuple[Word, ...], depth: int) -> Iterator[SimpleCommand]:
    index = 0
    while index < len(words):
        if words[index].known and words[index].text in _FIND_EXEC:
            end = next((i for i in range(index + 1, len(words)) if _ends_exec(words, i)), len(words))
            found = found_names(words, ["rm"]) or Word("{}", known=False)
            inner = _with_unknown(words[index + 1 : end], "{}")
            inner = tuple(found if word.text == "{}" else word for word in inner)
            doubts = ("it runs in the directory of each file it finds",) if words[index].text in ("-execdir", "-okdir") else ()
            doubts += (_INSERTED,) if any(word.plain and word.text != "{}" and "{}" in word.text for word in inner) else ()
            yield from _inner(part, f"find {words[index].text}", inner, depth, doubts=doubts)
            index = end
        index += 1
