"""How long it takes to hold a patched graph of 10,000 nodes against TensorFlow's rules.

    python -m bench.structure [NODES]

A captured training step, a step with branches and a loop are cut as a worker cuts them, each region
becomes one fusion, and the whole is repeated until it has so many nodes. Prints processor time of
the analysis of the original (once per graph), of one check, and of `patch.apply`: the best of five.
"""

from __future__ import annotations

import lzma
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2

from stitchcore.inject import digest, patch, structure
from stitchcore.tensorflow.fusion_node import encoded, tensorflow_type
from stitchcore.tensorflow.graph import Edge, GraphIndex
from stitchcore.tensorflow.partition import Partition, Region, partition

TESTS = Path(__file__).parents[1] / "tests"
CAPTURED = ("optimize/requests/mlp/graph.pb.xz", "tensorflow/graphs/accumulate_cond.pb.xz")


def captured(path: str) -> Any:
    return graph_pb2.GraphDef.FromString(lzma.decompress((TESTS / path).read_bytes()))


def loop_step(passes: int = 2) -> Any:
    """A loop, in TensorFlow's own control flow operations, with a branch in it."""
    tf.compat.v1.disable_control_flow_v2()
    try:
        graph = tf.Graph()
        with graph.as_default():
            x = tf.compat.v1.placeholder(tf.float32, [64, 32], "x")
            scale = tf.sqrt(tf.abs(x) + 1.0)

            def body(count: Any, value: Any) -> Any:
                mean = tf.reduce_mean(value, 1, keepdims=True)
                value = tf.tanh(value - mean) * scale + tf.nn.softmax(value)
                value = tf.cond(count > 0, lambda: tf.exp(-value) + value, lambda: value * 2.0)
                return count + 1, tf.matmul(value, tf.ones([32, 32]))

            _, last = tf.compat.v1.while_loop(lambda count, _: count < passes, body, [0, x])
            tf.identity(tf.reduce_sum(tf.square(last) + tf.sin(last)), name="result")
    finally:
        tf.compat.v1.enable_control_flow_v2()
    return graph.as_graph_def(add_shapes=True)


def tiled(graph: Any, copies: int) -> Any:
    """The graph so many times, side by side."""
    whole = type(graph)()
    whole.library.CopyFrom(graph.library)
    whole.versions.CopyFrom(graph.versions)
    for copy in range(copies):
        prefix = f"t{copy}/"
        for node in graph.node:
            made = whole.node.add()
            made.CopyFrom(node)
            made.name = prefix + node.name
            del made.input[:]
            made.input.extend(
                f"^{prefix}{one[1:]}" if one.startswith("^") else prefix + one for one in node.input
            )
            if "frame_name" in made.attr:
                made.attr["frame_name"].s = prefix.encode() + node.attr["frame_name"].s
            if "_class" in made.attr:
                places = [b"loc:@" + prefix.encode() + s[5:] for s in node.attr["_class"].list.s]
                made.attr["_class"].list.s[:] = places
    return whole


def types_of(found: Partition) -> dict[str, list[int]]:
    """As the job's plug-in tells them."""
    index = found.graph
    return {
        node.name: [tensorflow_type(name) for name in names]
        for node, names in zip(index.nodes, index.output_types, strict=True)
        if all(names)
    }


def regions_of(found: Partition, ids: Any) -> Iterator[dict[str, Any]]:
    """Each region that writes no variable as one fusion of all that enters it."""
    for region in found.regions:
        if not region.updates and not region.variables:
            yield _region(found.graph, region, ids)


def _region(index: GraphIndex, region: Region, ids: Any) -> dict[str, Any]:
    def place(node: int) -> int:
        return int(ids[index.nodes[node].name])

    def tensor(edge: Edge) -> str:
        return f"{place(edge.node)}:{edge.port}"

    inside = {*region.members}
    controls = {
        f"^{place(source)}"
        for node in (*region.clones, *region.members)
        for source in index.control[node]
        if source not in inside
    }
    node = node_def_pb2.NodeDef()
    for name, edges in (("Tin", region.tensors), ("Tout", region.results)):
        node.attr[name].list.SetInParent()
        node.attr[name].list.type.extend(tensorflow_type(index.dtype(edge)) for edge in edges)
    node.attr["kernel"].s = b"key"
    node.attr["table"].list.i.extend([1, 0, 0, 0, 0, 0, 1, 2, 0, 1])
    fusion = {
        "name": region.name,
        "op": "StitchedFusion",
        "attr": encoded(node),
        "device_of": place(region.members[0]),
        "inputs": [*map(tensor, region.tensors), *sorted(controls)],
    }
    rewire = [[f"^{place(member)}", f"^+{region.name}"] for member in region.members]
    rewire += [[tensor(edge), f"+{region.name}:{k}"] for k, edge in enumerate(region.results)]
    removed = [place(member) for member in region.members]
    return {"name": region.name, "remove": removed, "add": [fusion], "rewire": rewire,
            "controls": []}  # fmt: skip


class Patched:
    """A graph, its regions' patch, and both put together."""

    def __init__(self, graph: Any, preserve: tuple[str, ...] = ()) -> None:
        self.graph, self.preserve = graph, preserve
        found = partition(graph, preserve)
        self.numbering = digest.number(graph, preserve)
        self.types = types_of(found)
        self.patch = {"regions": list(regions_of(found, self.numbering.ids))}
        self.made = self.apply(self.patch)

    def apply(self, wanted: Any, checks: Any = ()) -> patch.Patched:
        return patch.apply(
            self.graph, self.numbering, wanted, "abc", self.preserve, self.types, checks
        )

    @property
    def origins(self) -> dict[str, str]:
        names = {number: name for name, number in self.numbering.ids.items()}
        added = [one for region in self.patch["regions"] for one in region["add"]]
        return {f"stitch/abc/{one['name']}": names[one["device_of"]] for one in added}


def best(run: Callable[[], object], times: int = 5) -> float:
    found = []
    for _ in range(times):
        start = time.thread_time()
        run()
        found.append(time.thread_time() - start)
    return min(found)


def line(name: str, graph: Any, nodes: int) -> str:
    one = Patched(graph)
    whole = Patched(tiled(graph, -(-nodes // len(one.made.graph.node))))
    original = structure.Original(whole.graph)
    result, origins = whole.made.graph, whole.origins
    faults = structure.check(original, result, whole.types, origins)
    once = best(lambda: structure.Original(whole.graph))
    checked = best(lambda: structure.check(original, result, whole.types, origins))
    applied = best(lambda: whole.apply(whole.patch), 2)
    return (
        f"{name}: {len(whole.graph.node):,} nodes, {len(result.node):,} patched, "
        f"{len(whole.patch['regions'])} regions, {len(whole.made.taken_back)} taken back, "
        f"{len(faults)} faults; original {once * 1e3:.0f} ms, check {checked * 1e3:.0f} ms, "
        f"apply {applied * 1e3:.0f} ms"
    )


def main(nodes: int) -> None:
    steps = {path: captured(path) for path in CAPTURED} | {"a loop": loop_step()}
    for name, graph in steps.items():
        print(line(name, graph, nodes))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
