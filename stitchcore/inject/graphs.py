"""What a GraphDef from Grappler is, its shapes, and where its step timer goes.

Protobuf messages are reached through the graph itself; only `annotate` needs TensorFlow.
"""

from __future__ import annotations

from collections import Counter
from typing import AbstractSet, Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from . import digest, reasons, target
from .contract import FUSIONS, UPDATE
from .structure import Fault, types_of

MINIMUM_NODES = 30  # below it there is no training step worth a look
OURS = FUSIONS | {"StitchTimer", "StitchGate"}
# Stateful by their definition, and nothing happens when they run.
WITHOUT_EFFECT = frozenset({"_Arg", "_Retval", "VarHandleOp", "VariableV2", "Variable",
                            "Placeholder", "StitchTimer", "StitchGate"})  # fmt: skip
SEEDED_FOR_NOTHING = frozenset({"ComputeAccidentalHits", "SnapshotDataset"})  # they draw nothing
COMMUNICATION = ("Nccl", "_Send", "_Recv", "_HostSend", "_HostRecv", "Send", "Recv")
UPDATE_PREFIXES = ("Assign", "ResourceApply", "ResourceSparseApply", "ResourceScatter", "Apply",
                   "SparseApply", "Scatter")  # fmt: skip
PLAIN_ASSIGNMENTS = frozenset(("Assign", "AssignVariableOp"))
TRAINING, EVALUATION, INFERENCE = "training", "evaluation", "inference"  # what steps are for
GRADIENT = "Grad"  # in the types of operations
GRADIENT_SCOPES = frozenset(("gradient_tape", "gradients"))  # tf.GradientTape's, tf.gradients'
XLA_ATTRIBUTE = "_XlaMustCompile"
HANDLE_SHAPES, HANDLE_TYPES = "_handle_shapes", "_handle_dtypes"  # of an `_Arg` of resources
# (table, Tin, Thost, Tout, on a GPU?) -> what is wrong
Check = Callable[[List[int], List[int], List[int], List[int], bool], str]


def is_update(operation: str) -> bool:
    """True for ops that write a variable."""
    return operation.startswith(UPDATE_PREFIXES) and not operation.startswith("ScatterNd")


def why_left(graph: Any) -> Optional[str]:
    """None for a step, else why a graph is left alone (docs/decisions.md 20)."""
    operations = {node.op for node in graph.node}
    if len(graph.node) < MINIMUM_NODES and not xla_calls(graph):
        return reasons.REGION_TOO_SMALL
    if any("Dataset" in operation for operation in operations):
        iterates = any(operation.startswith("Iterator") for operation in operations)
        if not (iterates and any(is_update(operation) for operation in operations)):
            return reasons.INPUT_PIPELINE
    if any(operation.startswith(COMMUNICATION) for operation in operations):
        return reasons.COLLECTIVE
    updates = {operation for operation in operations if is_update(operation)}
    if not updates or updates - PLAIN_ASSIGNMENTS or xla_calls(graph):
        return None
    # assignments alone: of values computed from variables, or of initial ones
    return None if "ReadVariableOp" in operations else reasons.INITIALIZATION


def fed_between(graph: Any, fed: AbstractSet[str]) -> Optional[str]:
    """A node that a session is fed though the graph computes it. Of a function's graph none: what
    stays there and is not fetched is run for what it does."""
    if any(node.op in ("_Arg", "_Retval") for node in graph.node):
        return None
    computed = (n.name for n in graph.node if not n.op.startswith("Placeholder"))
    return next((name for name in computed if name in fed), None)


def kind_of(graph: Any) -> str:
    """What a step is for, by what it does. An evaluation writes only what it counts."""
    writes = False
    for node in graph.node:
        if _differentiates(node):
            return TRAINING
        writes = writes or is_update(node.op)
    return EVALUATION if writes else INFERENCE


def _differentiates(node: Any) -> bool:
    """An optimizer's operation, or one that computes a gradient: by TensorFlow's names for both."""
    applies = is_update(node.op) and "Apply" in node.op
    scopes = node.name.split("/")
    return applies or GRADIENT in node.op or not GRADIENT_SCOPES.isdisjoint(scopes)


