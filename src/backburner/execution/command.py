"""Runs commands: a shim in its own session, whose output goes through a pipe and `cat` into output.log.

`launch` starts a Command that outlives this process; `attach` finds a running one by the files in its folder. What an end means
for the run is decided by the runner.
"""

import array
import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
import termios

from backburner.core import trace_context
from backburner.core.claims import ClaimedRun
from backburner.core.formatting import command_line, iso
from backburner.core.masking import hide_secrets
from backburner.core.models import ProcessId
from backburner.core.ports import TEMPORARY_ERRORS, CannotStart, Outcome, StartLater
from backburner.core.progress import summarize
from backburner.core.states import Result
from backburner.execution import shim
from backburner.execution.output_limit import OutputLimit
from backburner.execution.output_pipe import Child, OutputPipe, open_log, start_cat
from backburner.execution.ready_pattern import ReadyPattern
from backburner.execution.unapproved_environment import unapproved_environment
from backburner.system import processes, run_files, run_inspection
from backburner.system.file_watch import FileWatch
from backburner.system.home import SPARE_LOG_PREFIX, Home, is_locked
from backburner.system.log_file import NAME, Log, header

_KILL_TIMEOUT = 5.0  # seconds that processes may take to disappear after SIGKILL
_MIN_PORT_INTERVAL, _MAX_PORT_INTERVAL = 0.1, 1.0  # seconds between two checks of the ports of a command that is not ready
_SPARE_LOG_DELAY = 0.004  # seconds after a start, so that it does not delay that start
_DRAIN_TIMEOUT = 2.0  # seconds that output may take to arrive after the command's end, while a process still writes


class StillAlive(Exception):
    """Processes that survived SIGKILL because they are blocked in the kernel."""


