"""Runs `backburner` in forked processes: a server has the package imported, so a call costs a few milliseconds instead of seventy.

Most tests call the command line many times. Each call is still a process of its own, with its own environment and folder. The tour and
the tests of the command line itself start a new interpreter for every call, as a user does.
"""

import atexit
import contextlib
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path


class ForkedCli:
    """The client: starts the server on first use, one per test process."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="bbf")
        self._path = os.path.join(self._folder, "socket")
        self._server: subprocess.Popen[bytes] | None = None

    def run(self, words: list[str], cwd: str, env: dict[str, str], timeout: float) -> "subprocess.CompletedProcess[bytes]":
        if self._server is None:
            self._start()
        with (
            socket.socket(socket.AF_UNIX) as call,
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as err,
            open(os.devnull) as none,
        ):
            call.settimeout(timeout)
            call.connect(self._path)
            message = json.dumps([words, cwd, env]).encode()
            socket.send_fds(call, [len(message).to_bytes(4, "big")], [none.fileno(), out.fileno(), err.fileno()])
            call.sendall(message)
            try:
                code = int(call.recv(16))
            except TimeoutError:
                raise subprocess.TimeoutExpired(words, timeout) from None
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read())
            return subprocess.CompletedProcess(words, code, *texts)

    def _start(self) -> None:
        self._server = subprocess.Popen([sys.executable, __file__, self._path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._server.stdout and self._server.stdout.readline() == b"ready\n"
        atexit.register(self._stop)

    def _stop(self) -> None:
        assert self._server and self._server.stdin
        self._server.stdin.close()
        assert self._server.stdout
        self._server.stdout.close()
        self._server.wait()
        Path(self._path).unlink(missing_ok=True)
        os.rmdir(self._folder)


def _preload() -> None:
    """Import what any command may need, except optional packages."""
    sys.dont_write_bytecode = False
    for name in ("core", "system", "store", "approval", "coordination", "services", "interfaces.cli"):
        package = importlib.import_module(f"backburner.{name}")
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            with contextlib.suppress(ImportError):
                importlib.import_module(module.name)


def _serve(path: str) -> None:
    """Fork for every connection, until the standard input is closed."""
    _preload()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    wakeup, alarm = os.pipe()
    os.set_blocking(alarm, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(alarm)
    os.write(1, b"ready\n")
    calls: dict[int, socket.socket] = {}
    while True:
        ready = select.select([listener, wakeup, 0], [], [])[0]
        if wakeup in ready:
            os.read(wakeup, 4096)
            while calls:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                with calls.pop(pid) as call, contextlib.suppress(OSError):  # the test did not wait for it
                    call.sendall(str(os.waitstatus_to_exitcode(status)).encode())
        if 0 in ready:
            return
        if listener in ready:
            call = listener.accept()[0]
            length, streams, _, _ = socket.recv_fds(call, 4, 3)
            message = b""
            while len(message) < int.from_bytes(length, "big"):
                message += call.recv(1 << 20)
            if (pid := os.fork()) == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for descriptor in (listener.detach(), call.detach(), wakeup, alarm, *(other.detach() for other in calls.values())):
                    os.close(descriptor)
                _become(streams, *json.loads(message))
            calls[pid] = call
            for descriptor in streams:
                os.close(descriptor)


def _become(streams: list[int], words: list[str], cwd: str, env: dict[str, str]) -> None:
    """Run one command line in this process, as a new interpreter would."""
    import random
    import time

    code = 1
    try:
        for number, descriptor in enumerate(streams):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(env)
        time.tzset()
        random.seed()
        sys.argv = ["backburner", *words]
        sys.path[0] = cwd
        from backburner.interfaces.cli.start import main

        code = main(words)
        sys.stdout.flush()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve(sys.argv[1])
