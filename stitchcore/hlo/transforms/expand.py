"""Composite opcodes, small dots, small windows and random bits, written with primitive opcodes, so
that they can be stitched: named rules that run together with simplification's."""

from __future__ import annotations

from collections.abc import Sequence

from stitchcore.hlo.ir import builder
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.cumulative import part_of_scan
from stitchcore.hlo.ir.dim import Dim
from stitchcore.hlo.ir.instruction import Computation, Instruction, computation, instruction
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.ir.query import monoid
from stitchcore.hlo.ir.shape import Shape
from stitchcore.hlo.transforms.expand_dot import Predicate, no_other, small_dot
from stitchcore.hlo.transforms.expand_random import drawn_bits, random_bits
from stitchcore.hlo.transforms.expand_window import small_selection, small_window
from stitchcore.hlo.transforms.simplify import (
    DEFAULT_STEP_LIMIT,
    RULES,
    NamedRule,
    Simplified,
    simplify,
)


def batch_norm_training(node: Instruction) -> Instruction | None:
    """(normalised, mean, variance): two passes, the variance of the centred values."""
    operand, scale, offset = node.operands
    norm = _Norm(node)
    x = norm.widen(operand)
    mean = norm.mean(x)
    centred = builder.elementwise(op.SUBTRACT, x, norm.spread(mean))
    variance = norm.mean(builder.elementwise(op.MULTIPLY, centred, centred))
    result = norm.normal(centred, variance, scale, offset)
    narrow = [builder.convert(part, scale.shape.dtype) for part in (mean, variance)]
    return builder.tuple_([builder.convert(result, operand.shape.dtype), *narrow])


def batch_norm_inference(node: Instruction) -> Instruction | None:
    operand, scale, offset, mean, variance = node.operands
    norm = _Norm(node)
    shift = norm.spread(norm.widen(mean))
    centred = builder.elementwise(op.SUBTRACT, norm.widen(operand), shift)
    result = norm.normal(centred, norm.widen(variance), scale, offset)
    return builder.convert(result, operand.shape.dtype)


def batch_norm_grad(node: Instruction) -> Instruction | None:
    """(gradient of the operand, of the scale, of the offset)."""
    operand, scale, mean, variance, gradient = node.operands
    norm = _Norm(node)
    dy = norm.widen(gradient)
    shift = norm.spread(norm.widen(mean))
    centred = builder.elementwise(op.SUBTRACT, norm.widen(operand), shift)
    inverse = norm.inverse(norm.widen(variance))
    offset_grad = norm.sum(dy)
    product = norm.sum(builder.elementwise(op.MULTIPLY, dy, centred))
    scale_grad = builder.elementwise(op.MULTIPLY, product, inverse)
    # dx = scale * inverse * (dy - mean(dy) - centred * inverse^2 * mean(dy * centred))
    squared = builder.elementwise(op.MULTIPLY, inverse, inverse)
    slope = builder.elementwise(op.MULTIPLY, squared, norm.over_count(product))
    inner = builder.elementwise(op.SUBTRACT, dy, norm.spread(norm.over_count(offset_grad)))
    along = builder.elementwise(op.MULTIPLY, centred, norm.spread(slope))
    inner = builder.elementwise(op.SUBTRACT, inner, along)
    factor = builder.elementwise(op.MULTIPLY, norm.widen(scale), inverse)
    result = builder.elementwise(op.MULTIPLY, inner, norm.spread(factor))
    parts = ((result, operand), (scale_grad, scale), (offset_grad, scale))
    return builder.tuple_([builder.convert(part, like.shape.dtype) for part, like in parts])


