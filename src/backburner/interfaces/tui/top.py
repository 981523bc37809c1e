"""`top`: the board on the terminal. Keys come in and the Runtime's verbs are called; what is drawn is what `board` composes.

Sleeps until a key, a ring, a line of the selected task's output or a new size of the terminal wakes it; only while something
is live it also looks by itself. Whatever happens, the terminal is given back as it was.
"""

import argparse
import contextlib
import curses
import locale
import os
import select
import signal
import sys
import termios
import time
from collections.abc import Callable, Generator
from importlib import import_module
from typing import TYPE_CHECKING

from backburner.coordination.config_file import load_config
from backburner.core import task_text as render
from backburner.core.errors import BackburnerError, BadInput
from backburner.core.models import ENGINE, Entry
from backburner.core.states import LIVE, RunState, TaskState
from backburner.core.terminal_text import cells, visible
from backburner.interfaces.cli.main import verb_parser
from backburner.interfaces.cli.run import cwd
from backburner.interfaces.cli.tasks import LISTED, hint
from backburner.interfaces.tui import board
from backburner.services.runtime import Runtime, now_ms
from backburner.system.file_watch import FileWatch
from backburner.system.home import project_of

if TYPE_CHECKING:
    from backburner.core.progress import Progress

_NEEDS = "`top` needs a terminal; `backburner list` works without one."
_PULSE_SECONDS = 1.0  # while something runs, its time moves
_LOOK_SECONDS = 5.0  # while something is live, somebody must see to it that an engine is
_BREATH_SECONDS = 0.1  # between two drawings, however fast a command prints
_FRESH_SECONDS = 0.5  # how long what a command said of its progress is good enough
_MOST_OUTPUT = 1 << 16
_MOST_LIVE = 1000
_LOG_LINES = "1000"
_ESCAPE = 27
COLOURS = {
    "completed": curses.COLOR_GREEN,
    "failed": curses.COLOR_RED,
    "cancelled": curses.COLOR_YELLOW,
    "running": curses.COLOR_CYAN,
    "resumed": curses.COLOR_CYAN,
    "proposed": curses.COLOR_MAGENTA,
    "waiting": curses.COLOR_MAGENTA,
    "rejected": curses.COLOR_YELLOW,
    "expired": curses.COLOR_YELLOW,
    "active": curses.COLOR_CYAN,
    "paused": curses.COLOR_YELLOW,
    "done": curses.COLOR_GREEN,
}
_PLAIN = {"─": "-", "·": "-", "…": "~", "↑": "^", "↓": "v", "█": "#", "░": "-", "→": ">"}


def top(runtime: Runtime, args: argparse.Namespace) -> int:
    if args.json:
        return _verb(runtime, "list", "--json", *(["--all"] if args.all else []))
    _require_terminal()
    with contextlib.suppress(KeyboardInterrupt), contextlib.ExitStack() as held:
        ear = held.enter_context(contextlib.closing(runtime.listen()))
        shown = Top(runtime, everywhere=args.all, ear=ear.fileno(), drain=ear.drain)
        held.callback(shown.close)
        shown.look()
        shown.signals = held.enter_context(_signals())
        for name in ("LINES", "COLUMNS"):  # ncurses would believe these rather than the terminal
            os.environ.pop(name, None)
        curses.wrapper(shown.run)
    return 0


def _verb(runtime: Runtime, verb: str, *arguments: str) -> int:
    """What the command line would do with these words."""
    module, name = {"list": ("tasks", "list_"), "logs": ("logs", "logs"), "restart": ("run", "restart")}[verb]
    return getattr(import_module(f"backburner.interfaces.cli.{module}"), name)(runtime, verb_parser(verb).parse_args([*arguments]))


