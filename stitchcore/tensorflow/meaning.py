"""Operations whose lowering by tf2xla is not what TensorFlow computes, rewritten to ones that are.

TensorFlow's kernels are the specification (hlo.md). Each rewrite is the formula of the CPU kernel
in primitive operations that mean the same in both; tests/tensorflow/test_conformance.py holds every
one of them against the kernel, bit patterns of NaN aside. A rewritten node keeps its name for the
final operation, so references to it stay; the others are called "<name>/<number>". What Grappler's
remapper fused is written as its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from stitchcore.errors import REPORTED
from stitchcore.hlo import attributes

SELU_SCALE = 1.0507009873554804934193349852946
SELU_SCALE_ALPHA = 1.7580993408473768599402175208123


Shapes = Mapping[str, Sequence[tuple[int, ...]]]
"""By node name the shapes of its inputs."""


class _Writer:
    """Adds the operations that stand for one node; the last one takes the node's name."""

    def __init__(self, graph: Any, node: Any, shapes: Shapes) -> None:
        self._graph = graph
        self._shapes = shapes
        self._name = node.name
        self._count = 0
        self.inputs: Sequence[str] = [r for r in node.input if not r.startswith("^")]
        self.dtype: int = node.attr["T"].type
        self.node = node

    def _named(self, last: bool) -> str:
        if last:
            return str(self._name)
        self._count += 1
        return f"{self._name}/{self._count}"

    def constant(self, value: float) -> str:
        """A scalar of the node's type."""
        made = self._graph.node.add(name=self._named(False), op="Const")
        dtype = tf.as_dtype(self.dtype)
        made.attr["dtype"].type = self.dtype
        scalar = np.array(value).astype(dtype.as_numpy_dtype)
        made.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(scalar, dtype))
        return str(made.name)

    def __call__(self, operation: str, *inputs: str, last: bool = False, **types: int) -> str:
        """An operation on values of the node's type (attribute T unless given)."""
        made = self._graph.node.add(name=self._named(last), op=operation, input=inputs)
        for name, value in (types or {"T": self.dtype}).items():
            made.attr[name].type = value
        return str(made.name)

    def copy(self, operation: str, inputs: Sequence[str], dropped: Iterable[str]) -> str:
        """Another operation with the node's attributes but for `dropped`."""
        made = self._graph.node.add(name=self._named(False), op=operation, input=inputs)
        for name, value in self.node.attr.items():
            if name not in dropped:
                made.attr[name].CopyFrom(value)
        return str(made.name)

    def several(self, values: Sequence[str], others: Sequence[int]) -> None:
        """The node's outputs: the first of the node's type, the others of types `others`."""
        made = self._graph.node.add(name=self._name, op="IdentityN", input=values)
        made.attr["T"].list.type.extend((self.dtype, *others))

    def shape(self, position: int) -> tuple[int, ...]:
        """The shape of an input of the node, where the operation is in allow.CHECKED."""
        return self._shapes[self._name][position]

    def integers(self, values: Any, dtype: int) -> str:
        """A constant of integers."""
        made = self._graph.node.add(name=self._named(False), op="Const")
        made.attr["dtype"].type = dtype
        array = np.asarray(values, tf.as_dtype(dtype).as_numpy_dtype)
        made.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(array))
        return str(made.name)

    def both(self, left: str, right: str) -> str:
        name = self._named(False)
        self._graph.node.add(name=name, op="LogicalAnd", input=(left, right))
        return name

    def reduced(self, operation: str, value: str, rank: int) -> str:
        """A reduction of the last axis of a value of the node's type, which stays with size 1."""
        axis = self.integers([rank - 1], tf.int32.as_datatype_enum)
        name = self(operation, value, axis, T=self.dtype, Tidx=tf.int32.as_datatype_enum)
        self._graph.node[-1].attr["keep_dims"].b = True
        return name

    def check(self, value: str, holds: str, message: str, dtype: int, shape: Any) -> str:
        """`value`, which is an error where `holds` is not true (hlo/opcodes.py: CHECK)."""
        made = self._graph.node.add(
            name=self._named(False), op="XlaCustomCallV2", input=(value, holds)
        )
        made.attr["call_target_name"].s = attributes.CHECK_TARGET.encode()
        made.attr["backend_config"].s = message.encode()
        made.attr["has_side_effect"].b = False
        made.attr["operand_dtypes"].list.type.extend((dtype, tf.bool.as_datatype_enum))
        made.attr["result_dtypes"].list.type.append(dtype)
        made.attr["result_shapes"].list.shape.append(tf.TensorShape(shape).as_proto())
        return str(made.name)

    def mask(self, condition: str) -> str:
        """1 where the condition holds, else 0, in the node's type."""
        return self("Cast", condition, SrcT=tf.bool.as_datatype_enum, DstT=self.dtype)


