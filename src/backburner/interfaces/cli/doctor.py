"""Checks a home: lists what is wrong and how to fix it. Changes nothing, and works even if no App can be opened."""

import contextlib
import itertools
import os
import shlex
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple, assert_never

from backburner.coordination.config_file import ConfigFile, load_config
from backburner.coordination.supervision import HUNG_AFTER_SECONDS
from backburner.core.errors import BackburnerError, LedgerTooNew, LedgerUnreachable
from backburner.core.ledger_url import shown
from backburner.core.models import Run
from backburner.core.queues import is_for_agents
from backburner.core.recipients import Recipient
from backburner.core.settings import Config, agent_settings
from backburner.core.states import RUNNING_STATES
from backburner.services.health import Health, open_health
from backburner.system import run_files, wakeups
from backburner.system.capacity import total_memory_mb
from backburner.system.disk_usage import disk_usage, size_text
from backburner.system.home import Home, is_locked
from backburner.system.paths import locate
from backburner.system.processes import engine_of, heartbeat_age, is_alive, members, state_of

_MIN_FREE_BYTES = 100 << 20
_MAX_TASK_BYTES = 1 << 20  # space for a new task, with its folder and the ledger's write-ahead log
_RECHECK_DELAY_SECONDS = 0.5
_MAX_CHECK_SECONDS = 1.5  # for the ledger
_MAX_COUNT_SECONDS = 0.5  # for each kind of file
_MAX_FOLDERS = 2000


_CHANNEL_TIMEOUT = 10.0  # seconds


class Finding(NamedTuple):
    ok: bool
    what: str
    fix: str = ""


def examine(root: str, environ: dict[str, str], flags: dict[str, str], *, full: bool = False) -> Iterator[Finding]:
    """Yield one finding for each check; findings that are not ok say how to fix the problem.

    Unless it is `full`, a check that depends on the number of tasks is limited, so that all together take a few seconds.
    """
    home = Home(root)
    if not os.path.isdir(home.root):
        yield _missing(home)
        return
    yield from _home(home)
    try:
        config = load_config(home, environ, flags)
        has_file = os.path.exists(home.config)
        yield Finding(True, f"settings {home.config}" if has_file else "settings: defaults (no config.toml)")
        if has_file and _contains_secrets(config) and stat.S_IMODE(os.stat(home.config).st_mode) & 0o044:
            yield Finding(False, f"{home.config} contains secrets and can be read by other users", f"chmod 600 {shlex.quote(home.config)}")
        min_free, total = config.whole("commands.min_free_memory_mb"), total_memory_mb()
        if total is not None and min_free >= total:
            what = f"commands.min_free_memory_mb is {min_free}, but this machine has {total} MiB of memory: no command can start"
            yield Finding(False, what, f"use a lower value ({config.origins['commands.min_free_memory_mb']})")
        if endpoint := config.text("telemetry.otlp_endpoint"):
            yield _telemetry(endpoint)
        yield from _agents(home, config, environ)
        yield from (_channel(name, config.channels[name], environ) for name in sorted(config.channels))
    except BackburnerError as error:
        yield Finding(False, f"settings: {error}", "fix the setting; until then, running processes keep the previous settings")
    config_file = ConfigFile(home, {}, tolerant=True)  # only the file can say where the ledger is
    yield from _ledger(home, config_file, full)
    yield _sizes(home, full)
    yield from _integrations(home, config_file)
    yield _sandbox(home, environ, flags)
    yield _engine(home)
    yield from _clients(environ, root)


def _contains_secrets(config: Config) -> bool:
    """Whether the file itself contains a token, a secret, or an address that includes one."""
    channels = config.channels.values()
    own = any(words.get("token") or words.get("secret") or (words["type"] == "apprise" and words.get("url")) for words in channels)
    return own or bool(config.text("telemetry.otlp_headers"))


