"""The circuit breaker: a job that died right after a swap does not get that swap again.

`breaker/<digest>.json` is written before the first stitched step and removed when 20 stitched steps
have passed, or at an orderly exit after one. Found at the next start, it means that the process
died in between: its lock is free (its number says nothing, in a pod every process is number 1). A
parent that knows how the job ended calls `job_ended`: only the exit codes of crashes count, a
killed or failed job is not the kernel's fault. A record with the field `failed` tells of a stitched
operation that could not run its kernel, or of a graph that TensorFlow did not take: it stays
whatever the exit code, because the job went on as if nothing had happened. So does
`breaker/<digest>.regions.json`, which names the regions of an artifact whose results on a job's own
data were not TensorFlow's: the next start leaves those alone out. `breaker/<digest>.loading.json`
stands while kernels are loaded: a driver or a library that crashes there does so at every start.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from typing import Any, Dict, Iterator, Mapping, Optional, Tuple

from . import records

CRASH_CODES = frozenset((132, 134, 135, 136, 139))  # illegal instruction, abort, bus, float, fault
OK_STEPS = 20


def _path(store: str, digest: str) -> str:
    return os.path.join(store, "breaker", f"{digest}.json")


def _loading_path(store: str, digest: str) -> str:
    return os.path.join(store, "breaker", f"{digest}.loading.json")


def _regions_path(store: str, digest: str) -> str:
    return os.path.join(store, "breaker", f"{digest}.regions.json")


def _alive(folder: str, record: Mapping[str, Any]) -> bool:
    """Whether the process that wrote a record holds its lock: a lock ends with its holder, and says
    so across containers that share a folder."""
    try:
        handle = os.open(os.path.join(folder, os.path.basename(record["lock"])), os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def why_not(store: str, digest: str, key: str) -> Optional[str]:
    """What an earlier process suffered from `key`; None when nothing speaks against the swap."""
    died = {
        _path(store, digest): "the process died in its first steps",
        _loading_path(store, digest): "the process died while its kernels were loaded",
    }
    return next(filter(None, (_suffered(path, key, how) for path, how in died.items())), None)


def _suffered(path: str, key: str, how: str) -> Optional[str]:
    try:
        record = records.read(path)
        if record["key"] != key:
            return None
        if record.get("failed"):
            return str(record["failed"])
        # A process that is done with a record removes it before its lock is free.
        going_on = _alive(os.path.dirname(path), record) or records.read(path) != record
        return None if going_on else how
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        return "its record cannot be read"  # taken as a crash


def left_out(store: str, digest: str, key: str) -> Dict[str, str]:
    """Regions of `key` that were wrong on the data of an earlier process, and what they made."""
    try:
        record = records.read(_regions_path(store, digest))
        regions = record["regions"] if record["key"] == key else {}
        return {str(name): str(failed) for name, failed in regions.items()}
    except (OSError, ValueError, KeyError, AttributeError):
        return {}  # the shadow call finds them again


def record_wrong(
    store: str, digest: str, key: str, session: str, regions: Mapping[str, str]
) -> None:
    """Has later starts leave `regions` of `key` out."""
    known = {**left_out(store, digest, key), **regions}
    record = {"key": key, "session": session, "failed": "wrong_result", "regions": known}
    with contextlib.suppress(OSError):  # then the shadow call finds them again
        records.write(_regions_path(store, digest), record)


@contextlib.contextmanager
def loading(store: str, digest: str, key: str, session: str) -> Iterator[None]:
    """The kernels of `key` are loaded within. Raises OSError when that cannot be put on record."""
    path = _loading_path(store, digest)
    lock, handle = _locked(path)
    try:
        records.write(path, {"key": key, "session": session, "lock": os.path.basename(lock)})
        yield
    finally:
        with contextlib.suppress(OSError):  # another process has, or the store is gone
            os.unlink(path)
        os.close(handle)
        with contextlib.suppress(OSError):
            os.unlink(lock)


def swap_begin(store: str, digest: str, key: str, session: str) -> None:
    """Raises OSError when the breaker cannot be written: then there must be no swap."""
    path = _path(store, digest)
    lock, _ = _locked(path)  # open for good
    records.write(path, {"key": key, "session": session, "lock": os.path.basename(lock)})


def _locked(path: str) -> Tuple[str, int]:
    """A lock beside `path` that this process holds while the descriptor is open: both."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    lock = f"{path}.{os.getpid()}.{time.monotonic_ns()}.lock"
    handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(handle, fcntl.LOCK_EX)
    return lock, handle


def record_failure(store: str, digest: str, key: str, session: str, failed: str) -> None:
    """Leaves the breaker for good: `key` made a step fail with the error `failed`."""
    try:
        record = {"key": key, "session": session, "failed": failed[:500]}
        records.write(_path(store, digest), record)
    except OSError:
        return  # the store is gone: what stands there decides


def swap_ok(store: str, digest: str) -> None:
    """Closes the account; a failure that is on record stays, also one that another thread or
    process puts there meanwhile."""
    path = _path(store, digest)
    taken = f"{path}.{os.getpid()}.{time.monotonic_ns()}.taken"
    try:
        os.rename(path, taken)
        if _failed(taken):
            os.rename(taken, path)
            return
        lock = _lock_of(taken)
        os.unlink(taken)
        if lock:
            os.unlink(os.path.join(store, "breaker", lock))
    except OSError:
        return  # never written, or the store is gone: the next start decides


def _lock_of(path: str) -> str:
    try:
        return os.path.basename(str(records.read(path).get("lock") or ""))
    except ValueError:
        return ""


def _failed(path: str) -> bool:
    """True when the record tells of a failure; one that cannot be parsed tells nothing."""
    try:
        return bool(records.read(path).get("failed"))
    except ValueError:
        return False


def job_ended(store: str, session: str, code: Optional[int]) -> None:
    """Called by the parent: forgets breakers of `session` unless `code` is a crash's.

    Those with a failure on record stay.

    `code` is an exit code as a shell shows it, or a negative signal number as subprocess does.
    """
    shown = 128 - code if code is not None and code < 0 else code
    if shown in CRASH_CODES:
        return
    folder = os.path.join(store, "breaker")
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        path = os.path.join(folder, name)
        try:
            record = records.read(path)
        except (OSError, ValueError):
            continue
        if record.get("session") == session and not record.get("failed"):
            os.unlink(path)


def forget_failures(store: str) -> None:
    """Called by the parent of a run that is to start afresh: no artifact is held back any more.

    Records of jobs that still run stay: they are not of the past.
    """
    folder = os.path.join(store, "breaker")
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        if not name.endswith(".json"):
            continue
        path = os.path.join(folder, name)
        try:
            record = records.read(path)
            past = bool(record.get("failed")) or not _alive(folder, record)
        except (OSError, ValueError, KeyError, TypeError):
            past = True  # it cannot be read: `why_not` takes it as a crash
        if past:
            with contextlib.suppress(OSError):
                os.unlink(path)
