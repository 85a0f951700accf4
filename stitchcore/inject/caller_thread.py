"""Which stitched steps run in the thread that calls them, and why others do not.

TensorFlow hands each call of a graph to a pool of threads and waits. To wake them takes tens of
microseconds each time, as long as a small step; in the calling thread (native/caller_thread.cc)
nobody is woken, and nothing runs side by side either, but what an operation itself spreads over the
cores. So a step runs there where, by the worker's estimate, its calls gain less side by side than
it costs to hand them over; and where none of them may wait for another one, or asks Python.
"""

from __future__ import annotations

import re
from typing import Any, Dict, Iterator, Mapping

NEXT = frozenset(("IteratorGetNext", "IteratorGetNextAsOptional"))
KERNEL, LABEL = "_kernel", b"stitch_caller_thread"
HAND_OVER_SECONDS = 1e-4
"""What a call of a function costs for threads being woken: 100 to 190 us on two cores, of a program
that does nothing else (TensorFlow 2.15 and 2.21; bench/caller_thread.py)."""

SHARE = 0.2
"""What calls may gain side by side, of their time one after the other: estimates are of calls that
share the cores without loss, which the measured ones did not."""

_PYTHON = frozenset(("PyFunc", "PyFuncStateless", "EagerPyFunc"))
"""Python must not be able to tell in whose thread it runs."""

_WITH_EFFECT = re.compile(
    r"_Arg|_Retval|Stitch\w+|StatefulPartitionedCall|_?If|_?While|Case"
    r"|_?VarHandlesOp|VarHandleOp|_?ReadVariablesOp|ReadVariableOp|VarIsInitializedOp|Variable(V2|Shape)?"
    r"|Assign(Add|Sub)?VariableOp|Resource(Sparse)?Apply\w+|Resource(Scatter|Gather)\w*"
    r"|ResourceStridedSliceAssign|ResourceCountUpTo|DestroyResourceOp|TemporaryVariable"
    r"|Random(Crop|Gamma|Poisson(V2)?|Shuffle|StandardNormal|Uniform(Int)?)|TruncatedNormal"
    r"|ParameterizedTruncatedNormal|Multinomial|StatelessRandomGetAlg|NonDeterministicInts"
    r"|Stateful(RandomBinomial|StandardNormal(V2)?|TruncatedNormal|Uniform(Full)?(Int)?)"
    r"|Rng(ReadAnd)?Skip|\w+CandidateSampler|Assert|CheckNumerics(V2)?|Print(V2)?|Timestamp"
    r"|Iterator(V2|GetNext(AsOptional)?)?|LookupTable\w+|(Mutable)?(Dense)?HashTable\w*"
    r"|Stack(V2|PushV2|PopV2|CloseV2)|TensorArray\w*|Write(\w+)?Summary|SummaryWriter|Empty"
)
"""Operations that are stateful, and end by themselves: variables, random numbers, tables, what is
written to a log or a summary, and the next element of a pipeline, which has threads of its own. All
others may wait for an operation that would never run beside them: queues, stages, collectives."""


def why_not(graph: Any, expected: Mapping[str, Any]) -> str:
    """Why the stitched `graph` is not to run in the thread that calls it, by its operations and by
    what its artifact expects (the manifest's `expect`); nothing where it is to."""
    serial, parallel = (expected.get(name) for name in ("serial_seconds", "parallel_seconds"))
    if serial is None or parallel is None:
        return "the artifact has no estimate"
    gain = float(serial) - float(parallel)
    if gain > max(HAND_OVER_SECONDS, SHARE * float(serial)):
        return f"its calls gain {1e6 * gain:,.0f} us side by side, by the estimate"
    known: Dict[str, bool] = {}
    for operation in _operations(graph):
        if operation not in known:
            known[operation] = _ends_by_itself(operation)
        if not known[operation]:
            return f"{operation} may wait for others, or ask Python"
    return ""


def await_input(graph: Any) -> None:
    """Has `graph`, which is to run in the caller's thread, take its input there too."""
    for node in graph.node:
        if node.op in NEXT and KERNEL not in node.attr and "CPU:" in node.device.upper():
            node.attr[KERNEL].s = LABEL


def _operations(graph: Any) -> Iterator[str]:
    """Those of a graph, and of the functions that it comes with, which it may call by name."""
    functions = {function.signature.name for function in graph.library.function}
    called = (node for function in graph.library.function for node in function.node_def)
    for node in (*graph.node, *called):
        if node.op not in functions:
            yield node.op


def _ends_by_itself(operation: str) -> bool:
    from tensorflow.python.framework import op_def_registry

    definition = op_def_registry.get(operation)
    if definition is None or operation in _PYTHON:
        return False
    return not definition.is_stateful or _WITH_EFFECT.fullmatch(operation) is not None