class CommandExecutor:
    """Launches commands and takes over running ones for one home. Belongs to one event loop."""

    def __init__(self, home: Home, output_cap: int, files: int | None = None) -> None:
        self._home = home
        self._files = files
        self.output_cap = output_cap
        self._watch: FileWatch | None = None
        self._armed: dict[int, Command] = {}
        self._spare: OutputPipe | None = None
        self._preparing: asyncio.TimerHandle | None = None

    def launch(self, work: ClaimedRun) -> "Command":
        """Start the command; it survives the end of this process."""
        task, run, environment = work
        folder = self._home.folder(run.folder)
        env = {**(unapproved_environment(task, environment, self._home.root) if task.is_unapproved else environment), **task.spec.env}
        self._check(work, env.get("PATH", os.defpath))
        env |= {
            "BACKBURNER_TASK_ID": task.task_id,
            "BACKBURNER_RUN_ID": run.run_id,
            "BACKBURNER_HOME": self._home.root,
            "BACKBURNER_RUN_DIR": os.path.join(folder, run_files.WORK),
            "BACKBURNER_PROGRESS": os.path.join(folder, run_files.WORK, run_inspection.PROGRESS),
            processes.TAG_VARIABLE: run.process_tag,
            trace_context.VARIABLE: trace_context.traceparent(run.trace_id, run.span_id),
        }
        if "PWD" in env:
            env["PWD"] = task.spec.cwd
        stream = None
        try:
            run_files.make(folder)
            env |= run_files.write_inputs(self._home, run, self.output_cap)
            env = shim.prepare(folder, task, env, self._files)
            stream = self._stream(os.path.join(folder, NAME))
            os.write(stream.log, log_header(work))
            leader = self._spawn(folder, stream.writer, task.spec.cwd, env)
        except OSError as error:
            if stream:
                stream.abandon()
            if error.errno in TEMPORARY_ERRORS:
                raise StartLater(error.strerror) from None
            raise CannotStart(f"{hide_secrets(task.spec.command.words[0])} could not be started: {error.strerror or error}") from None
        stream.close()
        found = processes.identify(leader.pid)
        command = Command(self, folder, run.process_tag, found or ProcessId(leader.pid, "0", processes.boot_id()))
        command.hold(leader, stream.cat, stream.reader)
        self.watch(command)
        if self._preparing is None:
            self._preparing = asyncio.get_running_loop().call_later(_SPARE_LOG_DELAY, self._prepare)
        return command

    def _spawn(self, folder: str, writer: int, cwd: str, env: dict[str, str]) -> Child:
        """Start the shim; its script stays locked while the shim runs."""
        script = os.open(os.path.join(folder, shim.SCRIPT), os.O_RDONLY)
        try:
            fcntl.flock(script, fcntl.LOCK_EX)
            return Child(
                ["sh", "-s", "backburner"], executable="/bin/sh", stdin=script, stdout=writer, stderr=writer, cwd=cwd, env=env, start_new_session=True
            )  # fmt: skip
        finally:
            os.close(script)

    def _stream(self, path: str) -> OutputPipe:
        """A pipe into a log at this path: the spare one that was created in advance, or a new one."""
        spare, self._spare = self._spare, None
        if spare and spare.cat.poll() is None:
            try:
                os.rename(spare.path, path)
                return spare
            except OSError:  # try a new one instead
                spare.abandon()
        elif spare:
            spare.abandon()
        return OutputPipe(path)

    def _prepare(self) -> None:
        """Create a log and its `cat` for the next command in advance, because starting two processes back to back is slow."""
        self._preparing = None
        if self._spare is None:
            with contextlib.suppress(OSError):  # the next command creates its own
                self._spare = OutputPipe(os.path.join(self._home.root, f"{SPARE_LOG_PREFIX}{os.getpid()}-{os.urandom(4).hex()}"))

    def attach(self, work: ClaimedRun) -> "Command | None":
        """Find a command that another process launched; None if it never started."""
        folder = self._home.folder(work.run.folder)
        alive = is_locked(os.path.join(folder, shim.SCRIPT))
        same_boot = work.run.owner is None or work.run.owner.boot == processes.boot_id()
        leader = work.run.process
        if not same_boot or (leader and leader.boot != processes.boot_id()):
            return Command(self, folder, work.run.process_tag, None, rebooted=True)
        if not alive and not shim.has_begun(folder) and not processes.members(leader, work.run.process_tag):
            return None
        if leader is None:
            # Its owner died before it recorded the process: the shim is the tagged process that leads a session.
            tagged = processes.members(None, work.run.process_tag)
            leader = next((member for member in tagged if _leads_session(member.pid)), None)
        command = Command(self, folder, work.run.process_tag, leader)
        self.watch(command)
        return command

    def _check(self, work: ClaimedRun, path: str) -> None:
        task = work.task
        if not os.path.isdir(task.spec.cwd):
            raise CannotStart(f"the working directory {task.spec.cwd} no longer exists")
        if not task.spec.command.shell and not processes.executable_of(task.spec.command.words[0], task.spec.cwd, path):
            name = task.spec.command.words[0]
            exists = os.path.exists(os.path.join(task.spec.cwd, name)) and "/" in name
            raise CannotStart(f"{name}: {'cannot be executed' if exists else 'command not found'}", 126 if exists else 127)

    # -- limiting the size of logs

    def watch(self, command: "Command") -> None:
        """Check the command's log whenever it grows, while the command is open."""
        if self._watch is None:
            self._watch = FileWatch()
            if self._watch.works:
                asyncio.get_running_loop().add_reader(self._watch.fileno(), self._on_log_growth)
        self._check_log(command)

    def _check_log(self, command: "Command") -> None:
        if command.closed:
            return
        command.grew.set()
        loop = asyncio.get_running_loop()
        try:
            delay = command.cap.check()
        except OSError:
            delay = 1.0
        loop.call_later(delay, self._arm, command)

    def _arm(self, command: "Command") -> None:
        if command.closed or self._watch is None:
            return
        number = self._watch.arm(command.cap.path)
        if number < 0:
            asyncio.get_running_loop().call_later(0.25, self._check_log, command)
        elif command.cap.has_changed():  # before the watch was armed
            self._check_log(command)
        else:
            self._armed[number] = command

    def _on_log_growth(self) -> None:
        for number in self._watch.fired() if self._watch else ():
            if command := self._armed.pop(number, None):
                self._check_log(command)

    def close(self) -> None:
        """Release all resources; the commands continue."""
        if self._preparing:
            self._preparing.cancel()
        if self._spare:
            self._spare.abandon()
            self._spare = None
        if self._watch and self._watch.works:
            asyncio.get_running_loop().remove_reader(self._watch.fileno())
            self._watch.close()


