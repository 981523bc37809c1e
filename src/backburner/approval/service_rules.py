"""The effects of programs that report on services and on this machine: gh, docker, kubectl, journalctl, ps, ss. Pure.

Commands that only read are known by their verb; everything else changes something or could, and requires approval.
"""

import itertools
from collections.abc import Iterator

from backburner.approval.effects import OWN_PROCESS, SYSTEM_BUS, WITHOUT_PROJECT, CommandView, Effect, Finding
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
    "container": "ls list logs top port stats diff",
    "image": "ls list history",
    "volume": "ls list inspect",
    "network": "ls list inspect",
    "context": "ls list show",
    "system": "df info",
}
_DOCKER_READS = frozenset(["images", "ps", "logs", "version", "info", "stats", "top", "port", "history", "diff"])
_KUBECTL_READS = frozenset(["get", "describe", "logs", "top", "version", "api-resources", "api-versions", "explain", "cluster-info"])
_KUBECTL = {"config": "current-context get-contexts get-clusters", "rollout": "status history", "auth": "can-i whoami"}
_HELM_READS = frozenset(["list", "ls", "history", "version"])
_HELM_IS_LOCAL = frozenset(["lint", "template", "create"])
# What containers have besides their variables, which may be passwords.
_INSPECTED = r"[^{}]*(\{\{ ?(json )?\.(State|NetworkSettings|Name|Id|Image|Created|RestartCount|Mounts|Platform)[\w.]* ?\}\}[^{}]*)+"
# Options that show secrets, open a browser, or choose another server or other settings.
_REFUSED = {
    "gh": r"-w|--web|-t|--show-token|--hostname.*|--template.*",
    "docker": r"-H.*|--host.*|--config.*|-c|--context.*|--tls.*|-D|--debug|-f|--file.*|--env-file.*|--project-directory.*",
    "helm": r"--kube.*|--registry-config.*|--repository-.*",
    "kubectl": r"--kubeconfig.*|-s|--server.*|--token.*|--as.*|--username.*|--password.*|--raw.*|--certificate.*|--client.*|--insecure.*|.*template-file.*|.*-file=.*",
}
# What `gh api` shows of a repository besides the content of its files, and the options with which it only asks.
_GH_API = (
    r"/?(rate_limit|user|repos/[\w.{}-]+/[\w.{}-]+(/(pulls|issues|commits|compare|actions/(runs|jobs|workflows)|check-(runs|suites)|status(es)?"
    r"|branches|releases|tags|labels|milestones|comments)(/[\w.{}/:~^-]*)?)?)(\?[\w.=&%+:-]*)?"
)
_GH_API_FLAGS = r"--paginate|--slurp|-i|--include|--jq=.*"
_GH_API_VALUES = {
    "-q": r"(?s).*",
    "--jq": r"(?s).*",
    "--cache": r"\w+",
    "-X": "GET",
    "--method": "GET",
    "-H": r"(?i)(accept|x-github-api-version): ?[\w./+=; -]+",
}
_CREDENTIALS = {"gh": "~/.config/gh", "docker": "~/.docker", "kubectl": "~/.kube", "helm": "~/.kube"}


def service(view: CommandView) -> Iterator[Finding]:
    """`gh`, `docker`, `kubectl` and `helm`."""
    name = view.name
    if not all(word.plain for word in view.words):
        yield Finding(Effect.NETWORK_CHANGE, f"'{name}' connects to a service, with words that are only known when it runs")
        return
    words = [word.text for word in view.words]
    if name == "docker-compose":
        name, words = "docker", ["compose", *words]
    if name == "docker" and words[:1] == ["compose"]:
        words = ["compose", *_without_file_of_project(view, words[1:])]
    if name == "helm" and words[:1] and words[0] in _HELM_IS_LOCAL:
        yield Finding(Effect.PROJECT_CODE, f"helm {words[0]} uses no network")
        return
    if name == "kubectl" and _only_prints_objects(words):
        yield Finding(Effect.PROJECT_CODE, f"kubectl {words[0]} uses no network")
        return
    if name == "docker" and words[:2] == ["compose", "config"] and _shows_no_settings(view, words[2:]):
        yield Finding(Effect.PROJECT_CODE, "docker compose config uses no network")
        return
    if words in (["--version"], ["--help"], ["version", "--client"]):
        yield Finding(Effect.HARMLESS, "prints")
        return
    refused = next((word for word in words if word.startswith("-") and _is_refused(name, words, word)), None)
    if refused is None and _reads(name, words):
        yield Finding(Effect.READS_SERVICE, f"'{name} {' '.join(words[:2])}' only reads", _CREDENTIALS[name])
    else:
        yield Finding(Effect.NETWORK_CHANGE, f"'{name}' connects to a service" + (f" with '{refused}'" if refused else ""))


