"""The breaker: a job that died right after a swap does not get that swap again.

`breaker/<digest>.json` is written before the first stitched step and removed when 20 stitched steps
have passed, or at an orderly exit. Found at the next start, it means that the process died in
between. A parent that knows how the job ended calls `job_ended`: only the exit codes of crashes
count, a killed or failed job is not the kernel's fault.
"""

from __future__ import annotations

import json
import os
import time
from typing import Optional

CRASH_CODES = frozenset((132, 134, 135, 136, 139))  # illegal instruction, abort, bus, float, fault
OK_STEPS = 20


def _path(store: str, digest: str) -> str:
    return os.path.join(store, "breaker", f"{digest}.json")


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def crashed_before(store: str, digest: str, key: str) -> bool:
    """True when an earlier process died in the first steps after swapping `key` in."""
    try:
        with open(_path(store, digest), encoding="utf-8") as file:
            found = json.load(file)
        return bool(found["key"] == key and not _alive(int(found["process"])))
    except FileNotFoundError:
        return False
    except (OSError, ValueError, KeyError, TypeError):
        return True  # a breaker that cannot be read is taken as open


def swap_begin(store: str, digest: str, key: str, session: str) -> None:
    """Raises OSError when the breaker cannot be written: then there must be no swap."""
    path = _path(store, digest)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "w", encoding="utf-8") as file:
        record = {"key": key, "session": session, "process": os.getpid(), "time": time.time()}
        json.dump(record, file)
    os.replace(temporary, path)


def swap_ok(store: str, digest: str) -> None:
    try:
        os.unlink(_path(store, digest))
    except OSError:
        return  # never written, or the store is gone: the next start decides


def job_ended(store: str, session: str, code: Optional[int]) -> None:
    """Called by the parent: forgets breakers of `session` unless `code` is a crash's.

    `code` is an exit code as a shell shows it, or a negative signal number as subprocess does.
    """
    shown = 128 - code if code is not None and code < 0 else code
    if shown in CRASH_CODES:
        return
    folder = os.path.join(store, "breaker")
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        path = os.path.join(folder, name)
        try:
            with open(path, encoding="utf-8") as file:
                mine = json.load(file).get("session") == session
        except (OSError, ValueError):
            continue
        if mine:
            os.unlink(path)
