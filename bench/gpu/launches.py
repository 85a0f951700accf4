"""`python -m bench.gpu.launches --output FILE`: what a launch costs the host.

One small kernel so many times in one call of the launch library, so that nothing of Python is in
it: microseconds until the host has put one launch into the stream, and until the device has run it.
`--dry-run`: on the tests' stand-in driver, whose figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from bench.gpu.entrants import STITCHED, compiled
from bench.gpu.measure import NO_GPU, WORKLOADS, Bench, dry, gpu
from bench.xla import read
from stitchcore.errors import Refused
from stitchcore.hlo.text.parser import parse
from stitchcore.runtime.cuda_library import LaunchError
from stitchcore.runtime.gpu.executor import loaded
from stitchcore.runtime.gpu.program import GpuModule

MODULE = "softmax_grad"
LAUNCHES, ROUNDS = 200, 20


def figures(bench: Bench, made: GpuModule, launches: int, rounds: int) -> dict[str, float]:
    """The least of so many rounds, microseconds a launch."""
    place = bench.place
    place.made(made)
    repeated = replace(made.table, launches=made.table.launches[:1] * launches)
    host, device = [], []
    with loaded(replace(made, table=repeated), place.device, place.cuda) as one:
        for _ in range(rounds):
            place.device.synchronize()
            began = time.perf_counter()
            one.launch(0, launches)
            put = time.perf_counter()
            place.device.synchronize()
            host.append(put - began)
            device.append(time.perf_counter() - began)
    return {
        "launches": launches,
        "host_us": 1e6 * min(host) / launches,
        "device_us": 1e6 * min(device) / launches,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.launches", description=__doc__)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--output", type=Path, required=True, help="file of the result")
    given = parser.parse_args(arguments)
    way: Callable[[ExitStack], Bench] = dry if given.dry_run else gpu
    with ExitStack() as stack:
        try:
            bench = way(stack)
        except (Refused, LaunchError) as reason:
            print(f"bench.gpu.launches: nothing was measured: {reason}", file=sys.stderr)
            return NO_GPU
        module = parse(read(WORKLOADS / f"{MODULE}.hlo.xz"))
        made = compiled(module, bench.place.target, None, (STITCHED,))[STITCHED]
        if isinstance(made, str):
            print(f"{MODULE}: {made}", file=sys.stderr)
            return 1
        found = figures(bench, made, *((4, 1) if given.dry_run else (LAUNCHES, ROUNDS)))
        document = {"machine": bench.machine.name, "dry": bench.machine.dry, **found}
        given.output.write_text(json.dumps(document, indent=1) + "\n")
        print(f"{found['host_us']:.2f} us of the host, {found['device_us']:.2f} us of the device")
    return 0


if __name__ == "__main__":
    sys.exit(main())
