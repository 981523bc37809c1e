"""Settings: defaults < config.toml < BACKBURNER_<SECTION>_<KEY> < --set, and where each value came from.

Pure: the caller reads the file. A wrong key or value is a ConfigError that names it and its line.
"""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from backburner.core.errors import BadInput, ConfigError
from backburner.core.known_agents import ACP, KNOWN_AGENTS, TYPES

Value = int | float | bool | str


class Setting(NamedTuple):
    default: Value
    description: str
    minimum: float = 0
    maximum: float = 1_000_000


SETTINGS: dict[str, Setting] = {
    "commands.max_concurrent": Setting(5, "How many commands run at the same time; the rest wait in order.", 1),
    "commands.retention_days": Setting(7.0, "How long ended tasks are kept, in days."),
    "commands.auto_cleanup": Setting(True, "Remove ended tasks after their retention by itself."),
    "commands.output_cap_mb": Setting(64, "Largest output.log in MiB; its head and tail are kept, the cut is marked.", 1),
    "commands.cancel_grace_seconds": Setting(5.0, "How long a cancelled command has between SIGTERM and SIGKILL."),
    "commands.min_free_memory_mb": Setting(0, "Start nothing while less memory than this is free, in MiB; 0 for no limit."),
    "commands.max_load": Setting(0.0, "Start nothing while the machine's load (1 minute) is above this; 0 for no limit."),
    "engine.idle_exit_seconds": Setting(60.0, "How long the engine stays when there is nothing left to do."),
    "mcp.max_wait_seconds": Setting(25.0, "How long one call over MCP may wait; clients give up on longer ones.", 1),
    "models.default": Setting("", "The model of agents that name none, such as ollama:qwen3 or openai-chat:gpt-5; empty for none."),
    "models.fallback": Setting("", "The model to go on with where the first one fails; empty for none."),
    "models.base_url": Setting(
        "", "Where models of the provider of `default` answer, such as http://127.0.0.1:8080/v1; empty for that provider's own address."
    ),
    "models.api_key_env": Setting("", "The variable that holds the key for it; empty for the usual one."),
    "models.fallback_base_url": Setting("", "Where the server of the fallback answers; empty for the usual."),
    "models.fallback_api_key_env": Setting("", "The variable that holds the key for that; empty for the usual one."),
    "models.max_concurrent": Setting(8, "How many agents ask models at the same time; the rest wait in order.", 1),
    "models.stream": Setting(True, "Have answers come in as they are made; false for a server that cannot."),
    "models.timeout_seconds": Setting(600.0, "How long one answer of a model may take.", 1),
    "agents.max_tokens": Setting(2_000_000, "How many tokens one run may use before it waits and asks.", 1, 1_000_000_000_000),
    "agents.max_tool_calls": Setting(300, "How many tools one run may call before it waits and asks.", 1),
    "agents.max_cost": Setting(
        0.0, "How many dollars one run may spend, where prices are known, before it waits and asks; 0 for no limit."
    ),
    "agents.yield_seconds": Setting(20.0, "How long an agent waits for a command before it goes on in the background."),
    "agents.idle_exit_seconds": Setting(120.0, "How long the agent process stays when no agent works."),
    "models.local": Setting("", "The model of standing tasks; empty for that of [models] default."),
    "models.local_base_url": Setting(
        "", "Where the server of that answers; empty for `base_url` where it is of the same provider as `default`, else for the usual."
    ),
    "models.remote": Setting(
        "", "The model that a standing task's agent may escalate to, and goes on with where the first fails; empty for none."
    ),
    "models.remote_base_url": Setting("", "Where the server of that answers; empty for the usual."),
    "models.remote_api_key_env": Setting("", "The variable that holds the key for that; empty for the usual one."),
    "tasks.enabled": Setting(True, "Run standing tasks when they are due."),
    "tasks.tick_interval_ms": Setting(
        30_000, "The longest sleep of the scheduler: a clock that was set is noticed after that.", 100, 86_400_000
    ),
    "tasks.max_concurrent": Setting(1, "How many agents ask a model on this machine at the same time.", 1),
    "tasks.task_timeout_ms": Setting(300_000, "How long a run of a standing task may take.", 1, 1_000_000_000_000),
    "tasks.max_active": Setting(20, "How many scheduled and event tasks may be active.", 1),
    "tasks.max_tokens_per_day": Setting(
        0, "How many tokens all standing tasks may use in a day before they pause and ask; 0 for no limit.", 0, 1e12
    ),
    "tasks.max_cost_per_day": Setting(0.0, "The same in dollars, where prices are known; 0 for no limit."),
    "tasks.discovery_enabled": Setting(True, "Let an agent look for work to propose."),
    "tasks.discovery_interval_ms": Setting(1_800_000, "How often it looks.", 1000, 1_000_000_000_000),
    "tasks.idle_threshold_ms": Setting(600_000, "How long the person must have been silent before it looks.", 0, 1_000_000_000_000),
    "notify.to": Setting("", "The channels that also get what is owed to you, such as discord, phone; see [channels.NAME]."),
    "notify.quiet_hours": Setting("", "When channels are left in peace, such as 22:00-07:00; what asks or warns comes all the same."),
    "notify.digest_minutes": Setting(0.0, "Gather what is told for this long and send it as one; 0 for each by itself."),
    "webhooks.port": Setting(8975, "The port of 127.0.0.1 on which webhooks for tasks are received.", 0, 65535),
    "webhooks.hosts": Setting("", "Names by which a tunnel or a proxy reaches that port, besides this machine's own."),
    "integrations.idle_exit_seconds": Setting(
        60.0, "How long the integrations process stays when there is nothing to deliver or to watch."
    ),
    "telemetry.otlp_endpoint": Setting("", "Where traces are sent as OTLP over HTTP, such as http://127.0.0.1:4318; empty for nowhere."),
    "telemetry.otlp_headers": Setting("", "Headers to send with them: name=value, more after a comma."),
    "telemetry.service_name": Setting("backburner", "What the sender of the traces is called."),
    "approval.yes_without_terminal": Setting(False, "Let `approve` and `--yes` work where there is no terminal."),
    "approval.proposal_expiry_hours": Setting(24.0, "How long a proposal waits for its answer."),
}
_SERVERS = ("fallback", "base_url", "api_key_env", "fallback_base_url", "fallback_api_key_env")
_OUTSIDE = ("type", "command", "url", "password_env", "mode", "auth", "asks")  # of agents with tools of their own
AGENT_KEYS = ("description", "model", *_SERVERS, "instructions", "tools", *_OUTSIDE)
CHANNEL_KEYS = ("type", "target", "people", "token", "token_env", "url", "url_env", "secret", "secret_env", "base_url")
CHANNEL_TYPES = ("discord", "webhook", "apprise")
SECTIONS = frozenset({*(name.split(".")[0] for name in SETTINGS), "channels"})
FILE_ONLY = "approval"


