"""A worker's task without a broker, that something happens to at a stage.

    python -m tests.worker.alone FOLDER KEY die|fill STAGE

`die`: it is killed at STAGE, as a machine that goes away. `fill`: from STAGE on FOLDER's disk is
full. Prints what became of the request, or the reason.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

from stitch_worker.children import Local
from stitch_worker.lease import FolderLeases
from stitch_worker.service import Service, process
from stitchcore.artifact.store import open_store
from stitchcore.device.host import host
from stitchcore.errors import Refused
from stitchcore.sandbox import isolate
from tests.worker.requests import TF

SECRET = b"s" * 32
FILLER = "filler"


def service(folder: Path, lease_seconds: float = 1.0) -> Service:
    store = folder / "store"
    return Service(
        store=open_store(str(store)),
        leases=FolderLeases(folder / "leases", lease_seconds),
        target=host().target,
        tf=TF,
        children=Local(isolate.Limits(120, 8 * 2**30, 300, hidden=(str(store),)), folder / "logs"),
        jobs=2,
        lease_seconds=lease_seconds,
        secret=SECRET,
    )


def fill(folder: Path) -> None:
    """Leave no byte of the store's disk free."""
    with contextlib.suppress(OSError), (folder / FILLER).open("ab", buffering=0) as file:
        for size in (65536, 4096, 1):
            with contextlib.suppress(OSError):
                while file.write(b"x" * size):
                    pass


def main(folder: Path, key: str, what: str, stage: str) -> None:
    def observe(event: str, _: str) -> None:
        if event == stage and what == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if event == stage and what == "fill":
            fill(folder / "store")

    given = service(folder)
    try:
        print(process(Service(**{**vars(given), "observe": observe}), key))
    except Refused as refused:
        print(refused.refusal.reason.value)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