def _integrations(home: Home, config_file: ConfigFile) -> Iterator[Finding]:
    """Failed deliveries, and sources that cannot be watched."""
    if not os.path.exists(home.ledger) and not config_file.current.text("store.url"):
        return
    try:
        health = open_health(home, config_file)
    except BackburnerError:
        return  # already reported by another check
    try:
        for notice in health.failed_deliveries()[:10]:
            yield Finding(
                False,
                f"delivery to channel '{Recipient.parse(notice.channel).name}' failed: {notice.error}",
                "fix the problem, then run: backburner inbox --again",
            )
        for task_id, reason in health.broken_sources().items():
            yield Finding(
                False, f"the source of {task_id} cannot be watched: {reason}", f"fix the problem, or run: backburner cancel {task_id}"
            )
    except BackburnerError:
        return  # already reported by another check
    finally:
        health.close()


def _channel(name: str, settings: dict[str, str], environ: dict[str, str]) -> Finding:
    """Whether the settings of a channel can work. Nothing is sent; only Discord is contacted, to check the token."""
    import asyncio

    from backburner.core.ports import DeliveryFailed
    from backburner.integrations.process import open_channel

    async def check() -> None:
        channel = open_channel(name, settings, environ)
        try:
            async with asyncio.timeout(_CHANNEL_TIMEOUT):
                await channel.check()
        finally:
            await channel.close()

    try:
        asyncio.run(check())
    except TimeoutError:
        return Finding(False, f"channel {name} ({settings['type']}): no answer within {_CHANNEL_TIMEOUT:g} s", "check the network")
    except (DeliveryFailed, BackburnerError) as error:
        return Finding(False, f"channel {name} ({settings['type']}): {error}", f"correct [channels.{name}] in config.toml")
    checked = "the token is accepted" if settings["type"] == "discord" else "its settings are valid (nothing was sent)"
    return Finding(True, f"channel {name} ({settings['type']}): {checked}")


def _agents(home: Home, config: Config, environ: dict[str, str]) -> Iterator[Finding]:
    """Whether each configured model answers at its own address."""
    own = {name for name, words in config.agents.items() if words.get("model") or words.get("type") or config.text("models.default")}
    names = sorted(own | ({"default"} if config.text("models.default") else set()))
    if not names and not config.text("models.local"):
        yield Finding(True, f"no model is set, so the built-in agent is not available. To use it, set [models] default in {home.config}")
        return
    from importlib.util import find_spec

    if find_spec("pydantic_ai") is None:
        yield Finding(False, "models are set, but the library for agents is missing", "pip install 'backburner[agent]'")
        return
    from backburner.agents.health import check_agent, describe_agent
    from backburner.agents.model_factory import fallback_settings

    models = {f"agent {name}": agent_settings(config, name) for name in names}
    if config.text("models.local"):
        models["model of recurring tasks"] = agent_settings(config, "default", recurring=True)
    for key, what in (("fallback", "fallback model"), ("remote", "escalation model")):
        first = config.text("models.default") or (key == "remote" and config.text("models.local"))
        if first and config.text(f"models.{key}"):
            models[what] = fallback_settings(agent_settings(config, "default", recurring=key == "remote"))
    for what, settings in models.items():
        settings = {**settings, "fallback": ""}  # a fallback that answers must not hide that this model does not
        problem = check_agent(home, settings, environ)
        fix = (
            "check that its server is running, its name is correct and its API key is set. See: backburner agents --check"
            if problem
            else ""
        )
        yield Finding(problem is None, f"{what} ({describe_agent(settings, environ)}){': ' + problem if problem else ' answers'}", fix)


def _clients(environ: dict[str, str], root: str) -> Iterator[Finding]:
    """Whether each installed client has Backburner's tools. A client that was never set up is not a problem."""
    from backburner.interfaces.client_setup import wiring

    default_home = os.path.abspath(locate(None, {**environ, "BACKBURNER_HOME": ""}))
    for client in wiring.examine(environ, root if root != default_home else None):
        if client.found:
            yield Finding(client.wired or client.never_wired, f"{client.client}: {client.detail}")


def _telemetry(endpoint: str) -> Finding:
    from importlib.util import find_spec

    try:
        installed = find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        installed = False
    if not installed:
        return Finding(
            False, f"trace export to {endpoint} is configured, but the libraries are missing", "pip install 'backburner[telemetry]'"
        )
    return Finding(True, f"traces: exported to {endpoint}")


