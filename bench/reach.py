"""How much memory-intensive work kernels reach: `python -m bench.reach` writes bench/results/reach.

Every module of the workloads is planned for this machine (stages up to the schedule). An
instruction's bytes are what it alone reads and writes (`plan.cost.traffic`), counted once, as often
as its loop runs where that number stands in the module. They count as reached in a kernel of two or
more instructions that move bytes: one alone moves as many as without us; reshapes, and what is only
read through, such as a bias' broadcast, do not count. Apart, in neither sum: library calls, sorts,
control flow. What the simplify stage writes as other opcodes (batch normalisation, pooling, small
dots) counts as these. `python -m tools.opcodes` then writes the table of opcodes.
"""

from __future__ import annotations

import lzma
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.record import RESULTS, raw, write_figures, write_table
from stitchcore.compiler.pipeline import run
from stitchcore.compiler.stages import PLANNED, BuildOptions, ModuleState
from stitchcore.device.host import host_device
from stitchcore.fusion import candidates
from stitchcore.fusion.candidates import Role
from stitchcore.fusion.cost import traffic
from stitchcore.fusion.pattern import Plan
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Computation, Instruction
from stitchcore.hlo.text.parser import parse
from stitchcore.hlo.text.printer import called_computations, names

WORKLOADS = Path(__file__).resolve().parents[1] / "tests" / "workloads"

APART_KINDS = frozenset({"library", "control", "structure"})
APART = frozenset({op.SORT, op.TOPK})
ALONE = "alone in its kernel"
"""Why bytes inside a kernel are not reached; other reasons are the planner's refusals."""


@dataclass
class Reach:
    """Bytes by opcode: all of them, those reached, and those not by (opcode, reason)."""

    everything: Counter[str] = field(default_factory=Counter)
    reached: Counter[str] = field(default_factory=Counter)
    left: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, other: Reach, times: int = 1) -> None:
        for mine, given in (
            (self.everything, other.everything),
            (self.reached, other.reached),
            (self.left, other.left),
        ):
            for key, size in given.items():
                mine[key] += size * times  # type: ignore[index]

    def share(self) -> float:
        """Bytes reached of all; 1 where there are none."""
        return self.reached.total() / max(self.everything.total(), 1)


def measured(plan: Plan) -> Reach:
    """The reach of `plan`, its loops' bodies as often as they are known to run, else once."""
    found = Reach()
    reasons = {refusal.subject: refusal.reason.value for refusal in plan.refusals}
    name = names(plan.module)
    excluded = dict.fromkeys(plan.opaque, (candidates.Reason.UNSUPPORTED_OPCODE, ""))
    graph = candidates.build(plan.module, excluded)
    moving = {
        v
        for v, role in zip(graph.instructions, graph.roles, strict=True)
        if role is Role.PLACED and not is_apart(v)
    }
    company: dict[Instruction, int] = {}
    for pattern in plan.patterns:
        count = sum(v in moving for v in pattern.instructions)
        for v in pattern.instructions:
            company[v] = max(company.get(v, 0), count)
    for v, instruction in enumerate(graph.instructions):
        if graph.roles[v] not in (Role.PLACED, Role.OPAQUE) or is_apart(instruction):
            continue
        size = traffic(instruction)
        found.everything[instruction.opcode] += size
        if company.get(instruction, 0) > 1:
            found.reached[instruction.opcode] += size
        else:
            reason = ALONE if instruction in company else reasons[name[instruction]]
            found.left[instruction.opcode, reason] += size
    for instruction in plan.opaque:
        for body in called_computations(instruction):
            if body in plan.nested:
                found.add(measured(plan.nested[body]), trips(instruction))
    return found


def is_apart(instruction: Instruction) -> bool:
    """Whether its bytes stand outside both sums; a view's stay where they are."""
    if instruction.opcode in candidates.VIEWS:
        return True
    return instruction.opcode in APART or op.record(instruction.opcode).kind in APART_KINDS


