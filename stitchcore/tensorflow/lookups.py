"""Lookups in regions: their indices are verified by TensorFlow's own operation before kernels run.

A lookup with an index out of range is an error in TensorFlow, which names the index and where it
stands; HLO clamps it. So a region that holds lookups waits for *verifiers*: each is the lookup
itself on a table of as many rows of one byte, which fails for the same indices with the same error,
word for word, in whatever version the job has. A table of unknown sizes tells them itself: its
verifier looks up in the first column of it. A sum by segments, the gradient of a lookup, is one
here too: HLO drops what TensorFlow refuses, and its verifier sums the indices themselves. No launch
of the region runs before they succeed: a step that fails has changed none of its variables. That
asks that the indices are known before the region starts (levels.py cuts there), and that TensorFlow
would have looked at them: it looks at none where the result is empty, or in a branch that is not
taken. In a loop each pass verifies its own; lookups in a variable stay TensorFlow's there, for what
writes it may be in another pass. Indices that are rows whatever the step computes (value_range.py)
need no verifier.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from tensorflow.core.framework import node_def_pb2, types_pb2
from tensorflow.python.framework import dtypes

from stitchcore.errors import Reason
from stitchcore.tensorflow import constant_operands
from stitchcore.tensorflow.graph import NOMINAL_SIZE, Edge, GraphIndex
from stitchcore.tensorflow.op_allowlist import ALLOWED, ANY, CHECKED, READ
from stitchcore.tensorflow.value_range import source, value_range
from stitchcore.tensorflow.variables import PASS_THROUGH, ancestor_sets, resolve, variable_shape

OF_VARIABLE = "ResourceGather"
"""A lookup in a variable: its kernel reads the rows where they are."""

SEGMENT_SUM = "UnsortedSegmentSum"
"""Its table is what it makes. Negative indices are no error: both drop them."""

LOOKUP = "GatherV2"
"""A lookup in a tensor."""

INDICES = {LOOKUP: 1, OF_VARIABLE: 1, SEGMENT_SUM: 1}
"""Lookups that regions may hold on CPUs, and the position of their indices. (On a GPU TensorFlow
has no error: the row is zeros, tensorflow/core/kernels/gather_functor_gpu.cu.h, or is not added to,
segment_reduction_ops_gpu.cu.h.)"""

INDEX_TYPES = ("int32", "int64")

TABLE_BYTES = 2**20
"""Largest table of a verifier whatever it stands for; a larger one is at most a 64th of what it
stands for (a row of 16 numbers in float32)."""

TABLE_SHARE = 64

VARIABLE_BYTES = 2**26
"""Largest variable that is looked up in: a proof draws one like it, and computes in float64."""

ERRORS = frozenset(
    """
    Gather GatherNd ResourceGatherNd TensorScatterUpdate TensorScatterAdd ScatterNd SegmentSum
    SegmentMean CheckNumerics CheckNumericsV2 Assert
    """.split()
)
"""Operations that may raise an error on data, and stay TensorFlow's for it."""

_RAISING = frozenset({*INDICES, *CHECKED, *ERRORS})

_NO_WRITE = frozenset({READ, OF_VARIABLE, "VarIsInitializedOp", *PASS_THROUGH})


def indices_of(graph: GraphIndex, i: int) -> Edge | None:
    """The indices of node i, if it is a lookup."""
    position = INDICES.get(graph.nodes[i].op)
    return None if position is None else graph.data[i][position]


def unproved(graph: GraphIndex, i: int) -> Edge | None:
    """The indices of node i, if it is a lookup that needs a verifier."""
    indices = indices_of(graph, i)
    return None if indices is None or _are_rows(graph, i, indices) else indices


def _are_rows(graph: GraphIndex, i: int, indices: Edge) -> bool:
    """Whether no index of lookup i can be out of range."""
    count, known = rows(graph, i), value_range(graph, indices)
    if count is None or count < 0 or known is None:
        return False
    return known.greatest < count and (known.least >= 0 or graph.nodes[i].op == SEGMENT_SUM)


def from_before(graph: GraphIndex, i: int) -> Mapping[int, Edge]:
    """Inputs of lookup i, by position, that have to be there before its region starts: its indices,
    to be verified, or since a proof draws what a region reads, and what it computes of that need be
    no row; and a table that tells its verifier how many rows it has."""
    indices = indices_of(graph, i)
    if indices is None:
        return {}
    found = {INDICES[graph.nodes[i].op]: indices}
    if unproved(graph, i) is not None:
        return {0: graph.data[i][0], **found} if is_told_by_table(graph, i) else found
    return found if graph.nodes[source(graph, indices)].op in ALLOWED else {}


