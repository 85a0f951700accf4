"""From launches to a patch: StitchedFusion nodes in, the region's nodes out (contracts.md 5).

Control edges are dependences: those into a region's nodes lead into its launches, those out of them
come from the last. A variable that a region writes is written in place by the launch that computes
its new value; whoever still reads the old value as a tensor does so before. In a loop or a branch
all that is added runs in the region's frame, in each pass, where its branches are taken: handles
are those that the region's own nodes read, and what has no inputs waits for something that has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from tensorflow.core.framework import node_def_pb2, types_pb2
from tensorflow.python.framework import tensor_util

from stitchcore.artifact.manifest import AddedNode, Patch, RegionPatch
from stitchcore.errors import Reason, Refusal, Refused
from stitchcore.hlo.ir import dim as dims
from stitchcore.hlo.ir.dim import Dim
from stitchcore.inject import digest
from stitchcore.inject.structure import SWITCHES
from stitchcore.launch.cpu_table import TENSOR, VARIABLE, Binding, Guard, SymbolSource, launch_table
from stitchcore.launch.place import Constant, Input, Place, Temporary
from stitchcore.launch.region_program import RegionLaunch, RegionProgram, Result
from stitchcore.loop_ir import index
from stitchcore.tensorflow import lookups, placement
from stitchcore.tensorflow.control_edges import after_checks, dependents
from stitchcore.tensorflow.fusion_node import FusionNode, datatype, encoded, tensorflow_type
from stitchcore.tensorflow.graph import Edge
from stitchcore.tensorflow.lower import Argument, Subgraph
from stitchcore.tensorflow.op_allowlist import ALLOWED, CHECKED
from stitchcore.tensorflow.partition import (
    Partition,
    Region,
    is_view,
    is_whole_by_assumption,
    waits,
)
from stitchcore.tensorflow.variables import resolve

Chosen = tuple[Region, Subgraph, RegionProgram]


def patch(partition: Partition, chosen: Sequence[Chosen]) -> tuple[Patch, Mapping[str, Refusal]]:
    """The patch that puts every chosen region's launches in its place; and regions, by name, that
    stay as they were: GUARD_FAILED where a launch's symbols cannot be read off its inputs,
    CONTROL_FLOW where nothing outside tells in which passes and branches it runs, DOES_NOT_UNIFY
    and UNSUPPORTED_OPCODE where a result is no tensor that the graph can take."""
    ids = digest.number(partition.request, partition.preserve).ids
    builder = _PatchBuilder(partition, ids)
    patches: list[RegionPatch] = []
    refused: dict[str, Refusal] = {}
    for region, function, program in chosen:
        try:
            _RegionPatch(builder, region, function, program).write()
            patches.append(builder.take(region.name))
        except Refused as error:
            builder.take(region.name)
            refused[region.name] = replace(error.refusal, subject=region.name)
    return Patch(tuple(patches)), refused


_PARTS = frozenset("Sum Mean Max Min Prod StridedSlice Slice BroadcastTo Tile Pad PadV2".split())
"""Operations that hand on all they read by one shape, and a part or more by another."""

_SAME_ELEMENTS = frozenset(
    {"Sum", "StridedSlice", *(name for name, rule in ALLOWED.items() if rule.view)}
)
"""Operations that hand the elements of their first input on, in order, where all of them are left:
axes are added and taken by them."""


@dataclass
class _PatchBuilder:
    """The patch while it is written: of the region at hand, until `take`."""

    partition: Partition
    ids: Mapping[str, int]
    remove: list[int] = field(default_factory=list)
    add: list[AddedNode] = field(default_factory=list)
    rewire: list[tuple[str, str]] = field(default_factory=list)
    controls: list[tuple[str, str]] = field(default_factory=list)

    @cached_property
    def function(self) -> bool:
        """Whether the graph is a function's: its values leave by `_Retval` nodes alone."""
        return any(node.op == "_Retval" for node in self.partition.graph.nodes)

    @cached_property
    def raised_before(self) -> dict[int, tuple[int, ...]]:
        return lookups.raised_before(self.partition.graph)

    def take(self, name: str) -> RegionPatch:
        region_patch = RegionPatch(
            name, tuple(self.remove), tuple(self.add), tuple(self.rewire), tuple(self.controls)
        )
        for written in (self.remove, self.add, self.rewire, self.controls):
            written.clear()
        return region_patch

    def id(self, node: int) -> int:
        """A node's number in the request; of one that is not in it, of what it stands for."""
        node = self.partition.recomputed.get(node, Edge(node, 0)).node
        return self.ids[self.partition.graph.nodes[node].name]

    def tensor(self, edge: Edge) -> str:
        edge = self.partition.recomputed.get(edge.node, edge)
        return f"{self.id(edge.node)}:{edge.port}"