def called_for_results(graph: Any) -> bool:
    """Whether a step's time is that of its calls. StitchTimer times one that trains variables, or
    that loops over its steps: from step to step."""
    updates = [i for i, node in enumerate(graph.node) if is_update(node.op)]
    if xla_calls(graph) or (updates and kind_of(graph) == TRAINING):
        return False
    frames = _frames(graph)[1] if updates else []
    return not any(frames[i] for i in updates)


def is_whole_of(graph: Any, arity: Optional[Tuple[int, int]]) -> bool:
    """Whether this is the graph that was called, not a function that it calls: by its arguments and
    results. `arity` is None where a session's is, which has none."""
    operations = Counter(node.op for node in graph.node)
    return (operations["_Arg"], operations["_Retval"]) == (arity or (0, 0))


def has_kernel_random(graph: Any) -> bool:
    """Whether a kernel keeps a random generator of its own, that a new instantiation starts anew:
    operations have two seeds as attributes for it. In functions that a graph calls, too."""
    from tensorflow.python.framework import op_def_registry

    called = (node for function in graph.library.function for node in function.node_def)
    known: Dict[str, bool] = {}
    for node in (*graph.node, *called):
        if node.op not in known:
            definition = op_def_registry.get(node.op)
            declared = definition.attr if definition is not None else ()
            attributes = {attribute.name for attribute in declared}
            known[node.op] = {"seed", "seed2"} <= attributes and node.op not in SEEDED_FOR_NOTHING
        if known[node.op] and not ("dropout" in node.attr and node.attr["dropout"].f == 0.0):
            return True
    return False


def devices(graph: Any, cores: float, task: str = "") -> float:
    """How many devices a graph's nodes are placed on: GPUs, or all `cores` where there is none.
    Those of other tasks than `task` are other processes' to report."""
    placed = [node.device for node in graph.node if node.device.startswith(f"{task}/")]
    gpus = {device for device in placed if target.is_gpu(device)}
    return float(len(gpus) or cores)


def late_refusal(graph: Any, in_function: bool) -> Optional[str]:
    """Why a graph must not be swapped once it has run; None when it may be."""
    from tensorflow.python.framework import config

    if in_function and has_kernel_random(graph):
        return reasons.KERNEL_RANDOM_STATE
    return reasons.DEADLINE if config.is_op_determinism_enabled() else None


def _is_xla_call(node: Any) -> bool:
    call = node.op.endswith("PartitionedCall") and XLA_ATTRIBUTE in node.attr
    return bool(call and node.attr[XLA_ATTRIBUTE].b)


def xla_calls(graph: Any) -> List[Any]:
    """Call nodes that XLA must compile, where they are the step. In a graph that differentiates
    around them they are a layer's own: operations of the step like a convolution."""
    calls = [node for node in graph.node if _is_xla_call(node)]
    if calls and any(_differentiates(node) for node in graph.node if not _is_xla_call(node)):
        return []
    return calls


def _is_step_work(node: Any) -> bool:
    """Nodes that a step runs for their effect: updates, and calls of functions that hold them."""
    return is_update(node.op) or node.op in (UPDATE, "StatefulPartitionedCall")


def annotate(
    graph: Any, records: Sequence[Tuple[int, int, bytes]]
) -> Tuple[Any, Dict[str, List[int]]]:
    """A copy of `graph` with `_output_shapes` on every node, and each node's output types.

    `records` are those of Plugin.shapes over the graph's nodes in order. Unknown dimensions are
    -1, TensorFlow's symbolic ones lie below.
    """
    try:
        from tensorflow.core.grappler.costs import (
            op_performance_data_pb2 as performance,
        )
    except ImportError:
        from tensorflow.core.protobuf import (
            op_performance_data_pb2 as performance,
        )
    copy = type(graph)()
    copy.CopyFrom(graph)
    types: Dict[str, List[int]] = {}
    for node in copy.node:
        node.attr["_output_shapes"].list.SetInParent()
        del node.attr["_output_shapes"].list.shape[:]
    for index, output, data in records:
        node = copy.node[index]
        properties = performance.OpInfo.TensorProperties.FromString(data)
        shapes = node.attr["_output_shapes"].list.shape
        if len(shapes) != output:
            raise reasons.Refused(reasons.HOOK_ERROR, "shapes arrived out of order")
        shapes.add().CopyFrom(properties.shape)
        types.setdefault(node.name, []).append(properties.dtype)
    return copy, types


