"""Operations whose lowering by tf2xla is not what TensorFlow computes, rewritten to ones that are.

TensorFlow's kernels on the job's kind of device are the specification (docs/semantics.md). Each
rewrite is the formula of a kernel in primitive operations that mean the same in both; those for
CPUs are held against the kernels by tests/tensorflow/test_conformance.py, bit patterns of NaN
aside, those for GPUs against what TensorFlow's source says of them by test_gpu_rules.py. A
rewritten node keeps its name for the final operation, so references to it stay; the others are
called "<name>/<number>". What Grappler's remapper fused is written as its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from stitchcore.errors import REPORTED
from stitchcore.hlo.ir import attributes
from stitchcore.tensorflow import placement

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
        self.dtype: int = node.attr["T"].type if "T" in node.attr else 0
        self.node = node

    def _named(self, last: bool) -> str:
        if last:
            return str(self._name)
        self._count += 1
        return f"{self._name}/{self._count}"

    def constant(self, value: float, kind: int | None = None) -> str:
        """A scalar of the node's type, or of `kind`."""
        node = self._graph.node.add(name=self._named(False), op="Const")
        dtype = tf.as_dtype(self.dtype if kind is None else kind)
        node.attr["dtype"].type = dtype.as_datatype_enum
        scalar = np.array(value).astype(dtype.as_numpy_dtype)
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(scalar, dtype))
        return str(node.name)

    def __call__(self, operation: str, *inputs: str, last: bool = False, **types: int) -> str:
        """An operation on values of the node's type (attribute T unless given)."""
        node = self._graph.node.add(name=self._named(last), op=operation, input=inputs)
        for name, value in (types or {"T": self.dtype}).items():
            node.attr[name].type = value
        return str(node.name)

    def copy(
        self, operation: str, inputs: Sequence[str], dropped: Iterable[str] = (), last: bool = False
    ) -> str:
        """Another operation with the node's attributes but for `dropped`."""
        node = self._graph.node.add(name=self._named(last), op=operation, input=inputs)
        for name, value in self.node.attr.items():
            if name not in dropped:
                node.attr[name].CopyFrom(value)
        return str(node.name)

    def several(self, values: Sequence[str], more_types: Sequence[int]) -> None:
        """The node's outputs: the first of the node's type, the others of types `more_types`."""
        outputs = self._graph.node.add(name=self._name, op="IdentityN", input=values)
        outputs.attr["T"].list.type.extend((self.dtype, *more_types))

    @property
    def training(self) -> bool:
        """Of a normalization: whether it takes its statistics from its input."""
        return bool(self.node.attr["is_training"].b)

    @property
    def epsilon(self) -> float:
        """Of a normalization."""
        return float(self.node.attr["epsilon"].f)

    def shape(self, position: int) -> tuple[int, ...]:
        """The shape of an input of the node, where the operation is in op_allowlist.CHECKED."""
        return self._shapes[self._name][position]

    def integers(self, values: Any, dtype: int) -> str:
        """A constant of integers."""
        node = self._graph.node.add(name=self._named(False), op="Const")
        node.attr["dtype"].type = dtype
        array = np.asarray(values, tf.as_dtype(dtype).as_numpy_dtype)
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(array))
        return str(node.name)

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
        """`value`, which is an error where `holds` is not true (hlo/ir/opcodes.py: CHECK)."""
        node = self._graph.node.add(
            name=self._named(False), op="XlaCustomCallV2", input=(value, holds)
        )
        node.attr["call_target_name"].s = attributes.CHECK_TARGET.encode()
        node.attr["backend_config"].s = message.encode()
        node.attr["has_side_effect"].b = False
        node.attr["operand_dtypes"].list.type.extend((dtype, tf.bool.as_datatype_enum))
        node.attr["result_dtypes"].list.type.append(dtype)
        node.attr["result_shapes"].list.shape.append(tf.TensorShape(shape).as_proto())
        return str(node.name)

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
    norm, value = _normalized(write)
    zero = write.constant(0.0)
    value = write("SelectV2", write("Greater", value, zero), value, zero)
    write.several((value, *(f"{norm}:{port}" for port in range(1, 6))), _statistics(write))


