"""`python -m bench.gpu.once NAME...`: each module's kernels and library calls once, on the GPU.

What `compute-sanitizer` is run over: no XLA, no PyTorch, no timing. `--dry-run NAME...` runs them
on the tests' stand-in driver.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from bench.gpu.entrants import STITCHED, compiled
from bench.gpu.measure import NO_GPU, WORKLOADS, Bench, dry, gpu
from bench.xla import read
from stitchcore.errors import Refused
from stitchcore.hlo.text.parser import parse
from stitchcore.runtime.cuda_library import LaunchError
from stitchcore.runtime.gpu.executor import loaded
from stitchcore.verify.inputs import integer_limit, plausible


def main(names: Sequence[str]) -> int:
    way: Callable[[ExitStack], Bench] = gpu
    if names[:1] == ["--dry-run"]:
        way, names = dry, names[1:]
    with ExitStack() as stack:
        try:
            bench = way(stack)
        except (Refused, LaunchError) as reason:
            print(f"bench.gpu.once: nothing ran: {reason}", file=sys.stderr)
            return NO_GPU
        place = bench.place
        for name in names:
            module = parse(read(WORKLOADS / f"{name}.hlo.xz"))
            made = compiled(module, place.target, None, (STITCHED,))[STITCHED]
            if isinstance(made, str):
                print(f"{name}: {made}", file=sys.stderr)
                return 1
            place.made(made)
            with loaded(made, place.device, place.cuda) as one:
                one.give(plausible(module, {}, 0, integer_limit(module, {})))
                one.run()
                place.device.synchronize()
            print(f"{name}: {len(made.table.launches)} launches", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
