"""A command as one line of text, made into its words. What only a shell could do is refused, and named. Pure."""

import re
import shlex

from backburner.core.errors import BadInput

# What stands in quotes or behind a backslash, then what a shell would act on. In double quotes only substitutions count.
_PIECES = re.compile(
    r"""'[^']*'|\\.|"(?P<double>(?:[^"\\]|\\.)*)"|(?P<operator>&&|\|\||>>|<<|\$\(|[|&;<>()`\n]|\$(?=[\w{?!@*#$-]))|.""", re.DOTALL
)
_SUBSTITUTION = re.compile(r"(?:\\.|(?P<operator>\$\(|`|\$(?=[\w{?!@*#$-]))|.)", re.DOTALL)


def words_of(line: str) -> tuple[str, ...]:
    """The words of `line`, split as `shlex` does; BadInput where operators, substitutions or redirects in it would need a shell.

    Patterns (`*.py`) and `~` stay as they are: nothing expands them.
    """
    line = line.replace("\\\n", " ")
    if found := _operator(line):
        shown = "a line break" if found == "\n" else f"`{found}`"
        raise BadInput(f"{shown} needs a shell: pass shell=true (`--shell`) to run the line with /bin/sh, or quote it.")
    try:
        words = tuple(shlex.split(line))
    except ValueError as error:
        raise BadInput(f"That is not a command line: {error}.") from None
    if not words:
        raise BadInput("There is no command to run.")
    if re.match(r"[A-Za-z_]\w*=", words[0]):
        raise BadInput(f"`{words[0]}` sets a variable, which needs a shell: pass shell=true (`--shell`), or start with `env`.")
    return words


def _operator(line: str) -> str | None:
    """The first thing that only a shell would understand."""
    for piece in _PIECES.finditer(line.strip()):
        if piece["operator"]:
            return piece["operator"]
        for inner in _SUBSTITUTION.finditer(piece["double"] or ""):
            if inner["operator"]:
                return inner["operator"]
    return None
