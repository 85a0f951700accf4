"""Planning time against module size: `python -m bench.planning` writes JSON and a plot.

Modules are two real training steps (a perceptron with Adam, a recommender) composed with themselves
up to 100,000 instructions, and random elementwise graphs without a library call: the explorer's
worst case, one level whose values have two readers each. `exact` has LIMIT seconds beyond what the
other planners take, and says whether it closed. Seconds are of processor time, without the
scheduler. `parse` reads the text of each module again, as `stitch plan` does first.
"""

from __future__ import annotations

import lzma
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from bench.record import RESULTS, raw, write_figures
from stitchcore.device.records import DEVICES
from stitchcore.fusion import planner_exact
from stitchcore.fusion.cost import cost
from stitchcore.fusion.pattern import Plan, Planner
from stitchcore.fusion.planner_exact import ExactOptions
from stitchcore.fusion.planners import PLANNERS
from stitchcore.hlo.ir import opcodes
from stitchcore.hlo.ir.instruction import computation, instruction, topological
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.ir.shape import Shape
from stitchcore.hlo.text.parser import parse
from stitchcore.hlo.text.printer import print_module
from stitchcore.report import planners as told

FIGURES = raw(RESULTS / "planning.json")
WORKLOADS = Path(__file__).resolve().parents[1] / "tests" / "workloads"

LIMIT = 10.0
"""Seconds `exact` may search."""

REACH = 20
"""Of so many values before it an instruction of a random graph reads two."""


def repeated(module: Module, times: int) -> Module:
    """`module` composed with itself: each copy's parameters that match an output take it over."""
    values = list(module.entry.parameters)
    outputs = list(module.outputs)
    for _ in range(times - 1):
        free = list(outputs)
        made = {}
        for parameter in values:
            match = next((v for v in free if v.shape == parameter.shape), None)
            made[parameter] = match if match is not None else parameter
            if match is not None:
                free.remove(match)
        for node in topological([module.entry.root]):
            if node not in made:
                operands = (made[operand] for operand in node.operands)
                made[node] = instruction(node.opcode, node.shape, operands, **dict(node.attributes))
        outputs = [made[output] for output in module.outputs]
    shape = Shape("tuple", (), tuple(output.shape for output in outputs))
    return Module("m", computation(values, instruction(opcodes.TUPLE, shape, outputs)))


def elementwise(count: int) -> Module:
    """About `count` sums and products of values made shortly before."""
    random = Random(1)
    shape = Shape("f32", (64, 64))
    parameters = [instruction(opcodes.PARAMETER, shape, number=n) for n in range(2)]
    values = list(parameters)
    for step in range(count):
        operands = [random.choice(values[-REACH:]) for _ in range(2)]
        values.append(instruction((opcodes.ADD, opcodes.MULTIPLY)[step % 2], shape, operands))
    outputs = values[-5:]
    root = instruction(opcodes.TUPLE, Shape("tuple", (), (shape,) * len(outputs)), outputs)
    return Module("m", computation(parameters, root))


def timed(planner: Planner, module: Module) -> tuple[float, Plan]:
    start = time.process_time()
    plan = planner(module, DEVICES["cpu-x86-64-v3"], cost, lambda pattern, device: None)
    return time.process_time() - start, plan


def parsing(module: Module) -> float:
    """Processor seconds of reading `module` from its text, the least of three."""
    text = print_module(module)
    taken = []
    for _ in range(3):
        start = time.process_time()
        parse(text)
        taken.append(time.process_time() - start)
    return min(taken)


def point(name: str, module: Module) -> dict[str, Any]:
    """All planners on one module."""
    found: dict[str, Any] = {
        "module": name,
        "instructions": sum(1 for _ in topological([module.entry.root])),
        "parse": parsing(module),
    }
    for planner in ("exhaustive", "explore"):
        found[planner], _ = timed(PLANNERS[planner], module)
    found["exact"], plan = timed(planner_exact.planner(ExactOptions(LIMIT)), module)
    bound = told.bound([plan])
    assert bound is not None
    found["exact_closed"], found["exact_missed"] = bound.closed, bound.missed
    return found


def families() -> Iterator[tuple[str, Module]]:
    for name, counts in (("mlp_train", (3, 10, 30, 100, 300)), ("dien_train", (1, 3, 8, 25))):
        with lzma.open(WORKLOADS / f"{name}.hlo.xz", "rt") as file:
            module = parse(file.read())
        for times in counts:
            yield f"{name} x{times}", repeated(module, times)
    for count in (1250, 4000, 12500, 40000, 125000):
        yield f"elementwise {count}", elementwise(count)


def plot(points: Sequence[dict[str, Any]]) -> None:
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        print("no plot: pip install matplotlib")
        return
    figure, axes = plt.subplots()
    styles = {"parse": "^-.", "exhaustive": "o-", "explore": "s--", "exact": "x:"}
    for name in ("mlp_train", "dien_train", "elementwise"):
        chosen = [p for p in points if str(p["module"]).startswith(name)]
        for planner, style in styles.items():
            xs, ys = ([p[key] for p in chosen] for key in ("instructions", planner))
            axes.loglog(xs, ys, style, label=f"{planner}, {name}")
    axes.axhline(10, color="grey", linewidth=0.5)
    axes.set_xlabel("instructions")
    axes.set_ylabel(f"seconds to read or plan (exact: limit of {LIMIT:g} s beyond the others)")
    axes.legend(fontsize=7)
    figure.savefig(FIGURES.with_suffix(".png"), dpi=110)


def main() -> None:
    points: list[dict[str, Any]] = []
    for name, module in families():
        points.append(point(name, module))
        print(points[-1], flush=True)
        write_figures(FIGURES, points)
    plot(points)


if __name__ == "__main__":
    main()
