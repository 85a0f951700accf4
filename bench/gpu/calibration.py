"""`python -m bench.gpu.calibration --output FILE`: `stitch calibrate` for the GPU of this machine.

Its record, with its fit; `--target FILE` of any command takes it. `--dry-run`: on the tests'
stand-in driver, which runs no kernel and whose seconds mean nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from bench.gpu.measure import NO_GPU, dry, gpu
from stitchcore.autotune import calibrate
from stitchcore.device.records import device_of
from stitchcore.errors import Refused
from stitchcore.runtime.cuda_library import LaunchError


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.calibration", description=__doc__)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--output", type=Path, required=True, help="file of the record")
    given = parser.parse_args(arguments)
    with ExitStack() as stack:
        try:
            place = (dry(stack, computes=False) if given.dry_run else gpu(stack)).place
        except (Refused, LaunchError) as reason:
            print(f"bench.gpu.calibration: nothing was measured: {reason}", file=sys.stderr)
            return NO_GPU
        record = device_of(place.target)
        if record is None:
            print(f"bench.gpu.calibration: no record to begin from for {place.target}")
            return 1
        found = calibrate.calibrate_gpu(record, place.device, place.cuda)
    calibrate.write(found, given.output)
    print(f"error {found.before:.2f} before, {found.error:.2f} fitted")
    return 0


if __name__ == "__main__":
    sys.exit(main())
