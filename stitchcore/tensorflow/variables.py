"""Variables as values: which version of a variable each read sees, each write makes.

A variable whose reads and dense writes are totally ordered by the graph's edges is *plain*: inside
a region its reads are values and its writes results. Every other one stays a resource: touched by
other operations (sparse updates, fused optimizers, function calls), or read and written without an
order (rulings.md 1, 3, 5).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stitchcore.errors import Reason, Refusal
from stitchcore.tensorflow.allow import ASSIGNMENTS, READ
from stitchcore.tensorflow.graph import Edge, GraphIndex
from stitchcore.tensorflow.updates import UPDATES

PASS_THROUGH = ("Identity", "Enter", "RefEnter")


@dataclass(frozen=True)
class Variables:
    """`handle` gives the variable (its handle tensor) that a read or write node touches.

    `written` lists all variables of a write, in the order of its operands.
    `before` is the write whose value a read returns, or that a write changes: None is the value at
    the start of the step. Only plain variables' nodes are here. `writes` lists each variable's
    writes in order, `reads` its reads.
    """

    handle: Mapping[int, Edge]
    written: Mapping[int, tuple[Edge, ...]]
    before: Mapping[int, int | None]
    writes: Mapping[Edge, tuple[int, ...]]
    reads: Mapping[Edge, tuple[int, ...]]
    refusals: tuple[Refusal, ...]


def resolve(graph: GraphIndex, tensor: Edge) -> Edge:
    """The handle's origin, through Identity and loop entries."""
    while graph.nodes[tensor.node].op in PASS_THROUGH and graph.data[tensor.node]:
        tensor = graph.data[tensor.node][tensor.port]
    return tensor


def analyse(graph: GraphIndex) -> Variables:
    """Versions of all plain variables. One pass of bit sets over the graph."""
    accesses: dict[Edge, list[int]] = {}
    touched_otherwise: set[Edge] = set()
    for i in graph.order:
        node = graph.nodes[i]
        for position, tensor in enumerate(graph.data[i]):
            if graph.dtype(tensor) != "resource":
                continue
            origin = resolve(graph, tensor)
            if position < _handles(node.op):
                accesses.setdefault(origin, []).append(i)
            elif node.op not in PASS_THROUGH:
                touched_otherwise.add(origin)
    ancestors = ancestor_sets(graph, [i for nodes in accesses.values() for i in nodes])
    handle: dict[int, Edge] = {}
    written: dict[int, tuple[Edge, ...]] = {}
    before: dict[int, int | None] = {}
    writes: dict[Edge, tuple[int, ...]] = {}
    reads: dict[Edge, tuple[int, ...]] = {}
    refusals: list[Refusal] = []
    for origin, nodes in accesses.items():
        name = graph.nodes[origin.node].name
        if origin in touched_otherwise:
            refusals.append(Refusal(name, Reason.SPARSE_VARIABLE, "not only read and assigned"))
            continue
        if any(graph.nodes[i].op != READ for i in nodes) and _may_change_shape(graph, origin):
            detail = "a variable declared without a fixed shape is assigned values of any"
            refusals.append(Refusal(name, Reason.UNKNOWN_RANK, detail))
            continue
        versions = _versions(graph, nodes, ancestors)
        if versions is None:
            refusals.append(Refusal(name, Reason.UNORDERED_VARIABLE, "reads and writes unordered"))
            continue
        before.update(versions)
        handle.update(dict.fromkeys(nodes, origin))
        writes[origin] = tuple(i for i in nodes if graph.nodes[i].op != READ)
        for i in writes[origin]:
            written[i] = (*written.get(i, ()), origin)
        reads[origin] = tuple(i for i in nodes if graph.nodes[i].op == READ)
    _keep_whole(graph, handle, written)
    return Variables(handle, written, before, writes, reads, tuple(refusals))


def variable_shape(graph: GraphIndex, handle: Edge) -> tuple[int, ...] | None:
    """The sizes that a variable is declared with; None where one is unknown."""
    node = graph.nodes[handle.node]
    if node.op == "VarHandleOp":
        shape = node.attr["shape"].shape
    elif len(node.attr["_handle_shapes"].list.shape) == 1:
        shape = node.attr["_handle_shapes"].list.shape[0]
    else:
        return None
    sizes = tuple(dim.size for dim in shape.dim)
    return None if shape.unknown_rank or any(size < 0 for size in sizes) else sizes


