"""Splits an argv or a shell line into the simple commands that would run, including the commands inside wrappers. Pure.

It fails closed: everything that is dynamic, unknown or ambiguous is recorded as a doubt, and a doubt requires approval.
tree-sitter is loaded only for shell text.
"""

import functools
from collections.abc import Iterator

from backburner.approval import simple_shell
from backburner.core.deferred_modules import re
from backburner.core.formatting import quoted
from backburner.core.light_typing import Any, NamedTuple

_MAX_LINE_CHARACTERS = 64 * 1024
_MAX_DEPTH = 12
_MAX_TREE_DEPTH = 200
_CRASHES_PARSER = r"\{[\d.]*[^\x00-\xff]"  # tree-sitter-bash looks such a character up in a table of 256 and can crash
COMPOUND = "the line contains loops or conditions"  # a doubt that does not matter in a sandbox
LATE_WORDS = "words of the command follow a redirect"  # the same


class Word(NamedTuple):
    """One word as the program would receive it, as far as it is known."""

    text: str
    known: bool = True  # False if it contains an expansion
    pattern: bool = False  # True if it contains an unquoted * ? [ ~ or {a,b} and can expand to other words

    @property
    def plain(self) -> bool:
        return self.known and not self.pattern


class Redirect(NamedTuple):
    operator: str
    target: Word


class SimpleCommand(NamedTuple):
    """One simple command that would run, the wrappers around it (`inside`), and the reasons why it is not certain (`doubts`)."""

    words: tuple[Word, ...] = ()
    assigned: tuple[tuple[str, Word], ...] = ()
    redirects: tuple[Redirect, ...] = ()
    inside: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()  # reasons why what would run cannot be determined at all

    @property
    def text(self) -> str:
        """The command as it is shown to the user."""
        words = [f"{name}={value.text}" for name, value in self.assigned]
        words += [word.text if word.pattern or not word.known else quoted([word.text]) for word in self.words]
        words += [f"{redirect.operator}{redirect.target.text}" for redirect in self.redirects]
        return " ".join(words)

    @property
    def name(self) -> str | None:
        """The name of the program; None if it is known only when the command runs."""
        return self.words[0].text if self.words and self.words[0].plain else None


def parse_commands(command: tuple[str, ...], shell: bool) -> list[SimpleCommand]:
    """Return every simple command that would run, the outermost first."""
    from backburner.approval.wrappers import unwrap

    parts = parse(command[0]) if shell else [SimpleCommand(tuple(map(Word, command)))]
    return [inner for part in parts for inner in unwrap(part, 0)]


def parse(line: str, depth: int = 0) -> list[SimpleCommand]:
    """Return the simple commands of a shell line, without the commands inside wrappers."""
    if depth > _MAX_DEPTH:
        return [SimpleCommand(unreadable=("it is nested too deeply",))]
    if len(line) > _MAX_LINE_CHARACTERS:
        return [SimpleCommand(unreadable=("the line is too long to be parsed",))]
    if hidden := _hidden_character(line):
        return [SimpleCommand(unreadable=(f"the line contains {hidden}",))]
    if not line.isascii() and re.search(_CRASHES_PARSER, line):
        return [SimpleCommand(unreadable=("the line contains a character after { that the parser cannot read",))]
    if "<<" in line:  # the parser loses words before some here-documents
        line = simple_shell.without_documents(line)
    tree = _parser().parse(line.encode("utf-8", "surrogateescape"))
    doubts: tuple[str, ...] = ()
    if "<<" in line and tree.root_node.has_error and (shorter := simple_shell.without_continued_documents(line)) != line:
        line, doubts = shorter, ("the line goes on after the start of a here-document",)
        tree = _parser().parse(line.encode("utf-8", "surrogateescape"))
    parts = list(_visit(tree.root_node, 0, {}))
    parts += [SimpleCommand(doubts=doubts)] if doubts else []
    if tree.root_node.has_error:
        parts.append(SimpleCommand(unreadable=("the line cannot be parsed reliably",)))
    simple = simple_shell.read(line)
    if simple is None and (simple := simple_shell.read(line, compound=True)) is not None:
        parts.append(SimpleCommand(doubts=(COMPOUND,)))
    if simple is None:
        parts.append(
            SimpleCommand(
                doubts=("the line contains more than simple commands joined by | && || ; or &, which shells interpret differently",)
            )
        )
    elif tests := [command for command in simple if command.words and command.words[0].text == "["]:
        parts += [SimpleCommand(tuple(Word(token.text, token.known, token.pattern) for token in command.words)) for command in tests]
    if simple is not None and not _same_commands(simple, parts):
        parts.append(SimpleCommand(doubts=("the line can be parsed in two ways",)))
    return parts


