"""Runs commands: a shim in its own session, whose output the log writer moves from a pipe to output.log.

`launch` starts a Command that outlives this process; `attach` finds a running one by the files in its folder. What an end means
for the run is decided by the runner.
"""

import asyncio
import fcntl
import functools
import os
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress

from backburner.core import trace_context
from backburner.core.claims import ClaimedRun, LogEnd
from backburner.core.formatting import command_line, iso
from backburner.core.masking import hide_secrets
from backburner.core.models import SANDBOX, ProcessId, Run, Task
from backburner.core.ports import TEMPORARY_ERRORS, CannotStart, Outcome, StartLater
from backburner.core.progress import summarize
from backburner.core.sandbox import Level, Network, Support, sandbox_from
from backburner.core.states import Result
from backburner.execution import lease_enforcer, sandbox_ending, sandbox_starter, shim
from backburner.execution.log_writer import COMPLETE, INSIDE, OPEN
from backburner.execution.output_limit import OutputLimit
from backburner.execution.output_pipe import Child, LogWriterProcess, OutputPipe, new_pipe, pipe_of
from backburner.execution.ready_pattern import ReadyPattern
from backburner.execution.sandbox import Confinement, Request, confine, in_memory
from backburner.execution.starter_process import StarterProcess
from backburner.system import log_file, processes, run_files, run_inspection
from backburner.system.file_watch import FileWatch
from backburner.system.home import Home, create, is_locked, write_all
from backburner.system.log_file import NAME, Log, header
from backburner.system.restricted_thread import call_restricted
from backburner.system.sandbox_support import find_support

_KILL_TIMEOUT = 5.0  # seconds that processes may take to disappear after SIGKILL
_MIN_LOG_INTERVAL, _MAX_LOG_INTERVAL = 0.02, 0.25  # seconds between two checks of the log of a command that is not ready
_MIN_PORT_INTERVAL, _MAX_PORT_INTERVAL = 0.1, 1.0  # seconds between two checks of the ports of a command that is not ready
_MAX_KEPT_TEXT = 1 << 17  # bytes of the beginning and the end of a log that are read for its summary and its notice
_NO_NAMESPACE = "it may run again elsewhere (--rerun), but this host cannot end all its processes at once, which needs bubblewrap"
_OUTPUT_TIMEOUT = 2.0  # seconds that output may take to arrive after the end of a command whose shim was killed


class StillAlive(Exception):
    """Processes that survived SIGKILL because they are blocked in the kernel."""


