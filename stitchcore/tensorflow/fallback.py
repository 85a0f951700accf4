"""What does a launch's work where its kernel cannot: the region's own operations, as a function.

A stitched operation must not fail its step. Each carries the name of a function that makes, of the
region's inputs, the same results by the operations that were there before; the job side calls it
where a kernel is missing, memory for it is, or a size is not as it was taken to be. What an earlier
launch of the region has made is taken from there, where it is a tensor of the graph; what only
passes between the region's launches has no such function, and whoever waits for it computes it
anew, from the region's inputs (docs/faults.md).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import function_pb2, graph_pb2

from stitchcore.errors import Reason, Refused
from stitchcore.hlo.ir.dim import Dim
from stitchcore.inject.digest import parse_reference
from stitchcore.launch.place import Input, Place, Temporary
from stitchcore.launch.region_program import Fallback, RegionProgram
from stitchcore.tensorflow import semantics
from stitchcore.tensorflow.fusion_node import datatype
from stitchcore.tensorflow.lower import Subgraph

Name = tuple[str, int]
"""A tensor of a region's function: node and port."""


def with_fallbacks(
    function: Subgraph,
    program: RegionProgram,
    updates: int,
    tolerances: Sequence[float],
    units: Sequence[float],
    between_launches: Sequence[float],
) -> RegionProgram:
    """`program` with a fallback for each launch. The last `updates` of the function's results are
    variables' new values, which are no tensors of the graph; `tolerances` are by result, `units` by
    the region's input, `between_launches` the tolerances of all that the launches make.

    What only passes between launches is ours for a kernel, and the framework's own for the function
    that it is compared with: as an input it may be off by as much as the two lie apart.

    Raises Refused(LOWERING_FAILED) where TensorFlow does not take the function.
    """
    tensors = len(function.results) - updates
    of_tensors = _first_positions(program, range(tensors))
    of_results = _first_positions(program, range(len(function.results)))
    launches = []
    earlier: dict[Name, Place] = {}
    for launch in program.launches:
        positions = [of_results.get(place) for place in launch.outputs]
        wanted = list(dict.fromkeys(p for p in positions if p is not None))
        results = tuple(-1 if p is None else wanted.index(p) for p in positions)
        names = [function.results[position] for position in wanted]
        fallback = _fallback(function, program, earlier, names)
        limits = tuple(0.0 if p is None else tolerances[p] for p in positions)
        rounded = tuple(
            units[place.position]
            if isinstance(place, Input)
            else between_launches[place.position]
            if isinstance(place, Temporary) and place not in of_tensors
            else 0.0
            for place in launch.inputs
        )
        fallback = replace(fallback, results=results, tolerances=limits, units=rounded)
        launches.append(replace(launch, fallback=fallback))
        earlier |= {
            function.results[of_tensors[place]]: place
            for place in launch.outputs
            if place in of_tensors
        }
    return replace(program, launches=tuple(launches))


def library(programs: Iterable[RegionProgram]) -> bytes:
    """The functions of `programs`, each once, as a serialized FunctionDefLibrary."""
    definitions = {
        launch.fallback.function: launch.fallback.definition
        for program in programs
        for launch in program.launches
        if launch.fallback is not None
    }
    functions = function_pb2.FunctionDefLibrary()
    for name in sorted(definitions):
        functions.function.add().ParseFromString(definitions[name])
    return bytes(functions.SerializeToString(deterministic=True))


def _first_positions(program: RegionProgram, positions: Iterable[int]) -> dict[Place, int]:
    """The first of the region's results that is a launch's output, for each that is one."""
    first: dict[Place, int] = {}
    for position in positions:
        place = program.outputs[position].place
        if isinstance(place, Temporary):
            first.setdefault(place, position)
    return first


