"""Operations whose lowering by tf2xla is not what TensorFlow computes, rewritten to ones that are.

TensorFlow's kernels on the job's kind of device are the specification (docs/semantics.md). Each
rewrite is the formula of a kernel in primitive operations that mean the same in both; those for
CPUs are held against the kernels by tests/tensorflow/test_conformance.py, bit patterns of NaN
aside, those for GPUs against what kernels on an H100 made (test_gpu_conformance.py) and what
TensorFlow's source says of them (test_gpu_rules.py). A
rewritten node keeps its name for the final operation, so references to it stay; the others are
called "<name>/<number>". What Grappler's remapper fused is written as its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2

from stitchcore.errors import REPORTED
from stitchcore.hlo.ir import attributes
from stitchcore.tensorflow import placement

SELU_SCALE = 1.0507009873554804934193349852946
SELU_SCALE_ALPHA = 1.7580993408473768599402175208123


Shapes = Mapping[str, Sequence[tuple[int, ...]]]
"""By node name the shapes of its inputs."""


class _Writer:
    """Adds the operations that stand for one node; the last one takes the node's name."""

    def __init__(self, graph: Any, node: Any, shapes: Shapes, constants: Mapping[str, Any]) -> None:
        self._graph = graph
        self._shapes = shapes
        self._constants = constants
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

    def alone(self, operation: str, value: str, last: bool) -> str:
        """An operation of one value of the node's type, as a graph on a CPU has it."""
        formula = REWRITES.get((operation, placement.CPU))
        if formula is None:
            return self(operation, value, last=last)
        node = node_def_pb2.NodeDef(name=self._named(last), op=operation, input=(value,))
        node.attr["T"].type = self.dtype
        writer = _Writer(self._graph, node, self._shapes, self._constants)
        writer._count = self._count  # names of the last one's parts begin with this node's, too
        formula(writer)
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
        self.outputs(values, (self.dtype, *more_types))

    def outputs(self, values: Sequence[str], types: Sequence[int]) -> None:
        """The node's outputs and their types."""
        node = self._graph.node.add(name=self._name, op="IdentityN", input=values)
        node.attr["T"].list.type.extend(types)

    @property
    def training(self) -> bool:
        """Of a normalization: whether it takes its statistics from its input."""
        return bool(self.node.attr["is_training"].b)

    @property
    def epsilon(self) -> float:
        """Of a normalization."""
        return float(self.node.attr["epsilon"].f)

    def shape(self, position: int) -> tuple[int, ...]:
        """The shape of an input of the node, where the operation is in op_allowlist.SHAPED."""
        return self._shapes[self._name][position]

    def value(self, position: int) -> Any:
        """What an input of the node holds that is a constant."""
        return tf.make_ndarray(self._constants[self.inputs[position]].attr["value"].tensor)

    def integers(self, values: Any, dtype: int) -> str:
        """A constant of integers."""
        node = self._graph.node.add(name=self._named(False), op="Const")
        node.attr["dtype"].type = dtype
        array = np.asarray(values, tf.as_dtype(dtype).as_numpy_dtype)
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(array))
        return str(node.name)

    def kind(self, attribute: str) -> int:
        """A type among the node's attributes."""
        return int(self.node.attr[attribute].type)

    def bits(self, shape: str, key: str, counter: str, dtype: int, shape_type: int) -> str:
        """Philox's random bits as integers of `dtype`, in the order in which TensorFlow's kernels
        take them (core/kernels/random_op_cpu.h: a block of 128 bits after the other)."""
        name = self._named(False)
        philox = self.integers(1, tf.int32.as_datatype_enum)
        node = self._graph.node.add(
            name=name,
            op="StatelessRandomUniformFullIntV2",
            input=(shape, key, counter, philox),
        )
        node.attr["dtype"].type, node.attr["Tshape"].type = dtype, shape_type
        return name

    def keep_dimensions(self) -> None:
        """The last operation, a reduction, keeps its axes with size 1."""
        self._graph.node[-1].attr["keep_dims"].b = True

    def both(self, left: str, right: str, last: bool = False) -> str:
        name = self._named(last)
        self._graph.node.add(name=name, op="LogicalAnd", input=(left, right))
        return name

    def reduced(self, operation: str, value: str) -> str:
        """A reduction of the last axis of a value of the node's type, which stays with size 1."""
        axis = self.integers([-1], tf.int32.as_datatype_enum)
        name = self(operation, value, axis, T=self.dtype, Tidx=tf.int32.as_datatype_enum)
        self.keep_dimensions()
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

    def choose(self, condition: str, yes: str, no: str, last: bool = False) -> str:
        """Of two indices the first where the condition holds."""
        return self("SelectV2", condition, yes, no, last=last, T=tf.int32.as_datatype_enum)

    def counted(self, operation: str, value: str, axis: int) -> str:
        """A reduction of indices, or of conditions, along an axis."""
        index = tf.int32.as_datatype_enum
        types = {} if operation == "All" else {"T": index}
        return self(operation, value, self.integers(axis, index), Tidx=index, **types)

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


