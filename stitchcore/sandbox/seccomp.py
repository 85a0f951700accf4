"""Which system calls a process may make, taken away by itself: libseccomp, by its C interface.

A list of what is allowed: what a compiler, Python and TensorFlow need to compute and to handle
files. No socket is made, no address connected to, no process traced, no namespace entered, no
mount, key ring, BPF program or ring of asynchronous calls made. Everything else fails with EPERM,
so that libraries that try go on without. Standard library only: it runs between `fork` and a
command. libseccomp is what container runtimes and systemd use; Debian's apt depends on it.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Sequence
from typing import Any

LIBRARY = "libseccomp.so.2"
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
NOT_EQUAL, MASKED_EQUAL = 1, 7
ALL_THREADS = 4
NAMESPACES = 0x7E020000
"""CLONE_NEW...: of what `clone` may make."""
KIND_OF_SOCKET, STREAM = 0xF, 1
FILES = 1

ALLOWED = """
access alarm arch_prctl brk capget chdir chmod chown clock_getres clock_gettime clock_nanosleep
close close_range copy_file_range creat dup dup2 dup3 epoll_create epoll_create1 epoll_ctl
epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2 execve execveat exit exit_group faccessat
faccessat2 fadvise64 fallocate fchdir fchmod fchmodat fchown fchownat fcntl fdatasync fgetxattr
flistxattr flock fork fstat fstatfs fsync ftruncate futex futex_waitv get_mempolicy get_robust_list
getcpu getcwd getdents getdents64 getegid geteuid getgid getgroups getitimer getpeername getpgid
getpgrp getpid getppid getpriority getrandom getresgid getresuid getrlimit getrusage getsid
getsockname getsockopt gettid gettimeofday getuid getxattr ioctl kill lchown lgetxattr link linkat
listxattr llistxattr lseek lstat madvise mbind membarrier memfd_create mincore mkdir mkdirat mknod
mknodat mlock mlock2 mmap mprotect mremap msync munlock munmap nanosleep newfstatat open openat
openat2 pause pipe pipe2 poll ppoll prctl pread64 preadv preadv2 prlimit64 pselect6 pwrite64 pwritev
pwritev2 read readahead readlink readlinkat readv recvfrom recvmsg rename renameat renameat2
restart_syscall rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigreturn rt_sigsuspend
rt_sigtimedwait sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr
sched_getparam sched_getscheduler sched_setaffinity sched_yield select sendfile sendmsg sendto
set_mempolicy set_robust_list set_tid_address setitimer setpgid setpriority setrlimit setsid
setsockopt shutdown sigaltstack stat statfs statx symlink symlinkat sync_file_range sysinfo tgkill
time timer_create timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create
timerfd_gettime timerfd_settime times tkill truncate umask uname unlink unlinkat utime utimensat
utimes vfork wait4 waitid write writev
""".split()


class _Comparison(ctypes.Structure):
    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operation", ctypes.c_int),
        ("mask", ctypes.c_uint64),
        ("value", ctypes.c_uint64),
    )


def restrict() -> str:
    """From now on this process and all that it starts make the system calls of ALLOWED and no
    others; why that is not so, or ""."""
    return _loaded(
        ERRNO | errno.EPERM,
        [
            *((ALLOW, name) for name in ALLOWED),
            (ALLOW, "clone", _Comparison(0, MASKED_EQUAL, NAMESPACES, 0)),
            # its flags are in memory, where no filter looks: libraries then use `clone`
            (ERRNO | errno.ENOSYS, "clone3"),
            # a datagram's address may be anyone's
            (ALLOW, "socketpair", _Comparison(1, MASKED_EQUAL, KIND_OF_SOCKET, STREAM)),
        ],
    )


def without_network() -> str:
    """From now on this process, with the threads that it has, and all that it starts make no socket
    but those of files; why that is not so, or ""."""
    denied = ERRNO | errno.EPERM
    return _loaded(
        ALLOW,
        [
            (denied, "socket", _Comparison(0, NOT_EQUAL, FILES, 0)),
            (denied, "io_uring_setup"),  # which makes sockets past any filter
        ],
    )


def _loaded(otherwise: int, rules: Sequence[tuple[Any, ...]]) -> str:
    """A filter of (action, system call, comparisons...) for all threads; why it is none, or ""."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        return f"seccomp: {error}"
    library.seccomp_init.restype = ctypes.c_void_p
    filter_ = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(otherwise)))
    if not filter_:
        return f"seccomp: {LIBRARY} makes no filter"

    def add(action: int, name: str, *comparisons: _Comparison) -> int:
        number = library.seccomp_syscall_resolve_name(name.encode())
        if number < 0:
            return 0  # of another architecture, or newer than the library
        compared = (_Comparison * len(comparisons))(*comparisons)
        about = (ctypes.c_uint32(action), number, len(comparisons), compared)
        return int(library.seccomp_rule_add_array(filter_, *about))

    failed = [add(*rule) for rule in rules]
    failed.append(int(library.seccomp_attr_set(filter_, ALL_THREADS, ctypes.c_uint32(1))))
    code = min(failed) or int(library.seccomp_load(filter_))
    library.seccomp_release(filter_)
    return f"seccomp: {os.strerror(-code)}" if code else ""
