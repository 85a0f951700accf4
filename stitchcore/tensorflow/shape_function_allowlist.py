"""Which operations a stranger's graph may bring near TensorFlow's shape inference.

Inference *runs* operations: what feeds a shape argument is computed if nothing of it is stateful
(TensorFlow's EvaluateConstantTensor), and `ReadFile` is not stateful. So only operations that
compute numbers from numbers take part; the others' shapes are taken as handed in. An operation
with strings, with a string attribute that is no choice of a list, with functions or with state
may do more, whatever its name.
"""

from __future__ import annotations

from functools import lru_cache

from tensorflow.core.framework import types_pb2
from tensorflow.python.framework import op_def_registry

HARMLESS_STRINGS = frozenset(
    {
        "equation",
        "frame_name",
        "message",
        "fused_ops",
        "op_names",
        "activation_mode",
        "bad_indices_policy",
    }
)
"""String attributes that are only compared or shown: of Einsum, Enter, CheckNumerics, fusions,
scatters."""

_WORDS = (types_pb2.DT_STRING, types_pb2.DT_STRING_REF)


@lru_cache(maxsize=4096)
def is_side_effect_free(operation: str) -> bool:
    """Whether an operation can only compute; False for one that is not registered."""
    definition = op_def_registry.get(operation)
    if definition is None:
        return False
    arguments = [*definition.input_arg, *definition.output_arg]
    if any(argument.type in _WORDS for argument in arguments):
        return False
    return all(
        attribute.type not in ("string", "list(string)")
        or attribute.HasField("allowed_values")
        or attribute.name in HARMLESS_STRINGS
        for attribute in definition.attr
    )
