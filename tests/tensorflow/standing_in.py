"""Patches of graphs without compiling: constants stand in for what regions compute.

Nothing is read, so what a patched graph waits for it waits for by control edges: an order, a frame
or a branch that a patch loses shows when the graph is checked or run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import tensorflow as tf

from stitchcore.hlo.ir.literal import Literal
from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.inject import digest
from stitchcore.inject import patch as job_patch
from stitchcore.launch.place import Constant
from stitchcore.launch.region_program import RegionProgram, Result
from stitchcore.tensorflow.graph import Edge
from stitchcore.tensorflow.lower import subgraph
from stitchcore.tensorflow.node_roles import value_like
from stitchcore.tensorflow.partition import Partition, Region
from stitchcore.tensorflow.patch import patch


def stood_in(
    cut: Partition, value: float = 0.5, chosen: Callable[[Region], bool] = lambda region: True
) -> Any:
    """The graph with constants of `value` for the chosen regions, of which none is at fault."""
    done = attempted(cut, value, chosen)
    assert not done.taken_back, done.taken_back
    return done.graph


def attempted(
    cut: Partition, value: float = 0.5, chosen: Callable[[Region], bool] = lambda region: True
) -> job_patch.Patched:
    """The same, and what the job's check of the whole takes back. Raises Refused(STRUCTURE)."""
    picked = [region for region in cut.regions if chosen(region)]
    written, _ = patch(cut, [(r, subgraph(cut, r), _constants(cut, r, value)) for r in picked])
    plain = msgspec.json.decode(msgspec.json.encode(written))
    numbering = digest.number(cut.request, cut.preserve)
    types = {
        node.name: [tf.as_dtype(name).as_datatype_enum for name in names if name]
        for node, names in zip(cut.graph.nodes, cut.graph.output_types, strict=True)
    }
    return job_patch.apply(cut.request, numbering, plain, "test", cut.preserve, types)


def _constants(cut: Partition, region: Region, value: float) -> RegionProgram:
    written = [value_like(cut.graph, update) for update in region.updates.values()]
    return RegionProgram((), tuple(_constant(cut, e, value) for e in (*region.results, *written)))


def _constant(cut: Partition, tensor: Edge, value: float) -> Result:
    name, shape = cut.graph.dtype(tensor), cut.graph.shape(tensor)
    assert shape is not None
    dims = tuple(size if size >= 0 else 1 for size in shape)
    kind = next(
        k for k, d in DTYPES.items() if np.dtype(d.numpy) == tf.as_dtype(name).as_numpy_dtype
    )
    data = np.full(dims, value).astype(DTYPES[kind].numpy)
    return Result(Constant(Literal(kind, dims, data.tobytes())), dims)
