"""What leaves a job: the structure of its step, without its values, strings and names.

`structure` takes out what a compiler does not need: constants of more than 64 elements and of
strings become Placeholders (inputs of whatever reads them; the least and the greatest of integers
are kept), free text is emptied, names of functions, loops and shared resources become numbers. The
digest is over its result, so an artifact does not depend on what was taken out. `renamed` gives the
nodes names made of operation and canonical id; it is applied wherever the request leaves the user's
own machine (contracts.md 4).

Strings are kept by name of the attribute and pattern, or where TensorFlow itself closes the list of
values: an attribute nobody has thought of is emptied, not sent.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, FrozenSet, Iterable, Mapping, Tuple

KEPT_ELEMENTS = 64
LEAST, GREATEST = "_least", "_greatest"  # of the integers that a constant held
INTEGERS = (3, 9)  # DataType: int32, int64
STRING, VARIANT, RESOURCE = 7, 21, 20  # DataType
WORD = re.compile(rb"^[A-Za-z0-9_]{0,32}$")
KEPT_STRINGS = {
    "data_format": WORD, "src_format": WORD, "dst_format": WORD, "padding": WORD, "mode": WORD,
    "rounding_mode": WORD, "activation_mode": WORD, "fused_ops": WORD, "op_names": WORD,
    "equation": re.compile(rb"^[A-Za-z., >-]{0,128}$"),
}  # fmt: skip
NUMBERED = ("frame_name", "shared_name")  # only being equal means something
LOCATION = b"loc:@"
DEVICE = re.compile(r"^(/[A-Za-z]+:[A-Za-z0-9_*]+(:[0-9*]+)?)*$")
SHAPES = "_output_shapes"
# A replica's graph is one task's: with its own name each replica would have another digest.
TASK = re.compile(r"^/job:(worker|chief)/replica:\d+/task:\d+(?=/|$)")
LOCAL_TASK = "/job:localhost/replica:0/task:0"


def _closed(operation: str, attribute: str) -> bool:
    """True where TensorFlow lists the values that an attribute may have."""
    from tensorflow.python.framework import op_def_registry

    definition = op_def_registry.get(operation)
    for declared in definition.attr if definition is not None else ():
        if declared.name == attribute:
            return bool(declared.allowed_values.list.s)
    return False


class _Numbers:
    """Names made of a prefix and a number, in order of appearance; an empty one stays empty."""

    def __init__(self) -> None:
        self._known: Dict[Tuple[str, Any], str] = {}
        self._counts: Dict[str, int] = {}

    def __call__(self, prefix: str, name: Any) -> str:
        if not name:
            return ""
        if (prefix, name) not in self._known:
            number = self._counts[prefix] = self._counts.get(prefix, -1) + 1
            self._known[prefix, name] = f"{prefix}{number}"
        return self._known[prefix, name]


def structure(graph: Any) -> Any:
    """A copy of a GraphDef that holds structure only; names of its nodes are kept."""
    copy = type(graph)()
    copy.CopyFrom(graph)
    for name in ("debug_info", "library"):
        if name in copy.DESCRIPTOR.fields_by_name:
            copy.ClearField(name)
    numbers = _Numbers()
    for node in copy.node:
        _strip(node, numbers)
    for function in graph.library.function:
        _function(function, copy.library.function.add(), numbers)
    for gradient in graph.library.gradient:
        names = [numbers("f", name) for name in (gradient.function_name, gradient.gradient_func)]
        copy.library.gradient.add(function_name=names[0], gradient_func=names[1])
    return copy


def _strip(node: Any, numbers: _Numbers) -> None:
    node.ClearField("experimental_debug_info")
    node.device = TASK.sub(LOCAL_TASK, node.device) if DEVICE.match(node.device) else ""
    if node.op == "Const":
        _constant(node)
    for name in list(node.attr):
        _attribute(node, name, numbers)


def _constant(node: Any) -> None:
    value = node.attr["value"].tensor
    elements = 1
    for dim in value.tensor_shape.dim:
        elements *= dim.size
    if elements <= KEPT_ELEMENTS and node.attr["dtype"].type not in (STRING, VARIANT, RESOURCE):
        return
    shape = type(value.tensor_shape)()
    shape.CopyFrom(value.tensor_shape)
    if node.attr["dtype"].type in INTEGERS:
        _range(node, value)
    node.op = "Placeholder"
    node.attr["shape"].shape.CopyFrom(shape)
    del node.attr["value"]


def _range(node: Any, value: Any) -> None:
    """Tells the least and the greatest of a constant's integers: whether rows have such numbers
    decides if a lookup of them can fail."""
    from tensorflow.python.framework import tensor_util

    array = tensor_util.MakeNdarray(value)
    node.attr[LEAST].i, node.attr[GREATEST].i = int(array.min()), int(array.max())


def _attribute(node: Any, name: str, numbers: _Numbers) -> None:
    value = node.attr[name]
    kind = value.WhichOneof("value")
    if name == "_class":
        return  # places of nodes, by name: `renamed` sees to them
    if name in NUMBERED and kind == "s":
        value.s = numbers(name, value.s).encode()
    elif kind in ("s", "list", "func", "tensor", "placeholder"):
        if not _emptied(node.op, name, value, numbers) and name.startswith("_"):
            del node.attr[name]


def _emptied(operation: str, name: str, value: Any, numbers: _Numbers) -> bool:
    """Takes free text out of a value; False when there was some."""
    kind = value.WhichOneof("value")
    if kind == "func":
        _call(value.func, numbers)
    elif kind == "placeholder":
        value.placeholder = ""
    elif kind == "tensor":
        if operation != "Const" or name != "value":
            value.tensor.ClearField("tensor_content")
            value.tensor.ClearField("string_val")
    elif kind == "s":
        if value.s and not _is_kept(operation, name, [value.s]):
            value.s = b""
            return False
    elif kind == "list":
        for function in value.list.func:
            _call(function, numbers)
        del value.list.tensor[:]
        if value.list.s and not _is_kept(operation, name, value.list.s):
            value.list.s[:] = [b""] * len(value.list.s)
            return False
    return True


def _is_kept(operation: str, name: str, strings: Iterable[bytes]) -> bool:
    pattern = KEPT_STRINGS.get(name)
    if pattern is not None:
        return all(pattern.match(string) for string in strings)
    return _closed(operation, name)


def _call(function: Any, numbers: _Numbers) -> None:
    function.name = numbers("f", function.name)
    for name in function.attr:
        _emptied("", name, function.attr[name], numbers)


# Functions of the library: every name in them is the user's


def _function(function: Any, copy: Any, numbers: _Numbers) -> None:
    inner = _Numbers()

    def reference(text: str) -> str:
        """`argument`, `node:output:index`, `^node`, with the name replaced."""
        mark = "^" if text.startswith("^") else ""
        name, colon, rest = text[len(mark) :].partition(":")
        return mark + inner("n", name) + colon + rest

    copy.CopyFrom(function)
    for field in ("description", "summary"):
        copy.signature.ClearField(field)
    copy.signature.name = numbers("f", function.signature.name)
    outputs = {argument.name: f"r{k}" for k, argument in enumerate(function.signature.output_arg)}
    effects = {name: f"c{k}" for k, name in enumerate(function.signature.control_output)}
    for argument in copy.signature.input_arg:
        argument.name, argument.description = inner("n", argument.name), ""
    for argument in copy.signature.output_arg:
        argument.name, argument.description = outputs[argument.name], ""
    copy.signature.control_output[:] = [effects[name] for name in copy.signature.control_output]
    for node in copy.node_def:
        node.name = inner("n", node.name)
        node.input[:] = [reference(text) for text in node.input]
        node.attr.pop("_class", None)
        _strip(node, numbers)
    _replace(copy.ret, {outputs[k]: reference(v) for k, v in function.ret.items()})
    controls = function.control_ret.items()
    _replace(copy.control_ret, {effects[k]: inner("n", v) for k, v in controls if k in effects})
    copy.attr.clear()
    copy.resource_arg_unique_id.clear()
    for arguments in copy.arg_attr.values():
        for name in [name for name in arguments.attr if name not in _TOLD]:
            del arguments.attr[name]


_TOLD = (SHAPES, "_handle_shapes", "_handle_dtypes")


def _replace(mapping: Any, new: Mapping[str, str]) -> None:
    mapping.clear()
    for key, value in new.items():
        mapping[key] = value


# Nodes


def renamed(
    graph: Any, ids: Mapping[str, int], preserve: Iterable[str]
) -> Tuple[Any, FrozenSet[str]]:
    """A copy whose nodes are named by operation and canonical id, and the preserved names in it."""
    names = {node.name: f"{node.op}_{ids[node.name]}" for node in graph.node}
    copy = type(graph)()
    copy.CopyFrom(graph)
    for node in copy.node:
        node.name = names[node.name]
        node.input[:] = [_renamed(text, names.__getitem__) for text in node.input]
        if "_class" in node.attr:
            marks = [text for text in node.attr["_class"].list.s if text.startswith(LOCATION)]
            places = [text[len(LOCATION) :].decode(errors="replace") for text in marks]
            kept_marks = [LOCATION + names[place].encode() for place in places if place in names]
            node.attr["_class"].list.s[:] = kept_marks
            if not kept_marks:
                del node.attr["_class"]
    return copy, frozenset(names[name] for name in preserve if name in names)


def _renamed(reference: str, name: Callable[[str], str]) -> str:
    mark = "^" if reference.startswith("^") else ""
    node, colon, port = reference[len(mark) :].partition(":")
    return mark + name(node) + colon + port
