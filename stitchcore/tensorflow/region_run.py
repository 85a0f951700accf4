"""Running a region's own TensorFlow operations on numpy arrays, plainly or under XLA."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from stitchcore.errors import Reason, Refused
from stitchcore.tensorflow.lower import Subgraph, as_function

Array = np.ndarray[Any, np.dtype[Any]]


def runner(function: Subgraph, jit: bool = False) -> Callable[[Sequence[Array]], list[Array]]:
    """The region as TensorFlow computes it. Tensors of the last arguments are kept, so that timing
    the same arrays again does not time their copies."""
    region = as_function(function, jit)
    return _with_tensors(region)


def under_xla(function: Subgraph) -> Callable[[Sequence[Array]], list[Array]]:
    """The region compiled by XLA at its first call, which raises Refused(LOWERING_FAILED) where XLA
    cannot."""
    run = runner(function, jit=True)

    def compiled(given: Sequence[Array]) -> list[Array]:
        try:
            return run(given)
        except (tf.errors.OpError, ValueError, TypeError) as error:
            message = str(error).strip().splitlines()[0][:200]
            raise Refused("region", Reason.LOWERING_FAILED, message) from error

    return compiled


def empty(function: Subgraph) -> Callable[[Sequence[Array]], list[Array]]:
    """A function of the same arguments that does nothing: what a call itself costs."""
    del function

    def nothing(*arguments: Any) -> list[Any]:
        return [tf.identity(one) for one in arguments[:1]]  # a region of constants has none

    return _with_tensors(tf.function(nothing, autograph=False))


def _with_tensors(region: Any) -> Callable[[Sequence[Array]], list[Array]]:
    kept: list[tuple[list[int], list[Any]]] = []

    def run(given: Sequence[Array]) -> list[Array]:
        identities = [id(array) for array in given]
        if not kept or kept[0][0] != identities:
            kept[:] = [(identities, [tf.constant(array) for array in given])]
        return [np.asarray(result) for result in region(*kept[0][1])]

    return run
