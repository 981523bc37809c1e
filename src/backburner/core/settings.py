"""Resolves settings and records where each value came from: defaults < config.toml < BACKBURNER_<SECTION>_<KEY> < --set.

No I/O: the caller reads the file. An unknown key or invalid value raises ConfigError, which names the key and its line.
"""

from collections.abc import Callable

from backburner.core.deferred_modules import re
from backburner.core.errors import BadInput, ConfigError
from backburner.core.known_agents import ACP, KNOWN_AGENTS, TYPES
from backburner.core.light_typing import Any, NamedTuple
from backburner.core.queues import MAX_LABELS, is_label

Value = int | float | bool | str | tuple[str, ...]


class Setting(NamedTuple):
    default: Value
    description: str
    minimum: float = 0
    maximum: float = 1_000_000


SETTINGS: dict[str, Setting] = {
    "commands.max_concurrent": Setting(5, "Maximum number of commands that run at the same time; others wait in the queue.", 1),
    "commands.retention_days": Setting(7.0, "Number of days to keep finished tasks."),
    "commands.auto_cleanup": Setting(True, "Delete finished tasks automatically after `retention_days`."),
    "commands.output_cap_mb": Setting(64, "Maximum size of output.log in MiB; the start and the end are kept, and the gap is marked.", 1),
    "commands.home_limit_gb": Setting(
        10.0, "Maximum size of the home in GiB; the output and work files of the tasks that ended first are removed. 0 for no limit."
    ),
    "commands.cancel_grace_seconds": Setting(5.0, "Seconds between SIGTERM and SIGKILL when a command is cancelled."),
    "commands.min_free_memory_mb": Setting(0, "Start no commands while less than this much memory is free, in MiB; 0 for no limit."),
    "commands.max_load": Setting(0.0, "Start no commands while the 1-minute load average is above this; 0 for no limit."),
    "engine.idle_exit_seconds": Setting(60.0, "Seconds of inactivity after which the engine exits."),
    "mcp.max_wait_seconds": Setting(25.0, "Maximum seconds that one MCP tool call may wait; clients time out on longer calls.", 1),
    "models.default": Setting("", "Default model for agents without their own, such as ollama:qwen3 or openai-chat:gpt-5; empty for none."),
    "models.fallback": Setting("", "Model to use when the default model fails; empty for none."),
    "models.base_url": Setting(
        "", "API address for models of the same provider as `default`, such as http://127.0.0.1:8080/v1; empty for the provider's own."
    ),
    "models.api_key_env": Setting("", "Environment variable with the API key for `base_url`; empty for the provider's usual variable."),
    "models.fallback_base_url": Setting("", "API address for the fallback model; empty for the provider's own."),
    "models.fallback_api_key_env": Setting(
        "", "Environment variable with the API key for the fallback; empty for the provider's usual variable."
    ),
    "models.max_concurrent": Setting(
        8, "Maximum number of agents with a model on another machine that run at the same time; others wait in the queue.", 1
    ),
    "models.stream": Setting(True, "Stream model responses; set to false if the server does not support streaming."),
    "models.timeout_seconds": Setting(600.0, "Maximum seconds for one model response.", 1),
    "agents.max_tokens": Setting(
        2_000_000, "Maximum number of tokens that one run may use before it needs approval to continue.", 1, 1_000_000_000_000
    ),
    "agents.max_tool_calls": Setting(300, "Maximum number of tool calls that one run may make before it needs approval to continue.", 1),
    "agents.max_cost": Setting(
        0.0, "Maximum cost of one run in dollars, if prices are known, before it needs approval to continue; 0 for no limit."
    ),
    "agents.yield_seconds": Setting(20.0, "Seconds that an agent waits for a command before the command continues in the background."),
    "agents.idle_exit_seconds": Setting(120.0, "Seconds of inactivity after which the agent process exits."),
    "models.local": Setting("", "Model for recurring tasks; empty for `default`."),
    "models.local_base_url": Setting(
        "", "API address for `local`; if empty, `base_url` is used for a model of the same provider as `default`, else the provider's own."
    ),
    "models.remote": Setting(
        "", "Model that the agent of a recurring task may escalate to, also used if its first model fails; empty for none."
    ),
    "models.remote_base_url": Setting("", "API address for `remote`; empty for the provider's own."),
    "models.remote_api_key_env": Setting(
        "", "Environment variable with the API key for `remote`; empty for the provider's usual variable."
    ),
    "tasks.enabled": Setting(True, "Run recurring tasks when they are due."),
    "tasks.tick_interval_ms": Setting(
        30_000, "Maximum time between two checks of the schedule, in ms; limits the delay after the clock was changed.", 100, 86_400_000
    ),
    "tasks.max_concurrent": Setting(1, "Maximum number of agents that use a model on this machine at the same time.", 1),
    "tasks.task_timeout_ms": Setting(300_000, "Maximum duration of one run of a recurring task, in ms.", 1, 1_000_000_000_000),
    "tasks.max_active": Setting(20, "Maximum number of active scheduled and event tasks.", 1),
    "tasks.max_tokens_per_day": Setting(
        0, "Maximum number of tokens that all recurring tasks together may use per day before they are paused; 0 for no limit.", 0, 1e12
    ),
    "tasks.max_cost_per_day": Setting(0.0, "Maximum cost of all recurring tasks per day in dollars, if prices are known; 0 for no limit."),
    "tasks.discovery_enabled": Setting(True, "Let an agent suggest tasks while the user is idle."),
    "tasks.discovery_interval_ms": Setting(1_800_000, "Minimum time between two suggestions, in ms.", 1000, 1_000_000_000_000),
    "tasks.idle_threshold_ms": Setting(600_000, "Time without user activity before an agent suggests tasks, in ms.", 0, 1_000_000_000_000),
    "notify.to": Setting("", "Channels that also receive your notices, separated by commas, such as discord, phone; see [channels.NAME]."),
    "notify.quiet_hours": Setting("", "Hours in which channels get only questions and warnings, such as 22:00-07:00; empty for none."),
    "notify.digest_minutes": Setting(
        0.0, "Collect notices for this many minutes and send them as one message; 0 to send each one separately."
    ),
    "webhooks.port": Setting(8975, "Port on 127.0.0.1 that receives webhooks for tasks.", 0, 65535),
    "webhooks.hosts": Setting("", "Additional host names accepted on the webhook port, for a tunnel or a proxy; separated by commas."),
    "integrations.idle_exit_seconds": Setting(60.0, "Seconds of inactivity after which the integrations process exits."),
    "telemetry.otlp_endpoint": Setting(
        "", "Address to export traces to, as OTLP over HTTP, such as http://127.0.0.1:4318; empty for no export."
    ),
    "telemetry.otlp_headers": Setting("", "HTTP headers to send with exported traces: name=value, separated by commas."),
    "telemetry.service_name": Setting("backburner", "Service name in exported traces."),
    "approval.yes_without_terminal": Setting(False, "Allow `approve` and `--yes` without a terminal."),
    "approval.proposal_expiry_hours": Setting(24.0, "Hours after which an unanswered proposal expires."),
    "approval.web": Setting("passkey", "How to approve in the web interface: passkey, or off."),
    "web.port": Setting(0, "Port of the web interface on 127.0.0.1; 0 for a fixed port of this home.", 0, 65535),
    "web.hosts": Setting("", "Additional host names accepted by the web interface, for a tunnel or a proxy; separated by commas."),
    "web.origin": Setting("", "HTTPS address at which a proxy makes the web interface available, such as https://laptop.example.net."),
    "store.url": Setting(
        "", "Address of a ledger on Postgres, such as postgresql://backburner@db.example.net/backburner; empty for a file in the home."
    ),
    "worker.lanes": Setting((), 'Labels of the lanes whose tasks of other hosts run on this host, such as ["gpu"].'),
    "worker.capacity": Setting(5, "Maximum number of commands of these lanes that run on this host at the same time.", 1),
    "worker.integrations": Setting(True, "Whether this host may run the integrations: channels, and events from outside."),
    "worker.pass_env": Setting(("LANG", "TZ"), "Variables of the caller that its commands also get on other hosts."),
    "worker.lease_seconds": Setting(
        8.0, "Seconds of silence after which a host is suspected; must be the same on all hosts of a ledger.", 4, 3600
    ),
    "worker.lost_after_minutes": Setting(10.0, "Minutes of silence after which the runs of a host count as lost.", 1, 1_000_000),
    "sandbox.level": Setting(
        "auto", "The best sandbox to use: auto, full, partial or none. Without a sandbox, every command needs approval."
    ),
    "sandbox.read": Setting((), 'Further files and folders that sandboxed commands can read, such as ["~/data", "/srv/fixtures"].'),
    "sandbox.pass_env": Setting((), 'Variables of the caller that sandboxed commands get, such as ["DATABASE_URL"].'),
    "sandbox.connect": Setting((), "TCP ports that sandboxed commands in trusted projects can connect to, such as [5432]."),
}
_SERVER_KEYS = ("fallback", "base_url", "api_key_env", "fallback_base_url", "fallback_api_key_env")
_EXTERNAL_AGENT_KEYS = ("type", "command", "url", "password_env", "mode", "auth", "asks")
AGENT_KEYS = ("description", "model", *_SERVER_KEYS, "instructions", "tools", *_EXTERNAL_AGENT_KEYS)
CHANNEL_KEYS = ("type", "target", "people", "token", "token_env", "url", "url_env", "secret", "secret_env", "base_url")
CHANNEL_TYPES = ("discord", "webhook", "apprise")
LANE_KEYS = ("max_concurrent",)
SECTIONS = frozenset({*(name.split(".")[0] for name in SETTINGS), "channels", "lanes"})
FILE_ONLY = ("approval", "sandbox", "store")


