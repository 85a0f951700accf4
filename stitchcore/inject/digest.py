"""Canonical identity of a graph: equal for equal programs, whatever their names or node order.

`number(graph)` orders the nodes by structure alone, gives each its position as id, and hashes the
graph written in those ids. Equal digests therefore mean that the ids are an isomorphism: a patch
over ids made for one graph fits the other. Where two nodes look alike (tied), the order between
them may differ between two processes; then the digests differ and an artifact is missed, never
misapplied. Job and worker both use this module. Linear in the size of the graph.
"""

from __future__ import annotations

import hashlib
import heapq
from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Mapping, Sequence, Tuple

# Carry names, process history or compiler notes, not meaning. ALIASES are handled apart.
IGNORED_ATTRIBUTES = frozenset(
    {"_class", "_user_specified_name", "_xla_inferred_shapes", "_output_shapes", "container"}
)
ALIASES = ("shared_name", "frame_name")  # mean something only by being equal
LOOP_BACK = "NextIteration"  # its edge into Merge closes a loop
MASKED = -1
UNKNOWN_RANK = -(2**63)
REFINEMENTS = 8


@dataclass(frozen=True)
class Numbering:
    """`digest` is hexadecimal sha256; `ids` maps node names to 0, 1, ... in canonical order."""

    digest: str
    ids: Mapping[str, int]


@dataclass(frozen=True)
class Edges:
    """Per node: data inputs as (node, port), control inputs, and consumers, by node index."""

    data: Sequence[Sequence[Tuple[int, int]]]
    control: Sequence[Sequence[int]]
    consumers: Sequence[Sequence[Tuple[int, int]]]  # (consumer, input position; -1 for control)


def parse_reference(reference: str) -> Tuple[str, int]:
    """("name", port) of a NodeDef input; port is -1 for a control edge."""
    if reference.startswith("^"):
        return reference[1:], -1
    name, separator, port = reference.rpartition(":")
    if separator and port.isdigit():
        return name, int(port)
    return reference, 0


def canonical(reference: str) -> str:
    """One spelling for each reference: "a:0" and "a" are the same tensor."""
    return reference[:-2] if reference.endswith(":0") and reference[0] != "^" else reference


def edges_of(nodes: Sequence[Any]) -> Edges:
    index = {node.name: i for i, node in enumerate(nodes)}
    if len(index) != len(nodes):
        raise ValueError("two nodes have one name")
    data: List[List[Tuple[int, int]]] = []
    control: List[List[int]] = []
    consumers: List[List[Tuple[int, int]]] = [[] for _ in nodes]
    for i, node in enumerate(nodes):
        data.append([])
        control.append([])
        for position, reference in enumerate(node.input):
            name, port = parse_reference(reference)
            if name not in index:
                raise ValueError(f"input {reference!r} of {node.name!r} does not exist")
            source = index[name]
            if port < 0:
                control[i].append(source)
                consumers[source].append((i, -1))
            else:
                data[i].append((source, port))
                consumers[source].append((i, position))
    return Edges(data, control, consumers)


def topological(nodes: Sequence[Any], edges: Edges) -> List[int]:
    """Node indices, inputs first; loop-back edges do not count. Raises ValueError on a cycle."""
    waiting = [0] * len(nodes)
    for i, node in enumerate(nodes):
        sources = [source for source, _ in edges.data[i]] + list(edges.control[i])
        merges = node.op in ("Merge", "RefMerge")
        waiting[i] = sum(not (merges and nodes[s].op.endswith(LOOP_BACK)) for s in sources)
    order = [i for i, count in enumerate(waiting) if count == 0]
    for i in order:
        back = nodes[i].op.endswith(LOOP_BACK)
        for consumer, _ in edges.consumers[i]:
            if back and nodes[consumer].op in ("Merge", "RefMerge"):
                continue
            waiting[consumer] -= 1
            if waiting[consumer] == 0:
                order.append(consumer)
    if len(order) != len(nodes):
        raise ValueError("the graph has a cycle outside loops")
    return order


def frames_of(nodes: Sequence[Any], edges: Edges, order: Sequence[int]) -> List[Tuple[str, ...]]:
    """The stack of loop frames of each node, from Enter and Exit.

    An Exit belongs to the frame around the loop: what leaves is outside for its consumers.
    """
    frames: List[Tuple[str, ...]] = [()] * len(nodes)
    for i in order:
        node = nodes[i]
        sources = [source for source, _ in edges.data[i]] + list(edges.control[i])
        stacks = [frames[s] for s in sources if not nodes[s].op.endswith(LOOP_BACK)]
        stack = max(stacks, key=len, default=())
        if node.op in ("Enter", "RefEnter"):
            stack = (*stack, node.attr["frame_name"].s.decode(errors="replace"))
        elif node.op in ("Exit", "RefExit"):
            stack = stack[:-1]
        frames[i] = stack
    return frames


