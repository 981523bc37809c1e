"""Starting the engine from a door. Few lines of sh keep it: they start it again unless it left on purpose.

The one who starts it holds `start.lock` and hands it down as the engine's input; the engine unlocks it once it listens.
So whoever finds the lock taken may leave: an engine that will read the ledger after this moment is on its way.
"""

import os
import subprocess
import sys

from backburner.system.home import Home, lock

# fd 3 is the lock, which the first engine that listens unlocks for all who hold it: while none does, no door starts another keeper.
# A crash-looping engine is started less and less often.
_KEEPER = """
exec 3<&0 </dev/null
{
    crashes=0
    while "$@" --lock-on-stdin <&3 3<&- & wait $!; code=$?; [ $code -ne 0 ] && [ $crashes -lt 20 ]; do
        crashes=$((crashes + 1))
        [ $crashes -le 3 ] || sleep $crashes
    done
} &
"""
_KEPT = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR", "XDG_RUNTIME_DIR")
_NOT_KEPT = ("BACKBURNER_TASK_ID", "BACKBURNER_RUN_ID", "BACKBURNER_MARK", "BACKBURNER_HOME")
_LONGEST_LOG = 1 << 20


def start_engine(home: Home, environ: dict[str, str]) -> None:
    """See to it that an engine will read the ledger after now. Does not wait for it."""
    home.create_socket_dir()
    held = lock(home.start_lock)
    if held is None:
        return
    try:
        with open(os.open(home.engine_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as log:
            if log.tell() > _LONGEST_LOG:
                log.truncate(0)
            subprocess.Popen(
                ["/bin/sh", "-c", _KEEPER, "backburner-keeper", *process_command(home)],
                stdin=held,
                stdout=log,
                stderr=log,
                cwd="/",
                env=_environment(environ),
                start_new_session=True,
            ).wait()  # what it left behind is nobody's child: some clients end all that descend from a server
    finally:
        os.close(held)


def start_daemon(home: Home, module: str, environ: dict[str, str]) -> None:
    """Have a host ready before there is work for it; of many only one stays. It is nobody's child."""
    with open(os.open(home.engine_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as log:
        words = ["/bin/sh", "-c", '"$@" </dev/null &', "backburner-host", *process_command(home, module)]
        subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", env=_environment(environ), start_new_session=True
        ).wait()


def process_command(home: Home, module: str = "engine.startup") -> list[str]:
    """The engine, or another process of ours, as this interpreter would run it, wherever the package lies."""
    source = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    code = f"import sys; sys.path.insert(0, sys.argv.pop(1)); from backburner.{module} import main; sys.exit(main(sys.argv[1:]))"
    return [sys.executable, "-Pc", code, source, home.root]


def _environment(environ: dict[str, str]) -> dict[str, str]:
    """The engine's own environment, none of which reaches a command: a door's secrets do not stay in it."""
    ours = {name: value for name, value in environ.items() if name.startswith("BACKBURNER_") and name not in _NOT_KEPT}
    return {**{name: environ[name] for name in _KEPT if name in environ}, **ours, "LC_ALL": "C.UTF-8"}
