"""`stitch bench MODULE`: every distinct kernel, those of loop bodies and branches included, judged
against numpy in float64, then timed.

Times are medians of interleaved rounds on one set of inputs: the kernel on `--threads` threads and,
where jaxlib is installed, XLA's CPU backend on the same instructions. Neither includes making the
inputs. Exit code 1 when a kernel is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from stitchcore.cli import common, module_pipeline
from stitchcore.compiler.stages import ModuleState, compiled
from stitchcore.fusion.canonical import pattern_module
from stitchcore.fusion.pattern import Pattern, Plan
from stitchcore.hlo.ir.instruction import Computation
from stitchcore.hlo.text.printer import print_module
from stitchcore.runtime.cpu_kernel import CpuKernel
from stitchcore.runtime.module import buffers, captured_inputs, load, run_kernel
from stitchcore.verify import xla_baseline
from stitchcore.verify.inputs import arguments, integer_limit
from stitchcore.verify.kernel import KernelCheck, check_kernel
from stitchcore.verify.timing import Ratio, paired_ratio

COLUMNS = ("kernel", "operations>", "check", "time>", "XLA>", "XLA / ours", "")
FEW_ROUNDS = 5
REPEATS = 3
"""Runs of a contestant in a row, between runs of the other."""

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Timed:
    """One kernel: its check, median seconds, and XLA's beside it (None: see `note`)."""

    name: str
    instructions: int
    check: KernelCheck
    seconds: float
    xla_seconds: float | None
    ratio: Ratio | None
    note: str
    called: bool


@click.command("bench")
@click.argument("module", type=click.Path(path_type=Path))
@click.option("--rounds", default=11, show_default=True, type=click.IntRange(1),
              help="Interleaved rounds per kernel.")  # fmt: skip
@click.option("--threads", type=click.IntRange(1), help="Threads; default: all cores.")
@click.option("--bind", multiple=True, help="NAME=SIZE of a symbolic dimension.")
@click.option("--captured", is_flag=True, help="Inputs from a numpy run of the whole module.")
@click.option("--no-xla", is_flag=True, help="Do not compare with XLA.")
@click.option("--planner", default=None, help="Planner by name.")
@common.without_option
@common.library_option
@click.option("--from", "restart", type=click.Path(path_type=Path), help="Edited NN_stage.txt.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def command(
    module: Path,
    rounds: int,
    threads: int | None,
    bind: tuple[str, ...],
    captured: bool,
    no_xla: bool,
    planner: str | None,
    without: str | None,
    library: Path | None,
    restart: Path | None,
    as_json: bool,
) -> None:
    """Check and time the kernels of MODULE on this machine."""
    output = common.Output(as_json)
    state, seconds = module_pipeline.run(
        module,
        output,
        "compile",
        planner=planner,
        without=without,
        restart=restart,
        library=library,
    )
    compiled_module = compiled(state, seconds)
    bindings = parse_bindings(bind, compiled_module.plan, output)
    count = threads or state.options.jobs
    inputs = _captured(compiled_module.plan, bindings) if captured else {}
    loaded = load(compiled_module)
    results = []
    with output.console.status("kernels") as status:
        for number, (plan, pattern) in enumerate(compiled_module.uses()):
            status.update(f"kernel {number + 1}/{len(loaded)}")
            values = inputs.get(plan.module.entry, {})
            arrays = [values[v] for v in pattern.inputs] if captured else None
            runner = _KernelTimer(
                plan, bindings, rounds, count, not no_xla, plan is not compiled_module.plan
            )
            results.append(runner.measure(pattern, loaded[number], arrays))
    _show(results, output, count)
    if any(not timed.check.passed for timed in results):
        raise SystemExit(1)


def times(
    state: ModuleState,
    seconds: dict[str, float],
    bind: Sequence[str],
    output: common.Output,
) -> dict[str, float]:
    """Median seconds of each kernel that is right, by name."""
    compiled_module = compiled(state, seconds)
    bindings = parse_bindings(bind, compiled_module.plan, output)
    loaded = load(compiled_module)
    seconds_of = {}
    with output.console.status("kernels") as status:
        for number, (plan, pattern) in enumerate(compiled_module.uses()):
            status.update(f"kernel {number + 1}/{len(loaded)}")
            runner = _KernelTimer(
                plan,
                bindings,
                FEW_ROUNDS,
                state.options.jobs,
                False,
                plan is not compiled_module.plan,
            )
            timed = runner.measure(pattern, loaded[number], None)
            if timed.check.passed:
                seconds_of[timed.name] = timed.seconds
    return seconds_of