def _missing(home: Home) -> Finding:
    fix = "use another: --home DIR or BACKBURNER_HOME"
    if os.path.lexists(home.root):
        return Finding(False, f"home {home.root} is not a directory", fix)
    parent = home.root
    while not os.path.exists(parent):
        parent = os.path.dirname(parent)
    if not os.path.isdir(parent) or not os.access(parent, os.W_OK) or parent.startswith("/proc"):
        return Finding(False, f"home {home.root} does not exist and cannot be created in {parent}", fix)
    return Finding(True, f"home {home.root} does not exist yet", "the first task creates it: backburner run -- echo hello")


def _home(home: Home) -> Iterator[Finding]:
    status = os.stat(home.root)
    if status.st_uid != os.getuid():
        yield Finding(False, f"home {home.root} belongs to another user", "use your own: --home DIR or BACKBURNER_HOME")
    elif not os.access(home.root, os.W_OK):
        read_only = os.statvfs(home.root).f_flag & os.ST_RDONLY
        fix = "its file system is mounted read-only; use another home" if read_only else f"chmod u+rwx {shlex.quote(home.root)}"
        yield Finding(False, f"home {home.root} is not writable", fix)
    elif stat.S_IMODE(status.st_mode) & 0o077:
        yield Finding(False, f"home {home.root} can be read by other users", f"chmod 700 {shlex.quote(home.root)}")
    else:
        yield Finding(True, f"home {home.root}")
    free = shutil.disk_usage(home.root).free
    fix = "" if free > _MIN_FREE_BYTES else "free disk space, or delete old tasks: backburner clear --ended --all"
    yield Finding(free > _MIN_FREE_BYTES, f"free space: {free >> 20:,} MiB", fix)
    for path in (os.path.join(home.root, home.tasks), home.socket_dir):
        if os.path.lexists(path) and not os.path.isdir(path):
            yield Finding(False, f"{path} is not a directory", f"rename it: mv {path} {path}.old")


def _sandbox(home: Home, environ: dict[str, str], flags: dict[str, str]) -> Finding:
    """What kind of sandbox this machine offers, tried again."""
    from backburner.core.sandbox import Level
    from backburner.system.sandbox_support import find_support

    try:
        limit = load_config(home, environ, flags).text("sandbox.level")
    except BackburnerError:
        limit = "auto"  # the settings are reported by another check
    support = find_support(home, limit, fresh=True)
    fix = "" if support.level is Level.FULL else "see 'Where a sandbox is available' in docs/approval.md"
    return Finding(support.level is not Level.NONE, f"sandbox: {support.text()}", fix)


def _engine(home: Home) -> Finding:
    engine, is_listening = engine_of(home), wakeups.wake(home.socket_dir, wakeups.ENGINE_SOCKET)
    if engine is None:
        return Finding(True, "engine: not running (it starts when there is work)")
    if state_of(engine.pid) == "T":
        return Finding(False, f"engine: stopped (pid {engine.pid})", f"kill -CONT {engine.pid}")
    if (age := heartbeat_age(home)) > HUNG_AFTER_SECONDS:
        return Finding(False, f"engine: not responding for {age:.0f} s (pid {engine.pid})", "to replace it, run: backburner list")
    if not is_listening:
        return Finding(False, f"engine: running (pid {engine.pid}) but its socket is missing", f"to restore it, {_wake_advice(home)}")
    return Finding(True, f"engine: running (pid {engine.pid})")


def _wake_advice(home: Home) -> str:
    """How to wake the engine. A full disk needs space first, because a new task could not be stored."""
    disk = os.statvfs(home.root)
    is_full = disk.f_bavail * disk.f_frsize < _MAX_TASK_BYTES or (disk.f_files > 0 and disk.f_favail == 0)
    return f"{'free disk space first, then run' if is_full else 'run'}: backburner run -- true"


