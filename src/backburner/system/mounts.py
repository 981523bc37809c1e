"""Mounts that are made and put in their places through descriptors. Linux 6.18 or newer; an OSError on others.

A mount made here has no place until it is attached, and is gone when its descriptor is closed before. A whole tree of mounts can be put together like
this where nobody sees it, and copied. Nothing here reads the table of mounts, which is what takes other programs long.
"""

import ctypes
import errno
import functools
import os
from collections.abc import Callable, Iterable
from typing import Any

READ_ONLY, NO_SETUID, NO_DEVICES = 1, 2, 4  # attributes
ORDINARY = NO_SETUID | NO_DEVICES

_OPEN_TREE_ATTR, _MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT, _OPENAT2 = 467, 429, 430, 431, 432, 437
_CLOSE_ON_EXEC, _CLONE, _EMPTY_PATH, _RECURSIVE = os.O_CLOEXEC, 1, 0x1000, 0x8000
_FROM_DESCRIPTOR = 0x4  # of move_mount
_FLAG, _STRING, _DESCRIPTOR, _CREATE = 0, 1, 5, 6  # of fsconfig
_MNT_DETACH = 2
_AT_FDCWD = -100
_IN_ROOT = 0x10  # how openat2 follows links

Option = tuple[str, str | int | None]


def copy(path: str | int, attributes: int = ORDINARY) -> int:
    """A copy of what is mounted at a path, or at an open file, with everything below it; the attributes are added to each."""
    at, name, flags = (path, b"", _EMPTY_PATH) if isinstance(path, int) else (_AT_FDCWD, os.fsencode(path), 0)
    return _open_tree_attr()(at, name, flags | _CLONE | _CLOSE_ON_EXEC | _RECURSIVE, _attributes(attributes), 32)


def new(kind: str, options: Iterable[Option] = (), attributes: int = ORDINARY) -> int:
    """A new file system. An option has a text, an open file or nothing as its value."""
    configure = _fsconfig()
    made = _fsopen()(kind.encode(), 1)
    try:
        for name, value in options:
            if isinstance(value, int):
                configure(made, _DESCRIPTOR, name.encode(), None, value)
            elif value is None:
                configure(made, _FLAG, name.encode(), None, 0)
            else:
                configure(made, _STRING, name.encode(), os.fsencode(value), 0)
        configure(made, _CREATE, None, None, 0)
        return _fsmount()(made, 1, attributes)
    finally:
        os.close(made)


def open_inside(root: int, path: str) -> int:
    """Open a file or folder, for its place only, as if this open folder were the root: no link leads out of it."""
    return _openat2()(root, os.fsencode(path), _IN_ROOT_ONLY, 24)


def attach(mount: int, folder: int, name: str) -> None:
    """Put a mount on a file or folder in an open folder. A link is not followed."""
    _move_mount()(mount, b"", folder, os.fsencode(name), _FROM_DESCRIPTOR)


def enter(mount: int) -> None:
    """Make a mount the root of the calling thread, which has a mount namespace of its own. What was there is covered."""
    _move_mount()(mount, b"", _AT_FDCWD, b"/", _FROM_DESCRIPTOR)
    os.fchdir(mount)
    os.chroot(".")


def leave_all_others(mount: int) -> None:
    """Make a mount the root of the calling thread's mount namespace, in which nothing else stays."""
    _move_mount()(mount, b"", _AT_FDCWD, b"/", _FROM_DESCRIPTOR)
    os.fchdir(mount)
    for name, arguments in (("pivot_root", (b".", b".")), ("umount2", (b".", _MNT_DETACH))):
        if getattr(_libc(), name)(*arguments):
            raise _error(name)
    os.chdir("/")


def unshare(flags: int) -> None:
    """Give the calling thread namespaces of its own."""
    if _libc().unshare(flags):
        raise _error("unshare")


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


@functools.cache
def _attributes(attributes: int) -> ctypes.Array[ctypes.c_uint64]:
    return (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)


_IN_ROOT_ONLY = (ctypes.c_uint64 * 3)(os.O_PATH | os.O_CLOEXEC, 0, _IN_ROOT)


def _function(number: int, *kinds: type[Any]) -> Callable[[], Callable[..., int]]:
    """A system call. The kinds of its arguments are given, because converting these by guess takes longer than most calls."""

    @functools.cache
    def find() -> Callable[..., int]:
        function = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_long, *kinds, use_errno=True)(("syscall", _libc()))

        def call(*arguments: object) -> int:
            result = function(number, *arguments)
            if result < 0:
                raise _error(f"system call {number}")
            return result

        return call

    return find


_open_tree_attr = _function(_OPEN_TREE_ATTR, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint, ctypes.c_void_p, ctypes.c_size_t)
_openat2 = _function(_OPENAT2, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t)
_fsopen = _function(_FSOPEN, ctypes.c_char_p, ctypes.c_uint)
_fsconfig = _function(_FSCONFIG, ctypes.c_int, ctypes.c_uint, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int)
_fsmount = _function(_FSMOUNT, ctypes.c_int, ctypes.c_uint, ctypes.c_uint)
_move_mount = _function(_MOVE_MOUNT, ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)


def _error(name: str) -> OSError:
    code = ctypes.get_errno() or errno.EINVAL
    return OSError(code, f"{name}: {os.strerror(code)}")