def _without_file_of_project(view: CommandView, words: list[str]) -> list[str]:
    """The words of `docker compose` without the options that choose a file or the name of the project, if the file is in the project."""
    while len(words) > 1 and (
        words[0] in ("-p", "--project-name") or (words[0] in ("-f", "--file") and all(map(view.context.inside, view.paths(Word(words[1])))))
    ):
        words = words[2:]
    return words


def _is_refused(name: str, words: list[str], word: str) -> bool:
    is_known = name == "docker" and word in ("-f", "--follow") and {"logs", "inspect"} & set(words[:2])  # elsewhere it names a file
    return not is_known and re.fullmatch(_REFUSED[name], word) is not None


def _reads(name: str, words: list[str]) -> bool:
    verb, second = [*words, "", ""][:2]
    if name == "gh" and verb == "browse":
        return bool({"-n", "--no-browser"} & set(words))
    if name == "gh" and verb == "api":
        return _only_gets(words[1:])
    if name == "gh":
        return second in _GH.get(verb, "").split()
    if name == "helm":
        return verb in _HELM_READS
    if name == "docker" and verb == "inspect":
        return _shows_no_variables_of_containers(words[1:])
    if name == "docker":
        return second in _DOCKER.get(verb, "").split() if verb in _DOCKER else verb in _DOCKER_READS
    if any(re.search(r"(?i)secret|-file=", word) for word in words):
        return False  # the format of the output can be the content of a file
    if verb != "logs" and any(re.match(r"-[a-zA-Z]*[fk]|--(filename|kustomize)", word) for word in words):
        return False  # the objects are named in a file, and may be secrets
    return second in _KUBECTL[verb].split() if verb in _KUBECTL else verb in _KUBECTL_READS


def _only_gets(words: list[str]) -> bool:
    """Whether `gh api` with these words only shows something of one repository. Fields would make it send a change."""
    paths, rest = [], iter(words)
    for word in rest:
        if word in _GH_API_VALUES:
            if not re.fullmatch(_GH_API_VALUES[word], next(rest, "\0")):
                return False
        elif not word.startswith("-"):
            paths.append(word)
        elif not re.fullmatch(_GH_API_FLAGS, word):
            return False
    return len(paths) == 1 and re.fullmatch(_GH_API, paths[0]) is not None and ".." not in paths[0]


def _only_prints_objects(words: list[str]) -> bool:
    """Whether kubectl only prints objects that it makes from its words and from folders of the project. With `-f` it would ask the cluster."""
    if words[:1] == ["kustomize"]:
        return not any(re.search(r"://|[?@]|^[\w-]+(\.[\w-]+)+/", word) for word in words)
    return (
        words[:1] in (["create"], ["run"])
        and "--dry-run=client" in words
        and not any(re.match(r"-[a-zA-Z]*[fk]|--(filename|kustomize)", word) for word in words)
    )


def _shows_no_settings(view: CommandView, options: list[str]) -> bool:
    """Whether `docker compose config` needs no `.env`, which is hidden in a sandbox: only names are shown, or there is none."""
    only_names = options and all(option in ("--services", "--volumes", "--profiles", "--networks", "-q", "--quiet") for option in options)
    return bool(only_names) or (not options and not any(view.context.exists(f"{folder}/.env") for folder in view.folders))


