"""The worker's child process: one request, from the store to an artifact in the store.

Started by optimize_child.py as `python -m stitchcore.cli.optimize --store ...` with an empty
environment. It imports what it needs, then reads the request's digest from standard input; without
one it ends. What comes out is the request's answer; the exit code is 0 when there is one.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import importlib
import json
import os
import resource
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from stitchcore import options as settings
from stitchcore.artifact.store import open_store
from stitchcore.device.records import DEVICES, device_of
from stitchcore.errors import Reason, Refusal, Refused
from stitchcore.options import Options
from stitchcore.tensorflow import import_blocklist
from stitchcore.toolchain.c_compiler import find_compiler

PR_SET_PDEATHSIG = 1

YOUNG_OBJECTS = 100_000
"""What a request makes lives to its end: looking for garbage was a fifth of partitioning's time."""


IMPORTED = ("fallback", "live_bytes", "lower", "partition", "patch", "rehearsal", "run_region")
"""Modules of stitchcore.tensorflow that a request's stages import as they come to need them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one request. Raises what the pipeline raises beyond refusals: the parent reports it."""
    parsed = _arguments(arguments)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    gc.set_threshold(YOUNG_OBJECTS)
    from stitchcore.optimize.pipeline import optimize, refuse  # import TensorFlow: after the limits

    for name in IMPORTED:
        importlib.import_module(f"stitchcore.tensorflow.{name}")
    with contextlib.suppress(Refused):  # the pipeline says so
        find_compiler()
    digest = sys.stdin.readline().strip()
    if not digest:
        return 0
    store = parsed.store
    request = store / "requests" / digest
    target = json.loads((request / "meta.json").read_text())["target"]
    options = Options(
        store,
        parsed.cache,
        parsed.key,
        parsed.dump,
        planner=parsed.planner,
        jobs=parsed.jobs,
        restart=parsed.restart,
        verify_passes=parsed.verify_passes,
        tune=parsed.tune,
        without=settings.listed(parsed.without),
        library=parsed.library,
        memory=parsed.memory,
    )
    device = device_of(target)
    if device is None:
        detail = f"no record of this device or of one before it; there is {', '.join(DEVICES)}"
        refusal = Refusal(target, Reason.WRONG_TARGET, detail)
        refuse(open_store(str(store)), digest, refusal, {"settings": options.signature})
        return 0
    optimize(request, str(store), device, options)
    return 0


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m stitchcore.cli.optimize")
    for name in ("--store", "--cache", "--key"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--dump", type=Path, default=None)
    parser.add_argument("--restart", type=Path, default=None)
    parser.add_argument("--verify-passes", action="store_true")
    parser.add_argument("--planner", required=True)
    parser.add_argument("--tune", type=float, default=0.0)
    parser.add_argument("--without", default="")
    parser.add_argument("--library", type=Path, default=None)
    parser.add_argument("--memory", type=int, default=0)
    parser.add_argument("--jobs", type=int, required=True)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    import_blocklist.leave_out()
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # TensorFlow takes a second to end, and the parent waits for it
