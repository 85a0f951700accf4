"""Running a region's own TensorFlow operations on numpy arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from stitchcore.errors import Reason, Refused
from stitchcore.tensorflow.lower import Subgraph, as_function

Array = np.ndarray[Any, np.dtype[Any]]
NO_ROOM = (
    "the worker's GPU has no room to verify it (TensorFlow takes nearly all of a GPU for a job, "
    "unless TF_FORCE_GPU_ALLOW_GROWTH=true)"
)


def runner(function: Subgraph) -> Callable[[Sequence[Array]], list[Array]]:
    """The region as TensorFlow computes it. Tensors of the last arguments are kept, so that timing
    the same arrays again does not time their copies. It raises
    Refused(DATA_DEPENDENT_ERROR) where TensorFlow ends with an error of theirs."""
    return _with_tensors(as_function(function, jit=False))


def nothing() -> Any:
    """A tf.function of any arguments that does nothing."""

    def identity(*arguments: Any) -> list[Any]:
        return [
            tf.identity(argument) for argument in arguments[:1]
        ]  # a region of constants has none

    return tf.function(identity, autograph=False)


def empty(function: Subgraph) -> Callable[[Sequence[Array]], list[Array]]:
    """A function of the same arguments that does nothing: what a call itself costs."""
    del function
    return _with_tensors(nothing())


def _with_tensors(region: Any) -> Callable[[Sequence[Array]], list[Array]]:
    tensors_of = _cached_tensors()

    def run(arrays: Sequence[Array]) -> list[Array]:
        try:
            results = region(*tensors_of(arrays))
        except (tf.errors.InvalidArgumentError, tf.errors.OutOfRangeError) as error:
            words = [line.strip() for line in error.message.splitlines() if line.strip()]
            told = next((line for line in reversed(words) if not line.startswith("[[")), "")
            detail = f"TensorFlow ends with an error on drawn data: {told}"
            raise Refused("region", Reason.DATA_DEPENDENT_ERROR, detail) from error
        return [_array(result) for result in results]

    return run


def _array(tensor: Any) -> Array:
    """Without a copy; of a bfloat16 scalar TensorFlow's __array__ makes no array."""
    return np.asarray(tensor if tensor.shape.rank else tensor.numpy())


def on_gpu(region: Callable[..., Any]) -> Callable[[Sequence[Array]], list[Array]]:
    """`region`, a tf.function, on TensorFlow's first GPU, to be timed: a call ends when the device
    is done. Results stay there and are not returned: their copies would count."""
    tensors_of = _cached_tensors()

    def run(arrays: Sequence[Array]) -> list[Array]:
        with tf.device("/GPU:0"):
            region(*tensors_of(arrays))
        tf.test.experimental.sync_devices()
        return []

    return run


def within_device_memory(
    run: Callable[[Sequence[Array]], list[Array]],
) -> Callable[[Sequence[Array]], list[Array]]:
    """`run` on a GPU that others may hold. Raises Refused(MEMORY) where TensorFlow finds no memory
    there: only this region is lost by it."""

    def running(arrays: Sequence[Array]) -> list[Array]:
        try:
            return run(arrays)
        except tf.errors.ResourceExhaustedError as error:
            words = error.message.splitlines()[0]
            raise Refused("region", Reason.MEMORY, f"{NO_ROOM}: {words}") from error

    return running


def _cached_tensors() -> Callable[[Sequence[Array]], list[Any]]:
    """Tensors of arrays, those of the last call kept."""
    cached: list[tuple[list[int], list[Any]]] = []

    def tensors(arrays: Sequence[Array]) -> list[Any]:
        identities = [id(array) for array in arrays]
        if not cached or cached[0][0] != identities:
            cached[:] = [(identities, [tf.constant(array) for array in arrays])]
        return cached[0][1]

    return tensors
