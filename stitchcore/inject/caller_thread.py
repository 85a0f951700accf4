"""Which stitched steps may run in the thread that calls them, and why others may not.

TensorFlow hands each call of a graph to a pool of threads and waits. To wake them takes tens of
microseconds each time, as long as a small step; in the calling thread (native/caller_thread.cc)
nobody is woken, and nothing runs side by side either, but what an operation itself spreads over the
cores. Which of the two is quicker is measured in the job (step_monitor.py); here it is told which
steps are not to be tried: those that may wait for another operation, or ask Python.
"""

from __future__ import annotations

import re
from typing import Any, Dict, Iterator

NEXT = frozenset(("IteratorGetNext", "IteratorGetNextAsOptional"))
KERNEL, LABEL = "_kernel", b"stitch_caller_thread"
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


def why_not(graph: Any) -> str:
    """Why the stitched `graph` may not run in the thread that calls it; nothing where it may."""
    known: Dict[str, bool] = {}
    for operation in _operations(graph):
        if operation not in known:
            known[operation] = _ends_by_itself(operation)
        if not known[operation]:
            return f"{operation} may wait for others, or ask Python"
    return ""


def await_input(graph: Any) -> None:
    """Has `graph` take its input in the caller's thread too, where it runs there."""
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
