"""Variables as values: which version of a variable each read sees, each write makes.

A variable whose reads and dense writes are totally ordered by the graph's edges is *plain*: inside
a region its reads are values and its writes results. Every other one stays a resource: touched by
other operations (sparse updates, fused optimizers, function calls), or read and written without an
order (docs/decisions.md 1, 3, 5). In a loop the order must hold from pass to pass too: a read in
the next pass sees what the last pass wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from stitchcore.errors import Reason, Refusal
from stitchcore.inject.digest import LOOP_BACK
from stitchcore.tensorflow.graph import Edge, GraphIndex
from stitchcore.tensorflow.op_allowlist import ASSIGNMENTS, READ
from stitchcore.tensorflow.updates import UPDATES

PASS_THROUGH = ("Identity", "Enter", "RefEnter")
MERGES = ("Merge", "RefMerge")


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
    """Versions of all plain variables, by bit sets: one pass over the graph and one per loop."""
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
    order = order_of(graph, [i for nodes in accesses.values() for i in nodes])
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
        versions = _versions(graph, nodes, order)
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
    handle_shapes = (
        attributes["_handle_shapes"].list.shape if "_handle_shapes" in attributes else ()
    )
    shapes = [attributes["shape"].shape] if "shape" in attributes else list(handle_shapes)
    return any(shape.unknown_rank or any(dim.size < 0 for dim in shape.dim) for shape in shapes)


def _handles(operation: str) -> int:
    """How many of an operation's first operands are variables that it reads or densely writes."""
    if operation in UPDATES:
        return UPDATES[operation].variables
    return 1 if operation == READ or operation in ASSIGNMENTS else 0


def _keep_whole(
    graph: GraphIndex, handle: dict[int, Edge], written: dict[int, tuple[Edge, ...]]
) -> None:
    """An update of several variables counts only where all are plain and distinct."""
    for i, handles in list(written.items()):
        count = _handles(graph.nodes[i].op)
        origins = tuple(resolve(graph, tensor) for tensor in graph.data[i][:count])
        if set(origins) == set(handles) and len(set(origins)) == count:
            written[i] = origins
        else:
            del written[i]
            handle.pop(i, None)


@dataclass(frozen=True)
class Order:
    """Which marked nodes have run before a node runs, as bit sets by node number.

    `before[i]`: in the same passes of the loops that both are in, and in all passes of other loops.
    `earlier[loop][i]`: in the pass before of `loop`, a frame.
    """

    before: Mapping[int, int]
    earlier: Mapping[str, Mapping[int, int]]


def order_of(graph: GraphIndex, marked: Iterable[int]) -> Order:
    """The order of marked nodes. Linear in edges times the depth of loops."""
    bit = {i: 1 << i for i in marked}
    before = [0] * len(graph.nodes)
    loops: dict[str, _Loop] = {}
    for i in graph.order:
        earlier = bit.get(i, 0)
        for tensor in graph.data[i]:
            earlier |= before[tensor.node]
        for source in graph.control[i]:
            earlier |= before[source]
        if i in graph.ends:
            loop = graph.frames[graph.data[i][0].node]
            if loop not in loops:
                loops[loop] = _Loop(graph, loop, before, bit)
            earlier |= loops[loop].leaving(graph.data[i][0].node)
        before[i] = earlier
    return Order({i: before[i] for i in bit}, {name: loop.earlier for name, loop in loops.items()})


