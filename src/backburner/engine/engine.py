"""The engine: one process per home that claims, supervises and takes over. It dies at any moment without loss.

Comes up only under the home's lock, sleeps until it is rung, and leaves when nothing is live: it stops listening,
reads the ledger once more, and only then lets go of the lock, so that no door is left between two engines.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from backburner.coordination.config_file import load_config
from backburner.coordination.launcher import engine_command
from backburner.core.errors import BackburnerError, EngineUnavailable, HomeUnusable
from backburner.core.models import AGENTS, ENGINE, LOCAL, OTLP, ProcessId
from backburner.core.ports import Executor, Store
from backburner.core.settings import Config
from backburner.engine.child_hosts import Hosts
from backburner.engine.recovery import Orphans
from backburner.execution.runner import Runner
from backburner.services.runtime import Runtime, open_runtime
from backburner.system import capacity as machine
from backburner.system import processes as process
from backburner.system import wakeups as wake
from backburner.system.home import SPARE, Home, lock, servers_left, stamp
from backburner.system.processes import engine_of

if TYPE_CHECKING:
    from backburner.engine.scheduler import Scheduler

log = logging.getLogger("backburner")

_LOCK_SECONDS = 10.0
_DEAF_SECONDS = 1.0  # an engine that holds the lock this long and cannot be rung has lost its socket
_UPKEEP_SECONDS = 6 * 3600.0
_AGENT_HOST, _POST_HOST = "agents.host", "integrations.host"
_SEND_SECONDS, _SEND_AGAIN_SECONDS = 1.0, 30.0  # how long traces are gathered before they are sent, and kept when that failed


class Engine:
    """Runs until it is told to stop or has nothing left to do."""

    def __init__(
        self, runtime: Runtime, executor: Executor, *, idle_exit: float | None, config_seen: tuple[int, int] | None = None
    ) -> None:
        self._runtime = runtime
        self._store: Store = runtime.store
        self._executor = executor
        self._home: Home = runtime.home
        self._idle_exit = idle_exit
        self._watched: dict[ProcessId, int] = {}
        self._done = asyncio.Event()
        self._ear: wake.Ear | None = None
        self._pass: asyncio.Handle | None = None
        self._leaving: asyncio.TimerHandle | None = None
        self._config_seen = config_seen  # the file as it was before it was read
        self._sending: asyncio.Task[None] | None = None
        self._hosts = Hosts(self._home, self._soon)
        self._scheduler: Scheduler | None = None  # dates are slow to load, and many homes have nothing scheduled
        self._due: asyncio.TimerHandle | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._again: asyncio.TimerHandle | None = None
        config = runtime.config
        self._runner = Runner(
            self._store,
            executor,
            self._home,
            runtime.clock,
            runner=ENGINE,
            owner=process.myself(),
            cap=config.whole("commands.max_concurrent"),
            grace=config.number("commands.cancel_grace_seconds"),
            changed=self._changed,
            changed_since=lambda work: runtime.gate.changed(work.task, work.environment),
            admit=lambda wanted: machine.admit(runtime.config, wanted),
        )
        self._orphans = Orphans(runtime, self._runner, self._watch, self._changed)

    async def run(self, listening: "asyncio.Event | None" = None) -> None:
        """Listen, then read the ledger: nothing written before the first ring is missed."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._done.set)
        loop.add_signal_handler(signal.SIGUSR1, self._listen_again)
        self._listen()
        if listening:
            listening.set()
        try:
            self._upkeep()
            self._go()
            await self._done.wait()
        finally:
            self._stop_listening()
            if self._sending:
                self._sending.cancel()  # what it started goes on
            self._hosts.let_go()
            await self._runner.stop()
            for descriptor in self._watched.values():
                loop.remove_reader(descriptor)
                os.close(descriptor)

    def _listen(self) -> None:
        self._ear = wake.Ear(self._home.make_bells(), wake.ENGINE)
        asyncio.get_running_loop().add_reader(self._ear.fileno(), self._rung)

    def _stop_listening(self) -> None:
        if self._ear:
            asyncio.get_running_loop().remove_reader(self._ear.fileno())
            self._ear.close()
            self._ear = None

    def _rung(self) -> None:
        if self._ear:
            self._ear.drain()
        self._soon()

    def _changed(self) -> None:
        """The runner wrote to the ledger: tell who follows, and see whether that was the last of it."""
        wake.ring_followers(self._home.bells)
        self._soon()

    def _soon(self) -> None:
        if self._pass is None:
            self._pass = asyncio.get_running_loop().call_soon(self._go)

    def _listen_again(self) -> None:
        """Somebody took our socket away: another engine told us so by a signal. One that leaves stays deaf, and is waited for."""
        if not self._done.is_set():
            self._stop_listening()
            self._listen()
            self._soon()

    def _go(self) -> None:
        """One pass: everything that is due now."""
        self._pass = None
        loop = asyncio.get_running_loop()
        try:
            self._reload()
            self._orphans.take_over()
            self._runner.tick()
            self._send_traces()
            scheduled = self._schedule()
            scheduled = self._discover() or scheduled
            self._host()
            idle = not self._runner.busy and not self._store.live_runs() and not scheduled and _POST_HOST not in self._hosts
        except Exception as error:  # whatever it was, it is tried again, once
            log.warning("%s", error, exc_info=not isinstance(error, BackburnerError))
            if self._again is None or self._again.when() < loop.time():
                self._again = loop.call_later(1.0, self._soon)
            return
        if self._leaving:
            self._leaving.cancel()
            self._leaving = None
        if idle and self._idle_exit is not None:
            self._leaving = loop.call_later(self._idle_exit, self._leave)

    def _schedule(self) -> bool:
        """Fire what is due of standing tasks; whether there are any that will be due, for which the engine stays."""
        if self._due:
            self._due.cancel()
            self._due = None
        if self._store.next_slot_at() is None:
            return False
        if self._scheduler is None:
            from backburner.engine.scheduler import Scheduler

            self._scheduler = Scheduler(self._store, self._home.tasks, self._runtime.clock, lambda: self._runtime.config)
        if (seconds := self._scheduler.tick()) is None:
            return False
        if self._scheduler.moved:
            wake.ring_followers(self._home.bells)
            self._runner.tick()
        self._due = asyncio.get_running_loop().call_later(seconds, self._soon)
        return True

    def _discover(self) -> bool:
        """Look for work where it is time for that; whether it may come to it."""
        if not self._runtime.config.text("models.local") and not self._runtime.config.text("models.default"):
            return False
        from backburner.services.suggestions import look, next_look

        look(self._runtime)
        if (due := next_look(self._runtime)) is None:
            return False
        if self._looking is None or self._looking.cancelled() or self._looking.when() < asyncio.get_running_loop().time():
            self._looking = asyncio.get_running_loop().call_later(max(1.0, (due - self._runtime.clock()) / 1000), self._soon)
        return True

    def _host(self) -> None:
        """Where agents wait to be asked, or something is to be delivered or watched, there is a process for that."""
        queued = any(self._store.queued(lane, self._runtime.clock(), 1) for lane in (AGENTS, LOCAL))
        if queued or servers_left(self._home) or self._runtime.untold_parents():
            self._hosts.start(_AGENT_HOST)
        if _POST_HOST not in self._hosts and self._store.post_wanted():
            self._hosts.start(_POST_HOST)

    def _watch(self, other: ProcessId) -> None:
        """Make another pass when a living owner dies."""
        if other in self._watched or not hasattr(os, "pidfd_open"):
            return
        try:
            descriptor = self._watched[other] = os.pidfd_open(other.pid)
        except ProcessLookupError:
            self._soon()  # it died just now
            return

        def died() -> None:
            asyncio.get_running_loop().remove_reader(descriptor)
            os.close(self._watched.pop(other))
            self._go()

        asyncio.get_running_loop().add_reader(descriptor, died)

    def _leave(self) -> None:
        """Nothing to do: stop listening, look once more, and only then go."""
        self._stop_listening()
        scheduled = self._runtime.config.flag("tasks.enabled") and self._store.next_slot_at() is not None
        if self._runner.busy or self._store.live_runs() or scheduled or self._store.post_wanted():
            self._listen()
            self._go()
        else:
            self._done.set()

    def _send_traces(self) -> None:
        """Some time after something happened, where traces are to be sent: a process of its own does that and leaves."""
        loop = asyncio.get_running_loop()
        if self._sending is None and self._runtime.config.text("telemetry.otlp_endpoint"):
            self._sending = loop.create_task(self._traces_sent())

    async def _traces_sent(self) -> None:
        await asyncio.sleep(_SEND_SECONDS)
        last = self._store.events(-1, 1)
        if last and last[0].event_id > self._store.cursor(OTLP):
            child = await asyncio.create_subprocess_exec(
                *engine_command(self._home, "engine.trace_export"), stdin=asyncio.subprocess.DEVNULL
            )
            if await child.wait() != 0:
                await asyncio.sleep(_SEND_AGAIN_SECONDS)
        self._sending = None

    def _upkeep(self) -> None:
        """At the start, and a few times a day for an engine that stays."""
        asyncio.get_running_loop().call_later(_UPKEEP_SECONDS, self._upkeep)
        _remove_spares(self._home)
        if self._runtime.config.flag("commands.auto_cleanup") and (as_of := self._runtime.confirmed_time()) is not None:
            gone = self._runtime.clean_up(as_of=as_of)
            log.info("removed %d tasks after their retention", len(gone))

    def _reload(self) -> None:
        """Take a changed config.toml over; a wrong one is said and changes nothing."""
        if (seen := stamp(self._home.config)) == self._config_seen:
            return
        self._config_seen = seen
        try:
            self._apply(load_config(self._home, self._runtime.environ, self._runtime.flags))
        except BackburnerError as error:
            log.warning("%s; the settings of before stay", error)

    def _apply(self, config: Config) -> None:
        self._runtime.config = config
        self._runner.cap = config.whole("commands.max_concurrent")
        self._runner.grace = config.number("commands.cancel_grace_seconds")
        self._executor.output_cap = config.whole("commands.output_cap_mb") << 20
        if self._idle_exit is not None:
            self._idle_exit = config.number("engine.idle_exit_seconds")


