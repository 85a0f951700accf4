"""Cutting a graph into regions: maximal convex sets of allow-listed nodes.

Members of one level and kind (levels.py) that are joined by data edges, or that read one large
tensor, form a region; small regions of one level are merged, and so are lone operations (remote
stitching). Constants and shape arithmetic are copied in, plain variables' reads and writes become
values. Deterministic and near linear.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stitchcore.device.records import Device
from stitchcore.errors import Reason, Refusal
from stitchcore.hlo.ir.dim import Dim
from stitchcore.inject.digest import LOOP_BACK
from stitchcore.tensorflow import (
    constant_operands,
    critical_path,
    levels,
    lookups,
    op_allowlist,
    placement,
)
from stitchcore.tensorflow.graph import Edge, GraphIndex
from stitchcore.tensorflow.node_roles import Classes, Part, classify
from stitchcore.tensorflow.recomputed_shapes import recompute
from stitchcore.tensorflow.shape_inference import infer_shapes
from stitchcore.tensorflow.size_values import begin_within, of_sizes
from stitchcore.tensorflow.symbolic_sizes import Sizes, resolve
from stitchcore.tensorflow.updates import UPDATES
from stitchcore.tensorflow.variables import Variables, analyse

SHARED_BYTES = 65536
"""Members of one level that read one tensor at least this large share a region."""

REMOTE_BYTES = 262144
"""Regions whose traffic is below this are merged with others of their level (remote stitching)."""

FUSED = frozenset({"_FusedBatchNormEx", "_MklSwish", "_MklLayerNorm"})
"""Nodes that Grappler's remapper made of several operations."""

REMOTE_TENSORS = 96
"""Most inputs and outputs of a region made by merging."""


@dataclass(frozen=True)
class Region:
    """Nodes to be replaced. All fields are node numbers or tensors of the partition's graph.

    `members` are in topological order. `clones` are copied in (constants, shape arithmetic) and
    stay in the graph if others use them. `tensors` are the inputs read as tensors and `variables`
    the handles whose value the region reads (at its start) or writes. `results` are members'
    tensors that others read; `updates` maps a handle to the write that makes its new value. `reads`
    are the variable reads that the region takes the place of, `absorbed` the clones that are
    computed of its members for it alone: the shape of a member's tensor, say. `cut_from` names the
    region that was cut for memory (memory_cuts.py), of which this is a part.
    """

    name: str
    members: tuple[int, ...]
    clones: tuple[int, ...]
    tensors: tuple[Edge, ...]
    variables: tuple[Edge, ...]
    results: tuple[Edge, ...]
    updates: Mapping[Edge, int]
    reads: tuple[int, ...]
    absorbed: tuple[int, ...] = ()
    cut_from: str = ""


@dataclass(frozen=True)
class Partition:
    """Regions of a graph and, for every other node that does work, why it is in none.

    `request` is the graph as it was handed in (`graph` indexes it with sizes fitted) and `preserve`
    the names that must stay: together they give the canonical ids. `kind` is that of the device
    whose kernels regions become. Nodes in `recomputed` are not in the request: each stands for a
    tensor of it (recomputed_shapes.py).
    Kernels are not what clones in `otherwise` are where one of their polynomials is positive.
    """

    request: Any
    preserve: tuple[str, ...]
    graph: GraphIndex
    sizes: Sizes
    variables: Variables
    classes: Classes
    regions: tuple[Region, ...]
    refusals: tuple[Refusal, ...]
    kind: str = placement.CPU
    recomputed: Mapping[int, Edge] = field(default_factory=dict)
    otherwise: Mapping[int, tuple[Dim, ...]] = field(default_factory=dict)


