"""Whether a patched graph as a whole is one that TensorFlow can run; every fault with its node.

TensorFlow finds some of these faults when it makes an executor and some only when the step runs,
as an error in the user's program, or as a step that ends without having run. So job and worker hold
a patched graph against all of its rules before it is used:

- names: no two alike, every input exists, data before control, what must stay is there;
- types: an edge has the type that its consumer had before the patch, or that a new node declares
  (reference types count: what a variable's reference fed must get that reference still); ports;
- frames: all inputs of a node come from one loop frame, which is the node's own; an Enter's outputs
  are in the loop, an Exit's in the frame around it; a node without inputs is in the outermost one
  (tensorflow/core/graph/control_flow.cc, "has inputs from different frames");
- deadness: a node is alive in the same branches as before, and so is what stands in its place (else
  a Merge gets two live inputs, or none, or an update happens in a branch that is not taken);
- cycles over data and control edges, in which an Exit comes after its loop's last pass;
- places: what a node is colocated with, and functions, with as many arguments as they are given.

Frames and branches of the original graph are computed once (`Original`); nodes that stay keep
theirs, those of new nodes follow from their inputs, and where the two meet they must agree. So
every fault is found at the edge that makes it, and the patches of other regions are not blamed for
it. Linear in nodes and edges.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import (
    Any,
    Container,
    Dict,
    FrozenSet,
    Iterable,
    List,
    Mapping,
    Optional,
    Sequence,
    Set,
    Tuple,
)

from .contract import FUSIONS
from .digest import LOOP_BACK, canonical, parse_reference

Types = Mapping[str, Sequence[int]]  # DataType of each output of a node
MERGES = frozenset({"Merge", "RefMerge"})
SWITCHES = frozenset({"Switch", "RefSwitch", "_SwitchN"})  # a port for each branch
ENTERS = frozenset({"Enter", "RefEnter"})
EXITS = frozenset({"Exit", "RefExit"})
CONTROL_FLOW = SWITCHES | MERGES | ENTERS | EXITS
# New nodes that store, or raise errors: they must run when what they replace did.
EFFECTS = FUSIONS | {"AssignVariableOp", "GatherV2", "UnsortedSegmentSum"}
COLOCATION, LOCATION = "_class", "loc:@"
INT32, RESOURCE, REFERENCE = 3, 20, 100  # of DataType; reference types lie above REFERENCE
DEFAULTS = {"Tshape": INT32, "Tnumsegments": INT32}  # of attributes that a node may leave out
# Types of inputs and outputs of operations that a patch may add: an attribute's name or a DataType.
SIGNATURES: Mapping[str, Tuple[Sequence[Any], Sequence[Any]]] = {
    "Const": ((), ("dtype",)),
    "NoOp": ((), ()),
    "Identity": (("T",), ("T",)),
    "Enter": (("T",), ("T",)),
    "Reshape": (("T", "Tshape"), ("T",)),
    "Cast": (("SrcT",), ("DstT",)),
    "ReadVariableOp": ((RESOURCE,), ("dtype",)),
    "AssignVariableOp": ((RESOURCE, "dtype"), ()),
    "GatherV2": (("Tparams", "Tindices", "Taxis"), ("Tparams",)),
    "UnsortedSegmentSum": (("T", "Tindices", "Tnumsegments"), ("T",)),
    "StridedSlice": (("T", "Index", "Index", "Index"), ("T",)),
}


@dataclass(frozen=True)
class Fault:
    """What is wrong at `node`; `reference` is the input that makes it so, where there is one, or
    else the node that is missed."""

    node: str
    what: str
    reference: str = ""

    def __str__(self) -> str:
        return f"{self.node}: {self.what}"


class _Frames:
    """Loop frames as numbers; 0 is the outermost."""

    def __init__(self) -> None:
        self.parents: List[int] = [0]
        self._names: List[str] = [""]
        self._inner: Dict[Tuple[int, str], int] = {}

    def inside(self, frame: int, name: str) -> int:
        number = self._inner.get((frame, name))
        if number is None:
            number = self._inner[frame, name] = len(self.parents)
            self.parents.append(frame)
            self._names.append(name)
        return number

    def text(self, frame: int) -> str:
        return f"loop {self._names[frame]!r}" if frame else "no loop"


class _Branches:
    """Sets of branches taken, (predicate node, its port, branch, frame), as numbers; 0 is none."""

    def __init__(self) -> None:
        self._sets: List[FrozenSet[Any]] = [frozenset()]
        self._numbers: Dict[FrozenSet[Any], int] = {frozenset(): 0}
        self._both: Dict[Tuple[int, int], int] = {}

    def _number(self, members: FrozenSet[Any]) -> int:
        number = self._numbers.setdefault(members, len(self._sets))
        if number == len(self._sets):
            self._sets.append(members)
        return number

    def both(self, first: int, second: int) -> int:
        if first == second or not second:
            return first
        if not first:
            return second
        union = self._both.get((first, second))
        if union is None:
            union = self._both[first, second] = self._number(self._sets[first] | self._sets[second])
        return union

    def common(self, numbers: Sequence[int]) -> int:
        if len(set(numbers)) == 1:
            return numbers[0]
        return self._number(frozenset.intersection(*(self._sets[n] for n in numbers)))

    def taking(self, number: int, predicate: Any) -> int:
        return self._number(self._sets[number] | {predicate})

    def outside(self, number: int, frame: int) -> int:
        """Without what was decided in a frame."""
        if not number:
            return 0
        return self._number(frozenset(p for p in self._sets[number] if p[3] != frame))


class _Nodes:
    """A graph's nodes by number, and their inputs as (number, port; -1 for control). An input that
    does not exist has the number -1, a name's second node is unknown to its consumers."""

    def __init__(self, graph: Any) -> None:
        self.nodes = list(graph.node)
        self.names: List[str] = [node.name for node in self.nodes]
        self.operations: List[str] = [node.op for node in self.nodes]
        self.references: List[List[str]] = [list(node.input) for node in self.nodes]
        self.number: Dict[str, int] = {}
        for i, name in enumerate(self.names):
            self.number.setdefault(name, i)
        number = self.number
        self.edges: List[List[Tuple[int, int]]] = []
        for references in self.references:
            edges = []
            for reference in references:
                source = number.get(reference)
                if source is not None:
                    edges.append((source, 0))
                else:
                    name, port = parse_reference(reference)
                    edges.append((number.get(name, -1), port))
            self.edges.append(edges)
        self.controlled = not CONTROL_FLOW.isdisjoint(self.operations)

    def order(self, ends: Mapping[int, Sequence[int]]) -> List[int]:
        """Numbers, inputs first and an Exit (a key of `ends`) after the ends of its loop's passes;
        without the nodes of a cycle and what comes after them."""
        operations, count = self.operations, len(self.nodes)
        merges = [op in MERGES for op in operations] if self.controlled else ()
        waiting, consumers = [0] * count, [[] for _ in range(count)]  # type: List[int], List[Any]
        for i, edges in enumerate(self.edges):
            known = 0
            for source, _ in edges:
                if source >= 0:
                    if merges and merges[i] and operations[source].endswith(LOOP_BACK):
                        continue
                    known += 1
                    consumers[source].append(i)
            waiting[i] = known
        for exit_, sources in ends.items():
            waiting[exit_] += len(sources)
            for source in sources:
                consumers[source].append(exit_)
        ordered = [i for i in range(count) if not waiting[i]]
        for i in ordered:
            for consumer in consumers[i]:
                waiting[consumer] -= 1
                if not waiting[consumer]:
                    ordered.append(consumer)
        return ordered


