"""A module as a PyTorch function, for Inductor: a direct translation, one call an instruction.

What is not in the tables is not expressed, and the module is left out with that reason: loops,
scatters, sorts, windows, convolutions and XLA's random bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction, topological
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.ir.query import reducer_of
from stitchcore.runtime.gpu.library.gemm import gemm

Tensor = Any


class NotExpressed(Exception):
    """The opcode for which there is no translation."""


_PLAIN: Mapping[str, str] = {
    op.ADD: "add",
    op.SUBTRACT: "sub",
    op.MULTIPLY: "mul",
    op.MAXIMUM: "maximum",
    op.MINIMUM: "minimum",
    op.POWER: "pow",
    op.NEGATE: "neg",
    op.ABS: "abs",
    op.SIGN: "sign",
    op.SQRT: "sqrt",
    op.RSQRT: "rsqrt",
    op.EXPONENTIAL: "exp",
    "exponential-minus-one": "expm1",
    op.LOG: "log",
    "log-plus-one": "log1p",
    op.TANH: "tanh",
    op.LOGISTIC: "sigmoid",
    op.ERF: "erf",
    op.FLOOR: "floor",
    op.IS_FINITE: "isfinite",
    op.SELECT: "where",
    op.NOT: "bitwise_not",
    op.AND: "bitwise_and",
    op.OR: "bitwise_or",
    op.XOR: "bitwise_xor",
}
_COMPARE = {"EQ": "eq", "NE": "ne", "LT": "lt", "LE": "le", "GT": "gt", "GE": "ge"}
_REDUCE = {op.ADD: "sum", op.MAXIMUM: "amax", op.MINIMUM: "amin"}
_DTYPES = {
    "pred": "bool",
    "s8": "int8",
    "s16": "int16",
    "s32": "int32",
    "s64": "int64",
    "u8": "uint8",
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "f64": "float64",
}
_MOVED = frozenset({op.RESHAPE, op.BITCAST, op.COPY, op.OPTIMIZATION_BARRIER})


def function(module: Module, torch: Any, device: str) -> Callable[..., list[Tensor]]:
    """`module` as a function of torch tensors. Raises NotExpressed."""
    order = list(topological((module.entry.root,)))
    for node in order:
        _require(node)
    constants = {
        node: _constant(node, torch, device)
        for node in order
        if node.opcode in (op.CONSTANT, op.IOTA)
    }

    def run(*arguments: Tensor) -> list[Tensor]:
        values: dict[Instruction, Tensor] = {
            **constants,
            **dict(zip(module.entry.parameters, arguments, strict=True)),
        }
        for node in order:
            if node not in values and node.opcode != op.TUPLE:
                values[node] = _value(node, [values[o] for o in node.operands], torch)
        return [values[output] for output in module.outputs]

    return run


def _require(node: Instruction) -> None:
    known = {*_PLAIN, *_MOVED, op.PARAMETER, op.CONSTANT, op.IOTA, op.TUPLE, op.CONVERT, op.CLAMP}
    known |= {op.DIVIDE, op.COMPARE, op.REDUCE, op.BROADCAST, op.TRANSPOSE, op.SLICE, op.DOT}
    known |= {op.CONCATENATE, op.REVERSE, op.PAD}
    wrong = node.opcode not in known
    wrong |= node.opcode != op.TUPLE and node.shape.dtype not in _DTYPES
    wrong |= node.opcode == op.REDUCE and reducer_of(node) not in _REDUCE
    if wrong:
        raise NotExpressed(f"{node.opcode} {node.shape}")


def _constant(node: Instruction, torch: Any, device: str) -> Tensor:
    dtype = getattr(torch, _DTYPES[node.shape.dtype])
    dims = node.shape.static
    if node.opcode == op.IOTA:
        axis = node["iota_dimension"]
        line = torch.arange(dims[axis], dtype=dtype, device=device)
        return line.reshape([-1 if n == axis else 1 for n in range(len(dims))]).expand(dims)
    return torch.tensor(node["value"].array.tolist(), dtype=dtype, device=device).reshape(dims)


def _value(node: Instruction, given: Sequence[Tensor], torch: Any) -> Tensor:
    dims = node.shape.static
    if node.opcode in _PLAIN:
        return getattr(torch, _PLAIN[node.opcode])(*given)
    if node.opcode in _MOVED:
        return given[0].reshape(dims)
    match node.opcode:
        case op.DIVIDE:
            mode = None if node.shape.dtype[0] in "fb" else "trunc"
            return torch.div(*given, rounding_mode=mode)
        case op.CLAMP:
            return torch.minimum(torch.maximum(given[1], given[0]), given[2])
        case op.COMPARE:
            return getattr(torch, _COMPARE[node["direction"]])(*given)
        case op.CONVERT:
            return given[0].to(getattr(torch, _DTYPES[node.shape.dtype]))
        case op.DOT:
            return _dot(node, given, torch)
        case op.REDUCE:
            return _reduced(node, given, torch)
        case _:
            return _moved(node, given, torch)


def _reduced(node: Instruction, given: Sequence[Tensor], torch: Any) -> Tensor:
    reducer = reducer_of(node)
    assert reducer is not None
    axes = tuple(node["dimensions"])
    made = getattr(torch, _REDUCE[reducer])(given[0], dim=axes) if axes else given[0]
    return getattr(torch, _PLAIN[reducer])(made.to(given[0].dtype), given[1])


def _moved(node: Instruction, given: Sequence[Tensor], torch: Any) -> Tensor:
    dims, x = node.shape.static, given[0]
    match node.opcode:
        case op.BROADCAST:
            shape = [1] * len(dims)
            for axis, extent in zip(node["dimensions"], x.shape, strict=True):
                shape[axis] = extent
            return x.reshape(shape).expand(dims)
        case op.TRANSPOSE:
            return x.permute(node["dimensions"])
        case op.SLICE:
            return x[tuple(slice(a, b, step) for a, b, step in node["slice"])]
        case op.CONCATENATE:
            return torch.cat(list(given), dim=node["dimensions"][0])
        case op.REVERSE:
            return torch.flip(x, tuple(node["dimensions"]))
    whole = given[1].expand(dims).clone()
    cut, kept = [], []
    for (low, _, interior), extent in zip(node["padding"], x.shape, strict=True):
        first = max(0, -(low // (interior + 1)))
        places = [low + n * (interior + 1) for n in range(extent)]
        count = sum(0 <= place < dims[len(cut)] for place in places)
        start = low + first * (interior + 1)
        cut.append(slice(start, start + (count - 1) * (interior + 1) + 1, interior + 1))
        kept.append(slice(first, first + count))
    whole[tuple(cut)] = x[tuple(kept)]
    return whole


def _dot(node: Instruction, given: Sequence[Tensor], torch: Any) -> Tensor:
    """As one batched product, whose operands are permuted views."""
    product = gemm(node)
    sides = []
    for n, (name, x) in enumerate(zip(("lhs", "rhs"), given, strict=True)):
        batch = list(node.get(f"{name}_batch_dims", ()))
        summed = list(node[f"{name}_contracting_dims"])
        free = [axis for axis in range(x.dim()) if axis not in (*batch, *summed)]
        order = [*batch, *free, *summed] if n == 0 else [*batch, *summed, *free]
        extents = (product.m, product.k) if n == 0 else (product.k, product.n)
        sides.append(x.permute(order).reshape(product.batch, *extents))
    return torch.bmm(*sides).reshape(node.shape.static)
