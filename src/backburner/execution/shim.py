"""The short POSIX sh script that runs a command: it outlives this process and writes the command's exit code to a file.

It holds the read end of the command's output pipe, and ends only when everything in it is in the log. Normally the log writer says so,
over a socket that is the shim's standard error; if no log writer is left, the shim moves the rest of the output itself.

The shell reads its script from a locked file on its standard input. The lock shows that it is alive, and neither the command nor
the task id is in its command line, where a `pkill -f` meant for another process would match it.
"""

import contextlib
import errno
import functools
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping

from backburner.core.models import Task
from backburner.execution.log_writer import COMPLETE, MARK_AT
from backburner.execution.output_pipe import SHIM_READER, log_writer_command
from backburner.execution.sandbox_starter import OTHER_END, PREPARED, REPORT
from backburner.system import run_files
from backburner.system.home import write_all
from backburner.system.log_file import NAME
from backburner.system.processes import INSIDE, executable_of
from backburner.system.run_files import EXIT, INPUT, INPUT_END
from backburner.system.sandbox_environment import MAX_FILE_BYTES, MAX_PROCESSES

ENVIRONMENT = ".environment"
INSIDE_SANDBOX = "# The shim is the first process in the sandbox."  # in the exit file, instead of a script
_TERMINAL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "terminal.py")
_CPU_GRACE = 5  # seconds of CPU time between the signal that can be caught and the one that cannot
# Everything in a sandbox ends with its command, so a line with commands in the background ends when these have ended.
_WAIT = "\nset -- $?; wait; exit $1"
_HOLD_OUTPUT = (
    "exec 3>&2 2>/dev/null",  # messages of the shell about the command's end are not output of the command
    f"[ ! -e /proc/self/fd/1 ] || exec {SHIM_READER}</proc/self/fd/1",
)
_BLANK = " " * (MARK_AT + 1)  # written in advance, so that the exit code can be written over it even if the disk is full

# Variables that a shell does not pass on unchanged: names that it cannot hold, and names that it uses itself.
_SPECIAL = re.compile(r"(OPTIND|PPID|IFS|LINENO)\Z|(?![A-Za-z_][A-Za-z0-9_]*\Z)", re.ASCII)
_READ_ONLY = re.compile(r"(SHELLOPTS|E?UID|BASH.*)\Z", re.ASCII)  # in bash
_EXEC = "import json,os,sys; e=json.load(open(sys.argv[1])); os.execvpe(sys.argv[2], sys.argv[2:], e)"


def prepare(
    folder: str,
    task: Task,
    environment: dict[str, str],
    output_limit: int,
    files: int,
    sandbox: tuple[tuple[str, ...], str, str] = ((), "", ""),
    supervised_by: tuple[str, ...] = (),
) -> tuple[int, dict[str, str]]:
    """Write the exit file of one run, with the shim's script; returns it open, and the environment to start the shim with.

    `sandbox` are the words before the command that put it into a sandbox, the redirects that these need, and a line that is kept in the
    exit file after the script. `supervised_by` are the words before all others.
    """
    prefix, redirects, kept = sandbox
    argv = (*prefix, *_command(task, ends_with_command=bool(prefix)))
    shim_environment = environment
    if has_special_names(environment):
        # Rare, because starting an interpreter is slower; a shell alone would lose part of the environment.
        path = os.path.join(folder, ENVIRONMENT)
        write_all(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), json.dumps(environment).encode())
        argv = (sys.executable, "-ISc", _EXEC, path, *argv)
        shim_environment = {name: value for name, value in environment.items() if not _SPECIAL.match(name)}
    if task.spec.command.tty:
        argv = (sys.executable, "-IS", _TERMINAL, *argv)
    limits = task.spec.command.limits
    if limits.nice is not None:
        # by absolute path: the command's own PATH may contain another program of this name
        argv = (executable_of("nice", "/", os.defpath) or "/usr/bin/nice", "-n", str(limits.nice), *argv)
    words = " ".join(map(shlex.quote, (*supervised_by, *argv)))
    code = shlex.quote(f"{folder}/{EXIT}")
    source, hold_input, open_input = "</dev/null", [], ""
    if task.spec.command.stdin:
        fifo, end = (os.path.join(folder, name) for name in (INPUT, INPUT_END))
        for path in (fifo, end):
            with contextlib.suppress(FileExistsError):  # left by a start that was retried
                os.mkfifo(path, 0o600)
        source, hold_input = "6>&-", _hold_input(shlex.quote(fifo), shlex.quote(end))
        open_input = f"exec <{shlex.quote(fifo)}; echo >&6; "
    lines = [
        "trap : TERM INT HUP",
        *_inherited(task, files),
        *_HOLD_OUTPUT,
        f"ulimit -w {INSIDE} || ulimit -x {INSIDE}",  # file locks: -w in dash and ash, -x in bash and ksh; see process.INSIDE
        *hold_input,
        f"printf s 1<>{code} || exit",  # a command is not started unless it is known that it has begun
        f"({open_input}{_limits(task)}exec {source} 2>&1 3>&- {SHIM_READER}<&- {redirects} {words})",
        f"printf '%-{MARK_AT}s' \"$?\" 1<>{code}",
        *_save_output(f"{folder}/{NAME}", output_limit),
        run_files.SCRIPT_END,
        kept,
    ]
    return _script(f"{folder}/{EXIT}", os.fsencode("\n".join((_BLANK, *lines, "")))), shim_environment