# ---- loops -------------------------------------------------------------------------------------
def trips(loop: Instruction) -> int:
    """How often a loop's body runs: `for i = first; i < limit; i = i + step` with constants, where
    the limit may also be a value that the loop carries and never changes; 1 where not known."""
    if loop.opcode != op.WHILE or loop.operands[0].opcode != op.TUPLE:
        return 1
    start, body = loop.operands[0].operands, loop["body"]
    for left, right in _conjuncts(loop["condition"].root):
        number = _carried(left, loop["condition"])
        first = _integer(start[number]) if number is not None else None
        limit = _integer(_before(right, loop["condition"], start, body))
        step = _step(body, number) if number is not None else None
        if first is not None and limit is not None and step:
            return max(-(-(limit - first) // step), 0)
    return 1


def _conjuncts(condition: Instruction) -> Iterator[tuple[Instruction, Instruction]]:
    """The sides of every `left < right` that must hold for the loop to go on."""
    if condition.opcode == op.AND:
        for operand in condition.operands:
            yield from _conjuncts(operand)
    elif condition.opcode == op.COMPARE and condition["direction"] == "LT":
        yield condition.operands[0], condition.operands[1]
    elif condition.opcode == op.COMPARE and condition["direction"] == "GT":
        yield condition.operands[1], condition.operands[0]


def _carried(value: Instruction, within: Computation) -> int | None:
    """The number of the loop's value that `value` is, if it is one."""
    taken = value.opcode == op.GET_TUPLE_ELEMENT and value.operands[0] in within.parameters
    return value["index"] if taken else None


def _before(
    value: Instruction, condition: Computation, start: tuple[Instruction, ...], body: Computation
) -> Instruction:
    """What the loop was given for `value`, where no pass changes it."""
    number = _carried(value, condition)
    if number is None or body.root.opcode != op.TUPLE:
        return value
    kept = _carried(body.root.operands[number], body) == number
    return start[number] if kept else value


def _step(body: Computation, number: int) -> int | None:
    if body.root.opcode != op.TUPLE:
        return None
    after = body.root.operands[number]
    if after.opcode != op.ADD:
        return None
    sides = [o for o in after.operands if _carried(o, body) != number]
    return _integer(sides[0]) if len(sides) == 1 else None


def _integer(value: Instruction) -> int | None:
    """Of a scalar constant."""
    literal = value.get("value") if value.opcode == op.CONSTANT and not value.shape.dims else None
    return None if literal is None else int(literal.scalar)


# ---- results -----------------------------------------------------------------------------------
def of_module(path: Path) -> Reach:
    """The reach of one module's plan for this machine."""
    with lzma.open(path, "rt") as file:
        module = parse(file.read())
    state = ModuleState(module, host_device(), BuildOptions())
    plan = run(PLANNED, state).plan
    assert plan is not None
    return measured(plan)


def document(modules: Mapping[str, Reach]) -> dict[str, Any]:
    """The figures of bench/results/reach.json."""
    whole = Reach()
    for reach in modules.values():
        whole.add(reach)
    rows = {
        name: {
            "bytes": size,
            "reached": whole.reached[name],
            "left": {
                reason: left for (of, reason), left in sorted(whole.left.items()) if of == name
            },
        }
        for name, size in whole.everything.most_common()
    }
    return {
        "device": host_device().target,
        "share": whole.share(),
        "bytes": whole.everything.total(),
        "modules": {
            name: {"bytes": reach.everything.total(), "share": reach.share()}
            for name, reach in modules.items()
        },
        "opcodes": rows,
    }


def table(figures: Mapping[str, Any]) -> str:
    """The page's table: each module, what holds most of its bytes up, and the sum."""
    lines = ["| module | memory-intensive GB | inside kernels of two or more |", "|---|---|---|"]
    lines += [
        f"| {name} | {row['bytes'] / 1e9:.3f} | {row['share']:.1%} |"
        for name, row in figures["modules"].items()
    ]
    lines.append(f"| **all** | {figures['bytes'] / 1e9:.1f} | **{figures['share']:.2%}** |")
    return "\n".join(lines) + "\n"


def main() -> None:
    chosen = sys.argv[1:]
    modules: dict[str, Reach] = {}
    for path in sorted(WORKLOADS.glob("*.hlo.xz")):
        name = path.name.split(".hlo")[0]
        if chosen and name not in chosen:
            continue
        reach = modules[name] = of_module(path)
        left = {f"{of} {why}": f"{n / 1e6:.2f} MB" for (of, why), n in reach.left.most_common(6)}
        print(f"{name}: {reach.share():.2%} of {reach.everything.total() / 1e9:.3f} GB", left)
    figures = document(modules)
    print(f"all: {figures['share']:.2%}")
    if not chosen:
        write_figures(RESULTS / "reach.json", figures)
        write_table(raw(RESULTS / "reach.md"), table(figures), "python -m bench.reach")


if __name__ == "__main__":
    main()
