"""Applies an artifact's patch to a GraphDef (docs/contracts.md section 5). Trusts nothing.

Everything is checked before and after: allowed ops, references, types where known, preserved
nodes, cycles. Any doubt raises Refused(BAD_ARTIFACT) and the original graph stays. Job and worker
both use this module; protobuf messages are reached through the graph that is passed in.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any, Dict, FrozenSet, Iterable, List, Mapping, Optional, Sequence, Tuple

from . import digest, reasons
from .digest import Numbering, parse_reference

ALLOWED_OPERATIONS = frozenset(
    {
        "StitchedFusion",
        "Const",
        "Identity",
        "NoOp",
        "AssignVariableOp",
        "ReadVariableOp",
        "Reshape",
        "Cast",
        "GatherV2",
        "UnsortedSegmentSum",
    }
)
FUSION, UPDATE = "StitchedFusion", "StitchedUpdate"
# Ops that read a tensor and neither take over its memory nor keep it. Only outputs read by these
# alone come from the pool: a pool buffer cannot be forwarded or become a variable's (rulings 16).
READERS = frozenset(
    {
        "MatMul", "_FusedMatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "_MklMatMul",
        "Conv2D", "_FusedConv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter",
        "DepthwiseConv2dNative", "MaxPool", "MaxPoolGrad", "AvgPool", "AvgPoolGrad", "Einsum",
        "Sum", "Mean", "Max", "Min", "Prod", "ArgMax", "Transpose", "Shape", "Size", "Rank",
        "GatherV2", "BiasAddGrad", "FusedBatchNormV3", "FusedBatchNormGradV3", "ConcatV2", "Pack",
        "Split", "SplitV", "StridedSlice", "Slice", "Tile", "L2Loss", "UnsortedSegmentSum",
        "SparseSoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits", FUSION, UPDATE,
    }
)  # fmt: skip
NAME = re.compile(r"^[A-Za-z0-9.][A-Za-z0-9_.\-/]*$")
RESOURCE = 20  # DataType.DT_RESOURCE
Types = Mapping[str, Sequence[int]]


def _refuse(detail: str) -> reasons.Refused:
    return reasons.Refused(reasons.BAD_ARTIFACT, detail)


class _Names:
    """Translates references of the patch ("id:port", "^id", "+name:port", "^+name")."""

    def __init__(self, ids: Mapping[str, int], added: Mapping[str, str]) -> None:
        self._nodes = {number: name for name, number in ids.items()}
        self._added = added

    def node(self, number: Any) -> str:
        if isinstance(number, bool) or not isinstance(number, int) or number not in self._nodes:
            raise _refuse(f"node {number!r} does not exist")
        return self._nodes[number]

    def reference(self, text: Any) -> str:
        """A NodeDef input: "name", "name:port" or "^name"."""
        if not isinstance(text, str) or not text:
            raise _refuse(f"reference {text!r}")
        control = text.startswith("^")
        head, _, port = (text[1:] if control else text).partition(":")
        if control and port:
            raise _refuse(f"reference {text!r}")
        if head.startswith("+"):
            name = self._added.get(head[1:])
            if name is None:
                raise _refuse(f"added node {head!r} does not exist")
        else:
            name = self.node(int(head) if head.isdigit() else head)
        if control:
            return f"^{name}"
        if not port.isdigit():
            raise _refuse(f"reference {text!r} has no port")
        return name if int(port) == 0 else f"{name}:{int(port)}"


def canonical(reference: str) -> str:
    """One spelling for each reference: "a:0" and "a" are the same tensor."""
    return reference[:-2] if reference.endswith(":0") and reference[0] != "^" else reference


def _rewired(reference: str, rewire: Mapping[str, str], limit: int = 16) -> str:
    for _ in range(limit):
        target = rewire.get(reference)
        if target is None:
            return reference
        reference = target
    raise _refuse("rewires form a cycle")


def _build_added(
    graph: Any, entry: Mapping[str, Any], name: str, names: _Names, devices: Mapping[str, str]
) -> Any:
    if entry["op"] not in ALLOWED_OPERATIONS:
        raise _refuse(f"operation {entry['op']!r} may not be added")
    node = type(graph)().node.add()
    try:
        node.ParseFromString(base64.b64decode(entry["attr"], validate=True))
    except (binascii.Error, ValueError, TypeError) as error:
        raise _refuse(f"attributes of {name}: {error}") from error
    except Exception as error:  # protobuf's DecodeError is not importable without protobuf
        raise _refuse(f"attributes of {name} do not parse") from error
    del node.input[:]
    node.name, node.op = name, entry["op"]
    node.device = devices[names.node(entry["device_of"])]
    node.input.extend(names.reference(reference) for reference in entry["inputs"])
    if "_output_shapes" in node.attr:
        for shape in node.attr["_output_shapes"].list.shape:
            for dim in shape.dim:
                dim.size = max(dim.size, -1)  # TensorFlow rejects its own symbolic ids in a node
    if node.op == FUSION and RESOURCE in node.attr["Tin"].list.type:
        node.op = UPDATE
    return node


def _output_types(node: Any, known: Types) -> Optional[Sequence[int]]:
    if node.op in (FUSION, UPDATE):
        return list(node.attr["Tout"].list.type)
    for attribute in ("DstT", "dtype", "T"):
        if node.name not in known and attribute in node.attr and node.op in ALLOWED_OPERATIONS:
            return [node.attr[attribute].type]
    return known.get(node.name)


def types_of(node: Any, name: str) -> List[int]:
    """A list attribute of types, none where it is absent. Looking it up would put an attribute
    without a value into the node, which TensorFlow refuses."""
    return list(node.attr[name].list.type) if name in node.attr else []


def _check_types(graph: Any, added: FrozenSet[str], changed: FrozenSet[str], known: Types) -> None:
    """Fusions get the types they declare; rewired inputs keep theirs."""
    types = {node.name: _output_types(node, known) for node in graph.node}
    for node in graph.node:
        if node.name not in added and node.name not in changed:
            continue
        data = [reference for reference in node.input if not reference.startswith("^")]
        expected: Sequence[int] = []
        if node.op in (FUSION, UPDATE):
            expected = [*types_of(node, "Tin"), *types_of(node, "Thost")]
            if len(expected) != len(data):
                raise _refuse(f"{node.name} declares {len(expected)} inputs and has {len(data)}")
        for position, reference in enumerate(data):
            name, port = parse_reference(reference)
            given = types.get(name)
            if given is None:
                continue
            if port >= len(given):
                raise _refuse(f"{reference} is not an output")
            if position < len(expected) and expected[position] != given[port]:
                raise _refuse(f"input {position} of {node.name} has another type")


def _check_whole(graph: Any, preserve: Iterable[str]) -> None:
    names = {node.name for node in graph.node}
    for name in preserve:
        if name not in names:
            raise _refuse("a node that must stay was removed")
    try:
        edges = digest.edges_of(graph.node)
        frames = digest.frames_of(graph.node, edges, digest.topological(graph.node, edges))
        ends = digest.loop_ends(graph.node, edges, frames)
        digest.completion_order(graph.node, edges, ends)
    except ValueError as error:
        raise _refuse(str(error)) from error


def _aliased_inputs(node: Any) -> FrozenSet[int]:
    """Op inputs whose memory a fusion may take over, by its launch table."""
    words = list(node.attr["table"].list.i)
    try:
        cursor = 2 + 4 * words[1]
        operands = [words[cursor + 2 + 2 * i] for i in range(words[cursor])]
        cursor += 1 + 2 * len(operands)
        results = words[cursor]
        cursor += 1
        for _ in range(results):
            rank = words[cursor + 2]
            cursor += 3
            for _ in range(rank):
                cursor += 1 + words[cursor]
        pairs = words[cursor]
        return frozenset(operands[words[cursor + 1 + 2 * i]] for i in range(pairs))
    except IndexError as error:
        raise _refuse(f"launch table of {node.name} ends early") from error


def _choose_pooled(graph: Any, added: FrozenSet[str]) -> None:
    """Marks the outputs of fusions that may come from the pool."""
    consumers: Dict[Tuple[str, int], List[Tuple[Any, int]]] = {}
    aliased: Dict[str, FrozenSet[int]] = {}
    for node in graph.node:
        if node.op in (FUSION, UPDATE):
            aliased[node.name] = _aliased_inputs(node)
        for position, reference in enumerate(node.input):
            source = parse_reference(reference)
            if source[1] >= 0 and source[0] in added:
                consumers.setdefault(source, []).append((node, position))
    for node in graph.node:
        if node.op not in (FUSION, UPDATE) or node.name not in added:
            continue
        pooled = [
            port
            for port in range(len(node.attr["Tout"].list.type))
            if all(
                consumer.op in READERS and position not in aliased.get(consumer.name, ())
                for consumer, position in consumers.get((node.name, port), ())
            )
        ]
        node.attr["pool"].list.SetInParent()
        del node.attr["pool"].list.i[:]
        node.attr["pool"].list.i.extend(pooled)


def _rewire_map(patch: Mapping[str, Any], names: _Names) -> Dict[str, str]:
    rewire = {}
    for old, new in patch["rewire"]:
        source, target = names.reference(old), names.reference(new)
        if (source[0] == "^") != (target[0] == "^"):
            raise _refuse(f"rewire of {old} to {new}")
        rewire[source] = target
    return rewire


def _stand_in(
    result: Any, node: Any, rewire: Mapping[str, str], types: Optional[Types], function: bool
) -> None:
    """Keeps the name of a removed node that must stay: a function's control results (its updates
    and reads) and a session's fetches are found by name. A NoOp, or an Identity of what replaces
    the value. In a function (it has `_Retval` nodes) values leave by those alone, so the value of
    a control result may be gone."""
    outputs = (types or {}).get(node.name, ())
    used = node.name in rewire
    control = rewire.get(f"^{node.name}")
    value_lost = bool(outputs) and not used and not function
    if len(outputs) > 1 or value_lost or (not used and control is None):
        raise _refuse(f"{node.op} node must stay and nothing stands in for it")
    copy = result.node.add(name=node.name, op="Identity" if used else "NoOp", device=node.device)
    if used:
        if not outputs:
            raise _refuse(f"type of {node.op} node is not known")
        copy.attr["T"].type = outputs[0]
        copy.input.append(_rewired(node.name, rewire))
    if control is not None:
        copy.input.append(_rewired(f"^{node.name}", rewire))


def _translate(
    graph: Any,
    patch: Mapping[str, Any],
    names: _Names,
    added: Sequence[Any],
    removed: FrozenSet[str],
    rewire: Mapping[str, str],
) -> Tuple[Any, FrozenSet[str]]:
    """The new graph, and the names of surviving nodes whose inputs changed."""
    extra: Dict[str, List[str]] = {}
    for node, control in patch["controls"]:
        reference = names.reference(control if control.startswith("^") else f"^{control}")
        extra.setdefault(names.reference(f"^{node}".replace("^^", "^"))[1:], []).append(reference)
    result = type(graph)()
    result.CopyFrom(graph)
    del result.node[:]
    changed = set()
    added_names = frozenset(node.name for node in added)
    for node in [*graph.node, *added]:
        if node.name in removed:
            continue
        copy = result.node.add()
        copy.CopyFrom(node)
        inputs = [_rewired(canonical(reference), rewire) for reference in node.input]
        inputs += extra.pop(node.name, [])
        data = [reference for reference in inputs if reference[0] != "^"]
        control = sorted({reference for reference in inputs if reference[0] == "^"})
        del copy.input[:]
        copy.input.extend([*data, *control])
        if node.name not in added_names and list(copy.input) != list(node.input):
            changed.add(node.name)
    if extra:
        raise _refuse("control edge into a removed node")
    return result, frozenset(changed)


def apply(
    graph: Any,
    numbering: Numbering,
    patch: Mapping[str, Any],
    prefix: str,
    preserve: Iterable[str] = (),
    types: Optional[Types] = None,
) -> Any:
    """The patched copy of `graph`, a GraphDef as Grappler showed it.

    Added nodes are called "stitch/<prefix>/<name>"; `prefix` names the artifact, because a TF1
    session keeps stateful kernels by node name. A node of `preserve` may be removed when its uses
    are rewired: a stand-in keeps its name. `types` gives output types of nodes where known.
    Raises Refused(BAD_ARTIFACT).
    """
    kept = frozenset(preserve)
    try:
        entries = [(entry, str(entry["name"])) for entry in patch["add"]]
        added = {name: f"stitch/{prefix}/{name}" for _, name in entries}
        if len(added) != len(entries) or not all(NAME.match(name) for name in added):
            raise _refuse("names of added nodes")
        if any(name in numbering.ids for name in added.values()):
            raise _refuse("an added name is taken")
        names = _Names(numbering.ids, added)
        removed = frozenset(names.node(number) for number in patch["remove"])
        devices = {node.name: node.device for node in graph.node}
        new = [_build_added(graph, entry, added[name], names, devices) for entry, name in entries]
        rewire = _rewire_map(patch, names)
        result, changed = _translate(graph, patch, names, new, removed, rewire)
        function = any(node.op == "_Retval" for node in graph.node)
        for node in graph.node:
            if node.name in kept and node.name in removed:
                _stand_in(result, node, rewire, types, function)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise _refuse(f"patch form: {type(error).__name__}: {error}") from error
    new_names = frozenset(node.name for node in new)
    _check_whole(result, kept)
    _check_types(result, new_names, changed, types or {})
    _choose_pooled(result, new_names)
    return result
