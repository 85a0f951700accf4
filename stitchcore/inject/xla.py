"""Steps that XLA compiles: their bodies, made visible without running them.

Grappler never sees the body of a function that XLA must compile. A copy of the function without
the attribute is registered, and called with arguments of the wrong type: TensorFlow instantiates
it (Grappler shows its graph, the same as after a real lift) and then refuses the arguments, so
nothing runs. The step itself stays XLA's until the artifact is there.
"""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence

from . import reasons
from .graphs import HANDLE_SHAPES, XLA_ATTRIBUTE, set_variable_shapes

DOUBLE, RESOURCE = 2, 20  # DataType.DT_DOUBLE, DT_RESOURCE
SUFFIX = "_stitch"
LIFTED_FROM = (2, 21)
"""Least TensorFlow version whose steps are taken out of XLA. Those of older ones hold the least
memory under XLA (fit_jit on 2.15, batch 16384: 940 MB under XLA, 1087 MB without, 1515 MB stitched
and compared with XLA's step; on 2.21: 1744, 1396, 1801). Versions between were not measured."""


def is_compiled(definition: Any) -> bool:
    """True when XLA must compile the function of this FunctionDef."""
    return XLA_ATTRIBUTE in definition.attr and bool(definition.attr[XLA_ATTRIBUTE].b)


def why_left(version: str) -> Optional[str]:
    """Why this TensorFlow's steps under XLA stay there (reason `memory`); None when they may go."""
    if tuple(int(part) for part in version.split(".")[:2]) >= LIFTED_FROM:
        return None
    return f"TensorFlow {version}'s steps hold the least under XLA"


def add_lifted(context: Any, definition: Any) -> bytes:
    """Registers the copy without the attribute; returns its name."""
    copy = type(definition)()
    copy.CopyFrom(definition)
    copy.signature.name = definition.signature.name + SUFFIX
    if XLA_ATTRIBUTE in copy.attr:
        del copy.attr[XLA_ATTRIBUTE]
    name = copy.signature.name.encode()
    if not context.has_function(name):
        context.add_function_def(copy)
    return bytes(name)


def with_variable_shapes(definition: Any, variables: Mapping[int, Any]) -> Any:
    """A copy of a FunctionDef with its variables' shapes, which a nested call does not pass on.

    Raises Refused(XLA_NOT_LIFTED) where other shapes were told before.
    """
    copy = type(definition)()
    copy.CopyFrom(definition)
    set_variable_shapes(copy, variables)
    if copy == definition:
        return definition
    if any(HANDLE_SHAPES in known.attr for known in definition.arg_attr.values()):
        raise reasons.Refused(reasons.XLA_NOT_LIFTED, "called with variables of other shapes")
    return copy


def register_anew(context: Any, definition: Any, new: Any) -> None:
    """Puts `new` in the place of the registered function `definition`, of the same name.

    The real lift must instantiate the graph that the lifted copy showed, and TensorFlow takes a
    called function from its context: a copy of another name, even one that the optimizer returns in
    the graph's library, is "not defined" there. TensorFlow has no call that replaces a function, so
    for two calls the name is free. XLA's step is instantiated already and keeps what it holds; only
    a thread that instantiates the same function for the first time in between would miss it.
    The count of references stays, and the old definition comes back where the new is not taken.
    Raises Refused(XLA_NOT_LIFTED).
    """
    name = definition.signature.name.encode()
    references = 0
    try:
        while context.has_function(name):
            context.remove_function(name)
            references += 1
        for _ in range(references):
            context.add_function_def(new)
    except Exception as error:
        while context.has_function(name):
            context.remove_function(name)
        for _ in range(references):
            context.add_function_def(definition)
        raise reasons.Refused(reasons.XLA_NOT_LIFTED, f"registered anew: {error}"[:200]) from error


def instantiate(
    context: Any, body: str, variables: Mapping[int, Any], inputs: Optional[Sequence[Any]]
) -> None:
    """Makes TensorFlow optimize the lifted copy of function `body` without running it.

    `variables` is what graphs.variable_shapes found for it.
    `inputs` are those of a real call, where the function is called by Python itself: their
    resource handles carry the variables' shapes into the graph.
    Raises Refused(XLA_NOT_LIFTED) where that cannot be done.
    """
    import tensorflow as tf

    if not context.has_function(body.encode()):
        raise reasons.Refused(reasons.XLA_NOT_LIFTED, "the compiled function is not registered")
    definition = context.get_function_def(body)  # those in Grappler's library are incomplete
    new = with_variable_shapes(definition, variables) if variables else definition
    name = add_lifted(context, new)  # TensorFlow takes it: it will take the one below
    if new is not definition:
        register_anew(context, definition, new)
    arguments = definition.signature.input_arg
    if not arguments:
        raise reasons.Refused(reasons.XLA_NOT_LIFTED, "the compiled function has no arguments")
    wrong = [
        tf.zeros([], tf.float32 if argument.type == DOUBLE else tf.float64)
        for argument in arguments
    ]
    if inputs is not None:
        tensors = [i for i, argument in enumerate(arguments) if argument.type != RESOURCE]
        if not tensors or len(inputs) != len(arguments):
            raise reasons.Refused(reasons.XLA_NOT_LIFTED, "no argument to refuse")
        wrong = [wrong[i] if i == tensors[0] else value for i, value in enumerate(inputs)]
    try:
        context.call_function(name, wrong, len(definition.signature.output_arg))
    except tf.errors.InvalidArgumentError as error:
        if "was expected to be" not in str(error):
            raise reasons.Refused(reasons.XLA_NOT_LIFTED, str(error)[:200]) from error
        return
    raise reasons.Refused(reasons.XLA_NOT_LIFTED, "TensorFlow took arguments of a wrong type")
