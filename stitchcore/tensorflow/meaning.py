"""Operations whose lowering by tf2xla is not what TensorFlow computes, rewritten to ones that are.

TensorFlow's kernels are the specification (hlo.md). Each rewrite is the formula of the CPU kernel
in primitive operations that mean the same in both; tests/tensorflow/test_conformance.py holds every
one of them against the kernel, bit patterns of NaN aside. A rewritten node keeps its name for the
final operation, so references to it stay; the others are called "<name>/<number>". What Grappler's
remapper fused is written as its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

SELU_SCALE = 1.0507009873554804934193349852946
SELU_SCALE_ALPHA = 1.7580993408473768599402175208123


class _Writer:
    """Adds the operations that stand for one node; the last one takes the node's name."""

    def __init__(self, graph: Any, node: Any) -> None:
        self._graph = graph
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
    "_FusedBatchNormEx": _fused_batch_norm,
}
"""By operation name."""


def rewrite(graph: Any) -> Any:
    """A copy of a GraphDef in which every operation of REWRITES is TensorFlow's own formula."""
    result = graph_pb2.GraphDef()
    result.versions.CopyFrom(graph.versions)
    result.library.CopyFrom(graph.library)
    for node in graph.node:
        made = REWRITES.get(node.op)
        if made is None:
            result.node.add().CopyFrom(node)
        else:
            made(_Writer(result, node))
    return result
