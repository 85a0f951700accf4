"""The decisions that a module's kernels took, and each run against float64 with its own decisions.

A ReLU whose input is within rounding of zero may let a gradient through in one computation and stop
it in the next; one such element moves a deep network's gradients by 1e-3. So, as docs/judging.md
has it of jobs: what a decision was taken on is recorded where the kernels write it (or follows,
operation by operation, from what they write), float64 takes the decisions of the run it is to
judge, and what they were taken on is judged too, so that only rounding can have turned one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stitchcore.fusion.pattern import Plan
from stitchcore.hlo.evaluator.evaluate import apply, decisions
from stitchcore.hlo.ir import builder
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction, computation
from stitchcore.hlo.ir.module import Module
from stitchcore.loop_ir.nodes import Kernel
from stitchcore.runtime.module import ordered
from tests.jobs.state import Step
from tests.runtime.host import RunKernel
from tests.runtime.waiting import outputs, waiting

Array = np.ndarray[Any, np.dtype[Any]]
CORRECTLY_ROUNDED = 0.5
"""Units in the last place."""


@dataclass(frozen=True)
class Decided:
    """`taken` are the decisions that what a run wrote tells, `on` the values they were taken on."""

    taken: Mapping[Instruction, Array]
    on: Mapping[Instruction, Array]


def recording(
    plan: Plan, way: Callable[[Sequence[Kernel]], RunKernel], found: dict[Instruction, Array]
) -> Callable[[Sequence[Kernel]], RunKernel]:
    """`way`, which leaves in `found` the values of a straight plan that decisions may need."""
    owner = {value: n for n, pattern in enumerate(plan.patterns) for value in pattern.outputs}
    launches = [s for s in ordered(plan.module, plan.patterns, owner) if isinstance(s, int)]
    wanted, left = _sources(plan.module, frozenset(owner)), iter(launches)

    def begun(kernels: Sequence[Kernel]) -> RunKernel:
        inner = way(kernels)

        def run(kernel: Kernel, inputs: list[Any], bindings: dict[str, int]) -> Sequence[Any]:
            results = inner(kernel, inputs, bindings)
            for value, array in zip(plan.patterns[next(left)].outputs, results, strict=True):
                if value in wanted:
                    found[value] = waiting(np.array(array).reshape(value.shape.static))
            return results

        return run

    return begun


def _sources(module: Module, written: frozenset[Instruction]) -> set[Instruction]:
    """Of `written` the values from which a decision follows by what numpy computes alike."""
    stack = [operand for node in decisions(module) for operand in node.operands]
    seen: set[Instruction] = set()
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack += node.operands if node not in written and _is_alike(node) else ()
    return seen & written


def _is_alike(node: Instruction) -> bool:
    """Whether numpy computes the same bits as a kernel that is rendered to C."""
    record = op.record(node.opcode)
    exact = record.kind == "elementwise" and record.ulp <= CORRECTLY_ROUNDED
    return exact or record.kind in ("movement", "constant")


def decided(
    module: Module,
    given: Sequence[Array],
    found: Mapping[Instruction, Array],
    original: Module,
) -> Decided:
    """What follows from the values `found` of `module`, by the instructions of the `original` that
    it was simplified from. A decision paired with one that it is not would put the reference far
    off: nothing wrong can pass by it."""
    known: dict[Instruction, Array | None] = {}
    known |= zip(module.entry.parameters, given, strict=True)
    known |= found

    def value(node: Instruction) -> Array | None:
        if node not in known and not _is_alike(node):
            return None
        if node not in known:
            operands = [value(operand) for operand in node.operands]
            missing = any(one is None for one in operands)
            known[node] = None if missing else apply(node, operands)
        return known[node]

    taken: dict[Instruction, Array] = {}
    on: dict[Instruction, Array] = {}
    for node, ours in _pairs(original, module):
        made = value(ours)
        if made is not None:
            taken[node] = made
            operands = zip(node.operands, ours.operands, strict=True)
            on |= {of: value(one) for of, one in operands if not _is_threshold(of)}
    return Decided(taken, on)


def _pairs(original: Module, module: Module) -> list[tuple[Instruction, Instruction]]:
    """Decisions that look alike are the same ones in the same order where their number is."""
    before, after = _by_look(original), _by_look(module)
    same = [look for look, found in before.items() if len(after.get(look, ())) == len(found)]
    return [pair for look in same for pair in zip(before[look], after[look], strict=True)]


def _by_look(module: Module) -> dict[Hashable, list[Instruction]]:
    found: dict[Hashable, list[Instruction]] = {}
    for node in decisions(module):
        operands = tuple(operand.opcode for operand in node.operands)
        look = node.opcode, node.get("direction"), node.shape, operands
        found.setdefault(look, []).append(node)
    return found


def _is_threshold(node: Instruction) -> bool:
    whole = node.operands[0] if node.opcode == op.BROADCAST else node
    return whole.opcode == op.CONSTANT


@dataclass(frozen=True)
class Judged:
    """`module` with what decisions were taken on as further outputs, named after its own."""

    module: Module
    names: tuple[str, ...]
    outputs: int
    decisions: tuple[Instruction, ...]
    on: tuple[Instruction, ...]

    def step(self, arrays: Sequence[Array], exact: Sequence[Array]) -> Step:
        pairs = (dict(zip(self.names, values, strict=True)) for values in (arrays, exact))
        return Step(*pairs)


def with_decisions(module: Module, ours: Decided) -> Judged:
    on = tuple(ours.on)
    root = builder.tuple_([*module.outputs, *on])
    more = replace(module, entry=computation(module.entry.parameters, root), aliases=())
    own = len(module.outputs)
    names = [f"output {n}" for n in range(own)] + [f"decided on {n}" for n in range(len(on))]
    return Judged(more, tuple(names), own, tuple(ours.taken), on)


def our_step(
    judged: Judged, given: Sequence[Array], made: Sequence[Array], ours: Decided
) -> tuple[Step, int]:
    """Our run beside float64 with our decisions, and how many of them that would not have taken."""
    exact = outputs(judged.module, given, "float64", ours.taken)
    wide = dict(zip(judged.on, exact[judged.outputs :], strict=True))
    turned = sum(
        int(np.count_nonzero(_taken(node, wide, "float64") != array))
        for node, array in ours.taken.items()
    )
    return judged.step([*made, *ours.on.values()], exact), turned


def numpy_step(judged: Judged, given: Sequence[Array]) -> Step:
    """numpy's float32 run beside float64 with the decisions of that run."""
    storage = outputs(judged.module, given)
    on = dict(zip(judged.on, storage[judged.outputs :], strict=True))
    theirs = {node: _taken(node, on, "storage") for node in judged.decisions}
    return judged.step(storage, outputs(judged.module, given, "float64", theirs))


def _taken(node: Instruction, on: Mapping[Instruction, Array], precision: str) -> Array:
    """A decision on values, thresholds being constants."""

    def threshold(node: Instruction) -> Array:
        return apply(node, [threshold(operand) for operand in node.operands], precision)

    operands = [on[one] if one in on else threshold(one) for one in node.operands]
    made: Array = apply(node, operands, precision)
    return made
