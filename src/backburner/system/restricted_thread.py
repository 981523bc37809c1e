"""Calls a function in a thread that is restricted; only what it starts is restricted too. Linux only.

The log writer loads this as well, so it imports only what a restricted thread needs.
"""

import _thread
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from backburner.system import capabilities, landlock, seccomp

T = TypeVar("T")


class Restriction(NamedTuple):
    """What a thread may still do: what every one of the Landlock rulesets permits, of the system calls that the filter permits."""

    rulesets: tuple[int, ...]  # descriptors, see landlock.ruleset
    program: bytes = b""  # a system call filter, see seccomp
    keeps_capabilities: bool = False

    def to_text(self) -> bytes:
        """All but the descriptors, for a request to the log writer."""
        return b"%d %s" % (self.keeps_capabilities, self.program.hex().encode())

    @classmethod
    def from_text(cls, text: bytes, rulesets: tuple[int, ...]) -> "Restriction":
        keeps_capabilities, program = text.decode().split(" ")
        return cls(rulesets, bytes.fromhex(program), keeps_capabilities == "1")


def call_restricted(restriction: Restriction, function: Callable[[], T]) -> T:
    """Call a function in a new thread with this restriction, and wait for it. It is not called if the thread cannot be restricted."""
    done = _thread.allocate_lock()
    results: list[T] = []
    errors: list[BaseException] = []

    def restricted() -> None:
        try:
            if not restriction.keeps_capabilities:
                capabilities.drop_capabilities()
            for ruleset in restriction.rulesets:
                landlock.restrict(ruleset)
            if restriction.program:
                seccomp.install(restriction.program)
            results.append(function())
        except BaseException as error:  # raised again in the caller's thread
            errors.append(error)
        finally:
            done.release()

    done.acquire()
    _thread.start_new_thread(restricted, ())  # a threading.Thread takes three times as long
    done.acquire()
    if errors:
        raise errors[0]
    return results[0]
