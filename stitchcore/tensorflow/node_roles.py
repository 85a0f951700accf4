"""What each node may be: a member of a region, a clone, a read of a plain variable, or opaque."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from stitchcore.device.records import Device
from stitchcore.errors import Reason
from stitchcore.inject import collectives
from stitchcore.tensorflow import constant_operands, lookups, op_allowlist, placement, products
from stitchcore.tensorflow.graph import Edge, GraphIndex
from stitchcore.tensorflow.op_allowlist import CHECKED
from stitchcore.tensorflow.updates import UPDATES
from stitchcore.tensorflow.variables import Variables, late_ref_readers

CLONE_ELEMENTS = 64
"""A constant up to this size is copied into each region; a larger one is a region's input."""

SMALL_ELEMENTS = 64
"""Members whose outputs are all this small form regions of their own: a scalar shared by two
updates must not tie them together."""

RANDOM = ("Random", "Multinomial", "TruncatedNormal")
STATELESS = "Stateless"
"""Random by an explicit key: XLA draws another stream from it than TensorFlow's kernel, whose own
is written down for some (op_allowlist.DRAWN)."""
CONTROL_FLOW = frozenset(
    """
    Switch RefSwitch _SwitchN Merge RefMerge Enter RefEnter Exit RefExit NextIteration LoopCond If
    StatelessIf Case StatelessCase While StatelessWhile PartitionedCall StatefulPartitionedCall
    """.split()
)
LIBRARY = frozenset(
    """
    MatMul _FusedMatMul BatchMatMul BatchMatMulV2 BatchMatMulV3 Einsum Conv2D _FusedConv2D
    Conv2DBackpropInput Conv2DBackpropFilter DepthwiseConv2dNative _FusedDepthwiseConv2dNative
    DepthwiseConv2dNativeBackpropInput DepthwiseConv2dNativeBackpropFilter MaxPool MaxPoolGrad
    AvgPool AvgPoolGrad Conv3D _FusedConv3D Conv3DBackpropInputV2 Conv3DBackpropFilterV2 MaxPool3D
    MaxPool3DGrad AvgPool3D AvgPool3DGrad _MklFusedBatchMatMulV2
    """.split()
)
ALGEBRA = frozenset(
    """
    SparseTensorDenseMatMul SparseMatMul Cholesky CholeskyGrad MatrixTriangularSolve MatrixSolve
    MatrixSolveLs MatrixInverse MatrixDeterminant LogMatrixDeterminant MatrixExponential
    MatrixLogarithm MatrixSquareRoot TridiagonalSolve TridiagonalMatMul Lu Qr Svd SelfAdjointEigV2
    Eig FFT FFT2D FFT3D IFFT IFFT2D IFFT3D RFFT RFFT2D RFFT3D IRFFT IRFFT2D IRFFT3D
    """.split()
)
"""Calls of other libraries: of sparse matrices, decompositions, Fourier transforms."""
STRUCTURE = frozenset(
    """
    _Arg _Retval Const NoOp Placeholder VarHandleOp ReadVariableOp VariableV2 IteratorGetNext
    AssignVariableOp AssignAddVariableOp AssignSubVariableOp _Send _Recv StitchTimer
    """.split()
)


RANK_FROM_VALUES = frozenset({"Sum", "Reshape"})
"""Gradients of broadcasts: Sum over computed axes, then Reshape. The rank between them is known
once sizes are; a region may hold such a tensor, not read or return it."""


class Part(Enum):
    """A node's part in cutting regions."""

    MEMBER = "member"
    CLONE = "clone"  # a small constant, or made of sizes: copied where it is used
    READ = "read"  # of a plain variable
    OPAQUE = "opaque"


@dataclass(frozen=True)
class Classes:
    """`parts[i]` of every node; `reasons[i]` why an opaque node that does work is opaque."""

    parts: tuple[Part, ...]
    reasons: dict[int, Reason]
    small: tuple[bool, ...]