class Config(NamedTuple):
    """Resolved settings by name, with `origins`: where each value came from."""

    values: dict[str, Value]
    origins: dict[str, str]
    hosts: tuple[str, ...] = ()
    rules: tuple[Any, ...] = ()  # rules of the approval policy, as `read_rules` returned them
    agents: dict[str, dict[str, str]] = {}
    channels: dict[str, dict[str, str]] = {}
    lanes: dict[str, int] = {}  # lanes on this machine, and how many commands may run in each
    projects: dict[str, str] = {}  # folders of this host by the names of their projects
    worker_env: dict[str, str] = {}  # for commands that were submitted on another host

    def number(self, name: str) -> float:
        value = self.values[name]
        assert not isinstance(value, tuple)
        return float(value)

    def whole(self, name: str) -> int:
        value = self.values[name]
        assert not isinstance(value, tuple)
        return int(value)

    def listed(self, name: str) -> tuple[str, ...]:
        value = self.values[name]
        assert isinstance(value, tuple)
        return value

    def text(self, name: str) -> str:
        return str(self.values[name])

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the lanes that this host serves: those of [worker], and one for each of its projects."""
        return tuple(dict.fromkeys((*self.listed("worker.lanes"), *(f"repo:{name}" for name in self.projects))))

    def flag(self, name: str) -> bool:
        return bool(self.values[name])


def resolve(
    text: str | None = None,
    path: str = "config.toml",
    environ: dict[str, str] | None = None,
    flags: dict[str, str] | None = None,
    read_rules: Callable[[object, str], tuple[Any, ...]] = lambda table, where: (),
) -> Config:
    """Merge all layers of settings. `text` is the content of the file at `path`, or None if there is no file.

    `read_rules` parses `[[approval.rules]]`; without it these rules are ignored.
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
    lanes = {name.removeprefix("lanes."): _lane(name, *file.pop(name)) for name in list(file) if name.startswith("lanes.")}
    projects, worker_env = (_texts(name, *file.pop(name, (path, {}))) for name in ("worker.projects", "worker.env"))
    for name, folder in projects.items():
        if not folder.startswith(("/", "~/")) or not is_label(f"repo:{name}"):
            raise ConfigError(f"'worker.projects.{name}' must be a plain name with an absolute path, not {folder!r}", where=path)
    if len(projects) > MAX_LABELS:
        raise ConfigError(f"'worker.projects' can have at most {MAX_LABELS} projects", where=path)
    layers = [
        file,
        _from_environ(environ or {}),
        {name: (f"--set {name}", value) for name, value in (flags or {}).items()},
    ]
    for layer in layers:
        for name, (where, value) in layer.items():
            if name not in SETTINGS:
                raise ConfigError(f"unknown setting '{name}'{_suggest(name)}", where=where)
            if not where.startswith(path) and name.split(".")[0] in FILE_ONLY:
                raise ConfigError(f"'{name}' can only be set in {path}", where=where)
            values[name] = _checked(name, value, where)
            origins[name] = where
    return Config(values, origins, hosts, rules, agents, channels, lanes, projects, worker_env)