def _same_commands(simple: list[simple_shell.Simple], parts: list[SimpleCommand]) -> bool:
    """Whether tree-sitter and the reader for simple shell find the same words, assignments and redirects."""
    own_words = [
        [token.text if token.known else None for token in command.words]
        for command in simple
        if command.words and command.words[0].text != "["
    ]
    parsed_words = [
        [word.text if word.known else None for word in part.words] for part in parts if part.words and part.words[0].text != "["
    ]
    assigned = ([pair[0] for command in simple for pair in command.assigned], [name for part in parts for name, _ in part.assigned])
    own_targets = sorted(target for command in simple for _, target in command.redirects)
    parsed_targets = sorted(redirect.target.text for part in parts for redirect in part.redirects if not _duplicates_descriptor(redirect))
    return own_words == parsed_words and assigned[0] == assigned[1] and own_targets == parsed_targets


def _duplicates_descriptor(redirect: Redirect) -> bool:
    return redirect.operator in (">&", "<&") and (redirect.target.text.isdigit() or redirect.target.text == "-")


def _hidden_character(line: str) -> str | None:
    """Describe the first character that is invisible to people and that shells and parsers read differently."""
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


# Syntax nodes that run nothing themselves. Their children are visited.
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


def _visit(node: Any, depth: int, late: dict[int, tuple[Word, ...]]) -> Iterator[SimpleCommand]:
    """`late` has the words that follow the redirects of a command, by the id of its node."""
    if depth > _MAX_TREE_DEPTH:
        yield SimpleCommand(unreadable=("it is nested too deeply",))
        return
    match node.type:
        case "command":
            yield _command(node, late.get(node.id, ()))
        case "redirected_statement" if words := tuple(_words_after_redirects(node)):
            if command := _last_command(node.named_children[0]):
                late[command.id] = words
            # Without a command before them, and for dash after `&>`, they are a command.
            if command is None or any(child.type.startswith("&>") for redirect in node.named_children for child in redirect.children):
                yield SimpleCommand(words, doubts=(LATE_WORDS,))
        case "variable_assignment":
            yield SimpleCommand(assigned=(_assignment(node),))
        case "declaration_command":
            assigned = [_assignment(child) for child in node.named_children if child.type == "variable_assignment"]
            # without an assignment it prints all variables
            yield SimpleCommand(assigned=tuple(assigned)) if assigned else SimpleCommand((Word("printenv"),))
        case "unset_command":
            yield SimpleCommand((Word(":"),))
        case "function_definition":
            endless = ("it defines a function that starts itself again and again",) if _multiplies(node) else ()
            yield SimpleCommand(doubts=("it defines a function, which can replace any later command",), unreadable=endless)
        case "heredoc_redirect" | "herestring_redirect":
            pass
        case "file_redirect":
            yield SimpleCommand(redirects=(_redirect(node),))
        case kind if kind not in _TRANSPARENT:
            yield SimpleCommand(doubts=(f"it contains unknown syntax ({kind})",))
    if node.type == "string" and simple_shell.document(_node_text(node)) is not None:
        return
    for child in node.named_children:
        # the assignments and redirects of a command belong to it; only their children are visited
        if node.type in ("command", "declaration_command") and child.type in ("variable_assignment", "file_redirect"):
            for inner in child.named_children:
                yield from _visit(inner, depth + 1, late)
        else:
            yield from _visit(child, depth + 1, late)


def _multiplies(function: Any) -> bool:
    """Whether a function starts itself in the background, or twice in a pipeline. Processes are limited, but not for root."""
    name = function.child_by_field_name("name")
    nodes, calls = [function], []
    while nodes:
        node = nodes.pop()
        if node.type == "command" and (called := node.child_by_field_name("name")) and name and called.text == name.text:
            calls.append(node)
        nodes += node.named_children
    pipelines = [call.parent.id for call in calls if call.parent.type == "pipeline"]
    statements = [call.parent if call.parent.type in ("pipeline", "list", "redirected_statement") else call for call in calls]
    is_background = any(statement.next_sibling and statement.next_sibling.type == "&" for statement in statements)
    return is_background or len(pipelines) > len(set(pipelines))


