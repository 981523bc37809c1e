"""The gate: what a command would do and the rules in, `allow | ask | deny` with reasons out. Pure.

For each part the first rule from the top that fits decides; over all parts deny beats ask and ask beats allow.
"""

import os
import re
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from backburner.approval.effects import CommandContext, Effect, Finding, injects
from backburner.approval.programs import effects_of
from backburner.approval.shell_parser import SimpleCommand, parse_commands
from backburner.core.errors import ConfigError
from backburner.core.masking import hide_secrets
from backburner.core.models import HARMLESS, Submission
from backburner.core.terminal_text import visible


class Decision(StrEnum):
    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


class Rule(NamedTuple):
    """`command` is matched word by word (`*` is any one word, a last `**` any number); without it any part fits.

    A rule that allows fits what is known for certain; one that asks or denies also fits what might be meant.
    """

    name: str
    decision: Decision
    command: tuple[str, ...] = ()
    effects: frozenset[Effect] = frozenset()
    literal: bool = False  # a grant: these very words, as a whole command and not as a part of a line

    def fits(self, part: SimpleCommand, found: Sequence[Finding]) -> bool:
        if self.literal:
            return not part.inside and tuple(word.text for word in part.words) == self.command and _certain(part)
        if self.command and not (_matches if self.decision == Decision.ALLOW else _may_match)(self.command, part):
            return False
        if self.effects:
            kinds = {one.effect for one in found}
            # A rule that allows must cover all that a part does; one that asks or denies needs a single hit.
            return kinds <= self.effects if self.decision == Decision.ALLOW else bool(kinds & self.effects)
        return bool(self.command)


class Verdict(NamedTuple):
    decision: Decision
    reasons: tuple[str, ...]
    rule: str = ""
    part: str = ""
    effects: tuple[str, ...] = ()
    trust_would_do: bool = False  # only the project's code stands in the way
    always: bool = False  # narrow enough for "from now on"


_HARMLESS = frozenset((Effect.HARMLESS, Effect.READS, Effect.CREATES, Effect.NETWORK_READ))
DEFAULT = Rule(HARMLESS, Decision.ALLOW, effects=_HARMLESS)
TRUSTED = Rule("trusted project", Decision.ALLOW, effects=_HARMLESS | {Effect.PROJECT_CODE})
OTHERWISE = Rule("default", Decision.ASK)
# Variables of whoever asks that would make an allowed program run another one, where it does not get a clean environment.
INHERITED = [
    "LD_PRELOAD",
    "LD_AUDIT",
    "BASH_ENV",
    "ENV",
    "CDPATH",
    "RIPGREP_CONFIG_PATH",
    "GIT_EXTERNAL_DIFF",
    "GIT_CONFIG",
    "GIT_CONFIG_COUNT",
    "GIT_CONFIG_PARAMETERS",
    "GIT_CONFIG_GLOBAL",
    "GIT_CONFIG_SYSTEM",
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_EXEC_PATH",
    "GIT_INDEX_FILE",
    "GIT_COMMON_DIR",
    "GIT_OBJECT_DIRECTORY",
    "GIT_TRACE",
    "GCONV_PATH",
    "LOCPATH",
    "MALLOC_TRACE",
    "LD_DEBUG_OUTPUT",
    "SHELLOPTS",
    "BASHOPTS",
    "PS4",
    "PERL5OPT",
]
_ELSEWHERE = r"^[:/~.]|\.\."  # in the value of a harmless variable: a file that a program would read, such as `TZ=:/path`
_ORDER = {Decision.ALLOW: 0, Decision.ASK: 1, Decision.DENY: 2}
_NEVER_ALWAYS = frozenset(
    ["sh", "bash", "dash", "zsh", "ksh", "fish", "python", "python3", "node", "deno", "bun", "perl", "ruby", "php", "lua", "awk", "gawk", "sed", "env", "sudo", "su", "doas", "git", "rm", "xargs", "find", "eval", "exec", "source", ".", "busybox", "toybox", "ssh", "nc", "curl", "wget"]
)  # fmt: skip