def partition(
    graph: Any,
    preserve: Iterable[str] = (),
    excluded: Mapping[str, Reason] | None = None,
    kind: str = placement.CPU,
    multiplies: Device | None = None,
    executor: Device | None = None,
    sizes: Sizes | None = None,
) -> Partition:
    """Cut a GraphDef (with `_output_shapes`) into regions for devices of `kind`; small products of
    matrices are in them where kernels of `multiplies` are quicker than its library. What is merged
    for its launch alone does not delay the step on `executor`, where that is given.

    `preserve` are names of nodes whose values must stay; `excluded` nodes stay outside regions for
    the given reason (a recut, which takes the `sizes` of the cut before). Raises
    Refused(PARSE_ERROR) for a damaged graph.
    """
    preserved = tuple(preserve)
    sizes = resolve(infer_shapes(graph)) if sizes is None else sizes
    indexed, recomputed = recompute(sizes)
    variables = analyse(indexed)
    left_out = dict.fromkeys(_summed_by_assumption(indexed, sizes), Reason.DOES_NOT_UNIFY)
    left_out |= dict.fromkeys(begin_within(indexed, sizes), Reason.DOES_NOT_UNIFY)
    copied = classify(indexed, variables, left_out, kind, multiplies).parts
    values = of_sizes(indexed, copied, sizes)
    left_out |= dict.fromkeys(values.unfit, Reason.DOES_NOT_UNIFY)
    left_out |= {indexed.number[n]: r for n, r in (excluded or {}).items() if n in indexed.number}
    must_stay = {indexed.number[name] for name in preserved if name in indexed.number}
    while True:
        classes = classify(indexed, variables, left_out, kind, multiplies)
        groups, circular = grouped(indexed, classes, variables, executor)
        crossing = _crossing_unsized(indexed, sizes, classes, groups, must_stay)
        if not crossing and not circular:
            break
        left_out |= crossing
        left_out |= dict.fromkeys(circular, Reason.CYCLE)
    regions: list[Region] = []
    refusals: list[Refusal] = []
    for members in groups:
        if sum(operation_count(indexed, i) for i in members) < 2:
            refusals += [
                Refusal(indexed.nodes[i].name, Reason.REGION_TOO_SMALL)
                for i in members
                if not is_view(indexed, i)
            ]
            continue
        name = f"r{len(regions):03d}_{_named_after(indexed, members)}"
        regions.append(region_of(indexed, variables, classes, members, must_stay, name))
    refusals += [Refusal(indexed.nodes[i].name, r) for i, r in sorted(classes.reasons.items())]
    refusals += (*sizes.refusals, *variables.refusals)
    return Partition(
        graph,
        preserved,
        indexed,
        sizes,
        variables,
        classes,
        tuple(regions),
        tuple(refusals),
        kind,
        recomputed,
        values.otherwise,
    )


def _summed_by_assumption(graph: GraphIndex, sizes: Sizes) -> Iterator[int]:
    """Sums that bring a gradient to its operand's shape, by axes that a size decides which is taken
    for a number, or for another's. What is summed, and what comes of it, would be one value in a
    kernel, of which one alone can be left to TensorFlow where that size is another."""
    for i, node in enumerate(graph.nodes):
        if node.op != "Sum" or graph.nodes[graph.data[i][1].node].op == "Const":
            continue
        users = graph.consumers[graph.data[i][0].node]
        read = [graph.data[user][at] for user, at in users if at >= 0]
        shared = read.count(graph.data[i][0]) > 1
        if (node.name, 0) in sizes.numbered or (shared and is_whole_by_assumption(graph, sizes, i)):
            yield i


def is_whole_by_assumption(graph: GraphIndex, sizes: Sizes, i: int) -> bool:
    """Whether node i hands on all that it reads, and need not where sizes that are assumed to be
    equal are not."""
    source, made = graph.data[i][0], Edge(i, 0)
    if graph.shape(source) != graph.shape(made):
        return False
    names = [(graph.nodes[tensor.node].name, tensor.port) for tensor in (source, made)]
    return not sizes.are_alike_otherwise(*names)


def grouped(
    graph: GraphIndex, classes: Classes, variables: Variables, executor: Device | None = None
) -> tuple[list[tuple[int, ...]], list[int]]:
    """Members in the groups that are regions if they are not too small, each in topological order;
    and those that are in none because they would wait for each other in a circle."""
    placed = levels.assign(graph, classes, variables)
    groups = _components(graph, classes, variables, placed)
    groups = _merge_small(graph, placed, _merging(graph, classes, placed, groups, executor), groups)
    groups = _join_lone(graph, placed, _merging(graph, classes, placed, groups, executor), groups)
    return _without_cycles(graph, classes, variables, placed, groups)