def _sigmoid_gradient_on_gpu(write: _Writer) -> None:
    """Generated kernels multiply as a CPU does, that of bfloat16 in another order."""
    if write.dtype != tf.bfloat16.as_datatype_enum:
        _sigmoid_gradient(write)
        return
    y, gradient = write.inputs
    rest = write("Sub", write.constant(1.0), y)
    write("Mul", write("Mul", gradient, y), rest, last=True)


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


def _sqrt_gradient_on_gpu(write: _Writer) -> None:
    """gradient * (0.5 / y) in generated kernels, and of bfloat16 (0.5 * gradient) / y: what
    overflows or is flushed on the way is not what it is on a CPU."""
    y, gradient = write.inputs
    half = write.constant(0.5)
    if write.dtype == tf.bfloat16.as_datatype_enum:
        value = write("RealDiv", write("Mul", half, gradient), y)
    else:
        value = write("Mul", gradient, write("RealDiv", half, y))
    _zero_where_no_gradient(write, value)


def _inverse_gradient(write: _Writer) -> None:
    y, gradient = write.inputs
    _zero_where_no_gradient(write, write("Mul", write("Neg", gradient), write("Mul", y, y)))


def _elu(write: _Writer) -> None:
    """exp(x) - 1, not expm1."""
    (x,) = write.inputs
    low = write("Sub", write("Exp", x), write.constant(1.0))
    write("SelectV2", write("Less", x, write.constant(0.0)), low, x, last=True)


def _elu_on_gpu(write: _Writer) -> None:
    """expm1 in generated kernels; of bfloat16 there is none, and it is what a CPU computes."""
    if write.dtype == tf.bfloat16.as_datatype_enum:
        _elu(write)
        return
    (x,) = write.inputs
    write("SelectV2", write("Less", x, write.constant(0.0)), write("Expm1", x), x, last=True)


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


def _selu_on_gpu(write: _Writer) -> None:
    """The same, by constants of nine digits (float64's too: a value of 1 becomes 1.05070102)."""
    if write.dtype == tf.bfloat16.as_datatype_enum:
        _selu(write)
        return
    (x,) = write.inputs
    low = write("Mul", write.constant(1.75809932), write("Expm1", x))
    high = write("Mul", write.constant(1.05070102), x)
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


def _fused_product(write: _Writer) -> None:
    """A product, its bias and at most one of op_allowlist.FUSED_INTO_PRODUCTS."""
    left, right, bias = write.inputs
    dropped = set(write.node.attr) - {"T", "transpose_a", "transpose_b"}
    _, *activation = (name.decode() for name in write.node.attr["fused_ops"].list.s)
    product = write.copy("MatMul", (left, right), dropped)
    value = write("BiasAdd", product, bias, last=not activation)
    for name in activation:
        write(name, value, last=True)


def _swish(write: _Writer) -> None:
    (x,) = write.inputs
    write("Mul", x, write("Sigmoid", x), last=True)


def _composition(write: _Writer) -> None:
    """One operation after the other, each as it is alone (core/kernels/unary_ops_composition.cc):
    XLA rounds halves away from zero in one."""
    (value,) = write.inputs
    names = [name.decode() for name in write.node.attr["op_names"].list.s]
    for number, name in enumerate(names, 1):
        value = write.alone(name, value, last=number == len(names))


def _layer_norm(write: _Writer) -> None:
    """Over the last axis, by the biased variance (core/kernels/mkl/mkl_layer_norm_op.cc)."""
    x, scale, offset = write.inputs
    centered = write("Sub", x, write.reduced("Mean", x))
    variance = write.reduced("Mean", write("Mul", centered, centered))
    deviation = write("Sqrt", write("AddV2", variance, write.constant(write.epsilon)))
    normalized = write("RealDiv", centered, deviation)
    write("AddV2", write("Mul", normalized, scale), offset, last=True)


def _statistics(write: _Writer) -> tuple[int, ...]:
    """Types of a normalization's outputs after the first."""
    return (write.node.attr["U"].type,) * 5


def _cast_on_gpu(write: _Writer) -> None:
    """A float becomes int32 as CUDA converts it (core/kernels/cast_op.h is a static_cast): what is
    out of range is clamped to it (PTX ISA, cvt), and NaN is 0, of float64 the smallest number. What
    reaches the conversion here fits in, so any processor's will do."""
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
    nothing = write.integers(-(2**31) if source == wide else 0, target)
    write("SelectV2", write("IsNan", x, T=wide), nothing, converted, last=True, T=target)


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
    shifted = write("Sub", logits, write.reduced("Max", logits))
    powers = write("Exp", shifted)
    total = write.reduced("Sum", powers)
    zero = write.constant(0.0)
    losses = write("SelectV2", chosen, write("Sub", write("Log", total), shifted), zero)
    flat = write.integers([batch], index)
    loss = write.reduced("Sum", losses)
    loss = write("Reshape", loss, flat, T=write.dtype, Tshape=index)
    return loss, write("Sub", write("RealDiv", powers, total), write.mask(chosen))


