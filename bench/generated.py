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

Array = np.ndarray[Any, np.dtype[Any]]


def this_device() -> Device:
    """The record of the machine this runs on."""
    return DEVICES[target.detect(target.cpu_flags())]


def hlo(function: Callable[..., Any], inputs: Mapping[str, Array]) -> str:
    """`function`'s HLO before XLA's own optimisations, at the shapes of `inputs`."""
    jitted = tf.function(function, jit_compile=True, autograph=False)
    constants = [tf.constant(array) for array in inputs.values()]
    return str(jitted.experimental_get_compiler_ir(*constants)(stage="hlo"))


def compiled(text: str, options: BuildOptions | None = None) -> CompiledModule:
    return compile_module(expand(parse(text)).module, this_device(), options)


def updating(made: Program, updates: Mapping[int, int]) -> Program:
    """`made` with the results of `updates` (input position -> result position) in its inputs."""
    pairs = tuple((made.inputs[i].name, made.results[r]) for i, r in updates.items())
    return Program(made.inputs, made.launches, made.results, pairs)