class Original:
    """Frames and branches of an untouched graph. Raises ValueError where it has a cycle."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.read = _Nodes(graph)
        self.frames, self.branches = _Frames(), _Branches()
        count = len(self.read.nodes)
        self.inner, self.outer = [0] * count, [0] * count
        self.alive, self.leaving = [0] * count, [0] * count
        self._ports: Dict[Tuple[int, int], int] = {}
        self.ends: Dict[str, List[str]] = {}  # of each Exit: the NextIteration nodes of its loop
        order = self.read.order({})
        if len(order) != count:
            raise ValueError("the graph has a cycle outside loops")
        if self.read.controlled:
            for i in order:
                self._place(i)
            self._find_ends()

    def _place(self, i: int) -> None:
        operations = self.read.operations
        operation = operations[i]
        merges = operation in MERGES
        frame, alive = 0, 0
        ways: List[int] = []
        for source, port in self.read.edges[i]:
            if source < 0 or (merges and operations[source].endswith(LOOP_BACK)):
                continue
            frame = frame or self.outer[source]
            taken = self.alive_at(source, port)
            if not merges:
                alive = self.branches.both(alive, taken)
            elif port >= 0:
                ways.append(taken)
        if ways:
            alive = self.branches.common(ways)
        self.inner[i] = self.outer[i] = frame
        self.alive[i] = self.leaving[i] = alive
        if operation in ENTERS:
            name = self.read.nodes[i].attr["frame_name"].s.decode(errors="replace")
            self.outer[i] = self.frames.inside(frame, name)
        elif operation in EXITS:
            self.outer[i] = self.frames.parents[frame]
            self.leaving[i] = self.branches.outside(alive, frame)

    def alive_at(self, source: int, port: int) -> int:
        """The branches in which an output has a value, or a node has run (port -1)."""
        alive = self.leaving[source]
        if port < 0 or self.read.operations[source] not in SWITCHES:
            return alive
        branches = self._ports.get((source, port))
        if branches is None:
            edges = self.read.edges
            chosen = edges[source][1] if len(edges[source]) > 1 else (source, 0)
            while self.read.operations[chosen[0]] == "Identity":  # a predicate by another name
                chosen = edges[chosen[0]][0]
            branches = self.branches.taking(alive, (*chosen, port, self.inner[source]))
            self._ports[source, port] = branches
        return branches

    def _find_ends(self) -> None:
        passes: Dict[int, List[str]] = {}
        for i, operation in enumerate(self.read.operations):
            if operation.endswith(LOOP_BACK):
                passes.setdefault(self.outer[i], []).append(self.read.names[i])
        for i, operation in enumerate(self.read.operations):
            if operation in EXITS:
                self.ends[self.read.names[i]] = passes.get(self.inner[i], [])


@dataclass
class _Checking:
    """One patched graph held against its original. `added` maps new nodes to the original node in
    whose place each is; a node that only keeps the name of a removed one is new, and in its own."""

    original: Original
    read: _Nodes
    types: Types
    added: Mapping[str, str]
    faults: List[Fault] = field(default_factory=list)
    # of new nodes, by number: frame in which they run, that of their outputs, branches
    inner: Dict[int, int] = field(default_factory=dict)
    outer: Dict[int, int] = field(default_factory=dict)
    alive: Dict[int, int] = field(default_factory=dict)
    unsound: Set[int] = field(default_factory=set)  # new nodes at fault, or after one that is

    def fault(self, i: int, what: str, reference: str = "") -> None:
        self.faults.append(Fault(self.read.names[i], what, reference))
        if self.read.names[i] in self.added:
            self.unsound.add(i)

    # Names

    def names(self, preserve: Iterable[str]) -> None:
        read = self.read
        if len(read.number) != len(read.names):
            for i, name in enumerate(read.names):
                if read.number[name] != i:
                    self.fault(i, "two nodes have this name")
        for i, edges in enumerate(read.edges):
            controls = False
            for position, (source, port) in enumerate(edges):
                if source < 0:
                    reference = read.references[i][position]
                    self.fault(i, f"input {reference!r} does not exist", reference)
                if port >= 0 and controls:
                    self.fault(i, "a data input comes after control inputs")
                controls = controls or port < 0
        for name in preserve:
            if name not in read.number:
                self.faults.append(Fault(name, "a node that must stay was removed", name))

    def places(self) -> None:
        """Colocation is by name, and names that were never there are another's concern."""
        for i, node in enumerate(self.read.nodes):
            attributes = node.attr
            if COLOCATION not in attributes:
                continue
            for text in attributes[COLOCATION].list.s:
                name = text.decode(errors="replace")
                if not name.startswith(LOCATION):
                    continue
                name = name[len(LOCATION) :]
                if name not in self.read.number and name in self.original.read.number:
                    self.fault(i, f"it is colocated with {name!r}, which was removed", name)

    # Types

    def outputs(self, i: int) -> Optional[Sequence[int]]:
        """Types of a node's outputs; None where they are not known."""
        node = self.read.nodes[i]
        if self.read.names[i] not in self.added:
            return self.types.get(self.read.names[i])
        if node.op in FUSIONS:
            return types_of(node, "Tout")
        if node.op in SIGNATURES:
            return _declared(node, SIGNATURES[node.op][1])
        return None

    def type_of(self, source: int, port: int) -> Optional[int]:
        known = self.outputs(source)
        return known[port] if known is not None and 0 <= port < len(known) else None

    def ports(self, i: int) -> None:
        for (source, port), reference in zip(self.read.edges[i], self.read.references[i]):
            known = self.outputs(source) if source >= 0 and port >= 0 else None
            if known is not None and port >= len(known):
                self.fault(i, f"{reference!r} is not an output", reference)

    def new_types(self, i: int) -> None:
        """A new node's inputs are what it declares."""
        node = self.read.nodes[i]
        expected: Optional[List[int]] = None
        if node.op in FUSIONS:
            expected = [*types_of(node, "Tin"), *types_of(node, "Thost")]
        elif node.op in SIGNATURES:
            expected = _declared(node, SIGNATURES[node.op][0])
        data = [edge for edge in self.read.edges[i] if edge[1] >= 0]
        if expected is None:
            return
        if len(expected) != len(data):
            self.fault(i, f"it declares {len(expected)} inputs and has {len(data)}")
            return
        for position, (wanted, (source, port)) in enumerate(zip(expected, data)):
            actual = self.type_of(source, port) if source >= 0 else None
            if actual is not None and actual not in (wanted, wanted + REFERENCE):
                what = f"input {position} is of type {actual}, not {wanted}"
                self.fault(i, what, self.read.references[i][position])

    def kept_types(self, i: int, before: int) -> None:
        """A node that stays gets as many inputs, of the types that it got before."""
        was, original = self.original.read.edges[before], self.original.read
        old = [edge for edge in was if edge[1] >= 0]
        new = [edge for edge in self.read.edges[i] if edge[1] >= 0]
        if len(old) != len(new):
            self.fault(i, f"it had {len(old)} inputs and has {len(new)}")
            return
        for position, ((old_source, old_port), (source, port)) in enumerate(zip(old, new)):
            known = self.types.get(original.names[old_source], ()) if old_source >= 0 else ()
            wanted = known[old_port] if old_port < len(known) else None
            actual = self.type_of(source, port) if source >= 0 else None
            if wanted is not None and actual is not None and wanted != actual:
                what = f"input {position} is of type {actual}, and was of {wanted}"
                self.fault(i, what, self.read.references[i][position])

    def functions(self, i: int) -> None:
        """What a changed node calls is in the library, with as many arguments as it is given."""
        node, library = self.read.nodes[i], self.original.graph.library
        for attribute in node.attr.values():
            if attribute.WhichOneof("value") != "func":
                continue
            called = attribute.func.name
            for function in library.function:
                if function.signature.name != called or not node.op.endswith("PartitionedCall"):
                    continue
                wanted = len(function.signature.input_arg)
                count = sum(port >= 0 for _, port in self.read.edges[i])
                if wanted != count:
                    self.fault(i, f"{called!r} takes {wanted} arguments and gets {count}")

    # Frames and branches

    def frame_of(self, source: int) -> Optional[int]:
        """The frame of a node's outputs; None where it is not known because of another fault."""
        if self.read.names[source] in self.added:
            return None if source in self.unsound else self.outer.get(source)
        before = self.original.read.number.get(self.read.names[source])
        return None if before is None else self.original.outer[before]

    def alive_at(self, source: int, port: int) -> int:
        if self.read.names[source] in self.added:
            return self.alive.get(source, 0)
        return self.original.alive_at(self.original.read.number[self.read.names[source]], port)

    def place(self, i: int) -> None:
        """A new node's frame and branches: those of its inputs."""
        frame: Optional[int] = None
        alive, sound = 0, True
        node, origin = self.read.nodes[i], self.added[self.read.names[i]]
        before = self.original.read.number.get(origin)
        for (source, port), reference in zip(self.read.edges[i], self.read.references[i]):
            source_frame = self.frame_of(source) if source >= 0 else None
            if source_frame is None:
                sound = False
                continue
            expected = frame if before is None or node.op in ENTERS else self.original.inner[before]
            if expected is not None and source_frame != expected:
                self._another_frame(i, reference, source_frame, expected)
                sound = False
            frame = source_frame if frame is None else frame
            alive = self.original.branches.both(alive, self.alive_at(source, port))
        self.inner[i] = self.outer[i] = frame = frame or 0
        self.alive[i] = alive
        if node.op in ENTERS:
            name = node.attr["frame_name"].s.decode(errors="replace")
            self.outer[i] = self.original.frames.inside(frame, name)
        if not sound:
            self.unsound.add(i)
        elif before is not None and (node.op in EFFECTS or origin == node.name):
            if frame != self.original.inner[before]:
                self._another_frame(i, "", frame, self.original.inner[before])
            elif alive != self.original.alive[before]:
                self.fault(i, f"it is not alive in the branches in which {origin!r} was")

    def _another_frame(self, i: int, reference: str, source_frame: int, expected: int) -> None:
        text = self.original.frames.text
        what = f"input {reference!r} is" if reference else "it is"
        self.fault(i, f"{what} in {text(source_frame)}, not in {text(expected)}", reference)

    def kept_place(self, i: int, before: int) -> None:
        """A node that stays is fed from its own frame, in the branches that it lived in."""
        original, merges = self.original, self.read.operations[i] in MERGES
        old = set(original.read.references[before])
        alive, ways, blamed = 0, [], ""
        for (source, port), reference in zip(self.read.edges[i], self.read.references[i]):
            new = canonical(reference) not in old and reference not in old
            frame = self.frame_of(source) if source >= 0 else None
            if frame is None:
                return  # said where it comes from
            if new:
                blamed = blamed or reference
                if frame != original.inner[before]:
                    self._another_frame(i, reference, frame, original.inner[before])
                    return
            alive = original.branches.both(alive, self.alive_at(source, port))
            ways.append(self.alive_at(source, port))
        if merges:
            was = original.read.edges[before]
            same = all(
                port < 0 or source < 0 or original.alive_at(source, port) == way
                for way, (source, port) in zip(ways, was)
            )
        else:
            same = alive == original.alive[before]
        if not same:
            self.fault(i, "it is not alive in the branches in which it was", blamed)

    # Cycles

    def cycles(self, ordered: Sequence[int]) -> None:
        """A fault for each cycle among the nodes that have no place in an order: at a new node of
        it, where there is one. Walking back from a node that waits, one always meets a cycle."""
        remaining = set(range(len(self.read.nodes))) - set(ordered)
        operations, names = self.read.operations, self.read.names
        seen: Dict[int, int] = {}
        for start in sorted(remaining):
            path: List[int] = []
            i: Optional[int] = start
            while i is not None and i not in seen:
                seen[i] = start
                path.append(i)
                sources = [s for s, _ in self.read.edges[i]]
                sources += [self.read.number[n] for n in self.original.ends.get(names[i], ())
                            if n in self.read.number]  # fmt: skip
                i = next(
                    (s for s in sources if s in remaining
                     and not (operations[i] in MERGES and operations[s].endswith(LOOP_BACK))),
                    None,
                )  # fmt: skip
            if i is not None and seen[i] == start and i in path:
                circle = path[path.index(i) :]
                self._cycle([*circle, i])

    def _cycle(self, circle: Sequence[int]) -> None:
        """Of nodes that each wait for the next: at an input that the patch has made."""
        edges = []
        for i, source in zip(circle, circle[1:]):
            before = self.original.read.number.get(self.read.names[i])
            for (other, _), reference in zip(self.read.edges[i], self.read.references[i]):
                new = before is None or reference not in self.original.read.references[before]
                if other == source and new:
                    edges.append((self.read.names[i] not in self.added, i, reference))
        _, node, reference = min(edges, default=(False, circle[0], ""))
        self.fault(node, f"it waits for itself ({len(circle) - 1} nodes in a cycle)", reference)