def _fused_batch_norm_on_gpu(write: _Writer) -> None:
    """A NaN stays one (core/kernels/fused_batch_norm_op.cu.cc, FusedBatchNormInferenceKernel:
    `shifted_v < U(0) ? U(0) : shifted_v`). In float32 Grappler makes this of inference only, whose
    further outputs are those on a CPU."""
    norm, value = _normalized(write)
    zero = write.constant(0.0)
    value = write("SelectV2", write("Less", value, zero), zero, value)
    write.several((value, *(f"{norm}:{port}" for port in range(1, 6))), _statistics(write))


def _batch_norm_on_gpu(write: _Writer) -> None:
    """The fifth output of a training step is 1 / sqrt(variance + epsilon), which cuDNN saves for
    the gradient; on a CPU it is the variance (compiler/tf2xla/kernels/batch_norm_op.cc,
    FusedBatchNormOp::Compile, is_on_gpu_)."""
    norm = write.copy("FusedBatchNormV3", write.inputs, last=not write.training)
    if write.training:
        kind = write.node.attr["U"].type
        around = write("AddV2", f"{norm}:4", write.constant(write.epsilon, kind), T=kind)
        saved = write("Rsqrt", around, T=kind)
        ports = (norm, *(f"{norm}:{port}" for port in (1, 2, 3)), saved, f"{norm}:5")
        write.several(ports, _statistics(write))


def _batch_norm_gradient_on_gpu(write: _Writer) -> None:
    """Takes that fifth output (FusedBatchNormGradOp::Compile, is_on_gpu_): variance = 1 / saved^2 -
    epsilon. Outside a training step the variance itself is given."""
    inputs = list(write.inputs)
    if write.training:
        kind = write.node.attr["U"].type
        inverse = write("Reciprocal", write("Mul", inputs[4], inputs[4], T=kind), T=kind)
        inputs[4] = write("Sub", inverse, write.constant(write.epsilon, kind), T=kind)
    write.copy("FusedBatchNormGradV3", inputs, last=True)


def _normalized(write: _Writer) -> tuple[str, str]:
    """The plain normalization in a `_FusedBatchNormEx`, and its sum with the side inputs."""
    operands = len(write.inputs) - write.node.attr["num_side_inputs"].i
    dropped = ("num_side_inputs", "activation_mode")
    norm = value = write.copy("FusedBatchNormV3", write.inputs[:operands], dropped=dropped)
    for side in write.inputs[operands:]:
        value = write("AddV2", value, side)
    return norm, value


def _statistics(write: _Writer) -> tuple[int, ...]:
    """Types of a normalization's outputs after the first."""
    return (write.node.attr["U"].type,) * 5


def _cast_on_gpu(write: _Writer) -> None:
    """A float becomes int32 as CUDA converts it: saturated, NaN is 0 (core/kernels/cast_op.h is a
    static_cast; PTX ISA, cvt: out of range is clamped to the destination's, NaN converted to 0).
    What reaches the conversion here fits in, so any processor's will do."""
    source, target = (write.node.attr[name].type for name in ("SrcT", "DstT"))
    if not (tf.as_dtype(source).is_floating and tf.as_dtype(target) == tf.int32):
        write.copy("Cast", write.inputs, last=True)
        return
    wide = tf.float64.as_datatype_enum
    (x,) = write.inputs
    x = write("Cast", x, SrcT=source, DstT=wide)  # exact, and holds both limits
    low, high = (write.constant(limit, wide) for limit in (-(2.0**31), 2.0**31 - 1))
    inside = write("Minimum", write("Maximum", x, low, T=wide), high, T=wide)
    converted = write("Cast", inside, SrcT=wide, DstT=target)
    zero = write.integers(0, target)
    write("SelectV2", write("IsNan", x, T=wide), zero, converted, last=True, T=target)


