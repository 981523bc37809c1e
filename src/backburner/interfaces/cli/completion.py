"""Completion scripts for bash, zsh and fish: commands, options and their values, task IDs and labels, and commands to run.

Options are read from the parsers. Labels and batches with characters that a shell could expand are not offered.
"""

import argparse

from backburner.core.states import RunState
from backburner.interfaces.cli.arguments import TAKES_COMMAND, VERBS, verb_parser

_REFERENCES = """backburner list --json --limit 50 2>/dev/null | grep -oE '"(task_id|name)": "[A-Za-z0-9._-]+"' | cut -d'"' -f4"""
_BATCHES = "backburner batch 2>/dev/null | cut -d' ' -f1 | grep -E '^[A-Za-z0-9._-]+$'"


def script(shell: str) -> str:
    match shell:
        case "bash":
            return _bash()
        case "zsh":
            return f"autoload -U +X bashcompinit && bashcompinit\n{_bash()}"
        case _:
            return _fish()


def _bash() -> str:
    fixed = "\n".join(f"        {verb}) words='{' '.join(_words(verb))}' ;;" for verb in VERBS)
    return f"""_backburner() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} verb= words= i
    for ((i = 1; i < COMP_CWORD; i++)); do
        case $verb:${{COMP_WORDS[i]}} in
            :--home|:--set) ((i++)) ;;
            :-*) ;;
            :*) verb=${{COMP_WORDS[i]}} ;;
            {"|".join(f"{verb}:--" for verb in TAKES_COMMAND)}) _backburner_command $((i + 1)); return ;;
        esac
    done
    case $verb:$before in
{_bash_values()}
        run:run|check:check) case $word in [!-]*) _backburner_command $COMP_CWORD; return ;; esac ;;
    esac
    case $verb in
        '') words='{" ".join(VERBS)}' ;;
{fixed}
    esac
    case $verb:$word in
        *:-*) ;;
        {"|".join(f"{verb}:*" for verb in VERBS if _takes_ids(verb))}) words="$words $({_REFERENCES})" ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
_backburner_command() {{
    if type _command_offset >/dev/null 2>&1; then
        _command_offset "$1"
    elif [ "$COMP_CWORD" = "$1" ]; then
        COMPREPLY=($(compgen -c -- "$word"))
    fi
}}
complete -o default -F _backburner backburner"""


def _bash_values() -> str:
    """The cases for the value of an option; nothing is offered for a value that can be anything."""
    places: dict[str, list[str]] = {}
    for verb in VERBS:
        for action in _with_value(verb):
            for name in action.option_strings:
                places.setdefault(_bash_value(action), []).append(f"{verb}:{name}")
    return "\n".join(f"        {'|'.join(where)}) {reply}; return ;;" for reply, where in places.items())


def _bash_value(action: argparse.Action) -> str:
    if action.choices:
        return f"COMPREPLY=($(compgen -W '{' '.join(map(str, action.choices))}' -- \"$word\"))"
    match action.metavar:
        case "DIR":
            return 'COMPREPLY=($(compgen -d -- "$word"))'
        case "ID":
            return f'COMPREPLY=($(compgen -W "$({_REFERENCES})" -- "$word"))'
        case "B":
            return f'COMPREPLY=($(compgen -W "$({_BATCHES})" -- "$word"))'
        case _:
            return "COMPREPLY=()"


def _fish() -> str:
    lines = ["complete -c backburner -f"]
    for verb, (description, _) in VERBS.items():
        seen = f"complete -c backburner -n '__fish_seen_subcommand_from {verb}"
        lines.append(f"complete -c backburner -n __fish_use_subcommand -a {verb} -d '{description.replace(chr(39), '')}'")
        valued = {name: action for action in _with_value(verb) for name in action.option_strings}
        lines += [f"{seen}' -l {name[2:]}{_fish_value(valued[name]) if name in valued else ''}" for name in options(verb)]
        if _takes_ids(verb):
            lines.append(f"{seen}' -a '({_quoted(_REFERENCES)})'")
        if verb in TAKES_COMMAND:
            lines.append(f"{seen}; and contains -- -- (commandline -opc)' -F -a '(__fish_complete_command)'")
    return "\n".join(lines)


def _fish_value(action: argparse.Action) -> str:
    if action.choices:
        return f" -x -a '{' '.join(map(str, action.choices))}'"
    match action.metavar:
        case "DIR":
            return " -x -a '(__fish_complete_directories)'"
        case "ID":
            return f" -x -a '({_quoted(_REFERENCES)})'"
        case "B":
            return f" -x -a '({_quoted(_BATCHES)})'"
        case _:
            return " -x" if action.nargs is None else ""


def _quoted(line: str) -> str:
    """A command line inside single quotes of fish."""
    return line.replace("\\", "\\\\").replace("'", "\\'")


def options(verb: str) -> list[str]:
    """The long options of a command."""
    return [name for action in verb_parser(verb)._actions for name in action.option_strings if name.startswith("--")]


def _with_value(verb: str) -> list[argparse.Action]:
    """The options of a command that need a value."""
    return [action for action in verb_parser(verb)._actions if action.option_strings and action.nargs is None]


def _takes_ids(verb: str) -> bool:
    return any(action.dest == "id" for action in verb_parser(verb)._actions)


def _words(verb: str) -> list[str]:
    """What can follow a command: its options, and the fixed values of its arguments."""
    arguments = [action for action in verb_parser(verb)._actions if not action.option_strings]
    choices = [str(choice) for action in arguments for choice in action.choices or ()]
    return [*options(verb), *choices, *(map(str, RunState) if verb == "list" else ())]