class Config(NamedTuple):
    """Resolved settings by their names, and `origins` to say where each came from."""

    values: dict[str, Value]
    origins: dict[str, str]
    hosts: tuple[str, ...] = ()
    rules: tuple[Any, ...] = ()  # those of the approval policy, as their reader made them
    agents: dict[str, dict[str, str]] = {}
    channels: dict[str, dict[str, str]] = {}

    def number(self, name: str) -> float:
        return float(self.values[name])

    def whole(self, name: str) -> int:
        return int(self.values[name])

    def text(self, name: str) -> str:
        return str(self.values[name])

    def flag(self, name: str) -> bool:
        return bool(self.values[name])


def resolve(
    text: str | None = None,
    path: str = "config.toml",
    environ: dict[str, str] | None = None,
    flags: dict[str, str] | None = None,
    read_rules: Callable[[object, str], tuple[Any, ...]] = lambda table, where: (),
) -> Config:
    """Lay the layers over each other; `text` is the content of the file at `path`, None where there is none.

    `read_rules` reads the `[[approval.rules]]`, which are left out without it.
    """
    values: dict[str, Value] = {name: setting.default for name, setting in SETTINGS.items()}
    origins = dict.fromkeys(SETTINGS, "default")
    file = _from_file(text, path) if text is not None else {}
    hosts, rules = _hosts(*file.pop("approval.hosts", (path, []))), ()
    if "approval.rules" in file:
        where, table = file.pop("approval.rules")
        rules = read_rules(table, where)
    agents = {
        name.removeprefix("agents."): _agent(name, *file.pop(name))
        for name in list(file)
        if isinstance(file[name][1], dict) and name.startswith("agents.")
    }
    channels = {name.removeprefix("channels."): _channel(name, *file.pop(name)) for name in list(file) if name.startswith("channels.")}
    layers = [
        file,
        _from_environ(environ or {}),
        {name: (f"--set {name}", value) for name, value in (flags or {}).items()},
    ]
    for layer in layers:
        for name, (where, value) in layer.items():
            if name not in SETTINGS:
                raise ConfigError(f"there is no setting '{name}'{_suggest(name)}", where=where)
            if not where.startswith(path) and name.split(".")[0] == FILE_ONLY:
                raise ConfigError(f"'{name}' is only read from {path}", where=where)
            values[name] = _checked(name, value, where)
            origins[name] = where
    return Config(values, origins, hosts, rules, agents, channels)