def check(
    original: Original,
    graph: Any,
    types: Types,
    added: Mapping[str, str],
    preserve: Iterable[str] = (),
) -> List[Fault]:
    """What is wrong with `graph`, a patched copy of the original's.

    `types` gives the output types of nodes that stay, where known; `added` maps each new node to
    the original node in whose place it is. `preserve` are the names that must be there.
    """
    read = _Nodes(graph)
    checking = _Checking(original, read, types, added)
    checking.names(preserve)
    checking.places()
    ends = {
        read.number[exit_]: [read.number[n] for n in names if n in read.number]
        for exit_, names in original.ends.items()
        if exit_ in read.number
    }
    ordered = read.order(ends)
    if len(ordered) != len(read.nodes):
        checking.cycles(ordered)
    changed = []
    for i in ordered:
        if read.names[i] in added:
            checking.ports(i)
            checking.new_types(i)
            checking.place(i)
            continue
        before = original.read.number.get(read.names[i])
        if before is None:
            checking.fault(i, "it is neither the original's nor the patch's")
        elif read.references[i] != original.read.references[before]:
            changed.append((i, before))
    for i, before in changed:
        checking.ports(i)
        checking.kept_types(i, before)
        checking.functions(i)
        checking.kept_place(i, before)
    return checking.faults


