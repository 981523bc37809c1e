"""Starts the engine of a home: takes the lock, opens the ledger, and runs passes until there is nothing left to do."""

import asyncio
import fcntl
import gc
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Callable

from backburner.coordination.daemon_process import DaemonProcess
from backburner.core.errors import BackburnerError, BadInput, EngineUnavailable, HomeUnusable, LedgerUnreachable
from backburner.core.queues import MAX_LABELS
from backburner.engine.engine import Engine
from backburner.engine.membership import Membership
from backburner.execution.lease_enforcer import LeaseFile
from backburner.services.daemon_parts import EngineParts, open_engine_parts
from backburner.system import processes, wakeups
from backburner.system.home import Home, lock
from backburner.system.processes import engine_of

log = logging.getLogger("backburner")
_LOCK_TIMEOUT = 10.0
_HEARTBEAT_INTERVAL = 5.0
_RECONNECT_INTERVAL = 1.0
_SOCKET_LOST_AFTER = 1.0  # seconds: an engine that holds the lock this long and cannot be woken has lost its socket


def take_lock(home: Home) -> int | None:
    """Take the home's engine lock; None if another engine holds it and listens. Waits for an engine that is exiting."""
    deadline, lost = time.monotonic() + _LOCK_TIMEOUT, time.monotonic() + _SOCKET_LOST_AFTER
    while time.monotonic() < deadline:
        if (held := lock(home.engine_lock)) is not None:
            os.ftruncate(held, 0)
            os.pwrite(held, f"{processes.myself()}\n".encode(), 0)  # only information for users and `doctor`; the lock decides
            return held
        if wakeups.wake(home.socket_dir, wakeups.ENGINE_SOCKET):
            return None
        if time.monotonic() > lost and (other := engine_of(home)):
            processes.send(other, signal.SIGUSR1)
            lost = time.monotonic() + _SOCKET_LOST_AFTER
        time.sleep(0.02)
    raise EngineUnavailable("another engine holds the lock but does not respond", log=home.engine_log)


def serve(
    home: Home,
    environ: dict[str, str],
    flags: dict[str, str] | None = None,
    *,
    foreground: bool,
    start_lock: int | None = None,
    ready: Callable[[], None] | None = None,
) -> bool:
    """Run the engine until it exits; False if another engine is running. `start_lock` is released once this engine listens."""
    from backburner.execution.command import CommandExecutor

    files = _prepare_process()
    home.make()
    held = take_lock(home)
    if held is None:
        _release_start_lock(start_lock)
        if wakeups.wake(home.socket_dir, wakeups.ENGINE_SOCKET):
            return False
        return serve(home, environ, flags, foreground=foreground)
    parts, membership = _open_parts(home, environ, flags, held)
    executor = CommandExecutor(
        home,
        parts.config.current.whole("commands.output_cap_mb") << 20,
        files,
        lambda: (parts.gate.support(), parts.config.current.listed("sandbox.pass_env")),
    )

    async def main() -> None:
        process = DaemonProcess(
            home,
            parts.config,
            idle_exit=lambda config: None if foreground else config.number("engine.idle_exit_seconds"),
            socket_name=wakeups.ENGINE_SOCKET,
        )
        listening = asyncio.Event()
        beating = asyncio.create_task(_beat(held))
        running = asyncio.create_task(process.run(Engine(parts, executor, process, membership), listening))
        await asyncio.wait({running, asyncio.create_task(listening.wait())}, return_when=asyncio.FIRST_COMPLETED)
        _release_start_lock(start_lock)
        if ready:
            ready()
        gc.freeze()  # what is loaded now stays, and need not be searched for garbage again and again
        await running
        beating.cancel()
        executor.close()

    try:
        asyncio.run(main())
    finally:
        parts.close()
        os.close(held)
    return True


def _open_parts(home: Home, environ: dict[str, str], flags: dict[str, str] | None, held: int) -> tuple[EngineParts, Membership | None]:
    """Open the home. If its ledger is on a server that does not answer, wait for it: runs whose end nobody has recorded may be waiting.

    If the ledger is shared by several hosts, this one enrols.
    """
    warned = False
    while True:
        try:
            parts = open_engine_parts(home, environ, flags)
            return parts, _enrolled(parts) if parts.host_id else None
        except LedgerUnreachable as error:
            if not warned:
                log.warning("%s; trying again every second", error)
            warned = True
        processes.record_heartbeat(held)
        time.sleep(_RECONNECT_INTERVAL)


def _enrolled(parts: EngineParts) -> Membership:
    from backburner.core.version import VERSION

    config = parts.config.current
    lease = LeaseFile(parts.home.lease)
    membership = Membership(
        parts.host_id,
        parts.hosts,
        parts.open_for_lease,
        parts.clock,
        lease=config.number("worker.lease_seconds"),
        lost_after=config.number("worker.lost_after_minutes") * 60,
        renewed=lease.extend,
    )
    if len(config.labels) > MAX_LABELS:
        raise BadInput(
            f"A host can have at most {MAX_LABELS} labels, with one for each of its projects; this one has {len(config.labels)}."
        )
    try:
        membership.enrol(
            lanes=config.labels,
            capacity=config.whole("worker.capacity") if config.labels else 0,
            version=VERSION,
            integrations=config.flag("worker.integrations"),
        )
    except BaseException:
        parts.close()
        raise
    return membership


async def _beat(held: int) -> None:
    """Show that the main loop runs, so that an engine that hangs is noticed and replaced."""
    while True:
        processes.record_heartbeat(held)
        await asyncio.sleep(_HEARTBEAT_INTERVAL)


def _prepare_process() -> int:
    """Reset ignored signals, tag child processes, and raise the limit of open files. Returns the previous limit, for commands."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    processes.mark_inside()
    signal.signal(signal.SIGUSR1, lambda *_: None)  # it may arrive before the engine listens; unlike SIG_IGN, a handler is not inherited
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536) if hard != resource.RLIM_INFINITY else 65536, hard))
    return soft


def _release_start_lock(start_lock: int | None) -> None:
    """Unlock the start lock, which is our standard input, also for the keeper that holds it too; replace it by /dev/null."""
    if start_lock is not None:
        fcntl.flock(start_lock, fcntl.LOCK_UN)
        empty = os.open(os.devnull, os.O_RDONLY)
        os.dup2(empty, start_lock)
        os.close(empty)


def main(arguments: list[str]) -> int:
    """`engine HOME [--lock-on-stdin]`, started by its keeper. Exit code 0 means that the keeper must not start it again."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    home = Home(arguments[0])
    if not os.path.isdir(home.root):
        return 0  # the home was removed: the keeper must not start it again
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