def _from_file(text: str, path: str) -> dict[str, tuple[str, object]]:
    import tomllib

    try:
        tables = tomllib.loads(text)
    except ValueError as error:
        found = re.search(r"\(at line (\d+)", str(error))
        where = f"{path}, line {found.group(1)}" if found else path
        raise ConfigError(f"not valid TOML: {error}", where=where) from None
    layer: dict[str, tuple[str, object]] = {}
    for section, table in tables.items():
        if section not in SECTIONS or not isinstance(table, dict):
            where = f"{path}, line {_line_of(text, section)}"
            raise ConfigError(f"there is no section '{section}'; there are {', '.join(sorted(SECTIONS))}", where=where)
        for key, value in table.items():
            layer[f"{section}.{key}"] = (f"{path}, line {_line_of(text, section, key)}", value)
    return layer


def _agent(name: str, where: str, table: object) -> dict[str, str]:
    """One `[agents.NAME]`: the words that say what it is."""
    if not isinstance(table, dict) or not re.fullmatch(r"agents\.[a-z0-9][a-z0-9_-]{0,40}", name):
        raise ConfigError(f"'{name}' is not a name for an agent: small letters, digits, - and _", where=where)
    for key, value in table.items():
        if key not in AGENT_KEYS:
            raise ConfigError(f"an agent has no '{key}'; it has {', '.join(AGENT_KEYS)}", where=where)
        if not isinstance(value, str):
            raise ConfigError(f"'{name}.{key}' must be a text, not {value!r}", where=where)
    kind = table.get("type", "")
    if "type" in table and kind not in TYPES:
        raise ConfigError(f"'{name}.type' must be one of {', '.join(TYPES)}, not {kind!r}; the built-in agent has none", where=where)
    if wrong := next((key for key in _OUTSIDE if key in table and not kind), None):
        raise ConfigError(f"'{name}.{wrong}' is for agents with a type: {', '.join(TYPES)}", where=where)
    if kind == ACP and "command" not in table and KNOWN_AGENTS.get(name.removeprefix("agents."), {}).get("type") != ACP:
        raise ConfigError(f"'{name}' needs a command: what starts the agent, such as \"claude-agent-acp\"", where=where)
    return table


def _channel(name: str, where: str, table: object) -> dict[str, str]:
    """One `[channels.NAME]`: a way out of the house."""
    if not isinstance(table, dict) or not re.fullmatch(r"channels\.[a-z0-9][a-z0-9_-]{0,40}", name) or name == "channels.inbox":
        raise ConfigError(f"'{name}' is not a name for a channel: small letters, digits, - and _", where=where)
    for key, value in table.items():
        if key not in CHANNEL_KEYS:
            raise ConfigError(f"a channel has no '{key}'; it has {', '.join(CHANNEL_KEYS)}", where=where)
        if not isinstance(value, str):
            raise ConfigError(f"'{name}.{key}' must be a text", where=where)
    if table.get("type") not in CHANNEL_TYPES:
        raise ConfigError(f"'{name}.type' must be one of {', '.join(CHANNEL_TYPES)}, not {table.get('type')!r}", where=where)
    return table


def _hosts(where: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(host, str) for host in value):
        raise ConfigError("'approval.hosts' must be a list of host names", where=where)
    return tuple(host.lower() for host in value)


