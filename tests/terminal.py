"""Runs a program in a pseudo-terminal and shows its screen as a person would see it."""

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import pyte
from wcwidth import wcwidth

_HISTORY = 20_000
_READ_OVERTIME = 1.0  # seconds: `read` returns at the latest this long after its deadline, even if the program never stops writing


class _Screen(pyte.HistoryScreen):
    """Answers queries of the program. Also draws the text after an emoji joiner, which pyte would drop."""

    def __init__(self, columns: int, rows: int) -> None:
        super().__init__(columns, rows, _HISTORY)
        self.answers = b""

    def write_process_input(self, data: str) -> None:
        self.answers += data.encode()

    def draw(self, data: str) -> None:
        super().draw("".join(c for c in data if wcwidth(c) > 0 or unicodedata.combining(c)))

    def resize_as_terminals_do(self, columns: int, rows: int) -> None:
        """Remove lines at the top only as far as needed to keep the cursor's line; pyte always removes them there."""
        x, y = min(self.cursor.x, columns - 1), self.cursor.y
        gone = max(0, y + 1 - rows)
        self.history.top.extend(self.buffer[n] for n in range(gone))
        kept = [self.buffer[n] for n in range(gone, min(gone + rows, self.lines))]
        self.resize(rows, columns)
        self.buffer.clear()
        for n, line in enumerate(kept):
            for column in [column for column in line if column >= columns]:
                del line[column]
            self.buffer[n] = line
        self.cursor.x, self.cursor.y = x, y - gone


class Terminal:
    """`with Terminal([...], cwd=…, env=…) as terminal: terminal.type("hello\\r"); terminal.wait("hello")`."""

    def __init__(self, command: Sequence[str], *, cwd: Path, env: dict[str, str], columns: int = 100, rows: int = 30) -> None:
        self._screen = _Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self._raw = bytearray()
        self._pty, theirs = pty.openpty()
        self._size(columns, rows)
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
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the terminal like a closed window, and kill the program if it does not exit."""
        if not self._is_closed:
            os.close(self._pty)
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(5)

    def close_window(self, seconds: float = 60.0) -> int:
        """Close the terminal like a closed window, and wait for the end of the program; returns its exit code."""
        os.close(self._pty)
        self._is_closed = True
        return self._process.wait(seconds)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def raw(self) -> bytes:
        """Everything the program wrote."""
        return bytes(self._raw)

    def type(self, text: str) -> None:
        """Type keys, as a person would."""
        self._write(text.encode())

    def paste(self, text: str) -> None:
        """Paste a text, in the brackets that terminals put around it."""
        self.type(f"\x1b[200~{text}\x1b[201~")

    def read(self, seconds: float = 0.0) -> None:
        """Show what the program has written, and what it writes in the next `seconds`; answer its queries."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline + _READ_OVERTIME:
            if not select.select([self._pty], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return
            try:
                piece = os.read(self._pty, 1 << 16)
            except OSError:  # the program has closed the terminal
                time.sleep(max(0.0, min(0.01, deadline - time.monotonic())))
                return
            self._raw += piece
            self._stream.feed(piece)
            answers, self._screen.answers = self._screen.answers, b""
            if answers:
                self._write(answers)

    def _write(self, data: bytes, seconds: float = 30.0) -> None:
        """Write all of `data`, even if the program reads slowly; read what it writes meanwhile."""
        deadline = time.monotonic() + seconds
        while data:
            assert time.monotonic() < deadline, f"the program does not read; the screen is:\n{self.text}"
            readable, writable, _ = select.select([self._pty], [self._pty], [], 0.1)
            if writable:
                with contextlib.suppress(BlockingIOError):
                    data = data[os.write(self._pty, data[:1024]) :]
            if readable:
                self.read()

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self._screen.display]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def history(self) -> str:
        """The lines that have scrolled off, and the screen."""
        above = ["".join(line[x].data for x in range(max(line, default=-1) + 1)).rstrip() for line in self._screen.history.top]
        return "\n".join([*above, *self.lines])

    def wait(self, found: "str | Callable[[Terminal], object]", seconds: float = 60.0) -> None:
        """Wait until a text is on the screen or in the history, or until a condition is true."""
        deadline = time.monotonic() + seconds
        while not (found in self.history if isinstance(found, str) else found(self)):
            assert time.monotonic() < deadline, f"waited {seconds} s for {found!r}; the screen is:\n{self.history}"
            self.read(0.05)

    def resize(self, columns: int, rows: int) -> None:
        """Change the size; the kernel sends SIGWINCH to the program. Earlier output is shown in the old size."""
        self.read()
        self._screen.resize_as_terminals_do(columns, rows)
        self._size(columns, rows)

    def _size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._pty, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def ended(self, seconds: float = 60.0) -> int:
        """Wait for the end of the program; returns its exit code."""
        deadline = time.monotonic() + seconds
        while self._process.poll() is None:
            assert time.monotonic() < deadline, f"the program has not ended; the screen is:\n{self.text}"
            self.read(0.05)
        self.read()
        return self._process.returncode
