"""The effects of programs that report on services and on this machine: gh, docker, kubectl, journalctl, ps, ss. Pure.

Commands that only read are known by their verb; everything else changes something or could, and requires approval.
"""

from collections.abc import Iterator

from backburner.approval.effects import CommandView, Effect, Finding
from backburner.approval.shell_parser import Word
from backburner.core.deferred_modules import re

_GH = {
    "pr": "view list diff status checks",
    "issue": "view list status",
    "run": "view list",
    "repo": "view list",
    "release": "view list",
    "workflow": "view list",
    "label": "list",
    "gist": "view list",
    "search": "issues prs repos code commits",
    "auth": "status",
}
_DOCKER = {
    "compose": "ps logs ls images top version",
    "container": "ls list logs top port stats",
    "image": "ls list history",
    "volume": "ls list",
    "network": "ls list",
    "system": "df info",
}
_DOCKER_READS = frozenset(["images", "ps", "logs", "version", "info", "stats", "top", "port", "history"])
_KUBECTL_READS = frozenset(["get", "describe", "logs", "top", "version", "api-resources", "api-versions", "explain", "cluster-info"])
_KUBECTL_CONFIG = frozenset(["current-context", "get-contexts", "get-clusters"])
# Options that show secrets, open a browser, or choose another server or other settings.
_REFUSED = {
    "gh": r"-w|--web|-t|--show-token|--hostname.*|--template.*",
    "docker": r"-H.*|--host.*|--config.*|-c|--context.*|--tls.*|-D|--debug|-f|--file.*|--env-file.*|--project-directory.*",
    "kubectl": r"--kubeconfig.*|-s|--server.*|--token.*|--as.*|--username.*|--password.*|--raw.*|--certificate.*|--client.*|--insecure.*|.*template-file.*|.*-file=.*",
}
_CREDENTIALS = {"gh": "~/.config/gh", "docker": "~/.docker", "kubectl": "~/.kube"}


def service(view: CommandView) -> Iterator[Finding]:
    """`gh`, `docker` and `kubectl`."""
    name = view.name
    if not all(word.plain for word in view.words):
        yield Finding(Effect.NETWORK_CHANGE, f"'{name}' connects to a service, with words that are only known when it runs")
        return
    words = [word.text for word in view.words]
    if words in (["--version"], ["--help"], ["version", "--client"]):
        yield Finding(Effect.HARMLESS, "prints")
        return
    refused = next((word for word in words if word.startswith("-") and _is_refused(name, words, word)), None)
    if refused is None and _reads(name, words):
        yield Finding(Effect.READS_SERVICE, f"'{name} {' '.join(words[:2])}' only reads", _CREDENTIALS[name])
    else:
        yield Finding(Effect.NETWORK_CHANGE, f"'{name}' connects to a service" + (f" with '{refused}'" if refused else ""))


def _is_refused(name: str, words: list[str], word: str) -> bool:
    follows = name == "docker" and "logs" in words and word in ("-f", "--follow")  # follows the log; elsewhere it names a file
    return not follows and re.fullmatch(_REFUSED[name], word) is not None


def _reads(name: str, words: list[str]) -> bool:
    verb, second = [*words, "", ""][:2]
    if name == "gh":
        return second in _GH.get(verb, "").split()
    if name == "docker":
        return second in _DOCKER.get(verb, "").split() if verb in _DOCKER else verb in _DOCKER_READS
    if any(re.search(r"(?i)secret|-file=", word) for word in words):
        return False  # the format of the output can be the content of a file
    if verb != "logs" and any(re.match(r"-[a-zA-Z]*[fk]|--(filename|kustomize)", word) for word in words):
        return False  # the objects are named in a file, and may be secrets
    return verb in _KUBECTL_READS or (verb == "config" and second in _KUBECTL_CONFIG)


_JOURNAL_FLAGS = frozenset(
    [
        "-f",
        "-b",
        "-k",
        "-e",
        "-r",
        "-x",
        "-q",
        "-a",
        "--no-pager",
        "--follow",
        "--dmesg",
        "--reverse",
        "--user",
        "--disk-usage",
        "--list-boots",
    ]
)
_JOURNAL_VALUES = frozenset(
    [
        "-u",
        "-n",
        "-p",
        "-t",
        "-o",
        "-S",
        "-U",
        "-g",
        "--unit",
        "--lines",
        "--priority",
        "--since",
        "--until",
        "--identifier",
        "--output",
        "--grep",
        "--boot",
    ]
)


def journalctl(view: CommandView) -> Iterator[Finding]:
    from backburner.approval.wrappers import Options

    operands, _, unknown_option = view.split_options(Options(_JOURNAL_FLAGS, _JOURNAL_VALUES))
    if unknown_option or operands:
        yield Finding(Effect.PROCESSES, f"'{unknown_option or operands[0].text}' of journalctl is not known to be harmless")
    yield Finding(Effect.READS_MACHINE, "reads the log of the system", "/var/log/journal")


def machine(view: CommandView) -> Iterator[Finding]:
    """`ps`, `ss`, `netstat`, `pgrep`: they list processes and ports. Without a dash, `e` makes ps show variables."""
    if view.name in ("lsof", "fuser"):
        yield Finding(Effect.PROCESSES, f"'{view.name}' shows open files of other processes, which are hidden in a sandbox")
        return
    if view.name == "ps" and any(not _shows_no_variables(word) for word in view.words):
        yield Finding(Effect.READS_SECRETS, "ps can show the environment of processes")
    elif view.name == "ss" and any(re.match(r"-\w*[KD]|--kill|--diag", word.text) for word in view.words):
        yield Finding(Effect.PROCESSES, "'ss' can close connections")
    yield Finding(Effect.READS_MACHINE, "lists processes or ports")


def kill(view: CommandView) -> Iterator[Finding]:
    """Ending what the same line has started is harmless."""
    named = [word for word in view.words if not re.fullmatch(r"-(\d+|[A-Z]+)", word.text)]
    if named and all(re.fullmatch(r"%[%+]|%\d+|\$!|\"\$!\"", word.text) for word in named):
        yield Finding(Effect.HARMLESS, "ends a command of the same line")
    else:
        yield Finding(Effect.PROCESSES, "'kill' affects other processes or services")


def _shows_no_variables(word: Word) -> bool:
    return word.plain and (
        word.text.startswith("-")
        or re.fullmatch(r"[auxfwjlgTr0-9,]+|[a-z,%]*(pid|cmd|comm|user|args|rss|cpu|mem|time|stat)[a-z,%]*", word.text) is not None
    )