def _crossing_unsized(
    graph: GraphIndex,
    sizes: Sizes,
    classes: Classes,
    groups: Iterable[Sequence[int]],
    must_stay: set[int],
) -> dict[int, Reason]:
    """Members with a tensor of unknown rank or size that enters their region, also by what is
    copied for them, or with one of unknown rank that leaves it; and which it is."""
    crossing: dict[int, Reason] = {}
    for group in groups:
        inside = set(group)
        for i in group:
            stack, seen = list(graph.data[i]), set(graph.data[i])
            while stack:
                tensor = stack.pop()
                if graph.dtype(tensor) == "resource" or tensor.node in inside:
                    continue
                if classes.parts[tensor.node] is Part.CLONE:
                    stack += (read := set(graph.data[tensor.node]) - seen)
                    seen |= read
                elif (shape := graph.shape(tensor)) is None:
                    crossing[i] = Reason.UNKNOWN_RANK
                elif any(sizes.dim(size) is None for size in shape):
                    crossing[i] = Reason.DOES_NOT_UNIFY
        for tensor in _results(graph, inside, group, must_stay):
            if graph.shape(tensor) is None:
                crossing[tensor.node] = Reason.UNKNOWN_RANK
    return crossing


def operation_count(graph: GraphIndex, i: int) -> int:
    """Operations that move data: an optimizer's update is several in one node, and so is what
    Grappler's remapper has fused."""
    several = graph.nodes[i].op in UPDATES or graph.nodes[i].op in FUSED
    return 2 if several else int(not is_view(graph, i))


def is_view(graph: GraphIndex, i: int) -> bool:
    """Whether node i's output is its first input's memory."""
    rule = op_allowlist.ALLOWED.get(graph.nodes[i].op)
    return (rule is not None and rule.view) or _takes_all(graph, i)


def _takes_all(graph: GraphIndex, i: int) -> bool:
    """Whether node i is a slice that takes all there is and adds axes, as x[:, None] does."""
    node = graph.nodes[i]
    if node.op != "StridedSlice" or len(graph.data[i]) != 4:
        return False
    strides = constant_operands.value_of(graph, graph.data[i][3])
    if strides is None or strides.ndim != 1:
        return False
    added = node.attr["new_axis_mask"].i | node.attr["ellipsis_mask"].i
    whole = node.attr["begin_mask"].i & node.attr["end_mask"].i & ~node.attr["shrink_axis_mask"].i
    return all(added >> k & 1 or (whole >> k & 1 and s == 1) for k, s in enumerate(strides))


class _Sets:
    """Disjoint sets of node numbers, represented by their smallest."""

    def __init__(self, size: int) -> None:
        self.parent = list(range(size))

    def find(self, i: int) -> int:
        while self.parent[i] != i:
            self.parent[i] = self.parent[self.parent[i]]
            i = self.parent[i]
        return i

    def union(self, left: int, right: int) -> None:
        left, right = self.find(left), self.find(right)
        if left != right:
            self.parent[max(left, right)] = min(left, right)


def _components(
    graph: GraphIndex, classes: Classes, variables: Variables, placed: levels.Levels
) -> list[tuple[int, ...]]:
    """Members joined by data edges or a large shared input, each in topological order."""
    sets = _Sets(len(graph.nodes))
    first_reader: dict[tuple[Edge, int, levels.Kind], int] = {}
    members = [i for i in graph.order if classes.parts[i] is Part.MEMBER]
    for i in members:
        for tensor in graph.data[i]:
            source = tensor.node
            if classes.parts[source] is Part.READ:
                written = variables.before[source]
                source = source if written is None else written
            if classes.parts[source] is Part.MEMBER:
                same = placed.level[source] == placed.level[i]
                if same and placed.kind[source] == placed.kind[i]:
                    sets.union(source, i)
                    continue
            if classes.parts[source] is Part.CLONE or graph.dtype(tensor) == "resource":
                continue
            if graph.byte_size(tensor) >= SHARED_BYTES:
                key = (tensor, placed.level[i], placed.kind[i])
                sets.union(first_reader.setdefault(key, i), i)
    groups: dict[int, list[int]] = defaultdict(list)
    for i in members:
        groups[sets.find(i)].append(i)
    return [tuple(group) for group in groups.values()]


