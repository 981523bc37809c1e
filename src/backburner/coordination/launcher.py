"""Starts the engine and other daemons from an interface. A small shell script restarts the engine unless it exited normally.

The process that starts the engine holds `start.lock` and passes it to the engine as standard input; the engine unlocks it once it
listens. A process that finds the lock taken need not start anything: an engine that will read the ledger later is already starting.
"""

import os
import subprocess
import sys

from backburner.core.errors import EngineUnavailable
from backburner.system.home import Home, create, lock
from backburner.system.processes import is_confined

# fd 3 is the lock. The first engine that listens unlocks it for all holders; until then no interface starts another restart script.
# An engine that keeps crashing is restarted with increasing delays. A crash more than ten minutes after the last one counts as the first.
_RESTART_SCRIPT = """
exec 3<&0 </dev/null
{
    crashes=0 last=0
    while "$@" --lock-on-stdin <&3 3<&- & wait $!; [ $? -ne 0 ]; do
        now=$(date +%s) || now=$last
        [ $((now - last)) -le 600 ] || crashes=0
        last=$now crashes=$((crashes + 1))
        [ $crashes -le 20 ] || break
        [ $crashes -le 3 ] || sleep $crashes
    done
} &
"""
# Names of files that the Postgres client reads; variables with secrets, such as PGPASSWORD, are not passed.
_LIBPQ_VARIABLES = ("PGPASSFILE", "PGSERVICEFILE", "PGSSLROOTCERT", "PGSSLCERT", "PGSSLKEY")
_PASSED_VARIABLES = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR", "XDG_RUNTIME_DIR", *_LIBPQ_VARIABLES)
_REMOVED_VARIABLES = ("BACKBURNER_TASK_ID", "BACKBURNER_RUN_ID", "BACKBURNER_MARK", "BACKBURNER_HOME")
_MAX_LOG_BYTES = 1 << 20


def start_engine(home: Home, environ: dict[str, str]) -> None:
    """Make sure that an engine will read the ledger after this call. Does not wait for it."""
    home.create_socket_dir()
    lock_fd = lock(home.start_lock)
    if lock_fd is None:
        return
    if is_confined():
        os.close(lock_fd)
        where = "this process runs in the sandbox of another program, where commands would fail; start it in a terminal: backburner serve"
        raise EngineUnavailable(where, log=home.engine_log)
    try:
        rotate_log(home)
        with open(os.open(home.engine_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as log:
            subprocess.Popen(
                ["/bin/sh", "-c", _RESTART_SCRIPT, "backburner-keeper", *process_command(home)],
                stdin=lock_fd,
                stdout=log,
                stderr=log,
                cwd="/",
                env=_environment(environ),
                start_new_session=True,
            ).wait()  # the script detaches itself, because some clients kill all descendants of a server
    finally:
        os.close(lock_fd)


def rotate_log(home: Home) -> None:
    """Move the content of a large engine.log to engine.log.1. The processes that have it open continue at its new beginning."""
    import shutil  # slow to import

    try:
        with open(home.engine_log, "r+b") as log:
            if os.fstat(log.fileno()).st_size <= _MAX_LOG_BYTES:
                return
            with open(create(f"{home.engine_log}.1"), "wb") as older:
                shutil.copyfileobj(log, older)
            log.truncate(0)
    except OSError:
        return  # there is none yet, or the disk is full


def start_daemon(home: Home, module: str, environ: dict[str, str]) -> None:
    """Start a daemon before there is work for it. If one is already running, the new one exits. It is detached from this process."""
    with open(os.open(home.engine_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as log:
        command = ["/bin/sh", "-c", '"$@" </dev/null &', "backburner-host", *process_command(home, module)]
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", env=_environment(environ), start_new_session=True
        ).wait()


def process_command(home: Home, module: str = "engine.startup") -> list[str]:
    """Return the command that runs the engine, or another daemon, with this interpreter and this copy of the package."""
    source = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    code = f"import sys; sys.path.insert(0, sys.argv.pop(1)); from backburner.{module} import main; sys.exit(main(sys.argv[1:]))"
    return [sys.executable, "-Pc", code, source, home.root]


def _environment(environ: dict[str, str]) -> dict[str, str]:
    """Return the environment of the engine: only known variables, so that it keeps no secrets of the interface that starts it."""
    own = {name: value for name, value in environ.items() if name.startswith("BACKBURNER_") and name not in _REMOVED_VARIABLES}
    return {**{name: environ[name] for name in _PASSED_VARIABLES if name in environ}, **own, "LC_ALL": "C.UTF-8"}
