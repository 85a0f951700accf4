"""XLA's kernels by JAX's profiler: seconds on the device of what is no contraction.

XLA's streams take no events from outside, so its own kernels are read from the trace that
`jax.profiler.trace` writes (CUPTI's records: start and duration of each kernel).
"""

from __future__ import annotations

import gzip
import json
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

CONTRACTION = re.compile(
    r"gemm|gemv|cublas|cutlass|xmma|nvjet|cudnn|convolve|(^|_)conv(_|\d|$)|dgrad|wgrad|fprop"
    r"|splitK|(^|_)dot(_|$)",
    re.IGNORECASE,
)
"""Names of kernels that multiply matrices or convolve, libraries' and Triton's."""
_TRANSFER = re.compile(r"memcpy(h2d|d2h|htod|dtoh)", re.IGNORECASE)


def device_seconds(run: Callable[[], None], before: Callable[[], None], runs: int) -> float:
    """Seconds a run that kernels other than contractions take, `before` (a flush) not counted."""
    import jax

    with tempfile.TemporaryDirectory(prefix="stitch-trace-") as folder:
        taken = []
        for number in range(runs):
            before()
            place = Path(folder) / str(number)
            with jax.profiler.trace(str(place)):
                run()
            taken.append(intensive(events(place)))
        return sorted(taken)[len(taken) // 2]


def events(folder: Path) -> list[Mapping[str, Any]]:
    """All events of the traces in `folder`. Raises FileNotFoundError where there is none."""
    paths = sorted(folder.rglob("*.trace.json.gz"))
    if not paths:
        raise FileNotFoundError(f"the profiler wrote no trace to {folder}")
    found: list[Mapping[str, Any]] = []
    for path in paths:
        found += json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return found


def intensive(found: Sequence[Mapping[str, Any]]) -> float:
    """Seconds of kernels on a GPU's streams that are no contraction and no transfer."""
    processes = {
        event["pid"]
        for event in found
        if event.get("name") == "process_name" and "GPU" in event["args"]["name"]
    }
    threads = {
        (event["pid"], event["tid"])
        for event in found
        if event.get("name") == "thread_name" and event["args"]["name"].startswith("Stream")
    }
    microseconds = 0.0
    for event in found:
        place = event.get("pid"), event.get("tid")
        if event.get("ph") != "X" or place[0] not in processes or place not in threads:
            continue
        name = str(event["name"])
        if not CONTRACTION.search(name) and not _TRANSFER.search(name):
            microseconds += float(event["dur"])
    return microseconds * 1e-6
