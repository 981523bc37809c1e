"""Restricts the calling thread, and every process it starts, with Landlock: files, TCP ports, abstract sockets and signals. Linux only.

A restriction that this kernel does not know is left out, so callers compare `abi` with the constants below. Landlock never restricts
the metadata of files: `stat`, `chmod`, `chown`, `utime` and extended attributes work everywhere. It does not restrict UDP, nor unix
sockets that have a path; `seccomp` does.
"""

import functools
import os
import stat
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from backburner.system.capabilities import call_libc, libc_caller

# The first version that can restrict each.
RENAME_ABI, TRUNCATE_ABI, TCP_ABI, DEVICE_ABI, SCOPE_ABI = 2, 3, 4, 5, 6

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION = 1
_PATH_BENEATH, _NET_PORT = 1, 2
_PR_SET_NO_NEW_PRIVS = 38

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = (1 << bit for bit in range(4))
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_USE_DEVICE = _READ_FILE | _WRITE_FILE | _TRUNCATE | _IOCTL_DEV
_BIND_TCP, _CONNECT_TCP = 1, 2
_ABSTRACT_SOCKETS, _SIGNALS = 1, 2


class Rules(NamedTuple):
    """What is allowed. A folder stands for everything below it. Everything else that Landlock can restrict is refused."""

    read: tuple[str, ...] = ()  # files and folders to read, list and execute
    list_only: tuple[str, ...] = ()  # folders to list, whose files cannot be read
    write: tuple[str, ...] = ()  # files and folders to read, execute, change, create, rename and delete
    devices: tuple[str, ...] = ()  # existing files such as /dev/null to read, write and control
    files: bool = True  # whether files are restricted at all
    connect: tuple[int, ...] = ()  # TCP ports to connect to
    bind: bool = False  # whether any TCP port can be listened on
    connect_any: bool = False  # whether any TCP port can be connected to


@functools.cache
def abi() -> int:
    """The version of Landlock in this kernel; 0 if it is not available."""
    try:
        return call_libc("syscall", _CREATE_RULESET, 0, 0, _ASK_VERSION)
    except OSError:
        return 0


class OpenedRules:
    """Rules for paths that are opened once and can be part of any number of rulesets. Paths that do not exist are left out."""

    def __init__(self, rules: Rules) -> None:
        self._descriptors: list[int] = []
        self.texts: list[bytes] = []
        for path, rights in _rights(rules):
            if (opened := _open(path)) is not None:
                self._descriptors.append(opened)
                self.texts += [rule] if (rule := _rule(opened, rights)) else []

    def __del__(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)


def ruleset(rules: Rules, opened: OpenedRules | None = None) -> int:
    """A descriptor for `restrict`, which can be used for any number of threads. Paths that do not exist are left out.

    OSError if Landlock is not available, or if this kernel knows none of the restrictions.
    """
    files = _file_rights() if rules.files else 0
    ports = _port_rights(rules) if abi() >= TCP_ABI else 0
    scopes = _ABSTRACT_SOCKETS | _SIGNALS if abi() >= SCOPE_ABI else 0
    attributes = struct.pack("=QQQ", files, ports, scopes)
    descriptor = call_libc("syscall", _CREATE_RULESET, attributes, len(attributes), 0)
    try:
        if files:
            add_rule = libc_caller("syscall", _ADD_RULE, descriptor, _PATH_BENEATH)
            for rule in opened.texts if opened else ():
                add_rule(rule)
            for path, rights in _rights(rules):
                _allow_path(add_rule, path, rights)
        if ports & _CONNECT_TCP:
            for port in rules.connect:
                call_libc("syscall", _ADD_RULE, descriptor, _NET_PORT, struct.pack("=QQ", _CONNECT_TCP, port), 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def restrict(descriptor: int) -> None:
    """Apply a ruleset to the calling thread and forbid it new privileges. Neither can be undone.

    After a second ruleset, only what both allow is allowed.
    """
    call_libc("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    call_libc("syscall", _RESTRICT_SELF, descriptor, 0)


@functools.cache
def _file_rights() -> int:
    """Every right to files that this kernel can restrict."""
    bits = 13  # of version 1; each of these versions added one
    bits += sum(abi() >= version for version in (RENAME_ABI, TRUNCATE_ABI, DEVICE_ABI))
    return (1 << bits) - 1


def _port_rights(rules: Rules) -> int:
    return (0 if rules.bind else _BIND_TCP) | (0 if rules.connect_any else _CONNECT_TCP)


def _rights(rules: Rules) -> Iterator[tuple[str, int]]:
    """The paths of rules, and the rights to each that this kernel knows."""
    files = _file_rights()
    for paths, rights in ((rules.read, _READ), (rules.list_only, _READ_DIR), (rules.write, files), (rules.devices, _USE_DEVICE)):
        for path in paths:
            yield path, rights & files


def _allow_path(add_rule: Callable[[bytes], int], path: str, rights: int) -> None:
    if (opened := _open(path)) is None:
        return
    try:
        if rule := _rule(opened, rights):
            add_rule(rule)
    finally:
        os.close(opened)


def _open(path: str) -> int | None:
    try:
        return os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None


def _rule(opened: int, rights: int) -> bytes | None:
    if not stat.S_ISDIR(os.fstat(opened).st_mode):
        rights &= _OF_FILES  # the kernel refuses rules with other rights
    return struct.pack("=Qi", rights, opened) if rights else None