class Command:
    """A running command. `process` is the shim that leads its session, None if it could not be found."""

    def __init__(
        self, executor: CommandExecutor, folder: str, process_tag: str, leader: ProcessId | None, *, rebooted: bool = False
    ) -> None:
        self.process = leader
        self.closed = False
        self.grew = asyncio.Event()  # set when the log has grown
        self.cap = OutputLimit(folder, executor.output_cap, None)
        self._folder, self._process_tag, self._rebooted = folder, process_tag, rebooted
        self._limit = executor.output_cap
        self._leader: Child | None = None
        self._cat: Child | None = None
        self._reader: int | None = None
        self._drain: Child | None = None

    def hold(self, leader: Child, cat: Child, reader: int) -> None:
        """Keep what only the launching process has: the child processes, and the read end of the pipe for the case that `cat` fails."""
        self._leader, self._cat, self._reader = leader, cat, reader
        self.cap = OutputLimit(self._folder, self._limit, cat.pid)

    async def ended(self) -> Outcome:
        """Wait for the end of the command itself; its descendants may continue."""
        guard = asyncio.create_task(self._guard_output()) if self._cat else None
        try:
            if self._leader:
                await _wait_for_child(self._leader)
            elif self.process:
                await _wait_for_exit(self.process)
            code = run_files.exit_code(self._folder)
            if code is None and not self._rebooted:
                # between fork and exec a shim holds its lock but does not have the tag in its environment yet
                while self.process is None and is_locked(os.path.join(self._folder, shim.SCRIPT)):
                    await asyncio.sleep(0.05)
                while left := processes.members(self.process, self._process_tag):
                    await _wait_for_exit(left[0])
                code = run_files.exit_code(self._folder)
            if code is None:
                cause = "the machine was restarted" if self._rebooted else "its supervisor was killed"
                return Outcome(Result.LOST, None, f"its end was not observed: {cause} while it ran")
            await self._wait_for_output()
            error = "part of its output is missing: it could not be written" if self._drain else None
            return Outcome(Result.EXIT, code, error, None if self._leader else shim.ended_at(self._folder))
        finally:
            if guard:
                guard.cancel()

    async def ready(self, when: str) -> bool:
        """Wait until it listens on a port or prints a line that matches, as `when` says; False if that can never be determined."""
        if when.isdecimal():
            interval = _MIN_PORT_INTERVAL
            while int(when) not in run_inspection.ports(self.process, self._process_tag):
                await asyncio.sleep(interval)
                interval = min(interval * 1.5, _MAX_PORT_INTERVAL)
            return True
        lines = ReadyPattern(self._folder, when)
        while (found := lines.check()) is False:
            if lines.more:
                await asyncio.sleep(0)
                continue
            self.grew.clear()
            await self.grew.wait()
        return found is True

    async def stop(self, grace: float) -> Outcome | None:
        """Send SIGTERM to all its processes, SIGKILL after `grace` seconds, and wait until none is left; None if it had already ended."""
        if run_files.exit_code(self._folder) is not None:
            return None
        killed = False
        if await self._signal_until_gone(signal.SIGTERM, grace):
            killed = True
            if left := await self._signal_until_gone(signal.SIGKILL, _KILL_TIMEOUT):
                raise StillAlive(", ".join(str(member.pid) for member in left))
        if self._leader:
            self._leader.wait()
        await self._wait_for_output()
        code = run_files.exit_code(self._folder)
        return Outcome(Result.SIGNAL, 137) if killed or code is None else Outcome(Result.EXIT, code)

    async def _signal_until_gone(self, number: int, seconds: float) -> list[ProcessId]:
        """Signal every process of the run and wait for them to exit; returns those that are left after `seconds`."""
        loop = asyncio.get_running_loop()
        deadline, pause, signalled, continued = loop.time() + seconds, 0.002, set(), set()
        group = self.process.pid if self.process and processes.send_group(self.process, number) else None
        while left := processes.members(self.process, self._process_tag):
            for member in left:
                reached = member in signalled or (group is not None and _group_of(member.pid) == group)
                if number == signal.SIGKILL or not reached:
                    processes.send(member, number)
                    signalled.add(member)
                if member not in continued:
                    processes.send(member, signal.SIGCONT)  # a stopped process does not handle SIGTERM
                    continued.add(member)
            if self._leader:
                self._leader.poll()
            remaining = deadline - loop.time()
            if remaining <= 0:
                return left
            await asyncio.sleep(min(pause, remaining))
            pause = min(pause * 2, 0.1)
        return []

    def close(self) -> tuple[str | None, int | None]:
        """Finish the log and release all resources; returns its summary and its number of lines."""
        self.closed = True
        for child in (self._cat, self._drain):
            if child:
                child.poll()
        if self._reader is not None:
            os.close(self._reader)
            self._reader = None
        try:
            if not is_locked(self.cap.path):
                self.cap.finish()
            with Log(self._folder) as log:
                return summarize(log.tail(400, longest=1 << 16).decode("utf-8", "replace")), log.count_lines()
        except OSError:
            return None, None

    @property
    def log_size(self) -> int:
        try:
            return os.stat(self.cap.path).st_size
        except OSError:
            return 0

    async def _wait_for_output(self) -> None:
        """Wait until `cat` has written everything: it has exited, or only waits for a descendant that keeps the pipe open."""
        pause, waited, empty = 0.0005, 0.0, 0
        while is_locked(self.cap.path) and waited < _DRAIN_TIMEOUT and empty < 3:
            size = self.log_size
            await asyncio.sleep(pause)
            waited += pause
            if pause >= 0.01:
                empty = empty + 1 if self._bytes_in_pipe() == 0 and self.log_size == size else 0
            pause = min(pause * 2, 0.02)

    def _bytes_in_pipe(self) -> int:
        if self._reader is None:
            return 0
        waiting = array.array("i", [0])
        fcntl.ioctl(self._reader, termios.FIONREAD, waiting)
        return waiting[0]

    async def _guard_output(self) -> None:
        """Start another `cat` if it is killed, or discard the output if the disk is full: a broken pipe would kill the command."""
        while self._cat and self._reader is not None:
            code = await _wait_for_child(self._cat)
            if code == 0 or self.closed:
                return
            if code > 0:
                self._drain = start_cat(self._reader, subprocess.DEVNULL)
                return
            log = open_log(self.cap.path)
            self._cat = start_cat(self._reader, log)
            self.cap.writer = self._cat.pid
            os.close(log)