def _from_file(text: str, path: str) -> dict[str, tuple[str, object]]:
    if not text.strip():
        return {}  # as it was created; tomllib is slow to import
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
            raise ConfigError(f"unknown section '{section}'; valid sections: {', '.join(sorted(SECTIONS))}", where=where)
        for key, value in table.items():
            layer[f"{section}.{key}"] = (f"{path}, line {_line_of(text, section, key)}", value)
    return layer


def _agent(name: str, where: str, table: object) -> dict[str, str]:
    """Validate one `[agents.NAME]` table."""
    if not isinstance(table, dict) or not re.fullmatch(r"agents\.[a-z0-9][a-z0-9_-]{0,40}", name):
        raise ConfigError(f"'{name}' is not a valid agent name: use lowercase letters, digits, - and _", where=where)
    for key, value in table.items():
        if key not in AGENT_KEYS:
            raise ConfigError(f"unknown key '{key}' for an agent; valid keys: {', '.join(AGENT_KEYS)}", where=where)
        if not isinstance(value, str):
            raise ConfigError(f"'{name}.{key}' must be a string, not {value!r}", where=where)
    kind = table.get("type", "")
    if "type" in table and kind not in TYPES:
        raise ConfigError(f"'{name}.type' must be one of {', '.join(TYPES)}, not {kind!r}; omit it for the built-in agent", where=where)
    if wrong := next((key for key in _EXTERNAL_AGENT_KEYS if key in table and not kind), None):
        raise ConfigError(f"'{name}.{wrong}' requires `type`: {', '.join(TYPES)}", where=where)
    if kind == ACP and "command" not in table and KNOWN_AGENTS.get(name.removeprefix("agents."), {}).get("type") != ACP:
        raise ConfigError(f"'{name}' requires `command`, the program to start, such as \"claude-agent-acp\"", where=where)
    return table


