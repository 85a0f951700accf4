"""Loops with less to do in each pass: what does not change from pass to pass leaves them.

TensorFlow's executor takes 0.1 to 0.4 us for each operation of a pass, and a variable of a loop is
three of them (Merge, Switch, NextIteration). Of the 94 operations of a pass of an LSTM's training
about 50 do nothing but hand things on. So in a patched graph

- a variable that a loop hands on unchanged becomes a constant of the loop;
- constants, reads of variables that nothing writes meanwhile, and what only views such values are
  computed once, before the loop;
- a list onto which each pass pushes one value, for the loop of the gradient to pop, is left out
  where that value does not change: the gradient's loop reads it as its constant;
- the other such lists of one type become one list, onto which a pass pushes all of its values, and
  from which the gradient's pops them in the opposite order;
- a list that nothing pops is left out, and so are control edges that keep no order (loop_order.py).

All is by TensorFlow's own operations. A node that stays is alive in the branches in which it was,
and comes after whatever may fail that it came after. A loop in which anything has an effect (a
write, a random number) is left alone: its passes may overlap, and then the order of effects is that
of chance, which less work between them would change. The result is held against the rules of graphs
(structure.py); a loop at fault is left alone, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, FrozenSet, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

from . import loop_order, structure
from .digest import LOOP_BACK
from .loop_order import READ, READERS
from .structure import (
    CONTROL_FLOW,
    ENTERS,
    EXITS,
    MERGES,
    SWITCHES,
    Fault,
    Original,
    Types,
)

Tensor = Tuple[Any, int]
"""A node and its port (-1: control): a number of the graph's, or the name of a new one."""

EMPTY, PUSH, POP = "EmptyTensorList", "TensorListPushBack", "TensorListPopBack"
INT32 = 3
COUNTS = frozenset({3, 9, 10})  # int32, int64, bool
HANDLES = frozenset({20, 21})  # resource, variant
VIEWS: Mapping[str, Any] = {
    "Const": "dtype",
    "Identity": "T",
    "Reshape": "T",
    "Squeeze": "T",
    "ExpandDims": "T",
    "Split": "T",
    READ: "dtype",
    "TensorListElementShape": "shape_type",
    "TensorListLength": INT32,
}
"""What is computed once, before the loop, where its inputs do not change: it raises no errors and
holds no memory of its own to speak of. To the type of its outputs, or the attribute that names
it."""


@dataclass(frozen=True)
class Rewritten:
    """A graph, the nodes that it has anew to those in whose place they are, and how many nodes it
    runs in each pass of a loop no more."""

    graph: Any
    added: Mapping[str, str] = field(default_factory=dict)
    left_out: int = 0


def rewritten(graph: Any, prefix: str, preserve: Iterable[str], types: Types) -> Rewritten:
    """`graph` with less in its loops; itself where there is nothing to do. New nodes are called
    "stitch/<prefix>/loop<n>"; what `preserve` names stays. Never raises for a graph that
    structure.Original takes."""
    if not any(node.op == "LoopCond" for node in graph.node):
        return Rewritten(graph)
    original = Original(graph)
    kept = frozenset(preserve)
    left = loop_order.frames_with(original, loop_order.effects(original))
    while True:
        rewriting = _Rewriting(original, prefix, kept, frozenset(left))
        try:
            rewriting.plan()
        except _NothingStays as error:
            left.add(error.frame)
            continue
        result = rewriting.result()
        faults = structure.check(original, result, types, rewriting.origins, kept)
        if not faults:
            break
        at_fault = {rewriting.loop_of(fault) for fault in faults} - left
        if None in at_fault or not at_fault:
            return Rewritten(graph)
        left |= {frame for frame in at_fault if frame is not None}
    origins, count = rewriting.origins, len(rewriting.removed)
    tidied, more = loop_order.without_needless(Original(result), kept)
    if structure.check(original, tidied, types, origins, kept):
        return Rewritten(result, origins, count)
    return Rewritten(tidied, origins, count + more)