def parse_bindings(texts: Sequence[str], plan: Plan, output: common.Output) -> dict[str, int]:
    """Sizes of the module's symbols; ends the command when one is missing or is not a number."""
    bindings = {}
    for text in texts:
        name, _, size = text.partition("=")
        if not size.isdigit():
            common.fail(output, f"--bind {text}", "not NAME=SIZE", "for example --bind B=32")
        bindings[name] = int(size)
    missing = [name for name in plan.module.symbols if name not in bindings]
    if missing:
        why = f"the module has symbolic dimensions {', '.join(missing)}"
        common.fail(output, plan.module.name, why, f"pass --bind {missing[0]}=SIZE")
    return bindings


def _captured(plan: Plan, bindings: Mapping[str, int]) -> Mapping[Computation, Mapping[Any, Array]]:
    integers = integer_limit(plan.module, bindings)
    inputs = arguments(plan.module.entry.parameters, bindings, 0, integers=integers)
    return captured_inputs(plan, inputs, bindings)


@dataclass(frozen=True)
class _KernelTimer:
    """How kernels of one computation are measured: the entry, or one that is `called`."""

    plan: Plan
    bindings: Mapping[str, int]
    rounds: int
    threads: int
    with_xla: bool
    called: bool

    def measure(self, pattern: Pattern, kernel: CpuKernel, captured: list[Array] | None) -> Timed:
        """Judge `kernel` as `pattern`, then time it beside XLA."""

        def run(arrays: Sequence[Array]) -> list[Array]:
            return run_kernel(kernel, pattern, arrays, self.bindings, self.threads)

        check = check_kernel(pattern, self.plan.module, run, self.bindings, captured)
        inputs = captured or arguments(pattern.inputs, self.bindings, 0, check.data)
        baseline, note = self._baseline(pattern, inputs)
        placed = buffers(kernel.kernel, inputs, self.bindings)
        ours: list[float] = []
        theirs: list[float] = []
        for _ in range(self.rounds):
            ours.append(_median(kernel.seconds(placed, self.bindings, REPEATS, self.threads)))
            if baseline is not None:
                theirs.append(_median(baseline.seconds(REPEATS)))
        ratio = paired_ratio(theirs, ours) if theirs else None
        name, size = kernel.kernel.name, len(pattern.instructions)
        other = _median(theirs) if theirs else None
        return Timed(name, size, check, _median(ours), other, ratio, note, self.called)

    def _baseline(
        self, pattern: Pattern, inputs: list[Array]
    ) -> tuple[xla_baseline.Executable | None, str]:
        if not self.with_xla:
            return None, ""
        if self.plan.module.symbols:
            return None, "XLA needs static shapes"
        try:
            return xla_baseline.load(
                print_module(pattern_module(pattern, self.plan.module)), inputs
            ), ""
        except xla_baseline.NoXla as error:
            return None, str(error).splitlines()[0][:100]


def _median(values: Sequence[float]) -> float:
    return float(np.median(np.asarray(values)))


def _show(results: list[Timed], output: common.Output, threads: int) -> None:
    if output.as_json:
        output.document({"threads": threads, "kernels": [_document(timed) for timed in results]})
        return
    rows = [
        (
            timed.name + (" (loop body or branch)" if timed.called else ""),
            timed.instructions,
            "ok" if timed.check.passed else f"WRONG {timed.check}",
            common.seconds_text(timed.seconds),
            common.seconds_text(timed.xla_seconds) if timed.xla_seconds else "",
            timed.ratio or "",
            timed.note or ("" if timed.check.informative else "data could not show an error"),
        )
        for timed in results
    ]
    common.show_table(f"{threads} threads", COLUMNS, rows, output.console)


def _document(timed: Timed) -> dict[str, Any]:
    """One kernel as plain data: seconds, absolute errors, and ratios with their 95 % interval."""
    judgements = timed.check.judgements
    ratio = timed.ratio
    return {
        "name": timed.name,
        "called": timed.called,
        "instructions": timed.instructions,
        "passed": timed.check.passed,
        "informative": timed.check.informative,
        "data": timed.check.data,
        "elements": sum(judgement.elements for judgement in judgements),
        "failures": sum(judgement.failures for judgement in judgements),
        "worst_error": max((judgement.worst_ours for judgement in judgements), default=0.0),
        "seconds": timed.seconds,
        "xla_seconds": timed.xla_seconds,
        "xla_over_ours": (
            {"median": ratio.value, "low": ratio.low, "high": ratio.high} if ratio else None
        ),
        "note": timed.note,
    }
