"""Mutations of GraphDefs, of their bytes and of their structure, drawn from a generator's state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

RAW_SHARE = 0.25
"""Share of graphs whose bytes are mutated; the others' structure is."""

MOST_NODES = 60
"""Graphs are cut to a random part of this many nodes first: small ones are judged fast."""

SIZES = (-(2**63), -1000, -2, -1, 0, 1, 2, 3, 7, 64, 2**31 - 1, 2**31, 2**40, 2**63 - 1)
OPERATIONS = (
    "Add AddV2 Mul MatMul Reshape Sum Mean Const Identity Switch Merge Enter Exit NextIteration "
    "LoopCond ReadVariableOp AssignVariableOp VarHandleOp ResourceApplyAdam Pack Shape Fill Range "
    "StridedSlice ConcatV2 Split Cast OneHot TensorListPushBack TensorListPopBack Transpose NoOp "
    "ReadFile WriteFile PyFunc ImmutableConst DebugIdentity DecodeRaw PartitionedCall While If "
    "StatefulPartitionedCall Placeholder _Arg _Retval XlaCustomCallV2 Empty NoSuch "
    "BroadcastGradientArgs"
).split()
STRINGS = (b"", b"/etc/passwd", b"\xff\xfe", b"a" * 300, b"loc:@x", b"NCHW", b"NHWC", b"..;rm -rf")


def mutate(rng: np.random.Generator, data: bytes) -> bytes:
    """A mutation of a serialized GraphDef; the same for the same generator state."""
    from tensorflow.core.framework import graph_pb2

    graph = graph_pb2.GraphDef.FromString(data)
    _cut(rng, graph)
    if rng.random() < RAW_SHARE:
        return _bytes(rng, graph.SerializeToString(deterministic=True))
    for _ in range(min(8, int(rng.geometric(0.5)))):
        if len(graph.node):
            MUTATIONS[int(rng.integers(len(MUTATIONS)))](rng, graph)
    return bytes(graph.SerializeToString(deterministic=True))


def _cut(rng: np.random.Generator, graph: Any) -> None:
    """Keep one node and some of what it is computed from; what is left out of its inputs becomes
    placeholders of the same types and shapes."""
    from tensorflow.python.framework import dtypes

    from stitchcore.tensorflow.graph import output_types

    nodes = {node.name: type(node).FromString(node.SerializeToString()) for node in graph.node}
    size = int(rng.integers(2, MOST_NODES))
    pending = [_pick(rng, list(nodes))]
    kept: dict[str, Any] = {}
    while pending and len(kept) < size:
        node = nodes[pending.pop(0)]
        if node.name not in kept:
            kept[node.name] = node
            pending += [r.lstrip("^").partition(":")[0] for r in node.input]
    del graph.node[:]
    for node in kept.values():
        references = list(node.input)
        del node.input[:]
        for reference in references:
            name, _, port = reference.lstrip("^").partition(":")
            if name in kept:
                node.input.append(reference)
            elif not reference.startswith("^"):
                node.input.append(f"{name}__{port or 0}")
    graph.node.extend(kept.values())
    for reference in sorted({r for node in kept.values() for r in node.input if "__" in r}):
        name, _, port = reference.rpartition("__")
        added = graph.node.add(name=reference, op="Placeholder")
        types = output_types(nodes[name])
        if int(port) < len(types) and types[int(port)]:
            kind = dtypes.as_dtype(types[int(port)].removesuffix("_ref"))
            added.attr["dtype"].type = kind.as_datatype_enum
        shapes = nodes[name].attr["_output_shapes"].list.shape
        if int(port) < len(shapes):
            added.attr["_output_shapes"].list.shape.add().CopyFrom(shapes[int(port)])


def _bytes(rng: np.random.Generator, data: bytes) -> bytes:
    """Flips, cuts, repeats and insertions of bytes."""
    made = bytearray(data)
    for _ in range(int(rng.integers(1, 9))):
        if not made:
            break
        at = int(rng.integers(len(made)))
        kind = int(rng.integers(5))
        if kind == 0:
            made[at] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            made[at] = int(rng.integers(256))
        elif kind == 2:
            del made[at : at + int(rng.integers(1, 40))]
        elif kind == 3:
            part = made[at : at + int(rng.integers(1, 200))]
            made[at:at] = part * int(rng.integers(1, 20))
        else:
            made[at:at] = rng.bytes(int(rng.integers(1, 10)))
    return bytes(made)


def _pick(rng: np.random.Generator, items: Any) -> Any:
    return items[int(rng.integers(len(items)))]


