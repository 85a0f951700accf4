"""What files a process may touch, taken away by itself: Landlock, by its three system calls.

A pod's default profile lets every process do this, without a namespace and without rights. What is
not named cannot be opened, executed, made or removed; processes outside cannot be traced, nor read
through /proc, and, where the kernel knows how, not signalled and not connected to by TCP or by an
abstract name. Standard library only: it runs between `fork` and a command.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable, Sequence

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
"""Numbers of system calls, the same on every architecture."""
VERSION_ONLY, PATH_BENEATH = 1, 1
EXECUTE, WRITE_FILE, READ_FILE, READ_FOLDER = 1, 2, 4, 8
TRUNCATE, IOCTL_DEVICE = 1 << 14, 1 << 15
READING = EXECUTE | READ_FILE | READ_FOLDER
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEVICE
HANDLED = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""Rights that a version of the interface knows, and later ones up to the next."""
TCP_FROM, SCOPES_FROM = 4, 6
TCP, SCOPES = 3, 3
"""bind and connect; abstract sockets and signals."""


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def unavailable() -> str:
    """Why this kernel has no Landlock; "" where it has."""
    return "" if _version() >= 1 else f"landlock: {os.strerror(ctypes.get_errno())}"


def restrict(readable: Iterable[str], writable: Iterable[str]) -> str:
    """From now on this process and all that it starts read and execute what is beneath `readable`,
    do all beneath `writable`, and touch nothing else; why that is not so, or "". Paths that do not
    exist are left out. Needs no_new_privs."""
    version = _version()
    if version < 1:
        return unavailable()
    handled = HANDLED[max(known for known in HANDLED if known <= version)]
    net = TCP if version >= TCP_FROM else 0
    rules = _Ruleset(handled, net, SCOPES if version >= SCOPES_FROM else 0)
    size = 8 if version < TCP_FROM else 16 if version < SCOPES_FROM else 24
    ruleset = _call(CREATE_RULESET, ctypes.byref(rules), ctypes.c_size_t(size), 0)
    if ruleset < 0:
        return f"landlock: {os.strerror(ctypes.get_errno())}"
    try:
        for paths, rights in ((readable, READING), (writable, handled)):
            for path in paths:
                if why := _allow(ruleset, path, rights & handled):
                    return f"landlock: {path}: {why}"
        if _call(RESTRICT_SELF, ruleset, 0) < 0:
            return f"landlock: {os.strerror(ctypes.get_errno())}"
    finally:
        os.close(ruleset)
    return ""


def within(path: str, folders: Sequence[str]) -> bool:
    """Whether `path` is one of the folders, or beneath one."""
    real = os.path.realpath(path)
    return any(real == one or real.startswith(one.rstrip("/") + "/") for one in map(
        os.path.realpath, folders
    ))  # fmt: skip


def _version() -> int:
    return _call(CREATE_RULESET, None, ctypes.c_size_t(0), VERSION_ONLY)


def _allow(ruleset: int, path: str, rights: int) -> str:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        if not stat.S_ISDIR(os.fstat(handle).st_mode):
            rights &= OF_FILES
        beneath = _Beneath(rights, handle)
        done = _call(ADD_RULE, ruleset, PATH_BENEATH, ctypes.byref(beneath), 0)
        return os.strerror(ctypes.get_errno()) if done < 0 else ""
    finally:
        os.close(handle)


def _call(number: int, *arguments: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    given = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    return int(libc.syscall(ctypes.c_long(number), *given))