class _RegionPatch:
    """One region's part of the patch."""

    def __init__(
        self, builder: _PatchBuilder, region: Region, function: Subgraph, program: RegionProgram
    ) -> None:
        self.builder, self.region, self.partition = builder, region, builder.partition
        self.function, self.program = function, program
        self.graph = builder.partition.graph
        self.variables = builder.partition.variables
        self.device_of = builder.id(region.members[0])
        self.constants = 0
        self.readers: dict[Edge, list[str]] = {}
        self.writers: dict[Edge, str] = {}
        self.references: dict[Place, str] = {}
        self.before: tuple[str, ...] = ()
        self.handles = self._own_handles()
        self.stored = self._stored_updates()
        self.relying = self._relying()
        self.seen = self._first_seen()
        self.may_be_parts = any(
            is_whole_by_assumption(self.graph, self.partition.sizes, i)
            for i in region.members
            if self.graph.nodes[i].op in _PARTS
        )
        self.shapes = {place: program.outputs[n].dims for place, n in self.seen.items()}

    def write(self) -> None:
        builder, region = self.builder, self.region
        absorbed = self._absorbed()
        stay = self._views_that_stay()
        stay |= self._read_by(stay)
        removed = {*region.members, *region.absorbed, *absorbed} - stay
        controls = self._controls_in(removed)
        self.before = tuple(f"^{self.builder.id(control)}" for control in controls)
        self.before = (*self.before, *self._in_place(controls))
        self.before = (*self.before, *self._verifiers())
        names = [self._launch(n, launch) for n, launch in enumerate(self.program.launches)]
        assigned = self._assignments()
        known = (self.program.launches, assigned, self.readers, self.writers)
        builder.controls += after_checks(names, *known)
        names += assigned
        for handle, writer in self.writers.items():
            before = [r for r in self.readers.get(handle, ()) if r != writer]
            builder.controls += [(f"+{writer}", f"^+{reader}") for reader in before]
        self._hold_back_writers()
        last = names[0] if len(names) == 1 else self._join(names)
        for node in sorted(removed):
            builder.remove.append(builder.id(node))
            builder.rewire.append((f"^{builder.id(node)}", f"^+{last}"))
        outputs, after_writes = self.program.outputs, self._after_writes()
        for position, result in enumerate(region.results):
            if result.node in stay:
                continue
            self._require_checked(position)
            name = f"{region.name}_o{position}"
            target = self._reference(outputs[position], name)
            if result.node in after_writes:
                target = self._after_writers(target, name, result)
            builder.rewire.append((builder.tensor(result), target))

    def _after_writes(self) -> set[int]:
        """Members that wait for a write of the region, for its value or by a control edge: who asks
        for one of them asks for the write."""
        region, found = self.region, set(self.region.updates.values())
        if not found:
            return found
        position = {i: p for p, i in enumerate(self.graph.order)}
        within = (*region.clones, *region.members, *region.reads)
        for i in sorted(within, key=position.__getitem__):
            sources = (*(tensor.node for tensor in self.graph.data[i]), *self.graph.control[i])
            if any(source in found for source in sources):
                found.add(i)
        return found

    def _after_writers(self, reference: str, name: str, result: Edge) -> str:
        """The same tensor, once all is written that the region writes."""
        made_by, _, _ = reference.partition(":")
        others = [f"^+{writer}" for writer in dict.fromkeys(self.writers.values())]
        others = [writer for writer in others if writer != f"^{made_by}"]
        if not others:
            return reference
        kind = tensorflow_type(self.graph.dtype(result))
        return f"+{self._identity(f'{name}_written', reference, kind, others)}:0"

    def _hold_back_writers(self) -> None:
        """What may write a variable after a lookup waits for every launch that reads it."""
        for member in self.region.members:
            looked_up = lookups.variable_of(self.graph, member)
            if looked_up is None:
                continue
            for node in lookups.writers_after(self.graph, member):
                readers = self.readers.get(looked_up, ())
                self.builder.controls += [(str(self.builder.id(node)), f"^+{r}") for r in readers]

    # ---- what surrounds the region -------------------------------------------------------------
    def _absorbed(self) -> list[int]:
        """Reads of variables that nobody outside the region needs any more.

        In a session's graph (no `_Retval`) whatever must stay may be fetched.
        """
        inside = {*self.region.members, *self.region.reads}
        fetchable = set() if self.builder.function else set(self.builder.partition.preserve)
        looked_up = (lookups.from_before(self.graph, member) for member in self.region.members)
        verified = {tensor.node for before in looked_up for tensor in before.values()}
        return [
            read
            for read in self.region.reads
            if self.graph.nodes[read].name not in fetchable
            and read not in verified
            and all(consumer in inside for consumer, _ in self.graph.consumers[read])
        ]

    def _views_that_stay(self) -> set[int]:
        """Results that are views, in a shape with several unknown sizes, or one that is taken for a
        number, of what the region is given or gives; and the views between. No constant tells that
        shape, the graph's own operation knows it."""
        members, results = {*self.region.members}, {*self.region.results}
        stay: set[int] = set()
        for position, result in enumerate(self.region.results):
            if self._is_told(self.program.outputs[position]) and self._is_checked(position):
                continue
            views: set[int] = set()
            pending = [result.node]
            while pending and is_view(self.graph, pending[-1]):
                view = pending.pop()
                views.add(view)
                inputs = [t for t in self.graph.data[view] if t.node in members - views]
                pending += [tensor.node for tensor in inputs if tensor not in results]
            if not pending:
                stay |= views
        return stay

    def _read_by(self, stay: set[int]) -> set[int]:
        """The shape arithmetic that nodes which stay are given, though nobody else needs it."""
        read: set[int] = set()
        pending = list(stay)
        while pending:
            inputs = {tensor.node for tensor in self.graph.data[pending.pop()]}
            more = inputs & set(self.region.absorbed) - read
            read |= more
            pending += more
        return read

    def _is_checked(self, position: int) -> bool:
        """Whether an output of the region is right where a size that is taken for a number, or for
        another, is not that. A launch makes it, which then leaves it to TensorFlow's operations; or
        it has the elements of a tensor that is right, and both have their shapes whatever that size
        is."""
        place, dims = self.program.outputs[position].place, self.program.outputs[position].dims
        results = self.region.results
        if position in self.seen.values() or not self.relying:
            return True
        tensors = [argument.tensor for argument in self.relying]
        if isinstance(place, Constant) or position >= len(results):
            return not any(self._is_numbered(one) or self._is_fitted(one) for one in tensors)
        if self._is_fitted(results[position]) and self._made_in(place) != dims:
            return False  # its shape would be a constant
        taken = any(map(self._is_numbered, tensors))
        if not taken and not self.may_be_parts:
            return True
        if isinstance(place, Input):
            origin = self.function.arguments[place.position].tensor
        else:
            origin = results[self.seen[place]]
        of_origin, of_result = (set(self._handed_on(one)) for one in (origin, results[position]))
        if of_origin.isdisjoint(of_result):
            return False
        return not taken or not any(map(self._is_numbered, (origin, results[position])))

    def _handed_on(self, tensor: Edge) -> Iterator[Edge]:
        """A tensor, and those of which it has all elements, in order."""
        yield tensor
        while (operation := self.graph.nodes[tensor.node].op) in _SAME_ELEMENTS:
            if operation in _PARTS and (
                is_whole_by_assumption(self.graph, self.partition.sizes, tensor.node)
                or not (operation == "Sum" or is_view(self.graph, tensor.node))
            ):
                return
            tensor = self.graph.data[tensor.node][0]
            yield tensor

    def _require_checked(self, position: int) -> None:
        if not self._is_checked(position):
            detail = "a result by a size that is taken for a number, and made by no launch"
            raise Refused(self.region.name, Reason.DOES_NOT_UNIFY, detail)

    def _is_supposed(self, tensor: Edge) -> bool:
        sizes, name = self.partition.sizes, self.graph.nodes[tensor.node].name
        return (name, tensor.port) in sizes.supposed | sizes.fitted

    def _is_numbered(self, tensor: Edge) -> bool:
        return (self.graph.nodes[tensor.node].name, tensor.port) in self.partition.sizes.numbered

    def _is_fitted(self, tensor: Edge) -> bool:
        return (self.graph.nodes[tensor.node].name, tensor.port) in self.partition.sizes.fitted

    def _is_told(self, result: Result) -> bool:
        """Whether a constant tells a result's shape, if that is not the one it is made in."""
        return self._made_in(result.place) in (None, result.dims) or _unknown(result.dims) <= 1

    def _made_in(self, place: Place | Constant) -> tuple[Dim, ...] | None:
        """The shape in which a place is made; None of a constant."""
        if isinstance(place, Input):
            return self.function.arguments[place.position].dims
        return self.shapes.get(place) if isinstance(place, Temporary) else None

    def _own_handles(self) -> dict[Edge, Edge]:
        """Each variable's handle as the region's members read it: in a loop, what entered it."""
        handles: dict[Edge, Edge] = {}
        for node in self.region.members:
            for tensor in self.graph.data[node]:
                if self.graph.dtype(tensor) == "resource":
                    handles.setdefault(resolve(self.graph, tensor), tensor)
        return handles

    def _controls_in(self, removed: set[int]) -> list[int]:
        """Nodes outside that must run before the region, beside those whose tensors it reads: what
        its nodes wait for, reads of variables that it writes, inputs that no launch needs."""
        region, variables = self.region, self.variables
        controls = dict.fromkeys(waits(self.partition, region))
        for handle, update in region.updates.items():
            current = variables.before[update]
            for read in variables.reads[handle]:
                if read in removed or variables.before[read] != current:
                    continue
                if self._runs_here(read):
                    controls[read] = None
                else:  # whatever comes from there to the region comes by its inputs
                    controls |= dict.fromkeys(tensor.node for tensor in region.tensors)
        read_by_none = set(range(len(region.tensors)))
        for place in self._read_places():
            if isinstance(place, Input):
                read_by_none.discard(place.position)
        controls |= dict.fromkeys(
            region.tensors[position].node for position in sorted(read_by_none)
        )
        return list(controls)

    def _runs_here(self, node: int) -> bool:
        """Whether a node runs wherever the region does."""
        graph, member = self.graph, self.region.members[0]
        same = graph.frames[node] == graph.frames[member]
        return same and graph.deadness[node] <= graph.deadness[member]

    def _in_place(self, controls: Sequence[int]) -> list[str]:
        """Control inputs by which a node without others is in the region's frame and is dead where
        the region is. A Switch tells by its outputs alone which branch is taken."""
        graph, member = self.graph, self.region.members[0]
        entered = not graph.frames[member]
        missing = set(graph.deadness[member])
        for control in controls:
            entered = entered or graph.frames[control] == graph.frames[member]
            missing -= graph.deadness[control]
        control_inputs: list[str] = []
        for tensor in (*self.region.tensors, *self.handles.values()):
            if entered and not missing & graph.alive(tensor):
                continue
            entered, missing = True, missing - graph.alive(tensor)
            if graph.nodes[tensor.node].op in SWITCHES:
                name = f"{self.region.name}_taken{len(control_inputs)}"
                kind = tensorflow_type(graph.dtype(tensor))
                control_inputs.append(
                    f"^+{self._identity(name, self.builder.tensor(tensor), kind)}"
                )
            else:
                control_inputs.append(f"^{self.builder.id(tensor.node)}")
        if missing or not entered:
            detail = "nothing outside tells where it runs"
            raise Refused(self.region.name, Reason.CONTROL_FLOW, detail)
        return control_inputs

    def _identity(self, name: str, reference: str, kind: int, before: Sequence[str] = ()) -> str:
        node = node_def_pb2.NodeDef()
        node.attr["T"].type = kind
        inputs = (reference, *before)
        self.builder.add.append(AddedNode(name, "Identity", encoded(node), self.device_of, inputs))
        return name

    def _verifiers(self) -> list[str]:
        """What fails as the region's lookups would (lookups.py): control inputs of its launches.
        Lookups of one tensor in as many rows share one, and so do sums. They run one after another,
        each after what TensorFlow would have raised before without waiting for the region."""
        verifiers: dict[tuple[str, int | str, str, int], str] = {}
        looked_up = any(lookups.unproved(self.graph, i) is not None for i in self.region.members)
        waiting = lookups.after(self.graph, self.region.members) if looked_up else set()
        for member in self.region.members:
            indices = lookups.unproved(self.graph, member)
            rows = None if indices is None else lookups.rows(self.graph, member)
            if indices is None or rows is None:
                continue
            counted = self._counted(member, rows)
            operation = lookups.verifier(self.graph, member).op
            axis = lookups.axis(self.graph, member) or 0
            place = (self.builder.tensor(indices), counted, operation, axis)
            if place not in verifiers:
                verifiers[place] = f"{self.region.name}_verify{len(verifiers)}"
                earlier = [f"^+{name}" for name in list(verifiers.values())[-2:-1]]
                for node in self.builder.raised_before[member]:
                    if node not in waiting:  # for the region itself
                        earlier.append(f"^{self.builder.id(node)}")
                self._verify(verifiers[place], member, *place[:2], tuple(earlier))
        return [f"^+{name}" for name in verifiers.values()]

    def _counted(self, member: int, rows: int) -> int | str:
        """How many rows a lookup has, or the tensor that says so: indices are checked before the
        region, whoever runs that then. Raises Refused where that many are only assumed."""
        operands = self.graph.data[member]
        sums = self.graph.nodes[member].op == lookups.SEGMENT_SUM
        if lookups.is_told_by_table(self.graph, member):
            return self.builder.tensor(operands[0])
        if rows >= 0 and not self._is_supposed(Edge(member, 0) if sums else operands[0]):
            return rows
        if sums and operands[2].node not in self.region.members:
            return self.builder.tensor(operands[2])
        detail = "a lookup in so many rows as a size is taken for"
        raise Refused(self.region.name, Reason.DOES_NOT_UNIFY, detail)

    def _verify(
        self, name: str, member: int, indices: str, rows: int | str, earlier: tuple[str, ...]
    ) -> None:
        """`rows`: how many, or the tensor that says so: a number of segments, or a table."""
        node = lookups.verifier(self.graph, member)
        if node.op == lookups.SEGMENT_SUM:
            counted = self.graph.dtype(self.graph.data[member][2])
            count = rows if isinstance(rows, str) else self._const(np.asarray(rows, counted))
            operands = (indices, indices, count)
        elif isinstance(rows, str):
            axis = lookups.axis(self.graph, member) or 0
            table = self._first_column(member, rows, axis)
            operands = (table, indices, self._const(np.asarray(axis, np.int32)))
        else:
            table = self._const(np.asarray(0, np.uint8), (rows,))
            operands = (table, indices, self._const(np.asarray(0, np.int32)))
        inputs = (*operands, *self.before, *earlier)
        place = self.builder.id(member)  # whose error it raises
        self.builder.add.append(AddedNode(name, node.op, encoded(node), place, inputs))

    def _first_column(self, member: int, table: str, axis: int) -> str:
        """A table of a lookup, all of `axis` and the first place of all else."""
        name = f"{self.region.name}_rows{self.constants}"
        rank = len(lookups.table_shape(self.graph, member) or ())
        node = node_def_pb2.NodeDef()
        node.attr["T"].CopyFrom(self.graph.nodes[member].attr["Tparams"])
        node.attr["Index"].type = types_pb2.DT_INT32
        node.attr["begin_mask"].i = node.attr["end_mask"].i = 1 << axis
        ends = [self._const(np.full(rank, at, np.int32)) for at in (0, 1, 1)]
        place = self.builder.id(member)
        self.builder.add.append(
            AddedNode(name, "StridedSlice", encoded(node), place, (table, *ends))
        )
        return f"+{name}:0"

    # ---- launches ------------------------------------------------------------------------------
    def _read_places(self) -> list[Place | Constant]:
        """What launches and the region's outputs read, as often as they do."""
        program = self.program
        read = [place for launch in program.launches for place in launch.inputs]
        return [*read, *(output.place for output in program.outputs)]

    def _stored_updates(self) -> dict[Place, Edge]:
        """Outputs of launches that a variable takes, written in place by the launch itself."""
        first = len(self.region.results)
        uses = Counter(self._read_places())
        stored: dict[Place, Edge] = {}
        for position, handle in enumerate(self.region.updates):
            place = self.program.outputs[first + position].place
            if isinstance(place, Temporary) and uses[place] == 1:
                launches = enumerate(self.program.launches)
                writer = next(n for n, launch in launches if place in launch.outputs)
                if not self._read_after(handle, writer):
                    stored[place] = handle
        return stored

    def _read_after(self, handle: Edge, writer: int) -> bool:
        """Whether a launch that needs the writer's outputs, or its fallback, reads the variable's
        old value: then the writer may not store in place (an assignment after all readers does)."""
        waiting = dependents(self.program.launches, writer)
        read = [
            n for n, a in enumerate(self.function.arguments) if a.variable and a.tensor == handle
        ]
        launches = [self.program.launches[n] for n in waiting]
        places = [place for launch in launches for place in launch.inputs]
        for launch in launches:
            places += launch.fallback.arguments if launch.fallback is not None else ()
        return any(isinstance(place, Input) and place.position in read for place in places)

    def _first_seen(self) -> dict[Place, int]:
        """Outputs of launches to the first of the region's outputs that each is."""
        seen: dict[Place, int] = {}
        for position, output in enumerate(self.program.outputs):
            if isinstance(output.place, Temporary):
                seen.setdefault(output.place, position)
        return seen

    def _launch(self, number: int, launch: RegionLaunch) -> str:
        name = f"{self.region.name}_{number}"
        node = FusionNode(name)
        inputs = [self._input(node, name, place) for place in launch.inputs]
        outputs: list[tuple[Binding, tuple[index.Index, ...]]] = []
        for place, buffer in launch.written:
            seen = self.shapes.get(place)
            sizes = buffer.dims if seen is None else tuple(map(index.from_dim, seen))
            handle = self.stored.get(place)
            if handle is not None:
                self.writers[handle] = name
                binding = Binding(VARIABLE, node.resource(self._handle(handle)))
            else:
                binding = Binding(TENSOR, len(node.output_types))
                self.references[place] = f"+{name}:{binding.position}"
                node.output_types.append(datatype(buffer.dtype))
                position = self.seen.get(place, len(self.region.results))
                results = self.region.results[position : position + 1]
                told = not any(map(self._is_supposed, results))
                node.output_dims.append(tuple(_static(size) if told else -1 for size in sizes))
            outputs.append((binding, sizes))
        self._fallback_inputs(launch, node, name)
        sources, guards = self._symbols(launch, node)
        guards += self._written_guards(launch, inputs)
        guards = self._with_parts(launch, guards)
        table = launch_table(launch.kernel, sources, inputs, outputs, guards)
        device_of = self._raising() if launch.kernel.errors else self.device_of
        self.builder.add.append(node.fusion(launch, table, device_of, self.before))
        return name

    def _raising(self) -> int:
        """Id of the region's first operation that raises the errors of checks: they are told as
        its own."""
        raising = (m for m in self.region.members if self.graph.nodes[m].op in CHECKED)
        first = next(raising, None)
        return self.device_of if first is None else self.builder.id(first)

    def _input(self, node: FusionNode, name: str, place: Place | Constant) -> Binding:
        if isinstance(place, Input):
            argument = self.function.arguments[place.position]
            reference = self.builder.tensor(argument.tensor)
            if argument.variable:
                self.readers.setdefault(argument.tensor, []).append(name)
                return Binding(VARIABLE, node.resource(self._handle(argument.tensor)))
            return Binding(TENSOR, node.tensor(reference, argument))
        if isinstance(place, Constant):
            return Binding(TENSOR, node.plain(*self._constant(place)))
        return Binding(TENSOR, self._written_input(node, place))

    def _written_input(self, node: FusionNode, place: Place) -> int:
        kind = datatype(self.program.buffers[place].dtype)
        return node.plain(self.references[place], kind)

    def _fallback_inputs(self, launch: RegionLaunch, node: FusionNode, name: str) -> None:
        """What the launch's fallback takes becomes inputs of the node."""
        for place in launch.fallback.arguments if launch.fallback is not None else ():
            if not isinstance(place, Input):
                self._written_input(node, place)
                node.fallback_references.append(self.references[place])
                continue
            argument = self.function.arguments[place.position]
            tensor = argument.tensor
            reference = self._handle(tensor) if argument.variable else self.builder.tensor(tensor)
            node.fallback_references.append(reference)
            if argument.variable:
                if name not in self.readers.setdefault(argument.tensor, []):
                    self.readers[argument.tensor].append(name)
                node.resource(reference)
            elif reference not in node.inputs and self._is_hosted(argument):
                node.hosted[reference] = tensorflow_type(argument.dtype)
            else:
                node.plain(reference, tensorflow_type(argument.dtype))

    def _is_hosted(self, argument: Argument) -> bool:
        on_gpu = self.partition.kind == placement.GPU
        return on_gpu and placement.in_host_memory(self.graph, argument.tensor)

    def _written_guards(self, launch: RegionLaunch, inputs: Sequence[Binding]) -> list[Guard]:
        """The shapes of what earlier launches hand on. One that was left to its fallback hands
        nothing on that is no tensor of the graph (an empty one): then this launch is too."""
        guards = []
        for place, binding in zip(launch.inputs, inputs, strict=True):
            if not isinstance(place, Temporary):
                continue
            seen = self.shapes.get(place)
            if seen is not None and _known(seen, launch.kernel.symbols):
                guards.append(Guard(binding.position, tuple(map(index.from_dim, seen))))
            dims = self.program.buffers[place].dims
            known = set(launch.kernel.symbols)
            if seen is None and all(index.names(dim) <= known for dim in dims):
                guards.append(Guard(binding.position, dims))
        return guards

    def _with_parts(self, launch: RegionLaunch, guards: list[Guard]) -> list[Guard]:
        """Guards by which the launch is left to its fallback, too, where a part of a tensor would
        not lie within it, or a value is another one at so small sizes: a size that is checked is
        larger by as much."""
        excess: index.Index = 0
        for dim in dict.fromkeys((*self.program.never_positive, *self._otherwise())):
            if dims.symbols_of(dim) <= {*launch.kernel.symbols}:
                excess = index.add(excess, index.maximum(0, index.from_dim(dim)))
        if excess == 0:
            return guards
        number = next((n for n, guard in enumerate(guards) if guard.dims), None)
        if number is None:
            detail = "no input whose shape is checked tells whether parts lie within tensors"
            raise Refused(self.region.name, Reason.GUARD_FAILED, detail)
        first, *others = guards[number].dims
        checked = Guard(guards[number].op_input, (index.add(first, excess), *others))
        return [*guards[:number], checked, *guards[number + 1 :]]

    def _otherwise(self) -> Iterator[Dim]:
        """What must not be positive for copied values to be what kernels take them for. Of sizes
        that the function knows as a product alone, that must be no less than two."""
        for clone in self.region.clones:
            for dim in self.partition.otherwise.get(clone, ()):
                known = dims.substitute(dim, self.function.solved)
                yield known
                for fresh, product in self.function.own.items():
                    told = dims.symbols_of(known) <= {*self.function.symbols}
                    if not told and dims.symbols_of(dim) <= dims.symbols_of(product):
                        yield 2 - dims.symbol(fresh)

    def _handle(self, variable: Edge) -> str:
        return self.builder.tensor(self.handles[variable])

    def _symbols(
        self, launch: RegionLaunch, node: FusionNode
    ) -> tuple[list[SymbolSource], list[Guard]]:
        """Where the launch's symbols come from, and what it checks.

        Whoever relies on an assumption about sizes checks all that the region knows by it: where it
        does not hold, the outputs of launches before have other shapes too. All that a launch reads
        is checked as well, constants aside: Grappler gives a tensor the sizes that operations
        demand of it, or of what it was made of, and what would have raised the error may be in the
        region.
        """
        symbol_axes = [self._source_of(symbol) for symbol in launch.kernel.symbols]
        for argument in (*(argument for argument, *_ in symbol_axes), *self.relying):
            reference = self.builder.tensor(argument.tensor)
            if reference not in node.inputs and self._is_hosted(argument):
                node.hosted[reference] = tensorflow_type(argument.dtype)
                continue
            node.tensor(reference, argument)
        sources = []
        for argument, axis, scale, offset in symbol_axes:
            position = node.tensor(self.builder.tensor(argument.tensor), argument)
            sources.append(SymbolSource(position, axis, scale, offset))
        for argument in self.relying:
            node.tensor(self.builder.tensor(argument.tensor), argument)
        guards = [
            Guard(position, tuple(index.from_dim(dim) for dim in argument.dims))
            for position, argument in node.arguments.items()
            if self.graph.nodes[argument.tensor.node].op != "Const"
            and _known(argument.dims, launch.kernel.symbols)
        ]
        return sources, guards

    def _relying(self) -> list[Argument]:
        """Arguments of the region whose shape is known by an assumption."""
        sizes = self.partition.sizes

        def relies(argument: Argument) -> bool:
            if self._is_supposed(argument.tensor):
                return True
            known = (sizes.dim(size) for size in self.graph.shape(argument.tensor) or ())
            return any(dims.symbols_of(dim) & sizes.assumed for dim in known if dim is not None)

        tensors = (argument for argument in self.function.arguments if not argument.variable)
        return [argument for argument in tensors if relies(argument)]

    def _source_of(self, symbol: str) -> tuple[Argument, int, int, int]:
        found = _source_of(symbol, self.function.arguments)
        if found is None:
            detail = f"no input gives the size {symbol}"
            raise Refused(self.region.name, Reason.GUARD_FAILED, detail)
        return found

    # ---- values that no launch stores ----------------------------------------------------------
    def _assignments(self) -> dict[str, Place | Constant]:
        """AssignVariableOp nodes for new values that are also used as tensors, or not computed."""
        first = len(self.region.results)
        assigned = {}
        for position, handle in enumerate(self.region.updates):
            result = self.program.outputs[first + position]
            if result.place in self.stored:
                continue
            if not isinstance(result.place, Temporary):
                self._require_checked(first + position)
            name = f"{self.region.name}_assign{position}"
            value = self._reference(result, f"{name}_value")
            update = self.region.updates[handle]
            node = node_def_pb2.NodeDef()
            attributes = self.graph.nodes[update].attr
            node.attr["dtype"].CopyFrom(attributes["dtype" if "dtype" in attributes else "T"])
            inputs = (self._handle(handle), value, *self.before)
            self.builder.add.append(
                AddedNode(name, "AssignVariableOp", encoded(node), self.device_of, inputs)
            )
            self.writers[handle] = name
            assigned[name] = result.place
        return assigned

    def _reference(self, result: Result, name: str) -> str:
        """A tensor reference to `result`, through a Reshape where its shape differs."""
        place = result.place
        if isinstance(place, Constant):
            return self._constant(place, result.dims)[0]
        if isinstance(place, Input):
            argument = self.function.arguments[place.position]
            if argument.variable:
                detail = "a variable's value leaves the region unchanged"
                raise Refused(self.region.name, Reason.UNSUPPORTED_OPCODE, detail)
            reference, kind = self.builder.tensor(argument.tensor), tensorflow_type(argument.dtype)
            if self.before:  # what reads the result may count on what the region waits for
                reference = f"+{self._identity(f'{name}_given', reference, kind, self.before)}:0"
            return self._reshaped(reference, argument.dims, result.dims, kind, name)
        kind = datatype(self.program.buffers[place].dtype)
        shape = self.shapes[place]
        return self._reshaped(self.references[place], shape, result.dims, kind, name)

    def _reshaped(
        self,
        reference: str,
        current: tuple[Dim, ...],
        wanted: tuple[Dim, ...],
        kind: int,
        name: str,
    ) -> str:
        if current == wanted:
            return reference
        sizes = [dim if isinstance(dim, int) else -1 for dim in wanted]
        if _unknown(wanted) > 1:
            detail = "a shape with two unknown sizes"
            raise Refused(self.region.name, Reason.DOES_NOT_UNIFY, detail)
        shape = self._const(np.asarray(sizes, np.int32))
        node = node_def_pb2.NodeDef()
        node.attr["T"].type = kind
        node.attr["Tshape"].type = types_pb2.DT_INT32
        self.builder.add.append(
            AddedNode(name, "Reshape", encoded(node), self.device_of, (reference, shape))
        )
        return f"+{name}:0"

    def _constant(
        self, constant: Constant, wanted: tuple[Dim, ...] | None = None
    ) -> tuple[str, int]:
        array = constant.literal.array
        if wanted is not None:
            array = array.reshape([dim for dim in wanted if isinstance(dim, int)])
        return self._const(array), datatype(constant.literal.dtype)

    def _const(self, array: np.ndarray[Any, Any], shape: tuple[int, ...] | None = None) -> str:
        """An array, or a tensor of `shape` with one value."""
        name = f"{self.region.name}_c{self.constants}"
        self.constants += 1
        node = node_def_pb2.NodeDef()
        node.attr["dtype"].type = tensorflow_type(array.dtype.name)
        node.attr["value"].tensor.CopyFrom(tensor_util.make_tensor_proto(array, shape=shape))
        self.builder.add.append(
            AddedNode(name, "Const", encoded(node), self.device_of, self.before)
        )
        return f"+{name}:0"

    def _join(self, names: Sequence[str]) -> str:
        name = f"{self.region.name}_done"
        inputs = tuple(f"^+{other}" for other in names) or self.before
        self.builder.add.append(
            AddedNode(name, "NoOp", encoded(node_def_pb2.NodeDef()), self.device_of, inputs)
        )
        return name


def _unknown(shape: tuple[Dim, ...]) -> int:
    return sum(not isinstance(dim, int) for dim in shape)


def _source_of(symbol: str, arguments: Sequence[Argument]) -> tuple[Argument, int, int, int] | None:
    """(argument, axis, scale, offset) of a tensor dimension that is scale * symbol + offset."""
    best = None
    for argument in arguments:
        if argument.variable:
            continue
        for axis, dim in enumerate(argument.dims):
            if isinstance(dim, int) or dims.symbols_of(dim) != {symbol}:
                continue
            offset = dims.evaluate(dim, {symbol: 0})
            scale = dims.evaluate(dim, {symbol: 1}) - offset
            if scale > 0 and dim == dims.symbol(symbol) * scale + offset:
                if best is None or scale < best[2]:
                    best = (argument, axis, scale, offset)
    return best


def _known(sizes: tuple[Dim, ...], symbols: Sequence[str]) -> bool:
    return all(name in symbols for dim in sizes for name in dims.symbols_of(dim))


def _static(dim: index.Index) -> int:
    return dim if isinstance(dim, int) else -1
