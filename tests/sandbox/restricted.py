"""A process as in a plain restricted pod: `python -m tests.sandbox.restricted [--old] COMMAND...`

No capability, no way to new ones, and of the default profile of containers what matters here: no
namespace, no mount (what `RuntimeDefault` keeps from containers without capabilities). With
`--old` its kernel has no Landlock.
"""

from __future__ import annotations

import ctypes
import os
import sys

DENIED = (
    *("unshare", "mount", "umount2", "setns", "pivot_root", "mount_setattr", "move_mount"),
    *("open_tree", "fsopen", "keyctl", "bpf", "perf_event_open", "io_uring_setup"),
)
LANDLOCK = (444, 445, 446)
ALLOW, EPERM, ENOSYS = 0x7FFF0000, 0x00050001, 0x00050026
NAMESPACES = 0x7E020000
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 24, 38


class Comparison(ctypes.Structure):
    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operation", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


def restrict(old: bool) -> None:
    libc = ctypes.CDLL(None)
    for capability in range(64):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    assert libc.capset(header, (ctypes.c_uint32 * 6)()) == 0
    library = ctypes.CDLL("libseccomp.so.2")
    library.seccomp_init.restype = ctypes.c_void_p
    rules = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(ALLOW)))
    for name in DENIED:
        number = library.seccomp_syscall_resolve_name(name.encode())
        assert number < 0 or not library.seccomp_rule_add_array(rules, EPERM, number, 0, None)
    for number in LANDLOCK if old else ():
        assert not library.seccomp_rule_add_array(rules, ENOSYS, number, 0, None)
    clone = library.seccomp_syscall_resolve_name(b"clone")
    for bit in range(32):
        if NAMESPACES >> bit & 1:
            one = (Comparison * 1)(Comparison(0, 7, 1 << bit, 1 << bit))
            assert not library.seccomp_rule_add_array(rules, EPERM, clone, 1, one)
    assert library.seccomp_load(rules) == 0


if __name__ == "__main__":
    command = sys.argv[1:]
    if old := command[0] == "--old":
        del command[0]
    restrict(old)
    os.execvp(command[0], command)
