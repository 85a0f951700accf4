"""Optimizers' dense updates are values in a region, with TensorFlow's own arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="pip install tensorflow-cpu")

import tensorflow as tf

from stitchcore.hlo.evaluator.evaluate import evaluate
from stitchcore.tensorflow.lower import lower, subgraph
from stitchcore.tensorflow.partition import partition
from stitchcore.tensorflow.updates import SLOTS, UPDATES
from tests.tensorflow.graphs import pruned

SHAPE = (48, 40)
SCALARS = {
    "ResourceApplyAdam": {"beta1_power": 0.729, "beta2_power": 0.997, "lr": 0.02, "beta1": 0.9,
                              "beta2": 0.999, "epsilon": 1e-7},
    "ResourceApplyGradientDescent": {"alpha": 0.1},
    "ResourceApplyMomentum": {"lr": 0.1, "momentum": 0.9},
    "ResourceApplyKerasMomentum": {"lr": 0.1, "momentum": 0.9},
    "ResourceApplyAdagrad": {"lr": 0.1},
    "ResourceApplyAdagradV2": {"lr": 0.1, "epsilon": 1e-3},
    "ResourceApplyRMSProp": {"lr": 0.1, "rho": 0.9, "momentum": 0.8, "epsilon": 1e-3},
    "ResourceApplyCenteredRMSProp": {"lr": 0.1, "rho": 0.9, "momentum": 0.8, "epsilon": 30.0},
    "ResourceApplyAdadelta": {"lr": 0.5, "rho": 0.9, "epsilon": 1e-3},
    "ResourceApplyAdaMax": {"beta1_power": 0.729, "lr": 0.02, "beta1": 0.9, "beta2": 0.8,
                            "epsilon": 1e-3},
}  # fmt: skip
HANDLES = {
    "ResourceApplyAdam": ("var", "m", "v"),
    "ResourceApplyGradientDescent": ("var",),
    "ResourceApplyMomentum": ("var", "accum"),
    "ResourceApplyKerasMomentum": ("var", "accum"),
    "ResourceApplyAdagrad": ("var", "accum"),
    "ResourceApplyAdagradV2": ("var", "accum"),
    "ResourceApplyRMSProp": ("var", "ms", "mom"),
    "ResourceApplyCenteredRMSProp": ("var", "mg", "ms", "mom"),
    "ResourceApplyAdadelta": ("var", "accum", "accum_update"),
    "ResourceApplyAdaMax": ("var", "m", "v"),
}


def step(operation: str, flag: bool) -> tuple[Any, dict[str, Any], str, str]:
    """A graph that computes a gradient and updates variables with it."""
    graph = tf.Graph()
    generator = np.random.default_rng(5)
    with graph.as_default():
        variables = {
            name: tf.Variable(np.abs(generator.normal(size=SHAPE)).astype(np.float32))
            for name in HANDLES[operation]
        }
        x = tf.constant(generator.normal(size=(16, SHAPE[0])).astype(np.float32))
        y = tf.constant(generator.normal(size=(16, SHAPE[1])).astype(np.float32))
        gradient = tf.tanh(tf.matmul(x, y, transpose_a=True)) * 0.5
        arguments: dict[str, Any] = {k: v.handle for k, v in variables.items()}
        arguments |= {k: tf.constant(v, tf.float32) for k, v in SCALARS[operation].items()}
        arguments["delta" if "Descent" in operation else "grad"] = gradient
        if UPDATES[operation].flag:
            arguments[UPDATES[operation].flag] = flag
        update = getattr(tf.raw_ops, operation)(**arguments)
        initializer = tf.compat.v1.global_variables_initializer()
    return graph, variables, update.name, initializer.name


@pytest.mark.parametrize(
    ("operation", "flag"),
    [(name, flag) for name in sorted(UPDATES) for flag in {bool(UPDATES[name].flag), False}],
)
def test_new_values_are_tensorflows(operation: str, flag: bool) -> None:
    graph, variables, update, initializer = step(operation, flag)
    cut = partition(pruned(graph, [update]), [update])
    (region,) = cut.regions
    assert len(region.updates) == len(variables)
    function = subgraph(cut, region)
    names = {a.tensor: cut.graph.nodes[a.tensor.node].name for a in function.arguments}
    with graph.as_default(), tf.compat.v1.Session() as session:
        session.run(initializer)
        reads = {v.handle.op.name: tf.raw_ops.ReadVariableOp(resource=v.handle, dtype=tf.float32)
                 for v in variables.values()}  # fmt: skip
        before = session.run(reads)
        wanted = [f"{names[a.tensor]}:{a.tensor.port}" for a in function.arguments
                  if not a.variable]  # fmt: skip
        tensors, _ = session.run([{name: name for name in wanted}, update])
        after = session.run(reads)
    arrays = [
        before[names[a.tensor]] if a.variable else tensors[f"{names[a.tensor]}:{a.tensor.port}"]
        for a in function.arguments
    ]
    results = evaluate(lower(function, region.name).module, arrays)[len(region.results) :]
    for handle, have in zip(region.updates, results, strict=True):
        name = cut.graph.nodes[handle.node].name
        if flag or UPDATES[operation].flag != SLOTS or name != variables["accum"].handle.op.name:
            assert not np.array_equal(before[name], after[name])
        ulp = float(np.spacing(np.abs(after[name]).max()))
        np.testing.assert_allclose(have, after[name], rtol=1e-6, atol=ulp)


def test_an_update_with_a_sparse_variable_stays_outside() -> None:
    graph, variables, update, _ = step("ResourceApplyMomentum", False)
    with graph.as_default():
        rows = tf.raw_ops.ResourceGather(
            resource=variables["accum"].handle, indices=tf.constant([1, 2]), dtype=tf.float32
        )
    cut = partition(pruned(graph, [update, rows.op.name]), [update])
    assert not any(region.updates for region in cut.regions)
    number = cut.graph.number[update]
    assert all(number not in region.members for region in cut.regions)
