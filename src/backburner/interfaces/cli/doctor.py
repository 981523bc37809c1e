"""Examines a home from outside: what is wrong and how to mend it. Changes nothing, and works where no App can be opened."""

import os
import shlex
import shutil
import stat
import time
from collections.abc import Iterator
from typing import NamedTuple, assert_never

from backburner.coordination.config_file import load_config
from backburner.core.errors import BackburnerError, LedgerTooNew
from backburner.core.models import AGENT_LANES, Entry, Run
from backburner.core.recipients import Recipient
from backburner.core.settings import Config, agent_settings
from backburner.core.states import RUNNING_STATES
from backburner.services.health import Health, open_health
from backburner.system import run_files as folders
from backburner.system import wakeups as wake
from backburner.system.home import Home, is_locked, locate
from backburner.system.processes import engine_of, is_alive, members, state_of

_LITTLE = 100 << 20
_TASK_BYTES = 1 << 20  # what a new task takes at most, with its folder and the ledger's log
_SETTLE_SECONDS = 0.5


class Finding(NamedTuple):
    ok: bool
    what: str
    fix: str = ""


def examine(root: str, environ: dict[str, str], flags: dict[str, str]) -> Iterator[Finding]:
    """One finding per thing looked at, the wrong ones with what to do."""
    home = Home(root)
    if not os.path.isdir(home.root):
        yield _missing(home)
        return
    yield from _home(home)
    try:
        config = load_config(home, environ, flags)
        there = os.path.exists(home.config)
        yield Finding(True, f"settings {home.config}" if there else "settings: defaults (there is no config.toml)")
        if there and _holds_secrets(config) and stat.S_IMODE(os.stat(home.config).st_mode) & 0o044:
            yield Finding(False, f"{home.config} holds secrets and can be read by others", f"chmod 600 {shlex.quote(home.config)}")
        if endpoint := config.text("telemetry.otlp_endpoint"):
            yield _telemetry(endpoint)
        yield from _agents(home, config, environ)
    except BackburnerError as error:
        yield Finding(False, f"settings: {error}", "correct what it names; until then what runs keeps the settings of before")
    yield from _ledger(home)
    yield from _post(home)
    yield _engine(home)
    yield from _clients(environ, root)


def _holds_secrets(config: Config) -> bool:
    """Whether a token, a secret or an address that holds one stands in the file itself."""
    channels = config.channels.values()
    own = any(words.get("token") or words.get("secret") or (words["type"] == "apprise" and words.get("url")) for words in channels)
    return own or bool(config.text("telemetry.otlp_headers"))


def _post(home: Home) -> Iterator[Finding]:
    """Letters that could not be delivered, and sources that cannot be watched."""
    if not os.path.exists(home.ledger):
        return
    try:
        health = open_health(home)
    except BackburnerError:
        return  # said before
    try:
        for notice in health.failed_deliveries()[:10]:
            yield Finding(
                False,
                f"a letter to {Recipient.parse(notice.channel).name} came back: {notice.error}",
                "mend that, then: backburner inbox --again",
            )
        for task_id, reason in health.broken_sources().items():
            yield Finding(False, f"the source of {task_id} cannot be watched: {reason}", f"mend that, or: backburner cancel {task_id}")
    except BackburnerError:
        return  # said before
    finally:
        health.close()


def _agents(home: Home, config: Config, environ: dict[str, str]) -> Iterator[Finding]:
    """Whether each model answers that somebody has set up, where it would be asked; nothing where none is set."""
    own = {name for name, words in config.agents.items() if words.get("model") or words.get("type") or config.text("models.default")}
    names = sorted(own | ({"default"} if config.text("models.default") else set()))
    if not names and not config.text("models.local"):
        return
    from importlib.util import find_spec

    if find_spec("pydantic_ai") is None:
        yield Finding(False, "models are set, but the library for agents is missing", "pip install 'backburner[agent]'")
        return
    from backburner.agents.health import check_agent, describe_agent
    from backburner.agents.model_factory import fallback_settings

    found = {f"agent {name}": agent_settings(config, name) for name in names}
    if config.text("models.local"):
        found["model of standing tasks"] = agent_settings(config, "default", standing=True)
    for key, what in (("fallback", "second model"), ("remote", "model to escalate to")):
        first = config.text("models.default") or (key == "remote" and config.text("models.local"))
        if first and config.text(f"models.{key}"):
            found[what] = fallback_settings(agent_settings(config, "default", standing=key == "remote"))
    for what, settings in found.items():
        settings = {**settings, "fallback": ""}  # each by itself: another's answer must not stand for it
        problem = check_agent(home, settings, environ)
        fix = "is its server running, its name right, its key set? See: backburner agents --check" if problem else ""
        yield Finding(problem is None, f"{what} ({describe_agent(settings, environ)}){': ' + problem if problem else ' answers'}", fix)


