"""Whole modules under the stand-in driver, judged against numpy: what the tests and a person run.

`python -m tests.runtime.whole [NAME...]` runs each workload module, its kernels in C, and judges
every output by float64 (judged.py). Ends with 1 where one is beyond the bound.
bench/results/whole.md and raw/whole.json are written after each module. Large values wait in files
(waiting.py), so that what a run holds is about a module's parameters, outputs and temporaries in
float32.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench import record
from stitchcore.compiler.stages import BuildOptions, compile_module
from stitchcore.device.records import DEVICES
from stitchcore.hlo.evaluator.evaluate import evaluate
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.transforms.pad_bounded import padded
from stitchcore.loop_ir.nodes import Kernel
from stitchcore.runtime.gpu.compile_module import compile_for_gpu
from stitchcore.runtime.gpu.executor import Loaded, loaded
from stitchcore.runtime.gpu.lower_module import lower_module
from stitchcore.runtime.gpu.program import GpuModule
from stitchcore.verify.inputs import integer_limit, plausible
from tests.hlo import workloads
from tests.launch.standin_cuda import Standin, open_library
from tests.runtime.decided import decided, recording
from tests.runtime.host import HostDevice, Kernels, RunKernel, host_device, in_c, interpreted
from tests.runtime.judged import verdict
from tests.runtime.waiting import waiting

TABLE = record.RESULTS / "whole.md"
FIGURES = record.raw(TABLE.with_suffix(".json"))
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
    results, launches = run_on(standin, made, given, way, act)
    return Compared(made, results, leaves(evaluate(module, given)), launches)


def run_on(
    standin: Standin,
    made: GpuModule,
    given: Sequence[Any],
    way: Way = in_c,
    act: Callable[[Loaded, HostDevice], None] = run,
) -> tuple[list[Any], int]:
    """What `act` leaves in the outputs of `made`, large ones in files, and the launches it took."""
    kernels = Kernels(made.kernels, way(made.kernels))
    standin.devices(multiprocessors=132)
    standin.on_launch(kernels)
    cuda = open_library(standin)
    with host_device(standin) as device, loaded(made, device, cuda) as one:
        one.give(leaves(given))
        act(one, device)
        results = [waiting(one.download(output)) for output in made.outputs]
    cuda.close()
    return results, len(kernels.ran)


def by_interpreter(_: Sequence[Kernel]) -> RunKernel:
    return interpreted


def judged(name: str, standin: Standin) -> dict[str, Any]:
    """The figures of a workload module: what its float outputs are off by, and what is wrong."""
    begun = time.perf_counter()
    module = workloads.module(name)
    given = [waiting(array) for array in arguments(module)]
    compiled = compile_module(padded(module), DEVICES[TARGET])
    compiled_at = time.perf_counter()
    written: dict[Instruction, Any] = {}
    way = in_c if compiled.inner else recording(compiled.plan, in_c, written)
    results, launches = run_on(standin, lower_module(compiled), given, way)
    ran = time.perf_counter()
    found = verdict(
        module, given, results, decided=decided(compiled.module, given, written, module)
    )
    worst = max(found.errors, key=lambda output: found.errors[output].ours)
    return {
        "outputs": len(results),
        "informative": found.informative,
        "launches": launches,
        "ours": found.errors[worst].ours,
        "numpy": found.errors[worst].numpy,
        "ratio": float(np.median([error.ratio for error in found.errors.values()])),
        "largest ratio": max(error.ratio for error in found.errors.values()),
        "judged again": found.redrawn,
        "draws": found.draws,
        "decisions": found.decisions,
        "turned": found.turned,
        "wrong": found.wrong,
        "misuse": standin.errors(),
        "seconds": {
            "compile": round(compiled_at - begun),
            "run": round(ran - compiled_at),
            "judge": round(time.perf_counter() - ran),
        },
    }


HEADER = """\
Each workload module as a GPU would run it, on the stand-in driver, judged by float64: `ours` and
`numpy` are the largest error of the output where ours is largest, over that output's largest value;
the ratio is ours to numpy's root mean square error, the median of all float outputs and the
largest. Turned are the
decisions that float64 had to take as we did (docs/judging.md).

| module | outputs | launches | ours | numpy | ratio | largest | judged again | turned | wrong |
|---|---|---|---|---|---|---|---|---|---|
"""


def table(results: Mapping[str, Any]) -> str:
    """The figures of all modules in Markdown."""
    lines = [
        f"| {name} | {one['outputs']} | {one['launches']} | {one['ours']:.1e} | {one['numpy']:.1e} "
        f"| {one['ratio']:.2f} | {one['largest ratio']:.2f} | {one['judged again']} "
        f"| {one['turned']} of {one['decisions']} | {len(one['wrong'])} |\n"
        for name, one in sorted(results.items())
    ]
    return HEADER + "".join(lines)


def main() -> int:
    standin = Standin()
    standin.devices()
    standin.free_memory(1 << 36)
    standin.do("cuInit", 0)
    wrong = False
    for name in sys.argv[1:] or workloads.NAMES:
        found = judged(name, standin)
        wrong |= bool(found["wrong"] or found["misuse"])
        print(name, found, flush=True)
        results = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
        results = dict(sorted({**results, name: found}.items()))
        record.write_figures(FIGURES, results)
        record.write_table(TABLE, table(results), "python -m tests.gpu.whole")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