def _operation(rng: np.random.Generator, graph: Any) -> None:
    _pick(rng, graph.node).op = _pick(rng, OPERATIONS)


def _edge(rng: np.random.Generator, graph: Any) -> None:
    node = _pick(rng, graph.node)
    source = _pick(rng, graph.node).name
    reference = _pick(rng, (source, f"{source}:{int(rng.integers(70))}", f"^{source}", "missing"))
    if node.input and rng.random() < 0.7:
        node.input[int(rng.integers(len(node.input)))] = reference
    else:
        node.input.append(reference)


def _fewer_inputs(rng: np.random.Generator, graph: Any) -> None:
    node = _pick(rng, graph.node)
    if node.input:
        del node.input[int(rng.integers(len(node.input))) :]


def _name(rng: np.random.Generator, graph: Any) -> None:
    _pick(rng, graph.node).name = _pick(rng, (_pick(rng, graph.node).name, "", "a/../b", "x" * 500))


def _remove(rng: np.random.Generator, graph: Any) -> None:
    del graph.node[int(rng.integers(len(graph.node)))]


def _repeat(rng: np.random.Generator, graph: Any) -> None:
    graph.node.add().CopyFrom(_pick(rng, graph.node))


def _attribute(rng: np.random.Generator, graph: Any) -> None:
    node, other = _pick(rng, graph.node), _pick(rng, graph.node)
    names, others = sorted(node.attr), sorted(other.attr)
    if not names:
        return
    name = _pick(rng, names)
    kind = int(rng.integers(6))
    if kind == 0:
        del node.attr[name]
    elif kind == 1 and others:
        node.attr[name].CopyFrom(other.attr[_pick(rng, others)])
    elif kind == 2:
        node.attr[name].type = int(rng.integers(-3, 140))
    elif kind == 3:
        node.attr[name].i = _pick(rng, SIZES)
    elif kind == 4:
        node.attr[name].s = _pick(rng, STRINGS)
    else:
        node.attr[name].func.name = _pick(rng, ("f", node.name))


def _shape(rng: np.random.Generator, graph: Any) -> None:
    node = _pick(rng, graph.node)
    shapes = node.attr["_output_shapes"].list.shape
    if not shapes or rng.random() < 0.1:
        shapes.add(unknown_rank=bool(rng.random() < 0.5))
        return
    shape = _pick(rng, shapes)
    if shape.dim and rng.random() < 0.7:
        _pick(rng, shape.dim).size = _pick(rng, SIZES)
    else:
        shape.dim.add(size=_pick(rng, SIZES))


def _constant(rng: np.random.Generator, graph: Any) -> None:
    constants = [node for node in graph.node if "value" in node.attr]
    if not constants:
        return
    tensor = _pick(rng, constants).attr["value"].tensor
    kind = int(rng.integers(5))
    if kind == 0:
        tensor.dtype = int(rng.integers(30))
    elif kind == 1:
        tensor.tensor_shape.dim.add(size=_pick(rng, SIZES))
    elif kind == 2:
        tensor.tensor_content = rng.bytes(int(rng.integers(40)))
    elif kind == 3:
        del tensor.int_val[:]
        tensor.int_val.extend(int(_pick(rng, SIZES)) % 2**31 for _ in range(3))
    else:
        tensor.tensor_shape.unknown_rank = True


def _function(rng: np.random.Generator, graph: Any) -> None:
    """A function of some of the graph's nodes, called by one of them, perhaps by itself."""
    function = graph.library.function.add()
    function.signature.name = "f"
    for _ in range(int(rng.integers(1, 4))):
        function.node_def.add().CopyFrom(_pick(rng, graph.node))
    caller = _pick(rng, _pick(rng, (graph.node, function.node_def)))
    caller.op = _pick(rng, ("PartitionedCall", "StatefulPartitionedCall", "While", "f"))
    caller.attr["f"].func.name = "f"


def _device(rng: np.random.Generator, graph: Any) -> None:
    _pick(rng, graph.node).device = _pick(rng, ("", "/gpu:0", "/job:x/task:99/cpu:0", "\n"))


def _versions(rng: np.random.Generator, graph: Any) -> None:
    graph.versions.producer = int(_pick(rng, (0, 1, 27, 10**6)))
    graph.versions.min_consumer = int(_pick(rng, (0, 10**6)))


MUTATIONS: tuple[Callable[[np.random.Generator, Any], None], ...] = (
    _operation,
    _operation,
    _edge,
    _edge,
    _fewer_inputs,
    _name,
    _remove,
    _repeat,
    _attribute,
    _attribute,
    _shape,
    _shape,
    _constant,
    _constant,
    _function,
    _device,
    _versions,
)