def _clients(environ: dict[str, str], root: str) -> Iterator[Finding]:
    """Whether each agent that is on this machine has our tools. One that never had them is not wrong."""
    from backburner.interfaces.client_setup import wiring

    usual = os.path.abspath(locate(None, {**environ, "BACKBURNER_HOME": ""}))
    for one in wiring.examine(environ, root if root != usual else None):
        if one.found:
            yield Finding(one.wired or one.never_wired, f"{one.client}: {one.detail}")


def _telemetry(endpoint: str) -> Finding:
    from importlib.util import find_spec

    try:
        there = find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        there = False
    if not there:
        return Finding(False, f"traces are to be sent to {endpoint}, but the libraries are missing", "pip install 'backburner[telemetry]'")
    return Finding(True, f"traces: sent to {endpoint}")


def _missing(home: Home) -> Finding:
    other = "use another: --home DIR or BACKBURNER_HOME"
    if os.path.lexists(home.root):
        return Finding(False, f"home {home.root} is not a folder", other)
    above = home.root
    while not os.path.exists(above):
        above = os.path.dirname(above)
    if not os.path.isdir(above) or not os.access(above, os.W_OK) or above.startswith("/proc"):
        return Finding(False, f"home {home.root} does not exist and cannot be made in {above}", other)
    return Finding(True, f"home {home.root} does not exist yet", "the first task makes it: backburner run -- echo hello")


def _home(home: Home) -> Iterator[Finding]:
    found = os.stat(home.root)
    if found.st_uid != os.getuid():
        yield Finding(False, f"home {home.root} belongs to another user", "use your own: --home DIR or BACKBURNER_HOME")
    elif not os.access(home.root, os.W_OK):
        read_only = os.statvfs(home.root).f_flag & os.ST_RDONLY
        fix = "its file system is mounted read-only; use another home" if read_only else f"chmod u+rwx {shlex.quote(home.root)}"
        yield Finding(False, f"home {home.root} cannot be written", fix)
    elif stat.S_IMODE(found.st_mode) & 0o077:
        yield Finding(False, f"home {home.root} can be read by others", f"chmod 700 {shlex.quote(home.root)}")
    else:
        yield Finding(True, f"home {home.root}")
    free = shutil.disk_usage(home.root).free
    room = "" if free > _LITTLE else "make room, or clear old tasks: backburner clear --ended --all"
    yield Finding(free > _LITTLE, f"free space: {free >> 20:,} MiB", room)
    for path in (os.path.join(home.root, home.tasks), home.socket_dir):
        if os.path.lexists(path) and not os.path.isdir(path):
            yield Finding(False, f"{path} is in the way: it should be a folder", f"move it away: mv {path} {path}.old")


def _engine(home: Home) -> Finding:
    engine, listens = engine_of(home), wake.wake(home.socket_dir, wake.ENGINE_SOCKET)
    if engine is None:
        return Finding(True, "engine: not running (it starts when there is work)")
    if state_of(engine.pid) == "T":
        return Finding(False, f"engine: stopped (pid {engine.pid})", f"kill -CONT {engine.pid}")
    if not listens:
        return Finding(False, f"engine: running (pid {engine.pid}) but its socket is gone", f"any command mends it: {_run_something(home)}")
    return Finding(True, f"engine: running (pid {engine.pid})")


def _run_something(home: Home) -> str:
    """How to wake the engine. A new task is refused where it cannot be stored."""
    disk = os.statvfs(home.root)
    full = disk.f_bavail * disk.f_frsize < _TASK_BYTES or (disk.f_files > 0 and disk.f_favail == 0)
    return f"{'make room first, then: ' if full else ''}backburner run -- true"


