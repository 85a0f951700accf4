"""Functions that TensorFlow keeps apart from a step for Grappler to choose among, made part of it.

Keras 2 (TensorFlow 2.15's) calls its LSTM and GRU as functions with the attribute `api_implements`:
a group of implementations, of which Grappler's implementation selector takes the one for the device
that the call is placed on. TensorFlow inlines every other call before it places a graph, but none
of these ("Inlining of implementation selection group function is disabled",
inline_function_utils.cc). So the loops of such layers, and their gradients', are graphs of their
own, which the step's only calls.

Where there is no GPU there is nothing to select: the function that Python called is the CPU's. Then
the step is called as a copy of itself, which calls copies of these functions without the attribute;
TensorFlow inlines them as it does the others, and the step is one graph. TensorFlow's converter of
frozen graphs drops the attribute for the same reason (convert_to_constants.py).
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Optional, Set

from . import xla

SUFFIX = "_stitch_inlined"
GROUP = ("api_implements", "api_preferred_device")
MOST = 30
"""Steps of a process that are copied: what is traced anew with every call would fill its memory."""


class Copies:
    """The copies of one process's functions, by the names of the originals."""

    def __init__(self) -> None:
        self._made: Dict[bytes, Optional[bytes]] = {}
        self._count = 0

    def of(self, context: Any, name: bytes) -> Optional[bytes]:
        """What to call in the place of function `name`; None where it is called as it is."""
        if name not in self._made:
            made = None
            if self._count < MOST and context.num_gpus() == 0:
                made = inlined(context, name)
            self._count += made is not None
            self._made[name] = made
        return self._made[name]

    def drop(self, name: bytes) -> None:
        """From now on `name` is called as it is."""
        self._made[name] = None


def inlined(context: Any, name: bytes) -> Optional[bytes]:
    """Registers a copy of function `name` that calls none of a group of implementations, however
    deep, and returns its name; None where it calls none as it is."""
    definitions = _reachable(context, name.decode())
    step = definitions.get(name.decode())
    if step is None or xla.is_compiled(step):
        return None  # XLA inlines what it compiles
    kept_apart = {called for called, of in definitions.items() if any(a in of.attr for a in GROUP)}
    kept_apart.discard(name.decode())  # Python calls it: it is a step
    changed = _callers_too(definitions, kept_apart)
    if not changed:
        return None
    for called in changed:
        copy = type(definitions[called])()
        copy.CopyFrom(definitions[called])
        copy.signature.name = called + SUFFIX
        for attribute in GROUP:
            copy.attr.pop(attribute, None)
        for node in copy.node_def:
            if node.op in changed:
                node.op += SUFFIX
            for function in _functions_of(node):
                if function.name in changed:
                    function.name += SUFFIX
        if not context.has_function(copy.signature.name.encode()):
            context.add_function_def(copy)
    return name + SUFFIX.encode()


def _reachable(context: Any, name: str) -> Dict[str, Any]:
    """The FunctionDefs that function `name` calls, and those that they call, with its own."""
    found: Dict[str, Any] = {}
    waiting = [name]
    while waiting:
        one = waiting.pop()
        if one in found or not context.has_function(one.encode()):
            continue
        found[one] = context.get_function_def(one)
        waiting += _called(found[one])
    return found


def _callers_too(definitions: Dict[str, Any], apart: Set[str]) -> Set[str]:
    """`apart`, and every function that calls one of these, directly or not."""
    callers: Dict[str, List[str]] = {}
    for caller, definition in definitions.items():
        for called in _called(definition):
            callers.setdefault(called, []).append(caller)
    found, waiting = set(apart), list(apart)
    while waiting:
        for caller in callers.get(waiting.pop(), ()):
            if caller not in found:
                found.add(caller)
                waiting.append(caller)
    return found


def _called(definition: Any) -> Iterator[str]:
    for node in definition.node_def:
        yield node.op  # of a function that is called by its own name
        for function in _functions_of(node):
            yield function.name


def _functions_of(node: Any) -> Iterator[Any]:
    for value in node.attr.values():
        if value.HasField("func"):
            yield value.func
        elif value.HasField("list"):
            yield from value.list.func
