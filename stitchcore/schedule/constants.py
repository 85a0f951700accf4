"""Constants as expressions: scalars, iotas, small arrays, quotients of symbols."""

from __future__ import annotations

from stitchcore.errors import Reason, Refused
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.loop_ir import index
from stitchcore.loop_ir.index import Index
from stitchcore.loop_ir.nodes import Apply, Expression, FromIndex, InRange, Literal
from stitchcore.schedule import views
from stitchcore.schedule.axes import Axes
from stitchcore.schedule.views import Environment

CONSTANT_LIMIT = 64
"""Elements of an array constant that may be written as nested selects."""


def convert(value: Expression, dtype: str) -> Expression:
    return value if value.dtype == dtype else Apply(op.CONVERT, (value,), dtype)


def expression(axes: Axes, value: Instruction, environment: Environment) -> Expression:
    """The element of a constant at `environment`."""
    dtype = value.shape.dtype
    if value.opcode == op.IOTA:
        row = axes.dims[value][value["iota_dimension"]]
        return FromIndex(views.dim_index(axes, row, environment), dtype)
    ratio = value.get("ratio")
    if ratio is not None:
        return _ratio(ratio, dtype)
    array = value["value"].array
    flat = array.reshape(-1)
    if flat.size == 1:
        return Literal(flat[0].item(), dtype)
    position: Index = 0
    for row, extent in zip(axes.dims[value], array.shape, strict=True):
        at = views.dim_index(axes, row, environment)
        position = index.add(index.multiply(position, extent), at)
    return _chosen(flat, 0, flat.size, position, dtype)


def _ratio(ratio: tuple[object, object], dtype: str) -> Expression:
    """A symbolic constant: the exact quotient, through float64, rounded to `dtype`."""
    above, below = (index.from_dim(dim) for dim in ratio)  # type: ignore[arg-type]
    if DTYPES[dtype].kind != "float":
        return FromIndex(index.floor_divide(above, below), dtype)
    exact = Apply(op.DIVIDE, (FromIndex(above, "f64"), FromIndex(below, "f64")), "f64")
    return convert(exact, dtype)


def _chosen(flat: object, low: int, high: int, position: Index, dtype: str) -> Expression:
    """flat[position] by bisection."""
    if high - low == 1:
        return Literal(flat[low].item(), dtype)  # type: ignore[index]
    if high - low > CONSTANT_LIMIT:
        raise Refused("constant", Reason.UNSUPPORTED_OPCODE, "large array constant in a kernel")
    middle = (low + high) // 2
    left = _chosen(flat, low, middle, position, dtype)
    right = _chosen(flat, middle, high, position, dtype)
    if left == right:
        return left
    return Apply(op.SELECT, (InRange(position, 0, middle), left, right), dtype)
