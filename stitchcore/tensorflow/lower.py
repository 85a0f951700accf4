"""Regions as HLO: a region's nodes become a function of tensors, lowered by TensorFlow's tf2xla.

Reads of variables become arguments, writes results. Each unknown dimension of an input is a symbol:
the function is lowered at several sizes of each and the texts are unified (hlo/symbolic/unify.py).
Equal structures share one lowering (`Subgraph.key`). Constants that the text elides are taken from
the serialized module.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from stitchcore.errors import Reason, Refused
from stitchcore.hlo.ir.dim import Dim, evaluate, primitive, substitute, symbol, symbols_of
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.symbolic.unify import unify
from stitchcore.hlo.text.parser import parse
from stitchcore.tensorflow import lookups, op_allowlist, placement, semantics
from stitchcore.tensorflow.graph import Edge
from stitchcore.tensorflow.node_roles import value_like
from stitchcore.tensorflow.partition import Partition, Region
from stitchcore.tensorflow.size_points import points
from stitchcore.tensorflow.size_values import OF_SHAPES
from stitchcore.tensorflow.symbolic_sizes import JUDGED_SIZE
from stitchcore.tensorflow.updates import UPDATES, flag_of
from stitchcore.tensorflow.variables import resolve

RUNNABLE = frozenset(op_allowlist.ALLOWED) | op_allowlist.SHAPE_OPERATIONS | {"Const", "NoOp"}
"""Operations of a graph that may run here."""

KEPT_ATTRIBUTES_DROPPED = frozenset({"_output_shapes", "_class", "_grappler_do_not_remove"})


@dataclass(frozen=True)
class Argument:
    """An argument of the region's function: a tensor, or the value of a variable."""

    tensor: Edge
    variable: bool
    dtype: str
    dims: tuple[Dim, ...]


@dataclass(frozen=True)
class Subgraph:
    """A region as a function. `results` are (node name, port) in `graph`, in the order of the
    region's results, then of its updates. `key` identifies the structure, whatever its names.
    `origins[k]` is the partition's number of the node that is called n{k} here (for reports).
    `kind` is that of the device whose rules its operations follow (semantics.py). Where symbols
    depend on each other, `points` and `judged` are sizes that go together, to lower and to judge.
    `own` are symbols that the graph has not, with what each is of the graph's, `solved` such of the
    graph as these tell, with what each is of the function's. `unfolded` are nodes that are to be
    lowered as operations, though they are made of sizes alone.
    """

    graph: Any
    arguments: tuple[Argument, ...]
    results: tuple[tuple[str, int], ...]
    symbols: tuple[str, ...]
    key: str
    origins: tuple[int, ...] = ()
    kind: str = placement.CPU
    points: tuple[Mapping[str, int], ...] = ()
    judged: Mapping[str, int] = field(default_factory=dict)
    own: Mapping[str, Dim] = field(default_factory=dict)
    solved: Mapping[str, Dim] = field(default_factory=dict)
    unfolded: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Lowered:
    """A region's module: parameter i is argument i, output i is result i of the subgraph."""

    subgraph: Subgraph
    module: Module
    texts: tuple[tuple[Mapping[str, int], str], ...]


def subgraph(partition: Partition, region: Region) -> Subgraph:
    """The function that `region` computes: what runs of a stranger's graph.

    Raises Refused(UNKNOWN_RANK, UNSUPPORTED_TYPE), and NOT_ALLOWED_OPERATION for an operation that
    is on no list, whatever let it into the region.
    """
    function = _Builder(partition, region).build()
    for node in function.graph.node:
        if node.op not in RUNNABLE:
            raise Refused(node.op, Reason.NOT_ALLOWED_OPERATION, "it may not run in a worker")
    return function


