"""The approval policy: takes a command and the rules, returns `sandbox`, `allow`, `ask` or `deny` with reasons. Pure.

The first matching rule applies to each simple command. For the whole command line, deny has priority over ask, and ask over allow. What
no rule decides runs in a sandbox if this machine has one in which it can do no harm.
"""

import os
from collections.abc import Sequence
from enum import StrEnum

from backburner.approval.confinement import LEAVES, SHOWS, NeedsApproval, choose
from backburner.approval.effects import CommandContext, Effect, Finding, injects
from backburner.approval.hidden_commands import commands_in
from backburner.approval.programs import effects_of
from backburner.approval.shell_parser import SimpleCommand, parse_commands
from backburner.core.deferred_modules import re
from backburner.core.errors import ConfigError
from backburner.core.light_typing import NamedTuple
from backburner.core.masking import hide_secrets
from backburner.core.models import HARMLESS, SANDBOX, Submission
from backburner.core.sandbox import Sandbox, Support
from backburner.core.terminal_text import visible


class Decision(StrEnum):
    SANDBOX = "sandbox"
    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


class Rule(NamedTuple):
    """A rule of the policy. `command` is matched word by word: `*` matches one word, a trailing `**` any number of words.

    Without `command`, the rule matches by `effects` only. An allow rule matches only words that are known for certain.
    An ask or deny rule also matches words that are known only when the command runs.
    """

    name: str
    decision: Decision
    command: tuple[str, ...] = ()
    effects: frozenset[Effect] = frozenset()
    literal: bool = False  # a permanent permission: exactly these words, as a whole command and not as part of a shell line

    def matches(self, part: SimpleCommand, findings: Sequence[Finding]) -> bool:
        if self.literal:
            return not part.inside and tuple(word.text for word in part.words) == self.command and _is_certain(part)
        if self.command and not (_matches if self.decision == Decision.ALLOW else _may_match)(self.command, part):
            return False
        if self.effects:
            kinds = {finding.effect for finding in findings}
            # An allow rule must cover all effects of a command; for an ask or deny rule, one effect is enough.
            return kinds <= self.effects if self.decision == Decision.ALLOW else bool(kinds & self.effects)
        return bool(self.command)


class Verdict(NamedTuple):
    decision: Decision
    reasons: tuple[str, ...]
    rule: str = ""
    part: str = ""
    effects: tuple[str, ...] = ()
    trust_would_do: bool = False  # it would be allowed if the project were trusted
    always: bool = False  # the user may allow this command permanently
    sandbox: Sandbox | None = None


_HARMLESS_EFFECTS = frozenset((Effect.HARMLESS, Effect.READS, Effect.CREATES, Effect.NETWORK_READ))
HARMLESS_RULE = Rule(HARMLESS, Decision.ALLOW, effects=_HARMLESS_EFFECTS)
TRUSTED_RULE = Rule("trusted project", Decision.ALLOW, effects=_HARMLESS_EFFECTS | {Effect.PROJECT_CODE})
DEFAULT_RULE = Rule("default", Decision.ASK)
SANDBOX_RULE = Rule(SANDBOX, Decision.SANDBOX)
# Inherited variables that can make an allowed program run another one, if it does not get a clean environment.
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
_PATH_VALUE = r"^[:/~.]|\.\."  # a harmless variable whose value names a file that a program would read, such as `TZ=:/path`
_OPEN_INPUT = "its input stays open: input that is sent later is not checked"
_PRIORITY = {Decision.SANDBOX: 0, Decision.ALLOW: 0, Decision.ASK: 1, Decision.DENY: 2}
_NEVER_PERMANENT = frozenset(
    ["sh", "bash", "dash", "zsh", "ksh", "fish", "python", "python3", "node", "deno", "bun", "perl", "ruby", "php", "lua", "awk", "gawk", "sed", "env", "sudo", "su", "doas", "git", "rm", "xargs", "find", "eval", "exec", "source", ".", "busybox", "toybox", "ssh", "nc", "curl", "wget"]
)  # fmt: skip


def judge(submission: Submission, context: CommandContext, rules: Sequence[Rule] = (), *, trusted: bool = False) -> Verdict:
    """Decide whether a command may run. `rules` have priority over the built-in rules. A command that cannot be checked requires approval."""
    if not submission.spec.command.words:
        return Verdict(Decision.ASK, ("there is no command",), DEFAULT_RULE.name)
    try:
        return _judge(submission, context, rules, trusted=trusted)
    except (ValueError, OSError, RecursionError) as error:
        return Verdict(
            Decision.ASK,
            (visible(f"the command cannot be checked: {error}"),),
            DEFAULT_RULE.name,
            visible(submission.spec.command.words[0][:200]),
        )