Batch = list[tuple[int, ...]]


def _merging(
    graph: GraphIndex,
    classes: Classes,
    placed: levels.Levels,
    groups: Sequence[tuple[int, ...]],
    executor: Device | None,
) -> Callable[[Batch], list[Batch]]:
    """Cuts some of `groups` that could share a launch into those that do: all of them, but on a CPU
    where some would keep the step waiting."""
    if executor is None or executor.kind != placement.CPU:
        return lambda batch: [batch]
    every = critical_path.windows(graph, classes, placed, groups, executor)
    window = {group[0]: found for group, found in zip(groups, every, strict=True)}

    def parts(batch: Batch) -> list[Batch]:
        found = critical_path.merged([window[group[0]] for group in batch], executor.launch_seconds)
        return [[batch[position] for position in part] for part in found]

    return parts


def _merge_small(
    graph: GraphIndex,
    placed: levels.Levels,
    merging: Callable[[Batch], list[Batch]],
    groups: Sequence[tuple[int, ...]],
) -> Batch:
    """Merge regions of little traffic with others of their level and kind."""
    position = {i: p for p, i in enumerate(graph.order)}
    merged: Batch = []
    small: dict[tuple[int, levels.Kind], Batch] = defaultdict(list)
    for group in groups:
        size, _ = _traffic(graph, group)
        if size < REMOTE_BYTES:
            small[placed.level[group[0]], placed.kind[group[0]]].append(group)
        else:
            merged.append(group)
    for batch in small.values():
        for part in merging(batch):
            merged += _bounded(graph, position, part)
    return sorted(merged, key=lambda group: position[group[0]])


def _join_lone(
    graph: GraphIndex,
    placed: levels.Levels,
    merging: Callable[[Batch], list[Batch]],
    groups: Sequence[tuple[int, ...]],
) -> Batch:
    """Give operations that are alone the company of others of their level and kind.

    Independent operations of one level share a launch (AStitch 4.2, remote stitching): lone ones
    with each other, a single lone one with the region of least traffic. An operation that finds no
    company stays as it is.
    """
    position = {i: p for p, i in enumerate(graph.order)}
    joined: Batch = []
    lone: dict[tuple[int, levels.Kind], Batch] = defaultdict(list)
    company: dict[tuple[int, levels.Kind], Batch] = defaultdict(list)
    for group in groups:
        operations = sum(operation_count(graph, i) for i in group)
        key = placed.level[group[0]], placed.kind[group[0]]
        (joined if not operations else lone[key] if operations == 1 else company[key]).append(group)
    for key, singles in lone.items():
        if len(singles) == 1 and company[key]:
            host = min(company[key], key=lambda group: (_traffic(graph, group), group))
            company[key].remove(host)
            singles.append(host)
        for part in merging(singles):
            joined += _bounded(graph, position, part)
    joined += [group for grouped in company.values() for group in grouped]
    return sorted(joined, key=lambda group: position[group[0]])


