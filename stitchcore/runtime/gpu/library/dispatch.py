"""Instructions outside kernels, by the device's own library.

Modules of this folder say in `CALLS` which opcodes they compute. Functions are written for an array
module that is numpy's twin (`xp`: CuPy on a GPU, numpy in tests). None lets data decide a shape,
and but for those that `waits` names none waits for the device, so that what calls them can be
captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stitchcore.errors import Reason, Refusal, Refused
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.hlo.ir.shape import DTYPES, Shape
from stitchcore.runtime.gpu.device import Device
from stitchcore.runtime.gpu.library import convolution, gather_scatter, random, reduce_window, sort
from stitchcore.runtime.gpu.library.call import LibraryCall
from stitchcore.runtime.gpu.library.gemm import FLOATS, gemm

Array = Any
CALLS: Mapping[str, LibraryCall] = {
    **gather_scatter.CALLS,
    **random.CALLS,
    **reduce_window.CALLS,
    **sort.CALLS,
}
_BY_DEVICE = frozenset({op.DOT, op.CONVOLUTION, op.RNG, op.DYNAMIC_UPDATE_SLICE})


def require(node: Instruction) -> None:
    """Raises Refused where `node` has values that no memory here holds: elements of unknown type
    or number."""
    shapes = [node.shape, *(operand.shape for operand in node.operands)]
    for shape in (member for one in shapes for member in _members(one)):
        if shape.bounded or shape.dtype not in DTYPES:
            raise Refused(node.opcode, Reason.UNSUPPORTED_TYPE, str(shape))


def refused(node: Instruction) -> Refusal | None:
    """Why the device library does not compute `node`, or None."""
    if node.opcode not in CALLS and node.opcode not in _BY_DEVICE:
        detail = "no kernel holds it, and no library of the GPU runtime computes it"
        return Refusal(node.opcode, Reason.UNSUPPORTED_OPCODE, detail)
    dtypes = {operand.shape.dtype for operand in node.operands} | {node.shape.dtype}
    if node.opcode in (op.DOT, op.CONVOLUTION) and (len(dtypes) > 1 or not dtypes <= FLOATS):
        return Refusal(node.opcode, Reason.UNSUPPORTED_TYPE, ", ".join(sorted(dtypes)))
    if node.opcode == op.CONVOLUTION:
        why = convolution.refused(node)
    else:
        why = CALLS[node.opcode].refused(node) if node.opcode in CALLS else None
    return None if why is None else Refusal(node.opcode, Reason.UNSUPPORTED_OPCODE, why)


def waits(node: Instruction) -> bool:
    """Whether the host waits for the device in `compute`, so that no CUDA graph can hold it."""
    return node.opcode == op.SORT and sort.waits(node)


def compute(
    device: Device, node: Instruction, operands: Sequence[Array], results: Sequence[Array]
) -> None:
    """Put `node`'s value into `results`, within `device.enqueue`. The first result may be the
    first operand's memory, where `node` updates it."""
    if node.opcode == op.DOT:
        product = gemm(node)
        left, right = (
            _in_order(device.arrays, operand, side.order)
            for operand, side in zip(operands, (product.left, product.right), strict=True)
        )
        device.gemm(product, left, right, results[0])
        return
    if node.opcode == op.DYNAMIC_UPDATE_SLICE:
        gather_scatter.dynamic_update_slice(device.arrays, operands, results[0])
        return
    if node.opcode == op.CONVOLUTION:
        value = device.convolution(node, *operands)
    elif node.opcode == op.RNG:
        value = device.random(node, *operands)
    else:
        value = CALLS[node.opcode].compute(device.arrays, node, operands)
    values = value if isinstance(value, tuple) else (value,)
    for result, part in zip(results, values, strict=True):
        result[...] = part


def _in_order(xp: Any, array: Array, order: Sequence[int] | None) -> Array:
    return array if order is None else xp.ascontiguousarray(array.transpose(order))


def _members(shape: Shape) -> list[Shape]:
    if shape.elements is None:
        return [shape]
    return [member for element in shape.elements for member in _members(element)]