def _ledger(home: Home, config_file: ConfigFile, full: bool) -> Iterator[Finding]:
    if url := config_file.current.text("store.url"):
        yield from _ledger_on_postgres(home, config_file, url, full)
        return
    if not os.path.exists(home.ledger):
        yield Finding(True, "ledger: none yet")
        return
    try:
        health = open_health(home, config_file)
        damage = health.damage(None if full else _MAX_CHECK_SECONDS)
    except BackburnerError as error:
        move = f"{_move_command(home)} (the output of tasks stays in {home.root}/tasks), then run any command"
        is_newer = isinstance(error, LedgerTooNew)
        yield Finding(
            False, str(error), "upgrade Backburner" if is_newer else f"restore it from a backup, or move it to another folder: {move}"
        )
        return
    if damage:
        yield Finding(False, f"ledger {home.ledger}: {damage[0]}", f"move it to another folder: {_move_command(home)}")
    else:
        note = f": no damage found in {_MAX_CHECK_SECONDS:g} s; to check all of it: backburner doctor --full" if damage is None else ""
        yield Finding(True, f"ledger {home.ledger}{note}")
    try:
        yield from _tasks(home, health, full)
    except BackburnerError as error:
        if not damage:
            yield Finding(False, str(error), f"move it to another folder: {_move_command(home)}")
    finally:
        health.close()


def _ledger_on_postgres(home: Home, config_file: ConfigFile, url: str, full: bool) -> Iterator[Finding]:
    try:
        health = open_health(home, config_file)
    except BackburnerError as error:
        fix = "check the server, its address and ~/.pgpass" if isinstance(error, LedgerUnreachable) else "see docs/hosts.md"
        yield Finding(False, str(error), fix)
        return
    try:
        settings = health.server_settings()
        yield Finding(True, f"ledger {shown(url)}: Postgres {settings['server_version']}")
        yield from _server(settings)
        yield from _tasks(home, health, full)
    except BackburnerError as error:
        yield Finding(False, str(error), "run `backburner doctor` again")
    finally:
        health.close()


def _server(settings: Mapping[str, str]) -> Iterator[Finding]:
    """What is wrong with a server that stores the ledger, or with the connection to it."""
    if int(settings["server_version_num"]) < 150_000:
        yield Finding(False, f"the server is Postgres {settings['server_version']}, which is too old", "use Postgres 15 or newer")
    if settings["server_encoding"] != "UTF8":
        yield Finding(False, f"the encoding of the database is {settings['server_encoding']}", "create a database with --encoding UTF8")
    if settings["collations"] != "C":
        what = f"some columns of the ledger have another collation than C ({settings['collations']}), so text is compared wrongly"
        yield Finding(False, what, "restore them from a dump of the ledger that `backburner migrate` has created")
    for name in ("fsync", "synchronous_commit"):
        if settings[name] == "off":
            yield Finding(False, f"{name} is off: what was stored is lost when the server crashes", f"set {name} = on in postgresql.conf")
    host = settings["host"]
    is_here = host.startswith(("/", "127.")) or host in ("localhost", "::1")
    if not is_here and (settings["encrypted"] == "no" or settings["sslmode"] != "verify-full"):
        what = f"the connection to {host} is {'not encrypted' if settings['encrypted'] == 'no' else 'encrypted, but the server is not verified'}"
        yield Finding(False, what, "add ?sslmode=verify-full&sslrootcert=system to `url` under [store]")


def _sizes(home: Home, full: bool) -> Finding:
    """The space that each kind of file uses."""
    kinds = {
        "ledger": [home.ledger, f"{home.ledger}-wal", f"{home.ledger}-shm"],
        "tasks": [os.path.join(home.root, home.tasks)],
        "sandbox caches": [os.path.join(home.root, "sandbox")],
        "worktrees": [os.path.join(home.root, "worktrees")],
        "logs": [home.engine_log, f"{home.engine_log}.1"],
    }
    shown = []
    for kind, paths in kinds.items():
        deadline = None if full else time.monotonic() + _MAX_COUNT_SECONDS
        counted = [disk_usage(path, deadline) for path in paths]
        if size := sum(size for size, _ in counted):
            shown.append(f"{kind} {'' if all(done for _, done in counted) else 'more than '}{size_text(size)}")
    return Finding(True, f"size: {', '.join(shown) or 'empty'}")


