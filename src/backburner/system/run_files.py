"""The folder of a run. The command writes to `work/` and reads its inputs from `inputs/`; all other files belong to Backburner.

These include files for users and scripts: metadata.json, span_id.txt, result.json. The ledger is authoritative; a missing or
damaged file is written again from it, and a folder that the ledger does not know is not touched.
"""

import contextlib
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum

from backburner.core import formatting
from backburner.core import light_json as json
from backburner.core.ids import masked, run_id
from backburner.core.light_typing import Any, NamedTuple
from backburner.core.models import Run, RunFolder, Task
from backburner.core.states import ENDED
from backburner.system.home import Home, open_folder, open_plain, read_plain, write_atomically, write_pieces
from backburner.system.log_file import NAME, Log

# First blank, then `s` when the command has started, then its exit code and whether its output is in the log. Behind that line is the
# script of the shim. Locked while the shim runs.
EXIT = ".exit"
LEASE_OVER = ".lease-over"  # created if the command was ended because the lease of its host was over
ENFORCED = ".enforced"  # exists from the start of a command whose lease is enforced until its end was observed
SCRIPT_END = "exit 0"  # the last line of the shim's script
_MAX_EXIT_BYTES = 32 << 20
_MARK_AT = 4  # characters of the exit code
STREAM = "stream.jsonl"  # the text of an agent while it is being generated
INPUT = ".input"  # the fifo that a command with an open input reads from
INPUT_END = ".input-end"  # a fifo; a line in it ends that input
WORK = "work"  # the files that a command writes
INPUTS = "inputs"  # read-only copies of the results that a run depends on
CHANGES = "changes"  # what a sandboxed command changed in its copy of the project
PRECHECK = "gate.log"  # the output of the pre-check command
_MAX_FILE_BYTES = 8 << 20
CONVERSATION, ACTIVITY, ERRORS = "conversation.json", ".activity.json", "agent.err"  # of an agent
_READ_ONLY = 0o444
_MAX_SMALL_BYTES = 16 << 10
METADATA, RESULT, SPAN, EVENT = "metadata.json", "result.json", "span_id.txt", "event.json"

_KEPT_FILES = frozenset([METADATA, RESULT, SPAN, EXIT, CONVERSATION, ACTIVITY, CHANGES])


def metadata(task: Task, run: Run) -> dict[str, object]:
    """The content of metadata.json."""
    return {
        "task_id": task.task_id,
        "run_id": run.run_id,
        "created_at": formatting.iso(run.created_at),
        "started_at": formatting.iso(run.started_at),
        "completed_at": formatting.iso(run.ended_at),
        "status": str(run.state),
        "result": run.end.result,
        "error": run.error,
        **({"agent": task.spec.agent_name, "prompt": task.spec.prompt, "message": run.message} if task.spec.agent_name is not None else {}),
        "command": list(task.spec.command.words),
        "shell": task.spec.command.shell,
        "cwd": task.spec.cwd,
        "env": masked(task.spec.env),
        "name": task.spec.name,
        "description": task.spec.description,
        "pid": run.process.pid if run.process else None,
        "exit_code": run.end.exit_code,
        "span_id": run.span_id,
        "trace_id": run.trace_id,
        "approved_by": task.decision.by,
        "approved_via": task.decision.via,
        "approved_at": formatting.iso(task.decision.at),
        "rule": task.decision.rule,
        "reasons": list(task.decision.reasons),
    }


def make(folder: str) -> None:
    """Create the folder of a run that is about to start, with `work/` in it."""
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    except FileNotFoundError:
        os.makedirs(folder, 0o700, exist_ok=True)
    _make_inside(folder, WORK)


def _make_inside(folder: str, name: str) -> str:
    """Create a folder in the folder of a run; anything else with that name is removed."""
    path = f"{folder}/{name}"
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
            os.mkdir(path, 0o700)
    return path


def open_work(folder: str) -> int:
    """Open `work/` of a run; OSError if the command has replaced it by something else."""
    run = open_folder(folder)
    try:
        return open_folder(WORK, run)
    finally:
        os.close(run)


def write(folder: str, task: Task, run: Run) -> None:
    """Write the metadata of a run, and its result if it has ended."""
    write_metadata(folder, task, run)
    if run.state in ENDED:
        write_result(folder, run)


