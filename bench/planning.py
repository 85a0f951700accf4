"""Planning time against module size: `python -m bench.planning` writes JSON and a plot.

Modules are one real training step's instructions (the transformer's) taken in growing prefixes of
its outputs, and chains of layers up to 30,000 instructions. Best of three runs each.
"""

from __future__ import annotations

import json
import lzma
import time
from pathlib import Path

from stitchcore.device.records import DEVICES
from stitchcore.hlo import opcodes
from stitchcore.hlo.instruction import computation, instruction, topological
from stitchcore.hlo.module import Module
from stitchcore.hlo.parse import parse
from stitchcore.hlo.shape import Shape
from stitchcore.plan.cost import cost
from stitchcore.plan.planners import PLANNERS

RESULTS = Path(__file__).parent / "results"
WORKLOADS = Path(__file__).resolve().parents[1] / "tests" / "workloads"


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


def seconds(module: Module) -> float:
    """Best of three plans of `module`."""
    taken = []
    for _ in range(3):
        start = time.perf_counter()
        PLANNERS["exhaustive"](module, DEVICES["cpu-x86-64-v3"], cost, lambda pattern, device: None)
        taken.append(time.perf_counter() - start)
    return min(taken)


def main() -> None:
    points = []
    for name, counts in (("mlp_train", (2, 6, 20, 60, 90)), ("dien_train", (1, 2, 4, 8))):
        with lzma.open(WORKLOADS / f"{name}.hlo.xz", "rt") as file:
            module = parse(file.read())
        for times in counts:
            large = repeated(module, times)
            count = sum(1 for _ in topological([large.entry.root]))
            points.append({"module": f"{name} x{times}", "instructions": count})
            points[-1]["seconds"] = seconds(large)
            print(points[-1])
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "planning.json").write_text(json.dumps(points, indent=1))
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        print("no plot: pip install matplotlib")
        return
    figure, axes = plt.subplots()
    for name in ("mlp_train", "dien_train"):
        chosen = [p for p in points if str(p["module"]).startswith(name)]
        xs, ys = ([p[key] for p in chosen] for key in ("instructions", "seconds"))
        axes.plot(xs, ys, "o-", label=name)
    axes.set_xlabel("instructions")
    axes.set_ylabel("seconds to plan")
    axes.legend()
    figure.savefig(RESULTS / "planning.png", dpi=110)


if __name__ == "__main__":
    main()
