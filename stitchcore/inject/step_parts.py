"""Where the time of a call goes, by what TensorFlow's own record says of it (step_recorder.py).

Each moment of a recorded call belongs to what runs in it: matrix work, memory-intensive work or
other operations (shared evenly where several run); else it is other's where an operation calls a
program that says nothing of itself (XLA's, before TensorFlow 2.21), else the wait for input, else
the executor's, which then only starts and hands on. So the parts are the call, whatever runs side
by side.
"""

from __future__ import annotations

import re
from typing import Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

MATRIX, MEMORY, INPUT, EXECUTOR, OTHER = "matrix", "memory", "input", "executor", "other"

_MATRIX = re.compile(r"MatMul|Conv[23]D|DepthwiseConv|Einsum|CudnnRNN|BlockLSTM|GRUBlock")
_OTHER = re.compile(
    r"Pool|Xla|PyFunc|Collective|Nccl|(Send|Recv)$|Summary|Dataset|Queue|File|Decode"
)
_CALLS_OTHERS = re.compile(r"(Stateful)?PartitionedCall|(Stateless)?(While|If|Case)|__inference.*")
_OPERATION = re.compile(r"[^:]+:([A-Za-z_][A-Za-z0-9_]*)")  # the node's name, its kernel's type
_OF_STEP = re.compile(r"(?:^|[#,])(?:id|step_id)=(-?\d+)")
PIPELINE_THREADS = "tf_data"
PIPELINE_CALL = "InstantiatedCapturedFunction::"
RUNNING = "ExecutorState::Process#"
STARTED = re.compile(r"ExecutorState::ProcessAsync::Start#.*\bkernel_type=([A-Za-z_]\w*)")
XLA_PROGRAM, XLA_OPERATION = "CpuExecutable::", "#hlo_op="
_XLA_MATRIX = re.compile(r"(?i).*(dot|matmul|gemm|conv(?!ert))")
AWAITED = ("IteratorGetNextOp::DoCompute", "MultiDeviceIteratorGetNext")


class Event(NamedTuple):
    """What a thread did, from when to when, in nanoseconds."""

    thread: int
    begin: int
    end: int
    name: str


def parsed(text: str) -> Tuple[List[Event], Set[int]]:
    """Events of a record, and the threads that are the input pipeline's own."""
    events: List[Event] = []
    pipeline: Set[int] = set()
    thread = 0
    for line in text.split("\n"):
        begin, tab, rest = line.partition("\t")
        if tab and not begin:
            thread += 1
            if rest.startswith(PIPELINE_THREADS):
                pipeline.add(thread)
            continue
        end, tab, name = rest.partition("\t")
        if tab:
            events.append(Event(thread, int(begin), int(end), name))
    return events, pipeline


CALLING = "calling"  # an operation that runs others, or a whole program


def part_of(operation: str) -> str:
    """The part that the time of an operation belongs to, by its kernel's type."""
    if _CALLS_OTHERS.fullmatch(operation):
        return CALLING
    if "GetNext" in operation:
        return INPUT
    if _MATRIX.search(operation):
        return MATRIX
    return OTHER if _OTHER.search(operation) else MEMORY


def _part(event: Event, pipeline: Set[int]) -> Optional[str]:
    """None for what is no work."""
    head, _, _ = event.name.partition("#")
    if event.name.startswith(AWAITED):
        return INPUT
    if event.thread in pipeline:
        return None
    if XLA_OPERATION in event.name:
        return MATRIX if _XLA_MATRIX.match(head) else MEMORY
    started = STARTED.match(event.name)
    if event.name.startswith(XLA_PROGRAM) or (started and _CALLS_OTHERS.fullmatch(started[1])):
        return CALLING
    operation = _OPERATION.fullmatch(head)
    return part_of(operation[1]) if operation else None


def shares(text: str, begin: int, end: int, silent: bool = False) -> Dict[str, float]:
    """What part of the call from `begin` to `end` (of the clock that the record has) each is. A
    `silent` call is of a program of which nothing is recorded: what would be the executor's is
    its."""
    events, pipeline = parsed(text)
    changes: List[Tuple[int, str, int]] = []
    for event in _of_the_step(events, pipeline):
        first, last = max(event.begin, begin), min(event.end, end)
        part = _part(event, pipeline) if first < last else None
        if part is not None:
            changes += [(first, part, 1), (last, part, -1)]
    changes.sort()
    found = _swept(changes, begin, end)
    if silent:
        found[OTHER] += found[EXECUTOR]
        found[EXECUTOR] = 0.0
    return found


def _of_the_step(events: List[Event], pipeline: Set[int]) -> Iterable[Event]:
    """Without what ran for the input pipeline in threads that it shares with the step."""
    for_input = {
        match[1]
        for event in events
        if event.name.startswith(PIPELINE_CALL) and (match := _OF_STEP.search(event.name))
    }
    until: Dict[int, int] = {}  # by thread: when it goes on with the step
    for event in sorted(events, key=lambda event: (event.thread, event.begin, -event.end)):
        if event.name.startswith(RUNNING):
            match = _OF_STEP.search(event.name)
            if match is not None and match[1] in for_input:
                until[event.thread] = max(until.get(event.thread, 0), event.end)
        elif event.begin >= until.get(event.thread, 0):
            yield event


def _swept(changes: List[Tuple[int, str, int]], begin: int, end: int) -> Dict[str, float]:
    spent = dict.fromkeys((MATRIX, MEMORY, EXECUTOR, INPUT, OTHER), 0.0)
    running = dict.fromkeys((MATRIX, MEMORY, OTHER, CALLING, INPUT), 0)
    before = begin
    for moment, part, by in [*changes, (end, INPUT, 0)]:
        length = moment - before
        count = running[MATRIX] + running[MEMORY] + running[OTHER]
        if count:
            for name in (MATRIX, MEMORY, OTHER):
                spent[name] += length * running[name] / count
        else:
            spent[OTHER if running[CALLING] else INPUT if running[INPUT] else EXECUTOR] += length
        before = moment
        running[part] += by
    whole = max(1, end - begin)
    return {name: nanoseconds / whole for name, nanoseconds in spent.items()}
