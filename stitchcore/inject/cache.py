"""Verified artifacts kept on disk between the processes of a job, within a size limit.

The folder is the pod's (`/stitchcore/cache`), shared by its processes and kept over restarts of a
container; filling it would get the pod evicted, so the client stays below a share of its limit.
What lies there is trusted no more than what the network brings: it is verified again at each start.
"""

from __future__ import annotations

import os
import shutil
import time
from typing import List, Mapping, Sequence, Tuple

from . import reasons

SHARE = 0.8  # of the folder's size limit
ARTIFACTS, SESSIONS = "artifacts", "sessions"
BLOCK = 4096  # a file takes whole blocks


def _size(folder: str) -> int:
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(path, name)).st_blocks * 512
            except OSError:
                continue  # another process has just removed it
    return total


def _oldest_first(folders: Sequence[str]) -> List[Tuple[float, str]]:
    dated = []
    for folder_ in folders:
        for name in os.listdir(folder_) if os.path.isdir(folder_) else ():
            path = os.path.join(folder_, name)
            try:
                dated.append((os.stat(path).st_mtime, path))
            except OSError:
                continue  # removed meanwhile
    return sorted(dated)


def make_room(store: str, needed: int, limit: int) -> None:
    """Removes artifacts and sessions, oldest first, until `needed` bytes more fit into the share.

    Raises Refused(CACHE_FULL) when they do not fit even then.
    """
    allowed = int(SHARE * limit)
    used = _size(store)
    for _, path in _oldest_first([os.path.join(store, name) for name in (ARTIFACTS, SESSIONS)]):
        if used + needed <= allowed:
            return
        size = _size(path)
        shutil.rmtree(path, ignore_errors=True)
        used -= size
    if used + needed > allowed:
        detail = f"{needed} bytes more than the {used} in {store} do not fit into {allowed}"
        raise reasons.Refused(reasons.CACHE_FULL, detail)


def folder(store: str, digest: str) -> str:
    """Where the artifact of a graph is kept: one TensorFlow, one machine, one artifact."""
    return os.path.join(store, ARTIFACTS, digest)


def keep(store: str, path: str, files: Mapping[str, bytes], limit: int) -> None:
    """Writes an artifact's files to the folder `path`, all or none, in place of what lies there.

    Raises Refused: CACHE_FULL, STORE_UNREADABLE.
    """
    forget(path)
    make_room(store, sum(len(data) + BLOCK for data in files.values()), limit)
    temporary = f"{path}.{os.getpid()}.{time.monotonic_ns()}"
    try:
        os.makedirs(temporary)
        for name, data in files.items():
            with open(os.path.join(temporary, name), "wb") as file:
                file.write(data)
        os.rename(temporary, path)
    except OSError as error:
        forget(temporary)
        if not os.path.isdir(path):  # else another process was first
            detail = f"{path}: {error.strerror}"
            raise reasons.Refused(reasons.STORE_UNREADABLE, detail) from error


def touch(path: str) -> bool:
    """Marks an artifact as used now; False when it is not there."""
    try:
        os.utime(path)
    except OSError:
        return False
    return True


def forget(path: str) -> None:
    """Removes an artifact, if it is there."""
    shutil.rmtree(path, ignore_errors=True)