def _channel(name: str, where: str, table: object) -> dict[str, str]:
    """Validate one `[channels.NAME]` table."""
    if not isinstance(table, dict) or not re.fullmatch(r"channels\.[a-z0-9][a-z0-9_-]{0,40}", name) or name == "channels.inbox":
        raise ConfigError(f"'{name}' is not a valid channel name: use lowercase letters, digits, - and _", where=where)
    for key, value in table.items():
        if key not in CHANNEL_KEYS:
            raise ConfigError(f"unknown key '{key}' for a channel; valid keys: {', '.join(CHANNEL_KEYS)}", where=where)
        if not isinstance(value, str):
            raise ConfigError(f"'{name}.{key}' must be a string, not {value!r}", where=where)
    if table.get("type") not in CHANNEL_TYPES:
        raise ConfigError(f"'{name}.type' must be one of {', '.join(CHANNEL_TYPES)}, not {table.get('type')!r}", where=where)
    return table


def _lane(name: str, where: str, table: object) -> int:
    """Validate one `[lanes.NAME]` table."""
    if not isinstance(table, dict) or not is_label(name.removeprefix("lanes.")):
        raise ConfigError(f"'{name}' is not a valid lane: use letters, digits and . _ : -", where=where)
    if unknown := [key for key in table if key not in LANE_KEYS]:
        raise ConfigError(f"unknown key '{unknown[0]}' for a lane; valid keys: {', '.join(LANE_KEYS)}", where=where)
    count = table.get("max_concurrent", 1)
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= 1_000_000:
        raise ConfigError(f"'{name}.max_concurrent' must be a whole number above 0, not {count!r}", where=where)
    return count