def _move_command(home: Home) -> str:
    """A command that moves the ledger away with its SQLite files: a write-ahead log left behind would damage the next ledger."""
    number, folder = 1, os.path.join(home.root, "damaged")
    while os.path.lexists(folder):
        number += 1
        folder = os.path.join(home.root, f"damaged-{number}")
    files = [path for path in (home.ledger, home.ledger + "-wal", home.ledger + "-shm") if os.path.exists(path)]
    move = f"mkdir {shlex.quote(folder)} && mv {shlex.join(files)} {shlex.quote(folder)}"
    engine = engine_of(home)
    return f"kill {engine.pid} && flock {shlex.quote(home.engine_lock)} {move}" if engine else move


def _without_process(home: Home, health: Health) -> list[str]:
    """Runs recorded as running that have no process.

    Checks twice, because a run that is just starting or ending can look the same for a moment.
    """

    def find() -> list[str]:
        return [
            run.run_id for run in health.live_runs() if run.state in RUNNING_STATES and is_alive(run.owner) and _has_no_process(home, run)
        ]

    found = find()
    if found:
        time.sleep(_RECHECK_DELAY_SECONDS)
        found = [run_id for run_id in find() if run_id in found]
    return found


def _has_no_process(home: Home, run: Run) -> bool:
    folder = home.folder(run.folder)
    if is_for_agents(run.runner) or run.error or is_locked(os.path.join(folder, run_files.EXIT)) or run_files.exit_code(folder) is not None:
        return False
    return not members(run.process, run.process_tag)


def _tasks(home: Home, health: Health, full: bool) -> Iterator[Finding]:
    stale = [run.run_id for run in health.live_runs() if run.state in RUNNING_STATES and not is_alive(run.owner)]
    live_count = len(health.live_runs())
    if stale:
        yield Finding(False, f"runs without an owner: {', '.join(stale[:5])}", "run `backburner list` to recover them")
    else:
        yield Finding(True, f"runs: {live_count} live, none without an owner")
    if reason := health.delay_reason():
        delayed = [run.run_id for run in health.live_runs() if run.state in RUNNING_STATES and run.process is None and run.error]
        yield Finding(False, f"cannot start yet ({reason}): {', '.join(delayed[:5])}", "free disk space; they then start automatically")
    if lost := _without_process(home, health):
        what = f"running without a process: {', '.join(lost[:5])}"
        yield Finding(False, what, f"{_wake_advice(home)}, so that the engine checks them; if they remain: backburner cancel ID")
    yield from _folders(home, health, None if full else _MAX_FOLDERS)


def _folders(home: Home, health: Health, limit: int | None) -> Iterator[Finding]:
    """What is wrong with the folders of runs. Looks at the newest runs and at as many folders, so that it takes seconds."""
    tasks, names = os.path.join(home.root, "tasks"), []
    with contextlib.suppress(FileNotFoundError), os.scandir(tasks) as entries:
        names = [entry.name for entry in itertools.islice(entries, limit)]
    runs = [*health.newest_folders(limit), *health.folders_of(names)]
    known = {os.path.basename(run.folder): run for run in runs if os.path.dirname(run.folder) == "tasks"}
    problems = run_files.problems(tasks, names, known)
    for path, problem in problems[:10]:
        run = known.get(os.path.basename(path)) or known.get(os.path.basename(os.path.dirname(path)))
        task_id = run.task_id if run else ""
        match problem:
            case run_files.FolderProblem.DAMAGED:
                what, fix = "damaged or missing", f"to write it again: backburner status {task_id}"
            case run_files.FolderProblem.UNKNOWN:
                what, fix = "not in the ledger; ignored", f"inspect it, then run: rm -r {shlex.quote(path)}"
            case run_files.FolderProblem.MISSING:
                what, fix = "the folder of a known task is missing; its output is lost", f"backburner clear {task_id}"
            case _:
                assert_never(problem)
        yield Finding(False, f"{path}: {what}", fix)
    if len(problems) > 10:
        yield Finding(False, f"{len(problems) - 10} more problems in {os.path.join(home.root, 'tasks')}")
    if not problems:
        note = "; the newest were checked, for all: backburner doctor --full" if limit is not None and len(names) == limit else ""
        yield Finding(True, f"task folders: {len(known)}, all complete{note}")
