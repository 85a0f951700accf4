"""Small requests as the gateway publishes them: real graphs, real keys."""

from __future__ import annotations

import json
from typing import Any

from stitchcore.artifact.keys import request_key
from stitchcore.artifact.store import Store
from stitchcore.device.host import host
from stitchcore.inject import digest
from tests import lean

TF = "2.21"


def tiny_graph(rows: int = 2048, columns: int = 512) -> Any:
    """A GraphDef of a few elementwise operations, with shapes, as Grappler would show it."""
    import tensorflow as tf

    graph = tf.Graph()
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, [rows, columns], name="x")
        y = tf.compat.v1.placeholder(tf.float32, [rows, columns], name="y")
        z = tf.nn.relu(x * y + 1.5) - y * 0.25
        tf.identity(z * z, name="result")
    return graph.as_graph_def(add_shapes=True)


def meta_of(graph: Any, **changes: Any) -> dict[str, Any]:
    """meta.json of a graph for this machine."""
    preserve = ["result"]
    numbering = digest.number(graph, preserve)
    meta = {
        "digest": numbering.digest,
        "tf": "2.21.0",
        "target": host().target,
        "threads": 2,
        "abi": 1,
        "preserve": preserve,
        "xla": False,
        "deterministic": False,
    }
    return {**meta, **changes}


def key_of(graph: Any, meta: dict[str, Any]) -> str:
    numbering = digest.number(graph, meta["preserve"])
    kept = [numbering.ids[name] for name in meta["preserve"]]
    tf = ".".join(meta["tf"].split(".")[:2])
    flags = meta["xla"], meta["deterministic"]
    return request_key(
        numbering.digest, meta["target"], tf, meta["abi"], kept, *flags, meta.get("tenant", "")
    )


def submit(store: Store, graph: Any, meta: dict[str, Any] | None = None, key: str = "") -> str:
    """Publish a request; its key."""
    meta = meta or meta_of(graph)
    key = key or key_of(graph, meta)
    files = {
        "graph.pb": graph.SerializeToString(deterministic=True),
        "meta.json": json.dumps(meta).encode(),
    }
    store.publish(files, "meta.json", "requests", key)
    return key


def python_path() -> str:
    """For processes of the service that tests start."""
    return ":".join(lean.SOURCES)