def _fallback(
    function: Subgraph, program: RegionProgram, earlier: Mapping[Name, Place], names: Sequence[Name]
) -> Fallback:
    """The function that computes `names`; `earlier` has what earlier launches have made of it."""
    nodes, inputs = _slice(function, earlier, names)
    kinds: list[Any] = []
    shapes: list[tuple[Dim, ...]] = []
    arguments: list[Place] = []
    for name in inputs:
        place = earlier.get(name)
        if place is None:
            position = int(name[0][1:])
            argument = function.arguments[position]
            kinds.append(tf.as_dtype(argument.dtype))
            shapes.append(argument.dims)
            arguments.append(Input(position))
        else:
            kinds.append(tf.as_dtype(datatype(program.buffers[place].dtype)))
            shapes.append(program.outputs[function.results.index(name)].dims)
            arguments.append(place)
    try:
        body = graph_pb2.GraphDef(node=nodes)
        body = semantics.rewrite(body, {}, function.kind, semantics.OF_PASSES)
        definition = _of_any_size(body, inputs, names, kinds, shapes)
    except (ValueError, TypeError, tf.errors.OpError) as error:
        detail = " ".join(str(error).split())[:300]
        raise Refused("region", Reason.LOWERING_FAILED, f"as a function: {detail}") from error
    content = definition.SerializeToString(deterministic=True)
    definition.signature.name = f"stitch_fallback_{hashlib.sha256(content).hexdigest()[:32]}"
    content = definition.SerializeToString(deterministic=True)
    return Fallback(definition.signature.name, content, tuple(arguments), (), (), ())


def _slice(
    function: Subgraph, earlier: Mapping[Name, Place], names: Sequence[Name]
) -> tuple[list[Any], list[Name]]:
    """Nodes that `names` are computed by, in order, and what these take: arguments of the region,
    and what an earlier launch has made."""
    by_name = {node.name: node for node in function.graph.node}
    inputs: dict[Name, None] = {}
    needed: set[str] = set()
    pending = [name for name in names if name[0] in by_name]
    inputs |= dict.fromkeys(name for name in names if name[0] not in by_name)
    while pending:
        node, _ = pending.pop()
        if node in needed:
            continue
        needed.add(node)
        for reference in by_name[node].input:
            source = parse_reference(reference)
            if source[0] in by_name and source not in earlier:
                pending.append(source)
            else:
                inputs[source] = None
    inside = [node for node in function.graph.node if node.name in needed]
    return inside, sorted(inputs)


def _of_any_size(
    body: Any,
    inputs: Sequence[Name],
    names: Sequence[Name],
    kinds: Sequence[Any],
    shapes: Sequence[tuple[Dim, ...]],
) -> Any:
    """The function for tensors of any size: it is called where sizes are not as they were taken to
    be, and none may be folded into it. Some shape functions take an unknown size for an error
    (a diagonal's, of a matrix of given size); the kernels do not, so the sizes go afterwards."""
    try:
        specs = [
            tf.TensorSpec([None] * len(dims), kind)
            for kind, dims in zip(kinds, shapes, strict=True)
        ]
        return _definition(body, inputs, names, specs)
    except ValueError:
        specs = [
            tf.TensorSpec([size if isinstance(size, int) else None for size in dims], kind)
            for kind, dims in zip(kinds, shapes, strict=True)
        ]
        definition = _definition(body, inputs, names, specs)
        for attributes in (*definition.arg_attr.values(), *definition.node_def):
            attributes.attr.pop("_output_shapes", None)
        return definition


def _definition(
    body: Any,
    inputs: Sequence[Name],
    names: Sequence[Name],
    specs: Sequence[tf.TensorSpec],
) -> Any:
    """The FunctionDef of `body`, a GraphDef, with arguments `inputs`, that returns `names`."""
    used = {parse_reference(reference) for node in body.node for reference in node.input}

    def region(*arguments: Any) -> list[Any]:
        known = {
            f"{name}:{port}": argument
            for (name, port), argument in zip(inputs, arguments, strict=True)
        }
        mapped = {k: v for k, v in known.items() if parse_reference(k) in used}
        wanted = [f"{name}:{port}" for name, port in names]
        computed = [name for name in wanted if name not in known]
        results = dict(
            zip(
                computed,
                tf.graph_util.import_graph_def(
                    body, input_map=mapped, return_elements=computed, name="region"
                ),
                strict=True,
            )
        )
        return [tf.identity(known[name]) if name in known else results[name] for name in wanted]

    concrete = tf.function(region, autograph=False).get_concrete_function(*specs)
    definition = function_pb2.FunctionDef()
    definition.CopyFrom(concrete.function_def)
    return definition