def prepare_inside(folder: str, kept: str) -> int:
    """Write the exit file of a run whose shim is in its sandbox, and cannot write to it. Returns the file, open."""
    return _script(f"{folder}/{EXIT}", os.fsencode("\n".join((_BLANK, INSIDE_SANDBOX, run_files.SCRIPT_END, kept, ""))))


def inside_script(task: Task, files: int, variables: Mapping[str, str]) -> bytes:
    """The script of a shim that is the first process in a sandbox; see sandbox_starter.py.

    The shim itself is started without the variables of the command, because some of them name code to load, and the sandbox is not complete
    then. It reports the exit code to the log writer, with the time since the machine was started, and waits until the output is in the log.
    """
    words = shlex.join(_command(task, ends_with_command=True))
    lines = (
        "exec 2>/dev/null",
        f"read -r prepared <&{PREPARED} || exit",
        f"exec {PREPARED}<&-",
        *(f"export {name}={shlex.quote(value)}" for name, value in variables.items()),
        *_inherited(task, files),
        f"ulimit -w {INSIDE} || ulimit -x {INSIDE}",
        _limits(task),  # for the first process too: a command that traces it could start others there
        f"(exec </dev/null 2>&1 {REPORT}>&- {SHIM_READER}<&- {OTHER_END}>&- {words})",
        "set -- $?; kill -9 -1; exec >&-",  # everything in the sandbox ends with the command
        f"read -r now rest </proc/uptime; echo $1 $now >&{REPORT}; read -r saved <&{REPORT}",
    )
    return os.fsencode("\n".join((*lines, "")))


def has_special_names(environment: Mapping[str, str]) -> bool:
    """Whether a shell would not pass on all of these variables unchanged."""
    return any(map(_SPECIAL.match, environment))


def can_export(environment: Mapping[str, str]) -> bool:
    """Whether any shell can set all of these variables."""
    return not (has_special_names(environment) or any(map(_READ_ONLY.match, environment)))


def needs_bubblewrap(task: Task) -> bool:
    """Whether a sandboxed command needs more than `inside_script` does."""
    command = task.spec.command
    return command.stdin or command.tty or command.limits.nice is not None


def _command(task: Task, *, ends_with_command: bool) -> tuple[str, ...]:
    argv = task.spec.command.words
    if not task.spec.command.shell:
        return argv
    return ("/bin/sh", "-c", argv[0] + (_WAIT if ends_with_command and "&" in argv[0] else ""))


def _inherited(task: Task, files: int) -> Iterator[str]:
    if task.spec.command.umask is not None:
        yield f"umask {task.spec.command.umask:04o}"
    yield f"ulimit -Sn {files if files >= 0 else 'unlimited'}"  # the process that starts the shim may have raised it


def _hold_input(fifo: str, end: str) -> list[str]:
    """Keep the input open, so that it does not end between two sends.

    A process holds it until there are two lines in the fifo `end`, one from the command, which has opened its input, and one from the
    caller who ends it; or until the shim has closed its own descriptor of `end` or was killed.
    """
    return [
        f"exec 6<>{end} 7<{end} 4<>{fifo}",  # whoever can write to the input can also end it
        f"(exec <&7 >/dev/null 3>&- {SHIM_READER}<&- 6>&- 7<&-; read -r line && read -r line) &",
        "exec 4>&- 7<&-",
    ]


def _save_output(log: str, limit: int) -> list[str]:
    """Wait until the output is in the log. While descendants of the command can still write, a process of this run holds the pipe."""
    drain, follow = (f"{_log_writer(verb)} {limit} {shlex.quote(log)}" for verb in ("drain", "follow"))
    hold = f'while [ "$answer" != {COMPLETE} ]; do read answer <&3 || exec {follow} <&{SHIM_READER}; done'
    return [
        "exec 1>&- 6>&-; wait",
        "trap '' PIPE",
        "echo >&3",
        f"read answer <&3 || {{ {drain} <&{SHIM_READER} && answer={COMPLETE}; }}",
        f'[ "$answer" != {COMPLETE} ] || exit 0',
        f"{hold} </dev/null &",
    ]


@functools.cache
def _log_writer(verb: str) -> str:
    return shlex.join(log_writer_command(verb))


def _limits(task: Task) -> str:
    """Resource limits for the command alone. RLIMIT_DATA does not count address space that is only reserved, as many runtimes do."""
    limits = task.spec.command.limits
    lines = [f"ulimit -d {limits.memory_mb * 1024}"] if limits.memory_mb is not None else []
    if seconds := limits.cpu_seconds:
        lines += [f"ulimit -St {seconds}", f"ulimit -Ht {seconds + _CPU_GRACE}"]
    if task.is_unapproved:
        lines += [f"ulimit -f {MAX_FILE_BYTES // 512}", f"ulimit -u {MAX_PROCESSES} 2>/dev/null || ulimit -p {MAX_PROCESSES}"]
    return "".join(f"{line}; " for line in lines)


def has_begun(folder: str) -> bool:
    """Whether the shim has started the command."""
    return run_files.exit_text(folder) != ""


def _script(path: str, content: bytes) -> int:
    """A file with this content, open at its beginning."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        if os.pwrite(descriptor, content, 0) < len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