def classify(
    graph: GraphIndex,
    variables: Variables,
    excluded: dict[int, Reason] | None = None,
    kind: str = placement.CPU,
    multiplies: Device | None = None,
) -> Classes:
    """The part of every node, where members are to be kernels of a device of `kind`; `excluded`
    nodes are opaque for the given reason. Products of matrices are members where the kernels of
    `multiplies` are quicker than its library."""
    parts: list[Part] = [Part.OPAQUE] * len(graph.nodes)
    reasons: dict[int, Reason] = {}
    shaped: set[int] = set()
    large = products.left_to_library(graph, kind, multiplies)
    late = late_ref_readers(graph)
    unordered = lookups.unordered(graph)
    for i in graph.order:
        node = graph.nodes[i]
        if excluded and i in excluded:
            reasons[i] = excluded[i]
        elif i in large:
            reasons[i] = Reason.LIBRARY_CALL
        elif i in late:
            reasons[i] = Reason.REF_VARIABLE
        elif i in unordered:
            reasons[i] = Reason.UNORDERED_VARIABLE
        elif node.op == "Const":
            shaped.add(i)
            if graph.static_size(Edge(i, 0)) <= CLONE_ELEMENTS and _known_types(graph, i):
                parts[i] = Part.CLONE
        elif _is_shape_arithmetic(graph, i, shaped):
            shaped.add(i)
            parts[i] = Part.CLONE
        elif node.op == op_allowlist.READ and i in variables.handle:
            parts[i] = Part.READ
        else:
            reason = _refuse(graph, i, variables, kind)
            if reason is None and not _operands_known(graph, i, parts):
                reason = Reason.UNKNOWN_RANK
            if reason is None:
                parts[i] = Part.CLONE if _is_number_of_sizes(graph, i, parts) else Part.MEMBER
            elif node.op not in STRUCTURE:
                reasons[i] = reason
    small = tuple(_is_small(graph, i) for i in range(len(graph.nodes)))
    return Classes(tuple(parts), reasons, small)


def _operands_known(graph: GraphIndex, i: int, parts: Sequence[Part]) -> bool:
    """Whether the operands that decide the output's shape are copied in: known when lowering."""
    data = graph.data[i]
    return all(parts[data[position].node] is Part.CLONE for position in _shape_operands(graph, i))


def _shape_operands(graph: GraphIndex, i: int) -> frozenset[int]:
    """Positions of node i's operands that decide the output's shape."""
    count = len(graph.data[i])
    positions = op_allowlist.SHAPE_OPERANDS.get(graph.nodes[i].op, ())
    return frozenset(position % count for position in positions if -count <= position < count)


def _is_small(graph: GraphIndex, i: int) -> bool:
    tensors = [Edge(i, port) for port in range(len(graph.output_types[i]))]
    tensors += list(graph.data[i])
    return all(
        graph.shape(t) is not None and graph.static_size(t) <= SMALL_ELEMENTS
        for t in tensors
        if graph.dtype(t) != "resource"
    )


def _known_types(graph: GraphIndex, i: int) -> bool:
    return bool(graph.output_types[i]) and all(t in op_allowlist.ANY for t in graph.output_types[i])


def _is_shape_arithmetic(graph: GraphIndex, i: int, shaped: set[int]) -> bool:
    node = graph.nodes[i]
    if node.op not in op_allowlist.SHAPE_OPERATIONS:
        return False
    types = graph.output_types[i]
    if not types or any(t not in ("int32", "int64") for t in types):
        # a size used as a number, as in a mean over an unknown batch
        return node.op == "Cast" and types[0] in op_allowlist.NUMBERS and _is_size(graph, i, shaped)
    if node.op in ("Shape", "ShapeN", "Size", "Rank"):
        return all(graph.shape(tensor) is not None for tensor in graph.data[i])
    return bool(graph.data[i]) and all(tensor.node in shaped for tensor in graph.data[i])


def _is_number_of_sizes(graph: GraphIndex, i: int, parts: Sequence[Part]) -> bool:
    """Whether node i makes a scalar of sizes and constants alone (one over the batch): where it is
    a region's result no kernel makes it, as no tensor enters."""
    if graph.nodes[i].op in (*lookups.INDICES, *op_allowlist.CHECKED, *op_allowlist.DRAWN):
        return False
    sources = [tensor.node for tensor in graph.data[i]]
    copied = bool(sources) and all(parts[source] is Part.CLONE for source in sources)
    one = len(graph.output_types[i]) == 1 and graph.shape(Edge(i, 0)) == ()
    return copied and one and any(graph.nodes[source].op != "Const" for source in sources)


def _is_size(graph: GraphIndex, i: int, shaped: set[int]) -> bool:
    source = graph.data[i][0]
    return source.node in shaped and graph.dtype(source) in ("int32", "int64")