@dataclass(frozen=True)
class _Variable:
    """A loop's variable: its nodes, as numbers."""

    enter: int
    merge: int
    switch: int
    back: int
    exits: Tuple[int, ...]

    waits: bool
    """Whether its next value waits for an effect of the pass."""

    @property
    def nodes(self) -> Tuple[int, ...]:
        return (self.enter, self.merge, self.switch, self.back, *self.exits)


@dataclass(frozen=True)
class _Accumulator:
    """A list that a loop fills and its gradient's empties."""

    filled: _Variable
    push: int
    emptied: _Variable
    pop: int


class _NothingStays(Exception):
    """Of a loop nothing would be left that could stand for what is removed."""

    def __init__(self, frame: int) -> None:
        super().__init__(frame)
        self.frame = frame


class _Rewriting:
    """What becomes of a graph's loops but those of the frames in `left`."""

    def __init__(
        self, original: Original, prefix: str, preserve: FrozenSet[str], left: FrozenSet[int]
    ) -> None:
        self.original, self.read, self.prefix, self.left = original, original.read, prefix, left
        read = self.read
        self.preserved = {i for i, name in enumerate(read.names) if name in preserve}
        self.uses: List[List[Tuple[int, int]]] = [[] for _ in read.nodes]
        """Of each node: (consumer, position among its inputs)."""
        for i, edges in enumerate(read.edges):
            for position, (source, _) in enumerate(edges):
                self.uses[source].append((i, position))
        self.order = read.order({})
        self.place = {i: position for position, i in enumerate(self.order)}
        self.outside: Dict[Tuple[int, int], Tensor] = {}
        """Tensors that do not change in their loop: what they are outside it."""
        self.popped: Set[int] = set()
        """What pops an element that does not change: `outside` has what was pushed."""
        self.removed: Set[int] = set()
        self.overridden: Dict[Tuple[int, int], Tensor] = {}
        """(node, position among its inputs): another input."""
        self.after: Dict[int, List[Tensor]] = {}
        """New control inputs of nodes."""
        self.new: Dict[str, Any] = {}
        self.inputs: Dict[str, List[Tensor]] = {}
        self.origins: Dict[str, str] = {}
        self.frame_of_new: Dict[str, int] = {}
        self._constants: Dict[Tuple[int, Tensor], str] = {}
        self._copies: Dict[int, str] = {}
        self._pivots: Dict[int, str] = {}
        self._conditions: Dict[int, Set[int]] = {}
        self._lasts: Dict[int, str] = {}
        self._late = loop_order.after(original, loop_order.failing(original))
        self.variables: Dict[int, List[_Variable]] = {}

    def loop_of(self, fault: Fault) -> Optional[int]:
        """The frame whose rewriting answers for a fault."""
        if fault.node in self.frame_of_new:
            return self.frame_of_new[fault.node]
        i = self.read.number.get(fault.node)
        if i is None:
            return None
        return self.original.inner[i] or self.original.outer[i] or None

    # ---- what is there ---------------------------------------------------------------------------
    def _readers(self, i: int, port: int) -> List[int]:
        return [c for c, position in self.uses[i] if self.read.edges[c][position][1] == port]

    def _alone(self, i: int, consumers: Sequence[int]) -> bool:
        return [consumer for consumer, _ in self.uses[i]] == list(consumers)

    def _variable(self, merge: int) -> Optional[_Variable]:
        read, edges = self.read, self.read.edges
        if len(edges[merge]) != 2:
            return None
        (enter, first), (back, second) = edges[merge]
        if read.operations[enter] != "Enter" or read.operations[back] != LOOP_BACK:
            return None
        if first or second:
            return None
        if not self._alone(enter, [merge]) or not self._alone(back, [merge]):
            return None
        switches = [
            c for c, position in self.uses[merge] if read.operations[c] == "Switch" and not position
        ]
        if len(switches) != 1 or len(edges[switches[0]]) != 2:
            return None
        condition, _ = edges[switches[0]][1]
        if read.operations[condition] != "LoopCond":
            return None
        exits = []
        for consumer, position in self.uses[switches[0]]:
            port = edges[consumer][position][1]
            if port == 0:
                if read.operations[consumer] != "Exit":
                    return None
                exits.append(consumer)
        waits = any(port < 0 and self._late[source] for source, port in edges[back])
        entered = {source for source, port in edges[enter] if port < 0 and self._late[source]}
        waits = waits or not entered <= self._entered(condition)
        found = _Variable(enter, merge, switches[0], back, tuple(exits), waits)
        return None if self.preserved & set(found.nodes) else found

    def _entered(self, condition: int) -> Set[int]:
        """What the variables that decide whether a loop goes on waited for when they entered: all
        that its passes do comes after that."""
        if condition not in self._conditions:
            read, frame = self.read, self.original.inner[condition]
            found: Set[int] = set()
            seen, pending = {condition}, [condition]
            while pending:
                i = pending.pop()
                if read.operations[i] in ENTERS:
                    found |= {source for source, port in read.edges[i] if port < 0}
                    continue
                for source, _ in read.edges[i]:
                    closes = read.operations[source].endswith(LOOP_BACK)
                    if source not in seen and not closes and self.original.outer[source] == frame:
                        seen.add(source)
                        pending.append(source)
            self._conditions[condition] = found
        return self._conditions[condition]

    # ---- the plan --------------------------------------------------------------------------------
    def plan(self) -> None:
        read, frames = self.read, self.original.outer
        for i in self.order:
            if read.operations[i] in MERGES:
                found = self._variable(i)
                if found is not None and frames[i] not in self.left:
                    self.variables.setdefault(frames[i], []).append(found)
        loops = sorted(self.variables, key=lambda frame: self._first(frame))
        accumulators = self._accumulators()
        for frame in loops:
            self._leave(frame)
            for made in [a for a in accumulators if frames[a.filled.merge] == frame]:
                if self._constant(made):
                    accumulators.remove(made)
        self._join(accumulators)
        for i in self.order:
            if i not in self.removed:
                self._keep(i)

    def _first(self, frame: int) -> int:
        return min(self.place[v.enter] for v in self.variables[frame])

    def _accumulators(self) -> List[_Accumulator]:
        """Lists that are pushed onto once in each pass of a loop, and popped from once in each of
        another, and nothing else. Where the two loops belong to one frame and run in the same
        branches."""
        by_enter = {v.enter: v for variables in self.variables.values() for v in variables}
        found = []
        for filled in by_enter.values():
            push = self._only(filled, PUSH)
            if push is None or len(filled.exits) != 1:
                continue
            if self.read.operations[self.read.edges[filled.enter][0][0]] != EMPTY:
                continue
            users = self._left_with(filled)
            emptied = by_enter.get(users[0]) if len(users) == 1 else None
            if emptied is None or self._left_with(emptied):
                continue
            pop = self._only(emptied, POP)
            one = self.original
            waits = filled.waits or emptied.waits
            if pop is None or waits or one.inner[filled.enter] != one.inner[emptied.enter]:
                continue
            found.append(_Accumulator(filled, push, emptied, pop))
        return found

    def _left_with(self, variable: _Variable) -> List[int]:
        """What reads a variable's last value."""
        uses = [use for exit_ in variable.exits for use in self.uses[exit_]]
        return [c for c, position in uses if self.read.edges[c][position][1] >= 0]

    def _only(self, variable: _Variable, operation: str) -> Optional[int]:
        """The one node that makes a variable's next value of its value, which nothing else uses."""
        made, port = self.read.edges[variable.back][0]
        ok = (
            self.read.operations[made] == operation
            and port == 0
            and self._readers(variable.merge, 0) == [variable.switch]
            and self.read.edges[made][0] == (variable.switch, 1)
            and self._readers(variable.switch, 1) == [made]
            and self._readers(made, 0) == [variable.back]
            and made not in self.preserved
        )
        return made if ok else None

    # ---- what does not change --------------------------------------------------------------------
    def _leave(self, frame: int) -> None:
        """Finds what does not change in a loop, and removes it."""
        read, inner, outer = self.read, self.original.inner, self.original.outer
        members = [i for i in self.order if inner[i] == frame or outer[i] == frame]
        for i in members:
            if read.operations[i] == "Enter" and outer[i] == frame:
                if read.nodes[i].attr["is_constant"].b:
                    self.outside.setdefault((i, 0), read.edges[i][0])
        handed = [v for v in self.variables[frame] if self._is_handed_on(v)]
        if len(handed) == len(self.variables[frame]):
            handed = []  # the passes are counted by none of them
        for variable in self.variables[frame]:
            push = self._only(variable, PUSH)
            if push is not None and not self._left_with(variable) and not variable.waits:
                self.removed.update((*variable.nodes, push))
        for variable in handed:
            source = read.edges[variable.enter][0]
            self.outside[variable.merge, 0] = self.outside[variable.switch, 1] = source
            self.removed.update(variable.nodes)
        for i in members:
            if inner[i] == frame and i not in self.removed and self._is_constant(i):
                self.removed.add(i)
                for port in {read.edges[c][p][1] for c, p in self.uses[i]} - {-1}:
                    self.outside[i, port] = (i, port)

    def _is_handed_on(self, variable: _Variable) -> bool:
        if variable.waits:
            return False
        if self.read.nodes[variable.enter].attr["T"].type > structure.REFERENCE:
            return False
        source, port = self.read.edges[variable.back][0]
        if self._late[source]:
            return False
        while self.read.operations[source] == "Identity":
            source, port = self.read.edges[source][0]
        return (source, port) == (variable.switch, 1)

    def _is_constant(self, i: int) -> bool:
        """Whether a node of a loop can be computed once, before it."""
        operation, edges = self.read.operations[i], self.read.edges[i]
        if operation not in VIEWS or i in self.preserved or "GPU" in self.read.nodes[i].device:
            return False
        data = [tensor for tensor in edges if tensor[1] >= 0]
        if not all(tensor in self.outside for tensor in data):
            return False
        if not data and self._anchor(self.original.inner[i]) is None:
            return False
        for consumer, position in self.uses[i]:
            used_by = self.read.operations[consumer]
            control = self.read.edges[consumer][position][1] < 0
            if used_by in MERGES or used_by in EXITS or used_by == "LoopCond":
                return False
            if used_by.endswith(LOOP_BACK) and not control and consumer not in self.removed:
                return False
        return operation != READ or self._accesses(i) is not None

    def _accesses(self, read: int) -> Optional[Tuple[Set[int], Set[int]]]:
        """What else may write the variable that a node reads, before and after it; None where that
        has no order, or is in a loop."""
        origin = self._origin(self.read.edges[read][0])
        touching, pending = set(), [origin]
        while pending:
            tensor = pending.pop()
            for consumer, position in self.uses[tensor[0]]:
                if self.read.edges[consumer][position] != tensor:
                    continue
                if self.read.operations[consumer] in CONTROL_FLOW - ENTERS:
                    return None  # it may have other names
                if self.read.operations[consumer] in ("Enter", "Identity"):
                    pending.append((consumer, 0))
                elif self.read.operations[consumer] not in READERS:
                    touching.add(consumer)
        if not touching:
            return set(), set()
        frame = self.original.inner[read]
        if self.original.frames.parents[frame] or any(self.original.inner[t] for t in touching):
            return None
        before, after = self._reached(read, True), self._reached(read, False)
        if not touching <= before | after:
            return None
        return touching & before, touching & after

    def _origin(self, tensor: Tuple[int, int]) -> Tuple[int, int]:
        while self.read.operations[tensor[0]] in ("Enter", "Identity"):
            tensor = self.read.edges[tensor[0]][0]
        return tensor

    def _reached(self, start: int, backwards: bool) -> Set[int]:
        """Nodes on the ways to or from a node; an Exit comes after its loop's last pass."""
        read = self.read
        ends: Dict[int, List[int]] = {}
        for name, sources in self.original.ends.items():
            exit_ = read.number[name]
            for source in map(read.number.__getitem__, sources):
                pair = (exit_, source) if backwards else (source, exit_)
                ends.setdefault(pair[0], []).append(pair[1])
        seen, pending = {start}, [start]
        while pending:
            i = pending.pop()
            beside = [s for s, _ in read.edges[i]] if backwards else [c for c, _ in self.uses[i]]
            for other in (*beside, *ends.get(i, ())):
                if other not in seen:
                    seen.add(other)
                    pending.append(other)
        return seen - {start}

    # ---- lists -----------------------------------------------------------------------------------
    def _constant(self, made: _Accumulator) -> bool:
        """Leaves a list out whose elements are all one value."""
        value = self.read.edges[made.push][1]
        if value not in self.outside or self._late[made.push] or self._late[made.pop]:
            return False
        self.removed.update((*made.filled.nodes, made.push, *made.emptied.nodes, made.pop))
        self.outside[made.pop, 1] = value
        self.popped.add(made.pop)
        return True

    def _join(self, accumulators: Sequence[_Accumulator]) -> None:
        """Makes one list of those of one type that one loop fills and one empties."""
        alike: Dict[Any, List[_Accumulator]] = {}
        for made in sorted(accumulators, key=lambda a: self.place[a.push]):
            node = self.read.nodes[made.push]
            if node.attr["element_dtype"].type in HANDLES:
                continue
            key = (
                self.original.outer[made.filled.enter],
                self.original.outer[made.emptied.enter],
                node.attr["element_dtype"].type,
                node.device,
                self.read.nodes[made.pop].device,
            )
            alike.setdefault(key, []).append(made)
        for together in alike.values():
            filled = together[0].filled
            if len(together) > 1 and self._anchor(self.original.outer[filled.enter]) is not None:
                self._one_list(together)

    def _one_list(self, together: Sequence[_Accumulator]) -> None:
        first = together[0]
        empty = self.read.edges[first.filled.enter][0][0]
        self.overridden[first.filled.enter, 0] = (self._empty_list(empty, first), 0)
        for one, following in zip(together, together[1:]):
            self.overridden[following.push, 0] = (one.push, 0)
            self.overridden[one.pop, 0] = (following.pop, 0)
            self.removed.update((*following.filled.nodes, *following.emptied.nodes))
        self.overridden[first.filled.back, 0] = (together[-1].push, 0)
        self.overridden[together[-1].pop, 0] = (first.emptied.switch, 1)
        self.overridden[first.emptied.back, 0] = (first.pop, 0)

    def _empty_list(self, like: int, made: _Accumulator) -> str:
        """A list of any number of elements of any shapes."""
        node, frame = self.read.nodes[like], self.original.outer[made.filled.enter]
        unknown = self._add("Const", like, frame, [])
        attributes = self.new[unknown].attr
        attributes["dtype"].type = INT32
        attributes["value"].tensor.dtype = INT32
        attributes["value"].tensor.tensor_shape.SetInParent()
        attributes["value"].tensor.int_val.append(-1)
        controls = [t for t in self.read.edges[like] if t[1] < 0]
        self.inputs[unknown] = self._anchor(frame) or []
        name = self._add(EMPTY, like, frame, [(unknown, 0), (unknown, 0), *controls])
        self.new[name].attr["element_dtype"].CopyFrom(node.attr["element_dtype"])
        self.new[name].attr["shape_type"].type = INT32
        return name

    # ---- new nodes -------------------------------------------------------------------------------
    def _add(
        self,
        operation: str,
        like: int,
        frame: int,
        inputs: Sequence[Tensor],
        at: Optional[int] = None,
    ) -> str:
        """A node for a loop: outside it, or in its place of the node `at`."""
        name = f"stitch/{self.prefix}/loop{len(self.new)}"
        node = type(self.original.graph)().node.add(name=name, op=operation)
        node.device = self.read.nodes[like].device
        self.new[name], self.inputs[name] = node, list(inputs)
        at = self.variables[frame][0].enter if at is None else at
        self.origins[name], self.frame_of_new[name] = self.read.names[at], frame
        return name

    def _anchor(self, frame: int) -> Optional[List[Tensor]]:
        """Control inputs of what has no other, so that it runs where a loop is entered; None where
        nothing tells."""
        parent = self.original.frames.parents[frame]
        for variable in self.variables[frame]:
            source, _ = self.read.edges[variable.enter][0]
            alive = self.original.alive[variable.enter]
            if not parent and not alive:
                return []
            in_place = self.original.outer[source] == parent
            if in_place and self.original.leaving[source] == alive:
                return [(source, -1)]
        return None

    def _outer(self, tensor: Tensor) -> Tensor:
        """A tensor of a loop that does not change, outside it: a copy of what makes it."""
        found = self.outside[tensor]
        i = tensor[0]
        if i in self.popped:
            return self._outer(found)
        if found != tensor:  # of the frame around the loop: there it may be a constant, too
            if found[0] not in self.removed:
                return found
            if self.read.operations[found[0]] in EXITS:
                return (self._last(found[0], self._exit(self.original.inner[found[0]])), 0)
            return self._inside(found, self.original.outer[found[0]])
        if self.read.operations[i] == "Identity":
            return self._outer(self.read.edges[i][0])
        if i not in self._copies:
            frame = self.original.inner[i]
            data = [self._outer(t) for t in self.read.edges[i] if t[1] >= 0]
            inputs = data or self._anchor(frame) or []
            name = self._add(self.read.operations[i], i, frame, inputs)
            self._copies[i] = name
            self.new[name].attr.MergeFrom(self.read.nodes[i].attr)
            for attribute in self.read.nodes[i].attr:
                self.new[name].attr[attribute].CopyFrom(self.read.nodes[i].attr[attribute])
            if structure.COLOCATION in self.new[name].attr:
                del self.new[name].attr[structure.COLOCATION]
            if self.read.operations[i] == READ:
                accesses = self._accesses(i)
                before, after = accesses if accesses is not None else (set(), set())
                self.inputs[name] += [(write, -1) for write in sorted(before)]
                for write in sorted(after):
                    self.after.setdefault(write, []).append((name, -1))
        return (self._copies[i], tensor[1])

    def _inside(self, tensor: Tuple[int, int], frame: int) -> Tensor:
        """A tensor that does not change, as a constant of a loop."""
        outer = self._outer(tensor)
        if (frame, outer) not in self._constants:
            like = self.variables[frame][0].enter
            attributes = self.read.nodes[like].attr
            name = self._add("Enter", like, frame, [outer])
            for attribute in ("frame_name", "parallel_iterations"):
                self.new[name].attr[attribute].CopyFrom(attributes[attribute])
            self.new[name].attr["is_constant"].b = True
            self.new[name].attr["T"].type = self._type(tensor)
            self._constants[frame, outer] = name
        return (self._constants[frame, outer], 0)

    def _type(self, tensor: Tuple[int, int]) -> int:
        i, node = tensor[0], self.read.nodes[tensor[0]]
        operation = self.read.operations[i]
        if operation in MERGES or operation in SWITCHES or operation in ENTERS:
            return int(node.attr["T"].type)
        if operation == POP:
            return int(node.attr["element_dtype"].type)
        kind = VIEWS[operation]
        return int(node.attr[kind].type) if isinstance(kind, str) else int(kind)

    # ---- what stays ------------------------------------------------------------------------------
    def _dropped(self, i: int, seen: Set[int]) -> List[int]:
        """What a removed node waited for, through others that are removed."""
        found: List[int] = []
        for source, port in self.read.edges[i]:
            if source in seen:
                continue
            seen.add(source)
            if source in self.removed:
                found += self._dropped(source, seen)
            elif port < 0:
                found.append(source)
        return found

    def _keep(self, i: int) -> None:
        """New inputs of a node that stays."""
        read, frame = self.read, self.original.inner[i]
        lost: List[int] = []
        changed = False
        alive = 0
        both = self.original.branches.both
        for position, (source, port) in enumerate(read.edges[i]):
            if (i, position) in self.overridden:
                alive = both(alive, self._alive(self.overridden[i, position]))
                continue
            if source not in self.removed:
                alive = both(alive, self.original.alive_at(source, port))
                continue
            changed = True
            if read.operations[source] in EXITS:
                exit_ = self._exit(self.original.inner[source])
                if port >= 0:
                    self.overridden[i, position] = (self._last(source, exit_), 0)
                    alive = both(alive, self.original.leaving[source])
                    continue
                self.after.setdefault(i, []).append((exit_, -1))
                alive = both(alive, self.original.leaving[exit_])
                continue
            if port < 0 and read.operations[source] in SWITCHES:  # it runs in all passes
                self.after.setdefault(i, []).append((read.edges[source][1][0], -1))
                continue
            if port < 0 and read.operations[source] in MERGES:
                self.after.setdefault(i, []).append((self._staying(frame).merge, -1))
                continue
            lost += self._dropped(source, set())
            if port >= 0:
                self.overridden[i, position] = self._inside((source, port), frame)
                alive = both(alive, self._alive(self.overridden[i, position]))
        if not changed:
            return
        wanted = self.original.alive[i]
        for control in dict.fromkeys(lost):
            waits = self._late[control]
            here = self.original.outer[control] == frame
            brings = here and alive != wanted and self.original.leaving[control] == wanted
            if waits or brings:
                self.after.setdefault(i, []).append((control, -1))
                alive = both(alive, self.original.leaving[control])
        if alive != wanted:
            pivot = self._pivot(frame)
            if pivot is not None:
                self.after.setdefault(i, []).append((pivot, -1))

    def _last(self, exit_: int, other: int) -> str:
        """What a variable that does not change is after its loop: when another leaves it."""
        if exit_ not in self._lasts:
            switch = self.read.edges[exit_][0][0]
            source = self._outer((switch, 1))
            name = self._add("Identity", exit_, self.original.inner[exit_], [source, (other, -1)])
            self.new[name].attr["T"].type = self.read.nodes[switch].attr["T"].type
            self._lasts[exit_] = name
        return self._lasts[exit_]

    def _exit(self, frame: int) -> int:
        """An Exit of a loop that stays: what waited for one that does not waits for it."""
        return self._staying(frame, leaves=True).exits[0]

    def _staying(self, frame: int, leaves: bool = False) -> _Variable:
        """A variable of a loop that stays."""
        for variable in self.variables[frame]:
            if variable.merge not in self.removed and (variable.exits or not leaves):
                return variable
        raise _NothingStays(frame)

    def _alive(self, tensor: Tensor) -> int:
        if isinstance(tensor[0], str):
            return 0
        return self.original.alive_at(tensor[0], tensor[1])

    def _pivot(self, frame: int) -> Optional[str]:
        """Runs in each pass after which the loop goes on."""
        if frame not in self._pivots:
            for variable in self.variables[frame]:
                kind = self.read.nodes[variable.enter].attr["T"].type
                if variable.merge in self.removed or kind not in COUNTS:
                    continue
                switch = variable.switch
                name = self._add("Identity", switch, frame, [(switch, 1)], switch)
                self.new[name].attr["T"].type = kind
                self._pivots[frame] = name
                break
        return self._pivots.get(frame)

    # ---- the graph -------------------------------------------------------------------------------
    def result(self) -> Any:
        graph, copies = structure.staying(self.original, self.removed)
        for i, copy in copies.items():
            edges = self.read.edges[i]
            touched = i in self.after or any(
                source in self.removed or (i, position) in self.overridden
                for position, (source, _) in enumerate(edges)
            )
            if not touched:
                continue
            data, controls = [], set()
            for position, (source, port) in enumerate(edges):
                if port >= 0:
                    data.append(self._text(self.overridden.get((i, position), (source, port))))
                elif source not in self.removed:
                    controls.add(self._text((source, port)))
            controls.update(map(self._text, self.after.get(i, ())))
            del copy.input[:]
            copy.input.extend([*data, *sorted(controls)])
        for name, node in self.new.items():
            inputs = self.inputs[name]
            node.input.extend(self._text(tensor) for tensor in inputs if tensor[1] >= 0)
            node.input.extend(sorted({self._text(t) for t in inputs if t[1] < 0}))
            graph.node.add().CopyFrom(node)
        return graph

    def _text(self, tensor: Tensor) -> str:
        node, port = tensor
        name = node if isinstance(node, str) else self.read.names[node]
        return structure.input_text(name, port)
