"""One subgraph's contestants, as calls that return when the work is done, all in one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from bench import program
from bench.cpu_subgraphs.subgraphs import Subgraph
from stitchcore.verify.accuracy import Judgement, judge

Array = np.ndarray[Any, np.dtype[Any]]
TOLERANCE = 4e-6
"""Of the element plus the array's root mean square, on top of twice the framework's own error."""


@dataclass(frozen=True)
class Contestant:
    """`call` is one timed run; `first` gives the results of a run from the initial state."""

    call: Callable[[], object]
    first: Callable[[], Sequence[Array]]


def _arrays(tensors: Sequence[Any]) -> list[Array]:
    return [np.asarray(tf.convert_to_tensor(tensor)) for tensor in tensors]


def of_function(
    subgraph: Subgraph, function: Callable[..., Sequence[Any]], jit: bool = False
) -> Contestant:
    """`function` as a tf.function over constants (and variables, for the updated inputs)."""
    inputs = list(subgraph.inputs.values())
    held: list[Any] = [
        tf.Variable(array) if position in subgraph.updates else tf.constant(array)
        for position, array in enumerate(inputs)
    ]
    fed = [tensor for position, tensor in enumerate(held) if position not in subgraph.updates]

    def step(*tensors: Any) -> Sequence[Any]:
        rest = iter(tensors)
        merged = [held[i] if i in subgraph.updates else next(rest) for i in range(len(held))]
        results = function(*merged)
        for position, result in subgraph.updates.items():
            if not isinstance(results[result], tf.Variable):
                held[position].assign(results[result])
        return [] if subgraph.updates else results

    traced = tf.function(step, jit_compile=jit or None, autograph=False)

    def first() -> Sequence[Array]:
        for position in subgraph.updates:
            held[position].assign(inputs[position])
        results = list(traced(*fed))
        return _arrays([held[i] for i in subgraph.updates] if subgraph.updates else results)

    return Contestant(lambda: traced(*fed), first)


def of_program(subgraph: Subgraph, compiled: program.Program) -> Contestant:
    """`compiled`'s kernels as StitchedFusion nodes of a tf.function."""
    program.register(compiled)
    return of_function(subgraph, lambda *arguments: program.call(compiled, arguments))


def of_bare(subgraph: Subgraph, compiled: program.Program) -> Contestant:
    """`compiled`'s kernels without TensorFlow, into buffers that exist already."""
    bound = program.bare(compiled, subgraph.inputs)

    def first() -> Sequence[Array]:
        for name, array in subgraph.inputs.items():
            bound.values[name][...] = array
        bound.run()
        return [output.copy() for output in bound.outputs()]

    return Contestant(bound.run, first)


def reference(subgraph: Subgraph) -> list[Array]:
    """The subgraph's results in float64."""
    wide = [
        tf.constant(array.astype(np.float64) if array.dtype == np.float32 else array)
        for array in subgraph.inputs.values()
    ]
    return _arrays(tf.function(subgraph.function, autograph=False)(*wide))


def judged(
    subgraph: Subgraph, contestants: Mapping[str, Contestant], names: Sequence[str]
) -> dict[str, list[Judgement]]:
    """Each named contestant's results against float64, TF's own error being the allowance."""
    expected = reference(subgraph)
    framework = contestants["tf"].first()
    return {
        name: [
            judge(np.asarray(ours), exact, theirs, TOLERANCE)
            for ours, exact, theirs in zip(
                contestants[name].first(), expected, framework, strict=True
            )
        ]
        for name in names
    }
