"""What two mechanisms of newer GPUs could save at most, which kernels do not use.

    python -m bench.cuda_left_out [--target sm_90] NAME...

Thread block clusters: blocks of one cluster (8, on every GPU that has them) meet at a barrier of
their own, where those of a grid take a round through the second cache. Taken to be free, in every
kernel in as many blocks, and in others made so narrow where the evaluator says that pays: each
phase then goes on as often as its blocks are more than 8.

Asynchronous copies: memory to shared memory past the registers. They are for what is stored there
as it was loaded, so such stores are counted; of what is computed first there is no copy.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter

from bench.cuda_model import launches
from stitchcore.codegen import cuda
from stitchcore.compiler import latency
from stitchcore.compiler.pipeline import run
from stitchcore.compiler.stages import PLANNED, BuildOptions, ModuleState
from stitchcore.device.occupancy import blocks_per_multiprocessor
from stitchcore.device.records import DEVICES, Device
from stitchcore.loop_ir import index
from stitchcore.loop_ir.nodes import Kernel, Let, Load, Role, Scalar, Scope, Store
from stitchcore.loop_ir.visitor import statements
from stitchcore.schedule import register_pressure
from stitchcore.schedule.tiling import SYMBOL_SIZE
from tests.hlo import workloads

CLUSTER = 8
"""Blocks of a cluster that every GPU from sm_90 on has."""


def blocks(kernel: Kernel) -> list[int]:
    """Of each phase."""
    sizes = dict.fromkeys(kernel.symbols, SYMBOL_SIZE)
    return [
        sum(index.evaluate(section.blocks(kernel.threads), sizes) for section in phase.sections)
        for phase in kernel.phases
    ]


def saved(kernel: Kernel, device: Device) -> float:
    """Seconds that free barriers save, less what the narrower grid takes; 0 where it takes more."""
    registers, shared = register_pressure.registers(kernel), cuda.shared_bytes(kernel)
    held = blocks_per_multiprocessor(device.target, kernel.threads, registers, shared)
    phases = latency.phases(kernel, device, None, held)
    rounds = (math.ceil(count / CLUSTER) - 1 for count in blocks(kernel))
    longer = sum(max(more, 0) * one.task for more, one in zip(rounds, phases, strict=True))
    return max((len(kernel.phases) - 1) * device.phase_seconds - longer, 0.0)


def staged(kernel: Kernel) -> Counter[str]:
    """Stores to shared memory: of what was loaded from memory, and of what was computed."""
    found: Counter[str] = Counter()
    for section in (section for phase in kernel.phases for section in phase.sections):
        values = {one.scalar: one.value for one in statements(section.body) if isinstance(one, Let)}
        for store in statements(section.body):
            if not isinstance(store, Store) or store.buffer.role is not Role.LOCAL:
                continue
            value = store.value
            while isinstance(value, Scalar) and value in values:
                value = values[value]
            raw = isinstance(value, Load) and value.buffer.role is not Role.LOCAL
            if store.buffer.scope is not Scope.LANE:
                found["loaded" if raw else "computed"] += 1
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cuda_left_out", description=__doc__)
    parser.add_argument("--target", default="sm_90")
    parser.add_argument("names", nargs="+")
    options = parser.parse_args()
    device = DEVICES[options.target]
    for name in options.names:
        state = run(PLANNED, ModuleState(workloads.module(name), device, BuildOptions()))
        times = launches(state)
        meet = [kernel for kernel in state.kernels if len(kernel.phases) > 1]
        few = [kernel for kernel in meet if max(blocks(kernel)) <= CLUSTER]
        whole = sum(times[one.name] * latency.seconds(one, device) for one in state.kernels)
        gain = sum(times[one.name] * saved(one, device) for one in meet)
        stores = sum(map(staged, state.kernels), Counter[str]())
        print(
            f"{name}: {len(state.kernels)} kernels, {len(meet)} meet at "
            f"{sum(len(one.phases) - 1 for one in meet)} barriers, {len(few)} in {CLUSTER} blocks; "
            f"{gain * 1e6:.1f} of {whole * 1e6:.0f} us; stored in shared memory "
            f"{stores['loaded']} loaded, {stores['computed']} computed",
            flush=True,
        )


if __name__ == "__main__":
    main()