class _Norm:
    """The pieces that the three batch-normalisation opcodes share; all in float32 or wider."""

    def __init__(self, node: Instruction) -> None:
        shape = node.operands[0].shape
        self.dims, self.axis = shape.dims, node["feature_index"]
        self.dtype = shape.dtype if shape.dtype == "f64" else "f32"
        self.epsilon = node["epsilon"]
        self.others = tuple(i for i in range(shape.rank) if i != self.axis)
        count: Dim = 1
        for i in self.others:
            count = count * self.dims[i]
        self.count = count

    def widen(self, node: Instruction) -> Instruction:
        return builder.convert(node, self.dtype)

    def spread(self, row: Instruction) -> Instruction:
        return builder.broadcast(row, self.dims, (self.axis,))

    def sum(self, x: Instruction) -> Instruction:
        return builder.reduce(x, self.others, op.ADD)

    def over_count(self, row: Instruction) -> Instruction:
        if isinstance(self.count, int):
            count = builder.constant(float(self.count), self.dtype)
        else:
            count = instruction(op.CONSTANT, Shape(self.dtype), ratio=(self.count, 1))
        return builder.elementwise(op.DIVIDE, row, builder.broadcast(count, row.shape.dims, ()))

    def mean(self, x: Instruction) -> Instruction:
        return self.over_count(self.sum(x))

    def inverse(self, variance: Instruction) -> Instruction:
        stable = builder.elementwise(op.ADD, variance, builder.splat(self.epsilon, variance))
        return builder.elementwise(op.RSQRT, stable)

    def normal(
        self, centred: Instruction, variance: Instruction, scale: Instruction, offset: Instruction
    ) -> Instruction:
        factor = builder.elementwise(op.MULTIPLY, self.inverse(variance), self.widen(scale))
        scaled = builder.elementwise(op.MULTIPLY, centred, self.spread(factor))
        return builder.elementwise(op.ADD, scaled, self.spread(self.widen(offset)))


def split_reduce(node: Instruction) -> Instruction | None:
    """A reduce of several values that do not meet is several reduces."""
    count = len(node.operands) // 2
    body = node["to_apply"]
    if count < 2 or body.root.opcode != op.TUPLE or node.shape.elements is None:
        return None
    parts = []
    for i, combined in enumerate(body.root.operands):
        single = _monoid_of(combined, body.parameters[i], body.parameters[count + i])
        if single is None:
            return None
        operands = (node.operands[i], node.operands[count + i])
        parts.append(
            instruction(
                op.REDUCE,
                node.shape.elements[i],
                operands,
                dimensions=node["dimensions"],
                to_apply=single,
            )
        )
    return builder.tuple_(parts)


def _monoid_of(combined: Instruction, left: Instruction, right: Instruction) -> Computation | None:
    """The two-parameter computation of `combined`, when it only combines these two parameters."""
    if combined.opcode not in op.REDUCERS or set(combined.operands) != {left, right}:
        return None
    first = builder.parameter(0, left.shape.dtype)
    second = builder.parameter(1, right.shape.dtype)
    renamed = {left: first, right: second}
    root = builder.elementwise(combined.opcode, *(renamed[o] for o in combined.operands))
    body = computation((first, second), root)
    return body if monoid(body) is not None else None


EXPANSIONS: Sequence[NamedRule] = (
    NamedRule("batch_norm_training", frozenset({op.BATCH_NORM_TRAINING}), batch_norm_training),
    NamedRule("batch_norm_inference", frozenset({op.BATCH_NORM_INFERENCE}), batch_norm_inference),
    NamedRule("batch_norm_grad", frozenset({op.BATCH_NORM_GRAD}), batch_norm_grad),
    NamedRule("small_dot", frozenset({op.DOT}), small_dot),
    NamedRule("part_of_scan", frozenset({op.SLICE}), part_of_scan),
    NamedRule("small_window", frozenset({op.REDUCE_WINDOW}), small_window),
    NamedRule("small_selection", frozenset({op.SELECT_AND_SCATTER}), small_selection),
    NamedRule("random_bits", frozenset({op.RNG_BIT_GENERATOR}), random_bits),
    NamedRule("drawn_bits", frozenset({op.GET_TUPLE_ELEMENT}), drawn_bits),
    NamedRule("split_reduce", frozenset({op.REDUCE}), split_reduce),
)


def expand(
    module: Module, step_limit: int = DEFAULT_STEP_LIMIT, dot_pays: Predicate = no_other
) -> Simplified:
    """`module` simplified, with composite opcodes expanded where a rule knows how; of dots those
    that are small, and those that `dot_pays`."""
    small = NamedRule("small_dot", frozenset({op.DOT}), lambda node: small_dot(node, dot_pays))
    rules = (small if rule.name == small.name else rule for rule in EXPANSIONS)
    return simplify(module, step_limit, (*rules, *RULES))
