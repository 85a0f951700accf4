"""Applies an artifact's patch to a GraphDef (docs/contracts.md section 5). Trusts nothing.

A patch is a list of regions. What no worker writes (an operation that may not be added, a node that
does not exist) raises Refused(BAD_ARTIFACT), and the original graph stays. The patched graph as a
whole is then held against the rules of TensorFlow's graphs (structure.py): a region at fault is
taken back, with its reason, and the others are applied anew. Job and worker both use this module;
protobuf messages are reached through the graph that is passed in.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass, field
from typing import (
    Any,
    Callable,
    Dict,
    FrozenSet,
    Iterable,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
)

from . import reasons, structure
from .contract import FUSION, PATCH_OPERATIONS, UPDATE
from .digest import Numbering, canonical, parse_reference
from .structure import Fault, Types

# Ops that read a tensor and neither take over its memory nor keep it. Only outputs read by these
# alone come from the pool: a pool buffer cannot be forwarded or become a variable's
# (docs/decisions.md 16).
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
Checks = Iterable[Callable[[Any], List[Fault]]]


def _refuse(detail: str) -> reasons.Refused:
    return reasons.Refused(reasons.BAD_ARTIFACT, detail)


def name_of(prefix: str, added: Any) -> str:
    """What an added node is called in the graph."""
    return f"stitch/{prefix}/{added}"


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


def _build_added(
    graph: Any, entry: Mapping[str, Any], name: str, names: _Names, nodes: Mapping[str, Any]
) -> Any:
    if entry["op"] not in PATCH_OPERATIONS:
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
    place = nodes[names.node(entry["device_of"])]
    node.device = place.device
    # What it raises is the user's error: told as of the operation in whose place it is.
    origin = node.experimental_debug_info
    origin.CopyFrom(place.experimental_debug_info)
    if not origin.original_node_names:
        origin.original_node_names.append(place.name)
    node.input.extend(names.reference(reference) for reference in entry["inputs"])
    if "_output_shapes" in node.attr:
        for shape in node.attr["_output_shapes"].list.shape:
            for dim in shape.dim:
                dim.size = max(dim.size, -1)  # TensorFlow rejects its own symbolic ids in a node
    if node.op == FUSION and RESOURCE in node.attr["Tin"].list.type:
        node.op = UPDATE
    return node


def _aliased_inputs(node: Any) -> Optional[FrozenSet[int]]:
    """Op inputs whose memory a fusion may take over, by its launch table; None for a table that
    ends early."""
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
    except IndexError:
        return None


def _choose_pooled(graph: Any, added: FrozenSet[str]) -> None:
    """Marks the outputs of fusions that may come from the pool."""
    consumers: Dict[Tuple[str, int], List[Tuple[Any, int]]] = {}
    aliased: Dict[str, FrozenSet[int]] = {}
    for node in graph.node:
        if node.op in (FUSION, UPDATE):
            aliased[node.name] = _aliased_inputs(node) or frozenset()
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


@dataclass
class _Region:
    """One region of a patch, in the graph's names."""

    name: str
    added: List[Any]
    origins: Dict[str, str]  # of each new node: the node in whose place it is
    removed: FrozenSet[str]
    rewire: Dict[str, str]
    controls: List[Tuple[str, str]]  # (node, new control input)


@dataclass(frozen=True)
class Patched:
    """A patched graph, and what of the patch is not in it: a Fault by the region's name."""

    graph: Any
    taken_back: Mapping[str, Fault] = field(default_factory=dict)


