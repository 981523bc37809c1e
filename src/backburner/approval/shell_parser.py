"""What a command line would really run: from an argv or a shell line to its simple commands, through wrappers.

Pure, and it fails closed: what is dynamic, unknown or cannot be parsed for certain comes out as a doubt, and a doubt asks.
tree-sitter is loaded for shell text only.
"""

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

from backburner.approval import simple_shell as plain

_LONGEST_LINE = 64 * 1024
_DEEPEST = 12


class Word(NamedTuple):
    """One word as the program would get it, as far as that is known."""

    text: str
    known: bool = True  # False: an expansion is in it
    pattern: bool = False  # an unquoted * ? [ ~ or {a,b}: it stands for other words

    @property
    def plain(self) -> bool:
        return self.known and not self.pattern


class Redirect(NamedTuple):
    operator: str
    target: Word


class SimpleCommand(NamedTuple):
    """One simple command that would run, the wrappers it runs through, and what is not certain about it."""

    words: tuple[Word, ...] = ()
    assigned: tuple[tuple[str, Word], ...] = ()
    redirects: tuple[Redirect, ...] = ()
    inside: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The part as a person would read it."""
        import shlex

        words = [f"{name}={value.text}" for name, value in self.assigned]
        words += [word.text if word.pattern or not word.known else shlex.quote(word.text) for word in self.words]
        words += [f"{redirect.operator}{redirect.target.text}" for redirect in self.redirects]
        return " ".join(words)

    @property
    def name(self) -> str | None:
        """The program's name, None where it is not certain."""
        return self.words[0].text if self.words and self.words[0].plain else None


def parse_commands(command: tuple[str, ...], shell: bool) -> list[SimpleCommand]:
    """Every simple command that would run, outermost first."""
    from backburner.approval.wrappers import unwrap

    parts = parse(command[0]) if shell else [SimpleCommand(tuple(map(Word, command)))]
    return [inner for part in parts for inner in unwrap(part, 0)]


def parse(line: str, depth: int = 0) -> list[SimpleCommand]:
    """The simple commands of a shell line, not yet unwrapped."""
    if depth > _DEEPEST:
        return [SimpleCommand(doubts=("it is nested too deeply",))]
    if len(line) > _LONGEST_LINE:
        return [SimpleCommand(doubts=("the line is too long to be read for certain",))]
    if hidden := _hidden(line):
        return [SimpleCommand(doubts=(f"the line holds {hidden}",))]
    tree = _parser().parse(line.encode("utf-8", "surrogateescape"))
    parts = list(_visit(tree.root_node, 0))
    if tree.root_node.has_error:
        parts.append(SimpleCommand(doubts=("the line cannot be parsed for certain",)))
    simple = plain.read(line)
    if simple is None:
        parts.append(
            SimpleCommand(
                doubts=("the line is more than simple commands joined by | && || ; or &, and shells read such lines differently",)
            )
        )
    elif tests := [one for one in simple if one.words and one.words[0].text == "["]:
        parts += [SimpleCommand(tuple(Word(token.text, token.known, token.pattern) for token in one.words)) for one in tests]
    if simple is not None and not _agree(simple, parts):
        parts.append(SimpleCommand(doubts=("the line can be read in two ways",)))
    return parts


def _agree(simple: list[plain.Simple], parts: list[SimpleCommand]) -> bool:
    """Whether the parser and the plain reading find the same words, assignments and redirects."""
    mine = [[token.text if token.known else None for token in one.words] for one in simple if one.words and one.words[0].text != "["]
    theirs = [[word.text if word.known else None for word in part.words] for part in parts if part.words and part.words[0].text != "["]
    assigned = ([pair[0] for one in simple for pair in one.assigned], [name for part in parts for name, _ in part.assigned])
    mine_to = sorted(target for one in simple for _, target in one.redirects)
    theirs_to = sorted(redirect.target.text for part in parts for redirect in part.redirects if not _duplicates(redirect))
    return mine == theirs and assigned[0] == assigned[1] and mine_to == theirs_to


def _duplicates(redirect: Redirect) -> bool:
    return redirect.operator in (">&", "<&") and (redirect.target.text.isdigit() or redirect.target.text == "-")


