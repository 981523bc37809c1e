"""Completion scripts for bash, zsh and fish: commands, options and task IDs. Options are read from the parsers."""

from backburner.core.states import RunState
from backburner.interfaces.cli.main import VERBS, verb_parser

_TAKES_IDS = ("status", "logs", "wait", "cancel", "restart", "approve", "reject", "clear")


def script(shell: str) -> str:
    match shell:
        case "bash":
            return _bash()
        case "zsh":
            return f"autoload -U +X bashcompinit && bashcompinit\n{_bash()}"
        case _:
            return _fish()


def options(verb: str) -> list[str]:
    """The long options of a command."""
    return [name for action in verb_parser(verb)._actions for name in action.option_strings if name.startswith("--")]


def _bash() -> str:
    cases = "\n".join(f"        {verb}) words='{' '.join(_words(verb))}' ;;" for verb in VERBS)
    return f"""_backburner() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} verb= words= i
    for ((i = 1; i < COMP_CWORD; i++)); do
        case ${{COMP_WORDS[i]}} in
            --) return ;;
            --home|--set) ((i++)) ;;
            -*) ;;
            *) verb=${{COMP_WORDS[i]}}; break ;;
        esac
    done
    case $before in --cwd|--home) COMPREPLY=($(compgen -d -- "$word")); return ;; esac
    case $verb in
        '') words='{" ".join(VERBS)}' ;;
{cases}
    esac
    case $verb:$word in
        {"|".join(f"{verb}:[!-]*|{verb}:" for verb in _TAKES_IDS)}) words=$(backburner list --limit 50 2>/dev/null | cut -f1) ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _backburner backburner"""


def _words(verb: str) -> list[str]:
    """What can follow a command: its options and its fixed values."""
    choices = [str(choice) for action in verb_parser(verb)._actions for choice in action.choices or ()]
    return [*options(verb), *choices, *(map(str, RunState) if verb == "list" else ())]


def _fish() -> str:
    lines = ["complete -c backburner -f"]
    for verb, (description, _) in VERBS.items():
        lines.append(f"complete -c backburner -n __fish_use_subcommand -a {verb} -d '{description.replace(chr(39), '')}'")
        lines += [f"complete -c backburner -n '__fish_seen_subcommand_from {verb}' -l {name[2:]}" for name in options(verb)]
    ids = "(backburner list --limit 50 2>/dev/null | cut -f1)"
    lines.append(f"complete -c backburner -n '__fish_seen_subcommand_from {' '.join(_TAKES_IDS)}' -a '{ids}'")
    return "\n".join(lines)