def write_metadata(folder: str, task: Task, run: Run) -> None:
    """Create the folder if it is missing, and write the metadata of the run."""
    text = _pretty(metadata(task, run))
    try:
        write_atomically(f"{folder}/{METADATA}", text)
    except FileNotFoundError:
        os.makedirs(folder, 0o700, exist_ok=True)
        write_atomically(f"{folder}/{METADATA}", text)
    if run.n and not os.path.exists(span := f"{folder}/{SPAN}"):
        write_atomically(span, run.span_id + "\n")


def write_result(folder: str, run: Run) -> None:
    """Write the result of the run."""
    duration = None if run.started_at is None or run.ended_at is None else max(0, run.ended_at - run.started_at) / 1000
    result = {
        "exit_code": run.end.exit_code,
        "result": run.end.result,
        "duration_seconds": duration,
        "stdout_lines": run.end.lines or 0,
        "stderr_lines": 0,
        "summary": run.end.summary,
        "error": run.error,
        "completed_at": formatting.iso(run.ended_at),
    }
    write_atomically(f"{folder}/{RESULT}", _pretty(result))


_quote = json.encode_basestring_ascii
_ENCODERS: dict[type, Callable[[Any], str]] = {
    str: _quote,
    int: str,
    float: repr,
    bool: {True: "true", False: "false"}.__getitem__,
    type(None): lambda _: "null",
    list: lambda items: f"[{', '.join(map(_encode, items))}]",
    dict: lambda fields: json.dumps(fields) if fields else "{}",
}


def _pretty(fields: Mapping[str, object]) -> str:
    """JSON with one line per field. The library's own indentation is many times slower, and this is written for every command."""
    lines = ",\n".join([f'  "{name}": {_ENCODERS.get(type(value), json.dumps)(value)}' for name, value in fields.items()])
    return f"{{\n{lines}\n}}\n"


def _encode(value: object) -> str:
    return _quote(value) if isinstance(value, str) else json.dumps(value)


class ExitFile(NamedTuple):
    """The beginning of the exit file: what the shim has written about the command, what log_writer.py has noted, and when it changed.

    `output` is COMPLETE, or OPEN if descendants of the command can still write; empty until its output is in the log.
    """

    text: str = ""
    output: str = ""
    changed_at: int = 0

    @property
    def code(self) -> int | None:
        """The command's exit code; None if it has not ended, or if the shim could not write it."""
        return int(self.text) if self.text.isdigit() else None


