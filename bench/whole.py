"""A whole module on this machine's cores: generated kernels, and numpy's BLAS for its dots.

What a framework does between kernels is not here: every value has memory of its own, made once, and
a run is one call after another. Modules with other work outside kernels (loops, convolutions) are
refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench import launches, program
from stitchcore.compiler.module import CompiledModule
from stitchcore.fusion.candidates import VIEWS
from stitchcore.fusion.cost import cost
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.runtime.module import ordered

Array = np.ndarray[Any, np.dtype[Any]]
Call = Callable[[], object]


@dataclass(frozen=True)
class Whole:
    """`calls` in order make the `outputs`; of them `kernels` are generated, the others dots."""

    calls: tuple[Call, ...]
    kernels: int
    outputs: tuple[Array, ...]

    def run(self) -> None:
        for call in self.calls:
            call()


def bind(made: CompiledModule, arguments: Sequence[Array], threads: int) -> Whole:
    """`made` over memory of its own, parameters from `arguments`. Raises launches.NotWhole."""
    plan, module = made.plan, made.plan.module
    values = {
        parameter: _resident(parameter, given)
        for parameter, given in zip(module.entry.parameters, arguments, strict=True)
    }
    owner = {value: n for n, pattern in enumerate(plan.patterns) for value in pattern.outputs}
    calls: list[Call] = []
    for step in ordered(module, plan.patterns, owner):
        if isinstance(step, int):
            calls.append(_kernel(made, step, values, threads))
        elif step not in values and step.opcode != op.TUPLE:
            values[step], call = _outside(step, values)
            calls += [call] if call is not None else []
    outputs = tuple(values[value] for value in module.outputs)
    return Whole(tuple(calls), len(plan.patterns), outputs)


def _resident(value: Instruction, given: Array | None = None) -> Array:
    dtype = np.dtype(DTYPES[value.shape.dtype].numpy).name
    memory = program.resident(value.shape.static, dtype, huge=given is None)
    if given is not None:
        memory[...] = given
    return memory


def _kernel(
    made: CompiledModule, number: int, values: dict[Instruction, Array], threads: int
) -> Call:
    pattern, entry = made.plan.patterns[number], made.kernels[made.of[number]]
    for value in pattern.outputs:
        values[value] = _resident(value)
    arrays = {f"v{n}": values[v] for n, v in enumerate((*pattern.inputs, *pattern.outputs))}
    names = list(arrays)
    count = len(pattern.inputs)
    work = round(cost(pattern, made.device).seconds * made.device.units * 1e9)
    outputs = tuple(map(launches.value_of, names[count:], pattern.outputs))
    library = made.units[entry.unit].library.data
    launch = launches.launch_of(entry.kernel, library, tuple(names[:count]), outputs, work)
    return program.bind(launch, arrays, threads)


def _outside(node: Instruction, values: Mapping[Instruction, Array]) -> tuple[Array, Call | None]:
    """The memory of a value that no kernel makes, and what makes it."""
    if op.record(node.opcode).kind == "constant" and node.get("value") is not None:
        return _resident(node, node["value"].array.reshape(node.shape.static)), None
    if node.opcode in VIEWS:
        return values[node.operands[0]].reshape(node.shape.static), None
    if node.opcode == op.DOT:
        return _dot(node, *(values[operand] for operand in node.operands))
    raise launches.NotWhole(f"{node.opcode} {node.shape} is outside kernels")


def _dot(node: Instruction, left: Array, right: Array) -> tuple[Array, Call]:
    result = _resident(node)
    batch = node.get("lhs_batch_dims", ()), node.get("rhs_batch_dims", ())
    inner = node["lhs_contracting_dims"], node["rhs_contracting_dims"]
    a = _matrix(left, (batch[0], _free(left, batch[0], inner[0]), inner[0]))
    b = _matrix(right, (batch[1], inner[1], _free(right, batch[1], inner[1])))
    into = result.reshape(*a.shape[:-1], b.shape[-1])
    return result, lambda: np.matmul(a, b, out=into)


def _free(array: Array, *taken: Sequence[int]) -> list[int]:
    return [d for d in range(array.ndim) if not any(d in dims for dims in taken)]


def _matrix(array: Array, groups: tuple[Sequence[int], ...]) -> Array:
    """A view with one dimension for each of `groups`. Raises NotWhole where there is none."""
    ordered_view = array.transpose([d for dims in groups for d in dims])
    sizes = [math.prod(array.shape[d] for d in dims) for dims in groups]
    made = ordered_view.reshape(sizes)
    if not np.shares_memory(made, array):
        raise launches.NotWhole(f"a dot's operand {array.shape} is no matrix in memory")
    return made if groups[0] else made[0]