def _may_change_shape(graph: GraphIndex, handle: Edge) -> bool:
    """Whether the variable is declared with unknown sizes: its value is replaced, never stored in
    place. A handle that tells nothing (an argument of some functions) is taken as fixed."""
    attributes = graph.nodes[handle.node].attr
    told = attributes["_handle_shapes"].list.shape if "_handle_shapes" in attributes else ()
    shapes = [attributes["shape"].shape] if "shape" in attributes else list(told)
    return any(one.unknown_rank or any(dim.size < 0 for dim in one.dim) for one in shapes)


def _handles(operation: str) -> int:
    """How many of an operation's first operands are variables that it reads or densely writes."""
    if operation in UPDATES:
        return UPDATES[operation].variables
    return 1 if operation == READ or operation in ASSIGNMENTS else 0


def _keep_whole(
    graph: GraphIndex, handle: dict[int, Edge], written: dict[int, tuple[Edge, ...]]
) -> None:
    """An update of several variables counts only where all are plain and distinct."""
    for i, found in list(written.items()):
        count = _handles(graph.nodes[i].op)
        origins = tuple(resolve(graph, tensor) for tensor in graph.data[i][:count])
        if set(origins) == set(found) and len(set(origins)) == count:
            written[i] = origins
        else:
            del written[i]
            handle.pop(i, None)


def ancestor_sets(graph: GraphIndex, marked: list[int]) -> dict[int, int]:
    """For each marked node, the bit set (by marked node number) of its ancestors and itself."""
    bit = {i: 1 << i for i in marked}
    seen = [0] * len(graph.nodes)
    for i in graph.order:
        found = bit.get(i, 0)
        for tensor in graph.data[i]:
            found |= seen[tensor.node]
        for source in graph.control[i]:
            found |= seen[source]
        seen[i] = found
    return {i: seen[i] for i in marked}


def _versions(
    graph: GraphIndex, nodes: list[int], ancestors: dict[int, int]
) -> dict[int, int | None] | None:
    """The version each access sees; None when two accesses, one a write, have no order."""
    writes = [i for i in nodes if graph.nodes[i].op != READ]
    if len({graph.frames[i] for i in nodes}) > 1 and writes:
        return None
    versions: dict[int, int | None] = {}
    for i in nodes:
        last: int | None = None
        for write in writes:
            if write == i:
                continue
            if ancestors[i] >> write & 1:
                last = write
            elif not ancestors[write] >> i & 1:
                return None
        versions[i] = last
    return versions


def late_ref_readers(graph: GraphIndex) -> frozenset[int]:
    """Nodes that read a ref variable's memory, through Identity, and might do so after a write.

    TF1's ref variables have no versions: whoever reads one shares its memory. A reader that every
    write of the variable depends on is safe; every other one must run where TensorFlow runs it.
    """
    origin: dict[int, int] = {}
    writes: dict[int, int] = {}
    readers: dict[int, int] = {}
    for i in graph.order:
        if any(t.endswith("_ref") for t in graph.output_types[i]) and not graph.data[i]:
            origin[i] = i
        for tensor in graph.data[i]:
            variable = origin.get(tensor.node)
            if variable is None:
                continue
            if graph.nodes[i].op in ("Identity", "RefIdentity"):
                origin[i] = variable
            elif graph.dtype(tensor).endswith("_ref"):
                writes[variable] = writes.get(variable, 0) | 1 << i
            else:
                readers[i] = variable
    after = ancestor_sets(graph, sorted({*readers, *_bits(writes.values())}))
    return frozenset(
        reader
        for reader, variable in readers.items()
        if any(not after[write] >> reader & 1 for write in _bits([writes.get(variable, 0)]))
    )


def _bits(sets: Iterable[int]) -> list[int]:
    """Positions set in any of the bit sets."""
    union = 0
    for one in sets:
        union |= one
    return [k for k in range(union.bit_length()) if union >> k & 1]