def _require_terminal() -> None:
    """BadInput where nothing could be drawn. ncurses itself would end the process."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM", "dumb") in ("", "dumb"):
        raise BadInput(_NEEDS)
    try:
        curses.setupterm()
        able = curses.tigetstr("cup") and curses.tigetstr("clear")
    except curses.error:
        able = None
    if not able:
        raise BadInput(_NEEDS)


@contextlib.contextmanager
def _signals() -> Generator[int]:
    """A descriptor that can be read after every signal; those that end us do so in order."""

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    handlers = {signal.SIGWINCH: lambda *_: None, signal.SIGTERM: leave, signal.SIGHUP: leave}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    woken = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield reading
    finally:
        signal.set_wakeup_fd(woken)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reading)
        os.close(writing)


class Top:
    """One board on one terminal, until it is left. `look` may be called before `run`."""

    def __init__(self, runtime: Runtime, *, everywhere: bool, ear: int, drain: Callable[[], None]) -> None:
        self._runtime, self._ear, self._drain = runtime, ear, drain
        self.signals = -1
        self._watch, self._watched = FileWatch(), ""
        self._here = project_of(cwd())
        self._progress: dict[str, tuple[float, Progress | None]] = {}
        self._asked: str | None = None  # the task whose cancelling is to be confirmed
        self._trouble = self._note = ""
        self._left = False
        self._board = board.Board("", [], 0, self._how_far, self._why, self._tail, everywhere=everywhere)

    def close(self) -> None:
        self._watch.close()

    def run(self, screen: "curses.window") -> None:
        self._screen = screen
        self._styles = _styles()
        self._unicode = "utf" in locale.nl_langinfo(locale.CODESET).lower()
        screen.keypad(True)
        screen.nodelay(True)
        curses.set_escdelay(25)
        with contextlib.suppress(curses.error):
            curses.curs_set(0)
        while not self._left:
            self._arm()
            self._paint()
            self._wait()

    # -- what is known

    def look(self) -> None:
        """Read the ledger. The selection stays with its task; where that is gone, with its place."""
        now, old = now_ms(), self._board
        try:
            entries, free = board.arranged(self._entries(), now), self._free()
        except BackburnerError as error:
            self._trouble = str(error)
            return
        self._trouble = ""
        place, ids = self._place(), [entry.task.task_id for entry in entries]
        selected = old.selected if old.selected in ids else ids[min(place, len(ids) - 1)] if ids else None
        self._board = old._replace(where=self._where(), entries=entries, selected=selected, free=free)
        running = {entry.run.run_id for entry in entries if entry.run and entry.live}
        self._progress = {run_id: seen for run_id, seen in self._progress.items() if run_id in running}

    def _entries(self) -> list[Entry]:
        everywhere = self._board.everywhere
        entries = {entry.task.task_id: entry for entry in self._runtime.list(everywhere=everywhere, limit=LISTED)}
        if len(entries) == LISTED:  # what is live may be older than all of them
            for status in (*LIVE, TaskState.PROPOSED):
                for entry in self._runtime.list(status=status, everywhere=everywhere, limit=_MOST_LIVE):
                    entries.setdefault(entry.task.task_id, entry)
        return list(entries.values())

    def _free(self) -> int:
        """How many more could run: by the settings of now, as the engine goes by them."""
        with contextlib.suppress(BackburnerError):
            self._runtime.config = load_config(self._runtime.home, self._runtime.environ, self._runtime.flags)
        most = self._runtime.config.whole("commands.max_concurrent")
        running = self._runtime.list(status=RunState.RUNNING, everywhere=True, limit=_MOST_LIVE)
        return max(0, most - sum(entry.run is not None and entry.run.runner == ENGINE for entry in running))

    def _where(self) -> str:
        place = self._runtime.home.root if self._board.everywhere else self._here
        person = os.path.expanduser("~")
        place = f"~{place[len(person) :]}" if f"{place}/".startswith(f"{person}/") and person != "/" else place
        return visible(f"all projects of {place}" if self._board.everywhere else place)

    def _how_far(self, entry: Entry) -> "Progress | None":
        assert entry.run is not None
        now = time.monotonic()
        at, seen = self._progress.get(entry.run.run_id, (None, None))
        if at is None or now - at > _FRESH_SECONDS:
            self._progress[entry.run.run_id] = now, (seen := self._runtime.progress(entry))
        return seen

    def _why(self, entry: Entry) -> str | None:
        try:
            return self._runtime.waits_for(entry)
        except BackburnerError as error:
            return str(error)

    def _tail(self, entry: Entry, lines: int) -> bytes:
        try:
            return self._runtime.tail(entry, lines, longest=_MOST_OUTPUT)
        except OSError as error:
            return f"[{error.strerror}]".encode()

    # -- being woken

    def _arm(self) -> None:
        """Watch the log of the selected task; before it is read, so that nothing is missed."""
        entry = self._board.chosen
        path = self._runtime.log_path(entry) if entry and entry.live else ""
        if path != self._watched:
            self._watch.close()
            self._watch, self._watched = FileWatch(), path
        if path:
            self._watch.arm(path)

    def _wait(self) -> None:
        """Until something is to be done, and do it. Keys and signals are taken at once, all else after a breath."""
        at_once = [0, self.signals]
        rest = [self._ear, *([self._watch] if self._watch.works else [])]
        ready = select.select(at_once, [], [], _BREATH_SECONDS)[0]
        ready = select.select([*at_once, *rest], [], [], 0 if ready else self._pulse())[0]
        if self._watch in ready:
            self._watch.fired()
        if self.signals in ready:
            os.read(self.signals, 1 << 16)
            self._resize()
        if self._ear in ready or not ready:
            self._drain()
            self.look()
        if 0 in ready:
            self._keys()

    def _pulse(self) -> float | None:
        if any(board.section_of(entry) is board.Section.RUNNING for entry in self._board.entries):
            return _PULSE_SECONDS
        return _LOOK_SECONDS if self._trouble or any(entry.live for entry in self._board.entries) else None

    def _resize(self) -> None:
        with contextlib.suppress(OSError, curses.error):
            columns, lines = render.terminal(1)
            curses.resizeterm(lines, columns)
            self._screen.clear()

    # -- drawing

    def _paint(self) -> None:
        height, width = self._screen.getmaxyx()
        question = f"Cancel {board.short(self._asked, width)}? y/n" if self._asked else ""
        shown = self._board._replace(now=now_ms(), said=question or self._note or self._trouble)
        rows = board.compose(shown, width, height)
        for y, row in enumerate(rows):
            x = 0
            with contextlib.suppress(curses.error):  # the last cell of a screen cannot be passed
                self._screen.move(y, 0)
                self._screen.clrtoeol()  # a character wider than was thought has run over from the line above
                for text, style in row:
                    self._screen.addstr(y, x, text if self._unicode else _plain(text), self._styles.get(style, 0))
                    x += cells(text)
        self._screen.refresh()

    # -- keys

    def _keys(self) -> None:
        """Everything that was typed. An escape with something right behind it is no key that we know."""
        keys = []
        while (key := self._screen.getch()) != curses.ERR:
            keys.append(key)
        if not keys and not sys.stdin.isatty():
            self._left = True  # the terminal is gone
        if keys[:1] != [_ESCAPE] or len(keys) == 1:
            for key in keys:
                self._key(key)

    def _key(self, key: int) -> None:
        if key == curses.KEY_RESIZE:
            return
        self._note = ""
        if self._asked:
            self._answer(key)
            return
        if self._board.help and key != ord("q"):
            self._board = self._board._replace(help=False)
            return
        match chr(key) if key < 128 else key:
            case curses.KEY_UP | "k":
                self._go(self._place() - 1)
            case curses.KEY_DOWN | "j":
                self._go(self._place() + 1)
            case curses.KEY_PPAGE:
                self._go(self._place() - self._page())
            case curses.KEY_NPAGE:
                self._go(self._place() + self._page())
            case curses.KEY_HOME:
                self._go(0)
            case curses.KEY_END:
                self._go(len(self._board.entries) - 1)
            case "c":
                self._ask()
            case "r":
                self._restart()
            case "l":
                self._log()
            case "o" | "\n" | "\r" | curses.KEY_ENTER:
                self._board = self._board._replace(zoomed=not self._board.zoomed)
            case "a":
                self._board = self._board._replace(everywhere=not self._board.everywhere)
                self.look()
            case "?":
                self._board = self._board._replace(help=True)
            case "\x0c":
                self._screen.clear()
            case "\x1b" if self._board.zoomed:
                self._board = self._board._replace(zoomed=False)
            case "q" | "\x1b":
                self._left = True

    def _place(self) -> int:
        """Where in the list the selected task stands."""
        ids = [entry.task.task_id for entry in self._board.entries]
        return ids.index(self._board.selected) if self._board.selected in ids else 0

    def _page(self) -> int:
        return board.page(self._board, self._screen.getmaxyx()[0])

    def _go(self, place: int) -> None:
        if entries := self._board.entries:
            place = max(0, min(place, len(entries) - 1))
            self._board = self._board._replace(selected=entries[place].task.task_id)

    def _ask(self) -> None:
        if entry := self._board.chosen:
            if entry.ended:
                self._note = f"Task {entry.task.task_id} is not running (status: {entry.status})."
            else:
                self._asked = entry.task.task_id

    def _answer(self, key: int) -> None:
        """A yes asks for the end and goes on: the board shows it coming."""
        task_id, self._asked = self._asked, None
        if key not in (ord("y"), ord("Y")) or task_id is None:
            return
        try:
            self._runtime.cancel(task_id, for_good=True)
        except BackburnerError as error:
            self._note = str(error)
        self.look()

    def _restart(self) -> None:
        """Through the gate, on the plain screen, where a question can be asked; what came of it is selected."""
        if (entry := self._board.chosen) is None:
            return
        before = {entry.task.task_id for entry in self._board.entries}
        self._outside("restart", entry.task.task_id)
        self.look()
        for other in self._board.entries:
            if other.task.restarted_from == entry.task.task_id and other.task.task_id not in before:
                self._board = self._board._replace(selected=other.task.task_id)

    def _log(self) -> None:
        if entry := self._board.chosen:
            self._outside("logs", "--follow", "--tail", _LOG_LINES, entry.task.task_id)
            self.look()

    def _outside(self, verb: str, *arguments: str) -> None:
        """A verb of the command line, on the screen as it was before the board."""
        curses.endwin()
        hint(f"backburner {verb} {' '.join(arguments)}")
        try:
            _verb(self._runtime, verb, *arguments)
        except BackburnerError as error:
            hint(str(error))
        except KeyboardInterrupt:
            hint("")
        with contextlib.suppress(KeyboardInterrupt):
            sys.stdout.flush()
            termios.tcflush(0, termios.TCIFLUSH)
            print("Press Enter to return to the board. ", end="", file=sys.stderr, flush=True)
            sys.stdin.readline()
        self._resize()
        self._screen.clear()


def _styles() -> dict[str, int]:
    """How each style looks on this terminal. Colours only where it has them and the person wants them."""
    styles = {"bold": curses.A_BOLD, "dim": curses.A_DIM, "pending": curses.A_DIM, "selected": curses.A_REVERSE}
    if curses.has_colors():
        with contextlib.suppress(curses.error):
            curses.use_default_colors()  # also without colours of our own: a terminal's background stays
            for number, (status, colour) in enumerate(COLOURS.items() if not os.environ.get("NO_COLOR") else (), 1):
                curses.init_pair(number, colour, -1)
                styles[status] = curses.color_pair(number)
    return styles


def _plain(text: str) -> str:
    """`text` in as many columns without a letter that a terminal of old might not know."""
    return "".join(c if c.isascii() else _PLAIN.get(c, "?" * cells(c)) for c in text)