def _loop_body_entry(graph: Any, edges: digest.Edges, frames: Sequence[Tuple[str, ...]],
                     frame: Tuple[str, ...]) -> Optional[int]:  # fmt: skip
    """A node that runs once in every pass of the loop body: it reads a Switch on the condition."""
    for i, node in enumerate(graph.node):
        if frames[i] != frame or node.op not in ("Switch", "RefSwitch") or len(edges.data[i]) < 2:
            continue
        if graph.node[edges.data[i][1][0]].op != "LoopCond":
            continue
        for consumer, position in edges.consumers[i]:
            if position >= 0 and (i, 1) in edges.data[consumer]:
                if graph.node[consumer].op == "Identity":
                    return consumer
    return None


def has_effect(operation: str, known: Dict[str, bool]) -> bool:
    """Whether a call that has run such an operation may not be begun anew."""
    if operation not in known:
        from tensorflow.python.framework import op_def_registry

        definition = op_def_registry.get(operation)
        # Operations on reference variables are not marked as stateful, and write what they are fed.
        acts = definition is None or definition.is_stateful
        acts = acts or any(argument.is_ref for argument in definition.input_arg)
        known[operation] = acts and operation not in WITHOUT_EFFECT
    return known[operation]


def _frames(graph: Any) -> Tuple[digest.Edges, List[Tuple[str, ...]]]:
    edges = digest.edges_of(graph.node)
    return edges, digest.frames_of(graph.node, edges, digest.topological(graph.node, edges))


def _gate(
    graph: Any,
    frames: Sequence[Tuple[str, ...]],
    step: int,
    arm: int,
    caller_thread: bool,
    preserve: AbstractSet[str] = frozenset(),
) -> None:
    gates: Dict[str, str] = {}
    known: Dict[str, bool] = {}
    for i, frame in enumerate(frames):
        node = graph.node[i]
        entry = len(frame) == 1 and node.op in ("Enter", "RefEnter")
        if not entry and (frame or not has_effect(node.op, known)):
            continue
        if node.device not in gates:
            gates[node.device] = f"stitch/gate_{step}_{arm}_{len(gates)}"
        node.input.append(f"^{gates[node.device]}")
    if not gates:  # one is there in any case: by it a call that has run is known
        ends = [node for node in graph.node if node.op == "_Retval" or node.name in preserve]
        gates[ends[0].device if ends else graph.node[0].device] = f"stitch/gate_{step}_{arm}_0"
        for node in ends[:1]:
            node.input.append(f"^stitch/gate_{step}_{arm}_0")
    for device, name in gates.items():
        gate = graph.node.add(name=name, op="StitchGate", device=device)
        gate.attr["step"].i, gate.attr["arm"].i = step, arm
        gate.attr["caller_thread"].b = caller_thread


def add_gates(
    graph: Any, step: int, arm: int, preserve: AbstractSet[str], caller_thread: bool = False
) -> Any:
    """A copy of `graph` with a StitchGate on each device before all that has an effect: until one
    has passed, a call that ends with an error can be made again. What a loop holds waits where it
    is entered. `preserve` are a session's fetches; `caller_thread` allows a call to run in
    the thread that makes it (native/caller_thread.cc)."""
    copy = type(graph)()
    copy.CopyFrom(graph)
    _gate(copy, _frames(graph)[1], step, arm, caller_thread, preserve)
    return copy


