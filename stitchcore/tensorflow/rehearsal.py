"""A patched graph run once before any job sees it: in the worker's TensorFlow, with made-up values.

The graph is a stranger's, so what runs is a *skeleton* of it: only operations that compute numbers
from numbers, TensorFlow's control flow and reads and writes of variables stay, and the variables
are ours. Any other operation becomes zeros of its recorded types and shapes, that wait for all that
it waited for: frames, branches and order stay as they are. Each loop is counted
by a counter of ours, runs twice, and ends. A time limit holds whatever happens.

The skeleton of the untouched graph runs first. If made-up values already fail there, nothing can be
said of the patch. If it runs and the patched one does not, or not with the same fetches and the
same updates of variables, the region at fault is the one whose node the error names, or is found by
leaving halves of the regions out. It runs a second time, in the same session, with its kernels put
aside, so that the functions that do their work where they cannot (fallback.py) have run, too.
"""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.python.framework import op_def_registry

from stitchcore import inject
from stitchcore.artifact.manifest import KernelEntry, Patch
from stitchcore.errors import Reason, Refusal, Refused
from stitchcore.hlo.ir.dim import evaluate
from stitchcore.inject import client, digest, patch, plugin, program, reasons, structure
from stitchcore.inject.contract import FUSIONS, PATCH_OPERATIONS
from stitchcore.inject.patch import READERS
from stitchcore.tensorflow import op_allowlist
from stitchcore.tensorflow.graph import NOMINAL_SIZE, Edge, output_types
from stitchcore.tensorflow.lower import RUNNABLE
from stitchcore.tensorflow.partition import Partition
from stitchcore.tensorflow.shape_function_allowlist import is_side_effect_free
from stitchcore.tensorflow.size_points import points
from stitchcore.tensorflow.updates import UPDATES
from stitchcore.tensorflow.variables import variable_shape

PREFIX = "rehearsal"
SECONDS = 20.0
"""For all runs together; a graph that takes longer was not rehearsed."""

MOST_BYTES = 2**30
"""Live bytes of a step, by the estimate, above which it is not run in the worker."""

CONTROL_FLOW = structure.CONTROL_FLOW | {"NextIteration", "LoopCond", "RefNextIteration"}
VARIABLES = {"ReadVariableOp", "ResourceGather", *op_allowlist.ASSIGNMENTS, *UPDATES}
REFERENCES = frozenset({"Assign", "AssignAdd", "AssignSub"})
KEPT = RUNNABLE | CONTROL_FLOW | VARIABLES | REFERENCES | (READERS - FUSIONS)
"""Operations of a stranger's graph that run. An attribute that names something is none of theirs
but a loop's frame; `is_side_effect_free` holds for all that take part in no loop or variable."""

PASSING = CONTROL_FLOW | {"Identity"}
TOKEN = "float32"
"""What stands for a value that cannot be made up (a list, an iterator): one number, of no use."""

PASS = structure.SWITCHES | {"Identity", "Enter", "RefEnter", "RefIdentity"}
HELD = "stitch.rehearsal"  # container of our variables


@dataclass(frozen=True)
class Rehearsal:
    """`refused` are regions that were taken back; `figure` says what was done, for the report."""

    refused: Mapping[str, Refusal] = field(default_factory=dict)
    figure: str = ""


class _Inconclusive(Exception):
    """Nothing can be said by running this graph."""


def types_of(graph: Any) -> dict[str, list[int]]:
    """Output types of a graph's nodes, by their definitions; a job has them of TensorFlow."""
    types = {node.name: output_types(node) for node in graph.node}
    return {
        name: [int(tf.as_dtype(kind).as_datatype_enum) for kind in kinds]
        for name, kinds in types.items()
        if all(kinds)
    }


