"""A whole training step by numpy in little memory: what waits for its next use waits in a file.

In float64 `bert_train` holds 13 GB at once, nearly all of it activations that the backward pass
reads much later. Instructions are applied one by one (what each computes is
`hlo/evaluator/evaluate.py`'s); a large value whose last use is far lies in an unlinked file
meanwhile, which the kernel may write out and drop. Values are the same bits as those of `evaluate`.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stitchcore.hlo.evaluator.evaluate import apply
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction, topological
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.ir.precision import Precision, widen

Array = np.ndarray[Any, np.dtype[Any]]

LARGE = 1 << 20
"""Bytes from which a value is worth a file."""

FAR = 32
"""Instructions after which a value that is still needed has waited."""


def outputs(
    module: Module,
    given: Sequence[Array],
    precision: str = "storage",
    forced: Mapping[Instruction, Array] | None = None,
) -> list[Any]:
    """What `evaluate` makes of a module without symbols or tuples among its parameters, large
    arrays in files."""
    taken = forced or {}
    chosen = Precision(precision)
    number = {parameter: n for n, parameter in enumerate(module.entry.parameters)}
    values: dict[Instruction, Any] = {}

    def value(node: Instruction) -> Any:
        if node in number:
            return widen(given[number[node]], node.shape.dtype, chosen)
        return values[node]

    order = [node for node in topological((module.entry.root,)) if node.opcode != op.PARAMETER]
    last = _last_uses(order, module.outputs)
    doomed: dict[int, list[Instruction]] = {}
    for node, position in last.items():
        doomed.setdefault(position, []).append(node)
    for position, node in enumerate(order):
        if node is module.entry.root and node.opcode == op.TUPLE:
            continue
        made = taken.get(node)
        if made is None:
            made = apply(node, [value(operand) for operand in node.operands], precision)
        values[node] = waiting(made) if last.get(node, position) - position > FAR else made
        del made
        for dead in doomed.get(position, ()):
            values.pop(dead, None)
    return [waiting(value(output)) for output in module.outputs]


def _last_uses(
    order: Sequence[Instruction], results: Sequence[Instruction]
) -> Mapping[Instruction, int]:
    """The position in `order` after which nothing reads a value; outputs are read at the end."""
    last: dict[Instruction, int] = {}
    for position, node in enumerate(order):
        last |= dict.fromkeys(node.operands, position)
    return last | dict.fromkeys(results, len(order))


def waiting(value: Any) -> Any:
    """The same value in a file that nobody else sees, where that saves memory: not a small one, nor
    one that repeats or only looks at memory of another."""
    if isinstance(value, tuple):
        return tuple(waiting(part) for part in value)
    if value.nbytes < LARGE or 0 in value.strides or is_in_file(value):
        return value
    with tempfile.TemporaryFile() as file:
        np.ascontiguousarray(value).tofile(file)
        file.flush()
        mapped = mmap.mmap(file.fileno(), value.nbytes, access=mmap.ACCESS_READ)
    return np.frombuffer(mapped, value.dtype).reshape(value.shape)


def is_in_file(value: Any) -> bool:
    while isinstance(value, np.ndarray):
        value = value.base
    return isinstance(value, mmap.mmap | memoryview)