def _line_of(text: str, section: str, key: str | None = None) -> int:
    """The line where a section or one of its keys stands; the file's first line where it cannot be told."""
    inside, header = False, re.compile(rf"\s*\[\s*[\"']?{re.escape(section)}[\"']?\s*[\].]")
    dotted = re.compile(rf"\s*[\"']?{re.escape(section)}[\"']?\s*(=|\.\s*[\"']?{re.escape(key or '')})")
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("["):
            inside = header.match(line) is not None
            if inside and key is None:
                return number
        elif (inside and key and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[=.]", line)) or (not inside and dotted.match(line)):
            return number
    return 1


def _from_environ(environ: dict[str, str]) -> dict[str, tuple[str, object]]:
    layer: dict[str, tuple[str, object]] = {}
    for variable, value in environ.items():
        words = variable.split("_", 2)
        if len(words) == 3 and words[0] == "BACKBURNER" and words[1].lower() in SECTIONS:
            layer[f"{words[1]}.{words[2]}".lower()] = (variable, value)
    return layer


def _checked(name: str, value: object, where: str) -> Value:
    setting = SETTINGS[name]
    match setting.default:
        case bool():
            return _boolean(name, value, where)
        case int() | float() as default:
            kind = type(default)
            try:
                if not isinstance(value, int | float | str) or isinstance(value, bool):
                    raise ValueError
                number = kind(value)
                if number != float(value):
                    raise ValueError
            except (ValueError, OverflowError):
                wanted = "a whole number" if kind is int else "a number"
                raise ConfigError(f"'{name}' must be {wanted}, not {value!r}", where=where) from None
            if not setting.minimum <= number <= setting.maximum:
                raise ConfigError(f"'{name}' must be from {setting.minimum:g} to {setting.maximum:,}, not {value!r}", where=where)
            return number
        case _:
            if (
                name == "notify.quiet_hours"
                and value
                and not re.fullmatch(r"([01]?\d|2[0-3]):[0-5]\d-([01]?\d|2[0-3]):[0-5]\d", str(value))
            ):
                raise ConfigError(f"'{name}' must be like 22:00-07:00, not {value!r}", where=where)
            return str(value)


def _boolean(name: str, value: object, where: str) -> bool:
    known = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in known:
        return known[value.lower()]
    raise ConfigError(f"'{name}' must be true or false, not {value!r}", where=where)


def is_local(settings: dict[str, str]) -> bool:
    """Whether an agent's model answers on this machine: such a one has few seats."""
    from urllib.parse import urlsplit

    host = urlsplit(settings.get("base_url") or "").hostname
    if host is None:
        return settings["model"].startswith("ollama:")
    return host in ("localhost", "::1") or host.startswith("127.")


def _suggest(name: str) -> str:
    import difflib

    near = difflib.get_close_matches(name, SETTINGS, 1, 0.6)
    return f"; did you mean '{near[0]}'?" if near else f"; there are {', '.join(SETTINGS)}"


def provider_of(model: str) -> str:
    """The word before the colon of a model string; the interfaces of OpenAI (`openai-chat`, `openai-responses`) are one provider."""
    kind = model.partition(":")[0]
    return "openai" if kind.startswith("openai-") else kind


def _server(model: str, *places: tuple[str, dict[str, str]]) -> dict[str, str]:
    """The address of a model and the variable with its key; empty for the provider's own.

    `places` are model strings with the words beside them. What stands beside a model of another provider does not count; an address
    comes without the key of the places behind it.
    """
    found = {"base_url": "", "api_key_env": ""}
    for owner, words in places:
        if provider_of(owner) == provider_of(model):
            found = {key: found[key] or words.get(key, "") for key in found}
            if "base_url" in words:
                break
    return found


def _words(words: dict[str, str], prefix: str = "") -> dict[str, str]:
    """The address and the key that stand in a section, those that do."""
    return {key: words[prefix + key] for key in ("base_url", "api_key_env") if prefix + key in words}


def agent_settings(config: Config, name: str, *, standing: bool = False, model: str | None = None) -> dict[str, str]:
    """What one agent is: its own words over those of `[models]`, and `model` over its own. BadInput where there is none of that name, or
    no model for it. An address and its key belong to the provider of the model beside which they stand.

    For a standing task the local model comes first, and the remote one is what it may escalate to.
    """
    own = config.agents.get(name, KNOWN_AGENTS.get(name, {}))
    if name not in config.agents and name not in KNOWN_AGENTS and name != "default":
        raise BadInput(f"There is no agent '{name}'; there are {', '.join(sorted({'default', *config.agents, *KNOWN_AGENTS}))}.")
    if kind := own.get("type"):
        ready = KNOWN_AGENTS.get(name, {})
        settings = {"model": "", "command": "opencode", **(ready if ready.get("type") == kind else {}), **own, "name": name}
        return {**settings, "model": model or settings["model"]}
    shared = {key.removeprefix("models."): str(value) for key, value in config.values.items() if key.startswith("models.") and value}
    default, second, prefix = shared.get("default", ""), shared.get("fallback", ""), "fallback_"
    first = own.get("model") or default
    places = [(first, _words(own)), (default, _words(shared))]
    if standing and shared.get("local") and not own.get("model"):
        first = shared["local"]
        places.insert(1, (first, _words(shared, "local_")))
    if standing and shared.get("remote"):
        second, prefix = shared["remote"], "remote_"
    first, fallback = model or first, own.get("fallback", second)
    there = _server(fallback, (fallback, _words(own, "fallback_")), (second, _words(shared, prefix)))
    settings = {**own, "name": name, "type": "", "model": first, **_server(first, *places)}
    settings |= {"fallback": fallback, **{f"fallback_{key}": value for key, value in there.items()}}
    if not settings["model"]:
        raise BadInput(
            "There is no model for agents yet. With Ollama (https://ollama.com): `ollama pull qwen3`, then put"
            ' `[models]` and `default = "ollama:qwen3"` into config.toml; or name another, such as "openai-chat:gpt-5".'
            " An agent that you have brings its own: `--agent opencode`; see: backburner agents"
        )
    return settings