def add_timer(
    graph: Any, step: int, arm: int, gated: bool = False, caller_thread: bool = False
) -> Any:
    """A copy of `graph` with a StitchTimer that passes once per training step, and gates if asked:
    these may allow the caller's thread (`add_gates`).

    A step is a pass of the frame that updates variables. In the outermost frame the timer is a
    source that some update waits for; in a loop it hangs between the body's entry and an update.
    Raises Refused(HOOK_ERROR) where no such place is found.
    """
    edges, frames = _frames(graph)
    updates = [i for i, node in enumerate(graph.node) if _is_step_work(node)]
    if not updates:
        raise reasons.Refused(reasons.HOOK_ERROR, "no update to hang the step timer on")
    deepest = max((frames[i] for i in updates), key=len)
    target = next(i for i in updates if frames[i] == deepest)
    copy = type(graph)()
    copy.CopyFrom(graph)
    if gated:
        _gate(copy, frames, step, arm, caller_thread)
    # A session keeps stateful kernels by node name: each arm needs a name of its own.
    timer = copy.node.add(name=f"stitch/timer_{step}_{arm}", op="StitchTimer")
    timer.device = graph.node[target].device
    timer.attr["step"].i, timer.attr["arm"].i = step, arm
    if deepest:
        entry = _loop_body_entry(graph, edges, frames, deepest)
        if entry is None:
            raise reasons.Refused(reasons.HOOK_ERROR, "no entry of the training loop found")
        timer.input.append(f"^{graph.node[entry].name}")
    copy.node[target].input.append(f"^{timer.name}")
    return copy


def check_fusions(graph: Any, keys: AbstractSet[str], check: Check) -> List[Fault]:
    """Fusions of a patched graph that name no loaded kernel, or cannot be made: a node that fails
    when TensorFlow makes its kernel would fail the step."""
    faults = []
    for node in graph.node:
        if node.op not in FUSIONS:
            continue
        if node.attr["kernel"].s.decode() not in keys:
            faults.append(Fault(node.name, "it names an unknown kernel"))
            continue
        inputs, host, outputs = (types_of(node, name) for name in ("Tin", "Thost", "Tout"))
        on_gpu = target.is_gpu(node.device)
        why = check(list(node.attr["table"].list.i), inputs, host, outputs, on_gpu)
        if why:
            faults.append(Fault(node.name, why))
    return faults


def variable_shapes(graph: Any) -> Dict[str, Dict[int, Any]]:
    """What is known of the variables that XLA's functions are called with.

    Per function, by argument number: the `_Arg` behind the argument, whose attributes hold type and
    shape. An argument in which two calls differ is left out.
    """
    nodes = {node.name: node for node in graph.node}
    shapes: Dict[str, Dict[int, Any]] = {}
    for call in xla_calls(graph):
        known = {}
        for number, reference in enumerate(r for r in call.input if not r.startswith("^")):
            node = nodes[digest.parse_reference(reference)[0]]
            while node.op in ("Identity", "Enter") and node.input:
                node = nodes[digest.parse_reference(node.input[0])[0]]
            if HANDLE_SHAPES in node.attr and HANDLE_TYPES in node.attr:
                known[number] = node
        name = call.attr["f"].func.name
        before = shapes.setdefault(name, known)
        shapes[name] = {i: node for i, node in before.items() if _same_handle(node, known.get(i))}
    return shapes


def _same_handle(node: Any, other: Any) -> bool:
    return other is not None and all(
        node.attr[name] == other.attr[name] for name in (HANDLE_SHAPES, HANDLE_TYPES)
    )


def set_variable_shapes(function: Any, shapes: Mapping[int, Any]) -> None:
    """Tells a FunctionDef the shapes of its variables: a nested call does not pass them on."""
    for number, node in shapes.items():
        for name in (HANDLE_SHAPES, HANDLE_TYPES):
            function.arg_attr[number].attr[name].CopyFrom(node.attr[name])


def lift_xla(graph: Any) -> Any:
    """A copy in which XLA's calls are ordinary ones: attribute removed on call and function."""
    copy = type(graph)()
    copy.CopyFrom(graph)
    lifted = set()
    for node in xla_calls(copy):
        lifted.add(node.attr["f"].func.name)
        del node.attr[XLA_ATTRIBUTE]
    for function in copy.library.function:
        if function.signature.name in lifted and XLA_ATTRIBUTE in function.attr:
            del function.attr[XLA_ATTRIBUTE]
    return copy
