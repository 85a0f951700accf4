"""Where things lie: programs are kept by version, a cluster's state is one folder.

Programs lie outside the checkout, so that every checkout and worktree shares them. A cluster of
the API level has its state in memory (etcd writes a lot); a node holds images and stays on disk.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

MEMORY = Path("/dev/shm")
DISK = Path("/var/tmp")
DRAFT = ".new"
"""A state folder that is still being made; not one yet."""
ROOM = 1 << 30
"""Bytes of memory-backed disk that a cluster may come to need; containers often have 64 MiB."""


def programs() -> Path:
    """The folder of built programs: `<release>-<version>/<program>`."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "stitch-testbed"


def assets() -> Path | None:
    """Somebody's own programs, as controller-runtime's envtest names them."""
    folder = os.environ.get("KUBEBUILDER_ASSETS")
    return Path(folder) if folder else None


def given_kubeconfig() -> Path | None:
    """The first file of KUBECONFIG."""
    first = os.environ.get("KUBECONFIG", "").partition(os.pathsep)[0]
    return Path(first) if first else None


def states(*, in_memory: bool) -> Path:
    """This user's folder of clusters; nobody else can read it or has put it there."""
    parent = MEMORY if in_memory and _has_room(MEMORY) else DISK
    folder = parent / f"stitch-testbed-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    seen = folder.lstat()
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.getuid():
        raise PermissionError(f"{folder} is not a folder of this user: remove it")
    return folder


def known_states() -> list[Path]:
    """State folders of this user's clusters, wherever they are."""
    own = f"stitch-testbed-{os.getuid()}"
    return [
        state
        for parent in (MEMORY, DISK)
        if (parent / own).is_dir()
        for state in sorted((parent / own).iterdir())
        if state.name != DRAFT
    ]


def _has_room(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    volume = os.statvfs(folder)
    return volume.f_bavail * volume.f_frsize >= ROOM