class _Regions:
    """Reads a patch. Raises Refused(BAD_ARTIFACT)."""

    def __init__(self, graph: Any, numbering: Numbering, patch: Mapping[str, Any], prefix: str):
        entries = [entry for region in patch["regions"] for entry in region["add"]]
        added = {str(entry["name"]): name_of(prefix, entry["name"]) for entry in entries}
        if len(added) != len(entries) or not all(NAME.match(name) for name in added):
            raise _refuse("names of added nodes")
        if any(name in numbering.ids for name in added.values()):
            raise _refuse("an added name is taken")
        self._graph, self._added = graph, added
        self._names = _Names(numbering.ids, added)
        self._nodes = {node.name: node for node in graph.node}
        self.regions = [self._region(region) for region in patch["regions"]]
        if len({region.name for region in self.regions}) != len(self.regions):
            raise _refuse("names of regions")

    def _region(self, region: Mapping[str, Any]) -> _Region:
        names, added = self._names, region["add"]
        new_names = [self._added[str(entry["name"])] for entry in added]
        nodes = [
            _build_added(self._graph, entry, name, names, self._nodes)
            for entry, name in zip(added, new_names)
        ]
        origins = {name: names.node(entry["device_of"]) for entry, name in zip(added, new_names)}
        rewire = {}
        for old, new in region["rewire"]:
            source, target = names.reference(old), names.reference(new)
            if (source[0] == "^") != (target[0] == "^"):
                raise _refuse(f"rewire of {old} to {new}")
            rewire[source] = target
        controls = [
            (names.reference(f"^{node}".replace("^^", "^"))[1:],
             names.reference(control if control.startswith("^") else f"^{control}"))
            for node, control in region["controls"]
        ]  # fmt: skip
        removed = frozenset(names.node(number) for number in region["remove"])
        return _Region(str(region["name"]), nodes, origins, removed, rewire, controls)


class _AtFault(Exception):
    """A region cannot be applied."""

    def __init__(self, region: str, node: str, what: str) -> None:
        super().__init__(what)
        self.region, self.fault = region, Fault(node, what)


class _Attempt:
    """A graph with some regions applied, and which of them has done what to it."""

    def __init__(
        self, graph: Any, regions: Sequence[_Region], preserve: FrozenSet[str], types: Types
    ) -> None:
        """Raises _AtFault."""
        self._graph, self._regions, self._types = graph, regions, types
        self.added: Dict[str, str] = {}
        self._adding: Dict[str, str] = {}  # new node to region
        self._removing: Dict[str, str] = {}
        self._rewiring: Dict[str, str] = {}  # reference that is used no more
        self._touched: Dict[Tuple[str, str], str] = {}  # (node, its new input)
        self._rewire: Dict[str, str] = {}
        for region in regions:
            self._merge(region)
        self.result = type(graph)()
        self.result.CopyFrom(graph)
        del self.result.node[:]
        self._translate()
        function = any(node.op == "_Retval" for node in graph.node)
        for node in graph.node:
            if node.name in preserve and node.name in self._removing:
                self._stand_in(node, function)
        self.new = frozenset(self._adding)

    def _merge(self, region: _Region) -> None:
        self.added.update(region.origins)
        self._adding.update(dict.fromkeys(region.origins, region.name))
        for name in region.removed:
            if self._removing.setdefault(name, region.name) != region.name:
                raise _AtFault(region.name, name, "two regions remove it")
        for source, target in region.rewire.items():
            if self._rewiring.setdefault(source, region.name) != region.name:
                raise _AtFault(region.name, source, "two regions rewire it")
            self._rewire[source] = target

    def _rewired(self, node: str, reference: str, limit: int = 16) -> str:
        """What is read in place of `reference`; who rewired that first answers for it."""
        owner, first = self._rewiring.get(reference), reference
        if owner is None:
            return reference
        for _ in range(limit):
            target = self._rewire.get(reference)
            if target is None:
                self._touched.setdefault((node, reference), owner)
                return reference
            reference = target
        raise _AtFault(owner, node, f"rewires of {first!r} form a cycle")

    def _translate(self) -> None:
        extra: Dict[str, List[str]] = {}
        staying = {node.name for node in self._graph.node} - self._removing.keys()
        for region in self._regions:
            for name, control in region.controls:
                if name not in staying and name not in self._adding:
                    raise _AtFault(region.name, name, "control edge into a removed node")
                extra.setdefault(name, []).append(control)
                self._touched.setdefault((name, control), region.name)
        added = [node for region in self._regions for node in region.added]
        for node in [*self._graph.node, *added]:
            if node.name in self._removing:
                continue
            copy = self.result.node.add()
            copy.CopyFrom(node)
            inputs = [self._rewired(node.name, canonical(text)) for text in node.input]
            inputs += [self._rewired(node.name, text) for text in extra.get(node.name, ())]
            data = [reference for reference in inputs if reference[0] != "^"]
            after = sorted({reference for reference in inputs if reference[0] == "^"})
            del copy.input[:]
            copy.input.extend([*data, *after])
            structure.part(copy, self._removing)

    def _stand_in(self, node: Any, function: bool) -> None:
        """Keeps the name of a removed node that must stay: a function's control results (its
        updates and reads) and a session's fetches are found by name. A NoOp, or an Identity of what
        replaces the value. In a function (it has `_Retval` nodes) values leave by those alone, so
        the value of a control result may be gone."""
        owner, outputs = self._removing[node.name], self._types.get(node.name, ())
        used, control = node.name in self._rewire, f"^{node.name}"
        value_lost = bool(outputs) and not used and not function
        if len(outputs) > 1 or value_lost or (not used and control not in self._rewire):
            what = f"{node.op} node must stay and nothing stands in for it"
            raise _AtFault(owner, node.name, what)
        if used and not outputs:
            raise _AtFault(owner, node.name, f"type of {node.op} node is not known")
        copy = self.result.node.add(
            name=node.name, op="Identity" if used else "NoOp", device=node.device
        )
        if used:
            copy.attr["T"].type = outputs[0]
            copy.input.append(self._rewired(node.name, node.name))
        if control in self._rewire:
            copy.input.append(self._rewired(node.name, control))
        self.added[node.name] = node.name
        self._adding[node.name] = owner

    def region_of(self, fault: Fault) -> Optional[str]:
        """The region that answers for a fault: whose rewire made the input, who removed what is
        missed, whose node it is, or who has changed the node at all."""
        missed = parse_reference(fault.reference)[0]
        return (
            self._touched.get((fault.node, fault.reference))
            or (None if missed in self.added else self._removing.get(missed))
            or self._adding.get(fault.node)
            or next((region for (node, _), region in self._touched.items() if node == fault.node),
                    None)
        )  # fmt: skip

    def finish(self) -> Any:
        """The graph, its pool chosen."""
        _choose_pooled(self.result, self.new)
        return self.result