def _remove_spares(home: Home) -> None:
    """Logs that the dead had made in advance."""
    for name in os.listdir(home.root):
        pid = name.removeprefix(SPARE).partition("-")[0]
        if name.startswith(SPARE) and pid.isdecimal() and process.identify(int(pid)) is None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(home.root, name))


def take_lock(home: Home) -> int | None:
    """The home's engine lock; None where another engine has it and listens. Waits for one that is leaving."""
    deadline, deaf = time.monotonic() + _LOCK_SECONDS, time.monotonic() + _DEAF_SECONDS
    while time.monotonic() < deadline:
        if (held := lock(home.engine_lock)) is not None:
            os.ftruncate(held, 0)
            os.pwrite(held, f"{process.myself()}\n".encode(), 0)  # for people and `doctor`; the lock is what counts
            return held
        if wake.ring(home.bells, wake.ENGINE):
            return None
        if time.monotonic() > deaf and (other := engine_of(home)):
            process.send(other, signal.SIGUSR1)
            deaf = time.monotonic() + _DEAF_SECONDS
        time.sleep(0.02)
    raise EngineUnavailable("another engine holds the lock and does not listen", log=home.engine_log)


def serve(
    home: Home,
    environ: dict[str, str],
    flags: dict[str, str] | None = None,
    *,
    foreground: bool,
    start_lock: int | None = None,
    ready: Callable[[], None] | None = None,
) -> bool:
    """Be the engine until the end; False where another one is. `start_lock` is let go of once we listen."""
    from backburner.execution.command import CommandExecutor

    files = _prepare_process()
    home.make()
    held = take_lock(home)
    if held is None:
        _let_go(start_lock)
        if wake.ring(home.bells, wake.ENGINE):
            return False
        return serve(home, environ, flags, foreground=foreground)
    config_seen = stamp(home.config)
    runtime = open_runtime(home, environ, flags)
    executor = CommandExecutor(home, runtime.config.whole("commands.output_cap_mb") << 20, files)
    idle_exit = None if foreground else runtime.config.number("engine.idle_exit_seconds")

    async def main() -> None:
        engine = Engine(runtime, executor, idle_exit=idle_exit, config_seen=config_seen)
        listening = asyncio.Event()
        running = asyncio.create_task(engine.run(listening))
        await asyncio.wait({running, asyncio.create_task(listening.wait())}, return_when=asyncio.FIRST_COMPLETED)
        _let_go(start_lock)
        if ready:
            ready()
        await running
        executor.close()

    try:
        asyncio.run(main())
    finally:
        runtime.store.fold()
        runtime.close()
        os.close(held)
    return True


