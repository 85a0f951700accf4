"""Collectives of a graph: that a patch leaves them, what names them, and their order alone.

Replicas pair the collectives of a step by their keys, and each runs until all have come. So a
stitched step must have the same ones, named by the same inputs; and none may wait for another that
it did not wait for before, nor be freed of one.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Dict, List, Mapping, Optional, Tuple

from . import digest, reasons

PREFIX = "Collective"
INPUTS = ("input", "group_size", "group_key")  # of CollectiveReduceV2 and its like


def is_one(node: Any) -> bool:
    return bool(node.op.startswith(PREFIX))


def present(graph: Any) -> bool:
    return any(is_one(node) for node in graph.node)


def meet_others(graph: Any) -> bool:
    """Whether some member of a collective of this graph is, or may be, in another.

    Replicas of one graph (MirroredStrategy's) swap together as it is: then each group has as many
    devices here as it has members, and each of these as many collectives.
    """
    nodes = {node.name: node for node in graph.node}
    groups: Dict[int, Tuple[int, Counter[str]]] = {}
    for node in graph.node:
        if not is_one(node):
            continue
        size, key = (_constant(node, name, nodes) for name in ("group_size", "group_key"))
        if size is None or key is None:
            return True
        groups.setdefault(key, (size, Counter()))[1][node.device] += 1
    return any(
        len(devices) != size or len(set(devices.values())) > 1 for size, devices in groups.values()
    )


def _constant(node: Any, name: str, nodes: Mapping[str, Any]) -> Optional[int]:
    """An attribute of a collective, or the constant that is the input of that name."""
    if name in node.attr:
        return int(node.attr[name].i)
    data = [digest.parse_reference(text)[0] for text in node.input if not text.startswith("^")]
    position = INPUTS.index(name)
    source = nodes.get(data[position]) if position < len(data) else None
    if not node.op.endswith("V2") or source is None or source.op != "Const":
        return None
    value = source.attr["value"].tensor
    if value.tensor_content:
        return int.from_bytes(value.tensor_content, "little", signed=True)
    return int(value.int_val[0]) if value.int_val else None


def _order(graph: Any) -> Dict[str, Tuple[Any, int]]:
    """Each collective by name, with those that it waits for as bits of a number (by name)."""
    names = sorted(node.name for node in graph.node if is_one(node))
    bit = {name: 1 << i for i, name in enumerate(names)}
    if not bit:
        return {}
    edges = digest.edges_of(graph.node)
    before = [0] * len(graph.node)
    for i in digest.topological(graph.node, edges):
        for source in [s for s, _ in edges.data[i]] + list(edges.control[i]):
            before[i] |= before[source] | bit.get(graph.node[source].name, 0)
    return {node.name: (node, before[i]) for i, node in enumerate(graph.node) if node.name in bit}


def check(original: Any, stitched: Any) -> None:
    """Raises Refused(COLLECTIVE) where the two differ in their collectives, but for the node that a
    collective's value comes from."""
    before_patch, new = _order(original), _order(stitched)
    if before_patch.keys() != new.keys():
        raise reasons.Refused(reasons.COLLECTIVE, "the patch changes the collectives")
    for name, (node, before) in before_patch.items():
        other, after = new[name]
        if before != after:
            raise reasons.Refused(reasons.COLLECTIVE, f"{node.op} would run in another order")
        same = node.op == other.op and node.device == other.device and node.attr == other.attr
        if not same or _keys(node) != _keys(other):
            raise reasons.Refused(reasons.COLLECTIVE, f"{node.op} would be another")


def _keys(node: Any) -> List[str]:
    """Inputs that say which collective a node is: all but the value, which comes first."""
    data = [digest.canonical(text) for text in node.input if not text.startswith("^")]
    return data if "Recv" in node.op else data[1:]