class SandboxSettings(NamedTuple):
    """What the machine and the settings offer to commands that nobody approved."""

    support: Support
    user_home: str
    connect: tuple[int, ...] = ()
    read: tuple[str, ...] = ()


def judge_for_sandbox(
    submission: Submission, context: CommandContext, rules: Sequence[Rule], settings: SandboxSettings, *, trusted: bool = False
) -> Verdict:
    """Like `judge`, for a command that Backburner starts: what no rule decides runs in a sandbox, or requires approval.

    Without a sandbox, everything about a command matters, so a rule that allows it is applied to what `judge` finds.
    """
    if any(rule.decision == Decision.ALLOW for rule in rules):
        verdict = judge(submission, context.unconfined(), rules)
        if verdict.decision == Decision.ALLOW and verdict.rule != HARMLESS_RULE.name:
            return verdict
        rules = [rule for rule in rules if rule.decision != Decision.ALLOW]
    if not submission.spec.command.words:
        return Verdict(Decision.ASK, ("there is no command",), DEFAULT_RULE.name)
    try:
        return _judge_for_sandbox(submission, context, rules, settings, trusted=trusted)
    except (ValueError, OSError, RecursionError) as error:
        reason = visible(f"the command cannot be checked: {error}")
        return Verdict(Decision.ASK, (reason,), DEFAULT_RULE.name, visible(submission.spec.command.words[0][:200]))


def _judge_for_sandbox(
    submission: Submission, context: CommandContext, rules: Sequence[Rule], settings: SandboxSettings, *, trusted: bool
) -> Verdict:
    parts = [part for part in parse_commands(submission.spec.command.words, submission.spec.command.shell) if part != SimpleCommand()]
    judged, verdicts = _apply_rules(parts, context, _injected_variables(submission, context), rules)
    hidden = _leaving(commands_in(parts, submission.spec.command.words[0] if submission.spec.command.shell else None), context)
    judged += hidden
    verdicts += [_decide(part, findings, rules) for part, findings in hidden]
    kinds = tuple(sorted({str(finding.effect) for _, found in judged for finding in found}))
    if decided := [verdict for verdict in verdicts if verdict[0] not in (DEFAULT_RULE, HARMLESS_RULE)]:
        rule, part, findings = max(decided, key=lambda verdict: _PRIORITY[verdict[0].decision])
        reasons = tuple(dict.fromkeys(hide_secrets(visible(finding.detail)) for finding in findings))
        reasons += (_OPEN_INPUT,) if submission.spec.command.stdin and rule.decision == Decision.ASK else ()
        return Verdict(rule.decision, reasons, rule.name, hide_secrets(visible(part.text)), kinds)
    every = [finding for _, found in judged for finding in found]
    try:
        reaches_more = trusted or any(finding.effect in SHOWS for finding in every)
        if (
            submission.spec.command.stdin
            and reaches_more
            and any(finding.effect not in (Effect.HARMLESS, Effect.READS) for finding in every)
        ):
            raise NeedsApproval(*(finding.detail for finding in every))
        if unreadable := [finding.detail for finding in every if finding.effect is Effect.UNREADABLE]:
            raise NeedsApproval(*unreadable)
        sandbox = choose(
            every,
            settings.support,
            project=context.project,
            trusted=trusted,
            user_home=settings.user_home,
            listens=submission.spec.command.ready_when is not None,
            background=_continues_in_background(submission),
            connect=settings.connect,
            read=settings.read,
        )
    except NeedsApproval as error:
        reasons = tuple(dict.fromkeys(hide_secrets(visible(reason)) for reason in error.args))
        if submission.spec.command.stdin:
            reasons += (_OPEN_INPUT,)
        deciding = next((part for part, found in judged if any(finding.detail in error.args for finding in found)), judged[0][0])
        return Verdict(
            Decision.ASK,
            reasons,
            DEFAULT_RULE.name,
            hide_secrets(visible(deciding.text)),
            kinds,
            trust_would_do=not trusted and context.trustable and _is_sandboxed(every, settings, context, submission),
            always=_can_be_permanent(submission, judged),
        )
    reasons = tuple(dict.fromkeys(hide_secrets(visible(finding.detail)) for finding in every)) or ("has no effect",)
    return Verdict(
        Decision.SANDBOX, reasons, SANDBOX_RULE.name, hide_secrets(visible(parts[0].text if parts else "")), kinds, sandbox=sandbox
    )


