"""Drops the capabilities of the calling thread. Linux only; other threads keep theirs.

Also calls functions of the C library, for the modules that restrict a thread.
"""

import errno
import functools
import os
import struct
import sys
from collections.abc import Callable
from typing import Any

_CAPABILITY_VERSION_3 = 0x20080522


def drop_capabilities() -> None:
    """Give up every capability, and with these the ambient ones.

    A program that is started as root does not get them back after `landlock.restrict`, which forbids that.
    """
    call_libc("capset", struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), bytes(24))


def call_libc(name: str, *arguments: int | bytes) -> int:
    """Call a function that returns -1 on failure. OSError if it fails, or if this is not Linux."""
    return libc_caller(name, *arguments)()


def libc_caller(name: str, *first: int | bytes) -> Callable[..., int]:
    """A function for many calls with the same first arguments; each adds what may be a different last one."""
    import ctypes  # slow to import

    if not sys.platform.startswith("linux"):
        raise OSError(errno.ENOSYS, f"{name}: only on Linux")
    function = _function(name)
    values = [ctypes.c_ulong(value) if isinstance(value, int) else value for value in first]
    zero = ctypes.c_ulong(0)

    def call(*last: bytes) -> int:
        result = function(*values, *last, zero) if last else function(*values)
        if result == -1:
            code = ctypes.get_errno()
            raise OSError(code, f"{name}: {os.strerror(code)}")
        return result

    return call


@functools.cache
def _function(name: str) -> Any:
    import ctypes

    return getattr(ctypes.CDLL(None, use_errno=True), name)