def _texts(name: str, where: str, table: object) -> dict[str, str]:
    if not isinstance(table, dict) or not all(isinstance(value, str) for value in table.values()):
        raise ConfigError(f"'{name}' must be a table of strings", where=where)
    return table


def _hosts(where: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(host, str) for host in value):
        raise ConfigError("'approval.hosts' must be a list of host names", where=where)
    return tuple(host.lower() for host in value)


def _line_of(text: str, section: str, key: str | None = None) -> int:
    """Return the line number of a section or of one of its keys, or 1 if it cannot be found."""
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if line.startswith("["):
            inside = _parts(line[1:].partition("]")[0])[0] == section
            if inside and key is None:
                return number
            continue
        names = _parts(line.partition("=")[0])
        if (inside and names[0] == key) or (not inside and names[0] == section and (key is None or names[1:2] in ([], [key]))):
            return number
    return 1


def _parts(name: str) -> list[str]:
    """The parts of a dotted TOML key, without quotes."""
    return [part.strip(" \t\"'") for part in name.split(".")]


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
        case tuple():
            return _listed(name, value, where)
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
                raise ConfigError(f"'{name}' must be between {setting.minimum:g} and {setting.maximum:,}, not {value!r}", where=where)
            return number
        case _:
            if (
                name == "notify.quiet_hours"
                and value
                and not re.fullmatch(r"([01]?\d|2[0-3]):[0-5]\d-([01]?\d|2[0-3]):[0-5]\d", str(value))
            ):
                raise ConfigError(f"'{name}' must be a time range such as 22:00-07:00, not {value!r}", where=where)
            if name == "sandbox.level" and value not in ("auto", "full", "partial", "none"):
                raise ConfigError(f"'{name}' must be auto, full, partial or none, not {value!r}", where=where)
            if name == "approval.web" and value not in ("passkey", "off"):
                raise ConfigError(f"'{name}' must be passkey or off, not {value!r}", where=where)
            if name == "web.origin" and value and not re.fullmatch(r"https://[a-z0-9.-]+(:\d+)?", str(value)):
                raise ConfigError(f"'{name}' must be an address such as https://laptop.example.net, not {value!r}", where=where)
            if name == "store.url" and value:
                from backburner.core.ledger_url import problem_of  # slow to load, and few homes have one

                if problem := problem_of(str(value)):
                    raise ConfigError(f"'{name}' {problem}", where=where)
            return str(value)


def _listed(name: str, value: object, where: str) -> tuple[str, ...]:
    kind = int if name == "sandbox.connect" else str
    if isinstance(value, str):  # not from the file
        value = [item.strip() for item in value.split(",") if item.strip()]
    if not isinstance(value, list) or not all(isinstance(item, kind) and not isinstance(item, bool) for item in value):
        raise ConfigError(f"'{name}' must be a list of {'port numbers' if kind is int else 'strings'}, not {value!r}", where=where)
    if wrong := [item for item in value if kind is int and not 0 < int(item) < 65536]:
        raise ConfigError(f"'{name}' contains {wrong[0]}, which is not a port", where=where)
    if name == "worker.lanes" and (wrong := [item for item in value if not is_label(item)]):
        raise ConfigError(f"'{name}' contains {wrong[0]!r}, which is not a label: use letters, digits and . _ : -", where=where)
    if wrong := [item for item in value if name == "sandbox.read" and not str(item).startswith(("/", "~/"))]:
        raise ConfigError(f"'{name}' must contain absolute paths or paths that start with ~/, not {wrong[0]!r}", where=where)
    return tuple(map(str, value))


def _boolean(name: str, value: object, where: str) -> bool:
    known = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in known:
        return known[value.lower()]
    raise ConfigError(f"'{name}' must be true or false, not {value!r}", where=where)