def judge(submission: Submission, world: CommandContext, rules: Sequence[Rule] = (), *, trusted: bool = False) -> Verdict:
    """What the gate says to a command. `rules` come before the built-in ones. What cannot be judged asks."""
    if not submission.spec.command.words:
        return Verdict(Decision.ASK, ("there is no command",), OTHERWISE.name)
    try:
        return _judge(submission, world, rules, trusted=trusted)
    except (ValueError, OSError, RecursionError) as error:
        return Verdict(
            Decision.ASK, (visible(f"it cannot be judged: {error}"),), OTHERWISE.name, visible(submission.spec.command.words[0][:200])
        )


def _judge(submission: Submission, world: CommandContext, rules: Sequence[Rule], *, trusted: bool) -> Verdict:
    parts = [part for part in parse_commands(submission.spec.command.words, submission.spec.command.shell) if part != SimpleCommand()]
    injected = [
        Finding(Effect.INJECTION, f"sets {name}, which may change what runs")
        for name, value in submission.spec.env.items()
        if injects(name) or re.search(_ELSEWHERE, value)
    ]
    if world.relative_path:
        injected.append(Finding(Effect.INJECTION, "PATH holds a relative folder, so a name may mean any program"))
    if submission.spec.command.shell or submission.spec.env:
        rules = [rule for rule in rules if not rule.literal]
    ordered = (*rules, DEFAULT, *([TRUSTED] if trusted else []))
    judged, verdicts = _judged(parts, world, injected, ordered)
    # What a person has to approve, or has by a rule or trust, runs in the environment of whoever asks.
    world.clean = world.clean and all(rule is DEFAULT for rule, _, _ in verdicts)
    if not world.clean:
        again, others = _judged(parts, world, [*injected, *_inherited(submission.environment)], ordered)
        # Where nothing but the built-in rule would allow it there, it would run in a clean one after all: then the first judgement stands.
        if not world.ours or any(rule is not DEFAULT for rule, _, _ in others):
            judged, verdicts = again, others
    worst = max(verdicts, key=lambda verdict: (_ORDER[verdict[0].decision], verdict[0] is not DEFAULT))
    rule, part, _ = worst
    asking = [one for one in verdicts if one[0].decision == rule.decision]
    reasons = dict.fromkeys(hide_secrets(visible(reason)) for _, _, found in asking for reason in _reasons(rule, found))
    if submission.spec.command.stdin and rule.decision == Decision.ASK:
        reasons["its input stays open: whatever is sent to it later is not asked about"] = None
    kinds = {one.effect for _, found in judged for one in found}
    return Verdict(
        decision=rule.decision,
        reasons=tuple(reasons),
        rule=rule.name,
        part=hide_secrets(visible(part.text)),
        effects=tuple(sorted(map(str, kinds))),
        trust_would_do=rule is OTHERWISE and world.trustable and all(set(_kinds(found)) <= TRUSTED.effects for _, _, found in asking),
        always=rule is OTHERWISE and _narrow(submission, judged),
    )


def _judged(
    parts: Sequence[SimpleCommand], world: CommandContext, injected: Sequence[Finding], rules: Sequence[Rule]
) -> tuple[list[tuple[SimpleCommand, Sequence[Finding]]], list[tuple[Rule, SimpleCommand, Sequence[Finding]]]]:
    """What each part would do, and the rule that decides on it."""
    judged: list[tuple[SimpleCommand, Sequence[Finding]]] = list(effects_of(list(parts), world))
    judged = judged or [(SimpleCommand(), [Finding(Effect.UNKNOWN, "runs nothing that can be seen")])]
    judged += [(SimpleCommand(), injected)] if injected else []
    return judged, [_one(part, found, rules) for part, found in judged]


def _inherited(environment: dict[str, str]) -> list[Finding]:
    """What an environment holds that would change what an allowed program does."""
    names = [name for name in INHERITED if environment.get(name)] + [name for name in environment if name.startswith("BASH_FUNC_")]
    names += [name for name in ("LD_LIBRARY_PATH",) if not all(map(os.path.isabs, environment.get(name, "/").split(":")))]
    return [Finding(Effect.INJECTION, f"inherits {name}, which changes what runs") for name in names]


def _one(part: SimpleCommand, found: Sequence[Finding], rules: Sequence[Rule]) -> tuple[Rule, SimpleCommand, Sequence[Finding]]:
    if not found:
        return DEFAULT, part, [Finding(Effect.HARMLESS, "does nothing by itself")]
    return next((rule for rule in rules if rule.fits(part, found)), OTHERWISE), part, found