class _Builder:
    """Builds the function's graph with canonical names (a0, n0, ...)."""

    def __init__(self, partition: Partition, region: Region) -> None:
        self.partition, self.region = partition, region
        self.index = partition.graph
        self.names: dict[Edge, tuple[str, int]] = {}
        self.arguments: list[Argument] = []
        self.origins: list[int] = []
        self.result = graph_pb2.GraphDef()
        self.result.versions.CopyFrom(self.index.graph.versions)

    def build(self) -> Subgraph:
        region, variables = self.region, self.partition.variables
        for tensor in region.tensors:
            self._argument(tensor, tensor, variable=False)
        values = {handle: self._variable(handle) for handle in region.variables}
        for read in region.reads:
            origin = variables.handle[read]
            if variables.before[read] != region.updates[origin]:
                self.names[Edge(read, 0)] = values[origin]
        position = {i: p for p, i in enumerate(self.index.order)}
        updated: dict[Edge, tuple[str, int]] = {}
        for i in sorted((*region.clones, *region.members, *region.reads), key=position.__getitem__):
            node = self.index.nodes[i]
            if node.op == op_allowlist.READ:
                self.names.setdefault(Edge(i, 0), updated.get(variables.handle[i], ("", 0)))
            elif node.op in op_allowlist.ASSIGNMENTS:
                origin = variables.handle[i]
                updated[origin] = self._assign(i, values[origin])
            elif node.op in UPDATES:
                origins = variables.written[i]
                fresh = self._update(i, [_reference(values[origin]) for origin in origins])
                updated |= {o: (name, 0) for o, name in zip(origins, fresh, strict=True)}
            elif node.op == lookups.OF_VARIABLE:
                self._look_up(i, values[resolve(self.index, self.index.data[i][0])])
            else:
                self._copy(i)
        results = [self.names[tensor] for tensor in region.results]
        results += [updated[origin] for origin in region.updates]
        self.arguments, own, solved = with_own_sizes(self.arguments)
        argument_dims = (dim for argument in self.arguments for dim in argument.dims)
        symbols = dict.fromkeys(name for dim in argument_dims for name in sorted(symbols_of(dim)))
        return Subgraph(
            self.result,
            tuple(self.arguments),
            tuple(results),
            tuple(symbols),
            self._key(results),
            tuple(self.origins),
            self.partition.kind,
            *self._together(symbols, own),
            own,
            solved,
            self._unfolded(),
        )

    def _unfolded(self) -> frozenset[str]:
        """Nodes of unknown size, and members, that are made of sizes alone, in exact operations
        alone. TensorFlow would make constants of them, at sizes where all of |i - j| may be within
        64. Of copied numbers it may (size_values.py)."""
        members, fixed = frozenset(self.region.members), set[str]()
        for node in self.result.node:
            made_of = (name.split(":")[0] for name in node.input)
            if node.op in OF_SHAPES or all(name in fixed for name in made_of):
                fixed.add(node.name)
        inexact: set[str] = set()
        found: set[str] = set()
        for node, origin in zip(reversed(self.result.node), reversed(self.origins), strict=True):
            if node.name not in fixed or node.op in OF_SHAPES:
                continue
            if node.op != "Const" and node.op not in op_allowlist.EXACT:
                inexact.add(node.name)
            if node.name in inexact:
                inexact.update(name.split(":")[0] for name in node.input)
            elif node.op != "Const" and (origin in members or self._is_sized(origin)):
                found.add(node.name)
        return frozenset(found)

    def _is_sized(self, i: int) -> bool:
        edges = (Edge(i, port) for port in range(len(self.index.output_types[i])))
        return any(size < 0 for edge in edges for size in self.index.shape(edge) or ())

    def _together(
        self, symbols: Iterable[str], own: Mapping[str, Dim]
    ) -> tuple[tuple[Mapping[str, int], ...], Mapping[str, int]]:
        """Sizes of the function's symbols at which derived ones are what they are derived of,
        nothing is empty or less than what is left of it, and those that may be small alone are."""
        sizes = self.partition.sizes
        dims = {name: own.get(name, symbol(name)) for name in symbols}
        made_of = Counter(name for dim in dims.values() for name in symbols_of(dim))
        bound = sizes.derived.union(sizes.enlarged, sizes.bounded)
        if not bound & made_of.keys() and max(made_of.values(), default=1) == 1:
            return (), {}

        def at(point: Mapping[str, int]) -> dict[str, int]:
            return {name: evaluate(dim, point) for name, dim in dims.items()}

        distinct = {tuple(at(point).items()): at(point) for point in sizes.points}
        judged = sizes.judged or dict.fromkeys(sizes.symbols, JUDGED_SIZE)
        return tuple(distinct.values()), at(judged)

    def _variable(self, handle: Edge) -> tuple[str, int]:
        """The value of a variable as an argument: like what is written, or read of it whole, or as
        declared where it is only looked up in."""
        update = self.region.updates.get(handle)
        if update is not None:
            return self._argument(handle, value_like(self.index, update), variable=True)
        for read in self.region.reads:
            if self.partition.variables.handle[read] == handle:
                return self._argument(handle, Edge(read, 0), variable=True)
        lookup = next(
            i for i in self.region.members if lookups.variable_of(self.index, i) == handle
        )
        sizes = lookups.table_shape(self.index, lookup) or ()
        name = (f"a{len(self.arguments)}", 0)
        dtype = self.index.dtype(Edge(lookup, 0))
        self.arguments.append(Argument(handle, True, dtype, sizes))
        return name

    def _argument(self, tensor: Edge, like: Edge, variable: bool) -> tuple[str, int]:
        shape = self.index.shape(like)
        dtype = self.index.dtype(like)
        name = self.index.nodes[tensor.node].name
        sizes = [self.partition.sizes.dim(size) for size in shape or ()]
        dims = tuple(size for size in sizes if size is not None)
        if shape is None or len(dims) != len(shape):
            raise Refused(name, Reason.UNKNOWN_RANK, f"input of {self.region.name}")
        if dtype not in op_allowlist.ANY:
            raise Refused(name, Reason.UNSUPPORTED_TYPE, dtype)
        reference = (f"a{len(self.arguments)}", 0)
        self.arguments.append(Argument(tensor, variable, dtype, dims))
        if not variable:
            self.names[tensor] = reference
        return reference

    def _copy(self, i: int) -> None:
        source = self.index.nodes[i]
        self.origins.append(i)
        node = self.result.node.add(name=f"n{len(self.result.node)}", op=source.op)
        for name, value in source.attr.items():
            if name not in KEPT_ATTRIBUTES_DROPPED:
                node.attr[name].CopyFrom(value)
        node.input.extend(_reference(self.names[tensor]) for tensor in self.index.data[i])
        for port in range(len(self.index.output_types[i])):
            self.names[Edge(i, port)] = (node.name, port)

    def _look_up(self, i: int, value: tuple[str, int]) -> None:
        """A lookup in a variable, as one in its value."""
        source, index = self.index.nodes[i], tf.int32.as_datatype_enum
        self.origins += [i, i]
        axis = self.result.node.add(name=f"n{len(self.result.node)}", op="Const")
        axis.attr["dtype"].type = index
        axis.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(0, tf.int32))
        node = self.result.node.add(name=f"n{len(self.result.node)}", op="GatherV2")
        node.input.extend((_reference(value), _reference(self.names[self.index.data[i][1]])))
        node.input.append(axis.name)
        node.attr["Tparams"].type = source.attr["dtype"].type
        node.attr["Tindices"].type = source.attr["Tindices"].type
        node.attr["Taxis"].type = index
        self.names[Edge(i, 0)] = (node.name, 0)

    def _assign(self, i: int, value: tuple[str, int]) -> tuple[str, int]:
        operation = op_allowlist.ASSIGNMENTS[self.index.nodes[i].op]
        operand = self.names[self.index.data[i][1]]
        if operation is None:
            return operand
        self.origins.append(i)
        node = self.result.node.add(name=f"n{len(self.result.node)}", op=operation)
        node.attr["T"].CopyFrom(self.index.nodes[i].attr["dtype"])
        node.input.extend((_reference(value), _reference(operand)))
        return (node.name, 0)

    def _update(self, i: int, values: list[str]) -> list[str]:
        """New values of the variables of an optimizer's update."""
        source = self.index.nodes[i]
        update = UPDATES[source.op]

        def write(operation: str, *inputs: str) -> str:
            self.origins.append(i)
            node = self.result.node.add(name=f"n{len(self.result.node)}", op=operation)
            node.attr["T"].CopyFrom(source.attr["T"])
            node.input.extend(inputs)
            return str(node.name)

        operands = [_reference(self.names[t]) for t in self.index.data[i][update.variables :]]
        self.origins.append(i)
        one = self.result.node.add(name=f"n{len(self.result.node)}", op="Const")
        one.attr["dtype"].CopyFrom(source.attr["T"])
        dtype = tf.as_dtype(source.attr["T"].type)
        one.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(1.0, dtype))
        return update.expand(write, one.name, flag_of(source), values, operands)

    def _key(self, results: Sequence[tuple[str, int]]) -> str:
        digest = hashlib.sha256(self.result.SerializeToString(deterministic=True))
        digest.update(repr([(a.variable, a.dtype, a.dims) for a in self.arguments]).encode())
        digest.update(repr(list(results)).encode())
        return digest.hexdigest()