def _leaving(parts: Sequence[SimpleCommand], context: CommandContext) -> list[tuple[SimpleCommand, Sequence[Finding]]]:
    """Return the commands in text that other programs run, with those of their effects that leave the sandbox."""
    judged = effects_of(list(parts), context) if parts else []
    leaving = [(part, [finding for finding in found if finding.effect in LEAVES | {Effect.UNREADABLE}]) for part, found in judged]
    return [(part, findings) for part, findings in leaving if findings]


def _is_sandboxed(findings: Sequence[Finding], settings: SandboxSettings, context: CommandContext, submission: Submission) -> bool:
    """Whether it would run in a sandbox if the project were trusted."""
    if any(finding.effect is Effect.UNREADABLE for finding in findings):
        return False
    listens = submission.spec.command.ready_when is not None
    try:
        choose(
            findings,
            settings.support,
            project=context.project,
            trusted=True,
            user_home=settings.user_home,
            listens=listens,
            background=_continues_in_background(submission),
            connect=settings.connect,
        )
    except NeedsApproval:
        return False
    return True


def _continues_in_background(submission: Submission) -> bool:
    """Whether a shell line seems to start a command in the background (`server & curl localhost`). It may be wrong about quoted text."""
    command = submission.spec.command
    return command.shell and re.search(r"(?<![&|>\\])&\s*(?![&>\s])", command.words[0]) is not None


def _judge(submission: Submission, context: CommandContext, rules: Sequence[Rule], *, trusted: bool) -> Verdict:
    parts = [part for part in parse_commands(submission.spec.command.words, submission.spec.command.shell) if part != SimpleCommand()]
    injected = _injected_variables(submission, context)
    if submission.spec.command.shell or submission.spec.env:
        rules = [rule for rule in rules if not rule.literal]
    ordered = (*rules, HARMLESS_RULE, *([TRUSTED_RULE] if trusted else []))
    judged, verdicts = _apply_rules(parts, context, injected, ordered)
    # Commands that need approval, or are allowed by a rule or by trust, run in the environment of the caller.
    context.clean = context.clean and all(rule is HARMLESS_RULE for rule, _, _ in verdicts)
    if not context.clean:
        judged_with_environment, verdicts_with_environment = _apply_rules(
            parts, context, [*injected, *_inherited_variables(submission.environment)], ordered
        )
        # If only the built-in rule allows the command there as well, it runs in a clean environment: then the first result is valid.
        if not context.ours or any(rule is not HARMLESS_RULE for rule, _, _ in verdicts_with_environment):
            judged, verdicts = judged_with_environment, verdicts_with_environment
    rule, part, _ = max(verdicts, key=lambda verdict: (_PRIORITY[verdict[0].decision], verdict[0] is not HARMLESS_RULE))
    deciding = [verdict for verdict in verdicts if verdict[0].decision == rule.decision]
    reasons = dict.fromkeys(hide_secrets(visible(reason)) for _, _, findings in deciding for reason in _reasons(rule, findings))
    if submission.spec.command.stdin and rule.decision == Decision.ASK:
        reasons[_OPEN_INPUT] = None
    kinds = {finding.effect for _, findings in judged for finding in findings}
    return Verdict(
        decision=rule.decision,
        reasons=tuple(reasons),
        rule=rule.name,
        part=hide_secrets(visible(part.text)),
        effects=tuple(sorted(map(str, kinds))),
        trust_would_do=rule is DEFAULT_RULE
        and context.trustable
        and all(set(_effects_in(findings)) <= TRUSTED_RULE.effects for _, _, findings in deciding),
        always=rule is DEFAULT_RULE and _can_be_permanent(submission, judged),
    )


def _apply_rules(
    parts: Sequence[SimpleCommand], context: CommandContext, injected: Sequence[Finding], rules: Sequence[Rule]
) -> tuple[list[tuple[SimpleCommand, Sequence[Finding]]], list[tuple[Rule, SimpleCommand, Sequence[Finding]]]]:
    """Return the effects of each simple command, and the rule that decides about it."""
    judged: list[tuple[SimpleCommand, Sequence[Finding]]] = list(effects_of(list(parts), context))
    judged = judged or [(SimpleCommand(), [Finding(Effect.UNKNOWN, "contains no command")])]
    judged += [(SimpleCommand(), injected)] if injected else []
    return judged, [_decide(part, findings, rules) for part, findings in judged]