def is_told_by_table(graph: GraphIndex, i: int) -> bool:
    """Whether the verifier of lookup i is handed its table: where a size of that is unknown, and it
    may be empty, so that TensorFlow looks at no index. An empty batch has none."""
    shape = table_shape(graph, i) if graph.nodes[i].op == LOOKUP else None
    return shape is not None and min(shape[_batch_dims(graph, i) :], default=0) < 0


def variable_of(graph: GraphIndex, i: int) -> Edge | None:
    """The handle of the variable that node i looks up in."""
    return resolve(graph, graph.data[i][0]) if graph.nodes[i].op == OF_VARIABLE else None


def table_shape(graph: GraphIndex, i: int) -> tuple[int, ...] | None:
    """What lookup i looks up in, unknown sizes negative; None for an unknown rank."""
    if graph.nodes[i].op == SEGMENT_SUM:
        return graph.shape(Edge(i, 0))
    handle = variable_of(graph, i)
    return graph.shape(graph.data[i][0]) if handle is None else variable_shape(graph, handle)


def rows(graph: GraphIndex, i: int) -> int | None:
    """How many rows the table of lookup i has; None where that is not known before it runs, and
    negative where the operand of a sum by segments tells, or the table."""
    shape, along = table_shape(graph, i), axis(graph, i)
    return shape[along] if shape and along is not None else None


def axis(graph: GraphIndex, i: int) -> int | None:
    """The axis of its table that lookup i looks up in; None where that is not known."""
    if graph.nodes[i].op != LOOKUP:
        return 0
    shape, told = table_shape(graph, i), constant_operands.value_of(graph, graph.data[i][2])
    if shape is None or told is None or told.shape or not -len(shape) <= told < len(shape):
        return None
    return int(told) % len(shape)


def known_before(graph: GraphIndex, i: int) -> set[int]:
    """What has to be there before the region of lookup i starts: its indices, and what tells of how
    many rows they may be; none where nothing has to, or i is no lookup."""
    known = {edge.node for edge in from_before(graph, i).values()}
    count = rows(graph, i) if known else None
    if graph.nodes[i].op == SEGMENT_SUM and count is not None and count < 0:
        known.add(graph.data[i][2].node)
    return known


def _verifier_bytes(graph: GraphIndex, i: int, count: int) -> int:
    """Of what the verifier of lookup i in `count` rows holds."""
    sums = graph.nodes[i].op == SEGMENT_SUM
    return count * (dtypes.as_dtype(graph.dtype(graph.data[i][1])).size if sums else 1)


def verifier(graph: GraphIndex, i: int) -> node_def_pb2.NodeDef:
    """The operation that fails as lookup i does, without inputs: a lookup in a table of bytes, or
    in a column of its own, or the sums of the indices themselves, which are as many as what they
    name."""
    kind = dtypes.as_dtype(graph.dtype(graph.data[i][1])).as_datatype_enum
    sums = graph.nodes[i].op == SEGMENT_SUM
    node = node_def_pb2.NodeDef(op=SEGMENT_SUM if sums else LOOKUP)
    node.attr["Tindices"].type = kind
    node.attr["T" if sums else "Tparams"].type = kind if sums else types_pb2.DT_UINT8
    if is_told_by_table(graph, i):
        node.attr["Tparams"].CopyFrom(graph.nodes[i].attr["Tparams"])
    if sums:
        counted = dtypes.as_dtype(graph.dtype(graph.data[i][2])).as_datatype_enum
        node.attr["Tnumsegments"].type = counted
    else:
        node.attr["Taxis"].type = types_pb2.DT_INT32
    return node