def with_own_sizes(
    arguments: Sequence[Argument],
) -> tuple[list[Argument], dict[str, Dim], dict[str, Dim]]:
    """Arguments in symbols of the function's own, so that all can be read off their shapes; what
    these are of the graph's; and what symbols of the graph's are of these and others.

    Symbols that stand side by side wherever they do (the height and the width of pictures that are
    taken for rows) go for their product. Where all but one of a dimension can be read off (words
    that are added to those of a cache, their number the difference of two) the dimension becomes a
    symbol, and that one what it is of it. Then one that stands in no dimension alone, and wherever
    it does in one expression, goes for that. What is a symbol so may be of any size, and the region
    must hold for any."""
    own: dict[str, Dim] = {}
    solved: dict[str, Dim] = {}

    def fresh(known: Dim) -> Dim:
        own[name := f"size{len(own)}"] = substitute(known, own)
        return symbol(name)

    values: dict[str, Dim] = {}
    for first, *others in _side_by_side(arguments):
        product = fresh(math.prod(map(symbol, others), start=symbol(first)))
        values |= {first: product, **dict.fromkeys(others, 1)}
    arguments = _each_dim(arguments, lambda dim: substitute(dim, values))
    while (found := _told_by_a_dimension(arguments)) is not None:
        name, expression, sign = found
        size = fresh(expression)
        solution = {name: symbol(name) + (size - expression) * sign}
        arguments = _each_dim(arguments, lambda dim: substitute(dim, solution))  # noqa: B023
        solved = {one: substitute(value, solution) for one, value in solved.items()} | solution
    expressions = {one: fresh(one) for one in _not_read_off(arguments)}

    def renamed(dim: Dim) -> Dim:
        expression, scale, offset = _upward(dim)
        return expressions[expression] * scale + offset if expression in expressions else dim

    arguments = _each_dim(arguments, renamed)
    used = {name for argument in arguments for dim in argument.dims for name in symbols_of(dim)}
    solved = {name: value for name, value in solved.items() if symbols_of(value) <= used}
    return arguments, {name: known for name, known in own.items() if name in used}, solved