def _sparse_cross_entropy(write: _Writer) -> None:
    """A label without a class is an error (core/kernels/sparse_xent_op.cc:
    CheckInvalidLabelIndex)."""
    classes, kind = write.shape(0)[1], write.node.attr["Tlabels"].type
    message = f"Received a label value of {REPORTED} which is outside the valid range of "
    message = f"{message}[0, {classes})."
    label = write.check(write.inputs[1], _has_class(write), message, kind, write.shape(1))
    write.several(_cross_entropy(write, label), (write.dtype,))


def _sparse_cross_entropy_on_gpu(write: _Writer) -> None:
    """A label without a class makes its row's loss and gradient NaN (core/kernels/sparse_xent_op.h:
    SparseXentLossGenerator, SparseXentGradGenerator; there is no check on a GPU)."""
    index = tf.int32.as_datatype_enum
    batch = write.shape(0)[0]
    known = _has_class(write)
    loss, gradient = _cross_entropy(write, write.inputs[1])
    nothing = write.constant(float("nan"))
    loss = write("SelectV2", known, loss, nothing)
    column = write.integers([batch, 1], index)
    rows = write("Reshape", known, column, T=tf.bool.as_datatype_enum, Tshape=index)
    gradient = write("SelectV2", rows, gradient, nothing)
    write.several((loss, gradient), (write.dtype,))


def _has_class(write: _Writer) -> str:
    """Whether each label is one of the classes."""
    labels, kind = write.inputs[1], write.node.attr["Tlabels"].type
    low = write("GreaterEqual", labels, write.integers(0, kind), T=kind)
    high = write("Less", labels, write.integers(write.shape(0)[1], kind), T=kind)
    return write.both(low, high)


def _cross_entropy(write: _Writer, label: str) -> tuple[str, str]:
    """loss = log(sum(exp(logits - max))) - (logits - max) at the label, and its gradient
    exp(logits - max) / sum - (1 at the label)."""
    logits = write.inputs[0]
    batch, classes = write.shape(0)
    kind, index = write.node.attr["Tlabels"].type, tf.int32.as_datatype_enum
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
    return loss, write("Sub", write("RealDiv", powers, total), write.mask(chosen))


_Rewrite = Callable[[_Writer], None]

_BOTH: dict[str, _Rewrite] = {
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
}
"""One Eigen expression for both kinds of device (core/kernels/relu_op_functor.h, cwise_ops.h,
softplus_op.h). In float16 on a GPU TensorFlow's ReluGrad ends with up to 7 elements of another
formula (relu_op_gpu.cu.cc: 0, not NaN, for a NaN gradient of what was cut off): not followed."""

REWRITES: dict[tuple[str, str], _Rewrite] = {
    **{(name, kind): formula for name, formula in _BOTH.items() for kind in placement.KINDS},
    ("SparseSoftmaxCrossEntropyWithLogits", placement.CPU): _sparse_cross_entropy,
    ("SparseSoftmaxCrossEntropyWithLogits", placement.GPU): _sparse_cross_entropy_on_gpu,
    ("_FusedBatchNormEx", placement.CPU): _fused_batch_norm,
    ("_FusedBatchNormEx", placement.GPU): _fused_batch_norm_on_gpu,
    ("FusedBatchNormV3", placement.GPU): _batch_norm_on_gpu,
    ("FusedBatchNormGradV3", placement.GPU): _batch_norm_gradient_on_gpu,
    ("Cast", placement.GPU): _cast_on_gpu,
}
"""By operation and kind of device. Those for GPUs are what TensorFlow's source says of its kernels
there; none has been compared with one (docs/decisions.md 31). What has no entry is lowered as it
is."""


def rewrite(graph: Any, shapes: Shapes, kind: str = placement.CPU) -> Any:
    """A copy of a GraphDef in which every operation of REWRITES is TensorFlow's own formula on
    devices of `kind`. `shapes` are those of the inputs of operations in op_allowlist.CHECKED."""
    result = graph_pb2.GraphDef()
    result.versions.CopyFrom(graph.versions)
    result.library.CopyFrom(graph.library)
    for node in graph.node:
        formula = REWRITES.get((node.op, kind))
        if formula is None:
            result.node.add().CopyFrom(node)
        else:
            formula(_Writer(result, node, shapes))
    return result