class CommandExecutor:
    """Launches commands and takes over running ones for one home. Belongs to one event loop."""

    def __init__(
        self,
        home: Home,
        output_cap: int,
        files: int | None = None,
        sandboxes: Callable[[], tuple[Support, tuple[str, ...]]] | None = None,
    ) -> None:
        """`sandboxes` returns what the machine offers, and the variables that are passed on to sandboxed commands."""
        self._home = home
        self._sandboxes = sandboxes or (lambda: (find_support(home), ()))
        self._files = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if files is None else files
        self.output_cap = output_cap
        self._watch: FileWatch | None = None
        self._armed: dict[int, Command] = {}
        self._reading: asyncio.Task[processes.ProcessTable] | None = None
        self.log_writer = LogWriterProcess(home)
        self._starter = StarterProcess(home)

    def launch(self, work: ClaimedRun) -> "Command":
        """Start the command; it survives the end of this process."""
        task, run, environment = work
        folder, environ = self._home.folder(run.folder), {**environment, **task.spec.env}
        if task.is_unapproved and run.sandbox is None:
            raise CannotStart("nobody approved it, and it has no sandbox")  # never: it was checked before
        self._check(work, environ.get("PATH", os.defpath))
        own = {
            "BACKBURNER_TASK_ID": task.task_id,
            "BACKBURNER_RUN_ID": run.run_id,
            "BACKBURNER_HOME": self._home.root,
            "BACKBURNER_RUN_DIR": f"{folder}/{run_files.WORK}",
            "BACKBURNER_PROGRESS": f"{folder}/{run_files.WORK}/{run_inspection.PROGRESS}",
            processes.TAG_VARIABLE: run.process_tag,
            trace_context.VARIABLE: trace_context.traceparent(run.trace_id, run.span_id),
        }
        log, pipe, confinement = f"{folder}/{NAME}", None, None
        theirs: list[int] = []  # the shim's standard streams
        try:
            run_files.make(folder)
            own |= run_files.write_inputs(self._home, run, self.output_cap)
            own["PYTHONUNBUFFERED"] = environ.get("PYTHONUNBUFFERED", "1")  # so that lines are in the log at once
            if "PWD" in environment:
                own["PWD"] = task.spec.cwd
            by_starter = self._uses_starter(work)
            confinement = self._confine(work, own, by_starter=by_starter) if run.sandbox and task.is_unapproved else None
            if confinement and by_starter:
                if pipe := self._start_inside(work, confinement):
                    return Command(self, work, None, pipe, ends_whole=True)
                confinement.close()
                confinement = self._confine(work, own)
            env = confinement.environment if confinement else {**environ, **own}
            sandbox = (confinement.prefix, confinement.redirects, confinement.kept) if confinement else ((), "", "")
            enforcer: tuple[str, ...] = ()
            if task.spec.order.rerun and run.host:
                enforcer, prefix = self._enforce_lease(run, folder, sandbox[0])
                sandbox = (prefix, *sandbox[1:])
            script, env = shim.prepare(folder, task, env, self.output_cap, self._files, sandbox, enforcer)
            theirs.append(script)
            pipe, *ends = new_pipe(log, self.output_cap)
            theirs += ends
            child = self._spawn(log_header(work), pipe, theirs, task.spec.cwd, env, confinement)
        except OSError as error:
            if pipe:
                self.log_writer.remove(pipe)
            raise start_error(task, error) from None
        finally:
            for descriptor in theirs:
                os.close(descriptor)
            if confinement:
                confinement.close()
        return Command(self, work, None, pipe, child)

    def _enforce_lease(self, run: Run, folder: str, prefix: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The words that end a command, with everything it has started, when the lease of this host is over; and those of its sandbox.

        Its process namespace ends with its first process, and that with the process that enforces the lease.
        """
        bubblewrap = find_support(self._home).bubblewrap
        if bubblewrap is None or (prefix and sandbox_from(str(run.sandbox)).processes):
            raise CannotStart(_NO_NAMESPACE)
        marks = [f"{folder}/{name}" for name in (run_files.LEASE_OVER, run_files.ENFORCED)]
        for mark in marks:
            with suppress(FileNotFoundError):
                os.unlink(mark)
        enforcer = (sys.executable, "-IS", lease_enforcer.__file__, self._home.lease, *marks)
        if prefix:
            return enforcer, (prefix[0], "--die-with-parent", *prefix[1:])
        namespace = ("--die-with-parent", "--unshare-pid", "--dev-bind", "/", "/", "--proc", "/proc", "--")
        return (*enforcer, bubblewrap, *namespace), ()

    def _confine(self, work: ClaimedRun, own: dict[str, str], *, by_starter: bool = False) -> Confinement:
        """Prepare the sandbox of a run. `own` are the variables that Backburner sets."""
        task, run, environment = work
        support, passed = self._sandboxes()
        request = Request(
            sandbox_from(str(run.sandbox)),
            self._home,
            self._home.folder(run.folder),
            task.spec.cwd,
            environment,
            task.spec.env,
            own,
            passed,
        )
        return confine(request, support, by_starter=by_starter)

    def _uses_starter(self, work: ClaimedRun) -> bool:
        """Whether the sandbox starter can start this command now; bubblewrap does what it cannot do."""
        task, run = work.task, work.run
        if not (run.sandbox and task.is_unapproved) or shim.needs_bubblewrap(task) or (task.spec.order.rerun and run.host):
            return False
        sandbox = sandbox_from(run.sandbox)
        is_separate = sandbox.level is Level.FULL and sandbox.network is Network.NONE and not sandbox.processes
        return is_separate and self._starter.is_ready

    def _spawn(
        self, header: bytes, pipe: OutputPipe, streams: list[int], cwd: str, env: dict[str, str], confinement: Confinement | None
    ) -> Child | None:
        """Start the shim; its script stays locked while the shim runs. None if the log writer starts it."""
        passed = {descriptor: descriptor for descriptor in confinement.files} if confinement else {}
        needs_log = confinement is not None and confinement.rules is not None  # rules are for files that exist
        fcntl.flock(streams[0], fcntl.LOCK_EX)
        if needs_log:
            write_all(create(pipe.log), header)
        with confinement.restriction() if confinement else nullcontext() as restriction:
            if self.log_writer.start(pipe, b"" if needs_log else header, streams, cwd, env, passed, restriction):
                return None
            if not needs_log:
                write_all(create(pipe.log), header)

            def start() -> Child:
                script, writer, answers = streams
                return Child(
                    ["sh", "-s", "backburner"],
                    executable="/bin/sh",
                    stdin=script,
                    stdout=writer,
                    stderr=answers,
                    cwd=cwd,
                    env=env,
                    start_new_session=True,
                    pass_fds=tuple(passed),
                )

            child = call_restricted(restriction, start) if restriction else start()
        self.log_writer.add(pipe)  # not before, because the command need not wait for it
        return child

    def _start_inside(self, work: ClaimedRun, confinement: Confinement) -> OutputPipe | None:
        """Have the sandbox starter start the shim of the command. None if it cannot do this now."""
        folder = self._home.folder(work.run.folder)
        if not shim.can_export(confinement.variables):
            return None
        pipe, *opened = new_pipe(f"{folder}/{NAME}", self.output_cap)
        pipe.kind, pipe.header = INSIDE, log_header(work)
        try:
            request = self._starter.request(pipe, sandbox_from(str(work.run.sandbox)).project, confinement)
            if request is not None:
                output, report = opened
                opened.append(commands := in_memory(shim.inside_script(work.task, self._files, confinement.variables), sealed=True))
                opened.append(exit_file := shim.prepare_inside(folder, confinement.kept))
                fcntl.flock(exit_file, fcntl.LOCK_EX)  # until the request was handled
                streams = sandbox_starter.Streams(report, pipe.shim, pipe.reader, output, commands, exit_file)
                if self._starter.start(pipe, request, streams, confinement.files):
                    assert pipe.start
                    pipe.start.on_gone = functools.partial(self.log_writer.end, pipe)
                    return self.log_writer.add(pipe)
            pipe.close()
            return None
        except OSError:
            pipe.close()
            raise
        finally:
            for descriptor in opened:
                os.close(descriptor)

    def attach(self, work: ClaimedRun) -> "Command | None":
        """Find a command that another process launched; None if it never started."""
        folder = self._home.folder(work.run.folder)
        alive = is_locked(os.path.join(folder, run_files.EXIT))
        same_boot = work.run.owner is None or work.run.owner.boot == processes.boot_id()
        leader = work.run.process
        if not same_boot or (leader and leader.boot != processes.boot_id()):
            return Command(self, work, None, None, rebooted=True)
        if not alive and not shim.has_begun(folder) and not processes.members(leader, work.run.process_tag):
            return None
        command = Command(self, work, leader, None)
        command.find_shim()
        return command

    def _check(self, work: ClaimedRun, path: str) -> None:
        task = work.task
        if not os.path.isdir(task.spec.cwd):
            raise CannotStart(f"the working directory {task.spec.cwd} no longer exists")
        if not task.spec.command.shell and not processes.can_execute(task.spec.command.words[0], task.spec.cwd, path):
            name = task.spec.command.words[0]
            exists = os.path.exists(os.path.join(task.spec.cwd, name)) and "/" in name
            hint = " (use --shell for a shell command line)" if " " in name and not exists else ""
            raise CannotStart(f"{name}: {'cannot be executed' if exists else 'command not found'}{hint}", 126 if exists else 127)

    def folder(self, run: Run) -> str:
        return self._home.folder(run.folder)

    async def members(self, leader: ProcessId | None, process_tag: str) -> list[ProcessId]:
        """The processes of a run. Commands that are stopped at the same time share one look at all processes."""
        if not processes.HAS_PROC:
            return processes.members(leader, process_tag)
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._read_processes())
        return (await asyncio.shield(self._reading)).members(leader, process_tag)

    async def _read_processes(self) -> processes.ProcessTable:
        self._reading = None  # who asks from now on needs a newer one
        return processes.ProcessTable()

    # -- watching logs for the line that says that a command is ready

    def watch(self, command: "Command") -> None:
        """Set `command.grew` whenever its log grows, while the command is open."""
        if self._watch is None:
            self._watch = FileWatch()
            if self._watch.works:
                asyncio.get_running_loop().add_reader(self._watch.fileno(), self._on_log_growth)
        self._arm(command)

    def _arm(self, command: "Command") -> None:
        if command.closed or self._watch is None:
            return
        number = self._watch.arm(command.log)
        command.grew.set()  # it may have grown before the watch was armed
        if number < 0:
            asyncio.get_running_loop().call_later(_MAX_LOG_INTERVAL, self._arm, command)
        else:
            self._armed[number] = command

    def _on_log_growth(self) -> None:
        for number in self._watch.fired() if self._watch else ():
            if command := self._armed.pop(number, None):
                asyncio.get_running_loop().call_later(_MIN_LOG_INTERVAL, self._arm, command)

    def close(self) -> None:
        """Release all resources; the commands continue."""
        self.log_writer.close()
        self._starter.close()
        if self._watch and self._watch.works:
            asyncio.get_running_loop().remove_reader(self._watch.fileno())
            self._watch.close()


class Command:
    """A running command. `process` is the shim that leads its session; None if it could not be found."""

    def __init__(
        self,
        executor: CommandExecutor,
        work: ClaimedRun,
        process: ProcessId | None,
        pipe: OutputPipe | None,
        child: Child | None = None,
        *,
        rebooted: bool = False,
        ends_whole: bool = False,
    ) -> None:
        """`ends_whole`: with the command, everything that it has started ends by itself."""
        self._process = process
        self.closed = False
        self.grew = asyncio.Event()  # set when the log has grown
        self._executor, self._task, self._process_tag = executor, work.task, work.run.process_tag
        self._path = work.task.spec.env.get("PATH", work.environment.get("PATH", os.defpath))
        self._sandbox = sandbox_from(work.run.sandbox) if work.run.sandbox and work.task.is_unapproved else None
        self._folder = executor.folder(work.run)
        self.log = f"{self._folder}/{NAME}"
        self._pipe, self._child, self._rebooted, self._ends_whole = pipe, child, rebooted, ends_whole
        self._header = functools.partial(log_header, work)
        self._start = pipe.start if pipe else None

    @property
    def process(self) -> ProcessId | None:
        """The shim. Its start time is read when it is first needed: that takes long while it starts, and many commands end before."""
        if self._process is None and self._start:
            self._process = self._start.process
        if self._process is None and self._child:
            found = processes.identify(self._child.pid) if self._child.returncode is None else None
            self._process = found or ProcessId(self._child.pid, "0", processes.boot_id())
        return self._process

    @property
    def _is_inside(self) -> bool:
        """Whether the shim is in the sandbox, where the command could report an exit code before its end."""
        return self._pipe is not None and self._pipe.kind == INSIDE

    @property
    def is_starting(self) -> bool:
        return self._start is not None and not self._start.started.is_set()

    def find_shim(self) -> None:
        """Find the shim if its owner died before it recorded it: the tagged process that leads a session; and the pipe that it holds."""
        if self.process is None:
            tagged = processes.members(None, self._process_tag)
            self._process = next((member for member in tagged if _leads_session(member.pid)), None)
        if self._pipe is None and (pipe := pipe_of(self.process, self.log, self._executor.output_cap, self._header())):
            self._pipe = self._executor.log_writer.add(pipe)

    async def ended(self) -> Outcome:
        """Wait for the end of the command itself; its descendants may continue, except in a sandbox."""
        return await self._leave_sandbox(await self._ended())

    async def _leave_sandbox(self, outcome: Outcome) -> Outcome:
        """End what is left in the sandbox, and look at what the command has done."""
        if self._sandbox is None or self._rebooted:
            return outcome
        if self._ends_whole and not (self._start and self._start.is_gone):  # its end was not observed, or only pretended
            await asyncio.to_thread(processes.end_all, self.process, self._process_tag)
        elif self._sandbox.level is Level.FULL and not self._ends_whole:
            sandbox_ending.end_processes(self._folder, self._process_tag)
        if sandbox_ending.is_plain(self._sandbox, outcome.exit_code):
            return outcome
        found = await asyncio.to_thread(sandbox_ending.finish, self._sandbox, self._task, self._folder, outcome.exit_code, self._path)
        outcome = outcome._replace(notes=found.notes)
        if found.reason is None or outcome.error:
            return outcome
        return outcome._replace(error=f"it may have failed because of the sandbox: {found.reason}", problem=SANDBOX)

    async def _ended(self) -> Outcome:
        if not await self._reported():
            if self._child:
                await _wait_for_child(self._child)
            elif self.process:
                await _wait_for_exit(self.process)
                if self._pipe and self._is_inside:  # with the first process of a sandbox, everything in it has ended
                    self._executor.log_writer.end(self._pipe)
        reported = self._start.exit_file if self._start else None
        found = reported or run_files.exit_file(self._folder)
        if found.code is None and not self._rebooted:
            # a shim that is being started holds its lock but does not have the tag in its environment yet
            while self.process is None and is_locked(os.path.join(self._folder, run_files.EXIT)):
                await asyncio.sleep(0.05)
                self.find_shim()
            if self.process is None:
                self.find_shim()  # it may have begun just before
            while left := processes.members(self.process, self._process_tag):
                await _wait_for_exit(left[0])
            found = run_files.exit_file(self._folder)
            if not found.text and os.path.exists(os.path.join(self._folder, run_files.EXIT)):
                if self._pipe:
                    self._executor.log_writer.remove(self._pipe)  # the next start has another one
                raise StartLater("a process of Backburner was killed before it had started the command")
        if found.code is not None and os.path.exists(os.path.join(self._folder, run_files.ENFORCED)):
            await self._end_unenforced()
            return Outcome(Result.LOST, None, "its end was not observed: the process that enforced the lease of its host was killed")
        complete = self._rebooted or await self._wait_for_output(found.output)
        missing = "" if complete else "part of its output may be missing: its supervisor and the log writer were killed"
        if found.code is None:
            cause = "the machine was restarted" if self._rebooted else "its supervisor was killed"
            return Outcome(Result.LOST, None, "; ".join(filter(None, (f"its end was not observed: {cause} while it ran", missing))))
        return Outcome(Result.EXIT, found.code, missing or None, None if self._child else found.changed_at)

    async def _end_unenforced(self) -> None:
        """End what is left of a command whose lease nobody enforces any more, so that it has ended before it runs again."""
        while left := [member for member in processes.members(self.process, self._process_tag) if member != self.process]:
            for member in left:
                processes.send(member, signal.SIGKILL)
            await _wait_for_exit(left[0])

    async def _reported(self) -> bool:
        """Wait for the log writer's report of the end; False if it did not start the command, or was killed."""
        if self._start is None:
            return False
        await self._start.ended.wait()
        await self._has_started()
        return self._start.is_end_reported

    async def _has_started(self) -> None:
        """Wait until the log writer has started the shim, if it was asked to; CannotStart or StartLater if it could not."""
        if self._start:
            await self._start.started.wait()
            if self._start.error:
                raise start_error(self._task, self._start.error)

    async def ready(self, when: str) -> bool:
        """Wait until it listens on a port or prints a line that matches, as `when` says; False if that can never be determined."""
        if when.isdecimal():
            interval = _MIN_PORT_INTERVAL
            while int(when) not in run_inspection.ports(self.process, self._process_tag):
                await asyncio.sleep(interval)
                interval = min(interval * 1.5, _MAX_PORT_INTERVAL)
            return True
        lines = ReadyPattern(self._folder, when)
        self._executor.watch(self)
        while (found := lines.check()) is False:
            if lines.more:
                await asyncio.sleep(0)
                continue
            self.grew.clear()
            await self.grew.wait()
        return found is True

    async def stop(self, grace: float) -> Outcome | None:
        """Send SIGTERM to all its processes, SIGKILL after `grace` seconds, and wait until none is left; None if it had already ended."""
        await self._has_started()
        if run_files.exit_code(self._folder) is not None and not (
            self._is_inside and await self._executor.members(self.process, self._process_tag)
        ):
            return None
        killed = False
        if await self._signal_until_gone(signal.SIGTERM, grace):
            killed = True
            if left := await self._signal_until_gone(signal.SIGKILL, _KILL_TIMEOUT):
                raise StillAlive(", ".join(str(member.pid) for member in left))
        if self._child:
            self._child.wait()
        await self._wait_for_output()
        code = run_files.exit_code(self._folder)
        return await self._leave_sandbox(Outcome(Result.SIGNAL, 137) if killed or code is None else Outcome(Result.EXIT, code))

    async def _signal_until_gone(self, number: int, seconds: float) -> list[ProcessId]:
        """Signal every process of the run and wait for them to exit; returns those that are left after `seconds`."""
        loop = asyncio.get_running_loop()
        deadline, pause, signalled, continued = loop.time() + seconds, 0.002, set(), set()
        in_sandbox = self._sandbox is not None and self._sandbox.level is Level.FULL
        group = self.process.pid if not in_sandbox and self.process and processes.send_group(self.process, number) else None
        while left := await self._executor.members(self.process, self._process_tag):
            # The outermost process of a sandbox reports to the shim how the command ended; it ends by itself.
            monitor = sandbox_ending.monitor_of(left) if in_sandbox and len(left) > 1 else None
            for member in left:
                reached = member in signalled or (group is not None and _group_of(member.pid) == group)
                if member != monitor and (number == signal.SIGKILL or not reached):
                    processes.send(member, number)
                    signalled.add(member)
                if member not in continued:
                    processes.send(member, signal.SIGCONT)  # a stopped process does not handle SIGTERM
                    continued.add(member)
            if self._child:
                self._child.poll()
            remaining = deadline - loop.time()
            if remaining <= 0:
                return left
            await asyncio.sleep(min(pause, remaining))
            pause = min(pause * 2, 0.1)
        return []

    def close(self) -> LogEnd:
        """Finish the log and release all resources."""
        self.closed = True
        try:
            if (output := log_file.small_output(self._folder, min(_MAX_KEPT_TEXT, self._executor.output_cap))) is not None:
                text = output.decode("utf-8", "replace")
                lines = output.count(b"\n") + (output[-1:] not in (b"\n", b""))
                return LogEnd(summarize(text[-_MAX_KEPT_TEXT // 2 :]), lines, text)
            limit = OutputLimit(self._folder, self._executor.output_cap)
            if limit.is_exceeded and not is_locked(self.log) and run_files.output_state(self._folder) != OPEN:
                limit.finish()
            with Log(self._folder) as log:
                text = b"".join(log.bounded(_MAX_KEPT_TEXT)).decode("utf-8", "replace")
                return LogEnd(summarize(text[-_MAX_KEPT_TEXT // 2 :]), log.count_lines(), text)
        except OSError:
            return LogEnd()

    @property
    def log_size(self) -> int:
        try:
            return os.stat(self.log).st_size
        except OSError:
            return 0

    async def _wait_for_output(self, state: str = "") -> bool:
        """Wait until the log has all output of the command; False if it cannot be known. Usually the shim has waited for that.

        `state` is what the exit file says about the output, if that was just read.
        """
        pause, waited = 0.0005, 0.0
        while not (state := state or run_files.output_state(self._folder)):
            if self._pipe and self._pipe.is_empty:
                return True
            if not (self._pipe or is_locked(self.log)):
                return run_files.output_state(self._folder) != ""
            if waited > _OUTPUT_TIMEOUT:
                return self._pipe is not None
            await asyncio.sleep(pause)
            waited += pause
            pause = min(pause * 2, 0.02)
        if self._pipe and state == COMPLETE:
            self._executor.log_writer.remove(self._pipe)
        return True


def start_error(task: Task, error: OSError) -> CannotStart | StartLater:
    """What an error at the start of a command means for its run."""
    if error.errno in TEMPORARY_ERRORS:
        return StartLater(error.strerror)
    return CannotStart(f"{hide_secrets(task.spec.command.words[0])} could not be started: {error.strerror or error}")


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