def _upward(dim: Dim) -> tuple[Dim, int, int]:
    """`primitive`, the expression such that the dimension grows with it: it is a size too."""
    expression, scale, offset = primitive(dim)
    return (expression * -1, -scale, offset) if scale < 0 else (expression, scale, offset)


def _read_off(arguments: Sequence[Argument]) -> set[str]:
    """Symbols that a dimension of a tensor is, times a number and beside another."""
    every = (_upward(dim) for one in arguments if not one.variable for dim in one.dims)
    return {name for one, _, _ in every for name in symbols_of(one) if one == symbol(name)}


def _told_by_a_dimension(arguments: Sequence[Argument]) -> tuple[str, Dim, int] | None:
    """A symbol that is to be read off, an expression that some dimension of a tensor tells, in
    which it is the only one, and by itself; and its sign there."""
    known = _read_off(arguments)
    for argument in arguments:
        for expression, _, _ in map(_upward, () if argument.variable else argument.dims):
            names = symbols_of(expression)
            if isinstance(expression, int) or len(names - known) != 1 or not names & known:
                continue
            (name,) = names - known
            within = [term for term in expression.terms if name in dict(term[0])]
            if within in ([(((name, 1),), 1)], [(((name, 1),), -1)]):
                return name, expression, within[0][1]
    return None


