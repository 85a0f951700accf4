"""One StitchedFusion node of a patch while it is written (docs/contracts.md 3)."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from tensorflow.core.framework import node_def_pb2, types_pb2
from tensorflow.python.framework import dtypes

from stitchcore.artifact.manifest import AddedNode
from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.inject.contract import FUSION
from stitchcore.launch.region_program import RegionLaunch
from stitchcore.tensorflow.lower import Argument


class FusionNode:
    """Inputs and outputs of one StitchedFusion node while it is built. `hosted` are inputs in host
    memory on a GPU, of which only shapes are looked at; they come after all others."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.inputs: dict[str, int] = {}
        self.hosted: dict[str, int] = {}
        self.arguments: dict[int, Argument] = {}
        self.output_types: list[int] = []
        self.output_dims: list[tuple[int, ...]] = []
        self.fallback_references: list[str] = []

    def plain(self, reference: str, kind: int) -> int:
        """Position of the input `reference`, added at its first use."""
        if reference in self.hosted:
            return len(self.inputs) + list(self.hosted).index(reference)
        if reference not in self.inputs:
            self.inputs[reference] = kind
        return list(self.inputs).index(reference)

    def tensor(self, reference: str, argument: Argument) -> int:
        """Position of an argument of the region, whose shape may be guarded."""
        position = self.plain(reference, tensorflow_type(argument.dtype))
        self.arguments[position] = argument
        return position

    def resource(self, reference: str) -> int:
        """Position of a variable's handle."""
        return self.plain(reference, types_pb2.DT_RESOURCE)

    def fusion(
        self, launch: RegionLaunch, table: Sequence[int], device_of: int, before: Sequence[str]
    ) -> AddedNode:
        """The node, on the device of `device_of`, after the control inputs `before`."""
        node = node_def_pb2.NodeDef()
        node.attr["Tin"].list.SetInParent()
        node.attr["Tin"].list.type.extend(self.inputs.values())
        if self.hosted:
            node.attr["Thost"].list.type.extend(self.hosted.values())
        node.attr["Tout"].list.SetInParent()
        node.attr["Tout"].list.type.extend(self.output_types)
        node.attr["kernel"].s = f"{launch.key}:{launch.kernel.name}".encode()
        node.attr["table"].list.i.extend(table)
        node.attr["errors"].list.SetInParent()
        node.attr["errors"].list.s.extend(text.encode() for text in launch.kernel.errors)
        node.attr["work"].i = launch.work
        if launch.fallback is not None:
            positions = [self.plain(reference, 0) for reference in self.fallback_references]
            node.attr["fallback"].s = launch.fallback.function.encode()
            node.attr["fallback_arguments"].list.i.extend(positions)
            node.attr["fallback_results"].list.i.extend(launch.fallback.results)
            # Their names tell a TensorFlow that does not know them to pass them over.
            node.attr["_tolerance"].list.f.extend(launch.fallback.tolerances)
            node.attr["_units"].list.f.extend(launch.fallback.units)
        node.attr["_output_shapes"].list.SetInParent()
        for sizes in self.output_dims:
            shape = node.attr["_output_shapes"].list.shape.add()
            for size in sizes:
                shape.dim.add(size=size)
        inputs = (*self.inputs, *self.hosted, *before)
        return AddedNode(self.name, FUSION, encoded(node), device_of, inputs)


_TENSORFLOW_TYPES = {
    "pred": "bool",
    "f8e4m3fn": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "bf16": "bfloat16",
    "f16": "half",
    "f32": "float",
    "f64": "double",
}


def datatype(name: str) -> int:
    """TensorFlow's enumeration value of an HLO element type."""
    if name in _TENSORFLOW_TYPES:
        return int(dtypes.as_dtype(_TENSORFLOW_TYPES[name]).as_datatype_enum)
    return int(dtypes.as_dtype(DTYPES[name].numpy).as_datatype_enum)


def tensorflow_type(name: str) -> int:
    """TensorFlow's enumeration value of a type by its name."""
    return int(dtypes.as_dtype(name).as_datatype_enum)


def encoded(node: Any) -> str:
    """A NodeDef as a patch holds it."""
    return base64.b64encode(node.SerializeToString(deterministic=True)).decode()