class _Loop:
    """What runs before what from pass to pass of a loop, once all its nodes but exits are known.

    `earlier[i]` are the marked nodes of the pass before that node i waits for: they come by the
    edges that close the loop. `through[i]` are the loop's variables (their Merge) in node i's pass.
    """

    def __init__(
        self, graph: GraphIndex, loop: str, before: Sequence[int], bit: Mapping[int, int]
    ) -> None:
        self.earlier: dict[int, int] = {}
        self.through: dict[int, int] = {}
        self.carried: dict[int, int] = {}
        ends: dict[int, list[int]] = {}
        for i in graph.order:
            if not within(graph.frames[i], loop):
                continue
            sources = [*(tensor.node for tensor in graph.data[i]), *graph.control[i]]
            closing = [
                s
                for s in sources
                if graph.nodes[s].op.endswith(LOOP_BACK) and graph.nodes[i].op in MERGES
            ]
            arrived = passed = 0
            for source in sources:
                if source not in closing:
                    arrived |= self.earlier.get(source, 0)
                    passed |= self.through.get(source, 0)
            if closing and graph.frames[i] == loop:
                ends[i] = closing
                for source in closing:
                    arrived |= before[source]
                passed |= 1 << len(ends)
            self.earlier[i], self.through[i] = arrived, passed
        for number, closing in enumerate(ends.values(), 1):
            if all(self.through.get(source, 0) >> number & 1 for source in closing):
                for source in closing:
                    self.carried[number] = self.carried.get(number, 0) | before[source]
        body = [x for x in bit if _in_body(graph, x, loop)]
        self.body = sum(bit[x] for x in body)
        self.repeated = sum(bit[x] for x in body if self.earlier.get(x, 0) & bit[x])

    def leaving(self, last: int) -> int:
        """What has run, in all passes, when `last` leaves the loop: in its last pass, which has no
        body. A node of the body is among them if each pass waits for it in the one before, and so
        does `last`; or if a variable of the loop does that is made of itself, and `last` of it."""
        finished = self.earlier.get(last, 0) & self.repeated
        for number, before in self.carried.items():
            if self.through.get(last, 0) >> number & 1:
                finished |= before & self.body
        return finished


def ancestor_sets(graph: GraphIndex, marked: Iterable[int]) -> Mapping[int, int]:
    """For each marked node, the bit set (by marked node number) of what has run before it in the
    same pass, and itself."""
    return order_of(graph, marked).before


def within(frame: str, loop: str) -> bool:
    """Whether a frame is that of a loop or of one inside it; the frame "" holds all."""
    return not loop or frame == loop or frame.startswith(f"{loop}/")


def _in_body(graph: GraphIndex, i: int, loop: str) -> bool:
    """Whether a node runs only in passes after which the loop goes on."""
    return any(
        frame == loop and branch == 1 and graph.nodes[chosen].op == "LoopCond"
        for chosen, _, branch, frame in graph.deadness[i]
    )


def _versions(graph: GraphIndex, nodes: list[int], order: Order) -> dict[int, int | None] | None:
    """The version each access sees; None when two accesses, one a write, have no order.

    Writes are in one frame, reads there or in loops inside it. In a loop each access must also
    come after the last pass's writes, and each write after the last pass's accesses.
    """
    writes = [i for i in nodes if graph.nodes[i].op != READ]
    frames = {graph.frames[i] for i in writes}
    if len(frames) > 1:
        return None
    for frame in frames:
        if not all(within(graph.frames[i], frame) for i in nodes):
            return None
        around = [loop for loop in order.earlier if within(frame, loop)]
        if frame and frame not in around:
            return None
        for passed in (order.earlier[loop] for loop in around):
            for write in writes:
                if not all(
                    passed.get(i, 0) >> write & passed.get(write, 0) >> i & 1 for i in nodes
                ):
                    return None
    versions: dict[int, int | None] = {}
    for i in nodes:
        last: int | None = None
        for write in writes:
            if write == i:
                continue
            if order.before[i] >> write & 1:
                last = write
            elif not order.before[write] >> i & 1:
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
    ancestors = ancestor_sets(graph, sorted({*readers, *_bits(writes.values())}))
    return frozenset(
        reader
        for reader, variable in readers.items()
        if any(not ancestors[write] >> reader & 1 for write in _bits([writes.get(variable, 0)]))
    )


def _bits(sets: Iterable[int]) -> list[int]:
    """Positions set in any of the bit sets."""
    union = 0
    for bits in sets:
        union |= bits
    return [k for k in range(union.bit_length()) if union >> k & 1]