def _attempted(
    graph: Any,
    original: structure.Original,
    regions: Sequence[_Region],
    preserve: FrozenSet[str],
    types: Types,
    checks: Checks,
) -> Tuple[Any, Dict[str, Fault]]:
    """The graph with `regions` applied, and those of them that are at fault.

    Raises Refused(STRUCTURE) for a fault that no region answers for.
    """
    try:
        attempt = _Attempt(graph, regions, preserve, types)
    except _AtFault as error:
        return None, {error.region: error.fault}
    faults = structure.check(original, attempt.result, types, attempt.added, preserve)
    for check in checks:
        faults += check(attempt.result)
    by_region: Dict[str, Fault] = {}
    for fault in faults:
        region = attempt.region_of(fault)
        if region is None:
            raise reasons.Refused(reasons.STRUCTURE, str(fault))
        by_region.setdefault(region, fault)
    return None if by_region else attempt.finish(), by_region


def apply(
    graph: Any,
    numbering: Numbering,
    patch: Mapping[str, Any],
    prefix: str,
    preserve: Iterable[str] = (),
    types: Optional[Types] = None,
    checks: Checks = (),
) -> Patched:
    """The patched copy of `graph`, a GraphDef as Grappler showed it, without the regions at fault.

    Added nodes are called "stitch/<prefix>/<name>"; `prefix` names the artifact, because a TF1
    session keeps stateful kernels by node name. A node of `preserve` may be removed when its uses
    are rewired: a stand-in keeps its name. `types` gives output types of nodes where known;
    `checks` find further faults in the patched graph. At most as many rounds as there are regions.
    Raises Refused: BAD_ARTIFACT for what no worker writes, STRUCTURE where no region can be
    applied or a fault is no region's.
    """
    preserved, known = frozenset(preserve), types or {}
    try:
        regions = _Regions(graph, numbering, patch, prefix).regions
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise _refuse(f"patch form: {type(error).__name__}: {error}") from error
    try:
        original = structure.Original(graph)
    except ValueError as error:
        raise reasons.Refused(reasons.STRUCTURE, f"before the patch: {error}") from error
    taken: Dict[str, Fault] = {}
    for region in regions:
        for node in region.added:
            if node.op in (FUSION, UPDATE) and _aliased_inputs(node) is None:
                taken[region.name] = Fault(node.name, "its launch table ends early")
    while True:
        remaining = [region for region in regions if region.name not in taken]
        if taken and not remaining:
            name, fault = next(iter(taken.items()))
            raise reasons.Refused(reasons.STRUCTURE, f"{name}: {fault}")
        result, faults = _attempted(graph, original, remaining, preserved, known, checks)
        taken.update(faults)
        if not faults:
            return Patched(result, taken)