def _shows_no_variables_of_containers(words: list[str]) -> bool:
    """Whether `docker inspect` has one format, which names other things."""
    options = [word for word in words if word.startswith("-")]
    format_ = next((after for word, after in itertools.pairwise(words) if word in ("-f", "--format")), None)
    if len(options) != 1 or format_ is None:
        return False
    return re.fullmatch(_INSPECTED, format_) is not None


_PACKAGE = r"(@[a-zA-Z0-9][\w.-]*/)?[a-zA-Z0-9][\w.-]*(@[\w.^~*-]+)?"
_MAX_NAME_CHARACTERS = 64
_MAY_BE_DATA = r"[0-9a-fA-F]{16,}|[A-Za-z0-9]{32,}"  # in a name: more likely a key or encoded data than words
_PIP_FLAGS = r"--outdated|-o|--pre|--user|--local|-l|--not-required|--format=(json|columns|freeze)"
# Questions to the default registry, which only name packages.
_LOOKS_UP = {
    **dict.fromkeys(("npm", "pnpm"), rf"(view|v|info|show) {_PACKAGE}( [a-z][\w.-]*| --json)*"),
    **dict.fromkeys(("pip", "pip3"), rf"index versions( --pre)? {_PACKAGE}|list( ({_PIP_FLAGS}))+"),
    "cargo": r"search [a-zA-Z0-9][\w-]*( --limit[ =]\d{1,3})?",
}


# Where another registry may be chosen, in the home directory or in a project: it would not be asked without these.
_REGISTRY_FILES = {
    "npm": (".npmrc",),
    "pnpm": (".npmrc", ".config/pnpm/rc", "pnpm-workspace.yaml"),
    **dict.fromkeys(("pip", "pip3"), (".config/pip/pip.conf", ".pip/pip.conf", "pip.conf", ".venv/pip.conf")),
    "cargo": (".cargo/config.toml", ".cargo/config"),
}
_REGISTRY_VARIABLES = (
    *(f"PIP_{name}" for name in ("INDEX_URL", "EXTRA_INDEX_URL", "CONFIG_FILE", "FIND_LINKS", "NO_INDEX", "PROXY")),
    *(f"npm_config_{name}" for name in ("registry", "userconfig", "globalconfig", "proxy", "https_proxy")),
    *(f"NPM_CONFIG_{name}" for name in ("REGISTRY", "USERCONFIG", "GLOBALCONFIG", "PROXY", "HTTPS_PROXY")),
    *("CARGO_REGISTRY_DEFAULT", "CARGO_HOME", "XDG_CONFIG_HOME"),
)


def looks_up_packages(view: CommandView) -> bool:
    """Whether it only asks a registry about packages, which needs no file of the project. Its words are sent: names, but not what may be data."""
    words = view.words
    if (
        view.name not in _LOOKS_UP
        or len(words) > 8
        or len(view.folders) > 1
        or not all(word.plain and len(word.text) <= _MAX_NAME_CHARACTERS and not re.search(_MAY_BE_DATA, word.text) for word in words)
    ):
        return False
    return re.fullmatch(_LOOKS_UP[view.name], " ".join(word.text for word in words)) is not None and not _has_own_registry(view)


def _has_own_registry(view: CommandView) -> bool:
    context, folders = view.context, [view.context.user_home, *view.folders, *([view.context.project] if view.context.project else [])]
    return any(map(context.caller_has_variable, _REGISTRY_VARIABLES)) or any(
        context.exists(f"{folder}/{name}") for folder in folders for name in _REGISTRY_FILES[view.name]
    )


def registry(view: CommandView) -> Finding:
    return Finding(Effect.NETWORK_READ, f"'{view.name} {view.words[0].text}' asks a registry about packages", WITHOUT_PROJECT)


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


