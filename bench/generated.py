"""From a TensorFlow function to a program of generated kernels, through the compiler's stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from bench.program import Program
from stitchcore.compiler.module import CompiledModule
from stitchcore.compiler.stages import BuildOptions, compile_module
from stitchcore.device.records import DEVICES, Device
from stitchcore.hlo.text.parser import parse
from stitchcore.hlo.transforms.expand import expand
from stitchcore.inject import target
from stitchcore.tensorflow import lower
from stitchcore.tensorflow.graph import Edge

Array = np.ndarray[Any, np.dtype[Any]]


def this_device() -> Device:
    """The record of the machine this runs on."""
    return DEVICES[target.detect(target.cpu_flags())]


def hlo(function: Callable[..., Any], inputs: Mapping[str, Array]) -> str:
    """`function`'s HLO at the shapes of `inputs`, as a job's regions are lowered: what XLA computes
    otherwise than TensorFlow is written with TensorFlow's meaning, and no constant is left out."""
    signature = [tf.TensorSpec(array.shape, array.dtype) for array in inputs.values()]
    traced = tf.function(function, autograph=False).get_concrete_function(*signature)
    graph = traced.graph.as_graph_def()
    given = {tensor.op.name: f"a{number}" for number, tensor in enumerate(traced.inputs)}
    ready = {f"^{name}" for name in given}  # waiting for an argument is no waiting
    for node in graph.node:
        node.input[:] = [given.get(name, name) for name in node.input if name not in ready]
        node.attr.pop("_class", None)  # beside an argument, say
    kept = [node for node in graph.node if node.name not in given]
    del graph.node[:]
    graph.node.extend(kept)
    arguments = tuple(
        lower.Argument(Edge(number, 0), False, array.dtype.name, array.shape)
        for number, array in enumerate(inputs.values())
    )
    results = tuple(
        (given.get(tensor.op.name, tensor.op.name), tensor.value_index) for tensor in traced.outputs
    )
    region = lower.Subgraph(graph, arguments, results, (), traced.name.decode())
    return lower.hlo_text(region, {}, "function")


def compiled(text: str, options: BuildOptions | None = None) -> CompiledModule:
    return compile_module(expand(parse(text)).module, this_device(), options)


def updating(made: Program, updates: Mapping[int, int]) -> Program:
    """`made` with the results of `updates` (input position -> result position) in its inputs."""
    pairs = tuple((made.inputs[i].name, made.results[r]) for i, r in updates.items())
    return Program(made.inputs, made.launches, made.results, pairs)
