"""A program in a pseudo-terminal, and the screen as a person sees it."""

import codecs
import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import pyte

_WHERE = b"\x1b[6n"


class Terminal:
    """`with Terminal([...], cwd=…, env=…) as terminal: terminal.type("hello\\r"); terminal.wait("hello")`."""

    def __init__(self, command: Sequence[str], *, cwd: Path, env: dict[str, str], columns: int = 100, rows: int = 30) -> None:
        self._screen = pyte.HistoryScreen(columns, rows, history=20_000, ratio=0.01)
        self._stream = pyte.Stream(self._screen)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.raw = b""
        self._pty, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._process = subprocess.Popen(
            command,
            cwd=cwd,
            env={"TERM": "xterm-256color", **env},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)
        os.set_blocking(self._pty, False)

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGHUP)
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(5)
        os.close(self._pty)

    def type(self, text: str) -> None:
        """Keys, as a person would press them."""
        data = text.encode()
        deadline = time.monotonic() + 60
        while data:
            assert time.monotonic() < deadline, f"the program does not read:\n{self.text}"
            with contextlib.suppress(BlockingIOError):
                data = data[os.write(self._pty, data[:4096]) :]
            self.read(0.0 if data else 0.01)

    def paste(self, text: str) -> None:
        """A paste, in the brackets that terminals put around one."""
        self.type(f"\x1b[200~{text}\x1b[201~")

    def read(self, seconds: float = 0.0) -> None:
        """Show what the program wrote, and for so long what it writes; the terminal answers where its cursor is."""
        deadline = time.monotonic() + seconds
        while select.select([self._pty], [], [], max(0.0, deadline - time.monotonic()))[0]:
            try:
                piece = os.read(self._pty, 1 << 16)
            except OSError:  # nobody has the other end any more
                return
            self.raw += piece
            self._stream.feed(self._decoder.decode(piece))
            for _ in range(piece.count(_WHERE)):
                os.write(self._pty, f"\x1b[{self._screen.cursor.y + 1};{self._screen.cursor.x + 1}R".encode())

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self._screen.display]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def history(self) -> str:
        """All that was ever on the screen and scrolled off, and the screen."""
        above = ["".join(line[x].data for x in range(self._screen.columns)).rstrip() for line in self._screen.history.top]
        return "\n".join([*above, *self.lines])

    def wait(self, found: "str | Callable[[Terminal], object]", seconds: float = 20.0) -> None:
        """Until it is to be seen."""
        deadline = time.monotonic() + seconds
        while not (found in self.history if isinstance(found, str) else found(self)):
            assert time.monotonic() < deadline, f"waited {seconds} s for {found!r}; the screen is:\n{self.history}"
            self.read(0.05)

    def resize(self, columns: int, rows: int) -> None:
        self._screen.resize(rows, columns)
        fcntl.ioctl(self._pty, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        os.kill(self.pid, signal.SIGWINCH)

    def ended(self, seconds: float = 20.0) -> int:
        """Its exit code."""
        deadline = time.monotonic() + seconds
        while self._process.poll() is None:
            assert time.monotonic() < deadline, f"it has not ended; the screen is:\n{self.text}"
            self.read(0.05)
        self.read(0.1)
        return self._process.returncode
