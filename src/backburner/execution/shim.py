"""The short POSIX sh script that runs a command: it outlives this process and writes the command's exit code to a file.

It holds the read end of the command's output pipe, and ends only when everything in it is in the log. Normally the log writer says so,
over a socket that is the shim's standard error; if no log writer is left, the shim moves the rest of the output itself.

The shell reads its script from a locked file on its standard input. The lock shows that it is alive, and neither the command nor
the task id is in its command line, where a `pkill -f` meant for another process would match it.
"""

import contextlib
import functools
import json
import os
import re
import shlex
import sys

from backburner.core.models import Task
from backburner.execution.log_writer import COMPLETE, MARK_AT
from backburner.execution.output_pipe import SHIM_READER, log_writer_command
from backburner.system import run_files
from backburner.system.home import write_all
from backburner.system.log_file import NAME
from backburner.system.processes import INSIDE, executable_of
from backburner.system.run_files import EXIT, INPUT
from backburner.system.unapproved import MAX_FILE_BYTES

ENVIRONMENT = ".environment"
_TERMINAL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "terminal.py")
_CPU_GRACE = 5  # seconds of CPU time between the signal that can be caught and the one that cannot
_BLANK = " " * (MARK_AT + 1)  # written in advance, so that the exit code can be written over it even if the disk is full

# Variables that a shell does not pass on unchanged: names that it cannot hold, and names that it uses itself.
_SPECIAL = re.compile(r"(OPTIND|PPID|IFS|LINENO)$|(?![A-Za-z_][A-Za-z0-9_]*$)", re.ASCII)
_EXEC = "import json,os,sys; e=json.load(open(sys.argv[1])); os.execvpe(sys.argv[2], sys.argv[2:], e)"


def prepare(folder: str, task: Task, environment: dict[str, str], output_limit: int, files: int) -> dict[str, str]:
    """Write the exit file of one run, with the shim's script; returns the environment to start the shim with."""
    argv = ("/bin/sh", "-c", task.spec.command.words[0]) if task.spec.command.shell else task.spec.command.words
    shim_environment = environment
    if any(map(_SPECIAL.match, environment)):
        # Rare, because starting an interpreter is slower; a shell alone would lose part of the environment.
        path = os.path.join(folder, ENVIRONMENT)
        _write(path, json.dumps(environment).encode())
        argv = (sys.executable, "-ISc", _EXEC, path, *argv)
        shim_environment = {name: value for name, value in environment.items() if not _SPECIAL.match(name)}
    if task.spec.command.tty:
        argv = (sys.executable, "-IS", _TERMINAL, *argv)
    limits = task.spec.command.limits
    if limits.nice is not None:
        # by absolute path: the command's own PATH may contain another program of this name
        argv = (executable_of("nice", "/", os.defpath) or "/usr/bin/nice", "-n", str(limits.nice), *argv)
    words = " ".join(map(shlex.quote, argv))
    code = shlex.quote(os.path.join(folder, EXIT))
    source, fifo = "</dev/null", os.path.join(folder, INPUT)
    if task.spec.command.stdin:
        with contextlib.suppress(FileExistsError):  # left by a start that was retried
            os.mkfifo(fifo, 0o600)
        source = f"<{shlex.quote(fifo)} 4>&-"
    lines = [
        "trap : TERM INT HUP",
        *([f"umask {task.spec.command.umask:04o}"] if task.spec.command.umask is not None else []),
        f"ulimit -Sn {files if files >= 0 else 'unlimited'}",  # the process that starts the shim may have raised it
        "exec 3>&2 2>/dev/null",  # messages of the shell about the command's end are not output of the command
        f"[ ! -e /proc/self/fd/1 ] || exec {SHIM_READER}</proc/self/fd/1",
        f"ulimit -w {INSIDE} || ulimit -x {INSIDE}",  # file locks: -w in dash and ash, -x in bash and ksh; see process.INSIDE
        # kept open, so that the input does not end between two sends
        *([f"exec 4<>{shlex.quote(fifo)}"] if task.spec.command.stdin else []),
        f"printf s 1<>{code}",
        f"({_limits(task)}exec {source} 2>&1 3>&- {SHIM_READER}<&- {words})",
        f"printf '%-{MARK_AT}s' \"$?\" 1<>{code}",
        *_save_output(os.path.join(folder, NAME), output_limit),
        "exit 0",
    ]
    _write(os.path.join(folder, EXIT), os.fsencode("\n".join((_BLANK, *lines, ""))))
    return shim_environment


def _save_output(log: str, limit: int) -> list[str]:
    """Wait until the output is in the log. While descendants of the command can still write, a process of this run holds the pipe."""
    drain, follow = (f"{_log_writer(verb)} {limit} {shlex.quote(log)}" for verb in ("drain", "follow"))
    hold = f'while [ "$answer" != {COMPLETE} ]; do read answer <&3 || exec {follow} <&{SHIM_READER}; done'
    return [
        "exec 1>&- 4>&-",
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
        lines.append(f"ulimit -f {MAX_FILE_BYTES // 512}")
    return "".join(f"{line}; " for line in lines)


def ended_at(folder: str) -> int:
    """When the exit code was written, in milliseconds UTC."""
    return os.stat(os.path.join(folder, EXIT)).st_mtime_ns // 1_000_000


def has_begun(folder: str) -> bool:
    """Whether the shim has started the command."""
    return run_files.exit_text(folder) != ""


def _write(path: str, content: bytes) -> None:
    write_all(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), content)