def _bounded(
    graph: GraphIndex, position: Mapping[int, int], batch: Iterable[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    """Groups merged in order into as few as REMOTE_TENSORS allows, each in topological order."""
    groups: list[tuple[int, ...]] = []
    merged: list[int] = []
    tensors = 0
    for group in batch:
        _, count = _traffic(graph, group)
        if merged and tensors + count > REMOTE_TENSORS:
            groups.append(tuple(sorted(merged, key=position.__getitem__)))
            merged, tensors = [], 0
        merged += group
        tensors += count
    return [*groups, tuple(sorted(merged, key=position.__getitem__))]


def _without_cycles(
    graph: GraphIndex,
    classes: Classes,
    variables: Variables,
    placed: levels.Levels,
    groups: Sequence[tuple[int, ...]],
) -> tuple[list[tuple[int, ...]], list[int]]:
    """Groups that do not wait for each other in a circle, and members of those that still would.

    Groups of one level are joined by data; they may yet depend on each other by control edges, by
    clones (a constant carries control edges from what Grappler folded it of, and a region that
    copies it inherits them) and by reads of what a member wrote. In the graph with each group as
    one node, without the edges that close loops, groups of one strongly connected component become
    one region, which copies the clones and takes the place of the reads between them. A component
    that holds anything else cannot be mended: its groups are given up; and lookups whose verifiers
    (lookups.py), which run before the region, would read what it copies. (Tarjan 1972, by a stack
    of its own: linear.)
    """
    owner = list(range(len(graph.nodes)))
    inside: dict[int, tuple[int, ...]] = {}
    for group in groups:
        inside[group[0]] = group
        for i in group:
            owner[i] = group[0]

    def sources(node: int) -> list[int]:
        sources_of_group: dict[int, None] = {}
        for i in inside.get(node, (node,)):
            closes = graph.nodes[i].op in ("Merge", "RefMerge")
            for source in (*(t.node for t in graph.data[i]), *graph.control[i]):
                if not (closes and graph.nodes[source].op.endswith(LOOP_BACK)):
                    sources_of_group[owner[source]] = None
            sources_of_group |= dict.fromkeys(owner[source] for source in graph.ends.get(i, ()))
        return list(sources_of_group)

    entered: dict[int, int] = {}  # order of entry
    lowest: dict[int, int] = {}  # earliest entered node on the path that a node leads back to
    path: list[int] = []
    components: list[list[int]] = []
    for root in graph.order:
        if owner[root] in entered:
            continue
        pending = [(owner[root], iter(sources(owner[root])))]
        entered[owner[root]] = lowest[owner[root]] = len(entered)
        path.append(owner[root])
        while pending:
            node, remaining = pending[-1]
            source = next(remaining, None)
            if source is None:
                pending.pop()
                if pending:
                    above = pending[-1][0]
                    lowest[above] = min(lowest[above], lowest[node])
                if lowest[node] == entered[node]:
                    component: list[int] = []
                    while not component or component[-1] != node:
                        component.append(path.pop())
                        lowest[component[-1]] = len(owner)  # on no path any more
                    components.append(component)
            elif source not in entered:
                entered[source] = lowest[source] = len(entered)
                path.append(source)
                pending.append((source, iter(sources(source))))
            elif lowest[source] < len(owner):
                lowest[node] = min(lowest[node], entered[source])
    joined = dict(inside)
    circular: list[int] = []
    position = {i: p for p, i in enumerate(graph.order)}
    for component in components:
        members = [i for node in component for i in inside.get(node, ())]
        if len(component) == 1 or not members:
            continue
        members_set, component_set = set(members), set(component)
        for node in component:
            joined.pop(node, None)
        if early := [i for i in members if lookups.known_before(graph, i) & component_set]:
            circular += early
            continue
        mended = len({(placed.level[i], placed.kind[i]) for i in members}) == 1 and all(
            node in inside
            or classes.parts[node] is Part.CLONE
            or (classes.parts[node] is Part.READ and variables.before[node] in members_set)
            for node in component
        )
        if mended:
            group = tuple(sorted(members, key=position.__getitem__))
            joined[group[0]] = group
        else:
            circular += members
    return sorted(joined.values(), key=lambda group: position[group[0]]), circular


def _traffic(graph: GraphIndex, members: Sequence[int]) -> tuple[int, int]:
    """Bytes and number of tensors that enter or leave a set of members."""
    inside = set(members)
    tensors = {t for i in members for t in graph.data[i] if t.node not in inside}
    for i in members:
        leaving = any(c not in inside and p >= 0 for c, p in graph.consumers[i])
        if leaving or graph.nodes[i].op in op_allowlist.ASSIGNMENTS:
            tensors |= {Edge(i, port) for port in range(len(graph.output_types[i]))}
    return sum(graph.byte_size(t) for t in tensors if graph.dtype(t) != "resource"), len(tensors)


def _named_after(graph: GraphIndex, members: Sequence[int]) -> str:
    first = graph.nodes[members[0]].name.rsplit("/", 1)[-1]
    return "".join(c if c.isalnum() else "_" for c in first)[:40]


def region_of(
    graph: GraphIndex,
    variables: Variables,
    classes: Classes,
    members: tuple[int, ...],
    must_stay: set[int],
    name: str,
) -> Region:
    """The region of `members`, which no path leaves and comes back to."""
    inside = set(members)
    updates = {origin: i for i in members for origin in variables.written.get(i, ())}
    clones: dict[int, None] = {}
    tensors: dict[Edge, None] = {}
    handles: dict[Edge, None] = {}
    reads: dict[int, None] = {}

    def use(tensor: Edge) -> None:
        source = tensor.node
        if source in inside:
            return
        part = classes.parts[source]
        if part is Part.CLONE:
            if source not in clones:
                for inner in graph.data[source]:
                    use(inner)
                clones[source] = None
            return
        origin = variables.handle.get(source)
        if part is Part.READ and origin in updates:
            before = variables.before[source]
            if before == updates[origin]:
                reads[source] = None
                return
            if before == variables.before[updates[origin]]:
                reads[source] = None
                handles[origin] = None
                return
        tensors[tensor] = None

    for i in members:
        looked_up = lookups.variable_of(graph, i)
        touched = variables.written.get(i, ()) if looked_up is None else (looked_up,)
        handles |= dict.fromkeys(touched)
        for tensor in graph.data[i][len(touched) :]:
            use(tensor)
    absorbed = _absorbed(graph, inside, tuple(clones), must_stay)
    results = _results(graph, inside.union(absorbed), members, must_stay)
    return Region(
        name,
        members,
        tuple(clones),
        tuple(tensors),
        tuple(handles),
        results,
        updates,
        tuple(reads),
        absorbed,
    )


def _absorbed(
    graph: GraphIndex, inside: set[int], clones: Sequence[int], must_stay: set[int]
) -> tuple[int, ...]:
    """Of `clones` (each after what it reads) those that read members and that nobody but the region
    needs: a tensor that only they read is no result."""
    private: set[int] = set()
    for clone in reversed(clones):
        users = {consumer for consumer, _ in graph.consumers[clone]}
        if clone not in must_stay and users <= inside | private:
            private.add(clone)
    absorbed: dict[int, None] = {}
    for clone in clones:
        if clone in private and any(
            t.node in inside or t.node in absorbed for t in graph.data[clone]
        ):
            absorbed[clone] = None
    return tuple(absorbed)


def waits(cut: Partition, region: Region) -> list[int]:
    """Nodes outside a region that its nodes, or the handles they read, wait for by control edges.

    A clone, and a read of what the region itself writes, stands for what it waits for itself: it
    may wait for the region, and a region that waited for it would wait for itself.
    """
    graph = cut.graph
    writes = set(region.updates.values())
    seen = {*region.members, *region.reads}
    outside: dict[int, None] = {}
    pending: list[int] = []
    for node in (*region.clones, *region.members, *region.reads):
        pending += graph.control[node]
        for tensor in graph.data[node]:
            while graph.dtype(tensor) == "resource" and graph.nodes[tensor.node].op == "Identity":
                pending += graph.control[tensor.node]
                tensor = graph.data[tensor.node][0]
    pending.reverse()
    while pending:
        source = pending.pop()
        if source in seen:
            continue
        seen.add(source)
        part = cut.classes.parts[source]
        if part is Part.CLONE or (part is Part.READ and cut.variables.before[source] in writes):
            pending += reversed((*graph.control[source], *(t.node for t in graph.data[source])))
        else:
            outside[source] = None
    return list(outside)


def _results(
    graph: GraphIndex, inside: set[int], members: Sequence[int], must_stay: set[int]
) -> tuple[Edge, ...]:
    """Tensors of members that nodes outside read, or that must stay available."""
    results = []
    for i in members:
        used = {graph.data[c][p].port for c, p in graph.consumers[i] if p >= 0 and c not in inside}
        if i in must_stay:
            used |= set(range(len(graph.output_types[i])))
        results += [Edge(i, port) for port in sorted(used)]
    return tuple(results)