def _relu_gradient(write: _Writer) -> None:
    """gradient * (feature > 0): a NaN or infinite gradient stays NaN where the mask is 0."""
    gradient, feature = write.inputs
    mask = write.mask(write("Greater", feature, write.constant(0.0)))
    write("Mul", gradient, mask, last=True)


def _relu6_gradient(write: _Writer) -> None:
    gradient, feature = write.inputs
    above = write.mask(write("Greater", feature, write.constant(0.0)))
    below = write.mask(write("Less", feature, write.constant(6.0)))
    write("Mul", gradient, write("Mul", above, below), last=True)


def _sigmoid_gradient(write: _Writer) -> None:
    y, gradient = write.inputs
    slope = write("Mul", write("Sub", write.constant(1.0), y), y)
    write("Mul", slope, gradient, last=True)


def _zero_where_no_gradient(write: _Writer, value: str) -> None:
    gradient = write.inputs[1]
    zero = write.constant(0.0)
    nothing = write("Equal", gradient, zero)
    write("SelectV2", nothing, zero, value, last=True)


def _rsqrt_gradient(write: _Writer) -> None:
    y, gradient = write.inputs
    half = write("Mul", write.constant(-0.5), write("Mul", gradient, y))
    _zero_where_no_gradient(write, write("Mul", half, write("Mul", y, y)))


def _sqrt_gradient(write: _Writer) -> None:
    y, gradient = write.inputs
    quotient = write("Mul", gradient, write("Reciprocal", y))
    _zero_where_no_gradient(write, write("Mul", write.constant(0.5), quotient))


def _inverse_gradient(write: _Writer) -> None:
    y, gradient = write.inputs
    _zero_where_no_gradient(write, write("Mul", write("Neg", gradient), write("Mul", y, y)))


def _elu(write: _Writer) -> None:
    """exp(x) - 1, not expm1."""
    (x,) = write.inputs
    low = write("Sub", write("Exp", x), write.constant(1.0))
    write("SelectV2", write("Less", x, write.constant(0.0)), low, x, last=True)


def _elu_gradient(write: _Writer) -> None:
    gradient, y = write.inputs
    low = write("Mul", write("AddV2", y, write.constant(1.0)), gradient)
    write("SelectV2", write("Less", y, write.constant(0.0)), low, gradient, last=True)


def _selu(write: _Writer) -> None:
    (x,) = write.inputs
    shifted = write("Sub", write("Exp", x), write.constant(1.0))
    low = write("Mul", write.constant(SELU_SCALE_ALPHA), shifted)
    high = write("Mul", write.constant(SELU_SCALE), x)
    write("SelectV2", write("Less", x, write.constant(0.0)), low, high, last=True)


def _selu_gradient(write: _Writer) -> None:
    gradient, y = write.inputs
    low = write("Mul", gradient, write("AddV2", y, write.constant(SELU_SCALE_ALPHA)))
    high = write("Mul", gradient, write.constant(SELU_SCALE))
    write("SelectV2", write("Less", y, write.constant(0.0)), low, high, last=True)


