"""Splits a command line into arguments. Rejects shell syntax, such as pipes and redirects, because no shell runs the result."""

import re
import shlex

from backburner.core.errors import BadInput

# Quoted and escaped text first, then shell operators. Inside double quotes only substitutions are operators.
_TOKENS = re.compile(
    r"""'[^']*'|\\.|"(?P<double>(?:[^"\\]|\\.)*)"|(?P<operator>&&|\|\||>>|<<|\$\(|[|&;<>()`\n]|\$(?=[\w{?!@*#$-]))|.""", re.DOTALL
)
_SUBSTITUTION = re.compile(r"(?:\\.|(?P<operator>\$\(|`|\$(?=[\w{?!@*#$-]))|.)", re.DOTALL)


def words_of(line: str) -> tuple[str, ...]:
    """Split `line` as `shlex` does. Raises BadInput for operators, substitutions and redirects, which need a shell.

    Patterns (`*.py`) and `~` are not expanded.
    """
    line = line.replace("\\\n", " ")
    if operator := _find_operator(line):
        shown = "a line break" if operator == "\n" else f"`{operator}`"
        raise BadInput(f"{shown} needs a shell: pass shell=true (`--shell`) to run the line with /bin/sh, or quote it.")
    try:
        words = tuple(shlex.split(line))
    except ValueError as error:
        raise BadInput(f"Invalid command line: {error}.") from None
    if not words:
        raise BadInput("No command given.")
    if re.match(r"[A-Za-z_]\w*=", words[0]):
        raise BadInput(f"`{words[0]}` sets a variable, which needs a shell: pass shell=true (`--shell`), or start with `env`.")
    return words


def _find_operator(line: str) -> str | None:
    """Return the first shell operator or substitution in a line."""
    for token in _TOKENS.finditer(line.strip()):
        if token["operator"]:
            return token["operator"]
        for inner in _SUBSTITUTION.finditer(token["double"] or ""):
            if inner["operator"]:
                return inner["operator"]
    return None