def _kinds(found: Sequence[Finding]) -> list[Effect]:
    return [one.effect for one in found]


def _reasons(rule: Rule, found: Sequence[Finding]) -> list[str]:
    """For a question only what stands in the way; for an answer what it rests on."""
    told = [one.detail for one in found if one.effect not in _HARMLESS] if rule is OTHERWISE else []
    return told or [one.detail for one in found]


def _certain(part: SimpleCommand) -> bool:
    return all(word.plain for word in part.words) and not (part.redirects or part.assigned or part.doubts)


def _may_match(pattern: tuple[str, ...], part: SimpleCommand) -> bool:
    """Whether a part might be what a rule forbids, by another path or with words that are only known when it runs."""
    import fnmatch

    words = [word.text if word.plain else None for word in part.words]
    if words and words[0]:
        words[0] = words[0].rpartition("/")[2]
    if pattern[-1] == "**":
        pattern, words = pattern[:-1], words[: len(pattern) - 1]
    elif any(word is None for word in words):
        words = words[: len(pattern)]
    if len(words) < len(pattern) and not any(word is None for word in words):
        return False
    return all(word is None or fnmatch.fnmatchcase(word, wanted) for word, wanted in zip(words, pattern, strict=False))


def _matches(pattern: tuple[str, ...], part: SimpleCommand) -> bool:
    if not _certain(part) or any(".." in word.text.split("/") for word in part.words):
        return False
    import fnmatch

    words = [word.text for word in part.words]
    if pattern[-1] == "**":
        pattern, words = pattern[:-1], words[: len(pattern) - 1]
    return len(pattern) == len(words) and all(fnmatch.fnmatchcase(word, wanted) for word, wanted in zip(words, pattern, strict=True))


def _narrow(submission: Submission, judged: Sequence[tuple[SimpleCommand, Sequence[Finding]]]) -> bool:
    """Whether "always" may be offered: one plain command, known word by word, by a program that does one thing."""
    if submission.spec.command.shell or submission.spec.env or len(judged) != 1:
        return False
    part, found = judged[0]
    risky = {Effect.INTERPRETER, Effect.PRIVILEGE, Effect.INJECTION, Effect.DELETES}
    return part.name is not None and part.name not in _NEVER_ALWAYS and "/" not in part.name and not risky & set(_kinds(found))


def rules_from(table: object, where: str) -> tuple[Rule, ...]:
    """The `[[approval.rules]]` of a config file; their examples are tried when they load."""
    if not isinstance(table, list):
        raise ConfigError("'approval.rules' must be a list of tables: [[approval.rules]]", where=where)
    return tuple(_rule(entry, f"{where}, rule {number}") for number, entry in enumerate(table, 1))


def _rule(entry: object, where: str) -> Rule:
    known = {"name", "decision", "command", "effects", "match", "not_match"}
    if not isinstance(entry, dict) or set(entry) - known:
        odd = ", ".join(sorted(set(entry) - known)) if isinstance(entry, dict) else "no table"
        raise ConfigError(f"a rule has {', '.join(sorted(known))}; not: {odd}", where=where)
    try:
        decision = Decision(entry.get("decision", ""))
        effects = frozenset(Effect(effect) for effect in entry.get("effects", ()))
    except ValueError as error:
        raise ConfigError(f"{error}; decisions are {', '.join(Decision)}, effects are {', '.join(Effect)}", where=where) from None
    import shlex

    try:
        command = tuple(shlex.split(entry.get("command", "")))
        examples = [(line, wanted) for key, wanted in (("match", True), ("not_match", False)) for line in entry.get(key, ())]
        rule = Rule(str(entry.get("name") or where), decision, command, effects)
        for line, wanted in examples:
            parts = parse_commands((line,), True)
            if (bool(parts) and all(_matches(command, part) for part in parts) if command else False) != wanted:
                raise ConfigError(f"the example {line!r} {'does not match' if wanted else 'matches'} the rule", where=where)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{error}", where=where) from None
    if not command and not effects:
        raise ConfigError("a rule needs a command or effects", where=where)
    if decision == Decision.ALLOW and command and (command[0] in ("*", "**") or any(c in command[0] for c in "*?[")):
        raise ConfigError("a rule that allows must name its program", where=where)
    return rule
