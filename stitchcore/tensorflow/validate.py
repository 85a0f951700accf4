"""A stranger's nodes held against the definitions of their operations, before all else looks.

TensorFlow's own importer checks the same, but runs shape inference over what it has taken in. What
comes after this check may rely on it: attributes are there and of their kind, types exist, inputs
are as many as defined and name outputs that exist, constants hold what their shape says.
Operations that are not registered are left alone: nothing is assumed of them either.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tensorflow.core.framework import types_pb2
from tensorflow.python.framework import dtypes, op_def_registry, tensor_util

from stitchcore.errors import Reason, Refused
from stitchcore.inject.digest import parse_reference
from stitchcore.tensorflow.graph import output_types

_KINDS = {
    "type": "type",
    "int": "i",
    "float": "f",
    "bool": "b",
    "string": "s",
    "shape": "shape",
    "tensor": "tensor",
    "func": "func",
}
_TYPES = frozenset(types_pb2.DataType.values()) - {types_pb2.DT_INVALID}
_MOST_OUTPUTS = 100_000


def validate(graph: Any) -> None:
    """Raises Refused(PARSE_ERROR) naming the first node that does not hold."""
    outputs = {node.name: _outputs(node) for node in graph.node}
    for node in graph.node:
        try:
            _check_inputs(node, outputs)
        except (KeyError, TypeError, ValueError, OverflowError, IndexError) as error:
            raise Refused(node.name[:80], Reason.PARSE_ERROR, str(error)[:200]) from error


def _outputs(node: Any) -> int | None:
    """How many outputs a node has; None for an operation that is not registered."""
    definition = op_def_registry.get(node.op)
    if definition is None:
        return None
    try:
        _check_attributes(node, definition)
        count = sum(_count(argument, node) for argument in definition.output_arg)
        if count > _MOST_OUTPUTS:
            raise ValueError(f"{count} outputs")
        types = output_types(node)
        _check_shapes(node, len(types))
        if node.op == "Const":
            _check_constant(node)
    except (KeyError, TypeError, ValueError, OverflowError, IndexError, AttributeError) as error:
        raise Refused(node.name[:80], Reason.PARSE_ERROR, str(error)[:200]) from error
    return len(types)


def _check_attributes(node: Any, definition: Any) -> None:
    for attribute in definition.attr:
        if attribute.name not in node.attr:
            if not attribute.HasField("default_value"):
                raise ValueError(f"{node.op} lacks {attribute.name}")
            node.attr[attribute.name].CopyFrom(attribute.default_value)
            continue
        value = node.attr[attribute.name]
        kind = value.WhichOneof("value")
        if attribute.type.startswith("list("):
            if kind not in ("list", None):
                raise ValueError(f"{attribute.name} is no list")
            types = list(value.list.type)
        else:
            if kind != _KINDS[attribute.type]:
                raise ValueError(f"{attribute.name} is no {attribute.type}")
            types = [value.type] if kind == "type" else []
        allowed = set(attribute.allowed_values.list.type) or _TYPES
        if not set(types) <= allowed & _TYPES:
            raise ValueError(f"{attribute.name} is a type that {node.op} does not have")
        if attribute.has_minimum and kind == "i" and value.i < attribute.minimum:
            raise ValueError(f"{attribute.name} is below {attribute.minimum}")
        words = set(attribute.allowed_values.list.s)
        if words and kind == "s" and value.s not in words:
            raise ValueError(f"{attribute.name} is no choice of {node.op}")


def _count(argument: Any, node: Any) -> int:
    if argument.type_list_attr:
        return len(node.attr[argument.type_list_attr].list.type)
    return int(node.attr[argument.number_attr].i) if argument.number_attr else 1


def _check_shapes(node: Any, outputs: int) -> None:
    if "_output_shapes" not in node.attr:
        return
    value = node.attr["_output_shapes"]
    if value.WhichOneof("value") not in ("list", None) or len(value.list.shape) > outputs:
        raise ValueError("_output_shapes are not its outputs'")
    for shape in value.list.shape:
        if len(shape.dim) > 254 or (shape.unknown_rank and shape.dim):
            raise ValueError("a shape of no tensor")


def _check_constant(node: Any) -> None:
    """The value has its node's type and shape, and decodes."""
    tensor = node.attr["value"].tensor
    if tensor.dtype != node.attr["dtype"].type or tensor.tensor_shape.unknown_rank:
        raise ValueError("a constant of another type or of no shape")
    sizes = [dim.size for dim in tensor.tensor_shape.dim]
    if any(size < 0 for size in sizes) or len(sizes) > 32:
        raise ValueError("a constant of no size")
    if tensor.dtype in (types_pb2.DT_STRING, types_pb2.DT_RESOURCE, types_pb2.DT_VARIANT):
        return
    if len(tensor.tensor_content) not in (0, _bytes(tensor, sizes)):
        raise ValueError("a constant's bytes are not those of its shape")
    shapes = node.attr["_output_shapes"].list.shape if "_output_shapes" in node.attr else ()
    for shape in shapes:
        if not shape.unknown_rank and [dim.size for dim in shape.dim] != sizes:
            raise ValueError("a constant's shape is not its value's")
    tensor_util.MakeNdarray(tensor)


def _bytes(tensor: Any, sizes: list[int]) -> int:
    return int(np.prod(sizes, dtype=object)) * int(dtypes.as_dtype(tensor.dtype).size)


def _check_inputs(node: Any, outputs: dict[str, int | None]) -> None:
    references = list(node.input)
    data = [r for r in references if not r.startswith("^")]
    if any(r.startswith("^") for r in references[: len(data)]):
        raise ValueError("a control input before a data input")
    definition = op_def_registry.get(node.op)
    if definition is not None:
        expected = sum(_count(argument, node) for argument in definition.input_arg)
        if len(data) != expected:
            raise ValueError(f"{len(data)} inputs, {node.op} has {expected}")
    for reference in data:
        name, port = parse_reference(reference)
        count = outputs.get(name, 0)
        if count is not None and port >= count:
            raise ValueError(f"input {reference[:80]!r} does not exist")