def _injected_variables(submission: Submission, context: CommandContext) -> list[Finding]:
    """Return a finding for each variable given with the task that may change what runs."""
    injected = [
        Finding(Effect.INJECTION, f"sets {name}, which may change what runs")
        for name, value in submission.spec.env.items()
        if injects(name) or re.search(_PATH_VALUE, value)
    ]
    if context.relative_path:
        injected.append(Finding(Effect.INJECTION, "PATH contains a relative directory, so a name can mean any program"))
    return injected


def _inherited_variables(environment: dict[str, str]) -> list[Finding]:
    """Return a finding for each inherited variable that changes what an allowed program does."""
    names = [name for name in INHERITED if environment.get(name)] + [name for name in environment if name.startswith("BASH_FUNC_")]
    names += [name for name in ("LD_LIBRARY_PATH",) if not all(map(os.path.isabs, environment.get(name, "/").split(":")))]
    return [Finding(Effect.INJECTION, f"inherits {name}, which changes what runs") for name in names]


def _decide(part: SimpleCommand, findings: Sequence[Finding], rules: Sequence[Rule]) -> tuple[Rule, SimpleCommand, Sequence[Finding]]:
    if not findings:
        return HARMLESS_RULE, part, [Finding(Effect.HARMLESS, "has no effect")]
    return next((rule for rule in rules if rule.matches(part, findings)), DEFAULT_RULE), part, findings


def _effects_in(findings: Sequence[Finding]) -> list[Effect]:
    return [finding.effect for finding in findings]


def _reasons(rule: Rule, findings: Sequence[Finding]) -> list[str]:
    """Return the reasons to show: for the default rule only what needs approval, otherwise all effects."""
    if rule is DEFAULT_RULE and (harmful := [finding.detail for finding in findings if finding.effect not in _HARMLESS_EFFECTS]):
        return harmful
    return [finding.detail for finding in findings]


def _is_certain(part: SimpleCommand) -> bool:
    return all(word.plain for word in part.words) and not (part.redirects or part.assigned or part.doubts or part.unreadable)


def _may_match(pattern: tuple[str, ...], part: SimpleCommand) -> bool:
    """Whether a command might match a pattern: by another path of the program, or by words that are known only when it runs."""
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
    if not _is_certain(part) or any(".." in word.text.split("/") for word in part.words):
        return False
    import fnmatch

    words = [word.text for word in part.words]
    if pattern[-1] == "**":
        pattern, words = pattern[:-1], words[: len(pattern) - 1]
    return len(pattern) == len(words) and all(fnmatch.fnmatchcase(word, wanted) for word, wanted in zip(words, pattern, strict=True))


def _can_be_permanent(submission: Submission, judged: Sequence[tuple[SimpleCommand, Sequence[Finding]]]) -> bool:
    """Whether "always" may be offered: a single simple command without shell syntax, of a program that is not excluded."""
    if submission.spec.command.shell or submission.spec.env or len(judged) != 1:
        return False
    part, findings = judged[0]
    risky = {Effect.INTERPRETER, Effect.PRIVILEGE, Effect.INJECTION, Effect.DELETES}
    return part.name is not None and part.name not in _NEVER_PERMANENT and "/" not in part.name and not risky & set(_effects_in(findings))


def rules_from(table: object, where: str) -> tuple[Rule, ...]:
    """Read `[[approval.rules]]` of a config file. Raise ConfigError if a rule is invalid or one of its examples fails."""
    if not isinstance(table, list):
        raise ConfigError("'approval.rules' must be a list of tables: [[approval.rules]]", where=where)
    return tuple(_rule(entry, f"{where}, rule {number}") for number, entry in enumerate(table, 1))


def _rule(entry: object, where: str) -> Rule:
    known = {"name", "decision", "command", "effects", "match", "not_match"}
    if not isinstance(entry, dict):
        raise ConfigError(f"a rule must be a table, not {entry!r}", where=where)
    if unknown := set(entry) - known:
        raise ConfigError(f"unknown rule key: {', '.join(sorted(unknown))}; valid keys: {', '.join(sorted(known))}", where=where)
    try:
        decision = Decision(entry.get("decision", ""))
        effects = frozenset(Effect(effect) for effect in entry.get("effects", ()))
    except ValueError as error:
        raise ConfigError(f"{error}; valid decisions: {', '.join(Decision)}; valid effects: {', '.join(Effect)}", where=where) from None
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
        raise ConfigError("an allow rule must name its program without wildcards", where=where)
    return rule