def rehearse(
    partition: Partition,
    patched: Patch,
    kernels: Sequence[KernelEntry],
    libraries: Sequence[bytes],
    functions: str,
    live_bytes: int = 0,
    run: bool = True,
) -> Rehearsal:
    """Apply `patched` to the request's graph as a job does, then run it where `run` says so;
    `kernels` and `functions` are the manifest's.

    Raises Refused(STRUCTURE) for a fault that no region answers for, or where none is left.
    """
    start = time.perf_counter()
    native = _native() if run else "a GPU's graph"
    checks: list[Callable[[Any], list[structure.Fault]]] = []
    refused: dict[str, Refusal] = {}

    def applied(regions: Sequence[Any]) -> patch.Patched:
        arguments = (numbering, {"regions": regions}, PREFIX, partition.preserve, types, checks)
        return patch.apply(partition.request, *arguments)

    numbering = digest.number(partition.request, partition.preserve)
    types = types_of(partition.request)
    regions: list[Any] = msgspec.to_builtins(patched)["regions"]
    try:
        all_applied = applied(regions)
    except reasons.Refused as error:
        raise Refused("graph", Reason.STRUCTURE, error.detail) from error
    for name, fault in all_applied.taken_back.items():
        refused[name] = Refusal(name, Reason.STRUCTURE, str(fault))
    regions = [region for region in regions if region["name"] not in refused]
    why = native if isinstance(native, str) else ""
    if not why and live_bytes > MOST_BYTES:
        why = f"{live_bytes:,} live bytes, above {MOST_BYTES:,}"
    if why or isinstance(native, str):
        return Rehearsal(refused, f"validated; not run: {why}")
    entries = msgspec.to_builtins(list(kernels))
    manifest = {"target": "cpu", "kernels": entries, "functions": functions}
    try:
        keys = program.load_kernels(native, client.Artifact(manifest, tuple(libraries)))
    except reasons.Refused as error:
        return Rehearsal(refused, f"validated; not run: no kernel can be loaded here: {error}")
    stage = _Stage(partition, native, keys, start + SECONDS)
    try:
        (untouched,) = stage.run(partition.request, ())
    except (_Inconclusive, tf.errors.OpError, ValueError) as error:
        return Rehearsal(refused, f"validated; the untouched graph did not run: {_line(error)}")
    try:
        while regions:
            wrong = stage.compared(applied(regions).graph, regions, untouched)
            if wrong is None:
                break
            name, problem = _at_fault(stage, applied, regions, untouched, wrong)
            refused[name] = Refusal(name, Reason.STRUCTURE, problem)
            regions = [region for region in regions if region["name"] != name]
    except _Inconclusive as error:
        return Rehearsal(refused, f"validated; not run to its end: {error}")
    finally:
        native.retire(keys, False)
    if not regions:
        detail = next(iter(refused.values())).detail
        raise Refused("graph", Reason.STRUCTURE, f"no region is left: {detail}")
    seconds = time.perf_counter() - start
    return Rehearsal(refused, f"validated and run with made-up values in {seconds:.1f} s")