# The name of a program for `ps -C`. If ps does not understand its options, it reads them again as letters without a dash: none of these is one.
_PS_NAME = r"[\w.-]*[bdiqyz][\w.-]*"


def machine(view: CommandView) -> Iterator[Finding]:
    """`ps`, `ss`, `netstat`, `pgrep`: they list processes and ports. Without a dash, `e` makes ps show variables."""
    texts = [word.text for word in view.words]
    if view.name in ("lsof", "fuser"):
        yield Finding(Effect.PROCESSES, f"'{view.name}' shows open files of other processes, which are hidden in a sandbox")
        return
    if view.name == "ps" and any(
        not _shows_no_variables(word) and not (before == "-C" and re.fullmatch(_PS_NAME, word.text))
        for before, word in zip(("", *texts), view.words, strict=False)
    ):
        yield Finding(Effect.READS_SECRETS, "ps can show the environment of processes")
    elif view.name == "ss" and any(re.match(r"-\w*[KD]|--kill|--diag", word.text) for word in view.words):
        yield Finding(Effect.PROCESSES, "'ss' can close connections")
    yield Finding(Effect.READS_MACHINE, "lists processes or ports")


def kill(view: CommandView) -> Iterator[Finding]:
    """Ending what the same line has started is harmless. A number that is only known when it runs may be that of such a command."""
    named = [word for word in view.words if not re.fullmatch(r"-(\d+|[A-Z]+)", word.text)]
    if named and all(re.fullmatch(r"%[%+]|%\d+|\$!|\"\$!\"", word.text) for word in named):
        yield Finding(Effect.HARMLESS, "ends a command of the same line")
    else:
        may_be_own = named and all(not word.known for word in named)
        yield Finding(Effect.PROCESSES, "'kill' affects other processes or services", OWN_PROCESS if may_be_own else None)


# Verbs with which the programs of systemd only ask it. `show` and `cat` print the variables of services, which may be passwords.
_SYSTEMD = {
    "systemctl": "status|is-active|is-enabled|is-failed|list-units|list-unit-files|list-timers|list-sockets|list-jobs|list-dependencies|get-default",
    "timedatectl": "|status|show|list-timezones",
    "hostnamectl": "|status",
    "localectl": "|status|list-locales",
    "loginctl": "|list-sessions|list-users|list-seats|session-status|user-status",
}
_SYSTEMD_OPTIONS = r"-a|--all|--no-pager|-l|--full|--failed|--plain|--no-legend|-q|--quiet|--type=[\w,-]+|--state=[\w,-]+|-n\d+|--lines=\d+"
_SYSTEMD_VALUES = ("-t", "-n", "--type", "--state", "--lines")


def systemd(view: CommandView) -> Iterator[Finding]:
    """`systemctl status`, `timedatectl` and others: they ask the system over its bus. Other verbs change something."""
    texts = [word.text for word in view.words]
    options = [text for text in texts if text.startswith("-")]
    names = [text for before, text in zip(("", *texts), texts, strict=False) if not text.startswith("-") and before not in _SYSTEMD_VALUES]
    verb = names[0] if names else "list-units" if view.name == "systemctl" else ""
    if texts in (["--version"], ["--help"]):
        yield Finding(Effect.HARMLESS, "prints")
    elif (
        all(word.plain for word in view.words)
        and all(option in _SYSTEMD_VALUES or re.fullmatch(_SYSTEMD_OPTIONS, option) for option in options)
        and re.fullmatch(_SYSTEMD[view.name], verb)
    ):
        yield Finding(Effect.READS_SERVICE, f"'{view.name}' only asks the system", SYSTEM_BUS)
    else:
        yield Finding(Effect.PROCESSES, f"'{view.name}' affects other processes or services")


def _shows_no_variables(word: Word) -> bool:
    return word.plain and (
        word.text.startswith("-")
        or re.fullmatch(r"[auxfwjlgTr0-9,]+|[a-z,%]*(pid|cmd|comm|user|args|rss|cpu|mem|time|stat)[a-z,%]*", word.text) is not None
    )