def _prepare_process() -> int:
    """Ignore no signal, because commands would inherit that, mark all we start, and take the room we may have; the limit to give to commands."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    process.mark_inside()
    signal.signal(signal.SIGUSR1, lambda *_: None)  # it may come before we listen; a handler is not inherited, as ignoring would be
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536) if hard != resource.RLIM_INFINITY else 65536, hard))
    return soft


def _let_go(start_lock: int | None) -> None:
    """Unlock the start lock that came as our input, also for the keeper who holds it too; /dev/null takes its place."""
    if start_lock is not None:
        fcntl.flock(start_lock, fcntl.LOCK_UN)
        empty = os.open(os.devnull, os.O_RDONLY)
        os.dup2(empty, start_lock)
        os.close(empty)


def main(arguments: list[str]) -> int:
    """`engine HOME [--lock-on-stdin]`, under its keeper. Exit 0 means: left on purpose, do not start again."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    home = Home(arguments[0])
    if not os.path.isdir(home.root):
        return 0  # the home was removed: nothing to come back for
    try:
        serve(home, dict(os.environ), foreground=False, start_lock=0 if "--lock-on-stdin" in arguments else None)
    except (HomeUnusable, EngineUnavailable) as error:
        log.error("%s", error)
        return 0
    except BackburnerError as error:
        log.error("%s", error)
        return 0 if error.exit_code == 2 else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