def _ledger(home: Home) -> Iterator[Finding]:
    if not os.path.exists(home.ledger):
        yield Finding(True, "ledger: none yet")
        return
    try:
        health = open_health(home)
        wrong = health.damage()
    except BackburnerError as error:
        aside = f"{_aside(home)} (the output of tasks stays in {home.root}/tasks), then run any command"
        newer = isinstance(error, LedgerTooNew)
        yield Finding(False, str(error), "upgrade Backburner" if newer else f"restore it from a copy, or set it aside: {aside}")
        return
    if wrong:
        yield Finding(False, f"ledger {home.ledger}: {wrong[0]}", f"set it aside: {_aside(home)}")
    else:
        yield Finding(True, f"ledger {home.ledger}")
    try:
        yield from _tasks(home, health)
    except BackburnerError as error:
        if not wrong:
            yield Finding(False, str(error), f"set it aside: {_aside(home)}")
    finally:
        health.close()


def _aside(home: Home) -> str:
    """How to move the ledger and the files that belong to it away: its log beside another ledger would destroy that one."""
    number, folder = 1, os.path.join(home.root, "damaged")
    while os.path.lexists(folder):
        number += 1
        folder = os.path.join(home.root, f"damaged-{number}")
    there = [path for path in (home.ledger, home.ledger + "-wal", home.ledger + "-shm") if os.path.exists(path)]
    move = f"mkdir {shlex.quote(folder)} && mv {shlex.join(there)} {shlex.quote(folder)}"
    engine = engine_of(home)
    return f"kill {engine.pid} && flock {shlex.quote(home.engine_lock)} {move}" if engine else move


def _without_process(home: Home, health: Health) -> list[str]:
    """Runs of commands that are said to be at work and are not. One that is just being started or ended is seen only once."""

    def look() -> list[str]:
        return [run.run_id for run in health.live_runs() if run.state in RUNNING_STATES and is_alive(run.owner) and _is_gone(home, run)]

    found = look()
    if found:
        time.sleep(_SETTLE_SECONDS)
        found = [run_id for run_id in look() if run_id in found]
    return found


def _is_gone(home: Home, run: Run) -> bool:
    folder = home.folder(run.folder)
    if run.runner in AGENT_LANES or run.error or is_locked(os.path.join(folder, folders.SCRIPT)) or folders.exit_code(folder) is not None:
        return False
    return not members(run.process, run.process_tag)


def _tasks(home: Home, health: Health) -> Iterator[Finding]:
    stale = [run.run_id for run in health.live_runs() if run.state in RUNNING_STATES and not is_alive(run.owner)]
    live = len(health.live_runs())
    if stale:
        yield Finding(False, f"runs without an owner: {', '.join(stale[:5])}", "backburner list takes them over")
    else:
        yield Finding(True, f"runs: {live} live, none without an owner")
    if reason := health.delay_reason():
        late = [run.run_id for run in health.live_runs() if run.state in RUNNING_STATES and run.process is None and run.error]
        yield Finding(False, f"cannot be started yet ({reason}): {', '.join(late[:5])}", "make room; they start by themselves then")
    if gone := _without_process(home, health):
        what = f"running without a process: {', '.join(gone[:5])}"
        yield Finding(False, what, f"{_run_something(home)} has the engine look at them; if they stay: backburner cancel ID")
    known: dict[str, Entry] = {}
    for entry in health.tasks():
        if entry.run and os.path.dirname(entry.run.folder) == "tasks":
            known[os.path.basename(entry.run.folder)] = entry
            if entry.task.is_recurring:
                known |= {run.run_id: entry for run in health.runs_of(entry) if run.n > 0}
    wrong = folders.problems(os.path.join(home.root, "tasks"), known)
    for path, problem in wrong[:10]:
        match problem:
            case folders.FolderProblem.DAMAGED:
                what, fix = "damaged or missing", "backburner status ID writes it anew"
            case folders.FolderProblem.UNKNOWN:
                what, fix = "the ledger does not know it; it is skipped", f"look at it, then: rm -r {shlex.quote(path)}"
            case folders.FolderProblem.MISSING:
                what, fix = "the folder of a known task is missing; its output is gone", "backburner clear ID"
            case _:
                assert_never(problem)
        yield Finding(False, f"{path}: {what}", fix)
    if not wrong:
        yield Finding(True, f"folders of {len(known)} tasks")