def loop_ends(
    nodes: Sequence[Any], edges: Edges, frames: Sequence[Tuple[str, ...]]
) -> Dict[int, List[int]]:
    """For each Exit the NextIteration nodes of the loop it leaves: it fires after their last pass,
    though no forward edge says so."""
    passes: Dict[Tuple[str, ...], List[int]] = {}
    for i, node in enumerate(nodes):
        if node.op.endswith(LOOP_BACK):
            passes.setdefault(frames[i], []).append(i)
    return {
        i: passes.get(frames[edges.data[i][0][0]], [])
        for i, node in enumerate(nodes)
        if node.op in ("Exit", "RefExit") and edges.data[i]
    }


def completion_order(
    nodes: Sequence[Any], edges: Edges, ends: Mapping[int, Sequence[int]]
) -> List[int]:
    """A topological order in which every Exit also follows its `loop_ends`.

    Raises ValueError where there is none: an executor would end without having run such a graph.
    """
    control = [[*sources, *ends.get(i, ())] for i, sources in enumerate(edges.control)]
    consumers = [list(uses) for uses in edges.consumers]
    for exit_, sources in ends.items():
        for source in sources:
            consumers[source].append((exit_, -1))
    return topological(nodes, Edges(edges.data, control, consumers))


def _hash(*parts: bytes) -> bytes:
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.digest()


def _serialized(value: Any) -> bytes:
    return bytes(value.SerializeToString(deterministic=True))


def _function_names(value: Any) -> List[str]:
    """Names of library functions that an attribute refers to."""
    kind = value.WhichOneof("value")
    if kind == "func":
        return [value.func.name]
    if kind == "list":
        return [function.name for function in value.list.func]
    return []


def _attributes(node: Any, functions: Mapping[str, bytes]) -> bytes:
    """The node's own meaning: op, device and attributes, functions by content."""
    parts = [node.op.encode(), node.device.encode()]
    for name in sorted(node.attr):
        if name in IGNORED_ATTRIBUTES or name in ALIASES:
            continue
        called = _function_names(node.attr[name])
        parts.append(name.encode())
        if called:
            parts.extend(functions.get(function, b"absent") for function in called)
        else:
            parts.append(_serialized(node.attr[name]))
    return _hash(*parts)


def _function_hashes(library: Any) -> Dict[str, bytes]:
    """Content hash of each library function; names inside and outside do not matter."""
    definitions = {function.signature.name: function for function in library.function}
    known: Dict[str, bytes] = {}

    def visit(name: str, above: Tuple[str, ...]) -> None:
        if name in known or name not in definitions:
            return
        if name in above:
            known[name] = b"recursive"
            return
        body = definitions[name]
        for node in body.node_def:
            for value in node.attr.values():
                for called in _function_names(value):
                    visit(called, (*above, name))
        known[name] = _function_hash(body, known)

    for name in definitions:
        visit(name, ())
    return known


def _inputs_first(function: Any) -> List[Any]:
    """The nodes of a FunctionDef, which are in no fixed order, each after all that it reads.

    The order is that of going through the nodes again and again and taking each whose inputs are
    known: where two nodes have one name, hashes depend on it. Raises ValueError where an input is
    a cycle's or nothing's.
    """
    known = {argument.name for argument in function.signature.input_arg}
    users: Dict[str, List[int]] = {}
    missing: List[int] = []
    for i, node in enumerate(function.node_def):
        sources = {_source(reference)[0] for reference in node.input} - known
        missing.append(len(sources))
        for name in sources:
            users.setdefault(name, []).append(i)
    ready = [(0, i) for i, count in enumerate(missing) if count == 0]
    order = []
    while ready:
        passes, i = heapq.heappop(ready)
        node = function.node_def[i]
        order.append(node)
        for user in users.pop(node.name, ()):
            missing[user] -= 1
            if missing[user] == 0:
                heapq.heappush(ready, (passes + (user < i), user))
    if len(order) != len(missing):
        raise ValueError(f"function {function.signature.name!r} has a cycle")
    return order


def _source(reference: str) -> List[str]:
    """Name, and output if there is one, of a FunctionDef's input."""
    return reference.lstrip("^").split(":", 1)


def _function_hash(function: Any, known: Mapping[str, bytes]) -> bytes:
    """Hashes flow along edges from the arguments on."""
    value: Dict[str, bytes] = {}
    for position, argument in enumerate(function.signature.input_arg):
        value[argument.name] = _hash(b"argument", str(position).encode(), _type_of(argument))
    for node in _inputs_first(function):
        sources = [_source(reference) for reference in node.input]
        data = [value[s[0]] + s[-1].encode() if len(s) > 1 else value[s[0]]
                for s, r in zip(sources, node.input) if not r.startswith("^")]  # fmt: skip
        control = sorted(value[s[0]] for s, r in zip(sources, node.input) if r.startswith("^"))
        value[node.name] = _hash(_attributes(node, known), *data, b"^", *control)
    results = []
    for output in function.signature.output_arg:
        name, _, rest = function.ret[output.name].partition(":")
        results.append(value.get(name, b"?") + rest.encode())
    effects = sorted(value[name] for name in function.control_ret.values() if name in value)
    attributes = [name.encode() + _serialized(function.attr[name])
                  for name in sorted(function.attr) if not name.startswith("_")]  # fmt: skip
    everything = sorted(value.values())
    return _hash(*results, b"^", *effects, b"@", *attributes, b"*", *everything)