def exit_file(folder: str) -> ExitFile:
    """Read the exit file of a run; an empty one if there is none."""
    try:
        descriptor = open_plain(f"{folder}/{EXIT}")
    except FileNotFoundError:
        return ExitFile()
    try:
        text, changed = os.read(descriptor, _MARK_AT + 1).decode("ascii", "replace"), os.fstat(descriptor).st_mtime_ns
    finally:
        os.close(descriptor)
    return ExitFile(text[:_MARK_AT].strip("\0 \n"), text[_MARK_AT:].strip("\0 \n"), changed // 1_000_000)


def exit_text(folder: str) -> str:
    """What the shim has written about the command so far."""
    return exit_file(folder).text


def output_state(folder: str) -> str:
    """What log_writer.py has noted about the output."""
    return exit_file(folder).output


def exit_code(folder: str) -> int | None:
    """The command's exit code; None if it has not ended, or if the shim could not write it."""
    return exit_file(folder).code


def after_script(folder: str) -> bytes:
    """What is in the exit file after the shim's script: what a sandbox needs at its end. FileNotFoundError if there is no such file."""
    return read_plain(os.path.join(folder, EXIT), _MAX_EXIT_BYTES).rpartition(f"\n{SCRIPT_END}\n".encode())[2]


def usage(folder: str) -> dict[str, float]:
    """The last recorded usage of an agent's run, however it ended."""
    try:
        found = json.loads(read_plain(os.path.join(folder, ACTIVITY), _MAX_FILE_BYTES))
    except (OSError, ValueError):
        return {}
    known = ("tokens", "tool_calls", "requests", "cost")
    return {name: float(found[name]) for name in known if isinstance(found, dict) and isinstance(found.get(name), int | float)}


def write_inputs(home: Home, run: Run, max_log_bytes: int) -> dict[str, str]:
    """Copy what a run depends on to its `inputs/`: output and result of the run that it follows, and its trigger event.

    Returns the variables with the paths of the copies.
    """
    if run.cause.origin is None and run.cause.payload is None:
        return {}
    inputs = _make_inside(home.folder(run.folder), INPUTS)
    variables = {}
    if run.cause.origin is not None:
        copies = _make_inside(inputs, run.cause.origin)
        _copy_results(home, run, run.cause.origin, copies, max_log_bytes)
        variables["BACKBURNER_AFTER_RUN_ID"] = run.cause.origin
        variables["BACKBURNER_AFTER_LOG"] = os.path.join(copies, NAME)
        variables["BACKBURNER_AFTER_RESULT"] = os.path.join(copies, RESULT)
    if run.cause.payload is not None:
        variables["BACKBURNER_EVENT"] = event = os.path.join(inputs, EVENT)
        write_atomically(event, run.cause.payload, _READ_ONLY)
    return variables


def _copy_results(home: Home, run: Run, origin: str, copies: str, max_log_bytes: int) -> None:
    """Copy the results of a run that another run follows; does nothing if they no longer exist.

    They may have been cleared before the following run is started again. Copies that were made before are kept, and a run that is
    a retry gets the copies of the previous attempt.
    """
    tasks = os.path.dirname(run.folder)
    sources = [os.path.join(tasks, origin)]
    if run.n > 1:
        sources.append(os.path.join(tasks, run_id(run.task_id, run.n - 1), INPUTS, origin))
    source = next((folder for folder in map(home.folder, sources) if os.path.isdir(folder)), None)
    if source is None:
        return
    with contextlib.suppress(FileNotFoundError), Log(source) as log:
        write_pieces(os.path.join(copies, NAME), log.bounded(max_log_bytes), _READ_ONLY)
    with contextlib.suppress(FileNotFoundError):
        write_pieces(os.path.join(copies, RESULT), (read_plain(os.path.join(source, RESULT), _MAX_FILE_BYTES),), _READ_ONLY)


def remove(folder: str) -> None:
    """Delete a run's folder, without following links in it; does nothing if it does not exist."""
    import shutil  # all are slow to import, and few commands need them
    import subprocess

    from backburner.system.overlay import make_removable

    with contextlib.suppress(OSError):
        make_removable(os.path.join(folder, CHANGES))  # a command may have taken its own permissions away
    with contextlib.suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
    if os.path.isdir(folder) and not os.path.islink(folder):  # nested too deeply for Python or its limit of open files
        subprocess.run(["rm", "-rf", "--", folder], env={"PATH": os.defpath}, stdin=subprocess.DEVNULL, capture_output=True)


def remove_output(folder: str, note: str) -> bool:
    """Delete the output and the work files of an ended run, and leave a note in its log; False if there is little to delete.

    Its conversation, its result and changes that can still be applied are kept.
    """
    log = os.path.join(folder, NAME)
    try:
        names = set(os.listdir(folder)) - _KEPT_FILES
        with os.scandir(os.path.join(folder, WORK)) as entries:
            has_files = any(entries)
    except OSError:
        names, has_files = set(os.listdir(folder)) - _KEPT_FILES if os.path.isdir(folder) else set(), False
    if not has_files and not any(os.lstat(os.path.join(folder, name)).st_size > _MAX_SMALL_BYTES for name in names - {WORK, INPUTS}):
        return False
    for name in names - {NAME}:
        path = os.path.join(folder, name)
        if stat.S_ISDIR(os.lstat(path).st_mode):
            remove(path)
        else:
            os.unlink(path)
    write_atomically(log, f"{note}\n")
    return True


class FolderProblem(StrEnum):
    """What can be wrong with the folder of a run."""

    DAMAGED = "damaged"  # its metadata cannot be read
    UNKNOWN = "unknown"  # the ledger has no such run
    MISSING = "missing"


def problems(tasks: str, names: Iterable[str], known: Mapping[str, RunFolder]) -> list[tuple[str, FolderProblem]]:
    """The problems in a folder of runs, with their paths. `names` are what it contains; the keys of `known` are names of run folders."""
    found = []
    for name in sorted(names):
        path = os.path.join(tasks, name)
        if name not in known:
            found.append((path, FolderProblem.UNKNOWN))
            continue
        if not readable(path):
            found.append((os.path.join(path, METADATA), FolderProblem.DAMAGED))
    for name, run in known.items():
        if run.has_ended and not os.path.isdir(os.path.join(tasks, name)):
            found.append((os.path.join(tasks, name), FolderProblem.MISSING))
    return found


def readable(folder: str) -> bool:
    """Whether the folder has a complete metadata.json."""
    try:
        return isinstance(json.loads(read_plain(os.path.join(folder, METADATA), _MAX_FILE_BYTES)), dict)
    except (OSError, ValueError):
        return False