def _softplus_gradient(write: _Writer) -> None:
    gradient, feature = write.inputs
    below = write("AddV2", write("Exp", write("Neg", feature)), write.constant(1.0))
    write("RealDiv", gradient, below, last=True)


def _fused_batch_norm(write: _Writer) -> None:
    """max(0, normalized + side input), 0 for NaN; the other outputs are the normalization's."""
    sides = write.node.attr["num_side_inputs"].i
    operands = write.inputs[: len(write.inputs) - sides]
    norm = write.copy("FusedBatchNormV3", operands, dropped=("num_side_inputs", "activation_mode"))
    value = norm
    for side in write.inputs[len(operands) :]:
        value = write("AddV2", value, side)
    zero = write.constant(0.0)
    value = write("SelectV2", write("Greater", value, zero), value, zero)
    statistics = write.node.attr["U"].type
    write.several((value, *(f"{norm}:{port}" for port in range(1, 6))), (statistics,) * 5)


def _sparse_cross_entropy(write: _Writer) -> None:
    """loss = log(sum(exp(logits - max))) - (logits - max) at the label, and its gradient
    exp(logits - max) / sum - (1 at the label); a label without a class is an error."""
    logits, given = write.inputs
    batch, classes = write.shape(0)
    kind, index = write.node.attr["Tlabels"].type, tf.int32.as_datatype_enum
    low = write("GreaterEqual", given, write.integers(0, kind), T=kind)
    high = write("Less", given, write.integers(classes, kind), T=kind)
    message = f"Received a label value of {REPORTED} which is outside the valid range of "
    holds = write.both(low, high)
    label = write.check(given, holds, f"{message}[0, {classes}).", kind, (batch,))
    column = write.integers([batch, 1], index)
    label = write("Reshape", label, column, T=kind, Tshape=index)
    label = write("Cast", label, SrcT=kind, DstT=index)  # vectors of int32 are as wide as float32's
    ends = (write.integers(number, index) for number in (0, classes, 1))
    chosen = write("Equal", write("Range", *ends, Tidx=index), label, T=index)
    shifted = write("Sub", logits, write.reduced("Max", logits, 2))
    powers = write("Exp", shifted)
    total = write.reduced("Sum", powers, 2)
    zero = write.constant(0.0)
    losses = write("SelectV2", chosen, write("Sub", write("Log", total), shifted), zero)
    flat = write.integers([batch], index)
    loss = write.reduced("Sum", losses, 2)
    loss = write("Reshape", loss, flat, T=write.dtype, Tshape=index)
    gradient = write("Sub", write("RealDiv", powers, total), write.mask(chosen))
    write.several((loss, gradient), (write.dtype,))


REWRITES: dict[str, Callable[[_Writer], None]] = {
    "ReluGrad": _relu_gradient,
    "Relu6Grad": _relu6_gradient,
    "SigmoidGrad": _sigmoid_gradient,
    "RsqrtGrad": _rsqrt_gradient,
    "SqrtGrad": _sqrt_gradient,
    "InvGrad": _inverse_gradient,
    "ReciprocalGrad": _inverse_gradient,
    "Elu": _elu,
    "EluGrad": _elu_gradient,
    "Selu": _selu,
    "SeluGrad": _selu_gradient,
    "SoftplusGrad": _softplus_gradient,
    "SparseSoftmaxCrossEntropyWithLogits": _sparse_cross_entropy,
    "_FusedBatchNormEx": _fused_batch_norm,
}
"""By operation name."""


def rewrite(graph: Any, shapes: Shapes) -> Any:
    """A copy of a GraphDef in which every operation of REWRITES is TensorFlow's own formula.
    `shapes` are those of the inputs of operations in allow.CHECKED."""
    result = graph_pb2.GraphDef()
    result.versions.CopyFrom(graph.versions)
    result.library.CopyFrom(graph.library)
    for node in graph.node:
        made = REWRITES.get(node.op)
        if made is None:
            result.node.add().CopyFrom(node)
        else:
            made(_Writer(result, node, shapes))
    return result