def log_header(work: ClaimedRun) -> bytes:
    """The first lines of a log: what runs, and who approved it."""
    task, run, _ = work
    command = command_line(task.spec.command.words, task.spec.command.shell)
    approved = f"{task.decision.by} at {iso(task.decision.at)} via {task.decision.via} (rule: {task.decision.rule or 'none'}; {'; '.join(task.decision.reasons)})"
    return header({"Background task": run.run_id, "Command": command, "Approved by": approved, "Started": iso(run.started_at) or ""})


async def _wait_for_child(child: Child) -> int:
    """Wait for a child process to exit. Its pid cannot be reused until it is reaped, so no identity check is needed."""
    if child.returncode is None and hasattr(os, "pidfd_open"):
        await _wait_until_readable(os.pidfd_open(child.pid))
    while child.poll() is None:
        await asyncio.sleep(0.05)
    return child.wait()


async def _wait_until_readable(descriptor: int) -> None:
    """Wait until a descriptor is readable, and close it."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    loop.add_reader(descriptor, lambda: done.done() or done.set_result(None))
    try:
        await done
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


async def _wait_for_exit(process_id: ProcessId) -> None:
    """Wait for a process to exit that need not be a child of this one."""
    if not hasattr(os, "pidfd_open"):
        while processes.is_alive(process_id):
            await asyncio.sleep(0.1)
        return
    try:
        descriptor = os.pidfd_open(process_id.pid)
    except ProcessLookupError:
        return
    if not processes.is_alive(process_id):
        os.close(descriptor)
        return
    await _wait_until_readable(descriptor)


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def _leads_session(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False