def _type_of(argument: Any) -> bytes:
    return f"{argument.type} {argument.type_attr}".encode()


def _shapes(node: Any) -> List[List[int]]:
    """Dimensions of each output; an unknown rank is written as one dimension nothing else has."""
    if "_output_shapes" not in node.attr:
        return []
    return [
        [UNKNOWN_RANK] if shape.unknown_rank else [dim.size for dim in shape.dim]
        for shape in node.attr["_output_shapes"].list.shape
    ]


def _propagate(edges: Edges, local: Sequence[bytes], order: Sequence[int]) -> List[bytes]:
    """Hash of each node's surroundings: what it computes from, then what is done with it, and again
    until no more nodes are told apart. Equal hashes then mean symmetric places in all but odd
    graphs; those only miss a cached artifact."""
    full = _round(edges, local, order)
    for _ in range(REFINEMENTS):
        classes = len(set(full))
        full = _round(edges, full, order)
        if len(set(full)) == classes:
            break
    return full


def _round(edges: Edges, local: Sequence[bytes], order: Sequence[int]) -> List[bytes]:
    """One pass along the edges and one back."""
    forward = list(local)
    for i in order:
        data = [forward[s] + port.to_bytes(4, "little") for s, port in edges.data[i]]
        forward[i] = _hash(local[i], *data, b"^", *sorted(forward[s] for s in edges.control[i]))
    full = list(forward)
    for i in reversed(order):
        uses = sorted(
            full[c] + (position & 0xFFFFFFFF).to_bytes(4, "little")
            for c, position in edges.consumers[i]
        )
        full[i] = _hash(forward[i], *uses)
    return full


def _canonical_order(edges: Edges, full: Sequence[bytes]) -> List[int]:
    """Depth-first from the nodes nobody reads, in hash order, inputs before their consumers."""
    sinks = [i for i, uses in enumerate(edges.consumers) if not uses]
    rest = sorted(range(len(full)), key=lambda i: full[i])
    order: List[int] = []
    seen = bytearray(len(full))
    for root in [*sorted(sinks, key=lambda i: full[i]), *rest]:
        stack: List[Tuple[int, bool]] = [(root, False)]
        while stack:
            i, done = stack.pop()
            if done:
                order.append(i)
                continue
            if seen[i]:
                continue
            seen[i] = 1
            stack.append((i, True))
            inputs = [source for source, _ in edges.data[i]]
            inputs += sorted(edges.control[i], key=lambda s: full[s])
            stack.extend((source, False) for source in reversed(inputs) if not seen[source])
    return order


class _FirstSeen:
    """Numbers values in the order they are met."""

    def __init__(self) -> None:
        self._numbers: Dict[Any, int] = {}

    def __call__(self, value: Any) -> int:
        return self._numbers.setdefault(value, len(self._numbers))


def _masked(shapes: Iterable[Iterable[int]]) -> bytes:
    return repr(
        [
            [max(size, MASKED) if size != UNKNOWN_RANK else size for size in shape]
            for shape in shapes
        ]
    ).encode()


def number(graph: Any, preserve: Iterable[str] = ()) -> Numbering:
    """Digest and canonical ids of a GraphDef.

    `preserve` names nodes whose values must stay available (meta.json of a request). Shapes are
    taken from `_output_shapes`; symbolic dimensions (below -1) matter only by being equal.
    Raises ValueError for a graph with missing inputs or a cycle.
    """
    nodes = graph.node
    preserved = frozenset(preserve)
    functions = _function_hashes(graph.library)
    edges = edges_of(nodes)
    shapes = [_shapes(node) for node in nodes]
    attributes = [_attributes(node, functions) for node in nodes]
    local = [
        _hash(attributes[i], _masked(shapes[i]), b"preserved" if node.name in preserved else b"")
        for i, node in enumerate(nodes)
    ]
    full = _propagate(edges, local, topological(nodes, edges))
    order = _canonical_order(edges, full)
    position = {i: number for number, i in enumerate(order)}
    symbol, alias = _FirstSeen(), _FirstSeen()
    digest = hashlib.sha256(b"stitch graph 1")
    for i in order:
        node = nodes[i]
        # Static sizes as they are, symbols as -2, -3, ... in order of appearance.
        dims = [
            [d if d >= MASKED or d == UNKNOWN_RANK else -2 - symbol(d) for d in shape]
            for shape in shapes[i]
        ]
        named = [(name, node.attr[name].s) for name in ALIASES if name in node.attr]
        data = [(position[source], port) for source, port in edges.data[i]]
        control = sorted(position[source] for source in edges.control[i])
        record = (data, control, dims, [alias(reference) for reference in named if reference[1]])
        digest.update(local[i])
        digest.update(repr(record).encode())
    ids = {nodes[i].name: number for number, i in enumerate(order)}
    return Numbering(digest.hexdigest(), ids)