def _words_after_redirects(node: Any) -> Iterator[Word]:
    """The words after redirects and here-documents, which the parser takes for a part of these. The shell gives them to the command."""
    for child in node.named_children:
        if child.type == "file_redirect":
            yield from map(_word, _targets(child)[0 if _closes(child) else 1 :])
        elif child.type == "heredoc_redirect":
            yield from map(_word, child.children_by_field_name("argument"))
            yield from _words_after_redirects(child)


def _last_command(node: Any) -> Any:
    """The command that the redirects after a list or a pipeline belong to; None if it is something else."""
    while node.type in ("list", "pipeline", "negated_command") and node.named_children:
        node = node.named_children[-1]
    return node if node.type == "command" else None


def _command(node: Any, late: tuple[Word, ...]) -> SimpleCommand:
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
                words.append(_word(child.named_children[0]) if child.named_children else Word(_node_text(child), known=False))
            case "comment":
                pass
            case _:
                words.append(_word(child))
    return SimpleCommand((*words, *late), tuple(assigned), tuple(redirects), doubts=(LATE_WORDS,) if late else ())


def _assignment(node: Any) -> tuple[str, Word]:
    name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
    return _node_text(name) if name else "?", _word(value) if value else Word("")


def _redirect(node: Any) -> Redirect:
    operator = next((_node_text(child) for child in node.children if not child.is_named), "?")
    if _closes(node):
        return Redirect(operator.removesuffix("-"), Word("-"))
    targets = _targets(node)
    return Redirect(operator, _word(targets[0]) if targets else Word(_node_text(node), known=False))


def _targets(node: Any) -> list[Any]:
    """The target of a redirect, and the words after it."""
    return [child for child in node.named_children if child.type != "file_descriptor"]


def _closes(node: Any) -> bool:
    return any(child.type in (">&-", "<&-") for child in node.children)


def _node_text(node: Any) -> str:
    return node.text.decode("utf-8", "surrogateescape")


def _word(node: Any) -> Word:
    """Return the word of a syntax node."""
    text = _node_text(node)
    match node.type:
        case "word" | "number":
            return _unquoted(text)
        case "raw_string":
            return Word(text[1:-1])
        case "string":
            if (content := simple_shell.document(text)) is not None:
                return Word(content)
            if all(child.type == "string_content" for child in node.named_children) and text.startswith('"'):
                return Word(_unescaped(text[1:-1], '$`"\\'))
            return Word(text, known=False)
        case "ansi_c_string":
            return _ansi_c(text[2:-1])
        case "concatenation":
            pieces = [_word(child) for child in node.named_children]
            joined = "".join(piece.text for piece in pieces)
            quoted_text = "".join(
                _node_text(child) for child in node.named_children if child.type in ("raw_string", "string", "ansi_c_string")
            )
            has_braces = text.count("{") > quoted_text.count("{")
            return Word(joined, all(piece.known for piece in pieces), any(piece.pattern for piece in pieces) or has_braces)
        case "brace_expression":
            return Word(text, pattern=True)
        case _:
            return Word(text, known=False)


def _unquoted(text: str) -> Word:
    """Read an unquoted word: remove backslashes and detect patterns."""
    plain, pattern, index = "", text.startswith("~") or ":~" in text or "=~" in text, 0
    while index < len(text):
        c = text[index]
        if c == "\\" and index + 1 < len(text):
            index += 1
            plain += "" if text[index] == "\n" else text[index]
        else:
            pattern = pattern or c in "*?[{"
            plain += c
        index += 1
    if any(c in plain for c in "$`") and not any(pair in text for pair in ("\\$", "\\`")):
        return Word(plain, known=False, pattern=pattern)
    return Word(plain, pattern=pattern)


def _unescaped(text: str, special: str) -> str:
    plain, index = "", 0
    while index < len(text):
        if text[index] == "\\" and index + 1 < len(text) and text[index + 1] in special + "\n":
            index += 1
            plain += "" if text[index] == "\n" else text[index]
        else:
            plain += text[index]
        index += 1
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
    """Read $'…'. Only simple escapes are supported; the word is not known if it contains numeric ones."""
    plain, index = "", 0
    while index < len(text):
        if text[index] == "\\":
            index += 1
            if index >= len(text) or text[index] not in _ANSI_C:
                return Word(text, known=False)
            plain += _ANSI_C[text[index]]
        else:
            plain += text[index]
        index += 1
    return Word(plain)
