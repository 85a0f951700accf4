"""What a guard of a launch costs the host: the same step with none and with thousands.

    python -m bench.guards

The step's launches are those of a small job on the CPU; guards are checked by the same lines of the
plug-in where a launch is a GPU's. Steps with no guards and with COPIES of each alternate; the least
of each counts, as what else runs on the machine only adds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

COPIES, ROUNDS, CALLS = 2000, 40, 100


def steps(graph: Any) -> Callable[[], Any]:
    """A call of one step of the patched graph, in a session of one thread."""
    import numpy as np
    import tensorflow as tf

    handle = next(node.name for node in graph.node if node.op == "VarHandleOp")
    config = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=1, inter_op_parallelism_threads=1
    )
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    with tf.Graph().as_default() as whole:
        session = tf.compat.v1.Session(config=config, graph=whole)
        tf.import_graph_def(graph, name="")
        resource = whole.get_tensor_by_name(f"{handle}:0")
        session.run(tf.raw_ops.AssignVariableOp(resource=resource, value=np.zeros(64, np.float32)))
        fetched = ["result:0", whole.get_operation_by_name("update")]
        call = session.make_callable(fetched, feed_list=["x:0"])
    return lambda: call(np.ones((8, 64), np.float32))


def made(copies: int) -> tuple[Callable[[], Any], int]:
    """The step with `copies` of each guard, and how many guards that are."""
    from stitchcore.tensorflow.patch import _RegionPatch
    from tests.tensorflow import test_fallback

    original, counts = _RegionPatch._symbols, []

    def copied(self: Any, launch: Any, node: Any) -> Any:
        symbols, guards = original(self, launch, node)
        counts.append(copies * len(guards))
        return symbols, guards * copies

    with mock.patch.object(_RegionPatch, "_symbols", copied):
        patched = test_fallback.stitched(test_fallback.step(8)).graph
    return steps(patched), sum(counts)


def main() -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    (none, _), (many, count) = made(0), made(COPIES)
    least = {none: float("inf"), many: float("inf")}
    for _ in range(ROUNDS):
        for call in least:
            begin = time.perf_counter()
            for _ in range(CALLS):
                call()
            least[call] = min(least[call], (time.perf_counter() - begin) / CALLS)
    print(f"{(least[many] - least[none]) / count * 1e9:.0f} ns a guard, of {count}")


if __name__ == "__main__":
    main()