def staying(original: Original, removed: Container[int]) -> Tuple[Any, Dict[int, Any]]:
    """A copy of a graph without the nodes `removed`, and its nodes by their numbers. What they read
    of removed nodes is still there to be replaced."""
    graph = type(original.graph)()
    graph.CopyFrom(original.graph)
    del graph.node[:]
    read = original.read
    names = {name for i, name in enumerate(read.names) if i in removed}
    copies: Dict[int, Any] = {}
    for i, node in enumerate(read.nodes):
        if i not in removed:
            copies[i] = graph.node.add()
            copies[i].CopyFrom(node)
            part(copies[i], names)
    return graph, copies


def input_text(name: str, port: int) -> str:
    """An input as graphs write it; port -1 is a control edge."""
    return f"^{name}" if port < 0 else name if port == 0 else f"{name}:{port}"


def part(node: Any, removed: Container[str]) -> None:
    """Takes a node's colocation with removed nodes away: devices are given by now, and a name that
    does not exist is an error where the graph is imported."""
    if COLOCATION not in node.attr:
        return
    places = node.attr[COLOCATION].list.s
    start = len(LOCATION)
    present = [place for place in places if place.decode(errors="replace")[start:] not in removed]
    if len(present) == len(places):
        return
    del places[:]
    places.extend(present)
    if not present:
        del node.attr[COLOCATION]


def types_of(node: Any, name: str) -> List[int]:
    """A list attribute of types, none where it is absent. Looking it up would put an attribute
    without a value into the node, which TensorFlow refuses."""
    return list(node.attr[name].list.type) if name in node.attr else []


def _declared(node: Any, kinds: Sequence[Any]) -> List[int]:
    types = []
    for kind in kinds:
        if isinstance(kind, str):
            kind = node.attr[kind].type if kind in node.attr else DEFAULTS.get(kind, 0)
        types.append(kind)
    return types
