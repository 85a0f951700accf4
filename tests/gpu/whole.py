"""Whole modules under the stand-in driver, judged against numpy: what the tests and a person run.

`python -m tests.gpu.whole [NAME...]` prints the worst error of each workload module, kernels in C.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stitchcore.errors import Refused
from stitchcore.gpu.compile import compile_for_gpu
from stitchcore.gpu.execute import Loaded, loaded
from stitchcore.gpu.steps import GpuModule
from stitchcore.hlo.evaluate import evaluate
from stitchcore.hlo.module import Module
from stitchcore.kernel.nodes import Kernel
from stitchcore.stages import BuildOptions
from stitchcore.verify.capture import integer_limit, plausible
from tests.gpu.host import HostDevice, Kernels, RunKernel, host_device, in_c, interpreted
from tests.hlo import workloads
from tests.target.standin_cuda import Standin, open_library

TARGET = "sm_90"
MASKS = {"a_inference_f_1752__.4": 1}
"""Of softmax_grad: the parameter that is a mask, by the module's name."""
Way = Callable[[Sequence[Kernel]], RunKernel]


@dataclass(frozen=True)
class Compared:
    """Outputs of a module on the device and in numpy; the launches that ran, and each output's
    largest error over its largest value (integers: whether any differs)."""

    module: GpuModule
    made: list[Any]
    expected: list[Any]
    launches: int

    @property
    def errors(self) -> list[float]:
        return [error_of(*pair) for pair in zip(self.made, self.expected, strict=True)]


def error_of(made: Any, expected: Any) -> float:
    """inf where either is not finite: such data shows nothing."""
    expected = np.asarray(expected)
    assert made.shape == expected.shape
    if not made.size:
        return 0.0
    if made.dtype.kind != "f":
        return float((made != expected).any())
    if not (np.isfinite(made).all() and np.isfinite(expected).all()):
        return np.inf
    return float(np.abs(made - expected).max() / (np.abs(expected).max() + 1e-30))


def leaves(values: Sequence[Any]) -> list[Any]:
    """Arrays of values, tuples among them."""
    found: list[Any] = []
    for value in values:
        found += leaves(value) if isinstance(value, tuple) else [value]
    return found


def arguments(module: Module) -> list[Any]:
    """Drawn data; a mask holds nothing but 0 and 1 (times 1e9 more would make all else vanish)."""
    drawn = plausible(module, {}, 0, integer_limit(module, {}))
    for number, array in enumerate(drawn):
        if MASKS.get(module.name) == number:
            drawn[number] = (np.arange(array.size).reshape(array.shape) % 5 > 0).astype(array.dtype)
    return drawn


def run(one: Loaded, _: HostDevice) -> None:
    one.run()


def compare(
    module: Module,
    standin: Standin,
    way: Way = in_c,
    act: Callable[[Loaded, HostDevice], None] = run,
    given: Sequence[Any] | None = None,
    planner: str = "exhaustive",
    updates: bool = False,
) -> Compared:
    """`module` compiled, loaded and run by `act` on the stand-in, and by numpy."""
    made = compile_for_gpu(module, TARGET, BuildOptions(planner=planner), updates)
    given = arguments(module) if given is None else given
    kernels = Kernels(made.kernels, way(made.kernels))
    standin.devices(multiprocessors=132)
    standin.on_launch(kernels)
    cuda = open_library(standin)
    with host_device(standin) as device, loaded(made, device, cuda) as one:
        one.give(leaves(given))
        act(one, device)
        results = one.results()
    cuda.close()
    expected = leaves(evaluate(module, given))
    return Compared(made, results, expected, len(kernels.ran))


def by_interpreter(_: Sequence[Kernel]) -> RunKernel:
    return interpreted


def main() -> int:
    standin = Standin()
    standin.devices()
    standin.free_memory(1 << 36)
    standin.do("cuInit", 0)
    wrong = 0
    for name in sys.argv[1:] or workloads.NAMES:
        begun = time.perf_counter()
        try:
            found = compare(workloads.module(name), standin)
        except Refused as refused:
            print(f"{name}: {refused}", flush=True)
            continue
        worst, problems = max(found.errors), standin.errors()
        wrong += worst > 1e-5 or bool(problems)
        seconds = time.perf_counter() - begun
        print(f"{name}: {worst:.1e}, {found.launches} launches, {seconds:.0f} s", *problems)
        sys.stdout.flush()
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