def is_local(settings: dict[str, str]) -> bool:
    """Return whether an agent's model runs on this machine. Local models have their own, smaller limit on concurrent agents."""
    from urllib.parse import urlsplit

    host = urlsplit(settings.get("base_url") or "").hostname
    if host is None:
        return settings["model"].startswith("ollama:")
    return host in ("localhost", "::1") or host.startswith("127.")


def _suggest(name: str) -> str:
    import difflib

    near = difflib.get_close_matches(name, SETTINGS, 1, 0.6)
    return f"; did you mean '{near[0]}'?" if near else f"; valid settings: {', '.join(SETTINGS)}"


def provider_of(model: str) -> str:
    """Return the provider of a model string: the part before the colon. `openai-chat` and `openai-responses` are one provider."""
    kind = model.partition(":")[0]
    return "openai" if kind.startswith("openai-") else kind


def _server(model: str, *places: tuple[str, dict[str, str]]) -> dict[str, str]:
    """Return the API address of a model and the variable with its key; empty for the provider's own.

    `places` are model strings, each with the server settings configured for it, in order of precedence. Settings of a model of another
    provider are ignored. If a place sets the address, the API keys of later places are ignored too.
    """
    server = {"base_url": "", "api_key_env": ""}
    for owner, settings in places:
        if provider_of(owner) == provider_of(model):
            server = {key: server[key] or settings.get(key, "") for key in server}
            if "base_url" in settings:
                break
    return server


def _server_settings(section: dict[str, str], prefix: str = "") -> dict[str, str]:
    """Return the address and the key variable of a section, as far as they are set."""
    return {key: section[prefix + key] for key in ("base_url", "api_key_env") if prefix + key in section}


def agent_settings(
    config: Config, name: str, *, recurring: bool = False, model: str | None = None, path: str = "config.toml"
) -> dict[str, str]:
    """Return the settings of an agent: `model` overrides the agent's own settings, and these override `[models]`.

    Raises BadInput if there is no agent of that name, or no model for it. An address and its key apply only to the provider of the
    model that they are configured for. Recurring tasks use the local model first and may escalate to the remote one.
    """
    own = config.agents.get(name, KNOWN_AGENTS.get(name, {}))
    if name not in config.agents and name not in KNOWN_AGENTS and name != "default":
        raise BadInput(f"Unknown agent '{name}'. Available agents: {', '.join(sorted({'default', *config.agents, *KNOWN_AGENTS}))}.")
    if kind := own.get("type"):
        known = KNOWN_AGENTS.get(name, {})
        settings = {"model": "", "command": "opencode", **(known if known.get("type") == kind else {}), **own, "name": name}
        return {**settings, "model": model or settings["model"]}
    shared = {key.removeprefix("models."): str(value) for key, value in config.values.items() if key.startswith("models.") and value}
    default, second, prefix = shared.get("default", ""), shared.get("fallback", ""), "fallback_"
    first = own.get("model") or default
    places = [(first, _server_settings(own)), (default, _server_settings(shared))]
    if recurring and shared.get("local") and not own.get("model"):
        first = shared["local"]
        places.insert(1, (first, _server_settings(shared, "local_")))
    if recurring and shared.get("remote"):
        second, prefix = shared["remote"], "remote_"
    first, fallback = model or first, own.get("fallback", second)
    fallback_server = _server(fallback, (fallback, _server_settings(own, "fallback_")), (second, _server_settings(shared, prefix)))
    settings = {**own, "name": name, "type": "", "model": first, **_server(first, *places)}
    settings |= {"fallback": fallback, **{f"fallback_{key}": value for key, value in fallback_server.items()}}
    if not settings["model"]:
        raise BadInput(
            "No model is configured for agents. With Ollama (https://ollama.com): run `ollama pull qwen3`, then add"
            f' `[models]` and `default = "ollama:qwen3"` to {path}, or use another model, such as "openai-chat:gpt-5".'
            " External agents use their own model, such as `--agent opencode`."
        )
    return settings