def _argmax(write: _Writer) -> None:
    _extreme(write, "Max", "Greater", lowest=True)


def _argmin(write: _Writer) -> None:
    _extreme(write, "Min", "Less", lowest=False)


def _extreme(write: _Writer, reduction: str, beyond: str, lowest: bool) -> None:
    """Eigen's ArgMaxTupleReducer starts with index 0 and the lowest finite value, and takes the
    first element beyond what it has: no NaN is, and no infinity below it."""
    index, kind, x = tf.int32.as_datatype_enum, write.dtype, write.inputs[0]
    if tf.as_dtype(kind) == tf.bool:
        kind = tf.uint8.as_datatype_enum
        x = write("Cast", x, SrcT=write.dtype, DstT=kind)
    shape = write.shape(0)
    axis = int(write.value(1)) % len(shape)
    finite = tf.as_dtype(kind)
    limit = write.constant(finite.min if lowest else finite.max, kind)
    counts = write(beyond, x, limit, T=kind)
    position = write.integers([axis], index)
    best = write(
        reduction,
        write("SelectV2", counts, x, limit, T=kind),
        position,
        T=kind,
        Tidx=index,
    )
    write.keep_dimensions()
    hit = write.both(write("Equal", x, best, T=kind), counts)
    size = shape[axis]
    along = [size if n == axis else 1 for n in range(len(shape))]
    ends = (write.integers(number, index) for number in (0, size, 1))
    places = write("Range", *ends, Tidx=index)
    places = write("Reshape", places, write.integers(along, index), T=index, Tshape=index)
    none = write.integers(size, index)
    first = write.counted("Min", write.choose(hit, places, none), axis)
    zero = write.integers(0, index)
    found = write.choose(write("Equal", first, none, T=index), zero, first)
    write("Cast", found, last=True, SrcT=index, DstT=write.kind("output_type"))


def _in_top(write: _Writer) -> None:
    """Whether fewer than k are beyond the target's, all are finite and the target is one of them
    (core/kernels/in_topk_op.h)."""
    index, condition = tf.int32.as_datatype_enum, tf.bool.as_datatype_enum
    number, target, real = write.kind("T"), write.inputs[1], tf.float32.as_datatype_enum
    predictions, (batch, classes) = write.inputs[0], write.shape(0)
    k = write.inputs[2] if len(write.inputs) > 2 else write.integers(write.node.attr["k"].i, number)
    low = write("GreaterEqual", target, write.integers(0, number), T=number)
    known = write.both(low, write("Less", target, write.integers(classes, number), T=number))
    target = write("Reshape", target, write.integers([batch, 1], index), T=number, Tshape=index)
    ends = (write.integers(end, number) for end in (0, classes, 1))
    chosen = write("Equal", write("Range", *ends, Tidx=number), target, T=number)
    zero = write.constant(0.0, real)
    own = write("SelectV2", chosen, predictions, zero, T=real)
    own = write("Sum", own, write.integers([1], index), T=real, Tidx=index)
    write.keep_dimensions()
    above = write("Greater", predictions, own, T=real)
    above = write("Cast", above, SrcT=condition, DstT=index)
    fewer = write("Cast", write.counted("Sum", above, 1), SrcT=index, DstT=number)
    fewer = write("Less", fewer, k, T=number)
    finite = write.counted("All", write("IsFinite", predictions, T=real), 1)
    write.both(write.both(known, finite), fewer, last=True)


def _ensured_shape(write: _Writer) -> None:
    """It is the one demanded (constant_operands.py)."""
    write("Identity", write.inputs[0], last=True)


_SCRAMBLE = 0x02461E293EC8F720


def _key_and_counter(write: _Writer) -> None:
    """The seed, scrambled by Philox itself (core/kernels/stateless_random_ops.cc, GenerateKey): the
    first 64 bits of its block are the key, the last the high half of the counter."""
    long, unsigned, index = (one.as_datatype_enum for one in (tf.int64, tf.uint64, tf.int32))
    seed = write("Cast", write.inputs[0], SrcT=write.kind("Tseed"), DstT=long)
    seed = write("Cast", seed, SrcT=long, DstT=unsigned)
    two, key = write.integers([2], index), write.integers([_SCRAMBLE], unsigned)
    block = write.bits(two, key, seed, unsigned, index)
    ends = (write.integers(place, index) for place in ([0], [1]))
    key = write("Slice", block, *ends, T=unsigned, Index=index)
    counter = write("Mul", block, write.integers([0, 1], unsigned), T=unsigned)
    write.outputs((key, counter), (unsigned, unsigned))


