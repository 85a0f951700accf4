"""The graphs of bench.tiny run whole: kernels and dots in one memory make what numpy makes."""

from __future__ import annotations

import numpy as np
import pytest

from bench import tiny, whole
from stitchcore.compiler.stages import BuildOptions, compile_module
from stitchcore.device.host import host_device
from stitchcore.hlo.evaluator.evaluate import evaluate
from stitchcore.verify.inputs import plausible


@pytest.mark.parametrize(
    ("name", "kernels", "calls"), [("recommender", 3, 5), ("segment_sums", 1, 1)]
)
def test_a_graph_runs_whole_again_and_again(name: str, kernels: int, calls: int) -> None:
    """Lookups before the first dot, the loss between, sums by row after the last."""
    module = tiny.graph(name)
    given = plausible(module, {}, 0, integers=200)
    made = whole.bind(compile_module(module, host_device(), BuildOptions()), given, 1)
    assert (made.kernels, len(made.calls)) == (kernels, calls)
    for _ in range(2):
        made.run()
        expected = evaluate(module, given)
        for ours, theirs in zip(made.outputs, expected, strict=True):
            assert tiny.difference(ours, np.asarray(theirs)) < 2e-6