def _each_dim(arguments: Sequence[Argument], change: Callable[[Dim], Dim]) -> list[Argument]:
    return [replace(argument, dims=tuple(map(change, argument.dims))) for argument in arguments]


def _side_by_side(arguments: Sequence[Argument]) -> Iterator[Sequence[str]]:
    """Two symbols and more that have one power, whichever it is, in each product of sizes."""
    every = [dim for argument in arguments for dim in argument.dims if not isinstance(dim, int)]
    products = [dict(monomial) for dim in every for monomial, _ in dim.terms]
    alike: dict[tuple[int, ...], list[str]] = {}
    for name in dict.fromkeys(name for product in products for name in product):
        powers = tuple(product.get(name, 0) for product in products)
        alike.setdefault(powers, []).append(name)
    return (names for names in alike.values() if len(names) > 1)


def _not_read_off(arguments: Sequence[Argument]) -> Iterator[Dim]:
    """The expressions of symbols that stand in one alone, and are none themselves."""
    alone = _read_off(arguments)
    uses: dict[str, set[Dim]] = {}
    for argument in arguments:
        for expression, _, _ in map(_upward, argument.dims):
            for name in sorted(symbols_of(expression)):
                uses.setdefault(name, set()).add(expression)
    only = (one for name, (one, *others) in uses.items() if name not in alone and not others)
    return iter(dict.fromkeys(only))


def _reference(name: tuple[str, int]) -> str:
    return name[0] if name[1] == 0 else f"{name[0]}:{name[1]}"


def lower(function: Subgraph, subject: str = "region") -> Lowered:
    """Lower at every point and unify. Raises Refused(LOWERING_FAILED, DOES_NOT_UNIFY, ...)."""
    at = function.points or points(function.symbols)
    if any(size < 2 for point in at for size in point.values()):
        detail = "a size is 0 or 1 where those that it hangs on are not"
        raise Refused(subject, Reason.DOES_NOT_UNIFY, detail)
    texts = tuple((point, hlo_text(function, point, subject)) for point in at)
    parsed = [(point, parse(text)) for point, text in texts]
    if not function.symbols:
        return Lowered(function, parsed[0][1], texts)
    return Lowered(function, unify(parsed), texts)


def specs(function: Subgraph, point: Mapping[str, int]) -> list[tf.TensorSpec]:
    """Concrete argument shapes and types."""
    return [
        tf.TensorSpec([evaluate(dim, point) for dim in a.dims], a.dtype) for a in function.arguments
    ]


def as_function(function: Subgraph, jit: bool) -> Any:
    """The region as a tf.function of its arguments, in order; returns a list of results."""
    returned = [f"{name}:{port}" for name, port in function.results]

    def region(*arguments: Any) -> Any:
        inputs = {f"a{k}:0": argument for k, argument in enumerate(arguments)}
        used = {r for node in function.graph.node for r in node.input}
        mapped = {k: v for k, v in inputs.items() if k[:-2] in used}
        direct = [inputs.get(name) for name in returned]
        wanted = [name for name in returned if name not in inputs]
        imported = iter(
            tf.graph_util.import_graph_def(
                function.graph, input_map=mapped, return_elements=wanted, name="region"
            )
        )
        return [tf.identity(d) if d is not None else next(imported) for d in direct]

    return tf.function(region, jit_compile=jit, autograph=False)