_MANTISSAS = {
    tf.float32: (tf.uint32, tf.uint32, 23, 127),
    tf.float16: (tf.uint32, tf.uint16, 10, 15),
    tf.bfloat16: (tf.uint32, tf.uint16, 7, 127),
    tf.float64: (tf.uint64, tf.uint64, 52, 1023),
}
"""By floating type: what is drawn for an element, the type of its bits, how many are its mantissa,
the exponent of 1."""


def _random_uniform(write: _Writer) -> None:
    """The low bits that are drawn are the mantissa of a number from 1 on, less 1
    (core/lib/random/random_distributions_utils.h: Uint32ToFloat, Uint64ToDouble, and
    random_distributions.h: Uint16ToHalf, Uint16ToGfloat16). Of a double the first word is the high
    one."""
    shape, key, counter, _ = write.inputs
    target = write.kind("dtype")
    drawn, stored, bits, exponent = _MANTISSAS[tf.as_dtype(target)]
    wide, narrow = drawn.as_datatype_enum, stored.as_datatype_enum
    value = write.bits(shape, key, counter, wide, write.kind("Tshape"))
    if drawn == tf.uint64:
        half = write.integers(32, wide)
        low = write("RightShift", value, half, T=wide)
        value = write("BitwiseOr", write("LeftShift", value, half, T=wide), low, T=wide)
    value = write("BitwiseAnd", value, write.integers(2**bits - 1, wide), T=wide)
    value = write("BitwiseOr", value, write.integers(exponent << bits, wide), T=wide)
    value = write("Cast", value, SrcT=wide, DstT=narrow)
    value = write("Bitcast", value, T=narrow, type=target)
    write("Sub", value, write.constant(1.0, target), last=True, T=target)


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
    ("StatelessRandomGetKeyCounter", placement.CPU): _key_and_counter,
    ("StatelessRandomUniformV2", placement.CPU): _random_uniform,
    ("ArgMax", placement.CPU): _argmax,
    ("ArgMin", placement.CPU): _argmin,
    **dict.fromkeys((("InTopK", placement.CPU), ("InTopKV2", placement.CPU)), _in_top),
    **{("EnsureShape", kind): _ensured_shape for kind in placement.KINDS},
    ("_FusedBatchNormEx", placement.CPU): _fused_batch_norm,
    **{("_FusedMatMul", kind): _fused_product for kind in placement.KINDS},
    ("_MklSwish", placement.CPU): _swish,
    ("_UnaryOpsComposition", placement.CPU): _composition,
    ("_MklLayerNorm", placement.CPU): _layer_norm,
    ("_FusedBatchNormEx", placement.GPU): _fused_batch_norm_on_gpu,
    ("FusedBatchNormV3", placement.GPU): _batch_norm_on_gpu,
    ("FusedBatchNormGradV3", placement.GPU): _batch_norm_gradient_on_gpu,
    ("Cast", placement.GPU): _cast_on_gpu,
    ("Elu", placement.GPU): _elu_on_gpu,
    ("Selu", placement.GPU): _selu_on_gpu,
    ("SigmoidGrad", placement.GPU): _sigmoid_gradient_on_gpu,
    ("SqrtGrad", placement.GPU): _sqrt_gradient_on_gpu,
}
"""By operation and kind of device. Those for GPUs are held against what TensorFlow's kernels made
on one (tests/tensorflow/gpu_conformance.py). What has no entry is lowered as it is."""


OF_PASSES = frozenset({("_FusedBatchNormEx", placement.CPU), ("_MklLayerNorm", placement.CPU)})
"""Operations that count on TensorFlow's oneDNN pass, which gives the first another name, without
which it has no kernel. No pass sees the functions of stitched operations: there they are their
parts (fallback.py)."""


def rewrite(
    graph: Any,
    shapes: Shapes,
    kind: str = placement.CPU,
    chosen: Collection[tuple[str, str]] = REWRITES.keys(),
) -> Any:
    """A copy of a GraphDef in which every operation of `chosen`, keys of REWRITES, is TensorFlow's
    own formula on devices of `kind`. `shapes` are those of the inputs of operations in
    op_allowlist.SHAPED."""
    result = graph_pb2.GraphDef()
    result.versions.CopyFrom(graph.versions)
    result.library.CopyFrom(graph.library)
    constants = {node.name: node for node in graph.node if node.op == "Const"}
    for node in graph.node:
        if (node.op, kind) not in chosen:
            result.node.add().CopyFrom(node)
        else:
            formula = REWRITES[node.op, kind]
            formula(_Writer(result, node, shapes, constants))
    return result