def _at_fault(
    stage: _Stage,
    applied: Callable[[Sequence[Any]], patch.Patched],
    regions: Sequence[Any],
    untouched: Observed,
    wrong: Wrong,
) -> tuple[str, str]:
    """A region without which less is wrong, and what is wrong with it."""
    if wrong.region:
        return wrong.region, wrong.detail
    suspects = list(regions)
    while len(suspects) > 1:
        half = suspects[: len(suspects) // 2]
        wrong_of_half = stage.compared(applied(half).graph, half, untouched)
        if wrong_of_half is not None and wrong_of_half.region:
            return wrong_of_half.region, wrong_of_half.detail
        suspects = half if wrong_of_half is not None else suspects[len(half) :]
        wrong = wrong_of_half or wrong
    return str(suspects[0]["name"]), wrong.detail


@lru_cache(maxsize=1)
def _native() -> plugin.Plugin | str:
    """The job side's plug-in, loaded into this process, or why it is not."""
    folder = os.environ.get("STITCH_PLUGIN")
    place = Path(folder) if folder else Path(inject.__file__).parent / "lib" / platform.machine()
    major, minor = map(int, tf.version.VERSION.split(".")[:2])
    try:
        return plugin.load(str(place), (major, minor))
    except (reasons.Refused, OSError, tf.errors.OpError) as error:
        return f"the plug-in cannot be loaded here: {_line(error)}"


def _line(error: BaseException) -> str:
    """An error's own first line; TensorFlow puts a stack of the graph's making before it."""
    text = str(error).strip() or type(error).__name__
    messages = re.findall(r"^Node: .*\n(?!Detected at)(.+)$", text, re.MULTILINE)
    return (messages[-1] if messages else text.splitlines()[0])[:200]


# ---- running -----------------------------------------------------------------------------------
@dataclass(frozen=True)
class Observed:
    """Types and shapes of what a step gives, by name, and its variables before and after."""

    fetched: Mapping[str, tuple[str, tuple[int, ...]]]
    before: Mapping[str, Any]
    after: Mapping[str, Any]


@dataclass(frozen=True)
class Wrong:
    """How a patched step differs; `region` is the one that an error named, or ""."""

    detail: str
    region: str = ""


class _Stage:
    """Runs skeletons of one request's graph and of what patches make of it."""

    def __init__(
        self,
        partition: Partition,
        native: plugin.Plugin,
        keys: Collection[str],
        deadline: float,
    ) -> None:
        self._partition, self._native, self._deadline = partition, native, deadline
        self._keys = keys
        self._original = structure.Original(partition.request)

    def compared(self, graph: Any, regions: Sequence[Any], untouched: Observed) -> Wrong | None:
        """What is wrong with a patched graph, by its kernels or by the functions that do their work
        where they cannot. Raises _Inconclusive when the time is over."""
        owner = {
            f"stitch/{PREFIX}/{node['name']}": region["name"]
            for region in regions
            for node in region["add"]
        }
        before = frozenset(self._native.failures())
        try:
            both = self.run(graph, owner, aside=(False, True))
        except (tf.errors.OpError, ValueError) as error:
            named = re.findall(rf"stitch/{PREFIX}/[A-Za-z0-9_.\-/]+", str(error))
            return Wrong(_line(error), next((owner[n] for n in named if n in owner), ""))
        for failure in self._native.failures():
            if failure not in before:  # though its work was done all the same
                return Wrong(failure.message, owner.get(failure.node, ""))
        return next(filter(None, (_difference(untouched, one) for one in both)), None)

    def run(
        self, graph: Any, ours: Iterable[str], aside: Sequence[bool] = (False,)
    ) -> list[Observed]:
        """Steps of the skeleton, each from the same variables, with kernels put `aside` or not.
        Raises what TensorFlow does, and _Inconclusive."""
        skeleton = _Skeleton(self._partition, self._original, graph, frozenset(ours))
        definition = skeleton.build()
        config = tf.compat.v1.ConfigProto()
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        config.graph_options.optimizer_options.opt_level = -1  # as it is
        with tf.Graph().as_default() as imported, tf.compat.v1.Session(config=config) as session:
            tf.import_graph_def(definition, name="")
            values = [f"{name}:0" for name in skeleton.variables]
            wanted = [f"{name}:0" for name in skeleton.fetches]
            targets = [imported.get_operation_by_name(name) for name in skeleton.targets]
            observed = []
            for retired in aside:
                limit = self._limit()
                self._native.retire(self._keys, retired)
                session.run([f"{name}" for name in skeleton.initial], options=limit)
                before = session.run(values, options=limit)
                self._native.prove(first=False)  # it is the kernels' work in place that is tried
                try:
                    results, _ = session.run((wanted, targets), options=limit)
                finally:
                    self._native.prove(first=True)
                after = session.run(values, options=limit)
                observed.append(_observed(skeleton, results, before, after))
            session.run([f"{name}" for name in skeleton.forgotten], options=limit)
        return observed

    def _limit(self) -> Any:
        """For what runs next. Raises _Inconclusive."""
        seconds_left = self._deadline - time.perf_counter()
        if seconds_left <= 0:
            raise _Inconclusive(f"it takes longer than {SECONDS:.0f} s")
        return tf.compat.v1.RunOptions(timeout_in_ms=max(1, int(1000 * seconds_left)))


def _observed(
    skeleton: _Skeleton, results: Sequence[Any], before: Sequence[Any], after: Sequence[Any]
) -> Observed:
    fetched = {
        name: (str(np.asarray(value).dtype), np.shape(value))
        for name, value in zip(skeleton.fetches, results, strict=True)
    }
    names = skeleton.variables
    return Observed(
        fetched, dict(zip(names, before, strict=True)), dict(zip(names, after, strict=True))
    )


def _difference(untouched: Observed, stitched: Observed) -> Wrong | None:
    """Of a patched step from the untouched one."""
    for name, expected in untouched.fetched.items():
        if stitched.fetched.get(name) != expected:
            return Wrong(f"{name} was {expected} and is {stitched.fetched.get(name)}")
    for name, value in untouched.after.items():
        stitched_value = stitched.after[name]
        if (value.shape, value.dtype) != (stitched_value.shape, stitched_value.dtype):
            return Wrong(f"variable {name} has another shape or type")
        unchanged = np.array_equal(stitched_value, stitched.before[name], equal_nan=True)
        if unchanged and _moved(untouched.before[name], value):
            return Wrong(f"variable {name} is not updated")
    return None


def _moved(before: Any, after: Any) -> bool:
    """Whether a variable has changed by clearly more than rounding makes of nothing."""
    if before.dtype.kind != "f":
        return not np.array_equal(before, after)
    change = np.abs(after.astype(np.float64) - before.astype(np.float64))
    return bool(np.any(change > 1e-3 * (1.0 + np.abs(before.astype(np.float64)))))


# ---- the skeleton ------------------------------------------------------------------------------
class _Skeleton:
    """A graph of which only harmless operations are left. `ours` names nodes that a patch added."""

    def __init__(
        self, partition: Partition, original: structure.Original, graph: Any, ours: frozenset[str]
    ) -> None:
        self._partition, self._original, self._graph, self._ours = partition, original, graph, ours
        sizes = partition.sizes
        self._index, self._point = partition.graph, (sizes.points or points(sizes.symbols))[0]
        self._result = graph_pb2.GraphDef()
        self._result.versions.CopyFrom(graph.versions)
        self._contents: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._tokens: set[str] = set()
        self._replaced: set[str] = set()
        self.initial: list[str] = []
        self.variables: list[str] = []
        self.forgotten: list[str] = []
        self.fetches: list[str] = []
        self.targets: list[str] = []

    def build(self) -> Any:
        """Raises _Inconclusive where a value cannot be made up."""
        read, loops = self._original.read, self._loops()
        function = "_Retval" in read.operations  # its control results may lose their values
        self._find_tokens()
        used = {
            digest.parse_reference(reference)[0]
            for node in self._graph.node
            for reference in node.input
        }
        for node in self._graph.node:
            number = read.number.get(node.name)
            outermost = number is None or not self._original.inner[number]
            always = number is not None and outermost and not self._original.alive[number]
            if node.name in self._ours:
                if node.op not in PATCH_OPERATIONS | FUSIONS:
                    raise _Inconclusive(f"{node.op} is no operation of a patch")
                self._keep(node)
            elif node.op == "_Retval":
                self._return(node, always)
            elif node.op == "LoopCond":
                self._count(node, loops)
            elif node.name in self._contents:
                self._variable(node, *self._contents[node.name])
            elif node.name in self._replaced:
                self._replace(node)
            elif self._runs(node):
                self._keep(node)
                if node.name in self._tokens and "T" in node.attr:
                    self._result.node[-1].attr["T"].type = tf.as_dtype(TOKEN).as_datatype_enum
            else:
                self._replace(node)
            if outermost and (node.name not in used or node.name in self._partition.preserve):
                self.targets.append(node.name)
            fetched = not function and node.name in self._partition.preserve
            if fetched and always and self._is_number(node):
                self.fetches.append(node.name)
        return self._result

    def _runs(self, node: Any) -> bool:
        if node.op.startswith("Apply") and is_side_effect_free(node.op):
            return True
        if node.op not in KEPT or op_def_registry.get(node.op) is None:
            return False
        return node.op in CONTROL_FLOW | VARIABLES or is_side_effect_free(node.op)

    def _find_tokens(self) -> None:
        """Variables, by what they hold, and tokens: outputs that cannot be made up, and all that
        hand them on. What else reads a token is replaced."""
        users: dict[str, list[Any]] = {}
        pending = []
        for node in self._graph.node:
            for reference in node.input:
                users.setdefault(digest.parse_reference(reference)[0], []).append(node)
            kinds = output_types(node)
            if node.op == "VariableV2":
                shape = self._shape(node.name, 0)
                self._contents[node.name] = (tf.as_dtype(node.attr["dtype"].type).name, shape)
            elif node.op in ("VarHandleOp", "_Arg", "Placeholder") and "resource" in kinds:
                content = self._content(node)
                if content is not None:
                    self._contents[node.name] = content
                    continue
            if node.name not in self._ours and not self._runs(node) and not _known(kinds):
                pending.append(node)
        while pending:
            source = pending.pop()
            if source.name in self._tokens:
                continue
            self._tokens.add(source.name)
            kinds = output_types(source)
            for node in users.get(source.name, ()):
                ports = [p for n, p in map(digest.parse_reference, node.input) if n == source.name]
                if all(port < 0 or _known(kinds[port : port + 1]) for port in ports):
                    continue
                if node.op not in PASSING:
                    self._replaced.add(node.name)
                if not _known(output_types(node)):
                    pending.append(node)
        self._replace_readers_of_unranked(users)

    def _replace_readers_of_unranked(self, users: Mapping[str, Sequence[Any]]) -> None:
        """What reads zeros whose rank nobody knows could not: it becomes zeros, too."""
        pending = [n for n in self._graph.node if self._is_replaced(n) and self._unranked(n.name)]
        seen: set[str] = set()
        while pending:
            source = pending.pop()
            unranked = self._unranked(source.name)
            for node in users.get(source.name, ()):
                ports = {p for n, p in map(digest.parse_reference, node.input) if n == source.name}
                if node.name in self._ours or node.name in seen or not ports & unranked:
                    continue
                seen.add(node.name)
                if node.op not in PASSING:
                    self._replaced.add(node.name)
                pending.append(node)

    def _is_replaced(self, node: Any) -> bool:
        if node.name in self._ours or node.name in self._contents:
            return False
        return node.name in self._replaced or not self._runs(node)

    def _unranked(self, name: str) -> set[int]:
        """Outputs of a node of the request's whose rank is unknown."""
        number = self._index.number.get(name)
        if number is None:
            return set()
        ports = range(len(self._index.output_types[number]))
        return {port for port in ports if self._index.shape(Edge(number, port)) is None}

    def _is_number(self, node: Any) -> bool:
        kinds = output_types(node)
        return bool(kinds) and kinds[0] in op_allowlist.ANY

    def _add(self, name: str, operation: str, *inputs: str) -> Any:
        node = self._result.node.add(name=name, op=operation)
        node.input.extend(inputs)
        return node

    def _keep(self, node: Any) -> None:
        copy = self._add(node.name, node.op, *node.input)
        for name, value in node.attr.items():
            if not name.startswith("_"):
                copy.attr[name].CopyFrom(value)

    def _replace(self, node: Any) -> None:
        """Zeros of what the node made, after all that it waited for."""
        before = _as_controls(node.input)
        kinds = output_types(node)
        if not kinds:
            if op_def_registry.get(node.op) is None and node.name in self._index.number:
                raise _Inconclusive(f"{node.op} is not registered here")
            self._add(node.name, "NoOp", *before)
            return
        zeros = []
        for port, kind in enumerate(kinds):
            name = f"{node.name}/{PREFIX}{port}"
            zeros.append(name)
            known = _known([kind])
            shape = self._shape(node.name, port) if known else ()
            self._constant(name, kind if known else TOKEN, shape, 0, before)
        outputs = self._add(node.name, "IdentityN", *zeros, *before)
        types = [kind if _known([kind]) else TOKEN for kind in kinds]
        outputs.attr["T"].list.type.extend(tf.as_dtype(kind).as_datatype_enum for kind in types)

    def _constant(
        self, name: str, kind: str, shape: Sequence[int], value: int, before: Sequence[str] = ()
    ) -> str:
        constant, dtype = self._add(name, "Const", *before), tf.as_dtype(kind)
        constant.attr["dtype"].type = dtype.as_datatype_enum
        element = b"" if kind == "string" else np.full((), value, dtype.as_numpy_dtype)
        constant.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(element, dtype, shape))
        return str(constant.name)

    def _shape(self, name: str, port: int) -> tuple[int, ...]:
        number = self._index.number.get(name)
        known = None if number is None else self._index.shape(Edge(number, port))
        return tuple(map(self._size, known or ()))

    def _size(self, size: int) -> int:
        dim = self._partition.sizes.dim(size)
        if dim is None:
            return NOMINAL_SIZE
        return dim if isinstance(dim, int) else max(0, evaluate(dim, self._point))

    def _return(self, node: Any, always: bool) -> None:
        """What a function gives back is fetched."""
        kind = tf.as_dtype(node.attr["T"].type).name if "T" in node.attr else ""
        if kind not in op_allowlist.ANY:
            self._add(node.name, "NoOp", *_as_controls(node.input))
            return
        identity = self._add(node.name, "Identity", *node.input)
        identity.attr["T"].CopyFrom(node.attr["T"])
        if always:
            self.fetches.append(node.name)

    # Variables

    def _variable(self, node: Any, kind: str, shape: tuple[int, ...]) -> None:
        """A variable of our own, with ones in it."""
        reference = node.op == "VariableV2"
        if kind not in op_allowlist.ANY:
            raise _Inconclusive(f"a variable of type {kind}")
        variable = self._add(
            node.name, node.op if reference else "VarHandleOp", *_as_controls(node.input)
        )
        variable.attr["dtype"].type = tf.as_dtype(kind).as_datatype_enum
        variable.attr["container"].s = HELD.encode()
        variable.attr["shared_name"].s = f"{HELD}/{self._original.read.number[node.name]}".encode()
        for size in shape:
            variable.attr["shape"].shape.dim.add(size=size)
        variable.attr["shape"].shape.SetInParent()
        name = f"{node.name}/{PREFIX}"
        self._constant(f"{name}_value", kind, shape, 1)
        source = self._handle(node.name, variable)
        if reference:
            assign = self._add(f"{name}_initial", "Assign", source, f"{name}_value")
            assign.attr["T"].type = variable.attr["dtype"].type
            assign.attr["validate_shape"].b = True
            read = self._add(f"{name}_read", "Identity", source)
            read.attr["T"].type = variable.attr["dtype"].type
        else:
            assign = self._add(f"{name}_initial", "AssignVariableOp", source, f"{name}_value")
            assign.attr["dtype"].type = variable.attr["dtype"].type
            read = self._add(f"{name}_read", "ReadVariableOp", source)
            read.attr["dtype"].type = variable.attr["dtype"].type
            forget = self._add(f"{name}_forget", "DestroyResourceOp", source)
            forget.attr["ignore_lookup_error"].b = True
            self.forgotten.append(forget.name)
        self.initial.append(assign.name)
        self.variables.append(read.name)

    def _handle(self, name: str, node: Any) -> str:
        """The same variable's handle, free of what the node waits for."""
        handle = self._add(f"{name}/{PREFIX}_own", node.op)
        for attribute, value in node.attr.items():
            handle.attr[attribute].CopyFrom(value)
        return str(handle.name)

    def _content(self, node: Any) -> tuple[str, tuple[int, ...]] | None:
        """Type and shape of what a handle's variable holds, as told or by what is read or written
        of it; None where nothing says so: an iterator's, say."""
        index = self._index
        if node.name not in index.number:
            return None
        declared = None
        told = variable_shape(index, Edge(index.number[node.name], 0))
        if told is not None and "_handle_dtypes" in node.attr:
            return tf.as_dtype(node.attr["_handle_dtypes"].list.type[0]).name, told
        if node.op == "VarHandleOp":
            sizes = [dim.size for dim in node.attr["shape"].shape.dim]
            kind = tf.as_dtype(node.attr["dtype"].type).name
            declared = kind, tuple(max(size, 1) for size in sizes)
            if not node.attr["shape"].shape.unknown_rank and all(size >= 0 for size in sizes):
                return declared
        guessed = None
        pending = [Edge(index.number[node.name], 0)]
        seen = set(pending)
        while pending:
            handle = pending.pop()
            for consumer, position in index.consumers[handle.node]:
                if position < 0 or index.data[consumer][position] != handle:
                    continue
                user = index.nodes[consumer]
                like = self._like(consumer, user, position)
                shape = None if like is None else index.shape(like)
                if like is not None and shape is not None:
                    guessed = index.dtype(like), tuple(map(self._size, shape))
                    if all(self._partition.sizes.dim(size) is not None for size in shape):
                        return guessed
                if user.op in PASS:
                    for port in range(len(index.output_types[consumer])):
                        edge = Edge(consumer, port)
                        if edge not in seen:
                            seen.add(edge)
                            pending.append(edge)
        return guessed or declared

    def _like(self, consumer: int, node: Any, position: int) -> Edge | None:
        """A tensor of the type and shape of the variable that `consumer` reads or writes."""
        if node.op == op_allowlist.READ:
            return Edge(consumer, 0)
        if node.op in op_allowlist.ASSIGNMENTS:
            return self._index.data[consumer][1]
        update = UPDATES.get(node.op)
        if update is not None and position < update.variables:
            return self._index.data[consumer][update.gradient]
        return None

    # Loops

    def _loops(self) -> dict[int, Any]:
        """Of each frame: an Enter, with what it waits for in this graph."""
        number = self._original.read.number
        return {
            self._original.outer[number[node.name]]: node
            for node in self._graph.node
            if node.op == "Enter" and node.name in number
        }

    def _count(self, node: Any, loops: Mapping[int, Any]) -> None:
        """A loop's condition, that holds twice whatever the graph computes for it."""
        number = self._original.read.number[node.name]
        enter = loops.get(self._original.inner[number])
        if enter is None:
            raise _Inconclusive(f"{node.name} is in no loop")
        name, kind = f"{node.name}/{PREFIX}", tf.int32.as_datatype_enum

        def add(suffix: str, operation: str, *inputs: str) -> str:
            copy = self._add(f"{name}_{suffix}", operation, *inputs)
            copy.attr["T"].type = kind
            return str(copy.name)

        def constant(suffix: str, value: int, *before: str) -> str:
            return self._constant(f"{name}_{suffix}", "int32", (), value, before)

        first = constant("zero", 0, *_as_controls(enter.input))
        entered = add("enter", "Enter", first)
        self._result.node[-1].attr["frame_name"].CopyFrom(enter.attr["frame_name"])
        if "parallel_iterations" in enter.attr:
            iterations = enter.attr["parallel_iterations"]
            self._result.node[-1].attr["parallel_iterations"].CopyFrom(iterations)
        merged = add("merge", "Merge", entered, f"{name}_next")
        self._result.node[-1].attr["N"].i = 2
        less = add("less", "Less", merged, constant("two", 2, f"^{merged}"))
        self._add(node.name, "LoopCond", less, *_as_controls(node.input))
        switched = add("switch", "Switch", merged, node.name)
        more = add("more", "Identity", f"{switched}:1")
        summed = add("sum", "AddV2", more, constant("one", 1, f"^{more}"))
        add("next", "NextIteration", summed)


def _known(kinds: Iterable[str]) -> bool:
    """Whether values of these types can be made up."""
    return all(kind in op_allowlist.ANY or kind == "string" for kind in kinds)


def _as_controls(inputs: Iterable[str]) -> list[str]:
    """Control inputs in place of whatever inputs there were."""
    return [
        f"^{name}"
        for name in dict.fromkeys(digest.parse_reference(reference)[0] for reference in inputs)
    ]