NEVER_FOLDED = "_scoped_allocator"
"""Nodes with this attribute are not folded (tensorflow/core/common_runtime/constant_folding.cc)."""

IMPORTER = "/job:localhost/replica:0/task:0/device:CPU:0"
"""Whose importer is asked: what it makes is the same for every target (semantics.py has the rules
of GPUs), and where TensorFlow sees a GPU it would ask that one's."""


def hlo_text(function: Subgraph, point: Mapping[str, int], subject: str) -> str:
    """HLO text at one point, large constants filled in. Raises Refused(LOWERING_FAILED)."""
    try:
        graph = semantics.rewrite(function.graph, _input_shapes(function, point), function.kind)
        for node in graph.node if function.symbols else ():
            if node.name in function.unfolded:
                node.attr[NEVER_FOLDED].b = True
        exact = replace(function, graph=graph)
        ir = as_function(exact, jit=True).experimental_get_compiler_ir(*specs(function, point))
        text = ir(stage="hlo", device_name=IMPORTER)
        if "constant({...})" in text:
            serialized = ir(stage="hlo_serialized", device_name=IMPORTER)
            text = _fill_constants(text, serialized, subject)
    except (ValueError, TypeError, tf.errors.OpError) as error:
        message = re.sub(r"\s+", " ", str(error))[:300]
        raise Refused(subject, Reason.LOWERING_FAILED, message) from error
    return str(text)


def _input_shapes(function: Subgraph, point: Mapping[str, int]) -> semantics.Shapes:
    """Input shapes of operations whose formula needs them, by TensorFlow's shape inference."""
    names = [node.name for node in function.graph.node if node.op in op_allowlist.SHAPED]
    if not names:
        return {}
    traced = as_function(function, jit=False).get_concrete_function(*specs(function, point)).graph
    return {
        name: [tuple(t.shape) for t in traced.get_operation_by_name(f"region/{name}").inputs]
        for name in names
    }


_ELIDED = re.compile(r"%?([\w.\-]+) = (\S+) constant\(\{\.\.\.\}\)")


def _fill_constants(text: str, serialized: bytes, subject: str) -> str:
    """Replace each elided constant by its values from the HloModuleProto, matched by name."""
    from tensorflow.compiler.xla.service import hlo_pb2

    module = hlo_pb2.HloModuleProto.FromString(serialized)
    literals = {
        instruction.name: instruction.literal
        for computation in module.computations
        for instruction in computation.instructions
        if instruction.opcode == "constant"
    }

    def fill(match: re.Match[str]) -> str:
        literal = literals.get(match[1])
        if literal is None:
            raise Refused(subject, Reason.ELIDED_CONSTANT, match[1])
        return match[0].replace("{...}", _literal_text(literal, match[2], subject))

    return _ELIDED.sub(fill, text)


_FIELDS = {
    "pred": ("preds", np.bool_),
    "s8": ("s8s", np.int8),
    "u8": ("u8s", np.uint8),
    "s32": ("s32s", np.int32),
    "s64": ("s64s", np.int64),
    "u32": ("u32s", np.uint32),
    "u64": ("u64s", np.uint64),
    "f32": ("f32s", np.float32),
    "f64": ("f64s", np.float64),
}


def _literal_text(literal: Any, shape: str, subject: str) -> str:
    dtype, _, extents = shape.partition("[")
    if dtype not in _FIELDS:
        raise Refused(subject, Reason.ELIDED_CONSTANT, f"a constant of {dtype}")
    field, numpy = _FIELDS[dtype]
    value = getattr(literal, field)
    array: np.ndarray[Any, Any] = (
        np.frombuffer(value, numpy) if isinstance(value, bytes) else np.array(value, numpy)
    )
    dims = [int(d) for d in extents.partition("]")[0].split(",") if d]
    return _nested(array.reshape(dims))


def _nested(array: np.ndarray[Any, Any]) -> str:
    if array.ndim == 0:
        return str(array[()].item()).lower()
    return "{" + ", ".join(_nested(part) for part in array) + "}"