def _refuse(graph: GraphIndex, i: int, variables: Variables, kind: str) -> Reason | None:
    """Why node i cannot be a member; None when it can."""
    node = graph.nodes[i]
    if node.op in op_allowlist.CPU_ONLY and kind != placement.CPU:
        return Reason.NOT_ALLOWED_OPERATION
    if node.op in op_allowlist.ASSIGNMENTS or node.op in UPDATES:
        return _refuse_assignment(graph, i, variables) or _refuse_place(graph, i, kind)
    if node.op in op_allowlist.DRAWN and kind != placement.CPU:
        return Reason.RANDOM_STREAM
    if node.op in lookups.INDICES and kind != placement.CPU:
        return Reason.DATA_DEPENDENT_ERROR
    if node.op == lookups.OF_VARIABLE:
        return lookups.refuse(graph, i) or _refuse_place(graph, i, kind)
    rule = op_allowlist.ALLOWED.get(node.op)
    if rule is None:
        return _reason_of(node.op)
    inputs = [graph.dtype(tensor) for tensor in graph.data[i]]
    outputs = graph.output_types[i]
    if any(t.endswith("_ref") for t in inputs):
        return Reason.REF_VARIABLE
    if not outputs or any(t not in op_allowlist.ANY for t in (*inputs, *outputs)):
        return Reason.UNSUPPORTED_TYPE
    if node.op == "Cast":
        allowed = op_allowlist.cast_is_allowed(inputs[0], outputs[0], kind)
        return _refuse_place(graph, i, kind) if allowed else Reason.UNSUPPORTED_TYPE
    if node.op == "Bitcast" and not op_allowlist.bitcast_is_allowed(inputs[0], outputs[0]):
        return Reason.UNSUPPORTED_TYPE
    if node.op in ("Select", "SelectV2"):
        inputs = inputs[1:]
    if inputs and inputs[0] not in rule.inputs:
        return Reason.UNSUPPORTED_TYPE
    if kind == placement.GPU and {*inputs[:1]} & op_allowlist.NOT_ON_GPU.get(node.op, frozenset()):
        return Reason.UNSUPPORTED_TYPE
    tensors = [*graph.data[i], *(Edge(i, port) for port in range(len(outputs)))]
    if node.op not in RANK_FROM_VALUES and any(graph.shape(tensor) is None for tensor in tensors):
        return Reason.UNKNOWN_RANK
    copied = _shape_operands(graph, i)  # how many axes there are is known once sizes are
    sized = [tensor for k, tensor in enumerate(tensors) if k not in copied]
    if any(size == -1 for tensor in sized for size in graph.shape(tensor) or ()):
        return Reason.DOES_NOT_UNIFY
    if node.op in CHECKED and not _checkable(graph, i):
        return Reason.DATA_DEPENDENT_ERROR
    unverified = lookups.refuse(graph, i) if node.op in lookups.INDICES else None
    return unverified or constant_operands.refuse(graph, i) or _refuse_place(graph, i, kind)


def _refuse_place(graph: GraphIndex, i: int, kind: str) -> Reason | None:
    """DEVICE_BOUNDARY for an allowed node whose work or data is not where kernels are."""
    on_host = kind == placement.GPU and placement.keeps_data_on_host(graph, i)
    on_device = placement.is_on(graph.nodes[i].device, kind) and not on_host
    return None if on_device else Reason.DEVICE_BOUNDARY


def _checkable(graph: GraphIndex, i: int) -> bool:
    """Whether the error of an operation can be a kernel's: its message names the last size of the
    first input, and no write of a variable waits for it by a control edge alone."""
    shape = graph.shape(graph.data[i][0])
    writes = {*op_allowlist.ASSIGNMENTS, *UPDATES}
    waiting = {graph.nodes[n].op for n, position in graph.consumers[i] if position < 0}
    return shape is not None and shape[-1] >= 0 and not waiting & writes


def _refuse_assignment(graph: GraphIndex, i: int, variables: Variables) -> Reason | None:
    if i not in variables.handle:
        return Reason.SPARSE_VARIABLE
    if any(len(variables.writes[origin]) > 1 for origin in variables.written[i]):
        return Reason.UNORDERED_VARIABLE
    value = value_like(graph, i)
    shape = graph.shape(value)
    if graph.dtype(value) not in op_allowlist.NUMBERS:
        return Reason.UNSUPPORTED_TYPE
    if shape is None or any(size < 0 for size in shape):
        return Reason.UNKNOWN_RANK
    return None


def value_like(graph: GraphIndex, write: int) -> Edge:
    """An operand with the shape and type of the variables that a node writes."""
    update = UPDATES.get(graph.nodes[write].op)
    return graph.data[write][1 if update is None else update.gradient]


def _reason_of(operation: str) -> Reason:
    if operation in LIBRARY or operation in ALGEBRA:
        return Reason.LIBRARY_CALL
    if operation in CONTROL_FLOW:
        return Reason.CONTROL_FLOW
    if operation in lookups.ERRORS:
        return Reason.DATA_DEPENDENT_ERROR
    if operation.startswith(collectives.PREFIX):
        return Reason.COLLECTIVE
    if operation.startswith(RANDOM):
        return Reason.STATEFUL_RANDOM
    if operation.startswith(STATELESS):
        return Reason.RANDOM_STREAM
    return Reason.NOT_ALLOWED_OPERATION