def _hidden(line: str) -> str | None:
    """What people cannot see and shells and parsers read differently."""
    if line.isascii() and line.isprintable():
        return None
    import unicodedata

    for c in line:
        category = unicodedata.category(c)
        if (category in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") and c not in "\n\t") or (category == "Zs" and c != " "):
            return f"a hidden character (U+{ord(c):04X})"
    return None


@functools.cache
def _parser() -> Any:
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


# Constructs that run nothing by themselves: what they hold is looked at.
_TRANSPARENT = frozenset(
    [
        "program",
        "list",
        "pipeline",
        "subshell",
        "compound_statement",
        "if_statement",
        "elif_clause",
        "else_clause",
        "while_statement",
        "for_statement",
        "c_style_for_statement",
        "do_group",
        "negated_command",
        "case_statement",
        "case_item",
        "test_command",
        "redirected_statement",
        "unary_expression",
        "binary_expression",
        "ternary_expression",
        "postfix_expression",
        "parenthesized_expression",
        "test_operator",
        "word",
        "number",
        "string",
        "string_content",
        "raw_string",
        "ansi_c_string",
        "translated_string",
        "concatenation",
        "brace_expression",
        "simple_expansion",
        "expansion",
        "command_substitution",
        "process_substitution",
        "arithmetic_expansion",
        "variable_name",
        "special_variable_name",
        "subscript",
        "array",
        "regex",
        "extglob_pattern",
        "comment",
        "command_name",
        "file_descriptor",
        "heredoc_start",
        "heredoc_body",
        "heredoc_content",
        "heredoc_end",
        "unset_command",
    ]
)
_REDIRECTS = frozenset(("file_redirect", "heredoc_redirect", "herestring_redirect"))


def _visit(node: Any, depth: int) -> Iterator[SimpleCommand]:
    if depth > 200:
        yield SimpleCommand(doubts=("it is nested too deeply",))
        return
    match node.type:
        case "command":
            yield _command(node)
        case "variable_assignment":
            yield SimpleCommand(assigned=(_assignment(node),))
        case "declaration_command":
            assigned = [_assignment(child) for child in node.named_children if child.type == "variable_assignment"]
            # without one it prints every variable there is
            yield SimpleCommand(assigned=tuple(assigned)) if assigned else SimpleCommand((Word("printenv"),))
        case "unset_command":
            yield SimpleCommand((Word(":"),))
        case "function_definition":
            yield SimpleCommand(doubts=("it defines a function, which may stand for any command after it",))
        case "heredoc_redirect" | "herestring_redirect":
            pass
        case "file_redirect":
            yield SimpleCommand(redirects=(_redirect(node),))
        case kind if kind not in _TRANSPARENT:
            yield SimpleCommand(doubts=(f"it holds something that is not understood ({kind})",))
    for child in node.named_children:
        # the assignments and redirects of a command belong to it; what they hold is still looked at
        if node.type in ("command", "declaration_command") and child.type in ("variable_assignment", "file_redirect"):
            for inner in child.named_children:
                yield from _visit(inner, depth + 1)
        else:
            yield from _visit(child, depth + 1)


def _command(node: Any) -> SimpleCommand:
    words, assigned, redirects = [], [], []
    for child in node.named_children:
        match child.type:
            case "variable_assignment":
                assigned.append(_assignment(child))
            case "file_redirect":
                redirects.append(_redirect(child))
            case "heredoc_redirect" | "herestring_redirect":
                pass
            case "command_name":
                words.append(_word(child.named_children[0]) if child.named_children else Word(_text(child), known=False))
            case "comment":
                pass
            case _:
                words.append(_word(child))
    return SimpleCommand(tuple(words), tuple(assigned), tuple(redirects))


def _assignment(node: Any) -> tuple[str, Word]:
    name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
    return _text(name) if name else "?", _word(value) if value else Word("")


def _redirect(node: Any) -> Redirect:
    operator = next((_text(child) for child in node.children if not child.is_named), "?")
    targets = [child for child in node.named_children if child.type != "file_descriptor"]
    return Redirect(operator, _word(targets[0]) if len(targets) == 1 else Word(_text(node), known=False))


def _text(node: Any) -> str:
    return node.text.decode("utf-8", "surrogateescape")


def _word(node: Any) -> Word:
    """The word a node stands for."""
    text = _text(node)
    match node.type:
        case "word" | "number":
            return _bare(text)
        case "raw_string":
            return Word(text[1:-1])
        case "string":
            if all(child.type == "string_content" for child in node.named_children) and text.startswith('"'):
                return Word(_unescaped(text[1:-1], '$`"\\'))
            return Word(text, known=False)
        case "ansi_c_string":
            return _ansi_c(text[2:-1])
        case "concatenation":
            pieces = [_word(child) for child in node.named_children]
            joined = "".join(piece.text for piece in pieces)
            return Word(joined, all(piece.known for piece in pieces), any(piece.pattern for piece in pieces) or "{" in joined)
        case "brace_expression":
            return Word(text, pattern=True)
        case _:
            return Word(text, known=False)


def _bare(text: str) -> Word:
    """An unquoted word: backslashes taken away, patterns seen."""
    plain, pattern, at = "", text.startswith("~") or ":~" in text or "=~" in text, 0
    while at < len(text):
        c = text[at]
        if c == "\\" and at + 1 < len(text):
            at += 1
            plain += "" if text[at] == "\n" else text[at]
        else:
            pattern = pattern or c in "*?[{"
            plain += c
        at += 1
    if any(c in plain for c in "$`") and not any(pair in text for pair in ("\\$", "\\`")):
        return Word(plain, known=False, pattern=pattern)
    return Word(plain, pattern=pattern)


def _unescaped(text: str, special: str) -> str:
    plain, at = "", 0
    while at < len(text):
        if text[at] == "\\" and at + 1 < len(text) and text[at + 1] in special + "\n":
            at += 1
            plain += "" if text[at] == "\n" else text[at]
        else:
            plain += text[at]
        at += 1
    return plain


_ANSI_C = {
    "n": "\n",
    "t": "\t",
    "\\": "\\",
    "'": "'",
    '"': '"',
    "r": "\r",
    "a": "\a",
    "b": "\b",
    "e": "\x1b",
    "E": "\x1b",
    "f": "\f",
    "v": "\v",
    "?": "?",
}


def _ansi_c(text: str) -> Word:
    """$'…': the plain escapes are read, numbered ones are a doubt."""
    plain, at = "", 0
    while at < len(text):
        if text[at] == "\\":
            at += 1
            if at >= len(text) or text[at] not in _ANSI_C:
                return Word(text, known=False)
            plain += _ANSI_C[text[at]]
        else:
            plain += text[at]
        at += 1
    return Word(plain)
