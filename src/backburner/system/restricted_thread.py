"""Calls a function in a thread that is restricted; only what it starts is restricted too. Linux only.

The log writer loads this as well, so it imports only what a restricted thread needs.
"""

import _thread
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from backburner.system import capabilities, landlock, seccomp

T = TypeVar("T")

_MAX_KEPT = 8  # threads


class Restriction(NamedTuple):
    """What a thread may still do: what its own Landlock ruleset permits.

    If it also has a ruleset that it shares with others: only what both permit, without capabilities and without sockets.
    """

    own: int  # a descriptor, see landlock.ruleset
    shared: int = -1
    number: int = 0  # of the shared ruleset: no other one of this process gets the same

    @property
    def rulesets(self) -> tuple[int, ...]:
        return (self.own, self.shared) if self.number else (self.own,)

    def to_text(self) -> bytes:
        """All but the descriptors, for a request to the log writer."""
        return b"%d" % self.number


class RestrictedThreads:
    """Threads that have what many restrictions share, and start another thread for each call, which inherits that.

    They are kept, because installing a system call filter takes longer than starting a thread.
    """

    def __init__(self) -> None:
        self._kept: dict[int, _SharedThread] = {}

    def call(self, text: bytes, rulesets: list[int], function: Callable[[], T]) -> T:
        """Like `call_restricted`, with a restriction that was passed to this process."""
        restriction = Restriction(*rulesets, number=int(text))
        if not restriction.number:
            return call_restricted(restriction, function)
        thread = self._kept.pop(restriction.number, None) or _SharedThread(restriction.shared)
        try:
            result = _call(lambda: _restricted(restriction.own, function), thread.start)
        except BaseException:
            thread.end()
            raise
        self._kept[restriction.number] = thread
        if len(self._kept) > _MAX_KEPT:
            self._kept.pop(next(iter(self._kept))).end()  # the one that was not used for the longest time
        return result


def call_restricted(restriction: Restriction, function: Callable[[], T]) -> T:
    """Call a function in a new thread with this restriction, and wait for it. It is not called if the thread cannot be restricted."""

    def restricted() -> T:
        if restriction.number:
            _apply_shared(restriction.shared)
        return _restricted(restriction.own, function)

    return _call(restricted, lambda run: _thread.start_new_thread(run, ()))


class _SharedThread:
    """A thread that has what many restrictions share. `ruleset` must stay open until the first call has ended."""

    def __init__(self, ruleset: int) -> None:
        self._wanted = _thread.allocate_lock()
        self._wanted.acquire()
        self._run: Callable[..., None] | None = None
        _thread.start_new_thread(self._serve, (ruleset,))

    def start(self, run: Callable[..., None]) -> None:
        """Call a function in a new thread of this one. If none can be started or restricted, the function is called with the error."""
        self._run = run
        self._wanted.release()

    def end(self) -> None:
        self._run = None
        self._wanted.release()

    def _serve(self, ruleset: int) -> None:
        error: BaseException | None = None
        try:
            _apply_shared(ruleset)
        except BaseException as caught:
            error = caught
        self._wanted.acquire()
        while run := self._run:
            try:
                if error:
                    raise error
                _thread.start_new_thread(run, ())
            except BaseException as caught:
                run(caught)
            del run  # it holds what the function needs
            self._wanted.acquire()


def _call(function: Callable[[], T], start: Callable[[Callable[..., None]], object]) -> T:
    """Call a function in the thread that `start` starts, and wait for it."""
    done = _thread.allocate_lock()
    results: list[T] = []
    errors: list[BaseException] = []

    def run(error: BaseException | None = None) -> None:
        try:
            if error:
                raise error
            results.append(function())
        except BaseException as caught:  # raised again in the caller's thread
            errors.append(caught)
        finally:
            done.release()

    done.acquire()
    start(run)  # not a threading.Thread, which takes three times as long
    done.acquire()
    if errors:
        raise errors[0]
    return results[0]


def _apply_shared(ruleset: int) -> None:
    capabilities.drop_capabilities()
    landlock.restrict(ruleset)
    seccomp.install(seccomp.no_sockets())


def _restricted(own: int, function: Callable[[], T]) -> T:
    landlock.restrict(own)
    return function()
