"""Runs a graph as it is and as an artifact says, by the runtime's own code; prints how far apart.

    python -m tests.cluster.judge_artifact ARTIFACT NATIVE PUBLIC_KEY

The graph is tests.worker.requests.tiny_graph; ARTIFACT and NATIVE are folders. Prints JSON: the
largest difference, the magnitude, and the operations of the patched graph.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import tensorflow as tf

from stitchcore.inject import client, digest, patch, plugin, program, target
from tests.worker.requests import tiny_graph


def main(artifact: str, folder: str, public_key: str) -> None:
    """Verified as a job does."""
    native = plugin.load(folder, (2, 21))
    graph, preserve = tiny_graph(), ["result"]
    numbering = digest.number(graph, preserve)
    machine = target.detect(target.cpu_flags())
    trusted = (bytes.fromhex(public_key),)
    expected = client.Expected("2.21", machine, trusted, native.verify)
    found = client.verified(client.reader(artifact), numbering.digest, expected)
    program.load_kernels(native, found)
    types = {node.name: [int(tf.float32.as_datatype_enum)] for node in graph.node}
    prefix = found.key[:12]
    made = patch.apply(graph, numbering, found.manifest["patch"], prefix, preserve, types)
    changed = made.graph
    untouched, stitched = (values(one) for one in (graph, changed))
    print(
        json.dumps(
            {
                "difference": float(np.max(np.abs(untouched - stitched))),
                "magnitude": float(np.max(np.abs(untouched))),
                "operations": sorted({node.op for node in changed.node}),
            }
        )
    )


def values(graph_def: Any) -> np.ndarray[Any, Any]:
    random = np.random.RandomState(0)
    fed = {f"{name}:0": random.randn(2048, 512).astype("f") for name in ("x", "y")}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.import_graph_def(graph_def, name="")
        return np.asarray(session.run("result:0", fed))


if __name__ == "__main__":
    main(*sys.argv[1:])