def refuse(graph: GraphIndex, i: int) -> Reason | None:
    """Why lookup i cannot be verified before its region runs; None where it can."""
    node, indices = graph.nodes[i], graph.data[i][1]
    shape, types = table_shape(graph, i), graph.output_types[i]
    if graph.dtype(indices) not in INDEX_TYPES or types[0] not in ANY:
        return Reason.UNSUPPORTED_TYPE
    if node.op == OF_VARIABLE and graph.frames[i]:
        return Reason.CONTROL_FLOW  # a write may be in the next pass
    if shape is not None and node.op != OF_VARIABLE and unproved(graph, i) is None:
        return None
    if node.op == SEGMENT_SUM and shape and shape[0] < -1:  # as many as its operand says
        shape = (NOMINAL_SIZE, *shape[1:])
    batch = _batch_dims(graph, i)
    if shape is not None and batch:  # an empty batch has no indices either
        shape = (*(size or NOMINAL_SIZE for size in shape[:batch]), *shape[batch:])
    if shape is not None and node.op == LOOKUP:  # the table is asked
        shape = tuple(NOMINAL_SIZE if size < 0 else size for size in shape)
    if shape is None or min(shape, default=0) < 1:
        return Reason.DATA_DEPENDENT_ERROR
    if graph.alive(indices) != graph.deadness[i]:
        return Reason.CONTROL_FLOW
    count, size = rows(graph, i), dtypes.as_dtype(types[0]).size
    if count is None:
        return Reason.DATA_DEPENDENT_ERROR
    count = shape[0] if count < 0 else count
    for extent in shape:
        size *= extent
    large = node.op == OF_VARIABLE and size > VARIABLE_BYTES
    memory = _verifier_bytes(graph, i, count)
    return Reason.MEMORY if large or memory > max(TABLE_BYTES, size // TABLE_SHARE) else None


def _batch_dims(graph: GraphIndex, i: int) -> int:
    """How many leading dimensions table and indices of lookup i share."""
    node, indices = graph.nodes[i], graph.shape(graph.data[i][1]) or ()
    batch = int(node.attr["batch_dims"].i) if "batch_dims" in node.attr else 0
    return batch if batch >= 0 else batch + len(indices)


def raised_before(graph: GraphIndex) -> dict[int, tuple[int, ...]]:
    """By lookup, the last operations on the way to it that may raise an error. TensorFlow looks at
    its indices after them: a wrong index that is looked up and has a gradient is the lookup's error
    and not the sum's. One that may be dead where the lookup is not is none of them."""
    raising = [i for i in graph.order if graph.nodes[i].op in _RAISING]
    before = ancestor_sets(graph, raising)
    last_raising: dict[int, tuple[int, ...]] = {}
    for i in raising:
        if graph.nodes[i].op not in INDICES:
            continue
        place = (graph.frames[i], graph.deadness[i])
        known = [
            n
            for n in raising
            if n != i and before[i] >> n & 1 and (graph.frames[n], graph.deadness[n]) == place
        ]
        earlier = {n for n in known for m in known if n != m and before[m] >> n & 1}
        last_raising[i] = tuple(n for n in known if n not in earlier)
    return last_raising


def unordered(graph: GraphIndex) -> frozenset[int]:
    """Lookups in a variable that another node may change before or after them: a kernel holds no
    lock of the variable while it reads."""
    lookups_of: dict[Edge, list[int]] = defaultdict(list)
    writers: dict[Edge, list[int]] = defaultdict(list)
    for i in graph.order:
        handle = variable_of(graph, i)
        if handle is not None:
            lookups_of[handle].append(i)
        for written in _may_write(graph, i):
            writers[written].append(i)
    before = ancestor_sets(graph, [i for h in lookups_of for i in (*lookups_of[h], *writers[h])])
    return frozenset(
        i
        for handle, lookups in lookups_of.items()
        for i in lookups
        for writer in writers[handle]
        if not (before[i] >> writer | before[writer] >> i) & 1
    )


def writers_after(graph: GraphIndex, i: int) -> list[int]:
    """Nodes after lookup i that may write the variable which it looks up in. They have to wait for
    every launch that reads it, also for one that nothing on the way to them needs."""
    handle = variable_of(graph, i)
    return sorted(node for node in after(graph, [i]) if handle in _may_write(graph, node))


def after(graph: GraphIndex, nodes: Iterable[int]) -> set[int]:
    """`nodes` and all that wait for one of them."""
    stack = list(nodes)
    seen = set(stack)
    while stack:
        for consumer, _ in graph.consumers[stack.pop()]:
            if consumer not in seen:
                seen.add(consumer)
                stack.append(consumer)
    return seen


def _may_write(graph: GraphIndex, i: int) -> list[Edge]:
    """Variables that node i may change: all that it is handed, but for what only reads."""
    if graph.nodes[i].op in _NO_WRITE:
        return []
    return [resolve(graph, t) for t in graph.data[i] if graph.dtype(t) == "resource"]
